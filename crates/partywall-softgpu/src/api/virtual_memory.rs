//! Virtual memory: physical memory, reserved addresses, and which of the one is behind which of the other.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::MprotectFlags;

use crate::abi::{AccessDescription, AllocationProperties, In, Location, Out};
use crate::api::ready;
use crate::device::PAGE;
use crate::error::Code;
use crate::memory::addresses::{Kind, Span};
use crate::memory::arena;
use crate::memory::physical::{POSIX_FD, Physical};

/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_LOCATION_TYPE_DEVICE`.
const PINNED: u32 = 1;
const DEVICE: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ` and the like: 0 none, 1 read, 3 read and write.
const READ_WRITE: u32 = 3;

api! {
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<AllocationProperties>, option: u32) {
        ready()?;
        checked(&properties.get()?)?;
        if option > 1 {
            return Err(Code::INVALID_VALUE);
        }
        bytes.set(PAGE as usize)
    }

    fn cuMemCreate(place: Out<u64>, bytes: usize, properties: In<AllocationProperties>, flags: u64) {
        let process = ready()?;
        let asked = properties.get()?;
        checked(&asked)?;
        let bytes = bytes as u64;
        if flags != 0 || bytes == 0 || !bytes.is_multiple_of(PAGE) || place.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        process.inject_at_allocation()?;
        let physical = Physical::new(bytes, asked.handle_types, process.memory.arena, process.device)?;
        place.set(process.objects.physicals.add(Arc::new(physical)))
    }

    fn cuMemRelease(handle: u64) {
        // Mappings keep it.
        ready()?.objects.physicals.remove(handle).map(|_| ()).map_err(|_| Code::INVALID_VALUE)
    }

    fn cuMemAddressReserve(place: Out<u64>, bytes: usize, alignment: usize, _wanted: u64, flags: u64) {
        ready()?;
        let (bytes, alignment) = (bytes as u64, (alignment as u64).max(PAGE));
        if flags != 0 || bytes == 0 || !bytes.is_multiple_of(PAGE) || !alignment.is_power_of_two() || place.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let room = bytes.checked_add(alignment).ok_or(Code::OUT_OF_MEMORY)?;
        let found = arena::reserve(room)?;
        let start = found.next_multiple_of(alignment);
        arena::release(found, start - found);
        arena::release(start + bytes, found + room - start - bytes);
        reserved().insert(start, bytes);
        place.set(start)
    }

    fn cuMemAddressFree(start: u64, bytes: usize) {
        let process = ready()?;
        let mut reserved = reserved();
        let whole = reserved.get(&start) == Some(&(bytes as u64));
        if !whole || !process.memory.addresses.within(start, bytes as u64).is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        reserved.remove(&start);
        arena::release(start, bytes as u64);
        Ok(())
    }

    fn cuMemMap(start: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let process = ready()?;
        let physical = process.objects.physicals.get(handle).map_err(|_| Code::INVALID_VALUE)?;
        let (bytes, end) = (bytes as u64, start.checked_add(bytes as u64).ok_or(Code::INVALID_VALUE)?);
        let inside = reserved().range(..=start).next_back().is_some_and(|(base, length)| end <= base + length);
        if !inside || offset != 0 || flags != 0 || bytes != physical.bytes || !start.is_multiple_of(PAGE) {
            return Err(Code::INVALID_VALUE);
        }
        process.memory.map(start, &physical)
    }

    fn cuMemUnmap(start: u64, bytes: usize) {
        let process = ready()?;
        let spans = process.memory.addresses.within(start, bytes as u64);
        let filled: u64 = spans.iter().map(|span| span.length).sum();
        let mapped = |span: &Span| matches!(span.kind, Kind::Mapped { .. });
        if filled != bytes as u64 || !spans.iter().all(mapped) {
            return Err(Code::INVALID_VALUE);
        }
        process.quiesce()?;
        for span in spans {
            process.memory.addresses.remove(span.start, mapped);
            arena::unmap(span.start, span.length)?;
        }
        Ok(())
    }

    fn cuMemSetAccess(start: u64, bytes: usize, list: In<AccessDescription>, count: usize) {
        let process = ready()?;
        for one in list.list(count)? {
            let known = one.location.kind == DEVICE && one.location.id == 0 && matches!(one.flags, 0 | 1 | READ_WRITE);
            if !known {
                return Err(Code::INVALID_DEVICE);
            }
            let spans = process.memory.addresses.set_access(start, bytes as u64, one.flags)?;
            // Readable is writable: a kernel that writes there is a fault that this device does not see.
            let access = if one.flags == 0 { MprotectFlags::empty() } else { MprotectFlags::READ | MprotectFlags::WRITE };
            for (start, length) in spans {
                // SAFETY: exactly this was mapped by `cuMemMap` in addresses that the program reserved.
                let done = unsafe { rustix::mm::mprotect(start as *mut c_void, length as usize, access) };
                done.map_err(|_| Code::OPERATING_SYSTEM)?;
            }
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) {
        let span = ready()?.memory.addresses.find(address).ok_or(Code::INVALID_VALUE)?;
        let own = location.get()?;
        flags.set(match span.kind {
            Kind::Mapped { access, .. } if own.kind == DEVICE && own.id == 0 => u64::from(access),
            Kind::Mapped { .. } => 0,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    fn cuMemGetAllocationPropertiesFromHandle(place: Out<AllocationProperties>, handle: u64) {
        let physical = ready()?.objects.physicals.get(handle).map_err(|_| Code::INVALID_VALUE)?;
        place.set(AllocationProperties {
            kind: PINNED,
            handle_types: physical.handle_types,
            location: Location { kind: DEVICE, id: 0 },
            win32: 0,
            flags: [0; 8],
        })
    }

    fn cuMemRetainAllocationHandle(place: Out<u64>, address: u64) {
        let process = ready()?;
        let span = process.memory.addresses.find(address).ok_or(Code::INVALID_VALUE)?;
        let Kind::Mapped { physical, .. } = span.kind else { return Err(Code::INVALID_VALUE) };
        // Another handle to the same memory: each is released once.
        place.set(process.objects.physicals.add(physical))
    }

    fn cuMemExportToShareableHandle(place: Out<i32>, handle: u64, kind: u32, flags: u64) {
        let physical = ready()?.objects.physicals.get(handle).map_err(|_| Code::INVALID_VALUE)?;
        if kind != POSIX_FD || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        place.set(physical.export()?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(place: Out<u64>, file: u64, kind: u32) {
        let process = ready()?;
        // The number of a file comes in the place of a pointer.
        let number = i32::try_from(file).map_err(|_| Code::INVALID_VALUE)?;
        if kind != POSIX_FD || number < 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: borrowed for this call only, which fails where there is no such file.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let file = file.try_clone_to_owned().map_err(|_| Code::INVALID_VALUE)?;
        place.set(process.objects.physicals.add(Arc::new(Physical::import(file, process.device)?)))
    }
}

/// Pinned memory of the only device.
fn checked(properties: &AllocationProperties) -> Result<(), Code> {
    if properties.kind != PINNED || properties.handle_types & !POSIX_FD != 0 {
        return Err(Code::INVALID_VALUE);
    }
    match properties.location {
        Location { kind: DEVICE, id: 0 } => Ok(()),
        Location { kind: DEVICE, .. } => Err(Code::INVALID_DEVICE),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

/// Addresses that the program reserved: where, and how many bytes.
fn reserved() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner)
}
