//! One export for each function of libcuda: a jump through its slot.
//!
//! A slot is empty until the function is called for the first time. Then the resolver saves every register that can
//! carry an argument, finds where the slot leads (the hook, or the real function) and goes there. So no forwarder needs
//! to know the prototype of its function, and later calls cost a load, a test and a jump.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{coverage, hooks, process, real};

#[cfg(all(not(test), target_arch = "aarch64"))]
#[path = "forwarders/aarch64.rs"]
mod arch;
#[cfg(all(not(test), target_arch = "x86_64"))]
#[path = "forwarders/x86_64.rs"]
mod arch;

#[cfg(not(test))]
use arch::forwarders;

include!(concat!(env!("OUT_DIR"), "/forwarders.rs"));

/// Where each function leads; null until it is first called.
static SLOTS: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

/// The number of an export in the list.
pub(crate) fn index_of(name: &CStr) -> Option<usize> {
    NAMES.binary_search(&name).ok()
}

/// Where a function leads: its hook; else the real function; `None` where the real library has no such function.
pub(crate) fn target(index: usize) -> Option<*const c_void> {
    let name = NAMES.get(index)?;
    let real = real::function(name)?;
    Some(hooks::find(name).map_or(real, |hook| hook.function))
}

/// Finds where a slot leads. The forwarders come here when it is empty; never gives null.
extern "C" fn resolve(index: usize) -> *const c_void {
    process::start();
    coverage::mark(index);
    let target = target(index).unwrap_or(real::absent as *const c_void);
    if let Some(slot) = SLOTS.get(index) {
        slot.store(target.cast_mut(), Ordering::Release);
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_where_the_list_has_it() {
        for (index, name) in NAMES.iter().enumerate() {
            assert_eq!(index_of(name), Some(index));
        }
        assert_eq!(index_of(c"cuNoSuchFunction"), None);
        assert_eq!(SLOTS.len(), COUNT);
    }
}
