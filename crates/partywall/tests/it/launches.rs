//! Launches of tenants beside each other on a simulated GPU: what a request waits for, that nobody stands still for ever, and
//! that a tenant confined to some SMs is told of these.

use std::time::Duration;

use partywall_core::sm_sets::SmSet;
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::Nanos;
use partywall_node::arbiter::squeeze::LaunchOptions;

use crate::bench::{Machine, beside};
use crate::patience::until;

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;
/// Launches of next to nothing, waited for; many more of them, queued before anybody waits; kernels of 16 ms.
const REQUEST: &str = "tiny-kernels";
const STORM: &str = "launch-storm";
const LONG: &str = "compute";
/// A graph at a time, which checks what it has computed: whether in pieces or not.
const GRAPHS: &str = "network";
const TIME: Duration = Duration::from_secs(3);
const PAUSE_NS: u64 = 20_000_000;

/// Times of requests say little on a machine that does other things as well; that the neighbour stood back for them can be counted.
#[test]
fn a_neighbour_stands_back_while_a_request_is_at_work() {
    for (decided, neighbour) in [(false, STORM), (true, STORM), (true, GRAPHS)] {
        let machine = Machine::new(&format!("launches-{decided}-{neighbour}"));
        let mut node = machine.deciding(LaunchOptions { decided, ..LaunchOptions::default() });
        let request = node.tenant("request", LS, 8, LONG);
        let greedy = node.tenant("greedy", BE, 1, neighbour);
        let with = beside(vec![(request, PAUSE_NS), (greedy, 0)], TIME);
        let busy = Nanos(with[0].iter().map(|(start, end)| end - start).sum());
        assert!(!with[1].is_empty(), "the neighbour goes on");
        let [request, greedy] = [1, 2].map(|id| node.view(TenantId(id)).held_ns);
        assert_eq!(request, Nanos::ZERO);
        if decided {
            // What it has on the device already it waits for otherwise, and on a busy machine it does not always run.
            assert!(greedy > Nanos(busy.0 / 10), "held for {greedy} of {busy}");
        } else {
            assert_eq!(greedy, Nanos::ZERO);
        }
    }
}

/// Requests follow each other without a pause. Who is held for them gets on only when it has waited for the limit.
#[test]
fn a_neighbour_goes_on_beside_requests_for_a_part_of_the_time() {
    let launches = [None, Some(50)].map(|duty_percent| {
        let machine = Machine::new(&format!("launches-duty-{}", duty_percent.unwrap_or_default()));
        // What the host needs between two requests is no pause.
        let release = Nanos::from_millis(50);
        let mut node = machine.deciding(LaunchOptions {
            decided: true,
            duty_percent,
            release,
            ..LaunchOptions::default()
        });
        let request = node.tenant("request", LS, 8, LONG);
        let greedy = node.tenant("greedy", BE, 1, REQUEST);
        let with = beside(vec![(request, 0), (greedy, 0)], TIME);
        assert!(!with[0].is_empty());
        let view = node.view(TenantId(2));
        assert!(view.held_ns > Nanos::from_millis(100), "held for {}", view.held_ns);
        assert!(view.busy_ns > Nanos::ZERO, "{} launches took no time", view.launches);
        view.launches
    });
    assert!(launches[1] > 2 * launches[0], "{launches:?} launches held, and for half of the time");
}

/// It has said that it is at work, and cannot take that back.
#[test]
fn nobody_is_held_for_one_that_was_killed() {
    let machine = Machine::new("launches-killed");
    let mut node = machine.deciding(LaunchOptions { decided: true, ..LaunchOptions::default() });
    let mut request = node.tenant("request", LS, 8, LONG);
    let mut greedy = node.tenant("greedy", BE, 1, REQUEST);
    request.begin(0);
    greedy.begin(0);
    until("the neighbour is held", || node.view(TenantId(2)).held_ns > Nanos::ZERO);
    request.kill();
    until("the node has seen it", || node.view(TenantId(1)).processes.is_empty());
    let before = node.view(TenantId(2)).launches;
    until("the neighbour goes on", || node.view(TenantId(2)).launches > before + 1_000);
    let held = node.view(TenantId(2)).held_ns;
    assert!(!greedy.end().is_empty());
    assert!(node.view(TenantId(2)).held_ns.saturating_sub(held) < Nanos::from_secs(1));
}

#[test]
fn a_tenant_computes_on_its_sms() {
    let machine = Machine::new("launches-confined");
    let mut node = machine.node();
    let set = SmSet { first: 50, groups: 16, sms_per_group: 2 };
    let confined = node.confined("confined", LS, 8, Some(set), REQUEST);
    assert_eq!(confined.about["sms"], "132", "programs are told the device's number of SMs");
    let free = node.tenant("free", BE, 1, REQUEST);
    assert_eq!(free.about["sms"], "132");
    let requests = beside(vec![(confined, PAUSE_NS), (free, PAUSE_NS)], TIME / 10);
    assert!(requests.iter().all(|requests| !requests.is_empty()));
}
