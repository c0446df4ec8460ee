//! A GPU, or a MIG instance of one, as the CUDA driver shows it to this process.

use std::ffi::{c_char, c_int, c_uint};
use std::fmt;

use partywall_core::units::{Bytes, SmCount};

use crate::context::Context;
use crate::error::DriverError;
use crate::green::SmSplit;
use crate::library::Cuda;
use crate::sys::CUuuid;

/// The longest name asked for; NVIDIA's are below 100 bytes.
const NAME_BYTES: usize = 256;
/// `0000:00:00.0` and its end, with room.
const PCI_BUS_ID_BYTES: usize = 32;

/// A property of a device that is a whole number. The values are those of `CUdevice_attribute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attribute {
    /// Most threads in a block.
    MaxThreadsPerBlock = 1,
    /// Shared memory of a block without opting in, bytes.
    MaxSharedMemoryPerBlock = 8,
    /// Highest SM clock, kHz.
    ClockRate = 13,
    /// SMs. Under an MPS percentage the driver may report only those that this process may use.
    MultiprocessorCount = 16,
    /// 0 default, 2 prohibited, 3 exclusive process.
    ComputeMode = 20,
    /// 1 where kernels can run at the same time.
    ConcurrentKernels = 31,
    /// 1 where error correction is on.
    EccEnabled = 32,
    /// Highest memory clock, kHz.
    MemoryClockRate = 36,
    /// Width of the memory bus, bits.
    GlobalMemoryBusWidth = 37,
    /// L2, bytes.
    L2CacheSize = 38,
    /// Threads that fit on an SM.
    MaxThreadsPerMultiprocessor = 39,
    /// Copy engines.
    AsyncEngineCount = 40,
    /// The part before the dot.
    ComputeCapabilityMajor = 75,
    /// The part behind the dot.
    ComputeCapabilityMinor = 76,
    /// 1 where streams have priorities.
    StreamPrioritiesSupported = 78,
    /// Shared memory of an SM, bytes.
    MaxSharedMemoryPerMultiprocessor = 81,
    /// 32-bit registers of an SM.
    MaxRegistersPerMultiprocessor = 82,
    /// 1 where compute work can be preempted.
    ComputePreemptionSupported = 90,
    /// Shared memory that a block can have after opting in, bytes.
    MaxSharedMemoryPerBlockOptin = 97,
    /// 1 where the virtual memory calls work.
    VirtualMemoryManagementSupported = 102,
    /// 1 where contexts of this process go through MPS.
    MpsEnabled = 133,
}

/// A UUID. Written without the `GPU-` or `MIG-` that `nvidia-smi` and NVML put in front: CUDA does not say which it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Whether `text` (`GPU-…`, `MIG-…` or bare) names the same device.
    pub fn matches(&self, text: &str) -> bool {
        let bare = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).unwrap_or(text);
        bare.eq_ignore_ascii_case(&self.to_string())
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uuid({self})")
    }
}

/// A device. Cheap to clone; holds no resources of the GPU until [`Device::primary`].
#[derive(Debug, Clone)]
pub struct Device {
    pub(crate) cuda: Cuda,
    pub(crate) ordinal: u32,
    pub(crate) raw: c_int,
}

impl Device {
    /// The driver it belongs to.
    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// Its number among the visible devices.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The product name: `NVIDIA H200`.
    ///
    /// # Errors
    /// What the driver returned; so for all the following.
    pub fn name(&self) -> Result<String, DriverError> {
        self.text::<NAME_BYTES>(self.cuda.api.cuDeviceGetName, "cuDeviceGetName", "name")
    }

    /// The UUID; that of the MIG instance where the device is one.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn uuid(&self) -> Result<Uuid, DriverError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is a valid place for the answer.
        let code = unsafe { (self.cuda.api.cuDeviceGetUuid_v2)(&mut uuid, self.raw) };
        self.cuda.api.check(code, "cuDeviceGetUuid_v2", || self.asking("UUID"))?;
        Ok(Uuid(uuid.bytes))
    }

    /// Its place on the PCI bus: `0000:1b:00.0`.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn pci_bus_id(&self) -> Result<String, DriverError> {
        let call = self.cuda.api.cuDeviceGetPCIBusId;
        self.text::<PCI_BUS_ID_BYTES>(call, "cuDeviceGetPCIBusId", "PCI bus id")
    }

    /// Its SMs, as the driver reports them: under an MPS percentage these may be only those left to this process.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn sms(&self) -> Result<SmCount, DriverError> {
        Ok(SmCount(count(self.attribute(Attribute::MultiprocessorCount)?)))
    }

    /// Its memory.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn total_memory(&self) -> Result<Bytes, DriverError> {
        let mut bytes: usize = 0;
        // SAFETY: `bytes` is a valid place for the answer.
        let code = unsafe { (self.cuda.api.cuDeviceTotalMem_v2)(&mut bytes, self.raw) };
        self.cuda.api.check(code, "cuDeviceTotalMem_v2", || self.asking("memory"))?;
        Ok(Bytes(bytes as u64))
    }

    /// Its L2 cache.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn l2_bytes(&self) -> Result<Bytes, DriverError> {
        Ok(Bytes(u64::from(count(self.attribute(Attribute::L2CacheSize)?))))
    }

    /// `(9, 0)` for Hopper.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn compute_capability(&self) -> Result<(u32, u32), DriverError> {
        let major = self.attribute(Attribute::ComputeCapabilityMajor)?;
        Ok((count(major), count(self.attribute(Attribute::ComputeCapabilityMinor)?)))
    }

    /// One of the whole-number properties.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32, DriverError> {
        let mut value: c_int = 0;
        // SAFETY: `value` is a valid place for the answer; the driver checks the attribute's number.
        let code = unsafe { (self.cuda.api.cuDeviceGetAttribute)(&mut value, attribute as c_uint, self.raw) };
        self.cuda.api.check(code, "cuDeviceGetAttribute", || self.asking(&format!("{attribute:?}")))?;
        Ok(value)
    }

    /// The device's primary context, shared by everything in this process. The first call makes it, which takes a
    /// few hundred milliseconds and device memory; the last handle gives it back.
    ///
    /// # Errors
    /// What the driver returned: under MPS also that the server is not there or not ready (805 to 809).
    pub fn primary(&self) -> Result<Context, DriverError> {
        Context::retain(self)
    }

    /// The SMs in the smallest groups that can be had, for green contexts: see [`SmSplit`].
    ///
    /// # Errors
    /// [`DriverError::SymbolMissing`] before CUDA 12.4, or what the driver returned.
    pub fn sm_split(&self) -> Result<SmSplit, DriverError> {
        SmSplit::smallest(&self.primary()?)
    }

    /// The SMs in groups of at least `min_count`. `ignore_coscheduling` allows groups whose SMs are not guaranteed to
    /// run clusters together, which makes much smaller ones possible.
    ///
    /// # Errors
    /// As [`Device::sm_split`].
    pub fn sm_split_min(&self, min_count: u32, ignore_coscheduling: bool) -> Result<SmSplit, DriverError> {
        SmSplit::by_count(&self.primary()?, min_count, ignore_coscheduling)
    }

    fn asking(&self, what: &str) -> String {
        format!("asking device {} for its {what}", self.ordinal)
    }

    fn text<const BYTES: usize>(
        &self,
        ask: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> crate::sys::CUresult,
        call: &'static str,
        what: &str,
    ) -> Result<String, DriverError> {
        let mut bytes = [0_u8; BYTES];
        // SAFETY: the driver writes at most the given number of bytes, which is the size of the array.
        let code = unsafe { ask(bytes.as_mut_ptr().cast(), BYTES as c_int, self.raw) };
        self.cuda.api.check(code, call, || self.asking(what))?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(BYTES);
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

/// A number that the driver gives as a signed one although it counts.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_nvidia_smi_writes_them() {
        let uuid = Uuid(std::array::from_fn(|index| (index as u8) * 0x11));
        assert_eq!(uuid.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
        assert!(uuid.matches("GPU-00112233-4455-6677-8899-aabbccddeeff"));
        assert!(uuid.matches("MIG-00112233-4455-6677-8899-AABBCCDDEEFF"));
        assert!(!uuid.matches("GPU-00112233-4455-6677-8899-aabbccddeefe"));
        assert!(!uuid.matches(""));
    }
}
