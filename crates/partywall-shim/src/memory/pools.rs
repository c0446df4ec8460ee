//! Memory in stream order: pools, and what is allocated from them.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{c_uint, c_ulonglong, c_void};
use std::ptr;

use partywall_core::memory_ledger::AllocationPath;
use partywall_core::units::Bytes;

use crate::hooks::{Hook, hooks};
use crate::sys::CUresult;

use super::abi::{
    CAPTURING, CUdeviceptr, CUmemLocation, CUmemoryPool, CUstream, MemoryProperties, STREAM_PER_THREAD, real,
};
use super::{Key, Owner, Store, book, device, free, imports, relieve, reserved_by, settle};

/// The hooks of this module.
pub(super) static HOOKS: &[Hook] = hooks![
    cuMemAllocAsync,
    cuMemAllocAsync_ptsz,
    cuMemAllocFromPoolAsync,
    cuMemAllocFromPoolAsync_ptsz,
    cuMemFreeAsync,
    cuMemFreeAsync_ptsz,
    cuMemPoolCreate,
    cuMemPoolDestroy,
    cuMemPoolTrimTo,
    cuMemGetDefaultMemPool,
    cuMemGetMemPool,
    cuMemPoolImportFromShareableHandle,
    cuMemPoolImportPointer,
];

/// A pool's handle, as accounts name it.
pub(super) fn handle(pool: u64) -> CUmemoryPool {
    ptr::with_exposed_provenance_mut(pool as usize)
}

fn store(pool: CUmemoryPool) -> Store {
    Store::Pool(pool.expose_provenance() as u64)
}

/// Whether what is done on a stream becomes part of a graph, which has its own account.
fn is_capturing(stream: CUstream) -> bool {
    let mut status = 0;
    // SAFETY: the program's stream, and a place for the answer. Asking ends no capture.
    let result = unsafe { real::cuStreamIsCapturing(stream, &raw mut status) };
    result == CUresult::SUCCESS && status == CAPTURING
}

/// The pool from which allocations in a stream of the current context come.
fn current() -> Option<CUmemoryPool> {
    let mut pool = ptr::null_mut();
    // SAFETY: a place for the answer.
    let result = unsafe { real::cuDeviceGetMemPool(&raw mut pool, device()?) };
    (result == CUresult::SUCCESS).then_some(pool)
}

/// Allocates from a pool through `call`.
///
/// # Safety
/// `call` has the driver write an address to `address`, and `stream` is the program's.
unsafe fn allocate(
    pool: Option<CUmemoryPool>,
    address: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    // Without a pool the driver will say what is wrong.
    let Some(store) = pool.filter(|_| !is_capturing(stream)).map(store) else { return call() };
    let bytes = Bytes(bytes as u64);
    let room = book().stretch(store, bytes);
    let room = room.or_else(|refused| if relieve() { book().stretch(store, bytes) } else { Err(refused) });
    let Ok(room) = room else { return CUresult::OUT_OF_MEMORY };
    let result = call();
    if result != CUresult::SUCCESS {
        if let Some(room) = room {
            book().cancel(room);
        }
        return result;
    }
    // SAFETY: the driver has written to it.
    let key = Key::Device(unsafe { *address });
    let ticket = book().ticket();
    let Some(reserved) = reserved_by(store) else {
        // A pool that does not say what it has reserved counts by what is allocated.
        if let Some(room) = room {
            book().commit(room, key, Owner::Process);
        }
        return result;
    };
    if book().settle(store, ticket, reserved, room).is_ok() {
        let number = book().number(store);
        book().note(AllocationPath::Pool, bytes, key, Owner::Pool(number));
        return result;
    }
    // SAFETY: just allocated, and nobody has seen it. What it was given counts until the driver says that it is gone.
    unsafe {
        real::cuMemFreeAsync(*address, stream);
        real::cuMemPoolTrimTo(pool.unwrap_or_default(), 0);
    }
    settle(store);
    CUresult::OUT_OF_MEMORY
}

/// What a stream's number means to functions whose default stream is the thread's.
fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() { STREAM_PER_THREAD } else { stream }
}

unsafe extern "C" fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { allocate(current(), address, bytes, stream, || real::cuMemAllocAsync(address, bytes, stream)) }
}

unsafe extern "C" fn cuMemAllocAsync_ptsz(
    address: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let call = || {
        // SAFETY: the arguments are the program's, passed on as they are.
        unsafe { real::cuMemAllocAsync_ptsz(address, bytes, stream) }
    };
    // SAFETY: as above.
    unsafe { allocate(current(), address, bytes, per_thread(stream), call) }
}

unsafe extern "C" fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    let call = || {
        // SAFETY: the arguments are the program's, passed on as they are.
        unsafe { real::cuMemAllocFromPoolAsync(address, bytes, pool, stream) }
    };
    // SAFETY: as above.
    unsafe { allocate(Some(pool), address, bytes, stream, call) }
}

unsafe extern "C" fn cuMemAllocFromPoolAsync_ptsz(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    let call = || {
        // SAFETY: the arguments are the program's, passed on as they are.
        unsafe { real::cuMemAllocFromPoolAsync_ptsz(address, bytes, pool, stream) }
    };
    // SAFETY: as above.
    unsafe { allocate(Some(pool), address, bytes, per_thread(stream), call) }
}

unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    free(Key::Device(address), || unsafe { real::cuMemFreeAsync(address, stream) })
}

unsafe extern "C" fn cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    free(Key::Device(address), || unsafe { real::cuMemFreeAsync_ptsz(address, stream) })
}

unsafe extern "C" fn cuMemPoolCreate(
    pool: *mut CUmemoryPool,
    properties: *const MemoryProperties,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemPoolCreate(pool, properties) };
    if result == CUresult::SUCCESS {
        // SAFETY: the driver has read the one and written the other.
        let (pool, location) = unsafe { (*pool, (*properties).location) };
        book().made(store(pool), location.is_host());
    }
    result
}

unsafe extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    // After this the driver cannot be asked any more. What it keeps then is what is still allocated, or whose free has
    // not come to its turn.
    // SAFETY: the argument is the program's, passed on as it is.
    if !pool.is_null() && unsafe { real::cuMemPoolTrimTo(pool, 0) } == CUresult::SUCCESS {
        settle(store(pool));
    }
    // SAFETY: as above.
    let result = unsafe { real::cuMemPoolDestroy(pool) };
    if result == CUresult::SUCCESS {
        book().retire(store(pool));
    }
    result
}

unsafe extern "C" fn cuMemPoolTrimTo(pool: CUmemoryPool, bytes_to_keep: usize) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemPoolTrimTo(pool, bytes_to_keep) };
    if result == CUresult::SUCCESS {
        settle(store(pool));
    }
    result
}

/// Notes whose memory a pool is of that the program got without making it.
///
/// # Safety
/// With `result` a success, the driver has read `location` and written to `pool`.
unsafe fn got(result: CUresult, pool: *mut CUmemoryPool, location: *mut CUmemLocation) -> CUresult {
    if result == CUresult::SUCCESS {
        // SAFETY: the driver has read the one and written the other.
        let (pool, location) = unsafe { (*pool, *location) };
        book().introduce(store(pool), location.is_host());
    }
    result
}

unsafe extern "C" fn cuMemGetDefaultMemPool(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: c_uint,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { got(real::cuMemGetDefaultMemPool(pool, location, kind), pool, location) }
}

unsafe extern "C" fn cuMemGetMemPool(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: c_uint,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { got(real::cuMemGetMemPool(pool, location, kind), pool, location) }
}

unsafe extern "C" fn cuMemPoolImportFromShareableHandle(
    pool: *mut CUmemoryPool,
    handle: *mut c_void,
    kind: c_uint,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemPoolImportFromShareableHandle(pool, handle, kind, flags) };
    if result == CUresult::SUCCESS {
        // SAFETY: the driver has written to it. Nothing can be allocated from it; what is imported is charged by itself.
        book().made(store(unsafe { *pool }), true);
    }
    result
}

unsafe extern "C" fn cuMemPoolImportPointer(
    address: *mut CUdeviceptr,
    pool: CUmemoryPool,
    shared: *mut c_void,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemPoolImportPointer(address, pool, shared) };
    if result != CUresult::SUCCESS {
        return result;
    }
    // SAFETY: the driver has written to it.
    let address = unsafe { *address };
    if imports::enter(address, Owner::Process) {
        return result;
    }
    // SAFETY: just imported, and nobody has seen it.
    unsafe { real::cuMemFree_v2(address) };
    CUresult::OUT_OF_MEMORY
}
