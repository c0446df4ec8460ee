//! What the model says of the rows of a measured record: the simulator beside the measurement.
//!
//! Both halves of a ratio are the model's: its co-run over its solo, so that a network which it has slower or faster as a whole
//! shows no slowdown by that.

use std::collections::{BTreeMap, BTreeSet};

use partywall_core::catalogue::Catalogue;
use partywall_core::units::Nanos;
use partywall_measure::record::{CellKind, CellRecord, Record, Row};
use partywall_sim::params::Params;
use partywall_sim::validate::{self, Compared, Effort, simulate};

use super::find;
use crate::error::Failure;
use crate::progress;
use crate::report::Modelled;

/// Enough for a p99 to stand on: a fiftieth of the requests of a slow pair fit the time.
const EFFORT: Effort = Effort { requests: 2_000, time: Nanos::from_secs(20) };

/// Of each row that the model knows, by its index, what it says.
///
/// # Errors
/// A record that is no measurement, or of a GPU that the model does not know.
pub(crate) fn modelled(
    record: &Record,
    text: &str,
    file: &str,
) -> Result<BTreeMap<usize, Modelled>, Failure> {
    let recording = validate::read(text, file).map_err(Failure::input)?;
    let gpu =
        Catalogue::builtin().map_err(Failure::internal)?.get(&recording.gpu).map_err(Failure::internal)?;
    let pairs: BTreeMap<usize, &validate::Pair> =
        recording.cells.iter().copied().zip(&recording.pairs).collect();
    let rows: Vec<(usize, Parts)> = record
        .rows
        .iter()
        .enumerate()
        .filter_map(|(index, row)| Some((index, Parts::of(record, row)?)))
        .collect();
    let known = |part: &usize| pairs.contains_key(part);
    let wanted: BTreeSet<usize> = rows
        .iter()
        .filter(|(_, parts)| parts.all().iter().all(known))
        .flat_map(|(_, parts)| parts.all())
        .collect();
    let wanted: Vec<(usize, &validate::Pair)> =
        wanted.into_iter().filter_map(|cell| Some((cell, *pairs.get(&cell)?))).collect();
    let params = Params::default();
    let bar = progress::bar(wanted.len() as u64, "cells");
    let found = progress::parallel(&wanted, |(cell, pair)| {
        let result = simulate(pair, gpu, &params, EFFORT).map(|found| (*cell, found));
        bar.inc(1);
        result
    });
    bar.finish_and_clear();
    let found: BTreeMap<usize, Compared> =
        found.into_iter().collect::<Result<_, _>>().map_err(Failure::input)?;
    Ok(rows.into_iter().filter_map(|(index, parts)| Some((index, parts.ratios(&found)?))).collect())
}

/// The cells that a row is made of, as positions in the record.
struct Parts {
    corun: usize,
    ls_solo: usize,
    be_solo: usize,
}

impl Parts {
    fn of(record: &Record, row: &Row) -> Option<Self> {
        let at = |cell: &CellRecord| record.cells.iter().position(|other| std::ptr::eq(other, cell));
        let solo = |name: &str| {
            record.cells.iter().position(|cell| {
                let who = cell.ls.as_deref().or(cell.be.as_deref());
                cell.kind == CellKind::Solo && cell.part == row.part && who == Some(name)
            })
        };
        let corun = find(record, row, CellKind::Corun, Some(&row.ls), Some(&row.be))?;
        Some(Self { corun: at(corun)?, ls_solo: solo(&row.ls)?, be_solo: solo(&row.be)? })
    }

    const fn all(&self) -> [usize; 3] {
        [self.corun, self.ls_solo, self.be_solo]
    }

    fn ratios(&self, found: &BTreeMap<usize, Compared>) -> Option<Modelled> {
        let [corun, ls, be] = self.all().map(|cell| found.get(&cell));
        let (corun, ls, be) = (corun?, ls?, be?);
        let kept = corun.be_rate_per_s.zip(be.be_rate_per_s).map(|(beside, alone)| beside / alone);
        Some(Modelled {
            slowdown_p50: corun.p50_ms / ls.p50_ms,
            slowdown_p99: corun.p99_ms / ls.p99_ms,
            kept: kept.filter(|kept| kept.is_finite()),
        })
    }
}
