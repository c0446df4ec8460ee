//! The library itself: beginning and end, versions, words for errors, names of processes.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

use super::{HANDLE, INITIALISED, Status, finish, initialised, on_device, put, put_text, text};
use crate::abi::{Out, Text};
use crate::device::Device;

/// Words for a status, as C keeps them.
const WORDS: &[(Status, &CStr)] = &[
    (Status::SUCCESS, c"Success"),
    (Status::UNINITIALIZED, c"Uninitialized"),
    (Status::INVALID_ARGUMENT, c"Invalid Argument"),
    (Status::NOT_SUPPORTED, c"Not Supported"),
    (Status::NOT_FOUND, c"Not Found"),
    (Status::INSUFFICIENT_SIZE, c"Insufficient Size"),
    (Status::DRIVER_NOT_LOADED, c"Driver Not Loaded"),
    (Status::GPU_IS_LOST, c"GPU is lost"),
    (Status::ARGUMENT_VERSION_MISMATCH, c"Argument version mismatch"),
];

fn begin() -> Status {
    match Device::of_this_process() {
        Ok(_) => {
            INITIALISED.fetch_add(1, Ordering::Relaxed);
            Status::SUCCESS
        }
        Err(error) => {
            super::missing::say(&error.to_string());
            super::from_device(&error)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> Status {
    begin()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Status {
    begin()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: u32) -> Status {
    begin()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Status {
    let less = INITIALISED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    if less.is_ok() { Status::SUCCESS } else { Status::UNINITIALIZED }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(status: Status) -> *const c_char {
    let words = WORDS.iter().find(|(known, _)| *known == status).map_or(c"Unknown Error", |(_, words)| words);
    words.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(place: Out<u8>, room: u32) -> Status {
    initialised(|device| put_text(place, room, &device.figures().driver))
}

/// As the driver counts: the version of NVML is 12 or 13, by CUDA, and the driver's behind it.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetNVMLVersion(place: Out<u8>, room: u32) -> Status {
    initialised(|device| {
        let figures = device.figures();
        put_text(place, room, &format!("{}.{}", figures.cuda / 1000, figures.driver))
    })
}

fn cuda_version(place: Out<i32>) -> Status {
    // Allowed before initialisation.
    let device = Device::of_this_process().map_err(|error| super::from_device(&error));
    finish(device.and_then(|device| put(place, device.figures().cuda.cast_signed())))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion(place: Out<i32>) -> Status {
    cuda_version(place)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(place: Out<i32>) -> Status {
    cuda_version(place)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetProcessName(pid: u32, place: Out<u8>, room: u32) -> Status {
    initialised(|_| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Status::NOT_FOUND)?;
        let words: Vec<_> = line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
        let name = words.join(" ");
        // Longer ones are cut.
        let mut end = name.trim_end().len().min((room as usize).saturating_sub(1));
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        put_text(place, room, &name[..end])
    })
}

fn count(place: Out<u32>) -> Status {
    initialised(|_| put(place, 1))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount(place: Out<u32>) -> Status {
    count(place)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(place: Out<u32>) -> Status {
    count(place)
}

fn by_index(index: u32, place: Out<u64>) -> Status {
    initialised(|_| if index == 0 { put(place, HANDLE) } else { Err(Status::INVALID_ARGUMENT) })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex(index: u32, place: Out<u64>) -> Status {
    by_index(index, place)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, place: Out<u64>) -> Status {
    by_index(index, place)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByUUID(uuid: Text, place: Out<u64>) -> Status {
    initialised(|device| {
        let known = text(uuid)?.eq_ignore_ascii_case(&device.figures().uuid);
        if known { put(place, HANDLE) } else { Err(Status::NOT_FOUND) }
    })
}

fn by_bus(bus: Text, place: Out<u64>) -> Status {
    initialised(|_| {
        let known = super::identity::is_bus(&text(bus)?);
        if known { put(place, HANDLE) } else { Err(Status::NOT_FOUND) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId(bus: Text, place: Out<u64>) -> Status {
    by_bus(bus, place)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus: Text, place: Out<u64>) -> Status {
    by_bus(bus, place)
}

/// Whether a machine's two devices are on one board: there is one device.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceOnSameBoard(one: u64, other: u64, place: Out<i32>) -> Status {
    on_device(one, |_| if other == HANDLE { put(place, 1) } else { Err(Status::INVALID_ARGUMENT) })
}

/// The CPUs near the device: all that there are.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCpuAffinity(handle: u64, words: u32, place: Out<u64>) -> Status {
    on_device(handle, |_| {
        if words == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        (0..words as usize).try_for_each(|word| {
            let left = cpus.saturating_sub(word * 64);
            put(place.at(word), if left >= 64 { u64::MAX } else { (1 << left) - 1 })
        })
    })
}
