//! One replay of everything into one index.

use std::fmt;
use std::time::Instant;

use crate::allocation;
use crate::indices::Subject;
use crate::trace::{Request, Step};

/// Requests between whose lookups nothing is applied.
const CHUNK: usize = 256;

/// What one replay gave.
#[derive(Clone, Copy)]
pub struct Round {
    pub lookup_p50_ns: f64,
    pub lookup_p99_ns: f64,
    pub lookup_mean_ns: f64,
    /// Nothing where stores and removals cannot be told apart.
    pub stores_per_s: Option<f64>,
    pub removals_per_s: Option<f64>,
    /// Blocks stored or removed.
    pub blocks_per_s: f64,
    /// In use at the end.
    pub bytes: usize,
    /// What all lookups found on the best replica, added up, and on all of them.
    pub best: u64,
    pub all: u64,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let million = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{:.1}", rate / 1e6));
        write!(
            f,
            "lookup p50 {:.0} p99 {:.0} mean {:.0} ns, stores {} M/s, removals {} M/s, both {:.1} M/s, {:.1} MB, sums {} {}",
            self.lookup_p50_ns,
            self.lookup_p99_ns,
            self.lookup_mean_ns,
            million(self.stores_per_s),
            million(self.removals_per_s),
            self.blocks_per_s / 1e6,
            self.bytes as f64 / 1e6,
            self.best,
            self.all,
        )
    }
}

/// Replays everything into a new index.
pub fn replay(
    new: &dyn Fn() -> Box<dyn Subject>,
    requests: &[Request],
    steps: &[Step],
    replicas: u32,
) -> Round {
    let clock = clock_ns();
    let before = allocation::in_use();
    let mut subject = new();
    let mut lookups = Vec::with_capacity(requests.len());
    let mut blocks = Vec::with_capacity(replicas as usize);
    let (mut storing, mut removing, mut both) = (0.0, 0.0, 0.0);
    let (mut best, mut all) = (0, 0);
    for (requests, steps) in requests.chunks(CHUNK).zip(steps.chunks(CHUNK)) {
        subject.ask(requests);
        for at in 0..requests.len() {
            let took = subject.look(at, &mut blocks);
            lookups.push((took.as_nanos() as f64 - clock).max(0.0));
            best += u64::from(blocks.iter().copied().max().unwrap_or(0));
            all += blocks.iter().map(|&blocks| u64::from(blocks)).sum::<u64>();
        }
        let applied = subject.apply(steps);
        storing += applied.storing.as_secs_f64();
        removing += applied.removing.as_secs_f64();
        both += applied.both.as_secs_f64();
    }
    subject.ask(&[]);
    let kept = lookups.capacity() * size_of::<f64>() + blocks.capacity() * size_of::<u32>();
    let bytes = allocation::in_use().saturating_sub(before + kept);
    let stored = steps.iter().map(|step| step.stored.len()).sum::<usize>() as f64;
    let removed = steps.iter().map(|step| step.removed.len()).sum::<usize>() as f64;
    let mean = lookups.iter().sum::<f64>() / lookups.len() as f64;
    lookups.sort_by(f64::total_cmp);
    let apart = both == 0.0;
    Round {
        lookup_p50_ns: percentile(&lookups, 0.5),
        lookup_p99_ns: percentile(&lookups, 0.99),
        lookup_mean_ns: mean,
        stores_per_s: apart.then(|| stored / storing),
        removals_per_s: apart.then(|| removed / removing),
        blocks_per_s: (stored + removed) / (storing + removing + both),
        bytes,
        best,
        all,
    }
}

/// What reading the clock twice takes, at least.
fn clock_ns() -> f64 {
    let read = |_| {
        let start = Instant::now();
        start.elapsed().as_nanos() as f64
    };
    let mut times: Vec<f64> = (0..10_001).map(read).collect();
    times.sort_by(f64::total_cmp);
    percentile(&times, 0.5)
}

/// Of sorted values: the smallest that so many are at most.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted[at.clamp(1, sorted.len()) - 1]
}
