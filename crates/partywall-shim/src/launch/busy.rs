//! Whether a latency-sensitive process has work on the device.
//!
//! # Problem
//!
//! While it has, its neighbours are to stand back, and not a moment longer. Nobody tells when the last kernel of a request is
//! through, and to ask the device, or the system, at each launch would cost more than the launch.
//!
//! # Approach
//!
//! A request begins with the first launch after the process was *drained*: a word of the page is set, which the node reads. A program
//! that wants its results waits for them, or asks whether they are there. When such a wait or question ends well, the streams
//! that were launched to since are asked once each; if all are through, the process is drained.
//!
//! A program with more streams than are kept in mind is drained when its context is waited for. One that never waits is active
//! until the node no longer believes it.
//!
//! # Scenarios
//!
//! - S1: the first launch makes the process active, further ones find it so.
//! - S2: a wait ends, and all streams are through: drained. One of them is not: still active.
//! - S3: another thread launches meanwhile: still active.
//! - S4: streams under capture are not asked: that would end the capture.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use partywall_shim_api::page::Page;

use crate::copies::{LEGACY, PER_THREAD, Stream, is_through, meant};
use crate::hooks::{Hook, hooks};
use crate::process::page;
use crate::sys::{CUresult, CUstream};

/// The hooks of this module: questions, and the ends of streams.
pub(crate) static HOOKS: &[Hook] =
    hooks![cuEventQuery, cuStreamQuery, cuStreamQuery_ptsz, cuStreamDestroy, cuStreamDestroy_v2];

mod real {
    use super::{CUstream, c_void};

    crate::real::functions! {
        fn cuEventQuery(event: *mut c_void);
        fn cuStreamQuery(stream: CUstream);
        fn cuStreamQuery_ptsz(stream: CUstream);
        fn cuStreamDestroy(stream: CUstream);
        fn cuStreamDestroy_v2(stream: CUstream);
    }
}

/// Streams that were launched to; 0 for a place that is free.
static STREAMS: [AtomicUsize; STREAMS_MAX] = [const { AtomicUsize::new(NONE) }; STREAMS_MAX];
const STREAMS_MAX: usize = 16;
const NONE: usize = 0;

/// Whether there was a launch to a stream that cannot be asked about: there was no place for it, or it is another one in each thread.
static ELSEWHERE: AtomicBool = AtomicBool::new(false);

/// Launches so far.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// In a child after `fork`.
pub(super) fn forked() {
    STREAMS.iter().for_each(|place| place.store(NONE, Ordering::Relaxed));
    ELSEWHERE.store(false, Ordering::Relaxed);
}

/// Something is about to be launched.
pub(super) fn launched(page: &Page, stream: Stream) {
    LAUNCHES.fetch_add(1, Ordering::SeqCst);
    if stream == PER_THREAD || !is_kept(stream) {
        ELSEWHERE.store(true, Ordering::Relaxed);
    }
    if page.shim.active.load(Ordering::SeqCst) == 0 {
        page.shim.active.store(1, Ordering::SeqCst);
    }
}

/// Keeps a stream in mind, if there is a place.
fn is_kept(stream: Stream) -> bool {
    STREAMS.iter().any(|place| {
        let kept = place.load(Ordering::Relaxed);
        let take = || place.compare_exchange(NONE, stream, Ordering::Relaxed, Ordering::Relaxed);
        kept == stream || (kept == NONE && take().is_ok())
    })
}

/// A stream is about to be destroyed. What it has still to do is no longer known of.
fn forget(stream: Stream) {
    for place in &STREAMS {
        let _ = place.compare_exchange(stream, NONE, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// A wait for the device, or a question, has ended well. `all`: for all that there was in the context.
#[inline]
pub(crate) fn waited(all: bool) {
    let page = page();
    if page.shim.active.load(Ordering::Relaxed) != 0 {
        look(page, all);
    }
}

#[cold]
fn look(page: &Page, all: bool) {
    let before = LAUNCHES.load(Ordering::SeqCst);
    let through = |place: &AtomicUsize| {
        let stream = place.load(Ordering::Relaxed);
        stream == NONE || is_through(stream)
    };
    let drained = all || (!ELSEWHERE.load(Ordering::Relaxed) && STREAMS.iter().all(through));
    if !drained || LAUNCHES.load(Ordering::SeqCst) != before {
        return;
    }
    if all {
        ELSEWHERE.store(false, Ordering::Relaxed);
    }
    page.shim.active.store(0, Ordering::SeqCst);
    // A launch in between has found the process active.
    if LAUNCHES.load(Ordering::SeqCst) != before {
        page.shim.active.store(1, Ordering::SeqCst);
    }
}

/// Makes hooks that look whether the process is drained after a call has succeeded, and such that forget a stream before a call.
macro_rules! hooked {
    (before: $($end:ident)*; after: $($question:ident($argument:ident: $type:ty);)*) => {
        $(unsafe extern "C" fn $question($argument: $type) -> CUresult {
            // SAFETY: the argument is the program's, passed on as it is.
            let result = unsafe { real::$question($argument) };
            if result == CUresult::SUCCESS {
                waited(false);
            }
            result
        })*
        $(unsafe extern "C" fn $end(stream: CUstream) -> CUresult {
            forget(meant(stream, LEGACY));
            // SAFETY: as above.
            unsafe { real::$end(stream) }
        })*
    };
}

hooked! {
    before: cuStreamDestroy cuStreamDestroy_v2;
    after:
        cuEventQuery(event: *mut c_void);
        cuStreamQuery(stream: CUstream);
        cuStreamQuery_ptsz(stream: CUstream);
}
