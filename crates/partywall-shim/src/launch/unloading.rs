//! Code that goes: the handle of one of its functions may be another function's right after, which must not find an executable graph of the
//! first one.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::c_void;

use super::squeezed;
use crate::hooks::{Hook, hooks};
use crate::sys::CUresult;

/// Makes hooks of functions that unload what their argument names.
macro_rules! unloading {
    ($($name:ident)*) => {
        mod real {
            use super::c_void;
            crate::real::functions! { $(fn $name(code: *mut c_void);)* }
        }

        $(
            unsafe extern "C" fn $name(code: *mut c_void) -> CUresult {
                squeezed::forget_functions();
                // SAFETY: the argument is the program's, passed on as it is.
                unsafe { real::$name(code) }
            }
        )*

        /// The hooks of this module.
        pub(crate) static HOOKS: &[Hook] = hooks![$($name),*];
    };
}

unloading! { cuModuleUnload cuLibraryUnload }
