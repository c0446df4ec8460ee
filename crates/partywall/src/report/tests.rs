//! Reports made by hand, one made by the simulator, and reports of odd data.

use partywall_core::tenant::Class;
use partywall_core::units::{Nanos, SmCount};
use partywall_core::wall::Wall;
use partywall_sim::experiment::{CellResult, TenantResult};
use partywall_sim::metrics::Percentiles;
use partywall_sim::metrics::Timeline;
use partywall_sim::validate::WallError;

use super::{Origin, Report, Section};

pub(super) mod figures;
mod real;

/// A tenant with `n` requests of which half take `p50` ms.
fn tenant(name: &str, class: Class, n: u64, p50: f64, p99: f64) -> TenantResult {
    let of = |p50: f64, p99: f64| Percentiles {
        n,
        p50_ms: Some(p50),
        p90_ms: Some(p50),
        p99_ms: Some(p99),
        p999_ms: None,
        max_ms: Some(p99),
        mean_ms: Some(p50),
    };
    TenantResult {
        name: name.to_owned(),
        class,
        placed: "66 SMs".to_owned(),
        service: of(p50, p99),
        response: of(p50, p99),
        solo: of(1.0, 1.25),
        partition: of(p50, p99),
        slowdown_p99: Some(p99 / 1.25),
        capacity_cost: Some(1.0),
        interference: Some(1.0),
        slo_miss_rate: (class == Class::LatencySensitive).then_some(0.0125),
        rate_per_s: 812.4,
        unit: "images".into(),
        kept: Some(0.625),
        saturated: false,
        lost: 0,
        sms_mean: 20.0,
        cdf: vec![(p50, 0.25), (p50, 0.5), (p99, 0.99), (p99, 1.0)],
    }
}

fn cell(wall: Wall, p50: f64, p99: f64) -> CellResult {
    CellResult {
        wall,
        copies: "copy-fifo",
        tenants: vec![
            tenant("detector", Class::LatencySensitive, 5_000, p50, p99),
            tenant("nightly", Class::BestEffort, 5_000, 40.0, 80.0),
        ],
        power_w: 400.0,
        clock_mhz: 1980.0,
        clock_min_mhz: 1980.0,
        throttled: 0.0,
        kernels: 1,
        timeline: Some(Timeline {
            from: Nanos::ZERO,
            bin: Nanos::from_micros(100),
            sms: vec![vec![132.0, 0.0, 66.0], vec![0.0, 132.0, 66.0]],
        }),
    }
}

/// Four walls: one without best-effort work, one validated, one saturated, one that is not on this GPU.
fn report() -> Report {
    let mut saturated = cell(Wall::TimeSlicing, 3.0, 90.0);
    saturated.tenants[0].saturated = true;
    saturated.tenants[0].slowdown_p99 = None;
    let mut exclusive = cell(Wall::Exclusive, 1.0, 1.25);
    exclusive.tenants[1].kept = None;
    exclusive.tenants[1].service = Percentiles::default();
    Report {
        title: "Two tenants on one GPU".to_owned(),
        gpu_id: "h200".to_owned(),
        gpu_name: "NVIDIA H200".to_owned(),
        sms: SmCount(132),
        origin: Origin::Simulated,
        seed: 7,
        command: "partywall demo --seed 7".to_owned(),
        sources: vec!["SMs: counted".to_owned()],
        sections: vec![Section {
            id: "detector-nightly".to_owned(),
            title: "detector beside nightly".to_owned(),
            description: "Bursts of requests beside endless work.".to_owned(),
            ls: 0,
            be: Some(1),
            objective: Some(Nanos::from_millis(5)),
            cells: [exclusive, saturated, cell(Wall::Mps, 2.0, 80.0), cell(Wall::Partywall, 1.0, 1.3)]
                .map(super::Cell::from)
                .into(),
            unavailable: vec![(Wall::Mig, "this part has no MIG".to_owned())],
            lost: Vec::new(),
        }],
        errors: vec![WallError {
            wall: Wall::Mps,
            n: 16,
            median_error_p50: 0.0625,
            p90_error_p50: 0.125,
            max_error_p50: 0.125,
            median_error_p99: Some(0.25),
            median_error_be_rate: None,
            alone_n: 0,
            alone_median_error_p50: None,
            be_alone_n: 0,
            be_alone_median_error_rate: None,
        }],
        errors_source: "pairs.csv".to_owned(),
        measured_on: "h200".to_owned(),
    }
}

#[test]
fn numbers_of_another_gpu_are_not_validated() {
    let mut report = report();
    assert!(report.rows().iter().any(|row| row.validated));
    report.gpu_id = "l4".to_owned();
    assert!(report.rows().iter().all(|row| !row.validated));
}

#[test]
fn json_has_the_agreed_rows() {
    let json = report().json();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["gpu"], "h200");
    assert_eq!(value["simulated"], true);
    assert_eq!(value["seed"], 7);
    let rows = value["rows"].as_array().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
    // As parsed: keys in the order of the alphabet.
    let expected = [
        r#"{"be_kept":0.0,"fault_contained":true,"ls_p50_ms":1.0,"ls_p99_ms":1.25,"saturated":false,"slo_miss_rate":0.0125,"slowdown_p99":1.0,"validated":false,"wall":"exclusive","workload":"detector-nightly"}"#,
        r#"{"be_kept":0.625,"fault_contained":true,"ls_p50_ms":3.0,"ls_p99_ms":90.0,"saturated":true,"slo_miss_rate":0.0125,"slowdown_p99":null,"validated":false,"wall":"time-slicing","workload":"detector-nightly"}"#,
        r#"{"be_kept":0.625,"fault_contained":false,"ls_p50_ms":2.0,"ls_p99_ms":80.0,"saturated":false,"slo_miss_rate":0.0125,"slowdown_p99":64.0,"validated":true,"wall":"mps","workload":"detector-nightly"}"#,
        r#"{"be_kept":0.625,"fault_contained":false,"ls_p50_ms":1.0,"ls_p99_ms":1.3,"saturated":false,"slo_miss_rate":0.0125,"slowdown_p99":1.04,"validated":false,"wall":"partywall","workload":"detector-nightly"}"#,
    ];
    assert_eq!(rows, expected);
    assert_eq!(value["not_validated"].to_string(), r#"["exclusive","time-slicing","partywall"]"#);
    assert_eq!(json, report().json());
}

#[test]
fn a_row_is_written_in_the_agreed_order() {
    let row = serde_json::to_string(&report().rows()[2]).unwrap();
    let keys: Vec<&str> = row.split('"').filter(|part| part.contains('_') || *part == "workload").collect();
    let expected =
        ["workload", "ls_p50_ms", "ls_p99_ms", "slowdown_p99", "slo_miss_rate", "be_kept", "fault_contained"];
    assert_eq!(keys, expected);
}

#[test]
fn what_nobody_can_know_is_null() {
    let mut report = report();
    report.sections[0].be = None;
    report.sections[0].cells[0].result.tenants[0].service = Percentiles::default();
    report.sections[0].cells[1].result.tenants.clear();
    let rows = report.rows();
    assert_eq!((rows[0].be_kept, rows[0].ls_p99_ms), (None, None));
    assert_eq!((rows[1].ls_p50_ms, rows[1].slowdown_p99, rows[1].saturated), (None, None, false));
    report.origin = Origin::Measured;
    assert!(report.rows().iter().all(|row| row.validated), "measured rows need no validation");
}

#[test]
fn the_table_fits_a_terminal() {
    let table = report().table(100);
    assert!(table.lines().all(|line| line.chars().count() <= 100));
    let line = "─".repeat(91);
    let expected = "\
detector beside nightly (simulated)
LINE
wall          LS p50  LS p99  slowdown     SLO    BE  fault       note
                  ms      ms       p99  misses  kept  contained
LINE
exclusive       1.00    1.25      1.00   0.013     0  yes         not validated
time-slicing    3.00    90.0         -   0.013  0.62  yes         saturated: completed 812
                                                                  images/s; not validated
mps             2.00    80.0      64.0   0.013  0.62  no
partywall       1.00    1.30      1.04   0.013  0.62  no          not validated
LINE
mig: not here. this part has no MIG

Simulated, not measured: NVIDIA H200 (h200), seed 7.
Error of the model against pairs.csv, as a fraction of the measured latency:
  mps             p50 0.062  median, 0.12   p90; p99 0.25   median; 16 pairs
Not validated, for lack of measured pairs: exclusive, time-slicing, partywall.
"
    .replace("LINE", &line);
    assert_eq!(table, expected);
}

#[test]
fn narrow_terminals_and_long_texts_stay_readable() {
    let mut report = report();
    report.sections[0].unavailable[0].1 = "it is a long story ".repeat(20);
    let table = report.table(80);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.contains("time-slicing"));
}

#[test]
fn the_page_says_what_the_numbers_say() {
    let html = report().html();
    for expected in [
        "Of 3 shared walls 1 keeps that p99 within 1.10 times; it is partywall (not validated): slowdown 1.04, \
         nightly keeps 0.62 of its rate alone.",
        "The largest slowdown is 64.0, behind mps.",
        "The requests could not all be served behind time-slicing (not validated).",
        "Not validated, for lack of measured pairs: exclusive, time-slicing, partywall.",
        "saturated: completed 812 images/s",
        "partywall demo --seed 7",
        "this part has no MIG",
        "How this was obtained</h2><p>Simulated, not measured: NVIDIA H200 (h200), seed 7.",
    ] {
        assert!(html.contains(expected), "{expected} is not in {html}");
    }
}

#[test]
fn the_page_loads_nothing() {
    let html = report().html();
    for foreign in ["http://", "https://", "//", "<script", "<link", "<img", "@import", "url(", "src="] {
        assert!(!html.contains(foreign), "{foreign}");
    }
}

#[test]
fn pictures_stand_alone() {
    let pictures = report().pictures();
    assert_eq!(pictures.len(), 1);
    let (name, svg) = &pictures[0];
    assert_eq!(name, "detector-nightly.svg");
    assert!(
        svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=") && svg.ends_with("</svg>\n")
    );
    assert!(
        svg.contains("Simulated, not measured") && svg.contains("† not validated") && svg.contains("<style>")
    );
}

#[test]
fn texts_are_never_markup() {
    let mut report = report();
    let nasty = "<script>alert(\"1\")</script>&amp;'";
    report.title = nasty.to_owned();
    report.command = nasty.to_owned();
    report.errors_source = nasty.to_owned();
    report.sections[0].description = nasty.to_owned();
    report.sections[0].title = nasty.to_owned();
    report.sections[0].unavailable[0].1 = nasty.to_owned();
    report.sections[0].lost = vec![(nasty.to_owned(), nasty.to_owned())];
    for cell in &mut report.sections[0].cells {
        cell.result.tenants[0].name = "<script>".to_owned();
        cell.result.tenants[1].placed = "</svg><b>".to_owned();
    }
    let html = report.html();
    assert!(!html.contains("<script") && !html.contains("</svg><b>"));
    assert!(html.contains("&lt;script&gt;"));
}
