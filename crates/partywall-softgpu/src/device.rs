//! The one device that all processes share: who holds how much of its memory, when its link and its SMs are free, and
//! whether it is broken.
//!
//! The state is a file that every process maps. Entries belong to a process, by pid and start time, and are given back by
//! whoever notices that the process is gone; so killing any process at any time leaves nothing behind. Changes are made
//! under a lock of the file, which the kernel frees with its holder.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use partywall_core::soft_gpu::SoftGpu;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::folder::{Folder, FolderError};
use layout::{Entry, MAGIC, PROCESSES_MAX, Shared};

pub mod fault;
pub(crate) mod layout;
pub mod link;
pub mod mps;
pub(crate) mod process;
mod residence;
pub mod turns;

/// Physical memory is handed out in pages of this size, as an H200 does.
pub const PAGE: u64 = 2 << 20;

/// Why the shared state cannot be used.
#[derive(Debug)]
pub enum DeviceError {
    /// There is no usable driver folder.
    Folder(FolderError),
    /// A system call on the file of the shared state failed.
    File {
        /// The file.
        path: PathBuf,
        /// What was said.
        error: io::Error,
    },
    /// The file is that of another version of this library.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The table of processes is full.
    TooManyProcesses,
    /// The MPS daemon still has clients that a fault has ended.
    MpsRecovering,
    /// So much memory is not free.
    OutOfMemory,
    /// The device is lost.
    Lost,
}

impl std::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(error) => error.fmt(f),
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Foreign { path } => {
                write!(
                    f,
                    "{}: state of another version of this library; remove the file when nothing uses it",
                    path.display()
                )
            }
            Self::TooManyProcesses => {
                write!(f, "more than {PROCESSES_MAX} processes hold contexts of the simulated device")
            }
            Self::MpsRecovering => {
                f.write_str("the MPS daemon recovers from a fault: its clients have not all exited")
            }
            Self::OutOfMemory => f.write_str("not so much memory is free on the simulated device"),
            Self::Lost => f.write_str(
                "the simulated device is lost, and comes back when every process that had a context then has ended",
            ),
        }
    }
}

impl std::error::Error for DeviceError {}

/// A process that holds contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`.
    pub start_time: u64,
    /// Device memory that it allocated, bytes, in whole pages.
    pub memory: u64,
    /// Device memory that its contexts take, bytes.
    pub context_memory: u64,
    /// How many contexts it has.
    pub contexts: u32,
    /// The MPS daemon whose client it is ([`mps::group`]); 0 for none.
    pub mps_group: u64,
    /// Time that its kernels took, nanoseconds.
    pub busy_ns: u64,
    /// Kernels that it launched.
    pub launches: u64,
    /// Bytes that it copied to the device and to the host.
    pub link_bytes: [u64; 2],
}

/// The shared state, mapped into this process.
pub struct Device {
    folder: Folder,
    file: File,
    shared: NonNull<Shared>,
    /// The lock of the file excludes other processes, this one other threads of this process.
    threads: Mutex<()>,
    /// Index of this process's entry plus one; 0 before it has one.
    own: AtomicUsize,
}

// SAFETY: `shared` points to atomics that stay mapped for as long as the device lives; all else is Send and Sync itself.
unsafe impl Send for Device {}
// SAFETY: as for `Send`.
unsafe impl Sync for Device {}

/// The device of this process. Null before it was opened, and again in a child after fork.
static CURRENT: AtomicPtr<Device> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn forget_in_child() {
    // The parent's device is leaked here on purpose: its file description, and with it the lock, is shared with the parent.
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
}

impl Device {
    /// The device of the driver folder that this process uses; opened by the first call, and again after a fork.
    ///
    /// # Errors
    /// There is no usable folder, or its state cannot be mapped.
    pub fn of_this_process() -> Result<&'static Self, DeviceError> {
        static OPENING: Mutex<()> = Mutex::new(());
        let known = CURRENT.load(Ordering::Acquire);
        // SAFETY: a pointer in here came from a leaked box.
        if let Some(device) = unsafe { known.as_ref() } {
            return Ok(device);
        }
        let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let known = CURRENT.load(Ordering::Acquire);
        // SAFETY: as above.
        if let Some(device) = unsafe { known.as_ref() } {
            return Ok(device);
        }
        let folder = Folder::of_this_process().map_err(DeviceError::Folder)?;
        let device: &'static Self = Box::leak(Box::new(Self::open(folder)?));
        static AT_FORK: std::sync::Once = std::sync::Once::new();
        AT_FORK.call_once(|| {
            // SAFETY: the handler only stores to an atomic.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) };
        });
        CURRENT.store(std::ptr::from_ref(device).cast_mut(), Ordering::Release);
        Ok(device)
    }

    /// Maps the state of a folder, which is made where there is none yet. A device that was lost is there again where nobody
    /// is left who has seen that: as a reset brings it back, for which all programs have to end.
    ///
    /// # Errors
    /// The file cannot be opened, locked or mapped, or is that of another version.
    pub fn open(folder: Folder) -> Result<Self, DeviceError> {
        let path = folder.state();
        let fail = |error: rustix::io::Errno| DeviceError::File { path: path.clone(), error: error.into() };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?);
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(fail)?;
        let size = size_of::<Shared>();
        let found = rustix::fs::fstat(&file).map_err(fail)?.st_size as u64;
        if found == 0 {
            rustix::fs::ftruncate(&file, size as u64).map_err(fail)?;
        } else if found != size as u64 {
            return Err(DeviceError::Foreign { path });
        }
        // SAFETY: a new mapping at an address of the kernel's choice; the file is at least as long, and nothing shortens it.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .map_err(fail)?;
        let shared = NonNull::new(address.cast::<Shared>()).ok_or_else(|| fail(rustix::io::Errno::NOMEM))?;
        let device = Self { folder, file, shared, threads: Mutex::new(()), own: AtomicUsize::new(0) };
        match device.shared().magic.load(Relaxed) {
            MAGIC => {}
            // Zeroes are the state of a device that nobody uses.
            0 => device.shared().magic.store(MAGIC, Relaxed),
            _ => return Err(DeviceError::Foreign { path }),
        }
        device.find_again();
        rustix::fs::flock(&device.file, FlockOperation::Unlock).map_err(fail)?;
        Ok(device)
    }

    /// What the device is.
    pub fn figures(&self) -> &SoftGpu {
        self.folder.figures()
    }

    /// The driver folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// All memory, bytes.
    pub fn total(&self) -> u64 {
        self.figures().memory().0 / PAGE * PAGE
    }

    /// Memory that processes hold, bytes, their contexts included.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub fn used(&self) -> Result<u64, DeviceError> {
        let _locked = self.lock()?;
        self.reclaim();
        Ok(self.used_locked())
    }

    /// The processes that hold contexts, in the order of their ids.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub fn processes(&self) -> Result<Vec<Process>, DeviceError> {
        let _locked = self.lock()?;
        self.reclaim();
        let mut processes: Vec<Process> = self.taken().map(Process::of).collect();
        processes.sort_by_key(|process| process.pid);
        Ok(processes)
    }

    /// Time during which at least one kernel ran, nanoseconds since the state was made.
    pub fn busy_ns(&self) -> u64 {
        self.shared().totals.busy_ns.load(Relaxed)
    }

    /// Kernels launched since the state was made.
    pub fn launches(&self) -> u64 {
        self.shared().totals.launches.load(Relaxed)
    }

    /// Bytes of device memory that kernels read and wrote since the state was made, as the model counts them.
    pub fn memory_traffic(&self) -> u64 {
        self.shared().totals.memory_bytes.load(Relaxed)
    }

    /// Counts bytes for [`Device::memory_traffic`].
    pub fn count_traffic(&self, bytes: u64) {
        self.shared().totals.memory_bytes.fetch_add(bytes, Relaxed);
    }

    /// Whether the device has fallen off the bus.
    pub fn is_lost(&self) -> bool {
        self.shared().lost.load(Relaxed) != 0
    }

    /// Makes the device fall off the bus, for all processes, until those that have contexts now have ended and another one
    /// opens it.
    pub fn lose(&self) {
        self.shared().lost.store(1, Relaxed);
    }

    /// Takes the memory of one more context for this process, which is an MPS client where `mps_group` is not 0.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::TooManyProcesses`], [`DeviceError::MpsRecovering`], or the lock.
    pub fn add_context(&self, mps_group: u64) -> Result<(), DeviceError> {
        let bytes = self.figures().context().0.next_multiple_of(PAGE);
        let _locked = self.lock()?;
        self.reclaim();
        if mps_group != 0
            && self
                .taken()
                .any(|entry| entry.mps_group.load(Relaxed) == mps_group && entry.fault.load(Relaxed) != 0)
        {
            return Err(DeviceError::MpsRecovering);
        }
        if self.used_locked() + bytes > self.total() {
            return Err(DeviceError::OutOfMemory);
        }
        let entry = self.join(mps_group)?;
        entry.contexts.fetch_add(1, Relaxed);
        entry.context_memory.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Gives back what [`Device::add_context`] took.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub fn remove_context(&self) -> Result<(), DeviceError> {
        let bytes = self.figures().context().0.next_multiple_of(PAGE);
        let _locked = self.lock()?;
        if let Some(entry) = self.own_entry() {
            subtract(&entry.context_memory, bytes);
            if entry.contexts.load(Relaxed) > 0
                && entry.contexts.fetch_sub(1, Relaxed) == 1
                && entry.memory.load(Relaxed) == 0
                // Then it stays on the list: what saw the device fall off does not find it again.
                && !self.is_lost()
            {
                entry.pid.store(0, Relaxed);
                self.own.store(0, Relaxed);
            }
        }
        Ok(())
    }

    /// Takes so many bytes of memory for this process.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::TooManyProcesses`], or the lock.
    pub fn take(&self, bytes: u64) -> Result<(), DeviceError> {
        let _locked = self.lock()?;
        if self.used_locked().saturating_add(bytes) > self.total() {
            self.reclaim();
            if self.used_locked().saturating_add(bytes) > self.total() {
                return Err(DeviceError::OutOfMemory);
            }
        }
        self.join(0)?.memory.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Gives so many bytes back.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub fn give(&self, bytes: u64) -> Result<(), DeviceError> {
        let _locked = self.lock()?;
        if let Some(entry) = self.own_entry() {
            subtract(&entry.memory, bytes);
        }
        Ok(())
    }

    /// The error that ended this process's contexts, its own or that of another client of the same MPS daemon; 0 for none.
    pub fn fault(&self) -> u32 {
        self.own_entry().map_or(0, |entry| entry.fault.load(Relaxed))
    }

    /// Ends the contexts of this process with an error, and those of all clients of the same MPS daemon with what `others` says. Where
    /// that says nothing, they go on, and the daemon counts this process as gone.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub fn raise(&self, error: u32, others: Option<u32>) -> Result<(), DeviceError> {
        let _locked = self.lock()?;
        let Some(own) = self.own_entry() else { return Ok(()) };
        let group = own.mps_group.load(Relaxed);
        let _ = own.fault.compare_exchange(0, error, Relaxed, Relaxed);
        let Some(others) = others else {
            own.mps_group.store(0, Relaxed);
            return Ok(());
        };
        for entry in self.taken().filter(|entry| group != 0 && entry.mps_group.load(Relaxed) == group) {
            let _ = entry.fault.compare_exchange(0, others, Relaxed, Relaxed);
        }
        Ok(())
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped for as long as `self` lives, as large as `Shared`, aligned to a page, and all atomics, of which any
        // bytes are valid.
        unsafe { self.shared.as_ref() }
    }

    /// This process's entry, if it has one.
    /// The file that processes share.
    pub(crate) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    pub(crate) fn own_entry(&self) -> Option<&Entry> {
        self.own_index().and_then(|index| self.shared().entries.get(index))
    }

    fn own_index(&self) -> Option<usize> {
        self.own.load(Relaxed).checked_sub(1)
    }

    fn taken(&self) -> impl Iterator<Item = &Entry> {
        self.shared().entries.iter().filter(|entry| entry.pid.load(Relaxed) != 0)
    }

    fn used_locked(&self) -> u64 {
        self.taken().map(|entry| entry.memory.load(Relaxed) + entry.context_memory.load(Relaxed)).sum()
    }

    /// Empties the entries of processes that are gone. Under the lock.
    fn reclaim(&self) {
        let own = self.own_entry().map(std::ptr::from_ref);
        for entry in self.taken().filter(|entry| own != Some(std::ptr::from_ref(*entry))) {
            if process::start_time(entry.pid.load(Relaxed)) != Some(entry.start_time.load(Relaxed)) {
                entry.pid.store(0, Relaxed);
            }
        }
    }

    /// Ends the loss of the device if all who had contexts are gone. Under the lock.
    fn find_again(&self) {
        if self.is_lost() {
            self.reclaim();
            if self.taken().next().is_none() {
                self.shared().lost.store(0, Relaxed);
            }
        }
    }

    /// This process's entry, made where there is none. Under the lock.
    fn join(&self, mps_group: u64) -> Result<&Entry, DeviceError> {
        if let Some(entry) = self.own_entry() {
            if mps_group != 0 {
                entry.mps_group.store(mps_group, Relaxed);
            }
            return Ok(entry);
        }
        let entries = &self.shared().entries;
        if entries.iter().all(|entry| entry.pid.load(Relaxed) != 0) {
            self.reclaim();
        }
        let free = entries.iter().position(|entry| entry.pid.load(Relaxed) == 0);
        let index = free.ok_or(DeviceError::TooManyProcesses)?;
        let entry = &entries[index];
        self.forget_blocks(index);
        for word in [&entry.memory, &entry.context_memory, &entry.launches, &entry.busy_ns] {
            word.store(0, Relaxed);
        }
        for word in &entry.link_bytes {
            word.store(0, Relaxed);
        }
        entry.contexts.store(0, Relaxed);
        entry.fault.store(0, Relaxed);
        entry.slice_us.store(0, Relaxed);
        entry.mps_group.store(mps_group, Relaxed);
        let pid = std::process::id();
        entry.start_time.store(process::start_time(pid).unwrap_or(0), Relaxed);
        // Last: whoever dies before this has taken nothing.
        entry.pid.store(pid, Relaxed);
        self.own.store(index + 1, Relaxed);
        Ok(entry)
    }

    fn lock(&self) -> Result<Locked<'_>, DeviceError> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match rustix::fs::flock(&self.file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Locked { device: self, _threads: threads }),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return Err(DeviceError::File { path: self.folder.state(), error: error.into() });
                }
            }
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("folder", &self.folder.path()).finish_non_exhaustive()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(entry) = self.own_entry() {
            entry.pid.store(0, Relaxed);
        }
        // SAFETY: exactly this was mapped by `open`, and no reference into it is left.
        let _ = unsafe { rustix::mm::munmap(self.shared.as_ptr().cast(), size_of::<Shared>()) };
    }
}

impl Process {
    fn of(entry: &Entry) -> Self {
        Self {
            pid: entry.pid.load(Relaxed),
            start_time: entry.start_time.load(Relaxed),
            memory: entry.memory.load(Relaxed),
            context_memory: entry.context_memory.load(Relaxed),
            contexts: entry.contexts.load(Relaxed),
            mps_group: entry.mps_group.load(Relaxed),
            busy_ns: entry.busy_ns.load(Relaxed),
            launches: entry.launches.load(Relaxed),
            link_bytes: [entry.link_bytes[0].load(Relaxed), entry.link_bytes[1].load(Relaxed)],
        }
    }
}

/// The lock of the state.
struct Locked<'a> {
    device: &'a Device,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Where it fails, the lock ends with the process.
        let _ = rustix::fs::flock(&self.device.file, FlockOperation::Unlock);
    }
}

fn subtract(word: &std::sync::atomic::AtomicU64, bytes: u64) {
    word.store(word.load(Relaxed).saturating_sub(bytes), Relaxed);
}

#[cfg(test)]
mod tests;
