//! How long the device stays with this process while others wait for their turn: its time slice.
//!
//! # Problem
//!
//! Processes without an MPS daemon take turns. Who has the device keeps it for a time slice, 2 ms, whatever it runs: a long kernel is
//! interrupted then, and a request of a neighbour that comes in the meantime waits. How long it is can be said for each *channel group*,
//! which is where a process's work goes. No function of the CUDA driver offers that. But when it makes a channel group for kernels, it tells
//! the kernel's own driver: by a system call like any other, which needs no privileges and is about the process's own group.
//!
//! # Approach
//!
//! The library exports `ioctl`, and puts the time that the node wants in the place of the driver's own. Whatever else comes by goes on as it
//! is. If the kernel's driver does not take the time, it gets the one that was asked for, and that is said. The channel groups that came by
//! are remembered: when the node wants something else, the library's own thread says it to the kernel's driver in the same way ([`follow`]).
//!
//! A short slice costs a process nothing while nobody else wants the device; while somebody does, it loses it that often. So it is best-effort tenants
//! that get short ones, and latency-sensitive ones long ones.

use std::ffi::{c_int, c_ulong, c_void};
use std::mem::transmute;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use partywall_shim_api::kernel_driver::{CONTROL, Control};

use crate::process::page;
use crate::real;
use crate::say::say;

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// A channel group of this process.
struct Group {
    /// What the kernel's driver was spoken to through, duplicated: the CUDA driver may close its own.
    descriptor: OwnedFd,
    client: u32,
    object: u32,
    /// The slice that the CUDA driver asked for, in microseconds.
    asked_us: u64,
    /// The one that it has, in microseconds; 0: the one that was asked for.
    slice_us: AtomicU32,
    /// The one that was last wanted, whether it was taken or not.
    wanted_us: AtomicU32,
    next: *const Self,
}

/// The groups of this process, the last one first. They stay for as long as the process does: one that is gone is refused a slice, no more.
static GROUPS: AtomicPtr<Group> = AtomicPtr::new(ptr::null_mut());

/// In a child after `fork`, which cannot use its parent's groups.
pub(crate) fn forked() {
    GROUPS.store(ptr::null_mut(), Ordering::Release);
}

/// The C library's `ioctl`, in front of it: the prototype there has a variable number of arguments, of which one is ever used, and is passed
/// in the same place.
///
/// # Safety
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // The upper half of the word is no part of a request, and some programs extend the sign.
    if request as u32 == CONTROL && !argument.is_null() && real::is_open() {
        // SAFETY: this request says that such a structure is there, for the kernel to read and write.
        let control = unsafe { &mut *argument.cast::<Control>() };
        let wanted_us = page().node.slice_us.load(Ordering::Relaxed);
        // SAFETY: the caller's, for this call.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let keep = |group: Group| {
            remember(group);
            publish();
        };
        // SAFETY: the arguments are the caller's.
        return with_slice(
            control,
            wanted_us,
            descriptor,
            |control| unsafe { pass_on(descriptor, control) },
            keep,
        );
    }
    // SAFETY: as for the caller.
    unsafe { system_call(descriptor, request, argument) }
}

/// Has a control done by whatever the CUDA driver would reach by itself.
///
/// # Safety
/// As for the C library's `ioctl`, about what the control points to.
unsafe fn pass_on(descriptor: BorrowedFd<'_>, control: &mut Control) -> c_int {
    let next = real::function(c"ioctl").map_or(system_call as Ioctl, |found| {
        // SAFETY: what the driver library would call has this prototype, as far as it is used.
        unsafe { transmute::<*const c_void, Ioctl>(found) }
    });
    // SAFETY: the caller's word.
    unsafe { next(descriptor.as_raw_fd(), c_ulong::from(CONTROL), ptr::from_mut(control).cast()) }
}

fn remember(group: Group) {
    let group = Box::leak(Box::new(group));
    let mut last = GROUPS.load(Ordering::Acquire);
    loop {
        group.next = last;
        match GROUPS.compare_exchange_weak(last, group, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) => last = other,
        }
    }
}

/// Gives the process's groups the slice that the node wants now. For the library's own thread, again and again.
pub(crate) fn follow() {
    let wanted_us = page().node.slice_us.load(Ordering::Relaxed);
    let mut next = GROUPS.load(Ordering::Acquire).cast_const();
    // SAFETY: null or leaked by `remember`, and never changed afterwards but for atomics.
    while let Some(group) = unsafe { next.as_ref() } {
        next = group.next;
        // One that is not taken is not tried again until something else is wanted.
        if group.wanted_us.swap(wanted_us, Ordering::Relaxed) != wanted_us {
            let taken = group.set(wanted_us, |descriptor, control| {
                // SAFETY: its parameter is there for the call.
                unsafe { pass_on(descriptor, control) }
            });
            if taken {
                group.slice_us.store(wanted_us, Ordering::Relaxed);
            }
        }
    }
    publish();
}

/// Says in the page, which may be another node's by now, what the last group has.
fn publish() {
    // SAFETY: as in `follow`.
    if let Some(last) = unsafe { GROUPS.load(Ordering::Acquire).as_ref() } {
        page().shim.slice_us.store(last.slice_us.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Group {
    fn set(&self, wanted_us: u32, done: impl FnOnce(BorrowedFd<'_>, &mut Control) -> c_int) -> bool {
        let mut slice_us = if wanted_us == 0 { self.asked_us } else { u64::from(wanted_us) };
        let mut control = Control::of_slice(self.client, self.object, &raw mut slice_us);
        done(self.descriptor.as_fd(), &mut control) == 0 && control.status == 0
    }
}

/// What the C library does.
unsafe extern "C" fn system_call(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the arguments are the caller's. The result of this call fits, as the C library's own prototype has it.
    (unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) }) as c_int
}

/// Has a control done, with the wanted time where it is about a time slice and one is wanted; 0: none is. Keeps what it was about.
fn with_slice(
    control: &mut Control,
    wanted_us: u32,
    descriptor: BorrowedFd<'_>,
    mut done: impl FnMut(&mut Control) -> c_int,
    keep: impl FnOnce(Group),
) -> c_int {
    if !control.is_about_a_slice() {
        return done(control);
    }
    let place = control.parameters;
    // SAFETY: a parameter of so many bytes, which the caller has there for the kernel to read. It may be anywhere.
    let asked_us = unsafe { place.read_unaligned() };
    let (mut slice_us, mut result) = (0, -1);
    if wanted_us != 0 {
        // SAFETY: as above; it is the caller's own, for this call.
        unsafe { place.write_unaligned(u64::from(wanted_us)) };
        result = done(control);
        // SAFETY: as above. The caller finds what it has put there.
        unsafe { place.write_unaligned(asked_us) };
        if result == 0 && control.status == 0 {
            slice_us = wanted_us;
        } else {
            refused(wanted_us, control.status, asked_us);
        }
    }
    if slice_us == 0 {
        control.status = 0;
        result = done(control);
    }
    if let (0, 0, Ok(descriptor)) = (result, control.status, descriptor.try_clone_to_owned()) {
        let (client, object) = (control.client, control.object);
        let [slice_us, wanted_us] = [slice_us, wanted_us].map(AtomicU32::new);
        keep(Group { descriptor, client, object, asked_us, slice_us, wanted_us, next: ptr::null() });
    }
    result
}

fn refused(wanted_us: u32, status: u32, asked_us: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        say(&format!(
            "the kernel's driver does not take a time slice of {wanted_us} us (status {status:#x}); the process keeps its {asked_us} us"
        ));
    }
}

#[cfg(test)]
mod tests {
    use partywall_shim_api::kernel_driver::SET_TIMESLICE;

    use super::*;

    /// What the kernel's driver sees of a call, and what was kept of it.
    fn seen(command: u32, wanted_us: u32, refuses: Option<u64>) -> (Vec<u64>, Option<Group>) {
        let mut asked = 2_048;
        let mut control = Control { command, ..Control::of_slice(1, 2, &raw mut asked) };
        let (mut seen, mut kept) = (Vec::new(), None);
        let done = |control: &mut Control| {
            // SAFETY: it points to `asked`.
            let value = unsafe { control.parameters.read_unaligned() };
            seen.push(value);
            control.status = if Some(value) == refuses { 0x1f } else { 0 };
            0
        };
        let input = std::io::stdin();
        let result = with_slice(&mut control, wanted_us, input.as_fd(), done, |group| kept = Some(group));
        assert_eq!((result, control.status, asked), (0, 0, 2_048), "the caller sees nothing of it");
        (seen, kept)
    }

    #[test]
    fn a_wanted_slice_takes_the_place_of_the_drivers_own() {
        let (seen, group) = seen(SET_TIMESLICE, 200, None);
        let group = group.unwrap();
        assert_eq!((seen, group.slice_us.load(Ordering::Relaxed)), (vec![200], 200));
        assert_eq!((group.client, group.object, group.asked_us), (1, 2, 2_048));
    }

    #[test]
    fn whatever_else_is_asked_goes_on_as_it_is() {
        let (values, group) = seen(SET_TIMESLICE, 0, None);
        assert_eq!((values, group.unwrap().slice_us.load(Ordering::Relaxed)), (vec![2_048], 0));
        let (values, group) = seen(0xa06c_0101, 200, None);
        assert!(values == [2_048] && group.is_none());
    }

    #[test]
    fn a_slice_that_is_not_taken_is_the_drivers_own() {
        let (values, group) = seen(SET_TIMESLICE, 201, Some(201));
        assert_eq!((values, group.unwrap().slice_us.load(Ordering::Relaxed)), (vec![201, 2_048], 0));
    }

    #[test]
    fn a_group_is_given_another_slice_and_its_own_back() {
        let group = seen(SET_TIMESLICE, 200, None).1.unwrap();
        for (wanted_us, expected) in [(1_000, 1_000), (0, 2_048)] {
            let taken = group.set(wanted_us, |_, control| {
                // SAFETY: it is there for the call.
                assert_eq!(unsafe { control.parameters.read_unaligned() }, expected);
                assert_eq!((control.client, control.object, control.command), (1, 2, SET_TIMESLICE));
                0
            });
            assert!(taken);
        }
        assert!(!group.set(7, |_, control| {
            control.status = 0x1f;
            0
        }));
    }
}
