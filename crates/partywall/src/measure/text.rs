//! Results of measurements as tables for a terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use partywall_measure::compare::Comparison;
use partywall_measure::record::{FactRecord, ImsRecord, Record};

use crate::measured;

/// Columns of the terminal: what fits one that nobody has resized much.
const WIDTH: u16 = 100;

/// A whole record.
pub(crate) fn measured(record: &Record) -> String {
    let mut text = measured::report(record).table(WIDTH);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    if !record.complete {
        text += "\nThe time limit came before all cells were measured.\n";
    }
    if !record.facts.is_empty() {
        text += &format!("\nAgainst what was expected:\n\n{}\n", facts(&record.facts));
    }
    if !record.ims.is_empty() {
        text += &format!(
            "\nMaximum stable rates, and timeouts of 1000 requests beside others:\n\n{}\n",
            ims(&record.ims)
        );
    }
    text
}

fn table<const N: usize>(header: [&str; N], numbers: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(header);
    for index in numbers {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

fn facts(facts: &[FactRecord]) -> Table {
    let mut table = table(["row", "expected", "measured", "difference", "source"], 1..4);
    for fact in facts {
        table.add_row([
            fact.row.clone(),
            number(Some(fact.expected)),
            number(fact.measured),
            fact.relative_difference.map_or_else(|| "-".to_owned(), |difference| format!("{difference:+.2}")),
            fact.source.clone(),
        ]);
    }
    table
}

fn ims(found: &[ImsRecord]) -> Table {
    let mut table = table(["wall", "tenant", "period ms", "timeouts"], 2..3);
    for one in found {
        let beside = one.beside.iter().map(|beside| match &beside.error {
            None => format!("{} {}", beside.be, beside.timeouts),
            Some(error) => format!("{} {}", beside.be, error.kind.id()),
        });
        let period = one.period_ms.map_or_else(|| "-".to_owned(), |period| format!("{period:.3}"));
        let wall = format!("{} {}", one.wall, one.setting);
        table.add_row([wall, one.ls.clone(), period, beside.collect::<Vec<_>>().join(", ")]);
    }
    table
}

/// Two records.
pub(crate) fn compared(found: &Comparison) -> String {
    let [first, second] = &found.names;
    let mut text = format!("{first} against {second}\n");
    if found.differences.is_empty() {
        text += "\nEnvironment, settings and tenants are the same.\n";
    } else {
        let mut differing = table(["differs", first, second], 0..0);
        for difference in &found.differences {
            let [a, b] = &difference.values;
            differing.add_row([&difference.what, a, b]);
        }
        text += &format!("\n{differing}\n");
    }
    let mut rows =
        table(["row", "p50 x", "then", "ratio", "p99 x", "then", "ratio", "BE kept", "then"], 1..9);
    for row in &found.rows {
        // Where the intervals overlap, a difference may be chance.
        let ratio = |ratio: Option<f64>, overlap: Option<bool>| {
            format!("{}{}", number(ratio), if overlap == Some(false) { " *" } else { "" })
        };
        rows.add_row([
            row.row.clone(),
            number(row.slowdown_p50[0]),
            number(row.slowdown_p50[1]),
            ratio(row.ratio_p50, row.overlap_p50),
            number(row.slowdown_p99[0]),
            number(row.slowdown_p99[1]),
            ratio(row.ratio_p99, row.overlap_p99),
            number(row.be_kept[0]),
            number(row.be_kept[1]),
        ]);
    }
    text += &format!("\n{rows}\n\n* the 95 % intervals of the two do not overlap\n");
    for (rows, name) in [(&found.only_first, first), (&found.only_second, second)] {
        if !rows.is_empty() {
            text += &format!("\nOnly in {name}:\n  {}\n", rows.join("\n  "));
        }
    }
    text
}
