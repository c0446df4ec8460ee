//! The real driver library: where it is, and its functions.
//!
//! It is opened by its path and for this library alone, so that the program's own lookups of `libcuda.so.1` go on ending
//! here. Threads that come here at the same time each open it; the loader counts and gives all of them the same handle.
//! So no lock of this library is held while the driver initialises itself.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::loader;
use crate::say::say;
use crate::sys::CUresult;

mod search;

/// The handle of the real library; null until it is opened, [`NONE`] where there is none.
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Marks that something was looked for and does not exist. No object has this address.
const NONE: *mut c_void = std::ptr::without_provenance_mut(1);

/// The real library's handle, if there is one; opens it the first time.
pub(crate) fn library() -> Option<*mut c_void> {
    let handle = HANDLE.load(Ordering::Acquire);
    let handle = if handle.is_null() { open() } else { handle };
    (handle != NONE).then_some(handle)
}

/// Whether it has been opened.
pub(crate) fn is_open() -> bool {
    let handle = HANDLE.load(Ordering::Acquire);
    !handle.is_null() && handle != NONE
}

fn open() -> *mut c_void {
    let handle = search::open().unwrap_or(NONE);
    let before = HANDLE.compare_exchange(std::ptr::null_mut(), handle, Ordering::AcqRel, Ordering::Acquire);
    match before {
        Ok(_) if handle == NONE => {
            say("no CUDA driver was found: set PARTYWALL_REAL_CUDA to the path of the real libcuda.so.1");
            NONE
        }
        Ok(_) => handle,
        Err(earlier) => earlier,
    }
}

/// A function of the real library.
pub(crate) fn function(name: &CStr) -> Option<*const c_void> {
    let found = loader::symbol(library()?, name);
    (!found.is_null()).then_some(found)
}

/// What a call to a function comes to that the real library does not have, or when there is no real library. It takes
/// whatever arguments there are: they are the caller's to clear away.
pub(crate) extern "C" fn absent() -> CUresult {
    if library().is_some() { CUresult::NOT_FOUND } else { CUresult::NO_DEVICE }
}

/// A function of the real library, found at its first use.
#[derive(Debug)]
pub(crate) struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; [`absent`]'s where the real library does not have it.
    pub(crate) fn address(&self) -> *const c_void {
        let address = self.address.load(Ordering::Acquire);
        if address.is_null() { self.find() } else { address }
    }

    #[cold]
    fn find(&self) -> *const c_void {
        let found = function(self.name).unwrap_or(absent as *const c_void);
        self.address.store(found.cast_mut(), Ordering::Release);
        found
    }
}

/// Makes Rust functions that call functions of the real library, with their names and prototypes as in cuda.h:
///
/// ```ignore
/// real::functions! {
///     fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
/// }
/// ```
///
/// All of them give a [`CUresult`]; `NOT_FOUND` where the driver does not have the function.
macro_rules! functions {
    ($( $(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?); )*) => { $(
        $(#[$about])*
        ///
        /// # Safety
        /// As the driver's documentation says for its arguments.
        #[allow(non_snake_case, reason = "the name is the driver's")]
        #[allow(clippy::too_many_arguments, reason = "the prototype is the driver's")]
        #[inline]
        pub(crate) unsafe fn $name($($argument: $type),*) -> $crate::sys::CUresult {
            // SAFETY: an identifier holds no zero byte, and one follows it.
            static SYMBOL: $crate::real::Symbol = $crate::real::Symbol::new(unsafe {
                ::std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
            });
            type Function = unsafe extern "C" fn($($type),*) -> $crate::sys::CUresult;
            // SAFETY: the driver's function of this name has this prototype, and what stands in for one that is missing
            // looks at no argument.
            let function = unsafe { ::std::mem::transmute::<*const ::std::ffi::c_void, Function>(SYMBOL.address()) };
            // SAFETY: the caller keeps to the driver's documentation.
            let result = unsafe { function($($argument),*) };
            if result.0 >= $crate::fault::FIRST {
                $crate::fault::returned(result);
            }
            result
        }
    )* };
}
pub(crate) use functions;
