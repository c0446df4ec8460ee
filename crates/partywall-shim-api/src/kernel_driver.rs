//! What a CUDA driver says to the kernel's own driver, as far as Partywall stands between them: by `ioctl`, in the form that NVIDIA's
//! published sources of the kernel modules have.

/// A *control*: what `NV_ESC_RM_CONTROL` takes, `NVOS54_PARAMETERS` there.
#[derive(Debug)]
#[repr(C)]
pub struct Control {
    /// Who asks.
    pub client: u32,
    /// About what: for [`SET_TIMESLICE`], a channel group.
    pub object: u32,
    /// What is to be done.
    pub command: u32,
    /// How; 0 as far as is known here.
    pub flags: u32,
    /// The command's parameters; for [`SET_TIMESLICE`], one number.
    pub parameters: *mut u64,
    /// Their size in bytes.
    pub parameters_bytes: u32,
    /// 0 once it was done.
    pub status: u32,
}

/// The request that a [`Control`] comes with: `_IOWR('F', 0x2a, Control)`.
pub const CONTROL: u32 = 3 << 30 | (size_of::<Control>() as u32) << 16 | (b'F' as u32) << 8 | 0x2a;

/// `NVA06C_CTRL_CMD_SET_TIMESLICE`: how long the time slice of a channel group is, as a number of microseconds.
pub const SET_TIMESLICE: u32 = 0xa06c_0103;

impl Control {
    /// Whether it is about a time slice, and has one.
    pub fn is_about_a_slice(&self) -> bool {
        let has_one = self.parameters_bytes as usize == size_of::<u64>() && !self.parameters.is_null();
        self.command == SET_TIMESLICE && has_one
    }

    /// One that sets the time slice of a channel group to the number at `slice_us`.
    pub const fn of_slice(client: u32, object: u32, slice_us: *mut u64) -> Self {
        let parameters_bytes = size_of::<u64>() as u32;
        Self {
            client,
            object,
            command: SET_TIMESLICE,
            flags: 0,
            parameters: slice_us,
            parameters_bytes,
            status: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_layout_is_the_kernel_drivers() {
        assert_eq!((size_of::<Control>(), CONTROL), (32, 0xc020_462a));
        assert_eq!(
            (offset_of!(Control, command), offset_of!(Control, parameters), offset_of!(Control, status)),
            (8, 16, 28)
        );
    }

    #[test]
    fn a_slice_is_a_number_of_its_size() {
        let mut slice_us = 7;
        let control = Control::of_slice(1, 2, &raw mut slice_us);
        assert!(control.is_about_a_slice());
        assert!(
            !Control { parameters_bytes: 4, ..Control::of_slice(1, 2, &raw mut slice_us) }.is_about_a_slice()
        );
        assert!(!Control { command: 0xa06c_0101, ..control }.is_about_a_slice());
        assert!(!Control::of_slice(1, 2, std::ptr::null_mut()).is_about_a_slice());
    }
}
