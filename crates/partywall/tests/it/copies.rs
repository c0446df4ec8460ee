//! Tenants that copy at the same time, on a simulated GPU: what small copies wait for, who gets how much of the link,
//! and that what arrives is what was sent. The link is slowed down to 0.5 GB/s, so that what the machine of the test
//! takes for a wake-up is small against a packet.

use std::time::{Duration, Instant};

use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::Nanos;

use crate::bench::{Machine, beside, quantile_ms, rates};
use crate::patience::in_one_of;

const LARGE: &str = "copies-h2d,size=32MiB";
const SMALL: &str = "copy-h2d,size=64KiB";
const TIME: Duration = Duration::from_secs(3);

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;

#[test]
fn small_copies_wait_for_packets_and_not_for_copies() {
    in_one_of(3, small_beside_large);
}

fn small_beside_large() -> Result<(), String> {
    let machine = Machine::new("copies-small");
    let alone = beside(vec![(machine.plain(LARGE), 0)], TIME);
    let without = beside(vec![(machine.plain(SMALL), 5_000_000), (machine.plain(LARGE), 0)], TIME);
    let mut node = machine.node();
    let small = node.tenant("small", LS, 8, SMALL);
    let large = node.tenant("large", BE, 1, LARGE);
    let with = beside(vec![(small, 5_000_000), (large, 0)], TIME);
    let waited = node.view(TenantId(2)).host_to_device;
    assert!(waited.copies > 0 && waited.wait_ns > Nanos::ZERO, "{waited:?}");
    assert_eq!(node.view(TenantId(1)).host_to_device.copies, 0, "small copies go straight to the driver");
    let (before, after) = (quantile_ms(&without[0], 0.9), quantile_ms(&with[0], 0.9));
    let kept = rates(&with)[1] / rates(&alone)[0];
    // 32 MiB take 67 ms, a packet of 512 KiB one. What is kept is four fifths; on a busy machine the node's thread waits for its turn before
    // each packet.
    if before > 30.0 && after < before / 8.0 && kept > 0.3 {
        return Ok(());
    }
    Err(format!("p90 {before} ms without, {after} ms with; {kept} of the large copies' rate is left"))
}

#[test]
fn tenants_that_copy_all_the_time_share_by_weight() {
    in_one_of(3, weights_1_2_4);
}

fn weights_1_2_4() -> Result<(), String> {
    let machine = Machine::new("copies-weights");
    let mut node = machine.node();
    let tenants = [1, 2, 4]
        .map(|weight| (node.tenant(&format!("weight-{weight}"), BE, weight, "copies-h2d,size=16MiB"), 0));
    let rates = rates(&beside(tenants.into(), 2 * TIME));
    let sum: f64 = rates.iter().sum();
    let fair = |(rate, weight): (&f64, f64)| (rate / sum / (weight / 7.0) - 1.0).abs() < 0.1;
    if rates.iter().zip([1.0, 2.0, 4.0]).all(fair) {
        return Ok(());
    }
    Err(format!("copies a second at weights 1, 2, 4: {rates:?}"))
}

#[test]
fn copies_go_on_and_arrive_when_the_node_dies() {
    let machine = Machine::new("copies-node");
    let mut node = machine.node();
    let mut tenants = [
        (node.tenant("there", BE, 1, "copies-h2d,size=16MiB"), 0),
        (node.tenant("back", LS, 8, "copies-d2h,size=16MiB"), 0),
    ];
    for (tenant, pause_ns) in &mut tenants {
        tenant.begin(*pause_ns);
    }
    std::thread::sleep(Duration::from_millis(500));
    drop(node);
    let gone = Instant::now();
    std::thread::sleep(TIME);
    let requests = tenants.map(|(tenant, _)| tenant.end());
    assert!(gone.elapsed() < 3 * TIME, "somebody waited");
    for requests in requests {
        // 16 MiB take 34 ms.
        let last = requests.iter().rev().take(20).map(|(start, end)| end - start).max().unwrap();
        assert!(
            requests.len() > 30 && last < 500_000_000,
            "{} requests, the last took {last} ns",
            requests.len()
        );
    }
}
