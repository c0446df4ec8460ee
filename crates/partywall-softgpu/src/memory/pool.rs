//! Pools: memory that streams allocate and free in their own order. What was freed stays with the pool until a wait of the
//! host, and then beyond the pool's threshold goes back to the device.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::Device;
use crate::error::Code;
use crate::memory::arena::Arena;
use crate::memory::chunks::Chunks;

/// The least that a pool takes from the device at a time: 32 MiB, as a real one does.
const CHUNK: u64 = 32 << 20;

/// A pool.
pub(crate) struct Pool {
    state: Mutex<State>,
    pub(crate) handle_types: u32,
    arena: &'static Arena,
    device: &'static Device,
}

struct State {
    chunks: Chunks,
    used: u64,
    used_high: u64,
    reserved_high: u64,
    threshold: u64,
    max_size: u64,
    reuse: [u32; 3],
}

impl Pool {
    pub(crate) fn new(
        max_size: u64,
        handle_types: u32,
        arena: &'static Arena,
        device: &'static Device,
    ) -> Self {
        let state = State {
            chunks: Chunks::new(CHUNK),
            used: 0,
            used_high: 0,
            reserved_high: 0,
            threshold: 0,
            max_size,
            reuse: [1; 3],
        };
        Self { state: Mutex::new(state), handle_types, arena, device }
    }

    /// Takes `bytes`; their address and how many they are, rounded.
    pub(crate) fn take(&self, bytes: u64) -> Result<u64, Code> {
        let mut state = self.lock();
        if state.max_size != 0 && state.used.saturating_add(bytes) > state.max_size {
            return Err(Code::OUT_OF_MEMORY);
        }
        let address = state.chunks.take(bytes, self.arena, self.device)?;
        state.used += bytes.max(1).next_multiple_of(crate::memory::chunks::ALIGNMENT);
        state.used_high = state.used_high.max(state.used);
        state.reserved_high = state.reserved_high.max(state.chunks.reserved());
        Ok(address)
    }

    /// Gives an allocation back to the pool.
    pub(crate) fn give(&self, address: u64) {
        let mut state = self.lock();
        let bytes = state.chunks.give(address).unwrap_or(0);
        state.used = state.used.saturating_sub(bytes);
    }

    /// Gives back to the device what is free beyond the threshold, as waits of the host do.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        let threshold = state.threshold;
        state.chunks.trim(threshold, self.arena, self.device);
    }

    /// Gives back to the device what is free beyond `keep` bytes.
    pub(crate) fn trim(&self, keep: u64) {
        self.lock().chunks.trim(keep, self.arena, self.device);
    }

    /// An attribute by its number: the first three are 32 bits in the interface, the others 64.
    pub(crate) fn attribute(&self, number: u32) -> Result<u64, Code> {
        let state = self.lock();
        Ok(match number {
            1..=3 => u64::from(state.reuse[number as usize - 1]),
            4 => state.threshold,
            5 => state.chunks.reserved(),
            6 => state.reserved_high,
            7 => state.used,
            8 => state.used_high,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    /// Sets an attribute; the high-water marks can be set to 0 only.
    pub(crate) fn set_attribute(&self, number: u32, value: u64) -> Result<(), Code> {
        let mut state = self.lock();
        match number {
            1..=3 => state.reuse[number as usize - 1] = u32::from(value != 0),
            4 => state.threshold = value,
            6 if value == 0 => state.reserved_high = state.chunks.reserved(),
            8 if value == 0 => state.used_high = state.used,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
