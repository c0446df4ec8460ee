//! Which functions of the driver the program has asked for or called, and how each of them is treated.
//!
//! Kept without locks, because lookups happen anywhere: bits for the functions of the list, and a short list of names for
//! those that are in nobody's. What is seen for the first time is counted in the page at once; the names go to the node
//! with the next beat of its thread, and to a file when the process ends ([`report`]).

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use partywall_shim_api::coverage::treatment;
use partywall_shim_api::frame::Disposition;
use partywall_shim_api::page::Page;

use crate::forwarders::{COUNT, NAMES};
use crate::process::page;

mod report;

pub(crate) use report::{arm, send_new};

/// One bit for each of a set's members.
type Bits<const WORDS: usize> = [AtomicU64; WORDS];

/// Functions of the list that were seen.
static SEEN: Bits<{ COUNT.div_ceil(64) }> = [const { AtomicU64::new(0) }; COUNT.div_ceil(64)];
/// Those of them that the node knows about.
static SENT: Bits<{ COUNT.div_ceil(64) }> = [const { AtomicU64::new(0) }; COUNT.div_ceil(64)];

/// Names in no list that are kept. A program of a much newer CUDA may ask for some dozens; of more, nobody reads the rest.
const UNKNOWN_LIMIT: usize = 256;

/// Names in no list, as leaked C strings; null from the first free place on.
static UNKNOWN: [AtomicPtr<c_char>; UNKNOWN_LIMIT] =
    [const { AtomicPtr::new(ptr::null_mut()) }; UNKNOWN_LIMIT];
/// Those of them that the node knows about.
static UNKNOWN_SENT: Bits<{ UNKNOWN_LIMIT / 64 }> = [const { AtomicU64::new(0) }; UNKNOWN_LIMIT / 64];

/// Whether this process itself has seen anything, rather than its parent before a fork.
static OWN: AtomicBool = AtomicBool::new(false);

/// Sets a bit; whether it was clear.
fn set(bits: &[AtomicU64], number: usize) -> bool {
    let mask = 1 << (number % 64);
    bits.get(number / 64).is_some_and(|word| word.fetch_or(mask, Ordering::Relaxed) & mask == 0)
}

fn unset(bits: &[AtomicU64], number: usize) {
    if let Some(word) = bits.get(number / 64) {
        word.fetch_and(!(1 << (number % 64)), Ordering::Relaxed);
    }
}

fn is_set(bits: &[AtomicU64], number: usize) -> bool {
    bits.get(number / 64).is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (number % 64)) != 0)
}

fn clear(bits: &[AtomicU64]) {
    bits.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

/// The program has asked for, or called, a function of the list.
pub(crate) fn mark(index: usize) {
    if set(&SEEN, index) {
        count(page(), of(index));
        first_own();
    }
}

/// The program has got a function that is in no list.
pub(crate) fn mark_unknown(name: &CStr) {
    let mut mine: Option<CString> = None;
    for place in &UNKNOWN {
        let mut there = place.load(Ordering::Acquire);
        if there.is_null() {
            let new = mine.take().unwrap_or_else(|| name.to_owned()).into_raw();
            match place.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    count(page(), Disposition::Unknown);
                    return first_own();
                }
                Err(other) => {
                    // SAFETY: made by `into_raw` above and not published.
                    mine = Some(unsafe { CString::from_raw(new) });
                    there = other;
                }
            }
        }
        // SAFETY: published strings are leaked and never change.
        if unsafe { CStr::from_ptr(there) } == name {
            return;
        }
    }
}

/// In a child after `fork`: what the parent has seen stays known, because pointers to it are still in use.
pub(crate) fn forked() {
    OWN.store(false, Ordering::Relaxed);
    clear(&SENT);
    clear(&UNKNOWN_SENT);
}

/// With a new page: what was seen so far is counted there, and the node knows of nothing.
pub(crate) fn registered(page: &'static Page) {
    clear(&SENT);
    clear(&UNKNOWN_SENT);
    for disposition in Disposition::ALL {
        let seen = seen().filter(|(_, found)| *found == disposition).count();
        counter(page, disposition).store(u32::try_from(seen).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

/// Has the report written at the end of the process, once something is seen.
fn first_own() {
    if !OWN.swap(true, Ordering::Relaxed) {
        arm();
    }
}

/// How a function of the list is treated.
fn of(index: usize) -> Disposition {
    let name = NAMES.get(index).and_then(|name| name.to_str().ok());
    name.map_or(Disposition::Unknown, |name| treatment(name).disposition)
}

/// Everything that was seen, as names, with how it is treated.
fn seen() -> impl Iterator<Item = (&'static CStr, Disposition)> {
    let listed = NAMES.iter().enumerate().filter(|(index, _)| is_set(&SEEN, *index));
    listed.map(|(index, name)| (*name, of(index))).chain(unknown().map(|name| (name, Disposition::Unknown)))
}

/// Names in no list, in the order in which they came.
fn unknown() -> impl Iterator<Item = &'static CStr> {
    let places = UNKNOWN.iter().map(|place| place.load(Ordering::Acquire));
    // SAFETY: published strings are leaked and never change.
    places.take_while(|name| !name.is_null()).map(|name| unsafe { CStr::from_ptr(name) })
}

fn counter(page: &Page, disposition: Disposition) -> &AtomicU32 {
    match disposition {
        Disposition::Enforced => &page.shim.covered_enforced,
        Disposition::Passed => &page.shim.covered_passed,
        Disposition::Refused => &page.shim.covered_refused,
        Disposition::Unknown => &page.shim.covered_unknown,
    }
}

fn count(page: &Page, disposition: Disposition) {
    counter(page, disposition).fetch_add(1, Ordering::Relaxed);
}
