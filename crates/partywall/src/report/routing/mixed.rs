//! Both classes: what best-effort requests get against what latency-sensitive ones wait.

use maud::{Markup, html};
use partywall_sim::serving::comparison::{ComparisonReport, MixedRow, MixedSetting};

use super::{class, tokens};
use crate::report::number;
use crate::report::svg::{Area, Picture, Scale, WIDTH, labels, px, text_width, tick_label};

const HEIGHT: f64 = 330.0;

/// Nothing where there is one class only.
pub(super) fn figure(report: &ComparisonReport) -> Option<Picture> {
    if report.mixed.is_empty() {
        return None;
    }
    let content = html! {
        @for (number, setting) in report.mixed.iter().enumerate() {
            @let top = number as f64 * HEIGHT;
            (panel(setting, Area { left: 58.0, right: WIDTH - 16.0, top: top + 40.0, bottom: top + HEIGHT - 48.0 }))
        }
    };
    Some(Picture {
        id: "mixed".to_owned(),
        height: HEIGHT * report.mixed.len() as f64,
        name: "What best-effort requests get against what latency-sensitive requests wait",
        description: "A panel for each size of cache, a point for each policy. Up is more best-effort work done, left is less waiting. The \
                      dashed line is how long latency-sensitive requests wait without best-effort ones.",
        content,
    })
}

fn panel(setting: &MixedSetting, area: Area) -> Markup {
    let points: Vec<(String, String, f64, f64)> = setting
        .policies
        .iter()
        .filter_map(|row| {
            let p99 = row.latency_sensitive.ttft_p99_s?;
            Some((label(row), class(&row.policy), p99, row.best_effort.tokens_per_s))
        })
        .collect();
    let alone = setting.alone.ttft_p99_s;
    let x = Scale::log(points.iter().map(|point| point.2).chain(alone), (area.left, area.right - 90.0));
    let most = points.iter().map(|point| point.3).fold(0.0, f64::max);
    let y = Scale::linear((0.0, most * 1.15), (area.bottom, area.top));
    let places: Vec<(f64, f64)> = points.iter().map(|point| (x.at(point.2), y.at(point.3))).collect();
    let texts: Vec<&str> = points.iter().map(|point| point.0.as_str()).collect();
    let widths: Vec<f64> = texts.iter().map(|text| text_width(text)).collect();
    let placed = labels(&places, &widths, area);
    html! {
        text class="label" x=(px(area.left)) y=(px(area.top - 22.0)) text-anchor="start" {
            "best-effort tokens/s served, caches of " (tokens(setting.cache_tokens))
        }
        @for tick in y.ticks() {
            line class="grid" x1=(px(area.left)) x2=(px(area.right)) y1=(px(y.at(tick))) y2=(px(y.at(tick))) {}
            text class="tick" x=(px(area.left - 6.0)) y=(px(y.at(tick) + 4.0)) text-anchor="end" { (tick_label(tick)) }
        }
        (area.x_axis(&x, "99th percentile of the latency-sensitive time to the first token, s (log scale)"))
        @if let Some(alone) = alone {
            line class="solo" x1=(px(x.at(alone))) x2=(px(x.at(alone))) y1=(px(area.top - 4.0)) y2=(px(area.bottom)) {}
            text class="tick" x=(px(x.at(alone).max(area.left + 30.0))) y=(px(area.bottom - 6.0)) text-anchor="start" {
                " without best effort"
            }
        }
        @for (((name, class, p99, served), (at_x, at_y)), label) in points.iter().zip(&places).zip(&placed) {
            @let (end, anchor) = if label.right < *at_x { (label.right, "end") } else { (label.left, "start") };
            @if label.far {
                line class="leader" x1=(px(*at_x)) y1=(px(*at_y)) x2=(px(if anchor == "end" { end + 2.0 } else { end - 2.0 })) y2=(px(label.y)) {}
            }
            circle class={ "dot " (class) } cx=(px(*at_x)) cy=(px(*at_y)) r="5" {
                title { (name) ": p99 " (number::significant(*p99)) " s, " (number::significant(*served)) " tokens/s" }
            }
            text class="label" x=(px(end)) y=(px(label.y + 4.0)) text-anchor=(anchor) { (name) }
        }
    }
}

/// Most know no classes; those that do say so.
fn label(row: &MixedRow) -> String {
    if row.knows_classes { format!("{}, told the classes", row.policy) } else { row.policy.to_string() }
}
