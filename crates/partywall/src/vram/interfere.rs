//! `partywall vram interfere`: what a neighbour does to a tenant, by color and without.

mod record;
#[cfg(test)]
mod tests;
mod text;

use std::time::Duration;

use indicatif::ProgressBar;
use partywall_core::soft_gpu::is_simulated;
use partywall_core::units::Bytes;
use partywall_driver::mps::{self, MpsDaemon, MpsOptions};
use partywall_driver::{Cuda, DriverError};
use partywall_measure::clock;
use partywall_vram::gpu::GpuProber;
use partywall_vram::prober::Prober as _;
use partywall_vram::sides::{Found, Known, Side};
use partywall_vram::tenant::LAUNCHES_MAX;

use super::again::{Again as _, name};
use super::known::{CacheUse, Kept};
use super::talk::{Access, Load, Measured, Neighbour, Pages, Ready, Requests, Said, Told, View, Work};
use crate::cli::SimulatedGpu;
use crate::cli::vram::{InterfereArguments, LoadArgument, PagesArgument, WorkArgument};
use crate::error::Failure;
use crate::output;
use crate::progress::{Lines, bar, say, stopwatch};
use crate::tenants::variable;
use record::{Record, Row, Summary, hold_against_most};
use text::text;

/// Memory by which the mask and the sides of SMs are found or checked, and fresh addresses for that.
const LOOKED_AT: Bytes = Bytes(256 << 20);
const CHECKS: u32 = 4_000;

/// Places where the kernels of one process are loaded at most: each takes a compilation.
const CODE_PLACES_MAX: u32 = 64;

/// How long a load runs before it counts, and how long it counts when it is alone.
const WARM_UP: Duration = Duration::from_millis(50);
const ALONE: Duration = Duration::from_millis(250);

pub(super) fn run(arguments: &InterfereArguments, gpu: Option<&SimulatedGpu>) -> Result<(), Failure> {
    let record = measure(arguments, gpu)?;
    output::print(&if arguments.look.json { output::json(&record)? } else { text(&record) })
}

fn measure(arguments: &InterfereArguments, asked: Option<&SimulatedGpu>) -> Result<Record, Failure> {
    let mut watch = stopwatch();
    check(arguments)?;
    let control = mps::find_control(variable("PATH").as_deref())
        .ok_or_else(|| Failure::machine(format!("{} is not on the PATH", mps::CONTROL), None))?;
    let (gpu, known, cache) = look(arguments)?;
    let simulated = is_simulated(&gpu);
    let mps = |error| Failure::machine(error, None);
    let daemon = MpsDaemon::start(&MpsOptions::new(control, std::env::temp_dir())).map_err(mps)?;
    let request =
        Requests { launches: arguments.launches, bytes: arguments.launch_data.0.min(arguments.data.0) };
    let begin = |side, bytes: Bytes, pages| -> Result<(Neighbour, Ready), Failure> {
        let mut neighbour = Neighbour::start(&daemon)?;
        let (device, seed) = (arguments.look.device, arguments.look.seed);
        let (known, data, gentle) = (known.clone(), bytes.0, simulated);
        // The neighbour's one launch is over before its code can matter.
        let code_places = if side == Side::First { arguments.code_places } else { 1 };
        let request = Requests { bytes: request.bytes.min(data), ..request };
        let told = Told::Begin { device, known, side, data, request, code_places, seed, gentle, pages };
        let Said::Ready(ready) = neighbour.tell(&told)? else { return Err(unexpected()) };
        let is_client = daemon.is_client(neighbour.pid()).map_err(|error| Failure::machine(error, None))?;
        if !is_client {
            return Err(Failure::machine("one of the two processes runs beside MPS, not under it", None));
        }
        Ok((neighbour, ready))
    };
    say("making an arena on each side");
    let folder = tempfile::tempdir().map_err(|error| Failure::Write { path: std::env::temp_dir(), error })?;
    let is_paired = arguments.pages == PagesArgument::Paired;
    let at = folder.path().join("pages");
    let bytes = arguments.data.0.max(arguments.load_data.0);
    let pages = if is_paired { Pages::Offered { bytes, at: at.clone() } } else { Pages::Private };
    let (mut tenant, of_tenant) = begin(Side::First, arguments.data, pages)?;
    let pages = if is_paired { Pages::Fetched { count: of_tenant.pages, at } } else { Pages::Private };
    let (mut load, of_load) = begin(Side::Second, arguments.load_data, pages)?;
    let mut copied_wrong = 0;
    for one in [&mut tenant, &mut load] {
        let Said::Copied { wrong } = one.tell(&Told::Copies { seed: arguments.look.seed as u32 })? else {
            return Err(unexpected());
        };
        copied_wrong += wrong;
    }
    if copied_wrong > 0 {
        let message = format!("{copied_wrong} bytes came back from an arena otherwise than they went there");
        return Err(Failure::machine(message, None));
    }
    let load_sms = if arguments.load_sms.is_empty() { &[of_load.sms] } else { &arguments.load_sms[..] };
    if let Some(wrong) = load_sms.iter().find(|sms| !(1..=of_load.sms).contains(*sms)) {
        return Err(Failure::input(format!(
            "--load-sms {wrong}: the neighbour's side has {} SMs",
            of_load.sms
        )));
    }
    let rows = rows(arguments, load_sms, &mut tenant, &mut load)?;
    load.end()?;
    tenant.end()?;
    daemon.stop().map_err(mps)?;
    Ok(Record {
        command: arguments.command(asked),
        gpu,
        simulated,
        cache,
        mask: known.mask,
        pages: name(&arguments.pages),
        request,
        summary: Summary::of(&rows),
        copied_bytes: of_tenant.data_bytes + of_load.data_bytes,
        tenant: of_tenant,
        neighbour: of_load,
        rows,
        took_s: watch(),
    })
}

fn check(arguments: &InterfereArguments) -> Result<(), Failure> {
    for (option, threads) in [("--threads", &arguments.threads), ("--load-threads", &arguments.load_threads)]
    {
        if let Some(wrong) = threads.iter().find(|one| !(32..=1024).contains(*one) || !one.is_multiple_of(32))
        {
            return Err(Failure::input(format!(
                "{option} {wrong}: 32, 64, ... 1024 threads on an SM are possible"
            )));
        }
    }
    let most = partywall_vram::tenant::PASSES_MAX / 2;
    for (option, number, most) in [
        ("--requests", arguments.requests, most),
        ("--launches", arguments.launches, LAUNCHES_MAX),
        ("--code-places", arguments.code_places, CODE_PLACES_MAX),
    ] {
        if !(1..=most).contains(&number) {
            return Err(Failure::input(format!("{option} {number}: from 1 to {most}")));
        }
    }
    if let Some(percent) = arguments.held.filter(|percent| !(1.0..=100.0).contains(percent)) {
        return Err(Failure::input(format!("--held {percent}: from 1 to 100 per cent")));
    }
    for (option, bytes) in [("--data", arguments.data), ("--load-data", arguments.load_data)] {
        if bytes.0 < 1 << 20 || !bytes.0.is_multiple_of(64 << 10) || bytes.0 > 1 << 32 {
            return Err(Failure::input(format!("{option} {bytes}: from 1MiB to 4GiB, a multiple of 64KiB")));
        }
    }
    if !arguments.launch_data.0.is_multiple_of(1 << 10) {
        return Err(Failure::input(format!("--launch-data {}: a multiple of 1KiB", arguments.launch_data)));
    }
    Ok(())
}

/// What is known of the GPU. Nothing of this process is left on it afterwards: beside a context of its own, MPS would have to take turns.
fn look(arguments: &InterfereArguments) -> Result<(String, Known, CacheUse), Failure> {
    let driver = |error: DriverError| Failure::machine(error, None);
    let device = Cuda::load().map_err(driver)?.device(arguments.look.device).map_err(driver)?;
    let name = device.name().map_err(driver)?;
    let mut prober = GpuProber::new(&device, LOOKED_AT).map_err(driver)?;
    let kept = Kept::of(&device, prober.groups())?;
    match kept.find(&mut prober, arguments.look.fresh, CHECKS, arguments.look.seed)? {
        (Found::Two(sides), cache) => Ok((name, sides.known, cache)),
        (Found::One { .. }, _) => Err(Failure::machine(
            format!("{name} has one side, as far as can be told, so there are no two for neighbours"),
            None,
        )),
    }
}

fn unexpected() -> Failure {
    Failure::internal("a process answered something else than what it was asked")
}

/// What the tenant does, with how many threads on each SM, with which copy of its kernels.
#[derive(Clone, Copy)]
struct Cell {
    work: Work,
    threads: u32,
    code: u32,
}

fn rows(
    arguments: &InterfereArguments,
    load_sms: &[u32],
    tenant: &mut Neighbour,
    load: &mut Neighbour,
) -> Result<Vec<Row>, Failure> {
    let views: &[View] = match arguments.pages {
        PagesArgument::Private => &[View::Colored, View::Uncolored],
        // What is not of the own color is the neighbour's.
        PagesArgument::Paired => &[View::Colored],
    };
    let cells: Vec<Cell> = (0..arguments.code_places)
        .flat_map(|code| arguments.work.iter().map(move |work| (code, Work::from(*work))))
        .flat_map(|(code, work)| arguments.threads.iter().map(move |&threads| Cell { work, threads, code }))
        .collect();
    let shapes = || {
        let sms = load_sms.iter().copied();
        sms.flat_map(|sms| arguments.load_threads.iter().map(move |&threads| (sms, threads)))
    };
    let loads: Vec<(Load, (u32, u32))> =
        arguments.loads.iter().flat_map(|load| shapes().map(|shape| (Load::from(*load), shape))).collect();
    let mut progress = Progress::new(views.len() * cells.len() * (1 + loads.len()));
    let mut rows = Vec::new();
    for &view in views {
        let mut measured = |progress: &mut Progress, cell: Cell, beside: &str| {
            progress.step(view, cell, beside);
            let Cell { work, threads, code } = cell;
            let count = arguments.requests;
            match tenant.tell(&Told::Measure { work, view, threads, count, code })? {
                Said::Measured(measured) => Ok(measured),
                _ => Err(unexpected()),
            }
        };
        let alone = cells
            .iter()
            .map(|cell| measured(&mut progress, *cell, "alone"))
            .collect::<Result<Vec<Measured>, Failure>>()?;
        let first = rows.len();
        for &(what, (all, load_threads)) in &loads {
            let mut rate = |sms| -> Result<f64, Failure> {
                let started = load.tell(&Told::Start { load: what, view, sms, threads: load_threads });
                done(started?)?;
                let rate = alone_gb_s(load, what)?;
                done(load.tell(&Told::Stop)?)?;
                Ok(rate)
            };
            let (sms, most) = match arguments.held {
                Some(percent) => fewest(all, percent / 100.0, &mut rate)?,
                None => (all, 0.0),
            };
            done(load.tell(&Told::Start { load: what, view, sms, threads: load_threads })?)?;
            let load_alone_gb_s = alone_gb_s(load, what)?;
            for (cell, alone) in cells.iter().zip(&alone) {
                let before = worked(load)?;
                let beside = measured(&mut progress, *cell, &format!("beside {}", what.name()))?;
                let load_beside_gb_s = what.gb_s(before, worked(load)?);
                let added = (beside.p50_us - alone.p50_us) / f64::from(arguments.launches);
                rows.push(Row {
                    view,
                    work: cell.work,
                    threads_per_sm: cell.threads,
                    code_place: cell.code,
                    load: what.name(),
                    load_sms: sms,
                    load_threads_per_sm: load_threads,
                    alone: *alone,
                    beside,
                    interference_p50: beside.p50_us / alone.p50_us,
                    interference_p99: beside.p99_us.zip(alone.p99_us).map(|(one, other)| one / other),
                    added_us_per_launch: (cell.work != Work::Long).then_some(added),
                    load_alone_gb_s,
                    load_beside_gb_s,
                    load_kept: load_beside_gb_s / load_alone_gb_s,
                    load_most_gb_s: load_alone_gb_s.max(most),
                    load_kept_of_most: 0.0,
                });
            }
            done(load.tell(&Told::Stop)?)?;
        }
        hold_against_most(&mut rows[first..]);
    }
    Ok(rows)
}

/// What a load that has just begun moves alone.
fn alone_gb_s(load: &mut Neighbour, what: Load) -> Result<f64, Failure> {
    pause(WARM_UP);
    let before = worked(load)?;
    pause(ALONE);
    Ok(what.gb_s(before, worked(load)?))
}

/// The fewest SMs, a multiple of two or all, whose rate is such a part of that of all, and the rate of all. More SMs have more.
fn fewest<E>(all: u32, part: f64, rate: &mut impl FnMut(u32) -> Result<f64, E>) -> Result<(u32, f64), E> {
    let most = rate(all)?;
    let (mut too_few, mut enough) = (0, all.div_ceil(2));
    while enough - too_few > 1 {
        let middle = too_few.midpoint(enough);
        if rate(2 * middle)? < part * most { too_few = middle } else { enough = middle }
    }
    Ok(((2 * enough).min(all), most))
}

/// What is measured now: a bar, or a line now and then where there is no terminal.
struct Progress {
    bar: ProgressBar,
    lines: Option<Lines>,
}

impl Progress {
    fn new(steps: usize) -> Self {
        Self { bar: bar(steps as u64, "measuring"), lines: Lines::for_logs() }
    }

    fn step(&mut self, view: View, cell: Cell, beside: &str) {
        let what = format!("{view:?} {:?}, {} threads, {beside}", cell.work, cell.threads).to_lowercase();
        if let Some(lines) = &mut self.lines {
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or_default());
            lines.say(clock::now(), &format!("[{done}/{all}] {what}"));
        }
        self.bar.set_message(what);
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn done(said: Said) -> Result<(), Failure> {
    if matches!(said, Said::Done) { Ok(()) } else { Err(unexpected()) }
}

/// Bytes worked through, and when.
fn worked(load: &mut Neighbour) -> Result<(u64, u64), Failure> {
    match load.tell(&Told::Worked)? {
        Said::Worked { bytes, at_ns } => Ok((bytes, at_ns)),
        _ => Err(unexpected()),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the edge of the process: what happens meanwhile is what is measured"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

impl Load {
    fn name(self) -> String {
        let access = match self.access {
            Access::Read => "read",
            Access::Write => "write",
            Access::Mixed => "mixed",
        };
        if self.evict_first { format!("{access}-evict-first") } else { access.to_owned() }
    }

    /// 10^9 bytes a second between two looks: bytes that are read and written count twice.
    fn gb_s(self, (before, from_ns): (u64, u64), (after, to_ns): (u64, u64)) -> f64 {
        let both = if self.access == Access::Mixed { 2.0 } else { 1.0 };
        both * (after - before) as f64 / (to_ns - from_ns).max(1) as f64
    }
}

impl From<WorkArgument> for Work {
    fn from(work: WorkArgument) -> Self {
        match work {
            WorkArgument::Long => Self::Long,
            WorkArgument::Short => Self::Short,
            WorkArgument::Graph => Self::Graph,
        }
    }
}

impl From<LoadArgument> for Load {
    fn from(load: LoadArgument) -> Self {
        let (access, evict_first) = match load {
            LoadArgument::Read => (Access::Read, false),
            LoadArgument::ReadEvictFirst => (Access::Read, true),
            LoadArgument::Write => (Access::Write, false),
            LoadArgument::WriteEvictFirst => (Access::Write, true),
            LoadArgument::Mixed => (Access::Mixed, false),
            LoadArgument::MixedEvictFirst => (Access::Mixed, true),
        };
        Self { access, evict_first }
    }
}
