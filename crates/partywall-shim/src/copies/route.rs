//! Which way a copy goes: straight to the driver, or in packets.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering;

use super::cuda::{self, Cuda, Kind, MEMORY_HOST, MEMORY_UNIFIED, Planes, Rows, What};
use super::driver::Stream;
use super::submit::{Job, Place, submit};
use super::{announce, gate, pageable, shared};
use crate::launch::{busy, within};
use crate::node;
use crate::process::page;
use crate::sys::CUresult;

const IN: usize = 0;
const OUT: usize = 1;

/// Whether a copy goes straight to the driver, for its size or because nobody decides.
#[inline]
fn is_small(direction: usize, bytes: usize) -> bool {
    let node = &page().node;
    node.copies_decided.load(Ordering::Relaxed) == 0
        || bytes as u64 <= node.direct_max_bytes[direction].load(Ordering::Relaxed)
}

/// Whether a copy of which nobody has said which way it goes goes straight to the driver in any case.
#[inline]
fn is_small_anyway(bytes: usize) -> bool {
    !within::is_large(bytes) && is_small(IN, bytes) && is_small(OUT, bytes)
}

/// Counts a copy that goes straight to the driver.
#[inline]
fn count(direction: usize, bytes: usize) {
    let side = &page().shim.copies[direction];
    side.direct_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    side.direct_copies.fetch_add(1, Ordering::Relaxed);
}

/// The largest packet that the node wants.
fn packet() -> u64 {
    page().node.packet_bytes.load(Ordering::Relaxed).max(1)
}

/// A copy that may go in packets.
struct Request {
    what: What,
    direction: usize,
    /// First byte in the host's memory, and how far the end of the last one is from it.
    host: usize,
    span: usize,
    bytes: usize,
    /// What packets are multiples of.
    grain: usize,
    /// Into how many copies of the same size it is taken apart first: more than one for planes larger than packets.
    parts: usize,
}

/// Puts a copy into its stream in packets. None: it is to go straight to the driver.
#[cold]
fn gated(request: &Request, stream: Stream, blocks: bool) -> Option<CUresult> {
    let Request { what, direction, .. } = *request;
    let gate = gate()?;
    let last = (request.host + request.span.max(1) - 1) as u64;
    let pinned = match (cuda::kind(request.host as u64), cuda::kind(last)) {
        (Kind::Pinned, Kind::Pinned) => true,
        (Kind::Pinned | Kind::Pageable, Kind::Pinned | Kind::Pageable) => false,
        _ => return None,
    };
    if !cuda::runs(stream) || !(pinned || matches!(what, What::In { .. } | What::Out { .. })) {
        return None;
    }
    let shared = shared()?;
    let driver = Cuda { gate };
    // A node that sleeps wakes up while the packets are put into the stream, at the same time as the copier.
    node::ring();
    let place = Place { driver: &driver, pool: shared.pool(gate)?, desk: &shared.desk, stream };
    if !pinned {
        // SAFETY: the program vouches for its memory as it does towards the driver.
        return match unsafe { pageable::copy(place, what, request.bytes, packet()) } {
            Ok(true) => Some(CUresult::SUCCESS),
            Ok(false) => None,
            Err(code) => Some(code),
        };
    }
    let (bytes, grain) = ((request.bytes / request.parts) as u64, request.grain as u64);
    for part in 0..request.parts {
        let what = what.part(part);
        if let Err(code) = submit(place, &Job { what: &what, direction, bytes, packet: packet(), grain }) {
            return Some(code);
        }
    }
    Some(if blocks { cuda::synchronize(stream) } else { CUresult::SUCCESS })
}

/// Has a copy go in packets, or passes it on. Who waits for a copy to the host has waited for what it copies.
#[inline]
fn route(
    way: (usize, usize),
    stream: Stream,
    blocks: bool,
    request: impl FnOnce() -> Request,
    pass: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = send(way, stream, blocks, request, pass);
    if blocks && way.0 == OUT && result == CUresult::SUCCESS {
        busy::waited(false);
    }
    result
}

#[inline]
fn send(
    (direction, bytes): (usize, usize),
    stream: Stream,
    blocks: bool,
    request: impl FnOnce() -> Request,
    pass: impl FnOnce() -> CUresult,
) -> CUresult {
    if !is_small(direction, bytes)
        && let Some(result) = gated(&request(), stream, blocks)
    {
        return result;
    }
    count(direction, bytes);
    if page().node.announce[direction].load(Ordering::Relaxed) != 0 {
        return announce::straight(direction, stream, blocks, pass);
    }
    pass()
}

/// From the host to the device.
#[inline]
pub(super) fn to_device(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: Stream,
    blocks: bool,
    pass: impl FnOnce() -> CUresult,
) -> CUresult {
    let request = || {
        let host = from.expose_provenance();
        let what = What::In { to, from: host };
        Request { what, direction: IN, host, span: bytes, bytes, grain: 1, parts: 1 }
    };
    route((IN, bytes), stream, blocks, request, pass)
}

/// From the device to the host.
#[inline]
pub(super) fn to_host(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: Stream,
    blocks: bool,
    pass: impl FnOnce() -> CUresult,
) -> CUresult {
    let request = || {
        let host = to.expose_provenance();
        let what = What::Out { to: host, from };
        Request { what, direction: OUT, host, span: bytes, bytes, grain: 1, parts: 1 }
    };
    route((OUT, bytes), stream, blocks, request, pass)
}

/// Between any two addresses: the driver tells host and device apart.
pub(super) fn between(
    to: u64,
    from: u64,
    bytes: usize,
    stream: Stream,
    blocks: bool,
    pass: impl FnOnce() -> CUresult,
) -> CUresult {
    if is_small_anyway(bytes) {
        return pass();
    }
    let is_host = |kind| matches!(kind, Kind::Pinned | Kind::Pageable);
    match (cuda::kind(to), cuda::kind(from)) {
        (Kind::Device, kind) if is_host(kind) => {
            to_device(to, ptr::with_exposed_provenance(from as usize), bytes, stream, blocks, pass)
        }
        (kind, Kind::Device) if is_host(kind) => {
            to_host(ptr::with_exposed_provenance_mut(to as usize), from, bytes, stream, blocks, pass)
        }
        (Kind::Device, Kind::Device) if within::is_large(bytes) => within::between(to, from, bytes, stream),
        _ => pass(),
    }
}

/// One side of a copy of rows.
struct Side {
    kind: u32,
    host: usize,
    device: u64,
    /// Bytes from there to the first one that is copied.
    offset: usize,
    /// Bytes from row to row and from plane to plane.
    pitch: usize,
    plane: usize,
}

impl Side {
    /// Where the copy begins in the host's memory, if this side is there. With unified addresses the address is in the
    /// field for the device's memory.
    fn host(&self) -> Option<usize> {
        let address = match self.kind {
            MEMORY_HOST => self.host,
            MEMORY_UNIFIED => self.device as usize,
            _ => return None,
        };
        let is_host =
            self.kind == MEMORY_HOST || matches!(cuda::kind(address as u64), Kind::Pinned | Kind::Pageable);
        is_host.then_some(address.wrapping_add(self.offset))
    }
}

/// Which way a copy between two sides goes, where it begins in the host's memory and how far it reaches there; none
/// if it is not between host and device.
fn over_the_link(
    from: &Side,
    to: &Side,
    (width, height, depth): (usize, usize, usize),
) -> Option<(usize, usize, usize)> {
    let (direction, host, side) = match (from.host(), to.host()) {
        (Some(host), None) => (IN, host, from),
        (None, Some(host)) => (OUT, host, to),
        _ => return None,
    };
    // What does not fit is the driver's to refuse.
    let rows = side.pitch.checked_mul(height - 1)?;
    let planes = side.plane.checked_mul(depth - 1)?;
    Some((direction, host, rows.checked_add(planes)?.checked_add(width)?))
}

/// Rows, if they go between host and device.
pub(super) fn rows(
    copy: *const Rows,
    stream: Stream,
    blocks: bool,
    pass: impl FnOnce() -> CUresult,
) -> CUresult {
    // SAFETY: null or the program's description of a copy, which it vouches for.
    let Some(&rows) = (unsafe { copy.as_ref() }) else { return pass() };
    let bytes = rows.width.saturating_mul(rows.height);
    if bytes == 0 || is_small_anyway(bytes) {
        return pass();
    }
    let offset = |x: usize, y: usize, pitch: usize| x.wrapping_add(y.wrapping_mul(pitch));
    let from = Side {
        kind: rows.src_type,
        host: rows.src_host.expose_provenance(),
        device: rows.src_device,
        offset: offset(rows.src_x, rows.src_y, rows.src_pitch),
        pitch: rows.src_pitch,
        plane: 0,
    };
    let to = Side {
        kind: rows.dst_type,
        host: rows.dst_host.expose_provenance(),
        device: rows.dst_device,
        offset: offset(rows.dst_x, rows.dst_y, rows.dst_pitch),
        pitch: rows.dst_pitch,
        plane: 0,
    };
    let Some((direction, host, span)) = over_the_link(&from, &to, (rows.width, rows.height, 1)) else {
        return within::whole(stream, pass);
    };
    let what = What::Rows(rows);
    let request = || Request { what, direction, host, span, bytes, grain: rows.width, parts: 1 };
    route((direction, bytes), stream, blocks, request, pass)
}

/// Planes, if they go between host and device: whole planes at a time, or one after the other by rows where a plane is
/// larger than a packet.
pub(super) fn planes(
    copy: *const Planes,
    stream: Stream,
    blocks: bool,
    pass: impl FnOnce() -> CUresult,
) -> CUresult {
    // SAFETY: null or the program's description of a copy, which it vouches for.
    let Some(&planes) = (unsafe { copy.as_ref() }) else { return pass() };
    let plane = planes.width.saturating_mul(planes.height);
    let bytes = plane.saturating_mul(planes.depth);
    if bytes == 0 || is_small_anyway(bytes) {
        return pass();
    }
    let side = |kind, host, device, (x, y, z): (usize, usize, usize), pitch: usize, height: usize| Side {
        kind,
        host,
        device,
        offset: x.wrapping_add(pitch.wrapping_mul(y.wrapping_add(z.wrapping_mul(height)))),
        pitch,
        plane: pitch.saturating_mul(height),
    };
    let (src, dst) = (&planes.src, &planes.dst);
    let from = side(
        src.kind,
        src.host.expose_provenance(),
        src.device,
        (src.x, src.y, src.z),
        src.pitch,
        src.height,
    );
    let to = side(
        dst.kind,
        dst.host.expose_provenance(),
        dst.device,
        (dst.x, dst.y, dst.z),
        dst.pitch,
        dst.height,
    );
    let size = (planes.width, planes.height, planes.depth);
    let Some((direction, host, span)) = over_the_link(&from, &to, size) else {
        return within::whole(stream, pass);
    };
    let request = || {
        let by_row = plane as u64 > packet();
        let (grain, parts) = if by_row { (planes.width, planes.depth) } else { (plane, 1) };
        Request { what: What::Planes { planes, by_row }, direction, host, span, bytes, grain, parts }
    };
    route((direction, bytes), stream, blocks, request, pass)
}
