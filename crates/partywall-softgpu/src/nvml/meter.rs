//! How busy the device was: counters of the shared state, read twice.

use std::sync::{Mutex, PoisonError};

use partywall_core::gpu::Gpu;

use crate::clock;
use crate::device::Device;
use crate::device::link::Direction;

/// Readings closer together than this answer with the same figures, as the driver's do.
const PERIOD_NS: u64 = 20_000_000;

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mark {
    pub(super) time_ns: u64,
    pub(super) busy_ns: u64,
    pub(super) memory_bytes: u64,
    pub(super) to_device_bytes: u64,
    pub(super) to_host_bytes: u64,
}

/// What happened between two marks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Rates {
    /// Fraction of the time in which a kernel ran.
    pub(super) busy: f64,
    /// Fraction of the memory's bandwidth.
    pub(super) memory: f64,
    /// Bytes a second to the device.
    pub(super) to_device: f64,
    /// Bytes a second to the host.
    pub(super) to_host: f64,
}

impl Mark {
    pub(super) fn now(device: &Device) -> Self {
        Self {
            time_ns: clock::now(),
            busy_ns: device.busy_ns(),
            memory_bytes: device.memory_traffic(),
            to_device_bytes: device.link_bytes(Direction::ToDevice),
            to_host_bytes: device.link_bytes(Direction::ToHost),
        }
    }

    pub(super) fn rates_until(&self, later: &Self, gpu: &Gpu) -> Rates {
        let time = later.time_ns.saturating_sub(self.time_ns) as f64;
        if time <= 0.0 {
            return Rates::default();
        }
        let per_ns = |from: u64, to: u64| to.saturating_sub(from) as f64 / time;
        Rates {
            // Work is counted when it is placed, which may be before it is done.
            busy: per_ns(self.busy_ns, later.busy_ns).min(1.0),
            memory: (per_ns(self.memory_bytes, later.memory_bytes) / gpu.vram_gb_s.value).min(1.0),
            to_device: per_ns(self.to_device_bytes, later.to_device_bytes) * 1e9,
            to_host: per_ns(self.to_host_bytes, later.to_host_bytes) * 1e9,
        }
    }
}

/// What the last period was like, as this process sees it; nothing was done before its first question.
pub(super) fn recent(device: &Device) -> Rates {
    static LAST: Mutex<Option<(Mark, Rates)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Mark::now(device);
    let rates = match *last {
        None => Rates::default(),
        Some((mark, rates)) if now.time_ns.saturating_sub(mark.time_ns) < PERIOD_NS => return rates,
        Some((mark, _)) => mark.rates_until(&now, &device.figures().gpu),
    };
    *last = Some((now, rates));
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_core::catalogue::Catalogue;

    #[test]
    fn rates_are_what_was_counted_over_the_time() {
        let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
        let first =
            Mark { time_ns: 1_000, busy_ns: 0, memory_bytes: 0, to_device_bytes: 10, to_host_bytes: 0 };
        let later = Mark {
            time_ns: 1_001_000,
            busy_ns: 250_000,
            memory_bytes: 2_400_000_000,
            to_device_bytes: 57_000_010,
            to_host_bytes: 0,
        };
        let rates = first.rates_until(&later, gpu);
        assert_eq!((rates.busy, rates.memory, rates.to_host), (0.25, 0.5, 0.0));
        assert!((rates.to_device - 57e9).abs() < 1.0, "{rates:?}");
        assert_eq!(first.rates_until(&first, gpu), Rates::default());
        assert_eq!(later.rates_until(&first, gpu), Rates::default(), "time went back");
        let placed = Mark { busy_ns: 9_000_000, ..later };
        assert_eq!(first.rates_until(&placed, gpu).busy, 1.0);
    }
}
