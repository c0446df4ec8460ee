//! How long the device stays with tenants that take turns: short for best-effort tenants, of which one at a time computes, and long for requests.

use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::Nanos;
use partywall_node::arbiter::squeeze::{LS_SLICE, LaunchOptions, SHARED_SLICE};
use partywall_node::facts::TurnsView;

use crate::bench::{Machine, Node};
use crate::patience::{in_one_of, until, until_or};

const SLICE: Nanos = Nanos::from_micros(200);

#[test]
fn a_best_effort_tenant_that_cannot_be_held_has_a_short_slice_until_there_are_two() {
    let machine = Machine::new("slices");
    let mut node = machine.deciding(LaunchOptions { slice: Some(SLICE), ..LaunchOptions::default() });
    let _request = node.tenant("request", Class::LatencySensitive, 8, "compute");
    let first = node.tenant("first", Class::BestEffort, 1, "tiny-kernels");
    let slices =
        |tenants: &[u32]| tenants.iter().map(|&id| node.view(TenantId(id)).slice_ns).collect::<Vec<_>>();
    until_or(|| slices(&[1, 2]) == [LS_SLICE, SLICE], || format!("{:?}", slices(&[1, 2])));
    let second = node.tenant("second", Class::BestEffort, 1, "tiny-kernels");
    let slices =
        |tenants: &[u32]| tenants.iter().map(|&id| node.view(TenantId(id)).slice_ns).collect::<Vec<_>>();
    until_or(
        || slices(&[1, 2, 3]) == [LS_SLICE, SHARED_SLICE, SHARED_SLICE],
        || format!("{:?}", slices(&[1, 2, 3])),
    );
    drop(second);
    until_or(
        || slices(&[1, 2]) == [LS_SLICE, SLICE],
        || format!("the other has gone: {:?}", slices(&[1, 2])),
    );
    drop(first);
}

const TURNS: LaunchOptions = LaunchOptions {
    decided: true,
    slice: Some(SLICE),
    turn: Nanos::from_millis(20),
    ..LaunchOptions::DEFAULT
};
const BE: [TenantId; 2] = [TenantId(2), TenantId(3)];

fn turns(node: &Node<'_>) -> TurnsView {
    node.turns().unwrap()
}

/// On a busy machine a chunk may take longer than is waited for, and then it is in another one's turn.
#[test]
fn best_effort_tenants_with_short_slices_compute_one_at_a_time() {
    // Twenty turns in a row have to be in time.
    in_one_of(9, || {
        let machine = Machine::new("slices-turns");
        let mut node = machine.deciding(TURNS);
        let mut request = node.tenant("request", Class::LatencySensitive, 8, "tiny-kernels");
        let mut first = node.tenant("first", Class::BestEffort, 1, "launch-storm");
        let mut second = node.tenant("second", Class::BestEffort, 1, "launch-storm");
        [&mut first, &mut second].into_iter().for_each(|tenant| tenant.begin(0));
        request.begin(3_000_000);
        let launches = |node: &Node<'_>| BE.map(|id| node.view(id).launches);
        let before = launches(&node);
        until("there have been turns", || turns(&node).turns > 20);
        until_or(
            || launches(&node).iter().zip(before).all(|(now, before)| *now > before + 200),
            || format!("both make progress: {before:?}, {:?}", launches(&node)),
        );
        assert!(BE.iter().all(|&id| node.view(id).held_ns > Nanos::ZERO));
        let seen = turns(&node);
        let slices = [1, 2, 3].map(|id| node.view(TenantId(id)).slice_ns);
        let requests = request.end();
        let [first, second] = [first, second].map(|tenant| tenant.end().len());
        assert!(!requests.is_empty() && first > 0 && second > 0);
        if (seen.late, seen.overlaps, seen.shared) == (0, 0, false) && slices == [LS_SLICE, SLICE, SLICE] {
            Ok(())
        } else {
            Err(format!("{seen:?} {slices:?}"))
        }
    });
}

#[test]
fn a_turn_ends_with_its_process() {
    let machine = Machine::new("slices-killed");
    let mut node = machine.deciding(TURNS);
    let _request = node.tenant("request", Class::LatencySensitive, 8, "tiny-kernels");
    let mut first = node.tenant("first", Class::BestEffort, 1, "launch-storm");
    let mut second = node.tenant("second", Class::BestEffort, 1, "launch-storm");
    [&mut first, &mut second].into_iter().for_each(|tenant| tenant.begin(0));
    until("there have been turns", || turns(&node).turns > 4);
    first.kill();
    until("the node has seen it", || node.view(BE[0]).processes.is_empty());
    let (before, turns_before) = (node.view(BE[1]).launches, turns(&node).turns);
    until("the other goes on", || node.view(BE[1]).launches > before + 1_000);
    assert!(turns(&node).turns <= turns_before + 1, "there is nobody to take turns with");
    assert!(!second.end().is_empty());
}

/// Who waits gets the turn of one that has nothing to do, and a wait for the turn is not the end of it.
#[test]
fn a_turn_is_not_kept_by_one_that_rests() {
    let machine = Machine::new("slices-rest");
    let mut node = machine.deciding(TURNS);
    let _request = node.tenant("request", Class::LatencySensitive, 8, "tiny-kernels");
    let mut rests = node.tenant("rests", Class::BestEffort, 1, "tiny-kernels");
    let mut second = node.tenant("second", Class::BestEffort, 1, "launch-storm");
    rests.begin(50_000_000);
    second.begin(0);
    let launches = |node: &Node<'_>| BE.map(|id| node.view(id).launches);
    let before = launches(&node);
    until_or(
        || launches(&node)[0] > before[0] + 20 && launches(&node)[1] > before[1] + 1_000,
        || format!("both go on: {before:?}, {:?}", launches(&node)),
    );
    assert!(!rests.end().is_empty() && !second.end().is_empty());
}

#[test]
fn slices_are_the_drivers_own_where_nobody_asks_for_others() {
    let machine = Machine::new("slices-usual");
    let mut node = machine.deciding(LaunchOptions { decided: true, ..LaunchOptions::default() });
    let mut greedy = node.tenant("greedy", Class::BestEffort, 1, "tiny-kernels");
    greedy.begin(0);
    until_or(|| node.view(TenantId(1)).launches > 100, || "it is at work".to_owned());
    assert_eq!(node.view(TenantId(1)).slice_ns, Nanos::ZERO);
}
