//! Real bytes for device memory: one sparse file in memory for the process, mapped once. A page that nobody wrote costs
//! nothing, so a device of 141 GB fits on a laptop as long as programs touch little of it.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::device::PAGE;
use crate::error::Code;
use crate::memory::free_list::FreeList;

/// Addresses beyond the device's memory, so that holes between allocations are no reason to refuse one.
const SPARE: u64 = 2;

/// The file, its mapping, and which of its pages are free.
#[derive(Debug)]
pub(crate) struct Arena {
    file: File,
    base: u64,
    free: Mutex<FreeList>,
}

impl Arena {
    /// Room for `memory` bytes of device memory.
    pub(crate) fn new(memory: u64) -> Result<Self, Code> {
        let length = (memory * SPARE).next_multiple_of(PAGE);
        let file = file(length)?;
        let reserved = reserve(length + PAGE)?;
        let base = reserved.next_multiple_of(PAGE);
        map(base, length, file.as_fd(), 0, ProtFlags::READ | ProtFlags::WRITE)?;
        // SAFETY: exactly this was mapped just now. A core dump should hold no simulated device.
        let _ = unsafe { rustix::mm::madvise(base as *mut c_void, length as usize, Advice::LinuxDontDump) };
        Ok(Self { file, base, free: Mutex::new(FreeList::new(base, length)) })
    }

    /// So many bytes, a multiple of [`PAGE`]; their address. All are zero.
    pub(crate) fn take(&self, bytes: u64) -> Result<u64, Code> {
        self.lock().take(bytes, PAGE).ok_or(Code::OUT_OF_MEMORY)
    }

    /// Gives back what [`Arena::take`] gave, and its real memory.
    pub(crate) fn give(&self, address: u64, bytes: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Where it fails, old bytes stay: device memory is undefined when it is new.
        let _ = rustix::fs::fallocate(&self.file, flags, self.offset(address), bytes);
        self.lock().give(address, bytes);
    }

    /// Where in the file an address of the arena is.
    pub(crate) fn offset(&self, address: u64) -> u64 {
        address - self.base
    }

    /// The file, for mappings elsewhere.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The number under which other processes find the file in `/proc/<pid>/fd`.
    pub(crate) fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, FreeList> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new file in memory.
pub(crate) fn file(length: u64) -> Result<File, Code> {
    let file =
        rustix::fs::memfd_create("softgpu", MemfdFlags::CLOEXEC).map_err(|_| Code::OPERATING_SYSTEM)?;
    rustix::fs::ftruncate(&file, length).map_err(|_| Code::OPERATING_SYSTEM)?;
    Ok(File::from(file))
}

/// Addresses that nothing else gets, with nothing behind them.
pub(crate) fn reserve(length: u64) -> Result<u64, Code> {
    // SAFETY: a new mapping at an address of the kernel's choice takes nothing from anybody.
    let address = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            length as usize,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    address.map(|address| address as u64).map_err(|_| Code::OUT_OF_MEMORY)
}

/// Puts part of a file behind addresses that were reserved.
pub(crate) fn map(
    address: u64,
    length: u64,
    file: BorrowedFd<'_>,
    offset: u64,
    access: ProtFlags,
) -> Result<(), Code> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: callers pass addresses of their own reservations, which nothing but device memory uses.
    let mapped =
        unsafe { rustix::mm::mmap(address as *mut c_void, length as usize, access, flags, file, offset) };
    mapped.map(|_| ()).map_err(|_| Code::OPERATING_SYSTEM)
}

/// Takes away what is behind addresses and keeps them reserved.
pub(crate) fn unmap(address: u64, length: u64) -> Result<(), Code> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: as in `map`.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(address as *mut c_void, length as usize, ProtFlags::empty(), flags)
    };
    mapped.map(|_| ()).map_err(|_| Code::OPERATING_SYSTEM)
}

/// Gives reserved addresses back.
pub(crate) fn release(address: u64, length: u64) {
    // SAFETY: callers pass their own reservation, which they do not use any more.
    let _ = unsafe { rustix::mm::munmap(address as *mut c_void, length as usize) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_bytes_and_are_zero_again_when_they_come_back() {
        let arena = Arena::new(16 * PAGE).unwrap();
        let address = arena.take(2 * PAGE).unwrap();
        assert!(address.is_multiple_of(PAGE) && arena.offset(address) == 0);
        let word = (address + PAGE) as *mut u64;
        // SAFETY: inside the two pages that were taken.
        unsafe { word.write_volatile(7) };
        arena.give(address, 2 * PAGE);
        assert_eq!(arena.take(2 * PAGE), Ok(address));
        // SAFETY: as above.
        assert_eq!(unsafe { word.read_volatile() }, 0);
        assert_eq!(arena.take(1000 * PAGE), Err(Code::OUT_OF_MEMORY));
    }
}
