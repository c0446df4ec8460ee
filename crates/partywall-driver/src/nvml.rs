//! NVML: what the driver tells about GPUs without a CUDA context, and without taking GPU memory.
//!
//! The library is loaded at run time; where it is missing, that is an ordinary error. Nothing here changes a setting
//! of a GPU; what does is in [`crate::mig`], behind a consent.

mod facts;
mod gpm;
mod throttle;

use std::ffi::OsStr;
use std::fmt;
use std::sync::Arc;

use nvml_wrapper::enum_wrappers::device as enums;
use nvml_wrapper::error::NvmlError as Raw;
use serde::{Deserialize, Serialize};

use crate::device::Uuid;
use crate::library::CudaVersion;

pub use facts::{ComputeMode, DeviceFacts, Pcie, Process};
pub use gpm::{Gpm, GpmMark, GpmRates};
pub use throttle::ThrottleReason;

/// The file that comes with the driver.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// Why NVML did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// The library cannot be loaded.
    #[error("cannot load {library} ({reason}); it comes with the NVIDIA driver")]
    Library {
        /// The file.
        library: String,
        /// What the loader says.
        reason: String,
    },
    /// The library is there, but does not reach a driver.
    #[error("{library} is there but does not reach the NVIDIA driver: {reason}")]
    Driver {
        /// The file.
        library: String,
        /// What NVML says.
        reason: String,
    },
    /// The user may not do this.
    #[error("{what}: not permitted; needs {needs}")]
    NoPermission {
        /// What was asked for.
        what: &'static str,
        /// The right that is missing.
        needs: &'static str,
    },
    /// The GPU, the driver or the library does not know this.
    #[error("{what}: this GPU or driver does not have it")]
    NotSupported {
        /// What was asked for.
        what: &'static str,
    },
    /// Anything else.
    #[error("{what}: {reason}")]
    Call {
        /// What was asked for.
        what: &'static str,
        /// What NVML says.
        reason: String,
    },
}

impl NvmlError {
    /// Whether this says only that there is nothing to tell, as against that telling failed.
    pub fn is_not_supported(&self) -> bool {
        matches!(self, Self::NotSupported { .. })
    }
}

/// What a user needs for calls that change a GPU or read its counters.
const ROOT: &str = "root (or CAP_SYS_ADMIN)";

pub(crate) fn named(what: &'static str) -> impl FnOnce(Raw) -> NvmlError {
    move |raw| match raw {
        Raw::NoPermission => NvmlError::NoPermission { what, needs: ROOT },
        Raw::NotSupported | Raw::FunctionNotFound | Raw::FailedToLoadSymbol(_) => {
            NvmlError::NotSupported { what }
        }
        other => NvmlError::Call { what, reason: other.to_string() },
    }
}

/// A driver's version: `580.159.04`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DriverVersion {
    /// The branch people speak of: 580 is R580.
    pub branch: u32,
    /// All of it, as the driver says it.
    pub text: String,
}

/// A text that is no driver version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no driver version; one looks like 580.159.04")]
pub struct NotADriverVersion {
    /// What was given.
    pub given: String,
}

impl TryFrom<String> for DriverVersion {
    type Error = NotADriverVersion;
    fn try_from(text: String) -> Result<Self, NotADriverVersion> {
        let mut parts = text.split('.').map(str::parse::<u32>);
        let branch = match parts.next() {
            Some(Ok(branch)) if parts.all(|part| part.is_ok()) => branch,
            _ => return Err(NotADriverVersion { given: text }),
        };
        Ok(Self { branch, text })
    }
}

impl From<DriverVersion> for String {
    fn from(version: DriverVersion) -> Self {
        version.text
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// NVML, loaded and initialised. Cheap to clone; shut down with the last clone.
#[derive(Debug, Clone)]
pub struct Nvml {
    pub(crate) inner: Arc<nvml_wrapper::Nvml>,
}

impl Nvml {
    /// Loads the library of the driver.
    ///
    /// # Errors
    /// [`NvmlError::Library`] where there is none, [`NvmlError::Driver`] where it reaches no driver.
    pub fn load() -> Result<Self, NvmlError> {
        Self::load_from(LIBRARY)
    }

    /// The same from another file.
    ///
    /// # Errors
    /// Those of [`Nvml::load`].
    pub fn load_from(library: &str) -> Result<Self, NvmlError> {
        let inner = nvml_wrapper::Nvml::builder().lib_path(OsStr::new(library)).init();
        let inner = inner.map_err(|raw| match raw {
            Raw::LibloadingError(error) => {
                let text = error.to_string();
                // The loader begins with the name, which the message has already.
                let reason = text.strip_prefix(library).unwrap_or(&text).trim_start_matches(": ");
                NvmlError::Library { library: library.to_owned(), reason: first_line(reason) }
            }
            Raw::FailedToLoadSymbol(reason) => {
                NvmlError::Library { library: library.to_owned(), reason: first_line(&reason) }
            }
            other => NvmlError::Driver { library: library.to_owned(), reason: other.to_string() },
        })?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The driver's version.
    ///
    /// # Errors
    /// When NVML does not tell, or tells what is no version.
    pub fn driver_version(&self) -> Result<DriverVersion, NvmlError> {
        let what = "driver version";
        let text = self.inner.sys_driver_version().map_err(named(what))?;
        DriverVersion::try_from(text).map_err(|error| NvmlError::Call { what, reason: error.to_string() })
    }

    /// The newest CUDA that the driver speaks.
    ///
    /// # Errors
    /// When NVML does not tell.
    pub fn cuda_version(&self) -> Result<CudaVersion, NvmlError> {
        let what = "CUDA version";
        self.inner.sys_cuda_driver_version().map(CudaVersion::from_number).map_err(named(what))
    }

    /// Every GPU that NVML lists, in its order, which need not be CUDA's.
    ///
    /// # Errors
    /// When NVML does not tell how many there are.
    pub fn devices(&self) -> Result<Vec<Device>, NvmlError> {
        let count = self.inner.device_count().map_err(named("number of GPUs"))?;
        Ok((0..count).map(|index| Device { nvml: self.clone(), index }).collect())
    }

    /// The GPU with this index.
    ///
    /// # Errors
    /// When there is none.
    pub fn device(&self, index: u32) -> Result<Device, NvmlError> {
        let device = Device { nvml: self.clone(), index };
        device.raw("GPU").map(|_| ())?;
        Ok(device)
    }

    /// The GPU that CUDA gives this UUID; where that is a MIG instance, the GPU it is part of. CUDA counts in an order of
    /// its own, so this is how the two lists are matched.
    ///
    /// # Errors
    /// When NVML lists none with it.
    pub fn device_of(&self, uuid: &Uuid) -> Result<Device, NvmlError> {
        let what = "GPU by UUID";
        let has = |device: &Device| -> Result<bool, NvmlError> {
            let own = device.ask(what, |device| device.uuid())?;
            let instances = || device.mig_instances().unwrap_or_default();
            Ok(uuid.matches(&own) || instances().iter().any(|one| uuid.matches(&one.uuid)))
        };
        for device in self.devices()? {
            if has(&device)? {
                return Ok(device);
            }
        }
        Err(NvmlError::Call { what, reason: format!("NVML lists no GPU with the UUID {uuid}") })
    }
}

/// One GPU. Holds its index, not its handle, so that it can be sent to a sampling thread.
#[derive(Debug, Clone)]
pub struct Device {
    pub(crate) nvml: Nvml,
    pub(crate) index: u32,
}

impl Device {
    /// NVML's index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Power drawn now, in W; the driver's own average over some milliseconds to a second, by GPU generation.
    ///
    /// # Errors
    /// When NVML does not tell.
    pub fn power_w(&self) -> Result<f64, NvmlError> {
        self.ask("power", |device| device.power_usage()).map(milliwatts)
    }

    /// Energy used since the driver was loaded, in J.
    ///
    /// # Errors
    /// When NVML does not tell.
    pub fn energy_j(&self) -> Result<f64, NvmlError> {
        self.ask("energy", |device| device.total_energy_consumption()).map(|mj| mj as f64 / 1000.0)
    }

    /// The clock of the SMs now, MHz.
    ///
    /// # Errors
    /// When NVML does not tell.
    pub fn sm_clock_mhz(&self) -> Result<u32, NvmlError> {
        self.ask("SM clock", |device| device.clock_info(enums::Clock::SM))
    }

    /// The clock of the memory now, MHz.
    ///
    /// # Errors
    /// When NVML does not tell.
    pub fn memory_clock_mhz(&self) -> Result<u32, NvmlError> {
        self.ask("memory clock", |device| device.clock_info(enums::Clock::Memory))
    }

    /// Why the clock is below its highest now.
    ///
    /// # Errors
    /// When NVML does not tell.
    pub fn throttle_reasons(&self) -> Result<Vec<ThrottleReason>, NvmlError> {
        let reasons = self.ask("throttle reasons", |device| device.current_throttle_reasons())?;
        Ok(ThrottleReason::from_bits(reasons.bits()))
    }

    /// KB/s to the host and from it over the last 20 ms. The driver counts while it is asked: each call takes 40 ms,
    /// so a sampler does better with [`Device::gpm_mark`].
    ///
    /// # Errors
    /// When NVML does not tell.
    pub fn pcie_throughput_kb_s(&self) -> Result<(u32, u32), NvmlError> {
        self.ask("PCIe throughput", |device| {
            let to_host = device.pcie_throughput(enums::PcieUtilCounter::Send)?;
            Ok((to_host, device.pcie_throughput(enums::PcieUtilCounter::Receive)?))
        })
    }

    pub(crate) fn ask<T>(
        &self,
        what: &'static str,
        question: impl FnOnce(&nvml_wrapper::Device<'_>) -> Result<T, Raw>,
    ) -> Result<T, NvmlError> {
        question(&self.raw(what)?).map_err(named(what))
    }

    pub(crate) fn raw(&self, what: &'static str) -> Result<nvml_wrapper::Device<'_>, NvmlError> {
        self.nvml.inner.device_by_index(self.index).map_err(named(what))
    }
}

pub(crate) fn milliwatts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1000.0
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_missing_library_is_an_ordinary_error() {
        let error = Nvml::load_from("libpartywall-is-not-there.so.1").unwrap_err();
        assert!(matches!(&error, NvmlError::Library { library, .. } if library.contains("is-not-there")));
        let text = error.to_string();
        assert!(text.contains("comes with the NVIDIA driver") && !text.contains('\n'), "{text}");
    }

    #[test]
    fn versions_as_the_driver_says_them() {
        let version = DriverVersion::try_from("580.159.04".to_owned()).unwrap();
        assert_eq!((version.branch, version.to_string().as_str()), (580, "580.159.04"));
        assert!(DriverVersion::try_from("R580".to_owned()).unwrap_err().to_string().contains("R580"));
    }

    #[test]
    fn what_is_missing_is_told_from_what_failed() {
        let denied = named("GPM sample")(Raw::NoPermission);
        assert!(denied.to_string().contains("root"), "{denied}");
        assert!(named("MIG mode")(Raw::NotSupported).is_not_supported());
        assert!(named("MIG mode")(Raw::FailedToLoadSymbol("x".to_owned())).is_not_supported());
        assert!(!named("MIG mode")(Raw::GpuLost).is_not_supported());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_is_a_version_or_an_error(text in "[0-9.a]{0,12}") {
            match DriverVersion::try_from(text.clone()) {
                Ok(version) => prop_assert!(text.starts_with(&version.branch.to_string()) || text.starts_with('0')),
                Err(error) => prop_assert_eq!(error.given, text),
            }
        }
    }
}
