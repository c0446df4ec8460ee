//! Which slice of the L2 a place belongs to.
//!
//! # Problem
//!
//! A slice serves one access at a time, so two streams of atomic operations take twice as long together where they share a slice, and no
//! longer where they do not. That is sure and slow (12 us a pair on an H200), there are some dozens of slices on each side, and a page has
//! thousands of places. It is sure from SMs of the same side: streams that come from the other one share ways as well. From SMs of both sides, 24 kinds of
//! places were found where an H200 has 47 slices, and one in 45 pairs of places on different sides contended.
//!
//! # Approach
//!
//! 1. *Places.* Bits of an offset that change the slice nowhere are left out: of an H200's 128 B lines a page has 16 384, of places that
//!    may differ 4 096. (Not every such bit is a low one: there, bits 7 and 9 change nothing, bit 8 does.)
//! 2. *Signatures.* How long an atomic operation takes from each of [`WITNESSES`] groups of SMs depends on where the slice is. That is
//!    quick and not sure, and says which of the slices known so far to try first: those with the nearest mean signature, on the same side.
//! 3. *Pairs.* The place is held against a place of that slice, then of the next, until it contends. One that contends with none of its side
//!    is the first of a new slice. Measurements that are far off look like hits, so a hit stands if its signature was by far the nearest
//!    ([`BY_FAR`]), is tried once more if it was the nearest, and three times if it was not. And one in a hundred streams misses the other one, which looks as if
//!    they did not share a slice: so before a place begins a slice it is held against all known ones until measurements agree, and in the
//!    end so are all slices against each other.
//! 4. *Pages.* Some [`TELLING`] places of a page say whether it is like one that was looked at before, with some bits of the offset turned: all pages of
//!    an H200 are like one of 47 then. Such a page is not looked at place by place.
//! 5. *The check.* Fresh pairs, half of them of the same slice by the map: what contends has to share a slice, and the other way round. Where a pair
//!    seems to say otherwise it is measured until it is sure. Pairs on different sides are counted apart: whatever they contend for, it is no slice.
//!
//! # Scenarios (the tests bear these names)
//!
//! - S1: the slices of an H200, an A100 and a V100 are found exactly, up to their names.
//! - S2: about two pairs are measured for each place, of which some find all slices at the beginning.
//! - S3: a map that is wrong is noticed by the check.
//! - S4: streams that miss each other change nothing.
//! - S5: what streams share on their way to the other side is not taken for a slice.
//! - S6: pages that are like one before are told by a few places.

use std::collections::BTreeSet;

use crate::address::{Address, LINE_BYTES, OFFSET_BITS};
use crate::chance::Chance;
use crate::prober::{Probe, Prober};
use crate::sides::{Side, Sides};

mod alike;
#[cfg(test)]
mod tests;

use alike::Whole;

/// Groups of SMs that a signature is made of, if there are as many.
pub const WITNESSES: u16 = 33;

/// A signature is by far the nearest if the next is so many times as far away.
pub const BY_FAR: f64 = 1.5;

/// Places that a bit of the offset is tried at.
const TRIED: u32 = 48;

/// Pairs by which it is found out what contending looks like.
const SAMPLE: u32 = 64;

/// By how many measurements one answer has to be ahead to be sure, and after how many it is as sure as it gets. With one of a hundred wrong, three in a row
/// are wrong once in a million.
const LEAD: u32 = 3;
const VOTES_MAX: u32 = 11;

/// How often a hit that no signature speaks for is tried again.
const DOUBT_MAX: u32 = 3;

/// Places that are looked at together. Until all slices are known each costs more pairs, so the first should not be many.
const AT_ONCE: usize = 512;

/// Places that tell whether a page is like one before. One that it resembles in all places but one of fifty would pass once in ten times, and then not
/// the check.
pub const TELLING: usize = 128;

/// Slices there may be. The largest GPU known has 96; a prober that sees contention nowhere would find a slice in every place.
pub const SLICES_MAX: usize = 1_024;

/// A slice, numbered in the order in which they were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice(pub u16);

/// The slices of some pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceMap {
    /// The bits of an offset that may change the slice.
    pub bits: u32,
    /// How many slices there are.
    pub count: u16,
    /// Of each page, the slices of its places, in the order of the bits.
    pub pages: Vec<Vec<Slice>>,
    /// How many pages were looked at place by place. The others are like one of them.
    pub whole: u32,
    /// Pairs that were measured to find it, without the check.
    pub pairs: u64,
    /// Fresh pairs that were held against the map. None of them was wrong.
    pub checked: u64,
    /// Those of them that are on different sides, and how many of these contend.
    pub across: Across,
}

/// Pairs of places on different sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Across {
    /// How many were measured.
    pub pairs: u64,
    /// How many contend, although no slice is on both sides.
    pub contend: u64,
}

/// Why there is no map.
#[derive(Debug, thiserror::Error)]
pub enum SlicesError<E: std::error::Error + 'static> {
    /// It could not be measured.
    #[error("the memory could not be probed: {0}")]
    Prober(#[source] E),
    /// Not a page of the prober's, or none.
    #[error("there are {there} pages to look at, and {asked} are asked for; it takes one at least")]
    Nothing {
        /// Pages that there are.
        there: u32,
        /// Pages that are asked for.
        asked: u32,
    },
    /// Two streams to one address are no slower than two anywhere.
    #[error(
        "streams to one address take {same:.2} times as long as alone, streams to different ones {other:.2} times: too little to tell \
         slices by"
    )]
    NoContention {
        /// Median of pairs of the same address.
        same: f32,
        /// Median of pairs of different ones.
        other: f32,
    },
    /// More slices than any GPU has.
    #[error(
        "more than {SLICES_MAX} slices were found, which no GPU has: streams that share one do not seem to contend"
    )]
    TooMany,
    /// Fresh pairs say otherwise.
    #[error(
        "of {checked} fresh pairs {apart} do not contend although the map has them in one slice, and {together} contend although it does \
         not; it is not used"
    )]
    Wrong {
        /// Of one slice by the map, and do not contend.
        apart: u64,
        /// Of different slices of one side, and contend.
        together: u64,
        /// Of how many.
        checked: u64,
    },
}

/// Finds the slices of the first `pages` pages, and holds the map against `checks` fresh pairs. `sides` narrows down where to look.
///
/// # Errors
/// Where streams do not contend, or the check fails, there is no map.
pub fn find<P: Prober>(
    prober: &mut P,
    sides: Option<&Sides>,
    pages: u32,
    checks: u32,
    seed: u64,
) -> Result<SliceMap, SlicesError<P::Error>> {
    let there = prober.pages();
    if pages == 0 || pages > there {
        return Err(SlicesError::Nothing { there, asked: pages });
    }
    let mut search =
        Search { prober, sides, chance: Chance::new(seed), known: Vec::new(), threshold: 0.0, pairs: 0 };
    search.threshold = search.threshold(pages)?;
    let bits = search.bits(pages)?;
    let mut map = SliceMap {
        bits,
        count: 0,
        pages: Vec::new(),
        whole: 0,
        pairs: 0,
        checked: 0,
        across: Across::default(),
    };
    let mut whole = Whole::default();
    for page in 0..pages {
        let places: Vec<Address> =
            (0..1 << bits.count_ones()).map(|place| Address { page, offset: scatter(place, bits) }).collect();
        let like = search.like(&places, &whole)?;
        let slices = match like {
            Some(slices) => slices,
            None => {
                let mut slices = Vec::with_capacity(places.len());
                for some in places.chunks(AT_ONCE) {
                    slices.extend(search.places(some)?);
                }
                whole.push(slices.clone());
                slices
            }
        };
        map.pages.push(slices);
    }
    map.whole = whole.len() as u32;
    let names = search.same()?;
    map.count = names.iter().collect::<BTreeSet<_>>().len() as u16;
    map.pages.iter_mut().flatten().for_each(|slice| *slice = names[usize::from(slice.0)]);
    map.pairs = search.pairs;
    search.check(&mut map, checks)?;
    Ok(map)
}

impl SliceMap {
    /// The slice of an address; `None` on a page that is not on the map.
    pub fn of(&self, address: Address) -> Option<Slice> {
        self.pages.get(address.page as usize)?.get(gather(address.offset, self.bits) as usize).copied()
    }
}

impl SliceMap {
    /// How many slices there are on the first side and on the second.
    pub fn of_sides(&self, sides: &Sides) -> [usize; 2] {
        let mut found = [BTreeSet::new(), BTreeSet::new()];
        for (page, slices) in (0..).zip(&self.pages) {
            for (place, slice) in (0..).zip(slices) {
                let side = sides.of(Address { page, offset: scatter(place, self.bits) });
                found[usize::from(side == Some(Side::Second))].insert(*slice);
            }
        }
        found.map(|slices| slices.len())
    }
}

/// The bits of a number that a mask names, next to each other.
fn gather(number: u32, mask: u32) -> u32 {
    let named = (0..u32::BITS).filter(|bit| mask >> bit & 1 == 1);
    named.zip(0..).map(|(bit, place)| (number >> bit & 1) << place).sum()
}

/// The other way round.
fn scatter(number: u32, mask: u32) -> u32 {
    let named = (0..u32::BITS).filter(|bit| mask >> bit & 1 == 1);
    named.zip(0..).map(|(bit, place)| (number >> place & 1) << bit).sum()
}

/// A slice that was found.
#[derive(Debug)]
struct Known {
    /// The first place that was found in it.
    first: Address,
    /// Sums of medians of its places' signatures, and of how many.
    sums: Vec<f64>,
    members: f64,
}

struct Search<'a, P> {
    prober: &'a mut P,
    sides: Option<&'a Sides>,
    chance: Chance,
    known: Vec<Known>,
    /// Pairs that take longer than this contend.
    threshold: f32,
    pairs: u64,
}

/// A place whose slice is not known yet.
struct Open {
    place: usize,
    address: Address,
    /// Slices to try, the likeliest last.
    to_try: Vec<usize>,
    /// How often a hit of the next to try is tried again.
    doubt: u32,
    /// Whether the next to try is tried again where it seems to be another one: the nearest, once.
    likely: bool,
}

impl<P: Prober> Search<'_, P> {
    fn contend(&mut self, pairs: &[(Address, Address)]) -> Result<Vec<bool>, SlicesError<P::Error>> {
        self.pairs += pairs.len() as u64;
        Ok(self.ratios(pairs)?.into_iter().map(|ratio| ratio > self.threshold).collect())
    }

    /// How many times longer pairs of streams take together, from SMs of the side of the first of each pair.
    fn ratios(&mut self, pairs: &[(Address, Address)]) -> Result<Vec<f32>, SlicesError<P::Error>> {
        let Some(sides) = self.sides else {
            let all: Vec<u16> = (0..self.prober.groups()).collect();
            return self.prober.contention(&all, pairs).map_err(SlicesError::Prober);
        };
        let mut ratios = vec![0.0; pairs.len()];
        for side in [Side::First, Side::Second] {
            let here: Vec<usize> =
                (0..pairs.len()).filter(|&index| sides.of(pairs[index].0) == Some(side)).collect();
            let groups: Vec<u16> = sides.known.groups_on(side).collect();
            let chosen: Vec<(Address, Address)> = here.iter().map(|&index| pairs[index]).collect();
            let measured = self.prober.contention(&groups, &chosen).map_err(SlicesError::Prober)?;
            here.into_iter().zip(measured).for_each(|(index, ratio)| ratios[index] = ratio);
        }
        Ok(ratios)
    }

    /// The same, measured until one answer is ahead.
    fn settled(&mut self, pairs: &[(Address, Address)]) -> Result<Vec<bool>, SlicesError<P::Error>> {
        // Of each pair, how often it contended and how often not.
        let mut votes = vec![[0_u32; 2]; pairs.len()];
        let mut open: Vec<usize> = (0..pairs.len()).collect();
        for _ in 0..VOTES_MAX {
            let chosen: Vec<(Address, Address)> = open.iter().map(|&index| pairs[index]).collect();
            for (&index, contend) in open.iter().zip(self.contend(&chosen)?) {
                votes[index][usize::from(!contend)] += 1;
            }
            open.retain(|&index| votes[index][0].abs_diff(votes[index][1]) < LEAD);
        }
        Ok(votes.into_iter().map(|[contended, not]| contended > not).collect())
    }

    /// The slice among those known whose first place contends with an address; none where it does with none.
    fn known_after_all(&mut self, address: Address) -> Result<Option<usize>, SlicesError<P::Error>> {
        let own = self.side(address);
        let slices: Vec<usize> =
            (0..self.known.len()).filter(|&slice| self.side(self.known[slice].first) == own).collect();
        let pairs: Vec<(Address, Address)> =
            slices.iter().map(|&slice| (address, self.known[slice].first)).collect();
        let contend = self.settled(&pairs)?;
        Ok(slices.into_iter().zip(contend).find(|(_, contend)| *contend).map(|(slice, _)| slice))
    }

    /// What slices are called when those that are the same have one name: numbers without gaps, in the order in which they were found.
    fn same(&mut self) -> Result<Vec<Slice>, SlicesError<P::Error>> {
        let firsts: Vec<Address> = self.known.iter().map(|known| known.first).collect();
        let numbers: Vec<(usize, usize)> = (0..firsts.len())
            .flat_map(|other| (0..other).map(move |one| (one, other)))
            .filter(|&(one, other)| self.side(firsts[one]) == self.side(firsts[other]))
            .collect();
        let pairs: Vec<(Address, Address)> =
            numbers.iter().map(|&(one, other)| (firsts[one], firsts[other])).collect();
        let mut earlier: Vec<Option<usize>> = vec![None; firsts.len()];
        for ((one, other), contend) in numbers.into_iter().zip(self.settled(&pairs)?) {
            if contend {
                earlier[other].get_or_insert(one);
            }
        }
        let (mut names, mut count): (Vec<Slice>, u16) = (Vec::with_capacity(firsts.len()), 0);
        for same in earlier {
            let new = Slice(count);
            count += u16::from(same.is_none());
            names.push(same.map_or(new, |one| names[one]));
        }
        Ok(names)
    }

    fn side(&self, address: Address) -> Option<Side> {
        self.sides.and_then(|sides| sides.of(address))
    }

    fn is_across(&self, (one, other): &(Address, Address)) -> bool {
        self.side(*one) != self.side(*other)
    }

    /// The slices of a page that is like one before, if it is.
    fn like(
        &mut self,
        places: &[Address],
        whole: &Whole,
    ) -> Result<Option<Vec<Slice>>, SlicesError<P::Error>> {
        if whole.len() == 0 || places.len() < 4 * TELLING {
            return Ok(None);
        }
        let chosen: Vec<usize> =
            (0..TELLING).map(|_| self.chance.below(places.len() as u32) as usize).collect();
        let addresses: Vec<Address> = chosen.iter().map(|&place| places[place]).collect();
        let slices = self.places(&addresses)?;
        Ok(whole.like(&chosen.into_iter().zip(slices).collect::<Vec<_>>()))
    }

    /// Between what pairs of one address take and what pairs of different ones take.
    fn threshold(&mut self, pages: u32) -> Result<f32, SlicesError<P::Error>> {
        let mut sample = |is_same: bool| {
            let mut pair = || {
                let one = self.chance.address(pages);
                (one, if is_same { one } else { self.chance.address(pages) })
            };
            let pairs: Vec<(Address, Address)> = (0..SAMPLE).map(|_| pair()).collect();
            let mut ratios = self.ratios(&pairs)?;
            ratios.sort_by(f32::total_cmp);
            Ok(ratios[ratios.len() / 2])
        };
        let (same, other) = (sample(true)?, sample(false)?);
        if same < 1.3 * other {
            return Err(SlicesError::NoContention { same, other });
        }
        Ok((same + other) / 2.0)
    }

    /// The bits of an offset that change the slice anywhere.
    fn bits(&mut self, pages: u32) -> Result<u32, SlicesError<P::Error>> {
        let mut bits = 0;
        for bit in LINE_BYTES.trailing_zeros()..OFFSET_BITS {
            let mut pair = || {
                let one = self.chance.address(pages);
                (one, Address { offset: one.offset ^ 1 << bit, ..one })
            };
            let pairs: Vec<(Address, Address)> = (0..TRIED).map(|_| pair()).collect();
            if !self.settled(&pairs)?.into_iter().all(|contend| contend) {
                bits |= 1 << bit;
            }
        }
        Ok(bits)
    }

    /// The slices of some places.
    fn places(&mut self, places: &[Address]) -> Result<Vec<Slice>, SlicesError<P::Error>> {
        let signatures = self.signatures(places)?;
        let mut found: Vec<Option<usize>> = vec![None; places.len()];
        let mut open: Vec<Open> =
            (0..places.len()).map(|place| self.open(place, places[place], &signatures[place])).collect();
        loop {
            open = self.try_known(open, &mut found)?;
            // Each that contends with no slice that is known begins one. The others are held against it first.
            let Some(first) = open.first() else { break };
            if self.known.len() == SLICES_MAX {
                return Err(SlicesError::TooMany);
            }
            let new = self.known.len();
            if let Some(slice) = self.known_after_all(first.address)? {
                found[first.place] = Some(slice);
                open.remove(0);
                continue;
            }
            found[first.place] = Some(new);
            self.known.push(Known {
                first: first.address,
                sums: vec![0.0; signatures[0].len()],
                members: 0.0,
            });
            open.remove(0);
            let of_new = self.side(self.known[new].first);
            for one in &mut open {
                if self.side(one.address) == of_new {
                    one.to_try.push(new);
                }
            }
        }
        for (slice, known) in self.known.iter_mut().enumerate() {
            let of_slice = found.iter().zip(&signatures).filter(|(found, _)| **found == Some(slice));
            known.learn(&of_slice.map(|(_, signature)| &signature[..]).collect::<Vec<_>>());
        }
        Ok(found.into_iter().flatten().map(|slice| Slice(slice as u16)).collect())
    }

    /// Holds places against the slices they are to try, until each has one or none is left.
    fn try_known(
        &mut self,
        mut open: Vec<Open>,
        found: &mut [Option<usize>],
    ) -> Result<Vec<Open>, SlicesError<P::Error>> {
        loop {
            let (trying, pairs): (Vec<usize>, Vec<(Address, Address)>) = open
                .iter()
                .enumerate()
                .filter_map(|(index, one)| {
                    Some((index, (one.address, self.known[*one.to_try.last()?].first)))
                })
                .unzip();
            if trying.is_empty() {
                return Ok(open);
            }
            let mut hits = self.contend(&pairs)?;
            for doubt in 0..DOUBT_MAX {
                let again: Vec<usize> = (0..hits.len())
                    .filter(|&index| hits[index] && open[trying[index]].doubt > doubt)
                    .collect();
                let pairs: Vec<(Address, Address)> = again.iter().map(|&index| pairs[index]).collect();
                let contend = self.contend(&pairs)?;
                again.into_iter().zip(contend).for_each(|(index, contend)| hits[index] = contend);
            }
            for (index, hit) in trying.into_iter().zip(hits) {
                let one = &mut open[index];
                if hit {
                    found[one.place] = one.to_try.pop();
                    continue;
                }
                one.doubt = DOUBT_MAX;
                if !std::mem::take(&mut one.likely) {
                    one.to_try.pop();
                }
            }
            open.retain(|one| found[one.place].is_none());
        }
    }

    fn open(&self, place: usize, address: Address, signature: &[f32]) -> Open {
        let own = self.side(address);
        let mut near: Vec<(f64, usize)> = (0..self.known.len())
            .filter(|&slice| self.side(self.known[slice].first) == own)
            .map(|slice| (self.known[slice].distance(signature), slice))
            .collect();
        near.sort_by(|one, other| other.0.total_cmp(&one.0));
        let doubt = match near[..] {
            [.., (next, _), (nearest, _)] if next > BY_FAR * BY_FAR * nearest => 0,
            [.., (nearest, _)] if nearest < f64::MAX => 1,
            _ => DOUBT_MAX,
        };
        let likely = near.last().is_some_and(|(nearest, _)| *nearest < f64::MAX);
        Open { place, address, to_try: near.into_iter().map(|(_, slice)| slice).collect(), doubt, likely }
    }

    /// What an atomic operation takes from each of the witnesses.
    fn signatures(&mut self, places: &[Address]) -> Result<Vec<Vec<f32>>, SlicesError<P::Error>> {
        let groups = self.prober.groups();
        let witnesses = groups.clamp(1, WITNESSES);
        let probes: Vec<Probe> = places
            .iter()
            .flat_map(|&address| {
                (0..witnesses).map(move |index| {
                    let group = (u32::from(index) * u32::from(groups) / u32::from(witnesses)) as u16;
                    Probe { group, address }
                })
            })
            .collect();
        let cycles = self.prober.latencies(&probes).map_err(SlicesError::Prober)?;
        Ok(cycles.chunks(usize::from(witnesses)).map(<[f32]>::to_vec).collect())
    }

    fn check(&mut self, map: &mut SliceMap, checks: u32) -> Result<(), SlicesError<P::Error>> {
        let pages = map.pages.len() as u32;
        let mut members: Vec<Vec<Address>> = vec![Vec::new(); usize::from(map.count)];
        let mut pairs = Vec::new();
        for number in 0..checks {
            let one = self.chance.address(pages);
            let mut other = self.chance.address(pages);
            if let Some(own) = map.of(one).map(|slice| &mut members[usize::from(slice.0)]) {
                if number % 2 == 0 && !own.is_empty() {
                    other = own[self.chance.below(own.len() as u32) as usize];
                }
                own.push(one);
            }
            pairs.push((one, other));
        }
        let is_otherwise =
            |(one, other): (Address, Address), contend: bool| (map.of(one) == map.of(other)) != contend;
        let contend = self.contend(&pairs)?;
        let mut across =
            Across { pairs: pairs.iter().filter(|pair| self.is_across(pair)).count() as u64, contend: 0 };
        let suspects: Vec<(Address, Address)> = pairs
            .into_iter()
            .zip(contend)
            .filter(|(pair, contend)| is_otherwise(*pair, *contend))
            .map(|(pair, _)| pair)
            .collect();
        let (mut apart, mut together) = (0, 0);
        for (pair, contend) in suspects.iter().zip(self.settled(&suspects)?) {
            match (is_otherwise(*pair, contend), contend) {
                (false, _) => {}
                (true, false) => apart += 1,
                (true, true) if self.is_across(pair) => across.contend += 1,
                (true, true) => together += 1,
            }
        }
        let checked = u64::from(checks);
        if apart + together > 0 {
            return Err(SlicesError::Wrong { apart, together, checked });
        }
        map.across = across;
        map.checked = checked;
        Ok(())
    }
}

impl Known {
    /// Takes in the signatures of more of its places: their medians, since a measurement that is far off would move a mean.
    fn learn(&mut self, signatures: &[&[f32]]) {
        let count = signatures.len();
        if count == 0 {
            return;
        }
        for (witness, sum) in self.sums.iter_mut().enumerate() {
            let mut cycles: Vec<f32> = signatures.iter().map(|signature| signature[witness]).collect();
            cycles.sort_by(f32::total_cmp);
            *sum += f64::from(cycles[count / 2]) * count as f64;
        }
        self.members += count as f64;
    }

    /// How far a signature is from the mean of this slice, squared. One measurement that is far off must not decide.
    fn distance(&self, signature: &[f32]) -> f64 {
        const FAR_OFF: f64 = 100.0;
        if self.members == 0.0 {
            return f64::MAX;
        }
        let away = |(sum, cycles): (&f64, &f32)| {
            (f64::from(*cycles) - sum / self.members).abs().min(FAR_OFF).powi(2)
        };
        self.sums.iter().zip(signature).map(away).sum()
    }
}
