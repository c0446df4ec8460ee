//! Physical memory that programs map themselves: `cuMemCreate`.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::device::{Device, PAGE};
use crate::error::Code;
use crate::memory::arena::{self, Arena};

/// Some pages. Handles and mappings own them together.
pub(crate) struct Physical {
    pub(crate) bytes: u64,
    pub(crate) handle_types: u32,
    backing: Backing,
    /// Where it is in the device's memory, as far as anybody can tell: the same in all processes, and different for different pages.
    pub(crate) place: u64,
    device: &'static Device,
}

enum Backing {
    /// Pages of the process's arena, by address.
    Arena(&'static Arena, u64),
    /// A file of its own, which other processes can be given.
    File(File),
    /// The file of another process, to which the memory is accounted.
    Imported(File),
}

impl Physical {
    /// New pages; with `handle_types` other than 0, ones that can be shared.
    pub(crate) fn new(
        bytes: u64,
        handle_types: u32,
        arena: &'static Arena,
        device: &'static Device,
    ) -> Result<Self, Code> {
        device.take(bytes)?;
        let backing = if handle_types == 0 {
            arena.take(bytes).map(|address| Backing::Arena(arena, address))
        } else {
            arena::file(bytes).map(Backing::File)
        };
        let backing = backing.inspect_err(|_| {
            let _ = device.give(bytes);
        })?;
        let place = match &backing {
            Backing::Arena(arena, address) => arena.offset(*address),
            Backing::File(file) | Backing::Imported(file) => place(file.as_fd())?,
        };
        Ok(Self { bytes, handle_types, backing, place, device })
    }

    /// The pages behind a file that another process exported.
    pub(crate) fn import(file: OwnedFd, device: &'static Device) -> Result<Self, Code> {
        let bytes = rustix::fs::fstat(&file).map_err(|_| Code::INVALID_VALUE)?.st_size as u64;
        if bytes == 0 || !bytes.is_multiple_of(PAGE) {
            return Err(Code::INVALID_VALUE);
        }
        let place = place(file.as_fd())?;
        let backing = Backing::Imported(file.into());
        Ok(Self { bytes, handle_types: POSIX_FD, backing, place, device })
    }

    /// The file and the place in it.
    pub(crate) fn file(&self) -> (BorrowedFd<'_>, u64) {
        match &self.backing {
            Backing::Arena(arena, address) => (arena.file(), arena.offset(*address)),
            Backing::File(file) | Backing::Imported(file) => (file.as_fd(), 0),
        }
    }

    /// A file descriptor that stands for the pages in other processes.
    pub(crate) fn export(&self) -> Result<OwnedFd, Code> {
        match &self.backing {
            Backing::Arena(..) => Err(Code::INVALID_VALUE),
            Backing::File(file) | Backing::Imported(file) => {
                file.as_fd().try_clone_to_owned().map_err(|_| Code::OPERATING_SYSTEM)
            }
        }
    }
}

/// A file has no place among the pages of a device; its number is one that all processes see, beyond the largest device.
fn place(file: BorrowedFd<'_>) -> Result<u64, Code> {
    let number = rustix::fs::fstat(file).map_err(|_| Code::OPERATING_SYSTEM)?.st_ino;
    Ok(number.wrapping_add(1 << 24).wrapping_shl(24))
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const POSIX_FD: u32 = 1;

impl Drop for Physical {
    fn drop(&mut self) {
        match &self.backing {
            Backing::Arena(arena, address) => arena.give(*address, self.bytes),
            Backing::File(_) => {}
            Backing::Imported(_) => return,
        }
        let _ = self.device.give(self.bytes);
    }
}
