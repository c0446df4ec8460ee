//! What the shared object exports. (A test program of its own: a library knows its folder by the path that loaded it first.)

use std::ffi::CString;

#[test]
fn the_library_exports_every_name_of_the_driver_api() {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libpartywall_softgpu.so");
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the library has no initialisers that need anything.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{path:?}");
    for function in partywall_shim_api::driver_api::cuda() {
        let name = CString::new(function.name).unwrap();
        // SAFETY: the handle is that of a loaded library, and the name ends with a zero byte.
        assert!(!unsafe { libc::dlsym(handle, name.as_ptr()) }.is_null(), "{name:?}");
    }
}
