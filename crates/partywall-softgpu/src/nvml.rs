//! The functions of NVML, for the one simulated device: what it is, who uses it, and how busy it was.
//!
//! Everything comes from `gpu.json` and from the state that all processes share, so what one process allocates, every
//! other one sees here. What a device of the catalogue has no figure for (memory clocks, serial numbers), and what a
//! simulated device has not (fans, ECC counters, MIG instances), is answered as a driver answers for a part without it:
//! not supported. Functions of the API that this file's modules do not have answer the same and say so once.
//!
//! Safe as far as callers keep to `nvml.h`: pointers lead to a place for what is written there.

mod gpm;
mod identity;
mod load;
mod memory;
mod meter;
mod missing;
mod processes;
mod system;

use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::{Out, Text};
use crate::device::{Device, DeviceError};

/// `nvmlReturn_t`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(u32);

impl Status {
    const SUCCESS: Self = Self(0);
    const UNINITIALIZED: Self = Self(1);
    const INVALID_ARGUMENT: Self = Self(2);
    const NOT_SUPPORTED: Self = Self(3);
    const NOT_FOUND: Self = Self(6);
    const INSUFFICIENT_SIZE: Self = Self(7);
    const DRIVER_NOT_LOADED: Self = Self(9);
    const GPU_IS_LOST: Self = Self(15);
    const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    const UNKNOWN: Self = Self(999);
}

type Answer<T = ()> = Result<T, Status>;

/// The handle of the device: NVML's are pointers that nobody but the library follows.
const HANDLE: u64 = 0x1000;

/// How often the library was initialised less how often it was shut down.
static INITIALISED: AtomicU32 = AtomicU32::new(0);

fn finish(answer: Answer) -> Status {
    answer.err().unwrap_or(Status::SUCCESS)
}

/// What a function does that needs the library initialised.
fn initialised(work: impl FnOnce(&'static Device) -> Answer) -> Status {
    if INITIALISED.load(Ordering::Relaxed) == 0 {
        return Status::UNINITIALIZED;
    }
    finish(Device::of_this_process().map_err(|error| from_device(&error)).and_then(work))
}

/// What a function does for the device `handle`.
fn on_device(handle: u64, work: impl FnOnce(&'static Device) -> Answer) -> Status {
    initialised(|device| match handle {
        HANDLE if device.is_lost() => Err(Status::GPU_IS_LOST),
        HANDLE => work(device),
        _ => Err(Status::INVALID_ARGUMENT),
    })
}

fn from_device(error: &DeviceError) -> Status {
    match error {
        DeviceError::Folder(_) | DeviceError::Foreign { .. } => Status::DRIVER_NOT_LOADED,
        DeviceError::Lost => Status::GPU_IS_LOST,
        _ => Status::UNKNOWN,
    }
}

/// Writes an answer where the caller wants it.
fn put<T>(place: Out<T>, value: T) -> Answer {
    place.set(value).map_err(|_| Status::INVALID_ARGUMENT)
}

fn text(place: Text) -> Answer<String> {
    place.get().map_err(|_| Status::INVALID_ARGUMENT)
}

/// Writes a text and its end into a buffer of `room` bytes.
fn put_text(place: Out<u8>, room: u32, text: &str) -> Answer {
    if place.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    if text.len() >= room as usize {
        return Err(Status::INSUFFICIENT_SIZE);
    }
    text.bytes().chain([0]).enumerate().try_for_each(|(index, byte)| put(place.at(index), byte))
}

/// A text in a field of `N` bytes, cut where it does not fit, and filled with zeroes.
fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let length = text.len().min(N - 1);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    bytes
}

/// Structures of later versions of the API begin with their size and a version.
fn check_version<T>(found: u32, version: u32) -> Answer {
    let right = size_of::<T>() as u32 | version << 24;
    if found == right { Ok(()) } else { Err(Status::ARGUMENT_VERSION_MISMATCH) }
}

/// Functions that write one answer about the device, in order: what C calls it, what it writes, and which value.
macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident -> $kind:ty = |$device:pat_param| $value:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name(handle: u64, place: $crate::abi::Out<$kind>) -> $crate::nvml::Status {
            $crate::nvml::on_device(handle, |$device| $crate::nvml::put(place, $value?))
        }
    )*};
}
use answers;

/// Functions about what this device has not: answered as for a part without it, and nothing to speak of.
macro_rules! nothing {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(handle: u64) -> $crate::nvml::Status {
            $crate::nvml::on_device(handle, |_| Err($crate::nvml::Status::NOT_SUPPORTED))
        }
    )*};
}
use nothing;
