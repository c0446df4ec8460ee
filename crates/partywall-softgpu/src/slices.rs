//! Time slices: what the CUDA driver and the kernel's driver say to each other about them.
//!
//! The real driver tells the kernel's driver with an `ioctl` how long the device is to stay with a process while others wait. So does this
//! one, through whatever function of that name the program has, for the sake of who stands in front of it. The kernel's side of it is
//! here as well: an `ioctl` of this library, which knows this one thing and passes on all else. It is found by who asks this library's handle
//! for it, as one would find the C library's behind the real driver.

use std::ffi::{c_int, c_ulong, c_void};
use std::mem::transmute;
use std::sync::atomic::Ordering::Relaxed;

use partywall_shim_api::kernel_driver::{CONTROL, Control};

use crate::device::Device;
use crate::device::turns::SLICE_NS;

/// Tells this library's controls from those for a real device.
const CLIENT: u32 = u32::from_le_bytes(*b"soft");

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// What the driver does when it makes a context: asks for its usual slice.
pub(crate) fn ask(device: &Device) {
    // SAFETY: the name is a C string, and the loader finds functions of this prototype, as far as it is used.
    let ioctl = unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"ioctl".as_ptr());
        transmute::<*mut c_void, Option<Ioctl>>(found)
    };
    let mut slice_us = SLICE_NS / 1_000;
    let mut control = Control::of_slice(CLIENT, 1, &raw mut slice_us);
    if let Some(ioctl) = ioctl {
        // SAFETY: the structure and its parameter are there for the call. Where nobody knows such a request, as for any other file, it
        // fails, and the slice is the usual one.
        unsafe { ioctl(device.descriptor(), c_ulong::from(CONTROL), (&raw mut control).cast()) };
    }
}

/// The kernel's side.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request as u32 == CONTROL && !argument.is_null() {
        // SAFETY: this request says that such a structure is there.
        let control = unsafe { &mut *argument.cast::<Control>() };
        if control.client == CLIENT && control.is_about_a_slice() {
            // SAFETY: a parameter of eight bytes, as the command says.
            let slice_us = unsafe { control.parameters.read_unaligned() };
            let taken = Device::of_this_process().is_ok_and(|device| device.set_slice(slice_us));
            control.status = if taken { 0 } else { INVALID };
            return 0;
        }
    }
    // SAFETY: the arguments are the caller's. The result fits, as the C library's own prototype has it.
    (unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) }) as c_int
}

/// `NV_ERR_INVALID_ARGUMENT`.
const INVALID: u32 = 0x1f;

impl Device {
    /// How long this process keeps the device while others wait.
    pub(crate) fn slice_ns(&self) -> u64 {
        let slice_us = self.own_entry().map_or(0, |entry| entry.slice_us.load(Relaxed));
        if slice_us == 0 { SLICE_NS } else { u64::from(slice_us) * 1_000 }
    }

    fn set_slice(&self, slice_us: u64) -> bool {
        let (Some(entry), Ok(slice_us @ 1..)) = (self.own_entry(), u32::try_from(slice_us)) else {
            return false;
        };
        entry.slice_us.store(slice_us, Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::turns::Turn;
    use crate::folder::tests::made;

    #[test]
    fn a_turn_is_as_long_as_its_owners_slice() {
        let (_directory, folder) = made("h200");
        let device = Device::open(folder).unwrap();
        assert!(!device.set_slice(200), "there is no context yet");
        device.add_context(0).unwrap();
        assert_eq!(device.slice_ns(), SLICE_NS);
        assert!(device.set_slice(200) && !device.set_slice(0));
        let ask = |group, now, duration| device.ask_turn(group, now, now, duration).unwrap();
        assert_eq!(ask(1, 1_000, 50_000), Turn::Runs(1_000));
        assert!(matches!(ask(2, 2_000, 1_000), Turn::Wait(_)));
        assert_eq!(ask(1, 52_000, 50_000), Turn::Runs(52_000), "within the slice");
        assert!(matches!(ask(1, 201_000, 50_000), Turn::Wait(_)), "the slice is over");
    }

    #[test]
    fn a_control_for_another_device_goes_to_the_kernel() {
        let mut slice_us = 7;
        let mut control = Control { status: 9, ..Control::of_slice(1, 1, &raw mut slice_us) };
        // SAFETY: the structure is there, and no file has this number.
        let result = unsafe { ioctl(-1, c_ulong::from(CONTROL), (&raw mut control).cast()) };
        assert_eq!((result, control.status), (-1, 9));
    }
}
