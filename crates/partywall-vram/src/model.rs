//! Memory systems to try it with: where addresses live, how long operations take, and what goes wrong when that is measured.
//!
//! | model | what is known of the real one | what is made up |
//! |---|---|---|
//! | [`Model::recorded`] | sides and slices of 16 pages of an H200 (measured, `results/h200/slices-16-pages.bin`) | times within a side |
//! | [`Model::h200`] | the mask, 47 slices a side, 256 B in a slice, times near and far (measured, `results/h200`) | which slice |
//! | [`Model::a100`] | the masks of the side and of 16 classes, 5 slices in each (from published lists of slices) | the choice among the five, times |
//! | [`Model::v100`] | one side, 32 slices by five masks (published) | times |
//! | [`Model::unknown`] | nothing: the mask is drawn from the seed | all |
//!
//! No model is the GPU: what holds on them all is the method, not the figures.

use std::convert::Infallible;

use crate::address::{Address, OFFSET_BITS, PAGE_BYTES, parity};
use crate::chance::Chance;
use crate::prober::{Probe, Prober};
use crate::sides::Side;

/// A GPU's memory system.
#[derive(Debug, Clone)]
pub struct Model {
    /// The bits of an offset that turn the side; `None` where there is one side.
    pub mask: Option<u32>,
    /// Whether two more bits turn it when both are set: no parity any more.
    pub bent: Option<[u32; 2]>,
    /// How slices are chosen.
    pub slices: Slices,
    /// Whether streams from SMs of the other side contend for ways there as well, of which every two slices have one, on both sides the same.
    pub ways: bool,
    /// The side of each group of SMs.
    pub groups: Vec<Side>,
    /// Times, and what is wrong with them.
    pub times: Times,
    /// The constants of pages, one number each.
    pub pages: Vec<u32>,
    /// How much was measured.
    pub asked: Asked,
    chance: Chance,
}

/// How slices are chosen, on each side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slices {
    /// A counter of 256 B pieces, scrambled by the page, modulo a number that is no power of two.
    Counter(u32),
    /// The parities of these masks, as bits of a number, XOR a constant of the page; and in each class a counter of KiB, modulo `each`.
    Classes {
        /// One for each bit.
        masks: Vec<u32>,
        /// Slices in a class.
        each: u32,
    },
    /// As recorded: for each KiB, page by page, the slices of its first 256 B and of the next, where those of the second side follow those
    /// of the first. What comes after is the same again.
    Recorded(Vec<u8>),
}

/// What operations take, in cycles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// An atomic operation on the own side, to the nearest slice.
    pub near: f64,
    /// So much more to the other side.
    pub far: f64,
    /// So much more at most by where on its side group and slice are.
    pub way: f64,
    /// Deviation of a measurement.
    pub noise: f64,
    /// The share of measurements that are far off, by up to 3 000 cycles.
    pub off: f64,
    /// The share of pairs of streams that miss each other: they seem not to contend, whatever they share.
    pub missed: f64,
}

/// How much was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked {
    /// Chains of atomic operations.
    pub latencies: u64,
    /// Pairs of streams.
    pub pairs: u64,
}

const H200: Times = Times { near: 310.0, far: 200.0, way: 40.0, noise: 6.0, off: 0.005, missed: 0.01 };

/// Bytes of a recorded page: two for each KiB.
const RECORDED_PAGE: usize = (PAGE_BYTES >> 10) as usize * 2;

/// Slices on each side of the recorded GPU.
const RECORDED_SIDE: u32 = 47;

fn recorded_at(recorded: &[u8], address: Address) -> u8 {
    let piece = (address.offset >> 10) as usize * 2 + (address.offset >> 8 & 1) as usize;
    recorded[address.page as usize * RECORDED_PAGE + piece]
}

impl Model {
    /// Like an H200, with so many pages.
    pub fn h200(pages: u32, seed: u64) -> Self {
        Self::new(Some(0xab000), Slices::Counter(47), 66, pages, seed)
    }

    /// Like an A100.
    pub fn a100(pages: u32, seed: u64) -> Self {
        let masks =
            vec![1 << 13 | 1 << 16, 1 << 12 | 1 << 14 | 1 << 17, 1 << 15 | 1 << 17 | 1 << 18 | 1 << 19];
        Self::new(Some(1 << 13 | 1 << 17 | 1 << 20), Slices::Classes { masks, each: 5 }, 54, pages, seed)
    }

    /// Like a V100.
    pub fn v100(pages: u32, seed: u64) -> Self {
        let masks = [[10, 17, 17], [11, 13, 15], [12, 16, 16], [13, 19, 19], [15, 18, 18]];
        let masks = masks.map(|bits| bits.into_iter().fold(0, |mask, bit| mask | 1 << bit)).to_vec();
        Self::new(None, Slices::Classes { masks, each: 1 }, 40, pages, seed)
    }

    /// Like none: three to eight bits from 9 up turn the side.
    pub fn unknown(pages: u32, seed: u64) -> Self {
        let mut chance = Chance::new(seed ^ 0x5eed);
        let mut mask = 0;
        for _ in 0..3 + chance.below(6) {
            mask |= 1 << (9 + chance.below(OFFSET_BITS - 9));
        }
        let slices = Slices::Counter(3 + chance.below(40));
        Self::new(Some(mask), slices, 20 + chance.below(50) as usize, pages, seed)
    }

    /// The recorded pages of an H200.
    pub fn recorded(recorded: &[u8], seed: u64) -> Self {
        let pages = recorded.len() / RECORDED_PAGE;
        let mut model = Self::new(Some(0xab000), Slices::Recorded(recorded.to_vec()), 66, pages as u32, seed);
        // The mask is what is found, not what the model goes by.
        model.pages.iter_mut().for_each(|page| *page = 0);
        model
    }

    fn new(mask: Option<u32>, slices: Slices, groups: usize, pages: u32, seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let second = |chance: &mut Chance| mask.is_some() && chance.unit() < 0.5;
        let groups = (0..groups).map(|_| Side::second(second(&mut chance))).collect();
        let pages = (0..pages).map(|_| chance.below(u32::MAX)).collect();
        Self {
            mask,
            bent: None,
            slices,
            ways: true,
            groups,
            times: H200,
            pages,
            asked: Asked::default(),
            chance,
        }
    }

    /// Where an address really lives.
    pub fn side(&self, address: Address) -> Side {
        if let Slices::Recorded(recorded) = &self.slices {
            return Side::second(u32::from(recorded_at(recorded, address)) >= RECORDED_SIDE);
        }
        let Some(mask) = self.mask else { return Side::First };
        let constant = self.pages[address.page as usize] & 1 == 1;
        let bent = self.bent.is_some_and(|bits| bits.iter().all(|bit| address.offset >> bit & 1 == 1));
        Side::second(constant ^ parity(address.offset & mask) ^ bent)
    }

    /// The slice that it really belongs to; those of the second side follow those of the first.
    pub fn slice(&self, address: Address) -> u32 {
        let constant = self.pages[address.page as usize] >> 1;
        let (own, count) = match &self.slices {
            Slices::Counter(count) => {
                let pieces = PAGE_BYTES >> 8;
                let piece = u64::from((address.offset >> 8) ^ (constant & (pieces - 1)));
                // Neighbours do not follow each other, and pages do not begin alike.
                let mixed = piece.wrapping_mul(2_654_435_761).wrapping_add(u64::from(constant >> 13));
                ((mixed % u64::from(*count)) as u32, *count)
            }
            Slices::Classes { masks, each } => {
                let class = masks
                    .iter()
                    .enumerate()
                    .map(|(bit, mask)| u32::from(parity(address.offset & mask)) << bit);
                let class = class.sum::<u32>() ^ (constant & ((1 << masks.len()) - 1));
                let counter = ((address.offset >> 10) + (constant >> 8)) % each;
                (class * each + counter, each << masks.len())
            }
            Slices::Recorded(recorded) => return u32::from(recorded_at(recorded, address)),
        };
        if self.side(address) == Side::Second { own + count } else { own }
    }

    /// How many slices there are.
    pub fn slice_count(&self) -> u32 {
        let sides = 1 + u32::from(self.mask.is_some());
        sides
            * match &self.slices {
                Slices::Counter(count) => *count,
                Slices::Classes { masks, each } => each << masks.len(),
                Slices::Recorded(_) => RECORDED_SIDE,
            }
    }

    fn cycles(&mut self, probe: Probe) -> f64 {
        let Times { near, far, way, noise, off, .. } = self.times;
        let slice = self.slice(probe.address);
        let is_far = self.groups[usize::from(probe.group)] != self.side(probe.address);
        // As fixed as the wires.
        let wires = Chance::new(
            (u64::from(probe.group) << 32 | u64::from(slice)).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        )
        .unit();
        let wrong = if self.chance.unit() < off { 3_000.0 * self.chance.unit() } else { 0.0 };
        near + if is_far { far } else { 0.0 } + way * wires + noise * self.chance.normal() + wrong
    }
}

impl Prober for Model {
    type Error = Infallible;

    fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    fn groups(&self) -> u16 {
        self.groups.len() as u16
    }

    fn latencies(&mut self, probes: &[Probe]) -> Result<Vec<f32>, Infallible> {
        self.asked.latencies += probes.len() as u64;
        Ok(probes.iter().map(|&probe| self.cycles(probe) as f32).collect())
    }

    fn contention(&mut self, groups: &[u16], pairs: &[(Address, Address)]) -> Result<Vec<f32>, Infallible> {
        self.asked.pairs += pairs.len() as u64;
        let mut ratio = |(one, other): &(Address, Address)| {
            let missed = self.chance.unit() < self.times.missed;
            let side = self.side(*one);
            let are_near = self.side(*other) == side
                && groups.iter().all(|group| self.groups[usize::from(*group)] == side);
            let shared = |address: Address| {
                let slice = self.slice(address);
                if are_near || !self.ways { slice } else { slice % (self.slice_count() / 2) / 2 }
            };
            let same = if shared(*one) == shared(*other) && !missed { 1.95 } else { 1.01 };
            let wrong = if self.chance.unit() < self.times.off { self.chance.unit() } else { 0.0 };
            same + 0.02 * self.chance.normal() + wrong
        };
        Ok(pairs.iter().map(|pair| ratio(pair) as f32).collect())
    }
}
