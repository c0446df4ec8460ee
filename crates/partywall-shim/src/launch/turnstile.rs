//! Launches of a best-effort process: few at a time on the device, and none while a latency-sensitive neighbour is active.
//!
//! # Problem
//!
//! A kernel that runs cannot be taken off the device, and what a program has queued runs to its end, kernel by kernel. A program may
//! queue a thousand of them. So a neighbour's request waits for all that was queued before the program was told to pause.
//!
//! # Approach
//!
//! Launches of a stream are counted into *chunks* of a few. Behind each chunk the device clears a word of the page, and a launch
//! waits while as many chunks are under way as the node allows, or while the node says *hold*. So little is ever queued, and the
//! device still has the next chunk when it is through with one. A graph is a chunk of its own.
//!
//! Waiting is safe from the outside and from the inside: it ends when the node is gone, and in any case after [`HOLD_LIMIT_NS`] ([`MEASURING_LIMIT_NS`] while the node measures), because a
//! program may have two threads of which one launches what the other one's kernel waits for.
//!
//! # Scenarios
//!
//! - S1: as many chunks as allowed are under way: the next launch waits until the device is through with one.
//! - S2: the node says hold: launches wait until it no longer does.
//! - S3: the node dies, or nothing moves: the launch goes.
//! - S4: streams under capture: nothing runs, so nothing is counted as under way.
//! - S5: chunks whose context is gone never come through: they no longer count when a launch has waited for the limit.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use partywall_shim_api::page::{HEARTBEAT_LIMIT_NS, HOLD_LIMIT_NS, HOLD_MEASURING, MEASURING_LIMIT_NS, Page};

use crate::clock::now_ns;
use crate::copies::{Stream, clear_behind, take};
use crate::node;
use crate::sys::CUresult;

/// Launches since the last mark, by stream. Streams may share a counter: a chunk is then of both, and ends in one of them.
static PENDING: [AtomicU32; STREAMS] = [const { AtomicU32::new(0) }; STREAMS];
const STREAMS: usize = 64;

/// Where the search for a free word begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// For how long a waiting launch looks without pause, and how long it sleeps between two looks after that.
const SPIN_NS: u64 = 200_000;
const NAP_NS: i64 = 50_000;

/// Launches through `call`, in its turn.
pub(super) fn pass(
    page: &'static Page,
    stream: Stream,
    is_whole: bool,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    wait(page);
    let result = call();
    if result != CUresult::SUCCESS {
        return result;
    }
    let pending = &PENDING[(stream >> 4 ^ stream >> 12 ^ stream) % STREAMS];
    let launches = page.node.launches_per_chunk.load(Ordering::Relaxed);
    if is_whole || pending.fetch_add(1, Ordering::Relaxed) + 1 >= launches {
        pending.store(0, Ordering::Relaxed);
        mark(page, stream);
    }
    result
}

/// Waits for the turn of a launch.
fn wait(page: &Page) {
    if may_go(page) {
        return;
    }
    let began = now_ns();
    let is_alone = |now: u64| {
        let beat = page.node.heartbeat_ns.load(Ordering::Relaxed);
        now.saturating_sub(beat) > HEARTBEAT_LIMIT_NS || node::standing() != node::Standing::Registered
    };
    let mut now = began;
    if is_alone(now) {
        return;
    }
    while !goes(page, now.saturating_sub(began)) {
        if now.saturating_sub(began) < SPIN_NS {
            rustix::thread::sched_yield();
        } else {
            if is_alone(now) {
                break;
            }
            let _ = rustix::thread::nanosleep(&rustix::event::Timespec { tv_sec: 0, tv_nsec: NAP_NS });
        }
        now = now_ns();
    }
    page.shim.held_ns.fetch_add(now.saturating_sub(began), Ordering::Relaxed);
}

/// Whether a launch goes that has waited for so long.
fn goes(page: &Page, waited_ns: u64) -> bool {
    if may_go(page) {
        return true;
    }
    let hold = page.node.hold.load(Ordering::Acquire);
    let limit_ns = if hold == HOLD_MEASURING { MEASURING_LIMIT_NS } else { HOLD_LIMIT_NS };
    if waited_ns <= limit_ns {
        return false;
    }
    if hold == 0 {
        // Chunks that are not through by now belong to a context that is gone, or run for so long that they need no more
        // beside them. Should the device still clear their words, that does no harm.
        page.shim.chunks.iter().for_each(|word| word.store(0, Ordering::Release));
    }
    true
}

fn may_go(page: &Page) -> bool {
    let under_way = || page.shim.chunks.iter().filter(|word| word.load(Ordering::Acquire) != 0).count();
    page.node.hold.load(Ordering::Acquire) == 0
        && under_way() < page.node.chunks_max.load(Ordering::Relaxed) as usize
}

/// Has the device say when it is through with what was launched so far in a stream.
fn mark(page: &'static Page, stream: Stream) {
    let Some(word) = take(&page.shim.chunks, &NEXT) else { return };
    if !clear_behind(stream, page, word) {
        word.store(0, Ordering::Release);
        return;
    }
    node::ring();
}

#[cfg(test)]
mod tests {
    use partywall_shim_api::page::Mapped;

    use super::*;

    fn page(chunks: u32) -> Mapped {
        let (page, _file) = Mapped::create(1, 0, 1, None).unwrap();
        page.node.chunks_max.store(chunks, Ordering::Relaxed);
        page
    }

    #[test]
    fn s1_s2_launches_wait_for_chunks_and_while_they_are_held() {
        let page = page(2);
        assert!(goes(&page, 0));
        for word in [3, 9] {
            page.shim.chunks[word].store(1, Ordering::Relaxed);
        }
        assert!(!goes(&page, HOLD_LIMIT_NS));
        page.shim.chunks[3].store(0, Ordering::Relaxed);
        assert!(goes(&page, 0));
        page.node.hold.store(1, Ordering::Relaxed);
        assert!(!goes(&page, HOLD_LIMIT_NS));
    }

    #[test]
    fn s2_s3_a_hold_for_measuring_is_longer_and_ends() {
        let page = page(1);
        page.node.hold.store(HOLD_MEASURING, Ordering::Relaxed);
        assert!(!goes(&page, HOLD_LIMIT_NS + 1));
        assert!(goes(&page, MEASURING_LIMIT_NS + 1));
        page.node.hold.store(0, Ordering::Relaxed);
        assert!(goes(&page, 0));
    }

    #[test]
    fn s3_s5_the_limit_ends_every_wait() {
        let page = page(1);
        page.shim.chunks[0].store(1, Ordering::Relaxed);
        page.node.hold.store(1, Ordering::Relaxed);
        assert!(goes(&page, HOLD_LIMIT_NS + 1), "held for long enough");
        assert_eq!(page.shim.chunks[0].load(Ordering::Relaxed), 1, "its chunk may be under way all the same");
        page.node.hold.store(0, Ordering::Relaxed);
        assert!(!goes(&page, 0));
        assert!(goes(&page, HOLD_LIMIT_NS + 1));
        assert!(goes(&page, 0), "a chunk that never comes through counts no longer");
    }
}
