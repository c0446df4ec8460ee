//! What must hold between the figures of a GPU. Contradictions are collected, not returned one by one, so that a
//! file is repaired in one go.

use crate::gpu::{Gpu, Mig, MigProfile, SourceKind, Sourced};

/// Memory slices that a placement search still handles at once; parts of today have 8, or 4.
const MOST_MEMORY_SLICES: u32 = 16;

/// One figure of a GPU, for whoever goes through all of them.
pub(super) struct Figure<'a> {
    /// The field's name in the file.
    pub(super) key: &'static str,
    /// What it is, for people.
    pub(super) label: &'static str,
    /// Its unit; empty for counts.
    pub(super) unit: &'static str,
    /// Its value; counts are exact.
    pub(super) value: f64,
    /// How it is known.
    pub(super) kind: SourceKind,
    /// Which measurement, document, paper or rule.
    pub(super) source: &'a str,
}

/// Every figure of a GPU outside MIG, in the order of the struct.
pub(super) fn figures(gpu: &Gpu) -> Vec<Figure<'_>> {
    fn figure<'a, T: Copy + Into<f64>>(
        key: &'static str,
        label: &'static str,
        unit: &'static str,
        of: &'a Sourced<T>,
    ) -> Figure<'a> {
        Figure { key, label, unit, value: of.value.into(), kind: of.kind, source: &of.source }
    }
    vec![
        figure("sms", "SMs", "", &gpu.sms),
        figure("l2_mib", "L2", "MiB", &gpu.l2_mib),
        figure("vram_gib", "memory", "GiB", &gpu.vram_gib),
        figure("vram_gb_s", "memory bandwidth, peak", "GB/s", &gpu.vram_gb_s),
        figure("stream_gb_s", "memory bandwidth, copy", "GB/s", &gpu.stream_gb_s),
        figure("sides", "sides", "", &gpu.sides),
        figure("channels", "L2 slices or channels", "", &gpu.channels),
        figure("pcie_gb_s", "host link, each way", "GB/s", &gpu.pcie_gb_s),
        figure("copy_engines", "copy engines", "", &gpu.copy_engines),
        figure("fp16_tflops", "fp16 matrix products, dense", "TFLOP/s", &gpu.fp16_tflops),
        figure("power_cap_w", "power cap", "W", &gpu.power_cap_w),
        figure("power_idle_w", "power when idle", "W", &gpu.power_idle_w),
        figure("power_busy_w", "power above idle when busy", "W", &gpu.power_busy_w),
        figure("clock_min_mhz", "lowest clock", "MHz", &gpu.clock_min_mhz),
        figure("clock_max_mhz", "highest clock", "MHz", &gpu.clock_max_mhz),
        figure("green_context_min", "smallest Green Context", "SMs", &gpu.green_context_min),
        figure("green_context_step", "Green Context step", "SMs", &gpu.green_context_step),
    ]
}

impl Gpu {
    /// What is wrong with the figures, one message each; nothing for a GPU that is fit for use.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.check_names(&mut problems);
        for figure in figures(self) {
            check_figure(&figure, &mut problems);
        }
        self.check_relations(&mut problems);
        if let Some(mig) = &self.mig {
            self.check_mig(mig, &mut problems);
        }
        problems
    }

    fn check_names(&self, problems: &mut Vec<String>) {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.id.is_empty() || !self.id.chars().all(plain) {
            problems.push(format!("`id` is `{}`; use lower-case letters, digits and hyphens", self.id));
        }
        for (key, text) in [("name", &self.name), ("architecture", &self.architecture)] {
            if text.trim().is_empty() {
                problems.push(format!("`{key}` is empty; write what people call it"));
            }
        }
    }

    fn check_relations(&self, problems: &mut Vec<String>) {
        let sms = f64::from(self.sms.value);
        let pairs = [
            ("stream_gb_s", self.stream_gb_s.value, "vram_gb_s", self.vram_gb_s.value),
            ("clock_min_mhz", self.clock_min_mhz.value, "clock_max_mhz", self.clock_max_mhz.value),
            ("power_idle_w", self.power_idle_w.value, "power_cap_w", self.power_cap_w.value),
            ("sides", f64::from(self.sides.value), "sms", sms),
            ("sides", f64::from(self.sides.value), "channels", f64::from(self.channels.value)),
            ("green_context_min", f64::from(self.green_context_min.value), "sms", sms),
        ];
        for (small, value, large, limit) in pairs {
            if value > limit {
                problems.push(format!("`{small}` is {value}, more than `{large}`, {limit}"));
            }
        }
        let (min, step) = (self.green_context_min.value, self.green_context_step.value);
        if step > 0 && min % step != 0 {
            problems.push(format!(
                "`green_context_min` is {min}; it must be a multiple of `green_context_step`, {step}"
            ));
        }
    }

    fn check_mig(&self, mig: &Mig, problems: &mut Vec<String>) {
        if !(1..=MOST_MEMORY_SLICES).contains(&mig.memory_slices) {
            problems.push(format!(
                "`mig.memory_slices` is {}; it must be between 1 and {MOST_MEMORY_SLICES}",
                mig.memory_slices
            ));
            return;
        }
        if mig.profiles.is_empty() {
            problems.push("`mig.profiles` is empty; list the profiles or leave `mig` out".to_owned());
        }
        let before = problems.len();
        for (index, profile) in mig.profiles.iter().enumerate() {
            if mig.profiles[..index].iter().any(|p| p.name == profile.name || p.id == profile.id) {
                problems.push(format!(
                    "MIG profile `{}` (id {}) shares its name or id with another",
                    profile.name, profile.id
                ));
            }
            self.check_profile(profile, mig.memory_slices, problems);
        }
        // Only sound profiles can be added up.
        if problems.len() == before {
            self.check_sums(mig, problems);
        }
    }

    fn check_profile(&self, profile: &MigProfile, slices: u32, problems: &mut Vec<String>) {
        let name = &profile.name;
        let mut say = |text: String| problems.push(format!("MIG profile `{name}`: {text}"));
        if name.trim().is_empty() {
            say("`name` is empty; write one such as 1g.10gb".to_owned());
        }
        for (key, source) in [("sms", &profile.sms.source), ("memory_gib", &profile.memory_gib.source)] {
            if source.trim().is_empty() {
                say(format!("`{key}` has no source; name the measurement, document or rule"));
            }
        }
        if profile.sms.value == 0 {
            say("`sms` is 0; an instance has at least one SM".to_owned());
        }
        if !profile.memory_gib.value.is_finite() || profile.memory_gib.value <= 0.0 {
            say(format!("`memory_gib` is {}; it must be more than 0", profile.memory_gib.value));
        }
        if profile.copy_engines == 0 || profile.copy_engines > self.copy_engines.value {
            say(format!(
                "`copy_engines` is {}; it must be between 1 and the GPU's {}",
                profile.copy_engines, self.copy_engines.value
            ));
        }
        if !(1..=slices).contains(&profile.memory_slices) {
            say(format!("`memory_slices` is {}; it must be between 1 and {slices}", profile.memory_slices));
            return;
        }
        let last = slices - profile.memory_slices;
        if let Some(start) = profile.placements.iter().find(|start| **start > last) {
            say(format!(
                "a placement at {start} takes {} memory slices and does not fit into {slices}; the last start is {last}",
                profile.memory_slices
            ));
        }
        if !profile.placements.is_sorted_by(|a, b| a < b) {
            say("`placements` must rise, each start once".to_owned());
            return;
        }
        let fit = profile.most_instances();
        if profile.instances != fit {
            say(format!("`instances` is {}, but {fit} fit into its placements at once", profile.instances));
        }
    }

    fn check_sums(&self, mig: &Mig, problems: &mut Vec<String>) {
        let sms = heaviest_layout(mig, |profile| f64::from(profile.sms.value));
        if sms > f64::from(self.sms.value) {
            problems.push(format!(
                "MIG instances that fit side by side have {sms} SMs together, the GPU has {}",
                self.sms.value
            ));
        }
        let memory = heaviest_layout(mig, |profile| profile.memory_gib.value);
        if memory > self.vram_gib.value {
            problems.push(format!(
                "MIG instances that fit side by side have {memory} GiB together, the GPU has {}",
                self.vram_gib.value
            ));
        }
    }
}

impl MigProfile {
    /// How many instances fit at once: one of those with media extensions (`+me`), of which a GPU has one set, else
    /// as many as there are placements that do not overlap. Takes rising placements.
    fn most_instances(&self) -> u32 {
        if self.name.contains("+me") {
            return 1;
        }
        let mut free_from = 0;
        let mut count = 0;
        for &start in &self.placements {
            if start >= free_from {
                count += 1;
                free_from = start.saturating_add(self.memory_slices);
            }
        }
        count
    }
}

fn check_figure(figure: &Figure<'_>, problems: &mut Vec<String>) {
    if !figure.value.is_finite() || figure.value <= 0.0 {
        problems.push(format!("`{}` is {}; it must be more than 0", figure.key, figure.value));
    }
    if figure.source.trim().is_empty() {
        problems.push(format!("`{}` has no source; name the measurement, document or rule", figure.key));
    }
}

/// The largest sum of a figure over instances side by side, however often a profile may be used: `best[n]` is the
/// sum that the first n memory slices can hold. Takes profiles that fit.
fn heaviest_layout(mig: &Mig, weight: impl Fn(&MigProfile) -> f64) -> f64 {
    let mut best = vec![0.0_f64; mig.memory_slices as usize + 1];
    for end in 1..best.len() {
        best[end] = best[end - 1];
        for profile in &mig.profiles {
            let ends_here = |start: &u32| (start + profile.memory_slices) as usize == end;
            if profile.placements.iter().any(ends_here) {
                best[end] = best[end].max(best[end - profile.memory_slices as usize] + weight(profile));
            }
        }
    }
    best[mig.memory_slices as usize]
}
