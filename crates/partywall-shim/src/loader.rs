//! The loader's own functions, behind the ones that this library exports under their names.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::elf;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The versions under which C libraries export `dlsym`, the newest first: since it is in libc itself, and before on x86-64
/// and on 64-bit Arm.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];

/// The next `dlsym` after this library's, once it is known.
pub(crate) static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The C library's `dlvsym`, once it is known.
pub(crate) static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Finds [`DLVSYM`]; never null.
pub(crate) extern "C" fn find_dlvsym() -> *const c_void {
    let found = elf::of_c_library(c"dlvsym");
    let found = if found.is_null() { nothing_versioned as *const c_void } else { found };
    DLVSYM.store(found.cast_mut(), Ordering::Release);
    found
}

/// Finds [`DLSYM`]: that of another preloaded library that comes after this one, else the C library's; never null.
pub(crate) extern "C" fn find_dlsym() -> *const c_void {
    let found = VERSIONS
        .into_iter()
        .map(|version| versioned(libc::RTLD_NEXT, c"dlsym", version))
        .find(|found| !found.is_null())
        .unwrap_or_else(|| elf::of_c_library(c"dlsym"));
    let found = if found.is_null() { nothing as *const c_void } else { found };
    DLSYM.store(found.cast_mut(), Ordering::Release);
    found
}

/// What takes the place of a `dlsym` that cannot be found.
unsafe extern "C" fn nothing(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// What takes the place of a `dlvsym` that cannot be found.
unsafe extern "C" fn nothing_versioned(
    _handle: *mut c_void,
    _name: *const c_char,
    _version: *const c_char,
) -> *mut c_void {
    std::ptr::null_mut()
}

/// The address of `name` in what `handle` stands for; null if it is not there, and the loader's error says so.
pub(crate) fn symbol(handle: *mut c_void, name: &CStr) -> *const c_void {
    let known = DLSYM.load(Ordering::Acquire).cast_const();
    let dlsym = if known.is_null() { find_dlsym() } else { known };
    // SAFETY: `find_dlsym` gives functions of this prototype only.
    let dlsym = unsafe { transmute::<*const c_void, Dlsym>(dlsym) };
    // SAFETY: the handle came from the loader, or from the program, which passes it to `dlsym` anyway.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// As [`symbol`], of one version.
pub(crate) fn versioned(handle: *mut c_void, name: &CStr, version: &CStr) -> *const c_void {
    let known = DLVSYM.load(Ordering::Acquire).cast_const();
    let dlvsym = if known.is_null() { find_dlvsym() } else { known };
    // SAFETY: `find_dlvsym` gives functions of this prototype only.
    let dlvsym = unsafe { transmute::<*const c_void, Dlvsym>(dlvsym) };
    // SAFETY: as in `symbol`.
    unsafe { dlvsym(handle, name.as_ptr(), version.as_ptr()) }
}

/// Opens a library for this library's own use. Null if the loader does not want to.
pub(crate) fn open(path: &CStr, flags: c_int) -> *mut c_void {
    // SAFETY: the initialisers of the library run. It is a driver that the program would have loaded itself.
    unsafe { libc::dlopen(path.as_ptr(), flags) }
}

/// An object in memory, as far as the loader tells about an address in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Object {
    /// Where it is loaded.
    pub(crate) base: *const c_void,
    /// What the loader calls it: a path.
    pub(crate) path: &'static CStr,
}

/// The object that an address lies in.
pub(crate) fn owner(address: *const c_void) -> Option<Object> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked about, and `info` is writable.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name is a C string that lives as long as the object; those asked about are never unloaded, or
    // the name is not kept.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Object { base: info.dli_fbase, path })
}

/// This library itself.
pub(crate) fn ourselves() -> Option<Object> {
    owner(open as *const c_void)
}

impl Object {
    pub(crate) fn file(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.to_bytes()))
    }
}
