//! `docs/gpus.md`: the catalogue for people, with the source of every figure.

use std::fmt::Write as _;

use super::Catalogue;
use super::check::figures;
use crate::gpu::{Gpu, Mig, SourceKind};

/// The figures that the overview shows.
const OVERVIEW: [&str; 8] =
    ["sms", "l2_mib", "vram_gib", "vram_gb_s", "sides", "pcie_gb_s", "power_cap_w", "clock_max_mhz"];

/// The catalogue as Markdown: a table of all GPUs, then for each every figure with its source and, where it has MIG,
/// the profiles. Equal catalogues give equal bytes.
pub fn markdown(catalogue: &Catalogue) -> String {
    let mut out = String::from(
        "# GPUs\n\n\
         Generated from `profiles/gpus/`; change the files there.\n\n\
         `measured` figures were measured by this project, `vendor` figures stand in a document of the vendor, `paper`\n\
         figures were published by somebody else, and `estimate` figures follow from the rule given beside them.\n",
    );
    overview(&mut out, catalogue);
    for gpu in catalogue.iter() {
        section(&mut out, gpu);
        if let Some(mig) = &gpu.mig {
            profiles(&mut out, mig);
        }
    }
    out
}

impl SourceKind {
    /// The word that the files and the documentation use.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Vendor => "vendor",
            Self::Paper => "paper",
            Self::Estimate => "estimate",
        }
    }
}

fn overview(out: &mut String, catalogue: &Catalogue) {
    let mut rows = catalogue.iter().peekable();
    let Some(first) = rows.peek() else { return };
    let mut head = vec!["id".to_owned(), "GPU".to_owned()];
    head.extend(figures(first).iter().filter(|f| OVERVIEW.contains(&f.key)).map(|f| title(f.label, f.unit)));
    head.push("MIG".to_owned());
    out.push('\n');
    row(out, &head);
    row(out, &vec!["---".to_owned(); head.len()]);
    for gpu in rows {
        let mut cells = vec![format!("`{}`", gpu.id), escaped(&gpu.name)];
        cells.extend(
            figures(gpu).iter().filter(|f| OVERVIEW.contains(&f.key)).map(|figure| figure.value.to_string()),
        );
        cells.push(if gpu.mig.is_some() { "yes" } else { "no" }.to_owned());
        row(out, &cells);
    }
}

fn section(out: &mut String, gpu: &Gpu) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\n## `{}`: {}\n\n{}.", gpu.id, escaped(&gpu.name), escaped(&gpu.architecture));
    if gpu.unified_memory {
        out.push_str("Host and device share one memory.\n");
    }
    out.push('\n');
    row(out, &["figure", "value", "known by", "source"].map(str::to_owned));
    row(out, &["---", "---:", "---", "---"].map(str::to_owned));
    for figure in figures(gpu) {
        row(
            out,
            &[
                title(figure.label, figure.unit),
                figure.value.to_string(),
                figure.kind.word().to_owned(),
                escaped(figure.source),
            ],
        );
    }
}

fn profiles(out: &mut String, mig: &Mig) {
    let _ = writeln!(out, "\nMIG, in {} memory slices:\n", mig.memory_slices);
    let head =
        ["profile", "id", "at most", "SMs", "memory (GiB)", "slices", "copy engines", "starts", "source"];
    row(out, &head.map(str::to_owned));
    row(out, &head.map(|_| "---".to_owned()));
    for profile in &mig.profiles {
        let starts: Vec<String> = profile.placements.iter().map(u32::to_string).collect();
        let (sms, memory) = (&profile.sms, &profile.memory_gib);
        let source = if (sms.kind, &sms.source) == (memory.kind, &memory.source) {
            format!("{}: {}", sms.kind.word(), sms.source)
        } else {
            format!(
                "SMs, {}: {}. Memory, {}: {}",
                sms.kind.word(),
                sms.source,
                memory.kind.word(),
                memory.source
            )
        };
        row(
            out,
            &[
                format!("`{}`", profile.name),
                profile.id.to_string(),
                profile.instances.to_string(),
                sms.value.to_string(),
                memory.value.to_string(),
                profile.memory_slices.to_string(),
                profile.copy_engines.to_string(),
                starts.join(", "),
                escaped(&source),
            ],
        );
    }
}

fn title(label: &str, unit: &str) -> String {
    if unit.is_empty() { label.to_owned() } else { format!("{label} ({unit})") }
}

fn row(out: &mut String, cells: &[String]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

/// A bar would end the cell, a line break the table.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}
