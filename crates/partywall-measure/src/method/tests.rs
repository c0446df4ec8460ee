//! The method with tenants in memory on a clock that only moves when somebody waits.

mod fake;
mod sides;

use fake::{Behaviour, Fake, FakeMachine, Fault, bench, plan};

use super::*;
use crate::plan::Plan;
use crate::record::{CellKind, Row};
use crate::rows::{Results, results};

const NO_LIMITS: Limits = Limits { time: None, ims: false };

struct Outcome {
    measured: Measured,
    results: Results,
    fake: Fake,
    machine: FakeMachine,
}

impl Outcome {
    fn row(&self, place: &str, ls: &str, be: &str) -> &Row {
        let of = |row: &&Row| {
            format!("{} {}", row.wall, row.setting).trim() == place && (&*row.ls, &*row.be) == (ls, be)
        };
        self.results.rows.iter().find(of).unwrap()
    }

    fn errors(&self) -> Vec<(String, &'static str)> {
        let shown =
            |row: &Row| Some((format!("{} {} {}", row.wall, row.ls, row.be), row.error.as_ref()?.kind.id()));
        self.results.rows.iter().filter_map(shown).collect()
    }
}

fn run_with(plan: &Plan, mut fake: Fake, mut machine: FakeMachine, limits: Limits) -> Outcome {
    let measured = measure(&mut bench(plan, &mut machine, &mut fake), limits, &mut |_| {}).unwrap();
    assert!(fake.alive().is_empty(), "processes are left");
    assert_eq!(machine.daemons(), 0, "an MPS daemon is left");
    let results = results(plan, &measured);
    Outcome { measured, results, fake, machine }
}

fn run(text: &str, behaviours: &[(&str, Behaviour)]) -> Outcome {
    run_with(&plan(text), Fake::new(behaviours), FakeMachine::default(), NO_LIMITS)
}

/// Two victims (0.2 ms and 0.5 ms alone, three times that beside others), two antagonists, two rounds.
const MATRIX: &str = r#"walls = [{ wall = "time-slicing" }, { wall = "mps" }]"#;

#[track_caller]
fn near(found: Option<f64>, expected: f64) {
    let found = found.unwrap_or_else(|| panic!("nothing, and not {expected}"));
    assert!((found / expected - 1.0).abs() < 0.02, "{found} is not {expected}");
}

#[test]
fn ratios_come_out_as_the_tenants_are() {
    let outcome = run(MATRIX, &[]);
    assert!(outcome.measured.complete);
    assert_eq!(outcome.errors(), []);
    assert_eq!(outcome.results.rows.len(), 8);
    let row = outcome.row("mps", "fast", "stream");
    near(row.p50_ms, 0.6);
    near(row.slowdown_p50, 3.0);
    near(row.slowdown_p99, 3.0);
    near(row.capacity_cost_p99, 1.0);
    near(row.interference_p99, 3.0);
    let [low, high] = row.slowdown_p99_interval.unwrap();
    assert!(low <= 3.001 && 2.999 <= high, "{low} {high}");
    // Solo it makes a request per 2 ms, and beside others one per 4 ms.
    near(row.be_kept, 0.5);
    near(row.be_rate_per_s, 250.0);
    let counted: Vec<u64> =
        outcome.results.cells.iter().flat_map(|cell| &cell.results).map(|one| one.requests).collect();
    assert!(counted.iter().all(|count| *count > 0), "{counted:?}");
}

#[test]
fn tenants_start_once_for_each_place_and_solo_comes_first() {
    let outcome = run(MATRIX, &[]);
    // Four tenants, without MPS and with it.
    assert_eq!(outcome.fake.launched().len(), 8);
    let kinds: Vec<CellKind> = outcome.results.cells.iter().map(|cell| cell.kind).collect();
    assert_eq!(kinds[..4], [CellKind::Solo; 4]);
    // Only the tenants of the second place met a daemon; those of the first an empty directory.
    let pipes: Vec<&str> =
        outcome.fake.launched().iter().map(|launch| &*launch.set["CUDA_MPS_PIPE_DIRECTORY"]).collect();
    assert_eq!(pipes, [["empty"; 4], ["daemon-1"; 4]].concat());
}

#[test]
fn a_cell_ends_when_it_has_the_requests_that_are_wanted() {
    let outcome = run(MATRIX, &[]);
    let of = |kind| {
        outcome
            .results
            .cells
            .iter()
            .find(move |cell| cell.kind == kind && cell.ls.as_deref() == Some("fast"))
            .unwrap()
    };
    // 1000 wanted: 500 a round.
    let solo = &of(CellKind::Solo).results[0];
    assert!((1000..=1004).contains(&solo.requests), "{}", solo.requests);
    // Beside others, the warm-up takes fewer of them.
    let corun = &of(CellKind::Corun).results[0];
    assert!((1000..1300).contains(&corun.requests), "{}", corun.requests);
}

#[test]
fn slow_requests_get_longer_windows_for_a_median() {
    // 100 ms beside others: 5 in the window of a round, 20 needed.
    let slow = Behaviour { alone_us: 400, beside_us: 100_000, ..Behaviour::default() };
    let outcome = run(MATRIX, &[("fast", slow)]);
    near(outcome.row("mps", "fast", "stream").slowdown_p50, 250.0);
    assert_eq!(outcome.row("mps", "fast", "stream").slowdown_p99, None);
    let never = Behaviour { alone_us: 400, beside_us: 2_000_000, ..Behaviour::default() };
    assert_eq!(run(MATRIX, &[("fast", never)]).row("mps", "fast", "stream").slowdown_p50, None);
}

/// What a fault of `gemm` in its third run leaves: the errors of the rows, and how many processes were started.
fn faulty(fault: Fault) -> (Vec<(String, &'static str)>, usize) {
    let behaviour = Behaviour { alone_us: 2_000, beside_us: 4_000, fault: Some((fault, 3)) };
    let outcome = run(MATRIX, &[("gemm", behaviour)]);
    (outcome.errors(), outcome.fake.launched().len())
}

#[test]
fn what_goes_wrong_ends_its_cell_only_and_says_what_it_was() {
    // Solo is its first run; the third is its second co-run cell without MPS, and again in each new process.
    let cases = [
        (Fault::Die, "died"),
        (Fault::Hang, "hung"),
        (Fault::Rubbish, "rubbish"),
        (Fault::Fail, "gpu-fault"),
    ];
    for (fault, kind) in cases {
        let (errors, launched) = faulty(fault);
        assert!(
            !errors.is_empty() && errors.iter().all(|(row, of)| row.ends_with("gemm") && *of == kind),
            "{errors:?}"
        );
        assert!(errors.len() <= 3, "the others were measured: {errors:?}");
        // Without MPS, one process was started again; with it, all four were.
        assert!(launched > 8 + 1, "{launched}");
    }
    let (errors, launched) = faulty(Fault::Wrong);
    // Once behind each wall, and nothing had to be started again.
    assert_eq!((errors.len(), errors[0].1, launched), (2, "wrong-result", 8), "{errors:?}");
}

#[test]
fn a_tenant_that_never_comes_up_does_not_hold_up_the_rest() {
    let behaviour = Behaviour { fault: Some((Fault::Die, 0)), ..Behaviour::default() };
    let outcome = run(MATRIX, &[("gemm", behaviour)]);
    let errors = outcome.errors();
    assert_eq!(errors.len(), 4, "{errors:?}");
    let given_up = outcome.row("mps", "slow", "gemm").error.as_ref().unwrap();
    assert!(given_up.message.contains("gemm"), "{}", given_up.message);
    let starts = outcome.fake.launched().iter().filter(|launch| launch.name == "gemm").count();
    assert!(starts <= 2 * (crate::stage::RESTARTS_MAX as usize + 1), "{starts}");
    near(outcome.row("mps", "fast", "stream").slowdown_p50, 3.0);
}

#[test]
fn who_is_not_on_the_daemons_list_does_not_count() {
    let machine = FakeMachine { deaf: true, ..FakeMachine::default() };
    let outcome = run_with(&plan(MATRIX), Fake::new(&[]), machine, NO_LIMITS);
    let error = outcome.row("mps", "fast", "stream").error.clone().unwrap();
    assert!(error.message.contains("not a client of the MPS daemon"), "{}", error.message);
    near(outcome.row("time-slicing", "fast", "stream").slowdown_p50, 3.0);
}

#[test]
fn a_wall_that_is_not_there_is_skipped_with_the_reason() {
    let machine = FakeMachine { without_mps: true, ..FakeMachine::default() };
    let outcome = run_with(&plan(MATRIX), Fake::new(&[]), machine, NO_LIMITS);
    let error = outcome.row("mps", "fast", "stream").error.clone().unwrap();
    assert_eq!((error.kind.id(), error.message.as_str()), ("skipped", "there is no MPS here"));
    assert!(outcome.measured.complete, "what cannot be measured is not missing");
    assert_eq!(outcome.machine.started, 0);
}

#[test]
fn a_time_limit_keeps_what_there_is_and_priority_comes_first() {
    let text = format!("{MATRIX}\n[[pair]]\nls = [\"slow\"]\nbe = [\"gemm\"]\npriority = true\n");
    let plan = plan(&text);
    let whole = run_with(&plan, Fake::new(&[]), FakeMachine::default(), NO_LIMITS).measured.took;
    let limits = Limits { time: Some(TEARDOWN + Nanos(whole.0 / 2)), ims: false };
    let outcome = run_with(&plan, Fake::new(&[]), FakeMachine::default(), limits);
    assert!(!outcome.measured.complete);
    assert!(outcome.measured.took < Nanos(whole.0 * 6 / 10), "{} of {whole}", outcome.measured.took);
    let errors = outcome.errors();
    assert!(!errors.is_empty() && errors.iter().all(|(_, kind)| *kind == "skipped"), "{errors:?}");
    // The pair is there twice: with priority it was measured, behind both walls.
    let priority = outcome.results.rows.iter().rev().take(2);
    assert!(priority.clone().all(|row| row.error.is_none()), "{:?}", priority.collect::<Vec<_>>());
}

#[test]
fn a_time_limit_expects_no_more_of_a_cell_than_its_requests_take() {
    let text = "slow_load = \"periodic\"\nwalls = [{ wall = \"mps\" }]\n[[pair]]\nls = [\"slow\"]\nbe = [\"stream\"]\n";
    // 50 a round, which come within 50 ms; a window may take ten seconds, or one for the neighbour solo.
    let plan = Plan { requests_wanted: 100, time_max: Nanos::from_secs(20), alone: false, ..plan(text) };
    let plan = Plan { pairs: plan.pairs.iter().rev().take(1).cloned().collect(), ..plan };
    let more = Nanos::from_millis(1_200);
    let whole = run_with(&plan, Fake::new(&[]), FakeMachine::default(), NO_LIMITS).measured.took;
    let limits = Limits { time: Some(whole.saturating_add(TEARDOWN).saturating_add(more)), ims: false };
    let enough = run_with(&plan, Fake::new(&[]), FakeMachine::default(), limits);
    assert!(enough.measured.complete && enough.errors().is_empty(), "{:?}", enough.errors());
    // Beside others requests take longer than they come: they end with the time.
    let limit = whole.saturating_add(more);
    assert!(enough.measured.took <= limit, "{} of {limit}", enough.measured.took);
}

#[test]
fn an_interruption_leaves_nothing() {
    let (plan, mut machine, mut fake) = (plan(MATRIX), FakeMachine::default(), Fake::new(&[]));
    for after in [0, 3, 40, 400] {
        fake.interrupt_after(after);
        let result = measure(&mut bench(&plan, &mut machine, &mut fake), NO_LIMITS, &mut |_| {});
        assert_eq!(result.err(), Some(Interrupted), "{after}");
        assert!(fake.alive().is_empty() && machine.daemons() == 0, "{after}");
    }
}

#[test]
fn processes_are_shared_by_pairs_where_the_wall_asks_for_it() {
    let outcome = run(r#"walls = [{ wall = "green-contexts", setting = "64/68", processes = "one" }]"#, &[]);
    assert_eq!(outcome.errors(), []);
    near(outcome.row("green-contexts 64/68", "slow", "gemm").slowdown_p50, 3.0);
    let shared: Vec<String> = outcome
        .fake
        .launched()
        .iter()
        .filter(|launch| launch.name.contains(" and "))
        .map(|launch| launch.command.join(" "))
        .collect();
    assert_eq!(shared.len(), 4);
    assert_eq!(
        shared[0],
        "partywall tenant fast=matmul:ls stream=vram-read:be --sm-groups 0-31 --sm-groups 32-65"
    );
}

#[test]
fn parts_are_handed_to_the_tenants_by_class() {
    let text = r#"walls = [{ wall = "mps-percentage", setting = "100/12" }, { wall = "green-contexts", setting = "64/68" }]"#;
    let outcome = run(text, &[]);
    let value = |name: &str, variable: &str| {
        let of = outcome.fake.launched().iter().filter(|launch| launch.name == name);
        of.filter_map(|launch| launch.set.get(variable).cloned()).collect::<Vec<_>>()
    };
    assert_eq!(value("fast", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), ["100"]);
    assert_eq!(value("gemm", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), ["12"]);
    assert_eq!(value("fast", crate::protocol::SM_GROUPS), ["0-31"]);
    assert_eq!(value("gemm", crate::protocol::SM_GROUPS), ["32-65"]);
}

#[test]
fn an_open_load_that_is_not_served_is_saturated() {
    // Due every 1 ms; 0.5 ms alone, 1.5 ms beside others.
    let text = format!("{MATRIX}\n").replace("walls", "slow_load = \"periodic\"\nwalls");
    let outcome = run(&text, &[]);
    let row = outcome.row("mps", "slow", "stream");
    assert!(row.saturated && row.slowdown_p50.is_none() && row.capacity_cost_p50.is_some(), "{row:?}");
    assert!(!outcome.row("mps", "fast", "stream").saturated);
}

#[test]
fn the_maximum_stable_rate_and_its_timeouts_are_found() {
    let outcome =
        run_with(&plan(MATRIX), Fake::new(&[]), FakeMachine::default(), Limits { time: None, ims: true });
    let of = |ls: &str| {
        outcome.measured.ims.iter().find(move |one| one.ls == ls && one.wall.id() == "mps").unwrap()
    };
    assert_eq!(outcome.measured.ims.len(), 4);
    // 0.2 ms alone: one step of 2 % faster than that is too fast.
    let fast = of("fast");
    assert!((0.2..=0.204).contains(&fast.period_ms.unwrap()), "{fast:?}");
    // Three times as slow beside others: all but the first are late.
    assert_eq!(fast.beside.len(), 2);
    assert!(fast.beside.iter().all(|beside| beside.requests == 1_000 && beside.timeouts > 990), "{fast:?}");
}

#[test]
fn progress_counts_up_to_its_total() {
    let (plan, mut machine, mut fake) = (plan(MATRIX), FakeMachine::default(), Fake::new(&[]));
    let mut seen = Vec::new();
    measure(&mut bench(&plan, &mut machine, &mut fake), NO_LIMITS, &mut |progress| seen.push(progress))
        .unwrap();
    assert!(seen.windows(2).all(|pair| pair[0].done <= pair[1].done));
    let last = seen.last().unwrap();
    // 4 solo, 2 alone, 8 co-run; two rounds.
    assert_eq!((last.done, last.total), (27, 28));
    assert!(last.what.contains("beside") && last.left.is_some_and(|left| left > Nanos::ZERO));
}

#[test]
fn tenants_of_a_node_get_its_environment_and_what_it_counts_is_kept() {
    let text = r#"walls = [{ wall = "partywall", setting = "mps be=66sms chunks=2" }]"#;
    let outcome = run(text, &[]);
    assert_eq!(outcome.errors(), []);
    let around: Vec<&str> =
        outcome.fake.launched().iter().filter_map(|launch| Some(launch.set.get("NODE")?.as_str())).collect();
    let setting = "mps be=66sms chunks=2";
    assert_eq!(around[0], format!("{setting}: fast latency-sensitive all"));
    assert_eq!(around[3], format!("{setting}: gemm best-effort SMs 66-131"));
    let cells = &outcome.results.cells;
    let corun = cells.iter().find(|cell| cell.kind == CellKind::Corun).unwrap();
    let names: Vec<&str> = corun.node.iter().map(|one| &*one.tenant).collect();
    assert_eq!(names, ["fast", "stream"]);
    // Seven in each of two rounds.
    assert_eq!(corun.node[0].counted["held_ns"], 14);
    assert!(corun.node[0].stood["graphs_cut"] > 14, "what stands is no difference");
    assert!(cells.iter().filter(|cell| cell.kind == CellKind::Solo).all(|cell| cell.node.is_empty()));
}

#[test]
fn a_tenant_that_the_node_does_not_know_does_not_count() {
    let deaf = || FakeMachine { deaf: true, ..FakeMachine::default() };
    let text = r#"walls = [{ wall = "partywall", setting = "time-slicing decided" }]"#;
    let outcome = run_with(&plan(text), Fake::new(&[]), deaf(), NO_LIMITS);
    assert_eq!(outcome.errors().len(), 4);
    let row = outcome.row("partywall time-slicing decided", "fast", "stream");
    let error = row.error.as_ref().unwrap();
    assert!(error.message.contains("has not registered"), "{error:?}");
    assert_eq!((row.slowdown_p50, row.be_kept), (None, None));
}

#[test]
fn arrivals_of_a_duty_follow_from_the_median_solo() {
    let text = "slow_load = \"duty\"\nwalls = [{ wall = \"mps\" }]\n[[pair]]\nls = [\"slow\"]\n";
    let outcome = run(text, &[]);
    assert_eq!(outcome.errors(), []);
    // 0.5 ms solo, busy for 0.3 of the time.
    let offered = |kind| {
        let mut cells = outcome.results.cells.iter().filter(|cell| cell.kind == kind);
        cells.find_map(|cell| cell.results.iter().find(|one| one.tenant == "slow")?.offered_per_s)
    };
    near(offered(CellKind::Solo), 600.0);
    near(offered(CellKind::Corun), 600.0);
    let row = outcome.row("mps", "slow", "stream");
    near(row.slowdown_p50, 3.0);
    // Three times as busy, requests wait behind each other more than solo.
    assert!(row.response_slowdown_p50 > row.slowdown_p50, "{row:?}");
    let tenant = &outcome.results.tenants[1];
    assert_eq!(tenant.duty, Some(0.3));
    assert!(matches!(tenant.load, Load::Poisson { .. }), "{:?}", tenant.load);
}

#[test]
fn two_of_each_class_make_a_row_for_each_two() {
    let outcome = run("walls = [{ wall = \"mps\" }]\n[[pair]]\ntogether = true\n", &[]);
    assert_eq!(outcome.errors(), []);
    // Behind those of the plan's pairs of two.
    let together = outcome.results.rows.get(4..).unwrap();
    let rows: Vec<(&str, &str, String)> =
        together.iter().map(|row| (&*row.ls, &*row.be, row.beside.join(" "))).collect();
    let expected = [
        ("fast", "stream", "slow gemm"),
        ("fast", "gemm", "slow stream"),
        ("slow", "stream", "fast gemm"),
        ("slow", "gemm", "fast stream"),
    ];
    assert_eq!(rows, expected.map(|(ls, be, others)| (ls, be, others.to_owned())));
    for row in together {
        near(row.slowdown_p50, 3.0);
        near(row.be_kept, 0.5);
    }
}
