//! Which function a program gets that asks for one: `cuGetProcAddress`, and `dlsym` on a handle.
//!
//! The real library is asked first, with everything the program said (CUDA version, flags). Only what it answers is
//! replaced: an address that is one of its exports becomes the hook of exactly that export, if there is one. No name
//! or suffix is ever guessed. An address that is no known export is given as it is and counts as unknown.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::forwarders::{COUNT, NAMES, index_of, target};
use crate::hooks::{self, Hook, hooks};
use crate::sys::CUresult;
use crate::{coverage, loader, process};

/// The hooks of this area.
pub(crate) static HOOKS: &[Hook] = hooks![cuGetProcAddress, cuGetProcAddress_v2];

mod real {
    use std::ffi::{c_char, c_int, c_void};

    crate::real::functions! {
        fn cuGetProcAddress(symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64);
        fn cuGetProcAddress_v2(
            symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int,
        );
    }
}

unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    process::start();
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuGetProcAddress(symbol, function, version, flags) };
    // SAFETY: the driver has accepted the same pointers.
    unsafe { answered(result, symbol, function) }
}

unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CUresult {
    process::start();
    // SAFETY: the arguments are the program's, passed on as they are.
    let result = unsafe { real::cuGetProcAddress_v2(symbol, function, version, flags, status) };
    // SAFETY: the driver has accepted the same pointers.
    unsafe { answered(result, symbol, function) }
}

/// Replaces what the driver has answered.
///
/// # Safety
/// With `result` a success, `symbol` and `function` must be what the driver was given.
unsafe fn answered(result: CUresult, symbol: *const c_char, function: *mut *mut c_void) -> CUresult {
    if result == CUresult::SUCCESS && !symbol.is_null() && !function.is_null() {
        // SAFETY: a name that the driver has read, and a place that it has written to.
        let (name, found) = unsafe { (CStr::from_ptr(symbol), &mut *function) };
        // Asked for "", the driver succeeds with null: a probe of whether this function works.
        if !found.is_null() {
            *found = instead_of(name, *found).cast_mut();
        }
    }
    result
}

/// What a program gets instead of a function of the real library that it has asked for by a base name.
fn instead_of(asked: &CStr, found: *const c_void) -> *const c_void {
    let exports = exports();
    let first = exports.partition_point(|(address, _)| *address < found as usize);
    let same = exports[first..].iter().take_while(|(address, _)| *address == found as usize);
    // Several exports can be one function. They then do the same, so any hook is as right as another; the one whose name
    // is nearest to what was asked for makes the better report.
    let best = same.map(|(_, index)| *index).min_by_key(|index| {
        let name = NAMES[*index];
        (hooks::find(name).is_none(), !name.to_bytes().starts_with(asked.to_bytes()), name.count_bytes())
    });
    let Some(index) = best else {
        coverage::mark_unknown(asked);
        return found;
    };
    coverage::mark(index);
    hooks::find(NAMES[index]).map_or(found, |hook| hook.function)
}

/// What a program gets that has looked `name` up in `handle` and found `found`, perhaps null.
pub(crate) fn looked_up(handle: *mut c_void, name: &CStr, found: *const c_void) -> *const c_void {
    let (Some(ourselves), library) = (loader::ourselves(), crate::real::library()) else { return found };
    let Some(library) = library else { return found };
    let is_one_of_them = if found.is_null() {
        // This library does not have what a newer driver has, nor any versions; who asks it by name gets what is there.
        is_ours(handle, ourselves)
    } else {
        // It may be somebody else's function that is only called like one of the driver.
        let owner = loader::owner(found).map(|object| object.base);
        owner == Some(ourselves.base) || owner == real_base()
    };
    if !is_one_of_them {
        return found;
    }
    let Some(index) = index_of(name) else {
        let newer = loader::symbol(library, name);
        if !newer.is_null() {
            coverage::mark_unknown(name);
        }
        return newer;
    };
    // What the real library does not have is not there: this also sets the loader's error.
    let Some(target) = target(index) else { return loader::symbol(library, name) };
    coverage::mark(index);
    target
}

/// Whether a handle is this library's.
fn is_ours(handle: *mut c_void, ourselves: loader::Object) -> bool {
    static OURS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut ours = OURS.load(Ordering::Acquire);
    if ours.is_null() {
        // Already loaded, so this only gives the handle. It is never closed: the library is never unloaded either.
        ours = loader::open(ourselves.path, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        OURS.store(ours, Ordering::Release);
    }
    ptr::eq(handle, ours)
}

/// Where the real library is loaded.
fn real_base() -> Option<*const c_void> {
    let &(address, _) = exports().first()?;
    loader::owner(address as *const c_void).map(|object| object.base)
}

/// The exports of the real library, sorted by address, with their numbers in the list.
fn exports() -> &'static [(usize, usize)] {
    static EXPORTS: AtomicPtr<Vec<(usize, usize)>> = AtomicPtr::new(ptr::null_mut());
    let known = EXPORTS.load(Ordering::Acquire);
    // SAFETY: only ever null, or a vector that was leaked below.
    if let Some(known) = unsafe { known.as_ref() } {
        return known;
    }
    let mut found = Vec::with_capacity(COUNT);
    found.extend(NAMES.iter().enumerate().filter_map(|(index, name)| {
        let address = crate::real::function(name)?;
        Some((address as usize, index))
    }));
    found.sort_unstable();
    let mine = Box::into_raw(Box::new(found));
    match EXPORTS.compare_exchange(ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked, so it lives as long as the process.
        Ok(_) => unsafe { &*mine },
        Err(earlier) => {
            // SAFETY: not published, so nobody else has it.
            drop(unsafe { Box::from_raw(mine) });
            // SAFETY: published by another thread, which has leaked it.
            unsafe { &*earlier }
        }
    }
}
