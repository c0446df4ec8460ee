//! What probes took from the side of their address and from the other: what the sides look like.

/// Width of a bin of [`Latencies`]: what tells the sides apart is some fifty times as wide on an H200.
pub const BIN_CYCLES: u32 = 4;

/// Probes beyond 2 048 cycles have nothing to do with where the address is.
const BINS: usize = 512;

/// How many probes took how long. Bins follow each other from [`Latencies::from_cycles`] on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Latencies {
    near: Vec<u32>,
    far: Vec<u32>,
    longer: u64,
}

impl Latencies {
    /// One more, from the side of its address (`near`) or from the other.
    pub(super) fn add(&mut self, near: bool, cycles: f32) {
        let bins = if near { &mut self.near } else { &mut self.far };
        // What is below zero or no number goes to the first bin, which no GPU reaches.
        let bin = (cycles / BIN_CYCLES as f32) as usize;
        if bin >= BINS {
            self.longer += 1;
            return;
        }
        bins.resize(bins.len().max(bin + 1), 0);
        bins[bin] += 1;
    }

    /// Where the first bin with anything in it begins; 0 where there is nothing.
    pub fn from_cycles(&self) -> u32 {
        self.first() as u32 * BIN_CYCLES
    }

    /// Probes by bin from the side of their address.
    pub fn near(&self) -> &[u32] {
        self.near.get(self.first()..).unwrap_or_default()
    }

    /// Probes by bin from the other side.
    pub fn far(&self) -> &[u32] {
        self.far.get(self.first()..).unwrap_or_default()
    }

    /// Probes of either kind that took longer than all bins.
    pub fn longer(&self) -> u64 {
        self.longer
    }

    fn first(&self) -> usize {
        let first = |bins: &[u32]| bins.iter().position(|&count| count > 0);
        [&self.near, &self.far].into_iter().filter_map(|bins| first(bins)).min().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_begin_at_the_first_that_has_anything() {
        let mut latencies = Latencies::default();
        assert_eq!((latencies.from_cycles(), latencies.near(), latencies.longer()), (0, &[][..], 0));
        for (near, cycles) in [(true, 303.9), (true, 304.0), (true, 307.0), (false, 300.1), (false, 520.0)] {
            latencies.add(near, cycles);
        }
        for cycles in [2_048.0, f32::INFINITY] {
            latencies.add(false, cycles);
        }
        assert_eq!((latencies.from_cycles(), latencies.near()), (300, &[1, 2][..]));
        assert_eq!((latencies.far().len(), latencies.far()[0], latencies.far()[55]), (56, 1, 1));
        assert_eq!(latencies.longer(), 2);
        // Far probes alone.
        let mut far = Latencies::default();
        far.add(false, 500.0);
        assert_eq!((far.from_cycles(), far.near(), far.far()), (500, &[][..], &[1][..]));
    }
}
