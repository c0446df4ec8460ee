//! Devices: there is one.

use crate::abi::{Out, Text, put_text};
use crate::error::Code;
use crate::process::{self, Process};

/// Where it is on the bus.
const BUS_ID: &str = "0000:1b:00.0";
const BUS: i32 = 0x1b;

/// Compute capabilities below this have no clusters, and so on: Hopper.
const HOPPER: u32 = 9;

api! {
    fn cuDeviceGetCount(count: Out<i32>) {
        process::get()?;
        count.set(1)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        one(ordinal)?;
        device.set(0)
    }

    fn cuDeviceGetName(name: Out<u8>, room: i32, device: i32) {
        let process = one(device)?;
        put_text(&process.device.figures().name, name, usize::try_from(room).unwrap_or(0))
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(uuid_bytes(&one(device)?.device.figures().uuid))
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(uuid_bytes(&one(device)?.device.figures().uuid))
    }

    fn cuDeviceTotalMem(bytes: Out<u32>, device: i32) {
        bytes.set(u32::try_from(one(device)?.device.total()).unwrap_or(u32::MAX))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        bytes.set(one(device)?.device.total() as usize)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        value.set(attribute_of(one(device)?, attribute)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let (high, low) = one(device)?.device.figures().compute_capability();
        major.set(high as i32)?;
        minor.set(low as i32)
    }

    fn cuDeviceGetPCIBusId(text: Out<u8>, room: i32, device: i32) {
        one(device)?;
        put_text(BUS_ID, text, usize::try_from(room).unwrap_or(0))
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text) {
        let asked = text.get()?.to_lowercase();
        process::get()?;
        // With or without the domain, with or without leading zeroes.
        if !BUS_ID.ends_with(asked.trim_start_matches('0').trim_start_matches(':')) || asked.is_empty() {
            return Err(Code::INVALID_DEVICE);
        }
        device.set(0)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        one(device)?;
        one(peer)?;
        can.set(0)
    }

    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, kind: u32, device: i32) {
        let process = one(device)?;
        // Under MPS only, and for SM counts.
        supported.set(i32::from(kind == 0 && process.mps.is_some()))
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: i32) {
        pool.set(one(device)?.default_pool)
    }

    fn cuDeviceGetMemPool(pool: Out<u64>, device: i32) {
        pool.set(one(device)?.current_pool.load(std::sync::atomic::Ordering::Acquire))
    }

    fn cuDeviceSetMemPool(device: i32, pool: u64) {
        let process = one(device)?;
        process.objects.pools.get(pool)?;
        process.current_pool.store(pool, std::sync::atomic::Ordering::Release);
        Ok(())
    }
}

/// The process, if the number is that of the only device.
pub(super) fn one(device: i32) -> Result<&'static Process, Code> {
    let process = process::get()?;
    if device == 0 { Ok(process) } else { Err(Code::INVALID_DEVICE) }
}

fn uuid_bytes(text: &str) -> [u8; 16] {
    let digits: Vec<u32> = text.trim_start_matches("GPU-").chars().filter_map(|c| c.to_digit(16)).collect();
    std::array::from_fn(|index| {
        let digit = |at: usize| digits.get(at).copied().unwrap_or(0) as u8;
        digit(2 * index) << 4 | digit(2 * index + 1)
    })
}

/// `CUdevice_attribute` by number; 0 for what this device has not.
fn attribute_of(process: &Process, attribute: u32) -> Result<i32, Code> {
    const NEWEST: u32 = 147;
    let figures = process.device.figures();
    let gpu = &figures.gpu;
    let (major, minor) = figures.compute_capability();
    let hopper = i32::from(major >= HOPPER);
    let mps = i32::from(process.mps.is_some());
    Ok(match attribute {
        0 | NEWEST.. => return Err(Code::INVALID_VALUE),
        // Blocks and grids, the same since Kepler.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65_536,
        13 => (gpu.clock_max_mhz.value * 1_000.0) as i32,
        14 => 512,
        16 => process.sms().count() as i32,
        18 => i32::from(gpu.unified_memory),
        33 => BUS,
        // Half of a transfer each way: what the width and this give is the vendor's rate.
        36 => (gpu.vram_gb_s.value * 1e6 / 2.0 / (f64::from(BUS_BITS) / 8.0)) as i32,
        37 => BUS_BITS,
        38 => (gpu.l2_mib.value * f64::from(1 << 20)) as i32,
        39 => threads_per_sm(major, minor),
        40 => gpu.copy_engines.value.min(3) as i32,
        51 => 32,
        75 => major as i32,
        76 => minor as i32,
        81 => shared_per_sm(major, minor) << 10,
        97 => (shared_per_sm(major, minor) - 1) << 10,
        85 => 0,
        87 => 2,
        106 => 32,
        108 => (gpu.l2_mib.value * f64::from(1 << 20) * 0.625) as i32,
        111 => 1 << 10,
        119 => 1,
        120 => hopper,
        // What any data-centre part since Volta says yes to.
        15 | 17 | 19 | 31 | 32 | 41 | 78 | 79 | 80 | 83 | 89 | 90 | 91 | 92 | 93 | 94 | 95 | 98 | 99
        | 102 | 103 | 115 | 122 | 123 | 125 => i32::from(attribute != 17),
        133 => mps,
        _ => 0,
    })
}

/// A number in place of the width of the memory bus, for which there is no figure: that of five stacks of HBM.
const BUS_BITS: i32 = 5120;

/// Threads that fit on an SM, from the table of compute capabilities in NVIDIA's programming guide.
pub(super) fn threads_per_sm(major: u32, minor: u32) -> i32 {
    match (major, minor) {
        (7, 5) => 1024,
        (8, 6..=9) | (12, _) => 1536,
        _ => 2048,
    }
}

/// Shared memory of an SM, KiB, from the same table.
pub(super) fn shared_per_sm(major: u32, minor: u32) -> i32 {
    match (major, minor) {
        (7, 0..=3) => 96,
        (7, _) => 64,
        (8, 0) => 164,
        (8, 7) => 164,
        (8, _) | (12, _) => 100,
        _ => 228,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_bytes() {
        let bytes = uuid_bytes("GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(bytes, std::array::from_fn(|index| index as u8 * 0x11));
    }
}
