//! How much GPU memory each process holds, as the driver shows it: what the shim's own count is held against.
//!
//! Asking may take long, or forever when a GPU is in trouble, so it is done by a thread of its own, and the registry takes what it finds
//! when it is there.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use partywall_core::units::Bytes;
use partywall_driver::nvml;
use rustix::event::{EventfdFlags, eventfd};

/// GPU memory by process id. Processes that are not in it hold none; `None` is one of which the driver does not tell how much.
pub type Reading = BTreeMap<u32, Option<Bytes>>;

/// Something that shows the GPU memory of processes.
pub trait MemoryWatch: Send {
    /// What every process holds now.
    ///
    /// # Errors
    /// One line that says why it cannot be told.
    fn read(&mut self) -> Result<Reading, String>;
}

/// NVML.
#[derive(Debug)]
pub struct NvmlWatch(pub nvml::Device);

impl MemoryWatch for NvmlWatch {
    fn read(&mut self) -> Result<Reading, String> {
        let processes = self.0.process_memory().map_err(|error| error.to_string())?;
        Ok(processes.into_iter().collect())
    }
}

/// How long a node that starts waits for the first reading.
const FIRST: Duration = Duration::from_secs(1);

/// The thread that asks. It ends after this is dropped, as soon as the driver answers.
#[derive(Debug)]
pub(crate) struct Watcher {
    requests: Sender<()>,
    found: Arc<Found>,
    /// Whether an answer is being waited for.
    asked: bool,
}

#[derive(Debug)]
struct Found {
    /// Readable when there is a reading.
    bell: OwnedFd,
    last: Mutex<Option<Result<Reading, String>>>,
}

impl Watcher {
    /// Starts the thread and waits a moment for a first reading, which is given back too.
    pub(crate) fn start(watch: Box<dyn MemoryWatch>) -> io::Result<(Self, Option<Result<Reading, String>>)> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let found = Arc::new(Found { bell, last: Mutex::new(None) });
        let (requests, asked) = mpsc::channel();
        let (first, is_there) = mpsc::channel();
        let to_fill = Arc::clone(&found);
        std::thread::Builder::new()
            .name("memory".to_owned())
            .spawn(move || read_on_request(watch, &asked, &to_fill, first))?;
        let mut watcher = Self { requests, found, asked: false };
        watcher.ask();
        let _ = is_there.recv_timeout(FIRST);
        let reading = watcher.take();
        Ok((watcher, reading))
    }

    /// Readable when there is something to take.
    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.found.bell
    }

    /// Whether a reading is being waited for.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked
    }

    /// Asks for a reading.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
        // The thread only ends after this end does.
        let _ = self.requests.send(());
    }

    /// The reading that was asked for, if it is there.
    pub(crate) fn take(&mut self) -> Option<Result<Reading, String>> {
        let _ = rustix::io::read(&self.found.bell, &mut [0; 8]);
        let reading = self.found.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.asked &= reading.is_none();
        reading
    }
}

fn read_on_request(mut watch: Box<dyn MemoryWatch>, asked: &Receiver<()>, found: &Found, first: Sender<()>) {
    let mut first = Some(first);
    while asked.recv().is_ok() {
        let reading = watch.read();
        *found.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        let _ = rustix::io::write(&found.bell, &1u64.to_ne_bytes());
        // Whoever waits for the first reading is told by the end of this.
        drop(first.take());
    }
}
