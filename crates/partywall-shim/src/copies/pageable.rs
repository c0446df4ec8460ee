//! Copies from or to memory that is not pinned, through a few pinned buffers.
//!
//! The caller waits, as it does with the driver alone: the program may use its memory again when the call returns,
//! and what was copied to the host is there. At most [`MAX_BUFFERS`] pieces are under way; each goes as a copy of its
//! own, in the program's stream and in turn with others.

use std::collections::VecDeque;
use std::ptr;

use super::cuda::What;
use super::driver::{Code, Driver};
use super::pool::{BUFFER_BYTES, Buffer, MAX_BUFFERS};
use super::submit::{Job, Place, finish, submit};
use super::words::Ticket;

#[cfg(test)]
mod tests;

/// A piece under way.
struct Piece {
    buffer: Buffer,
    /// None: it went straight to the driver.
    ticket: Option<Ticket>,
    offset: usize,
    bytes: usize,
}

/// Copies and waits. `Ok(false)`: nothing was done, because there is no pinned memory.
///
/// # Errors
/// What the driver returned, or what is wrong with the stream.
///
/// # Safety
/// The host's memory of `what` is what the program vouches for: `bytes` that may be read or written.
pub(super) unsafe fn copy<D: Driver<What = What>>(
    place: Place<'_, D>,
    what: What,
    bytes: usize,
    packet: u64,
) -> Result<bool, Code> {
    let (direction, host) = match what {
        What::In { from, .. } => (0, from),
        What::Out { to, .. } => (1, to),
        What::Rows(_) | What::Planes { .. } => return Ok(false),
    };
    let mut under_way: VecDeque<Piece> = VecDeque::with_capacity(MAX_BUFFERS);
    let (mut offset, mut result) = (0, Ok(()));
    loop {
        let more = offset < bytes && result.is_ok();
        let next = if more { place.pool.buffer(place.driver, direction) } else { Ok(None) };
        match (next, under_way.is_empty()) {
            (Ok(Some(buffer)), _) => {
                let length = (bytes - offset).min(BUFFER_BYTES).min(packet as usize);
                // SAFETY: `offset` and `length` are within the program's memory and the buffer, which is ours alone.
                match unsafe { begin(place, what, host, &buffer, offset, length) } {
                    Ok(ticket) => under_way.push_back(Piece { buffer, ticket, offset, bytes: length }),
                    Err(code) => {
                        result = Err(code);
                        put_back(place, direction, buffer, place.driver.drain(place.stream).is_ok());
                    }
                }
                offset += length;
            }
            (_, false) => {
                let Some(piece) = under_way.pop_front() else { continue };
                // SAFETY: the program's memory, of which the piece is a part.
                let end = unsafe { end(place, what, &piece) };
                put_back(place, direction, piece.buffer, end.is_ok());
                result = result.and(end);
            }
            (Err(_), true) if offset == 0 => return Ok(false),
            (Err(code), true) => result = Err(code),
            // All buffers are with other threads.
            (Ok(None), true) if more => place.driver.nap(),
            (Ok(None), true) => return result.map(|()| true),
        }
    }
}

/// Gives a buffer back, unless the device may still be at it.
fn put_back<D: Driver>(place: Place<'_, D>, direction: usize, buffer: Buffer, free: bool) {
    if free {
        place.pool.put_buffer(direction, buffer);
    } else {
        place.pool.lose_buffer(direction);
    }
}

/// Waits for a piece and, on the way to the host, hands over what came.
///
/// # Safety
/// The piece is within the program's memory.
unsafe fn end<D: Driver>(place: Place<'_, D>, what: What, piece: &Piece) -> Result<(), Code> {
    match &piece.ticket {
        Some(ticket) => finish(place, ticket)?,
        None => place.driver.drain(place.stream)?,
    }
    if let What::Out { to, .. } = what {
        // SAFETY: the device has filled the buffer; the target is the program's memory, as the caller says.
        unsafe { move_bytes(piece.buffer.address, to + piece.offset, piece.bytes) };
    }
    Ok(())
}

/// Puts a piece into the stream.
///
/// # Safety
/// `bytes` from `offset` on are within the program's memory at `host`, and fit the buffer, which nobody else uses.
unsafe fn begin<D: Driver<What = What>>(
    place: Place<'_, D>,
    what: What,
    host: usize,
    buffer: &Buffer,
    offset: usize,
    bytes: usize,
) -> Result<Option<Ticket>, Code> {
    let (direction, what) = match what {
        What::In { to, .. } => {
            // SAFETY: as the caller says.
            unsafe { move_bytes(host + offset, buffer.address, bytes) };
            (0, What::In { to: to + offset as u64, from: buffer.address })
        }
        What::Out { from, .. } => (1, What::Out { to: buffer.address, from: from + offset as u64 }),
        What::Rows(_) | What::Planes { .. } => (0, what),
    };
    submit(place, &Job { what: &what, direction, bytes: bytes as u64, packet: bytes as u64, grain: 1 })
}

/// # Safety
/// Both ranges are readable and writable respectively, and do not overlap.
unsafe fn move_bytes(from: usize, to: usize, bytes: usize) {
    let (from, to) = (ptr::with_exposed_provenance::<u8>(from), ptr::with_exposed_provenance_mut::<u8>(to));
    // SAFETY: as the caller says.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
}
