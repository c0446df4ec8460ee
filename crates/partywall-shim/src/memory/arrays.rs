//! Arrays, with all their levels.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::c_uint;

use partywall_core::memory_ledger::AllocationPath;
use partywall_core::units::Bytes;

use crate::hooks::{Hook, hooks};
use crate::sys::CUresult;

use super::abi::{
    Array3dDescriptor, Array3dDescriptorV1, ArrayDescriptor, ArrayDescriptorV1, CUarray, CUmipmappedArray,
    real,
};
use super::{Key, allocate, free, size};

/// The hooks of this module.
pub(super) static HOOKS: &[Hook] = hooks![
    cuArrayCreate,
    cuArrayCreate_v2,
    cuArray3DCreate,
    cuArray3DCreate_v2,
    cuArrayDestroy,
    cuMipmappedArrayCreate,
    cuMipmappedArrayDestroy,
];

/// What a program describes. Without a description nothing is made.
///
/// # Safety
/// A pointer that the program would give to the driver.
unsafe fn described<T: Copy + Into<Array3dDescriptor>>(descriptor: *const T, levels: c_uint) -> Bytes {
    // SAFETY: null, or a description to read, as the driver's documentation says.
    unsafe { descriptor.as_ref() }
        .map_or(Bytes::ZERO, |&descriptor| size::of_array(descriptor.into(), levels))
}

unsafe extern "C" fn cuArrayCreate_v2(array: *mut CUarray, descriptor: *const ArrayDescriptor) -> CUresult {
    allocate(
        AllocationPath::Array,
        // SAFETY: the program's description.
        unsafe { described(descriptor, 1) },
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuArrayCreate_v2(array, descriptor) },
        // SAFETY: the driver has written to it.
        || Key::Array(unsafe { *array } as u64),
    )
}

unsafe extern "C" fn cuArray3DCreate_v2(
    array: *mut CUarray,
    descriptor: *const Array3dDescriptor,
) -> CUresult {
    allocate(
        AllocationPath::Array,
        // SAFETY: the program's description.
        unsafe { described(descriptor, 1) },
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuArray3DCreate_v2(array, descriptor) },
        // SAFETY: the driver has written to it.
        || Key::Array(unsafe { *array } as u64),
    )
}

unsafe extern "C" fn cuMipmappedArrayCreate(
    array: *mut CUmipmappedArray,
    descriptor: *const Array3dDescriptor,
    levels: c_uint,
) -> CUresult {
    allocate(
        AllocationPath::Array,
        // SAFETY: the program's description.
        unsafe { described(descriptor, levels) },
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuMipmappedArrayCreate(array, descriptor, levels) },
        // SAFETY: the driver has written to it.
        || Key::Mipmapped(unsafe { *array } as u64),
    )
}

unsafe extern "C" fn cuArrayDestroy(array: CUarray) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    free(Key::Array(array as u64), || unsafe { real::cuArrayDestroy(array) })
}

unsafe extern "C" fn cuMipmappedArrayDestroy(array: CUmipmappedArray) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    free(Key::Mipmapped(array as u64), || unsafe { real::cuMipmappedArrayDestroy(array) })
}

// Of before 2010, with descriptions of 32 bits.

unsafe extern "C" fn cuArrayCreate(array: *mut CUarray, descriptor: *const ArrayDescriptorV1) -> CUresult {
    allocate(
        AllocationPath::Array,
        // SAFETY: the program's description.
        unsafe { described(descriptor, 1) },
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuArrayCreate(array, descriptor) },
        // SAFETY: the driver has written to it.
        || Key::Array(unsafe { *array } as u64),
    )
}

unsafe extern "C" fn cuArray3DCreate(
    array: *mut CUarray,
    descriptor: *const Array3dDescriptorV1,
) -> CUresult {
    allocate(
        AllocationPath::Array,
        // SAFETY: the program's description.
        unsafe { described(descriptor, 1) },
        // SAFETY: the arguments are the program's, passed on as they are.
        || unsafe { real::cuArray3DCreate(array, descriptor) },
        // SAFETY: the driver has written to it.
        || Key::Array(unsafe { *array } as u64),
    )
}
