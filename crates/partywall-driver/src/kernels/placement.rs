//! Kernels that show where blocks run, and how many SMs a launch gets.

use partywall_core::units::{Bytes, Nanos};

use super::Argument::{Part, Pinned, U32, U64};
use super::{Kernels, Shape};
use crate::error::{DriverError, check_range};
use crate::memory::PinnedBuffer;
use crate::stream::Stream;

/// Blocks that wait for each other: the part of one launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meeting {
    /// Blocks of this launch.
    pub blocks: u32,
    /// Shared memory of each.
    pub shared: Bytes,
    /// Blocks of all launches that take part.
    pub expected: u32,
    /// How long a block waits for the others.
    pub patience: Nanos,
}

/// Blocks that stay until they are let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay {
    /// Blocks of the launch.
    pub blocks: u32,
    /// Shared memory of each.
    pub shared: Bytes,
    /// How long a block stays at most.
    pub patience: Nanos,
}

/// How many blocks of a [`Stay`] are how far. Those that have not begun are in none of these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stayed {
    /// They are there now.
    pub there: u32,
    /// They were told to leave, and have left.
    pub left: u32,
    /// Their patience was over.
    pub gave_up: u32,
}

impl Stayed {
    /// Counts the first `blocks` words of what [`Kernels::stay`] was given.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where there are fewer.
    pub fn of(states: &PinnedBuffer, blocks: u32) -> Result<Self, DriverError> {
        let mut stayed = Self::default();
        for block in 0..u64::from(blocks) {
            // The values of the kernel's source.
            match states.load_u32(4 * block)? {
                1 => stayed.there += 1,
                2 => stayed.left += 1,
                3 => stayed.gave_up += 1,
                _ => {}
            }
        }
        Ok(stayed)
    }
}

impl Kernels {
    /// Adds one to `counts[id]` for each block that runs on the SM `id`; each stays for `stay`. Ids beyond the u32 of
    /// `counts` are not counted.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn count_by_sm(
        &self,
        stream: &Stream,
        blocks: u32,
        counts: super::Part<'_>,
        stay: Nanos,
    ) -> Result<(), DriverError> {
        let ids = u32::try_from(counts.words()).unwrap_or(u32::MAX);
        let arguments = [Part(counts), U32(ids), U64(stay.0)];
        // SAFETY: it adds to words whose index is below the number of words.
        unsafe { self.launch("count_by_sm", stream, Shape::new(blocks, 32)?, 0, &arguments) }
    }

    /// Submits blocks that count themselves in the u32 of `arrived` and wait until all have arrived, or patience is over.
    /// The u32 of `met` counts those that saw it.
    ///
    /// With a block for each SM of several disjoint SM sets, each launched into its own set, all meet. Where two sets
    /// share an SM, and a block takes more than half of an SM's shared memory, some do not.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where a counter has no room, or what the driver returned: among it that a block
    /// cannot have so much shared memory.
    pub fn meet(
        &self,
        stream: &Stream,
        meeting: Meeting,
        arrived: super::Part<'_>,
        met: super::Part<'_>,
    ) -> Result<(), DriverError> {
        arrived.needs("count of arrivals", 4)?;
        met.needs("count of meetings", 4)?;
        // The kernel uses four bytes of it.
        let shared = u32::try_from(meeting.shared.0).unwrap_or(u32::MAX).max(4);
        self.function("meet")?.0.set_max_dynamic_shared(shared)?;
        let arguments = [Part(arrived), U32(meeting.expected), U64(meeting.patience.0), Part(met)];
        // SAFETY: it adds to two u32 for which there is room, and writes to shared memory that it has.
        unsafe { self.launch("meet", stream, Shape::new(meeting.blocks, 32)?, shared, &arguments) }
    }

    /// Submits blocks that stay until the first u32 of `go` is not 0, or their patience is over. Block `b` says in the u32 `b` of
    /// `states` how it is: see [`Stayed`]. Both buffers belong to this launch until it is done; `states` begins as zeroes.
    ///
    /// With so much shared memory that an SM holds one of them, the number of those that are there at a time is the number of SMs
    /// that the launch gets. Nothing is added up across the link: whether host memory takes atomics depends on the machine.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where a block has no state, or what the driver returned: among it that a block cannot have
    /// so much shared memory.
    pub fn stay(
        &self,
        stream: &Stream,
        stay: Stay,
        states: &PinnedBuffer,
        go: &PinnedBuffer,
    ) -> Result<(), DriverError> {
        check_range("states of blocks that stay", 0, 4 * u64::from(stay.blocks), states.len())?;
        check_range("word that lets blocks go", 0, 4, go.len())?;
        // The kernel uses four bytes of it.
        let shared = u32::try_from(stay.shared.0).unwrap_or(u32::MAX).max(4);
        self.function("stay")?.0.set_max_dynamic_shared(shared)?;
        let arguments = [Pinned(states), Pinned(go), U64(stay.patience.0)];
        // SAFETY: each block writes its own u32 of `states`, for which there is room, reads one u32 of `go`, and writes to shared
        // memory that it has.
        unsafe { self.launch("stay", stream, Shape::new(stay.blocks, 32)?, shared, &arguments) }
    }
}
