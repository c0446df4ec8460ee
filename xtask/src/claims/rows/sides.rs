//! Records of `partywall vram map` and `vram interfere`: `sides.<figure>`, with `paired` before it where tenants share pages, `filling` where
//! neighbours take all that their side has instead of being held (`--held`), and `uncolored` behind it for the same SM sets without colors.

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
    Some(vec![
        entry(
            "map_s",
            format!("sides of all free memory of an {gpu}, with the check"),
            "s",
            "lower",
            "/took_s",
        ),
        entry("map_gib", format!("free memory of an {gpu} whose sides were found"), "GiB", "higher", "/gib"),
        entry(
            "wrong_probes",
            format!("fresh addresses of an {gpu}, of {checked}, that are on another side than the map says"),
            "1",
            "lower",
            "/sides/wrong",
        ),
    ])
}

/// Nothing where it does not have neighbours on sides.
pub(super) fn of_neighbours(record: &Value) -> Option<Vec<Entry>> {
    let summary = record["summary"].as_object().filter(|summary| summary.contains_key("colored"))?;
    let paired = if record["pages"] == "paired" { "paired." } else { "" };
    let held = held(record);
    let (filling, who) = match held {
        Some(_) => ("", "a held neighbour"),
        None => ("filling.", "a neighbour that fills its side"),
    };
    let mut entries = Vec::new();
    for (view, suffix, how) in [
        ("colored", "", "each on its side of the chip"),
        ("uncolored", ".uncolored", "on the same SMs, data on both sides"),
    ] {
        for work in ["long", "short", "graph"].into_iter().filter(|work| summary[view][*work].is_object()) {
            let doing = doing(work, record)?;
            // Without colors it is not launches that wait.
            let figures = FIGURES.into_iter().filter(|(.., unit)| view == "colored" || *unit == "ratio");
            entries.extend(figures.map(|(figure, id, what, unit)| Entry {
                id: format!("sides.{paired}{filling}{work}.{id}{suffix}"),
                what: format!("{doing} beside {who}, {how}: {what}"),
                unit,
                better: "lower",
                pointer: format!("/summary/{view}/{work}/{figure}"),
            }));
        }
        entries.push(Entry {
            id: format!("sides.{paired}{filling}be_kept_min{suffix}"),
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
