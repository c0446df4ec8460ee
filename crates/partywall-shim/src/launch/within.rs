//! Copies and fills within the device: launches by another name.
//!
//! # Problem
//!
//! A copy of 1 GiB from one place of the device's memory to another takes half a millisecond of an H200, and all of its memory's
//! bandwidth: beside a stream of them a request of 0.9 ms takes 3.5 (H200, November 2026), and confining the tenant to 16 SMs changes neither
//! figure, since the driver does not make these copies with the SMs of a green context. So they have to go in turns.
//!
//! # Approach
//!
//! Where the node decides about launches, each of them goes as a launch does ([`super::turnstile`]). Those of best-effort processes that are
//! longer than a [`PIECE`] go piece by piece, in their stream, so that they can be held between two pieces.
//!
//! Not cut: copies of rows and planes, copies whose ranges overlap, which are undefined as a whole and stay as they are, and all in streams under capture,
//! where they become nodes of a graph. Copies of up to [`SMALL`] by functions that do not say which way they go are not asked about: to ask the
//! driver would cost more than they do.
//!
//! # Scenarios
//!
//! - S1: pieces cover a copy once, whatever its length; those of a fill begin at whole elements.
//! - S2: ranges that overlap: one piece.
//! - S3: a piece that fails ends it with that error.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{c_uchar, c_uint, c_ushort};
use std::sync::atomic::Ordering;

use super::turnstile::Way;
use super::{decided, is_decided};
use crate::copies::{LEGACY, PER_THREAD, Stream, handle, meant, runs};
use crate::hooks::{Hook, hooks};
use crate::process::page;
use crate::sys::{CUresult, CUstream};

/// Bytes of a piece: 32 us of an H200, of which the start of a copy takes two or three.
const PIECE: usize = 64 << 20;

/// The longest copy that is not asked about.
const SMALL: usize = 64 << 10;

/// Whether a copy whose way nobody has said is to be asked about.
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes > SMALL && is_decided()
}

/// They use memory's bandwidth and no SMs of the tenant's: on fewer SMs they would cost a neighbour as much.
fn way() -> Way {
    Way { is_whole: false, can_be_squeezed: false }
}

/// One that goes as a whole, in rows or planes.
pub(crate) fn whole(stream: Stream, call: impl FnOnce() -> CUresult) -> CUresult {
    if is_decided() { decided(|| stream, way, |_| call()) } else { call() }
}

/// One in a row, of elements: `call` does so many of them from one on.
fn elements(stream: Stream, count: usize, size: usize, call: impl Fn(usize, usize) -> CUresult) -> CUresult {
    if !is_decided() {
        return call(0, count);
    }
    let piece = PIECE / size;
    let is_best_effort = page().header.class.load(Ordering::Relaxed) != 0;
    let piece = if is_best_effort && count > piece && runs(stream) { piece } else { count };
    pieces(count, piece, |from, count| decided(|| stream, way, |_| call(from, count)))
}

/// A copy of bytes within the device: `call` does so many of them from one on.
pub(crate) fn copy(
    to: u64,
    from: u64,
    bytes: usize,
    stream: Stream,
    call: impl Fn(usize, usize) -> CUresult,
) -> CUresult {
    if to.abs_diff(from) < bytes as u64 {
        return whole(stream, || call(0, bytes));
    }
    elements(stream, bytes, 1, call)
}

/// One by a function that leaves it to the driver to find out which way it goes. The driver has said: within the device.
pub(crate) fn between(to: u64, from: u64, bytes: usize, stream: Stream) -> CUresult {
    let on = handle(stream);
    copy(to, from, bytes, stream, |at, bytes| {
        let (to, from) = (to.wrapping_add(at as u64), from.wrapping_add(at as u64));
        // SAFETY: a part of the ranges that the program said. Within the device nobody waits for a copy, so those that would block
        // elsewhere are no others (the driver's documentation, "API synchronization behavior").
        unsafe { real::cuMemcpyDtoDAsync_v2(to, from, bytes, on) }
    })
}

/// Does all of them, so many at a time, and at least once: what nothing means is the driver's to say.
fn pieces(count: usize, piece: usize, call: impl Fn(usize, usize) -> CUresult) -> CUresult {
    let mut done = 0;
    loop {
        let now = piece.min(count - done);
        let result = call(done, now);
        done += now;
        if result != CUresult::SUCCESS || done == count {
            return result;
        }
    }
}

mod real {
    use super::{CUstream, c_uchar, c_uint, c_ushort};

    crate::real::functions! {
        fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize);
        fn cuMemcpyDtoD_v2_ptds(to: u64, from: u64, bytes: usize);
        fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: CUstream);
        fn cuMemcpyDtoDAsync_v2_ptsz(to: u64, from: u64, bytes: usize, stream: CUstream);
        fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize);
        fn cuMemsetD8_v2_ptds(to: u64, value: c_uchar, count: usize);
        fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, stream: CUstream);
        fn cuMemsetD8Async_ptsz(to: u64, value: c_uchar, count: usize, stream: CUstream);
        fn cuMemsetD16_v2(to: u64, value: c_ushort, count: usize);
        fn cuMemsetD16_v2_ptds(to: u64, value: c_ushort, count: usize);
        fn cuMemsetD16Async(to: u64, value: c_ushort, count: usize, stream: CUstream);
        fn cuMemsetD16Async_ptsz(to: u64, value: c_ushort, count: usize, stream: CUstream);
        fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize);
        fn cuMemsetD32_v2_ptds(to: u64, value: c_uint, count: usize);
        fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: CUstream);
        fn cuMemsetD32Async_ptsz(to: u64, value: c_uint, count: usize, stream: CUstream);
        fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: c_uchar, width: usize, height: usize);
        fn cuMemsetD2D8_v2_ptds(to: u64, pitch: usize, value: c_uchar, width: usize, height: usize);
        fn cuMemsetD2D8Async(to: u64, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream);
        fn cuMemsetD2D8Async_ptsz(to: u64, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream);
        fn cuMemsetD2D16_v2(to: u64, pitch: usize, value: c_ushort, width: usize, height: usize);
        fn cuMemsetD2D16_v2_ptds(to: u64, pitch: usize, value: c_ushort, width: usize, height: usize);
        fn cuMemsetD2D16Async(to: u64, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream);
        fn cuMemsetD2D16Async_ptsz(to: u64, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream);
        fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: c_uint, width: usize, height: usize);
        fn cuMemsetD2D32_v2_ptds(to: u64, pitch: usize, value: c_uint, width: usize, height: usize);
        fn cuMemsetD2D32Async(to: u64, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream);
        fn cuMemsetD2D32Async_ptsz(to: u64, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream);
    }
}

/// Makes the hooks: of copies, of fills in a row with the size of their elements, and of fills in rows. Each in four kinds: with
/// a stream or without, for either default stream.
macro_rules! within {
    (
        copies { $($copy:ident in $copy_default:ident $(with $copy_stream:ident)?;)* }
        rows { $($fill:ident of $value:ident in $fill_default:ident $(with $fill_stream:ident)?;)* }
        planes { $($plane:ident of $plane_value:ident in $plane_default:ident $(with $plane_stream:ident)?;)* }
    ) => {
        $(unsafe extern "C" fn $copy(to: u64, from: u64, bytes: usize $(, $copy_stream: CUstream)?) -> CUresult {
            let stream = within!(@stream $copy_default $($copy_stream)?);
            copy(to, from, bytes, stream, |at, bytes| {
                // SAFETY: the arguments are the program's, or a part of the range that they say.
                unsafe { real::$copy(to.wrapping_add(at as u64), from.wrapping_add(at as u64), bytes $(, $copy_stream)?) }
            })
        })*
        $(unsafe extern "C" fn $fill(to: u64, value: $value, count: usize $(, $fill_stream: CUstream)?) -> CUresult {
            let stream = within!(@stream $fill_default $($fill_stream)?);
            elements(stream, count, size_of::<$value>(), |at, count| {
                let to = to.wrapping_add((at * size_of::<$value>()) as u64);
                // SAFETY: as above.
                unsafe { real::$fill(to, value, count $(, $fill_stream)?) }
            })
        })*
        $(unsafe extern "C" fn $plane(
            to: u64, pitch: usize, value: $plane_value, width: usize, height: usize $(, $plane_stream: CUstream)?
        ) -> CUresult {
            let stream = within!(@stream $plane_default $($plane_stream)?);
            // SAFETY: the arguments are the program's, passed on as they are.
            whole(stream, || unsafe { real::$plane(to, pitch, value, width, height $(, $plane_stream)?) })
        })*

        /// The hooks of this module.
        pub(crate) static HOOKS: &[Hook] = hooks![$($copy,)* $($fill,)* $($plane),*];
    };
    (@stream $default:ident $stream:ident) => { meant($stream, $default) };
    (@stream $default:ident) => { $default };
}

within! {
    copies {
        cuMemcpyDtoD_v2 in LEGACY;
        cuMemcpyDtoD_v2_ptds in PER_THREAD;
        cuMemcpyDtoDAsync_v2 in LEGACY with stream;
        cuMemcpyDtoDAsync_v2_ptsz in PER_THREAD with stream;
    }
    rows {
        cuMemsetD8_v2 of c_uchar in LEGACY;
        cuMemsetD8_v2_ptds of c_uchar in PER_THREAD;
        cuMemsetD8Async of c_uchar in LEGACY with stream;
        cuMemsetD8Async_ptsz of c_uchar in PER_THREAD with stream;
        cuMemsetD16_v2 of c_ushort in LEGACY;
        cuMemsetD16_v2_ptds of c_ushort in PER_THREAD;
        cuMemsetD16Async of c_ushort in LEGACY with stream;
        cuMemsetD16Async_ptsz of c_ushort in PER_THREAD with stream;
        cuMemsetD32_v2 of c_uint in LEGACY;
        cuMemsetD32_v2_ptds of c_uint in PER_THREAD;
        cuMemsetD32Async of c_uint in LEGACY with stream;
        cuMemsetD32Async_ptsz of c_uint in PER_THREAD with stream;
    }
    planes {
        cuMemsetD2D8_v2 of c_uchar in LEGACY;
        cuMemsetD2D8_v2_ptds of c_uchar in PER_THREAD;
        cuMemsetD2D8Async of c_uchar in LEGACY with stream;
        cuMemsetD2D8Async_ptsz of c_uchar in PER_THREAD with stream;
        cuMemsetD2D16_v2 of c_ushort in LEGACY;
        cuMemsetD2D16_v2_ptds of c_ushort in PER_THREAD;
        cuMemsetD2D16Async of c_ushort in LEGACY with stream;
        cuMemsetD2D16Async_ptsz of c_ushort in PER_THREAD with stream;
        cuMemsetD2D32_v2 of c_uint in LEGACY;
        cuMemsetD2D32_v2_ptds of c_uint in PER_THREAD;
        cuMemsetD2D32Async of c_uint in LEGACY with stream;
        cuMemsetD2D32Async_ptsz of c_uint in PER_THREAD with stream;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn cut(count: usize, piece: usize) -> Vec<(usize, usize)> {
        let seen = RefCell::new(Vec::new());
        let result = pieces(count, piece, |from, count| {
            seen.borrow_mut().push((from, count));
            CUresult::SUCCESS
        });
        assert_eq!(result, CUresult::SUCCESS);
        seen.into_inner()
    }

    #[test]
    fn s1_pieces_cover_all_of_it_once() {
        assert_eq!(cut(10, 4), [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(cut(8, 4), [(0, 4), (4, 4)]);
        assert_eq!(cut(3, 4), [(0, 3)]);
        assert_eq!(cut(0, 0), [(0, 0)]);
    }

    #[test]
    fn s3_the_first_error_ends_it() {
        let calls = RefCell::new(0);
        let result = pieces(10, 4, |from, _| {
            *calls.borrow_mut() += 1;
            if from == 4 { CUresult::NOT_SUPPORTED } else { CUresult::SUCCESS }
        });
        assert_eq!((result, calls.into_inner()), (CUresult::NOT_SUPPORTED, 2));
    }
}
