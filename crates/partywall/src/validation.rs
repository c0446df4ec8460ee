//! `partywall sim validate`: the model against measured co-runs.

use std::collections::BTreeMap;
use std::path::Path;

use comfy_table::{Table, presets};
use partywall_core::catalogue::Catalogue;
use partywall_core::gpu::Gpu;
use partywall_core::tenant::Share;
use partywall_core::wall::Wall;
use partywall_sim::SimError;
use partywall_sim::load::Load;
use partywall_sim::params::Params;
use partywall_sim::validate::{
    self, Compared, Effort, LeftOut, Pair, Tenant, WallError, simulate, summarise,
};
use serde::{Deserialize, Serialize};

use crate::cli::ValidateArguments;
use crate::error::Failure;
use crate::{output, progress};

/// A recording that comes with the program: the name of its file, and its text.
type Recording = (&'static str, &'static str);

macro_rules! recordings {
    ($($file:literal),* $(,)?) => { &[$(($file, include_str!(concat!("../../../", $file)))),*] };
}

/// What the model was calibrated on.
const CALIBRATED: &[Recording] = recordings!["results/h200/pairs.csv", "results/h200/networks.json"];

/// Pairs of other networks and neighbours, measured afterwards.
const HELD_OUT: &[Recording] = recordings!["results/h200/pairs-heldout.csv"];

/// Requests beside neighbours on the other side, on which the wall `sides` was calibrated.
const SIDES: &[Recording] =
    recordings!["results/h200/sides/interfere-requests.json", "results/h200/sides/sms.json"];

/// The same beside neighbours that are held below what fills their side.
const SIDES_HELD_OUT: &[Recording] = recordings![
    "results/h200/sides/interfere-held.json",
    "results/h200/sides/interfere-held-97.json",
    "results/h200/sides/interfere-held-98.json"
];

/// The GPU on which they were made, and the networks of `profiles/networks`.
pub(crate) const RECORDED_ON: &str = "h200";

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document<'a> {
    simulated: bool,
    gpu: &'a str,
    files: Vec<&'a str>,
    walls: &'a [WallError],
    not_comparable: &'a [LeftOut],
}

/// Several recordings of one GPU.
struct Measured {
    gpu: &'static Gpu,
    pairs: Vec<Pair>,
    left_out: Vec<LeftOut>,
}

impl Measured {
    /// Of `(name, text)`.
    fn read<'t>(files: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Self, Failure> {
        let mut all: Option<Self> = None;
        for (file, text) in files {
            let found = validate::read(text, file).map_err(Failure::input)?;
            let gpu = gpu(&found.gpu)?;
            let all = all.get_or_insert(Self { gpu, pairs: Vec::new(), left_out: Vec::new() });
            if all.gpu.id != gpu.id {
                let (one, other) = (&all.gpu.id, &gpu.id);
                let message =
                    format!("{file} was measured on {other}, the one before on {one}; expected one GPU");
                return Err(Failure::input(message));
            }
            all.pairs.extend(found.pairs);
            all.left_out.extend(found.left_out);
        }
        all.ok_or_else(|| Failure::input("no file of measurements; give PAIRS.csv or --results RECORD.json"))
    }
}

pub(crate) fn run(arguments: &ValidateArguments) -> Result<(), Failure> {
    let paths: Vec<&Path> = arguments.pairs.iter().chain(&arguments.results).map(|path| &**path).collect();
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let texts = paths.iter().map(|path| output::read_text(path)).collect::<Result<Vec<_>, _>>()?;
    let measured = Measured::read(names.iter().zip(&texts).map(|(name, text)| (&**name, &**text)))?;
    let compared = compare(&measured)?;
    let walls = summarise(&compared);
    if walls.is_empty() {
        let why = not_comparable(&measured.left_out);
        let message = format!("{}: no co-run of two tenants that the model knows\n{why}", names.join(", "));
        return Err(Failure::input(message.trim_end()));
    }
    if arguments.json {
        let files = names.iter().map(String::as_str).collect();
        return output::print(&output::json(&document(&measured, files, &walls))?);
    }
    if arguments.pairs_too {
        output::print(&pairs_table(&compared))?;
    }
    output::print(&(walls_table(&walls) + &not_comparable(&measured.left_out)))
}

fn document<'a>(measured: &'a Measured, files: Vec<&'a str>, walls: &'a [WallError]) -> Document<'a> {
    Document { simulated: true, gpu: &measured.gpu.id, files, walls, not_comparable: &measured.left_out }
}

/// The errors on what the model was calibrated on: what reports state beside simulated numbers. Read, not computed: that
/// takes longer than the demo. `cargo xtask generate --check` holds the file against the model.
pub(crate) fn recorded_errors() -> Result<Vec<WallError>, Failure> {
    #[derive(Deserialize)]
    struct Recorded {
        walls: Vec<WallError>,
    }
    let recorded: Recorded = serde_json::from_str(include_str!("../../../results/sim/validate.json"))
        .map_err(Failure::internal)?;
    Ok(recorded.walls)
}

/// What these errors are against, for people.
pub(crate) fn errors_source() -> String {
    let files: Vec<&str> = CALIBRATED.iter().map(|(file, _)| *file).collect();
    format!("{}, recorded on an H200", files.join(" and "))
}

/// The walls for which there are measured co-runs.
pub(crate) fn validated_walls() -> Result<Vec<Wall>, Failure> {
    let measured = Measured::read(CALIBRATED.iter().copied())?;
    let corun = |wall: &Wall| {
        measured.pairs.iter().any(|pair| pair.wall == *wall && pair.ls.is_some() && pair.be.is_some())
    };
    Ok(Wall::ALL.into_iter().filter(corun).collect())
}

/// What `results/sim/` keeps of `partywall sim validate` on each set of recordings: file name and text.
///
/// # Errors
/// When a recording or the catalogue that come with the program are damaged.
pub fn recorded_validations() -> Result<Vec<(&'static str, String)>, String> {
    let text = |recordings: &[Recording]| {
        let measured = Measured::read(recordings.iter().copied())?;
        let files = recordings.iter().map(|(file, _)| *file).collect();
        output::json(&document(&measured, files, &summarise(&compare(&measured)?)))
    };
    let sets = [
        ("validate.json", CALIBRATED),
        ("validate-heldout.json", HELD_OUT),
        ("validate-sides.json", SIDES),
        ("validate-sides-heldout.json", SIDES_HELD_OUT),
    ];
    let texts = sets.map(|(name, recordings)| text(recordings).map(|text| (name, text)));
    texts.into_iter().collect::<Result<_, Failure>>().map_err(|failure| failure.to_string())
}

/// Its figures.
pub(crate) fn recorded_gpu() -> Result<&'static Gpu, Failure> {
    gpu(RECORDED_ON)
}

fn gpu(id: &str) -> Result<&'static Gpu, Failure> {
    Catalogue::builtin().map_err(Failure::internal)?.get(id).map_err(Failure::internal)
}

fn compare(measured: &Measured) -> Result<Vec<Compared>, Failure> {
    let bar = progress::bar(measured.pairs.len() as u64, "pairs");
    let params = Params::default();
    let compared = progress::parallel(&measured.pairs, |pair| {
        let result = simulate(pair, measured.gpu, &params, Effort::default());
        bar.inc(1);
        result
    });
    bar.finish_and_clear();
    compared.into_iter().collect::<Result<_, SimError>>().map_err(Failure::input)
}

fn walls_table(walls: &[WallError]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "wall",
        "pairs",
        "median error p50",
        "p90 error p50",
        "max error p50",
        "median error p99",
        "median error BE rate",
        "alone",
        "error alone",
        "BE alone",
        "error rate",
    ]);
    for wall in walls {
        let optional = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
        table.add_row([
            wall.wall.to_string(),
            wall.n.to_string(),
            format!("{:.3}", wall.median_error_p50),
            format!("{:.3}", wall.p90_error_p50),
            format!("{:.3}", wall.max_error_p50),
            optional(wall.median_error_p99),
            optional(wall.median_error_be_rate),
            wall.alone_n.to_string(),
            optional(wall.alone_median_error_p50),
            wall.be_alone_n.to_string(),
            optional(wall.be_alone_median_error_rate),
        ]);
    }
    format!("Absolute relative errors of simulated against measured figures, as fractions.\n\n{table}\n")
}

/// Cells named for each reason; the rest is counted, and all are in the JSON.
const NAMED: usize = 3;

/// The cells without a comparison: how many for which reason, and which.
fn not_comparable(left_out: &[LeftOut]) -> String {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for cell in left_out {
        by_reason.entry(&cell.why).or_default().push(&cell.cell);
    }
    let mut text = String::new();
    if !left_out.is_empty() {
        text += &format!("\nNot comparable: {} cells.\n", left_out.len());
    }
    for (why, cells) in by_reason {
        text += &format!("  {}: {why}\n", cells.len());
        for cell in cells.iter().take(NAMED) {
            text += &format!("    {cell}\n");
        }
        if cells.len() > NAMED {
            text += &format!("    and {} more\n", cells.len() - NAMED);
        }
    }
    text
}

fn pairs_table(compared: &[Compared]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "wall",
        "LS",
        "beside",
        "p50 ms",
        "simulated",
        "error",
        "p99 ms",
        "simulated",
        "BE rate",
        "simulated",
        "error",
    ]);
    for row in compared {
        let pair = &row.pair;
        let tenant = |tenant: &Option<Tenant>| tenant.as_ref().map_or("-".to_owned(), described);
        let figure = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
        let error = |simulated: Option<f64>, measured: Option<f64>| {
            let ratio = simulated.zip(measured).map(|(simulated, measured)| simulated / measured - 1.0);
            ratio.map_or("-".to_owned(), |error| format!("{error:+.3}"))
        };
        let simulated = |value: f64| pair.ls.is_some().then_some(value);
        table.add_row([
            format!("{}{}", pair.wall, if pair.one_process { " (one process)" } else { "" }),
            tenant(&pair.ls),
            tenant(&pair.be),
            figure(pair.p50_ms),
            figure(simulated(row.p50_ms)),
            error(simulated(row.p50_ms), pair.p50_ms),
            figure(pair.p99_ms),
            figure(simulated(row.p99_ms)),
            figure(pair.be_rate_per_s),
            figure(row.be_rate_per_s),
            error(row.be_rate_per_s, pair.be_rate_per_s),
        ]);
    }
    format!("{table}\n\n")
}

/// `resnet50-b1 50%`, with what is known of its host.
fn described(tenant: &Tenant) -> String {
    let share = match tenant.share {
        None => String::new(),
        Some(Share::Percent(percent)) => format!(" {percent}%"),
        Some(Share::Sms(sms)) => format!(" {sms}"),
    };
    let host = match tenant.load {
        Load::Closed { host: Some(host), .. } => format!(", host {host}"),
        _ => String::new(),
    };
    format!("{}{share}{host}", tenant.program)
}

#[cfg(test)]
mod tests;
