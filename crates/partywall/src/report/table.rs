//! The report on a terminal. Plain text; whoever wants colours has the page.

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle, presets,
};

use super::{Report, Section, Shown, matrix, number};

/// Narrower than this, the columns do not fit and lines run over.
const NARROWEST: u16 = 80;

/// Longest name of a wall with its setting beside which notes fit.
const NAME_MAX: usize = 30;

/// A row is a line or two; lines between them would only make the table long.
const STYLE: TableStyle = presets::UTF8_HORIZONTAL_ONLY
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .row_separator(LineStyle::none());

const HEADER: [&str; 8] = [
    "wall",
    "LS p50\nms",
    "LS p99\nms",
    "slowdown\np99",
    "SLO\nmisses",
    "BE\nkept",
    "fault\ncontained",
    "note",
];

/// The whole text, with a line break at the end.
pub(super) fn table(report: &Report, width: u16) -> String {
    let width = width.max(NARROWEST);
    let mut lines = Vec::new();
    if report.sections.len() >= matrix::SECTIONS_MIN {
        lines.extend(overview(report, width));
        lines.push(String::new());
    } else {
        for section in &report.sections {
            lines.extend(self::section(report, section, width));
            lines.push(String::new());
        }
    }
    lines.extend(wrapped(&report.provenance(), width));
    lines.extend(errors(report, width));
    // Trailing blanks would only make copies of the text untidy.
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A table per latency-sensitive tenant, walls down and neighbours across: a terminal is no place for dozens of tables.
fn overview(report: &Report, width: u16) -> Vec<String> {
    let mark = report.origin.mark().map_or_else(String::new, |mark| format!(" ({mark})"));
    let heading = format!(
        "Slowdown of the latency-sensitive tenant{mark}: p99, or * p50, ** mean, where there were too few requests"
    );
    let mut lines = wrapped(&heading, width);
    let matrix = matrix::Matrix::of(report);
    let mut seen: Vec<&str> = Vec::new();
    for row in &matrix.rows {
        if !seen.contains(&row.ls.as_str()) {
            seen.push(&row.ls);
            let rows: Vec<_> = matrix.rows.iter().filter(|other| other.ls == row.ls).collect();
            lines.push(String::new());
            lines.extend(neighbours(&matrix.columns, &row.ls, &rows, width));
        }
    }
    lines
}

fn neighbours(walls: &[String], ls: &str, rows: &[&matrix::MatrixRow], width: u16) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    let beside = rows.iter().map(|row| row.be.replace('-', "\n-"));
    table.set_header([format!("{ls} beside")].into_iter().chain(beside));
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for (index, wall) in walls.iter().enumerate() {
        let entries = rows.iter().map(|row| row.entries.get(index).and_then(Option::as_ref));
        let texts: Vec<String> =
            entries.map(|entry| entry.map_or_else(String::new, |entry| entry.text.clone())).collect();
        if texts.iter().any(|text| !text.is_empty()) {
            table.add_row([wall.clone()].into_iter().chain(texts));
        }
    }
    table.to_string().lines().map(str::to_owned).collect()
}

fn section(report: &Report, section: &Section, width: u16) -> Vec<String> {
    let mark = report.origin.mark().map_or_else(String::new, |mark| format!(" ({mark})"));
    let mut lines = wrapped(&format!("{}{mark}", section.title), width);
    let cells = report.shown(section);
    // Beside long names there is no room for notes: they stand below.
    let longest = cells.iter().map(|shown| shown.name.chars().count()).max().unwrap_or(0);
    let columns = if longest > NAME_MAX { HEADER.len() - 1 } else { HEADER.len() };
    let mut table = Table::new();
    table
        .load_style(STYLE)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width)
        .set_header(HEADER.into_iter().take(columns));
    for column in table.column_iter_mut().skip(1).take(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    // Notes are sentences, which can be broken; the rest cannot.
    for column in table.column_iter_mut().take(HEADER.len() - 1) {
        column.set_padding((0, 1));
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    for shown in &cells {
        table.add_row(row(shown).into_iter().take(columns));
    }
    lines.extend(table.to_string().lines().map(str::to_owned));
    for shown in cells.iter().filter(|shown| columns < HEADER.len() && !shown.notes().is_empty()) {
        lines.extend(wrapped(&format!("{}: {}", shown.name, shown.notes().join("; ")), width));
    }
    for (wall, why) in &section.unavailable {
        lines.extend(wrapped(&format!("{wall}: not here. {why}"), width));
    }
    for (wall, what) in &section.lost {
        lines.extend(wrapped(&format!("{wall}: {what}"), width));
    }
    lines
}

fn row(shown: &Shown<'_>) -> [String; HEADER.len()] {
    let row = &shown.row;
    [
        shown.name.clone(),
        number::or_none(row.ls_p50_ms, number::significant),
        number::or_none(row.ls_p99_ms, number::significant),
        shown.slowdown(),
        number::or_none(row.slo_miss_rate, number::fraction),
        number::or_none(row.be_kept, number::fraction),
        if row.fault_contained { "yes" } else { "no" }.to_owned(),
        shown.notes().join("; "),
    ]
}

fn errors(report: &Report, width: u16) -> Vec<String> {
    let mut lines = Vec::new();
    if !report.errors.is_empty() {
        let what = "as a fraction of the measured latency";
        lines
            .extend(wrapped(&format!("Error of the model against {}, {what}:", report.errors_source), width));
    }
    for [wall, n, p50, p90, p99] in report.error_lines() {
        lines.push(format!("  {wall:<15} p50 {p50:<6} median, {p90:<6} p90; p99 {p99:<6} median; {n} pairs"));
    }
    if let Some(line) = report.not_validated_line() {
        lines.extend(wrapped(&line, width));
    }
    lines
}

/// `text` in lines of at most `width` characters, broken at spaces where there are any.
fn wrapped(text: &str, width: u16) -> Vec<String> {
    let width = usize::from(width);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.len() - 1;
        let length = lines[line].chars().count();
        if length > 0 && length + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
            continue;
        }
        if length > 0 {
            lines[line].push(' ');
        }
        lines[line].push_str(word);
    }
    lines
}
