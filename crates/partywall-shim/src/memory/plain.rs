//! Memory that is allocated and freed by address: plain, pitched and managed.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::c_uint;

use partywall_core::memory_ledger::AllocationPath;
use partywall_core::units::Bytes;

use crate::hooks::{Hook, hooks};
use crate::sys::CUresult;

use super::abi::{CUdeviceptr, real};
use super::{Key, allocate, book, free, owner, reserve};

/// The hooks of this module.
pub(super) static HOOKS: &[Hook] = hooks![
    cuMemAlloc,
    cuMemAlloc_v2,
    cuMemAllocPitch,
    cuMemAllocPitch_v2,
    cuMemAllocManaged,
    cuMemFree,
    cuMemFree_v2,
];

/// Rows of pitched memory begin at multiples of this. Estimate, only until the driver has said its pitch: devices since
/// 2010 report 512 as the pitch alignment of textures.
const PITCH: u64 = 512;

unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> CUresult {
    allocate(
        AllocationPath::CuMemAlloc,
        Bytes(bytes as u64),
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuMemAlloc_v2(address, bytes) },
        // SAFETY: the driver has written to it.
        || Key::Device(unsafe { *address }),
    )
}

unsafe extern "C" fn cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint) -> CUresult {
    allocate(
        AllocationPath::Managed,
        Bytes(bytes as u64),
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuMemAllocManaged(address, bytes, flags) },
        // SAFETY: the driver has written to it.
        || Key::Device(unsafe { *address }),
    )
}

/// Calls the driver for pitched memory; `given` tells the address and the pitch that it chose.
fn allocate_pitched(
    width: u64,
    height: u64,
    call: impl FnOnce() -> CUresult,
    given: impl FnOnce() -> (CUdeviceptr, u64),
) -> CUresult {
    let row = width.checked_next_multiple_of(PITCH).unwrap_or(u64::MAX);
    let Ok(reserved) = reserve(AllocationPath::Pitch, Bytes(row.saturating_mul(height))) else {
        return CUresult::OUT_OF_MEMORY;
    };
    let result = call();
    if result != CUresult::SUCCESS {
        book().cancel(reserved);
        return result;
    }
    let (address, pitch) = given();
    let bytes = Bytes(pitch.saturating_mul(height));
    if book().commit_as(reserved, bytes, Key::Device(address), owner()).is_err() {
        // SAFETY: just allocated, and nobody has seen it.
        unsafe { real::cuMemFree_v2(address) };
        return CUresult::OUT_OF_MEMORY;
    }
    result
}

unsafe extern "C" fn cuMemAllocPitch_v2(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element_bytes: c_uint,
) -> CUresult {
    allocate_pitched(
        width as u64,
        height as u64,
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuMemAllocPitch_v2(address, pitch, width, height, element_bytes) },
        // SAFETY: the driver has written to both.
        || unsafe { (*address, *pitch as u64) },
    )
}

unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    free(Key::Device(address), || unsafe { real::cuMemFree_v2(address) })
}

// Of before 2010, with addresses of 32 bits.

unsafe extern "C" fn cuMemAlloc(address: *mut c_uint, bytes: c_uint) -> CUresult {
    allocate(
        AllocationPath::CuMemAlloc,
        Bytes(bytes.into()),
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuMemAlloc(address, bytes) },
        // SAFETY: the driver has written to it.
        || Key::Device(unsafe { *address }.into()),
    )
}

unsafe extern "C" fn cuMemAllocPitch(
    address: *mut c_uint,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element_bytes: c_uint,
) -> CUresult {
    allocate_pitched(
        width.into(),
        height.into(),
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuMemAllocPitch(address, pitch, width, height, element_bytes) },
        // SAFETY: the driver has written to both.
        || unsafe { ((*address).into(), (*pitch).into()) },
    )
}

unsafe extern "C" fn cuMemFree(address: c_uint) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    free(Key::Device(address.into()), || unsafe { real::cuMemFree(address) })
}
