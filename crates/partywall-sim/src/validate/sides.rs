//! Records of `partywall vram interfere` (JSON): the wall `sides` held against requests beside a neighbour on the other side.
//!
//! No profile is needed for these: the tenant's request is a few equal launches whose time alone was measured, and its
//! neighbour reads or writes without pause, on so many SMs. What a neighbour asks of its side follows from its SMs and from how many
//! of them fill it, which is known of the kernels of 1 024 threads on an SM ([`FILLS`]). So only their rows are simulated, and of them
//! those with colored memory; the others are listed.

use partywall_core::catalogue::Catalogue;
use partywall_core::gpu::Gpu;
use partywall_core::tenant::Share;
use partywall_core::units::{Bytes, Nanos, SmCount};
use partywall_core::wall::Wall;
use serde::Deserialize;

use super::{LeftOut, Pair, ROWS_MAX, Rank, ReadError, Recording, Tenant};
use crate::kernel::{Chip, Kernel, Launching, Program};
use crate::load::Load;
use crate::params::Params;
use crate::power;

/// How `command` of such a record begins.
pub(super) const COMMAND: &str = "partywall vram interfere";

/// The GPU of [`FILLS`]: in the catalogue, and what its driver calls it.
const KNOWN_ON: (&str, &str) = ("h200", "NVIDIA H200");

/// The fewest SMs of a side on which neighbours of 1 024 threads on each move 97 % of the most they can, alone:
/// `load_sms` in `results/h200/sides/interfere-held-97.json`.
const FILLS: [(&str, u32); 4] =
    [("read", 38), ("read-evict-first", 42), ("write-evict-first", 38), ("mixed-evict-first", 28)];

/// Threads on each SM of those neighbours.
const FILLING_THREADS: u32 = 1024;

/// Launches of a request that are simulated: the tool makes up to 16.
const LAUNCHES_MAX: u32 = 1000;

/// SMs' worth of throughput that a tenant's request draws on: any that its side has, as its time alone was measured there.
const WIDTH: f64 = 20.0;

/// One of a neighbour's kernels, on the whole GPU: long beside a request, as the measured ones never end.
const NEIGHBOUR_NS: f64 = 1e6;

#[derive(Deserialize)]
struct Record {
    gpu: String,
    simulated: bool,
    request: Request,
    tenant: Side,
    neighbour: Side,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Deserialize)]
struct Request {
    launches: u32,
    bytes: u64,
}

#[derive(Deserialize)]
struct Side {
    sms: u32,
}

#[derive(Deserialize)]
struct Row {
    view: String,
    work: Work,
    threads_per_sm: u32,
    load: String,
    load_sms: Option<u32>,
    load_threads_per_sm: u32,
    alone: Times,
    beside: Times,
    load_beside_gb_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Work {
    Long,
    Short,
    Graph,
}

#[derive(Deserialize)]
struct Times {
    p50_us: f64,
    p99_us: Option<f64>,
}

/// Reads such a record; `file` is used in messages only.
///
/// # Errors
/// No JSON, a rehearsal, a GPU of whose neighbours nothing is known, or figures that cannot be.
pub(super) fn parse(text: &str, file: &str) -> Result<Recording, ReadError> {
    let refused = |what: String| ReadError { file: file.to_owned(), place: String::new(), what };
    let record: Record = serde_json::from_str(text).map_err(|error| ReadError::in_json(file, &error))?;
    if record.simulated {
        return Err(refused(
            "its figures were not measured on a GPU; expected a real measurement".to_owned(),
        ));
    }
    if record.rows.len() > ROWS_MAX {
        return Err(refused(format!("has {} rows; at most {ROWS_MAX} are read", record.rows.len())));
    }
    let (id, name) = KNOWN_ON;
    if record.gpu != name {
        let on = &record.gpu;
        return Err(refused(format!(
            "was measured on `{on}`; how many SMs fill a side is known of `{name}` only"
        )));
    }
    let catalogue = Catalogue::builtin().map_err(|error| refused(error.to_string()))?;
    let gpu = catalogue.get(id).map_err(|error| refused(error.to_string()))?;
    let launches = record.request.launches;
    if !(1..=LAUNCHES_MAX).contains(&launches) {
        return Err(refused(format!(
            "has requests of {launches} launches; expected one launch at least, and at most {LAUNCHES_MAX} launches"
        )));
    }
    if record.rows.iter().any(|row| row.load_sms == Some(0))
        || record.tenant.sms == 0
        || record.neighbour.sms == 0
    {
        return Err(refused("has somebody on 0 SMs; expected one at least".to_owned()));
    }
    let mut recording =
        Recording { gpu: gpu.id.clone(), pairs: Vec::new(), cells: Vec::new(), left_out: Vec::new() };
    let reader = Reader { record: &record, gpu, params: Params::default() };
    for (index, row) in record.rows.iter().enumerate() {
        row.check().map_err(|what| refused(format!("rows[{index}]: {what}")))?;
        match reader.pair(row) {
            Ok(pair) => {
                recording.pairs.push(pair);
                recording.cells.push(index);
            }
            Err(why) => recording.left_out.push(LeftOut { why, cell: row.described() }),
        }
    }
    Ok(recording)
}

impl Row {
    fn check(&self) -> Result<(), String> {
        let figures = [self.alone.p50_us, self.beside.p50_us, self.load_beside_gb_s];
        if figures.iter().all(|figure| *figure > 0.0 && figure.is_finite()) {
            return Ok(());
        }
        Err(format!("times and rates are {figures:?}; expected numbers above zero"))
    }

    fn described(&self) -> String {
        let (view, work, load) = (&self.view, self.work, &self.load);
        format!("{view}: {work:?} {} beside {load} {}", self.threads_per_sm, self.load_threads_per_sm)
    }
}

struct Reader<'r> {
    record: &'r Record,
    gpu: &'r Gpu,
    params: Params,
}

impl Reader<'_> {
    /// What the model can be held against in a row, or why it cannot.
    fn pair(&self, row: &Row) -> Result<Pair, String> {
        if row.view != "colored" {
            return Err("data on both sides".to_owned());
        }
        if row.work == Work::Long {
            return Err("no launches, and nothing else that the model slows".to_owned());
        }
        if row.load_threads_per_sm != FILLING_THREADS {
            return Err(format!("a neighbour of other than {FILLING_THREADS} threads on each SM"));
        }
        let fills = FILLS.iter().find(|(load, _)| *load == row.load);
        let (_, fills) =
            fills.ok_or_else(|| format!("how many SMs fill a side is not known of `{}`", row.load))?;
        let side = |program: Program, sms: u32, depth| Tenant {
            program: program.name.clone(),
            made: Some(program),
            share: Some(Share::Sms(SmCount(sms))),
            load: Load::closed(depth),
            solo_ms: None,
            launched_ms: None,
        };
        let request = self.request(row).ok_or("launches as short as the model's gap before them")?;
        let sms = row.load_sms.unwrap_or(self.record.neighbour.sms);
        Ok(Pair {
            wall: Wall::Sides,
            node: None,
            one_process: false,
            ls: Some(side(request, self.record.tenant.sms, 1)),
            be: Some(side(self.neighbour(&row.load, *fills), sms, 2)),
            rank: Rank::Nearest,
            p50_ms: Some(row.beside.p50_us / 1e3),
            p99_ms: row.beside.p99_us.map(|p99_us| p99_us / 1e3),
            be_rate_per_s: Some(row.load_beside_gb_s),
        })
    }

    /// Its launches, in equal parts of its time alone on its side; `None` where they are too short for the model to divide.
    fn request(&self, row: &Row) -> Option<Program> {
        let Request { launches, bytes } = self.record.request;
        let launch_ns = self.params.fixed_ns;
        let work_ns = row.alone.p50_us * 1e3 / f64::from(launches) - self.params.mps_gap_ns - launch_ns;
        let chip = Chip::of(self.gpu);
        let traffic = bytes as f64 / work_ns;
        let kernel = Kernel {
            gap_ns: 0.0,
            launches: 1.0,
            exposed: 1.0,
            launch_ns,
            work_ns,
            width: WIDTH,
            room: WIDTH,
            traffic,
            sensitivity: (1.0 - traffic / chip.bandwidth).max(0.0),
            math: false,
            activity: power::MEMORY_ACTIVITY,
        };
        let work = if row.work == Work::Graph { "graph" } else { "short" };
        let graph = row.work == Work::Graph;
        let program = Program {
            name: format!("{work} {}", row.threads_per_sm),
            kernels: vec![kernel; launches as usize],
            items: 1.0,
            unit: "requests",
            launching: Launching { graph, ..Launching::default() },
            ..Program::host_copy(Bytes::ZERO)
        };
        (work_ns > 0.0).then_some(program)
    }

    /// Asks a side for all it can move from `fills` SMs, and in proportion from others.
    fn neighbour(&self, load: &str, fills: u32) -> Program {
        let chip = Chip::of(self.gpu);
        let kernel = Kernel {
            gap_ns: 0.0,
            launches: 1.0,
            exposed: 1.0,
            launch_ns: 0.0,
            work_ns: NEIGHBOUR_NS,
            width: f64::from(fills * self.gpu.sides.value),
            room: chip.sms,
            traffic: chip.bandwidth,
            sensitivity: 0.0,
            math: false,
            activity: power::STREAM_ACTIVITY,
        };
        let items = chip.bandwidth * Nanos(NEIGHBOUR_NS as u64).as_secs();
        let program = Program::host_copy(Bytes::ZERO);
        Program { name: load.to_owned(), kernels: vec![kernel], items, unit: "GB", ..program }
    }
}

#[cfg(test)]
mod tests;
