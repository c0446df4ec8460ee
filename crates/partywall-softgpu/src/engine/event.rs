//! Events: marks in streams, with the device's time at which they were passed.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags};

use crate::clock;
use crate::engine::capture::Session;
use crate::engine::graph::NodeIndex;
use crate::error::Code;
use crate::process::Process;

/// While something waits, it looks this often whether the process's contexts have been ended from outside.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// An event.
pub(crate) struct Event {
    /// Whether it remembers times.
    pub(crate) timing: bool,
    /// What it was recorded as last.
    last: Mutex<Option<Arc<Recording>>>,
    /// Where in a capture it was recorded last.
    pub(crate) captured: Mutex<Option<(Arc<Session>, Vec<NodeIndex>)>>,
    /// Counts for other processes.
    shared: Option<Arc<Shared>>,
}

/// One recording of an event.
pub(crate) struct Recording {
    /// When the device passed it.
    passed: Mutex<Option<u64>>,
    changed: Condvar,
    /// The counts to advance, and to what.
    shared: Option<(Arc<Shared>, u64)>,
}

/// What an event that several processes use is to them: how often it was recorded, and up to which of these it was passed.
pub(crate) struct Shared {
    file: File,
    words: *const [AtomicU64; 2],
}

// SAFETY: the words are atomics that stay mapped for as long as this lives.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

const SHARED_BYTES: usize = 4096;

impl Shared {
    /// New counts, or those in another process's file.
    pub(crate) fn new(file: Option<File>) -> Result<Arc<Self>, Code> {
        let file = match file {
            Some(file) => file,
            None => crate::memory::arena::file(SHARED_BYTES as u64)?,
        };
        if rustix::fs::fstat(&file).map_err(|_| Code::INVALID_VALUE)?.st_size as usize != SHARED_BYTES {
            return Err(Code::INVALID_VALUE);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is as long.
        let words = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), SHARED_BYTES, access, MapFlags::SHARED, file.as_fd(), 0)
        };
        Ok(Arc::new(Self { words: words.map_err(|_| Code::OPERATING_SYSTEM)?.cast(), file }))
    }

    /// The number of the file in `/proc/<pid>/fd`.
    pub(crate) fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    fn words(&self) -> &[AtomicU64; 2] {
        // SAFETY: mapped for as long as `self` lives, aligned to a page.
        unsafe { &*self.words }
    }

    fn recorded(&self) -> u64 {
        self.words()[0].load(Ordering::Acquire)
    }

    fn passed(&self, count: u64) -> bool {
        self.words()[1].load(Ordering::Acquire) >= count
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: exactly this was mapped by `new`.
        let _ = unsafe { rustix::mm::munmap(self.words.cast_mut().cast(), SHARED_BYTES) };
    }
}

/// Something to wait for: a recording, or a count of another process.
#[derive(Clone)]
pub(crate) enum Mark {
    Recording(Arc<Recording>),
    Shared(Arc<Shared>, u64),
}

impl Mark {
    /// The device's time when it was passed; `None` where it has not been. Counts have no time.
    pub(crate) fn passed(&self) -> Option<u64> {
        match self {
            Self::Recording(recording) => recording.passed(),
            Self::Shared(shared, count) => shared.passed(*count).then_some(0),
        }
    }

    /// Waits until it is passed.
    pub(crate) fn wait(&self, process: &Process) -> Result<u64, Code> {
        loop {
            match self {
                Self::Recording(recording) => {
                    let passed = recording.passed.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(time) = *passed {
                        return Ok(time);
                    }
                    drop(recording.changed.wait_timeout(passed, LOOK));
                }
                Self::Shared(shared, count) if shared.passed(*count) => return Ok(0),
                // Nobody in another process can wake this one.
                Self::Shared(..) => clock::pause(20_000),
            }
            process.check()?;
        }
    }
}

impl Recording {
    fn passed(&self) -> Option<u64> {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device has passed it.
    pub(crate) fn pass(&self, time: u64) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = Some(time);
        if let Some((shared, count)) = &self.shared {
            shared.words()[1].fetch_max(*count, Ordering::AcqRel);
        }
        self.changed.notify_all();
    }
}

impl Event {
    pub(crate) fn new(timing: bool, shared: Option<Arc<Shared>>) -> Self {
        Self { timing, last: Mutex::default(), captured: Mutex::default(), shared }
    }

    /// The counts that other processes see.
    pub(crate) fn shared(&self) -> Option<&Arc<Shared>> {
        self.shared.as_ref()
    }

    /// Begins a recording: from now on, whoever waits for the event waits for this.
    pub(crate) fn record(&self) -> Arc<Recording> {
        let shared = self.shared.as_ref().map(|shared| {
            let before = shared.words()[0].fetch_add(1, Ordering::AcqRel);
            (Arc::clone(shared), before + 1)
        });
        let recording = Arc::new(Recording { passed: Mutex::default(), changed: Condvar::new(), shared });
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&recording));
        *self.captured.lock().unwrap_or_else(PoisonError::into_inner) = None;
        recording
    }

    /// What a wait for the event waits for; nothing where it was never recorded.
    pub(crate) fn mark(&self) -> Option<Mark> {
        match &self.shared {
            Some(shared) => match shared.recorded() {
                0 => None,
                count => Some(Mark::Shared(Arc::clone(shared), count)),
            },
            None => self.last.lock().unwrap_or_else(PoisonError::into_inner).clone().map(Mark::Recording),
        }
    }

    /// The time of the last recording.
    pub(crate) fn time(&self) -> Result<u64, Code> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match last {
            Some(recording) if self.timing => recording.passed().ok_or(Code::NOT_READY),
            _ => Err(Code::INVALID_HANDLE),
        }
    }

    /// Whether its last recording was into a graph that is being captured.
    pub(crate) fn is_captured(&self) -> bool {
        let captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        captured.as_ref().is_some_and(|(session, _)| session.is_active())
    }
}
