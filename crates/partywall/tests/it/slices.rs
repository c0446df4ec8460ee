//! How long the device stays with tenants that take turns: short for one best-effort tenant, long for requests.

use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::Nanos;
use partywall_node::arbiter::squeeze::{LS_SLICE, LaunchOptions, SHARED_SLICE};

use crate::bench::Machine;
use crate::patience::until_or;

const SLICE: Nanos = Nanos::from_micros(200);

#[test]
fn a_best_effort_tenant_has_a_short_slice_until_there_are_two() {
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

#[test]
fn slices_are_the_drivers_own_where_nobody_asks_for_others() {
    let machine = Machine::new("slices-usual");
    let mut node = machine.deciding(LaunchOptions { decided: true, ..LaunchOptions::default() });
    let mut greedy = node.tenant("greedy", Class::BestEffort, 1, "tiny-kernels");
    greedy.begin(0);
    until_or(|| node.view(TenantId(1)).launches > 100, || "it is at work".to_owned());
    assert_eq!(node.view(TenantId(1)).slice_ns, Nanos::ZERO);
}
