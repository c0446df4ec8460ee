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
//! The clock is read when a request begins and when it ends, and what it took is left in the page, where the node reads it: a request is
//! from its first launch to when it was drained. If the program waited for something in between and was not drained, it may be two requests
//! that overlap, or one that looks at something on its way (a copy back, then more launches). These cannot be told apart, so such a
//! request is counted and its time is not known.
//!
//! What was done before the first launch belongs to the request by right, a copy of its inputs above all, and is not seen.
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
//! - S5: a request leaves its time in the page; one in which a wait did not drain the process only its end.
//! - S6: a page that is new finds a request under way: its time is not known.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use partywall_shim_api::page::{Page, REQUESTS};

use crate::clock::now_ns;
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

/// What this process has under way.
static BUSY: Busy = Busy::new();

/// Streams that are kept in mind.
const STREAMS_MAX: usize = 16;
const NONE: usize = 0;

#[derive(Debug)]
struct Busy {
    /// Streams that were launched to; [`NONE`] for a place that is free.
    streams: [AtomicUsize; STREAMS_MAX],
    /// Whether there was a launch to a stream that cannot be asked about: there was no place for it, or it is another one in each thread.
    elsewhere: AtomicBool,
    /// Launches so far.
    launches: AtomicU64,
    /// When the request under way began; 0 while there is none.
    began_ns: AtomicU64,
    /// Whether its time is not to be known.
    overlaps: AtomicBool,
    /// Whether a thread writes into the ring of times.
    writes: AtomicBool,
}

/// In a child after `fork`.
pub(super) fn forked() {
    BUSY.forget_all();
}

/// Something is about to be launched.
pub(super) fn launched(page: &Page, stream: Stream) {
    BUSY.launched(page, stream, now_ns);
}

/// A wait for the device, or a question, has ended well. `all`: for all that there was in the context.
#[inline]
pub(crate) fn waited(all: bool) {
    let page = page();
    if page.shim.active.load(Ordering::Relaxed) != 0 {
        BUSY.look(page, all, is_through, now_ns);
    }
}

impl Busy {
    const fn new() -> Self {
        Self {
            streams: [const { AtomicUsize::new(NONE) }; STREAMS_MAX],
            elsewhere: AtomicBool::new(false),
            launches: AtomicU64::new(0),
            began_ns: AtomicU64::new(0),
            overlaps: AtomicBool::new(false),
            writes: AtomicBool::new(false),
        }
    }

    fn forget_all(&self) {
        self.streams.iter().for_each(|place| place.store(NONE, Ordering::Relaxed));
        for flag in [&self.elsewhere, &self.overlaps, &self.writes] {
            flag.store(false, Ordering::Relaxed);
        }
        self.began_ns.store(0, Ordering::Relaxed);
    }

    fn launched(&self, page: &Page, stream: Stream, now_ns: impl FnOnce() -> u64) {
        self.launches.fetch_add(1, Ordering::SeqCst);
        if stream == PER_THREAD || !self.is_kept(stream) {
            self.elsewhere.store(true, Ordering::Relaxed);
        }
        if page.shim.active.load(Ordering::SeqCst) == 0 {
            // Before the process is said to be active: whoever finds it drained needs the beginning.
            let begin = self.began_ns.compare_exchange(0, now_ns(), Ordering::SeqCst, Ordering::SeqCst);
            // A beginning that is there is another thread's of this moment, or one from before this page.
            if begin.is_err() {
                self.overlaps.store(true, Ordering::SeqCst);
            }
            page.shim.active.store(1, Ordering::SeqCst);
        }
    }

    /// Keeps a stream in mind, if there is a place.
    fn is_kept(&self, stream: Stream) -> bool {
        self.streams.iter().any(|place| {
            let kept = place.load(Ordering::Relaxed);
            let take = || place.compare_exchange(NONE, stream, Ordering::Relaxed, Ordering::Relaxed);
            kept == stream || (kept == NONE && take().is_ok())
        })
    }

    /// A stream is about to be destroyed. What it has still to do is no longer known of.
    fn forget(&self, stream: Stream) {
        for place in &self.streams {
            let _ = place.compare_exchange(stream, NONE, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    #[cold]
    fn look(
        &self,
        page: &Page,
        all: bool,
        is_through: impl Fn(Stream) -> bool,
        now_ns: impl FnOnce() -> u64,
    ) {
        let before = self.launches.load(Ordering::SeqCst);
        let through = |place: &AtomicUsize| {
            let stream = place.load(Ordering::Relaxed);
            stream == NONE || is_through(stream)
        };
        let drained = all || (!self.elsewhere.load(Ordering::Relaxed) && self.streams.iter().all(through));
        if !drained || self.launches.load(Ordering::SeqCst) != before {
            self.overlaps.store(true, Ordering::SeqCst);
            return;
        }
        if all {
            self.elsewhere.store(false, Ordering::Relaxed);
        }
        // While the process is active nothing begins, so this is the request that ends. 0: another thread finds the same at this moment.
        let began = self.began_ns.swap(0, Ordering::SeqCst);
        page.shim.active.store(0, Ordering::SeqCst);
        // A launch in between has found the process active.
        if self.launches.load(Ordering::SeqCst) != before {
            page.shim.active.store(1, Ordering::SeqCst);
            let _ = self.began_ns.compare_exchange(0, began, Ordering::SeqCst, Ordering::SeqCst);
            self.overlaps.store(true, Ordering::SeqCst);
        } else if began != 0 {
            let overlaps = self.overlaps.swap(false, Ordering::SeqCst);
            self.record(page, began, overlaps, now_ns);
        }
    }

    /// Leaves a request's time in the page.
    fn record(&self, page: &Page, began_ns: u64, overlaps: bool, now_ns: impl FnOnce() -> u64) {
        // Two threads whose requests end at the same moment: one of them is lost, rather than that one waits for the other.
        if self.writes.swap(true, Ordering::Acquire) {
            return;
        }
        let requests = &page.shim.requests;
        // Read while nobody else writes: ends are in the order of their slots.
        let end_ns = now_ns();
        let count = requests.count.load(Ordering::Relaxed);
        // Nothing takes no time: 0 says that it is not known.
        let took_ns = if overlaps { 0 } else { end_ns.saturating_sub(began_ns).max(1) };
        let slot = &requests.times[(count % REQUESTS as u64) as usize];
        slot.end_ns.store(end_ns, Ordering::Relaxed);
        slot.took_ns.store(took_ns, Ordering::Relaxed);
        if overlaps {
            requests.overlapping.fetch_add(1, Ordering::Relaxed);
        }
        requests.count.store(count.wrapping_add(1), Ordering::Release);
        self.writes.store(false, Ordering::Release);
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
            BUSY.forget(meant(stream, LEGACY));
            super::squeezed::forget(meant(stream, LEGACY));
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use partywall_shim_api::page::Mapped;

    use super::*;

    const STREAM: Stream = 0x7000;
    const OTHER: Stream = 0x8000;

    /// A process, its page, a clock that moves by one with each reading, and what the device has still to do.
    struct Scene {
        busy: Busy,
        page: Mapped,
        clock: Cell<u64>,
        runs: Cell<Option<Stream>>,
    }

    impl Scene {
        fn new() -> Self {
            Self { busy: Busy::new(), page: page(), clock: Cell::new(1_000), runs: Cell::new(None) }
        }

        fn launch(&self, stream: Stream) {
            self.busy.launched(&self.page, stream, || self.now());
            self.runs.set(Some(stream));
        }

        fn wait(&self, all: bool) {
            let through = |stream| self.runs.get() != Some(stream);
            self.busy.look(&self.page, all, through, || self.now());
        }

        /// All is through, and the program finds it so.
        fn drain(&self) {
            self.runs.set(None);
            self.wait(false);
        }

        fn now(&self) -> u64 {
            self.clock.set(self.clock.get() + 1);
            self.clock.get()
        }

        fn is_active(&self) -> bool {
            self.page.shim.active.load(Ordering::Relaxed) != 0
        }

        /// Requests, how many of them overlap, and end and time of the last.
        fn requests(&self) -> (u64, u64, (u64, u64)) {
            let requests = &self.page.shim.requests;
            let [count, overlapping] =
                [&requests.count, &requests.overlapping].map(|word| word.load(Ordering::Acquire));
            let slot = &requests.times[((count + REQUESTS as u64 - 1) % REQUESTS as u64) as usize];
            (count, overlapping, (slot.end_ns.load(Ordering::Relaxed), slot.took_ns.load(Ordering::Relaxed)))
        }
    }

    fn page() -> Mapped {
        Mapped::create(1, 0, 0, None).unwrap().0
    }

    #[test]
    fn s1_s5_a_request_is_from_its_first_launch_to_when_it_is_drained() {
        let scene = Scene::new();
        scene.launch(STREAM);
        scene.clock.set(2_000);
        scene.launch(STREAM);
        scene.launch(OTHER);
        assert!(scene.is_active());
        assert_eq!(scene.clock.get(), 2_000, "further launches do not look at the clock");
        scene.drain();
        assert!(!scene.is_active());
        assert_eq!(scene.requests(), (1, 0, (2_001, 1_000)));
        scene.wait(false);
        assert_eq!(scene.requests().0, 1, "it ends once");
    }

    #[test]
    fn s2_s5_a_wait_that_does_not_drain_leaves_a_request_without_a_time() {
        let scene = Scene::new();
        scene.launch(STREAM);
        scene.wait(false);
        assert!(scene.is_active());
        scene.drain();
        assert_eq!(scene.requests(), (1, 1, (scene.clock.get(), 0)));
        // The next one is known again.
        scene.launch(STREAM);
        scene.drain();
        assert_eq!(scene.requests(), (2, 1, (scene.clock.get(), 1)));
    }

    #[test]
    fn s3_a_launch_of_another_thread_keeps_the_request_going() {
        let scene = Scene::new();
        scene.launch(STREAM);
        scene.runs.set(None);
        let through = |_| {
            scene.busy.launched(&scene.page, OTHER, || scene.now());
            true
        };
        scene.busy.look(&scene.page, false, through, || scene.now());
        assert!(scene.is_active());
        assert_eq!(scene.requests().0, 0);
        scene.drain();
        assert_eq!(scene.requests(), (1, 1, (scene.clock.get(), 0)));
    }

    #[test]
    fn streams_that_cannot_be_asked_need_a_wait_for_everything() {
        let scene = Scene::new();
        scene.launch(PER_THREAD);
        scene.runs.set(None);
        scene.wait(false);
        assert!(scene.is_active());
        scene.wait(true);
        assert!(!scene.is_active());
        assert_eq!(scene.requests().1, 1, "the first wait may have been the end of a request");
    }

    #[test]
    fn s6_a_request_from_before_the_page_has_no_time() {
        let mut scene = Scene::new();
        scene.launch(STREAM);
        scene.page = page();
        scene.clock.set(9_000);
        scene.launch(STREAM);
        scene.drain();
        assert_eq!(scene.requests(), (1, 1, (scene.clock.get(), 0)));
    }

    #[test]
    fn the_ring_goes_round() {
        let scene = Scene::new();
        for request in 1..=2 * REQUESTS as u64 + 3 {
            scene.launch(STREAM);
            scene.drain();
            assert_eq!(scene.requests(), (request, 0, (scene.clock.get(), 1)));
        }
    }
}
