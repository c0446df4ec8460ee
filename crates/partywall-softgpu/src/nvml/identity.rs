//! What the device is and how it is set.

use super::{Answer, HANDLE, Status, answers, field, nothing, on_device, put, put_text};
use crate::abi::Out;
use crate::device::Device;

/// Where the device sits: domain, bus, device, as `cuDeviceGetPCIBusId` has it too.
pub(crate) const BUS: (u32, u32, u32) = (0, 0x1b, 0);

/// NVIDIA's number among vendors; that of the device, in the upper half, is no figure of the catalogue.
const PCI_ID: u32 = 0x0000_10DE;

/// CUDA cores of an SM, by compute capability: 64 on parts with full double precision, 128 on the others.
const CORES: &[((u32, u32), u32)] =
    &[((8, 0), 64), ((8, 6), 128), ((8, 7), 128), ((8, 9), 128), ((9, 0), 128), ((10, 0), 128)];

/// `nvmlPciInfo_t`.
#[repr(C)]
struct Pci {
    legacy_id: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    pci_id: u32,
    subsystem: u32,
    id: [u8; 32],
}

/// Whether a text names the device's place: `0000:1b:00.0`, with or without function and domain, the latter of any length.
pub(super) fn is_bus(text: &str) -> bool {
    let (place, function) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
    let numbers: Option<Vec<u32>> = place.split(':').map(|part| u32::from_str_radix(part, 16).ok()).collect();
    let (domain, bus, device) = BUS;
    let right = |found: Vec<u32>| found == [domain, bus, device] || found == [bus, device];
    function == "0" && numbers.is_some_and(right)
}

fn architecture(device: &Device) -> Answer<u32> {
    Ok(match device.figures().compute_capability() {
        (7, 0 | 2) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10.., _) => 10,
        _ => u32::MAX,
    })
}

fn cores(device: &Device) -> Answer<u32> {
    let capability = device.figures().compute_capability();
    let per_sm = CORES.iter().rfind(|(least, _)| *least <= capability).ok_or(Status::NOT_SUPPORTED)?.1;
    Ok(device.figures().gpu.sms.value * per_sm)
}

answers! {
    nvmlDeviceGetIndex -> u32 = |_| Ok(0);
    nvmlDeviceGetMinorNumber -> u32 = |_| Ok(0);
    nvmlDeviceGetArchitecture -> u32 = |device| architecture(device);
    nvmlDeviceGetNumGpuCores -> u32 = |device| cores(device);
    /// `NVML_BRAND_NVIDIA`.
    nvmlDeviceGetBrand -> u32 = |_| Ok(14);
    /// Default: anybody may open a context.
    nvmlDeviceGetComputeMode -> u32 = |_| Ok(0);
    /// The simulated driver is there as long as its folder.
    nvmlDeviceGetPersistenceMode -> u32 = |_| Ok(1);
    nvmlDeviceGetDisplayMode -> u32 = |_| Ok(0);
    nvmlDeviceGetDisplayActive -> u32 = |_| Ok(0);
    /// Not virtualised.
    nvmlDeviceGetVirtualizationMode -> u32 = |_| Ok(0);
    nvmlDeviceGetAccountingMode -> u32 = |_| Ok(0);
    nvmlDeviceIsMigDeviceHandle -> u32 = |_| Ok(0);
    nvmlDeviceGetMultiGpuBoard -> u32 = |_| Ok(0);
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(handle: u64, place: Out<u8>, room: u32) -> Status {
    on_device(handle, |device| put_text(place, room, &device.figures().name))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(handle: u64, place: Out<u8>, room: u32) -> Status {
    on_device(handle, |device| put_text(place, room, &device.figures().uuid))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(handle: u64, place: Out<Pci>) -> Status {
    on_device(handle, |_| {
        let (domain, bus, device) = BUS;
        let id = |digits: usize| format!("{domain:0digits$x}:{bus:02x}:{device:02x}.0");
        let (legacy_id, id) = (field(&id(4)), field(&id(8)));
        put(place, Pci { legacy_id, domain, bus, device, pci_id: PCI_ID, subsystem: 0, id })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(handle: u64, major: Out<i32>, minor: Out<i32>) -> Status {
    on_device(handle, |device| {
        let capability = device.figures().compute_capability();
        put(major, capability.0.cast_signed())?;
        put(minor, capability.1.cast_signed())
    })
}

/// MIG is off where the part has it, now and after a reset.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(handle: u64, now: Out<u32>, later: Out<u32>) -> Status {
    on_device(handle, |device| {
        if device.figures().gpu.mig.is_none() {
            return Err(Status::NOT_SUPPORTED);
        }
        put(now, 0)?;
        put(later, 0)
    })
}

// No MIG mode means no profiles here, as drivers may have it; no error correction, fan, serial number or link to other GPUs.
nothing! {
    nvmlDeviceGetGpuInstanceProfileInfo
    nvmlDeviceGetGpuInstanceProfileInfoV
    nvmlDeviceGetMaxMigDeviceCount
    nvmlDeviceGetEccMode
    nvmlDeviceGetFanSpeed
    nvmlDeviceGetFanSpeed_v2
    nvmlDeviceGetNumFans
    nvmlDeviceGetSerial
    nvmlDeviceGetNvLinkState
    nvmlDeviceGetNvLinkRemoteDeviceType
    nvmlDeviceGetGpuFabricInfo
    nvmlDeviceGetGpuFabricInfoV
}

/// What one device can do with another's memory: with its own, everything.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetP2PStatus(one: u64, other: u64, _what: u32, place: Out<u32>) -> Status {
    on_device(one, |_| if other == HANDLE { put(place, 0) } else { Err(Status::INVALID_ARGUMENT) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_place_on_the_bus_is_known_however_it_is_written() {
        for text in ["00000000:1b:00.0", "0000:1b:00.0", "0:1b:0", "1b:00.0", "1b:00"] {
            assert!(is_bus(text), "{text}");
        }
        for text in ["0000:02:00.0", "0001:1b:00.0", "1b:00.1", "1b", "", "x:y:z", "0:0:1b:0"] {
            assert!(!is_bus(text), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_text_is_trouble(text in "\\PC{0,12}|[0-9a-f:.]{0,16}") {
            prop_assert!(!is_bus(&text) || text.contains('b'));
        }
    }
}
