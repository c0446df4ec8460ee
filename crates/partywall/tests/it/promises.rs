//! Promises about requests, over whole processes on a simulated GPU: how long requests take says little on a machine that does other
//! things as well, so what is told is held against itself.

use partywall_core::guarantee::{BaselineSource, NEEDED, Reason, Status, Verdict};
use partywall_core::tenant::{Class, Slo, TenantId};
use partywall_core::units::Nanos;
use partywall_node::arbiter::squeeze::LaunchOptions;

use crate::bench::{Machine, Node};
use crate::patience::until;

const BE: Class = Class::BestEffort;
/// Launches of next to nothing, waited for; many more of them, queued before anybody waits.
const REQUEST: &str = "tiny-kernels";
const STORM: &str = "launch-storm";
const PAUSE_NS: u64 = 200_000;
const LS: TenantId = TenantId(1);

fn deciding() -> LaunchOptions {
    LaunchOptions { decided: true, ..LaunchOptions::default() }
}

fn slowdown(factor: f64) -> Slo {
    Slo { slowdown: Some(factor), p99: None }
}

fn status(node: &Node<'_>) -> Status {
    node.view(LS).promise.unwrap().status
}

fn only_reason(node: &Node<'_>) -> Option<Reason> {
    let status = status(node);
    assert_eq!(status.verdict == Verdict::NotGuaranteed, !status.reasons.is_empty());
    status.reasons.into_iter().next()
}

#[test]
fn a_baseline_is_taken_and_a_slowdown_is_measured() {
    let machine = Machine::new("promises");
    let mut node = machine.deciding(deciding());
    let mut request = node.promised("request", slowdown(2.0), REQUEST);
    let mut greedy = node.tenant("greedy", BE, 1, STORM);
    greedy.begin(0);
    until("the neighbour is at work", || node.view(TenantId(2)).launches > 1_000);
    request.begin(PAUSE_NS);
    until("best-effort tenants stand back", || status(&node).baseline.is_being_taken);
    until("there is a baseline", || status(&node).baseline.source == BaselineSource::Measured);
    let baseline = status(&node).baseline;
    assert!(baseline.requests >= NEEDED && baseline.p50_ns <= baseline.p99_ns, "{baseline:?}");
    let before = node.view(TenantId(2)).launches;
    until("the neighbour goes on", || node.view(TenantId(2)).launches > before + 1_000);
    assert!(!status(&node).baseline.is_being_taken);
    until("there is a slowdown", || status(&node).slowdown.is_some());
    let status = status(&node);
    assert!(status.beside.requests >= NEEDED);
    let [alone, beside] = [status.baseline.p99_ns, status.beside.p99_ns].map(|p99| p99.unwrap().0);
    assert_eq!(status.slowdown, Some(beside as f64 / alone as f64));
    let above = status.above.unwrap();
    let kept = above.above * 100 <= above.requests;
    assert_eq!(status.verdict, if kept { Verdict::Kept } else { Verdict::Broken }, "{status:?}");
    assert_eq!(status.margin.unwrap() >= 0.0, kept, "{status:?}");
    let promise = node.view(LS).promise.unwrap();
    assert_eq!(promise.history.len() as u64, promise.status.breaks.min(16));
    assert!(!greedy.end().is_empty());
    // The tenant measured as well, from before its first launch to after its wait.
    let mut own: Vec<u64> = request.end().iter().map(|(start, end)| end - start).collect();
    own.sort_unstable();
    assert!(own.len() as u64 >= status.requests);
    let (longest, beyond) = (own[own.len() - 1], own.iter().rev().take_while(|own| **own > beside).count());
    assert!(alone <= longest && beside <= longest, "{status:?}, the longest of its own {longest}");
    assert!(beyond as u64 >= status.beside.requests / 100, "{beyond} of its own above p99: {status:?}");
    let medians = [status.baseline.p50_ns, status.beside.p50_ns].map(|p50| p50.unwrap().0);
    assert!(medians.into_iter().all(|p50| own[0] / 2 < p50 && p50 <= longest), "{status:?}");
}

#[test]
fn what_is_not_measured_is_not_guaranteed() {
    let machine = Machine::new("promises-none");
    let mut node = machine.node();
    let mut request = node.promised("request", slowdown(2.0), REQUEST);
    request.begin(PAUSE_NS);
    until("there are requests", || node.view(LS).launches > 1_000);
    assert_eq!(only_reason(&node), Some(Reason::LaunchesUndecided));
    assert!(!request.end().is_empty());
    drop(node);

    let machine = Machine::new("promises-alone");
    let mut node = machine.deciding(deciding());
    let mut request =
        node.promised("request", Slo { p99: Some(Nanos::from_secs(60)), slowdown: None }, REQUEST);
    until("it is covered", || node.view(LS).guaranteed == Some(true));
    request.begin(PAUSE_NS);
    until("there are requests", || status(&node).requests > 200);
    assert!(matches!(only_reason(&node), Some(Reason::NobodyBeside { .. })));
    let mut greedy = node.tenant("greedy", BE, 1, STORM);
    greedy.begin(0);
    until("there are requests beside", || status(&node).beside.requests > 0);
    // A minute is enough for any of them, so it takes no thousand to see that.
    until("there is a verdict", || only_reason(&node).is_none());
    let status = status(&node);
    assert_eq!((status.verdict, status.breaks), (Verdict::Kept, 0), "{status:?}");
    assert!(status.beside.requests >= 299);
    request.kill();
    assert!(!greedy.end().is_empty());
}
