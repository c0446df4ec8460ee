//! Code on its way to the driver, in a tenant whose memory is a colored arena: PTX is rewritten first, so that its accesses go there.
//!
//! Which arena follows from the environment ([`environment::ARENA`]). Without one, all of this passes everything on. PTX comes here from
//! NVRTC and from whoever generates it; what cannot be rewritten is refused with the reasons, and never loaded.
//!
//! Compiled code cannot be rewritten. What bears the arena's mark was rewritten before it was compiled (`partywall vram ptxas`). Other code is
//! loaded, because runtimes load all they have, used or not; but no function of it is given out, and the tenant counts as not guaranteed.
//! Linked into other code it is refused, which would bear the mark for both. Not seen is what the CUDA runtime loads through the private
//! tables of the driver.
#![allow(non_snake_case, reason = "the names are the driver's")]
#![allow(clippy::too_many_arguments, reason = "the prototypes are the driver's")]

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use partywall_shim_api::environment;
use partywall_vram::ptx::rewrite::{Options, rewrite};

use crate::hooks::{Hook, hooks};
use crate::process::variable;
use crate::say::say;
use crate::sys::CUresult;
use crate::{coverage, process};

use image::Image;

mod image;

/// The hooks of this area.
pub(crate) static HOOKS: &[Hook] = hooks![
    cuModuleLoad,
    cuModuleLoadData,
    cuModuleLoadDataEx,
    cuModuleLoadFatBinary,
    cuLibraryLoadData,
    cuLibraryLoadFromFile,
    cuLinkAddData,
    cuLinkAddData_v2,
    cuLinkAddFile,
    cuLinkAddFile_v2,
    cuModuleGetFunction,
    cuModuleEnumerateFunctions,
    cuLibraryGetKernel,
    cuLibraryGetModule,
    cuLibraryGetUnifiedFunction,
    cuLibraryEnumerateKernels,
];

type Handle = *mut c_void;

mod real {
    use std::ffi::{c_char, c_int, c_uint, c_void};

    use super::Handle;

    crate::real::functions! {
        fn cuModuleLoad(module: *mut Handle, path: *const c_char);
        fn cuModuleLoadData(module: *mut Handle, image: *const c_void);
        fn cuModuleLoadDataEx(
            module: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void,
        );
        fn cuModuleLoadFatBinary(module: *mut Handle, image: *const c_void);
        fn cuLibraryLoadData(
            library: *mut Handle, image: *const c_void, options: *mut c_int, values: *mut *mut c_void, count: c_uint,
            of_library: *mut c_int, their_values: *mut *mut c_void, their_count: c_uint,
        );
        fn cuLibraryLoadFromFile(
            library: *mut Handle, path: *const c_char, options: *mut c_int, values: *mut *mut c_void, count: c_uint,
            of_library: *mut c_int, their_values: *mut *mut c_void, their_count: c_uint,
        );
        fn cuLinkAddData(
            link: Handle, kind: c_int, data: *mut c_void, size: usize, name: *const c_char, count: c_uint, options: *mut c_int,
            values: *mut *mut c_void,
        );
        fn cuLinkAddData_v2(
            link: Handle, kind: c_int, data: *mut c_void, size: usize, name: *const c_char, count: c_uint, options: *mut c_int,
            values: *mut *mut c_void,
        );
        fn cuLinkAddFile(
            link: Handle, kind: c_int, path: *const c_char, count: c_uint, options: *mut c_int, values: *mut *mut c_void,
        );
        fn cuLinkAddFile_v2(
            link: Handle, kind: c_int, path: *const c_char, count: c_uint, options: *mut c_int, values: *mut *mut c_void,
        );
        fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
        fn cuModuleEnumerateFunctions(functions: *mut Handle, room: c_uint, module: Handle);
        fn cuLibraryGetKernel(kernel: *mut Handle, library: Handle, name: *const c_char);
        fn cuLibraryGetModule(module: *mut Handle, library: Handle);
        fn cuLibraryGetUnifiedFunction(function: *mut Handle, library: Handle, name: *const c_char);
        fn cuLibraryEnumerateKernels(kernels: *mut Handle, room: c_uint, library: Handle);
    }
}

/// What the environment says; an error where that is not understood.
fn arena() -> Option<&'static Result<Options, ()>> {
    static ARENA: OnceLock<Option<Result<Options, ()>>> = OnceLock::new();
    let read = || {
        let text = variable(environment::ARENA)?;
        let found = text.to_str().map_or(Err("it is not text".to_owned()), |text| {
            text.parse().map_err(|error: partywall_vram::ptx::order::OrderError| error.to_string())
        });
        Some(found.map_err(|why| say(&format!("{}: {why}; no code is loaded", environment::ARENA))))
    };
    ARENA.get_or_init(read).as_ref()
}

type Handles = Mutex<BTreeSet<usize>>;

/// Modules and libraries whose code is not rewritten. A handle that is given out anew is entered or taken out anew.
///
/// Null until there is one. What it points to is leaked: in a child after `fork` its lock may be held by a thread that does not exist there.
static FOREIGN: AtomicPtr<Handles> = AtomicPtr::new(ptr::null_mut());

fn foreign() -> MutexGuard<'static, BTreeSet<usize>> {
    // SAFETY: null, or leaked below.
    let handles = unsafe { FOREIGN.load(Ordering::Acquire).as_ref() }.unwrap_or_else(|| {
        let new = Box::into_raw(Box::new(Handles::default()));
        match FOREIGN.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked from a box, and published now.
            Ok(_) => unsafe { &*new },
            Err(earlier) => {
                // SAFETY: not published, so nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: not null, so another thread has leaked it.
                unsafe { &*earlier }
            }
        }
    });
    handles.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a child after `fork`: no handle of its parent is of use there.
pub(crate) fn forked() {
    FOREIGN.store(ptr::null_mut(), Ordering::Release);
}

/// What is to be loaded.
enum Loaded {
    /// Text that takes the place of the program's.
    Rewritten(CString),
    /// The program's, as it is.
    Marked,
    /// The program's, of which no function is given out.
    Foreign,
}

/// What becomes of code before it is loaded; `None` where there is no arena.
fn before(find: impl FnOnce() -> Option<Image>) -> Option<Result<Loaded, CUresult>> {
    let Ok(options) = arena()? else { return Some(Err(CUresult::NOT_SUPPORTED)) };
    process::start();
    // What cannot be read is for the driver to judge.
    Some(match find()? {
        Image::Text(text) => rewritten(&text, options).map(Loaded::Rewritten),
        Image::Compiled(bytes) if options.is_on(&bytes) => Ok(Loaded::Marked),
        Image::Compiled(_) | Image::Archive => Ok(Loaded::Foreign),
    })
}

fn rewritten(text: &str, options: &Options) -> Result<CString, CUresult> {
    match rewrite(text, options) {
        Ok(rewritten) => CString::new(rewritten.text).map_err(|_| CUresult::INVALID_PTX),
        Err(error) => {
            say(&format!("PTX is not loaded, because it cannot be rewritten:\n{error}"));
            Err(CUresult::INVALID_PTX)
        }
    }
}

/// Loads what `call` loads, given the text to take, or null for the program's own; `place` is where it has written the handle.
fn load(
    place: *mut Handle,
    find: impl FnOnce() -> Option<Image>,
    call: impl FnOnce(*const c_void) -> CUresult,
) -> CUresult {
    let loaded = match before(find) {
        None => return call(ptr::null()),
        Some(Err(refused)) => return refused,
        Some(Ok(loaded)) => loaded,
    };
    let result = match &loaded {
        Loaded::Rewritten(text) => call(text.as_ptr().cast()),
        Loaded::Marked | Loaded::Foreign => call(ptr::null()),
    };
    if result == CUresult::SUCCESS && !place.is_null() {
        // SAFETY: the driver has written a handle there.
        let handle = unsafe { *place } as usize;
        if matches!(loaded, Loaded::Foreign) {
            foreign().insert(handle);
            coverage::mark_unknown(NOT_REWRITTEN);
        } else {
            foreign().remove(&handle);
        }
    }
    result
}

/// What is told of a tenant that has other code, in the place of a function's name.
const NOT_REWRITTEN: &CStr = c"(compiled code that is not rewritten for the arena)";

unsafe extern "C" fn cuModuleLoad(module: *mut Handle, path: *const c_char) -> CUresult {
    let call = |text: *const c_void| {
        // SAFETY: the program's arguments, or text of ours that lives until the call is through.
        unsafe {
            if text.is_null() {
                real::cuModuleLoad(module, path)
            } else {
                real::cuModuleLoadData(module, text)
            }
        }
    };
    // SAFETY: a path as the driver takes it.
    load(module, || unsafe { image::of_file(path) }, call)
}

unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> CUresult {
    let call = |text: *const c_void| {
        // SAFETY: the program's arguments, or text of ours that lives until the call is through.
        unsafe { real::cuModuleLoadData(module, if text.is_null() { image } else { text }) }
    };
    // SAFETY: an image as the driver takes it.
    load(module, || unsafe { image::at(image) }, call)
}

unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> CUresult {
    let call = |text: *const c_void| {
        let image = if text.is_null() { image } else { text };
        // SAFETY: the program's arguments, or text of ours that lives until the call is through.
        unsafe { real::cuModuleLoadDataEx(module, image, count, options, values) }
    };
    // SAFETY: an image as the driver takes it.
    load(module, || unsafe { image::at(image) }, call)
}

unsafe extern "C" fn cuModuleLoadFatBinary(module: *mut Handle, image: *const c_void) -> CUresult {
    let call = |text: *const c_void| {
        // SAFETY: the program's arguments, or text of ours that lives until the call is through.
        unsafe {
            if text.is_null() {
                real::cuModuleLoadFatBinary(module, image)
            } else {
                real::cuModuleLoadData(module, text)
            }
        }
    };
    // SAFETY: an image as the driver takes it.
    load(module, || unsafe { image::at(image) }, call)
}

unsafe extern "C" fn cuLibraryLoadData(
    library: *mut Handle,
    image: *const c_void,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
    of_library: *mut c_int,
    their_values: *mut *mut c_void,
    their_count: c_uint,
) -> CUresult {
    let call = |text: *const c_void| {
        let image = if text.is_null() { image } else { text };
        // SAFETY: the program's arguments, or text of ours that lives until the call is through.
        unsafe {
            real::cuLibraryLoadData(
                library,
                image,
                options,
                values,
                count,
                of_library,
                their_values,
                their_count,
            )
        }
    };
    // SAFETY: an image as the driver takes it.
    load(library, || unsafe { image::at(image) }, call)
}

unsafe extern "C" fn cuLibraryLoadFromFile(
    library: *mut Handle,
    path: *const c_char,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
    of_library: *mut c_int,
    their_values: *mut *mut c_void,
    their_count: c_uint,
) -> CUresult {
    let call = |text: *const c_void| {
        // SAFETY: the program's arguments, or text of ours that lives until the call is through.
        unsafe {
            if text.is_null() {
                real::cuLibraryLoadFromFile(
                    library,
                    path,
                    options,
                    values,
                    count,
                    of_library,
                    their_values,
                    their_count,
                )
            } else {
                real::cuLibraryLoadData(
                    library,
                    text,
                    options,
                    values,
                    count,
                    of_library,
                    their_values,
                    their_count,
                )
            }
        }
    };
    // SAFETY: a path as the driver takes it.
    load(library, || unsafe { image::of_file(path) }, call)
}

/// `CU_JIT_INPUT_PTX`.
const PTX: c_int = 1;

/// What is linked: text that takes the place of the program's, or `None` where there is no arena.
fn linked(kind: c_int, find: impl FnOnce() -> Option<Image>) -> Result<Option<CString>, CUresult> {
    match before(find) {
        None => Ok(None),
        Some(Ok(Loaded::Rewritten(text))) if kind == PTX => Ok(Some(text)),
        Some(Ok(_)) => {
            say("compiled code cannot be linked in a colored arena: give the linker PTX, which is rewritten");
            Err(CUresult::NOT_SUPPORTED)
        }
        Some(Err(refused)) => Err(refused),
    }
}

/// The two versions of the linker's functions, which differ in what their options mean alone.
macro_rules! linking {
    ($data:ident, $file:ident) => {
        unsafe extern "C" fn $data(
            link: Handle,
            kind: c_int,
            data: *mut c_void,
            size: usize,
            name: *const c_char,
            count: c_uint,
            options: *mut c_int,
            values: *mut *mut c_void,
        ) -> CUresult {
            // SAFETY: so many bytes, as the driver takes them.
            let text = match linked(kind, || unsafe { image::of_bytes(data, size) }) {
                Ok(text) => text,
                Err(refused) => return refused,
            };
            let (data, size) = text.as_ref().map_or((data, size), |text| {
                (text.as_ptr().cast_mut().cast(), text.as_bytes_with_nul().len())
            });
            // SAFETY: the program's arguments, or text of ours that lives until the call is through.
            unsafe { real::$data(link, kind, data, size, name, count, options, values) }
        }

        unsafe extern "C" fn $file(
            link: Handle,
            kind: c_int,
            path: *const c_char,
            count: c_uint,
            options: *mut c_int,
            values: *mut *mut c_void,
        ) -> CUresult {
            // SAFETY: a path as the driver takes it.
            let text = match linked(kind, || unsafe { image::of_file(path) }) {
                Ok(text) => text,
                Err(refused) => return refused,
            };
            let Some(text) = text else {
                // SAFETY: the program's arguments.
                return unsafe { real::$file(link, kind, path, count, options, values) };
            };
            let (data, size) = (text.as_ptr().cast_mut().cast(), text.as_bytes_with_nul().len());
            // SAFETY: the program's arguments, and text of ours that lives until the call is through.
            unsafe { real::$data(link, kind, data, size, path, count, options, values) }
        }
    };
}
linking!(cuLinkAddData, cuLinkAddFile);
linking!(cuLinkAddData_v2, cuLinkAddFile_v2);

/// Whether functions of a module or library may be given out; says why not. `name` is that of the function, or null.
fn may_give(owner: Handle, name: *const c_char) -> bool {
    if arena().is_none() || !foreign().contains(&(owner as usize)) {
        return true;
    }
    let named = if name.is_null() {
        "functions".to_owned()
    } else {
        // SAFETY: a name as the driver takes it.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    };
    say(&format!(
        "{named}: refused, because its compiled code is not rewritten for the arena; load PTX, or compile with `partywall vram ptxas`"
    ));
    false
}

/// Hooks that give out functions.
macro_rules! giving {
    ($($function:ident($place:ident, $([$before:ident: $kind:ty],)? owner $(, $name:ident)?);)*) => { $(
        unsafe extern "C" fn $function(
            $place: *mut Handle, $($before: $kind,)? owner: Handle $(, $name: *const c_char)?
        ) -> CUresult {
            #[allow(unused_mut, unused_assignments, reason = "not all have a name")]
            let mut named = ptr::null();
            $(named = $name;)?
            if !may_give(owner, named) {
                return CUresult::NOT_SUPPORTED;
            }
            // SAFETY: the program's arguments.
            unsafe { real::$function($place, $($before,)? owner $(, $name)?) }
        }
    )* };
}
giving! {
    cuModuleGetFunction(function, owner, name);
    cuModuleEnumerateFunctions(functions, [room: c_uint], owner);
    cuLibraryGetKernel(kernel, owner, name);
    cuLibraryGetUnifiedFunction(function, owner, name);
    cuLibraryEnumerateKernels(kernels, [room: c_uint], owner);
}

unsafe extern "C" fn cuLibraryGetModule(module: *mut Handle, library: Handle) -> CUresult {
    // SAFETY: the program's arguments.
    let result = unsafe { real::cuLibraryGetModule(module, library) };
    if result == CUresult::SUCCESS && arena().is_some() && !module.is_null() {
        // SAFETY: the driver has written a handle there.
        let module = unsafe { *module } as usize;
        let mut foreign = foreign();
        if foreign.contains(&(library as usize)) {
            foreign.insert(module)
        } else {
            foreign.remove(&module)
        };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_the_one_that_compilers_read() {
        assert_eq!(environment::ARENA, partywall_vram::ptx::order::VARIABLE);
    }
}
