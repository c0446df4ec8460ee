//! Recorded model profiles: which kernels a network launches, in which order, and how long each took alone.
//!
//! The files in `profiles/networks/` hold what was measured and nothing else. What was not measured (bytes moved,
//! how a kernel scales with SMs) is estimated when a profile becomes a [`crate::kernel::Program`], by the rule
//! documented there.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// What a kernel mostly does, judged from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelKind {
    /// Matrix products, convolutions, fused attention.
    Math,
    /// Elementwise, normalisation, pooling, layout changes, reductions: bound by moving operands.
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
    pub source: String,
    /// Median latency of a CUDA graph replay.
    pub graph_p50_ms: f64,
    /// The same in a second, quieter run, where there was one (networks alone in the recording of pairs).
    #[serde(default)]
    pub graph_p50_again_ms: Option<f64>,
    /// 99th percentile of the first run.
    pub graph_p99_ms: f64,
    /// Median latency of eager execution.
    pub eager_p50_ms: f64,
    /// The launch shapes that occur.
    pub shapes: Vec<Shape>,
    /// Kernels in launch order: index into `shapes`, nanoseconds in an eager pass.
    pub kernels: Vec<(u32, u32)>,
}

/// The recorded networks, by name and file text.
macro_rules! recorded {
    ($($model:literal),+ $(,)?) => {
        &[$(
            (concat!($model, "-b1"), include_str!(concat!("../../../profiles/networks/", $model, "-b1.json"))),
            (concat!($model, "-b8"), include_str!(concat!("../../../profiles/networks/", $model, "-b8.json"))),
            (concat!($model, "-b32"), include_str!(concat!("../../../profiles/networks/", $model, "-b32.json"))),
        )+]
    };
}

const RECORDED: &[(&str, &str)] = recorded!(
    "bert_base",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "gpt2",
    "inception_v3",
    "mobilenet_v3_large",
    "resnet152",
    "resnet50",
    "swin_t",
    "vgg16",
    "vit_b_16"
);

/// The names of the networks that come with the program: twelve models at batch 1, 8 and 32.
pub fn recorded_names() -> impl Iterator<Item = &'static str> {
    RECORDED.iter().map(|(name, _)| *name)
}

/// A network that comes with the program, by name: `resnet50-b1`.
///
/// # Errors
/// No such name; the message lists the models.
pub fn recorded(name: &str) -> Result<Profile, ProfileError> {
    let found = RECORDED.iter().find(|(known, _)| *known == name);
    let (_, text) = found.ok_or_else(|| ProfileError {
        file: name.to_owned(),
        place: String::new(),
        what: format!("no such recorded network; there are {} with -b1, -b8 or -b32", models()),
    })?;
    Profile::parse(text, name)
}

fn models() -> String {
    let models: Vec<&str> = recorded_names().filter_map(|name| name.strip_suffix("-b1")).collect();
    models.join(", ")
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
        if !(self.graph_p50_ms > 0.0 && self.graph_p50_ms.is_finite()) {
            return Err(format!(
                "graph_p50_ms is {}; a positive latency in ms is expected",
                self.graph_p50_ms
            ));
        }
        if !self.graph_p50_again_ms.is_none_or(|again| again > 0.0 && again.is_finite()) {
            return Err("graph_p50_again_ms is not a time; a positive latency in ms is expected".to_owned());
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

    /// The file's text: JSON with a shape or eight kernels to a line, so that a change shows as a small difference.
    pub fn to_text(&self) -> String {
        let mut text = String::from("{\n");
        let again = self.graph_p50_again_ms.map_or("null".to_owned(), |ms| ms.to_string());
        let quoted = |value: &str| serde_json::Value::from(value).to_string();
        for (key, value) in [
            ("model", quoted(&self.model)),
            ("batch", self.batch.to_string()),
            ("precision", quoted(&self.precision)),
            ("gpu", quoted(&self.gpu)),
            ("source", quoted(&self.source)),
            ("graph_p50_ms", self.graph_p50_ms.to_string()),
            ("graph_p50_again_ms", again),
            ("graph_p99_ms", self.graph_p99_ms.to_string()),
            ("eager_p50_ms", self.eager_p50_ms.to_string()),
        ] {
            let _ = writeln!(text, "\"{key}\": {value},");
        }
        let shapes: Vec<String> =
            self.shapes.iter().map(|shape| serde_json::to_string(shape).unwrap_or_default()).collect();
        let kernels: Vec<String> = self.kernels.iter().map(|(shape, ns)| format!("[{shape},{ns}]")).collect();
        let lines: Vec<String> = kernels.chunks(8).map(|chunk| chunk.join(",")).collect();
        let _ = write!(
            text,
            "\"shapes\": [\n{}\n],\n\"kernels\": [\n{}\n]\n}}\n",
            shapes.join(",\n"),
            lines.join(",\n")
        );
        text
    }
}

#[cfg(test)]
mod tests;
