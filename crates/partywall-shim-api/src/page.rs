//! The page that a tenant's process shares with the node.
//!
//! # Terms and units
//!
//! Sizes are bytes. Counters only grow and wrap at 64 bits; whoever reads two takes the wrapping difference. Times are
//! nanoseconds of CLOCK_MONOTONIC. Direction 0 is host to device, 1 device to host, as `copy_scheduler::Direction`
//! numbers them. *Ready* bytes of a direction are those whose turn in their streams has come; *granted* those that may go
//! on the link; *done* those that are through. Always `done <= started <= granted` and `started <= ready`, all in packets of at
//! most [`NodeSide::packet_bytes`].
//!
//! # Waking each other
//!
//! Neither side makes a system call while the other is awake. The node sleeps with [`NodeSide::asleep`] set: a shim that has
//! raised `ready` or `done` then rings the bell, an eventfd that it got together with the page. The shim's copier sleeps on the
//! futex [`NodeSide::grants`] with [`ShimSide::copier_asleep`] set: the node that has raised `granted` then wakes it. Whoever goes to
//! sleep sets its flag, then looks once more; whoever publishes stores first, then looks at the flag; a full fence in
//! between on both sides ([`Page::fence`]).

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::event::Timespec;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

use crate::{Error, VERSION};

#[cfg(test)]
mod tests;

/// Bytes of a page, on every machine: larger hardware pages are mapped in part.
pub const PAGE_BYTES: usize = 8192;

/// The first eight bytes of a page: "partywal" read as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"partywal");

/// Ways of allocating that a page counts, in the order of `memory_ledger::AllocationPath::ALL`.
pub const MEMORY_PATHS: usize = 10;

/// Copies that go straight to the driver and can be announced at the same time, per direction. A copy beyond them is not
/// announced: it may wait for the turn of a neighbour's packets, a millisecond.
pub const ANNOUNCEMENTS: usize = 16;

/// Requests whose times are kept for the node to read: it looks every 20 ms.
pub const REQUESTS: usize = 256;

/// Chunks of launches that can be under way at the same time. What is launched beyond them is not bounded by chunks.
pub const CHUNKS: usize = 16;

/// For how long a launch is held at most, whatever the page says: beside neighbours that are always active a process goes on, slowly.
pub const HOLD_LIMIT_NS: u64 = 100_000_000;

/// The same while the node measures what neighbours take alone ([`HOLD_MEASURING`]): launches that slip through would be in what it measures.
pub const MEASURING_LIMIT_NS: u64 = 12_000_000_000;

/// [`NodeSide::hold`] while the node measures what latency-sensitive neighbours take alone.
pub const HOLD_MEASURING: u32 = 2;

/// [`NodeSide::hold`] while it is another best-effort process's turn to launch.
pub const HOLD_TURN: u32 = 4;

/// For how long a launch waits for its process's turn at most. Longer than all turns of a crowd together, beside requests too.
pub const TURN_LIMIT_NS: u64 = 12_000_000_000;

/// [`NodeSide::hold`] while the process is to launch onto its squeezed set alone ([`Header::squeezed`]); what cannot be, it holds.
pub const HOLD_SQUEEZED: u32 = 3;

/// Who the page belongs to. Written by the node before the tenant gets the page, and never after.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// [`PAGE_BYTES`].
    pub bytes: AtomicU32,
    /// A number that differs between any two starts of a node.
    pub generation: AtomicU64,
    /// The tenant's number within the node.
    pub tenant: AtomicU32,
    /// 0 latency-sensitive, 1 best-effort.
    pub class: AtomicU32,
    /// The SMs of the tenant's Green Contexts, see [`SmSet`]: the first group, how many, and the SMs of each.
    pub sm_set: [AtomicU32; 3],
    /// The SMs that are left to a best-effort tenant while it is squeezed, in the same way: a part of its own set, where it has one.
    pub squeezed: [AtomicU32; 3],
}

/// Where a tenant computes: neighbouring groups of the one split of the device's SMs into groups of equal size that every process makes
/// (`cuDevSmResourceSplitByCount`, small groups, without regard to co-scheduling).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SmSet {
    /// Number of the first group.
    pub first: u32,
    /// How many groups. 0: the tenant is not confined.
    pub groups: u32,
    /// SMs of each group, as the node found them. A process that finds another number does not compute.
    pub sms_per_group: u32,
}

impl Header {
    /// Where the tenant computes; `None`: anywhere.
    pub fn sm_set(&self) -> Option<SmSet> {
        SmSet::read(&self.sm_set)
    }

    /// Where it computes while it is squeezed; `None`: it is held instead.
    pub fn squeezed(&self) -> Option<SmSet> {
        SmSet::read(&self.squeezed)
    }

    /// For the node, before the tenant gets the page.
    pub fn set_squeezed(&self, set: SmSet) {
        set.write(&self.squeezed);
    }
}

impl SmSet {
    fn read(words: &[AtomicU32; 3]) -> Option<Self> {
        let [first, groups, sms_per_group] = [0, 1, 2].map(|at| words[at].load(Ordering::Relaxed));
        (groups != 0).then_some(Self { first, groups, sms_per_group })
    }

    fn write(self, words: &[AtomicU32; 3]) {
        let Self { first, groups, sms_per_group } = self;
        for (word, value) in words.iter().zip([first, groups, sms_per_group]) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// How packets that were granted may follow each other. A latency-sensitive neighbour may have a copy on its way, and the copy
/// engine changes hands only in a pause between two packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Pace {
    /// Gates are opened ahead.
    #[default]
    Ahead = 0,
    /// The next gate is opened a moment after the packet before it is through: whoever is at the link gets it.
    OneByOne = 1,
    /// It is opened only when this is over, or after [`ASIDE_LIMIT_NS`]: a neighbour is about to be at the link.
    Aside = 2,
}

/// For how long a packet stands aside at most, whatever the page says.
pub const ASIDE_LIMIT_NS: u64 = 80_000;

impl Pace {
    /// What a word of a page says.
    pub const fn of(word: u32) -> Self {
        match word {
            0 => Self::Ahead,
            1 => Self::OneByOne,
            _ => Self::Aside,
        }
    }
}

/// What the node writes.
#[derive(Debug)]
#[repr(C)]
pub struct NodeSide {
    /// When the node was last seen alive. Older than [`HEARTBEAT_LIMIT_NS`] means that it is gone.
    pub heartbeat_ns: AtomicU64,
    /// The memory that all processes of the tenant together may hold. `u64::MAX`: no limit.
    pub quota_bytes: AtomicU64,
    /// The memory that all processes of the tenant together hold now, contexts included.
    pub tenant_used_bytes: AtomicU64,
    /// What this process holds beyond what its shim counts, as NVML shows it: contexts above all. Part of its lease.
    pub context_bytes: AtomicU64,
    /// Weight of the tenant's copies.
    pub weight: AtomicU32,
    /// 1 while the node decides about copies; 0: they all go straight to the driver.
    pub copies_decided: AtomicU32,
    /// Largest packet.
    pub packet_bytes: AtomicU64,
    /// Copies up to this size go straight to the driver, per direction.
    pub direct_max_bytes: [AtomicU64; 2],
    /// Bytes that may have been put on the link, per direction, since the page was made.
    pub granted: [AtomicU64; 2],
    /// A futex that changes with every grant.
    pub grants: AtomicU32,
    /// 1 while the node sleeps and wants the bell to be rung.
    pub asleep: AtomicU32,
    /// The part of [`NodeSide::tenant_used_bytes`] that is not this process's. What it holds itself a process knows better
    /// than the node, which looks from time to time: it holds that plus this, and is told its free memory to the byte.
    pub others_used_bytes: AtomicU64,
    /// A [`Pace`] per direction: how packets that were granted may follow each other.
    pub pace: [AtomicU32; 2],
    /// 1 while neighbours have packets under way, per direction: copies that go straight to the driver are to be announced.
    pub announce: [AtomicU32; 2],
    /// Chunks of a best-effort process that may be under way at a time; a latency-sensitive process says whether it is active while
    /// this is not 0. 0: launches go straight to the driver.
    pub chunks_max: AtomicU32,
    /// Launches in each at most.
    pub launches_per_chunk: AtomicU32,
    /// How long the device is to be busy with a chunk: the shim puts as many launches in one, and at least one.
    pub chunk_ns: AtomicU32,
    /// 1 while a best-effort process is to launch nothing: a latency-sensitive neighbour is active. [`HOLD_MEASURING`]: for longer.
    /// [`HOLD_SQUEEZED`]: only onto its squeezed set. [`HOLD_TURN`]: until its turn comes.
    pub hold: AtomicU32,
    /// When [`NodeSide::hold`] was last changed to or from [`HOLD_SQUEEZED`]. Written before it.
    pub resized_ns: AtomicU64,
    /// How long the device is to stay with the process while others wait for their turn, in microseconds: its *time slice*. 0: as the
    /// driver has it. It matters where processes take turns, without an MPS daemon.
    pub slice_us: AtomicU32,
}

/// Copies of one direction, as the shim counts them. All since the page was made.
#[derive(Debug)]
#[repr(C)]
pub struct CopySide {
    /// Bytes whose turn in their streams has come.
    pub ready: AtomicU64,
    /// Bytes put on the link, of those granted.
    pub started: AtomicU64,
    /// Bytes of those that are through.
    pub done: AtomicU64,
    /// Copies that went as packets and are through.
    pub copies: AtomicU64,
    /// Time that those copies waited for their turn on the link, from ready to the start of their first packet, summed up.
    pub wait_ns: AtomicU64,
    /// Bytes of copies that went straight to the driver.
    pub direct_bytes: AtomicU64,
    /// Those copies.
    pub direct_copies: AtomicU64,
}

/// What the shim writes.
#[derive(Debug)]
#[repr(C)]
pub struct ShimSide {
    /// When the shim's own thread was last seen alive; 0 while it has none.
    pub heartbeat_ns: AtomicU64,
    /// 1 while the copier sleeps on [`NodeSide::grants`].
    pub copier_asleep: AtomicU32,
    /// 1 once the process has initialised CUDA.
    pub cuda: AtomicU32,
    /// Copies, per direction.
    pub copies: [CopySide; 2],
    /// Kernels launched one by one.
    pub launches: AtomicU64,
    /// Graphs launched.
    pub graph_launches: AtomicU64,
    /// Memory held now, as the ledger counts it, without what the node measures.
    pub memory_bytes: AtomicU64,
    /// The most that was ever held.
    pub memory_peak_bytes: AtomicU64,
    /// Memory held now per way of allocating, as asked for, before rounding.
    pub memory_by_path: [AtomicU64; MEMORY_PATHS],
    /// Allocations granted.
    pub allocations: AtomicU64,
    /// Allocations refused because of the quota.
    pub refusals: AtomicU64,
    /// Entry points that the program resolved or called: enforced.
    pub covered_enforced: AtomicU32,
    /// Passed through knowingly.
    pub covered_passed: AtomicU32,
    /// Refused.
    pub covered_refused: AtomicU32,
    /// In nobody's list: the tenant is not guaranteed.
    pub covered_unknown: AtomicU32,
    /// Copies that went straight to the driver and are not known to be through.
    pub announced: Announced,
    /// Chunks of launches that are not known to be through: 0 free, otherwise 1. The process takes a free word, the device frees it.
    pub chunks: [AtomicU32; CHUNKS],
    /// 1 while a latency-sensitive process has work on the device, as far as it knows.
    pub active: AtomicU32,
    /// Time that launches were held, summed up over threads.
    pub held_ns: AtomicU64,
    /// The longest that the device was busy with a chunk of one launch since the node last stored 0 here.
    pub longest_launch_ns: AtomicU64,
    /// Graphs that are launched piece by piece, and such that cannot be, each of which is a chunk.
    pub graphs_cut: AtomicU32,
    /// See [`ShimSide::graphs_cut`].
    pub graphs_whole: AtomicU32,
    /// Requests of a latency-sensitive process, while [`NodeSide::chunks_max`] is not 0.
    pub requests: Requests,
    /// When the driver first returned an error that ends all work of the process on the device, by CLOCK_MONOTONIC; 0 before that.
    pub fault_ns: AtomicU64,
    /// Which error that was, as the driver numbers them. Written after [`ShimSide::fault_ns`].
    pub fault_code: AtomicU32,
    /// Graphs that are held while the process is squeezed, although it has a set for that: those that cannot be put onto it.
    pub graphs_unsqueezed: AtomicU32,
    /// Launches, also of graphs in pieces, onto the squeezed set.
    pub squeezed_launches: AtomicU64,
    /// Launches that could not go there while the process was squeezed, and went to its own set.
    pub unsqueezed_launches: AtomicU64,
    /// How often a launch was the first after [`NodeSide::resized_ns`] had changed.
    pub resizes: AtomicU64,
    /// How long after it that was, the last time.
    pub resize_ns: AtomicU64,
    /// The longest of these since the node last stored 0 here.
    pub longest_resize_ns: AtomicU64,
    /// For how long the device was busy with chunks of launches, as far as is known, summed up over streams.
    pub busy_ns: AtomicU64,
    /// The time slice that the kernel's driver has taken for the process ([`NodeSide::slice_us`]); 0 before that, and where it was refused.
    pub slice_us: AtomicU32,
    /// Launches that wait: for their turn, for a chunk to be through, or because they are held.
    pub waiting: AtomicU32,
    /// Launches that were made, or are about to be, and are not in a marked chunk yet. Nobody is told when they are through. Whoever
    /// launches counts it here before it looks at [`NodeSide::hold`], and the node looks here after it has written that.
    pub unmarked: AtomicU32,
}

/// What a latency-sensitive process's requests took: from the first launch after it was drained to when it was drained again. The last
/// [`REQUESTS`] of them are there; a slot is `number % REQUESTS`.
#[derive(Debug)]
#[repr(C)]
pub struct Requests {
    /// How many there have been. Raised after the slot is written.
    pub count: AtomicU64,
    /// Of these, how many were not one request: the program waited for something in between and was not drained, so that the times of
    /// several requests overlap and none is known.
    pub overlapping: AtomicU64,
    /// When each ended, and what it took.
    pub times: [RequestTime; REQUESTS],
}

/// When a request ended and what it took.
#[derive(Debug)]
#[repr(C)]
pub struct RequestTime {
    /// End, by CLOCK_MONOTONIC.
    pub end_ns: AtomicU64,
    /// Service time.
    pub took_ns: AtomicU64,
}

/// A word for each announced copy, per direction: 0 free, otherwise 1. The process takes a free word; the device itself frees it, by a stream memory operation behind the copy, so that nobody has to wait for that.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Announced(pub [[AtomicU32; ANNOUNCEMENTS]; 2]);

/// How old [`NodeSide::heartbeat_ns`] may be: the node beats every 100 ms, and a busy machine may hold it up. Until a shim
/// notices, copies beyond what was granted wait; so it should not be long either.
pub const HEARTBEAT_LIMIT_NS: u64 = 2_000_000_000;

/// The whole page.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Page {
    /// Whose it is.
    pub header: Header,
    /// What the node writes.
    pub node: NodeSide,
    /// What the shim writes. On cache lines of its own, so that counting does not slow the reading of grants.
    pub shim: ShimPart,
}

/// [`ShimSide`] from the start of a cache line on.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ShimPart(pub ShimSide);

impl Deref for ShimPart {
    type Target = ShimSide;

    fn deref(&self) -> &ShimSide {
        &self.0
    }
}

const _: () = assert!(size_of::<Page>() <= PAGE_BYTES, "the fields must fit the page");

impl Page {
    /// What stands between publishing a number and looking whether the other side sleeps, and between saying that one
    /// sleeps and looking at the numbers once more.
    pub fn fence() {
        fence(Ordering::SeqCst);
    }

    /// For the node, after it has raised [`NodeSide::granted`]: changes [`NodeSide::grants`] and wakes the copier if it sleeps.
    pub fn wake_grants(&self) {
        self.node.grants.fetch_add(1, Ordering::Release);
        Self::fence();
        if self.shim.copier_asleep.load(Ordering::Relaxed) != 0 {
            // It only fails for addresses and flags that make no sense.
            let _ = futex::wake(&self.node.grants, futex::Flags::empty(), 1);
        }
    }

    /// For the copier: sleeps until [`NodeSide::grants`] differs from `last`, for at most `limit_ns`. It may return
    /// early, so the caller looks again. Read `last` before looking at [`NodeSide::granted`]: a grant after that
    /// then ends the sleep.
    pub fn wait_grants(&self, last: u32, limit_ns: u64) {
        self.shim.copier_asleep.store(1, Ordering::Relaxed);
        Self::fence();
        let limit = Timespec {
            tv_sec: (limit_ns / 1_000_000_000) as i64,
            tv_nsec: (limit_ns % 1_000_000_000) as i64,
        };
        // Woken, too late to sleep, interrupted or out of time: the caller looks in any case.
        let _ = futex::wait(&self.node.grants, futex::Flags::empty(), last, Some(&limit));
        self.shim.copier_asleep.store(0, Ordering::Relaxed);
    }
}

/// A page in this process's memory. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapped {
    address: NonNull<Page>,
}

// SAFETY: the page consists of atomics and `Mapped` only ever hands out shared references to them.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// A new page and the descriptor to hand to the tenant. Its size is sealed: no holder can take the memory away under
    /// the other.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(
        generation: u64,
        tenant: u32,
        class: u32,
        sms: Option<SmSet>,
    ) -> Result<(Self, OwnedFd), Error> {
        let file = memfd_create("partywall-page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(Error::system("creating a shared page"))?;
        ftruncate(&file, PAGE_BYTES as u64).map_err(Error::system("sizing a shared page"))?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(Error::system("sealing a shared page"))?;
        let page = Self::map_file(&file)?;
        let header = &page.header;
        header.version.store(VERSION, Ordering::Relaxed);
        header.bytes.store(PAGE_BYTES as u32, Ordering::Relaxed);
        header.generation.store(generation, Ordering::Relaxed);
        header.tenant.store(tenant, Ordering::Relaxed);
        header.class.store(class, Ordering::Relaxed);
        sms.unwrap_or_default().write(&header.sm_set);
        header.magic.store(MAGIC, Ordering::Release);
        Ok((page, file))
    }

    /// The page behind a descriptor that the node sent.
    ///
    /// # Errors
    /// [`Error::Page`] where it is not a page of this version, and what the system says.
    pub fn open(file: impl AsFd) -> Result<Self, Error> {
        let seals = fcntl_get_seals(&file).map_err(Error::system("looking at a shared page's seals"))?;
        let size = fstat(&file).map_err(Error::system("looking at a shared page"))?.st_size;
        if size != PAGE_BYTES as i64 || !seals.contains(SealFlags::SHRINK) {
            let found = format!("{size} bytes, {}sealed", if seals.is_empty() { "not " } else { "" });
            return Err(Error::Page { found, expected: format!("{PAGE_BYTES} bytes, sealed") });
        }
        let page = Self::map_file(&file)?;
        let header = &page.header;
        let found = (header.magic.load(Ordering::Acquire), header.version.load(Ordering::Relaxed));
        if found != (MAGIC, VERSION) {
            let say = |(magic, version): (u64, u32)| format!("magic {magic:#x}, version {version}");
            return Err(Error::Page { found: say(found), expected: say((MAGIC, VERSION)) });
        }
        Ok(page)
    }

    fn map_file(file: impl AsFd) -> Result<Self, Error> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let address =
            unsafe { mmap(std::ptr::null_mut(), PAGE_BYTES, protection, MapFlags::SHARED, file, 0) }
                .map_err(Error::system("mapping a shared page"))?;
        let address = NonNull::new(address.cast()).ok_or(Error::System {
            what: "mapping a shared page",
            source: std::io::Error::from(std::io::ErrorKind::InvalidData),
        })?;
        Ok(Self { address })
    }
}

impl Deref for Mapped {
    type Target = Page;

    fn deref(&self) -> &Page {
        // SAFETY: the mapping is at least as large as a `Page` (asserted above), aligned to hardware pages, lives as long
        // as `self`, and cannot shrink because it is sealed. Any bytes are valid atomics, and only atomics are in it, so
        // that another process writes at the same time is no data race.
        unsafe { self.address.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map_file` with this address and length, and references into it cannot outlive
        // `self`. That unmapping fails would leave it mapped; nothing else follows.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), PAGE_BYTES) };
    }
}
