//! `partywall demo`: a latency-sensitive ResNet-50 beside a batch job and beside a VRAM stream, behind every wall.

use partywall_core::catalogue::Catalogue;
use partywall_core::copy_scheduler::Policy;
use partywall_core::gpu::Gpu;
use partywall_core::tenant::Class;
use partywall_core::units::{Bytes, Nanos};
use partywall_core::wall::Wall;
use partywall_sim::SimError;
use partywall_sim::experiment::{Cell, CellResult, Experiment, Participant, Solo};
use partywall_sim::kernel::{Chip, Program};
use partywall_sim::load::Load;
use partywall_sim::machine::Workload;
use partywall_sim::params::Params;
use partywall_sim::profile;

use crate::cli::DemoArguments;
use crate::error::Failure;
use crate::report::{Origin, Report, Section};
use crate::{output, progress, validation};

/// Columns of the terminal table: what fits a terminal that nobody has resized much.
const TABLE_WIDTH: u16 = 100;

/// Of the solo latency on the simulated GPU: the objective, and what the rate follows. Requests come in bursts that keep
/// the tenant about half busy and calms in which it is one eighth busy; 0.2 on average.
const OBJECTIVE: f64 = 5.0;
const DUTY: f64 = 0.2;
const BURST_FACTOR: f64 = 4.0;

/// Requests behind a percentile of the demo: enough for a p99 in a picture, few enough for seconds.
const REQUESTS: f64 = 2_000.0;

/// One fp16 image of 224 x 224 x 3.
const IMAGE: Bytes = Bytes(224 * 224 * 3 * 2);

/// Bins and length of the timeline, in solo latencies.
const STRIP_BINS: usize = 480;
const STRIP_LATENCIES: f64 = 24.0;

pub(crate) fn run(arguments: &DemoArguments) -> Result<(), Failure> {
    let catalogue = Catalogue::builtin().map_err(Failure::internal)?;
    let gpu = catalogue
        .get(&arguments.gpu)
        .map_err(|error| Failure::input_with_hint(error, "`partywall gpus` lists them with their figures"))?;
    let report = build(gpu, arguments.seed)?;
    if arguments.json {
        output::print(&report.json())?;
    } else {
        output::print(&report.table(TABLE_WIDTH))?;
    }
    if let Some(directory) = &arguments.out {
        let (html, json) = (report.html(), report.json());
        let written = output::write_all(directory, &[("report.html", &html), ("report.json", &json)])?;
        if !arguments.json {
            for path in written {
                output::print(&format!("wrote {}", path.display()))?;
            }
        }
    }
    Ok(())
}

/// What the repository keeps of `partywall demo` on the GPU that was measured.
#[derive(Debug)]
pub struct RecordedDemo {
    /// The report.
    pub json: String,
    /// Its pictures: file name and SVG.
    pub pictures: Vec<(String, String)>,
}

/// Runs the demo for the repository.
///
/// # Errors
/// When something that comes with the program is damaged.
pub fn recorded_demo() -> Result<RecordedDemo, String> {
    let report = validation::recorded_gpu().and_then(|gpu| build(gpu, 1));
    let report = report.map_err(|failure| failure.to_string())?;
    Ok(RecordedDemo { json: report.json(), pictures: report.pictures() })
}

fn build(gpu: &Gpu, seed: u64) -> Result<Report, Failure> {
    let experiments = [batch(gpu, seed)?, stream(gpu, seed)?];
    let sections = 0..experiments.len();
    let solos: Vec<(usize, usize)> =
        sections.clone().flat_map(|section| [(section, 0), (section, 1)]).collect();
    let cells: Vec<(usize, Wall)> =
        sections.flat_map(|section| Wall::ALL.map(|wall| (section, wall))).collect();
    let bar = progress::bar((solos.len() + cells.len()) as u64, "simulating");
    let solos = progress::parallel(&solos, |&(section, tenant)| {
        let solo = experiments[section].experiment.solo(tenant);
        bar.inc(1);
        solo
    });
    let solos: Vec<Solo> = solos.into_iter().collect::<Result<_, SimError>>().map_err(Failure::internal)?;
    let results = progress::parallel(&cells, |&(section, wall)| {
        let solo = &solos[2 * section..2 * section + 2];
        let result =
            experiments[section].experiment.cell(Cell { wall, node: None, copies: copies(wall) }, solo);
        bar.inc(1);
        result
    });
    bar.finish_and_clear();
    let mut sections: Vec<Section> = experiments.into_iter().map(|named| named.section()).collect();
    for (&(section, wall), result) in cells.iter().zip(results) {
        sort(&mut sections[section], wall, result)?;
    }
    Ok(Report {
        title: "What two tenants do to each other on one GPU".to_owned(),
        gpu_id: gpu.id.clone(),
        gpu_name: gpu.name.clone(),
        sms: gpu.sms(),
        origin: Origin::Simulated,
        seed,
        command: format!("partywall demo --gpu {} --seed {seed}", gpu.id),
        sources: sources(gpu),
        sections,
        errors: validation::recorded_errors()?,
        errors_source: validation::errors_source(),
        measured_on: validation::RECORDED_ON.to_owned(),
    })
}

fn sources(gpu: &Gpu) -> Vec<String> {
    let recorded = "Networks: recorded alone on an H200 (PyTorch 2.11, CUDA graphs); VRAM traffic and SM scaling are \
                    estimates by rule (docs/model.md)";
    let moved = "Moved from the H200 to this GPU by rule: an estimate throughout";
    let catalogue = format!(
        "GPU: {} SMs ({}), {} GB/s moved by a copy ({}); all figures: partywall gpus --gpu {}",
        gpu.sms.value, gpu.sms.source, gpu.stream_gb_s.value, gpu.stream_gb_s.source, gpu.id
    );
    let mut sources = vec![recorded.to_owned(), catalogue];
    if gpu.id != validation::RECORDED_ON {
        sources.push(moved.to_owned());
    }
    sources
}

/// A wall that does not exist on the GPU is said to be missing, with the reason; anything else is a mistake.
fn sort(section: &mut Section, wall: Wall, result: Result<CellResult, SimError>) -> Result<(), Failure> {
    match result {
        Ok(cell) => section.cells.push(cell.into()),
        Err(SimError::Layout(error)) => section.unavailable.push((wall, error.to_string())),
        Err(error) => return Err(Failure::internal(error)),
    }
    Ok(())
}

/// Only Partywall schedules copies; everybody else gets what the hardware does.
fn copies(wall: Wall) -> Policy {
    if wall == Wall::Partywall { Policy::Fair } else { Policy::Fifo }
}

struct Named<'a> {
    id: &'static str,
    title: &'static str,
    description: String,
    experiment: Experiment<'a>,
}

impl Named<'_> {
    fn section(self) -> Section {
        Section {
            id: self.id.to_owned(),
            title: self.title.to_owned(),
            description: self.description,
            ls: 0,
            be: Some(1),
            objective: self.experiment.participants[0].workload.objective,
            cells: Vec::new(),
            unavailable: Vec::new(),
            lost: Vec::new(),
        }
    }
}

/// Beside ResNet-152 at batch 32, which takes its images from the host.
fn batch(gpu: &Gpu, seed: u64) -> Result<Named<'_>, Failure> {
    let params = Params::default();
    let program = network(gpu, "resnet152-b32", &params)?.with_copies(Bytes(IMAGE.0 * 32), Bytes::ZERO);
    Ok(Named {
        id: "resnet152",
        title: "ResNet-50 beside ResNet-152, batch 32",
        description: "The neighbour is a batch job: a thousand kernels of some microseconds each, two batches queued at \
                      a time, images copied from the host."
            .to_owned(),
        experiment: experiment(gpu, seed, best_effort("resnet152-b32", program, 2)?)?,
    })
}

/// Beside copies within VRAM, which saturate it.
fn stream(gpu: &Gpu, seed: u64) -> Result<Named<'_>, Failure> {
    let program = Program::stream(&Chip::of(gpu), &Params::default());
    Ok(Named {
        id: "stream",
        title: "ResNet-50 beside a VRAM stream",
        description: "The neighbour copies 1 GiB after the other within VRAM: long kernels that saturate the memory. Four \
                      are queued at a time."
            .to_owned(),
        experiment: experiment(gpu, seed, best_effort("stream", program, 4)?)?,
    })
}

fn network(gpu: &Gpu, name: &str, params: &Params) -> Result<Program, Failure> {
    let recorded = validation::recorded_gpu()?;
    let profile = profile::recorded(name).map_err(Failure::internal)?;
    Ok(Program::of(&profile, &Chip::of(recorded), &Chip::of(gpu), params))
}

fn best_effort(name: &str, program: Program, depth: u32) -> Result<Participant, Failure> {
    let load = Load::closed(depth);
    let demand = load.demand(None).map_err(Failure::internal)?;
    let workload =
        Workload { name: name.to_owned(), class: Class::BestEffort, program, demand, objective: None };
    Ok(Participant { workload, share: None })
}

fn experiment(gpu: &Gpu, seed: u64, neighbour: Participant) -> Result<Experiment<'_>, Failure> {
    let params = Params::default();
    let program = network(gpu, "resnet50-b1", &params)?.with_copies(IMAGE, Bytes::ZERO);
    let solo_s = program.solo_ns() / 1e9;
    let rate_per_s = DUTY / solo_s;
    let load = bursty(rate_per_s, solo_s);
    let demand = load.demand(None).map_err(Failure::internal)?;
    let objective = Some(Nanos::from_ms_f64(solo_s * 1e3 * OBJECTIVE));
    let strip = Nanos::from_ms_f64(solo_s * 1e3 * STRIP_LATENCIES);
    let bin = Nanos((strip.0 / STRIP_BINS as u64).max(1));
    let warmup = Nanos::from_ms_f64(solo_s * 1e3 * 100.0);
    let busiest = demand
        .arrivals(seed, 0)
        .map_or(warmup, |arrivals| busy_moment(arrivals.map(|a| a.at), warmup, strip));
    Ok(Experiment {
        gpu,
        participants: vec![
            Participant {
                workload: Workload {
                    name: "resnet50-b1".to_owned(),
                    class: Class::LatencySensitive,
                    program,
                    demand,
                    objective,
                },
                share: None,
            },
            neighbour,
        ],
        params,
        seed,
        warmup,
        end: warmup + Nanos::from_ms_f64(REQUESTS / rate_per_s * 1e3),
        faults: Vec::new(),
        timeline: Some((busiest, bin, STRIP_BINS)),
    })
}

/// Bursts of fifty solo latencies, calms of two hundred.
fn bursty(rate_per_s: f64, solo_s: f64) -> Load {
    let latencies = |count: f64| Nanos::from_ms_f64(solo_s * 1e3 * count);
    Load::Bursty { rate_per_s, burst_factor: BURST_FACTOR, burst: latencies(50.0), calm: latencies(200.0) }
}

/// The first moment after `from` at which some requests fall into one strip but do not fill it, so that the picture
/// shows both busy and idle.
fn busy_moment(arrivals: impl Iterator<Item = Nanos>, from: Nanos, strip: Nanos) -> Nanos {
    const ENOUGH: usize = 7;
    let mut recent: Vec<Nanos> = Vec::new();
    for at in arrivals.skip_while(|at| *at < from).take(10_000) {
        recent.push(at);
        if recent.len() >= ENOUGH {
            let first = recent[recent.len() - ENOUGH];
            if at.saturating_sub(first) < Nanos(strip.0 * 2 / 3) {
                return first.saturating_sub(Nanos(strip.0 / 12));
            }
        }
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strip_begins_shortly_before_a_burst() {
        let at = |ms: u64| Nanos::from_millis(ms);
        let arrivals = [1, 40, 80, 100, 101, 102, 103, 104, 105, 106].map(at);
        assert_eq!(busy_moment(arrivals.into_iter(), at(10), at(24)), at(98));
        assert_eq!(busy_moment([at(1)].into_iter(), at(10), at(24)), at(10));
    }
}
