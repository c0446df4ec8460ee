//! What came of `partywall sim route`, as pictures and as a page.

use maud::{Markup, html};
use partywall_routing::policy::NAMES;
use partywall_sim::serving::comparison::{ComparisonReport, MixedRow, MixedSetting, Setting};
use partywall_sim::serving::measures::Measures;

use super::svg::Picture;
use super::{html, number};

mod first_tokens;
mod mixed;
mod queueing;
#[cfg(test)]
mod tests;

/// The figures that a report has data for, as SVG files: (name, text).
pub(crate) fn pictures(report: &ComparisonReport) -> Vec<(String, String)> {
    let note = format!(
        "Simulated, not measured: {} requests, {} engines, seed {}.",
        report.requests, report.engines, report.seed
    );
    let file = |picture: &Picture| (format!("{}.svg", picture.id), picture.file(&note));
    figures(report).iter().map(|(_, _, picture)| file(picture)).collect()
}

/// The report as one file that loads nothing.
pub(crate) fn page(report: &ComparisonReport, command: &str) -> String {
    let title = "Which request goes where";
    let body = html! {
        header {
            h1 { (title) }
            p class="provenance" {
                strong class="badge" { "Simulated, not measured" } " "
                (report.requests) " requests in " (number::significant(report.span_s)) " s to " (report.engines) " engines, each "
                (number::significant(report.prefill_tokens_per_s)) " prompt tokens/s one prompt at a time, "
                (number::significant(report.token_time_ms)) " ms a token, " (report.streams) " streams"
                "; seed " (report.seed) "."
            }
            div class="summary" { (summary(report)) }
        }
        main {
            @for (heading, caption, picture) in &figures(report) {
                section {
                    h2 { (heading) }
                    figure {
                        figcaption { (caption) " These numbers are simulated." }
                        div class="wide" { (picture.inline()) }
                    }
                }
            }
            @for setting in &report.settings { (one_class(setting)) }
            @for setting in &report.mixed { (two_classes(setting)) }
            section {
                h2 { "How this was obtained" }
                p { "The same command gives the same report:" }
                pre { code { (command) } }
                h3 { "Measures" }
                dl { @for (name, meaning) in MEASURES { dt { (name) } dd { (meaning) } } }
            }
        }
    };
    html::frame(title, &body)
}

const MEASURES: [(&str, &str); 6] = [
    (
        "TTFT",
        "time from a request's arrival to its first token, of those that had one before the replay ended",
    ),
    ("hit rate", "fraction of the prompts' tokens that were found in a cache"),
    (
        "good",
        "fraction of the requests with the first token within 2 s and the others within 25 ms each on average",
    ),
    ("LS, BE", "latency-sensitive, best-effort"),
    ("class-blind", "the policy was given all requests as latency-sensitive ones"),
    ("unserved", "requests without a first token when the replay ended"),
];

fn figures(report: &ComparisonReport) -> Vec<(&'static str, &'static str, Picture)> {
    let first = first_tokens::figure(report).map(|picture| {
        let caption = "Each policy at each rate and size of cache: a dot for the mean, a ring for the 99th percentile. Further left is \
                       sooner; the scale is the same in all panels.";
        ("Time to the first token", caption, picture)
    });
    let queueing = queueing::figure(report).map(|picture| {
        let caption = "The mean as the same load comes faster. A policy that computes too much twice, or sends too many to one engine, \
                       runs out of engines at some rate, and from there on its queue grows for as long as the load lasts.";
        ("How waiting grows with the load", caption, picture)
    });
    let mixed = mixed::figure(report).map(|picture| {
        let caption = "Latency-sensitive requests with as many best-effort ones beside them as would overload the engines. Up is more \
                       best-effort work done, left is less waiting for the others; the dashed line is their p99 without best effort.";
        ("Both classes", caption, picture)
    });
    [first, queueing, mixed].into_iter().flatten().collect()
}

fn summary(report: &ComparisonReport) -> Markup {
    let ours = NAMES[0];
    html! {
        ul {
            @for setting in &report.settings {
                @if let (Some(best), Some(over)) = (&setting.best_baseline, setting.over_best_baseline) {
                    li {
                        strong { (heading(setting)) } ": the mean time to the first token of " code { (ours) } " is "
                        (number::ratio(over)) " times that of the best other, " code { (best) }
                        @if let Some(robin) = setting.over_round_robin { ", and " (number::significant(robin)) " times round robin's" }
                        "."
                    }
                }
            }
            @for setting in &report.mixed {
                @if let (Some(p99), Some(share)) = (setting.ls_p99_over_alone, setting.be_share) {
                    li {
                        strong { "Both classes, caches of " (tokens(setting.cache_tokens)) } ": latency-sensitive p99 "
                        (number::ratio(p99)) " times that without best effort, which gets " (number::fraction(share))
                        " of the most that a class-blind policy serves."
                    }
                }
            }
        }
    }
}

fn heading(setting: &Setting) -> String {
    format!("{} times the rate, caches of {}", setting.rate, tokens(setting.cache_tokens))
}

/// A number of tokens as users write it.
fn tokens(tokens: u64) -> String {
    if tokens.is_multiple_of(1_000_000) { format!("{} M", tokens / 1_000_000) } else { tokens.to_string() }
}

/// How a policy is drawn, the same in all figures.
fn class(policy: &str) -> String {
    match NAMES.iter().position(|name| *name == policy) {
        Some(0) => "w-partywall".to_owned(),
        Some(place) => format!("t-{}", (place - 1) % 8),
        None => "w-mps-percentage".to_owned(),
    }
}

fn one_class(setting: &Setting) -> Markup {
    let rows: Vec<(String, Vec<String>)> = setting
        .policies
        .iter()
        .map(|row| {
            let measures = &row.measures;
            let more = [measures.hit_rate, measures.good].map(number::fraction);
            (row.policy.to_string(), [&times(measures)[..], &more, &[measures.unserved.to_string()]].concat())
        })
        .collect();
    let columns = ["TTFT mean, s", "p50", "p90", "p99", "hit rate", "good", "unserved"];
    table(&heading(setting), &columns, &rows)
}

fn two_classes(setting: &MixedSetting) -> Markup {
    let ls = |measures: &Measures| {
        [&times(measures)[..], &[number::fraction(measures.hit_rate), measures.unserved.to_string()]].concat()
    };
    let mut rows =
        vec![(format!("{}, LS alone", NAMES[0]), [ls(&setting.alone), vec!["-".to_owned()]].concat())];
    rows.extend(setting.policies.iter().map(|row| {
        let served = number::significant(row.best_effort.tokens_per_s);
        (shown(row), [ls(&row.latency_sensitive), vec![served]].concat())
    }));
    let columns = ["LS TTFT mean, s", "p50", "p90", "p99", "LS hit rate", "LS unserved", "BE tokens/s"];
    table(&format!("Both classes, caches of {}", tokens(setting.cache_tokens)), &columns, &rows)
}

fn shown(row: &MixedRow) -> String {
    format!("{}{}", row.policy, if row.knows_classes { "" } else { ", class-blind" })
}

fn times(measures: &Measures) -> [String; 4] {
    [measures.ttft_mean_s, measures.ttft_p50_s, measures.ttft_p90_s, measures.ttft_p99_s]
        .map(|value| number::or_none(value, number::significant))
}

fn table(heading: &str, columns: &[&str], rows: &[(String, Vec<String>)]) -> Markup {
    html! {
        section {
            h2 { (heading) }
            div class="wide" {
                table {
                    caption { "These numbers are simulated." }
                    thead {
                        tr {
                            th scope="col" { "policy" }
                            @for name in columns { th scope="col" class="number" { (name) } }
                        }
                    }
                    tbody {
                        @for (name, cells) in rows {
                            tr {
                                th scope="row" {
                                    @let policy = name.split(',').next().unwrap_or_default();
                                    span class={ "swatch " (class(policy)) } {} (name)
                                }
                                @for cell in cells { td class="number" { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
