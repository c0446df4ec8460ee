//! Confines a process to the SMs of its tenant.
//!
//! # Problem
//!
//! The node divides the GPU's SMs among tenants. A program knows nothing of that, and neither do the libraries in it, some of which
//! carry their own copy of the CUDA runtime. Every kernel has to stay on the tenant's SMs, whoever launches it, in whatever
//! stream and thread, as part of a graph or not, and none of these calls should become slower.
//!
//! # Approach
//!
//! A green context over the tenant's SMs is a view of the primary context: memory, modules and events are the same in both. It can
//! be made current like any context, and the streams that are made then, and the default streams too, are its own: what runs in
//! them stays on its SMs. So there is nothing to do at a launch. Wherever the program makes the primary context current, the library
//! makes the green context current, and wherever the driver would name the green context, the program is told the primary one.
//!
//! What has to be repaired: graphs are launched by the driver in a stream of the primary context (seen on an H200 with CUDA 13.0,
//! November 2026), so waiting for the current context alone returns too early; the library waits for both.
//!
//! Not every way to make a context current is a call that this library sees: in a PyTorch process the primary context was current again where
//! streams were made and kernels launched (CUDA 13.0), and nothing was confined. So both make the green context current first ([`enter`]).
//!
//! What is not repaired: in a green context the default stream and streams that block do not wait for each other, and the driver refuses the
//! handle of the per-thread default stream. The first is said on standard error where a program makes such a stream.
//!
//! Programs are told the device's number of SMs. When they were told the tenant's while the driver went by another one, because they were not
//! confined, cuDNN computed wrong results, NaN among them, with 48, 84, 92 and 104 of 132, and nobody noticed anything with 64: too
//! much to risk for the sake of cooperative kernels of a block for each SM, which the driver refuses with an error that says so. Who asks for the
//! SMs of the context (`cuCtxGetDevResource`) is told the tenant's.
//!
//! A best-effort tenant may have a second set besides, the *squeezed* one, a part of the first: another green context, which is never made
//! current for the program. What is launched onto it is [`crate::launch`]'s business.
//!
//! A context that a program makes for itself is no view of the primary one and cannot be confined. A program that divides SMs itself
//! could leave its own. Both are refused to confined tenants, with a line on standard error.
//!
//! # Scenarios
//!
//! - S1: a process without a set of SMs: every call is the driver's, after one load.
//! - S2: the first retained primary context gets its green context before the program sees it; threads that retain it at the same
//!   time end up with one.
//! - S3: the driver cannot make the green context, or divides the SMs otherwise than the node found: the primary context is
//!   refused, and the program does not compute.
//! - S4: the primary context is reset: its green context goes first, and the next one gets a new one.
//! - S5: a child after `fork` begins anew.
//! - S6: the squeezed set cannot be had: the process computes, and is held where it would be squeezed.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use partywall_shim_api::page::SmSet;

use crate::hooks::{Hook, hooks};
use crate::process::page;
use crate::say::say;
use crate::sys::{CUresult, CUstream};

mod green;

pub(crate) use green::CUdevice;
use green::{CUcontext, Confined};

/// The hooks of this area.
pub(crate) static HOOKS: &[Hook] = hooks![
    cuCtxSetCurrent,
    cuCtxGetCurrent,
    cuCtxPushCurrent,
    cuCtxPushCurrent_v2,
    cuCtxPopCurrent,
    cuCtxPopCurrent_v2,
    cuCtxGetId,
    cuStreamGetCtx,
    cuStreamGetCtx_ptsz,
    cuStreamGetCtx_v2,
    cuStreamGetCtx_v2_ptsz,
    cuCtxGetDevResource,
    cuStreamCreate,
    cuStreamCreateWithPriority,
    cuGreenCtxCreate,
];

mod real {
    use super::{CUcontext, CUdevice, CUstream, c_int, c_uint, c_ulonglong, c_void};

    crate::real::functions! {
        fn cuCtxSetCurrent(context: CUcontext);
        fn cuCtxGetCurrent(context: *mut CUcontext);
        fn cuCtxPushCurrent(context: CUcontext);
        fn cuCtxPushCurrent_v2(context: CUcontext);
        fn cuCtxPopCurrent(context: *mut CUcontext);
        fn cuCtxPopCurrent_v2(context: *mut CUcontext);
        fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong);
        fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
        fn cuStreamGetCtx_ptsz(stream: CUstream, context: *mut CUcontext);
        fn cuStreamGetCtx_v2(stream: CUstream, context: *mut CUcontext, green: *mut *mut c_void);
        fn cuStreamGetCtx_v2_ptsz(stream: CUstream, context: *mut CUcontext, green: *mut *mut c_void);
        fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
        fn cuCtxGetDevResource(context: CUcontext, resource: *mut c_void, kind: c_uint);
        fn cuGreenCtxCreate(green: *mut *mut c_void, description: *mut c_void, device: CUdevice, flags: c_uint);
    }
}

/// The green context of this process, once there is one. What it points to is never freed: another thread may be looking.
static CONFINED: AtomicPtr<Confined> = AtomicPtr::new(ptr::null_mut());

fn confined() -> Option<&'static Confined> {
    // SAFETY: null, or what `primary_retained` leaked.
    unsafe { CONFINED.load(Ordering::Acquire).as_ref() }
}

/// The squeezed set, once there is a primary context. Never freed, as [`CONFINED`].
static SQUEEZED: AtomicPtr<Squeezed> = AtomicPtr::new(ptr::null_mut());

/// Whether it was tried in vain to make it.
static CANNOT_SQUEEZE: AtomicBool = AtomicBool::new(false);

/// A green context over fewer SMs than the tenant has otherwise.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Squeezed {
    view: Confined,
    set: SmSet,
}

/// That of this process, if it has one and that is the one which the page says.
pub(crate) fn squeezed() -> Option<&'static Squeezed> {
    // SAFETY: null, or what `prepare_squeezed` leaked.
    let squeezed = unsafe { SQUEEZED.load(Ordering::Acquire).as_ref() }?;
    (page().header.squeezed() == Some(squeezed.set)).then_some(squeezed)
}

impl Squeezed {
    /// Whether the calling thread uses the primary context that this is a view of.
    pub(crate) fn is_of_current(&self) -> bool {
        outer(current()) == self.view.primary
    }

    /// A new stream in it.
    pub(crate) fn stream(&self) -> Option<CUstream> {
        green::stream(self.view)
    }

    /// Does something while it is current; `None` where that cannot be. It gets the context.
    pub(crate) fn within<T>(&self, work: impl FnOnce(usize) -> T) -> Option<T> {
        green::within(self.view.green, || work(self.view.green.expose_provenance())).ok()
    }
}

/// In a child after `fork`: it has no contexts.
pub(crate) fn forked() {
    CONFINED.store(ptr::null_mut(), Ordering::Release);
    SQUEEZED.store(ptr::null_mut(), Ordering::Release);
    CANNOT_SQUEEZE.store(false, Ordering::Relaxed);
}

/// The program is about to get a primary context. An error stands in for the context: without its SMs a tenant does not compute.
pub(crate) fn primary_retained(device: CUdevice, primary: *mut c_void) -> Result<(), CUresult> {
    confine(device, primary)?;
    prepare_squeezed(device, primary);
    Ok(())
}

/// Makes the green context of the squeezed set, where the tenant has one.
fn prepare_squeezed(device: CUdevice, primary: *mut c_void) {
    let Some(set) = page().header.squeezed() else { return };
    let is_there = || !SQUEEZED.load(Ordering::Acquire).is_null();
    if is_there() || CANNOT_SQUEEZE.load(Ordering::Relaxed) {
        return;
    }
    let view = match green::make(device, primary, set) {
        Ok(view) => view,
        Err(refusal) => {
            CANNOT_SQUEEZE.store(true, Ordering::Relaxed);
            say(&format!("the squeezed SMs cannot be had, so launches are held instead: {refusal}"));
            return;
        }
    };
    let made = Box::into_raw(Box::new(Squeezed { view, set }));
    let first = SQUEEZED.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    if first.is_err() {
        // SAFETY: made above, and nobody else has seen it.
        green::destroy(unsafe { *Box::from_raw(made) }.view);
    }
}

fn confine(device: CUdevice, primary: *mut c_void) -> Result<(), CUresult> {
    let Some(set) = page().header.sm_set() else { return Ok(()) };
    if let Some(confined) = confined() {
        return if confined.primary == primary {
            Ok(())
        } else {
            say("a second device is refused: the tenant's SMs are those of one");
            Err(CUresult::NOT_SUPPORTED)
        };
    }
    let made = green::make(device, primary, set).map_err(|refusal| {
        say(&format!("the SMs of this tenant cannot be had, so it does not compute: {refusal}"));
        refusal.code
    })?;
    let made = Box::into_raw(Box::new(made));
    let first = CONFINED.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    if first.is_err() {
        // SAFETY: made above, and nobody else has seen it.
        green::destroy(unsafe { *Box::from_raw(made) });
    }
    Ok(())
}

/// The primary context is about to be reset.
pub(crate) fn primary_resets(primary: Option<u64>) {
    squeezed_resets(primary);
    let confined = CONFINED.load(Ordering::Acquire);
    // SAFETY: as in `confined`.
    let Some(&found) = (unsafe { confined.as_ref() }) else { return };
    let is_it = primary == Some(found.primary.addr() as u64);
    let taken =
        || CONFINED.compare_exchange(confined, ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire).is_ok();
    if is_it && taken() {
        green::destroy(found);
    }
}

fn squeezed_resets(primary: Option<u64>) {
    let squeezed = SQUEEZED.load(Ordering::Acquire);
    // SAFETY: as in `squeezed`.
    let Some(&found) = (unsafe { squeezed.as_ref() }) else { return };
    let is_it = primary == Some(found.view.primary.addr() as u64);
    let taken =
        || SQUEEZED.compare_exchange(squeezed, ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire).is_ok();
    if is_it && taken() {
        crate::launch::squeezed_resets();
        green::destroy(found.view);
    }
}

/// Whether the program may not do what would lead its kernels off the tenant's SMs. Says so.
pub(crate) fn refuses(what: &str) -> bool {
    let refused = page().header.sm_set().is_some();
    if refused {
        say(&format!("{what} is refused: the tenant is confined to some SMs, and that would leave them"));
    }
    refused
}

/// Waits through `wait` for the current context, or for that of the argument, and for the other view of it.
pub(crate) fn synchronize(context: Option<CUcontext>, wait: impl Fn() -> CUresult) -> CUresult {
    let (confined, squeezed) = (confined(), squeezed());
    let primary =
        confined.map(|confined| confined.primary).or(squeezed.map(|squeezed| squeezed.view.primary));
    let Some(primary) = primary else { return wait() };
    if outer(context.unwrap_or_else(current)) != primary {
        return wait();
    }
    let views = [
        squeezed.map(|squeezed| squeezed.view.green),
        confined.map(|confined| confined.green),
        Some(primary),
    ];
    let waited = views.into_iter().flatten().map(green::synchronize);
    waited.fold(CUresult::SUCCESS, |first, result| if first == CUresult::SUCCESS { result } else { first })
}

/// Makes the green context current where the primary one is, before something is made or launched whose SMs follow from that.
#[inline]
pub(crate) fn enter() {
    if let Some(confined) = confined() {
        confined.enter();
    }
}

impl Confined {
    #[cold]
    fn enter(&self) {
        if current() == self.primary {
            // SAFETY: the other view of the context that is current. Where that fails, what comes next says so.
            let _ = unsafe { real::cuCtxSetCurrent(self.green) };
        }
    }
}

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// Whether it was said what becomes of streams that block.
static BLOCKING: Once = Once::new();

/// A stream is about to be made.
fn making_a_stream(flags: c_uint) {
    enter();
    if flags & NON_BLOCKING == 0 && confined().is_some() {
        BLOCKING.call_once(|| {
            say(
                "confined to some SMs, the default stream and streams that block do not wait for each other; \
                 a program that relies on it has to run without a share",
            );
        });
    }
}

unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult {
    making_a_stream(flags);
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { real::cuStreamCreate(stream, flags) }
}

unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> CUresult {
    making_a_stream(flags);
    // SAFETY: as above.
    unsafe { real::cuStreamCreateWithPriority(stream, flags, priority) }
}

fn current() -> CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: a place for the answer. Without an answer there is no current context.
    let _ = unsafe { real::cuCtxGetCurrent(&raw mut context) };
    context
}

/// A context as the driver is to see it.
fn inner(context: CUcontext) -> CUcontext {
    confined().filter(|confined| confined.primary == context).map_or(context, |confined| confined.green)
}

/// A context as the program knows it.
pub(crate) fn outer(context: CUcontext) -> CUcontext {
    confined().filter(|confined| confined.green == context).map_or(context, |confined| confined.primary)
}

/// What a call has put into the program's place for a context, as the program knows it.
///
/// # Safety
/// `place` is null, or the driver has written to it if `result` is a success.
unsafe fn told(result: CUresult, place: *mut CUcontext) -> CUresult {
    if result == CUresult::SUCCESS && !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *place = outer(*place) };
    }
    result
}

/// Makes hooks that translate a context on the way in, and such that translate one on the way out.
macro_rules! translated {
    (in: $($entering:ident)*; out: $($leaving:ident)*; of: $($of:ident)*; of_two: $($two:ident)*;) => {
        $(unsafe extern "C" fn $entering(context: CUcontext) -> CUresult {
            // SAFETY: the program's context, or the other view of it.
            unsafe { real::$entering(inner(context)) }
        })*
        $(unsafe extern "C" fn $leaving(context: *mut CUcontext) -> CUresult {
            // SAFETY: the argument is the program's, and where it is a place the driver has written to it.
            unsafe { told(real::$leaving(context), context) }
        })*
        $(unsafe extern "C" fn $of(stream: CUstream, context: *mut CUcontext) -> CUresult {
            // SAFETY: as above.
            unsafe { told(real::$of(stream, context), context) }
        })*
        $(unsafe extern "C" fn $two(stream: CUstream, context: *mut CUcontext, green: *mut *mut c_void) -> CUresult {
            // SAFETY: as above.
            let result = unsafe { real::$two(stream, context, green) };
            if result == CUresult::SUCCESS
                && let Some(confined) = confined()
                && !context.is_null()
                && !green.is_null()
                // SAFETY: places that the driver has written to.
                && unsafe { *green } == confined.handle
            {
                // SAFETY: as above.
                unsafe { (*context, *green) = (confined.primary, ptr::null_mut()) };
            }
            result
        })*
    };
}

translated! {
    in: cuCtxSetCurrent cuCtxPushCurrent cuCtxPushCurrent_v2;
    out: cuCtxGetCurrent cuCtxPopCurrent cuCtxPopCurrent_v2;
    of: cuStreamGetCtx cuStreamGetCtx_ptsz;
    of_two: cuStreamGetCtx_v2 cuStreamGetCtx_v2_ptsz;
}

unsafe extern "C" fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong) -> CUresult {
    let asked = if context.is_null() && confined().is_some() { outer(current()) } else { context };
    // SAFETY: the arguments are the program's; no context means the current one.
    unsafe { real::cuCtxGetId(asked, id) }
}

unsafe extern "C" fn cuCtxGetDevResource(
    context: CUcontext,
    resource: *mut c_void,
    kind: c_uint,
) -> CUresult {
    // SAFETY: the arguments are the program's, or the other view of its context.
    unsafe { real::cuCtxGetDevResource(inner(context), resource, kind) }
}

unsafe extern "C" fn cuGreenCtxCreate(
    green: *mut *mut c_void,
    description: *mut c_void,
    device: CUdevice,
    flags: c_uint,
) -> CUresult {
    if refuses("a green context of the program's own") {
        return CUresult::NOT_SUPPORTED;
    }
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { real::cuGreenCtxCreate(green, description, device, flags) }
}
