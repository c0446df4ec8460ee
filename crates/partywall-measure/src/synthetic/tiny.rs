//! Kernels that are nothing but their launch: a chain of them as a victim, and as many as possible as an antagonist.

use std::collections::BTreeMap;

use partywall_core::tenant::Class;
use partywall_driver::DeviceBuffer;
use partywall_driver::kernels::{Part, stepped};

use super::place::Place;
use super::{Builtin, Identity, Verdict, Workload, WorkloadError};

/// What a small network has.
const CHAIN: u32 = 100;
/// Long enough that waiting for the end does not matter, short enough to stop in between.
const STORM: u32 = 500;

/// The workload.
pub(super) struct Tiny {
    place: Place,
    builtin: &'static Builtin,
    value: DeviceBuffer,
    launches: u32,
    steps: u64,
}

impl Tiny {
    /// `tiny-kernels` or `launch-storm`.
    ///
    /// # Errors
    /// What the driver returned.
    pub(super) fn new(place: Place, builtin: &'static Builtin) -> Result<Self, WorkloadError> {
        let value = place.uploaded(&[0])?;
        let launches = if builtin.class == Class::LatencySensitive { CHAIN } else { STORM };
        Ok(Self { place, builtin, value, launches, steps: 0 })
    }
}

impl Workload for Tiny {
    fn identity(&self) -> Identity {
        self.builtin.identity()
    }

    fn about(&self) -> BTreeMap<String, String> {
        [("request".to_owned(), format!("{} kernels of one warp", self.launches))].into()
    }

    fn work(&self) -> f64 {
        if self.builtin.class == Class::LatencySensitive { 1.0 } else { f64::from(self.launches) }
    }

    fn begin(&mut self) -> Result<(), WorkloadError> {
        self.steps = 0;
        Ok(self.place.stream.fill(&self.value, 0, 4, 0)?)
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        for _ in 0..self.launches {
            self.place.kernels.step_once(&self.place.stream, Part::all(&self.value))?;
        }
        self.steps += u64::from(self.launches);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        let found = self.place.words(&self.value, 0, 1)?[0];
        let what = format!("the number after {} steps", self.steps);
        Ok(Verdict::compare(&what, u64::from(found), u64::from(stepped(0, self.steps))))
    }
}
