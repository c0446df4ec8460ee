//! What came of a scenario: the same numbers as JSON and as tables.

use partywall_core::tenant::Class;
use partywall_core::wall::Wall;
use serde::Serialize;

use super::Scenario;
use crate::experiment::TenantResult;
use crate::ims::Beside;

/// Everything a scenario found. Ratios are fractions; what had too few requests or a saturated load is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScenarioReport {
    /// The scenario's name.
    pub scenario: String,
    /// What it shows.
    pub description: String,
    /// Always true: nothing here was measured.
    pub simulated: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// Virtual time measured in each run, ms.
    pub duration_ms: f64,
    /// Catalogue ids.
    pub gpus: Vec<String>,
    /// Per GPU and variant, over all its tenants and pairs.
    pub summaries: Vec<Summary>,
    /// Maximum stable rates and timeouts.
    pub ims: Vec<ImsResult>,
    /// One row per run and tenant.
    pub rows: Vec<Row>,
}

/// A pair of the sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// The latency-sensitive network.
    pub ls: String,
    /// The best-effort network.
    pub be: String,
}

/// A tenant in a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Catalogue id.
    pub gpu: String,
    /// The variant.
    pub variant: String,
    /// Its wall.
    pub wall: Wall,
    /// How copies were scheduled: `copy-fifo` or `copy-fair`.
    pub copies: &'static str,
    /// Whether the model was held against measurements for this wall on this GPU.
    pub validated: bool,
    /// Whether a fatal fault of one tenant leaves the others running.
    pub fault_contained: bool,
    /// Which pair of the sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pair: Option<Pair>,
    /// What the tenant runs.
    pub program: String,
    /// Its objective, ms.
    pub objective_ms: Option<f64>,
    /// What it got.
    #[serde(flatten)]
    pub tenant: TenantResult,
    /// Mean power of the GPU, W.
    pub power_w: f64,
    /// Mean SM clock, MHz.
    pub clock_mhz: f64,
    /// Lowest SM clock, MHz.
    pub clock_min_mhz: f64,
    /// Fraction of the time at which the power cap held the clock down.
    pub throttled: f64,
}

/// Values of several tenants.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// How many have a value.
    pub n: usize,
    /// The smallest.
    pub min: f64,
    /// The median; the mean of the middle two of an even number.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

/// A variant on a GPU, over its tenants and the pairs of the sweep.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Catalogue id.
    pub gpu: String,
    /// The variant.
    pub variant: String,
    /// Its wall.
    pub wall: Wall,
    /// How copies were scheduled.
    pub copies: &'static str,
    /// Whether the model was held against measurements for this wall on this GPU.
    pub validated: bool,
    /// Slowdown of latency-sensitive tenants, p99 of service time; saturated ones have none.
    pub ls_slowdown_p99: Option<Spread>,
    /// What the neighbours do to latency-sensitive tenants: p99 among them over p99 alone in the part.
    pub ls_interference_p99: Option<Spread>,
    /// Latency-sensitive tenants whose load could not be served.
    pub ls_saturated: usize,
    /// Latency-sensitive tenants.
    pub ls_tenants: usize,
    /// Mean fraction of latency-sensitive requests that met their objective, lost ones included.
    pub slo_attainment: Option<f64>,
    /// Best-effort rate over the rate alone on the whole GPU.
    pub be_kept: Option<Spread>,
    /// Requests lost, all tenants.
    pub lost: u64,
    /// Mean SM clock, MHz.
    pub clock_mhz: f64,
}

/// The maximum stable rate of a tenant alone in its part, and what became of it beside others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImsResult {
    /// Catalogue id.
    pub gpu: String,
    /// The variant.
    pub variant: String,
    /// Its wall.
    pub wall: Wall,
    /// Whether the model was held against measurements for this wall on this GPU.
    pub validated: bool,
    /// The tenant under test.
    pub tenant: String,
    /// What it runs.
    pub program: String,
    /// Inferences a second; null where no rate was stable.
    pub ims_per_s: Option<f64>,
    /// The first estimate, from the worst times back to back.
    pub first_estimate_per_s: f64,
    /// Mean SM clock alone, MHz.
    pub clock_alone_mhz: f64,
    /// Beside the others at rising load.
    pub steps: Vec<ImsStep>,
}

/// The tenant under test at its maximum stable rate beside the others at some load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ImsStep {
    /// Load of the others, as a fraction of their own maximum stable rate.
    pub load: f64,
    /// Inferences that were due.
    pub requests: u64,
    /// Those that were not done within their period.
    pub timeouts: u64,
    /// The same as a fraction.
    pub timeout_rate: f64,
    /// Longest inference, ms.
    pub service_max_ms: Option<f64>,
    /// Mean SM clock, MHz.
    pub clock_mhz: f64,
    /// Mean power, W.
    pub power_w: f64,
}

impl ImsStep {
    pub(super) fn new(load: f64, beside: &Beside) -> Self {
        Self {
            load,
            requests: beside.requests,
            timeouts: beside.timeouts,
            timeout_rate: beside.timeouts as f64 / beside.requests.max(1) as f64,
            service_max_ms: beside.service_max_ms,
            clock_mhz: beside.clock_mhz,
            power_w: beside.power_w,
        }
    }
}

/// A table for people: every row has as many cells as the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Column names.
    pub header: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

impl ScenarioReport {
    pub(super) fn new(scenario: &Scenario, seed: u64, rows: Vec<Row>, ims: Vec<ImsResult>) -> Self {
        let file = &scenario.file;
        let mut cells: Vec<(&str, &str)> = Vec::new();
        for row in &rows {
            if !cells.contains(&(&row.gpu, &row.variant)) {
                cells.push((&row.gpu, &row.variant));
            }
        }
        let summaries = cells.iter().filter_map(|&(gpu, variant)| {
            Summary::of(rows.iter().filter(|row| row.gpu == gpu && row.variant == variant).collect())
        });
        Self {
            scenario: file.name.clone(),
            description: file.description.clone(),
            simulated: true,
            seed,
            duration_ms: file.duration.as_ms(),
            gpus: file.gpu.0.clone(),
            summaries: summaries.collect(),
            ims,
            rows,
        }
    }

    /// What to print: a table of the variants, one of the tenants unless they are too many (a sweep's are in the JSON
    /// only), one of the maximum stable rates where they were asked for.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.summary_table()];
        if self.rows.iter().all(|row| row.pair.is_none()) {
            tables.push(self.tenant_table());
        }
        if !self.ims.is_empty() {
            tables.push(self.ims_table());
        }
        tables
    }

    fn summary_table(&self) -> Table {
        let row = |summary: &Summary| {
            let slowdown = summary.ls_slowdown_p99;
            vec![
                summary.gpu.clone(),
                named(&summary.variant, summary.validated),
                summary.wall.to_string(),
                copies(summary.copies),
                ratio(slowdown.map(|spread| spread.median)),
                ratio(slowdown.map(|spread| spread.max)),
                ratio(summary.ls_interference_p99.map(|spread| spread.median)),
                format!("{} of {}", summary.ls_saturated, summary.ls_tenants),
                percent(summary.slo_attainment),
                percent(summary.be_kept.map(|spread| spread.median)),
                percent(summary.be_kept.map(|spread| spread.min)),
                summary.lost.to_string(),
                format!("{:.0}", summary.clock_mhz),
            ]
        };
        table(
            "Variants (simulated; * model not validated for this wall on this GPU)",
            &[
                "GPU",
                "variant",
                "wall",
                "copies",
                "LS slowdown p99, median",
                "max",
                "interference, median",
                "LS saturated",
                "SLO met",
                "BE kept, median",
                "min",
                "lost",
                "clock MHz",
            ],
            self.summaries.iter().map(row).collect(),
        )
    }

    fn tenant_table(&self) -> Table {
        let row = |row: &Row| {
            let tenant = &row.tenant;
            vec![
                row.gpu.clone(),
                named(&row.variant, row.validated),
                tenant.name.clone(),
                tenant.class.short().to_owned(),
                tenant.placed.clone(),
                ms(tenant.solo.p50_ms),
                ms(tenant.service.p50_ms),
                ms(tenant.service.p99_ms),
                if tenant.saturated { "saturated".to_owned() } else { ratio(tenant.slowdown_p99) },
                percent(tenant.slo_miss_rate),
                format!("{:.1} {}", tenant.rate_per_s, tenant.unit),
                percent(tenant.kept),
                tenant.lost.to_string(),
            ]
        };
        table(
            "Tenants (simulated)",
            &[
                "GPU",
                "variant",
                "tenant",
                "class",
                "place",
                "solo p50 ms",
                "p50 ms",
                "p99 ms",
                "slowdown p99",
                "SLO missed",
                "rate /s",
                "kept",
                "lost",
            ],
            self.rows.iter().map(row).collect(),
        )
    }

    fn ims_table(&self) -> Table {
        let lines = self.ims.iter().flat_map(|result| {
            result.steps.iter().map(move |step| {
                vec![
                    result.gpu.clone(),
                    named(&result.variant, result.validated),
                    result.tenant.clone(),
                    result.ims_per_s.map_or_else(none, |rate| format!("{rate:.1}")),
                    percent(Some(step.load)),
                    step.requests.to_string(),
                    step.timeouts.to_string(),
                    ms(step.service_max_ms),
                    format!("{:.0}", result.clock_alone_mhz),
                    format!("{:.0}", step.clock_mhz),
                    format!("{:.1}", step.power_w),
                ]
            })
        });
        table(
            "Maximum stable rate alone, and timeouts beside the others (simulated)",
            &[
                "GPU",
                "variant",
                "tenant",
                "IMS /s",
                "load of others",
                "inferences",
                "timeouts",
                "longest ms",
                "clock alone MHz",
                "clock MHz",
                "power W",
            ],
            lines.collect(),
        )
    }
}

impl Summary {
    /// Of rows of one variant on one GPU; `None` without any.
    fn of(rows: Vec<&Row>) -> Option<Self> {
        let first = rows.first()?;
        let of_class = |class: Class| rows.iter().filter(move |row| row.tenant.class == class);
        let sensitive = || of_class(Class::LatencySensitive);
        let met: Vec<f64> =
            sensitive().filter_map(|row| row.tenant.slo_miss_rate).map(|missed| 1.0 - missed).collect();
        let mean =
            |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
        let clocks: Vec<f64> = rows.iter().map(|row| row.clock_mhz).collect();
        Some(Self {
            gpu: first.gpu.clone(),
            variant: first.variant.clone(),
            wall: first.wall,
            copies: first.copies,
            validated: first.validated,
            ls_slowdown_p99: Spread::of(sensitive().filter_map(|row| row.tenant.slowdown_p99).collect()),
            ls_interference_p99: Spread::of(sensitive().filter_map(|row| row.tenant.interference).collect()),
            ls_saturated: sensitive().filter(|row| row.tenant.saturated).count(),
            ls_tenants: sensitive().count(),
            slo_attainment: mean(&met),
            be_kept: Spread::of(of_class(Class::BestEffort).filter_map(|row| row.tenant.kept).collect()),
            lost: rows.iter().map(|row| row.tenant.lost).sum(),
            clock_mhz: mean(&clocks)?,
        })
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let (min, max) = (*values.first()?, *values.last()?);
        Some(Self { n, min, median: (values[(n - 1) / 2] + values[n / 2]) / 2.0, max })
    }
}

fn table(title: &str, header: &[&str], rows: Vec<Vec<String>>) -> Table {
    Table { title: title.to_owned(), header: header.iter().map(|&name| name.to_owned()).collect(), rows }
}

fn none() -> String {
    "-".to_owned()
}

fn named(variant: &str, validated: bool) -> String {
    format!("{variant}{}", if validated { "" } else { " *" })
}

fn copies(id: &str) -> String {
    id.trim_start_matches("copy-").to_owned()
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(none, |ms| format!("{ms:.3}"))
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(none, |ratio| format!("{ratio:.2}x"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(none, |fraction| format!("{:.1} %", fraction * 100.0))
}
