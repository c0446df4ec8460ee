//! Reading and writing memory: adds 1 to every word, so that every word says how often it was written.

use std::collections::BTreeMap;

use partywall_core::units::Bytes;
use partywall_driver::DeviceBuffer;
use partywall_driver::kernels::{Part, Policy, Shape, pattern};

use super::place::Place;
use super::{Builtin, CachePolicy, Identity, Verdict, Workload, WorkloadError};

/// Far larger than any L2.
const BUFFER: Bytes = Bytes::from_mib(1024);
/// About 1 ms a launch at 4 TB/s, half of it reads.
const BYTES: u64 = 4 << 30;
/// Words that the host itself looks at, at the beginning.
const LOOKED_AT: usize = 1024;

/// The workload.
pub(super) struct Writes {
    place: Place,
    builtin: &'static Builtin,
    policy: Policy,
    buffer: DeviceBuffer,
    shape: Shape,
    passes: u32,
    /// How often every word was written.
    written: u32,
}

impl Writes {
    /// `vram-read-write` or its evict-first form.
    ///
    /// # Errors
    /// What the driver returned, or that the memory is too small.
    pub(super) fn new(
        place: Place,
        builtin: &'static Builtin,
        asked: Option<Bytes>,
    ) -> Result<Self, WorkloadError> {
        let size = place.size_beyond_l2(asked, BUFFER)?;
        let buffer = place.patterned(size)?;
        let (policy, name) = match builtin.cache_policy {
            Some(CachePolicy::EvictFirst) => (Policy::EvictFirst, "read_write_evict_first"),
            _ => (Policy::Default, "read_write_default"),
        };
        let shape = place.filled(name, 512)?;
        let passes = u32::try_from(BYTES / 2 / size.0).unwrap_or(u32::MAX).max(1);
        Ok(Self { place, builtin, policy, buffer, shape, passes, written: 0 })
    }
}

impl Workload for Writes {
    fn identity(&self) -> Identity {
        self.builtin.identity()
    }

    fn about(&self) -> BTreeMap<String, String> {
        let shape = format!("{} blocks x {} threads", self.shape.blocks(), self.shape.threads());
        let kernel = format!("{}, {} times", Bytes(self.buffer.len()), self.passes);
        [("request".to_owned(), shape), ("kernel_reads_and_writes".to_owned(), kernel)].into()
    }

    fn work(&self) -> f64 {
        2.0 * (self.buffer.len() * u64::from(self.passes)) as f64 / 1e9
    }

    fn begin(&mut self) -> Result<(), WorkloadError> {
        self.written = 0;
        let words = Part::all(&self.buffer);
        Ok(self.place.kernels.fill_pattern(&self.place.stream, words, 0, 0)?)
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        let Place { stream, kernels, .. } = &self.place;
        kernels.read_write(stream, self.shape, self.policy, Part::all(&self.buffer), self.passes)?;
        self.written = self.written.wrapping_add(self.passes);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        let beginning = self.place.words(&self.buffer, 0, LOOKED_AT)?;
        let right = |(index, word): (usize, &u32)| *word == pattern(index as u32).wrapping_add(self.written);
        let mut wrong = beginning.iter().enumerate().filter(|one| !right(*one)).count() as u64;
        wrong += self.place.wrong_words(Part::all(&self.buffer), self.written)?;
        let checksum = self.place.checksum(Part::all(&self.buffer))?;
        let wrong = (wrong > 0).then(|| format!("{wrong} words were not written {} times", self.written));
        Ok(Verdict { wrong, checksum })
    }
}
