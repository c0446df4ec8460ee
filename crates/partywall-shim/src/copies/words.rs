//! Words of host memory that the device and the copier signal each other with.
//!
//! A *slot* serves one copy at a time and has a word that the device writes (how far it has got) and one that it waits
//! at (how far it may go). From copy to copy both only ever grow, cyclically, so a slot can be used again as soon as the
//! device has written its last mark: what waits is always further on than what was opened before.
//!
//! The memory is ours, never unmapped, and only registered with a context: when the context goes, late stores of the
//! host still hit memory. It is not inherited by forked children, whose writes would otherwise move pages under the
//! device.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use super::turns::Cut;

/// Bytes registered at a time.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// The words of a slot: what the device writes on one line, what the host writes on another.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Words {
    progress: Line,
    gate: Line,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Line(AtomicU32);

/// Bytes of a slot.
pub(super) const SLOT_BYTES: usize = size_of::<Words>();

/// Memory of the host that the device can be given. Never unmapped.
///
/// # Errors
/// What the system says.
pub(super) fn memory(bytes: usize) -> rustix::io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
    let address = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }?;
    // SAFETY: the range was mapped above and nobody else knows it; the advice only takes it away from forked
    // children, which start without anything of this module.
    unsafe { madvise(address, bytes, Advice::LinuxDontFork) }?;
    NonNull::new(address.cast()).ok_or(rustix::io::Errno::NOMEM)
}

/// One copy's words. Clones are for looking and opening; one owner gives them to the next copy.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    words: &'static Words,
    /// Where the device finds them.
    device: u64,
    /// What the words count from.
    base: u32,
}

impl Slot {
    /// The slots of a piece of memory.
    ///
    /// # Safety
    /// `memory` is [`CHUNK_BYTES`] of zeros at a multiple of 64 that stay mapped, and nobody else uses them but a
    /// device, which finds them at `device`.
    pub(super) unsafe fn of_chunk(memory: NonNull<u8>, device: u64) -> impl Iterator<Item = Self> {
        (0..CHUNK_BYTES / SLOT_BYTES).map(move |index| {
            let at = index * SLOT_BYTES;
            // SAFETY: `at` is within the memory and keeps its alignment; zeros are words; words are atomics, so that
            // the device writes at the same time is no data race; the memory stays.
            let words = unsafe { memory.add(at).cast::<Words>().as_ref() };
            Self { words, device: device + at as u64, base: 0 }
        })
    }

    /// Where the device writes how far it is.
    pub(super) fn progress_address(&self) -> u64 {
        self.device
    }

    /// Where the device waits.
    pub(super) fn gate_address(&self) -> u64 {
        self.device + size_of::<Line>() as u64
    }

    /// The value of a word that stands for `count`.
    pub(super) fn value(&self, count: u64) -> u32 {
        self.base.wrapping_add(count as u32)
    }

    /// The words, for who has no slot any more.
    pub(super) fn words(&self) -> &'static Words {
        self.words
    }

    /// How far the device is: see `turns` on progress. What it writes is visible before.
    pub(super) fn progress(&self) -> u64 {
        let passed = self.words.progress.0.load(Ordering::Acquire).wrapping_sub(self.base);
        // Less than the base cannot be, except for words that somebody has overwritten.
        u64::from(if passed > u32::MAX / 2 { 0 } else { passed })
    }

    /// Opens the gates of so many packets, and shuts those after them that the device has not reached.
    pub(super) fn open(&self, packets: u64) {
        self.words.gate.0.store(self.value(packets), Ordering::Release);
    }

    /// For the next copy.
    pub(super) fn after(mut self, cut: &Cut) -> Self {
        self.base = self.value(1 + cut.packets());
        self
    }
}

/// What tells that a copy is through, also after its slot has gone to the next one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    words: &'static Words,
    last: u32,
}

impl Ticket {
    /// Of a copy that is about to use a slot.
    pub(super) fn new(slot: &Slot, cut: &Cut) -> Self {
        Self { words: slot.words(), last: slot.value(1 + cut.packets()) }
    }

    /// Whether it is. What the device wrote is visible then.
    pub(super) fn is_over(&self) -> bool {
        self.words.progress.0.load(Ordering::Acquire).wrapping_sub(self.last) <= u32::MAX / 2
    }

    /// A number that changes with each packet.
    pub(super) fn trace(&self) -> u32 {
        self.words.progress.0.load(Ordering::Relaxed)
    }
}

/// Waits on the host until a gate has reached `value`, cyclically. For host functions that stand in for a gate.
///
/// # Safety
/// `gate` is the address of a gate's word in host memory.
pub(super) unsafe fn gate_reached(gate: u64, value: u32) -> bool {
    // SAFETY: the caller says that it is a word, which is an atomic that stays.
    let word = unsafe { &*(gate as usize as *const AtomicU32) };
    word.load(Ordering::Acquire).wrapping_sub(value) <= u32::MAX / 2
}

/// Writes a word of progress from the host.
///
/// # Safety
/// `progress` is the address of a progress word in host memory.
pub(super) unsafe fn write_progress(progress: u64, value: u32) {
    // SAFETY: the caller says that it is a word, which is an atomic that stays.
    let word = unsafe { &*(progress as usize as *const AtomicU32) };
    word.store(value, Ordering::Release);
}
