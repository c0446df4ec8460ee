//! GPM: counters that Hopper and later offer through NVML, for the whole GPU and not per tenant.
//!
//! A counter is read twice and the driver says what happened in between, so a reading costs two short calls however
//! long the stretch is.

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError as Raw;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper_sys::bindings::nvmlGpmSample_t;
use serde::{Deserialize, Serialize};

use super::{Device, Nvml, NvmlError, named};

/// What a user needs to read the counters, where the driver keeps them to administrators.
const COUNTERS: &str = "root (CAP_SYS_ADMIN), or a driver loaded with NVreg_RestrictProfilingToAdminUsers=0";

/// Whether GPM can be read here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Gpm {
    /// A sample was taken.
    Readable,
    /// The GPU has none: older than Hopper.
    NotSupported,
    /// The GPU has it, but a sample could not be taken.
    Denied {
        /// Why, and which right is missing where that is the reason.
        why: String,
    },
}

/// What happened between two marks, averaged over that time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct GpmRates {
    /// Fraction of the time that an SM had a warp, mean of all SMs.
    pub sm_busy: Option<f64>,
    /// Fraction of the memory bandwidth used.
    pub dram_busy: Option<f64>,
    /// Sent over PCIe, MiB/s.
    pub pcie_tx_mib_s: Option<f64>,
    /// Received over PCIe, MiB/s.
    pub pcie_rx_mib_s: Option<f64>,
}

/// The counters at one moment.
#[derive(Debug)]
pub struct GpmMark {
    nvml: Nvml,
    /// `None` only while a call borrows it.
    sample: Option<Sample>,
}

#[derive(Debug)]
struct Sample(nvmlGpmSample_t);

// SAFETY: NVML's sample is a block of memory with no tie to the thread that allocated it; calls on one sample must
// not overlap, and no `&GpmMark` method passes it on: `GpmMark` is not `Sync`, for the handle is a raw pointer.
unsafe impl Send for Sample {}

impl Drop for GpmMark {
    fn drop(&mut self) {
        if let Some(Sample(handle)) = self.sample.take() {
            // SAFETY: the handle came from `into_handle` of a sample of this `nvml`, and nothing else frees it.
            drop(unsafe { GpmSample::from_handle(&self.nvml.inner, handle) });
        }
    }
}

impl Device {
    /// Whether GPM can be read here, by trying.
    pub fn gpm(&self) -> Gpm {
        match self.ask("GPM", |device| device.gpm_support()) {
            Ok(true) => match self.gpm_mark() {
                Ok(_) => Gpm::Readable,
                Err(error) => Gpm::Denied { why: error.to_string() },
            },
            Ok(false) => Gpm::NotSupported,
            Err(error) if error.is_not_supported() => Gpm::NotSupported,
            Err(error) => Gpm::Denied { why: error.to_string() },
        }
    }

    /// Marks this moment.
    ///
    /// # Errors
    /// [`NvmlError::NoPermission`] with the right that is missing; [`NvmlError::NotSupported`] before Hopper.
    pub fn gpm_mark(&self) -> Result<GpmMark, NvmlError> {
        let what = "GPM sample";
        let sample = self.raw(what)?.gpm_sample().map_err(|raw| match raw {
            Raw::NoPermission => NvmlError::NoPermission { what, needs: COUNTERS },
            other => named(what)(other),
        })?;
        Ok(GpmMark { nvml: self.nvml.clone(), sample: Some(Sample(sample.into_handle())) })
    }
}

impl GpmMark {
    /// What happened between this mark and a later one of the same GPU. A rate that this GPU does not have is `None`.
    ///
    /// # Errors
    /// When the driver cannot tell, such as when the marks are less than about 100 ms apart.
    pub fn rates_until(self, later: GpmMark) -> Result<GpmRates, NvmlError> {
        let what = "GPM rates";
        let nvml = self.nvml.clone();
        let (first, second) = (self.into_sample(&nvml), later.into_sample(&nvml));
        let (Some(first), Some(second)) = (first, second) else {
            return Err(NvmlError::Call { what, reason: "a mark was used up".to_owned() });
        };
        let ids = [
            GpmMetricId::SmUtil,
            GpmMetricId::DramBwUtil,
            GpmMetricId::PcieTxPerSec,
            GpmMetricId::PcieRxPerSec,
        ];
        let rates = gpm_metrics_get(&nvml.inner, &first, &second, &ids).map_err(named(what))?;
        let value = |index: usize| -> Option<f64> {
            let rate = rates.get(index)?.as_ref().ok()?.value;
            rate.is_finite().then_some(rate)
        };
        Ok(GpmRates {
            sm_busy: value(0).map(|percent| percent / 100.0),
            dram_busy: value(1).map(|percent| percent / 100.0),
            pcie_tx_mib_s: value(2),
            pcie_rx_mib_s: value(3),
        })
    }

    fn into_sample(mut self, nvml: &Nvml) -> Option<GpmSample<'_>> {
        let Sample(handle) = self.sample.take()?;
        // SAFETY: the handle came from `into_handle`, `take` leaves nobody else to free it, and there is one NVML
        // library in a process, which `nvml` keeps initialised.
        Some(unsafe { GpmSample::from_handle(&nvml.inner, handle) })
    }
}
