//! Power cap and clock.
//!
//! Power is idle + busy * activity * (clock / highest)^2.4: frequency times the square of a voltage that follows it
//! part of the way (the exponent is an estimate between 1, fixed voltage, and 3). Activity is the fraction of SMs
//! that math kernels keep busy, plus a part of those that memory-bound kernels do. Where that exceeds the cap, the
//! clock drops to the one that fits, as the firmware's control loop does over some milliseconds.

use partywall_core::gpu::Gpu;

/// How often the clock is decided anew, ns. Firmware loops take milliseconds to tens of them; the mean matters here.
pub(crate) const PERIOD_NS: u64 = 5_000_000;

/// Activity of an SM that multiplies matrices for a network, relative to what all SMs are taken to draw (estimate; it
/// gives BERT-base at batch 32 650 W on the H200, where 622 W were read and the clock stayed up).
pub(crate) const MATH_ACTIVITY: f64 = 0.8;

/// The same for an SM that mostly waits for memory (estimate).
pub(crate) const MEMORY_ACTIVITY: f64 = 0.5;

/// Of a large matrix product, which keeps the tensor cores busier than any network: on all SMs of the H200 the clock settled
/// at 0.77 of the highest (`results/h200/networks.json`).
pub(crate) const PRODUCT_ACTIVITY: f64 = 1.54;

/// Of device copies, for each of the SMs that they draw on: 568 W on the H200 (the same).
pub(crate) const STREAM_ACTIVITY: f64 = 1.36;

const EXPONENT: f64 = 2.4;

/// The power model of one GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Power {
    cap_w: f64,
    idle_w: f64,
    busy_w: f64,
    lowest: f64,
    highest_mhz: f64,
}

impl Power {
    pub(crate) fn of(gpu: &Gpu) -> Self {
        Self {
            cap_w: gpu.power_cap_w.value,
            idle_w: gpu.power_idle_w.value,
            busy_w: gpu.power_busy_w.value,
            lowest: gpu.clock_min_mhz.value / gpu.clock_max_mhz.value,
            highest_mhz: gpu.clock_max_mhz.value,
        }
    }

    /// The clock, as a fraction of the highest, at which `activity` fits the cap.
    pub(crate) fn clock(&self, activity: f64) -> f64 {
        let wanted = self.busy_w * activity;
        if self.idle_w + wanted <= self.cap_w {
            return 1.0;
        }
        libm::pow(((self.cap_w - self.idle_w) / wanted).max(0.0), 1.0 / EXPONENT).clamp(self.lowest, 1.0)
    }

    /// Watts at `activity` and `clock`.
    pub(crate) fn watts(&self, activity: f64, clock: f64) -> f64 {
        self.idle_w + self.busy_w * activity * libm::pow(clock, EXPONENT)
    }

    /// The clock in MHz.
    pub(crate) fn mhz(&self, clock: f64) -> f64 {
        clock * self.highest_mhz
    }
}

#[cfg(test)]
mod tests;
