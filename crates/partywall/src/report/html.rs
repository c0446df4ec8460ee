//! The page: one file that loads nothing and runs nothing, for light and dark, for screen and paper.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::svg::{self, Picture};
use super::{Origin, Report, Section, Shown, cdf, matrix, number, strip, tradeoff};

const STYLE: &str = include_str!("page.css");

/// The measures, in the words of the design.
const MEASURES: [(&str, &str); 10] = [
    ("service time", "from the start of a request's work to its completion; p50 and p99 here are of this"),
    ("solo", "the same arrivals alone on the whole GPU, without any wall"),
    (
        "slowdown",
        "p99 beside the neighbour over p99 solo; 1 means that the neighbour is not felt. With p50 before it: the same \
         of the medians, where too few requests lie behind a p99",
    ),
    (
        "response slowdown",
        "the same of response times, from a request's arrival to its completion: waiting behind other requests is in it",
    ),
    (
        "simulated",
        "what the model says of the same tenants behind the same wall: slowdown, and what the best-effort tenant keeps",
    ),
    ("SLO misses", "fraction of requests whose response, waiting included, took longer than the objective"),
    ("BE kept", "rate of the best-effort tenant here over its rate alone on the whole GPU"),
    ("fault contained", "whether a fatal GPU fault of one tenant leaves the other running"),
    ("saturated", "more requests came than could be served, so that no slowdown can be given"),
    ("- (no number)", "too few requests for that percentile, or nothing it could be about"),
];

/// The page.
pub(super) fn page(report: &Report) -> String {
    let body = html! {
        header {
            h1 { (report.title) }
            p class="provenance" {
                strong class="badge" { (report.origin.how()) } " " (report.what())
            }
            (summary(report))
        }
        main {
            @if report.sections.len() >= matrix::SECTIONS_MIN { (overview(report)) }
            @for (index, section) in report.sections.iter().enumerate() { (self::section(report, index, section)) }
            (obtained(report))
        }
    };
    frame(&report.title, &body)
}

/// A page with this title and body, in the style of all of them.
pub(super) fn frame(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                // The style holds no character that HTML would read differently, and none of the data.
                style { (PreEscaped(svg::STYLE)) (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    page.into_string()
}

fn summary(report: &Report) -> Markup {
    html! {
        div class="summary" {
            p {
                "A latency-sensitive tenant (LS) shares the GPU with a best-effort tenant (BE). A wall is what keeps \
                 them apart; "
                @if report.origin == Origin::Simulated { "each wall below got the same requests at the same times." }
                @else { "each wall below got the same load." }
            }
            @if report.sections.len() < matrix::SECTIONS_MIN {
                ul {
                    @for section in &report.sections {
                        li { strong { (section.title) } ": " (report.summary(section)) }
                    }
                }
            }
        }
    }
}

/// All pairs at once, for reports that nobody reads section by section.
fn overview(report: &Report) -> Markup {
    html! {
        section {
            h2 { "All pairs" }
            figure {
                figcaption {
                    "The slowdown of the latency-sensitive tenant beside each neighbour, behind each wall: 1 is as alone."
                    @if let Some(mark) = report.origin.mark() { " These numbers are " (mark) "." }
                }
                div class="wide" { (matrix::Matrix::of(report).picture("matrix".to_owned()).inline()) }
            }
        }
    }
}

fn section(report: &Report, index: usize, section: &Section) -> Markup {
    let cells = report.shown(section);
    let id = |figure: &str| format!("s{index}-{figure}");
    html! {
        section {
            h2 { (section.title) }
            @if report.sections.len() >= matrix::SECTIONS_MIN { p { (report.summary(section)) } }
            p {
                (section.description)
                @if let Some(objective) = section.objective {
                    " The objective is a response within " (objective) "."
                }
            }
            @if !cells.is_empty() {
                (table(report, &cells))
                @if section.cells.iter().any(|cell| cell.result.tenants.iter().any(|tenant| tenant.cdf.len() > 1)) {
                (figure(report, "Latency", "Curves further left are faster. The axis grows towards the tail: from p90 \
                    to p99 is as far as from p99 to p99.9. A curve ends where fewer than ten requests lie beyond it; exclusive is the tenant alone.",
                    &cells, &cdf::cdf(id("cdf"), &cells)))
                }
                (figure(report, "What it costs, what it keeps", "One point per wall and setting: the higher, the more best-effort \
                    work gets done; the further left, the less the latency-sensitive tenant is slowed. Settings of one wall are \
                    joined; a ring is what the model says of the point that it is tied to.",
                    &cells, &tradeoff::tradeoff(id("tradeoff"), &cells)))
                @if let Some(strips) = strip::strips(id("strip"), section, &cells, report.sms) {
                    (figure(report, "Who had which SMs when", "The same stretch of time behind each wall: SMs in use \
                        by each tenant.", &cells, &strips))
                }
            }
            @if !section.unavailable.is_empty() {
                p { "Not possible here:" }
                ul { @for (wall, why) in &section.unavailable { li { code { (wall) } ": " (why) } } }
            }
            @if !section.lost.is_empty() {
                p { "Without figures:" }
                ul { @for (wall, what) in &section.lost { li { code { (wall) } ": " (what) } } }
            }
        }
    }
}

fn figure(report: &Report, heading: &str, caption: &str, cells: &[Shown<'_>], picture: &Picture) -> Markup {
    html! {
        figure {
            h3 { (heading) }
            figcaption {
                (caption)
                @if let Some(mark) = report.origin.mark() { " These numbers are " (mark) "." }
                @if cells.iter().any(|shown| !shown.row.validated) { " † not validated: no measured pairs." }
            }
            div class="wide" { (picture.inline()) }
        }
    }
}

fn table(report: &Report, cells: &[Shown<'_>]) -> Markup {
    let columns = Columns::of(cells);
    html! {
        div class="wide" {
            table {
                caption {
                    @if let Some(mark) = report.origin.mark() { "These numbers are " (mark) ". " }
                    "Latencies are service times."
                }
                thead {
                    tr {
                        th scope="col" { "wall" }
                        @for name in columns.names() { th scope="col" class="number" { (name) } }
                        th scope="col" { "fault contained" }
                        th scope="col" { "note" }
                    }
                }
                tbody { @for shown in cells { (row(shown, columns)) } }
            }
        }
    }
}

/// Columns that stand there only where some wall has something in them.
#[derive(Clone, Copy)]
struct Columns {
    response: bool,
    objective: bool,
    modelled: bool,
}

impl Columns {
    fn of(cells: &[Shown<'_>]) -> Self {
        Self {
            response: cells.iter().any(|shown| shown.response_slowdown.is_some()),
            objective: cells.iter().any(|shown| shown.row.slo_miss_rate.is_some()),
            modelled: cells.iter().any(|shown| shown.modelled.is_some()),
        }
    }

    fn names(self) -> Vec<&'static str> {
        let response = self.response.then_some("response slowdown");
        let modelled =
            if self.modelled { vec!["simulated slowdown", "simulated BE kept"] } else { Vec::new() };
        let first = ["LS p50, ms", "LS p99, ms", "slowdown"].into_iter().chain(response);
        first.chain(self.objective.then_some("SLO misses")).chain(["BE kept"]).chain(modelled).collect()
    }
}

fn row(shown: &Shown<'_>, columns: Columns) -> Markup {
    let row = &shown.row;
    let ratio = |value| number::or_none(value, number::ratio);
    let mut numbers = vec![
        number::or_none(row.ls_p50_ms, number::significant),
        number::or_none(row.ls_p99_ms, number::significant),
        shown.slowdown(),
    ];
    numbers.extend(columns.response.then(|| ratio(shown.response_slowdown)));
    numbers.extend(columns.objective.then(|| number::or_none(row.slo_miss_rate, number::fraction)));
    numbers.push(number::or_none(row.be_kept, number::fraction));
    if columns.modelled {
        // Of the percentile that is shown as measured.
        let slowdown = shown.modelled.map(|model| match row.slowdown_p99 {
            Some(_) => model.slowdown_p99,
            None => model.slowdown_p50,
        });
        numbers.push(ratio(slowdown));
        numbers.push(number::or_none(shown.modelled.and_then(|model| model.kept), number::fraction));
    }
    html! {
        tr {
            th scope="row" title=(shown.cell.wall.summary()) {
                span class={ "swatch " (shown.class()) } {} (shown.name)
            }
            @for number in numbers { td class="number" { (number) } }
            td { @if row.fault_contained { "yes" } @else { "no" } }
            td class="note" { (shown.notes().join("; ")) }
        }
    }
}

fn obtained(report: &Report) -> Markup {
    html! {
        section {
            h2 { "How this was obtained" }
            p {
                (report.provenance())
                @if report.origin == Origin::Simulated { " The same command gives the same report:" }
                @else { " By the command" }
            }
            pre { code { (report.command) } }
            @if !report.sources.is_empty() {
                h3 { "Sources" }
                ul { @for source in &report.sources { li { (source) } } }
            }
            @if report.origin == Origin::Simulated { (model_error(report)) }
            h3 { "Measures" }
            dl { @for (name, meaning) in MEASURES { dt { (name) } dd { (meaning) } } }
            h3 { "Walls" }
            dl {
                @for wall in partywall_core::wall::Wall::ALL {
                    dt { (wall) } dd { (wall.summary()) }
                }
            }
        }
    }
}

fn model_error(report: &Report) -> Markup {
    html! {
        h3 { "Error of the model" }
        @if !report.errors.is_empty() {
            p {
                "Held against " (report.errors_source) ": by which fraction of the measured latency the simulated one \
                 was off. A pair is two programs that were measured side by side."
            }
            div class="wide" {
                table {
                    thead {
                        tr {
                            th scope="col" { "wall" }
                            @for name in ["pairs", "p50, median", "p50, 90th percentile", "p99, median"] {
                                th scope="col" class="number" { (name) }
                            }
                        }
                    }
                    tbody {
                        @for [wall, numbers @ ..] in report.error_lines() {
                            tr { th scope="row" { (wall) } @for number in numbers { td class="number" { (number) } } }
                        }
                    }
                }
            }
        }
        @if let Some(line) = report.not_validated_line() { p { (line) } }
    }
}
