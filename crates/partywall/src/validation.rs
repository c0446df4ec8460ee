//! `partywall sim validate`: the model against measured pairs.

use comfy_table::{Table, presets};
use partywall_core::catalogue::Catalogue;
use partywall_core::gpu::Gpu;
use partywall_core::wall::Wall;
use partywall_sim::SimError;
use partywall_sim::params::Params;
use partywall_sim::validate::{Compared, Effort, Pair, WallError, parse_pairs, simulate, summarise};
use serde::Serialize;

use crate::cli::ValidateArguments;
use crate::error::Failure;
use crate::{output, progress};

/// A recording that comes with the program: the name of its file, and its text.
type Recording = (&'static str, &'static str);

/// The pairs on which the model was calibrated.
const CALIBRATED: Recording = ("results/h200/pairs.csv", include_str!("../../../results/h200/pairs.csv"));

/// Pairs of other networks and neighbours, measured afterwards.
const HELD_OUT: Recording =
    ("results/h200/pairs-heldout.csv", include_str!("../../../results/h200/pairs-heldout.csv"));

/// The GPU on which both were made, and the networks of `profiles/networks`.
pub(crate) const RECORDED_ON: &str = "h200";

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document<'a> {
    simulated: bool,
    gpu: &'a str,
    pairs: &'a str,
    walls: &'a [WallError],
}

pub(crate) fn run(arguments: &ValidateArguments) -> Result<(), Failure> {
    let file = arguments.pairs.display().to_string();
    let pairs = parse_pairs(&output::read_text(&arguments.pairs)?, &file).map_err(Failure::input)?;
    let compared = compare(&pairs, recorded_gpu()?)?;
    let walls = summarise(&compared);
    if walls.is_empty() {
        let message =
            format!("{file}: every row is a network alone; a pair has a best-effort program in column `be`");
        return Err(Failure::input(message));
    }
    if arguments.json {
        let document = Document { simulated: true, gpu: RECORDED_ON, pairs: &file, walls: &walls };
        return output::print(&output::json(&document)?);
    }
    if arguments.pairs_too {
        output::print(&pairs_table(&compared))?;
    }
    output::print(&walls_table(&walls))
}

/// The errors on the pairs of the calibration: what reports state beside simulated numbers.
pub(crate) fn recorded_errors() -> Result<Vec<WallError>, Failure> {
    errors(CALIBRATED)
}

/// The walls for which there are measured pairs.
pub(crate) fn validated_walls() -> Result<Vec<Wall>, Failure> {
    let (file, text) = CALIBRATED;
    let pairs = parse_pairs(text, file).map_err(Failure::internal)?;
    let measured = |wall: &Wall| pairs.iter().any(|pair| pair.wall == *wall && pair.be.is_some());
    Ok(Wall::ALL.into_iter().filter(measured).collect())
}

fn errors((file, text): Recording) -> Result<Vec<WallError>, Failure> {
    let pairs = parse_pairs(text, file).map_err(Failure::internal)?;
    Ok(summarise(&compare(&pairs, recorded_gpu()?)?))
}

/// What `results/sim/` keeps of `partywall sim validate` on both recordings: file name and text.
///
/// # Errors
/// When a recording or the catalogue that come with the program are damaged.
pub fn recorded_validations() -> Result<Vec<(&'static str, String)>, String> {
    let document = |recording: Recording| {
        let walls = errors(recording)?;
        output::json(&Document { simulated: true, gpu: RECORDED_ON, pairs: recording.0, walls: &walls })
    };
    let both = [("validate.json", CALIBRATED), ("validate-heldout.json", HELD_OUT)];
    let texts = both.map(|(name, recording)| document(recording).map(|text| (name, text)));
    texts.into_iter().collect::<Result<_, Failure>>().map_err(|failure| failure.to_string())
}

/// Its figures.
pub(crate) fn recorded_gpu() -> Result<&'static Gpu, Failure> {
    Catalogue::builtin().map_err(Failure::internal)?.get(RECORDED_ON).map_err(Failure::internal)
}

fn compare(pairs: &[Pair], gpu: &Gpu) -> Result<Vec<Compared>, Failure> {
    let bar = progress::bar(pairs.len() as u64, "pairs");
    let params = Params::default();
    let compared = progress::parallel(pairs, |pair| {
        let result = simulate(pair, gpu, &params, Effort::default());
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
        "median error p99",
        "alone",
        "error alone",
    ]);
    for wall in walls {
        let optional = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
        table.add_row([
            wall.wall.to_string(),
            wall.n.to_string(),
            format!("{:.3}", wall.median_error_p50),
            format!("{:.3}", wall.p90_error_p50),
            format!("{:.3}", wall.median_error_p99),
            wall.alone_n.to_string(),
            optional(wall.alone_median_error_p50),
        ]);
    }
    format!("Absolute relative errors of simulated against measured latencies, as fractions.\n\n{table}\n")
}

fn pairs_table(compared: &[Compared]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["wall", "LS", "beside", "p50 ms", "simulated", "error", "p99 ms", "simulated"]);
    for row in compared {
        let pair = &row.pair;
        let beside = pair.be.as_ref().map_or("alone".to_owned(), |(name, batch, percent)| match batch {
            0 => format!("{name} {percent}%"),
            batch => format!("{name}-b{batch} {percent}%"),
        });
        table.add_row([
            pair.wall.to_string(),
            format!("{}-b{} {}%", pair.ls.0, pair.ls.1, pair.ls_percent),
            beside,
            format!("{:.3}", pair.p50_ms),
            format!("{:.3}", row.p50_ms),
            format!("{:+.3}", row.p50_ms / pair.p50_ms - 1.0),
            format!("{:.3}", pair.p99_ms),
            format!("{:.3}", row.p99_ms),
        ]);
    }
    format!("{table}\n\n")
}
