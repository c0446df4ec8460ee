//! What came of the experiments, for people and for programs: one set of [`Row`]s, written as JSON, as a table for the
//! terminal and as a page that needs nothing but itself.
//!
//! Rows show one latency-sensitive tenant (LS) beside one best-effort tenant (BE) per section; the JSON has every
//! tenant of every cell besides.

mod cdf;
mod html;
mod matrix;
mod number;
pub(crate) mod routing;
pub(crate) mod sides;
mod strip;
mod summary;
mod svg;
mod table;
mod tradeoff;

#[cfg(test)]
mod tests;

use partywall_core::units::{Nanos, SmCount};
use partywall_core::wall::Wall;
use partywall_sim::experiment::{CellResult, TenantResult};
use partywall_sim::validate::WallError;
use serde::Serialize;

/// Everything a report says.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    /// Heading.
    pub(crate) title: String,
    /// Catalogue id of the GPU.
    pub(crate) gpu_id: String,
    /// Its name.
    pub(crate) gpu_name: String,
    /// SMs of the GPU.
    pub(crate) sms: SmCount,
    /// What the numbers come from; said wherever they appear.
    pub(crate) origin: Origin,
    /// Seed of everything random.
    pub(crate) seed: u64,
    /// What to type for the same report.
    pub(crate) command: String,
    /// Where the figures of the GPU and the networks come from, one line each.
    pub(crate) sources: Vec<String>,
    /// What was compared.
    pub(crate) sections: Vec<Section>,
    /// Error of the model per wall; a wall that is not here is not validated.
    pub(crate) errors: Vec<WallError>,
    /// The measurements behind `errors`.
    pub(crate) errors_source: String,
    /// Catalogue id of the GPU on which those pairs were measured: numbers of any other are not validated.
    pub(crate) measured_on: String,
}

/// What numbers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The model.
    Simulated,
    /// A GPU.
    Measured,
    /// Programs that ran on a simulated GPU.
    SimulatedGpu,
    /// A rehearsal of a measurement, without GPU: they mean nothing.
    Pretended,
}

impl Origin {
    /// In a word or three.
    fn how(self) -> &'static str {
        match self {
            Self::Simulated => "Simulated, not measured",
            Self::Measured => "Measured",
            Self::SimulatedGpu => "Simulated GPU, times modelled and not measured",
            Self::Pretended => "Pretended, not measured: the figures mean nothing",
        }
    }

    /// What captions and headings of figures and tables carry; nothing where the numbers are real.
    fn mark(self) -> Option<&'static str> {
        match self {
            Self::Simulated => Some("simulated"),
            Self::Measured => None,
            Self::SimulatedGpu => Some("simulated GPU"),
            Self::Pretended => Some("pretended"),
        }
    }
}

/// One set of tenants behind several walls.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    /// Short name, the `workload` of its rows.
    pub(crate) id: String,
    /// Heading.
    pub(crate) title: String,
    /// What runs and how requests come, a sentence or two.
    pub(crate) description: String,
    /// Index of the LS tenant whose latency is shown.
    pub(crate) ls: usize,
    /// Index of the BE tenant whose rate is shown.
    pub(crate) be: Option<usize>,
    /// Longest response of the LS tenant that meets its objective.
    pub(crate) objective: Option<Nanos>,
    /// Per wall, in the order to show.
    pub(crate) cells: Vec<Cell>,
    /// Walls that this GPU or these tenants cannot have, and why.
    pub(crate) unavailable: Vec<(Wall, String)>,
    /// Walls, with their settings, that are here and have no figures, and what happened.
    pub(crate) lost: Vec<(String, String)>,
}

/// One wall of a section.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    /// What came of it.
    pub(crate) result: CellResult,
    /// How the wall was set where there is a choice, such as `50/50`; empty elsewhere.
    pub(crate) setting: String,
    /// What a reader must know beside the numbers.
    pub(crate) notes: Vec<String>,
    /// Slowdown of the LS tenant's p99 response time; it has waiting behind itself in it.
    pub(crate) response_slowdown: Option<f64>,
    /// What the model says of the same, beside a measurement.
    pub(crate) modelled: Option<Modelled>,
}

/// What the model says of a measured wall.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Modelled {
    /// Slowdown of the LS tenant's median.
    pub(crate) slowdown_p50: f64,
    /// Slowdown of its p99.
    pub(crate) slowdown_p99: f64,
    /// What the BE tenant keeps.
    pub(crate) kept: Option<f64>,
}

impl From<CellResult> for Cell {
    /// A wall as it comes, with nothing to say beside its numbers.
    fn from(result: CellResult) -> Self {
        Self { result, setting: String::new(), notes: Vec::new(), response_slowdown: None, modelled: None }
    }
}

/// A line of the report, field for field what `report.json` has under `rows`. Latencies are service times; ratios are
/// fractions; `None` is written as null and means that too few requests lie behind the value, that the load was not
/// served, or that there is nobody whom it could be about.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) workload: String,
    pub(crate) wall: Wall,
    pub(crate) ls_p50_ms: Option<f64>,
    pub(crate) ls_p99_ms: Option<f64>,
    /// Stands in where the tail has too few requests; not among the agreed fields.
    #[serde(skip)]
    pub(crate) slowdown_p50: Option<f64>,
    /// Stands in where there are too few for a median as well.
    #[serde(skip)]
    pub(crate) slowdown_mean: Option<f64>,
    pub(crate) slowdown_p99: Option<f64>,
    pub(crate) slo_miss_rate: Option<f64>,
    pub(crate) be_kept: Option<f64>,
    pub(crate) fault_contained: bool,
    pub(crate) saturated: bool,
    pub(crate) validated: bool,
}

impl Row {
    /// The slowdown of the tail, else of the median, else of the mean: the first that has enough requests behind it.
    fn best_known_slowdown(&self) -> Option<f64> {
        self.slowdown_p99.or(self.slowdown_p50).or(self.slowdown_mean)
    }
}

/// `report.json`: what programs agree on first, everything else behind it.
#[derive(Serialize)]
struct Json<'a> {
    gpu: &'a str,
    simulated: bool,
    seed: u64,
    command: &'a str,
    sources: &'a [String],
    rows: Vec<Row>,
    errors: &'a [WallError],
    errors_source: &'a str,
    not_validated: Vec<Wall>,
    sections: Vec<SectionJson<'a>>,
}

/// A section with every tenant of every cell.
#[derive(Serialize)]
struct SectionJson<'a> {
    workload: &'a str,
    title: &'a str,
    description: &'a str,
    ls: usize,
    be: Option<usize>,
    objective_ms: Option<f64>,
    cells: Vec<&'a CellResult>,
    unavailable: Vec<Unavailable<'a>>,
}

#[derive(Serialize)]
struct Unavailable<'a> {
    wall: Wall,
    why: &'a str,
}

/// A cell with the row made of it and the name it has in its section.
struct Shown<'a> {
    cell: &'a CellResult,
    row: Row,
    /// The wall with its setting, and how copies were scheduled where the section has both ways.
    name: String,
    /// What a reader must know beside the numbers and what follows from them.
    said: &'a [String],
    response_slowdown: Option<f64>,
    modelled: Option<Modelled>,
    /// The LS tenant; `None` in a cell without tenants.
    ls: Option<&'a TenantResult>,
}

impl Shown<'_> {
    /// The name with a mark that refers to the note on walls without measurements.
    fn marked(&self) -> String {
        if self.row.validated { self.name.clone() } else { format!("{} †", self.name) }
    }

    /// The name with "not validated" in words.
    fn in_words(&self) -> String {
        if self.row.validated { self.name.clone() } else { format!("{} (not validated)", self.name) }
    }

    /// What a reader must know about the numbers: saturation with the rate completed, no validation.
    fn notes(&self) -> Vec<String> {
        let saturated = self
            .ls
            .filter(|ls| ls.saturated)
            .map(|ls| format!("saturated: completed {} {}/s", number::significant(ls.rate_per_s), ls.unit));
        let unvalidated = (!self.row.validated).then(|| "not validated".to_owned());
        saturated.into_iter().chain(unvalidated).chain(self.said.iter().cloned()).collect()
    }

    /// The slowdown of the tail, or, and said so, of the median or the mean, where the tail has too few requests.
    fn slowdown(&self) -> String {
        match (self.row.slowdown_p99, self.row.slowdown_p50, self.row.slowdown_mean) {
            (None, Some(p50), _) => format!("p50 {}", number::ratio(p50)),
            (None, None, Some(mean)) => format!("mean {}", number::ratio(mean)),
            (p99, ..) => number::or_none(p99, number::ratio),
        }
    }

    /// Classes of the elements that stand for this cell in a figure.
    fn class(&self) -> String {
        let first_come = self.name.ends_with(" fifo");
        format!("w-{}{}", self.cell.wall.id(), if first_come { " fifo" } else { "" })
    }
}

impl Report {
    /// The rows of all sections.
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.sections.iter().flat_map(|section| self.shown(section)).map(|shown| shown.row).collect()
    }

    /// The report for programs: the same bytes for the same report.
    #[expect(clippy::expect_used, reason = "only maps with keys that are no texts cannot be written")]
    pub(crate) fn json(&self) -> String {
        let json = Json {
            gpu: &self.gpu_id,
            simulated: matches!(self.origin, Origin::Simulated | Origin::SimulatedGpu),
            seed: self.seed,
            command: &self.command,
            sources: &self.sources,
            rows: self.rows(),
            errors: &self.errors,
            errors_source: &self.errors_source,
            not_validated: self.not_validated(),
            sections: self.sections.iter().map(section_json).collect(),
        };
        let mut text =
            serde_json::to_string_pretty(&json).expect("structs of numbers and texts have a JSON form");
        text.push('\n');
        text
    }

    /// The report as one file that loads nothing.
    pub(crate) fn html(&self) -> String {
        html::page(self)
    }

    /// The figures that tell the result in one look, as SVG files: (name, text), one per section.
    pub(crate) fn pictures(&self) -> Vec<(String, String)> {
        let picture = |section: &Section| {
            let cells = self.shown(section);
            let doubt = if cells.iter().all(|shown| shown.row.validated) { "" } else { " † not validated" };
            let note = format!("{}, {}, seed {}.{doubt}", self.origin.how(), self.gpu_name, self.seed);
            (format!("{}.svg", section.id), tradeoff::tradeoff(section.id.clone(), &cells).file(&note))
        };
        self.sections.iter().map(picture).collect()
    }

    /// All pairs in one picture, as an SVG file; none where there are few enough to be told one by one.
    pub(crate) fn overview(&self) -> Option<String> {
        let many = self.sections.len() >= matrix::SECTIONS_MIN;
        let note = format!("{}, {}, seed {}.", self.origin.how(), self.gpu_name, self.seed);
        many.then(|| matrix::Matrix::of(self).picture("matrix".to_owned()).file(&note))
    }

    /// The report for a terminal of `width` columns, without colours.
    pub(crate) fn table(&self, width: u16) -> String {
        table::table(self, width)
    }

    /// Walls with numbers in this report that the model was not held against, in the order of [`Wall::ALL`].
    fn not_validated(&self) -> Vec<Wall> {
        let appears = |wall: Wall| {
            self.sections.iter().any(|section| section.cells.iter().any(|c| c.result.wall == wall))
        };
        Wall::ALL.into_iter().filter(|wall| appears(*wall) && !self.validated(*wall)).collect()
    }

    /// Measured results need no model, so nothing about them waits for validation.
    fn validated(&self, wall: Wall) -> bool {
        self.origin != Origin::Simulated
            || (self.gpu_id == self.measured_on && self.errors.iter().any(|error| error.wall == wall))
    }

    fn shown<'a>(&self, section: &'a Section) -> Vec<Shown<'a>> {
        let both_ways = |wall: Wall| {
            let mut ways =
                section.cells.iter().filter(|cell| cell.result.wall == wall).map(|c| c.result.copies);
            ways.next().is_some_and(|first| ways.any(|other| other != first))
        };
        let shown = |cell: &'a Cell| {
            let Cell { result, setting, notes, response_slowdown, modelled } = cell;
            let copies = if both_ways(result.wall) { result.copies.trim_start_matches("copy-") } else { "" };
            let words = [result.wall.id(), setting, copies];
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            Shown {
                cell: result,
                row: self.row(section, result),
                name: words.join(" "),
                said: notes,
                response_slowdown: *response_slowdown,
                modelled: *modelled,
                ls: result.tenants.get(section.ls),
            }
        };
        section.cells.iter().map(shown).collect()
    }

    fn row(&self, section: &Section, cell: &CellResult) -> Row {
        let ls = cell.tenants.get(section.ls);
        let be_kept = match section.be {
            // Its work is done elsewhere: nothing of it is left on this GPU.
            Some(_) if cell.wall == Wall::Exclusive => Some(0.0),
            Some(be) => cell.tenants.get(be).and_then(|tenant| tenant.kept),
            None => None,
        };
        Row {
            workload: section.id.clone(),
            wall: cell.wall,
            ls_p50_ms: ls.and_then(|tenant| tenant.service.p50_ms),
            ls_p99_ms: ls.and_then(|tenant| tenant.service.p99_ms),
            slowdown_p50: ls
                .filter(|tenant| !tenant.saturated)
                .and_then(|tenant| Some(tenant.service.p50_ms? / tenant.solo.p50_ms?)),
            slowdown_mean: ls
                .filter(|tenant| !tenant.saturated && tenant.service.n > 0)
                .and_then(|tenant| Some(tenant.service.mean_ms? / tenant.solo.mean_ms?)),
            slowdown_p99: ls.filter(|tenant| !tenant.saturated).and_then(|tenant| tenant.slowdown_p99),
            slo_miss_rate: ls.and_then(|tenant| tenant.slo_miss_rate),
            be_kept,
            fault_contained: cell.wall.fault_contained(),
            saturated: ls.is_some_and(|tenant| tenant.saturated),
            validated: self.validated(cell.wall),
        }
    }
}

fn section_json(section: &Section) -> SectionJson<'_> {
    SectionJson {
        workload: &section.id,
        title: &section.title,
        description: &section.description,
        ls: section.ls,
        be: section.be,
        objective_ms: section.objective.map(Nanos::as_ms),
        cells: section.cells.iter().map(|cell| &cell.result).collect(),
        unavailable: section.unavailable.iter().map(|(wall, why)| Unavailable { wall: *wall, why }).collect(),
    }
}
