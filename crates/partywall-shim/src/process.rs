//! This process as the node knows it: from the first use of CUDA to its end.
//!
//! Nothing is read, opened or started before the first use of CUDA: `cuInit`, the first `cuGetProcAddress`, a question to NVML
//! about memory, or the first call through a forwarder. Then the process registers with the node, if the environment names one, and gets its page;
//! a thread of the library's own listens to the node ([`node`]) and registers again when a node has been restarted.
//! Without a node everything is passed through, and counted in a page that nobody else sees.
//!
//! # Fork
//!
//! A child shares nothing with its parent's registration: it closes the copies of the descriptors, so that the node sees
//! the end of the parent, and begins anew at its own first use. Its handler runs before `fork` returns, in its only
//! thread, and does nothing but stores and closes.
//!
//! # Pages
//!
//! A page is never unmapped: other threads may be counting in it. That costs 4 KiB for each restart of the node.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::cell::UnsafeCell;
use std::ffi::{OsString, c_uint};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

use partywall_shim_api::environment;
use partywall_shim_api::page::Page;

use crate::hooks::{Hook, hooks};
use crate::sys::CUresult;
use crate::{code, copies, coverage, launch, memory, node, slices, sms};

/// The hooks of this area.
pub(crate) static HOOKS: &[Hook] = hooks![cuInit];

/// What areas do in a child after `fork`, before anything else runs there. Stores and system calls only: any lock may
/// have been held by a thread that does not exist in the child.
const FORKED: &[fn()] = &[
    node::forked,
    coverage::forked,
    code::forked,
    copies::forked,
    memory::forked,
    sms::forked,
    slices::forked,
    launch::forked,
];

mod real {
    use std::ffi::c_uint;

    crate::real::functions! {
        fn cuInit(flags: c_uint);
    }
}

/// A page for a process that no node knows.
struct Alone(UnsafeCell<MaybeUninit<Page>>);

// SAFETY: a page consists of atomics; as a whole it is only written to where there is one thread.
unsafe impl Sync for Alone {}

static ALONE: Alone = Alone(UnsafeCell::new(MaybeUninit::zeroed()));

/// The page that counts; never null.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ALONE.0.get().cast());

/// The page of this process. Do not keep it: a restarted node gives another one.
#[inline]
pub(crate) fn page() -> &'static Page {
    // SAFETY: `ALONE`, all zeros, which are valid atomics, or a page that `set_page` got and that is never unmapped.
    unsafe { &*PAGE.load(Ordering::Acquire) }
}

/// Counts in another page from now on.
pub(crate) fn set_page(page: &'static Page) {
    PAGE.store(ptr::from_ref(page).cast_mut(), Ordering::Release);
}

const NOT_STARTED: u8 = 0;
const STARTING: u8 = 1;
const STARTED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(NOT_STARTED);

/// The first use of CUDA; later calls cost a load. Returns once the process is registered, or cannot be.
#[inline]
pub(crate) fn start() {
    if STATE.load(Ordering::Acquire) != STARTED {
        start_now();
    }
}

/// Whether this process has used CUDA.
pub(crate) fn is_started() -> bool {
    STATE.load(Ordering::Acquire) == STARTED
}

#[cold]
fn start_now() {
    match STATE.compare_exchange(NOT_STARTED, STARTING, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            prepare_for_fork();
            coverage::arm();
            // Nobody limits a process that is no tenant's. One that is, and that its node does not know yet, gets no
            // memory: a quota that holds only while somebody looks is none.
            let is_tenant = variable(environment::SOCKET).is_some();
            page().node.quota_bytes.store(if is_tenant { 0 } else { u64::MAX }, Ordering::Relaxed);
            // A context takes some: enough to refuse it.
            page().node.context_bytes.store(u64::from(is_tenant), Ordering::Relaxed);
            node::register();
            STATE.store(STARTED, Ordering::Release);
        }
        // Another thread is at it, for at most as long as a node may take to answer.
        Err(_) => {
            while STATE.load(Ordering::Acquire) == STARTING {
                rustix::thread::sched_yield();
            }
        }
    }
}

/// Has [`forked`] called in children. Once for a process and all its descendants, which inherit it.
fn prepare_for_fork() {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    if !PREPARED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler stays where it is, because this library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
}

/// In the child: forgets the parent's registration.
unsafe extern "C" fn forked() {
    let alone = ALONE.0.get().cast::<Page>();
    // SAFETY: the child has no other thread that could look at it, and zeros are a valid page.
    unsafe { alone.cast::<u8>().write_bytes(0, size_of::<Page>()) };
    PAGE.store(alone, Ordering::Release);
    for area in FORKED {
        area();
    }
    STATE.store(NOT_STARTED, Ordering::Release);
}

unsafe extern "C" fn cuInit(flags: c_uint) -> CUresult {
    start();
    // SAFETY: the argument is the program's.
    let result = unsafe { real::cuInit(flags) };
    if result == CUresult::SUCCESS {
        page().shim.cuda.store(1, Ordering::Relaxed);
    }
    result
}

/// A variable of the environment. The program's environment is this library's only configuration.
#[allow(clippy::disallowed_methods, reason = "the library has no caller that could pass the environment on")]
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
