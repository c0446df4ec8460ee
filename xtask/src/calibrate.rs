//! `cargo xtask calibrate MEASURED…` (records of `partywall measure`, files of pairs): searches the parameters of the contention model.
//!
//! Coordinate descent on the mean absolute log error of the p50 latency, every wall weighing the same, plus a little
//! of the best-effort rate's; errors beyond a factor of two do not count more, so that one cell at the edge of a time
//! slice cannot pull everything. `--hold-out` leaves every pair of one latency-sensitive network (`bert_base`), or of one
//! best-effort program (`decode-b32`, `stream`), out of the search and reports the error on those pairs alone: what to
//! expect of tenants that were never seen.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use partywall_core::catalogue::Catalogue;
use partywall_core::gpu::Gpu;
use partywall_core::wall::Wall;
use partywall_sim::kernel::{Chip, Program};
use partywall_sim::params::Params;
use partywall_sim::profile;
use partywall_sim::validate::{self, Compared, Effort, Pair, simulate, summarise};

/// An error beyond this (log) counts as this.
const CLIP: f64 = 0.7;
/// Steps are logarithms of factors. One that has become too small to matter starts again, to leave a narrow valley.
const FIRST_STEP: f64 = 0.35;
const STEP_MIN: f64 = 0.01;
const STEP_AGAIN: f64 = 0.2;
const RATE_WEIGHT: f64 = 0.2;
const ALONE_WEIGHT: f64 = 0.5;
/// Fractions stay below one; a knee of one would make the queueing delay infinite.
const FRACTIONS: [&str; 3] = ["queue_knee", "math_intensity", "start_room"];
const FRACTION_MAX: f64 = 0.97;

/// Runs `rounds` rounds of the search and prints what it found.
pub(crate) fn calibrate(
    files: &[PathBuf],
    rounds: u32,
    hold_out: Option<&str>,
    fixed: &[String],
) -> Result<()> {
    let (gpu, pairs) = read(files)?;
    let (held, used): (Vec<Pair>, Vec<Pair>) =
        pairs.into_iter().partition(|pair| hold_out.is_some_and(|model| is_about(pair, model)));
    let (start, fixed) = settings(fixed)?;
    let mut found = search(&used, gpu, start, &fixed, rounds)?;
    for (name, value) in found.entries() {
        println!("{name} = {value:.4}");
    }
    let shown = if hold_out.is_some() { held } else { used };
    let compared: Vec<Compared> =
        shown.iter().map(|pair| simulate(pair, gpu, &found, Effort::default())).collect::<Result<_, _>>()?;
    for wall in summarise(&compared) {
        println!(
            "{}: {} pairs, error of p50: median {:.3}, p90 {:.3}; of p99: median {:.3}",
            wall.wall,
            wall.n,
            wall.median_error_p50,
            wall.p90_error_p50,
            wall.median_error_p99.unwrap_or(f64::NAN)
        );
    }
    print_widths(gpu, &found)
}

/// All cells of `files`, and the GPU on which they were measured.
fn read(files: &[PathBuf]) -> Result<(&'static Gpu, Vec<Pair>)> {
    let mut gpus = Vec::new();
    let mut pairs = Vec::new();
    for path in files {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let recording = validate::read(&text, &path.display().to_string())?;
        println!(
            "{}: {} cells, {} not comparable",
            path.display(),
            recording.pairs.len(),
            recording.left_out.len()
        );
        pairs.extend(recording.pairs);
        gpus.push(recording.gpu);
    }
    gpus.dedup();
    ensure!(gpus.len() == 1, "the files were measured on {}; expected one GPU", gpus.join(" and "));
    Ok((Catalogue::builtin()?.get(&gpus[0])?, pairs))
}

/// Whether the latency-sensitive tenant is the network `held`, at whatever batch, or the best-effort one the program `held`.
fn is_about(pair: &Pair, held: &str) -> bool {
    let network = pair.ls.as_ref().and_then(|ls| ls.program.rsplit_once("-b"));
    network.is_some_and(|(known, _)| known == held) || pair.be.as_ref().is_some_and(|be| be.program == held)
}

/// What the recorded latencies at several SM counts say about the widths that the rule gives: factors that are alike in
/// all networks belong into the rule.
fn print_widths(gpu: &Gpu, params: &Params) -> Result<()> {
    for name in profile::recorded_names() {
        let profile = profile::recorded(name)?;
        if !profile.scaling.is_empty() {
            let widths = Program::widths(&profile, &Chip::of(gpu), params);
            println!(
                "{name}: width of math x{:.2}, of memory-bound x{:.2}; off by at most {:.3} at {} SM counts",
                widths.math,
                widths.memory,
                widths.worst,
                profile.scaling.len()
            );
        }
    }
    Ok(())
}

/// The parameters to start from, and the names of those to keep, from `NAME` and `NAME=NUMBER`.
fn settings(fixed: &[String]) -> Result<(Params, Vec<String>)> {
    let mut start = Params::default();
    let mut names = Vec::new();
    for setting in fixed {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        let mut entries = start.entries();
        let entry = entries.iter_mut().find(|(known, _)| *known == name);
        let (_, place) = entry.with_context(|| format!("there is no parameter `{name}`"))?;
        if !value.is_empty() {
            **place = value.parse().with_context(|| format!("`{setting}`: expected NAME or NAME=NUMBER"))?;
        }
        names.push(name.to_owned());
    }
    Ok((start, names))
}

fn search(pairs: &[Pair], gpu: &Gpu, start: Params, fixed: &[String], rounds: u32) -> Result<Params> {
    let mut best = start;
    let names = best.entries().map(|(name, _)| name);
    let mut steps = names.map(|_| FIRST_STEP);
    let mut loss = total(pairs, gpu, &best)?;
    println!("start: {loss:.4}");
    for round in 1..=rounds {
        for (index, (name, step)) in names.iter().zip(&mut steps).enumerate() {
            if fixed.iter().any(|kept| kept == name) {
                continue;
            }
            let mut improved = false;
            for factor in [step.exp(), (-*step).exp()] {
                let mut trial = best;
                let value = &mut *trial.entries()[index].1;
                *value *= factor;
                if FRACTIONS.contains(name) {
                    *value = value.min(FRACTION_MAX);
                }
                let found = total(pairs, gpu, &trial)?;
                if found < loss - 1e-6 {
                    (best, loss, improved) = (trial, found, true);
                    break;
                }
            }
            *step *= if improved { 1.4 } else { 0.6 };
            if *step < STEP_MIN {
                *step = STEP_AGAIN;
            }
        }
        println!("round {round}: {loss:.4}");
    }
    Ok(best)
}

fn total(pairs: &[Pair], gpu: &Gpu, params: &Params) -> Result<f64> {
    // Fewer requests than validation uses: the search asks for thousands of these.
    let effort = Effort { requests: 25, ..Effort::default() };
    let halves = std::thread::scope(|scope| {
        let (left, right) = pairs.split_at(pairs.len() / 2);
        let other = scope.spawn(move || losses(right, gpu, params, effort));
        let own = losses(left, gpu, params, effort);
        (own, other.join())
    });
    let (mut all, right) = (halves.0?, halves.1.map_err(|_| anyhow::anyhow!("a simulation panicked"))??);
    all.extend(right);
    let mut sum = 0.0;
    let mut walls = 0.0;
    for wall in Wall::ALL {
        let of_wall: Vec<f64> = all.iter().filter(|(w, _)| *w == wall).map(|(_, loss)| *loss).collect();
        if !of_wall.is_empty() {
            sum += of_wall.iter().sum::<f64>() / of_wall.len() as f64;
            walls += 1.0;
        }
    }
    Ok(sum / walls)
}

fn losses(pairs: &[Pair], gpu: &Gpu, params: &Params, effort: Effort) -> Result<Vec<(Wall, f64)>> {
    pairs
        .iter()
        .map(|pair| {
            let row = simulate(pair, gpu, params, effort)?;
            let off = pair.p50_ms.map_or(0.0, |p50_ms| (row.p50_ms / p50_ms).ln().abs().min(CLIP));
            let rate = match (row.be_rate_per_s, pair.be_rate_per_s) {
                (Some(simulated), Some(measured)) => (simulated.max(1e-9) / measured).ln().abs().min(CLIP),
                _ => 0.0,
            };
            let weight = if pair.ls.is_some() && pair.be.is_some() { 1.0 } else { ALONE_WEIGHT };
            Ok((pair.wall, weight * off + RATE_WEIGHT * rate))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_or_a_neighbour_is_held_out() {
        let head =
            "mechanism,ls,ls_batch,ls_sm_percent,be,be_batch,be_sm_percent,p50_ms,p99_ms,be_rate_per_s\n";
        let rows = "mps,bert_base,1,100,resnet152,32,100,2,2,2\nmps,resnet50,1,100,bert_base,32,100,2,2,2\nmps,resnet50,1,100,stream,,100,2,2,2\n";
        let pairs = validate::parse_pairs(&format!("{head}{rows}"), "pairs.csv").unwrap();
        for (held, expected) in [
            ("bert_base", [true, false, false]),
            ("bert_base-b32", [false, true, false]),
            ("stream", [false, false, true]),
            ("resnet50", [false, true, true]),
            ("vgg16", [false; 3]),
        ] {
            let found: Vec<bool> = pairs.iter().map(|pair| is_about(pair, held)).collect();
            assert_eq!(found, expected, "{held}");
        }
    }
}
