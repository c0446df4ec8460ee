//! `partywall sim route`: routing policies side by side on a trace, in virtual time.

use std::fs::File;
use std::io::BufReader;

use comfy_table::{CellAlignment, Table, presets};
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::policy;
use partywall_routing::router::RouterSettings;
use partywall_sim::serving::comparison::{ABLATIONS, Comparison, ComparisonReport, MixedSetting, Setting};
use partywall_sim::serving::copies::copied;
use partywall_sim::serving::engine::EngineSettings;
use partywall_sim::serving::generate;
use partywall_sim::serving::measures::Measures;
use partywall_sim::serving::replay::LoadRequest;
use partywall_sim::trace::read_prompts;

use crate::cli::routing::RouteArguments;
use crate::error::Failure;
use crate::report::routing;
use crate::{output, progress};

pub(crate) fn run(arguments: &RouteArguments) -> Result<(), Failure> {
    let comparison = Comparison {
        policies: policies(&arguments.policy)?,
        rates: arguments.rate.clone(),
        cache_tokens: arguments.cache.iter().map(|tokens| tokens.0).collect(),
        engines: arguments.engines,
        engine: EngineSettings::default(),
        router: RouterSettings::default(),
        mixed: arguments.mixed,
        offered: arguments.offered,
        whole: arguments.whole,
        seed: arguments.seed,
    };
    let load = load(arguments)?;
    let bar = progress::bar(comparison.replays() as u64, "replaying");
    let report = comparison.run(&load, progress::cores(), &|| bar.inc(1));
    bar.finish_and_clear();
    let report = report.map_err(Failure::input)?;
    let text = people(&report);
    let json = output::json(&report)?;
    output::print(if arguments.json { &json } else { &text })?;
    if let Some(directory) = &arguments.out {
        let page = routing::page(&report, &command(arguments));
        let pictures = routing::pictures(&report);
        let mut files = vec![("report.html", page.as_str()), ("report.json", json.as_str())];
        files.extend(pictures.iter().map(|(name, svg)| (name.as_str(), svg.as_str())));
        for path in output::write_all(directory, &files)?.iter().filter(|_| !arguments.json) {
            output::print(&format!("wrote {}", path.display()))?;
        }
    }
    Ok(())
}

/// The pictures that docs show of a recorded result: file name and SVG.
///
/// # Errors
/// When the record cannot be read.
pub fn recorded_route_pictures(text: &str, file: &str) -> Result<Vec<(String, String)>, String> {
    let report: ComparisonReport = serde_json::from_str(text).map_err(|error| format!("{file}: {error}"))?;
    Ok(routing::pictures(&report))
}

/// What to type for the same report.
fn command(arguments: &RouteArguments) -> String {
    let list = |values: Vec<String>| values.join(",");
    let load = match &arguments.trace {
        Some(path) => format!("--trace {}", path.display()),
        None => format!("--generate --minutes {}", arguments.minutes),
    };
    let mut command = format!(
        "partywall sim route {load} --rate {} --cache {} --policy {} --engines {} --copies {} --seed {}",
        list(arguments.rate.iter().map(f64::to_string).collect()),
        list(arguments.cache.iter().map(|tokens| tokens.0.to_string()).collect()),
        arguments.policy.join(","),
        arguments.engines,
        arguments.copies,
        arguments.seed
    );
    if arguments.mixed {
        command += &format!(" --offered {}", arguments.offered);
    }
    for (given, option) in [(arguments.mixed, " --mixed"), (arguments.whole, " --whole")] {
        command += if given { option } else { "" };
    }
    command
}

fn policies(names: &[String]) -> Result<Vec<&'static str>, Failure> {
    if names.iter().any(|name| name == "all") {
        return Ok(policy::NAMES.to_vec());
    }
    if names.iter().any(|name| name == "ablations") {
        return Ok(std::iter::once(policy::NAMES[0]).chain(ABLATIONS).collect());
    }
    names.iter().map(|name| Comparison::policy(name).map_err(Failure::input)).collect()
}

fn load(arguments: &RouteArguments) -> Result<Vec<LoadRequest>, Failure> {
    copied(one_load(arguments)?, arguments.copies, arguments.seed).map_err(Failure::input)
}

fn one_load(arguments: &RouteArguments) -> Result<Vec<LoadRequest>, Failure> {
    let Some(path) = &arguments.trace else {
        let length = Nanos::from_secs(u64::from(arguments.minutes) * 60);
        return Ok(generate::generate(length, arguments.seed, Class::LatencySensitive));
    };
    let file = File::open(path).map_err(|error| Failure::Read { path: path.clone(), error })?;
    let hint = "Mooncake's traces lie in the repository kvcache-ai/Mooncake; --generate does without";
    let trace = read_prompts(&path.display().to_string(), &mut BufReader::new(file))
        .map_err(|error| Failure::input_with_hint(error, hint))?;
    Ok(trace.into_iter().map(|request| LoadRequest::of_trace(request, Class::LatencySensitive)).collect())
}

fn people(report: &ComparisonReport) -> String {
    let mut text = format!(
        "{} requests in {:.0} s, {} engines: {:.0} prompt tokens/s one prompt at a time, {} ms a token, {} streams; simulated, seed {}\n",
        report.requests,
        report.span_s,
        report.engines,
        report.prefill_tokens_per_s,
        report.token_time_ms,
        report.streams,
        report.seed
    );
    for setting in &report.settings {
        text += &format!("\n{}\n", one_class(setting));
    }
    for setting in &report.mixed {
        text += &format!("\n{}\n", two_classes(setting));
    }
    text
}

fn one_class(setting: &Setting) -> String {
    let mut table = table(&[
        "policy",
        "TTFT mean",
        "p50",
        "p90",
        "p99",
        "hit rate",
        "good",
        "goodput/s",
        "off mean",
        "refused",
        "unserved",
    ]);
    for row in &setting.policies {
        let measures = &row.measures;
        let mut cells = vec![row.policy.to_string()];
        cells.extend(times(measures));
        cells.extend([
            format!("{:.3}", measures.hit_rate),
            format!("{:.3}", measures.good),
            format!("{:.2}", measures.goodput_per_s),
            seconds(measures.expected_off_mean_s),
            measures.refused.to_string(),
            measures.unserved.to_string(),
        ]);
        table.add_row(cells);
    }
    let mut text = format!(
        "{} times the rate, caches of {} tokens\n\n{}\n",
        setting.rate,
        setting.cache_tokens,
        aligned(table)
    );
    if let (Some(best), Some(over), Some(robin)) =
        (&setting.best_baseline, setting.over_best_baseline, setting.over_round_robin)
    {
        text += &format!(
            "\nmean of {} over the best other's ({best}): {over:.3}; over round robin's: {robin:.3}\n",
            policy::NAMES[0]
        );
    }
    text
}

fn two_classes(setting: &MixedSetting) -> String {
    let mut table = table(&[
        "policy",
        "LS TTFT mean",
        "p50",
        "p90",
        "p99",
        "LS hit rate",
        "LS unserved",
        "BE tokens/s",
        "BE refused",
    ]);
    let mut add = |name: String, ls: &Measures, be: [String; 2]| {
        let mut cells = vec![name];
        cells.extend(times(ls));
        cells.extend([format!("{:.3}", ls.hit_rate), ls.unserved.to_string()]);
        cells.extend(be);
        table.add_row(cells);
    };
    add(format!("{}, LS alone", policy::NAMES[0]), &setting.alone, ["-".to_owned(), "-".to_owned()]);
    for row in &setting.policies {
        let be = &row.best_effort;
        let name = format!("{}{}", row.policy, if row.knows_classes { "" } else { ", class-blind" });
        add(name, &row.latency_sensitive, [format!("{:.0}", be.tokens_per_s), be.refused.to_string()]);
    }
    let mut text = format!(
        "both classes, {:.0} best-effort tokens/s offered, caches of {} tokens\n\n{}\n",
        setting.offered_tokens_per_s,
        setting.cache_tokens,
        aligned(table)
    );
    if let (Some(p99), Some(share), Some(most)) =
        (setting.ls_p99_over_alone, setting.be_share, &setting.most_best_effort)
    {
        text += &format!(
            "\nLS p99 over alone: {p99:.3}; best-effort tokens over those of {most}, class-blind, which serves most of them: {share:.3}\n"
        );
    }
    text
}

fn times(measures: &Measures) -> [String; 4] {
    [measures.ttft_mean_s, measures.ttft_p50_s, measures.ttft_p90_s, measures.ttft_p99_s].map(seconds)
}

fn seconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

/// Numbers to the right, so that their magnitudes can be compared.
fn aligned(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
