//! `partywall sim speed`: how fast the simulator is on this machine.

use partywall_core::units::Nanos;
use partywall_sim::params::Params;
use partywall_sim::speed::{self, Fleet, Mix, Speed};
use serde::Serialize;

use crate::cli::SpeedArguments;
use crate::error::Failure;
use crate::{demo, output, progress, validation};

/// Timings of each mix; the median is quoted.
const REPEATS: usize = 5;

/// Virtual time of each: some ten million kernels.
const MIX_TIME: Nanos = Nanos::from_secs(30);

/// GPUs of `--hour-of` at most: one real core takes a third of a second for each.
const GPUS_MAX: u32 = 10_000;

#[derive(Debug, Serialize)]
struct Document {
    gpu: &'static str,
    two_tenants: Timed,
    four_tenants: Timed,
    demo: DemoTime,
    hour: Option<Fleet>,
}

/// `partywall demo`, from its arguments to its finished report, on all cores.
#[derive(Debug, Serialize)]
struct DemoTime {
    wall_s_median: f64,
    wall_s_min: f64,
    wall_s_max: f64,
    cores: usize,
    repeats: usize,
}

/// Several timings of one mix, on one core.
#[derive(Debug, Serialize)]
struct Timed {
    kernels: u64,
    kernels_per_s_median: f64,
    kernels_per_s_min: f64,
    kernels_per_s_max: f64,
    repeats: usize,
}

pub(crate) fn run(arguments: &SpeedArguments) -> Result<(), Failure> {
    if let Some(gpus) = arguments.hour_of
        && !(1..=GPUS_MAX).contains(&gpus)
    {
        return Err(Failure::input(format!("--hour-of is {gpus}; expected 1 to {GPUS_MAX} GPUs")));
    }
    let bar = progress::bar(2 * REPEATS as u64 + u64::from(arguments.hour_of.is_some()), "timing");
    let gpu = validation::recorded_gpu()?;
    let params = Params::default();
    let mut clock = progress::stopwatch();
    let mut timed = |mix: Mix| -> Result<Timed, Failure> {
        let mut runs = Vec::new();
        for _ in 0..REPEATS {
            let run = speed::kernels_per_second(mix, gpu, &params, MIX_TIME, &mut clock);
            runs.push(run.map_err(Failure::internal)?);
            bar.inc(1);
        }
        Ok(summary(runs))
    };
    let (two_tenants, four_tenants) = (timed(Mix::Two)?, timed(Mix::Four)?);
    let workers = progress::cores();
    let demo = time_demo(&mut clock, workers)?;
    let hour = |gpus: u32| speed::fleet(gpus, gpu, &params, Nanos::from_secs(3600), workers, &mut clock);
    let hour = arguments.hour_of.map(hour).transpose().map_err(Failure::internal)?;
    bar.finish_and_clear();
    let document = Document { gpu: validation::RECORDED_ON, two_tenants, four_tenants, demo, hour };
    if arguments.json { output::print(&output::json(&document)?) } else { output::print(&people(&document)) }
}

fn time_demo(clock: &mut dyn FnMut() -> f64, cores: usize) -> Result<DemoTime, Failure> {
    let mut seconds = Vec::new();
    for _ in 0..REPEATS {
        let begin = clock();
        demo::recorded_demo().map_err(Failure::internal)?;
        seconds.push(clock() - begin);
    }
    seconds.sort_by(f64::total_cmp);
    Ok(DemoTime {
        wall_s_median: seconds[REPEATS / 2],
        wall_s_min: seconds[0],
        wall_s_max: seconds[REPEATS - 1],
        cores,
        repeats: REPEATS,
    })
}

fn summary(mut runs: Vec<Speed>) -> Timed {
    runs.sort_by(|a, b| a.kernels_per_s.total_cmp(&b.kernels_per_s));
    let rate = |index: usize| runs.get(index).map_or(0.0, |run| run.kernels_per_s);
    Timed {
        kernels: runs.first().map_or(0, |run| run.kernels),
        kernels_per_s_median: rate(runs.len() / 2),
        kernels_per_s_min: rate(0),
        kernels_per_s_max: rate(runs.len().saturating_sub(1)),
        repeats: runs.len(),
    }
}

fn people(document: &Document) -> String {
    let line = |name: &str, timed: &Timed| {
        format!(
            "{name}: {:.2} M kernel events a second on one core (median of {}; {:.2} to {:.2})\n",
            timed.kernels_per_s_median / 1e6,
            timed.repeats,
            timed.kernels_per_s_min / 1e6,
            timed.kernels_per_s_max / 1e6
        )
    };
    let mut text = line("two tenants under mps", &document.two_tenants);
    text += &line("four tenants under mps", &document.four_tenants);
    let demo = &document.demo;
    text += &format!(
        "partywall demo: {:.1} s on {} cores (median of {}; {:.1} to {:.1})\n",
        demo.wall_s_median, demo.cores, demo.repeats, demo.wall_s_min, demo.wall_s_max
    );
    if let Some(hour) = &document.hour {
        text += &format!(
            "one hour of {} GPUs with {} tenants each, programs coarsened to {:?} pieces: {:.1} s on {} threads\n",
            hour.gpus, hour.tenants_per_gpu, hour.segments, hour.wall_s, hour.workers
        );
    }
    text
}
