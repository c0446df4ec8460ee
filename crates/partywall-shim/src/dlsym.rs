//! `dlsym` and `dlvsym`, exported in front of the loader's own.
//!
//! Whoever opens the driver by its absolute path asks its handle for functions and would never come here otherwise; and
//! who asks a handle of this library should not be given functions that the real one does not have. Lookups that depend
//! on who asks (`RTLD_NEXT`, `RTLD_DEFAULT`) are passed on by a jump, so that the loader sees the program as its caller.
//! No lookup of another name costs more than a comparison of its first letters, or allocates: allocators themselves look
//! up functions while they start.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use crate::{loader, nvml, resolve};

#[cfg_attr(target_arch = "aarch64", path = "dlsym/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "dlsym/x86_64.rs")]
mod exports;

/// `dlsym` on a handle.
unsafe extern "C" fn on_handle(handle: *mut c_void, name: *const c_char) -> *const c_void {
    if name.is_null() {
        return ptr::null();
    }
    // SAFETY: not null, so a C string, as the caller of `dlsym` promises.
    let name = unsafe { CStr::from_ptr(name) };
    substituted(handle, name, loader::symbol(handle, name))
}

/// `dlvsym` on a handle.
unsafe extern "C" fn on_handle_versioned(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *const c_void {
    if name.is_null() || version.is_null() {
        return ptr::null();
    }
    // SAFETY: not null, so C strings, as the caller of `dlvsym` promises.
    let (name, version) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(version)) };
    substituted(handle, name, loader::versioned(handle, name, version))
}

/// What a program gets that has found `found`: functions of the driver and of NVML become this library's, and so does
/// `dlsym` itself; everything else stays as it is.
fn substituted(handle: *mut c_void, name: &CStr, found: *const c_void) -> *const c_void {
    match name.to_bytes() {
        [b'c', b'u', b'A'..=b'Z', ..] => resolve::looked_up(handle, name, found),
        [b'n', b'v', b'm', b'l', ..] => nvml::looked_up(name, found),
        b"dlsym" if ptr::eq(found, loader::DLSYM.load(Ordering::Relaxed)) => exports::dlsym as *const c_void,
        b"dlvsym" if ptr::eq(found, loader::DLVSYM.load(Ordering::Relaxed)) => {
            exports::dlvsym as *const c_void
        }
        _ => found,
    }
}
