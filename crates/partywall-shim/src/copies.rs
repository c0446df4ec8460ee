//! Copies between host and device, in turns with those of other tenants.
//!
//! # Which way a copy goes
//!
//! Small copies, and all copies while nobody decides about them, go *straight* to the driver and are counted: that
//! way costs three loads and two additions. Those of latency-sensitive tenants are announced while others have packets
//! under way (`announce`). Larger ones are *gated* (`submit`): cut into packets, each behind a gate in
//! the program's own stream, which the copier (`copier`, in a thread of its own) opens when the node has granted the
//! bytes (`turns` decides which gate). From pageable memory they go through pinned buffers (`pageable`). Synchronous
//! copies are gated copies that the caller waits for.
//!
//! What goes straight although it is large, and is listed as passed: copies in streams under capture, of managed
//! memory, of rows in pageable memory; batches, one-dimensional arrays, peers, and memcpy nodes of graphs.
//!
//! # What nobody can break
//!
//! Everything that waits, waits for a word in memory of this process. The copier writes it when the node says so,
//! when the node is gone, or when the device does not move. It never calls the driver, so no lock of the driver can
//! hold it up.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use partywall_shim_api::environment;

use crate::hooks::{Hook, hooks};
use crate::process::variable;
use crate::sys::{CUresult, CUstream};

mod announce;
mod copier;
mod cuda;
mod driver;
mod pageable;
mod pool;
mod route;
mod submit;
mod thread;
mod turns;
mod words;

#[cfg(test)]
mod device;
#[cfg(test)]
mod tests;

pub(crate) use announce::{clear_behind, take};
use copier::Desk;
use cuda::{Gate, Planes, Rows};
pub(crate) use cuda::{LEGACY, PER_THREAD, apart, handle, is_through, runs};
pub(crate) use driver::Stream;
use pool::Pool;
use route::{between, planes, rows, to_device, to_host};

/// How long the copier looks without pause after something has happened, unless the environment says otherwise.
const SPIN_NS: u64 = 100_000;

/// What copies of this process share. Leaked: threads use it to the end.
struct Shared {
    desk: Desk,
    /// Pools by context and kind of gate. A context that is gone leaves its pool behind.
    pools: Mutex<Vec<(usize, u64, Gate, &'static Pool)>>,
}

/// Null until the first copy that is gated.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// How streams are held: 0 not decided, 1 memory operations, 2 host functions, 3 not at all.
static GATE: AtomicU8 = AtomicU8::new(0);

/// In a child after `fork`: nothing of the parent's is used again.
pub(crate) fn forked() {
    SHARED.store(std::ptr::null_mut(), Ordering::Release);
}

/// Memory operations are not to be had: later copies use host functions.
fn no_memory_operations() {
    let _ = GATE.compare_exchange(1, 2, Ordering::Relaxed, Ordering::Relaxed);
}

/// No copy is gated any more.
fn switch_off() {
    GATE.store(3, Ordering::Relaxed);
}

fn gate() -> Option<Gate> {
    if GATE.load(Ordering::Relaxed) == 0 {
        let asked = variable(environment::COPY_GATE);
        let value = match asked.as_ref().and_then(|value| value.to_str()) {
            Some("off") => 3,
            Some("hostfunc") => 2,
            None | Some("memop") => 1,
            Some(other) => {
                crate::say::say(&format!(
                    "{}={other} is unknown: memop, hostfunc and off are possible; memop is used",
                    environment::COPY_GATE
                ));
                1
            }
        };
        let _ = GATE.compare_exchange(0, value, Ordering::Relaxed, Ordering::Relaxed);
    }
    match GATE.load(Ordering::Relaxed) {
        1 => Some(Gate::MemoryOperations),
        2 => Some(Gate::HostFunctions),
        _ => None,
    }
}

/// What copies share, made at the first use together with the copier's thread.
fn shared() -> Option<&'static Shared> {
    // SAFETY: null or leaked below.
    let there = || unsafe { SHARED.load(Ordering::Acquire).as_ref() };
    if let Some(shared) = there() {
        return Some(shared);
    }
    let number =
        |name| variable(name).and_then(|value| value.to_str().and_then(|text| text.parse::<u64>().ok()));
    let mine = Box::into_raw(Box::new(Shared { desk: Desk::new(), pools: Mutex::new(Vec::new()) }));
    match SHARED.compare_exchange(std::ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let time = |name, default| number(name).map_or(default, |us: u64| us.saturating_mul(1_000));
            let spin_ns = time(environment::COPY_SPIN_US, SPIN_NS);
            let pause_ns = time(environment::COPY_PAUSE_US, turns::PAUSE_NS);
            let shared = there()?;
            if !thread::start(&shared.desk, spin_ns, pause_ns) {
                switch_off();
                return None;
            }
        }
        // SAFETY: made above and not published.
        Err(_) => drop(unsafe { Box::from_raw(mine) }),
    }
    there()
}

impl Shared {
    /// The pool of the current context.
    fn pool(&self, gate: Gate) -> Option<&'static Pool> {
        let (context, id) = cuda::context()?;
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = pools.iter().find(|pool| (pool.0, pool.1, pool.2) == (context, id, gate)) {
            return Some(found.3);
        }
        let pool: &'static Pool = Box::leak(Box::new(Pool::new()));
        pools.push((context, id, gate, pool));
        Some(pool)
    }
}

/// The stream that a call means, by a handle that means the same everywhere.
pub(crate) fn meant(stream: CUstream, default: Stream) -> Stream {
    match stream.0.expose_provenance() {
        0 => default,
        stream => stream,
    }
}

mod real {
    use super::{CUstream, Planes, Rows, c_void};

    crate::real::functions! {
        fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize);
        fn cuMemcpyHtoD_v2_ptds(to: u64, from: *const c_void, bytes: usize);
        fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: CUstream);
        fn cuMemcpyHtoDAsync_v2_ptsz(to: u64, from: *const c_void, bytes: usize, stream: CUstream);
        fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize);
        fn cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: u64, bytes: usize);
        fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: CUstream);
        fn cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: u64, bytes: usize, stream: CUstream);
        fn cuMemcpy(to: u64, from: u64, bytes: usize);
        fn cuMemcpy_ptds(to: u64, from: u64, bytes: usize);
        fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: CUstream);
        fn cuMemcpyAsync_ptsz(to: u64, from: u64, bytes: usize, stream: CUstream);
        fn cuMemcpy2D_v2(copy: *const Rows);
        fn cuMemcpy2D_v2_ptds(copy: *const Rows);
        fn cuMemcpy2DUnaligned_v2(copy: *const Rows);
        fn cuMemcpy2DUnaligned_v2_ptds(copy: *const Rows);
        fn cuMemcpy2DAsync_v2(copy: *const Rows, stream: CUstream);
        fn cuMemcpy2DAsync_v2_ptsz(copy: *const Rows, stream: CUstream);
        fn cuMemcpy3D_v2(copy: *const Planes);
        fn cuMemcpy3D_v2_ptds(copy: *const Planes);
        fn cuMemcpy3DAsync_v2(copy: *const Planes, stream: CUstream);
        fn cuMemcpy3DAsync_v2_ptsz(copy: *const Planes, stream: CUstream);
    }
}

/// Makes the two hooks of a copy that blocks and the two of one that does not, for each kind of default stream.
macro_rules! copies {
    ($($route:ident($($argument:ident: $type:ty),*):
        $blocking:ident $blocking_ptds:ident $async:ident $async_ptsz:ident;)*) => { $(
        copies!(@blocking $route($($argument: $type),*) $blocking LEGACY);
        copies!(@blocking $route($($argument: $type),*) $blocking_ptds PER_THREAD);
        copies!(@async $route($($argument: $type),*) $async LEGACY);
        copies!(@async $route($($argument: $type),*) $async_ptsz PER_THREAD);
    )* };
    (@blocking $route:ident($($argument:ident: $type:ty),*) $name:ident $default:ident) => {
        unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
            // SAFETY: the arguments are the program's, passed on as they are.
            $route($($argument,)* $default, true, || unsafe { real::$name($($argument),*) })
        }
    };
    (@async $route:ident($($argument:ident: $type:ty),*) $name:ident $default:ident) => {
        unsafe extern "C" fn $name($($argument: $type,)* stream: CUstream) -> CUresult {
            // SAFETY: the arguments are the program's, passed on as they are.
            $route($($argument,)* meant(stream, $default), false, || unsafe { real::$name($($argument,)* stream) })
        }
    };
}

copies! {
    to_device(to: u64, from: *const c_void, bytes: usize):
        cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz;
    to_host(to: *mut c_void, from: u64, bytes: usize):
        cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz;
    between(to: u64, from: u64, bytes: usize): cuMemcpy cuMemcpy_ptds cuMemcpyAsync cuMemcpyAsync_ptsz;
    rows(copy: *const Rows): cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz;
    planes(copy: *const Planes): cuMemcpy3D_v2 cuMemcpy3D_v2_ptds cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz;
}
copies!(@blocking rows(copy: *const Rows) cuMemcpy2DUnaligned_v2 LEGACY);
copies!(@blocking rows(copy: *const Rows) cuMemcpy2DUnaligned_v2_ptds PER_THREAD);

/// The hooks of this area.
pub(crate) static HOOKS: &[Hook] = hooks![
    cuMemcpyHtoD_v2,
    cuMemcpyHtoD_v2_ptds,
    cuMemcpyHtoDAsync_v2,
    cuMemcpyHtoDAsync_v2_ptsz,
    cuMemcpyDtoH_v2,
    cuMemcpyDtoH_v2_ptds,
    cuMemcpyDtoHAsync_v2,
    cuMemcpyDtoHAsync_v2_ptsz,
    cuMemcpy,
    cuMemcpy_ptds,
    cuMemcpyAsync,
    cuMemcpyAsync_ptsz,
    cuMemcpy2D_v2,
    cuMemcpy2D_v2_ptds,
    cuMemcpy2DUnaligned_v2,
    cuMemcpy2DUnaligned_v2_ptds,
    cuMemcpy2DAsync_v2,
    cuMemcpy2DAsync_v2_ptsz,
    cuMemcpy3D_v2,
    cuMemcpy3D_v2_ptds,
    cuMemcpy3DAsync_v2,
    cuMemcpy3DAsync_v2_ptsz,
];
