//! GPM: counters of Hopper and later, read twice by the caller.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::meter::{Mark, Rates};
use super::{Answer, Status, initialised, on_device, put};
use crate::abi::Out;
use crate::device::Device;

/// The first compute capability that has it.
const FIRST: (u32, u32) = (9, 0);

/// The version of both structures.
const VERSION: u32 = 1;

/// More metrics than there are numbers for.
const METRICS_MAX: u32 = 512;

/// `nvmlGpmSupport_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Support {
    version: u32,
    supported: u32,
}

/// What `nvmlGpmMetricsGet_t` begins with; the metrics are behind it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    version: u32,
    count: u32,
    first: u64,
    second: u64,
}

/// `nvmlGpmMetric_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Metric {
    id: u32,
    status: u32,
    value: f64,
    /// Short name, long name and unit, which nobody has to fill in.
    names: [u64; 3],
}

/// Samples by handle; without a mark until one is taken.
struct Samples {
    next: u64,
    all: BTreeMap<u64, Option<Mark>>,
}

fn samples() -> MutexGuard<'static, Samples> {
    static SAMPLES: Mutex<Samples> = Mutex::new(Samples { next: 0x2000, all: BTreeMap::new() });
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_supported(device: &Device) -> bool {
    device.figures().compute_capability() >= FIRST
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmQueryDeviceSupport(handle: u64, place: Out<Support>) -> Status {
    on_device(handle, |device| {
        let Support { version, .. } = place.get().map_err(|_| Status::INVALID_ARGUMENT)?;
        if version != VERSION {
            return Err(Status::ARGUMENT_VERSION_MISMATCH);
        }
        put(place, Support { version, supported: is_supported(device).into() })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmSampleAlloc(place: Out<u64>) -> Status {
    initialised(|_| {
        let mut samples = samples();
        let handle = samples.next;
        put(place, handle)?;
        samples.next += 1;
        samples.all.insert(handle, None);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmSampleFree(sample: u64) -> Status {
    initialised(|_| samples().all.remove(&sample).map(|_| ()).ok_or(Status::INVALID_ARGUMENT))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmSampleGet(handle: u64, sample: u64) -> Status {
    on_device(handle, |device| {
        if !is_supported(device) {
            return Err(Status::NOT_SUPPORTED);
        }
        let mark = Mark::now(device);
        *samples().all.get_mut(&sample).ok_or(Status::INVALID_ARGUMENT)? = Some(mark);
        Ok(())
    })
}

/// The value of a metric, by NVML's number for it; `None` for those that nothing here counts.
fn value(id: u32, rates: &Rates) -> Option<f64> {
    const MIB: f64 = (1 << 20) as f64;
    Some(match id {
        // Graphics and SM utilisation, per cent.
        1 | 2 => rates.busy * 100.0,
        // Memory bandwidth, per cent.
        10 => rates.memory * 100.0,
        // Sent and received over PCIe, MiB/s.
        20 => rates.to_host / MIB,
        21 => rates.to_device / MIB,
        _ => return None,
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmMetricsGet(place: Out<Request>) -> Status {
    initialised(|device| {
        let request = place.get().map_err(|_| Status::INVALID_ARGUMENT)?;
        if request.version != VERSION {
            return Err(Status::ARGUMENT_VERSION_MISMATCH);
        }
        if request.count > METRICS_MAX {
            return Err(Status::INVALID_ARGUMENT);
        }
        let samples = samples();
        let mark = |handle| samples.all.get(&handle).copied().flatten().ok_or(Status::INVALID_ARGUMENT);
        let (first, second): (Mark, Mark) = (mark(request.first)?, mark(request.second)?);
        let rates = first.rates_until(&second, &device.figures().gpu);
        let metrics = place.at(1).cast::<Metric>();
        (0..request.count as usize).try_for_each(|index| fill(metrics.at(index), &rates))
    })
}

fn fill(place: Out<Metric>, rates: &Rates) -> Answer {
    let metric = place.get().map_err(|_| Status::INVALID_ARGUMENT)?;
    let found = value(metric.id, rates);
    let status = if found.is_some() { Status::SUCCESS } else { Status::NOT_SUPPORTED };
    put(place, Metric { status: status.0, value: found.unwrap_or(0.0), ..metric })
}
