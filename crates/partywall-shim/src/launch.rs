//! Launches of kernels: counted in the page. Those of graphs are in [`crate::memory`], because graphs allocate.
//!
//! This is the way that must cost nothing: one addition to a counter, and the call. Variants for the default stream of
//! each thread count the same.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use crate::hooks::{Hook, hooks};
use crate::process::page;
use crate::sys::{CUfunction, CUresult, CUstream};

/// Makes hooks that add one to a counter of the page and call the real function.
macro_rules! counted {
    ($($counter:ident: fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        mod real {
            use super::{CUfunction, CUstream, c_int, c_uint, c_void};
            crate::real::functions! { $(fn $name($($argument: $type),*);)* }
        }

        $(
            #[allow(clippy::too_many_arguments, reason = "the prototype is the driver's")]
            unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
                page().shim.$counter.fetch_add(1, Ordering::Relaxed);
                // SAFETY: the arguments are the program's, passed on as they are.
                unsafe { real::$name($($argument),*) }
            }
        )*

        /// The hooks of this area.
        pub(crate) static HOOKS: &[Hook] = hooks![$($name),*];
    };
}

counted! {
    launches: fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
    launches: fn cuLaunchKernel_ptsz(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
    launches: fn cuLaunchKernelEx(
        configuration: *const c_void, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
    launches: fn cuLaunchKernelEx_ptsz(
        configuration: *const c_void, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
    launches: fn cuLaunchCooperativeKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void,
    );
    launches: fn cuLaunchCooperativeKernel_ptsz(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void,
    );
    launches: fn cuLaunchCooperativeKernelMultiDevice(launches: *mut c_void, devices: c_uint, flags: c_uint);
    launches: fn cuLaunch(function: CUfunction);
    launches: fn cuLaunchGrid(function: CUfunction, width: c_int, height: c_int);
    launches: fn cuLaunchGridAsync(function: CUfunction, width: c_int, height: c_int, stream: CUstream);
}
