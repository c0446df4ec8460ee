//! Contexts: the memory that they take themselves, and what goes away with them.
//!
//! How much a context takes is the driver's secret. The node leases an estimate for one when a process registers, measures it
//! once it exists, and writes both to the page; so for the first context it only has to be seen to that the lease has room.
//! Each further one is entered here, as large as the first: what the node then measures is what all of them take beyond that.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use partywall_core::memory_ledger::AllocationPath;
use partywall_core::units::Bytes;

use crate::hooks::{Hook, hooks};
use crate::process::page;
use crate::sms;
use crate::sys::CUresult;

use super::abi::{CUcontext, CUdevice, real};
use super::{Key, Owner, Taken, account, answered, book, lock, relieve, reserve, settle_all};

/// The hooks of this module.
pub(super) static HOOKS: &[Hook] = hooks![
    cuCtxCreate,
    cuCtxCreate_v2,
    cuCtxCreate_v3,
    cuCtxCreate_v4,
    cuCtxDestroy,
    cuCtxDestroy_v2,
    cuDevicePrimaryCtxRetain,
    cuDevicePrimaryCtxRelease,
    cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxReset,
    cuDevicePrimaryCtxReset_v2,
];

/// The contexts of a process.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    /// Those that there are, and those that are being made.
    count: AtomicU32,
    /// The largest that one was said to be, bytes.
    largest: AtomicU64,
    made: Mutex<BTreeSet<u64>>,
    /// The primary contexts that the program has seen, by their devices.
    primary: Mutex<BTreeMap<CUdevice, u64>>,
}

impl Contexts {
    /// A context is gone.
    fn destroyed(&self, context: u64) {
        if lock(&self.made).remove(&context) {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Makes a context through `call`, if the lease covers what one takes.
///
/// # Safety
/// With success, `call` has had the driver write to `context`.
unsafe fn create(context: *mut CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    let contexts = &account().contexts;
    let estimate = page().node.context_bytes.load(Ordering::Relaxed);
    let largest = contexts.largest.fetch_max(estimate, Ordering::Relaxed).max(estimate);
    let reserved = if contexts.count.fetch_add(1, Ordering::Relaxed) == 0 {
        let covered = book().cover().or_else(|refused| if relieve() { book().cover() } else { Err(refused) });
        covered.map(|()| None)
    } else {
        reserve(AllocationPath::ContextOverhead, Bytes(largest)).map(Some)
    };
    let result = if reserved.is_ok() { call() } else { CUresult::OUT_OF_MEMORY };
    let reserved = reserved.ok().flatten();
    if result == CUresult::SUCCESS {
        // SAFETY: the driver has written to it.
        let context = unsafe { *context } as u64;
        lock(&contexts.made).insert(context);
        if let Some(reserved) = reserved {
            book().commit(reserved, Key::Context(context), Owner::Context(context));
        }
    } else {
        contexts.count.fetch_sub(1, Ordering::Relaxed);
        if let Some(reserved) = reserved {
            book().cancel(reserved);
        }
    }
    result
}

/// Makes a context of the program's own through `call`, which no set of SMs confines.
///
/// # Safety
/// As of [`create`].
unsafe fn create_own(context: *mut CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    if sms::refuses("a context of the program's own") {
        return CUresult::NOT_SUPPORTED;
    }
    // SAFETY: the caller's promise.
    unsafe { create(context, call) }
}

/// Destroys a context through `call`, with what it holds.
fn destroy(context: Option<u64>, call: impl FnOnce() -> CUresult) -> CUresult {
    let taken: Vec<Taken> = context.map(|context| book().take_context(context)).unwrap_or_default();
    let result = call();
    answered(taken, result);
    if result == CUresult::SUCCESS {
        context.into_iter().for_each(|context| account().contexts.destroyed(context));
        settle_all();
    }
    result
}

/// Whether a device has its primary context now; `None` if the driver does not say.
fn is_active(device: CUdevice) -> Option<bool> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: places for the answers.
    let result = unsafe { real::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    (result == CUresult::SUCCESS).then_some(active != 0)
}

fn primary(device: CUdevice) -> Option<u64> {
    lock(&account().contexts.primary).get(&device).copied()
}

unsafe extern "C" fn cuCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { create_own(context, || real::cuCtxCreate(context, flags, device)) }
}

unsafe extern "C" fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { create_own(context, || real::cuCtxCreate_v2(context, flags, device)) }
}

unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut CUcontext,
    affinities: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { create_own(context, || real::cuCtxCreate_v3(context, affinities, count, flags, device)) }
}

unsafe extern "C" fn cuCtxCreate_v4(
    context: *mut CUcontext,
    parameters: *mut c_void,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { create_own(context, || real::cuCtxCreate_v4(context, parameters, flags, device)) }
}

unsafe extern "C" fn cuCtxDestroy(context: CUcontext) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    destroy(Some(context as u64), || unsafe { real::cuCtxDestroy(context) })
}

unsafe extern "C" fn cuCtxDestroy_v2(context: CUcontext) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    destroy(Some(context as u64), || unsafe { real::cuCtxDestroy_v2(context) })
}

unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let call = || unsafe { real::cuDevicePrimaryCtxRetain(context, device) };
    let result = if is_active(device) == Some(true) {
        call()
    } else {
        // SAFETY: the driver writes the context there.
        unsafe { create(context, call) }
    };
    if result != CUresult::SUCCESS {
        return result;
    }
    // SAFETY: the driver has written to it.
    let retained = unsafe { *context };
    lock(&account().contexts.primary).insert(device, retained as u64);
    if let Err(refused) = sms::primary_retained(device, retained) {
        // SAFETY: retained above; the program does not get it.
        let _ = released(device, unsafe { real::cuDevicePrimaryCtxRelease_v2(device) });
        return refused;
    }
    result
}

/// A primary context was released; with the last release it is gone.
fn released(device: CUdevice, result: CUresult) -> CUresult {
    if result == CUresult::SUCCESS
        && is_active(device) == Some(false)
        && let Some(context) = primary(device)
    {
        book().gone(book().take_context(context));
        account().contexts.destroyed(context);
        settle_all();
    }
    result
}

unsafe extern "C" fn cuDevicePrimaryCtxRelease(device: CUdevice) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    released(device, unsafe { real::cuDevicePrimaryCtxRelease(device) })
}

unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    released(device, unsafe { real::cuDevicePrimaryCtxRelease_v2(device) })
}

/// Resets a primary context through `call`; what stands before it goes first.
fn reset(device: CUdevice, call: impl FnOnce() -> CUresult) -> CUresult {
    let primary = primary(device);
    sms::primary_resets(primary);
    destroy(primary, call)
}

unsafe extern "C" fn cuDevicePrimaryCtxReset(device: CUdevice) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    reset(device, || unsafe { real::cuDevicePrimaryCtxReset(device) })
}

unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    reset(device, || unsafe { real::cuDevicePrimaryCtxReset_v2(device) })
}
