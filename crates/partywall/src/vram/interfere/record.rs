//! What `interfere` measured, and the figures by which it is judged.

use serde::Serialize;

use crate::vram::known::CacheUse;
use crate::vram::talk::{Measured, Ready, Requests, View, Work};

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    pub(super) gpu: String,
    pub(super) simulated: bool,
    /// What measures the same again.
    pub(super) command: String,
    pub(super) cache: CacheUse,
    /// Bits of an offset within 2 MiB whose parity turns the side.
    pub(super) mask: u32,
    /// Whose the pages are: `private` or `paired`.
    pub(super) pages: String,
    /// What a request of `short` and `graph` is.
    pub(super) request: Requests,
    /// The one that waits, on the first side, and its neighbour, on the second.
    pub(super) tenant: Ready,
    pub(super) neighbour: Ready,
    /// Bytes that were copied into an arena and out of it again, of both; none of them was wrong.
    pub(super) copied_bytes: u64,
    pub(super) summary: Summary,
    pub(super) rows: Vec<Row>,
    pub(super) took_s: f64,
}

/// The tenant at one intensity beside one load.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) view: View,
    pub(super) work: Work,
    pub(super) threads_per_sm: u32,
    /// Which of the places where the tenant's kernels were loaded; 0 is the first.
    pub(super) code_place: u32,
    pub(super) load: String,
    pub(super) load_sms: u32,
    pub(super) load_threads_per_sm: u32,
    pub(super) alone: Measured,
    pub(super) beside: Measured,
    /// Beside the load / alone, by the device's clock.
    pub(super) interference_p50: f64,
    /// `null` where there were fewer than 5000.
    pub(super) interference_p99: Option<f64>,
    /// What the load adds to the median, for each launch; `null` for passes.
    pub(super) added_us_per_launch: Option<f64>,
    /// What the load moves alone on its half and beside the tenant, 10^9 bytes a second, and the one over the other.
    pub(super) load_alone_gb_s: f64,
    pub(super) load_beside_gb_s: f64,
    pub(super) load_kept: f64,
    /// The most that such a load moves alone, with any of the SMs and threads that were tried; and what it moves beside the tenant over that.
    pub(super) load_most_gb_s: f64,
    pub(super) load_kept_of_most: f64,
}

/// Holds rows of one view, in each of which is the most that was seen with its threads, against the most of all.
pub(super) fn hold_against_most(rows: &mut [Row]) {
    let seen: Vec<(String, f64)> = rows.iter().map(|row| (row.load.clone(), row.load_most_gb_s)).collect();
    for row in rows {
        let most = seen.iter().filter(|(load, _)| *load == row.load).map(|(_, rate)| *rate);
        row.load_most_gb_s = most.fold(row.load_most_gb_s, f64::max);
        row.load_kept_of_most = row.load_beside_gb_s / row.load_most_gb_s;
    }
}

/// The worst of all rows, by view and work; `null` where there are none.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(super) struct Summary {
    pub(super) colored: Option<OfView>,
    pub(super) uncolored: Option<OfView>,
}

/// The worst of a view.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(super) struct OfView {
    pub(super) long: Option<OfWork>,
    pub(super) short: Option<OfWork>,
    pub(super) graph: Option<OfWork>,
    pub(super) load_kept_min: f64,
    pub(super) load_kept_of_most_min: f64,
}

/// The worst of a work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct OfWork {
    pub(super) interference_p50_max: f64,
    /// `null` unless every row has one.
    pub(super) interference_p99_max: Option<f64>,
    /// `null` for passes.
    pub(super) added_us_per_launch_max: Option<f64>,
}

impl Summary {
    pub(super) fn of(rows: &[Row]) -> Self {
        Self { colored: OfView::of(rows, View::Colored), uncolored: OfView::of(rows, View::Uncolored) }
    }

    /// Those that there are.
    pub(super) fn views(&self) -> impl Iterator<Item = (View, &OfView)> {
        let views = [(View::Colored, &self.colored), (View::Uncolored, &self.uncolored)];
        views.into_iter().filter_map(|(view, of)| Some((view, of.as_ref()?)))
    }
}

impl OfView {
    fn of(rows: &[Row], view: View) -> Option<Self> {
        let rows = || rows.iter().filter(move |row| row.view == view);
        let work = |work| OfWork::of(rows().filter(|row| row.work == work));
        Some(Self {
            long: work(Work::Long),
            short: work(Work::Short),
            graph: work(Work::Graph),
            load_kept_min: rows().map(|row| row.load_kept).reduce(f64::min)?,
            load_kept_of_most_min: rows().map(|row| row.load_kept_of_most).reduce(f64::min)?,
        })
    }

    /// Those that there are.
    pub(super) fn works(&self) -> impl Iterator<Item = (Work, &OfWork)> {
        let works = [(Work::Long, &self.long), (Work::Short, &self.short), (Work::Graph, &self.graph)];
        works.into_iter().filter_map(|(work, of)| Some((work, of.as_ref()?)))
    }
}

impl OfWork {
    fn of<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> Option<Self> {
        // The most of those that have one, or nothing where one has none.
        let most = |figure: fn(&Row) -> Option<f64>| {
            let figures: Option<Vec<f64>> = rows.clone().map(figure).collect();
            figures?.into_iter().reduce(f64::max)
        };
        Some(Self {
            interference_p50_max: most(|row| Some(row.interference_p50))?,
            interference_p99_max: most(|row| row.interference_p99),
            added_us_per_launch_max: most(|row| row.added_us_per_launch),
        })
    }
}
