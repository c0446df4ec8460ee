//! What copies of one context borrow: slots of words and pinned buffers. All bounded, all kept for the next copy.
//!
//! Nothing here is given back to the driver: a context takes it along when it goes. Locks are held for a push or a
//! pop only, never across a call into the driver.

use std::sync::{Mutex, MutexGuard, PoisonError};

use partywall_shim_api::page::{PAGE_BYTES, Page};

use super::driver::{Code, Driver};
use super::words::{CHUNK_BYTES, SLOT_BYTES, Slot, memory};
use crate::say::say;
use crate::sys::CUresult;

/// Copies of one context that may be in their streams at once: what comes on top goes straight to the driver. Four
/// times what a queue of the driver was seen to hold (about a thousand commands, some of them ours).
const MAX_SLOTS: usize = 4096;

/// Pinned buffers per context and direction, for copies from or to memory that is not pinned.
pub(super) const MAX_BUFFERS: usize = 4;

/// Bytes of such a buffer.
pub(super) const BUFFER_BYTES: usize = 512 << 10;

/// A piece of pinned memory.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Of [`BUFFER_BYTES`], in host memory.
    pub(super) address: usize,
}

/// Things of one kind, and how many of them there are altogether.
#[derive(Debug)]
struct Shelf<T> {
    free: Vec<T>,
    made: usize,
}

impl<T> Shelf<T> {
    const fn new() -> Self {
        Self { free: Vec::new(), made: 0 }
    }
}

/// What the copies of a context share.
#[derive(Debug)]
pub(super) struct Pool {
    slots: Mutex<Shelf<Slot>>,
    buffers: [Mutex<Shelf<Buffer>>; 2],
    /// Pages that were given to the device: where they are, and where it finds them; none if it does not take them.
    pages: Mutex<Vec<(usize, Option<u64>)>>,
}

fn locked<T>(shelf: &Mutex<Shelf<T>>) -> MutexGuard<'_, Shelf<T>> {
    // Nothing between lock and unlock can leave a shelf half changed.
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes one, or makes room for `more` of at most `limit`. The second value says that the caller is to make them.
fn take<T>(shelf: &Mutex<Shelf<T>>, more: usize, limit: usize) -> (Option<T>, bool) {
    let mut shelf = locked(shelf);
    let taken = shelf.free.pop();
    let make = taken.is_none() && shelf.made + more <= limit;
    shelf.made += if make { more } else { 0 };
    (taken, make)
}

impl Pool {
    pub(super) const fn new() -> Self {
        Self {
            slots: Mutex::new(Shelf::new()),
            buffers: [Mutex::new(Shelf::new()), Mutex::new(Shelf::new())],
            pages: Mutex::new(Vec::new()),
        }
    }

    /// Words for a copy. None where too many are in use, or the driver does not give what it takes.
    pub(super) fn slot(&self, driver: &impl Driver) -> Option<Slot> {
        let (slot, make) = take(&self.slots, CHUNK_BYTES / SLOT_BYTES, MAX_SLOTS);
        if !make {
            return slot;
        }
        let (address, device) = registered(driver, CHUNK_BYTES).ok()?;
        // SAFETY: new memory of the kernel is zeros at the start of a page, stays, and is known to the device at
        // `device`.
        let mut slots: Vec<Slot> = unsafe { Slot::of_chunk(address, device) }.collect();
        let slot = slots.pop();
        locked(&self.slots).free.append(&mut slots);
        slot
    }

    /// A pinned buffer. `Ok(None)`: all are in use.
    ///
    /// # Errors
    /// What the driver returned when asked for pinned memory.
    pub(super) fn buffer(&self, driver: &impl Driver, direction: usize) -> Result<Option<Buffer>, Code> {
        let (buffer, make) = take(&self.buffers[direction], 1, MAX_BUFFERS);
        if !make {
            return Ok(buffer);
        }
        match registered(driver, BUFFER_BYTES) {
            Ok((address, _)) => Ok(Some(Buffer { address: address.as_ptr().expose_provenance() })),
            Err(code) => {
                self.lose_buffer(direction);
                Err(code)
            }
        }
    }

    /// Where the device finds the page of this process. None where it does not: another context of the process may have it.
    pub(super) fn page(&self, driver: &impl Driver, page: &'static Page) -> Option<u64> {
        let address = std::ptr::from_ref(page).expose_provenance();
        let known = |pages: &[(usize, Option<u64>)]| {
            pages.iter().find(|known| known.0 == address).map(|known| known.1)
        };
        let lock = || self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = known(&lock()) {
            return device;
        }
        // Of two threads that come here at once one is refused: the page belongs to the context already.
        let device = driver.register(address, PAGE_BYTES).inspect_err(|code| {
            say(&format!(
                "small copies are not announced: the driver does not take the page (code {})",
                code.0
            ));
        });
        let device = device.ok();
        let mut pages = lock();
        match pages.iter_mut().find(|known| known.0 == address) {
            Some(known) => known.1 = known.1.or(device),
            None => pages.push((address, device)),
        }
        known(&pages).flatten()
    }

    /// How many slots there are.
    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        locked(&self.slots).made
    }

    pub(super) fn put_slot(&self, slot: Slot) {
        locked(&self.slots).free.push(slot);
    }

    /// A buffer is not used again; another one may be made.
    pub(super) fn lose_buffer(&self, direction: usize) {
        locked(&self.buffers[direction]).made -= 1;
    }

    pub(super) fn put_buffer(&self, direction: usize, buffer: Buffer) {
        locked(&self.buffers[direction]).free.push(buffer);
    }
}

fn registered(driver: &impl Driver, bytes: usize) -> Result<(std::ptr::NonNull<u8>, u64), Code> {
    let address = memory(bytes).map_err(|_| CUresult::OUT_OF_MEMORY)?;
    let device = driver.register(address.as_ptr().expose_provenance(), bytes)?;
    Ok((address, device))
}
