//! Records of `partywall vram map` and `vram interfere`: `sides.<figure>`, with `paired` before it where tenants share pages, `filling` where
//! neighbours take all that their side has instead of being held (`--held`), and `uncolored` behind it for the same SM sets without colors. It is
//! the other way round for one long launch, which needs no neighbour that is held: `held` where one was.

use serde_json::Value;

use super::Entry;

/// Of a work: names in the record and in the ledger, what they are, and the unit.
const FIGURES: [(&str, &str, &str, &str); 3] = [
    (
        "interference_p99_max",
        "interference_max",
        "p99 over p99 alone in the same partition, the most of all rows",
        "ratio",
    ),
    (
        "interference_p50_max",
        "interference_p50_max",
        "median over median alone in the same partition, the most of all rows",
        "ratio",
    ),
    (
        "added_us_per_launch_max",
        "added_us_per_launch_max",
        "what it adds to the median for each launch, the most of all rows",
        "us",
    ),
];

/// Nothing where it is no map of two sides.
pub(super) fn of_map(record: &Value) -> Option<Vec<Entry>> {
    let checked = record["sides"]["checked"].as_u64()?;
    let gpu = record["gpu"].as_str()?;
    let entry = |id: &str, what: String, unit, better, pointer: &str| Entry {
        id: format!("sides.{id}"),
        what,
        unit,
        better,
        pointer: pointer.to_owned(),
    };
    let mut entries = vec![
        entry("map_gib", format!("free memory of an {gpu} whose sides were found"), "GiB", "higher", "/gib"),
        entry(
            "wrong_probes",
            format!("fresh addresses of an {gpu}, of {checked}, that are on another side than the map says"),
            "1",
            "lower",
            "/sides/wrong",
        ),
    ];
    let (id, found) = match record["cache"].as_str() {
        Some("used") => ("map_again_s", "with what was kept of an earlier map"),
        _ => ("map_s", "found anew"),
    };
    let what =
        format!("sides of all free memory of an {gpu}, {found}, with the check of {checked} fresh addresses");
    entries.push(entry(id, what, "s", "lower", "/took_s"));
    entries.extend(of_slices(&record["slices"], gpu).into_iter().flatten());
    Some(entries)
}

/// Nothing where they were not looked for.
fn of_slices(slices: &Value, gpu: &str) -> Option<[Entry; 2]> {
    let gib = slices["bytes"].as_u64()? as f64 / f64::from(1 << 30);
    let entry = |id: &str, what: String, unit, better, figure: &str| Entry {
        id: format!("sides.{id}"),
        what,
        unit,
        better,
        pointer: format!("/slices/{figure}"),
    };
    let what = format!(
        "fresh pairs of places of an {gpu} held against its map of slices; one that contends otherwise than the map says would have ended the \
         command without a map"
    );
    Some([
        entry(
            "slices_s",
            format!("L2 slices of {gib} GiB of an {gpu}, with the check"),
            "s",
            "lower",
            "took_s",
        ),
        entry("slices_checked", what, "1", "higher", "checked"),
    ])
}

/// Nothing where it does not have neighbours on sides.
pub(super) fn of_neighbours(record: &Value) -> Option<Vec<Entry>> {
    let summary = record["summary"].as_object().filter(|summary| summary.contains_key("colored"))?;
    let (paired, colored) = match record["pages"].as_str() {
        Some("paired") => ("paired.", "each on its side of the same pages"),
        _ => ("", "each on its side of the chip"),
    };
    let held = held(record);
    let who = if held.is_some() { "a held neighbour" } else { "a neighbour that fills its side" };
    let mut entries = Vec::new();
    for (view, suffix, how) in
        [("colored", "", colored), ("uncolored", ".uncolored", "on the same SMs, data on both sides")]
    {
        let works = ["long", "short", "graph"].into_iter().filter(|work| summary[view][*work].is_object());
        let works: Vec<&str> = works.collect();
        for work in &works {
            let (doing, beside) = (doing(work, record)?, beside(work, held));
            // Without colors it is not launches that wait.
            let figures = FIGURES.into_iter().filter(|(.., unit)| view == "colored" || *unit == "ratio");
            entries.extend(figures.map(|(figure, id, what, unit)| Entry {
                id: format!("sides.{paired}{beside}{work}.{id}{suffix}"),
                what: format!("{doing} beside {who}, {how}: {what}"),
                unit,
                better: "lower",
                pointer: format!("/summary/{view}/{work}/{figure}"),
            }));
        }
        // What all works together say, but for one long launch by itself.
        let beside = match *works {
            ["long"] => format!("{}long.", beside("long", held)),
            _ => beside("short", held).to_owned(),
        };
        entries.push(Entry {
            id: format!("sides.{paired}{beside}be_kept_min{suffix}"),
            what: match held {
                Some(percent) => format!(
                    "rate of a neighbour on the fewest SMs that move {percent} % of the most over the most that it moves alone on its half, {how}, the \
                     least of all rows"
                ),
                None => format!(
                    "rate of a neighbour that never pauses over its rate alone on its half, {how}, the least of all rows"
                ),
            },
            unit: "ratio",
            better: "higher",
            pointer: format!("/summary/{view}/{}", if held.is_some() { "load_kept_of_most_min" } else { "load_kept_min" }),
        });
    }
    Some(entries)
}

/// What the neighbour does, where it is not what goes without saying.
fn beside(work: &str, held: Option<&str>) -> &'static str {
    match (work, held) {
        ("long", None) => "",
        ("long", Some(_)) => "held.",
        (_, None) => "filling.",
        (_, Some(_)) => "",
    }
}

/// Per cent of the most that neighbours were held to.
fn held(record: &Value) -> Option<&str> {
    record["command"].as_str()?.split_once("--held ")?.1.split(' ').next()
}

fn doing(work: &str, record: &Value) -> Option<String> {
    let mib = |bytes: &Value| Some(bytes.as_u64()? as f64 / f64::from(1 << 20));
    let (launches, bytes) = (&record["request"]["launches"], mib(&record["request"]["bytes"])?);
    Some(match work {
        "long" => format!("passes over {} MiB in one launch", mib(&record["tenant"]["data_bytes"])?),
        "short" => format!("requests of {launches} launches of {bytes} MiB"),
        _ => format!("requests of {launches} launches of {bytes} MiB as CUDA graphs"),
    })
}
