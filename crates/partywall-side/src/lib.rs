//! Memory on one side of the chip, for a program that takes part: a C library of seven functions.
//!
//! # Problem
//!
//! Behind the wall `sides` a program's data have to be on its side, and its kernels have to be rewritten so that they go there (`partywall vram
//! ptxas`). PyTorch asks a library for memory through two functions (`torch.cuda.memory.CUDAPluggableAllocator`); others do so by similar ones.
//!
//! # Approach
//!
//! [`partywall_side_begin`] makes an arena of the side that the environment names, on the GPU with the number 0, and says how kernels have to be
//! rewritten for it ([`partywall_side_arena`], the value of `PARTYWALL_ARENA`). Memory of it has addresses that the driver knows, and what is there
//! is only seen by rewritten kernels, [`partywall_side_write`] and [`partywall_side_read`]. Any other access, a copy by the driver's functions
//! too, is of some other byte of the arena's pages.
//!
//! # Scenarios (the tests bear these names)
//!
//! - S1: memory is allocated, written, read, given back and allocated again.
//! - S2: there is no room: no memory, and [`partywall_side_error`] says why.
//! - S3: the environment names no side, or what is not one: nothing is begun, and it is said what would be right.
//! - S4: two begins, or anything before the first: an error.

mod side;

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::slice;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use partywall_shim_api::environment;

pub use side::{Memory, SideError};

static MEMORY: OnceLock<Mutex<Memory>> = OnceLock::new();

/// What went wrong last, in any thread.
static ERROR: Mutex<Option<CString>> = Mutex::new(None);

/// How kernels have to be rewritten.
static ARENA: OnceLock<CString> = OnceLock::new();

const DONE: c_int = 0;
const FAILED: c_int = 1;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(words: &str) -> CString {
    CString::new(words.replace('\0', " ")).unwrap_or_default()
}

/// The value, or nothing and a message that [`partywall_side_error`] has.
fn said<T>(result: Result<T, SideError>) -> Option<T> {
    result.map_err(|error| *lock(&ERROR) = Some(text(&error.to_string()))).ok()
}

fn memory() -> Result<MutexGuard<'static, Memory>, SideError> {
    MEMORY.get().map(lock).ok_or(SideError::NotBegun)
}

#[expect(clippy::disallowed_methods, reason = "the environment is all that a library is told")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn begin(bytes: u64) -> Result<(), SideError> {
    if MEMORY.get().is_some() {
        return Err(SideError::Begun);
    }
    let [side, known] = [environment::SIDE, environment::SIDE_KNOWN].map(variable);
    let made = Memory::told(side.as_deref(), known.as_deref(), bytes)?;
    let order = text(&made.order());
    MEMORY.set(Mutex::new(made)).map_err(|_| SideError::Begun)?;
    ARENA.get_or_init(|| order);
    Ok(())
}

/// Takes memory for at least so many bytes on the side that the environment says: `PARTYWALL_SIDE` is `first` or `second`, and
/// `PARTYWALL_SIDE_KNOWN` the path of a file that says where the sides are. Twice as much memory is taken as it holds. 0, or 1 and an error. To
/// be called once, in the process that uses the memory, while nothing else runs there.
#[unsafe(no_mangle)]
pub extern "C" fn partywall_side_begin(bytes: u64) -> c_int {
    said(begin(bytes)).map_or(FAILED, |()| DONE)
}

/// How kernels have to be rewritten that use it: the value for `PARTYWALL_ARENA`, without it null. It stays where it is.
#[unsafe(no_mangle)]
pub extern "C" fn partywall_side_arena() -> *const c_char {
    ARENA.get().map_or(std::ptr::null(), |order| order.as_ptr())
}

/// Memory from a multiple of 512 on, or null and an error. Its contents are anything. The device and the stream are not looked at: they are what
/// PyTorch hands to allocators.
#[unsafe(no_mangle)]
pub extern "C" fn partywall_side_malloc(bytes: isize, _device: c_int, _stream: *mut c_void) -> *mut c_void {
    let taken = memory().and_then(|mut memory| memory.take(bytes));
    said(taken).map_or(std::ptr::null_mut(), |address| std::ptr::without_provenance_mut(address as usize))
}

/// Gives memory back that nothing on the device uses any more. Null is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn partywall_side_free(
    address: *mut c_void,
    _bytes: isize,
    _device: c_int,
    _stream: *mut c_void,
) {
    if !address.is_null() {
        said(memory().and_then(|mut memory| memory.give(address.addr() as u64)));
    }
}

/// Copies bytes from the host to memory of the side, after everything that the device does for this process, and waits. 0, or 1 and an error.
///
/// # Safety
/// `from` has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn partywall_side_write(to: u64, from: *const u8, bytes: usize) -> c_int {
    let written = memory().and_then(|memory| {
        if from.is_null() || bytes == 0 {
            return memory.write(to, &[]);
        }
        // SAFETY: the caller's promise.
        memory.write(to, unsafe { slice::from_raw_parts(from, bytes) })
    });
    said(written).map_or(FAILED, |()| DONE)
}

/// Copies bytes from memory of the side to the host, after everything that the device does for this process. 0, or 1 and an error.
///
/// # Safety
/// `to` has room for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn partywall_side_read(from: u64, to: *mut u8, bytes: usize) -> c_int {
    let read = memory().and_then(|memory| {
        if to.is_null() || bytes == 0 {
            return memory.read(from, &mut []);
        }
        // SAFETY: the caller's promise.
        memory.read(from, unsafe { slice::from_raw_parts_mut(to, bytes) })
    });
    said(read).map_or(FAILED, |()| DONE)
}

/// What went wrong last, cut off at the room that there is, with a zero at the end; how long it is. 0 where nothing has.
///
/// # Safety
/// `place` has room for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn partywall_side_error(place: *mut u8, room: usize) -> usize {
    let error = lock(&ERROR);
    let words = error.as_deref().map_or(&[][..], CStr::to_bytes);
    if !place.is_null() && room > 0 {
        let kept = words.len().min(room - 1);
        // SAFETY: the caller's promise.
        let place = unsafe { slice::from_raw_parts_mut(place, kept + 1) };
        place[..kept].copy_from_slice(&words[..kept]);
        place[kept] = 0;
    }
    words.len()
}
