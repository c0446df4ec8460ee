//! Memory that streams allocate and free in their order.

use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{AccessDescription, In, Location, Out, PoolProperties, Shareable};
use crate::api::{ready, stream, submit};
use crate::engine::graph::{Graph, kind};
use crate::engine::operation::Operation;
use crate::error::Code;
use crate::memory::addresses::{Kind, Span};
use crate::memory::physical::POSIX_FD;
use crate::memory::pool::Pool;
use crate::process::Process;

/// The properties of the pools that there are without asking.
pub(super) const PROPERTIES: PoolProperties = PoolProperties {
    kind: 1,
    handle_types: 0,
    location: Location { kind: 1, id: 0 },
    win32: 0,
    max_size: 0,
    usage: 0,
    reserved: [0; 54],
};

/// Attributes up to this number are 32 bits wide, the others 64.
const NARROW: u32 = 3;

api! {
    fn cuMemAllocAsync / cuMemAllocAsync_ptsz (place: Out<u64>, bytes: usize, on: u64) {
        let pool = ready()?.current_pool.load(Ordering::Acquire);
        allocate(place, bytes, pool, on)
    }

    fn cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz (place: Out<u64>, bytes: usize, pool: u64, on: u64) {
        allocate(place, bytes, pool, on)
    }

    fn cuMemFreeAsync / cuMemFreeAsync_ptsz (address: u64, on: u64) {
        let process = ready()?;
        let stream = stream(process, on)?;
        let span = process.memory.addresses.find(address).filter(|span| span.start == address);
        let span = span.ok_or(Code::INVALID_VALUE)?;
        if stream.capture().is_some() {
            // The memory is the graph's and stays until it goes.
            return stream.submit(process, kind::FREE, Operation::Nothing).map(|_| ());
        }
        match span.kind {
            Kind::Pool { pool } => {
                let pool = process.objects.pools.get(pool)?;
                process.memory.addresses.remove(address, |_| true);
                submit(process, on, Operation::GivePool { pool, address })
            }
            // Memory that no pool gave: freed once the stream is there.
            Kind::Device { .. } | Kind::Managed => {
                stream.synchronize(process)?;
                process.memory.free(address)
            }
            Kind::Imported { .. } => {
                stream.synchronize(process)?;
                super::ipc::close(process, address)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemPoolCreate(place: Out<u64>, properties: In<PoolProperties>) {
        let process = ready()?;
        let asked = properties.get()?;
        if asked.kind != 1 || asked.location.kind != 1 || asked.location.id != 0 || asked.handle_types & !POSIX_FD != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let pool = Pool::new(asked.max_size as u64, asked.handle_types, process.memory.arena, process.device);
        place.set(process.objects.pools.add(Arc::new(pool)))
    }

    fn cuMemPoolDestroy(pool: u64) {
        let process = ready()?;
        if pool == process.default_pool {
            return Err(Code::INVALID_VALUE);
        }
        process.quiesce()?;
        process.objects.pools.remove(pool)?.trim(0);
        let _ = process.current_pool.compare_exchange(pool, process.default_pool, Ordering::AcqRel, Ordering::Acquire);
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: u64, keep: usize) {
        let pool = ready()?.objects.pools.get(pool)?;
        pool.trim(keep as u64);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u64>) {
        let found = ready()?.objects.pools.get(pool)?.attribute(attribute)?;
        if attribute <= NARROW { value.cast::<u32>().set(found as u32) } else { value.set(found) }
    }

    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: Out<u64>) {
        let pool = ready()?.objects.pools.get(pool)?;
        let wanted = if attribute <= NARROW { u64::from(value.cast::<u32>().get()?) } else { value.get()? };
        pool.set_attribute(attribute, wanted)
    }

    fn cuMemPoolSetAccess(pool: u64, list: In<AccessDescription>, count: usize) {
        ready()?.objects.pools.get(pool)?;
        let own = |one: &AccessDescription| one.location.kind == 1 && one.location.id == 0 && one.flags == 3;
        if list.list(count)?.iter().all(own) { Ok(()) } else { Err(Code::INVALID_DEVICE) }
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: u64, location: In<Location>) {
        ready()?.objects.pools.get(pool)?;
        let location = location.get()?;
        flags.set(if location.kind == 1 && location.id == 0 { 3 } else { 0 })
    }

    fn cuMemGetDefaultMemPool(place: Out<u64>, location: In<Location>, kind: u32) {
        let process = ready()?;
        here(location.get()?, kind)?;
        place.set(process.default_pool)
    }

    fn cuMemGetMemPool(place: Out<u64>, location: In<Location>, kind: u32) {
        let process = ready()?;
        here(location.get()?, kind)?;
        place.set(process.current_pool.load(Ordering::Acquire))
    }

    fn cuMemSetMemPool(location: In<Location>, kind: u32, pool: u64) {
        let process = ready()?;
        here(location.get()?, kind)?;
        process.objects.pools.get(pool)?;
        process.current_pool.store(pool, Ordering::Release);
        Ok(())
    }

    fn cuMemPoolExportToShareableHandle(place: Out<i32>, pool: u64, kind: u32, flags: u64) {
        let process = ready()?;
        let pool = process.objects.pools.get(pool)?;
        if kind != POSIX_FD || flags != 0 || pool.handle_types & POSIX_FD == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let file = process.memory.arena.file().try_clone_to_owned().map_err(|_| Code::OPERATING_SYSTEM)?;
        place.set(file.into_raw_fd())
    }

    fn cuMemPoolImportFromShareableHandle(place: Out<u64>, file: u64, kind: u32, flags: u64) {
        let process = ready()?;
        let number = i32::try_from(file).map_err(|_| Code::INVALID_VALUE)?;
        if kind != POSIX_FD || flags != 0 || number < 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: borrowed for this call only, which fails where there is no such file.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::fs::fstat(file).map_err(|_| Code::INVALID_VALUE)?;
        // What is allocated in it comes with pointers of its own; the pool itself stays empty here.
        let pool = Pool::new(0, POSIX_FD, process.memory.arena, process.device);
        place.set(process.objects.pools.add(Arc::new(pool)))
    }

    fn cuMemPoolExportPointer(place: Out<Shareable>, address: u64) {
        let process = ready()?;
        let pooled = |span: &Span| matches!(span.kind, Kind::Pool { .. });
        let span = process.memory.addresses.find(address).filter(pooled).ok_or(Code::INVALID_VALUE)?;
        place.set(super::ipc::share(process, super::ipc::POOLED, &span))
    }

    fn cuMemPoolImportPointer(place: Out<u64>, pool: u64, data: In<Shareable>) {
        let process = ready()?;
        process.objects.pools.get(pool)?;
        place.set(super::ipc::open_memory(process, super::ipc::POOLED, &data.get()?, 0)?)
    }

    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: Out<u64>) {
        let process = super::devices::one(device)?;
        // Graphs allocate from the default pool: used and reserved, now and at most.
        let number = *[7_u32, 8, 5, 6].get(attribute as usize).ok_or(Code::INVALID_VALUE)?;
        value.set(process.objects.pools.get(process.default_pool)?.attribute(number)?)
    }
}

fn here(location: Location, kind: u32) -> Result<(), Code> {
    // Pinned memory of the only device.
    if location.kind == 1 && location.id == 0 && kind == 1 { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

fn allocate(place: Out<u64>, bytes: usize, pool: u64, on: u64) -> Result<(), Code> {
    let process = ready()?;
    let stream = stream(process, on)?;
    if place.is_null() || bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    process.inject_at_allocation()?;
    if let Some(mut capture) = stream.capture() {
        let address = for_graph(process, &capture.session.graph, bytes as u64)?;
        let node = capture.session.graph.add(kind::ALLOCATE, Operation::Nothing, &capture.last);
        capture.session.graph.nodes()[node].memory = (address, bytes as u64);
        capture.last = vec![node];
        stream.set_capture(Some(capture));
        return place.set(address);
    }
    let from = process.objects.pools.get(pool)?;
    place.set(process.memory.allocate_from(&from, pool, bytes as u64, stream.place.context)?)
}

/// Memory for a node of a graph. It is taken at once and lives as long as the graph and what was made ready from it.
pub(super) fn for_graph(process: &Process, graph: &Graph, bytes: u64) -> Result<u64, Code> {
    let pool = process.objects.pools.get(process.default_pool)?;
    let context = process.current()?.handle;
    let address = process.memory.allocate_from(&pool, process.default_pool, bytes, context)?;
    graph.own(pool, address);
    Ok(address)
}
