use serde_json::{Value, json};

use super::{Map, Neighbours};
use crate::report::tests::figures::inside;

const SLICES: &[u8] = include_bytes!("../../../../../results/h200/slices-16-pages.bin");

fn map(sides: Value) -> Vec<(String, String)> {
    let record = json!({"gpu": "NVIDIA H200", "simulated": false, "took_s": 0.5, "sides": sides});
    let map: Map = serde_json::from_value(record).unwrap();
    let pictures = map.pictures(SLICES);
    pictures.iter().for_each(|(_, svg)| inside(svg));
    pictures
}

fn sides(latencies: Value) -> Value {
    json!({"mask": 0xab000, "granularity_bytes": 4096, "groups": "0110".repeat(16), "sms_per_group": 2,
        "pages": "01".repeat(4_000), "checked": 1000, "unsure": 0, "latencies": latencies})
}

fn names(pictures: &[(String, String)]) -> Vec<&str> {
    pictures.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_map_shows_every_group_and_where_the_sides_are_not_known_nothing() {
    let pictures = map(sides(Value::Null));
    assert_eq!(names(&pictures), ["map.svg"]);
    let svg = &pictures[0].1;
    // Groups, pages, and the legend.
    assert_eq!(svg.matches("<rect class=\"sm t-ls\"").count(), 32 + 66 + 1);
    assert_eq!(
        svg.matches("<circle class=\"sm t-0\"").count() + svg.matches("<circle class=\"sm t-1\"").count(),
        192
    );
    assert!(svg.contains("of the first 132 of 8000") && svg.contains("Measured, NVIDIA H200."), "{svg}");
    assert_eq!(names(&map(Value::Null)), Vec::<&str>::new());
}

#[test]
fn latencies_are_shown_where_they_were_recorded_and_what_is_far_off_is_counted() {
    let mut near = vec![10_000, 20_000, 500];
    near.resize(400, 0);
    near.push(3);
    let far = [vec![0; 50], vec![15_000, 16_000]].concat();
    let latencies = json!({"bin_cycles": 4, "from_cycles": 300, "near": near, "far": far, "longer": 2});
    let pictures = map(sides(latencies));
    assert_eq!(names(&pictures), ["map.svg", "latencies.svg"]);
    let svg = &pictures[1].1;
    assert!(
        svg.contains("longer, not shown: 5") && svg.contains("from SMs on the other side: 31000"),
        "{svg}"
    );
    assert!(svg.contains("300 to 304 cycles: 10000"), "{svg}");
    let one = json!({"bin_cycles": 4, "from_cycles": 300, "near": [1], "far": [], "longer": 0});
    assert_eq!(names(&map(sides(one))), ["map.svg"]);
}

fn neighbours(p99: bool, views: &[&str]) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for view in views {
        for work in ["long", "graph"] {
            for (threads, load) in
                [(32, "read"), (1024, "read"), (32, "mixed-evict-first"), (1024, "mixed-evict-first")]
            {
                let factor = if *view == "colored" { 0.99 } else { 2.25 };
                rows.push(json!({"view": view, "work": work, "threads_per_sm": threads, "load": load,
                    "alone": {"count": 200}, "interference_p50": factor, "interference_p99": p99.then_some(factor + 0.25)}));
            }
        }
    }
    let record = json!({"gpu": "NVIDIA H200", "simulated": true, "rows": rows});
    let neighbours: Neighbours = serde_json::from_value(record).unwrap();
    let pictures: Vec<_> = neighbours.picture("interference").into_iter().collect();
    pictures.iter().for_each(|(_, svg)| inside(svg));
    pictures
}

#[test]
fn there_is_a_bar_for_each_row_and_it_says_which_percentile_it_is() {
    for (p99, title, told) in [
        (true, "p99 beside a neighbour", "1024 threads: 2.50"),
        (false, "median beside", "1024 threads: 2.25"),
    ] {
        let pictures = neighbours(p99, &["colored", "uncolored"]);
        assert_eq!(names(&pictures), ["interference.svg"]);
        let svg = &pictures[0].1;
        // Eight of each view, and the legend.
        assert_eq!(svg.matches("<rect class=\"sm w-sides\"").count(), 8 + 1);
        assert_eq!(svg.matches("<rect class=\"sm w-exclusive\"").count(), 8 + 1);
        assert!(svg.contains(title) && svg.contains(told), "{svg}");
        assert!(
            svg.contains("Simulated GPU, not measured") && svg.contains("200 passes or requests a bar"),
            "{svg}"
        );
        assert!(!svg.contains("requests of a few short launches"), "{svg}");
    }
    assert_eq!(neighbours(true, &["colored"]).len(), 1);
    assert_eq!(names(&neighbours(true, &[])), Vec::<&str>::new());
}

#[test]
fn the_knee_has_a_dot_for_each_neighbour_and_work() {
    let mut rows = Vec::new();
    for (load, sms, rate, added) in
        [("read", 66, 2_300.0, 9.8), ("read", 24, 1_900.0, 1.0), ("write-evict-first", 66, 2_300.0, 3.7)]
    {
        for (view, work, threads) in [
            ("colored", "short", 1024),
            ("colored", "graph", 1024),
            ("colored", "long", 1024),
            ("colored", "short", 32),
            ("uncolored", "short", 1024),
        ] {
            let added = (work != "long").then_some(added);
            rows.push(json!({"view": view, "work": work, "threads_per_sm": threads, "load": load, "load_sms": sms,
                "load_threads_per_sm": 512, "alone": {"count": 300}, "interference_p50": 1.5, "interference_p99": null,
                "added_us_per_launch": added, "load_alone_gb_s": rate}));
        }
    }
    let record = |rows| json!({"gpu": "NVIDIA H200", "simulated": false, "rows": rows});
    let neighbours: Neighbours = serde_json::from_value(record(rows)).unwrap();
    let (name, svg) = neighbours.picture("knee").unwrap();
    inside(&svg);
    assert_eq!(name, "knee.svg");
    // Of each three; the legend has four loads and two works.
    assert_eq!(
        (svg.matches("<circle class=\"dot").count(), svg.matches("<circle class=\"ring").count()),
        (3 + 5, 3 + 1)
    );
    assert!(svg.contains("read on 24 SMs, 512 threads: 83 % of the most, 1.00 us"), "{svg}");
    let bars = neighbours.picture("long").unwrap().1;
    assert!(bars.contains("one long launch") && !bars.contains("CUDA graphs"), "{bars}");
    let none: Neighbours = serde_json::from_value(record(Vec::new())).unwrap();
    assert!(none.picture("knee").is_none() && none.picture("long").is_none());
}
