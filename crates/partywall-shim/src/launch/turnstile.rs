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
//! device still has the next chunk when it is through with one. How many launches make a chunk follows from what chunks take
//! ([`super::chunks`]). A graph that is launched as a whole is a chunk of its own.
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

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use partywall_shim_api::page::{HEARTBEAT_LIMIT_NS, HOLD_LIMIT_NS, HOLD_MEASURING, MEASURING_LIMIT_NS, Page};

use super::chunks::{Chunk, Chunks, STREAMS, Took, counter};
use crate::clock::now_ns;
use crate::copies::{Stream, clear_behind, take};
use crate::node;
use crate::sys::CUresult;

/// What is counted of a stream. Streams may share a counter: a chunk is then of both, and ends in one of them.
struct Counter {
    /// Launches since the last mark.
    pending: AtomicU32,
    /// Before the first of them.
    began_ns: AtomicU64,
    /// Chunks so far.
    chunks: AtomicU32,
    /// How many make a chunk. 0, as it begins, is one: until something is known of them, launches may be long.
    size: AtomicU32,
}

static COUNTERS: [Counter; STREAMS] = [const {
    Counter {
        pending: AtomicU32::new(0),
        began_ns: AtomicU64::new(0),
        chunks: AtomicU32::new(0),
        size: AtomicU32::new(0),
    }
}; STREAMS];

/// What is known of chunks. Nobody waits for it: who does not get it looks later, or leaves a bit in [`LOST`].
static CHUNKS: Mutex<Chunks> = Mutex::new(Chunks::new());

/// Words of chunks that are not entered there.
static LOST: AtomicU32 = AtomicU32::new(0);

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
    let counter = &COUNTERS[counter(stream)];
    if counter.pending.load(Ordering::Relaxed) == 0 {
        counter.began_ns.store(now_ns(), Ordering::Relaxed);
    }
    let result = call();
    if result != CUresult::SUCCESS {
        return result;
    }
    let pending = counter.pending.fetch_add(1, Ordering::Relaxed) + 1;
    if is_whole || pending >= size(page, counter) {
        let launches = counter.pending.swap(0, Ordering::Relaxed).max(1);
        let began_ns = counter.began_ns.load(Ordering::Relaxed);
        let number = counter.chunks.fetch_add(1, Ordering::Relaxed);
        mark(page, Chunk { stream, number, launches, is_whole, began_ns, marked_ns: now_ns() });
    }
    result
}

/// How many launches make a chunk now.
fn size(page: &Page, counter: &Counter) -> u32 {
    let most = page.node.launches_per_chunk.load(Ordering::Relaxed);
    if page.node.chunk_ns.load(Ordering::Relaxed) == 0 {
        return most;
    }
    counter.size.load(Ordering::Relaxed).clamp(1, most.max(1))
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
        look(page);
        let waited = now.saturating_sub(began);
        if waited >= SPIN_NS && is_alone(now) {
            break;
        }
        pause(waited);
        now = now_ns();
    }
    page.shim.held_ns.fetch_add(now.saturating_sub(began), Ordering::Relaxed);
}

/// Lets a moment pass for a thread that has waited for so long.
pub(super) fn pause(waited_ns: u64) {
    if waited_ns < SPIN_NS {
        rustix::thread::sched_yield();
    } else {
        let _ = rustix::thread::nanosleep(&rustix::event::Timespec { tv_sec: 0, tv_nsec: NAP_NS });
    }
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
        LOST.store(u32::MAX, Ordering::Relaxed);
        page.shim.chunks.iter().for_each(|word| word.store(0, Ordering::Release));
    }
    true
}

fn may_go(page: &Page) -> bool {
    let under_way = || page.shim.chunks.iter().filter(|word| word.load(Ordering::Acquire) != 0).count();
    page.node.hold.load(Ordering::Acquire) == 0
        && under_way() < page.node.chunks_max.load(Ordering::Relaxed) as usize
}

/// Has the device say when it is through with a chunk.
fn mark(page: &'static Page, chunk: Chunk) {
    look(page);
    let words = &page.shim.chunks;
    let Some(word) = take(words, &NEXT) else { return };
    let number = words.iter().position(|one| ptr::eq(one, word)).unwrap_or(words.len());
    match chunks() {
        Some(mut chunks) => chunks.mark(number, chunk),
        None => lose(number),
    }
    if !clear_behind(chunk.stream, page, word) {
        lose(number);
        word.store(0, Ordering::Release);
        return;
    }
    node::ring();
}

fn lose(word: usize) {
    LOST.fetch_or(1_u32.unbounded_shl(word as u32), Ordering::Relaxed);
}

/// What is known of chunks, unless another thread is at it.
fn chunks() -> Option<MutexGuard<'static, Chunks>> {
    let mut chunks = match CHUNKS.try_lock() {
        Ok(chunks) => chunks,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    let lost = LOST.swap(0, Ordering::Relaxed);
    if lost != 0 {
        chunks.forget(lost);
    }
    Some(chunks)
}

/// Looks which chunks are through.
fn look(page: &Page) {
    let Some(mut chunks) = chunks() else { return };
    let before = now_ns();
    if page.node.hold.load(Ordering::Relaxed) != 0 {
        chunks.hold(before);
    }
    let words = page.shim.chunks.iter().enumerate();
    let taken = words.filter(|(_, word)| word.load(Ordering::Acquire) != 0);
    let taken = taken.fold(0, |taken, (number, _)| taken | 1 << number);
    chunks.look(before, taken, now_ns(), |took| learn(page, &took));
}

/// What follows from what a chunk took.
fn learn(page: &Page, took: &Took) {
    if let Some(ns) = took.of_one() {
        page.shim.longest_launch_ns.fetch_max(ns, Ordering::Relaxed);
    }
    let counter = &COUNTERS[counter(took.chunk.stream)];
    let target_ns = page.node.chunk_ns.load(Ordering::Relaxed);
    let most = page.node.launches_per_chunk.load(Ordering::Relaxed);
    let size = took.next(counter.size.load(Ordering::Relaxed), u64::from(target_ns), most);
    counter.size.store(size, Ordering::Relaxed);
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
