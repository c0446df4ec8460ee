//! What is measured.

use crate::address::Address;

/// An atomic operation, again and again on one address, from one group of SMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Which of the groups that the SMs can be divided into.
    pub group: u16,
    /// Where.
    pub address: Address,
}

/// Measures on a GPU, or asks a model.
pub trait Prober {
    /// Why it could not be measured.
    type Error: std::error::Error + 'static;

    /// How many pages there are to look at.
    fn pages(&self) -> u32;

    /// How many groups of SMs there are. Their numbers, unlike those of SMs, mean the same under MPS.
    fn groups(&self) -> u16;

    /// What one atomic operation takes, in cycles of the SM, for each probe: the mean of a chain in which each waits for the one before.
    ///
    /// # Errors
    /// Whatever stands in the way of measuring.
    fn latencies(&mut self, probes: &[Probe]) -> Result<Vec<f32>, Self::Error>;

    /// For each pair, how many times longer streams of atomic operations to both take together than each alone: about 2 where both go to
    /// one slice, about 1 otherwise. The streams come from SMs of these groups, of as many as it takes to saturate a slice; 16 of an H200, one
    /// does not. They should be on the side of the first of each pair: on their way to the other side streams share more than slices.
    ///
    /// # Errors
    /// Whatever stands in the way of measuring.
    fn contention(&mut self, groups: &[u16], pairs: &[(Address, Address)]) -> Result<Vec<f32>, Self::Error>;
}
