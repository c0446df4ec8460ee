//! Graphs of a best-effort process, with the simulated device behind the library and a node that decides about launches.
#![allow(
    clippy::disallowed_methods,
    reason = "the tests play a node, which looks at a page from time to time"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use partywall_shim_api::page::Page;
use tempfile::TempDir;

use crate::copies::beat;
use crate::stage::{Node, Running, Tenant, simulated};

const LS: u32 = 0;
const BE: u32 = 1;

/// Everything that leaves something behind that can be compared.
const ALL: [&str; 9] =
    ["chain", "branches", "nested", "small", "memory", "changed", "streams", "destroyed", "threads"];

/// How long a test waits for what should happen soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// A node that decides about launches. It stops when dropped.
struct Deciding {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    tenant: Arc<Tenant>,
}

impl Deciding {
    /// At most two chunks of so many launches, of any length.
    fn welcome(node: &Node, class: u32, launches: u32) -> Self {
        let tenant = Arc::new(node.welcome_as(class, |page| {
            beat(page);
            page.node.launches_per_chunk.store(launches, Ordering::Relaxed);
            page.node.chunks_max.store(2, Ordering::Relaxed);
        }));
        let over = Arc::new(AtomicBool::new(false));
        let (stops, beats) = (Arc::clone(&over), Arc::clone(&tenant));
        let thread = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                beat(&beats.page);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { over, thread: Some(thread), tenant }
    }

    fn page(&self) -> &Page {
        &self.tenant.page
    }

    /// Graphs that are in pieces, and that are not; graphs launched, and kernels.
    fn counted(&self) -> [u64; 4] {
        let shim = &self.page().shim;
        let graphs = [&shim.graphs_cut, &shim.graphs_whole].map(|word| word.load(Ordering::Relaxed));
        let launches = [&shim.graph_launches, &shim.launches].map(|word| word.load(Ordering::Relaxed));
        [graphs[0].into(), graphs[1].into(), launches[0], launches[1]]
    }
}

impl Drop for Deciding {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))));
    }
}

/// What a program prints, and what its page then says. It is stopped at a `wait` at its end, so that nothing is torn down yet.
fn run(class: u32, commands: &[&str]) -> (Vec<String>, [u64; 4]) {
    let (folder, node) = (TempDir::new().unwrap(), Node::new());
    let commands = [commands, &["wait"]].concat();
    let mut program = simulated("graphs", &folder, &commands).under(&node).start();
    let deciding = Deciding::welcome(&node, class, 4);
    let lines = program.until("waiting");
    let counted = deciding.counted();
    program.go();
    assert!(program.end());
    (lines, counted)
}

/// Kernels and graphs launched are the program's, however many pieces there were.
#[test]
fn graphs_in_pieces_leave_the_same_behind() {
    let folder = TempDir::new().unwrap();
    let expected = simulated("graphs", &folder, &ALL).lines();
    let (sensitive, uncut) = run(LS, &ALL);
    assert_eq!((&sensitive, uncut[..2].to_vec()), (&expected, vec![0, 0]));
    let (lines, counted) = run(BE, &ALL);
    assert_eq!(lines, expected);
    assert_eq!(counted[2..], uncut[2..]);
    assert!(counted[0] > 2 * 16 && counted[1] >= 2, "{counted:?}");
}

#[test]
fn what_can_be_cut_is_and_the_rest_is_counted() {
    let cases: [(&[&str], [u64; 2]); 8] = [
        (&["chain"], [1, 0]),
        (&["nested"], [1, 0]),
        (&["small"], [0, 0]),
        (&["memory"], [0, 1]),
        (&["changed"], [0, 1]),
        // It may be launched from the device: from then on nothing is cut, and what was is not.
        (&["flags"], [0, 3]),
        (&["chain", "memory", "streams"], [2, 1]),
        (&["destroyed"], [0, 0]),
    ];
    for (commands, expected) in cases {
        let (_, counted) = run(BE, commands);
        assert_eq!(counted[..2], expected, "{commands:?}");
    }
}

/// Five hundred kernels, 125 pieces: the page has what the program did.
#[test]
fn a_large_graph_is_cut_and_counted_once() {
    let (folder, node) = (TempDir::new().unwrap(), Node::new());
    let mut program = simulated("graphs", &folder, &["large", "wait"]).under(&node).start();
    // Chunks of one: each piece takes a word of its own.
    let deciding = Deciding::welcome(&node, BE, 1);
    program.until("waiting");
    assert_eq!(deciding.counted(), [1, 0, 1, 500], "those that were captured, and not its pieces");
    program.go();
    assert!(program.end());
}

/// Starts a long graph of which a node stands, has the program hold its launches, lets the node go on, and waits until the device
/// has nothing more to do. How many of the graph's 200 nodes have run by then.
fn nodes_run_while_held(command: &str) -> u32 {
    let (folder, node) = (TempDir::new().unwrap(), Node::new());
    let mut program = simulated("graphs", &folder, &[command]).under(&node).start();
    let deciding = Deciding::welcome(&node, BE, 1);
    let page = deciding.page();
    program.until("stands");
    let is_busy = || page.shim.chunks.iter().any(|word| word.load(Ordering::Acquire) != 0);
    // The node may stand before the program has come to mark the chunk that it is in.
    wait("the device to be busy", is_busy);
    page.node.hold.store(1, Ordering::Release);
    program.go();
    wait("the device to be through", || !is_busy());
    let ran = ran(&mut program);
    page.node.hold.store(0, Ordering::Release);
    program.go();
    assert!(program.until(command).is_empty());
    assert!(program.end());
    ran
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

fn ran(program: &mut Running) -> u32 {
    program.go();
    program.line().parse().unwrap()
}

/// A request that comes while a neighbour's graph of 200 kernels runs waits for the pieces that are under way. A piece goes after a
/// tenth of a second in any case, so on a slow machine there may be some more.
#[test]
fn a_long_graph_stops_between_two_pieces() {
    let cut = nodes_run_while_held("held");
    assert!((10..100).contains(&cut), "{cut}");
    assert_eq!(nodes_run_while_held("held-whole"), 199, "with memory of its own it goes to its end");
}
