//! `partywall sim run`: scenarios of the user's own.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use partywall_core::catalogue::Catalogue;
use partywall_sim::params::Params;
use partywall_sim::scenario::{Progress, RunOptions, Scenario, ScenarioReport};

use crate::cli::RunArguments;
use crate::error::Failure;
use crate::{output, progress, validation};

pub(crate) fn run(arguments: &RunArguments) -> Result<(), Failure> {
    let file = arguments.scenario.display().to_string();
    let text = output::read_text(&arguments.scenario)?;
    let hint = "the files in scenarios/ have every part of the format with comments; docs/scenarios.md is its reference";
    let scenario = Scenario::parse(&text, &file).map_err(|error| Failure::input_with_hint(error, hint))?;
    let validated = validation::validated_walls()?;
    let options = RunOptions {
        catalogue: Catalogue::builtin().map_err(Failure::internal)?,
        validated: &validated,
        seed: arguments.seed,
        threads: progress::cores(),
        params: Params::default(),
    };
    // Traces lie where the scenario says, from where the scenario lies.
    let folder = arguments.scenario.parent().map(Path::to_owned).unwrap_or_default();
    let mut open = |path: &Path| {
        File::open(folder.join(path)).map(|file| Box::new(BufReader::new(file)) as Box<dyn BufRead>)
    };
    let bar = progress::bar(1, "simulating");
    let report = scenario.run(&options, &mut open, &|progress: Progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(progress.what);
    });
    bar.finish_and_clear();
    let report = report.map_err(|error| Failure::input_with_hint(error, hint))?;
    if arguments.json { output::print(&output::json(&report)?) } else { output::print(&tables(&report)) }
}

fn tables(report: &ScenarioReport) -> String {
    let mut text = String::new();
    for part in report.tables() {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(&part.header);
        for row in &part.rows {
            table.add_row(row);
        }
        // Numbers to the right, so that their magnitudes can be compared; names stay left.
        for (index, column) in table.column_iter_mut().enumerate() {
            let mut cells = part.rows.iter().filter_map(|row| row.get(index));
            if cells.all(|cell| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        text += &format!("{}\n\n{table}\n\n", part.title);
    }
    text
}
