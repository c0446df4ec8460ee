//! Puts a copy into its stream, cut into packets with a gate before each.
//!
//! For a copy of three packets the program's stream gets this, all of it before the call returns:
//!
//! ```text
//! mark 1, gate 1; packet 0; mark 2, gate 2; packet 1; mark 3, gate 3; packet 2; mark 4
//! ```
//!
//! A mark is a word of host memory that the device writes, a gate one that it waits at. What the program puts into
//! the stream before and after keeps its order by itself, whatever kind of stream it is; so do its events, queries and
//! errors. Nobody has to call the driver for the copy to go on: the copier writes words. That is why it cannot hang
//! behind a lock of the driver, which a thread may hold that waits for this very copy (loading a module, freeing
//! memory, a full queue).
//!
//! A queue of the driver holds about a thousand commands, and who fills it blocks all threads of the process until it
//! drains. So a large copy goes as *parts* of at most [`PART_PACKETS`] packets, of which two are in the stream at a
//! time: the call waits outside the driver while earlier parts go through. If nothing moves for [`PATIENCE_NS`] the
//! copy may be waiting for something that this very thread is to do later: then the rest goes in with larger packets,
//! few enough not to fill the queue, and the call returns.
//!
//! Every second packet in a second stream, so that the device walks to the next gate while a packet is on the link, was
//! tried first. On an H200 the link gains little by it (1 MiB packets: 45.0 for 42.9 GB/s), and while either stream has
//! something to do, the device does not let another process at the copy engine.

use std::sync::atomic::Ordering;

use super::copier::Desk;
use super::driver::{Code, Driver, Mark, Stream};
use super::pool::Pool;
use super::turns::Cut;
use super::words::{Slot, Ticket};

/// Packets of a part: 96 MiB at the default packet size, 2 ms of a PCIe 5 link. A packet is three commands, and three parts
/// may be in the stream at a time: 576 commands.
pub(super) const PART_PACKETS: u64 = 64;

/// How long a call waits for a part that does not move.
pub(super) const PATIENCE_NS: u64 = 2_000_000;

/// Where things are put.
pub(super) struct Place<'a, D> {
    pub(super) driver: &'a D,
    pub(super) pool: &'static Pool,
    pub(super) desk: &'a Desk,
    pub(super) stream: Stream,
}

impl<D> Clone for Place<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Place<'_, D> {}

/// A whole copy.
pub(super) struct Job<'a, W> {
    pub(super) what: &'a W,
    pub(super) direction: usize,
    /// More than zero.
    pub(super) bytes: u64,
    /// The most that may go at once, more than zero.
    pub(super) packet: u64,
    /// What packets must be multiples of; a packet is at least this.
    pub(super) grain: u64,
}

/// Puts a copy into its stream. Returns a ticket for its last part, or none where it went straight to the driver.
///
/// # Errors
/// What the driver returned; part of the copy may be in the stream then, as with the driver alone.
pub(super) fn submit<D: Driver>(place: Place<'_, D>, job: &Job<'_, D::What>) -> Result<Option<Ticket>, Code> {
    let packet = (job.packet / job.grain).max(1) * job.grain;
    let mut parts: [Option<Ticket>; 2] = [None, None];
    let mut offset = 0;
    let mut largest = packet;
    while offset < job.bytes {
        let rest = job.bytes - offset;
        if let Some(earlier) = parts[0]
            && largest == packet
            && !moves_on(place.driver, &earlier)
        {
            largest = rest.div_ceil(PART_PACKETS).div_ceil(job.grain).max(1) * job.grain;
            largest = largest.max(packet);
        }
        let bytes = rest.min(largest * PART_PACKETS);
        let cut = Cut { bytes, packet: largest };
        match part(place, job, offset, cut)? {
            Some(ticket) => parts = [parts[1], Some(ticket)],
            None => {
                place.driver.copy(place.stream, job.what, offset, rest)?;
                place.desk.count_direct(job.direction, rest);
                return Ok(None);
            }
        }
        offset += bytes;
    }
    Ok(parts[1])
}

/// Waits until a part is through. False: it does not move.
fn moves_on(driver: &impl Driver, part: &Ticket) -> bool {
    let (mut trace, mut since) = (part.trace(), driver.now());
    while !part.is_over() {
        driver.nap();
        let (seen, now) = (part.trace(), driver.now());
        if seen != trace {
            (trace, since) = (seen, now);
        } else if now.saturating_sub(since) > PATIENCE_NS {
            return false;
        }
    }
    true
}

/// Puts one part into the stream. None: nothing has been put there, because the driver or the pool does not have what
/// it takes.
fn part<D: Driver>(
    place: Place<'_, D>,
    job: &Job<'_, D::What>,
    offset: u64,
    cut: Cut,
) -> Result<Option<Ticket>, Code> {
    let Some(slot) = place.pool.slot(place.driver) else { return Ok(None) };
    let ticket = Ticket::new(&slot, &cut);
    // The copier must know the slot before the device writes to it, so it gets a view; the slot comes when all is in
    // the stream.
    let id = place.desk.announce(job.direction, cut, offset + cut.bytes == job.bytes, &slot);
    let failure = match enqueue(place, job, offset, &cut, &slot) {
        // A copy that failed takes its turn all the same, with less to do.
        result @ (Ok(()) | Err(Failure::Copy(_))) => {
            place.desk.entrust(id, slot, place.pool);
            result
        }
        // The device may still come to what is there: the gates are opened, and the slot is not used again.
        Err(failure) => {
            place.desk.withdraw(id);
            Err(failure)
        }
    };
    match failure {
        Ok(()) => Ok(Some(ticket)),
        Err(Failure::Nothing) => Ok(None),
        Err(Failure::Copy(code) | Failure::Stuck(code)) => Err(code),
    }
}

/// How far it got when a call failed.
enum Failure {
    /// Nothing is in the stream.
    Nothing,
    /// A copy was refused; all marks are in the streams.
    Copy(Code),
    /// Marks are missing.
    Stuck(Code),
}

fn enqueue<D: Driver>(
    place: Place<'_, D>,
    job: &Job<'_, D::What>,
    offset: u64,
    cut: &Cut,
    slot: &Slot,
) -> Result<(), Failure> {
    // Says that so many packets are through, and holds the stream until one more may go.
    let mark = |packets| Mark::Write { address: slot.progress_address(), value: slot.value(packets + 1) };
    let gate = |packets| Mark::Wait { address: slot.gate_address(), value: slot.value(packets + 1) };
    let mut copied = Ok(());
    for packet in 0..cut.packets() {
        let held = place.driver.marks(place.stream, &[mark(packet), gate(packet)]);
        held.map_err(|code| if packet == 0 { Failure::Nothing } else { Failure::Stuck(code) })?;
        let (from, to) = (cut.before(packet), cut.before(packet + 1));
        copied = place.driver.copy(place.stream, job.what, offset + from, to - from);
        if copied.is_err() {
            break;
        }
    }
    place.driver.marks(place.stream, &[mark(cut.packets())]).map_err(Failure::Stuck)?;
    copied.map_err(Failure::Copy)
}

/// Waits on the host until a copy is through.
///
/// # Errors
/// What is wrong with its stream.
pub(super) fn finish<D: Driver>(place: Place<'_, D>, ticket: &Ticket) -> Result<(), Code> {
    /// A copy that does not end is looked at this often, in naps.
    const LOOK: u32 = 64;
    let mut naps = 0;
    while !ticket.is_over() {
        place.driver.nap();
        naps += 1;
        if naps % LOOK == 0 {
            place.driver.trouble(place.stream)?;
        }
    }
    std::sync::atomic::fence(Ordering::Acquire);
    Ok(())
}
