//! Says that a copy which goes straight to the driver is on its way, so that neighbours make room for it.
//!
//! # Problem
//!
//! The device gives the copy engine to another process when the one that has it runs out of work there, or after a
//! millisecond. A neighbour whose gates are opened ahead never runs out: a small copy of 10 us then takes up to a
//! millisecond, however small the neighbour's packets are (H200, November 2026).
//!
//! # Approach
//!
//! Before the call a word of the page says that a copy is on its way. The node sees it within a microsecond or two, and has the
//! neighbours' packets stand aside until it is through: the copy waits for one packet, seldom for two. The device itself takes
//! the word back, by a write behind the copy in its stream; no thread waits for it. While nobody else copies, the node
//! asks for no announcements, and nothing of this happens.
//!
//! A copy that stands behind a kernel in its stream is announced for as long as that takes: after 120 us neighbours' packets go on, one by
//! one, at about two thirds of their rate. After half a second the node no longer counts it.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use partywall_shim_api::page::Page;

use super::cuda::{self, Cuda, Gate};
use super::driver::{Driver as _, Mark, Stream};
use super::{gate, shared};
use crate::node;
use crate::process::page;
use crate::sys::CUresult;

/// Where the search for a free word begins: a word is used again as late as possible, so that the node, which looks from
/// time to time, does not take two copies for one.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Host functions could take a word back as well, but hold streams up for longer than neighbours do.
const DRIVER: Cuda = Cuda { gate: Gate::MemoryOperations };

/// Has a copy go straight to the driver, announced if that is possible.
#[cold]
pub(super) fn straight(
    direction: usize,
    stream: Stream,
    blocks: bool,
    pass: impl FnOnce() -> CUresult,
) -> CUresult {
    let page = page();
    let Some(word) = announce(page, direction) else { return pass() };
    let take_back = || word.store(0, Ordering::Release);
    if blocks {
        let result = pass();
        take_back();
        return result;
    }
    // The driver is asked after the announcement: neighbours make room in the meantime.
    let device = address(stream, page, word);
    let result = pass();
    let is_left_to_the_device =
        result == CUresult::SUCCESS && device.is_some_and(|address| clear(stream, address));
    if !is_left_to_the_device {
        take_back();
    }
    result
}

/// Has the device clear a word of the page when it is through with all that is in a stream now; whether it will.
pub(crate) fn clear_behind(stream: Stream, page: &'static Page, word: &AtomicU32) -> bool {
    gate() == Some(DRIVER.gate) && address(stream, page, word).is_some_and(|address| clear(stream, address))
}

fn clear(stream: Stream, address: u64) -> bool {
    DRIVER.marks(stream, &[Mark::Write { address, value: 0 }]).is_ok()
}

/// Takes a word of the page.
fn announce(page: &'static Page, direction: usize) -> Option<&'static AtomicU32> {
    if gate()? != DRIVER.gate {
        return None;
    }
    let word = take(&page.shim.announced.0[direction], &NEXT)?;
    node::ring();
    Some(word)
}

/// Takes a free word of some that the device frees. The search begins behind where the last one began.
pub(crate) fn take<'a>(words: &'a [AtomicU32], next: &AtomicUsize) -> Option<&'a AtomicU32> {
    let (before, from) = words.split_at(next.fetch_add(1, Ordering::Relaxed) % words.len());
    let is_taken =
        |word: &&AtomicU32| word.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    from.iter().chain(before).find(is_taken)
}

/// Where the device finds a word of the page, for a write in a stream. In one under capture nothing runs now.
fn address(stream: Stream, page: &'static Page, word: &AtomicU32) -> Option<u64> {
    if !cuda::runs(stream) {
        return None;
    }
    let device = shared()?.pool(DRIVER.gate)?.page(&DRIVER, page)?;
    Some(device + (std::ptr::from_ref(word).addr() - std::ptr::from_ref(page).addr()) as u64)
}
