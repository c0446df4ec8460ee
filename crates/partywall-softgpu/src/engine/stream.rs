//! Streams: queues of operations, each worked off by a thread of its own.
//!
//! **Time.** The device has a time of its own for each stream: an operation begins when it was submitted or when the one
//! before it ended, whichever is later, and ends as much later as the model says. It is not seen as done before the
//! clock shows its end. So a thread that the machine woke up late does not make the device slow: what was waiting behind
//! is dated from the modelled end.
//!
//! **Order.** The stream 0 of a context and its *blocking* streams wait for each other as documented: an entry of the one
//! comes after everything that the others had when it was submitted.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::clock;
use crate::context::SmSet;
use crate::engine::capture::Capture;
use crate::engine::event::LOOK;
use crate::engine::operation::Operation;
use crate::engine::{graph, run};
use crate::error::Code;
use crate::process::Process;

/// Entries that a stream holds before submitting waits: about what a real driver takes.
const DEPTH: usize = 1024;

/// A thread that had nothing to do for so long ends; the next operation starts another.
const IDLE: Duration = Duration::from_secs(10);

/// How a stream is ordered with stream 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

/// What the streams of a context have in common.
pub(crate) struct Place {
    /// The context's handle.
    pub(crate) context: u64,
    pub(crate) green: bool,
    pub(crate) sms: SmSet,
    /// All its streams. Locked while something is submitted to a stream that others are ordered with.
    streams: Mutex<Vec<Weak<Stream>>>,
}

impl Place {
    pub(crate) fn new(context: u64, green: bool, sms: SmSet) -> Self {
        Self { context, green, sms, streams: Mutex::default() }
    }

    /// The streams that still exist.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) handle: u64,
    pub(crate) kind: Kind,
    pub(crate) priority: i32,
    pub(crate) place: Arc<Place>,
    queue: Mutex<Queue>,
    changed: Condvar,
    capture: Mutex<Option<Capture>>,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    submitted: u64,
    completed: u64,
    /// The device's time at which the last operation ended.
    time: u64,
    working: bool,
    closed: bool,
}

#[derive(Clone)]
struct Entry {
    number: u64,
    at: u64,
    after: Vec<(Arc<Stream>, u64)>,
    operation: Operation,
}

impl Stream {
    pub(crate) fn legacy(place: &Arc<Place>) -> Arc<Self> {
        Self::new(place, Kind::Legacy, 0)
    }

    pub(crate) fn new(place: &Arc<Place>, kind: Kind, priority: i32) -> Arc<Self> {
        let stream = Arc::new(Self {
            handle: crate::objects::number(),
            kind,
            priority,
            place: Arc::clone(place),
            queue: Mutex::default(),
            changed: Condvar::new(),
            capture: Mutex::default(),
        });
        let mut streams = place.lock();
        streams.retain(|known| known.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        stream
    }

    /// Appends an operation, or notes it in the graph that is being captured. Its number, for [`Stream::wait`].
    pub(crate) fn submit(
        self: &Arc<Self>,
        process: &'static Process,
        kind: u32,
        operation: Operation,
    ) -> Result<u64, Code> {
        process.check()?;
        if let Some(mut capture) = self.capture() {
            if capture.session.is_invalid() {
                return Err(Code::STREAM_CAPTURE_INVALIDATED);
            }
            let node = capture.session.graph.add(kind, operation, &capture.last);
            capture.last = vec![node];
            self.set_capture(Some(capture));
            return Ok(0);
        }
        self.make_room(process)?;
        let place = Arc::clone(&self.place);
        let ordered = (self.kind != Kind::NonBlocking).then(|| place.lock());
        let others = ordered.iter().flat_map(|streams| streams.iter()).filter_map(Weak::upgrade);
        let others = others.filter(|other| match self.kind {
            Kind::Legacy => other.kind == Kind::Blocking,
            Kind::Blocking => other.kind == Kind::Legacy,
            Kind::NonBlocking => false,
        });
        let after: Vec<(Arc<Self>, u64)> =
            others.filter_map(|other| Some((Arc::clone(&other), other.pending()?))).collect();
        let mut queue = self.lock();
        queue.submitted += 1;
        let number = queue.submitted;
        queue.entries.push_back(Entry { number, at: clock::now(), after, operation });
        if !queue.working {
            queue.working = true;
            let stream = Arc::clone(self);
            let started =
                std::thread::Builder::new().name("softgpu".to_owned()).spawn(move || stream.work(process));
            if started.is_err() {
                queue.working = false;
                queue.entries.pop_back();
                queue.submitted -= 1;
                return Err(Code::OPERATING_SYSTEM);
            }
        }
        drop(queue);
        self.changed.notify_all();
        Ok(number)
    }

    /// Waits until the operation of this number is done.
    pub(crate) fn wait(&self, process: &Process, number: u64) -> Result<(), Code> {
        let mut queue = self.lock();
        while queue.completed < number {
            queue = self.changed.wait_timeout(queue, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            if queue.completed < number {
                process.check()?;
            }
        }
        drop(queue);
        process.check()
    }

    /// Waits for everything submitted so far.
    pub(crate) fn synchronize(&self, process: &Process) -> Result<(), Code> {
        let number = self.lock().submitted;
        self.wait(process, number)
    }

    /// Whether everything is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending().is_none()
    }

    /// No more operations will come: the thread ends after those that there are.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// The capture that it takes part in.
    pub(crate) fn capture(&self) -> Option<Capture> {
        let mut capture = self.capture.lock().unwrap_or_else(PoisonError::into_inner);
        if capture.as_ref().is_some_and(|capture| !capture.session.is_active()) {
            *capture = None;
        }
        capture.clone()
    }

    pub(crate) fn set_capture(&self, capture: Option<Capture>) {
        *self.capture.lock().unwrap_or_else(PoisonError::into_inner) = capture;
    }

    /// Refuses what cannot be captured: waiting for the device.
    pub(crate) fn refuse_capture(&self) -> Result<(), Code> {
        match self.capture() {
            None => Ok(()),
            Some(capture) => {
                capture.session.invalidate();
                Err(Code::STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// The number of the last operation, where it is not done.
    fn pending(&self) -> Option<u64> {
        let queue = self.lock();
        (queue.completed < queue.submitted).then_some(queue.submitted)
    }

    fn make_room(&self, process: &Process) -> Result<(), Code> {
        let mut queue = self.lock();
        while queue.entries.len() >= DEPTH {
            queue = self.changed.wait_timeout(queue, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            process.check()?;
        }
        Ok(())
    }

    /// The thread of the stream.
    fn work(self: Arc<Self>, process: &'static Process) {
        // Waits end when they are due and not up to 50 us later, as the kernel would have it.
        // SAFETY: takes no pointers; it concerns this thread only.
        let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
        while let Some(entry) = self.next() {
            let mut ready = entry.at.max(self.lock().time);
            for (stream, number) in &entry.after {
                // After a fault nothing is done any more, so nothing is waited for.
                let _ = stream.wait(process, *number);
                ready = ready.max(stream.lock().time);
            }
            let is_signal = matches!(entry.operation, Operation::Record(_) | Operation::RecordAgain(_));
            let run = |ready| match process.check() {
                Ok(()) => run::run(process, &entry.operation, ready).unwrap_or_else(|code| {
                    process.raise(code);
                    run::abandon(&entry.operation, code);
                    ready
                }),
                Err(code) => {
                    run::abandon(&entry.operation, code);
                    ready
                }
            };
            let end = if is_signal { ready } else { run(ready) };
            let mut queue = self.lock();
            if is_signal {
                // Who hears of the event finds the stream as far, and the other way round. Recording takes no time.
                run(ready);
            }
            queue.time = end;
            queue.completed = entry.number;
            queue.entries.pop_front();
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// The first entry, which stays in the queue until it is done; `None` when the thread shall end.
    fn next(&self) -> Option<Entry> {
        let mut queue = self.lock();
        loop {
            if let Some(entry) = queue.entries.front() {
                return Some(entry.clone());
            }
            let (after, waited) =
                self.changed.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = after;
            if queue.entries.is_empty() && (queue.closed || waited.timed_out()) {
                queue.working = false;
                return None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The type of the node that an operation becomes in a graph.
pub(crate) fn node_kind(operation: &Operation) -> u32 {
    match operation {
        Operation::Launch(_) => graph::kind::KERNEL,
        Operation::Copy(_) => graph::kind::COPY,
        Operation::Fill(_) => graph::kind::FILL,
        Operation::Host { .. } | Operation::Callback { .. } => graph::kind::HOST,
        Operation::Graph(_) => graph::kind::GRAPH,
        Operation::Wait(_) | Operation::WaitAgain(_) => graph::kind::WAIT,
        Operation::Record(_) | Operation::RecordAgain(_) => graph::kind::RECORD,
        Operation::WaitValue(_) | Operation::WriteValue { .. } => graph::kind::MEMORY_OPERATION,
        Operation::GivePool { .. } => graph::kind::FREE,
        Operation::Nothing => graph::kind::EMPTY,
    }
}
