//! What a neighbour does to a tenant: bars with colors beside bars without, by work, load and intensity.

use maud::{Markup, html};

use super::{Row, View, Work};
use crate::report::number;
use crate::report::svg::{Area, LINE, Picture, Scale, WIDTH, px, shortened, tick_label};

const LEFT: f64 = 40.0;
const TOP: f64 = 44.0;
/// Height of the bars, and of a panel with its texts.
const BARS: f64 = 116.0;
const PANEL: f64 = BARS + 4.0 * LINE;
/// Between loads.
const GAP: f64 = 18.0;
/// A bar of nothing still shows that it is there.
const LEAST: f64 = 1.5;

const VIEWS: [(View, &str, &str); 2] = [
    (View::Colored, "w-sides", "each on its side"),
    (View::Uncolored, "w-exclusive", "the same SMs, data on both sides"),
];

const WORKS: [(Work, &str); 3] = [
    (Work::Long, "passes over the data in one long launch"),
    (Work::Short, "requests of a few short launches"),
    (Work::Graph, "the same requests as CUDA graphs"),
];

/// Nothing without rows. `long` has no others than of one long launch.
pub(super) fn figure(id: &str, rows: &[Row]) -> Option<Picture> {
    // Of neighbours of several intensities the strongest, of several places of code the first.
    let strongest = rows.iter().map(|row| row.load_threads_per_sm).max()?;
    let is = |row: &&Row| {
        row.load_threads_per_sm == strongest
            && row.code_place == 0
            && (id != "long" || row.work == Work::Long)
    };
    let rows: Vec<&Row> = rows.iter().filter(is).collect();
    let tails = rows.iter().all(|row| row.interference_p99.is_some());
    let factor = |row: &Row| row.interference_p99.filter(|_| tails).unwrap_or(row.interference_p50);
    let most = rows.iter().map(|row| factor(row)).filter(|factor| factor.is_finite()).fold(1.5, f64::max);
    let works: Vec<(Work, &str)> =
        WORKS.into_iter().filter(|(work, _)| rows.iter().any(|row| row.work == *work)).collect();
    let title = format!(
        "{} beside a neighbour / alone in the same partition, by threads of the tenant on each SM",
        if tails { "p99" } else { "median" }
    );
    let content = html! {
        text class="axis" x="2" y="14" text-anchor="start" { (title) }
        @for (place, (_, class, name)) in VIEWS.into_iter().enumerate() {
            @let left = LEFT + 180.0 * place as f64;
            rect class={ "sm " (class) } x=(px(left)) y="22" width="12" height="12" {}
            text class="label" x=(px(left + 18.0)) y="32" text-anchor="start" { (name) }
        }
        @for (place, (work, name)) in works.iter().enumerate() {
            @let top = TOP + PANEL * place as f64 + LINE + 4.0;
            @let area = Area { left: LEFT, right: WIDTH - 6.0, top, bottom: top + BARS };
            @let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.work == *work).collect();
            (panel(&rows, name, area, most, &factor))
        }
    };
    Some(Picture {
        id: id.to_owned(),
        height: TOP + PANEL * works.len() as f64,
        name: "What a neighbour does to a tenant, with colors and without",
        description: "A panel for each kind of work, in it a group for each neighbour and a pair of bars for each number of threads of the \
                      tenant on an SM: with each on its side, and with the same SMs and data on both sides. A bar without height is 1: \
                      as alone.",
        content,
    })
}

fn panel(rows: &[&Row], name: &str, area: Area, most: f64, factor: &dyn Fn(&Row) -> f64) -> Markup {
    let mut loads: Vec<&str> = Vec::new();
    let mut threads: Vec<u32> = Vec::new();
    for row in rows {
        if !loads.contains(&&*row.load) {
            loads.push(&row.load);
        }
        if !threads.contains(&row.threads_per_sm) {
            threads.push(row.threads_per_sm);
        }
    }
    let y = Scale::linear((1.0, most), (area.bottom, area.top));
    let width = (area.right - area.left - GAP * (loads.len().max(1) - 1) as f64) / loads.len().max(1) as f64;
    let pair = width / threads.len().max(1) as f64;
    html! {
        text class="label" x=(px(area.left)) y=(px(area.top - 7.0)) text-anchor="start" { (name) }
        @for tick in y.ticks() {
            line class="grid" x1=(px(area.left)) x2=(px(area.right)) y1=(px(y.at(tick))) y2=(px(y.at(tick))) {}
            text class="tick" x=(px(area.left - 6.0)) y=(px(y.at(tick) + 4.0)) text-anchor="end" { (tick_label(tick)) }
        }
        @for (group, load) in loads.iter().enumerate() {
            @let left = area.left + group as f64 * (width + GAP);
            @for (place, count) in threads.iter().enumerate() {
                @let middle = left + (place as f64 + 0.5) * pair;
                @for (bar, (view, class, _)) in VIEWS.into_iter().enumerate() {
                    @let is = |row: &&&Row| row.view == view && row.load == *load && row.threads_per_sm == *count;
                    @if let Some(row) = rows.iter().find(is) {
                        @let top = y.at(factor(row)).min(area.bottom - LEAST);
                        rect class={ "sm " (class) } x=(px(middle + (bar as f64 - 1.0) * 0.4 * pair)) y=(px(top)) width=(px(0.36 * pair))
                            height=(px(area.bottom - top)) {
                            title {
                                (load) @if row.load_sms > 0 { " on " (row.load_sms) " SMs" } ", " (count) " threads: " (number::ratio(factor(row)))
                            }
                        }
                    }
                }
                text class="tick" x=(px(middle)) y=(px(area.bottom + LINE - 1.0)) text-anchor="middle" { (count) }
            }
            text class="axis" x=(px(left + width / 2.0)) y=(px(area.bottom + 2.0 * LINE)) text-anchor="middle" {
                (shortened(&format!("beside {load}"), width))
            }
        }
    }
}
