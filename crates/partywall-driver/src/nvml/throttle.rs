//! Why a GPU runs below its highest clock.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One reason; NVML's word for it in kebab case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThrottleReason {
    /// Nothing runs.
    GpuIdle,
    /// The applications clocks are set, or clocks are locked.
    ApplicationsClocks,
    /// The power cap.
    SwPowerCap,
    /// The hardware halves the clock or worse: heat, power brake, or power far above the cap.
    HwSlowdown,
    /// Another GPU of a sync boost group is slower.
    SyncBoost,
    /// Heat, handled by the driver.
    SwThermalSlowdown,
    /// Heat, handled by the hardware.
    HwThermalSlowdown,
    /// The power supply asked for it.
    HwPowerBrake,
    /// The display clocks are set.
    DisplayClocks,
}

impl ThrottleReason {
    const BITS: [(u64, Self); 9] = [
        (0x1, Self::GpuIdle),
        (0x2, Self::ApplicationsClocks),
        (0x4, Self::SwPowerCap),
        (0x8, Self::HwSlowdown),
        (0x10, Self::SyncBoost),
        (0x20, Self::SwThermalSlowdown),
        (0x40, Self::HwThermalSlowdown),
        (0x80, Self::HwPowerBrake),
        (0x100, Self::DisplayClocks),
    ];

    /// The reasons in NVML's bit set (`nvmlClocksEventReason*`); bits that it does not name are left out.
    pub fn from_bits(bits: u64) -> Vec<Self> {
        Self::BITS.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, reason)| reason).collect()
    }

    /// The id that records use: `sw-power-cap`.
    pub const fn id(self) -> &'static str {
        match self {
            Self::GpuIdle => "gpu-idle",
            Self::ApplicationsClocks => "applications-clocks",
            Self::SwPowerCap => "sw-power-cap",
            Self::HwSlowdown => "hw-slowdown",
            Self::SyncBoost => "sync-boost",
            Self::SwThermalSlowdown => "sw-thermal-slowdown",
            Self::HwThermalSlowdown => "hw-thermal-slowdown",
            Self::HwPowerBrake => "hw-power-brake",
            Self::DisplayClocks => "display-clocks",
        }
    }

    /// Whether a measurement suffers from it. Idleness does not count, and neither does a clock that somebody set.
    pub const fn counts(self) -> bool {
        !matches!(self, Self::GpuIdle | Self::ApplicationsClocks)
    }
}

impl fmt::Display for ThrottleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_has_one_name_and_serde_agrees() {
        assert_eq!(ThrottleReason::from_bits(0x5), [ThrottleReason::GpuIdle, ThrottleReason::SwPowerCap]);
        let all = ThrottleReason::from_bits(u64::MAX);
        assert_eq!(all.len(), 9);
        for reason in all {
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{}\"", reason.id()));
        }
        assert_eq!(ThrottleReason::from_bits(0), []);
        assert!(ThrottleReason::SwPowerCap.counts() && !ThrottleReason::GpuIdle.counts());
    }
}
