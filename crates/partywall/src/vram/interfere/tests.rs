use serde_json::json;

use super::fewest;
use super::record::{Record, Row, Summary, hold_against_most};
use super::text::text;
use crate::vram::known::CacheUse;
use crate::vram::talk::{Measured, Ready, Requests, View, Work};

fn row(view: View, work: Work, load: &str, (p50, p99): (f64, Option<f64>), kept: f64) -> Row {
    let alone = Measured {
        count: 5_000,
        p50_us: 100.0,
        p99_us: p99.map(|_| 110.0),
        max_us: 200.0,
        host_p50_us: None,
        host_p99_us: None,
    };
    Row {
        view,
        work,
        threads_per_sm: 512,
        code_place: 0,
        load: load.to_owned(),
        load_sms: 66,
        load_threads_per_sm: 1_024,
        alone,
        beside: Measured { p50_us: 100.0 * p50, ..alone },
        interference_p50: p50,
        interference_p99: p99,
        added_us_per_launch: (work != Work::Long).then_some(100.0 * (p50 - 1.0) / 4.0),
        load_alone_gb_s: 2_000.0,
        load_beside_gb_s: 2_000.0 * kept,
        load_kept: kept,
        load_most_gb_s: 2_000.0,
        load_kept_of_most: kept,
    }
}

fn rows() -> Vec<Row> {
    use View::{Colored, Uncolored};
    vec![
        row(Colored, Work::Long, "read", (1.0, Some(1.01)), 1.0),
        row(Colored, Work::Long, "mixed", (1.02, Some(1.0)), 0.98),
        row(Colored, Work::Short, "read", (1.5, Some(1.6)), 0.99),
        row(Colored, Work::Short, "mixed", (1.4, None), 0.99),
        row(Uncolored, Work::Long, "read", (2.0, Some(2.5)), 0.6),
    ]
}

fn record(rows: Vec<Row>) -> Record {
    let ready =
        Ready { sms: 66, data_bytes: 64 << 20, arena_bytes: 66 << 20, pages: 66, lost_bytes: 0, took_s: 0.2 };
    Record {
        gpu: "NVIDIA H200".to_owned(),
        simulated: false,
        command: "partywall vram interfere --json".to_owned(),
        cache: CacheUse::Used,
        mask: 0xab000,
        pages: "private".to_owned(),
        request: Requests { launches: 4, bytes: 8 << 20 },
        tenant: ready.clone(),
        neighbour: ready,
        copied_bytes: 128 << 20,
        summary: Summary::of(&rows),
        rows,
        took_s: 9.0,
    }
}

#[test]
fn the_summary_has_the_worst_of_each_work_and_view() {
    let long = |p50: f64, p99: f64| json!({"interference_p50_max": p50, "interference_p99_max": p99, "added_us_per_launch_max": null});
    // One row of short requests has no p99, so nothing can be said of all.
    let short =
        json!({"interference_p50_max": 1.5, "interference_p99_max": null, "added_us_per_launch_max": 12.5});
    let expected = json!({
        "colored": {"long": long(1.02, 1.01), "short": short, "graph": null, "load_kept_min": 0.98, "load_kept_of_most_min": 0.98},
        "uncolored": {"long": long(2.0, 2.5), "short": null, "graph": null, "load_kept_min": 0.6, "load_kept_of_most_min": 0.6},
    });
    assert_eq!(serde_json::to_value(Summary::of(&rows())).unwrap(), expected);
    let paired: Vec<Row> = rows().into_iter().filter(|row| row.view == View::Colored).collect();
    assert_eq!(Summary::of(&paired).uncolored, None);
}

#[test]
fn the_text_has_both_views_side_by_side_and_says_what_was_found() {
    let shown = text(&record(rows()));
    let lines: Vec<&str> = shown.lines().collect();
    let line = |begin: &str| {
        let found = lines.iter().find(|line| line.trim_start().starts_with(begin));
        found.unwrap_or_else(|| panic!("{begin} in {shown}")).split_whitespace().collect::<Vec<_>>()
    };
    // p99 where all have one, medians elsewhere; what was not measured is a dash.
    assert_eq!(line("read"), ["read", "1.01", "2.50"]);
    assert_eq!(line("mixed"), ["mixed", "1.00", "-"]);
    assert!(shown.contains("short: requests of 4 launches of 8MiB; medians"), "{shown}");
    assert!(shown.contains("long: passes over 64MiB in one launch; p99"), "{shown}");
    assert!(
        shown.contains("each on its side: passes take at most 1.01 times as long")
            && shown.contains("requests 1.50 (medians), 12.5 us more for each launch")
            && shown.contains("the neighbour keeps at least 0.98")
            && shown.contains("the same SMs, data anywhere: passes take at most 2.50 times as long"),
        "{shown}"
    );
    assert!(lines.iter().all(|line| line.chars().count() <= 120), "{shown}");
}

#[test]
fn neighbours_of_several_intensities_and_code_in_several_places_have_lines_of_their_own() {
    let mut rows = rows();
    let other = Row { load_threads_per_sm: 128, ..rows[0].clone() };
    rows.push(other);
    rows.push(Row { code_place: 1, ..rows[0].clone() });
    let shown = text(&record(rows));
    for begin in ["read, 128 threads, code 0", "read, 1024 threads, code 1", "alone, us, code 1"] {
        assert!(shown.lines().any(|line| line.trim_start().starts_with(begin)), "{begin} in {shown}");
    }
}

#[test]
fn a_neighbour_is_held_to_the_fewest_sms_that_move_enough() {
    // It fills its side with 40 of 66.
    let rate = |sms: u32| Ok::<f64, ()>(2_000.0 * (f64::from(sms) / 40.0).min(1.0));
    for (part, expected) in [(1.0, 40), (0.975, 40), (0.95, 38), (0.5, 20), (0.01, 2)] {
        let mut asked = Vec::new();
        let found = fewest(66, part, &mut |sms| {
            asked.push(sms);
            rate(sms)
        });
        assert_eq!(found, Ok((expected, 2_000.0)), "{part}");
        assert!(asked.len() <= 7, "{asked:?}");
    }
    assert_eq!(fewest(5, 1.0, &mut |sms| Ok::<f64, ()>(f64::from(sms))), Ok((5, 5.0)));
    assert_eq!(fewest(1, 0.1, &mut |_| Err::<f64, &str>("gone")), Err("gone"));
}

#[test]
fn what_a_held_neighbour_keeps_is_of_the_most_that_it_moves() {
    let mut rows = rows();
    rows.truncate(3);
    rows[0].load_most_gb_s = 2_500.0;
    hold_against_most(&mut rows);
    let kept: Vec<f64> = rows.iter().map(|row| row.load_kept_of_most).collect();
    assert_eq!(kept, [0.8, 0.98, 0.792], "the second is another load");
    assert_eq!(Summary::of(&rows).colored.unwrap().load_kept_of_most_min, 0.792);
}
