//! Copies.
//!
//! Host memory that is not pinned may change as soon as the call returns: small sources are taken along, and everything else
//! is waited for, as the driver does.

use std::sync::Arc;

use crate::abi::{Copy2D, Copy3D, In};
use crate::api::{ready, stream, submit_and_wait};
use crate::engine::operation::{Copy, Operation, Place, Way};
use crate::engine::stream::node_kind;
use crate::error::Code;
use crate::process::Process;

/// The driver stages pageable sources up to this without waiting for them: documented.
const STAGED: u64 = 64 << 10;

/// `CUmemorytype`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

api! {
    fn cuMemcpy / cuMemcpy_ptds (to: u64, from: u64, bytes: usize) {
        wait_for(unified(ready()?, to, from, bytes)?)
    }

    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds (to: u64, from: u64, bytes: usize) {
        wait_for(line(ready()?, Way::ToDevice, to, from, bytes)?)
    }

    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds (to: u64, from: u64, bytes: usize) {
        wait_for(line(ready()?, Way::ToHost, to, from, bytes)?)
    }

    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds (to: u64, from: u64, bytes: usize) {
        wait_for(line(ready()?, Way::OnDevice, to, from, bytes)?)
    }

    fn cuMemcpyPeer / cuMemcpyPeer_ptds (to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize) {
        wait_for(line(ready()?, Way::OnDevice, to, from, bytes)?)
    }

    fn cuMemcpyAsync / cuMemcpyAsync_ptsz (to: u64, from: u64, bytes: usize, on: u64) {
        send(unified(ready()?, to, from, bytes)?, on)
    }

    fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz (to: u64, from: u64, bytes: usize, on: u64) {
        send(line(ready()?, Way::ToDevice, to, from, bytes)?, on)
    }

    fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz (to: u64, from: u64, bytes: usize, on: u64) {
        send(line(ready()?, Way::ToHost, to, from, bytes)?, on)
    }

    fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz (to: u64, from: u64, bytes: usize, on: u64) {
        send(line(ready()?, Way::OnDevice, to, from, bytes)?, on)
    }

    fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz (
        to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize, on: u64,
    ) {
        send(line(ready()?, Way::OnDevice, to, from, bytes)?, on)
    }

    fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds (copy: In<Copy2D>) {
        wait_for(plane(ready()?, &copy.get()?)?)
    }

    fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds (copy: In<Copy2D>) {
        wait_for(plane(ready()?, &copy.get()?)?)
    }

    fn cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz (copy: In<Copy2D>, on: u64) {
        send(plane(ready()?, &copy.get()?)?, on)
    }

    fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds (copy: In<Copy3D>) {
        wait_for(space(ready()?, &copy.get()?)?)
    }

    fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz (copy: In<Copy3D>, on: u64) {
        send(space(ready()?, &copy.get()?)?, on)
    }
}

/// A copy of bytes in a row.
fn line(process: &Process, way: Way, to: u64, from: u64, bytes: usize) -> Result<Copy, Code> {
    let place = |address| Place { address, pitch: 0, plane: 0 };
    let (source, destination) = (place(from), place(to));
    checked(
        process,
        Copy { way, source, destination, width: bytes as u64, height: 1, depth: 1, staged: None },
    )
}

/// The same where the addresses say which way it goes.
fn unified(process: &Process, to: u64, from: u64, bytes: usize) -> Result<Copy, Code> {
    line(process, way(on_device(process, from), on_device(process, to)), to, from, bytes)
}

fn on_device(process: &Process, address: u64) -> bool {
    process.memory.addresses.find(address).is_some_and(|span| span.kind.on_device())
}

fn way(from_device: bool, to_device: bool) -> Way {
    match (from_device, to_device) {
        (false, true) => Way::ToDevice,
        (true, false) => Way::ToHost,
        (true, true) => Way::OnDevice,
        (false, false) => Way::OnHost,
    }
}

fn plane(process: &Process, copy: &Copy2D) -> Result<Copy, Code> {
    space(
        process,
        &Copy3D {
            src_x: copy.src_x,
            src_y: copy.src_y,
            src_kind: copy.src_kind,
            src_host: copy.src_host,
            src_device: copy.src_device,
            src_array: copy.src_array,
            src_pitch: copy.src_pitch,
            dst_x: copy.dst_x,
            dst_y: copy.dst_y,
            dst_kind: copy.dst_kind,
            dst_host: copy.dst_host,
            dst_device: copy.dst_device,
            dst_array: copy.dst_array,
            dst_pitch: copy.dst_pitch,
            width: copy.width,
            height: copy.height,
            depth: 1,
            ..Copy3D::default()
        },
    )
}

/// A copy of planes of rows. Arrays are not simulated further than their memory.
pub(super) fn space(process: &Process, copy: &Copy3D) -> Result<Copy, Code> {
    let side = |kind, host, device| match kind {
        HOST => Ok((host, false)),
        DEVICE => Ok((device, true)),
        UNIFIED => Ok((device, on_device(process, device))),
        ARRAY => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_VALUE),
    };
    let (from, from_device) = side(copy.src_kind, copy.src_host, copy.src_device)?;
    let (to, to_device) = side(copy.dst_kind, copy.dst_host, copy.dst_device)?;
    let place = |address: u64, (x, y, z): (usize, usize, usize), pitch: usize, rows: usize| {
        let pitch = if pitch == 0 { copy.width } else { pitch };
        let rows = if rows == 0 { copy.height } else { rows };
        if pitch < copy.width && copy.height > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let plane = pitch.checked_mul(rows).ok_or(Code::INVALID_VALUE)?;
        let offset = plane
            .checked_mul(z)
            .zip(pitch.checked_mul(y))
            .and_then(|(planes, rows)| planes.checked_add(rows)?.checked_add(x));
        let address =
            address.checked_add(offset.ok_or(Code::INVALID_VALUE)? as u64).ok_or(Code::INVALID_VALUE)?;
        Ok(Place { address, pitch: pitch as u64, plane: plane as u64 })
    };
    let source = place(from, (copy.src_x, copy.src_y, copy.src_z), copy.src_pitch, copy.src_height)?;
    let destination = place(to, (copy.dst_x, copy.dst_y, copy.dst_z), copy.dst_pitch, copy.dst_height)?;
    let [width, height, depth] = [copy.width, copy.height, copy.depth].map(|size| size as u64);
    checked(
        process,
        Copy { way: way(from_device, to_device), source, destination, width, height, depth, staged: None },
    )
}

/// Whether what is said to be device memory is.
fn checked(process: &Process, copy: Copy) -> Result<Copy, Code> {
    process.current()?;
    let known = |place: &Place, device: bool| {
        let reach = place.reach(copy.width, copy.height, copy.depth);
        let addresses = &process.memory.addresses;
        reach == 0 || if device { addresses.covers(place.address, reach, true) } else { place.address != 0 }
    };
    let from_device = matches!(copy.way, Way::ToHost | Way::OnDevice);
    let to_device = matches!(copy.way, Way::ToDevice | Way::OnDevice);
    // With unified addresses, pinned memory may be called device memory.
    let pinned = |place: &Place| {
        let reach = place.reach(copy.width, copy.height, copy.depth);
        process.memory.addresses.covers(place.address, reach.max(1), false)
    };
    let from_known = known(&copy.source, from_device) || pinned(&copy.source);
    let to_known = known(&copy.destination, to_device) || pinned(&copy.destination);
    if !from_known || !to_known {
        return Err(Code::INVALID_VALUE);
    }
    let really = |said: bool, place: &Place| said && (copy.bytes() == 0 || on_device(process, place.address));
    let way = way(really(from_device, &copy.source), really(to_device, &copy.destination));
    Ok(Copy { way, ..copy })
}

fn wait_for(copy: Copy) -> Result<(), Code> {
    submit_and_wait(ready()?, Operation::Copy(Arc::new(copy)))
}

fn send(copy: Copy, on: u64) -> Result<(), Code> {
    let process = ready()?;
    let stream = stream(process, on)?;
    let from_host = matches!(copy.way, Way::ToDevice | Way::OnHost);
    let to_host = matches!(copy.way, Way::ToHost | Way::OnHost);
    let pageable = |place: &Place| process.memory.addresses.find(place.address).is_none();
    let loose_source = from_host && pageable(&copy.source);
    let loose_destination = to_host && pageable(&copy.destination);
    let mut copy = copy;
    let captured = stream.capture().is_some();
    let stage = loose_source && !captured && copy.bytes() <= STAGED;
    if stage {
        let reach = copy.source.reach(copy.width, copy.height, copy.depth) as usize;
        // SAFETY: the caller promised that so many bytes can be read there until the call returns.
        let bytes = unsafe { std::slice::from_raw_parts(copy.source.address as *const u8, reach) };
        copy.staged = Some(Arc::new(bytes.to_vec()));
    }
    let waits = !captured && ((loose_source && !stage) || loose_destination);
    let operation = Operation::Copy(Arc::new(copy));
    let number = stream.submit(process, node_kind(&operation), operation)?;
    if waits { stream.wait(process, number) } else { Ok(()) }
}
