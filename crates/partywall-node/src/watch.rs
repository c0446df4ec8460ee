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

/// The thread that asks. It ends after this is dropped, as soon as it is answered.
#[derive(Debug)]
pub(crate) struct Watcher<T = Reading> {
    requests: Sender<()>,
    found: Arc<Found<T>>,
    /// Whether an answer is being waited for.
    asked: bool,
}

#[derive(Debug)]
struct Found<T> {
    /// Readable when there is a reading.
    bell: OwnedFd,
    last: Mutex<Option<Result<T, String>>>,
}

impl Watcher {
    /// Starts the thread and waits a moment for a first reading, which is given back too.
    pub(crate) fn start(
        mut watch: Box<dyn MemoryWatch>,
    ) -> io::Result<(Self, Option<Result<Reading, String>>)> {
        let (first, is_there) = mpsc::channel::<()>();
        let mut first = Some(first);
        let read = move || {
            let reading = watch.read();
            (reading, first.take())
        };
        let mut watcher = Self::with("memory", read)?;
        watcher.ask();
        let _ = is_there.recv_timeout(FIRST);
        let reading = watcher.take();
        Ok((watcher, reading))
    }
}

impl<T: Send + 'static> Watcher<T> {
    /// Starts the thread, which is called `name`, and asks nothing yet. What `read` gives besides is dropped once the reading can be
    /// taken.
    pub(crate) fn with<D>(
        name: &str,
        read: impl FnMut() -> (Result<T, String>, D) + Send + 'static,
    ) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let found = Arc::new(Found { bell, last: Mutex::new(None) });
        let (requests, asked) = mpsc::channel();
        let to_fill = Arc::clone(&found);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || read_on_request(read, &asked, &to_fill))?;
        Ok(Self { requests, found, asked: false })
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
    pub(crate) fn take(&mut self) -> Option<Result<T, String>> {
        let _ = rustix::io::read(&self.found.bell, &mut [0; 8]);
        let reading = self.found.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.asked &= reading.is_none();
        reading
    }
}

fn read_on_request<T, D>(
    mut read: impl FnMut() -> (Result<T, String>, D),
    asked: &Receiver<()>,
    found: &Found<T>,
) {
    while asked.recv().is_ok() {
        let (reading, besides) = read();
        *found.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        let _ = rustix::io::write(&found.bell, &1u64.to_ne_bytes());
        // Whoever waits for the first reading is told by the end of this.
        drop(besides);
    }
}
