//! Numbers drawn from a seed.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

use crate::address::{Address, LINE_BYTES, PAGE_BYTES};

/// A stream of random numbers: the same for the same seed.
#[derive(Debug, Clone)]
pub(crate) struct Chance(Pcg64Mcg);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::new(u128::from(seed) << 64 | 0xcafe_f00d_d15e_a5e5))
    }

    /// Less than `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.0.next_u32()) * u64::from(end)) >> 32) as u32
    }

    /// At least 0 and less than 1.
    pub(crate) fn unit(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / f64::from(u32::MAX).next_up()
    }

    /// About normal, with mean 0 and deviation 1: the sum of twelve.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Any line of any of so many pages.
    pub(crate) fn address(&mut self, pages: u32) -> Address {
        Address { page: self.below(pages), offset: self.below(PAGE_BYTES / LINE_BYTES) * LINE_BYTES }
    }
}
