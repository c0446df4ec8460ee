//! `partywall gpus`: the catalogue; `partywall config`: the configuration file.

use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use partywall_core::catalogue::Catalogue;
use partywall_core::config::{self, Config};
use partywall_core::gpu::Gpu;

use crate::cli::{ConfigArguments, GpusArguments};
use crate::error::Failure;
use crate::output;

pub(crate) fn run(arguments: &GpusArguments) -> Result<(), Failure> {
    let catalogue = Catalogue::builtin().map_err(Failure::internal)?;
    let text = match (&arguments.gpu, arguments.json) {
        (Some(id), json) => {
            let gpu = catalogue.get(id).map_err(Failure::input)?;
            if json { output::json(gpu)? } else { one(gpu)? }
        }
        (None, true) => output::json(&catalogue.iter().collect::<Vec<_>>())?,
        (None, false) => all(catalogue),
    };
    output::print(&text)
}

fn all(catalogue: &Catalogue) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "id",
        "name",
        "SMs",
        "L2 MiB",
        "VRAM GiB",
        "GB/s",
        "sides",
        "PCIe GB/s",
        "cap W",
        "MHz",
        "MIG",
    ]);
    for column in 2..=9 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for gpu in catalogue.iter() {
        table.add_row([
            gpu.id.clone(),
            gpu.name.clone(),
            gpu.sms.value.to_string(),
            gpu.l2_mib.value.to_string(),
            gpu.vram_gib.value.to_string(),
            gpu.vram_gb_s.value.to_string(),
            gpu.sides.value.to_string(),
            gpu.pcie_gb_s.value.to_string(),
            gpu.power_cap_w.value.to_string(),
            gpu.clock_max_mhz.value.to_string(),
            gpu.mig.as_ref().map_or("no".to_owned(), |mig| format!("{} profiles", mig.profiles.len())),
        ]);
    }
    format!("{table}\n\nSources of every figure: partywall gpus --gpu ID, or docs/gpus.md.\n")
}

/// Every figure with its source, as the file has them.
fn one(gpu: &Gpu) -> Result<String, Failure> {
    let fields = serde_json::to_value(gpu).map_err(Failure::internal)?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["figure", "value", "known by", "source"]);
    let sourced = |value: &serde_json::Value| {
        let text =
            |key: &str| value.get(key).map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
        Some([text("value")?, text("kind")?, text("source")?])
    };
    for (name, value) in fields.as_object().into_iter().flatten() {
        if let Some([value, kind, source]) = sourced(value) {
            table.add_row([name.clone(), value, kind, source]);
        }
    }
    for profile in gpu.mig.iter().flat_map(|mig| &mig.profiles) {
        let sms = &profile.sms;
        let value =
            format!("{} SMs, {} GiB, {} at most", sms.value, profile.memory_gib.value, profile.instances);
        let kind = sms.kind.word().to_owned();
        table.add_row([format!("mig {}", profile.name), value, kind, sms.source.clone()]);
    }
    Ok(format!("{} ({}), {}\n\n{table}\n", gpu.name, gpu.id, gpu.architecture))
}

pub(crate) fn config(arguments: &ConfigArguments) -> Result<(), Failure> {
    match &arguments.file {
        Some(file) => check(file),
        None if arguments.schema => output::print(&Config::schema()),
        None => output::print(config::EXAMPLE),
    }
}

fn check(file: &Path) -> Result<(), Failure> {
    let text = output::read_text(file)?;
    let config = Config::parse(&text, &file.display().to_string()).map_err(|error| {
        Failure::input_with_hint(error, "`partywall config --example` prints one that is right")
    })?;
    output::print(&format!("{}: {} tenants, nothing wrong", file.display(), config.tenants.len()))
}
