//! The file `device` as it is in memory. Everything is an atomic, because other processes change it at any time; what
//! belongs together is changed under the file's lock, which the kernel frees when its holder dies.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// The first word of a file that is complete: `PWSOFT` and the version of the layout.
pub(crate) const MAGIC: u64 = 0x5057_534f_4654_0002;

/// Processes that can hold contexts at a time. Four times what is promised; the table is still small.
pub(crate) const PROCESSES_MAX: usize = 256;

/// SMs of a device at most.
pub(crate) const SMS_MAX: usize = 64 * crate::context::SM_WORDS;

/// Groups that can have blocks on an SM, of which one runs at a time. Others find no room there.
pub(crate) const GROUPS_MAX: usize = 8;

/// The whole file.
#[repr(C)]
pub(crate) struct Shared {
    /// [`MAGIC`], written last.
    pub(crate) magic: AtomicU64,
    /// 1 while the device is lost.
    pub(crate) lost: AtomicU32,
    _unused: AtomicU32,
    /// To the device, to the host.
    pub(crate) links: [Link; 2],
    pub(crate) turns: Turns,
    pub(crate) totals: Totals,
    pub(crate) entries: [Entry; PROCESSES_MAX],
    /// Whose blocks fill each SM, of one group in each place: the pid in the upper half, the index of its entry and one in the
    /// lower; 0 for nobody's.
    pub(crate) filled: [[AtomicU64; GROUPS_MAX]; SMS_MAX],
}

/// One direction of the link to the host.
#[repr(C)]
pub(crate) struct Link {
    /// When the last copy that was let on will have gone through.
    pub(crate) free_at: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) busy_ns: AtomicU64,
}

/// Whose kernels run.
#[repr(C)]
pub(crate) struct Turns {
    /// The group whose turn it is; 0 before the first.
    pub(crate) owner: AtomicU64,
    pub(crate) since: AtomicU64,
    /// When the last of its kernels will be done.
    pub(crate) free_at: AtomicU64,
    /// The group that waits for the turn, and when it last said so.
    pub(crate) next: AtomicU64,
    pub(crate) next_at: AtomicU64,
}

/// What the device has done since the file was made.
#[repr(C)]
pub(crate) struct Totals {
    pub(crate) launches: AtomicU64,
    /// Time during which at least one kernel ran.
    pub(crate) busy_ns: AtomicU64,
    /// End of the time that `busy_ns` counts.
    pub(crate) busy_until: AtomicU64,
    /// Bytes of device memory that kernels read and wrote, as the model counts them.
    pub(crate) memory_bytes: AtomicU64,
}

/// A process that holds contexts. Free where the pid is 0.
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) pid: AtomicU32,
    pub(crate) contexts: AtomicU32,
    /// Field 22 of `/proc/<pid>/stat`: with the pid, it names a process for good.
    pub(crate) start_time: AtomicU64,
    pub(crate) memory: AtomicU64,
    pub(crate) context_memory: AtomicU64,
    /// The MPS daemon whose client it is; 0 for none.
    pub(crate) mps_group: AtomicU64,
    /// The error that ended its contexts; 0 for none.
    pub(crate) fault: AtomicU32,
    /// How long it keeps the device while others wait, in microseconds; 0: as usual.
    pub(crate) slice_us: AtomicU32,
    pub(crate) launches: AtomicU64,
    pub(crate) busy_ns: AtomicU64,
    pub(crate) link_bytes: [AtomicU64; 2],
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn the_layout_is_what_the_version_stands_for() {
        assert_eq!(size_of::<Entry>(), 80);
        assert_eq!(offset_of!(Shared, links), 16);
        assert_eq!(offset_of!(Shared, turns), 64);
        assert_eq!(offset_of!(Shared, totals), 104);
        assert_eq!(offset_of!(Shared, entries), 136);
        assert_eq!(offset_of!(Shared, filled), 136 + 80 * PROCESSES_MAX);
        assert_eq!(size_of::<Shared>(), 136 + 80 * PROCESSES_MAX + 8 * SMS_MAX * GROUPS_MAX);
    }
}
