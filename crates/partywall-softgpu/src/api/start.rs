//! Starting, versions, errors, and finding functions.

use std::ffi::{c_char, c_void};

use partywall_shim_api::driver_api::{self, DefaultStream};

use crate::abi::{In, Out, Text};
use crate::api::export;
use crate::error::{self, Code};
use crate::process;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// The newest version that is spoken.
const VERSION: i32 = partywall_core::soft_gpu::CUDA as i32;

api! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        process::init()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(VERSION)
    }

    fn cuGetErrorName(code: u32, text: Out<*const c_char>) {
        let name = error::name(code);
        text.set(name.map_or(std::ptr::null(), |name| name.as_ptr()))?;
        name.map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    fn cuGetErrorString(code: u32, text: Out<*const c_char>) {
        let words = error::words(code);
        text.set(words.map_or(std::ptr::null(), |words| words.as_ptr()))?;
        words.map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    fn cuGetProcAddress(symbol: Text, place: Out<*const ()>, version: i32, flags: u64) {
        find(symbol, place, version, flags, None)
    }

    fn cuGetProcAddress_v2(symbol: Text, place: Out<*const ()>, version: i32, flags: u64, status: Out<u32>) {
        find(symbol, place, version, flags, Some(status))
    }

    fn cuGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) {
        id.get()?;
        table.set(std::ptr::null())?;
        Err(Code::NOT_FOUND)
    }

    fn cuProfilerStart() {
        process::get().map(|_| ())
    }

    fn cuProfilerStop() {
        process::get().map(|_| ())
    }
}

/// What the driver answers for a name that it has, that it has not, and that it has only in a newer version.
fn find(
    symbol: Text,
    place: Out<*const ()>,
    version: i32,
    flags: u64,
    status: Option<Out<u32>>,
) -> Result<(), Code> {
    const FOUND: u32 = 0;
    const UNKNOWN: u32 = 1;
    const TOO_NEW: u32 = 2;
    let name = symbol.get()?;
    if flags > PER_THREAD || version > VERSION {
        return Err(Code::INVALID_VALUE);
    }
    let streams = if flags == PER_THREAD { DefaultStream::PerThread } else { DefaultStream::Legacy };
    let cuda = u32::try_from(version).map_err(|_| Code::INVALID_VALUE)?;
    let function = driver_api::resolve(&name, cuda, streams);
    let address = function.and_then(|function| export(function.name));
    place.set(address.unwrap_or(std::ptr::null()))?;
    let found = match address {
        Some(_) => FOUND,
        None if driver_api::resolve(&name, VERSION as u32, streams).is_some() => TOO_NEW,
        None => UNKNOWN,
    };
    match status {
        Some(status) => {
            status.offer(found);
            Ok(())
        }
        // The first version of this function has no other way to say it.
        None if found != FOUND => Err(Code::NOT_FOUND),
        None => Ok(()),
    }
}
