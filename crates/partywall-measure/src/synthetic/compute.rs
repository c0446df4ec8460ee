//! Fused multiply-adds on every SM, long kernels, next to no memory.

use std::collections::BTreeMap;

use partywall_core::units::Bytes;
use partywall_driver::DeviceBuffer;
use partywall_driver::device::Attribute;
use partywall_driver::kernels::{Part, Shape, multiplied};

use super::place::Place;
use super::{Builtin, Identity, Verdict, Workload, WorkloadError};

/// How long a launch takes at the highest clock: a training step's largest kernels take as long.
const LAUNCH_MS: u64 = 16;
const THREADS: u32 = 1024;
/// Threads start from as many different numbers.
const STARTS: usize = 8;

/// The workload.
pub(super) struct Compute {
    place: Place,
    builtin: &'static Builtin,
    out: DeviceBuffer,
    shape: Shape,
    iterations: u32,
    /// What the threads must come to, by their start.
    expected: Vec<u32>,
}

impl Compute {
    /// `compute`.
    ///
    /// # Errors
    /// What the driver returned.
    pub(super) fn new(place: Place, builtin: &'static Builtin) -> Result<Self, WorkloadError> {
        let shape = place.filled("multiply_add", THREADS)?;
        let (major, minor) = place.device().compute_capability()?;
        let khz = place.attribute(Attribute::ClockRate)?;
        let per_sm = u64::from(shape.blocks() / place.sms.0.max(1) * THREADS);
        let iterations = iterations(u64::from(khz) * LAUNCH_MS, per_sm, lanes(major, minor));
        let out = place.context.alloc(Bytes(shape.all_threads() * 4))?;
        let expected = (0..STARTS as u32).map(|start| multiplied(start, iterations).to_bits()).collect();
        Ok(Self { place, builtin, out, shape, iterations, expected })
    }
}

/// fp32 multiply-adds that an SM finishes in a cycle (CUDA C++ programming guide, arithmetic throughput); of GPUs that
/// are newer than the table, what the newest there has.
const fn lanes(major: u32, minor: u32) -> u64 {
    match (major, minor) {
        (7, _) | (8, 0) => 64,
        _ => 128,
    }
}

/// How many iterations of all threads of an SM take so many cycles; a multiple of 64, at least that.
fn iterations(cycles: u64, threads_per_sm: u64, lanes: u64) -> u32 {
    let iterations = cycles * lanes / threads_per_sm.max(1) / 64 * 64;
    u32::try_from(iterations).unwrap_or(u32::MAX).clamp(64, 1 << 30)
}

impl Workload for Compute {
    fn identity(&self) -> Identity {
        self.builtin.identity()
    }

    fn about(&self) -> BTreeMap<String, String> {
        let (blocks, threads) = (self.shape.blocks(), self.shape.threads());
        let request = format!("{} multiply-adds in {blocks} blocks x {threads} threads", self.iterations);
        [("request".to_owned(), request)].into()
    }

    fn begin(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.fill(&self.out, 0, self.out.len(), 0xff)?)
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        let Place { stream, kernels, .. } = &self.place;
        Ok(kernels.multiply_add(stream, self.shape, Part::all(&self.out), self.iterations)?)
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        let found = self.place.words(&self.out, 0, self.shape.all_threads() as usize)?;
        // Blocks have a multiple of 8 threads, so a thread's number modulo 8 is its index in the block modulo 8.
        let wrong = found
            .iter()
            .enumerate()
            .filter(|(thread, bits)| self.expected[thread % STARTS] != **bits)
            .count();
        let checksum =
            self.expected.iter().fold(0_u64, |sum, bits| sum.wrapping_mul(31).wrapping_add(u64::from(*bits)));
        let wrong = (wrong > 0).then(|| format!("{wrong} of {} threads have a wrong result", found.len()));
        Ok(Verdict { wrong, checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_as_long_as_it_should_be() {
        // H200: 16 ms at 1.98 GHz; 2048 threads on 128 lanes take 16 cycles for an iteration.
        let found = iterations(1_980_000 * LAUNCH_MS, 2048, lanes(9, 0));
        assert_eq!(found, 1_980_000 / 64 * 64);
        assert_eq!(iterations(0, 0, 128), 64);
        assert_eq!(iterations(u64::MAX / 128, 1, 128), 1 << 30);
    }
}
