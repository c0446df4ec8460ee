#!/bin/sh
# Checks and measures sides on a real GPU, in about six minutes: the map found anew and used again, the slices of the L2, then what neighbours do to each other
# with pages of their own, also held just below what fills their side, and with shared ones. Results go, as JSON, into the folder that is given; the exit status is not 0 if anything was wrong.
#
#     workloads/sides/measure.sh target/release/partywall results/h200/sides
#
# More arguments go to all measurements of neighbours: `--requests 200` for a quick look.
set -eu

partywall=$1
folder=$2
shift 2
mkdir -p "$folder"

"$partywall" vram map --fresh --json > "$folder/map.json"
"$partywall" vram map --json > "$folder/map-again.json"
if ! grep -q '"cache": "used"' "$folder/map-again.json"; then
    echo "the second map did not use what the first found" >&2
    exit 1
fi
"$partywall" vram map --slices 1GiB --json > "$folder/slices.json"
"$partywall" vram interfere --work long --json "$@" > "$folder/interfere-long.json"
"$partywall" vram interfere --work short,graph --json "$@" > "$folder/interfere-requests.json"
"$partywall" vram interfere --work short,graph --held 97.5 --json "$@" > "$folder/interfere-held.json"
"$partywall" vram interfere --work long,short --pages paired --json "$@" > "$folder/interfere-paired.json"
echo "all of it went well: $folder"
