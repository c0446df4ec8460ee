//! Launches of a squeezed process: onto fewer SMs, without a word to any other call.
//!
//! # Problem
//!
//! A best-effort tenant may keep some SMs while a latency-sensitive neighbour is active, instead of standing still. A kernel runs on the SMs of the
//! context in which its *stream* was made, whatever is current (H200, CUDA 13.0), and a stream stays where it is. To launch into another
//! stream instead would break the order of the program's own: copies, events, waits, callbacks, another thread's launches into the same
//! stream, and about a hundred other functions would have to be told of it, each at the right moment.
//!
//! # Approach
//!
//! A kernel node of a graph, on the other hand, has a context of its own, and the graph runs in the stream that it is launched into. So a launch is
//! *recorded*: into a stream of the squeezed set that never runs anything, which makes a graph of one node with all attributes that the
//! program has asked for; and that graph is launched into the program's stream. There it has its place in the order like any other launch,
//! and the driver keeps it: nothing else in this library knows of it, and nothing has to be joined or brought back when the squeeze ends. Any number of
//! threads may do so at once, and each launch goes one way or the other.
//!
//! An executable graph is kept for each stream and kind of launch, and brought up to date with the recorded one, which is cheaper than to make a
//! new one. The driver has a launch of an executable graph wait for the last one of the same, so two streams never share one; nor do threads with
//! a default stream each. A kind is a function and the attributes of its launch: brought up to date from one function to another, the driver
//! says that all is well and keeps attributes that it cannot read back, as the preferred dimension of clusters is, and the kernel computes
//! something else (ResNet-152 did on an H200, with CUDA 13.0). Where it cannot be brought up to date a new one takes its place.
//!
//! Graphs of the program have a second set of pieces on these SMs ([`super::pieces`]).
//!
//! # What does not go this way
//!
//! - Launches into a stream under capture: nothing runs, and the graph keeps the SMs of its capture.
//! - Cooperative launches, which were sized by the number of SMs that the program was told of.
//! - Launches while a context is current that is no view of the primary one.
//! - What the driver refuses anywhere on the way: a cluster that does not fit, a kernel that cannot be recorded.
//!
//! They go the usual way, and all but the first are counted in the page. Nobody is squeezed whose node is gone.
//!
//! # Scenarios
//!
//! - S1: a launch goes to the squeezed set in its stream's order, whatever else is in the stream.
//! - S2: streams do not wait for each other because of it.
//! - S3: what cannot go there goes as before, and is counted.
//! - S4: the node is gone in the middle of it: launches go as before.
//! - S5: launches of two functions, or with two kinds of attributes, never use each other's executable graph, nor does a function that was loaded
//!   after another was unloaded and has its handle.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use partywall_shim_api::page::Page;

use super::COOPERATIVE;
use super::cut::{Exec, Handle, Ours};
use crate::copies::{PER_THREAD, Stream, apart, handle, runs};
use crate::sms::{self, Squeezed};
use crate::sys::{CUresult, CUstream};

mod real {
    use super::{CUstream, Handle, c_int, c_ulonglong};

    crate::real::functions! {
        fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_int);
        fn cuStreamEndCapture(stream: CUstream, graph: *mut Handle);
        fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: c_ulonglong);
        fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, result: *mut [u64; 3]);
        fn cuGraphLaunch(exec: Handle, stream: CUstream);
    }
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;
/// Attributes of a launch that are looked at; the driver has fewer.
const ATTRIBUTES_MAX: usize = 64;

/// Executable graphs that are kept. Programs have some tens of functions and streams; what is beyond that is made anew each time.
const KEPT_MAX: usize = 1024;

/// A launch into whichever stream it is given.
#[derive(Clone, Copy)]
pub(super) struct Into<'a> {
    pub(super) launch: &'a dyn Fn(CUstream) -> CUresult,
    pub(super) kind: Kind,
}

/// What launches have in common that may use the same executable graph: a number for their function and all their attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind(u64);

impl Kind {
    /// Of a launch without attributes.
    pub(super) fn plain(function: usize) -> Self {
        Self::of(function, &[])
    }

    fn of(function: usize, attributes: &[Attribute]) -> Self {
        let mut hasher = DefaultHasher::new();
        function.hash(&mut hasher);
        attributes.iter().for_each(|one| (one.id, one.value).hash(&mut hasher));
        Self(hasher.finish())
    }
}

/// The first fields of `CUlaunchConfig` in cuda.h, which are all that it has up to CUDA 13.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Configuration {
    sizes: [c_uint; 7],
    pub(super) stream: CUstream,
    attributes: *const Attribute,
    count: c_uint,
}

const _: () = assert!(size_of::<Configuration>() == 56, "the size of CUlaunchConfig in cuda.h");

/// `CUlaunchAttribute`: which, and a value of up to 64 bytes.
#[repr(C)]
struct Attribute {
    id: c_uint,
    rest: c_uint,
    value: [u64; 8],
}

const _: () = assert!(size_of::<Attribute>() == 72, "the size of CUlaunchAttribute in cuda.h");

impl Configuration {
    /// Whether the launch asks for all its blocks to be there at once.
    pub(super) fn is_cooperative(&self) -> bool {
        // The value is an `int`.
        self.attributes().iter().any(|one| one.id == COOPERATIVE && one.value[0] as u32 != 0)
    }

    /// The kind of such a launch of a function.
    pub(super) fn kind(&self, function: usize) -> Kind {
        Kind::of(function, self.attributes())
    }

    fn attributes(&self) -> &[Attribute] {
        if self.attributes.is_null() {
            return &[];
        }
        let count = (self.count as usize).min(ATTRIBUTES_MAX);
        // SAFETY: the program's attributes, as many as it says, which the driver is about to read.
        unsafe { std::slice::from_raw_parts(self.attributes, count) }
    }

    /// The same launch into another stream.
    pub(super) fn into_stream(self, stream: CUstream) -> Self {
        Self { stream, ..self }
    }
}

/// What launches share. Leaked: in a child after `fork` its locks may be held by threads that do not exist there.
#[derive(Default)]
struct Shared {
    /// Streams of the squeezed set that nobody records into now.
    recorders: Mutex<Vec<Recorder>>,
    /// Executable graphs by the streams that they are launched into, and what they launch. One that is in use is not there.
    execs: Mutex<BTreeMap<(Stream, Kind), Exec>>,
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

/// A stream that launches are recorded into.
struct Recorder(CUstream);

// SAFETY: a handle, which the driver takes from any thread; one thread has it at a time.
unsafe impl Send for Recorder {}

/// In a child after `fork`, and when the context goes: nothing of it is used again.
pub(super) fn forget_all() {
    SHARED.store(ptr::null_mut(), Ordering::Release);
}

fn shared() -> &'static Shared {
    // SAFETY: null or leaked below.
    let there = || unsafe { SHARED.load(Ordering::Acquire).as_ref() };
    there().unwrap_or_else(|| {
        let mine = Box::into_raw(Box::<Shared>::default());
        match SHARED.compare_exchange(ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked from a box just now.
            Ok(_) => unsafe { &*mine },
            Err(earlier) => {
                // SAFETY: made above and not published.
                drop(unsafe { Box::from_raw(mine) });
                // SAFETY: not null, so another thread has leaked it.
                unsafe { &*earlier }
            }
        }
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream is about to be destroyed: its handle may be another one's right after.
pub(super) fn forget(stream: Stream) {
    // SAFETY: null, or leaked by `shared`.
    let Some(shared) = (unsafe { SHARED.load(Ordering::Acquire).as_ref() }) else { return };
    let mut execs = lock(&shared.execs);
    let keys: Vec<_> =
        execs.range((stream, Kind(0))..=(stream, Kind(u64::MAX))).map(|(key, _)| *key).collect();
    let gone: Vec<_> = keys.iter().filter_map(|key| execs.remove(key)).collect();
    drop(execs);
    // The driver is called when the lock is free.
    drop(gone);
}

/// Some code is about to be unloaded: handles of functions may be others' right after.
pub(super) fn forget_functions() {
    // SAFETY: as above.
    let Some(shared) = (unsafe { SHARED.load(Ordering::Acquire).as_ref() }) else { return };
    let gone = std::mem::take(&mut *lock(&shared.execs));
    drop(gone);
}

/// Launches while the process is squeezed: `into` the squeezed set, if that is possible, otherwise through `call`.
#[cold]
pub(super) fn launch(
    page: &Page,
    stream: Stream,
    into: Option<Into<'_>>,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    if !runs(stream) {
        return call();
    }
    if into.is_some_and(|into| goes(stream, into).is_some()) {
        page.shim.squeezed_launches.fetch_add(1, Ordering::Relaxed);
        return CUresult::SUCCESS;
    }
    page.shim.unsqueezed_launches.fetch_add(1, Ordering::Relaxed);
    // An error of the way tried above is not the program's: it gets the driver's own answer to its own call.
    call()
}

fn goes(stream: Stream, into: Into<'_>) -> Option<()> {
    let squeezed = sms::squeezed().filter(|squeezed| squeezed.is_of_current())?;
    apart(|| {
        let shared = shared();
        let graph = shared.record(squeezed, into.launch)?;
        let exec = shared.ready((stream, into.kind), &graph)?;
        // SAFETY: an executable graph of ours, and the program's stream, which is not under capture.
        let result = unsafe { real::cuGraphLaunch(exec.0, handle(stream)) };
        shared.keep((stream, into.kind), exec);
        good(result)
    })
}

fn good(result: CUresult) -> Option<()> {
    (result == CUresult::SUCCESS).then_some(())
}

impl Shared {
    /// A graph of one launch.
    fn record(&self, squeezed: &Squeezed, launch: &dyn Fn(CUstream) -> CUresult) -> Option<Ours> {
        let free = lock(&self.recorders).pop();
        let recorder = free.or_else(|| squeezed.stream().map(Recorder))?;
        // SAFETY: a stream of ours that nobody else has now.
        good(unsafe { real::cuStreamBeginCapture_v2(recorder.0, RELAXED) })?;
        let launched = launch(recorder.0);
        let mut graph = 0;
        // SAFETY: as above, and a place for the answer. It ends the recording also where it says that something was wrong with it.
        let ended = unsafe { real::cuStreamEndCapture(recorder.0, &raw mut graph) };
        let graph = (graph != 0).then_some(Ours(graph));
        good(ended)?;
        lock(&self.recorders).push(recorder);
        good(launched).and(graph)
    }

    /// The executable graph of a stream and kind, brought up to date, or a new one.
    fn ready(&self, key: (Stream, Kind), graph: &Ours) -> Option<Exec> {
        let kept = lock(&self.execs).remove(&key);
        let mut result = [0; 3];
        // SAFETY: graphs of ours, and room for `CUgraphExecUpdateResultInfo`, 24 bytes.
        let updates = |exec: &Exec| unsafe {
            good(real::cuGraphExecUpdate_v2(exec.0, graph.0, &raw mut result)).is_some()
        };
        if let Some(exec) = kept.filter(updates) {
            return Some(exec);
        }
        let mut exec = 0;
        // SAFETY: a graph of ours, and a place for the answer.
        good(unsafe { real::cuGraphInstantiateWithFlags(&raw mut exec, graph.0, 0) })?;
        Some(Exec(exec))
    }

    /// Keeps an executable graph for the next such launch into the stream, unless another thread's is there.
    fn keep(&self, key: (Stream, Kind), exec: Exec) {
        let mut execs = lock(&self.execs);
        // That handle is a stream of each thread.
        if key.0 != PER_THREAD && execs.len() < KEPT_MAX {
            let other = execs.insert(key, exec);
            drop(execs);
            drop(other);
        } else {
            drop(execs);
            drop(exec);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(attributes: &[Attribute]) -> Configuration {
        let stream = CUstream(ptr::null_mut());
        let (attributes, count) = (attributes.as_ptr(), attributes.len() as c_uint);
        Configuration { sizes: [1; 7], stream, attributes, count }
    }

    #[test]
    fn s3_what_asks_for_all_blocks_at_once_is_noticed() {
        let attribute = |id, value| Attribute { id, rest: 0, value: [value; 8] };
        let check = |attributes: &[Attribute], is_cooperative| {
            assert_eq!(configuration(attributes).is_cooperative(), is_cooperative);
        };
        check(&[], false);
        check(&[attribute(1, 7), attribute(COOPERATIVE, 0)], false);
        check(&[attribute(1, 0), attribute(COOPERATIVE, 1)], true);
        let nowhere = Configuration { attributes: ptr::null(), ..configuration(&[]) };
        assert!(!Configuration { count: 3, ..nowhere }.is_cooperative());
    }

    #[test]
    fn s5_functions_and_attributes_make_kinds() {
        let cluster = |blocks| Attribute { id: 4, rest: 0, value: [blocks, 1, 0, 0, 0, 0, 0, 0] };
        let kinds = [
            Kind::plain(8),
            Kind::plain(16),
            configuration(&[cluster(1)]).kind(8),
            configuration(&[cluster(2)]).kind(8),
            configuration(&[cluster(2)]).kind(16),
            configuration(&[cluster(1), cluster(2)]).kind(8),
        ];
        for (number, kind) in kinds.iter().enumerate() {
            assert!(!kinds[..number].contains(kind), "{number}");
        }
        assert_eq!(configuration(&[]).kind(8), Kind::plain(8));
        assert_eq!(configuration(&[cluster(2)]).kind(8), kinds[3], "wherever the attributes are");
    }
}
