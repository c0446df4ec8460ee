//! Memory of the device and of its window on the bus.

use super::{Answer, Status, check_version, from_device, on_device, put};
use crate::abi::Out;
use crate::device::Device;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlBAR1Memory_t`.
#[repr(C)]
struct Bar1 {
    total: u64,
    free: u64,
    used: u64,
}

fn memory(device: &Device) -> Answer<Memory> {
    let used = device.used().map_err(|error| from_device(&error))?;
    let total = device.total();
    Ok(Memory { total, free: total.saturating_sub(used), used })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(handle: u64, place: Out<Memory>) -> Status {
    on_device(handle, |device| put(place, memory(device)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: u64, place: Out<MemoryV2>) -> Status {
    on_device(handle, |device| {
        let version = place.cast::<u32>().get().map_err(|_| Status::INVALID_ARGUMENT)?;
        check_version::<MemoryV2>(version, 2)?;
        let Memory { total, free, used } = memory(device)?;
        put(place, MemoryV2 { version, total, reserved: 0, free, used })
    })
}

/// The window is as large as the memory, rounded up to a power of two, and nothing has mapped it.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetBAR1MemoryInfo(handle: u64, place: Out<Bar1>) -> Status {
    on_device(handle, |device| {
        let total = device.total().next_power_of_two();
        put(place, Bar1 { total, free: total, used: 0 })
    })
}
