//! `cargo xtask profiles SOLO.json`: turns recorded solo profiles into the project's own format.
//!
//! The recording is a list of `{model, batch, precision, graph_p50_ms, graph_p99_ms, eager_p50_ms, kernels}` with,
//! per kernel, `{name, us, grid, block, regs, smem}`. What is kept is what was measured: the order of the kernels,
//! their times and their launch shapes. Names are reduced to a kind, because the simulator needs to know whether a
//! kernel computes or moves data and nothing else about it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use partywall_core::wall::Wall;
use partywall_sim::profile::{KernelKind, Profile, Shape};
use partywall_sim::validate::{Pair, parse_pairs};
use serde::Deserialize;

#[derive(Deserialize)]
struct Recorded {
    model: String,
    batch: u32,
    precision: String,
    graph_p50_ms: f64,
    graph_p99_ms: f64,
    eager_p50_ms: f64,
    kernels: Vec<RecordedKernel>,
}

#[derive(Deserialize)]
struct RecordedKernel {
    name: String,
    us: f64,
    grid: Option<[u32; 3]>,
    block: Option<[u32; 3]>,
    regs: Option<u32>,
    smem: Option<u32>,
}

/// Reads the recording at `input` and writes one file per network and batch size into `output`.
/// Where `pairs` is given, the latency of networks alone without MPS is taken from there as a second measurement.
pub(crate) fn convert(input: &Path, pairs: Option<&Path>, output: &Path) -> Result<()> {
    let again = pairs.map(alone).transpose()?.unwrap_or_default();
    let text = fs::read_to_string(input).with_context(|| format!("reading {}", input.display()))?;
    let recorded: Vec<Recorded> =
        serde_json::from_str(&text).with_context(|| format!("parsing {}", input.display()))?;
    fs::create_dir_all(output).with_context(|| format!("creating {}", output.display()))?;
    for network in &recorded {
        let mut profile = compact(network);
        let found = again.iter().find(|pair| pair.ls == (profile.model.clone(), profile.batch));
        profile.graph_p50_again_ms = found.map(|pair| pair.p50_ms);
        let path = output.join(format!("{}-b{}.json", profile.model, profile.batch));
        fs::write(&path, profile.to_text()).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn alone(pairs: &Path) -> Result<Vec<Pair>> {
    let text = fs::read_to_string(pairs).with_context(|| format!("reading {}", pairs.display()))?;
    let pairs = parse_pairs(&text, &pairs.display().to_string())?;
    Ok(pairs.into_iter().filter(|pair| pair.wall == Wall::TimeSlicing && pair.be.is_none()).collect())
}

fn compact(network: &Recorded) -> Profile {
    let mut shapes: Vec<Shape> = Vec::new();
    let kernels = network
        .kernels
        .iter()
        .map(|kernel| {
            let product = |dims: Option<[u32; 3]>| dims.map_or(0, |d| d.iter().product());
            let shape = Shape {
                kind: kind(&kernel.name),
                blocks: product(kernel.grid),
                threads: product(kernel.block),
                regs: kernel.regs.unwrap_or(0),
                smem: kernel.smem.unwrap_or(0),
            };
            let index = shapes.iter().position(|known| *known == shape).unwrap_or_else(|| {
                shapes.push(shape);
                shapes.len() - 1
            });
            (index as u32, (kernel.us * 1e3).round() as u32)
        })
        .collect();
    Profile {
        model: network.model.clone(),
        batch: network.batch,
        precision: network.precision.clone(),
        gpu: "h200".to_owned(),
        source: "measured: H200, driver 580.159, PyTorch 2.11, random weights, November 2026; kernels of one eager pass, \
                 latency of CUDA graph replays in a closed loop"
            .to_owned(),
        graph_p50_ms: network.graph_p50_ms,
        graph_p50_again_ms: None,
        graph_p99_ms: network.graph_p99_ms,
        eager_p50_ms: network.eager_p50_ms,
        shapes,
        kernels,
    }
}

/// Matrix products and convolutions compute; everything else that networks launch (elementwise, normalisation,
/// pooling, layout changes, reductions) is bound by moving its operands.
fn kind(name: &str) -> KernelKind {
    const MATH: [&str; 10] = [
        "gemm",
        "nvjet",
        "convolve",
        "conv2d",
        "cutlass",
        "fprop",
        "xmma",
        "flash",
        "sdpa",
        "conv_depthwise",
    ];
    const LAYOUT: [&str; 2] = ["nchwToNhwc", "nhwcToNchw"];
    if name.starts_with("Memset") || name.starts_with("Memcpy") {
        KernelKind::Copy
    } else if LAYOUT.iter().any(|part| name.contains(part)) {
        KernelKind::Memory
    } else if MATH.iter().any(|part| name.contains(part)) {
        KernelKind::Math
    } else {
        KernelKind::Memory
    }
}
