//! Who has contexts on the device: the table that all processes share.
//!
//! As the driver does it, clients of an MPS daemon are on a list of their own.

use super::{Answer, Status, from_device, on_device, put};
use crate::abi::Out;
use crate::device::{Device, Process};

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct InfoV1 {
    pid: u32,
    used: u64,
}

/// `nvmlProcessInfo_v2_t`, which is the third version too. Without MIG the instances have no number.
#[repr(C)]
#[derive(Clone, Copy)]
struct InfoV2 {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

impl From<&Process> for InfoV1 {
    fn from(process: &Process) -> Self {
        Self { pid: process.pid, used: process.memory + process.context_memory }
    }
}

impl From<&Process> for InfoV2 {
    fn from(process: &Process) -> Self {
        let InfoV1 { pid, used } = process.into();
        Self { pid, used, gpu_instance: u32::MAX, compute_instance: u32::MAX }
    }
}

fn of_device(device: &Device, mps: bool) -> Answer<Vec<Process>> {
    let mut all = device.processes().map_err(|error| from_device(&error))?;
    all.retain(|process| process.contexts > 0 && (process.mps_group != 0) == mps);
    Ok(all)
}

/// Writes a list as C asks for it: `count` says how many there is room for, and afterwards how many there are.
fn put_list<T: Copy>(found: impl ExactSizeIterator<Item = T>, count: Out<u32>, places: Out<T>) -> Answer {
    let room = count.get().map_err(|_| Status::INVALID_ARGUMENT)?;
    let needed = u32::try_from(found.len()).map_err(|_| Status::UNKNOWN)?;
    put(count, needed)?;
    if needed > room {
        return Err(Status::INSUFFICIENT_SIZE);
    }
    found.enumerate().try_for_each(|(index, one)| put(places.at(index), one))
}

fn list<T: Copy + for<'a> From<&'a Process>>(
    handle: u64,
    mps: bool,
    count: Out<u32>,
    places: Out<T>,
) -> Status {
    on_device(handle, |device| {
        let found = of_device(device, mps)?;
        put_list(found.iter().map(T::from), count, places)
    })
}

fn none(handle: u64, count: Out<u32>) -> Status {
    on_device(handle, |_| put(count, 0))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    handle: u64,
    count: Out<u32>,
    places: Out<InfoV1>,
) -> Status {
    list(handle, false, count, places)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    handle: u64,
    count: Out<u32>,
    places: Out<InfoV2>,
) -> Status {
    list(handle, false, count, places)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: u64,
    count: Out<u32>,
    places: Out<InfoV2>,
) -> Status {
    list(handle, false, count, places)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses(
    handle: u64,
    count: Out<u32>,
    places: Out<InfoV1>,
) -> Status {
    list(handle, true, count, places)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
    handle: u64,
    count: Out<u32>,
    places: Out<InfoV2>,
) -> Status {
    list(handle, true, count, places)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    handle: u64,
    count: Out<u32>,
    places: Out<InfoV2>,
) -> Status {
    list(handle, true, count, places)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGraphicsRunningProcesses(handle: u64, count: Out<u32>, _: Out<InfoV1>) -> Status {
    none(handle, count)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v2(
    handle: u64,
    count: Out<u32>,
    _: Out<InfoV2>,
) -> Status {
    none(handle, count)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    handle: u64,
    count: Out<u32>,
    _: Out<InfoV2>,
) -> Status {
    none(handle, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::tests::made;

    #[test]
    fn a_process_is_on_one_of_the_lists_with_all_its_memory() {
        let (_directory, folder) = made("h200");
        let device = Device::open(folder).unwrap();
        assert_eq!(of_device(&device, false), Ok(Vec::new()));
        device.add_context(0).unwrap();
        device.take(3 << 20).unwrap();
        let found = of_device(&device, false).unwrap();
        assert!(of_device(&device, true).unwrap().is_empty());
        let info = InfoV2::from(&found[0]);
        assert_eq!((info.pid, info.gpu_instance), (std::process::id(), u32::MAX));
        assert_eq!(info.used, device.used().unwrap());
        assert_eq!(info.used, (3 << 20) + device.figures().context().0.next_multiple_of(crate::device::PAGE));
        device.add_context(1 << 63).unwrap();
        assert_eq!(of_device(&device, true).unwrap().len(), 1);
        assert!(of_device(&device, false).unwrap().is_empty());
    }
}
