//! What was measured, for people: for each work a table of loads by intensities, with colors beside without.

use std::fmt::Write as _;

use partywall_core::units::Bytes;

use super::record::{OfView, Record, Row};
use crate::vram::talk::{View, Work};

/// Columns of numbers, and of what is beside them.
const NUMBER: usize = 7;
const NAME: usize = 26;

pub(super) fn text(record: &Record) -> String {
    let mut text = String::new();
    head(&mut text, record);
    for work in [Work::Long, Work::Short, Work::Graph] {
        table(&mut text, record, work);
    }
    kept(&mut text, record);
    for (view, of) in record.summary.views() {
        found(&mut text, view, of);
    }
    text
}

fn head(text: &mut String, record: &Record) {
    let Record { tenant, neighbour, .. } = record;
    let simulated = if record.simulated { ": simulated, so times mean nothing" } else { "" };
    let _ = writeln!(
        text,
        "{}{simulated}\n  mask {:#x}, {}; {:.0} s\n  \
         tenant: {} SMs, {} of data; neighbour: {} SMs, {} of data; of their {} pages {} are nobody's\n  \
         copied into arenas and back: {}, none of it wrong",
        record.gpu,
        record.mask,
        record.cache.text(),
        record.took_s,
        tenant.sms,
        Bytes(tenant.data_bytes),
        neighbour.sms,
        Bytes(neighbour.data_bytes),
        record.pages,
        Bytes(tenant.lost_bytes + neighbour.lost_bytes),
        Bytes(record.copied_bytes),
    );
}

impl Work {
    fn title(self, record: &Record) -> String {
        let requests = || {
            let one = if record.request.launches == 1 { "launch" } else { "launches" };
            format!("requests of {} {one} of {}", record.request.launches, Bytes(record.request.bytes))
        };
        match self {
            Self::Long => format!("long: passes over {} in one launch", Bytes(record.tenant.data_bytes)),
            Self::Short => format!("short: {}", requests()),
            Self::Graph => format!("graph: {}, as CUDA graphs", requests()),
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Long => "passes",
            Self::Short => "requests",
            Self::Graph => "graphs",
        }
    }
}

impl View {
    fn title(self) -> &'static str {
        match self {
            Self::Colored => "each on its side",
            Self::Uncolored => "the same SMs, data anywhere",
        }
    }
}

/// What differs between rows other than view, work and intensity: a line of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Beside<'a> {
    load: &'a str,
    sms: u32,
    threads: u32,
    code: u32,
}

impl<'a> Beside<'a> {
    fn of(row: &'a Row) -> Self {
        let (sms, threads) = (row.load_sms, row.load_threads_per_sm);
        Self { load: &row.load, sms, threads, code: row.code_place }
    }

    /// Its load; with SMs and threads where there are several of them among `all`.
    fn name(self, all: &[Self]) -> String {
        let mut name = self.load.to_owned();
        if distinct(all.iter().map(|one| one.sms)).len() > 1 {
            let _ = write!(name, ", {} SMs", self.sms);
        }
        if distinct(all.iter().map(|one| one.threads)).len() > 1 {
            let _ = write!(name, ", {} threads", self.threads);
        }
        name
    }
}

/// In the order in which they come.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut kept = Vec::new();
    for one in all {
        if !kept.contains(&one) {
            kept.push(one);
        }
    }
    kept
}

fn table(text: &mut String, record: &Record, work: Work) {
    let rows: Vec<&Row> = record.rows.iter().filter(|row| row.work == work).collect();
    if rows.is_empty() {
        return;
    }
    let tails = rows.iter().all(|row| row.interference_p99.is_some());
    let views = distinct(rows.iter().map(|row| row.view));
    let threads = distinct(rows.iter().map(|row| row.threads_per_sm));
    let columns: Vec<(View, u32)> =
        views.iter().flat_map(|&view| threads.iter().map(move |&threads| (view, threads))).collect();
    let all = |text: &mut String, name: &str, cell: &dyn Fn(View, u32) -> Option<String>| {
        let _ = write!(text, "  {name:<NAME$}");
        for &(view, threads) in &columns {
            let gap = if Some(threads) == columns.first().map(|first| first.1) { "  " } else { "" };
            let _ = write!(text, "{gap}{:>NUMBER$}", cell(view, threads).unwrap_or_else(|| "-".to_owned()));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    let (lines, codes) =
        (distinct(rows.iter().map(|row| Beside::of(row))), distinct(rows.iter().map(|row| row.code_place)));
    let which = if tails { "p99" } else { "medians" };
    let _ = writeln!(text, "\n  {}; {which} beside the neighbour / alone", work.title(record));
    let _ = write!(text, "  {:<NAME$}", "threads on each SM");
    for view in &views {
        let _ =
            write!(text, "  {:<width$}", format!("{view:?}").to_lowercase(), width = NUMBER * threads.len());
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    all(text, "", &|_, threads| Some(threads.to_string()));
    let find = |view: View, threads: u32, is: &dyn Fn(&Row) -> bool| {
        rows.iter().find(|row| row.view == view && row.threads_per_sm == threads && is(row)).copied()
    };
    for &code in &codes {
        let name = if codes.len() > 1 { format!("alone, us, code {code}") } else { "alone, us".to_owned() };
        all(text, &name, &|view, threads| {
            let alone = find(view, threads, &|row| row.code_place == code)?.alone;
            Some(format!("{:.1}", if tails { alone.p99_us? } else { alone.p50_us }))
        });
    }
    for line in &lines {
        let mut name = line.name(&lines);
        if codes.len() > 1 {
            let _ = write!(name, ", code {}", line.code);
        }
        all(text, &name, &|view, threads| {
            let row = find(view, threads, &|row| Beside::of(row) == *line)?;
            let factor = if tails { row.interference_p99? } else { row.interference_p50 };
            Some(format!("{factor:.2}"))
        });
    }
}

/// What the neighbour moves and keeps.
fn kept(text: &mut String, record: &Record) {
    let views = distinct(record.rows.iter().map(|row| row.view));
    let _ = writeln!(
        text,
        "\n  the neighbour: 10^9 bytes a second alone on its half, and the least part that it keeps"
    );
    let _ = write!(text, "  {:<NAME$}", "");
    for view in &views {
        let _ = write!(text, "  {:>width$}", format!("{view:?}").to_lowercase(), width = 2 * NUMBER);
    }
    text.push('\n');
    let loads = distinct(record.rows.iter().map(|row| Beside { code: 0, ..Beside::of(row) }));
    for load in &loads {
        let name = load.name(&loads);
        let _ = write!(text, "  {name:<NAME$}");
        for view in &views {
            let is = |row: &&Row| row.view == *view && Beside { code: 0, ..Beside::of(row) } == *load;
            let mine = || record.rows.iter().filter(is);
            let rate = mine().next().map_or("-".to_owned(), |row| format!("{:.0}", row.load_alone_gb_s));
            let least = mine().map(|row| row.load_kept).reduce(f64::min);
            let least = least.map_or("-".to_owned(), |least| format!("{least:.2}"));
            let _ = write!(text, "  {rate:>NUMBER$}{least:>NUMBER$}");
        }
        text.push('\n');
    }
    text.push('\n');
}

/// A sentence.
fn found(text: &mut String, view: View, of: &OfView) {
    let mut parts: Vec<String> = Vec::new();
    for (work, worst) in of.works() {
        let (factor, note) = match worst.interference_p99_max {
            Some(p99) => (p99, ""),
            None => (worst.interference_p50_max, " (medians)"),
        };
        let take = if parts.is_empty() { " take at most" } else { "" };
        let long = if parts.is_empty() { " times as long" } else { "" };
        // Without colors it is not launches that wait.
        let more = worst
            .added_us_per_launch_max
            .filter(|_| view == View::Colored)
            .map_or(String::new(), |added| format!(", {added:.1} us more for each launch"));
        parts.push(format!("{}{take} {factor:.2}{long}{note}{more}", work.plural()));
    }
    let kept = of.load_kept_min;
    let _ = writeln!(
        text,
        "  {}: {};\n    the neighbour keeps at least {kept:.2}",
        view.title(),
        parts.join(";\n    ")
    );
}
