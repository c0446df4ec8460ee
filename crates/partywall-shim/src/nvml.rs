//! Lookups of functions of NVML: those with a hook are given the hook.
//!
//! `libnvidia-ml.so.1` is not replaced: the program opens the real one, and only what it is told about its memory and its
//! neighbours is changed on the way.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use partywall_shim_api::environment;

use crate::hooks::Hook;
use crate::loader;
use crate::process::variable;

/// The hooks of this area. Their functions are also exported under their own names, for programs that are linked against
/// NVML.
pub(crate) static HOOKS: &[Hook] = crate::memory::NVML_HOOKS;

/// The handle of the real library; null until it is opened.
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// What a program gets that has found `found` under a name of NVML.
pub(crate) fn looked_up(name: &CStr, found: *const c_void) -> *const c_void {
    if found.is_null() {
        return found;
    }
    HOOKS.iter().find(|hook| hook.name == name).map_or(found, |hook| hook.function)
}

/// A function of the real NVML; `None` where there is no such function or no such library.
pub(crate) fn function(name: &CStr) -> Option<*const c_void> {
    let handle = HANDLE.load(Ordering::Acquire);
    let handle = if handle.is_null() { open()? } else { handle };
    let found = loader::symbol(handle, name);
    (!found.is_null()).then_some(found)
}

/// As with the driver, threads that come here at the same time get the same handle.
fn open() -> Option<*mut c_void> {
    use std::os::unix::ffi::OsStringExt;

    let path =
        variable(environment::REAL_NVML).map_or_else(|| b"libnvidia-ml.so.1".to_vec(), OsStringExt::into_vec);
    let path = std::ffi::CString::new(path).ok()?;
    let handle = loader::open(&path, libc::RTLD_LAZY | libc::RTLD_LOCAL);
    if handle.is_null() {
        return None;
    }
    HANDLE.store(handle, Ordering::Release);
    Some(handle)
}
