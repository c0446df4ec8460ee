//! Memory of others: through IPC handles, and from graphics libraries. Charged to whoever imports.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::c_uint;

use partywall_core::memory_ledger::AllocationPath;
use partywall_core::units::Bytes;

use crate::hooks::{Hook, hooks};
use crate::sys::CUresult;

use super::abi::{CUdeviceptr, CUexternalMemory, CUipcMemHandle, ExternalMemory, real};
use super::{Key, Owner, allocate, book, free, owner, reserve};

/// The hooks of this module.
pub(super) static HOOKS: &[Hook] = hooks![
    cuIpcOpenMemHandle,
    cuIpcOpenMemHandle_v2,
    cuIpcCloseMemHandle,
    cuImportExternalMemory,
    cuDestroyExternalMemory,
];

unsafe extern "C" fn cuIpcOpenMemHandle(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuIpcOpenMemHandle(address, handle, flags) };
    // SAFETY: what the driver has answered.
    unsafe { opened(result, address) }
}

unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuIpcOpenMemHandle_v2(address, handle, flags) };
    // SAFETY: what the driver has answered.
    unsafe { opened(result, address) }
}

/// Enters what was opened. How large it is can only be known now; it exists already, so that too much of it for a moment
/// harms nobody.
///
/// # Safety
/// With `result` a success, the driver has written to `address`.
unsafe fn opened(result: CUresult, address: *mut CUdeviceptr) -> CUresult {
    if result != CUresult::SUCCESS {
        return result;
    }
    // SAFETY: the driver has written to it.
    let address = unsafe { *address };
    if book().reopened(Key::Device(address)) {
        return result;
    }
    if enter(address, owner()) {
        return result;
    }
    // SAFETY: just opened, and nobody has seen it.
    unsafe { real::cuIpcCloseMemHandle(address) };
    CUresult::OUT_OF_MEMORY
}

/// Enters memory of another process that was imported at an address; whether the tenant has room for it.
pub(super) fn enter(address: CUdeviceptr, owner: Owner) -> bool {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: places for the answers. Where the driver does not know the address it gives none, and nothing is charged.
    let _ = unsafe { real::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    let Ok(reserved) = reserve(AllocationPath::Imported, Bytes(bytes as u64)) else { return false };
    book().commit(reserved, Key::Device(address), owner);
    true
}

unsafe extern "C" fn cuIpcCloseMemHandle(address: CUdeviceptr) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    free(Key::Device(address), || unsafe { real::cuIpcCloseMemHandle(address) })
}

unsafe extern "C" fn cuImportExternalMemory(
    memory: *mut CUexternalMemory,
    descriptor: *const ExternalMemory,
) -> CUresult {
    // SAFETY: null, or a description to read, as the driver's documentation says.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, |descriptor| descriptor.bytes);
    allocate(
        AllocationPath::Imported,
        Bytes(bytes),
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuImportExternalMemory(memory, descriptor) },
        // SAFETY: the driver has written to it.
        || Key::External(unsafe { *memory } as u64),
    )
}

unsafe extern "C" fn cuDestroyExternalMemory(memory: CUexternalMemory) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    free(Key::External(memory as u64), || unsafe { real::cuDestroyExternalMemory(memory) })
}
