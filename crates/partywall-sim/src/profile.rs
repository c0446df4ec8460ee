//! Recorded model profiles: which kernels a network launches, in which order, and how long each took alone.
//!
//! The files in `profiles/networks/` hold what was measured and nothing else, and say for each figure where it comes
//! from. What was not measured (the bytes moved and how kernels scale with SMs, of networks that were traced in an eager
//! pass only) is estimated when a profile becomes a [`crate::kernel::Program`], by the rule documented there.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// What a kernel mostly does, judged from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelKind {
    /// Matrix products, convolutions, fused attention.
    Math,
    /// Elementwise, normalisation, pooling, layout changes, reductions, skinny matrix products: bound by moving operands.
    Memory,
    /// A copy or fill inside the device; recorded without a launch shape.
    Copy,
}

/// A launch shape; kernels of one network share few of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// What the kernel does.
    pub kind: KernelKind,
    /// Blocks in the grid; 0 where the recording has no grid.
    pub blocks: u32,
    /// Threads in a block; 0 where the recording has none.
    pub threads: u32,
    /// Registers per thread.
    pub regs: u32,
    /// Shared memory per block, bytes.
    pub smem: u32,
}

/// What the kernels of a profile were launched by when they were traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// The framework, one after the other: a graph of the same network may hold others.
    #[default]
    Eager,
    /// The replay of a CUDA graph: exactly what the latency is of.
    Graph,
}

/// How and when each kind of figure was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sources {
    /// Of the latencies.
    pub latency: String,
    /// Of the kernels, their times and shapes.
    pub kernels: String,
    /// Of the bytes moved; `None` where there are none.
    #[serde(default)]
    pub bytes: Option<String>,
    /// Of the latencies at several SM counts; `None` where there are none.
    #[serde(default)]
    pub scaling: Option<String>,
}

/// Latency of the whole network on part of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnSms {
    /// SMs it could use.
    pub sms: u32,
    /// Median latency of a graph replay on them, ms.
    pub p50_ms: f64,
}

/// One network at one batch size, as recorded alone on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// `resnet50`.
    pub model: String,
    /// Inputs per request.
    pub batch: u32,
    /// Number format of weights and activations.
    pub precision: String,
    /// Catalogue id of the GPU it was recorded on.
    pub gpu: String,
    /// How and when it was recorded.
    pub sources: Sources,
    /// Median latency of a CUDA graph replay.
    pub graph_p50_ms: f64,
    /// The same in a second, quieter run, where there was one (networks alone in the recording of pairs).
    #[serde(default)]
    pub graph_p50_again_ms: Option<f64>,
    /// 99th percentile of the first run; `None` without enough replays for one.
    #[serde(default)]
    pub graph_p99_ms: Option<f64>,
    /// Median latency of eager execution, where recorded.
    #[serde(default)]
    pub eager_p50_ms: Option<f64>,
    /// What launched the kernels below.
    #[serde(default)]
    pub pass: Pass,
    /// Latency at several SM counts; may be empty. Where the whole GPU is not among them, `graph_p50_ms` is.
    #[serde(default)]
    pub scaling: Vec<OnSms>,
    /// The launch shapes that occur.
    pub shapes: Vec<Shape>,
    /// Kernels in launch order: index into `shapes`, nanoseconds in the traced pass.
    pub kernels: Vec<(u32, u32)>,
    /// Bytes read from and written to VRAM by each kernel, `None` where not recorded; empty if for none.
    #[serde(default)]
    pub vram_bytes: Vec<Option<u64>>,
    /// Bytes that each kernel moved between SMs and L2, likewise.
    #[serde(default)]
    pub l2_bytes: Vec<Option<u64>>,
}

mod recorded;

use recorded::RECORDED;

/// The names of the networks that come with the program: `resnet50-b1` and so on, sorted.
pub fn recorded_names() -> impl Iterator<Item = &'static str> {
    RECORDED.iter().map(|(name, _)| *name)
}

/// The models of these networks, each with the batch sizes that were recorded, in ascending order.
pub fn recorded_models() -> Vec<(&'static str, Vec<u32>)> {
    let mut models: Vec<(&str, Vec<u32>)> = Vec::new();
    for name in recorded_names() {
        let Some((model, batch)) = name.rsplit_once("-b") else { continue };
        let Ok(batch) = batch.parse() else { continue };
        match models.iter_mut().find(|(known, _)| *known == model) {
            Some((_, batches)) => batches.push(batch),
            None => models.push((model, vec![batch])),
        }
    }
    models.iter_mut().for_each(|(_, batches)| batches.sort_unstable());
    models
}

/// A network that comes with the program, by name: `resnet50-b1`.
///
/// # Errors
/// No such name; the message lists what there is.
pub fn recorded(name: &str) -> Result<Profile, ProfileError> {
    let found = RECORDED.iter().find(|(known, _)| *known == name);
    let (_, text) = found.ok_or_else(|| ProfileError {
        file: name.to_owned(),
        place: String::new(),
        what: format!("no such recorded network; there are {}", models()),
    })?;
    Profile::parse(text, name)
}

fn models() -> String {
    let listed = |(model, batches): (&str, Vec<u32>)| {
        let batches: Vec<String> = batches.iter().map(|batch| format!("-b{batch}")).collect();
        format!("{model} ({})", batches.join(", "))
    };
    recorded_models().into_iter().map(listed).collect::<Vec<_>>().join(", ")
}

/// A profile file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}{place}: {what}")]
pub struct ProfileError {
    file: String,
    place: String,
    what: String,
}

/// Longest profile accepted: ten times the longest recorded network (DenseNet and ResNet-152 have about 1 000
/// kernels), so that a damaged file cannot ask for the machine's memory.
pub const KERNELS_MAX: usize = 10_000;

/// Longest single kernel accepted, 1 s: CUDA kernels of networks end in milliseconds.
pub const KERNEL_NS_MAX: u32 = 1_000_000_000;

/// Most bytes of one kernel, 1 TB: what an H200 moves in 200 ms.
pub const BYTES_MAX: u64 = 1_000_000_000_000;

/// Most points of a scaling curve: no chip has as many steps worth measuring.
pub const SCALING_MAX: usize = 64;

/// Most SMs a point may name: several times the largest GPU.
pub const SMS_MAX: u32 = 1024;

impl Profile {
    /// The name by which scenarios ask for it: `resnet50-b1`.
    pub fn name(&self) -> String {
        format!("{}-b{}", self.model, self.batch)
    }

    /// Latency of a graph replay alone, ms: the lower of the recorded medians, because what disturbs a measurement
    /// alone on a GPU only ever makes it longer.
    pub fn solo_ms(&self) -> f64 {
        self.graph_p50_again_ms.map_or(self.graph_p50_ms, |again| again.min(self.graph_p50_ms))
    }

    /// Reads a profile file; `file` is used in messages only.
    ///
    /// # Errors
    /// Malformed JSON with its line and column, or a value that no recording can have.
    pub fn parse(text: &str, file: &str) -> Result<Self, ProfileError> {
        let profile: Self = serde_json::from_str(text).map_err(|error| ProfileError {
            file: file.to_owned(),
            place: format!(":{}:{}", error.line(), error.column()),
            what: error.to_string(),
        })?;
        profile.check().map_err(|what| ProfileError { file: file.to_owned(), place: String::new(), what })?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), String> {
        if self.kernels.is_empty() || self.kernels.len() > KERNELS_MAX {
            return Err(format!("has {} kernels; 1 to {KERNELS_MAX} are expected", self.kernels.len()));
        }
        self.check_latencies()?;
        for (what, bytes) in [("vram_bytes", &self.vram_bytes), ("l2_bytes", &self.l2_bytes)] {
            if !(bytes.is_empty() || bytes.len() == self.kernels.len()) {
                let (given, kernels) = (bytes.len(), self.kernels.len());
                return Err(format!(
                    "{what} has {given} entries for {kernels} kernels; one for each is expected"
                ));
            }
            if let Some(index) = bytes.iter().position(|bytes| bytes.is_some_and(|bytes| bytes > BYTES_MAX)) {
                return Err(format!(
                    "{what} of kernel {index} is out of range; at most {BYTES_MAX} are expected"
                ));
            }
        }
        for (index, &(shape, ns)) in self.kernels.iter().enumerate() {
            if shape as usize >= self.shapes.len() {
                return Err(format!("kernel {index} names shape {shape}; there are {}", self.shapes.len()));
            }
            if ns == 0 || ns > KERNEL_NS_MAX {
                return Err(format!("kernel {index} takes {ns} ns; 1 to {KERNEL_NS_MAX} are expected"));
            }
        }
        for (index, shape) in self.shapes.iter().enumerate() {
            for (what, value, max) in [
                ("threads", shape.threads, 1024),
                ("registers", shape.regs, 255),
                ("bytes of shared memory", shape.smem, 227 << 10),
            ] {
                if value > max {
                    return Err(format!("shape {index} has {value} {what}; at most {max} exist"));
                }
            }
        }
        Ok(())
    }

    fn check_latencies(&self) -> Result<(), String> {
        let latencies = [
            ("graph_p50_ms", Some(self.graph_p50_ms)),
            ("graph_p50_again_ms", self.graph_p50_again_ms),
            ("graph_p99_ms", self.graph_p99_ms),
            ("eager_p50_ms", self.eager_p50_ms),
        ];
        let on_sms = self.scaling.iter().map(|point| ("p50_ms in scaling", Some(point.p50_ms)));
        for (what, ms) in latencies.into_iter().chain(on_sms) {
            if !ms.is_none_or(|ms| ms > 0.0 && ms.is_finite()) {
                let ms = ms.unwrap_or_default();
                return Err(format!("{what} is {ms}; a positive latency in ms is expected"));
            }
        }
        if self.scaling.len() > SCALING_MAX {
            return Err(format!(
                "scaling has {} points; at most {SCALING_MAX} are expected",
                self.scaling.len()
            ));
        }
        let sms = self.scaling.iter().map(|point| point.sms).find(|sms| !(1..=SMS_MAX).contains(sms));
        sms.map_or(Ok(()), |sms| {
            Err(format!("scaling has a point at {sms} SMs; 1 to {SMS_MAX} are expected"))
        })
    }

    /// The file's text: JSON with a shape or eight kernels to a line, so that a change shows as a small difference.
    pub fn to_text(&self) -> String {
        let mut text = String::from("{\n");
        let optional = |ms: Option<f64>| ms.map_or("null".to_owned(), |ms| ms.to_string());
        for (key, value) in [
            ("model", json(&self.model)),
            ("batch", self.batch.to_string()),
            ("precision", json(&self.precision)),
            ("gpu", json(&self.gpu)),
            ("sources", json(&self.sources)),
            ("graph_p50_ms", self.graph_p50_ms.to_string()),
            ("graph_p50_again_ms", optional(self.graph_p50_again_ms)),
            ("graph_p99_ms", optional(self.graph_p99_ms)),
            ("eager_p50_ms", optional(self.eager_p50_ms)),
            ("pass", json(&self.pass)),
            ("scaling", json(&self.scaling)),
        ] {
            let _ = writeln!(text, "\"{key}\": {value},");
        }
        let shapes: Vec<String> = self.shapes.iter().map(json).collect();
        let kernels: Vec<String> = self.kernels.iter().map(json).collect();
        let _ = write!(
            text,
            "\"shapes\": [\n{}\n],\n\"kernels\": [\n{}\n]",
            shapes.join(",\n"),
            eights(&kernels)
        );
        for (key, bytes) in [("vram_bytes", &self.vram_bytes), ("l2_bytes", &self.l2_bytes)] {
            if !bytes.is_empty() {
                let bytes: Vec<String> = bytes.iter().map(json).collect();
                let _ = write!(text, ",\n\"{key}\": [\n{}\n]", eights(&bytes));
            }
        }
        text + "\n}\n"
    }
}

/// Nothing in a profile is a map with keys that are no text, the only thing that cannot be JSON.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Eight to a line.
fn eights(items: &[String]) -> String {
    items.chunks(8).map(|chunk| chunk.join(",")).collect::<Vec<_>>().join(",\n")
}

#[cfg(test)]
mod tests;
