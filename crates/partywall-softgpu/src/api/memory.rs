//! Allocating: device memory, managed memory, pinned host memory.

use std::ffi::c_void;

use rustix::mm::{MapFlags, ProtFlags};

use crate::abi::{Location, Out};
use crate::api::{ready, submit};
use crate::engine::operation::Operation;
use crate::error::Code;
use crate::memory::addresses::{Kind, Span};
use crate::objects::number;
use crate::process::Process;

/// Rows of pitched allocations begin at multiples of this, as on a real device.
const PITCH: usize = 512;

/// Bytes of a page of the host.
const HOST_PAGE: usize = 4096;

api! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let process = ready()?;
        process.current()?;
        let used = process.device.used()?;
        free.set(process.device.total().saturating_sub(used) as usize)?;
        total.set(process.device.total() as usize)
    }

    fn cuMemAlloc_v2(place: Out<u64>, bytes: usize) {
        place.set(allocate(place, bytes as u64, false)?)
    }

    fn cuMemAllocPitch_v2(place: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        if !matches!(element, 4 | 8 | 16) || pitch.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(Code::INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?;
        place.set(allocate(place, bytes as u64, false)?)?;
        pitch.set(row)
    }

    fn cuMemAllocManaged(place: Out<u64>, bytes: usize, flags: u32) {
        // Attached to all streams, to the host, or to single ones.
        if !matches!(flags & 7, 1 | 2 | 4) {
            return Err(Code::INVALID_VALUE);
        }
        place.set(allocate(place, bytes as u64, true)?)
    }

    fn cuMemFree_v2(address: u64) {
        let process = ready()?;
        if address == 0 {
            return Ok(());
        }
        let span = process.memory.addresses.find(address).filter(|span| span.start == address);
        let span = span.ok_or(Code::INVALID_VALUE)?;
        process.quiesce()?;
        match span.kind {
            Kind::Pool { pool } => {
                process.memory.addresses.remove(address, |_| true);
                process.objects.pools.get(pool)?.give(address);
                process.settle_pools();
                Ok(())
            }
            _ => process.memory.free(address),
        }
    }

    fn cuMemAllocHost_v2(place: Out<*mut c_void>, bytes: usize) {
        pin(ready()?, place, bytes, 0)
    }

    fn cuMemHostAlloc(place: Out<*mut c_void>, bytes: usize, flags: u32) {
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        pin(ready()?, place, bytes, flags)
    }

    fn cuMemFreeHost(address: u64) {
        let process = ready()?;
        let pinned = process.memory.addresses.find(address).is_some_and(|span| span.start == address && is_host(&span));
        if !pinned {
            return Err(Code::INVALID_VALUE);
        }
        process.quiesce()?;
        let span = process.memory.addresses.remove(address, is_host).ok_or(Code::INVALID_VALUE)?;
        crate::memory::arena::release(span.start, span.length.next_multiple_of(HOST_PAGE as u64));
        Ok(())
    }

    fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) {
        let process = ready()?;
        let context = process.current()?;
        if address == 0 || bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let addresses = &process.memory.addresses;
        if addresses.find(address).is_some() || !addresses.within(address, bytes as u64).is_empty() {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let kind = Kind::Registered { flags };
        addresses.insert(Span { start: address, length: bytes as u64, kind, context: context.handle, id: number() });
        Ok(())
    }

    fn cuMemHostUnregister(address: u64) {
        let process = ready()?;
        process.quiesce()?;
        let registered = |span: &Span| matches!(span.kind, Kind::Registered { .. });
        let removed = process.memory.addresses.remove(address, registered);
        removed.map(|_| ()).ok_or(Code::HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, address: u64, _flags: u32) {
        // One address for both, as everywhere with unified addresses.
        let span = ready()?.memory.addresses.find(address).filter(|span| !span.kind.on_device());
        span.ok_or(Code::INVALID_VALUE)?;
        device.set(address)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, address: u64) {
        let span = ready()?.memory.addresses.find(address);
        flags.set(match span.ok_or(Code::INVALID_VALUE)?.kind {
            Kind::Host { flags } | Kind::Registered { flags } => flags,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    fn cuMemAdvise(address: u64, bytes: usize, _advice: u32, _device: i32) {
        managed(address, bytes)
    }

    fn cuMemAdvise_v2(address: u64, bytes: usize, _advice: u32, _location: Location) {
        managed(address, bytes)
    }

    fn cuMemPrefetchAsync / cuMemPrefetchAsync_ptsz (address: u64, bytes: usize, _device: i32, stream: u64) {
        managed(address, bytes)?;
        submit(ready()?, stream, Operation::Nothing)
    }

    fn cuMemPrefetchAsync_v2 / cuMemPrefetchAsync_v2_ptsz (address: u64, bytes: usize, _to: Location, _flags: u32, stream: u64) {
        managed(address, bytes)?;
        submit(ready()?, stream, Operation::Nothing)
    }
}

fn allocate(place: Out<u64>, bytes: u64, managed: bool) -> Result<u64, Code> {
    let process = ready()?;
    let context = process.current()?;
    if place.is_null() || bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    process.inject_at_allocation()?;
    process.memory.allocate(bytes, managed, context.handle)
}

fn managed(address: u64, bytes: usize) -> Result<(), Code> {
    if ready()?.memory.addresses.covers(address, bytes as u64, true) {
        Ok(())
    } else {
        Err(Code::INVALID_VALUE)
    }
}

fn is_host(span: &Span) -> bool {
    matches!(span.kind, Kind::Host { .. })
}

fn pin(process: &Process, place: Out<*mut c_void>, bytes: usize, flags: u32) -> Result<(), Code> {
    let context = process.current()?;
    if bytes == 0 || place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let length = bytes.checked_next_multiple_of(HOST_PAGE).ok_or(Code::OUT_OF_MEMORY)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice takes nothing from anybody.
    let address =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE) };
    let address = address.map_err(|_| Code::OUT_OF_MEMORY)?;
    let (start, kind) = (address as u64, Kind::Host { flags });
    process.memory.addresses.insert(Span {
        start,
        length: bytes as u64,
        kind,
        context: context.handle,
        id: number(),
    });
    place.set(address)
}
