//! Which side each group of SMs, and each byte of memory, is on.
//!
//! # Problem
//!
//! An atomic operation runs where its address lives. From an SM of that side it takes about 320 cycles on an H200, from the other side
//! about 520 (`results/h200`), and a few tens more or less by where on its side SM and address are. Neither side is known beforehand, of
//! nothing; a measurement is sometimes far off; and the memory is more than anybody wants to measure line by line.
//!
//! # Approach
//!
//! 1. *Groups and a sample.* Every group of SMs measures every address of a random [`SAMPLE`]. What is left of the table without each
//!    group's own mean is, where there are sides, one number of the group times one of the address, both positive or negative by side. Those
//!    that explain most of the table are found by iterating; they are of two kinds ([`crate::split`]) where there are two sides. Slices
//!    differ as well, by where they lie; so neither kind may be rare, and what is between near and far has to be more than [`CLEAR`]
//!    times what single measurements differ otherwise. Where that is not so there is one side, as far as this can tell, and that is the answer.
//! 2. *One address.* From then on an address is asked from some groups of each side until the odds for one side are [`ODDS`], at most
//!    [`ASKED_MAX`] times. A measurement counts at most as much as one at the mean of its kind, so one that is far off decides nothing.
//! 3. *The hash.* A bit of the offset within a page either turns the side or not. Each is tried at several places of several pages;
//!    one that does both means a hash that is no parity, and nothing more is claimed. Those that do are the *mask*: the side is the
//!    parity of these bits, XOR a constant of the page. Bits in each other's company are tried as well, at random offsets.
//! 4. *The pages.* One address of each gives its constant.
//! 5. *The check.* Fresh addresses, drawn from all pages, are asked, and what is found is held against the map. A map that is wrong anywhere
//!    is not used.
//!
//! # Scenarios (the tests bear these names)
//!
//! - D1: an H200, and others whose masks are known, are found exactly.
//! - D2: a GPU with one side has one side, however its slices lie.
//! - D3: a hash that is no parity is refused.
//! - D4: measurements that are far off change nothing.
//! - D5: groups that are all on one side find the sides of memory all the same.
//! - D6: pages whose constant changes behind the back of the map are noticed by the check.
//! - D7: where noise drowns the difference, no side is claimed.

use serde::{Deserialize, Serialize};

use crate::address::{Address, LINE_BYTES, OFFSET_BITS, PAGE_BYTES, parity};
use crate::chance::Chance;
use crate::prober::{Probe, Prober};

pub use latencies::{BIN_CYCLES, Latencies};
pub use scale::{Group, Scale};

mod latencies;
mod scale;
#[cfg(test)]
mod tests;

/// Addresses that all groups measure. Of so many, fewer than a tenth on one side is less likely than 1 in 10^15.
pub const SAMPLE: usize = 96;

/// The smallest share of the sample that may be a side: half of the memory is on each.
const RARE: f64 = 0.1;

/// Deviations that near and far have to be apart in a single measurement. 16 on an H200, less than 1 with one side.
pub const CLEAR: f64 = 2.0;

/// What is asked for before an address is said to be on a side: so many to one. A hundred thousand pages have one wrong then with a
/// chance of one in ten thousand.
pub const ODDS: f64 = 1e9;

/// How often an address is asked at most. On an H200 twice is usually enough.
pub const ASKED_MAX: u32 = 24;

/// Pages on which bits of the offset are tried, and places on each.
const TRIED_PAGES: u32 = 6;
const TRIED_PLACES: u32 = 4;

/// Offsets of the same pages that the mask is tried on as a whole.
const TRIED_OFFSETS: u32 = 512;

/// Rounds of the iteration; it converges by the ratio of the first two explanations each time, which is far from 1 where there are sides.
const ROUNDS: usize = 24;

/// A side: that of the first group is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// That of the first group.
    First,
    /// The other.
    Second,
}

impl Side {
    /// The second, if so.
    pub const fn second(second: bool) -> Self {
        if second { Self::Second } else { Self::First }
    }

    /// The one that this is not.
    pub const fn other(self) -> Self {
        Self::second(matches!(self, Self::First))
    }
}

/// What holds for all memory of a GPU for as long as it has the same driver. What belongs to a page is not in it: an allocation later, another
/// page is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// The bits of an offset whose parity turns the side.
    pub mask: u32,
    /// The sides of groups of SMs, and what they measure.
    pub scale: Scale,
}

impl Known {
    /// Bytes in a row on one side: the lowest bit of the mask, or a page where it has none.
    pub const fn granularity(&self) -> u32 {
        if self.mask == 0 { PAGE_BYTES } else { 1 << self.mask.trailing_zeros() }
    }

    /// The groups of SMs on a side, by number.
    pub fn groups_on(&self, side: Side) -> impl Iterator<Item = u16> {
        let here = self.scale.groups.iter().enumerate().filter(move |(_, group)| group.side == side);
        here.map(|(number, _)| number as u16)
    }

    /// Whether this can have been found on a GPU with so many groups of SMs. What was written down may be anything; whether it is true is
    /// for [`find_knowing`] to say.
    pub fn is_possible(&self, groups: u16) -> bool {
        let bits = PAGE_BYTES - LINE_BYTES;
        self.mask & !bits == 0 && self.scale.groups.len() == usize::from(groups) && self.scale.is_possible()
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// No two sides can be told apart.
    One {
        /// How far apart two kinds of addresses are for a group of SMs, in deviations of a measurement.
        apart: f64,
    },
    /// Two sides.
    Two(Sides),
}

/// Where everything is.
#[derive(Debug, Clone, PartialEq)]
pub struct Sides {
    /// What holds for all pages, also for those that are not on the map.
    pub known: Known,
    /// The side of the first byte of each page.
    pub pages: Vec<Side>,
    /// How sure this is.
    pub quality: Quality,
}

/// How sure a map is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quality {
    /// Fresh addresses that were held against the map. None of them was wrong.
    pub checked: u64,
    /// Addresses of these that could not be told within [`ASKED_MAX`] probes; they say nothing.
    pub unsure: u64,
    /// What the probes of fresh addresses took, by whether the address is on the side of who asked.
    pub latencies: Latencies,
}

/// Why there is no map.
#[derive(Debug, thiserror::Error)]
pub enum SidesError<E: std::error::Error + 'static> {
    /// It could not be measured.
    #[error("the memory could not be probed: {0}")]
    Prober(#[source] E),
    /// Nothing to look at.
    #[error("there are {pages} pages and {groups} groups of SMs to look at; it takes one of each at least")]
    Nothing {
        /// Pages of 2 MiB.
        pages: u32,
        /// Groups of SMs.
        groups: u16,
    },
    /// Nobody can have measured this here.
    #[error(
        "what is said to be known of this GPU is not of a GPU with as many groups of SMs, or is no measurement"
    )]
    NotKnown,
    /// The side does not follow from a parity of the offset.
    #[error(
        "the side of an address is no parity of its offset: bit {bit} turns it at {turns} of {tries} places; memory cannot be colored by a mask"
    )]
    NoParity {
        /// Which bit.
        bit: u32,
        /// Places where the side was turned.
        turns: u32,
        /// Places that were tried.
        tries: u32,
    },
    /// Bits turn the side each for itself, and not together.
    #[error(
        "the side of an address is no parity of its offset: the bits {mask:#x} say otherwise for {wrong} of {tries} pairs; memory cannot be \
         colored by a mask"
    )]
    NotLinear {
        /// The bits that turn it each for itself.
        mask: u32,
        /// Pairs of places on one page for which their parity is not what is found.
        wrong: u32,
        /// Pairs that were tried.
        tries: u32,
    },
    /// Too many addresses are between the sides.
    #[error("{unsure} of {asked} addresses could not be told within {ASKED_MAX} probes each: too much noise")]
    Noise {
        /// How many.
        unsure: u64,
        /// Of how many.
        asked: u64,
    },
    /// Fresh addresses say otherwise.
    #[error("{wrong} of {checked} fresh addresses are not on the side that the map says; it is not used")]
    Wrong {
        /// How many.
        wrong: u64,
        /// Of how many.
        checked: u64,
    },
}

/// Finds the sides of all pages, and holds the map against `checks` fresh addresses. `seed` says which addresses are looked at.
///
/// # Errors
/// Where the hash is none that a mask can say, or the check fails, there is no map.
pub fn find<P: Prober>(prober: &mut P, checks: u32, seed: u64) -> Result<Found, SidesError<P::Error>> {
    let (pages, groups) = (prober.pages(), prober.groups());
    if pages == 0 || groups == 0 {
        return Err(SidesError::Nothing { pages, groups });
    }
    let mut chance = Chance::new(seed);
    let scale = match Scale::of(prober, &mut chance)? {
        Ok(scale) => scale,
        Err(apart) => return Ok(Found::One { apart }),
    };
    let witnesses = (0..groups).collect();
    let mut oracle = Oracle { prober, scale, witnesses, chance };
    let mask = mask(&mut oracle)?;
    let known = Known { mask, scale: oracle.scale.clone() };
    oracle.map(known, checks).map(Found::Two)
}

/// The same where the rest is known: finds the sides of pages, and holds them against `checks` fresh addresses. Asks at most `witnesses` groups of
/// SMs of each side, at least one.
///
/// # Errors
/// As [`find`]. Where what is known is not so, [`SidesError::Wrong`] or [`SidesError::Noise`] with as good as certainty from some dozens
/// of checks on, and [`SidesError::NotKnown`] where it cannot be so.
pub fn find_knowing<P: Prober>(
    prober: &mut P,
    known: &Known,
    witnesses: usize,
    checks: u32,
    seed: u64,
) -> Result<Sides, SidesError<P::Error>> {
    let (pages, groups) = (prober.pages(), prober.groups());
    if pages == 0 || groups == 0 {
        return Err(SidesError::Nothing { pages, groups });
    }
    if !known.is_possible(groups) {
        return Err(SidesError::NotKnown);
    }
    let most = witnesses.max(1);
    let some = |side| known.groups_on(side).take(most);
    let witnesses = some(Side::First).chain(some(Side::Second)).collect();
    let scale = known.scale.clone();
    let mut oracle = Oracle { prober, scale, witnesses, chance: Chance::new(seed) };
    oracle.map(known.clone(), checks)
}

impl Sides {
    /// The side of an address; `None` on a page that is not on the map.
    pub fn of(&self, address: Address) -> Option<Side> {
        let first = *self.pages.get(address.page as usize)?;
        Some(Side::second((first == Side::Second) ^ parity(address.offset & self.known.mask)))
    }
}

impl Address {
    /// The same place on another page.
    fn on(self, page: u32) -> Self {
        Self { page, ..self }
    }
}

/// Says on which side an address is.
struct Oracle<'a, P> {
    prober: &'a mut P,
    scale: Scale,
    /// Groups of SMs that are asked.
    witnesses: Vec<u16>,
    chance: Chance,
}

impl<P: Prober> Oracle<'_, P> {
    /// The sides of addresses; `None` for those that cannot be told. `seen` hears of each probe: the number of its address, which group
    /// asked, and the cycles.
    fn ask(
        &mut self,
        addresses: &[Address],
        mut seen: impl FnMut(usize, u16, f32),
    ) -> Result<Vec<Option<Side>>, SidesError<P::Error>> {
        let mut odds = vec![0.0_f64; addresses.len()];
        let enough = ODDS.ln();
        for _ in 0..ASKED_MAX {
            let open: Vec<usize> = (0..odds.len()).filter(|&index| odds[index].abs() < enough).collect();
            if open.is_empty() {
                break;
            }
            // Another group each time: what is particular about one, or about its way to the address, is not asked again.
            let groups = self.witnesses.len() as u32;
            let probes: Vec<Probe> = open
                .iter()
                .map(|&index| {
                    let group = self.witnesses[self.chance.below(groups) as usize];
                    Probe { group, address: addresses[index] }
                })
                .collect();
            let cycles = self.prober.latencies(&probes).map_err(SidesError::Prober)?;
            for ((&index, probe), cycles) in open.iter().zip(&probes).zip(cycles) {
                seen(index, probe.group, cycles);
                odds[index] += self.scale.log_odds(usize::from(probe.group), f64::from(cycles));
            }
        }
        Ok(odds.iter().map(|odds| (odds.abs() >= enough).then_some(Side::second(*odds > 0.0))).collect())
    }

    /// The same, where all are needed.
    fn all(&mut self, addresses: &[Address]) -> Result<Vec<Side>, SidesError<P::Error>> {
        let sides = self.ask(addresses, |_, _, _| {})?;
        let unsure = sides.iter().filter(|side| side.is_none()).count() as u64;
        if unsure > 0 {
            return Err(SidesError::Noise { unsure, asked: addresses.len() as u64 });
        }
        Ok(sides.into_iter().flatten().collect())
    }

    /// The map of all pages, held against fresh addresses.
    fn map(&mut self, known: Known, checks: u32) -> Result<Sides, SidesError<P::Error>> {
        let pages = self.prober.pages();
        let all: Vec<Address> = (0..pages).map(|page| self.chance.address(1).on(page)).collect();
        let sides = self.all(&all)?;
        let constant = |(address, side): (&Address, Side)| {
            Side::second((side == Side::Second) ^ parity(address.offset & known.mask))
        };
        let pages = all.iter().zip(sides).map(constant).collect();
        let mut map = Sides { known, pages, quality: Quality::default() };
        check(self, &mut map, checks)?;
        Ok(map)
    }
}

/// The bits that turn the side.
fn mask<P: Prober>(oracle: &mut Oracle<'_, P>) -> Result<u32, SidesError<P::Error>> {
    let pages = oracle.prober.pages();
    let pages: Vec<u32> = (0..TRIED_PAGES).map(|_| oracle.chance.below(pages)).collect();
    let bits = LINE_BYTES.trailing_zeros()..OFFSET_BITS;
    let places: Vec<Address> = pages
        .iter()
        .flat_map(|&page| (0..TRIED_PLACES).map(move |_| page))
        .map(|page| oracle.chance.address(1).on(page))
        .collect();
    let here = oracle.all(&places)?;
    let mut mask = 0;
    for bit in bits {
        let flipped: Vec<Address> =
            places.iter().map(|place| Address { offset: place.offset ^ 1 << bit, ..*place }).collect();
        let there = oracle.all(&flipped)?;
        let turns = here.iter().zip(&there).filter(|(here, there)| here != there).count() as u32;
        let tries = places.len() as u32;
        if turns == tries {
            mask |= 1 << bit;
        } else if turns > 0 {
            return Err(SidesError::NoParity { bit, turns, tries });
        }
    }
    // All of them together: a place and another on the same page.
    let pairs: Vec<(Address, Address)> = (0..TRIED_OFFSETS)
        .map(|index| {
            let page = pages[(index % TRIED_PAGES) as usize];
            (oracle.chance.address(1).on(page), oracle.chance.address(1).on(page))
        })
        .collect();
    let (ones, others): (Vec<Address>, Vec<Address>) = pairs.iter().copied().unzip();
    let (ones, others) = (oracle.all(&ones)?, oracle.all(&others)?);
    let sides = ones.iter().zip(&others).map(|(one, other)| one != other);
    let expected = pairs.iter().map(|(one, other)| parity((one.offset ^ other.offset) & mask));
    let wrong = sides.zip(expected).filter(|(found, expected)| found != expected).count() as u32;
    if wrong > 0 {
        return Err(SidesError::NotLinear { mask, wrong, tries: TRIED_OFFSETS });
    }
    Ok(mask)
}

fn check<P: Prober>(
    oracle: &mut Oracle<'_, P>,
    map: &mut Sides,
    checks: u32,
) -> Result<(), SidesError<P::Error>> {
    let pages = oracle.prober.pages();
    let addresses: Vec<Address> = (0..checks).map(|_| oracle.chance.address(pages)).collect();
    let mut latencies = Latencies::default();
    let found = oracle.ask(&addresses, |index, group, cycles| {
        let here = map.known.scale.groups[usize::from(group)].side;
        latencies.add(map.of(addresses[index]) == Some(here), cycles);
    })?;
    let unsure = found.iter().filter(|side| side.is_none()).count() as u64;
    let checked = u64::from(checks) - unsure;
    let is_wrong = |(address, found): (&Address, &Option<Side>)| {
        found.is_some_and(|side| map.of(*address) != Some(side))
    };
    let wrong = addresses.iter().zip(&found).filter(|pair| is_wrong(*pair)).count() as u64;
    if wrong > 0 {
        return Err(SidesError::Wrong { wrong, checked });
    }
    // One in a hundred that says nothing is noise; more, and the check says little.
    if unsure > u64::from(checks / 100) {
        return Err(SidesError::Noise { unsure, asked: u64::from(checks) });
    }
    map.quality = Quality { checked, unsure, latencies };
    Ok(())
}
