//! The wall `sides` around tenants that take part in it.

use partywall_shim_api::environment::{SIDE, SIDE_KNOWN, SIDE_LIBRARY};

use super::*;
use crate::protocol::SM_GROUPS;

/// The plan's tenants are built in: as programs of somebody's own.
fn programs(walls: &str) -> Plan {
    let mut plan = plan(walls);
    for tenant in &mut plan.tenants {
        tenant.program = crate::plan::Program::Command(vec![tenant.name.clone()]);
    }
    plan
}

/// The value of a variable for each tenant that was started behind the wall, with its name.
fn told(outcome: &Outcome, variable: &str) -> Vec<(String, Option<String>)> {
    let behind = outcome.fake.launched().iter().filter(|launch| launch.set.contains_key(SM_GROUPS));
    behind.map(|launch| (launch.name.clone(), launch.set.get(variable).cloned())).collect()
}

#[test]
fn a_tenant_is_told_its_side_and_is_alone_on_it_as_well() {
    let text = r#"walls = [{ wall = "sides", setting = "private" }]"#;
    let outcome = run_with(&programs(text), Fake::new(&[]), FakeMachine::default(), NO_LIMITS);
    assert_eq!(outcome.errors(), []);
    let of = |values: [&str; 4]| -> Vec<(String, Option<String>)> {
        let names = ["fast", "slow", "stream", "gemm"].into_iter().zip(values);
        names.map(|(name, value)| (name.to_owned(), Some(value.to_owned()))).collect()
    };
    assert_eq!(told(&outcome, SIDE), of(["first", "first", "second", "second"]));
    assert_eq!(told(&outcome, SIDE_LIBRARY), of(["/side.so"; 4]));
    let groups = |first: u32| (0..33).map(|at| (2 * at + first).to_string()).collect::<Vec<_>>().join(",");
    let [first, second] = [groups(0), groups(1)];
    assert_eq!(told(&outcome, SM_GROUPS), of([&first, &first, &second, &second]));
    let files: Vec<Option<String>> = told(&outcome, SIDE_KNOWN).into_iter().map(|(_, file)| file).collect();
    assert!(files.iter().all(|file| *file == files[0]), "{files:?}");
    let file = files[0].clone().unwrap();
    assert!(!std::path::Path::new(&file).exists(), "{file} is left");
    // Under the daemon, and none of it from us.
    for launch in outcome.fake.launched() {
        let pipe = if launch.set.contains_key(SIDE) { "daemon-1" } else { "empty" };
        assert_eq!(launch.set["CUDA_MPS_PIPE_DIRECTORY"], pipe);
        let unset = |name: &str| launch.unset.iter().any(|one| one == name);
        assert!([SIDE, SIDE_KNOWN, SIDE_LIBRARY].into_iter().all(unset), "{:?}", launch.unset);
    }
    assert_eq!(outcome.machine.looked, 1);
    let row = outcome.row("sides private", "fast", "stream");
    near(row.capacity_cost_p50, 1.0);
    near(row.interference_p50, 3.0);
    // Alone on its side it is as fast as solo, and beside others half as fast.
    near(row.be_kept, 0.5);
    near(row.be_kept_of_part, 0.5);
    let alone = outcome.results.cells.iter().filter(|cell| cell.kind == CellKind::Alone);
    let alone: Vec<&str> = alone.filter_map(|cell| cell.ls.as_deref().or(cell.be.as_deref())).collect();
    assert_eq!(alone, ["fast", "stream", "gemm", "slow"]);
    let elsewhere = run(MATRIX, &[]);
    assert_eq!(elsewhere.row("mps", "fast", "stream").be_kept_of_part, None);
}

#[test]
fn plain_memory_comes_with_the_same_sms_and_nothing_else() {
    let walls = r#"walls = [{ wall = "sides", setting = "private" }, { wall = "sides", setting = "plain" }]"#;
    let outcome = run_with(&programs(walls), Fake::new(&[]), FakeMachine::default(), NO_LIMITS);
    assert_eq!(outcome.errors(), []);
    let groups: Vec<Option<String>> = told(&outcome, SM_GROUPS).into_iter().map(|(_, value)| value).collect();
    assert_eq!(groups[..4], groups[4..]);
    for variable in [SIDE, SIDE_KNOWN, SIDE_LIBRARY] {
        let values: Vec<bool> =
            told(&outcome, variable).into_iter().map(|(_, value)| value.is_some()).collect();
        assert_eq!(values, [[true; 4], [false; 4]].concat(), "{variable}");
    }
}

#[test]
fn a_tenant_that_does_not_say_that_it_has_memory_of_its_side_is_not_measured() {
    let walls = r#"walls = [{ wall = "sides", setting = "private" }, { wall = "sides", setting = "plain" }]"#;
    let behaviour = Behaviour { fault: Some((Fault::Elsewhere, u64::MAX)), ..Behaviour::default() };
    let fake = Fake::new(&[("stream", behaviour)]);
    let outcome = run_with(&programs(walls), fake, FakeMachine::default(), NO_LIMITS);
    let error = outcome.row("sides private", "fast", "stream").error.clone().unwrap();
    assert_eq!(
        error.message,
        "stream should have memory of the second side, and says nothing of a side in `about.side`: it would not be behind this wall"
    );
    assert_eq!(outcome.row("sides plain", "fast", "stream").error, None);
}

#[test]
fn built_in_tenants_have_no_memory_of_a_side() {
    let walls = r#"walls = [{ wall = "sides", setting = "private" }, { wall = "sides", setting = "plain" }]"#;
    let mut plan = programs(walls);
    plan.tenants[3].program = crate::plan::Program::BuiltIn("compute".to_owned());
    let outcome = run_with(&plan, Fake::new(&[]), FakeMachine::default(), NO_LIMITS);
    let errors = outcome.errors();
    assert_eq!(errors, ["fast", "slow"].map(|ls| (format!("sides {ls} gemm"), "skipped")));
    let error = outcome.row("sides private", "fast", "gemm").error.clone().unwrap();
    assert!(
        error.message.contains("gemm is built in") && error.message.contains("`sides plain`"),
        "{error:?}"
    );
    assert!(outcome.measured.complete, "what cannot be measured is not missing");
    // It was not started there.
    let names = told(&outcome, SIDE).into_iter().filter(|(_, side)| side.is_some()).map(|(name, _)| name);
    assert_eq!(names.collect::<Vec<_>>(), ["fast", "slow", "stream"]);
}

#[test]
fn sides_that_are_not_found_are_looked_for_a_few_times() {
    let text = r#"walls = [{ wall = "sides", setting = "plain" }]"#;
    let noisy = |blind| FakeMachine { blind, ..FakeMachine::default() };
    let found = run_with(&plan(text), Fake::new(&[]), noisy(1), NO_LIMITS);
    assert_eq!((found.errors(), found.machine.looked), (Vec::new(), 2));
    let never = run_with(&plan(text), Fake::new(&[]), noisy(usize::MAX), NO_LIMITS);
    assert_eq!((never.errors().len(), never.machine.looked), (4, 3));
    let error = never.row("sides plain", "fast", "stream").error.clone().unwrap();
    assert_eq!(error.message, "the sides: given up after 3 failures; the last: too much noise");
    assert_eq!(never.machine.started, 0, "no daemon for nobody");
}

#[test]
fn an_interruption_while_the_sides_are_looked_for_is_one() {
    let plan = plan(r#"walls = [{ wall = "sides", setting = "plain" }]"#);
    let interrupted = |after| {
        let mut machine = FakeMachine { blind: usize::MAX, ..FakeMachine::default() };
        let mut fake = Fake::new(&[]);
        fake.interrupt_after(after);
        let result = measure(&mut bench(&plan, &mut machine, &mut fake), NO_LIMITS, &mut |_| {});
        assert!(fake.alive().is_empty() && machine.daemons() == 0);
        (result.err(), machine.looked, fake.heard_before(after))
    };
    let (whole, looked, heard) = interrupted(u64::MAX);
    assert_eq!((whole, looked), (None, 3));
    // Nobody else is heard after the last time that they are looked for.
    let (last, looked, _) = interrupted(heard - 1);
    assert_eq!((last, looked), (Some(Interrupted), 3));
}

#[test]
fn tenants_with_memory_of_a_side_start_one_after_the_other() {
    let text = r#"walls = [{ wall = "sides", setting = "private" }]"#;
    let behaviour = Behaviour { fault: Some((Fault::Die, 0)), ..Behaviour::default() };
    let fake = Fake::new(&[("fast", behaviour)]);
    let outcome = run_with(&programs(text), fake, FakeMachine::default(), NO_LIMITS);
    let behind: Vec<String> = told(&outcome, SIDE).into_iter().map(|(name, _)| name).collect();
    // It was first, and died; nobody was started for nothing beside it.
    assert_eq!(behind[0], "fast");
    assert!(outcome.row("sides private", "slow", "gemm").error.is_none(), "{behind:?}");
    assert_eq!(outcome.row("sides private", "fast", "gemm").error.as_ref().unwrap().kind.id(), "died");
}
