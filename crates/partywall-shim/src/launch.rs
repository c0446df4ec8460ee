//! Launches of kernels: counted in the page. Those of graphs are in [`crate::memory`], because graphs allocate.
//!
//! This is the way that must cost nothing: one addition to a counter, a question to the page, and the call. Variants for the default
//! stream of each thread count the same. Only where the node decides about launches there is more: those of best-effort
//! processes go through a turnstile ([`turnstile`]), their graphs in pieces ([`pieces`]), onto fewer SMs while they are squeezed ([`squeezed`]), and latency-sensitive ones say that they are at
//! work ([`busy`]).
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use partywall_shim_api::page::Page;

use crate::copies::{LEGACY, PER_THREAD, Stream, meant};
use crate::hooks::{Hook, hooks};
use crate::process::page;
use crate::sms;
use crate::sys::{CUfunction, CUresult, CUstream};

pub(crate) mod busy;
pub(crate) mod changes;
mod chunks;
mod cut;
mod order;
mod pieces;
mod squeezed;
mod turnstile;
pub(crate) mod unloading;
pub(crate) mod within;

pub(crate) use pieces::{forget, instantiated};
use squeezed::{Configuration, Into, Kind};
use turnstile::Way;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`, of launches and of nodes.
const COOPERATIVE: c_uint = 2;

/// In a child after `fork`.
pub(crate) fn forked() {
    busy::forked();
    pieces::forked();
    squeezed::forget_all();
}

/// The context of the squeezed set is about to go.
pub(crate) fn squeezed_resets() {
    squeezed::forget_all();
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
    let whole = || Way { is_whole: true, can_be_squeezed: false };
    if is_decided() { decided(stream, whole, |_| call(exec)) } else { call(exec) }
}

/// Whether the node decides about launches.
#[inline]
fn is_decided() -> bool {
    page().node.chunks_max.load(Ordering::Relaxed) != 0
}

/// Launches through `call`, as the node decides. It gets whether the process is squeezed.
fn decided(
    stream: impl FnOnce() -> Stream,
    way: impl FnOnce() -> Way,
    call: impl FnOnce(bool) -> CUresult,
) -> CUresult {
    let page = page();
    if page.header.class.load(Ordering::Relaxed) == 0 {
        busy::launched(page, stream());
        call(false)
    } else {
        turnstile::pass(page, stream(), way(), call)
    }
}

/// Launches a kernel through `call`, or `into` a stream of the squeezed set, as the node decides.
fn kernel(stream: Stream, into: Option<Into<'_>>, call: impl Fn() -> CUresult) -> CUresult {
    let way = || Way { is_whole: false, can_be_squeezed: sms::squeezed().is_some() };
    let goes = |is_squeezed| {
        if is_squeezed { squeezed::launch(page(), stream, into, &call) } else { call() }
    };
    decided(|| stream, way, goes)
}

/// The argument of a launch that says into which stream it goes; of one that goes as it is, any other.
trait Target: Copy {
    /// Where it is kept what the argument points to.
    type Room: Default;

    /// What launches of a function like this one have in common; `None` of one that cannot go into another stream.
    fn kind(self, function: impl Handle) -> Option<Kind>;

    /// The same with another stream.
    fn moved(self, stream: CUstream, room: &mut Self::Room) -> Self;
}

/// The argument of a launch that says what is launched.
trait Handle {
    fn number(self) -> usize;
}

impl Handle for CUfunction {
    fn number(self) -> usize {
        self.0.addr()
    }
}

impl Handle for *mut c_void {
    fn number(self) -> usize {
        self.addr()
    }
}

impl Target for CUstream {
    type Room = ();

    fn kind(self, function: impl Handle) -> Option<Kind> {
        Some(Kind::plain(function.number()))
    }

    fn moved(self, stream: CUstream, _room: &mut ()) -> Self {
        stream
    }
}

impl Target for *const c_void {
    type Room = Option<Configuration>;

    fn kind(self, function: impl Handle) -> Option<Kind> {
        // SAFETY: null or the program's configuration, which the driver is about to read.
        let configuration = unsafe { self.cast::<Configuration>().as_ref() }?;
        (!configuration.is_cooperative()).then(|| configuration.kind(function.number()))
    }

    fn moved(self, stream: CUstream, room: &mut Option<Configuration>) -> Self {
        // SAFETY: as above.
        let Some(configuration) = (unsafe { self.cast::<Configuration>().as_ref() }) else { return self };
        ptr::from_ref(room.insert(configuration.into_stream(stream))).cast()
    }
}

/// Makes targets of what says no stream.
macro_rules! immovable {
    ($($type:ty)*) => { $(
        impl Target for $type {
            type Room = ();

            fn kind(self, _function: impl Handle) -> Option<Kind> {
                None
            }

            fn moved(self, _stream: CUstream, _room: &mut ()) -> Self {
                self
            }
        }
    )* };
}

immovable! { CUfunction *mut c_void }

/// Makes hooks that add one to a counter of the page and call the real function.
macro_rules! counted {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) in $stream:expr, moves $function:ident by $target:ident;)*) => {
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
                    let call = || unsafe { real::$name($($argument),*) };
                    let launch = |other| {
                        let mut room = Default::default();
                        let $target = $target.moved(other, &mut room);
                        // SAFETY: as below, into a stream of ours.
                        unsafe { real::$name($($argument),*) }
                    };
                    let into = $target.kind($function).map(|kind| Into { launch: &launch, kind });
                    kernel($stream, into, call)
                }
                page().shim.launches.fetch_add(1, Ordering::Relaxed);
                sms::enter();
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
    ) in meant(stream, LEGACY), moves function by stream;
    fn cuLaunchKernel_ptsz(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) in meant(stream, PER_THREAD), moves function by stream;
    fn cuLaunchKernelEx(
        configuration: *const c_void, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) in
        // SAFETY: the program's configuration, which the driver is about to read.
        unsafe { configured(configuration, LEGACY) }, moves function by configuration;
    fn cuLaunchKernelEx_ptsz(
        configuration: *const c_void, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) in
        // SAFETY: the program's configuration, which the driver is about to read.
        unsafe { configured(configuration, PER_THREAD) }, moves function by configuration;
    fn cuLaunchCooperativeKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void,
    ) in meant(stream, LEGACY), moves function by function;
    fn cuLaunchCooperativeKernel_ptsz(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void,
    ) in meant(stream, PER_THREAD), moves function by function;
    fn cuLaunchCooperativeKernelMultiDevice(launches: *mut c_void, devices: c_uint, flags: c_uint) in LEGACY, moves launches by launches;
    fn cuLaunch(function: CUfunction) in LEGACY, moves function by function;
    fn cuLaunchGrid(function: CUfunction, width: c_int, height: c_int) in LEGACY, moves function by function;
    fn cuLaunchGridAsync(function: CUfunction, width: c_int, height: c_int, stream: CUstream) in meant(stream, LEGACY), moves function by stream;
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
