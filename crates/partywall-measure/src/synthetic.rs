//! The built-in tenants: victims and antagonists, one resource each, on top of the driver; and the process that
//! hosts them.
//!
//! # Terms
//! A *victim* stands for a latency-sensitive service: it makes short requests and is watched for how long they take. An
//! *antagonist* stands for best-effort work: it never pauses, and each loads one resource. [`CATALOGUE`] has them all,
//! with the cache policy of each, and can be read without a GPU.
//!
//! # How a tenant runs
//! [`serve::run`] turns a load into requests: it waits until one is due, notes the time, submits work, waits for it and
//! notes the time again. [`host`] is the process around it: it reads the line protocol, has one thread per tenant, and
//! writes the requests when a run has ended, so that writing disturbs none of them. [`place`] is where on the GPU a
//! tenant's kernels run.
//!
//! # Results are checked
//! Every workload computes something whose result is known: sums of known patterns, whole numbers in matrix products,
//! sequences that can be followed on the host. Wherever it can be had for nothing, results add up over all requests of
//! a run, so the check at its end covers each of them.

mod allocations;
pub mod arguments;
mod chase;
mod compute;
mod copies;
mod decode;
pub mod host;
mod matmul;
mod network;
pub mod place;
pub mod pretend;
mod process;
mod reads;
pub mod serve;
mod tiny;
mod writes;

use std::collections::BTreeMap;

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

pub use process::{TenantError, tenant_main};

/// How a workload's memory accesses ask L2 to treat what they touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePolicy {
    /// L2 keeps what it sees fit: a streaming neighbour pushes out what others use.
    Default,
    /// `.cs`: the first to go when L2 needs room.
    EvictFirst,
}

impl CachePolicy {
    /// As it stands in the record.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::EvictFirst => "evict-first",
        }
    }
}

/// A built-in tenant, as it is known without a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Builtin {
    /// What `partywall tenant` calls it.
    pub name: &'static str,
    /// What it is for.
    pub class: Class,
    /// What one request does, for people.
    pub what: &'static str,
    /// `None` where its kernels touch next to no memory.
    pub cache_policy: Option<CachePolicy>,
    /// What its work is counted in.
    pub unit: &'static str,
    program: Program,
}

/// What is the same for all tenants of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The name in [`CATALOGUE`], or `pretend`.
    pub name: &'static str,
    /// What its work is counted in.
    pub unit: &'static str,
    /// How its accesses ask L2 to treat what they touch; `None` where they are next to none.
    pub cache_policy: Option<CachePolicy>,
}

impl Builtin {
    /// What a workload says of itself.
    pub const fn identity(&self) -> Identity {
        Identity { name: self.name, unit: self.unit, cache_policy: self.cache_policy }
    }
}

/// What there is to run; several built-in tenants are settings of one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Chase,
    Reads,
    Writes,
    Matmul,
    Tiny,
    Network,
    Decode,
    Copies,
    Compute,
    Allocations,
}

impl Builtin {
    /// Whether the size of its buffer or its copies can be chosen.
    pub const fn has_size(&self) -> bool {
        !matches!(self.program, Program::Matmul | Program::Tiny | Program::Network | Program::Compute)
    }
}

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;
const DEFAULT: Option<CachePolicy> = Some(CachePolicy::Default);
const EVICT_FIRST: Option<CachePolicy> = Some(CachePolicy::EvictFirst);

const fn builtin(
    program: Program,
    name: &'static str,
    class: Class,
    unit: &'static str,
    cache_policy: Option<CachePolicy>,
    what: &'static str,
) -> Builtin {
    Builtin { name, class, what, cache_policy, unit, program }
}

/// All built-in tenants; a name and a class are there once.
pub const CATALOGUE: &[Builtin] = &[
    builtin(
        Program::Chase,
        "read-latency",
        LS,
        "request",
        DEFAULT,
        "chains of dependent reads, one warp per SM",
    ),
    builtin(
        Program::Reads,
        "vram-read",
        LS,
        "request",
        DEFAULT,
        "40 short kernels that read 100 MB from VRAM",
    ),
    builtin(Program::Matmul, "matmul", LS, "product", DEFAULT, "one fp16 matrix product on the tensor cores"),
    builtin(
        Program::Tiny,
        "tiny-kernels",
        LS,
        "request",
        None,
        "a chain of 100 kernels that do next to nothing",
    ),
    builtin(
        Program::Network,
        "network",
        LS,
        "request",
        DEFAULT,
        "layers of products, reductions and elementwise steps, as a CUDA graph",
    ),
    builtin(
        Program::Decode,
        "decode",
        LS,
        "token",
        DEFAULT,
        "one token: all weights once, and a cache that grows",
    ),
    builtin(
        Program::Copies,
        "copy-h2d",
        LS,
        "copy",
        None,
        "one copy of 64 KiB from pinned memory to the GPU",
    ),
    builtin(
        Program::Compute,
        "compute",
        BE,
        "launch",
        None,
        "fused multiply-adds on every SM, 16 ms a launch",
    ),
    builtin(
        Program::Reads,
        "vram-read",
        BE,
        "GB",
        DEFAULT,
        "reads a buffer far larger than L2, over and over",
    ),
    builtin(
        Program::Reads,
        "vram-read-evict-first",
        BE,
        "GB",
        EVICT_FIRST,
        "the same with evict-first reads",
    ),
    builtin(
        Program::Writes,
        "vram-read-write",
        BE,
        "GB",
        DEFAULT,
        "adds 1 to every word of a buffer far larger than L2",
    ),
    builtin(
        Program::Writes,
        "vram-read-write-evict-first",
        BE,
        "GB",
        EVICT_FIRST,
        "the same with evict-first reads and writes",
    ),
    builtin(Program::Reads, "l2", BE, "GB", DEFAULT, "reads a buffer that fits L2, past the L1 caches"),
    builtin(
        Program::Copies,
        "copies-h2d",
        BE,
        "GB",
        None,
        "copies from pinned memory to the GPU, 512 MiB each",
    ),
    builtin(
        Program::Copies,
        "copies-d2h",
        BE,
        "GB",
        None,
        "copies from the GPU to pinned memory, 512 MiB each",
    ),
    builtin(
        Program::Tiny,
        "launch-storm",
        BE,
        "launch",
        None,
        "kernels that do next to nothing, as fast as they can be launched",
    ),
    builtin(
        Program::Allocations,
        "alloc-storm",
        BE,
        "allocation",
        None,
        "allocates and frees 64 MiB, over and over",
    ),
];

/// The built-in of this name; without a class, the first.
pub fn find(name: &str, class: Option<Class>) -> Option<&'static Builtin> {
    let same_name = |one: &&Builtin| one.name == name;
    let exact = CATALOGUE.iter().filter(same_name).find(|one| Some(one.class) == class);
    // A victim may be run as best-effort work and the other way round: the class is then its stream's priority.
    exact.or_else(|| CATALOGUE.iter().find(same_name))
}

/// Work that can be submitted again and again, and knows what its results must be.
///
/// The thread that made it uses it and no other does: contexts are current per thread.
pub trait Workload {
    /// What kind of tenant it is.
    fn identity(&self) -> Identity;

    /// What it does and with which sizes, for the record.
    fn about(&self) -> BTreeMap<String, String>;

    /// Units of work of one submission; above zero.
    fn work(&self) -> f64 {
        1.0
    }

    /// Gets ready for a run: results of earlier ones are forgotten.
    ///
    /// # Errors
    /// Of the driver.
    fn begin(&mut self) -> Result<(), WorkloadError>;

    /// Submits one unit and returns, as far as the driver lets it.
    ///
    /// # Errors
    /// Of the driver.
    fn submit(&mut self) -> Result<(), WorkloadError>;

    /// Returns when all that was submitted is done.
    ///
    /// # Errors
    /// Of the driver; an error of a kernel shows up here.
    fn wait(&mut self) -> Result<(), WorkloadError>;

    /// Compares the results since [`Workload::begin`] with what they must be.
    ///
    /// # Errors
    /// Of the driver. Wrong results are no error but a verdict.
    fn check(&mut self) -> Result<Verdict, WorkloadError>;
}

/// What became of the results of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What is wrong with them; `None` if nothing is.
    pub wrong: Option<String>,
    /// Of the results: the same work has the same.
    pub checksum: u64,
}

impl Verdict {
    /// Right results.
    pub const fn right(checksum: u64) -> Self {
        Self { wrong: None, checksum }
    }

    /// Right if `found` is `expected`, which then is the checksum.
    pub fn compare(what: &str, found: u64, expected: u64) -> Self {
        let wrong = (found != expected).then(|| format!("{what} is {found:#x} and should be {expected:#x}"));
        Self { wrong, checksum: found }
    }
}

/// Why a tenant cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The driver says no.
    #[error(transparent)]
    Driver(#[from] partywall_driver::error::DriverError),
    /// The workload does not fit this GPU, or was asked for something that it cannot do.
    #[error("{0}")]
    Unfit(String),
}

/// Time, as tenants see it. Tests have one that they move themselves.
pub trait Clock {
    /// `CLOCK_MONOTONIC`.
    fn now(&self) -> Nanos;
    /// Sleeps about this long, rather longer than shorter.
    fn sleep(&self, duration: Nanos);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_within_a_class_and_found() {
        for (index, one) in CATALOGUE.iter().enumerate() {
            let same = |other: &Builtin| (other.name, other.class) == (one.name, one.class);
            assert!(!CATALOGUE[..index].iter().any(same), "{} twice", one.name);
            assert_eq!(find(one.name, Some(one.class)), Some(one));
        }
        assert_eq!(find("vram-read", None).unwrap().class, LS);
        assert_eq!(find("compute", Some(LS)).unwrap().class, BE, "with another class than it is for");
        assert_eq!(find("nothing", None), None);
    }
}
