use partywall_core::units::Bytes;
use partywall_driver::DriverError;

use super::{LAUNCHES_MAX, PASSES_MAX, Request};
use crate::arena::ArenaError;

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// No arena.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// What the driver returned.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// What was read is not what is there.
    #[error(
        "readers added up {found:#x}, and what is there adds up to {expected:#x}; nothing they did counts"
    )]
    Sum {
        /// What came out.
        found: u32,
        /// What is right.
        expected: u32,
    },
    /// Blocks waited for each other in vain.
    #[error(
        "the blocks of a launch were not on the SMs at the same time: pass {pass} of {passes} never ended"
    )]
    NotTogether {
        /// The pass.
        pass: u32,
        /// Of how many.
        passes: u32,
    },
    /// Too many, or none.
    #[error("{count} passes or requests cannot be measured; from 1 to {PASSES_MAX} can")]
    Count {
        /// How many.
        count: u32,
    },
    /// Not loaded so often.
    #[error("there is no code {code}: the kernels were loaded {loaded} times")]
    Code {
        /// Which.
        code: usize,
        /// How often they were loaded.
        loaded: usize,
    },
    /// Not so many, or not so much.
    #[error("requests of {} launches of {}: from 1 to {LAUNCHES_MAX}, of whole KiB and no more than all data", .0.launches, .0.bytes)]
    Request(Request),
    /// It has fewer, or none are asked for.
    #[error("{asked} SMs were asked for; from 1 to {own} are there")]
    Sms {
        /// How many were asked for.
        asked: u32,
        /// How many there are.
        own: u32,
    },
    /// The other half is somebody else's.
    #[error("the other half of these pages is somebody else's: they can only be looked at by color")]
    Shared,
    /// The data do not fit the work.
    #[error("{bytes} of data: it takes a multiple of 64KiB, and as many of these as SMs at least")]
    Data {
        /// How much.
        bytes: Bytes,
    },
}
