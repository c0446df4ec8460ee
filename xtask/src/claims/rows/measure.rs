//! A record of `partywall measure`: `sm.<ls>.<be>.<wall>.<figure>`, from its `summary`, where names stay when rows move. Behind the wall `sides` it is
//! `sides.net.<ls>.<be>.<figure>`, and `uncolored` behind it where memory is as it is.

use serde_json::{Map, Value};

use super::Entry;

/// The figures of a row: their names in the record, what they are, and which way they get better.
const FIGURES: [(&str, &str, &str); 3] = [
    ("slowdown_p99", "p99 of service times over solo", "lower"),
    ("response_slowdown_p99", "p99 of response times over solo", "lower"),
    ("be_kept", "rate of the best-effort tenant over solo", "higher"),
];

pub(super) fn rows(record: &Value) -> Option<Vec<Entry>> {
    let summary = record["summary"].as_object()?;
    let names = summary.keys().filter(|name| !has_shorter(name, summary));
    let entry = |(name, (figure, what, better)): (&String, (&str, &str, &'static str))| {
        let place = name.replacen('.', " beside ", 1).replacen('.', ", ", 1);
        Entry {
            id: id(name, figure),
            what: format!("{place}: {what}"),
            unit: "ratio",
            better,
            pointer: format!("/summary/{}/{figure}", name.replace('~', "~0").replace('/', "~1")),
        }
    };
    Some(names.flat_map(|name| FIGURES.map(|figure| (name, figure))).map(entry).collect())
}

/// Whether the same row is there by a name without its setting.
fn has_shorter(name: &str, summary: &Map<String, Value>) -> bool {
    name.rsplit_once('.').is_some_and(|(shorter, _)| summary.contains_key(shorter))
}

/// As the ledger wants it.
fn id(name: &str, figure: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = name.replace('+', "-and-").chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    let name = name.to_lowercase();
    let of_sides = |setting| name.strip_suffix(setting).and_then(|name| name.strip_suffix(".sides."));
    match (of_sides("private"), of_sides("plain")) {
        (Some(pair), _) => format!("sides.net.{pair}.{figure}"),
        (_, Some(pair)) => format!("sides.net.{pair}.{figure}.uncolored"),
        _ => format!("sm.{name}.{figure}"),
    }
}
