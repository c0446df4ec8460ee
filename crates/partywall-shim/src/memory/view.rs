//! What the program is told about memory: its tenant's quota as if it were the device.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{CStr, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::hooks::{Hook, hooks};
use crate::nvml;
use crate::process::{page, start};
use crate::sys::CUresult;

use super::abi::{CUdevice, real};
use super::{book, settle_all};

/// The hooks of this module.
pub(super) static HOOKS: &[Hook] =
    hooks![cuMemGetInfo, cuMemGetInfo_v2, cuDeviceTotalMem, cuDeviceTotalMem_v2];

/// Those of NVML.
pub(crate) static NVML_HOOKS: &[Hook] = hooks![nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2];

/// A tenant's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct View {
    total: u64,
    free: u64,
}

/// What a tenant with a quota, of which it uses some, sees of what the device has.
fn view(quota: u64, used: u64, device: View) -> View {
    let total = quota.min(device.total);
    // A quota may be more than what others have left over, where it is not guaranteed.
    View { total, free: quota.saturating_sub(used).min(device.free).min(total) }
}

/// What the program is told instead of what the device has.
fn seen(device: View) -> View {
    // Programs ask NVML before they use CUDA, or use nothing else.
    start();
    let node = &page().node;
    let quota = node.quota_bytes.load(Ordering::Relaxed);
    if quota == u64::MAX {
        return device;
    }
    settle_all();
    // The node adds up from time to time; what this process has taken since is in its own account.
    let used = node.tenant_used_bytes.load(Ordering::Relaxed).max(book().used_bytes().0);
    view(quota, used, device)
}

unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemGetInfo_v2(free, total) };
    // SAFETY: null, or places that the driver has written to.
    if let (CUresult::SUCCESS, Some(free), Some(total)) = unsafe { (result, free.as_mut(), total.as_mut()) } {
        let seen = seen(View { total: *total as u64, free: *free as u64 });
        (*free, *total) = (seen.free as usize, seen.total as usize);
    }
    result
}

unsafe extern "C" fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuMemGetInfo(free, total) };
    // SAFETY: null, or places that the driver has written to.
    if let (CUresult::SUCCESS, Some(free), Some(total)) = unsafe { (result, free.as_mut(), total.as_mut()) } {
        let seen = seen(View { total: u64::from(*total), free: u64::from(*free) });
        // At most what was there, so it fits.
        (*free, *total) = (seen.free as c_uint, seen.total as c_uint);
    }
    result
}

unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuDeviceTotalMem_v2(bytes, device) };
    // SAFETY: null, or a place that the driver has written to.
    if let (CUresult::SUCCESS, Some(bytes)) = unsafe { (result, bytes.as_mut()) } {
        let quota = page().node.quota_bytes.load(Ordering::Relaxed);
        *bytes = (*bytes).min(usize::try_from(quota).unwrap_or(usize::MAX));
    }
    result
}

unsafe extern "C" fn cuDeviceTotalMem(bytes: *mut c_uint, device: CUdevice) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuDeviceTotalMem(bytes, device) };
    // SAFETY: null, or a place that the driver has written to.
    if let (CUresult::SUCCESS, Some(bytes)) = unsafe { (result, bytes.as_mut()) } {
        let quota = page().node.quota_bytes.load(Ordering::Relaxed);
        *bytes = (*bytes).min(c_uint::try_from(quota).unwrap_or(c_uint::MAX));
    }
    result
}

/// `nvmlMemory_t`.
#[derive(Debug)]
#[repr(C)]
struct NvmlMemory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`; the version is the caller's.
#[derive(Debug)]
#[repr(C)]
struct NvmlMemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

const _: () = assert!(size_of::<NvmlMemory>() == 24 && size_of::<NvmlMemoryV2>() == 0x28);

/// `NVML_ERROR_FUNCTION_NOT_FOUND`.
const FUNCTION_NOT_FOUND: c_uint = 13;

/// Asks the real NVML for a device's memory.
///
/// # Safety
/// `name` is a function that takes a device and a `T`, and the arguments are what a program gives to it.
unsafe fn ask<T>(name: &CStr, function: &AtomicPtr<c_void>, device: *mut c_void, memory: *mut T) -> c_uint {
    let mut found = function.load(Ordering::Acquire);
    if found.is_null() {
        let Some(address) = nvml::function(name) else { return FUNCTION_NOT_FOUND };
        found = address.cast_mut();
        function.store(found, Ordering::Release);
    }
    type Function<T> = unsafe extern "C" fn(*mut c_void, *mut T) -> c_uint;
    // SAFETY: the caller says that the function of this name has this prototype.
    let call = unsafe { std::mem::transmute::<*mut c_void, Function<T>>(found) };
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { call(device, memory) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: *mut c_void, memory: *mut NvmlMemory) -> c_uint {
    static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: nvml.h has this prototype, and the arguments are the program's.
    let result = unsafe { ask(c"nvmlDeviceGetMemoryInfo", &FUNCTION, device, memory) };
    // SAFETY: null, or a place that NVML has written to.
    if let (0, Some(memory)) = unsafe { (result, memory.as_mut()) } {
        let View { total, free } = seen(View { total: memory.total, free: memory.free });
        if total != memory.total || free != memory.free {
            *memory = NvmlMemory { total, free, used: total - free };
        }
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, memory: *mut NvmlMemoryV2) -> c_uint {
    static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: nvml.h has this prototype, and the arguments are the program's.
    let result = unsafe { ask(c"nvmlDeviceGetMemoryInfo_v2", &FUNCTION, device, memory) };
    // SAFETY: null, or a place that NVML has written to.
    if let (0, Some(memory)) = unsafe { (result, memory.as_mut()) } {
        let View { total, free } = seen(View { total: memory.total, free: memory.free });
        if total != memory.total || free != memory.free {
            // What the driver reserves is not the tenant's.
            *memory = NvmlMemoryV2 { version: memory.version, total, reserved: 0, free, used: total - free };
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_sees_its_quota() {
        let device = View { total: 100, free: 60 };
        assert_eq!(view(40, 10, device), View { total: 40, free: 30 });
        assert_eq!(view(40, 50, device), View { total: 40, free: 0 });
        // Never more than there is.
        assert_eq!(view(90, 10, device), View { total: 90, free: 60 });
        assert_eq!(view(200, 0, View { total: 100, free: 100 }), View { total: 100, free: 100 });
        assert_eq!(view(0, 0, device), View { total: 0, free: 0 });
    }
}
