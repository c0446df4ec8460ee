//! Best-effort processes that are squeezed and let go again while they run: the results are those of a process that never is, and kernels run
//! where the page says. With the simulated device behind the library.
#![allow(
    clippy::disallowed_methods,
    reason = "the tests play a node, which changes a page from time to time"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use partywall_shim_api::page::{HOLD_SQUEEZED, Page, SmSet};
use tempfile::TempDir;

use crate::copies::{beat, now_ns};
use crate::stage::{Node, Running, Tenant, simulated};

const BE: u32 = 1;

/// The squeezed set, and one of the tenant's own that has it.
const SQUEEZED: SmSet = SmSet { first: 58, groups: 8, sms_per_group: 2 };
const OWN: SmSet = SmSet { first: 26, groups: 40, sms_per_group: 2 };
const ALL_SMS: u32 = 132;

/// A hundred times a second there and back.
const RESIZE: Duration = Duration::from_millis(5);

/// A node that decides about launches and resizes. It stops when dropped.
struct Resizing {
    over: Arc<AtomicBool>,
    resizes: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    tenant: Arc<Tenant>,
}

impl Resizing {
    fn welcome(node: &Node, own: Option<SmSet>) -> Self {
        let tenant = Arc::new(node.welcome_as(BE, |page| {
            beat(page);
            if let Some(SmSet { first, groups, sms_per_group }) = own {
                for (word, value) in page.header.sm_set.iter().zip([first, groups, sms_per_group]) {
                    word.store(value, Ordering::Relaxed);
                }
            }
            page.header.set_squeezed(SQUEEZED);
            page.node.launches_per_chunk.store(4, Ordering::Relaxed);
            page.node.chunks_max.store(2, Ordering::Relaxed);
        }));
        let (over, resizes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (stops, goes, beats) = (Arc::clone(&over), Arc::clone(&resizes), Arc::clone(&tenant));
        let thread = std::thread::spawn(move || {
            let mut squeezed = false;
            while !stops.load(Ordering::Relaxed) {
                beat(&beats.page);
                if goes.load(Ordering::Relaxed) {
                    squeezed = !squeezed;
                    hold(&beats.page, squeezed);
                }
                std::thread::sleep(RESIZE);
            }
        });
        Self { over, resizes, thread: Some(thread), tenant }
    }

    fn page(&self) -> &Page {
        &self.tenant.page
    }

    fn set(&self, squeezed: bool) {
        hold(self.page(), squeezed);
    }

    /// Launches onto the squeezed set, those that could not go there, and graphs that cannot.
    fn counted(&self) -> [u64; 3] {
        let shim = &self.page().shim;
        let graphs = shim.graphs_unsqueezed.load(Ordering::Relaxed);
        let launches = [&shim.squeezed_launches, &shim.unsqueezed_launches];
        let [there, not] = launches.map(|word| word.load(Ordering::Relaxed));
        [there, not, graphs.into()]
    }
}

fn hold(page: &Page, squeezed: bool) {
    page.node.resized_ns.store(now_ns(), Ordering::Relaxed);
    page.node.hold.store(if squeezed { HOLD_SQUEEZED } else { 0 }, Ordering::Release);
}

impl Drop for Resizing {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))));
    }
}

/// What a program prints while it is resized all the time, and what its page then says.
fn resized(file: &str, commands: &[&str], own: Option<SmSet>) -> (Vec<String>, [u64; 3], u64) {
    let (folder, node) = (TempDir::new().unwrap(), Node::new());
    let commands = [commands, &["wait"]].concat();
    let mut program = simulated(file, &folder, &commands).under(&node).start();
    let resizing = Resizing::welcome(&node, own);
    resizing.resizes.store(true, Ordering::Relaxed);
    let lines = program.until("waiting");
    let counted = resizing.counted();
    let resizes = resizing.page().shim.resizes.load(Ordering::Relaxed);
    program.go();
    assert!(program.end());
    (lines, counted, resizes)
}

fn alone(file: &str, commands: &[&str]) -> Vec<String> {
    simulated(file, &TempDir::new().unwrap(), commands).lines()
}

/// S1, S2: kernels, copies, fills, events, graphs, host functions, default streams: what one leaves behind another one reads.
#[test]
fn results_are_the_same_under_resizes() {
    let expected = alone("resized", &["order"]);
    for own in [None, Some(OWN)] {
        let (lines, [there, ..], resizes) = resized("resized", &["order"], own);
        assert_eq!(lines, expected);
        assert!(there > 0 && resizes > 1, "{there} launches, {resizes} resizes");
    }
}

/// S2: sixteen threads, with a stream each, one of all, their own default streams, and captures in between.
#[test]
fn threads_do_not_lose_anything_under_resizes() {
    let (lines, [there, ..], resizes) = resized("resized", &["threads"], None);
    assert_eq!(lines, ["threads"]);
    assert!(there > 0 && resizes > 1, "{there} launches, {resizes} resizes");
}

#[test]
fn graphs_leave_the_same_behind_under_resizes() {
    let all =
        ["chain", "branches", "nested", "small", "memory", "changed", "streams", "destroyed", "threads"];
    let expected = alone("graphs", &all);
    let (lines, [there, _, graphs], _) = resized("graphs", &all, None);
    assert_eq!(lines, expected);
    assert!(there > 0 && graphs > 0, "{there} launches, {graphs} graphs that cannot be squeezed");
}

/// How many SMs each kind of launch uses.
fn sms(program: &mut Running) -> BTreeMap<String, u32> {
    let lines = program.until("where");
    let pairs = lines.iter().map(|line| line.split_once(' ').unwrap());
    pairs.map(|(name, sms)| (name.to_owned(), sms.parse().unwrap())).collect()
}

fn expect(found: &BTreeMap<String, u32>, names: &[&str], sms: u32) {
    for &name in names {
        assert_eq!(found[name], sms, "{name} of {found:?}");
    }
}

const TREATED: [&str; 6] = ["stream", "legacy", "thread", "extended", "short", "long"];
const AS_THEY_ARE: [&str; 3] = ["cooperative", "asks", "memory"];

/// S1, S3: and when the squeeze ends all SMs are used again; also in a context that has taken the place of the first.
#[test]
fn a_squeezed_process_runs_on_its_squeezed_sms() {
    for (own, whole) in [(None, ALL_SMS), (Some(OWN), OWN.groups * OWN.sms_per_group)] {
        let (folder, node) = (TempDir::new().unwrap(), Node::new());
        let commands = ["wait", "where", "wait", "where", "wait", "where", "wait", "reset", "where", "wait"];
        let mut program = simulated("resized", &folder, &commands).under(&node).start();
        let resizing = Resizing::welcome(&node, own);
        let step = |program: &mut Running, squeezed| {
            program.until("waiting");
            resizing.set(squeezed);
            program.go();
            assert!(program.until("wait").is_empty());
            sms(program)
        };
        let found = step(&mut program, false);
        expect(&found, &TREATED, whole);
        expect(&found, &["memory"], whole);
        assert_eq!(resizing.counted(), [0, 0, 1], "the graph with memory of its own cannot be squeezed");
        let found = step(&mut program, true);
        expect(&found, &TREATED, SQUEEZED.groups * SQUEEZED.sms_per_group);
        expect(&found, &AS_THEY_ARE, whole);
        // Four launches, a graph of one piece and one of five; two launches that ask for all blocks at once.
        assert_eq!(resizing.counted(), [10, 2, 1]);
        let found = step(&mut program, false);
        expect(&found, &TREATED, whole);
        assert_eq!(resizing.counted(), [10, 2, 1]);
        program.until("waiting");
        resizing.set(true);
        program.go();
        assert!(program.until("wait").is_empty());
        let found = sms_after(&mut program, "reset");
        expect(&found, &TREATED, SQUEEZED.groups * SQUEEZED.sms_per_group);
        program.until("waiting");
        program.go();
        assert!(program.end());
        assert!(resizing.page().shim.resizes.load(Ordering::Relaxed) >= 3);
    }
}

fn sms_after(program: &mut Running, line: &str) -> BTreeMap<String, u32> {
    program.until(line);
    sms(program)
}

/// S2: although each launch is a graph, and launches of one graph wait for each other.
#[test]
fn streams_do_not_wait_for_each_other_because_they_are_squeezed() {
    let (folder, node) = (TempDir::new().unwrap(), Node::new());
    let mut program = simulated("resized", &folder, &["wait", "apart"]).under(&node).start();
    let resizing = Resizing::welcome(&node, None);
    program.until("waiting");
    resizing.set(true);
    program.go();
    program.until("apart");
    assert_eq!(resizing.counted(), [7, 0, 0]);
    assert!(program.end());
}

/// S4: the node dies while it has the process squeezed.
#[test]
fn nobody_stays_squeezed_whose_node_is_gone() {
    let (folder, node) = (TempDir::new().unwrap(), Node::new());
    let commands = ["wait", "where", "wait", "where"];
    let mut program = simulated("resized", &folder, &commands).under(&node).start();
    let resizing = Resizing::welcome(&node, None);
    program.until("waiting");
    resizing.set(true);
    program.go();
    expect(&sms_after(&mut program, "wait"), &TREATED, SQUEEZED.groups * SQUEEZED.sms_per_group);
    program.until("waiting");
    drop(resizing);
    drop(node);
    program.go();
    expect(&sms_after(&mut program, "wait"), &TREATED, ALL_SMS);
    assert!(program.end());
}

/// S6 of the SM sets: then the process is held instead, and no launch is lost.
#[test]
fn a_process_whose_squeezed_sms_cannot_be_had_is_held() {
    let (folder, node) = (TempDir::new().unwrap(), Node::new());
    let mut program = simulated("resized", &folder, &["wait", "where"]).under(&node).start();
    let tenant = node.welcome_as(BE, |page| {
        beat(page);
        page.header.set_squeezed(SmSet { first: 66, ..SQUEEZED });
        page.node.launches_per_chunk.store(4, Ordering::Relaxed);
        page.node.chunks_max.store(2, Ordering::Relaxed);
    });
    program.until("waiting");
    hold(&tenant.page, true);
    beat(&tenant.page);
    program.go();
    expect(&sms_after(&mut program, "wait"), &TREATED, ALL_SMS);
    let shim = &tenant.page.shim;
    assert_eq!(shim.squeezed_launches.load(Ordering::Relaxed), 0);
    assert!(shim.held_ns.load(Ordering::Relaxed) > 0);
    assert!(program.end());
}
