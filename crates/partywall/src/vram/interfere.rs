//! `partywall vram interfere`: what a neighbour does to a tenant, by color and without.

use std::fmt::Write as _;
use std::time::Duration;

use partywall_core::soft_gpu::is_simulated;
use partywall_core::units::Bytes;
use partywall_driver::mps::{self, MpsDaemon, MpsOptions};
use partywall_driver::{Cuda, DriverError};
use partywall_vram::gpu::GpuProber;
use partywall_vram::prober::Prober as _;
use partywall_vram::sides::{Found, Known, Side};
use serde::Serialize;

use super::known::{CacheUse, Kept};
use super::talk::{Access, Load, Measured, Neighbour, Pages, Ready, Said, Told, View, Work};
use crate::cli::vram::{InterfereArguments, LoadArgument, PagesArgument, WorkArgument};
use crate::error::Failure;
use crate::output;
use crate::progress::{say, stopwatch};
use crate::tenants::variable;

/// Memory by which the mask and the sides of SMs are found or checked, and fresh addresses for that.
const LOOKED_AT: Bytes = Bytes(256 << 20);
const CHECKS: u32 = 4_000;

/// How long a load runs before it counts, and how long it counts when it is alone.
const WARM_UP: Duration = Duration::from_millis(50);
const ALONE: Duration = Duration::from_millis(250);

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    gpu: String,
    simulated: bool,
    cache: CacheUse,
    /// Bits of an offset within 2 MiB whose parity turns the side.
    mask: u32,
    /// The one that waits, on the first side, and its neighbour, on the second.
    tenant: Ready,
    neighbour: Ready,
    /// Bytes that were copied into an arena and out of it again, of both; none of them was wrong.
    copied_bytes: u64,
    rows: Vec<Row>,
    took_s: f64,
}

/// The tenant at one intensity beside one load.
#[derive(Debug, Serialize)]
struct Row {
    view: View,
    work: Work,
    threads_per_sm: u32,
    load: String,
    alone: Measured,
    beside: Measured,
    /// Beside the load / alone, by the device's clock.
    interference_p50: f64,
    /// `null` where there were fewer than 5000.
    interference_p99: Option<f64>,
    /// What the load moves alone on its half and beside the tenant, 10^9 bytes a second, and the one over the other.
    load_alone_gb_s: f64,
    load_beside_gb_s: f64,
    load_kept: f64,
}

pub(super) fn run(arguments: &InterfereArguments) -> Result<(), Failure> {
    let report = measure(arguments)?;
    output::print(&if arguments.json { output::json(&report)? } else { text(&report) })
}

fn measure(arguments: &InterfereArguments) -> Result<Report, Failure> {
    let mut watch = stopwatch();
    check(arguments)?;
    let control = mps::find_control(variable("PATH").as_deref())
        .ok_or_else(|| Failure::machine(format!("{} is not on the PATH", mps::CONTROL), None))?;
    let (gpu, known, cache) = look(arguments)?;
    let simulated = is_simulated(&gpu);
    let mps = |error| Failure::machine(error, None);
    let daemon = MpsDaemon::start(&MpsOptions::new(control, std::env::temp_dir())).map_err(mps)?;
    let begin = |side, bytes: Bytes, pages| -> Result<(Neighbour, Ready), Failure> {
        let mut neighbour = Neighbour::start(&daemon)?;
        let (device, seed) = (arguments.device, arguments.seed);
        let (known, data, gentle) = (known.clone(), bytes.0, simulated);
        let told = Told::Begin { device, known, side, data, seed, gentle, pages };
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
        let Said::Copied { wrong } = one.tell(&Told::Copies { seed: arguments.seed as u32 })? else {
            return Err(unexpected());
        };
        copied_wrong += wrong;
    }
    if copied_wrong > 0 {
        let message = format!("{copied_wrong} bytes came back from an arena otherwise than they went there");
        return Err(Failure::machine(message, None));
    }
    let rows = rows(arguments, &mut tenant, &mut load)?;
    load.end()?;
    tenant.end()?;
    daemon.stop().map_err(mps)?;
    Ok(Report {
        gpu,
        simulated,
        cache,
        mask: known.mask,
        copied_bytes: of_tenant.data_bytes + of_load.data_bytes,
        tenant: of_tenant,
        neighbour: of_load,
        rows,
        took_s: watch(),
    })
}

fn check(arguments: &InterfereArguments) -> Result<(), Failure> {
    if let Some(wrong) =
        arguments.threads.iter().find(|one| !(32..=1024).contains(*one) || !one.is_multiple_of(32))
    {
        return Err(Failure::input(format!(
            "--threads {wrong}: 32, 64, ... 1024 threads on an SM are possible"
        )));
    }
    let most = partywall_vram::tenant::PASSES_MAX / 2;
    if !(1..=most).contains(&arguments.requests) {
        return Err(Failure::input(format!("--requests {}: from 1 to {most}", arguments.requests)));
    }
    for (option, bytes) in [("--data", arguments.data), ("--load-data", arguments.load_data)] {
        if bytes.0 < 1 << 20 || !bytes.0.is_multiple_of(64 << 10) || bytes.0 > 1 << 32 {
            return Err(Failure::input(format!("{option} {bytes}: from 1MiB to 4GiB, a multiple of 64KiB")));
        }
    }
    Ok(())
}

/// What is known of the GPU. Nothing of this process is left on it afterwards: beside a context of its own, MPS would have to take turns.
fn look(arguments: &InterfereArguments) -> Result<(String, Known, CacheUse), Failure> {
    let driver = |error: DriverError| Failure::machine(error, None);
    let device = Cuda::load().map_err(driver)?.device(arguments.device).map_err(driver)?;
    let name = device.name().map_err(driver)?;
    let mut prober = GpuProber::new(&device, LOOKED_AT).map_err(driver)?;
    let kept = Kept::of(&device, prober.groups())?;
    match kept.find(&mut prober, arguments.fresh, CHECKS, arguments.seed)? {
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

fn rows(
    arguments: &InterfereArguments,
    tenant: &mut Neighbour,
    load: &mut Neighbour,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let count = arguments.requests;
    let views: &[View] = match arguments.pages {
        PagesArgument::Private => &[View::Colored, View::Uncolored],
        // What is not of the own color is the neighbour's.
        PagesArgument::Paired => &[View::Colored],
    };
    for &view in views {
        let cells: Vec<(Work, u32)> = arguments
            .work
            .iter()
            .flat_map(|work| arguments.threads.iter().map(move |threads| (Work::from(*work), *threads)))
            .collect();
        let mut measured = |work, threads| match tenant.tell(&Told::Measure { work, view, threads, count })? {
            Said::Measured(measured) => Ok(measured),
            _ => Err(unexpected()),
        };
        say(&format!("{view:?}: alone"));
        let alone = cells
            .iter()
            .map(|(work, threads)| measured(*work, *threads))
            .collect::<Result<Vec<_>, Failure>>()?;
        for argument in &arguments.loads {
            let what = Load::from(*argument);
            say(&format!("{view:?}: beside {}", what.name()));
            done(load.tell(&Told::Start { load: what, view })?)?;
            pause(WARM_UP);
            let before = worked(load)?;
            pause(ALONE);
            let load_alone_gb_s = what.gb_s(before, worked(load)?);
            for ((work, threads_per_sm), alone) in cells.iter().zip(&alone) {
                let before = worked(load)?;
                let beside = measured(*work, *threads_per_sm)?;
                let load_beside_gb_s = what.gb_s(before, worked(load)?);
                rows.push(Row {
                    view,
                    work: *work,
                    threads_per_sm: *threads_per_sm,
                    load: what.name(),
                    alone: *alone,
                    beside,
                    interference_p50: beside.p50_us / alone.p50_us,
                    interference_p99: beside.p99_us.zip(alone.p99_us).map(|(one, other)| one / other),
                    load_alone_gb_s,
                    load_beside_gb_s,
                    load_kept: load_beside_gb_s / load_alone_gb_s,
                });
            }
            done(load.tell(&Told::Stop)?)?;
        }
    }
    Ok(rows)
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

fn text(report: &Report) -> String {
    let mut text = format!(
        "{}{}\n",
        report.gpu,
        if report.simulated { ": simulated, so times mean nothing" } else { "" }
    );
    let _ = writeln!(
        text,
        "  mask {:#x}, {}; {:.0} s\n  tenant: {} SMs, {} of data; neighbour: {} SMs, {} of data; of their pages {} are nobody's\n  \
         copied into arenas and back: {}, none of it wrong\n",
        report.mask,
        report.cache.text(),
        report.took_s,
        report.tenant.sms,
        Bytes(report.tenant.data_bytes),
        report.neighbour.sms,
        Bytes(report.neighbour.data_bytes),
        Bytes(report.tenant.lost_bytes + report.neighbour.lost_bytes),
        Bytes(report.copied_bytes),
    );
    let _ = writeln!(
        text,
        "  {:<10}{:<7}{:>8}  {:<19}{:>10}{:>10}{:>8}{:>8}{:>9}{:>6}",
        "data", "work", "threads", "beside", "alone us", "us", "p50 x", "p99 x", "GB/s", "kept"
    );
    for row in &report.rows {
        let p99 = row.interference_p99.map_or("-".to_owned(), |factor| format!("{factor:.2}"));
        let _ = writeln!(
            text,
            "  {:<10}{:<7}{:>8}  {:<19}{:>10.1}{:>10.1}{:>8.2}{p99:>8}{:>9.0}{:>6.2}",
            format!("{:?}", row.view).to_lowercase(),
            format!("{:?}", row.work).to_lowercase(),
            row.threads_per_sm,
            row.load,
            row.alone.p50_us,
            row.beside.p50_us,
            row.interference_p50,
            row.load_beside_gb_s,
            row.load_kept,
        );
    }
    text
}
