//! Nobody stays squeezed: best-effort tenants whose node ends while they are held, that never wait for anything, or whose
//! latency-sensitive neighbour never rests.

use std::time::Duration;

use partywall_core::sm_sets::SmSet;
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::Nanos;
use partywall_node::arbiter::squeeze::LaunchOptions;

use crate::bench::{Machine, Tenant};
use crate::patience::{until, until_or};

const DECIDED: fn() -> LaunchOptions = || LaunchOptions { decided: true, ..LaunchOptions::default() };
/// A kernel of 16 ms; launches of next to nothing, waited for one by one or only after many.
const LONG: &str = "compute";
const SHORT: &str = "tiny-kernels";
const STORM: &str = "launch-storm";
/// Graphs, which check what they have computed.
const GRAPHS: &str = "network";
const PAUSE_NS: u64 = 20_000_000;

/// After this a process takes its node for gone.
const GONE: Duration = Duration::from_secs(2);

/// The time between two ends of requests.
fn longest_pause(requests: &[(u64, u64)]) -> Duration {
    let pauses = requests.windows(2).map(|pair| pair[1].1 - pair[0].1);
    Duration::from_nanos(pauses.max().unwrap())
}

#[test]
fn a_tenant_goes_on_when_its_node_ends_while_it_is_held() {
    let machine = Machine::new("squeezed-node");
    let mut node = machine.deciding(DECIDED());
    let mut request = node.tenant("request", Class::LatencySensitive, 8, LONG);
    let mut greedy = node.tenant("greedy", Class::BestEffort, 1, SHORT);
    greedy.begin(0);
    request.begin(0);
    until("the neighbour is held", || node.view(TenantId(2)).held_ns > Nanos::ZERO);
    drop(node);
    // Nobody says any more when the request is through, and nobody says that it is not.
    std::thread::sleep(GONE + Duration::from_secs(1));
    let ended = greedy.end();
    request.end();
    let last = Duration::from_nanos(ended.last().unwrap().1 - ended[0].0);
    assert!(last > GONE, "the last request ended after {last:?}");
    let pause = longest_pause(&ended);
    // Within the limit of one hold; a busy machine may take several times as long.
    assert!(pause < GONE + Duration::from_secs(1), "{pause:?}");
}

/// Kernels without a pause beside it: it goes on slowly, a launch in 100 ms at least.
#[test]
fn a_tenant_beside_one_that_never_rests_is_not_starved() {
    let machine = Machine::new("squeezed-starved");
    let mut node = machine.deciding(DECIDED());
    let mut request = node.tenant("request", Class::LatencySensitive, 8, LONG);
    let mut greedy = node.tenant("greedy", Class::BestEffort, 1, STORM);
    request.begin(0);
    greedy.begin(0);
    let launches = |tenant: u32| node.view(TenantId(tenant)).launches;
    until("the neighbour is held", || node.view(TenantId(2)).held_ns > Nanos::ZERO);
    let before = launches(2);
    until("the neighbour gets on", || launches(2) > before + 5);
    until("a request is through", || launches(1) > 2);
    end(request);
    end(greedy);
}

/// With SMs of its own for that time it is not held, whatever it launches: one by one, or graphs, which it checks.
#[test]
fn a_tenant_with_a_squeezed_set_goes_on_there() {
    for what in [SHORT, GRAPHS] {
        let machine = Machine::new(&format!("squeezed-{what}"));
        let mut node = machine.deciding(DECIDED());
        let mut request = node.tenant("request", Class::LatencySensitive, 8, LONG);
        let set = SmSet { first: 58, groups: 8, sms_per_group: 2 };
        let mut greedy = node.squeezed("greedy", set, what);
        assert_eq!(greedy.about["sms"], "132", "it is told of all that it has otherwise");
        greedy.begin(0);
        request.begin(PAUSE_NS);
        let view = || node.view(TenantId(2));
        let done = || {
            let view = view();
            view.squeezed_launches > 4 && view.resizes > 1
        };
        until_or(done, || format!("it is squeezed and let go again: {:?}", view()));
        let told = view();
        assert_eq!((told.squeezed_sms, told.unsqueezed_launches), (Some(set), 0));
        assert!(told.longest_resize_ns >= told.resize_ns && told.resize_ns > Nanos::ZERO, "{told:?}");
        end(request);
        end(greedy);
    }
}

fn end(tenant: Tenant) {
    assert!(!tenant.end().is_empty());
}
