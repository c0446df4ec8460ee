use std::fs;

use partywall_core::catalogue::Catalogue;

use super::super::{Compared, Effort, WallError, read, simulate, summarise};
use super::*;

fn recorded(name: &str) -> String {
    let path = format!("{}/../../results/h200/sides/{name}.json", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn compared(name: &str) -> Vec<Compared> {
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
    let pairs = read(&recorded(name), name).unwrap().pairs;
    let one = |pair| simulate(pair, gpu, &Params::default(), Effort::default()).unwrap();
    pairs.iter().map(one).collect()
}

fn errors(name: &str) -> WallError {
    summarise(&compared(name)).remove(0)
}

/// What the parameters of `sides` were found on, and neighbours held below what fills their side, which they were not.
#[test]
fn errors_stay_where_they_were_found() {
    for (name, pairs, median, largest) in [
        ("interfere-requests", 32, 0.12, 0.44),
        ("sms", 80, 0.04, 0.46),
        ("interfere-held-97", 32, 0.03, 0.10),
        ("interfere-held", 32, 0.03, 0.10),
        ("interfere-held-98", 32, 0.03, 0.12),
    ] {
        let found = errors(name);
        assert_eq!((found.wall, found.n), (Wall::Sides, pairs), "{name}");
        assert!(found.median_error_p50 < median && found.max_error_p50 < largest, "{name}: {found:?}");
        // A side moves half of what a copy moves on the whole GPU; readers were measured to get a tenth more.
        assert!(found.median_error_be_rate.unwrap() < 0.1, "{name}: {found:?}");
    }
}

#[test]
fn without_a_neighbour_a_request_takes_what_it_took_alone() {
    let text = recorded("interfere-held");
    let alone: Record = serde_json::from_str(&text).unwrap();
    let recording = read(&text, "r.json").unwrap();
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
    for (pair, row) in recording.pairs.iter().zip(&recording.cells).take(8) {
        let pair = Pair { be: None, ..pair.clone() };
        let found = simulate(&pair, gpu, &Params::default(), Effort::default()).unwrap().p50_ms * 1e3;
        let measured = alone.rows[*row].alone.p50_us;
        assert!((found / measured - 1.0).abs() < 0.005, "{found} us, {measured} measured");
    }
}

#[test]
fn what_cannot_be_compared_is_named() {
    let why = |name: &str| {
        let left_out = read(&recorded(name), name).unwrap().left_out;
        left_out.into_iter().map(|row| row.why).collect::<Vec<_>>()
    };
    let count = |why: &[String], text: &str| why.iter().filter(|reason| reason.contains(text)).count();
    let knee = why("knee");
    assert_eq!((count(&knee, "both sides"), count(&knee, "other than 1024 threads")), (48, 42));
    assert_eq!(count(&why("six-loads"), "is not known of `mixed`"), 2);
    assert_eq!(count(&why("fits-l2"), "no launches"), 4);
    let many = recorded("interfere-held").replacen("\"launches\": 4", "\"launches\": 400", 1);
    let shortest = read(&many, "r.json").unwrap().left_out;
    assert!(shortest.iter().any(|row| row.why.contains("launches as short")), "{shortest:?}");
}

#[test]
fn damaged_records_are_refused() {
    let text = recorded("interfere-held");
    let refused = |from: &str, to: &str| {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        read(&changed, "r.json").expect_err(to).to_string()
    };
    let rehearsal = refused("\"simulated\": false", "\"simulated\": true");
    assert!(rehearsal.ends_with("expected a real measurement"), "{rehearsal}");
    let other = refused("\"NVIDIA H200\"", "\"NVIDIA X\"");
    assert_eq!(
        other,
        "r.json: was measured on `NVIDIA X`; how many SMs fill a side is known of `NVIDIA H200` only"
    );
    assert!(refused("\"launches\": 4", "\"launches\": 0").contains("one launch"));
    let long = refused("\"launches\": 4", "\"launches\": 4000000");
    assert!(long.contains("at most 1000 launches"), "{long}");
    let negative = refused("\"p50_us\": ", "\"p50_us\": -");
    assert!(negative.starts_with("r.json: rows[0]: times and rates are"), "{negative}");
    assert!(refused("\"rows\"", "\"lines\"").contains("missing field `rows`"));
}
