//! How busy the device is, at which clock and power, and what its link can do.

use super::{Answer, Status, answers, check_version, from_device, meter, on_device, put};
use crate::abi::Out;
use crate::clock;
use crate::device::Device;

/// Bits of the reasons for a low clock.
const GPU_IDLE: u64 = 1;

/// Temperature without load and with as much power as the cap allows, degrees Celsius. Estimates: no figure of the
/// catalogue, and nothing follows from it.
const COLD: f64 = 30.0;
const HOT: f64 = 70.0;

/// Generation and lanes of the link, by its copy rate each way: 4 x16 copies at most 28 GB/s, 5 x16 twice that.
fn link(device: &Device) -> Answer<(u32, u32)> {
    let gpu = &device.figures().gpu;
    match gpu.pcie_gb_s.value {
        _ if gpu.unified_memory => Err(Status::NOT_SUPPORTED),
        rate if rate > 32.0 => Ok((5, 16)),
        _ => Ok((4, 16)),
    }
}

/// Whether anybody holds a context: the clock is raised then, and stays there.
fn in_use(device: &Device) -> Answer<bool> {
    device.processes().map(|all| all.iter().any(|one| one.contexts > 0)).map_err(|error| from_device(&error))
}

/// The model of power of the catalogue at the highest clock, within the cap, in mW.
fn power(device: &Device) -> f64 {
    let gpu = &device.figures().gpu;
    let watts = gpu.power_idle_w.value + gpu.power_busy_w.value * meter::recent(device).busy;
    1e3 * watts.min(gpu.power_cap_w.value)
}

fn cap(device: &Device) -> Answer<u32> {
    Ok((device.figures().gpu.power_cap_w.value * 1e3) as u32)
}

/// Energy since the machine was started, mJ: idle all the time, and busy when kernels ran.
fn energy(device: &Device) -> u64 {
    let gpu = &device.figures().gpu;
    let joules = gpu.power_idle_w.value * clock::now() as f64 / 1e9
        + gpu.power_busy_w.value * device.busy_ns() as f64 / 1e9;
    (joules * 1e3) as u64
}

fn reasons(device: &Device) -> Answer<u64> {
    Ok(if in_use(device)? { 0 } else { GPU_IDLE })
}

answers! {
    nvmlDeviceGetPowerUsage -> u32 = |device| Ok(power(device) as u32);
    nvmlDeviceGetPowerManagementLimit -> u32 = |device| cap(device);
    nvmlDeviceGetPowerManagementDefaultLimit -> u32 = |device| cap(device);
    nvmlDeviceGetEnforcedPowerLimit -> u32 = |device| cap(device);
    nvmlDeviceGetPowerManagementMode -> u32 = |_| Ok(1);
    nvmlDeviceGetTotalEnergyConsumption -> u64 = |device| Ok(energy(device));
    nvmlDeviceGetCurrentClocksThrottleReasons -> u64 = |device| reasons(device);
    nvmlDeviceGetCurrentClocksEventReasons -> u64 = |device| reasons(device);
    nvmlDeviceGetSupportedClocksThrottleReasons -> u64 = |_| Ok(GPU_IDLE);
    nvmlDeviceGetSupportedClocksEventReasons -> u64 = |_| Ok(GPU_IDLE);
    /// P0 with somebody's context, P8 without.
    nvmlDeviceGetPerformanceState -> u32 = |device| Ok(if in_use(device)? { 0 } else { 8 });
    nvmlDeviceGetPowerState -> u32 = |device| Ok(if in_use(device)? { 0 } else { 8 });
    nvmlDeviceGetCurrPcieLinkGeneration -> u32 = |device| Ok(link(device)?.0);
    nvmlDeviceGetMaxPcieLinkGeneration -> u32 = |device| Ok(link(device)?.0);
    nvmlDeviceGetCurrPcieLinkWidth -> u32 = |device| Ok(link(device)?.1);
    nvmlDeviceGetMaxPcieLinkWidth -> u32 = |device| Ok(link(device)?.1);
}

/// `nvmlUtilization_t`.
#[repr(C)]
struct Utilization {
    gpu: u32,
    memory: u32,
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(handle: u64, place: Out<Utilization>) -> Status {
    on_device(handle, |device| {
        let rates = meter::recent(device);
        let percent = |fraction: f64| (fraction * 100.0).round() as u32;
        put(place, Utilization { gpu: percent(rates.busy), memory: percent(rates.memory) })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
    handle: u64,
    least: Out<u32>,
    most: Out<u32>,
) -> Status {
    on_device(handle, |device| {
        // The cap cannot be changed here.
        put(least, cap(device)?)?;
        put(most, cap(device)?)
    })
}

/// The kinds of clocks that the catalogue has a figure for: graphics and SM, which are one.
fn has_clock(kind: u32) -> Answer {
    match kind {
        0 | 1 => Ok(()),
        2 | 3 => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

fn clock_now(device: &Device, kind: u32) -> Answer<u32> {
    has_clock(kind)?;
    let gpu = &device.figures().gpu;
    Ok(if in_use(device)? { gpu.clock_max_mhz.value } else { gpu.clock_min_mhz.value } as u32)
}

fn clock_max(device: &Device, kind: u32) -> Answer<u32> {
    has_clock(kind)?;
    Ok(device.figures().gpu.clock_max_mhz.value as u32)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetClockInfo(handle: u64, kind: u32, place: Out<u32>) -> Status {
    on_device(handle, |device| put(place, clock_now(device, kind)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxClockInfo(handle: u64, kind: u32, place: Out<u32>) -> Status {
    on_device(handle, |device| put(place, clock_max(device, kind)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxCustomerBoostClock(handle: u64, kind: u32, place: Out<u32>) -> Status {
    on_device(handle, |device| put(place, clock_max(device, kind)?))
}

/// Which clock: now (0), or what applications are set to, by default or at most (1 to 3), which is the highest here.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetClock(handle: u64, kind: u32, which: u32, place: Out<u32>) -> Status {
    on_device(handle, |device| match which {
        0 => put(place, clock_now(device, kind)?),
        1..=3 => put(place, clock_max(device, kind)?),
        _ => Err(Status::INVALID_ARGUMENT),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetApplicationsClock(handle: u64, kind: u32, place: Out<u32>) -> Status {
    on_device(handle, |device| put(place, clock_max(device, kind)?))
}

/// KB/s over the last period, sent to the host (0) or received from it (1).
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPcieThroughput(handle: u64, counter: u32, place: Out<u32>) -> Status {
    on_device(handle, |device| {
        let rates = meter::recent(device);
        let bytes = match counter {
            0 => rates.to_host,
            1 => rates.to_device,
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        put(place, (bytes / 1e3) as u32)
    })
}

/// Of the chip (0), the only sensor.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperature(handle: u64, sensor: u32, place: Out<u32>) -> Status {
    on_device(handle, |device| put(place, temperature(device, sensor)?))
}

/// `nvmlTemperature_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Temperature {
    version: u32,
    sensor: u32,
    degrees: i32,
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperatureV(handle: u64, place: Out<Temperature>) -> Status {
    on_device(handle, |device| {
        let Temperature { version, sensor, .. } = place.get().map_err(|_| Status::INVALID_ARGUMENT)?;
        check_version::<Temperature>(version, 1)?;
        put(place, Temperature { version, sensor, degrees: temperature(device, sensor)?.cast_signed() })
    })
}

fn temperature(device: &Device, sensor: u32) -> Answer<u32> {
    if sensor != 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let load = power(device) / 1e3 / device.figures().gpu.power_cap_w.value;
    Ok((COLD + (HOT - COLD) * load) as u32)
}
