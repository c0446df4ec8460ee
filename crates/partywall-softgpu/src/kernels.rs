//! The kernels of `kernels/*.cu` in Rust, by name: what they leave in memory is exactly what a GPU leaves. Other kernels take
//! time and do nothing.
//!
//! A kernel is first *prepared*: its arguments are read and every address is checked, so that one that touches memory which
//! is not there is a fault of the device. Then it runs.

use partywall_core::soft_gpu::SoftGpu;

use crate::context::SmSet;
use crate::engine::operation::Launch;
use crate::error::Code;
use crate::process::Process;

mod arena;
mod buffers;
mod compute;
mod decode;
mod network;
mod placement;
mod sides;
mod traffic;

/// Time of a kernel that is not known, nanoseconds: that of a small kernel of a network.
const UNKNOWN_NS: u64 = 5_000;

/// What a launch takes besides its work, nanoseconds: about what an empty kernel shows on an H200.
const LAUNCH_NS: u64 = 2_000;

/// Share of the SMs from which on the memory's rate is the limit and not theirs: 28 of an H200's 132 reach 2.6 of 4 TB/s.
const SATURATING_SHARE: f64 = 0.33;

/// Part of the tensor cores' peak that a plain matrix product reaches: an estimate.
const TENSOR_SHARE: f64 = 0.5;

/// What the model knows of a kernel's work.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    /// Bytes of device memory read and written.
    pub(crate) bytes: u64,
    /// Operations of the fp32 units.
    pub(crate) fp32: f64,
    /// Operations of the tensor cores.
    pub(crate) tensor: f64,
    /// Time that it takes in any case, nanoseconds: chains of dependent steps.
    pub(crate) chain_ns: f64,
}

impl Cost {
    /// How long it takes on the SMs of the launch.
    pub(crate) fn nanoseconds(&self, launch: &Launch, figures: &SoftGpu) -> u64 {
        let gpu = &figures.gpu;
        let all = f64::from(gpu.sms.value.max(1));
        // A grid of few blocks leaves the other SMs idle.
        let used = f64::from(launch.sms.count()).min(launch.blocks() as f64).max(1.0);
        let share = used / all;
        let memory = self.bytes as f64 / (gpu.stream_bytes_per_ns() * (share / SATURATING_SHARE).min(1.0));
        // 128 lanes an SM, two operations each in a cycle.
        let fp32 = self.fp32 / (used * 256.0 * clock_ghz(figures));
        // 1 TFLOP/s is 1 000 operations a nanosecond.
        let tensor = self.tensor / (gpu.fp16_tflops.value * 1_000.0 * TENSOR_SHARE * share);
        LAUNCH_NS + [memory, fp32, tensor, self.chain_ns].into_iter().fold(0.0, f64::max) as u64
    }
}

/// The clock of the SMs, cycles a nanosecond.
fn clock_ghz(figures: &SoftGpu) -> f64 {
    (figures.gpu.clock_max_mhz.value / 1_000.0).max(0.1)
}

/// A kernel that is ready to run.
pub(crate) struct Prepared<'a> {
    pub(crate) cost: Cost,
    pub(crate) work: Box<dyn FnOnce() + 'a>,
    /// It waits for something else, so that the clock says when it ended and not the model.
    pub(crate) waits: bool,
}

impl<'a> Prepared<'a> {
    fn new(cost: Cost, work: impl FnOnce() + 'a) -> Self {
        Self { cost, work: Box::new(work), waits: false }
    }
}

/// Reads the arguments of a launch and checks its addresses.
pub(crate) fn prepare<'a>(launch: &'a Launch, process: &'a Process) -> Result<Prepared<'a>, Code> {
    let args = &mut Arguments { bytes: &launch.arguments, at: 0, process };
    let grid = Grid {
        blocks: u64::from(launch.grid[0]),
        threads: u64::from(launch.block[0]),
        sms: launch.sms,
        shared: launch.shared,
    };
    let nanoseconds = |cost: &Cost| cost.nanoseconds(launch, process.device.figures());
    let name = launch.function.kernel.name.as_str();
    match name {
        "arena_scatter" => arena::copy(args, true),
        "arena_gather" => arena::copy(args, false),
        "arena_fill" => arena::fill(args),
        "arena_read" => arena::read(args, &grid),
        "arena_passes" => arena::passes(args, &grid, nanoseconds),
        "arena_stream_read_default" | "arena_stream_read_evict_first" => {
            arena::stream(args, &grid, process, arena::Access::Read, nanoseconds)
        }
        "arena_stream_write_default" | "arena_stream_write_evict_first" => {
            arena::stream(args, &grid, process, arena::Access::Write, nanoseconds)
        }
        "arena_stream_read_write_default" | "arena_stream_read_write_evict_first" => {
            arena::stream(args, &grid, process, arena::Access::ReadWrite, nanoseconds)
        }
        "fill_pattern" => buffers::fill_pattern(args),
        "count_wrong" => buffers::count_wrong(args),
        "checksum" => buffers::checksum(args),
        "fill_halves" => buffers::fill_halves(args),
        "fill_links" => buffers::fill_links(args),
        "multiply_add" => compute::multiply_add(args, &grid, process),
        "step_once" => compute::step_once(args),
        "begin_token" => decode::begin_token(args),
        "project" => decode::project(args),
        "attend" => decode::attend(args, &grid),
        "chase" => traffic::chase(args, &grid),
        "read_default" | "read_evict_first" | "read_l2" => traffic::read(args, &grid),
        "read_write_default" | "read_write_evict_first" => traffic::read_write(args),
        "matmul_64" => network::product(args, &grid, 64),
        "matmul_128" => network::product(args, &grid, 128),
        "row_sums" => network::row_sums(args, &grid),
        "fold" => network::fold(args),
        "count_by_sm" => placement::count_by_sm(args, &grid),
        "meet" => placement::meet(args, &grid, process),
        "stay" => placement::stay(args, &grid, process),
        "chain_atomics" => sides::chain_atomics(args, &grid, process),
        "contend" => sides::contend(args, &grid, process),
        _ => Ok(Prepared::new(Cost { chain_ns: UNKNOWN_NS as f64, ..Cost::default() }, || {})),
    }
}

/// The shape of a launch, as far as these kernels look at it.
#[derive(Debug, Clone, Copy)]
struct Grid {
    blocks: u64,
    threads: u64,
    sms: SmSet,
    shared: u32,
}

/// The arguments of a launch, one after the other, each at a multiple of its size.
struct Arguments<'a> {
    bytes: &'a [u8],
    at: usize,
    process: &'a Process,
}

impl Arguments<'_> {
    fn u32(&mut self) -> Result<u32, Code> {
        self.take::<4>().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Code> {
        self.take::<8>().map(u64::from_le_bytes)
    }

    fn take<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], Code> {
        let at = self.at.next_multiple_of(SIZE);
        let bytes = self.bytes.get(at..at + SIZE).and_then(|bytes| bytes.try_into().ok());
        self.at = at + SIZE;
        bytes.ok_or(Code::INVALID_VALUE)
    }

    /// The next argument as an address at which `count` elements are.
    fn words<T>(&mut self, count: u64) -> Result<Words<T>, Code> {
        let address = self.u64()?;
        self.at_address(address, count)
    }

    /// `count` elements at an address, if all are there and aligned.
    fn at_address<T>(&self, address: u64, count: u64) -> Result<Words<T>, Code> {
        let bytes = count.checked_mul(size_of::<T>() as u64).ok_or(Code::ILLEGAL_ADDRESS)?;
        let there = bytes == 0 || self.process.memory.addresses.covers(address, bytes, false);
        if !there || !address.is_multiple_of(align_of::<T>() as u64) {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        Ok(Words { start: address as *mut T, count })
    }
}

/// Elements in device memory. Other kernels and the program may change them at any time, as on a GPU, so there are no
/// references to them.
#[derive(Clone)]
struct Words<T> {
    start: *mut T,
    count: u64,
}

impl<T: Copy> Words<T> {
    fn get(&self, index: u64) -> T {
        assert!(index < self.count, "an index beyond what was checked");
        // SAFETY: the range was checked when it was made, and the index just now. The memory stays mapped: freeing waits for the
        // streams, and the arena is never unmapped.
        unsafe { self.start.add(index as usize).read() }
    }

    fn set(&self, index: u64, value: T) {
        assert!(index < self.count, "an index beyond what was checked");
        // SAFETY: as for `get`.
        unsafe { self.start.add(index as usize).write(value) }
    }

    /// Calls `work` for each element in a range with its index.
    fn each(&self, range: std::ops::Range<u64>, mut work: impl FnMut(u64, T)) {
        assert!(range.end <= self.count, "a range beyond what was checked");
        for index in range {
            // SAFETY: as for `get`.
            work(index, unsafe { self.start.add(index as usize).read() });
        }
    }

    /// Writes `value` of each index.
    fn fill(&self, mut value: impl FnMut(u64) -> T) {
        for index in 0..self.count {
            // SAFETY: as for `get`.
            unsafe { self.start.add(index as usize).write(value(index)) };
        }
    }

    /// A copy of a range.
    fn list(&self, range: std::ops::Range<u64>) -> Vec<T> {
        let mut list = Vec::with_capacity((range.end - range.start) as usize);
        self.each(range, |_, value| list.push(value));
        list
    }
}

impl Words<u8> {
    /// Copies bytes from others.
    fn copy(&self, to: u64, from: &Self, at: u64, count: u64) {
        let within =
            |words: &Self, first: u64| first.checked_add(count).is_some_and(|end| end <= words.count);
        assert!(within(self, to) && within(from, at), "a range beyond what was checked");
        // SAFETY: as for `get`, of both ranges.
        unsafe { from.start.add(at as usize).copy_to(self.start.add(to as usize), count as usize) }
    }
}

impl Words<u32> {
    /// Adds as an atomic of the GPU does.
    fn add(&self, index: u64, value: u32) -> u32 {
        assert!(index < self.count, "an index beyond what was checked");
        // SAFETY: as for `get`; the address is aligned, which was checked when the range was made.
        let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(self.start.add(index as usize)) };
        word.fetch_add(value, std::sync::atomic::Ordering::AcqRel).wrapping_add(value)
    }

    fn load(&self, index: u64) -> u32 {
        self.add(index, 0)
    }

    /// Writes for others to see, who may be looking.
    fn put(&self, index: u64, value: u32) {
        assert!(index < self.count, "an index beyond what was checked");
        // SAFETY: as for `add`.
        let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(self.start.add(index as usize)) };
        word.store(value, std::sync::atomic::Ordering::Release);
    }
}

impl Words<u64> {
    /// Adds as an atomic of the GPU does.
    fn add(&self, index: u64, value: u64) {
        assert!(index < self.count, "an index beyond what was checked");
        // SAFETY: as for `get`.
        let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(self.start.add(index as usize)) };
        word.fetch_add(value, std::sync::atomic::Ordering::AcqRel);
    }
}

/// The u32 that belongs at an index, as `kernels/prelude.cuh` has it.
fn pattern(index: u32) -> u32 {
    let mut index = index ^ index >> 16;
    index = index.wrapping_mul(0x85eb_ca6b);
    index ^= index >> 13;
    index = index.wrapping_mul(0xc2b2_ae35);
    index ^ index >> 16
}

/// Sums of blocks go into slots that are this many u32 apart.
const SLOT_STRIDE: u64 = 64;

/// The slots of `sums`: for each the last word that is touched must be there.
fn slot_words(slots: u32) -> u64 {
    if slots == 0 { 0 } else { u64::from(slots - 1) * SLOT_STRIDE + 1 }
}

/// The fp16 bits of whole numbers from -2 to 2.
fn half_bits(value: i32) -> u16 {
    match value {
        -2 => 0xc000,
        -1 => 0xbc00,
        0 => 0,
        1 => 0x3c00,
        _ => 0x4000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_the_cuda_sources() {
        // Values of MurmurHash3's finaliser.
        assert_eq!([0, 1, 2].map(pattern), [0, 0x514e_28b7, 0x30f4_c306]);
    }

    #[test]
    fn slots_are_lines_apart() {
        assert_eq!([0, 1, 3].map(slot_words), [0, 1, 129]);
    }
}
