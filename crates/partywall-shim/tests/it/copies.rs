//! Copies of a program that checks every byte, on the simulated device, in turns that a test gives.
#![allow(
    clippy::disallowed_methods,
    reason = "the tests play a node, which looks at a page from time to time"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use partywall_shim_api::page::Page;

use crate::stage::{Node, Program, Tenant, simulated};

const PACKET: u64 = 64 << 10;
const DIRECT_MAX: u64 = 16 << 10;

/// Everything that the program can do and go on after.
const ALL: [&str; 11] = [
    "async", "defaults", "blocking", "boxes", "pending", "capture", "held", "threads", "refused", "contexts",
    "forks",
];

fn program(folder: &tempfile::TempDir, commands: &[&str]) -> Program {
    simulated("copying", folder, commands)
}

/// A node that gives a process its turns. It stops when dropped.
struct Turns {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Tenant, usize)>>,
}

impl Turns {
    /// At most `window` bytes in flight, in packets.
    fn give(tenant: Tenant, window: u64) -> Self {
        set_up(&tenant.page);
        let over = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let (mut steps, mut announced) = (0_u32, 0);
            while !stops.load(Ordering::Relaxed) {
                step(&tenant.page, window);
                announced = announced.max(on_their_way(&tenant.page));
                steps += 1;
                // Somebody else copies, now and then.
                tenant.page.node.pace.iter().for_each(|pace| pace.store(steps / 8 % 3, Ordering::Relaxed));
                std::thread::sleep(Duration::from_micros(50));
            }
            (tenant, announced)
        });
        Self { over, thread: Some(thread) }
    }

    /// The process's end of the connection, when no more turns are given, and how many copies were announced at the same time.
    fn end(mut self) -> (Tenant, usize) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn set_up(page: &Page) {
    page.node.packet_bytes.store(PACKET, Ordering::Relaxed);
    page.node.direct_max_bytes.iter().for_each(|most| most.store(DIRECT_MAX, Ordering::Relaxed));
    page.node.quota_bytes.store(u64::MAX, Ordering::Relaxed);
    page.node.announce.iter().for_each(|wanted| wanted.store(1, Ordering::Relaxed));
    beat(page);
    page.node.copies_decided.store(1, Ordering::Release);
}

/// Announced copies from the host that are not through.
fn on_their_way(page: &Page) -> usize {
    page.shim.announced.0[0].iter().filter(|word| word.load(Ordering::Acquire) != 0).count()
}

/// The node is alive.
pub(crate) fn beat(page: &Page) {
    page.node.heartbeat_ns.store(now_ns(), Ordering::Relaxed);
}

pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn step(page: &Page, window: u64) {
    beat(page);
    for direction in 0..2 {
        let (node, shim) = (&page.node, &page.shim.copies[direction]);
        let (ready, done) = (shim.ready.load(Ordering::Acquire), shim.done.load(Ordering::Acquire));
        let before = node.granted[direction].load(Ordering::Relaxed);
        assert!(done <= before, "{done} bytes of {before} are through");
        let granted = ready.min(done + window).max(before);
        if granted != before {
            node.granted[direction].store(granted, Ordering::Release);
            page.wake_grants();
        }
    }
}

/// Ready, started and done, and copies, in both directions.
fn counted(page: &Page) -> [[u64; 4]; 2] {
    [0, 1].map(|direction| {
        let side = &page.shim.copies[direction];
        [&side.ready, &side.started, &side.done, &side.copies].map(|counter| counter.load(Ordering::Relaxed))
    })
}

fn in_turns(commands: &[&str], environment: &[(&str, &str)], window: u64) -> (Vec<String>, [[u64; 4]; 2]) {
    let folder = tempfile::TempDir::new().unwrap();
    let node = Node::new();
    let mut program = program(&folder, commands).under(&node);
    for (name, value) in environment {
        program = program.env(name, *value);
    }
    let program = std::thread::spawn(move || program.lines());
    let turns = Turns::give(node.welcome(), window);
    let lines = program.join().unwrap();
    let (tenant, _) = turns.end();
    (lines, counted(&tenant.page))
}

#[test]
fn small_copies_are_announced_until_the_device_is_through_with_them() {
    let folder = tempfile::TempDir::new().unwrap();
    let node = Node::new();
    let program = program(&folder, &["held", "capture"]).under(&node);
    let program = std::thread::spawn(move || program.lines());
    let turns = Turns::give(node.welcome(), 2 * PACKET);
    assert_eq!(program.join().unwrap(), ["held", "capture"]);
    let (tenant, announced) = turns.end();
    assert_eq!(announced, 3, "they wait in a stream that is held");
    assert_eq!(on_their_way(&tenant.page), 0);
}

#[test]
fn every_byte_arrives_in_order_whatever_kind_of_copy_it_is() {
    let (lines, counted) = in_turns(&ALL, &[], 2 * PACKET);
    assert_eq!(lines, ALL);
    for [ready, started, done, copies] in counted {
        assert!(ready > 100 << 20 && copies > 50, "{ready} bytes of {copies} copies were in turns");
        assert!(done <= started && started <= ready);
    }
}

#[test]
fn host_functions_do_as_well() {
    let some = ["async", "defaults", "blocking", "boxes", "pending", "refused"];
    let (lines, counted) = in_turns(&some, &[("PARTYWALL_COPY_GATE", "hostfunc")], PACKET);
    assert_eq!(lines, some);
    assert!(counted.iter().all(|side| side[3] > 10), "{counted:?}");
}

#[test]
fn switched_off_everything_goes_straight() {
    let (lines, counted) = in_turns(&["async", "blocking"], &[("PARTYWALL_COPY_GATE", "off")], PACKET);
    assert_eq!(lines, ["async", "blocking"]);
    assert_eq!(counted, [[0; 4]; 2]);
}

#[test]
fn a_process_leaves_with_copies_under_way() {
    let (lines, _) = in_turns(&["leaves"], &[], PACKET);
    assert!(lines.is_empty());
}

#[test]
fn a_node_that_grants_nothing_and_dies_holds_nothing() {
    for commands in [&["async", "blocking", "held", "pending"][..], &["leaves"]] {
        let folder = tempfile::TempDir::new().unwrap();
        let node = Node::new();
        let program = program(&folder, commands).under(&node);
        let program = std::thread::spawn(move || program.lines());
        let tenant = node.welcome();
        set_up(&tenant.page);
        while commands[0] != "leaves" && counted(&tenant.page)[0][0] == 0 {
            step(&tenant.page, 0);
            std::thread::sleep(Duration::from_millis(1));
        }
        // The connection ends, and with it the node.
        drop(node);
        drop(tenant);
        program.join().unwrap();
    }
}
