//! Allocates and frees device memory, over and over; both make the driver wait for work of the context.

use std::collections::BTreeMap;

use partywall_core::units::Bytes;
use partywall_driver::PinnedBuffer;

use super::place::Place;
use super::{Builtin, Identity, Verdict, Workload, WorkloadError};

/// What frameworks ask for when their cache is empty.
const SIZE: Bytes = Bytes::from_mib(64);
/// What of each allocation is written and read back.
const TOUCHED: u64 = 4096;

/// The workload.
pub(super) struct Allocations {
    place: Place,
    builtin: &'static Builtin,
    size: Bytes,
    /// Where the last word of what was touched comes back to.
    echo: PinnedBuffer,
    allocations: u32,
    wrong: u32,
}

impl Allocations {
    /// `alloc-storm`.
    ///
    /// # Errors
    /// What the driver returned, or that the size is too small.
    pub(super) fn new(
        place: Place,
        builtin: &'static Builtin,
        asked: Option<Bytes>,
    ) -> Result<Self, WorkloadError> {
        let size = place.size(asked, SIZE, Bytes::from_mib(1))?;
        let echo = place.context.pinned(Bytes(4))?;
        Ok(Self { place, builtin, size, echo, allocations: 0, wrong: 0 })
    }
}

impl Workload for Allocations {
    fn identity(&self) -> Identity {
        self.builtin.identity()
    }

    fn about(&self) -> BTreeMap<String, String> {
        [("request".to_owned(), format!("{} allocated, {TOUCHED} bytes written, freed", self.size))].into()
    }

    fn begin(&mut self) -> Result<(), WorkloadError> {
        (self.allocations, self.wrong) = (0, 0);
        Ok(())
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        let Place { stream, context, .. } = &self.place;
        self.allocations = self.allocations.wrapping_add(1);
        let buffer = context.alloc(self.size)?;
        stream.fill_u32(&buffer, 0, TOUCHED, self.allocations)?;
        stream.copy_to_host(&self.echo, 0, &buffer, TOUCHED - 4, 4)?;
        stream.synchronize()?;
        self.wrong += u32::from(self.echo.load_u32(0)? != self.allocations);
        drop(buffer);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        let (wrong, all) = (self.wrong, self.allocations);
        let wrong =
            (wrong > 0).then(|| format!("{wrong} of {all} allocations did not keep what was written"));
        Ok(Verdict { wrong, checksum: u64::from(all) })
    }
}
