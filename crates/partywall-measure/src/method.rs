//! The method: which cell is measured when, until when, and what becomes of it.
//!
//! # Order
//! Places come one after the other, solo first; a place's processes are started once. Walls that share one process get
//! a process per pair. Within a place, rounds go over all its cells, each round beginning at another cell, so that what
//! drifts (temperature, clocks) does not meet the same cells each time, and a neighbour cell is alone, then co-run.
//! Pairs with priority come before all others: a time limit cuts off from the end.
//!
//! # A round of a cell
//! See `round.rs`. All tenants start at the same time; after the warm-up the window begins; it ends when the
//! latency-sensitive tenant has made as many requests as are wanted, or when the time is over. A cell whose requests
//! are so slow that there would be no median gets longer windows in its later rounds, up to [`STRETCH_MAX`].
//!
//! # What goes wrong
//! A tenant that dies, hangs, prints rubbish, fails or computes wrong results ends its cell; the cell says so. Tenants
//! that are gone are started again when a cell needs them.

mod round;
mod search;

use std::collections::{BTreeMap, BTreeSet};

use partywall_core::measure::Percentile;
use partywall_core::units::Nanos;

use crate::load::Load;
use crate::plan::{Cell, Place};
use crate::protocol::Ready;
use crate::record::{CellError, CellKind, ErrorKind, GpuSample, ImsRecord, NodeRecord, Processes};
use crate::stage::{Bench, Stage, Stop};
use crate::window::Samples;

/// By how much a window may grow so that there is a median.
pub const STRETCH_MAX: u64 = 4;
/// Longest window of a best-effort tenant solo, per round: its rate is all that is wanted of it.
pub const SOLO_BE_MAX: Nanos = Nanos::from_secs(1);
/// How much earlier than its end a time limit stops new cells: ending tenants and MPS daemon takes that long.
pub const TEARDOWN: Nanos = Nanos::from_secs(3);

/// What may end a measurement early, and what it has besides the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Stop about then, with what there is.
    pub time: Option<Nanos>,
    /// Also find maximum stable rates, and count timeouts at them.
    pub ims: bool,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Rounds of cells that are done.
    pub done: usize,
    /// All of them.
    pub total: usize,
    /// What comes now.
    pub what: String,
    /// When the rest will be done at the pace so far, from now.
    pub left: Option<Nanos>,
}

/// What a measurement found, before it becomes a record.
#[derive(Debug, Default)]
pub struct Measured {
    /// The cells, in the order of the plan.
    pub cells: Vec<CellResult>,
    /// What tenants said about themselves.
    pub ready: BTreeMap<usize, Ready>,
    /// The loads of tenants with a duty, once their medians solo are known.
    pub duties: BTreeMap<usize, Load>,
    /// Maximum stable rates.
    pub ims: Vec<ImsRecord>,
    /// Whether the time sufficed.
    pub complete: bool,
    /// How long it took.
    pub took: Nanos,
}

/// What was measured of a cell.
#[derive(Debug)]
pub struct CellResult {
    /// The cell.
    pub cell: Cell,
    /// Of its tenants, in the order of [`Cell::tenants`]: of each round.
    pub rounds: Vec<(usize, Vec<RoundSamples>)>,
    /// Of each round.
    pub gpu: Vec<GpuSample>,
    /// What the node says of its tenants, over all rounds.
    pub node: Vec<NodeRecord>,
    /// Why something is missing.
    pub error: Option<CellError>,
}

/// What was measured of a tenant in a round.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundSamples {
    /// What counts of its requests.
    pub samples: Samples,
    /// Its own check of its results.
    pub check: String,
    /// Its host's gaps.
    pub host_gap: Option<Nanos>,
}

/// Measures.
///
/// # Errors
/// Where it was interrupted; everything has been ended.
pub fn measure(
    bench: &mut Bench<'_>,
    limits: Limits,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured, Interrupted> {
    let begin = bench.channel.now();
    let cells = bench.plan.cells();
    let results = cells.into_iter().map(|cell| {
        let tenants = cell.tenants().map(|tenant| (tenant, Vec::new())).collect();
        CellResult { cell, rounds: tenants, gpu: Vec::new(), node: Vec::new(), error: None }
    });
    let mut run = Measurement {
        measured: Measured {
            cells: results.collect(),
            duties: bench.plan.duties.clone(),
            complete: true,
            ..Measured::default()
        },
        limits,
        begin,
        runs: 0,
        speeds: BTreeMap::new(),
        done: 0,
        over: false,
    };
    let stages = run.stages();
    for (place, cells) in stages {
        run.stage(bench, place, &cells, progress)?;
    }
    run.measured.took = bench.channel.now().saturating_sub(begin);
    Ok(run.measured)
}

/// Somebody wanted it to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

struct Measurement {
    measured: Measured,
    limits: Limits,
    begin: Nanos,
    /// Number of the last run.
    runs: u64,
    /// Time from one request to the next of tenants solo, by which a run's requests are counted out.
    speeds: BTreeMap<usize, Nanos>,
    done: usize,
    /// The time is over.
    over: bool,
}

impl Measurement {
    /// Cells by the stage that they are measured on, in the order in which stages are set up.
    fn stages(&self) -> Vec<(Place, Vec<usize>)> {
        let mut stages: Vec<StagePlan> = Vec::new();
        for (index, result) in self.measured.cells.iter().enumerate() {
            let cell = &result.cell;
            let (place, pair) = (stage_of(&cell.place), self.own_pair(cell));
            let same = |stage: &&mut StagePlan| {
                stage.place == place && stage.pair == pair && stage.priority == cell.priority
            };
            match stages.iter_mut().find(same) {
                Some(stage) => stage.cells.push(index),
                None => stages.push(StagePlan { place, pair, priority: cell.priority, cells: vec![index] }),
            }
        }
        // Stable: within each half, places stay in the order of the plan, solo first.
        stages.sort_by_key(|stage| !stage.priority);
        stages.into_iter().map(|stage| (stage.place, stage.cells)).collect()
    }

    /// The pair whose process a cell uses, where pairs have processes of their own. A tenant alone uses its first
    /// pair's.
    fn own_pair(&self, cell: &Cell) -> Option<(usize, usize)> {
        if cell.place.processes == Processes::Separate {
            return None;
        }
        let coruns = self.measured.cells.iter().map(|result| &result.cell).filter(|other| {
            other.kind == CellKind::Corun && other.place == cell.place && other.ls == cell.ls
        });
        let mut fitting = coruns.filter(|other| cell.be.is_none() || other.be == cell.be);
        // Where it has priority, so has one of its pairs; that one's process is there first.
        let first = fitting.clone().find(|other| other.priority).or_else(|| fitting.next())?;
        Some((first.ls?, first.be?))
    }

    fn stage(
        &mut self,
        bench: &mut Bench<'_>,
        place: Place,
        cells: &[usize],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), Interrupted> {
        for &at in cells {
            let reason = self.measured.cells[at].cell.tenants().find_map(|one| bench.misplaced(&place, one));
            if let Some(reason) = reason {
                self.skip(&[at], &reason);
            }
        }
        let cells: Vec<usize> =
            cells.iter().copied().filter(|&at| self.measured.cells[at].error.is_none()).collect();
        if cells.is_empty() {
            return Ok(());
        }
        if let Some(reason) = bench.machine.unavailable(&place) {
            self.skip(&cells, &reason);
            return Ok(());
        }
        if self.is_late(bench, Nanos::ZERO) {
            self.skip_late(&cells);
            return Ok(());
        }
        let members: Vec<usize> =
            cells.iter().flat_map(|&at| self.members(at)).collect::<BTreeSet<_>>().into_iter().collect();
        // Latency-sensitive tenants first: the first of a process has the first part.
        let (mut ls, be): (Vec<usize>, Vec<usize>) = members.into_iter().partition(|&member| {
            bench.plan.tenants[member].class == partywall_core::tenant::Class::LatencySensitive
        });
        ls.extend(be);
        let mut stage = Stage::new(place, &ls);
        self.tell(bench, format!("starting the tenants of {}", stage.place), progress);
        // What does not come up now is tried again by the cells that need it, and they say why it did not.
        let ended = match stage.bring_up(bench, &ls) {
            Err(Stop::Interrupted) => Err(Interrupted),
            _ => self.rounds(bench, &mut stage, &cells, progress),
        };
        let ended = ended.and_then(|()| {
            if self.limits.ims && !self.over {
                self.search(bench, &mut stage, &cells, progress)
            } else {
                Ok(())
            }
        });
        for (tenant, ready) in &stage.ready {
            let said = self.measured.ready.entry(*tenant).or_insert_with(|| ready.clone());
            // What its memory is like on a side, a program says there only.
            if stage.place.side_memory().is_some() {
                let news: Vec<_> =
                    ready.about.iter().filter(|(key, value)| said.about.get(*key) != Some(value)).collect();
                let news = news
                    .into_iter()
                    .map(|(key, value)| (format!("{key} behind {}", stage.place), value.clone()));
                said.about.extend(news);
            }
        }
        stage.end(bench);
        ended
    }

    fn rounds(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        cells: &[usize],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), Interrupted> {
        for round in 0..bench.plan.rounds {
            // The first round begins at the front: solo comes before what is counted out by it.
            let shift = cells.len() * round as usize / bench.plan.rounds as usize;
            for turn in 0..cells.len() {
                let at = cells[(turn + shift) % cells.len()];
                if self.measured.cells[at].error.is_some() {
                    self.done += 1;
                    continue;
                }
                let longest = self.window(bench, at, round);
                let expected = self.expected(bench, at).map_or(longest, |time| time.min(longest));
                if self.is_late(bench, expected.saturating_add(bench.plan.warmup)) {
                    self.skip_late(cells);
                    return Ok(());
                }
                // As long as there is time for: requests that take longer than they should end with it.
                let time = self.left(bench).map_or(longest, |left| longest.min(left.max(expected)));
                self.tell(bench, self.title(bench, at), progress);
                match self.round(bench, stage, at, time) {
                    Ok(()) => {}
                    Err(Stop::Interrupted) => return Err(Interrupted),
                    Err(Stop::Cell(error)) => self.measured.cells[at].error = Some(error),
                }
                self.done += 1;
            }
        }
        Ok(())
    }

    /// How long the window of a cell's next round is.
    fn window(&self, bench: &Bench<'_>, at: usize, round: u32) -> Nanos {
        let plan = bench.plan;
        let result = &self.measured.cells[at];
        let share = Nanos((result.cell.time_max.0 / u64::from(plan.rounds)).max(1));
        if result.cell.ls.is_none() {
            return share.min(SOLO_BE_MAX);
        }
        let needed = Percentile::P50.samples_needed(plan.evidence());
        let (found, so_far) = result.rounds.first().map_or((0, 0), |(_, rounds)| {
            let found: usize = rounds.iter().map(|round| round.samples.service.len()).sum();
            (found as u64, rounds.iter().map(|round| round.samples.span.0).sum::<u64>())
        });
        if round == 0 || found >= needed {
            return share;
        }
        let rounds_left = u64::from(plan.rounds - round);
        let missing = (needed - found).div_ceil(rounds_left);
        // Half as much again, because rounds differ.
        let stretched = so_far / found.max(1) * missing * 3 / 2;
        Nanos(stretched.clamp(share.0, share.0 * STRETCH_MAX))
    }

    /// How long the window of a round is where requests come at a rate that is known, if they are served.
    fn expected(&self, bench: &Bench<'_>, at: usize) -> Option<Nanos> {
        let rate = self.open_rate(bench, self.measured.cells[at].cell.ls?)?;
        let requests = bench.plan.requests_per_round();
        // Arrivals at random take a little longer than their number says, or less.
        Some(Nanos::from_ms_f64(1.1e3 * requests as f64 / rate))
    }

    /// The longest window that would end before the time limit; `None` without a limit.
    fn left(&self, bench: &Bench<'_>) -> Option<Nanos> {
        let so_far = bench.channel.now().saturating_sub(self.begin);
        let rest = self.limits.time?.saturating_sub(so_far);
        Some(rest.saturating_sub(TEARDOWN).saturating_sub(bench.plan.warmup))
    }

    fn members(&self, at: usize) -> Vec<usize> {
        let cell = &self.measured.cells[at].cell;
        let pair = self.own_pair(cell);
        pair.map_or_else(|| cell.tenants().collect(), |(ls, be)| vec![ls, be])
    }

    /// Whether something that takes `time` would end after the time limit.
    fn is_late(&mut self, bench: &Bench<'_>, time: Nanos) -> bool {
        let Some(limit) = self.limits.time else { return false };
        let end =
            bench.channel.now().saturating_sub(self.begin).saturating_add(time).saturating_add(TEARDOWN);
        self.over |= end > limit;
        self.over
    }

    fn skip_late(&mut self, cells: &[usize]) {
        self.measured.complete = false;
        let unmeasured: Vec<usize> = cells.iter().copied().filter(|&at| !self.has_rounds(at)).collect();
        self.skip(&unmeasured, "the time limit came first");
    }

    fn has_rounds(&self, at: usize) -> bool {
        self.measured.cells[at].rounds.iter().any(|(_, rounds)| !rounds.is_empty())
    }

    fn skip(&mut self, cells: &[usize], reason: &str) {
        for &at in cells {
            let error = &mut self.measured.cells[at].error;
            error.get_or_insert_with(|| CellError::new(ErrorKind::Skipped, reason));
        }
    }

    fn title(&self, bench: &Bench<'_>, at: usize) -> String {
        let cell = &self.measured.cells[at].cell;
        let name = |index: Option<usize>| index.map_or("", |index| bench.plan.tenants[index].name.as_str());
        match (cell.kind, cell.ls) {
            (CellKind::Solo, ls) => format!("{} solo", name(ls.or(cell.be))),
            (CellKind::Alone, ls) => format!("{} alone: {}", cell.place, name(ls.or(cell.be))),
            (CellKind::Corun, ls) => {
                let others: Vec<&str> = cell.beside.iter().map(|&one| name(Some(one))).collect();
                let others =
                    if others.is_empty() { String::new() } else { format!(" and {}", others.join(", ")) };
                format!("{}: {} beside {}{others}", cell.place, name(ls), name(cell.be))
            }
        }
    }

    fn tell(&self, bench: &Bench<'_>, what: String, progress: &mut dyn FnMut(Progress)) {
        let total = self.measured.cells.len() * bench.plan.rounds as usize;
        let so_far = bench.channel.now().saturating_sub(self.begin);
        let left = total.saturating_sub(self.done) as u64;
        let left = (self.done > 0).then(|| Nanos(so_far.0 / self.done as u64 * left));
        progress(Progress { done: self.done, total, what, left });
    }
}

/// Cells that share processes.
struct StagePlan {
    place: Place,
    /// The pair, where it has a process of its own.
    pair: Option<(usize, usize)>,
    priority: bool,
    cells: Vec<usize>,
}

/// The place whose processes a cell uses: time-slicing is what tenants that run solo do when they run together.
fn stage_of(place: &Place) -> Place {
    if place.has_alone() { place.clone() } else { Place::plain(partywall_core::wall::Wall::TimeSlicing) }
}

#[cfg(test)]
mod tests;
