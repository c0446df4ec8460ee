//! `cargo xtask profiles RECORDING.json…`: turns recorded solo profiles into the project's own format.
//!
//! A recording is `{"about": {...}, "networks": [...]}`, as `workloads/torch/profiles.py` writes it, or a bare list of
//! networks, as the first recordings were. A network has `model` and `batch` and any of
//!
//! - `graph_p50_ms`, `graph_p99_ms`, `eager_p50_ms`: latencies;
//! - `kernels`, in launch order `{name, us, grid, block, regs, smem, vram_bytes, l2_bytes}` with what `pass` launched
//!   them (`eager`, or `graph` for the replay of a CUDA graph);
//! - `scaling`: `{sms, p50_ms}` for each SM count at which the graph was replayed.
//!
//! What is kept is what was measured. Names are reduced to a kind, because the simulator needs to know whether a kernel
//! computes or moves data and nothing else about it. What a recording does not have stays as an earlier one left it, and
//! the file says for each kind of figure which recording that was.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use partywall_core::wall::Wall;
use partywall_sim::profile::{KernelKind, OnSms, Pass, Profile, Shape, Sources};
use partywall_sim::validate::{Pair, parse_pairs};
use serde::Deserialize;

use crate::workspace;

/// Where profiles lie, from the root of the repository.
const FOLDER: &str = "profiles/networks";
/// The source that includes them.
pub(crate) const LIST: &str = "crates/partywall-sim/src/profile/recorded.rs";

/// Of recordings that do not say it themselves.
const FIRST_RECORDINGS: &str = "H200, driver 580.159, PyTorch 2.11, random weights, November 2026";

#[derive(Deserialize)]
#[serde(untagged)]
enum Recording {
    Described { about: BTreeMap<String, serde_json::Value>, networks: Vec<Recorded> },
    Networks(Vec<Recorded>),
}

#[derive(Deserialize)]
struct Recorded {
    model: String,
    batch: u32,
    precision: Option<String>,
    graph_p50_ms: Option<f64>,
    graph_p99_ms: Option<f64>,
    eager_p50_ms: Option<f64>,
    pass: Option<Pass>,
    #[serde(default)]
    kernels: Vec<RecordedKernel>,
    #[serde(default)]
    scaling: Vec<RecordedPoint>,
}

#[derive(Deserialize)]
struct RecordedPoint {
    sms: u32,
    /// `None` where there were too few replays.
    p50_ms: Option<f64>,
}

#[derive(Deserialize)]
struct RecordedKernel {
    name: String,
    us: f64,
    grid: Option<[u32; 3]>,
    block: Option<[u32; 3]>,
    regs: Option<u32>,
    smem: Option<u32>,
    vram_bytes: Option<u64>,
    l2_bytes: Option<u64>,
}

/// Takes `recordings` over into the files of `profiles/networks`, one per network and batch size, and lists the files
/// for the simulator. Where `pairs` is given, the latency of networks alone without MPS is taken from there as a second
/// measurement.
pub(crate) fn import(root: &Path, recordings: &[PathBuf], pairs: Option<&Path>) -> Result<()> {
    let again = pairs.map(alone).transpose()?.unwrap_or_default();
    for path in recordings {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let recording: Recording = serde_json::from_str(&text).with_context(|| {
            format!("{} is no recording of networks; expected {{\"about\", \"networks\"}}", path.display())
        })?;
        if let Recording::Described { about, .. } = &recording {
            ensure!(!about.contains_key("fake"), "{} is of a rehearsal, not of a GPU", path.display());
            let gpu = about.get("gpu").and_then(serde_json::Value::as_str);
            let known = gpu.is_none_or(|gpu| gpu.contains("H200"));
            ensure!(
                known,
                "{} was recorded on {}; the others were on an H200",
                path.display(),
                gpu.unwrap_or("?")
            );
        }
        let (when, pass, networks) = match recording {
            Recording::Described { about, networks } => (described(&about), None, networks),
            Recording::Networks(networks) => (FIRST_RECORDINGS.to_owned(), Some(Pass::Eager), networks),
        };
        for network in networks {
            let network = Recorded { pass: network.pass.or(pass), ..network };
            let file = Path::new(FOLDER).join(format!("{}-b{}.json", network.model, network.batch));
            let before = match workspace::read(root, &file) {
                Ok(text) => Some(Profile::parse(&text, &file.display().to_string())?),
                Err(_) => None,
            };
            let name = format!("{}-b{} of {}", network.model, network.batch, path.display());
            let profile = taken_over(&network, before, &when, &again).with_context(|| name.clone())?;
            // What is written must be readable.
            let text = profile.to_text();
            Profile::parse(&text, &name)?;
            workspace::write(root, &file, &text)?;
        }
    }
    workspace::write(root, Path::new(LIST), &list(root)?)?;
    Ok(())
}

/// The source text that includes every file of `profiles/networks`.
pub(crate) fn list(root: &Path) -> Result<String> {
    let folder = root.join(FOLDER);
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let file = entry?.file_name().to_string_lossy().into_owned();
        let Some(name) = file.strip_suffix(".json") else { continue };
        let parts =
            name.rsplit_once("-b").and_then(|(model, batch)| Some((model, batch.parse::<u32>().ok()?)));
        let (model, batch) =
            parts.with_context(|| format!("{FOLDER}/{file}: expected MODEL-bBATCH.json as the name"))?;
        names.push((model.to_owned(), batch));
    }
    names.sort();
    let mut text = format!(
        "//! The files of `{FOLDER}`. Generated by `cargo xtask generate`.\n\n/// Name and text of each.\n#[rustfmt::skip]\n\
         pub(super) const RECORDED: &[(&str, &str)] = &[\n"
    );
    for (model, batch) in names {
        let name = format!("{model}-b{batch}");
        let _ = writeln!(text, "    (\"{name}\", include_str!(\"../../../../{FOLDER}/{name}.json\")),");
    }
    Ok(text + "];\n")
}

/// `about` in one line: values of the keys that say on what and when.
fn described(about: &BTreeMap<String, serde_json::Value>) -> String {
    let parts = about.iter().map(|(key, value)| match value {
        serde_json::Value::String(text) => format!("{key} {text}"),
        other => format!("{key} {other}"),
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn alone(pairs: &Path) -> Result<Vec<Pair>> {
    let text = fs::read_to_string(pairs).with_context(|| format!("reading {}", pairs.display()))?;
    let pairs = parse_pairs(&text, &pairs.display().to_string())?;
    Ok(pairs.into_iter().filter(|pair| pair.wall == Wall::TimeSlicing && pair.be.is_none()).collect())
}

/// `before` with what `network` has in place of what it had.
fn taken_over(network: &Recorded, before: Option<Profile>, when: &str, again: &[Pair]) -> Result<Profile> {
    let source = |what: &str| format!("measured: {when}; {what}");
    let mut profile = before.unwrap_or_else(|| empty(network));
    if let Some(p50) = network.graph_p50_ms {
        profile.graph_p50_ms = p50;
        profile.graph_p99_ms = network.graph_p99_ms;
        profile.eager_p50_ms = network.eager_p50_ms.or(profile.eager_p50_ms);
        profile.graph_p50_again_ms = None;
        profile.sources.latency = source("CUDA graph replays in a closed loop");
    }
    if !network.kernels.is_empty() {
        profile.pass = network.pass.context("says not by which `pass` its kernels were launched")?;
        take_kernels(&mut profile, network);
        let pass = match profile.pass {
            Pass::Eager => "one eager pass",
            Pass::Graph => "replays of a CUDA graph",
        };
        profile.sources.kernels = source(&format!("kernels of {pass}"));
        let bytes = !(profile.vram_bytes.is_empty() && profile.l2_bytes.is_empty());
        profile.sources.bytes = bytes.then(|| source("counters of the GPU, kernel by kernel"));
    }
    let points =
        network.scaling.iter().filter_map(|point| Some(OnSms { sms: point.sms, p50_ms: point.p50_ms? }));
    let points: Vec<OnSms> = points.collect();
    if !points.is_empty() {
        profile.scaling = points;
        profile.scaling.sort_by_key(|point| std::cmp::Reverse(point.sms));
        profile.sources.scaling = Some(source("CUDA graph replays on part of the SMs"));
    }
    let name = profile.name();
    let found = again.iter().find(|pair| pair.ls.as_ref().is_some_and(|ls| ls.program == name));
    if let Some(p50) = found.and_then(|pair| pair.p50_ms) {
        profile.graph_p50_again_ms = Some(p50);
    }
    ensure!(!profile.kernels.is_empty(), "has no kernels, and there are none from an earlier recording");
    ensure!(profile.graph_p50_ms > 0.0, "has no graph_p50_ms, nor has an earlier recording");
    Ok(profile)
}

fn empty(network: &Recorded) -> Profile {
    Profile {
        model: network.model.clone(),
        batch: network.batch,
        precision: network.precision.clone().unwrap_or_else(|| "fp16".to_owned()),
        gpu: "h200".to_owned(),
        sources: Sources::default(),
        graph_p50_ms: 0.0,
        graph_p50_again_ms: None,
        graph_p99_ms: None,
        eager_p50_ms: None,
        pass: Pass::default(),
        scaling: Vec::new(),
        shapes: Vec::new(),
        kernels: Vec::new(),
        vram_bytes: Vec::new(),
        l2_bytes: Vec::new(),
    }
}

fn take_kernels(profile: &mut Profile, network: &Recorded) {
    let mut shapes: Vec<Shape> = Vec::new();
    let kernels = network.kernels.iter().map(|kernel| {
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
    });
    profile.kernels = kernels.collect();
    profile.shapes = shapes;
    let recorded = |bytes: fn(&RecordedKernel) -> Option<u64>| -> Vec<Option<u64>> {
        let bytes: Vec<_> = network.kernels.iter().map(bytes).collect();
        if bytes.iter().all(Option::is_none) { Vec::new() } else { bytes }
    };
    profile.vram_bytes = recorded(|kernel| kernel.vram_bytes);
    profile.l2_bytes = recorded(|kernel| kernel.l2_bytes);
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
    } else if LAYOUT.iter().any(|part| name.contains(part)) || is_skinny(name) {
        KernelKind::Memory
    } else if MATH.iter().any(|part| name.contains(part)) {
        KernelKind::Math
    } else {
        KernelKind::Memory
    }
}

/// A product whose tiles have a side of at most so many does at most as many multiplications with an operand that it
/// reads, where the H200 could do 200 in the time: reading is what takes the time.
const SKINNY_MAX: u32 = 32;

/// Whether the name gives such a tile, as in `nvjet_sm90_hsh_512x8_64x3`.
fn is_skinny(name: &str) -> bool {
    let sides = name.split('_').find_map(|part| {
        let (rows, columns) = part.split_once('x')?;
        Some((rows.parse::<u32>().ok()?, columns.parse::<u32>().ok()?))
    });
    name.contains("nvjet") && sides.is_some_and(|(rows, columns)| rows.min(columns) <= SKINNY_MAX)
}

#[cfg(test)]
mod tests;
