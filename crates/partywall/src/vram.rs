//! `partywall vram`: where memory lives.

mod again;
mod descriptors;
mod interfere;
mod kernels;
mod known;
mod looked;
mod neighbour;
mod ptxas;
mod talk;

use std::fmt::Write as _;

use partywall_core::soft_gpu::is_simulated;
use partywall_core::units::Bytes;
use partywall_driver::{Cuda, DriverError};
use partywall_vram::address::PAGE_BYTES;
use partywall_vram::gpu::GpuProber;
use partywall_vram::prober::Prober as _;
use partywall_vram::sides::{BIN_CYCLES, Found, Latencies, Side, Sides};
use partywall_vram::slices::{self, SliceMap, SlicesError};
use serde::Serialize;

use crate::cli::SimulatedGpu;
use crate::cli::vram::{MapArguments, VramCommand};
use crate::error::Failure;
use crate::output;
use crate::progress::{say, stopwatch};
use crate::report::sides as pictures;
use again::Again as _;
use known::{CacheUse, Kept};

/// What is left free of what is free: contexts grow.
const LEFT: u64 = 1 << 30;

/// What is shown.
#[derive(Debug, Serialize)]
struct Report {
    gpu: String,
    simulated: bool,
    /// What does the same again.
    command: String,
    /// Memory that was looked at.
    bytes: u64,
    gib: f64,
    pages: u32,
    /// Seconds for the sides, with the check.
    took_s: f64,
    /// What became of what was found before.
    cache: CacheUse,
    /// `null` where the GPU has one side, as far as can be told.
    sides: Option<SidesReport>,
    /// How far apart two kinds of addresses are for a group of SMs, in deviations; where there is one side.
    apart: Option<f64>,
    slices: Option<SlicesReport>,
}

#[derive(Debug, Serialize)]
struct SidesReport {
    /// Bits of an offset within 2 MiB whose parity turns the side.
    mask: u32,
    granularity_bytes: u32,
    /// The side of each of the smallest groups of SMs.
    groups: String,
    sms_per_group: u32,
    /// The side of the first byte of each page.
    pages: String,
    far_cycles: f64,
    separation: f64,
    /// Fresh addresses that were held against the map, those of them that it was wrong about (a map with any is refused), and those that could
    /// not be told.
    checked: u64,
    wrong: u64,
    unsure: u64,
    /// What the probes of the check took.
    latencies: LatenciesReport,
}

/// How many probes took how long: each number is of a bin, and bins follow each other from `from_cycles` on.
#[derive(Debug, Serialize)]
struct LatenciesReport {
    bin_cycles: u32,
    from_cycles: u32,
    /// From SMs of the address's side, and from those of the other.
    near: Vec<u32>,
    far: Vec<u32>,
    /// Probes of both that took longer than all bins.
    longer: u64,
}

#[derive(Debug, Serialize)]
struct SlicesReport {
    bytes: u64,
    count: u16,
    /// Slices on the first side and on the second; `null` with one side.
    of_sides: Option<[usize; 2]>,
    /// Bits of an offset within 2 MiB that change the slice.
    bits: u32,
    /// Pages, and those of them that were looked at place by place: the others are like one of these.
    pages: u64,
    whole_pages: u32,
    /// Pairs that were measured, and places that they told.
    pairs: u64,
    places: u64,
    checked: u64,
    /// Those of them that are on different sides, and those of these that contend all the same.
    across_pairs: u64,
    across_contend: u64,
    took_s: f64,
}

/// `gpu` is the one that was asked for before the command.
pub(crate) fn run(command: &VramCommand, gpu: Option<&SimulatedGpu>) -> Result<(), Failure> {
    match command {
        VramCommand::Map(arguments) => map(arguments, gpu),
        VramCommand::Interfere(arguments) => interfere::run(arguments, gpu),
        VramCommand::Known(arguments) => looked::run(arguments),
        VramCommand::Neighbour => neighbour::run(),
        VramCommand::Rewrite(arguments) => kernels::rewrite(arguments),
        VramCommand::Ptxas(arguments) => ptxas::run(arguments),
    }
}

fn map(arguments: &MapArguments, gpu: Option<&SimulatedGpu>) -> Result<(), Failure> {
    let report = find(arguments, gpu)?;
    output::print(&if arguments.look.json { output::json(&report)? } else { text(&report) })
}

fn find(arguments: &MapArguments, gpu: Option<&SimulatedGpu>) -> Result<Report, Failure> {
    let driver = |error: DriverError| Failure::machine(error, None);
    let device = Cuda::load().map_err(driver)?.device(arguments.look.device).map_err(driver)?;
    let (free, _) = device.primary().map_err(driver)?.memory_info().map_err(driver)?;
    let bytes = arguments.memory.unwrap_or(Bytes(free.0.saturating_sub(LEFT)));
    let page = u64::from(PAGE_BYTES);
    if bytes.0 < page || bytes.0 > free.0 {
        return Err(Failure::input(format!(
            "{bytes} of memory cannot be looked at: {free} are free; ask for 2MiB at least, and not for all of it"
        )));
    }
    let slice_pages = arguments.slices.map(|bytes| (bytes.0 / page) as u32);
    if slice_pages.is_some_and(|pages| pages == 0 || u64::from(pages) > bytes.0 / page) {
        return Err(Failure::input("--slices: from 2MiB to as much memory as is looked at"));
    }
    let sms_per_group = device.sm_split().map_err(driver)?.sms_per_group().0;
    say(&format!("looking at {}", Bytes(bytes.0 / page * page)));
    let mut watch = stopwatch();
    let mut prober = GpuProber::new(&device, bytes).map_err(driver)?;
    let name = device.name().map_err(driver)?;
    let cache = Kept::of(&device, prober.groups())?;
    let (found, cache) =
        cache.find(&mut prober, arguments.look.fresh, arguments.checks, arguments.look.seed)?;
    let took_s = watch();
    let (sides, apart) = match &found {
        Found::Two(sides) => (Some(sides), None),
        Found::One { apart } => (None, Some(*apart)),
    };
    let slices = slice_pages.map(|pages| slices_of(&mut prober, sides, pages, arguments)).transpose()?;
    let bytes = u64::from(prober.pages()) * page;
    Ok(Report {
        simulated: is_simulated(&name),
        gpu: name,
        command: arguments.command(gpu),
        bytes,
        gib: bytes as f64 / f64::from(1 << 30),
        pages: prober.pages(),
        took_s,
        cache,
        sides: sides.map(|sides| SidesReport::of(sides, sms_per_group)),
        apart,
        slices,
    })
}

/// The pictures that docs show of a recorded map and of recorded slices (two bytes for each KiB of a page): file name and SVG.
///
/// # Errors
/// When the record cannot be read.
pub fn recorded_map_pictures(text: &str, file: &str, slices: &[u8]) -> Result<Vec<(String, String)>, String> {
    let map: pictures::Map = serde_json::from_str(text).map_err(|error| format!("{file}: {error}"))?;
    Ok(map.pictures(slices))
}

/// A picture that docs show of what neighbours did to each other, by its name: file name and SVG. Nothing where the record has no rows of it.
///
/// # Errors
/// When the record cannot be read.
pub fn recorded_neighbour_picture(
    text: &str,
    file: &str,
    name: &str,
) -> Result<Option<(String, String)>, String> {
    let neighbours: pictures::Neighbours =
        serde_json::from_str(text).map_err(|error| format!("{file}: {error}"))?;
    Ok(neighbours.picture(name))
}

const AGAIN: &str = "try again while nothing else runs on the GPU";

fn slices_of(
    prober: &mut GpuProber,
    sides: Option<&Sides>,
    pages: u32,
    arguments: &MapArguments,
) -> Result<SlicesReport, Failure> {
    say(&format!("finding the slices of {}", Bytes(u64::from(pages) * u64::from(PAGE_BYTES))));
    let mut watch = stopwatch();
    let map =
        slices::find(prober, sides, pages, arguments.checks, arguments.look.seed).map_err(
            |error| match error {
                SlicesError::Prober(error) => Failure::machine(error, None),
                error => Failure::machine(error, Some(AGAIN.to_owned())),
            },
        )?;
    Ok(SlicesReport::of(&map, sides, watch()))
}

impl SidesReport {
    fn of(sides: &Sides, sms_per_group: u32) -> Self {
        let known = &sides.known;
        let line =
            |sides: &[Side]| sides.iter().map(|side| if *side == Side::First { '0' } else { '1' }).collect();
        Self {
            mask: known.mask,
            granularity_bytes: known.granularity(),
            groups: line(&known.scale.groups.iter().map(|group| group.side).collect::<Vec<_>>()),
            sms_per_group,
            pages: line(&sides.pages),
            far_cycles: known.scale.far_cycles,
            separation: known.scale.separation,
            checked: sides.quality.checked,
            wrong: 0,
            unsure: sides.quality.unsure,
            latencies: LatenciesReport::of(&sides.quality.latencies),
        }
    }
}

impl LatenciesReport {
    fn of(latencies: &Latencies) -> Self {
        Self {
            bin_cycles: BIN_CYCLES,
            from_cycles: latencies.from_cycles(),
            near: latencies.near().to_vec(),
            far: latencies.far().to_vec(),
            longer: latencies.longer(),
        }
    }

    /// The middle of the bin that half of the probes are in or below; `None` where there are none.
    fn median(&self, bins: &[u32]) -> Option<u32> {
        let all: u64 = bins.iter().map(|&count| u64::from(count)).sum();
        let mut below = 0;
        let bin = bins.iter().position(|&count| {
            below += u64::from(count);
            2 * below >= all && all > 0
        })?;
        Some(self.from_cycles + bin as u32 * self.bin_cycles + self.bin_cycles / 2)
    }
}

impl SlicesReport {
    fn of(map: &SliceMap, sides: Option<&Sides>, took_s: f64) -> Self {
        Self {
            bytes: map.pages.len() as u64 * u64::from(PAGE_BYTES),
            count: map.count,
            of_sides: sides.map(|sides| map.of_sides(sides)),
            bits: map.bits,
            pages: map.pages.len() as u64,
            whole_pages: map.whole,
            pairs: map.pairs,
            places: map.pages.iter().map(Vec::len).sum::<usize>() as u64,
            checked: map.checked,
            across_pairs: map.across.pairs,
            across_contend: map.across.contend,
            took_s,
        }
    }
}

fn text(report: &Report) -> String {
    let mut text = format!("{}\n", report.gpu);
    let _ = writeln!(
        text,
        "  {} in {} pages of 2 MiB, {:.1} s; {}",
        Bytes(report.bytes),
        report.pages,
        report.took_s,
        report.cache.text()
    );
    match &report.sides {
        Some(sides) => sides.write(&mut text),
        None => {
            let apart = report.apart.unwrap_or_default();
            let _ = writeln!(
                text,
                "  one side: addresses are {apart:.1} deviations apart, which is not two kinds"
            );
        }
    }
    if let Some(slices) = &report.slices {
        slices.write(&mut text);
    }
    text
}

fn bits(mask: u32) -> String {
    let named = (0..u32::BITS).filter(|bit| mask >> bit & 1 == 1).map(|bit| bit.to_string());
    named.collect::<Vec<_>>().join(", ")
}

impl SidesReport {
    fn write(&self, text: &mut String) {
        let Self {
            mask,
            granularity_bytes,
            groups,
            sms_per_group,
            pages,
            far_cycles,
            separation,
            checked,
            wrong: _,
            unsure,
            latencies,
        } = self;
        let median =
            |bins: &[u32]| latencies.median(bins).map_or("-".to_owned(), |cycles| cycles.to_string());
        let count = |line: &str, side: char| line.chars().filter(|found| *found == side).count();
        let sms = |side: char| count(groups, side) * *sms_per_group as usize;
        let _ = writeln!(
            text,
            "  two sides, in turn every {}: the parity of the bits {} of an address (mask {mask:#x}), and a constant of its page\n  \
             SMs: {} and {}; groups of {sms_per_group}: {groups}\n  \
             pages that begin on the first side and on the second: {} and {}\n  \
             an atomic operation takes {} cycles from its side and {} from the other, {far_cycles:.0} more for the same SMs; the sides are \
             {separation:.0} deviations apart\n  \
             checked: {checked} fresh addresses, none of them wrong; {unsure} could not be told",
            Bytes(u64::from(*granularity_bytes)),
            bits(*mask),
            sms('0'),
            sms('1'),
            count(pages, '0'),
            count(pages, '1'),
            median(&latencies.near),
            median(&latencies.far),
        );
    }
}

impl SlicesReport {
    fn write(&self, text: &mut String) {
        let Self {
            bytes,
            count,
            of_sides,
            bits: mask,
            pages,
            whole_pages,
            pairs,
            places,
            checked,
            across_pairs,
            across_contend,
            took_s,
        } = self;
        let of = of_sides.map_or(String::new(), |[first, second]| format!(", {first} and {second} by side"));
        let _ = writeln!(
            text,
            "  {count} slices{of}, in {}: {took_s:.1} s, {:.2} pairs a place; {whole_pages} of {pages} pages place by place\n  \
             what changes the slice: the bits {} of an address\n  \
             checked: {checked} fresh pairs, none of them wrong; of {across_pairs} on different sides {across_contend} contend",
            Bytes(*bytes),
            *pairs as f64 / *places as f64,
            bits(*mask),
        );
    }
}
