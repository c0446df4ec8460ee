//! Memory of the host that the device can reach: costs nothing, and is counted.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{c_uint, c_void};

use partywall_core::memory_ledger::AllocationPath;
use partywall_core::units::Bytes;

use crate::hooks::{Hook, hooks};
use crate::sys::CUresult;

use super::abi::real;
use super::{Key, book, free, owner};

/// The hooks of this module.
pub(super) static HOOKS: &[Hook] = hooks![
    cuMemAllocHost,
    cuMemAllocHost_v2,
    cuMemHostAlloc,
    cuMemFreeHost,
    cuMemHostRegister,
    cuMemHostRegister_v2,
    cuMemHostUnregister,
];

/// Counts what the driver has given or registered.
fn noted(result: CUresult, bytes: usize, address: impl FnOnce() -> *mut c_void) -> CUresult {
    if result == CUresult::SUCCESS {
        let key = Key::Host(address() as u64);
        book().note(AllocationPath::HostRegistered, Bytes(bytes as u64), key, owner());
    }
    result
}

unsafe extern "C" fn cuMemAllocHost(address: *mut *mut c_void, bytes: c_uint) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemAllocHost(address, bytes) };
    // SAFETY: the driver has written to it.
    noted(result, bytes as usize, || unsafe { *address })
}

unsafe extern "C" fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemAllocHost_v2(address, bytes) };
    // SAFETY: the driver has written to it.
    noted(result, bytes, || unsafe { *address })
}

unsafe extern "C" fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemHostAlloc(address, bytes, flags) };
    // SAFETY: the driver has written to it.
    noted(result, bytes, || unsafe { *address })
}

unsafe extern "C" fn cuMemHostRegister(address: *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemHostRegister(address, bytes, flags) };
    noted(result, bytes, || address)
}

unsafe extern "C" fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemHostRegister_v2(address, bytes, flags) };
    noted(result, bytes, || address)
}

unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    free(Key::Host(address as u64), || unsafe { real::cuMemFreeHost(address) })
}

unsafe extern "C" fn cuMemHostUnregister(address: *mut c_void) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    free(Key::Host(address as u64), || unsafe { real::cuMemHostUnregister(address) })
}
