//! Records of `partywall measure` (JSON): what of them the model can be held against.
//!
//! Only the fields that this needs are read, by structures of its own, so that the simulator depends on nothing that
//! measures; a test of the program that has both holds the two together. A tenant is known to the model by its command (`network
//! resnet50 --batch 1` is `resnet50-b1`) or its name (`resnet50-b1`, `stream`, `gemm`), if its program is an external one; the
//! built-in ones are made of kernels that no profile has. A network that is launched kernel by kernel (`--eager`) has the kernels of
//! its graph, and a host that launches them as fast as the network ran alone, if that was measured. Whatever cannot be compared is
//! listed with the reason.

use partywall_core::catalogue::Catalogue;
use partywall_core::gpu::Gpu;
use partywall_core::tenant::Share;
use partywall_core::units::{Nanos, SmCount};
use partywall_core::wall::Wall;
use serde::Deserialize;

use super::{GEMM, LeftOut, Pair, ROWS_MAX, Rank, ReadError, Recording, STREAM, Tenant, program};
use crate::layout::{GROUP, NodeText};
use crate::load::Load;
use crate::params::Params;

/// The version of records that is read.
pub const FORMAT: &str = "partywall-measure-1";

/// By how much the work of a recorded request may differ from that of the program of the same name: more than rounding
/// means that it is another program.
const WORK_TOLERANCE: f64 = 0.01;

#[derive(Deserialize)]
struct Record {
    simulated: bool,
    pretended: bool,
    environment: Environment,
    tenants: Vec<TenantRecord>,
    cells: Vec<CellRecord>,
}

#[derive(Deserialize)]
struct Environment {
    gpu: Option<GpuRecord>,
}

#[derive(Deserialize)]
struct GpuRecord {
    id: Option<String>,
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct TenantRecord {
    name: String,
    program: ProgramKind,
    #[serde(default)]
    command: Vec<String>,
    load: LoadRecord,
    work: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ProgramKind {
    BuiltIn,
    External,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LoadRecord {
    Closed { pause_ns: u64, depth: u32 },
    Periodic { period_ns: u64 },
    Poisson { rate_per_s: f64 },
}

#[derive(Deserialize)]
struct CellRecord {
    wall: Wall,
    setting: String,
    processes: Processes,
    kind: CellKind,
    ls: Option<String>,
    be: Option<String>,
    #[serde(default)]
    beside: Vec<String>,
    results: Vec<TenantResult>,
    error: Option<CellError>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Processes {
    One,
    Separate,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CellKind {
    Solo,
    Alone,
    Corun,
}

#[derive(Deserialize)]
struct TenantResult {
    tenant: String,
    service_ms: Quantiles,
    rate_per_s: f64,
    saturated: bool,
    host_gap_us: Option<f64>,
}

#[derive(Deserialize)]
struct Quantiles {
    p50: Option<f64>,
    p99: Option<f64>,
}

#[derive(Deserialize)]
struct CellError {
    kind: String,
}

#[derive(Deserialize)]
struct Head {
    format: String,
}

/// Reads a record; `file` is used in messages only.
///
/// # Errors
/// No JSON, another version, a rehearsal, a GPU whose figures are not known, or nothing that can be compared.
pub fn parse_record(text: &str, file: &str) -> Result<Recording, ReadError> {
    let refused = |what: String| ReadError { file: file.to_owned(), place: String::new(), what };
    let damaged = |error: serde_json::Error| ReadError::in_json(file, &error);
    let head: Head = serde_json::from_str(text).map_err(damaged)?;
    if head.format != FORMAT {
        return Err(refused(format!("its format is `{}`; this version reads `{FORMAT}`", head.format)));
    }
    let record: Record = serde_json::from_str(text).map_err(damaged)?;
    if record.simulated || record.pretended {
        return Err(refused(
            "its figures were not measured on a GPU; expected a real measurement".to_owned(),
        ));
    }
    if record.cells.len() > ROWS_MAX {
        return Err(refused(format!("has {} cells; at most {ROWS_MAX} are read", record.cells.len())));
    }
    let gpu = gpu(&record).map_err(refused)?;
    let reader = Reader { record: &record, gpu };
    let mut recording =
        Recording { gpu: gpu.id.clone(), pairs: Vec::new(), cells: Vec::new(), left_out: Vec::new() };
    for (index, cell) in record.cells.iter().enumerate() {
        match reader.pair(cell) {
            Ok(pair) => {
                recording.pairs.push(pair);
                recording.cells.push(index);
            }
            Err(Unusable::LeftOut(why)) => recording.left_out.push(LeftOut { why, cell: described(cell) }),
            Err(Unusable::Damaged(what)) => return Err(refused(format!("cells[{index}]: {what}"))),
        }
    }
    Ok(recording)
}

fn gpu(record: &Record) -> Result<&'static Gpu, String> {
    let gpu = record.environment.gpu.as_ref().ok_or("names no GPU; expected `environment.gpu`")?;
    let catalogue = Catalogue::builtin().map_err(|error| error.to_string())?;
    let id = gpu.id.as_deref().ok_or_else(|| {
        format!("was measured on `{}`, which is not in the catalogue; the model lacks its figures", gpu.name)
    })?;
    catalogue.get(id).map_err(|error| error.to_string())
}

/// Why a cell gives no pair.
enum Unusable {
    /// It is sound, but nothing can be compared.
    LeftOut(String),
    /// The file contradicts itself.
    Damaged(String),
}

struct Reader<'r> {
    record: &'r Record,
    gpu: &'r Gpu,
}

impl<'r> Reader<'r> {
    fn pair(&self, cell: &'r CellRecord) -> Result<Pair, Unusable> {
        if let Some(error) = &cell.error {
            return Err(Unusable::LeftOut(format!("not measured to the end: {}", error.kind)));
        }
        if !cell.beside.is_empty() {
            return Err(Unusable::LeftOut("more than two tenants".to_owned()));
        }
        // Alone on the whole GPU without anything is what time-slicing is to a tenant without neighbours.
        let mut wall = if cell.kind == CellKind::Solo { Wall::TimeSlicing } else { cell.wall };
        // Whether there is a model at all comes first: it says more than what is missing in one cell.
        let tenant = |name: &Option<String>| name.as_deref().map(|name| self.known(name)).transpose();
        let (ls, be) = (tenant(&cell.ls)?, tenant(&cell.be)?);
        let node = (cell.wall == Wall::Partywall && cell.kind != CellKind::Solo)
            .then(|| cell.setting.parse::<NodeText>());
        let node = node.transpose().map_err(Unusable::Damaged)?;
        let [ls_share, be_share] = match &node {
            Some(node) => node.shares(),
            None => shares(cell)?,
        };
        let [ls_share, be_share] = match self.plain_side(cell, wall)? {
            // With memory as it is, sides are Green Contexts on certain SMs.
            Some(share) => {
                wall = Wall::GreenContexts;
                [Some(share); 2]
            }
            None => [ls_share, be_share],
        };
        let paced = |(tenant, result): (Tenant, &'r TenantResult)| {
            let solo_ms = self.solo_ms(&tenant, &result.tenant);
            let launched_ms = self.launched_ms(&result.tenant);
            (Tenant { solo_ms, launched_ms, ..tenant }, result)
        };
        let ls = ls.map(|tenant| side(cell, tenant, ls_share)).transpose()?.map(paced);
        let be = be.map(|tenant| side(cell, tenant, be_share)).transpose()?.map(paced);
        match (&ls, &be, cell.kind) {
            (None, None, _) => return Err(Unusable::Damaged("names no tenant".to_owned())),
            (Some(_), Some(_), CellKind::Corun) | (Some(_), None, _) | (None, Some(_), _) => {}
            (Some(_), Some(_), _) => {
                return Err(Unusable::Damaged("has two tenants and is no co-run".to_owned()));
            }
        }
        if let Some((Tenant { load: Load::Closed { depth: 2.., .. }, .. }, _)) = &ls {
            return Err(Unusable::LeftOut(
                "requests of several units, which the model times one by one".to_owned(),
            ));
        }
        let quantiles = ls.as_ref().map(|(_, result)| &result.service_ms);
        let p50_ms = quantiles.and_then(|quantiles| quantiles.p50);
        if ls.is_some() && !p50_ms.is_some_and(positive) {
            return Err(Unusable::LeftOut("too few requests for a median".to_owned()));
        }
        Ok(Pair {
            wall,
            node: node.map(|node| node.node),
            one_process: cell.processes == Processes::One,
            rank: Rank::Nearest,
            p50_ms,
            p99_ms: quantiles.and_then(|quantiles| quantiles.p99).filter(|p99| positive(*p99)),
            be_rate_per_s: be.as_ref().map(|(_, result)| result.rate_per_s).filter(|rate| positive(*rate)),
            ls: ls.map(|(tenant, _)| tenant),
            be: be.map(|(tenant, _)| tenant),
        })
    }

    /// The SMs of both tenants on sides with memory as it is: half of all, though which are on a side differs a little between chips; `None`
    /// behind other walls, and where memory has a side as well.
    fn plain_side(&self, cell: &CellRecord, wall: Wall) -> Result<Option<Share>, Unusable> {
        if wall != Wall::Sides {
            return Ok(None);
        }
        let (sms, sides) = (self.gpu.sms.value, self.gpu.sides.value);
        match cell.setting.as_str() {
            _ if sides < 2 => {
                Err(Unusable::LeftOut("the catalogue knows no two sides of this GPU".to_owned()))
            }
            "private" => Ok(None),
            "plain" => Ok(Some(Share::Sms(SmCount(sms / sides / GROUP * GROUP)))),
            other => {
                Err(Unusable::Damaged(format!("`{wall}` is set to `{other}`; expected `private` or `plain`")))
            }
        }
    }

    /// One pass of a network alone on the whole GPU, from the record's own cell of it.
    fn solo_ms(&self, tenant: &Tenant, name: &str) -> Option<f64> {
        let depth = if let Load::Closed { depth, .. } = tenant.load { depth } else { 1 };
        if [STREAM, GEMM].contains(&&*tenant.program) {
            return None;
        }
        self.solo(name)?.service_ms.p50.filter(|p50| positive(*p50)).map(|p50| p50 / f64::from(depth))
    }

    /// One pass of a network that is launched kernel by kernel, alone on the whole GPU without pause.
    fn launched_ms(&self, name: &str) -> Option<f64> {
        let tenant = self.record.tenants.iter().find(|tenant| tenant.name == name)?;
        let is_eager = tenant.command.iter().any(|word| word == "--eager");
        let is_busy = matches!(tenant.load, LoadRecord::Closed { pause_ns: 0, .. });
        let rate_per_s = self.solo(name).filter(|_| is_eager && is_busy)?.rate_per_s;
        Some(1e3 * tenant.work? / rate_per_s).filter(|ms| positive(*ms))
    }

    /// What was measured of a tenant alone on the whole GPU.
    fn solo(&self, name: &str) -> Option<&TenantResult> {
        let cells =
            self.record.cells.iter().filter(|cell| cell.kind == CellKind::Solo && cell.error.is_none());
        let mut results = cells.flat_map(|cell| &cell.results);
        results.find(|result| result.tenant == name)
    }

    /// The tenant of this name, if the model has its program.
    fn known(&self, name: &str) -> Result<&TenantRecord, Unusable> {
        let tenant = self.record.tenants.iter().find(|tenant| tenant.name == name);
        let tenant = tenant.ok_or_else(|| Unusable::Damaged(format!("`{name}` is not among the tenants")))?;
        if tenant.program == ProgramKind::BuiltIn {
            return Err(Unusable::LeftOut(format!("no model of the built-in `{name}`")));
        }
        let known = program(&tenant.modelled(), self.gpu, &Params::default())
            .map_err(|_| Unusable::LeftOut(format!("no recorded profile of `{name}`")))?;
        match tenant.work {
            Some(work) if (work / known.items - 1.0).abs() <= WORK_TOLERANCE => Ok(tenant),
            work => {
                let given = work.map_or("unknown work".to_owned(), |work| format!("{work} units of work"));
                let (items, unit) = (known.items, known.unit);
                Err(Unusable::LeftOut(format!("`{name}` has {given} per request, its model {items} {unit}")))
            }
        }
    }
}

impl TenantRecord {
    /// The name under which the model has what the tenant runs: by its command, or its own where that says nothing.
    fn modelled(&self) -> String {
        let mut words = self.command.iter().map(String::as_str);
        let is_ours = |word: &str| word == "tenant.py" || word.ends_with("/tenant.py");
        let batch = self.command.iter().position(|word| word == "--batch");
        let batch = batch.and_then(|at| self.command.get(at + 1)).map_or("1", String::as_str);
        let name = words.find(|word| is_ours(word)).and_then(|_| words.next()).and_then(|program| {
            Some(match program {
                "network" => format!("{}-b{batch}", words.next()?),
                "decode" => format!("decode-b{batch}"),
                "stream" => STREAM.to_owned(),
                "gemm" => GEMM.to_owned(),
                // Kernels of Triton's alone: another program than the one of that name that was profiled.
                "compiled" => format!("compiled-{}-b{batch}", words.next()?),
                _ => return None,
            })
        });
        name.unwrap_or_else(|| self.name.clone())
    }
}

/// A tenant as the model knows it, and what it got.
fn side<'c>(
    cell: &'c CellRecord,
    tenant: &TenantRecord,
    share: Option<Share>,
) -> Result<(Tenant, &'c TenantResult), Unusable> {
    let name = &tenant.name;
    let result = cell.results.iter().find(|result| result.tenant == *name);
    let result = result.ok_or_else(|| Unusable::Damaged(format!("has no result of `{name}`")))?;
    if result.saturated {
        return Err(Unusable::LeftOut("saturated: its times say how long the run was".to_owned()));
    }
    let (program, load) = (tenant.modelled(), load(tenant, result)?);
    Ok((Tenant { program, made: None, share, load, solo_ms: None, launched_ms: None }, result))
}

/// SMs of LS and BE as the wall was set.
fn shares(cell: &CellRecord) -> Result<[Option<Share>; 2], Unusable> {
    let expected = |what: &str| {
        let (wall, setting) = (cell.wall, &cell.setting);
        Unusable::Damaged(format!("`{wall}` is set to `{setting}`; expected {what} of both, such as 50/50"))
    };
    let both = |what: &'static str, share: fn(u32) -> Option<Share>| {
        // Who confines a tenant to its SMs makes no difference to the model.
        let setting = cell.setting.trim_end_matches(" shim");
        let (ls, be) = setting.split_once('/').ok_or_else(|| expected(what))?;
        let one = |text: &str| text.trim().parse().ok().and_then(share).ok_or_else(|| expected(what));
        Ok([Some(one(ls)?), Some(one(be)?)])
    };
    match cell.wall {
        _ if cell.kind == CellKind::Solo => Ok([None; 2]),
        Wall::MpsPercentage => both("percentages", |value| match value {
            1..=100 => Some(Share::Percent(value as u8)),
            _ => None,
        }),
        Wall::GreenContexts => {
            both("SMs", |value| (1..=1024).contains(&value).then_some(Share::Sms(SmCount(value))))
        }
        Wall::Mig => {
            Err(Unusable::LeftOut("instances are named by their UUIDs, which say no size".to_owned()))
        }
        _ => Ok([None; 2]),
    }
}

/// The load, with the host that was seen. A pause is kept by waiting for it, so what the host takes is in it.
fn load(tenant: &TenantRecord, result: &TenantResult) -> Result<Load, Unusable> {
    let load = match tenant.load {
        LoadRecord::Closed { pause_ns, depth } => {
            let host = result.host_gap_us.filter(|gap| gap.is_finite() && *gap >= 0.0);
            let host = host.map(|gap| Nanos((gap * 1e3) as u64).saturating_sub(Nanos(pause_ns)));
            Load::Closed { pause: Nanos(pause_ns), depth, host }
        }
        LoadRecord::Periodic { period_ns } => Load::Periodic { rate_per_s: 1e9 / period_ns as f64 },
        LoadRecord::Poisson { rate_per_s } => Load::Poisson { rate_per_s },
    };
    load.validate().map_err(|error| Unusable::Damaged(format!("load of `{}`: {error}", tenant.name)))?;
    Ok(load)
}

fn positive(value: f64) -> bool {
    value > 0.0 && value.is_finite()
}

/// `mps-percentage 50/50: resnet50-b1 beside stream`.
fn described(cell: &CellRecord) -> String {
    let wall = match (cell.kind, cell.setting.as_str()) {
        (CellKind::Solo, _) => "solo".to_owned(),
        (_, "") => cell.wall.to_string(),
        (_, setting) => format!("{} {setting}", cell.wall),
    };
    let who: Vec<&str> = [&cell.ls, &cell.be].into_iter().flatten().map(String::as_str).collect();
    let one = if cell.processes == Processes::One { " in one process" } else { "" };
    format!("{wall}{one}: {}", who.join(" beside "))
}

#[cfg(test)]
mod tests;
