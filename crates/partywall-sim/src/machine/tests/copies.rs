//! Copies between host and device. "Measured" is on one H200 with PCIe 5 x16, November 2026.

use partywall_core::copy_scheduler::{Config, Policy};
use partywall_core::units::{Bytes, Nanos};
use partywall_core::wall::Wall;

use super::*;

/// A host that turns round at once, as the measuring loop did.
fn swift(scene: Scene) -> Scene {
    Scene { params: Params { host_ns: 500.0, ..Params::default() }, ..scene }
}

fn copies(config: Config) -> Scene {
    let scene = Scene::new(Wall::TimeSlicing)
        .ls(Program::host_copy(Bytes::from_kib(64)), &closed(Nanos::ZERO, 1))
        .be(Program::host_copy(Bytes::from_mib(512)), &closed(Nanos::ZERO, 1));
    swift(Scene { copies: config, ..scene }).until_ms(2000)
}

fn fifo() -> Config {
    Config { policy: Policy::Fifo, ..Config::default() }
}

/// GB/s of the second tenant.
fn rate(outcome: &Outcome) -> f64 {
    outcome.tenants[1].rate(outcome.measured)
}

#[test]
fn a_small_copy_alone_takes_its_latency() {
    check("us", p50_us(&copies(fifo()).solo().tenants[0]), 8.3, (7.8, 8.8));
}

#[test]
fn a_small_copy_waits_for_whole_copies_under_fifo() {
    let outcome = copies(fifo()).run();
    check("us", p50_us(&outcome.tenants[0]), 9672.0, (8500.0, 10_500.0));
    check("GB/s of the large copies", rate(&outcome), 56.9, (53.0, 57.1));
}

#[test]
fn one_packet_in_flight_bounds_the_wait_and_wastes_the_link() {
    let outcome = copies(fair(Bytes::from_mib(1), 1)).run();
    check("us", p50_us(&outcome.tenants[0]), 27.7, (20.0, 38.0));
    let alone = copies(fair(Bytes::from_mib(1), 1));
    let alone = crate::machine::run(alone.setup(alone.layout().only(1), &[1])).unwrap();
    check("GB/s alone", alone.tenants[0].rate(alone.measured), 37.5, (34.0, 43.0));
}

#[test]
fn two_packets_in_flight_fill_the_link() {
    let scene = copies(fair(Bytes::from_kib(512), 2));
    let alone = crate::machine::run(scene.setup(scene.layout().only(1), &[1])).unwrap();
    check("GB/s alone", alone.tenants[0].rate(alone.measured), 57.0, (54.0, 57.1));
    let outcome = scene.run();
    check("us of the small copy", p50_us(&outcome.tenants[0]), 27.7, (8.0, 38.0));
    assert!(rate(&outcome) > 25.0, "a small copy at a time leaves most of the link: {}", rate(&outcome));
}

#[test]
fn the_directions_do_not_disturb_each_other() {
    let back = Program { input: Bytes::ZERO, output: Bytes::from_kib(64), ..program(vec![kernel(2.0, 1.0)]) };
    let scene = Scene::new(Wall::GreenContexts)
        .ls(back, &closed(Nanos::ZERO, 1))
        .be(Program::host_copy(Bytes::from_mib(512)), &closed(Nanos::ZERO, 1));
    let scene = swift(Scene { copies: fifo(), ..scene });
    // 10.7 us beside the other direction, 8.3 alone (measured).
    check("slowdown", scene.interference(), 1.29, (0.99, 1.3));
}

#[test]
fn a_fault_during_copies_leaves_the_link_usable() {
    let mut scene = copies(fair(Bytes::from_kib(512), 2)).until_ms(300);
    scene.faults = vec![fault(1, 100, 50)];
    let outcome = scene.run();
    assert!(
        outcome.tenants[1].lost == 1 && outcome.tenants[1].completed > 5,
        "{:?}",
        outcome.tenants[1].completed
    );
    assert!(outcome.tenants[0].completed > 5000, "the other tenant is outside the fault domain");
}

#[test]
fn passes_of_a_program_without_kernels_are_its_copies() {
    let scene = Scene::new(Wall::Mps)
        .ls(Program::host_copy(Bytes::from_mib(1)), &Load::Poisson { rate_per_s: 100.0 });
    let outcome = scene.run();
    let per_request = outcome.tenants[0].items / outcome.tenants[0].completed as f64;
    assert!((per_request / (1048576.0 / 1e9) - 1.0).abs() < 0.05, "{per_request} GB");
    check("us", p50_us(&outcome.tenants[0]), 26.5, (24.0, 28.0));
}
