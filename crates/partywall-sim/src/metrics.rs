//! What is counted while a simulation runs.

use hdrhistogram::Histogram;
use partywall_core::measure::{Evidence, Load, Percentile};
use partywall_core::units::Nanos;
use serde::Serialize;

/// Highest latency a histogram holds (1 000 s); longer ones count as this.
const HIGHEST_NS: u64 = 1_000_000_000_000;

/// Latencies, to three significant digits.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

/// The percentiles that reports show, in milliseconds; `None` where too few requests lie behind one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct Percentiles {
    /// Requests.
    pub n: u64,
    /// Median.
    pub p50_ms: Option<f64>,
    /// 90th percentile.
    pub p90_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// 99.9th percentile.
    pub p999_ms: Option<f64>,
    /// Longest.
    pub max_ms: Option<f64>,
    /// Mean.
    pub mean_ms: Option<f64>,
}

impl Latencies {
    /// None yet.
    #[expect(clippy::expect_used, reason = "constant bounds, which the histogram's documentation allows")]
    pub fn new() -> Self {
        Self(
            Histogram::new_with_bounds(1, HIGHEST_NS, 3)
                .expect("1 to 1e12 with 3 digits is a valid histogram"),
        )
    }

    /// One more.
    pub fn record(&mut self, latency: Nanos) {
        self.0.saturating_record(latency.0.max(1));
    }

    /// How many.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latency that a fraction `q` of all stays at or below, by nearest rank; `None` if there is none.
    pub fn quantile(&self, q: f64) -> Option<Nanos> {
        (!self.0.is_empty()).then(|| Nanos(self.0.value_at_quantile(q)))
    }

    /// Element `floor(q * n)` of the sorted latencies, counted from 0: how files of pairs took their percentiles. It
    /// differs from [`Self::quantile`] where half of the requests are fast and half slow, as beside a tenant whose
    /// work is about as long as a time slice.
    pub fn sorted_at(&self, q: f64) -> Option<Nanos> {
        let n = self.len() as f64;
        let rank = ((q * n).floor() + 1.0).min(n);
        self.quantile((rank - 0.5) / n)
    }

    /// Mean in milliseconds.
    pub fn mean_ms(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.mean() / 1e6)
    }

    /// A percentile, where enough requests lie beyond it to be shown.
    pub fn percentile(&self, percentile: Percentile) -> Option<Nanos> {
        let value = self.quantile(percentile.fraction())?;
        percentile.supported(self.len(), Evidence::Shown, value)
    }

    /// The report's percentiles.
    pub fn percentiles(&self) -> Percentiles {
        let at = |percentile: Percentile| self.percentile(percentile).map(Nanos::as_ms);
        Percentiles {
            n: self.len(),
            p50_ms: at(Percentile::P50),
            p90_ms: at(Percentile::P90),
            p99_ms: at(Percentile::P99),
            p999_ms: at(Percentile::P999),
            max_ms: self.quantile(1.0).map(Nanos::as_ms),
            mean_ms: self.mean_ms(),
        }
    }

    /// (latency in ms, fraction of requests at or below it) at `points` evenly spaced ranks and at the tail: what a
    /// cumulative distribution is drawn from.
    pub fn cdf(&self, points: usize) -> Vec<(f64, f64)> {
        let tail = [0.99, 0.995, 0.999, 1.0];
        let ranks = (1..=points).map(|i| i as f64 / (points + 1) as f64);
        ranks
            .filter(|q| *q < 0.99)
            .chain(tail)
            .filter_map(|q| self.quantile(q).map(|latency| (latency.as_ms(), q)))
            .collect()
    }
}

/// What one tenant got between the end of the warm-up and the end of the run.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// From the start of a request's work to its completion.
    pub service: Latencies,
    /// From its arrival to its completion.
    pub response: Latencies,
    /// Requests that were waiting or running when counting began. With `offered` they are what became `completed`,
    /// `lost` or `backlog`.
    pub carried: u64,
    /// Requests that arrived.
    pub offered: u64,
    /// Requests that were completed.
    pub completed: u64,
    /// Completed requests whose response took longer than the objective.
    pub missed: u64,
    /// Requests lost to a fault or refused because the queue was full.
    pub lost: u64,
    /// Requests that were waiting or running at the end.
    pub backlog: u64,
    /// Whether an open-loop load was served; `None` for closed loops, which offer what they can, and for runs
    /// that `requests_max` cut short.
    pub load: Option<Load>,
    /// What rates count: passes, in parts, times the items of a pass.
    pub items: f64,
    /// SM nanoseconds drawn on.
    pub sm_ns: f64,
}

/// SMs that each tenant drew on over time, averaged over bins.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    /// First moment shown.
    pub from: Nanos,
    /// Length of a bin.
    pub bin: Nanos,
    /// `sms[tenant][bin]`.
    pub sms: Vec<Vec<f64>>,
}

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Per tenant, in the order given.
    pub tenants: Vec<Counts>,
    /// Time over which `tenants` counts.
    pub measured: Nanos,
    /// Kernels completed, warm-up included.
    pub kernels: u64,
    /// Mean power, W.
    pub power_w: f64,
    /// Mean SM clock, MHz.
    pub clock_mhz: f64,
    /// Lowest SM clock, MHz.
    pub clock_min_mhz: f64,
    /// Fraction of the time at which the cap held the clock down.
    pub throttled: f64,
    /// The timeline, where one was asked for.
    pub timeline: Option<Timeline>,
}

impl Counts {
    /// Items per second.
    pub fn rate(&self, measured: Nanos) -> f64 {
        self.items / measured.as_secs()
    }

    /// Whether more was offered than could be served.
    pub fn saturated(&self) -> bool {
        matches!(self.load, Some(Load::Saturated { .. }))
    }
}

#[cfg(test)]
mod tests;
