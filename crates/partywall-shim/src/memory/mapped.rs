//! Virtual memory management.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{c_uint, c_ulonglong, c_void};

use partywall_core::memory_ledger::AllocationPath;
use partywall_core::units::Bytes;

use crate::hooks::{Hook, hooks};
use crate::sys::CUresult;

use super::abi::{CUdeviceptr, CUmemGenericAllocationHandle, MemoryProperties, real};
use super::{book, relieve, reserve};

/// The hooks of this module.
pub(super) static HOOKS: &[Hook] = hooks![
    cuMemCreate,
    cuMemRelease,
    cuMemMap,
    cuMemUnmap,
    cuMemImportFromShareableHandle,
    cuMemRetainAllocationHandle,
];

unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const MemoryProperties,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: null, or properties to read, as the driver's documentation says.
    let is_host = unsafe { properties.as_ref() }.is_some_and(|properties| properties.location.is_host());
    let size = Bytes(bytes as u64);
    let reserved = if is_host { Ok(None) } else { reserve(AllocationPath::Vmm, size).map(Some) };
    let Ok(reserved) = reserved else { return CUresult::OUT_OF_MEMORY };
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemCreate(handle, bytes, properties, flags) };
    if result == CUresult::SUCCESS {
        // SAFETY: the driver has written to it.
        book().created(reserved, size, unsafe { *handle });
    } else if let Some(reserved) = reserved {
        book().cancel(reserved);
    }
    result
}

unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    let releasing = book().release(handle);
    // SAFETY: the argument is the program's, passed on as it is.
    let result = unsafe { real::cuMemRelease(handle) };
    if let Some(releasing) = releasing {
        book().released(releasing, result == CUresult::SUCCESS);
    }
    result
}

unsafe extern "C" fn cuMemMap(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    let extent = Bytes((offset as u64).saturating_add(bytes as u64));
    let begun = book().map(handle, extent);
    let begun = begun.or_else(|refused| if relieve() { book().map(handle, extent) } else { Err(refused) });
    let Ok(begun) = begun else { return CUresult::OUT_OF_MEMORY };
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemMap(address, bytes, offset, handle, flags) };
    match begun {
        Some(begun) if result == CUresult::SUCCESS => book().mapped(begun, address, Bytes(bytes as u64)),
        Some(begun) => book().not_mapped(begun),
        None => {}
    }
    result
}

unsafe extern "C" fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CUresult {
    let unmapping = book().unmap(address, Bytes(bytes as u64));
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemUnmap(address, bytes) };
    book().unmapped(unmapping, result == CUresult::SUCCESS);
    result
}

unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    shared: *mut c_void,
    kind: c_uint,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemImportFromShareableHandle(handle, shared, kind) };
    if result == CUresult::SUCCESS {
        // SAFETY: the driver has written to it.
        book().imported(unsafe { *handle });
    }
    result
}

unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemRetainAllocationHandle(handle, address) };
    if result == CUresult::SUCCESS {
        // SAFETY: the driver has written to it.
        book().retained(unsafe { *handle }, address as u64);
    }
    result
}
