//! The mean time to the first token as the load comes faster: where a policy runs out of engines.

use std::borrow::Cow;
use std::collections::BTreeSet;

use maud::{Markup, html};
use partywall_sim::serving::comparison::{ComparisonReport, Setting};

use super::{class, tokens};
use crate::report::number;
use crate::report::svg::{Area, LINE, Picture, Scale, WIDTH, apart, px, shortened, tick_label};

const HEIGHT: f64 = 380.0;
/// Room for the policies' names, at the right of each panel.
const NAMES_WIDTH: f64 = 118.0;

/// Nothing where there is one rate only.
pub(super) fn figure(report: &ComparisonReport) -> Option<Picture> {
    let caches: BTreeSet<u64> = report.settings.iter().map(|setting| setting.cache_tokens).collect();
    let values = report.settings.iter().flat_map(|setting| &setting.policies);
    let values: Vec<f64> = values.filter_map(|row| row.measures.ttft_mean_s).collect();
    let rates: Vec<f64> = report.settings.iter().map(|setting| setting.rate).collect();
    let ends =
        rates.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), rate| (low.min(*rate), high.max(*rate)));
    if ends.0 >= ends.1 || values.is_empty() {
        return None;
    }
    let columns = caches.len().min(2);
    let lines = caches.len().div_ceil(columns);
    let width = WIDTH / columns as f64;
    let content = html! {
        @for (number, cache) in caches.iter().enumerate() {
            @let left = (number % columns) as f64 * width;
            @let top = (number / columns) as f64 * HEIGHT;
            @let area = Area { left: left + 46.0, right: left + width - NAMES_WIDTH, top: top + 34.0, bottom: top + HEIGHT - 44.0 };
            @let settings: Vec<&Setting> = report.settings.iter().filter(|setting| setting.cache_tokens == *cache).collect();
            (panel(&settings, *cache, area, &values, ends))
        }
    };
    Some(Picture {
        id: "queueing".to_owned(),
        height: HEIGHT * lines as f64,
        name: "Mean time to the first token as the load comes faster",
        description: "A panel for each size of cache, a line for each policy. The vertical axis is a log scale: a policy whose line goes \
                      up steeply has run out of engines.",
        content,
    })
}

/// A policy, and its mean by rate.
type Line = (Cow<'static, str>, Vec<(f64, f64)>);

fn panel(settings: &[&Setting], cache: u64, area: Area, values: &[f64], ends: (f64, f64)) -> Markup {
    let y = Scale::log(values.iter().copied(), (area.bottom, area.top));
    let x = Scale::linear(ends, (area.left + 6.0, area.right - 6.0));
    let lines: Vec<Line> = settings.first().map_or_else(Vec::new, |first| {
        let line = |policy: &Cow<'static, str>| {
            let mut line: Vec<(f64, f64)> = settings
                .iter()
                .filter_map(|setting| {
                    let row = setting.policies.iter().find(|row| row.policy == *policy)?;
                    Some((setting.rate, row.measures.ttft_mean_s?))
                })
                .collect();
            line.sort_by(|one, other| one.0.total_cmp(&other.0));
            (policy.clone(), line)
        };
        first.policies.iter().map(|row| line(&row.policy)).filter(|(_, line)| !line.is_empty()).collect()
    });
    let last = |line: &[(f64, f64)]| line.last().map_or(area.bottom, |(_, mean)| y.at(*mean));
    let wanted: Vec<f64> = lines.iter().map(|(_, line)| last(line)).collect();
    let placed = apart(&wanted, LINE, (area.top + 6.0, area.bottom - 2.0));
    let rates: Vec<f64> = settings.iter().map(|setting| setting.rate).collect();
    html! {
        text class="label" x=(px(area.left)) y=(px(area.top - 12.0)) text-anchor="start" {
            "mean TTFT, s (log scale), caches of " (tokens(cache))
        }
        @for tick in y.ticks() {
            line class="grid" x1=(px(area.left)) x2=(px(area.right)) y1=(px(y.at(tick))) y2=(px(y.at(tick))) {}
            text class="tick" x=(px(area.left - 6.0)) y=(px(y.at(tick) + 4.0)) text-anchor="end" { (tick_label(tick)) }
        }
        @for rate in rates {
            text class="tick" x=(px(x.at(rate))) y=(px(area.bottom + LINE)) text-anchor="middle" { (tick_label(rate)) }
        }
        text class="axis" x=(px(f64::midpoint(area.left, area.right))) y=(px(area.bottom + 2.3 * LINE)) text-anchor="middle" {
            "times the recorded rate"
        }
        @for ((policy, line), (from, to)) in lines.iter().zip(wanted.iter().zip(&placed)) {
            @let class = class(policy);
            path class={ "curve " (class) } d=(path(line, &x, &y)) {}
            @for (rate, mean) in line {
                circle class={ "dot " (class) } cx=(px(x.at(*rate))) cy=(px(y.at(*mean))) r="3.5" {
                    title { (policy) " at " (tick_label(*rate)) ": " (number::significant(*mean)) " s" }
                }
            }
            @if (from - to).abs() > 3.0 {
                line class="leader" x1=(px(area.right - 2.0)) x2=(px(area.right + 8.0)) y1=(px(*from)) y2=(px(*to)) {}
            }
            text class="label" x=(px(area.right + 10.0)) y=(px(to + 4.0)) text-anchor="start" {
                (shortened(policy, NAMES_WIDTH - 12.0))
            }
        }
    }
}

fn path(line: &[(f64, f64)], x: &Scale, y: &Scale) -> String {
    let point = |(number, (rate, mean)): (usize, &(f64, f64))| {
        format!("{}{} {}", if number == 0 { "M" } else { "L" }, px(x.at(*rate)), px(y.at(*mean)))
    };
    line.iter().enumerate().map(point).collect()
}
