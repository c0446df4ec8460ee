//! What the CUDA driver library tells that NVML does not, by asking it.

use std::fmt;

use partywall_core::units::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{CudaDevice, CudaProblem, CudaSide, Granularity};
use crate::device::Device;
use crate::error::DriverError;
use crate::library::{Cuda, CudaVersion};

impl CudaSide {
    /// Loads the library and asks every device that this process may use. How SMs can be cut is told only to a context,
    /// so each device gets one for a moment; where the machine runs MPS, that makes this process its client as any CUDA
    /// program would be.
    pub fn look() -> Self {
        let asked = Cuda::load().and_then(|cuda| {
            let devices = (0..cuda.device_count()?).map(|ordinal| look(&cuda.device(ordinal)?));
            Ok((cuda.driver_version(), devices.collect::<Result<_, _>>()?))
        });
        match asked {
            Ok((version, devices)) => Self { problem: None, version: Some(version), devices },
            Err(error) => Self { problem: Some(CudaProblem::from(&error)), ..Self::default() },
        }
    }
}

impl From<&DriverError> for CudaProblem {
    fn from(error: &DriverError) -> Self {
        let library_missing = matches!(error, DriverError::LibraryMissing { .. });
        Self { why: error.to_string(), library_missing }
    }
}

fn look(device: &Device) -> Result<CudaDevice, DriverError> {
    let optional = |memory: Result<Bytes, DriverError>| memory.ok();
    let green_contexts = granularity(device);
    Ok(CudaDevice {
        uuid: device.uuid()?,
        name: device.name()?,
        sms: device.sms()?.0,
        compute_capability: device.compute_capability()?,
        memory: optional(device.total_memory()),
        untold: green_contexts.as_ref().err().map(|error| format!("green contexts: {error}")),
        green_contexts: green_contexts.ok(),
    })
}

/// The driver rounds the size of a group up to what it can do, so asking for one SM tells the smallest, and asking for
/// one more than that the step to the next.
fn granularity(device: &Device) -> Result<Granularity, DriverError> {
    let min = device.sm_split_min(1, false)?.sms_per_group().0;
    // A GPU of one smallest group has no next.
    let next = device.sm_split_min(min + 1, false).map_or(min, |split| split.sms_per_group().0);
    let finest = device.sm_split()?;
    Ok(Granularity {
        min,
        step: if next > min { next - min } else { min },
        groups: u32::try_from(finest.groups()).unwrap_or(u32::MAX),
        sms_per_group: finest.sms_per_group().0,
    })
}

/// As text, `13.0`: what people read and write.
impl Serialize for CudaVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CudaVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| D::Error::custom(NotACudaVersion(&text)))
    }
}

struct NotACudaVersion<'a>(&'a str);

impl fmt::Display for NotACudaVersion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no CUDA version; one looks like 13.0", self.0)
    }
}

/// Minor versions have at most two digits in the driver's numbering.
fn parse(text: &str) -> Option<CudaVersion> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    (major < 1000 && minor < 100).then(|| CudaVersion::new(major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_missing_library_is_told_from_one_that_does_not_work() {
        let missing = DriverError::LibraryMissing {
            library: "libcuda.so.1".to_owned(),
            message: "no such file".to_owned(),
        };
        let problem = CudaProblem::from(&missing);
        assert!(problem.library_missing && problem.why.contains("libcuda.so.1"));
        let old = DriverError::TooOld { found: CudaVersion::new(11, 8), needed: CudaVersion::OLDEST };
        assert!(!CudaProblem::from(&old).library_missing);
    }

    #[test]
    fn versions_that_are_none() {
        for wrong in ["", "13", "13.", ".0", "13.0.1", "13.100", "-1.0", "99999999999.0"] {
            let error = serde_json::from_value::<CudaVersion>(wrong.into()).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("13.0"), "{error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn versions_survive_a_file(major in 0u32..1000, minor in 0u32..100) {
            let version = CudaVersion::new(major, minor);
            let text = serde_json::to_string(&version).unwrap();
            prop_assert_eq!(serde_json::from_str::<CudaVersion>(&text).unwrap(), version);
        }
    }
}
