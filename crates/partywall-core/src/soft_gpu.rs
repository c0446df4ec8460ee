//! What a simulated device says of itself: `gpu.json` in its driver folder.
//!
//! A *driver folder* holds what a machine with an NVIDIA GPU has: the two libraries of the driver, the control program
//! of MPS, and this file, from which the libraries take every figure. Whoever makes the folder writes the file, and the
//! libraries read it: this is all that the two sides agree on.

use serde::{Deserialize, Serialize};

use crate::gpu::{Gpu, SourceKind, Sourced};
use crate::units::Bytes;

/// The file's name in the folder.
pub const FILE: &str = "gpu.json";

/// [`SoftGpu::format`].
pub const FORMAT: u32 = 1;

/// What every name of a simulated device ends in, and no name of a real one.
pub const SUFFIX: &str = " (simulated)";

/// The driver that a simulated device claims to run with: the one with which its model was measured.
pub const DRIVER: &str = "580.159.04";

/// The newest CUDA that this driver speaks, as the driver counts: 13.0.
pub const CUDA: u32 = 13000;

/// Memory that a context takes for each SM, MiB.
const CONTEXT_MIB_PER_SM: u32 = 4;

/// A simulated device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftGpu {
    /// [`FORMAT`]; a library does not read what has another one.
    pub format: u32,
    /// As the driver names it; ends in [`SUFFIX`].
    pub name: String,
    /// `GPU-…`; the same for every simulated device of a model.
    pub uuid: String,
    /// The version of the driver, `580.159.04`.
    pub driver: String,
    /// The newest CUDA that it speaks: 13000 is 13.0.
    pub cuda: u32,
    /// Memory that a process's context takes, MiB.
    pub context_mib: Sourced<u32>,
    /// The figures.
    pub gpu: Gpu,
}

impl SoftGpu {
    /// A device of this model, which the driver names `name`.
    pub fn new(gpu: &Gpu, name: &str) -> Self {
        Self {
            format: FORMAT,
            name: format!("{}{SUFFIX}", name.trim_end_matches(SUFFIX)),
            uuid: uuid(&gpu.id),
            driver: DRIVER.to_owned(),
            cuda: CUDA,
            context_mib: Sourced {
                value: gpu.sms.value.saturating_mul(CONTEXT_MIB_PER_SM),
                kind: SourceKind::Estimate,
                source: "rule: 4 MiB an SM; contexts of data-centre parts take 400 to 600 MiB".to_owned(),
            },
            gpu: gpu.clone(),
        }
    }

    /// All of its memory.
    pub fn memory(&self) -> Bytes {
        Bytes((self.gpu.vram_gib.value * f64::from(1 << 30)) as u64)
    }

    /// What a process's context takes of it.
    pub fn context(&self) -> Bytes {
        Bytes(u64::from(self.context_mib.value) << 20)
    }

    /// Its compute capability, from the architecture's name: `Hopper (9.0)`. Where that has none, (8, 0).
    pub fn compute_capability(&self) -> (u32, u32) {
        capability(&self.gpu.architecture).unwrap_or((8, 0))
    }

    /// The word for its architecture: `Hopper`.
    pub fn architecture(&self) -> &str {
        self.gpu.architecture.split(" (").next().unwrap_or_default()
    }
}

/// Whether a name is one of a simulated device.
pub fn is_simulated(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

fn capability(architecture: &str) -> Option<(u32, u32)> {
    let (_, rest) = architecture.split_once('(')?;
    let (major, minor) = rest.strip_suffix(')')?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A UUID that follows from the id, so that the same device has the same one every time.
fn uuid(id: &str) -> String {
    // FNV-1a with 128 bits.
    let hash = id.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    let digits = format!("{hash:032x}");
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use std::collections::BTreeSet;

    #[test]
    fn every_gpu_of_the_catalogue_has_a_device_of_its_own() {
        let catalogue = Catalogue::builtin().unwrap();
        let mut uuids = BTreeSet::new();
        for gpu in catalogue.iter() {
            let device = SoftGpu::new(gpu, "NVIDIA Something");
            assert_eq!(device.name, "NVIDIA Something (simulated)");
            assert!(is_simulated(&device.name) && !is_simulated(&gpu.name));
            assert_eq!(
                format!(
                    "{} ({}.{})",
                    device.architecture(),
                    device.compute_capability().0,
                    device.compute_capability().1
                ),
                gpu.architecture
            );
            assert!(device.context().0 * 16 < device.memory().0, "{}", gpu.id);
            assert_eq!(device.uuid.len(), "GPU-00000000-0000-0000-0000-000000000000".len());
            assert!(uuids.insert(device.uuid.clone()));
            let text = serde_json::to_string(&device).unwrap();
            assert_eq!(serde_json::from_str::<SoftGpu>(&text).unwrap(), device);
        }
        assert_eq!(
            SoftGpu::new(catalogue.get("h200").unwrap(), "x").uuid,
            SoftGpu::new(catalogue.get("h200").unwrap(), "y").uuid
        );
    }

    #[test]
    fn a_suffix_is_there_once() {
        let gpu = Catalogue::builtin().unwrap().get("l4").unwrap();
        assert_eq!(SoftGpu::new(gpu, "NVIDIA L4 (simulated)").name, "NVIDIA L4 (simulated)");
    }
}
