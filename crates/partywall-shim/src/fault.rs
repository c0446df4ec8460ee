//! Errors that end the process's work on the device, noted for the node.
//!
//! The driver returns such an error to whichever call comes first, and again to all that follow. Every call that this library makes to
//! the driver passes by here, which covers what a program waits with: launches, copies, waits and questions. Only errors do more
//! than one comparison.

use std::sync::atomic::Ordering;

use partywall_core::faults::Origin;
use partywall_shim_api::page::Page;

use crate::clock::now_ns;
use crate::process::page;
use crate::sys::CUresult;

/// No such error has a lower number. "Not ready", 600, which questions return all the time, has.
pub(crate) const FIRST: u32 = 700;

/// A call has returned this, which is at least [`FIRST`].
#[cold]
pub(crate) fn returned(result: CUresult) {
    if Origin::of_code(result.0).is_some() {
        note(page(), result.0, now_ns());
    }
}

/// The first one counts.
fn note(page: &Page, code: u32, now_ns: u64) {
    let shim = &page.shim;
    if shim.fault_ns.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        shim.fault_code.store(code, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use partywall_shim_api::page::Mapped;

    use super::*;

    #[test]
    fn the_first_fault_is_kept() {
        let (page, _file) = Mapped::create(1, 1, 0, None).unwrap();
        for (code, now) in [(710, 5), (719, 6)] {
            note(&page, code, now);
        }
        let shim = &page.shim;
        let kept = (shim.fault_code.load(Ordering::Acquire), shim.fault_ns.load(Ordering::Relaxed));
        assert_eq!(kept, (710, 5));
    }

    #[test]
    fn no_fault_has_a_number_that_is_not_looked_at() {
        assert!((0..FIRST).all(|code| Origin::of_code(code).is_none()));
    }
}
