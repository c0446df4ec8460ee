//! The real driver, as copies use it.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use super::driver::{Code, Driver, Mark, Stream};
use super::thread::nap;
use super::words::{gate_reached, write_progress};
use crate::clock::now_ns;
use crate::sys::{CUresult, CUstream};

/// The legacy default stream and that of each thread, by their handles.
pub(crate) const LEGACY: Stream = 1;
/// See [`LEGACY`].
pub(crate) const PER_THREAD: Stream = 2;

const HOST_PORTABLE: c_uint = 1;
const HOST_MAPPED: c_uint = 2;
const WAIT_VALUE_32: u32 = 1;
const WRITE_VALUE_32: u32 = 2;
const CAPTURE_RELAXED: c_int = 2;
const ATTRIBUTE_MEMORY_TYPE: c_uint = 2;
const ATTRIBUTE_IS_MANAGED: c_uint = 8;
pub(super) const MEMORY_HOST: c_uint = 1;
pub(super) const MEMORY_DEVICE: c_uint = 2;
pub(super) const MEMORY_ARRAY: c_uint = 3;
pub(super) const MEMORY_UNIFIED: c_uint = 4;
const NOT_READY: CUresult = CUresult(600);
const NOT_SUPPORTED: CUresult = CUresult(801);

/// `CUstreamBatchMemOpParams` for values of 32 bits: 48 bytes, of which the driver reads these.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct MemoryOperation {
    operation: u32,
    address: u64,
    value: u64,
    flags: u32,
    alias: u64,
    rest: u64,
}

const _: () = assert!(size_of::<MemoryOperation>() == 48, "the size of the union in cuda.h");

/// `CUDA_MEMCPY2D`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Rows {
    pub(super) src_x: usize,
    pub(super) src_y: usize,
    pub(super) src_type: c_uint,
    pub(super) src_host: *const c_void,
    pub(super) src_device: u64,
    pub(super) src_array: *mut c_void,
    pub(super) src_pitch: usize,
    pub(super) dst_x: usize,
    pub(super) dst_y: usize,
    pub(super) dst_type: c_uint,
    pub(super) dst_host: *mut c_void,
    pub(super) dst_device: u64,
    pub(super) dst_array: *mut c_void,
    pub(super) dst_pitch: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

const _: () = assert!(size_of::<Rows>() == 128, "the size of the struct in cuda.h");

/// One side of `CUDA_MEMCPY3D`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct PlanesSide {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) z: usize,
    pub(super) lod: usize,
    pub(super) kind: c_uint,
    /// Not written to where it is the source.
    pub(super) host: *mut c_void,
    pub(super) device: u64,
    pub(super) array: *mut c_void,
    pub(super) reserved: *mut c_void,
    pub(super) pitch: usize,
    pub(super) height: usize,
}

/// `CUDA_MEMCPY3D`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Planes {
    pub(super) src: PlanesSide,
    pub(super) dst: PlanesSide,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) depth: usize,
}

const _: () = assert!(size_of::<Planes>() == 200, "the size of the struct in cuda.h");

type HostFunction = unsafe extern "C" fn(*mut c_void);

mod real {
    use super::{CUstream, HostFunction, MemoryOperation, Planes, Rows, c_int, c_uint, c_void};

    crate::real::functions! {
        fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: CUstream);
        fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: CUstream);
        fn cuMemcpy2DAsync_v2(copy: *const Rows, stream: CUstream);
        fn cuMemcpy3DAsync_v2(copy: *const Planes, stream: CUstream);
        fn cuStreamBatchMemOp_v2(stream: CUstream, count: c_uint, operations: *mut MemoryOperation, flags: c_uint);
        fn cuLaunchHostFunc(stream: CUstream, function: HostFunction, argument: *mut c_void);
        fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemHostGetDevicePointer_v2(device: *mut u64, address: *mut c_void, flags: c_uint);
        fn cuStreamQuery(stream: CUstream);
        fn cuStreamSynchronize(stream: CUstream);
        fn cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
        fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
        fn cuCtxGetCurrent(context: *mut usize);
        fn cuCtxGetId(context: usize, id: *mut u64);
        fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: u64);
    }
}

fn check(result: CUresult) -> Result<(), Code> {
    if result == CUresult::SUCCESS { Ok(()) } else { Err(result) }
}

/// A stream, as functions of the driver are told.
pub(crate) fn handle(stream: Stream) -> CUstream {
    CUstream(ptr::with_exposed_provenance_mut(stream))
}

/// What a copy is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// From the host to the device.
    In {
        /// The device's memory.
        to: u64,
        /// The host's memory.
        from: usize,
    },
    /// From the device to the host.
    Out {
        /// The host's memory.
        to: usize,
        /// The device's memory.
        from: u64,
    },
    /// Rows, either way; whole rows at a time.
    Rows(Rows),
    /// Planes, either way.
    Planes {
        /// All of them.
        planes: Planes,
        /// Whether they are copied one by one, each by whole rows; otherwise by whole planes.
        by_row: bool,
    },
}

impl What {
    /// A part of a copy that is taken apart: one of the planes.
    pub(super) fn part(mut self, part: usize) -> Self {
        if let Self::Planes { planes, by_row: true } = &mut self {
            planes.src.z += part;
            planes.dst.z += part;
            planes.depth = 1;
        }
        self
    }
}

/// How streams are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Stream memory operations.
    MemoryOperations,
    /// Host functions.
    HostFunctions,
}

/// The real driver with the context that is current in the calling thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cuda {
    /// How streams are held.
    pub(super) gate: Gate,
}

/// What kind of memory an address of the host is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Pinned: the device reaches it.
    Pinned,
    /// The driver does not know it.
    Pageable,
    /// The device's.
    Device,
    /// Managed, which moves by itself.
    Managed,
}

/// What kind of memory an address is in.
pub(super) fn kind(address: u64) -> Kind {
    let attribute = |which| {
        let mut value: c_uint = 0;
        // SAFETY: both attributes are 32 bits wide; the driver looks the address up and does not touch it.
        let result = unsafe { real::cuPointerGetAttribute(ptr::from_mut(&mut value).cast(), which, address) };
        (result == CUresult::SUCCESS).then_some(value)
    };
    match attribute(ATTRIBUTE_MEMORY_TYPE) {
        _ if attribute(ATTRIBUTE_IS_MANAGED).is_some_and(|managed| managed & 0xff != 0) => Kind::Managed,
        Some(MEMORY_HOST) => Kind::Pinned,
        Some(MEMORY_DEVICE | MEMORY_ARRAY) => Kind::Device,
        _ => Kind::Pageable,
    }
}

/// The current context: its handle, and its number where the driver has numbers, which are never used again.
pub(super) fn context() -> Option<(usize, u64)> {
    let (mut context, mut id) = (0, 0);
    // SAFETY: the driver writes a handle.
    check(unsafe { real::cuCtxGetCurrent(&mut context) }).ok()?;
    // SAFETY: the context is current, so it exists; the driver writes a number. Before CUDA 12 it has none.
    let _ = unsafe { real::cuCtxGetId(context, &mut id) };
    (context != 0).then_some((context, id))
}

/// Whether a stream can be given work now: it is not being captured, nor is one that it would wait for.
pub(crate) fn runs(stream: Stream) -> bool {
    let mut status = 0;
    // SAFETY: the stream is the program's argument, which the driver checks; it writes a status.
    let result = unsafe { real::cuStreamIsCapturing(handle(stream), &mut status) };
    result == CUresult::SUCCESS && status == 0
}

/// Whether a stream has nothing left to do. Not while it is captured, which a question would end.
pub(crate) fn is_through(stream: Stream) -> bool {
    // SAFETY: a stream of the program that it has not destroyed, or a default stream.
    apart(|| runs(stream) && unsafe { real::cuStreamQuery(handle(stream)) } == CUresult::SUCCESS)
}

/// Waits on the host for a stream.
pub(super) fn synchronize(stream: Stream) -> CUresult {
    // SAFETY: the stream is the program's argument, which the driver checks.
    unsafe { real::cuStreamSynchronize(handle(stream)) }
}

/// What a host function that stands in for marks is to do: word and value to write, word and value to wait for.
struct Errand {
    write: Option<(u64, u32)>,
    wait: Option<(u64, u32)>,
}

unsafe extern "C" fn run_errand(argument: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `marks`, and a host function runs once.
    let errand = unsafe { Box::from_raw(argument.cast::<Errand>()) };
    if let Some((address, value)) = errand.write {
        // SAFETY: `marks` is only called with addresses of words, and with host functions these are the host's.
        unsafe { write_progress(address, value) };
    }
    if let Some((address, value)) = errand.wait {
        // SAFETY: as above.
        while !unsafe { gate_reached(address, value) } {
            nap();
        }
    }
}

/// Does something that is forbidden while any stream is captured, in a way that captures of other threads do not mind.
pub(crate) fn apart<T>(work: impl FnOnce() -> T) -> T {
    let mut mode = CAPTURE_RELAXED;
    // SAFETY: the driver exchanges the calling thread's mode with the one here.
    let changed = unsafe { real::cuThreadExchangeStreamCaptureMode(&mut mode) } == CUresult::SUCCESS;
    let result = work();
    if changed {
        // SAFETY: as above, with the mode that was there before.
        let _ = unsafe { real::cuThreadExchangeStreamCaptureMode(&mut mode) };
    }
    result
}

impl Driver for Cuda {
    type What = What;

    fn marks(&self, stream: Stream, marks: &[Mark]) -> Result<(), Code> {
        if self.gate == Gate::HostFunctions {
            let mut errand = Errand { write: None, wait: None };
            for &mark in marks {
                match mark {
                    Mark::Write { address, value } => errand.write = Some((address, value)),
                    Mark::Wait { address, value } => errand.wait = Some((address, value)),
                }
            }
            let argument = Box::into_raw(Box::new(errand));
            // SAFETY: the function takes the box over when it runs.
            let result = unsafe { real::cuLaunchHostFunc(handle(stream), run_errand, argument.cast()) };
            return check(result).inspect_err(|_| {
                // SAFETY: the driver did not take it.
                drop(unsafe { Box::from_raw(argument) });
            });
        }
        let mut operations = [MaybeUninit::<MemoryOperation>::zeroed(); 2];
        for (to, &mark) in operations.iter_mut().zip(marks) {
            let (operation, address, value) = match mark {
                Mark::Write { address, value } => (WRITE_VALUE_32, address, value),
                Mark::Wait { address, value } => (WAIT_VALUE_32, address, value),
            };
            // Flags of 0: wait until the word is at least the value, cyclically; write after all that came before is
            // visible.
            to.write(MemoryOperation {
                operation,
                address,
                value: value.into(),
                flags: 0,
                alias: 0,
                rest: 0,
            });
        }
        let count = marks.len().min(operations.len()) as c_uint;
        let operations = operations.as_mut_ptr().cast();
        // SAFETY: the first `count` operations are written; the addresses are those of words in registered memory.
        let result = unsafe { real::cuStreamBatchMemOp_v2(handle(stream), count, operations, 0) };
        if matches!(result, NOT_SUPPORTED | CUresult::NOT_FOUND) {
            super::no_memory_operations();
        }
        check(result)
    }

    fn copy(&self, stream: Stream, what: &What, offset: u64, bytes: u64) -> Result<(), Code> {
        let (stream, at, bytes) = (handle(stream), offset as usize, bytes as usize);
        check(match *what {
            // SAFETY: a part of the copy that the program asked for, whose memory it vouches for; the driver checks
            // the rest.
            What::In { to, from } => unsafe {
                real::cuMemcpyHtoDAsync_v2(
                    to + offset,
                    ptr::with_exposed_provenance(from + at),
                    bytes,
                    stream,
                )
            },
            // SAFETY: as above.
            What::Out { to, from } => unsafe {
                real::cuMemcpyDtoHAsync_v2(
                    ptr::with_exposed_provenance_mut(to + at),
                    from + offset,
                    bytes,
                    stream,
                )
            },
            What::Rows(mut rows) => {
                let first = at / rows.width;
                rows.src_y += first;
                rows.dst_y += first;
                rows.height = bytes / rows.width;
                // SAFETY: as above.
                unsafe { real::cuMemcpy2DAsync_v2(&rows, stream) }
            }
            What::Planes { mut planes, by_row: true } => {
                let first = at / planes.width;
                planes.src.y += first;
                planes.dst.y += first;
                planes.height = bytes / planes.width;
                // SAFETY: as above.
                unsafe { real::cuMemcpy3DAsync_v2(&planes, stream) }
            }
            What::Planes { mut planes, by_row: false } => {
                let plane = planes.width * planes.height;
                planes.src.z += at / plane;
                planes.dst.z += at / plane;
                planes.depth = bytes / plane;
                // SAFETY: as above.
                unsafe { real::cuMemcpy3DAsync_v2(&planes, stream) }
            }
        })
    }

    fn register(&self, address: usize, bytes: usize) -> Result<u64, Code> {
        let memory: *mut c_void = ptr::with_exposed_provenance_mut(address);
        apart(|| {
            // SAFETY: memory of ours that is never unmapped.
            check(unsafe { real::cuMemHostRegister_v2(memory, bytes, HOST_PORTABLE | HOST_MAPPED) })?;
            if self.gate == Gate::HostFunctions {
                return Ok(address as u64);
            }
            let mut device = 0;
            // SAFETY: the memory was registered as mapped; the driver writes an address.
            check(unsafe { real::cuMemHostGetDevicePointer_v2(&mut device, memory, 0) })?;
            Ok(device)
        })
    }

    fn trouble(&self, stream: Stream) -> Result<(), Code> {
        // SAFETY: the stream is the program's argument, which the driver checks.
        let result = unsafe { real::cuStreamQuery(handle(stream)) };
        if result == NOT_READY { Ok(()) } else { check(result) }
    }

    fn drain(&self, stream: Stream) -> Result<(), Code> {
        check(synchronize(stream))
    }

    fn now(&self) -> u64 {
        now_ns()
    }

    fn nap(&self) {
        nap();
    }
}
