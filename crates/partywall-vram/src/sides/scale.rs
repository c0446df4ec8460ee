//! What measurements mean: on which side groups of SMs are, and how long operations take from there.

use serde::{Deserialize, Serialize};

use super::{CLEAR, RARE, ROUNDS, SAMPLE, Side, SidesError};
use crate::address::Address;
use crate::chance::Chance;
use crate::prober::{Probe, Prober};
use crate::split::{TWO_KINDS, split};

/// What a group of SMs measures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Where it is.
    pub side: Side,
    /// Halfway between near and far, in cycles.
    pub middle_cycles: f64,
}

/// What measurements mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// By number; the first is on the first side.
    pub groups: Vec<Group>,
    /// Cycles between near and far.
    pub far_cycles: f64,
    /// Deviation of a measurement within near or far, in cycles; at least 1.
    pub deviation_cycles: f64,
    /// How far apart addresses of the two sides are, in deviations within a side.
    pub separation: f64,
}

impl Scale {
    /// Has all groups measure a sample; how far apart its halves are where there is one side.
    pub(super) fn of<P: Prober>(
        prober: &mut P,
        chance: &mut Chance,
    ) -> Result<Result<Self, f64>, SidesError<P::Error>> {
        let addresses: Vec<Address> = (0..SAMPLE).map(|_| chance.address(prober.pages())).collect();
        let probes: Vec<Probe> = (0..prober.groups())
            .flat_map(|group| addresses.iter().map(move |&address| Probe { group, address }))
            .collect();
        let cycles = prober.latencies(&probes).map_err(SidesError::Prober)?;
        // The median of each row, for a start: one measurement that is far off moves a mean.
        let rows: Vec<Vec<f64>> =
            cycles.chunks(SAMPLE).map(|row| row.iter().map(|&cycles| f64::from(cycles)).collect()).collect();
        let centred: Vec<Vec<f64>> = rows.iter().map(|row| centred(row)).collect();
        let factors = factor(&centred);
        let Some(halves) = split(&factors) else { return Ok(Err(0.0)) };
        let higher: Vec<bool> = factors.iter().map(|&number| number > halves.at).collect();
        let scale = Self::from(&rows, &higher, halves.separation);
        let apart = scale.far_cycles / scale.deviation_cycles;
        let fewer = halves.lower.min(SAMPLE - halves.lower) as f64;
        let is_one = halves.separation < TWO_KINDS || fewer < RARE * SAMPLE as f64 || apart < CLEAR;
        Ok(if is_one { Err(apart) } else { Ok(scale) })
    }

    /// Whether numbers that somebody wrote down can be those of a measurement.
    pub(super) fn is_possible(&self) -> bool {
        let times = self.groups.iter().map(|group| group.middle_cycles);
        let cycles = times.chain([self.far_cycles, self.deviation_cycles, self.separation]);
        let is_first = self.groups.first().is_some_and(|group| group.side == Side::First);
        is_first
            && cycles.into_iter().all(|number| number.is_finite() && number > 0.0)
            && self.deviation_cycles >= 1.0
            && self.far_cycles / self.deviation_cycles >= CLEAR
    }

    /// `higher`: which addresses are of one kind.
    fn from(rows: &[Vec<f64>], higher: &[bool], separation: f64) -> Self {
        let median_of = |row: &[f64], kind: bool| {
            let mut numbers: Vec<f64> = row
                .iter()
                .zip(higher)
                .filter(|(_, higher)| **higher == kind)
                .map(|(cycles, _)| *cycles)
                .collect();
            median(&mut numbers)
        };
        let levels: Vec<[f64; 2]> =
            rows.iter().map(|row| [median_of(row, false), median_of(row, true)]).collect();
        let mut distances: Vec<f64> = levels.iter().map(|[low, high]| (high - low).abs()).collect();
        let mut residuals: Vec<f64> = rows
            .iter()
            .zip(&levels)
            .flat_map(|(row, levels)| {
                row.iter().zip(higher).map(|(cycles, &higher)| (cycles - levels[usize::from(higher)]).abs())
            })
            .collect();
        let is_far = |[low, high]: &[f64; 2]| high > low;
        let first = levels.first().is_some_and(is_far);
        let groups = levels.iter().map(|levels @ [low, high]| Group {
            // The first group is on the first side. Another is on it if the same kind of address is far for both.
            side: Side::second(is_far(levels) != first),
            middle_cycles: (low + high) / 2.0,
        });
        Self {
            groups: groups.collect(),
            far_cycles: median(&mut distances),
            // Of a bell, half is within 0.6745 deviations.
            deviation_cycles: (median(&mut residuals) / 0.6745).max(1.0),
            separation,
        }
    }

    /// The logarithm of the odds that an address is on the second side, by one measurement.
    pub(super) fn log_odds(&self, group: usize, cycles: f64) -> f64 {
        let half = self.far_cycles / 2.0;
        let Group { side, middle_cycles } = self.groups[group];
        // Two bells as far apart as near and far.
        let by_far = 2.0 * half * (cycles - middle_cycles).clamp(-half, half) / self.deviation_cycles.powi(2);
        // However narrow the bells are: one in a thousand measurements has nothing to do with where the address is.
        let by_far = by_far.clamp(-7.0, 7.0);
        if side == Side::First { by_far } else { -by_far }
    }
}

/// One number for each column that, times one for each row, is closest to the table.
fn factor(table: &[Vec<f64>]) -> Vec<f64> {
    let columns = table.first().map_or(0, Vec::len);
    // The row that differs most from its mean shows the sides best.
    let size = |row: &&Vec<f64>| row.iter().map(|number| number.abs()).sum::<f64>();
    let longest = table.iter().max_by(|one, other| size(one).total_cmp(&size(other)));
    let mut numbers = longest.cloned().unwrap_or_default();
    for _ in 0..ROUNDS {
        normalize(&mut numbers);
        let mut next = vec![0.0; columns];
        for row in table {
            let of_row: f64 = row.iter().zip(&numbers).map(|(one, other)| one * other).sum();
            next.iter_mut().zip(row).for_each(|(next, number)| *next += of_row * number);
        }
        numbers = next;
    }
    normalize(&mut numbers);
    numbers
}

fn normalize(numbers: &mut [f64]) {
    let length = numbers.iter().map(|number| number * number).sum::<f64>().sqrt();
    if length > 0.0 {
        numbers.iter_mut().for_each(|number| *number /= length);
    }
}

/// Without the mean. What is far beyond all others counts as much as the others' ends: it is a measurement that went wrong.
fn centred(row: &[f64]) -> Vec<f64> {
    let mut sorted = row.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
    let (low, high) = (at(0.02), at(0.96));
    let held: Vec<f64> = row.iter().map(|number| number.clamp(low, high)).collect();
    let mean = held.iter().sum::<f64>() / held.len() as f64;
    held.iter().map(|number| number - mean).collect()
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}
