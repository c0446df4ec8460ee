//! The simulator's only source of chance.
//!
//! The same seed gives the same bytes, on every platform. Two rules make that true: the generator is PCG, whose
//! output is fixed by its definition, and logarithms, exponentials and error functions come from `libm`, because
//! those of the standard library are the platform's and differ in the last bit. (`+ - * /`, square root and
//! rounding are exact by IEEE 754.)
//!
//! Every tenant draws from a stream of its own, so adding a tenant, or a draw, changes nothing for the others.

use rand_pcg::Pcg64Dxsm;
use rand_pcg::rand_core::Rng;

/// A stream of random numbers, independent of every other (seed, stream) pair.
#[derive(Debug, Clone)]
pub struct Chance {
    pcg: Pcg64Dxsm,
    /// The polar method makes normal deviates in pairs; this is the one not handed out yet.
    spare: Option<f64>,
}

impl Chance {
    /// The stream number `stream` of the run with this seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        // PCG streams that start from the same state stay correlated, so state and increment both depend on both
        // numbers, through a mixer.
        let mut mixer = SplitMix(mix(seed).wrapping_add(stream.wrapping_mul(SplitMix::GOLDEN)));
        let state = mixer.wide();
        let increment = mixer.wide() ^ u128::from(stream);
        Self { pcg: Pcg64Dxsm::new(state, increment), spare: None }
    }

    /// Uniform in the open interval (0, 1): never 0, so its logarithm is finite, and never 1.
    pub fn unit(&mut self) -> f64 {
        // 52 bits and a half: with 53 the largest value would round to 1.
        const STEP: f64 = 1.0 / (1u64 << 52) as f64;
        ((self.pcg.next_u64() >> 12) as f64 + 0.5) * STEP
    }

    /// Uniform between `low` and `high`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Exponential with this mean, in the unit of the mean; above 0.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -libm::log(self.unit()) * mean
    }

    /// Standard normal: mean 0, variance 1. Marsaglia's polar method (SIAM Review 6, 1964).
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            // A point of the square lies in the circle with probability 0.785, so this ends.
            if square < 1.0 && square > 0.0 {
                let scale = (-2.0 * libm::log(square) / square).sqrt();
                self.spare = Some(y * scale);
                return x * scale;
            }
        }
    }
}

/// The probability that a standard normal deviate is below `z`.
pub(crate) fn normal_cdf(z: f64) -> f64 {
    0.5 * libm::erfc(-z * std::f64::consts::FRAC_1_SQRT_2)
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): turns numbers that differ in a bit into unrelated ones.
struct SplitMix(u64);

impl SplitMix {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::GOLDEN);
        mix(self.0)
    }

    fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}

/// SplitMix64's last step: numbers that differ in a bit become unrelated ones, and no two the same.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    /// Mean and variance of many draws.
    fn moments(mut draw: impl FnMut(&mut Chance) -> f64) -> (f64, f64) {
        let mut chance = Chance::new(7, 0);
        let draws: Vec<f64> = (0..DRAWS).map(|_| draw(&mut chance)).collect();
        let mean = draws.iter().sum::<f64>() / DRAWS as f64;
        (mean, draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / DRAWS as f64)
    }

    fn near(found: (f64, f64), expected: (f64, f64)) {
        let close = |a: f64, b: f64| (a - b).abs() < 0.02 * b.abs().max(0.5);
        assert!(close(found.0, expected.0) && close(found.1, expected.1), "{found:?} is not {expected:?}");
    }

    #[test]
    fn the_distributions_have_their_moments() {
        near(moments(Chance::unit), (0.5, 1.0 / 12.0));
        near(moments(|c| c.uniform(2.0, 6.0)), (4.0, 16.0 / 12.0));
        near(moments(|c| c.exponential(3.0)), (3.0, 9.0));
        near(moments(Chance::normal), (0.0, 1.0));
        near(moments(|c| normal_cdf(c.normal())), (0.5, 1.0 / 12.0));
    }

    /// Fails when a change of this file, of `rand_pcg` or of `libm` would change what recorded seeds mean.
    #[test]
    fn the_same_seed_means_the_same_numbers_for_ever() {
        let mut chance = Chance::new(42, 3);
        let drawn = [chance.unit(), chance.exponential(1.0), chance.normal(), chance.normal()];
        assert_eq!(
            drawn.map(f64::to_bits),
            [0x3fbc_3fdb_bdfd_c4f8, 0x3fe3_a9f6_1752_6537, 0x3fab_699d_b6b3_05f1, 0xbff4_4491_0c97_07e5,]
        );
    }

    #[test]
    fn streams_are_unrelated() {
        for (a, b) in [((1, 0), (1, 1)), ((1, 0), (2, 0)), ((0, 1), (1, 0)), ((5, 6), (6, 5))] {
            let (mut a, mut b) = (Chance::new(a.0, a.1), Chance::new(b.0, b.1));
            let products = (0..DRAWS).map(|_| (a.unit() - 0.5) * (b.unit() - 0.5)).sum::<f64>();
            // Twelve times the mean product is the correlation; its standard deviation is 1/sqrt(DRAWS) = 0.0022.
            assert!((12.0 * products / DRAWS as f64).abs() < 0.01);
        }
    }
}
