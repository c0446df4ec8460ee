//! Every policy in every setting: the mean time to the first token and its 99th percentile.

use maud::{Markup, html};
use partywall_sim::serving::comparison::{ComparisonReport, Row, Setting};

use super::{class, heading};
use crate::report::number;
use crate::report::svg::{Area, LINE, Picture, Scale, WIDTH, px, shortened, tick_label};

/// Room for the policies' names, at the left.
const NAMES_WIDTH: f64 = 126.0;
const GAP: f64 = 22.0;
const ROW: f64 = 16.0;
/// Above the first panel, which has the legend.
const HEAD: f64 = 26.0;

pub(super) fn figure(report: &ComparisonReport) -> Option<Picture> {
    let rows = report.settings.iter().map(|setting| setting.policies.len()).max().filter(|rows| *rows > 0)?;
    let columns = report.settings.len().min(2);
    let width = (WIDTH - NAMES_WIDTH - 8.0 - GAP * (columns - 1) as f64) / columns as f64;
    let panel = ROW * rows as f64 + 2.0 * LINE + 26.0;
    let lines = report.settings.len().div_ceil(columns);
    let values = report.settings.iter().flat_map(|setting| &setting.policies);
    let values: Vec<f64> = values.flat_map(|row| [mean(row), p99(row)]).flatten().collect();
    let content = html! {
        (legend())
        @for (number, setting) in report.settings.iter().enumerate() {
            @let left = NAMES_WIDTH + (number % columns) as f64 * (width + GAP);
            @let top = HEAD + (number / columns) as f64 * panel + LINE + 8.0;
            @let area = Area { left, right: left + width, top, bottom: top + ROW * rows as f64 };
            (one(setting, area, &Scale::log(values.iter().copied(), (area.left, area.right)), number % columns == 0))
        }
        text class="axis" x=(px(f64::midpoint(NAMES_WIDTH, WIDTH))) y=(px(HEAD + panel * lines as f64 + 6.0)) text-anchor="middle" {
            "time to the first token, s (log scale)"
        }
    };
    Some(Picture {
        id: "first-tokens".to_owned(),
        height: HEAD + panel * lines as f64 + LINE,
        name: "Time to the first token by policy, rate and size of cache",
        description: "A panel for each rate and size of cache, a line for each policy with a dot at the mean and a ring at the 99th \
                      percentile of the time to the first token. Further left is sooner.",
        content,
    })
}

fn mean(row: &Row) -> Option<f64> {
    row.measures.ttft_mean_s
}

fn p99(row: &Row) -> Option<f64> {
    row.measures.ttft_p99_s
}

fn legend() -> Markup {
    html! {
        circle class="dot t-7" cx=(px(NAMES_WIDTH + 6.0)) cy="10" r="5" {}
        text class="label" x=(px(NAMES_WIDTH + 16.0)) y="14" text-anchor="start" { "mean" }
        circle class="ring t-7" cx=(px(NAMES_WIDTH + 76.0)) cy="10" r="4" {}
        text class="label" x=(px(NAMES_WIDTH + 86.0)) y="14" text-anchor="start" { "99th percentile" }
    }
}

fn one(setting: &Setting, area: Area, x: &Scale, names: bool) -> Markup {
    html! {
        text class="label" x=(px(area.left)) y=(px(area.top - 8.0)) text-anchor="start" { (heading(setting)) }
        @for tick in x.ticks() {
            line class="grid" x1=(px(x.at(tick))) x2=(px(x.at(tick))) y1=(px(area.top)) y2=(px(area.bottom)) {}
            text class="tick" x=(px(x.at(tick))) y=(px(area.bottom + LINE)) text-anchor="middle" { (tick_label(tick)) }
        }
        @for (place, row) in setting.policies.iter().enumerate() {
            @let y = area.top + ROW * (place as f64 + 0.5);
            @let class = class(&row.policy);
            @if names {
                text class="label" x=(px(area.left - 8.0)) y=(px(y + 4.0)) text-anchor="end" {
                    (shortened(&row.policy, NAMES_WIDTH - 10.0))
                }
            }
            @if let (Some(mean), Some(p99)) = (mean(row), p99(row)) {
                line class={ "frontier " (class) } x1=(px(x.at(mean))) x2=(px(x.at(p99))) y1=(px(y)) y2=(px(y)) {}
                circle class={ "ring " (class) } cx=(px(x.at(p99))) cy=(px(y)) r="4" {}
                circle class={ "dot " (class) } cx=(px(x.at(mean))) cy=(px(y)) r="5" {
                    title { (row.policy) ": mean " (number::significant(mean)) " s, p99 " (number::significant(p99)) " s" }
                }
            }
        }
    }
}
