//! `cargo xtask calibrate PAIRS.csv`: searches the parameters of the contention model.
//!
//! Coordinate descent on the mean absolute log error of the p50 latency, every wall weighing the same, plus a little
//! of the best-effort rate's; errors beyond a factor of two do not count more, so that one cell at the edge of a time
//! slice cannot pull everything. `--hold-out NETWORK` leaves every pair of one latency-sensitive network out of the
//! search and reports the error on those pairs alone: what to expect of networks that were never seen.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use partywall_core::catalogue::Catalogue;
use partywall_core::gpu::Gpu;
use partywall_core::wall::Wall;
use partywall_sim::params::Params;
use partywall_sim::validate::{Compared, Effort, Pair, parse_pairs, simulate, summarise};

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
pub(crate) fn calibrate(pairs: &Path, rounds: u32, hold_out: Option<&str>, fixed: &[String]) -> Result<()> {
    let text = fs::read_to_string(pairs).with_context(|| format!("reading {}", pairs.display()))?;
    let pairs = parse_pairs(&text, &pairs.display().to_string())?;
    let gpu = Catalogue::builtin()?.get("h200")?;
    let (held, used): (Vec<Pair>, Vec<Pair>) =
        pairs.into_iter().partition(|pair| Some(pair.ls.0.as_str()) == hold_out);
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
            wall.wall, wall.n, wall.median_error_p50, wall.p90_error_p50, wall.median_error_p99
        );
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
            let off = (row.p50_ms / pair.p50_ms).ln().abs().min(CLIP);
            let rate = match (row.be_rate_per_s, pair.be_rate_per_s) {
                (Some(simulated), Some(measured)) => (simulated.max(1e-9) / measured).ln().abs().min(CLIP),
                _ => 0.0,
            };
            let weight = if pair.be.is_some() { 1.0 } else { ALONE_WEIGHT };
            Ok((pair.wall, weight * off + RATE_WEIGHT * rate))
        })
        .collect()
}
