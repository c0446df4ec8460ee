//! Graphs of a best-effort process, launched piece by piece.
//!
//! # Problem
//!
//! A graph is one call and may take the device for as long as all its kernels do. A neighbour's request waits for that.
//!
//! # Approach
//!
//! Where launches are decided about, a graph that a best-effort process instantiates is cut ([`super::cut`]), and to launch it is to launch its
//! pieces, each in its turn. The program's own executable graph is always made as well: it gets all updates, it is what streams under
//! capture get, and what goes when pieces may not. Who changes it loses the pieces for good ([`super::changes`]).
//!
//! The driver has a launch of a graph wait for the last launch of the same one, in whatever stream that was. Pieces do so only one by
//! one. So each launch waits for an event that the last one has recorded behind its last piece. And as a launch is one call no
//! more, another thread's graph could come between its pieces, which in the same stream never happens otherwise: graphs are launched one
//! after the other, each in its [`Turn`]. That is no lock: whoever waits in vain for a second, in which no piece was launched, goes.
//! Kernels of other threads are not waited for, and may come between pieces as they may come between kernels.
//!
//! Where the process may be squeezed, each piece is there twice, on the SMs of the capture and on the squeezed ones, and goes one way or the
//! other when it is launched. Then also graphs that are no longer than a piece are taken apart, into one: the two of them keep
//! the order that the driver would keep for one. A graph that is not on the squeezed set is held while the process is squeezed.
//!
//! # Scenarios
//!
//! - S1: a graph is cut, changed, destroyed: the numbers in the page say what there is.
//! - S2: a graph is launched again in another stream: it waits for the launch before, cut or not.
//! - S3: whoever has the turn never gives it back: the others go on.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use partywall_shim_api::page::Page;

use super::cut::{Cutting, DEVICE_LAUNCH, Handle, Outcome, cut};
use super::turnstile::{Way, pause};
use crate::clock::now_ns;
use crate::copies::{Stream, apart, handle, runs};
use crate::process::page;
use crate::sms;
use crate::sys::{CUresult, CUstream};

mod real {
    use super::{CUstream, c_uint, c_void};

    crate::real::functions! {
        fn cuEventCreate(event: *mut *mut c_void, flags: c_uint);
        fn cuEventDestroy_v2(event: *mut c_void);
        fn cuEventRecord(event: *mut c_void, stream: CUstream);
        fn cuEventSynchronize(event: *mut c_void);
        fn cuStreamWaitEvent(stream: CUstream, event: *mut c_void, flags: c_uint);
        fn cuStreamSynchronize(stream: CUstream);
    }
}

/// `CU_EVENT_DISABLE_TIMING`: recording is cheaper.
const NO_TIMING: c_uint = 2;

/// What is known of an executable graph of the program.
#[derive(Debug, Clone)]
enum Known {
    /// No longer than a piece: it counts as one launch.
    Short,
    /// It cannot be cut, or not any more; then its next launch waits for the last of its pieces.
    Whole(Option<Arc<Event>>),
    Cut(Arc<Cut>),
}

#[derive(Debug)]
struct Cut {
    pieces: Vec<Cutting>,
    /// Behind the last launch.
    last: Arc<Event>,
}

/// An event of ours.
#[derive(Debug)]
struct Event(*mut c_void);

// SAFETY: a handle, which the driver takes from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Cut {
    /// Whether all of it can run on the squeezed set.
    fn is_on_both(&self) -> bool {
        self.pieces.iter().all(|piece| piece.squeezed.is_some())
    }
}

impl Event {
    fn new() -> Option<Arc<Self>> {
        let mut event = ptr::null_mut();
        // SAFETY: a place for the answer.
        let result = unsafe { real::cuEventCreate(&raw mut event, NO_TIMING) };
        (result == CUresult::SUCCESS).then(|| Arc::new(Self(event)))
    }

    /// Has a stream wait for what the event was last recorded behind, which may be in another context. Nothing, if it never was.
    fn hold(&self, stream: Stream) -> CUresult {
        // SAFETY: our event, and the program's stream, which the driver checks.
        unsafe { real::cuStreamWaitEvent(handle(stream), self.0, 0) }
    }

    /// Records it, so that the next launch waits. Where the driver does not, because the stream is of another context than the event,
    /// the host waits now, and nobody has to later.
    fn record(&self, stream: Stream) -> CUresult {
        // SAFETY: as above.
        let result = unsafe { real::cuEventRecord(self.0, handle(stream)) };
        if result == CUresult::SUCCESS {
            return result;
        }
        // SAFETY: as above.
        let _ = apart(|| unsafe { real::cuStreamSynchronize(handle(stream)) });
        result
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody else has it; one that is not reached yet goes when it is (documented).
        let _ = unsafe { real::cuEventDestroy_v2(self.0) };
    }
}

/// Executable graphs by their handles. Leaked: in a child after `fork` its lock may be held by a thread that does not exist there.
type Graphs = Mutex<BTreeMap<Handle, Known>>;
static GRAPHS: AtomicPtr<Graphs> = AtomicPtr::new(ptr::null_mut());

/// How many are known: none where nobody decides, and in latency-sensitive processes.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
/// Of these, how many are launched in pieces, and how many as a whole although they are longer.
static CUT: AtomicU32 = AtomicU32::new(0);
/// See [`CUT`].
static WHOLE: AtomicU32 = AtomicU32::new(0);
/// Of all that are known, how many are not on the squeezed set.
static UNSQUEEZED: AtomicU32 = AtomicU32::new(0);

/// 1 from the first graph on that the device may launch. A kernel may then have it launched behind *its* graph: behind the whole of it.
static FROM_DEVICE: AtomicU32 = AtomicU32::new(0);

/// In a child after `fork`: nothing of the parent's is used again.
pub(super) fn forked() {
    GRAPHS.store(ptr::null_mut(), Ordering::Relaxed);
    KNOWN.store(0, Ordering::Relaxed);
    for number in [&CUT, &WHOLE, &UNSQUEEZED, &FROM_DEVICE] {
        number.store(0, Ordering::Relaxed);
    }
    HOLDER.store(0, Ordering::Relaxed);
}

/// The process has a new page.
pub(super) fn registered(page: &'static Page) {
    page.shim.graphs_cut.store(CUT.load(Ordering::Relaxed), Ordering::Relaxed);
    page.shim.graphs_whole.store(WHOLE.load(Ordering::Relaxed), Ordering::Relaxed);
    let unsqueezed = if page.header.squeezed().is_some() { UNSQUEEZED.load(Ordering::Relaxed) } else { 0 };
    page.shim.graphs_unsqueezed.store(unsqueezed, Ordering::Relaxed);
}

/// Whether anything is known of any graph.
#[inline]
pub(super) fn is_needed() -> bool {
    KNOWN.load(Ordering::Relaxed) != 0
}

fn graphs() -> MutexGuard<'static, BTreeMap<Handle, Known>> {
    // SAFETY: null or leaked below.
    let there = || unsafe { GRAPHS.load(Ordering::Acquire).as_ref() };
    let graphs = there().unwrap_or_else(|| {
        let mine = Box::into_raw(Box::new(Graphs::default()));
        match GRAPHS.compare_exchange(ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked from a box just now.
            Ok(_) => unsafe { &*mine },
            Err(earlier) => {
                // SAFETY: made above and not published.
                drop(unsafe { Box::from_raw(mine) });
                // SAFETY: not null, so another thread has leaked it.
                unsafe { &*earlier }
            }
        }
    });
    graphs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters what is now known of a graph, or that it is gone; what was known before. The caller drops that when the lock is free.
fn enter(graphs: &mut BTreeMap<Handle, Known>, exec: Handle, now: Option<Known>) -> Option<Known> {
    let count = |known: &Option<Known>, by: u32| {
        let is_squeezed = match known {
            Some(Known::Cut(cut)) => {
                CUT.fetch_add(by, Ordering::Relaxed);
                cut.is_on_both()
            }
            Some(Known::Whole(_)) => {
                WHOLE.fetch_add(by, Ordering::Relaxed);
                false
            }
            Some(Known::Short) => false,
            None => true,
        };
        if !is_squeezed {
            UNSQUEEZED.fetch_add(by, Ordering::Relaxed);
        }
    };
    count(&now, 1);
    let before = match now {
        Some(now) => graphs.insert(exec, now),
        None => graphs.remove(&exec),
    };
    count(&before, 1_u32.wrapping_neg());
    KNOWN.store(graphs.len(), Ordering::Relaxed);
    registered(page());
    before
}

/// The program has instantiated a graph. Cuts it where that is wanted and possible.
pub(crate) fn instantiated(exec: Handle, graph: Handle, flags: c_ulonglong) {
    let page = page();
    if page.node.chunks_max.load(Ordering::Relaxed) == 0 || page.header.class.load(Ordering::Relaxed) == 0 {
        return;
    }
    if flags & DEVICE_LAUNCH != 0 {
        FROM_DEVICE.store(1, Ordering::Relaxed);
        let all: Vec<Handle> = graphs().keys().copied().collect();
        all.into_iter().for_each(changed);
    }
    let is_possible = FROM_DEVICE.load(Ordering::Relaxed) == 0;
    let outcome = if is_possible { cut(graph, flags, sms::squeezed()) } else { Outcome::Whole };
    let known = match outcome {
        Outcome::Short => Known::Short,
        Outcome::Whole => Known::Whole(None),
        Outcome::Cut(pieces) => match Event::new() {
            Some(last) => Known::Cut(Arc::new(Cut { pieces, last })),
            None => Known::Whole(None),
        },
    };
    let stale = enter(&mut graphs(), exec, Some(known));
    // A graph that had this handle went with its context, and its pieces with it.
    std::mem::forget(stale);
}

/// The program changes an executable graph: its pieces are not what it is any more.
pub(super) fn changed(exec: Handle) {
    if !is_needed() {
        return;
    }
    let mut graphs = graphs();
    let whole = match graphs.get(&exec) {
        Some(Known::Cut(cut)) => Known::Whole(Some(Arc::clone(&cut.last))),
        _ => return,
    };
    let pieces = enter(&mut graphs, exec, Some(whole));
    drop(graphs);
    drop(pieces);
}

/// What was known of a graph that is being destroyed.
#[derive(Debug)]
pub(crate) struct Gone(Handle, Known);

/// Forgets a graph that is about to be destroyed: its handle may be another one's right after.
pub(crate) fn forget(exec: Handle) -> Option<Gone> {
    if !is_needed() {
        return None;
    }
    enter(&mut graphs(), exec, None).map(|known| Gone(exec, known))
}

impl Gone {
    /// The driver has not destroyed it.
    pub(crate) fn restore(self) {
        drop(enter(&mut graphs(), self.0, Some(self.1)));
    }
}

/// Launches a graph through `call`, which launches what it is given.
#[cold]
#[inline(never)]
pub(super) fn launch(exec: Handle, stream: Stream, call: impl Fn(Handle) -> CUresult) -> CUresult {
    let once = |exec, is_whole| {
        let only = Way { is_whole, can_be_squeezed: false };
        super::decided(|| stream, || only, |_| call(exec))
    };
    if !runs(stream) {
        let recorded = Way { is_whole: true, can_be_squeezed: true };
        return super::decided(|| stream, || recorded, |_| call(exec));
    }
    let _turn = (CUT.load(Ordering::Relaxed) != 0).then(Turn::take);
    let known = graphs().get(&exec).cloned();
    match known {
        Some(Known::Cut(cut)) => {
            let can_be_squeezed = cut.is_on_both() && sms::squeezed().is_some();
            let piece = |piece: &Cutting| {
                let way = Way { is_whole: false, can_be_squeezed };
                super::decided(|| stream, || way, |is_squeezed| piece.launch(is_squeezed, &call))
            };
            cut.launch(exec, stream, piece, || once(exec, true))
        }
        Some(Known::Whole(Some(last))) => {
            behind(exec, &last, stream);
            once(exec, true)
        }
        Some(Known::Short) => once(exec, false),
        Some(Known::Whole(None)) | None => once(exec, true),
    }
}

/// Has the next launch of a graph that has lost its pieces wait for the last of them. Behind that launch the driver keeps the order.
fn behind(exec: Handle, last: &Event, stream: Stream) {
    if last.hold(stream) != CUresult::SUCCESS {
        // SAFETY: our event.
        let _ = apart(|| unsafe { real::cuEventSynchronize(last.0) });
    }
    let before = enter(&mut graphs(), exec, Some(Known::Whole(None)));
    drop(before);
}

impl Cutting {
    fn launch(&self, is_squeezed: bool, call: impl Fn(Handle) -> CUresult) -> CUresult {
        let Some(squeezed) = self.squeezed.as_ref().filter(|_| is_squeezed) else { return call(self.own.0) };
        let shim = &page().shim;
        if call(squeezed.0) == CUresult::SUCCESS {
            shim.squeezed_launches.fetch_add(1, Ordering::Relaxed);
            return CUresult::SUCCESS;
        }
        shim.unsqueezed_launches.fetch_add(1, Ordering::Relaxed);
        call(self.own.0)
    }
}

impl Cut {
    fn launch(
        &self,
        exec: Handle,
        stream: Stream,
        piece: impl Fn(&Cutting) -> CUresult,
        whole: impl Fn() -> CUresult,
    ) -> CUresult {
        let give_up = || {
            changed(exec);
            behind(exec, &self.last, stream);
            whole()
        };
        if self.last.hold(stream) != CUresult::SUCCESS {
            return give_up();
        }
        for (number, one) in self.pieces.iter().enumerate() {
            let result = piece(one);
            PROGRESS.fetch_add(1, Ordering::Relaxed);
            if result != CUresult::SUCCESS {
                if number == 0 {
                    return give_up();
                }
                self.last.record(stream);
                return result;
            }
        }
        if self.last.record(stream) != CUresult::SUCCESS {
            changed(exec);
        }
        CUresult::SUCCESS
    }
}

/// Who launches a graph now: the number of a turn, or 0.
static HOLDER: AtomicU64 = AtomicU64::new(0);

/// Grows with every piece that is launched.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// For how long a turn is waited for in which nothing happens. A piece is held for a tenth of that at most.
const PATIENCE_NS: u64 = 1_000_000_000;

/// While it lives, no other thread launches a graph.
#[derive(Debug)]
struct Turn(u64);

impl Turn {
    fn take() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self::take_as(NEXT.fetch_add(1, Ordering::Relaxed), now_ns, pause)
    }

    fn take_as(mine: u64, now: impl Fn() -> u64, pause: impl Fn(u64)) -> Self {
        let mut since = None;
        loop {
            let Err(holder) = HOLDER.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) else {
                return Self(mine);
            };
            let (seen, now) = ((holder, PROGRESS.load(Ordering::Relaxed)), now());
            let began = match since {
                Some((before, began)) if before == seen => began,
                _ => now,
            };
            since = Some((seen, began));
            let waited = now.saturating_sub(began);
            if waited > PATIENCE_NS {
                HOLDER.store(mine, Ordering::Relaxed);
                return Self(mine);
            }
            pause(waited);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Unless somebody has lost patience.
        let _ = HOLDER.compare_exchange(self.0, 0, Ordering::Release, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn s1_numbers_say_what_there_is() {
        let numbers = || [&CUT, &WHOLE, &UNSQUEEZED].map(|number| number.load(Ordering::Relaxed));
        let before = numbers();
        let mut graphs = BTreeMap::new();
        let last = Arc::new(Event(ptr::null_mut()));
        let cut = Known::Cut(Arc::new(Cut { pieces: Vec::new(), last: Arc::clone(&last) }));
        assert!(enter(&mut graphs, 1, Some(cut)).is_none());
        assert!(enter(&mut graphs, 2, Some(Known::Short)).is_none());
        assert_eq!(numbers(), [before[0] + 1, before[1], before[2] + 1]);
        assert!(matches!(enter(&mut graphs, 1, Some(Known::Whole(Some(last)))), Some(Known::Cut(_))));
        assert_eq!(numbers(), [before[0], before[1] + 1, before[2] + 2]);
        assert!(enter(&mut graphs, 1, None).is_some() && enter(&mut graphs, 2, None).is_some());
        assert!(enter(&mut graphs, 1, None).is_none());
        assert_eq!(numbers(), before);
        assert_eq!(KNOWN.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn s3_a_turn_that_is_never_given_back_ends_with_patience() {
        let clock = Cell::new(0);
        let later = |_| {
            clock.set(clock.get() + PATIENCE_NS / 10);
            if clock.get() < PATIENCE_NS * 2 {
                PROGRESS.fetch_add(1, Ordering::Relaxed);
            }
        };
        let stuck = Turn::take_as(7, || clock.get(), later);
        assert_eq!(clock.get(), 0);
        let next = Turn::take_as(8, || clock.get(), later);
        assert!((3 * PATIENCE_NS..4 * PATIENCE_NS).contains(&clock.get()), "{}", clock.get());
        drop(stuck);
        assert_eq!(HOLDER.load(Ordering::Relaxed), 8, "it is another's by now");
        drop(next);
        assert_eq!(HOLDER.load(Ordering::Relaxed), 0);
    }
}
