//! Many pairs in one look: a row per pair, a column per wall, in each cell the slowdown of the latency-sensitive tenant.
//!
//! Colours step by factors that people act upon: as alone, felt, hurt, ruined. The number stands in every cell, so
//! nothing hangs on telling colours apart.

use std::collections::BTreeMap;

use maud::{Markup, html};
use partywall_core::wall::Wall;

use super::svg::{LINE, Picture, WIDTH, px, shortened, text_width};
use super::{Report, Section, Shown, number};

/// Fewer sections than this are told in full, each with its table.
pub(super) const SECTIONS_MIN: usize = 4;

/// The slowdowns at which a colour ends, and what the colour means.
const STEPS: [(f64, &str); 5] =
    [(1.1, "up to 1.1"), (1.5, "1.5"), (2.5, "2.5"), (10.0, "10"), (f64::INFINITY, "more")];

const LABELS: f64 = 176.0;
const ROW: f64 = 22.0;
const HEAD: f64 = 44.0;
/// Lines of a heading that fit [`HEAD`], and the height of one more.
const HEAD_LINES: usize = 2;
const HEAD_LINE: f64 = 14.0;

/// The pairs of a report by wall.
pub(super) struct Matrix {
    /// Names of the walls with their settings, in the order in which they first appear.
    pub(super) columns: Vec<String>,
    /// The pairs, by latency-sensitive tenant in the order in which these first appear.
    pub(super) rows: Vec<MatrixRow>,
}

/// One pair.
pub(super) struct MatrixRow {
    /// The latency-sensitive tenant.
    pub(super) ls: String,
    /// The best-effort tenant.
    pub(super) be: String,
    /// Per column; `None` where the pair was not behind that wall.
    pub(super) entries: Vec<Option<Entry>>,
}

/// A pair behind a wall.
pub(super) struct Entry {
    /// What stands in the cell.
    pub(super) text: String,
    slowdown: Option<f64>,
    told: String,
}

impl Matrix {
    /// All sections of `report`.
    pub(super) fn of(report: &Report) -> Self {
        let mut columns: Vec<String> = Vec::new();
        let mut rows = Vec::new();
        for section in &report.sections {
            let mut cells = report.shown(section);
            // Alone is what the others are compared with: always 1.
            cells.retain(|shown| shown.cell.wall != Wall::Exclusive);
            for shown in &cells {
                if !columns.contains(&shown.name) {
                    columns.push(shown.name.clone());
                }
            }
            let mut entries: BTreeMap<String, Entry> =
                cells.iter().map(|shown| (shown.name.clone(), entry(shown))).collect();
            let (ls, be) = names(section);
            rows.push((ls, be, columns.iter().map(|name| entries.remove(name)).collect::<Vec<_>>()));
        }
        let width = columns.len();
        let row = |(ls, be, mut entries): (String, String, Vec<Option<Entry>>)| {
            entries.resize_with(width, || None);
            MatrixRow { ls, be, entries }
        };
        let mut rows: Vec<MatrixRow> = rows.into_iter().map(row).collect();
        let order: Vec<String> = rows.iter().map(|row| row.ls.clone()).collect();
        rows.sort_by_key(|row| order.iter().position(|ls| *ls == row.ls));
        Self { columns, rows }
    }

    /// The columns' headings: the wall in one line and its setting in the next, or, where that has no room, both in as many as it
    /// takes.
    fn heads(&self, wide: f64) -> Vec<Vec<String>> {
        let parts = |column: &String| {
            let (wall, setting) = column.split_once(' ').unwrap_or((column, ""));
            (wall.to_owned(), setting.to_owned())
        };
        let columns: Vec<(String, String)> = self.columns.iter().map(parts).collect();
        let fits = columns.iter().all(|(_, setting)| text_width(setting) <= wide);
        let head = |(wall, setting): (String, String)| {
            if fits {
                vec![shortened(&wall, wide + 10.0), shortened(&setting, wide)]
            } else {
                // Widths are estimates on the safe side, and neighbours seldom have long lines side by side.
                [lines(&wall, wide + 2.0), lines(&setting, wide + 2.0)].concat()
            }
        };
        columns.into_iter().map(head).collect()
    }

    /// The figure.
    pub(super) fn picture(&self, id: String) -> Picture {
        let wide = (WIDTH - LABELS) / self.columns.len().max(1) as f64;
        let heads: Vec<Vec<String>> = self.heads(wide);
        let deepest = heads.iter().map(Vec::len).max().unwrap_or(0).max(HEAD_LINES);
        let mut y = HEAD + HEAD_LINE * (deepest - HEAD_LINES) as f64;
        let mut lines: Vec<Markup> = Vec::new();
        let mut last = "";
        for row in &self.rows {
            if row.ls != last {
                y += LINE + 4.0;
                last = &row.ls;
                lines.push(html! {
                    text class="label" x="2" y=(px(y - 4.0)) text-anchor="start" {
                        (shortened(&format!("{} beside", row.ls), WIDTH - 8.0))
                    }
                });
            }
            lines.push(line(row, y, wide));
            y += ROW;
        }
        let content = html! {
            @for (i, head) in heads.iter().enumerate() {
                @for (at, text) in head.iter().enumerate() {
                    text class="tick" x=(px(LABELS + wide * (i as f64 + 0.5))) y=(px(26.0 + HEAD_LINE * at as f64))
                        text-anchor="middle" { (text) }
                }
            }
            @for line in &lines { (line) }
            (legend(y + 14.0))
        };
        Picture {
            id,
            height: y + 34.0,
            name: "Slowdown of each latency-sensitive tenant beside each neighbour, behind each wall",
            description: "One row per pair, one column per wall. Each cell has the slowdown of the latency-sensitive \
                          tenant: co-run over solo; 1 is as alone. The tables below have the same numbers.",
            content,
        }
    }
}

fn names(section: &Section) -> (String, String) {
    let name = |index: usize| {
        let mut tenants = section.cells.iter().filter_map(|cell| cell.result.tenants.get(index));
        tenants.next().map(|tenant| tenant.name.clone())
    };
    let ls = name(section.ls).unwrap_or_else(|| section.title.clone());
    (ls, section.be.and_then(name).unwrap_or_default())
}

fn entry(shown: &Shown<'_>) -> Entry {
    let row = &shown.row;
    let slowdown = row.best_known_slowdown();
    let text = match (row.slowdown_p99, row.slowdown_p50, row.slowdown_mean) {
        _ if row.saturated => "saturated".to_owned(),
        (None, Some(p50), _) => format!("{}*", number::ratio(p50)),
        (None, None, Some(mean)) => format!("{}**", number::ratio(mean)),
        (p99, ..) => number::or_none(p99, number::ratio),
    };
    let kept = number::or_none(shown.row.be_kept, number::fraction);
    let told = format!("{}: slowdown {}, best-effort keeps {kept}", shown.name, shown.slowdown());
    Entry { text, slowdown: if shown.row.saturated { Some(f64::INFINITY) } else { slowdown }, told }
}

fn line(row: &MatrixRow, y: f64, wide: f64) -> Markup {
    html! {
        text class="tick" x="14" y=(px(y + 15.0)) text-anchor="start" { (shortened(&row.be, LABELS - 20.0)) }
        @for (i, entry) in row.entries.iter().enumerate() {
            @let x = LABELS + wide * i as f64;
            @if let Some(entry) = entry {
                rect class={ "heat " (step(entry.slowdown)) } x=(px(x + 1.0)) y=(px(y + 1.0)) width=(px(wide - 2.0))
                    height=(px(ROW - 2.0)) rx="3" { title { (entry.told) } }
                text class="cell" x=(px(x + wide / 2.0)) y=(px(y + 15.0)) text-anchor="middle" {
                    (shortened(&entry.text, wide - 6.0))
                }
            }
        }
    }
}

/// A text in lines that fit `wide`, broken behind blanks and hyphens; what is longer than a line is cut.
fn lines(text: &str, wide: f64) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for piece in text.split_inclusive([' ', '-', ',']) {
        let last = lines.len() - 1;
        let longer = format!("{}{piece}", lines[last]);
        if lines[last].is_empty() || text_width(longer.trim_end()) <= wide {
            lines[last] = longer;
        } else {
            lines.push(piece.to_owned());
        }
    }
    lines.iter().map(|line| shortened(line.trim_end(), wide)).filter(|line| !line.is_empty()).collect()
}

fn legend(y: f64) -> Markup {
    html! {
        text class="axis" x="2" y=(px(y + 11.0)) text-anchor="start" { "* p50, ** mean" }
        @for (i, (limit, meaning)) in STEPS.iter().enumerate() {
            @let x = LABELS + 96.0 * i as f64;
            rect class={ "heat " (step(Some((limit * 0.999).min(1e9)))) } x=(px(x)) y=(px(y)) width="22" height="14" rx="3" {}
            text class="tick" x=(px(x + 28.0)) y=(px(y + 11.0)) text-anchor="start" { (meaning) }
        }
    }
}

fn step(slowdown: Option<f64>) -> String {
    let index =
        slowdown.map(|value| STEPS.iter().position(|(limit, _)| value <= *limit).unwrap_or(STEPS.len() - 1));
    index.map_or_else(|| "h-none".to_owned(), |index| format!("h-{index}"))
}
