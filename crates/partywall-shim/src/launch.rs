//! Launches of kernels: counted in the page. Those of graphs are in [`crate::memory`], because graphs allocate.
//!
//! This is the way that must cost nothing: one addition to a counter, a question to the page, and the call. Variants for the default
//! stream of each thread count the same. Only where the node decides about launches there is more: those of best-effort
//! processes go through a turnstile ([`turnstile`]), their graphs in pieces ([`pieces`]), and latency-sensitive ones say that they are at
//! work ([`busy`]).
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use partywall_shim_api::page::Page;

use crate::copies::{LEGACY, PER_THREAD, Stream, meant};
use crate::hooks::{Hook, hooks};
use crate::process::page;
use crate::sys::{CUfunction, CUresult, CUstream};

pub(crate) mod busy;
pub(crate) mod changes;
mod chunks;
mod cut;
mod order;
mod pieces;
mod turnstile;
pub(crate) mod within;

pub(crate) use pieces::{forget, instantiated};

/// In a child after `fork`.
pub(crate) fn forked() {
    busy::forked();
    pieces::forked();
}

/// The process has registered, for the first time or again.
pub(crate) fn registered(page: &'static Page) {
    pieces::registered(page);
}

/// Launches a graph through `call`, which launches the executable graph that it is given: the program's, or pieces of it one by one.
#[inline]
pub(crate) fn launch_graph(
    exec: *mut c_void,
    stream: impl FnOnce() -> Stream,
    call: impl Fn(*mut c_void) -> CUresult,
) -> CUresult {
    if pieces::is_needed() {
        let call = |exec| call(ptr::with_exposed_provenance_mut(exec));
        return pieces::launch(exec.expose_provenance(), stream(), call);
    }
    if is_decided() { decided(stream, true, || call(exec)) } else { call(exec) }
}

/// Whether the node decides about launches.
#[inline]
fn is_decided() -> bool {
    page().node.chunks_max.load(Ordering::Relaxed) != 0
}

/// Launches through `call`, as the node decides. `is_whole`: a graph, of any number of kernels.
fn decided(stream: impl FnOnce() -> Stream, is_whole: bool, call: impl FnOnce() -> CUresult) -> CUresult {
    let page = page();
    if page.header.class.load(Ordering::Relaxed) == 0 {
        busy::launched(page, stream());
        call()
    } else {
        turnstile::pass(page, stream(), is_whole, call)
    }
}

/// The first fields of `CUlaunchConfig` in cuda.h.
#[repr(C)]
struct Configuration {
    sizes: [c_uint; 7],
    stream: CUstream,
}

/// Makes hooks that add one to a counter of the page and call the real function.
macro_rules! counted {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) in $stream:expr;)*) => {
        mod real {
            use super::{CUfunction, CUstream, c_int, c_uint, c_void};
            crate::real::functions! { $(fn $name($($argument: $type),*);)* }
        }

        $(
            #[allow(clippy::too_many_arguments, reason = "the prototype is the driver's")]
            unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
                /// The same function with the same arguments, so that the way of all others has no variables to make room for, which
                /// cost half a nanosecond.
                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments, reason = "the prototype is the driver's")]
                unsafe extern "C" fn in_turn($($argument: $type),*) -> CUresult {
                    // SAFETY: as below.
                    decided(|| $stream, false, || unsafe { real::$name($($argument),*) })
                }
                page().shim.launches.fetch_add(1, Ordering::Relaxed);
                if is_decided() {
                    // SAFETY: as below.
                    return unsafe { in_turn($($argument),*) };
                }
                // SAFETY: the arguments are the program's, passed on as they are.
                unsafe { real::$name($($argument),*) }
            }
        )*

        /// The hooks of this area.
        pub(crate) static HOOKS: &[Hook] = hooks![$($name),*];
    };
}

counted! {
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) in meant(stream, LEGACY);
    fn cuLaunchKernel_ptsz(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) in meant(stream, PER_THREAD);
    fn cuLaunchKernelEx(
        configuration: *const c_void, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) in
        // SAFETY: the program's configuration, which the driver is about to read.
        unsafe { configured(configuration, LEGACY) };
    fn cuLaunchKernelEx_ptsz(
        configuration: *const c_void, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) in
        // SAFETY: the program's configuration, which the driver is about to read.
        unsafe { configured(configuration, PER_THREAD) };
    fn cuLaunchCooperativeKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void,
    ) in meant(stream, LEGACY);
    fn cuLaunchCooperativeKernel_ptsz(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void,
    ) in meant(stream, PER_THREAD);
    fn cuLaunchCooperativeKernelMultiDevice(launches: *mut c_void, devices: c_uint, flags: c_uint) in LEGACY;
    fn cuLaunch(function: CUfunction) in LEGACY;
    fn cuLaunchGrid(function: CUfunction, width: c_int, height: c_int) in LEGACY;
    fn cuLaunchGridAsync(function: CUfunction, width: c_int, height: c_int, stream: CUstream) in meant(stream, LEGACY);
}

/// The stream of a configuration.
///
/// # Safety
/// As the driver's documentation says of configurations.
unsafe fn configured(configuration: *const c_void, default: Stream) -> Stream {
    // SAFETY: the caller's promise; the driver would read it, too.
    let configuration = unsafe { configuration.cast::<Configuration>().as_ref() };
    configuration.map_or(default, |configuration| meant(configuration.stream, default))
}
