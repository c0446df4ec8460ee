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
//! A process that has a squeezed set is not held but *squeezed*: its launches go on, to fewer SMs ([`super::squeezed`]). What cannot go there,
//! a graph that is launched as a whole above all, is held as before.
//!
//! Best-effort processes may have to launch by turns ([`HOLD_TURN`]). Whoever comes next waits until all that was launched before is through, so
//! the node has to know of each launch: those behind which there is no mark yet are counted ([`ShimSide::unmarked`](partywall_shim_api::page::ShimSide)),
//! and marked as soon as the process waits for its turn.
//!
//! Waiting is safe from the outside and from the inside: it ends when the node is gone, and in any case after [`HOLD_LIMIT_NS`] ([`MEASURING_LIMIT_NS`] while the node measures,
//! [`TURN_LIMIT_NS`] while it is another one's turn), because a program may have two threads of which one launches what the other one's kernel waits for.
//!
//! # Scenarios
//!
//! - S1: as many chunks as allowed are under way: the next launch waits until the device is through with one.
//! - S2: the node says hold: launches wait until it no longer does.
//! - S3: the node dies, or nothing moves: the launch goes.
//! - S4: streams under capture: nothing runs, so nothing is counted as under way.
//! - S5: chunks whose context is gone never come through: they no longer count when a launch has waited for the limit.
//! - S6: squeezed: what can be launched onto the squeezed set goes, the rest is held; how long that took after it was decided, or
//!   after there was something to launch, is in the page.
//! - S7: another one's turn: launches wait for longer, that is rung for, and what was launched is marked. When it is over, what else there is to
//!   wait for has its own time.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use partywall_shim_api::page::{
    HEARTBEAT_LIMIT_NS, HOLD_LIMIT_NS, HOLD_MEASURING, HOLD_SQUEEZED, HOLD_TURN, MEASURING_LIMIT_NS, Page,
    TURN_LIMIT_NS,
};

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

/// How something is launched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// A graph, of any number of kernels.
    pub(super) is_whole: bool,
    /// Whether it goes on while the process is squeezed.
    pub(super) can_be_squeezed: bool,
}

/// Launches through `call`, in its turn. It gets whether the process is squeezed.
pub(super) fn pass(
    page: &'static Page,
    stream: Stream,
    Way { is_whole, can_be_squeezed }: Way,
    call: impl FnOnce(bool) -> CUresult,
) -> CUresult {
    let came_ns = came(page, now_ns);
    page.shim.unmarked.fetch_add(1, Ordering::SeqCst);
    wait(page, stream, can_be_squeezed);
    let counter = &COUNTERS[counter(stream)];
    if counter.pending.load(Ordering::Relaxed) == 0 {
        counter.began_ns.store(now_ns(), Ordering::Relaxed);
    }
    let result = call(is_squeezed(page));
    if result != CUresult::SUCCESS {
        take_off(&page.shim.unmarked, 1);
        return result;
    }
    resized(page, came_ns, now_ns);
    let pending = counter.pending.fetch_add(1, Ordering::Relaxed) + 1;
    if is_whole || pending >= size(page, counter) {
        close(page, stream, counter, is_whole);
    }
    result
}

/// Makes a chunk of the launches since the last mark.
fn close(page: &'static Page, stream: Stream, counter: &Counter, is_whole: bool) {
    let pending = counter.pending.swap(0, Ordering::Relaxed);
    let launches = pending.max(1);
    let began_ns = counter.began_ns.load(Ordering::Relaxed);
    let number = counter.chunks.fetch_add(1, Ordering::Relaxed);
    mark(page, Chunk { stream, number, launches, is_whole, began_ns, marked_ns: now_ns() });
    // Not before the mark is seen: in between, nothing would seem to be under way.
    take_off(&page.shim.unmarked, pending);
}

/// The page may be newer than what is taken off.
fn take_off(word: &AtomicU32, launches: u32) {
    let less = |count: u32| Some(count.saturating_sub(launches));
    let _ = word.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
}

/// How many launches make a chunk now.
fn size(page: &Page, counter: &Counter) -> u32 {
    let most = page.node.launches_per_chunk.load(Ordering::Relaxed);
    if page.node.chunk_ns.load(Ordering::Relaxed) == 0 {
        return most;
    }
    counter.size.load(Ordering::Relaxed).clamp(1, most.max(1))
}

/// Whether the node is gone.
fn is_alone(page: &Page, now_ns: u64) -> bool {
    let beat = page.node.heartbeat_ns.load(Ordering::Relaxed);
    now_ns.saturating_sub(beat) > HEARTBEAT_LIMIT_NS || node::standing() != node::Standing::Registered
}

fn is_squeezed(page: &Page) -> bool {
    page.node.hold.load(Ordering::Acquire) == HOLD_SQUEEZED && !is_alone(page, now_ns())
}

/// The last time of a change that a launch has followed.
static RESIZED_NS: AtomicU64 = AtomicU64::new(0);

/// When a launch came that is the first since something has changed; 0 of all others. A program that had nothing to launch has kept nobody waiting.
fn came(page: &Page, now_ns: impl FnOnce() -> u64) -> u64 {
    let is_first = page.node.resized_ns.load(Ordering::Relaxed) != RESIZED_NS.load(Ordering::Relaxed);
    if is_first { now_ns() } else { 0 }
}

/// A launch went where the page says. If it is the first since that has changed, how long it took since then, or since it came, is left there.
fn resized(page: &Page, came_ns: u64, now_ns: impl FnOnce() -> u64) {
    let at = page.node.resized_ns.load(Ordering::Relaxed);
    if at == RESIZED_NS.load(Ordering::Relaxed) || RESIZED_NS.swap(at, Ordering::Relaxed) == at {
        return;
    }
    let took = now_ns().saturating_sub(at.max(came_ns));
    page.shim.resize_ns.store(took, Ordering::Relaxed);
    page.shim.longest_resize_ns.fetch_max(took, Ordering::Relaxed);
    page.shim.resizes.fetch_add(1, Ordering::Relaxed);
}

/// Waits for the turn of a launch, which is counted as unmarked already.
fn wait(page: &'static Page, stream: Stream, can_be_squeezed: bool) {
    if may_go(page, can_be_squeezed) {
        return;
    }
    let began = now_ns();
    let mut now = began;
    if is_alone(page, now) {
        return;
    }
    take_off(&page.shim.unmarked, 1);
    page.shim.waiting.fetch_add(1, Ordering::SeqCst);
    node::ring();
    let (mut since, mut is_in_turn) = (began, true);
    while !enters(page, can_be_squeezed, now.saturating_sub(since)) {
        look(page);
        let is_held_for_turn = page.node.hold.load(Ordering::Acquire) == HOLD_TURN;
        if is_held_for_turn && is_in_turn {
            let counter = &COUNTERS[counter(stream)];
            if counter.pending.load(Ordering::Relaxed) > 0 {
                close(page, stream, counter, false);
            }
        } else if !is_held_for_turn && !is_in_turn {
            since = now;
        }
        is_in_turn = !is_held_for_turn;
        let waited = now.saturating_sub(began);
        if waited >= SPIN_NS && is_alone(page, now) {
            page.shim.unmarked.fetch_add(1, Ordering::SeqCst);
            break;
        }
        pause(waited);
        now = now_ns();
    }
    take_off(&page.shim.waiting, 1);
    page.shim.held_ns.fetch_add(now.saturating_sub(began), Ordering::Relaxed);
}

/// Whether a launch goes that has waited for so long. Counted before the page is looked at, so that the node knows of it or it of the node's word.
fn enters(page: &Page, can_be_squeezed: bool, waited_ns: u64) -> bool {
    if !goes(page, can_be_squeezed, waited_ns) {
        return false;
    }
    page.shim.unmarked.fetch_add(1, Ordering::SeqCst);
    let goes = goes(page, can_be_squeezed, waited_ns);
    if !goes {
        take_off(&page.shim.unmarked, 1);
    }
    goes
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
fn goes(page: &Page, can_be_squeezed: bool, waited_ns: u64) -> bool {
    if may_go(page, can_be_squeezed) {
        return true;
    }
    let hold = page.node.hold.load(Ordering::Acquire);
    let limit_ns = match hold {
        HOLD_MEASURING => MEASURING_LIMIT_NS,
        HOLD_TURN => TURN_LIMIT_NS,
        _ => HOLD_LIMIT_NS,
    };
    if waited_ns <= limit_ns {
        return false;
    }
    if !holds(hold, can_be_squeezed) {
        // Chunks that are not through by now belong to a context that is gone, or run for so long that they need no more
        // beside them. Should the device still clear their words, that does no harm.
        LOST.store(u32::MAX, Ordering::Relaxed);
        page.shim.chunks.iter().for_each(|word| word.store(0, Ordering::Release));
    }
    true
}

/// Whether launches of a kind are held.
fn holds(hold: u32, can_be_squeezed: bool) -> bool {
    match hold {
        0 => false,
        HOLD_SQUEEZED => !can_be_squeezed,
        _ => true,
    }
}

fn may_go(page: &Page, can_be_squeezed: bool) -> bool {
    let under_way = || page.shim.chunks.iter().filter(|word| word.load(Ordering::Acquire) != 0).count();
    !holds(page.node.hold.load(Ordering::SeqCst), can_be_squeezed)
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
    if holds(page.node.hold.load(Ordering::Relaxed), true) {
        chunks.hold(before);
    }
    let words = page.shim.chunks.iter().enumerate();
    let taken = words.filter(|(_, word)| word.load(Ordering::Acquire) != 0);
    let taken = taken.fold(0, |taken, (number, _)| taken | 1 << number);
    chunks.look(before, taken, now_ns(), |took| learn(page, &took));
}

/// What follows from what a chunk took.
fn learn(page: &Page, took: &Took) {
    page.shim.busy_ns.fetch_add(took.busy_ns(), Ordering::Relaxed);
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
        assert!(goes(&page, false, 0));
        for word in [3, 9] {
            page.shim.chunks[word].store(1, Ordering::Relaxed);
        }
        assert!(!goes(&page, false, HOLD_LIMIT_NS));
        page.shim.chunks[3].store(0, Ordering::Relaxed);
        assert!(goes(&page, false, 0));
        page.node.hold.store(1, Ordering::Relaxed);
        assert!(!goes(&page, false, HOLD_LIMIT_NS));
    }

    #[test]
    fn s2_s3_a_hold_for_measuring_is_longer_and_ends() {
        let page = page(1);
        page.node.hold.store(HOLD_MEASURING, Ordering::Relaxed);
        assert!(!goes(&page, false, HOLD_LIMIT_NS + 1));
        assert!(goes(&page, false, MEASURING_LIMIT_NS + 1));
        page.node.hold.store(0, Ordering::Relaxed);
        assert!(goes(&page, false, 0));
    }

    #[test]
    fn s7_another_ones_turn_is_waited_for_longer_and_who_goes_is_counted() {
        let page = page(1);
        let counted = || page.shim.unmarked.load(Ordering::Relaxed);
        page.node.hold.store(HOLD_TURN, Ordering::Relaxed);
        for can_be_squeezed in [false, true] {
            assert!(!enters(&page, can_be_squeezed, HOLD_LIMIT_NS + 1));
        }
        assert_eq!(counted(), 0);
        assert!(enters(&page, false, TURN_LIMIT_NS + 1));
        page.node.hold.store(0, Ordering::Relaxed);
        assert!(enters(&page, false, 0));
        assert_eq!(counted(), 2);
        take_off(&page.shim.unmarked, 3);
        assert_eq!(counted(), 0, "of a page that is newer than what was launched");
    }

    #[test]
    fn s3_s5_the_limit_ends_every_wait() {
        let page = page(1);
        page.shim.chunks[0].store(1, Ordering::Relaxed);
        page.node.hold.store(1, Ordering::Relaxed);
        assert!(goes(&page, false, HOLD_LIMIT_NS + 1), "held for long enough");
        assert_eq!(page.shim.chunks[0].load(Ordering::Relaxed), 1, "its chunk may be under way all the same");
        page.node.hold.store(0, Ordering::Relaxed);
        assert!(!goes(&page, false, 0));
        assert!(goes(&page, false, HOLD_LIMIT_NS + 1));
        assert!(goes(&page, false, 0), "a chunk that never comes through counts no longer");
    }

    #[test]
    fn s6_squeezed_launches_go_and_others_are_held() {
        let page = page(1);
        page.node.hold.store(HOLD_SQUEEZED, Ordering::Relaxed);
        assert!(goes(&page, true, 0));
        assert!(!goes(&page, false, HOLD_LIMIT_NS));
        assert!(goes(&page, false, HOLD_LIMIT_NS + 1));
        page.shim.chunks[5].store(1, Ordering::Relaxed);
        assert!(!goes(&page, true, 0), "as many chunks as otherwise");
        assert!(goes(&page, true, HOLD_LIMIT_NS + 1));
        assert_eq!(page.shim.chunks[5].load(Ordering::Relaxed), 0, "it never came through");
    }

    #[test]
    fn s6_the_first_launch_after_a_change_says_how_long_it_took() {
        let page = page(1);
        let told = || {
            let shim = &page.shim;
            [&shim.resizes, &shim.resize_ns, &shim.longest_resize_ns].map(|word| word.load(Ordering::Relaxed))
        };
        for (at, came_ns, now, expected) in [
            (100, 0, 107, [1, 7, 7]),
            (100, 0, 200, [1, 7, 7]),
            (300, 0, 302, [2, 2, 7]),
            (302, 0, 320, [3, 18, 18]),
            (400, 9_000, 9_005, [4, 5, 18]),
        ] {
            page.node.resized_ns.store(at, Ordering::Relaxed);
            assert_eq!(
                came(&page, || 9_000),
                if RESIZED_NS.load(Ordering::Relaxed) == at { 0 } else { 9_000 }
            );
            resized(&page, came_ns, || now);
            assert_eq!(told(), expected);
        }
    }
}
