//! Who may allocate how much of a GPU's memory.
//!
//! # Problem
//!
//! A GPU's memory is first come, first served: the tenant that allocates last runs out, whoever took too much. Quotas
//! help only if they count every way there is to allocate; those that watch one call and miss pools, virtual memory
//! management or graphs are passed without anybody noticing.
//!
//! # Approach
//!
//! A book per GPU. Each allocation is entered under the **path** by which it was made ([`AllocationPath`] lists them
//! all, with what each costs) *before* the driver is asked, and confirmed or rolled back after: two tenants that
//! allocate at the same time cannot both be promised the last gigabyte. What the ledger refuses, the driver never sees.
//!
//! - A tenant with a **limit** never gets more. Limits are **guaranteed**: nobody else can be granted their memory,
//!   used or not. The limits and the reserve must fit the GPU, or the ledger is not made.
//! - A best-effort tenant may instead have the **remainder**: whatever is not guaranteed to others. Several share it, first
//!   come, first served.
//! - With **overcommit**, asked for explicitly, best-effort limits are no longer guaranteed, only caps, and those tenants
//!   share the remainder too. Latency-sensitive limits stay guaranteed, and the GPU is never promised twice.
//!
//! The **reserve** is what no tenant gets: the driver's and the MPS server's own memory, and room for what the ledger cannot
//! see.
//!
//! **Pages.** The device hands memory out in pages of 2 MiB (measured for `cuMemCreate` on an H200, November 2026). Virtual
//! memory management rounds each allocation up to them. The other paths do so from a page on; their smaller
//! allocations share pages, so of these a tenant is charged the pages that they fill together. That is an estimate of
//! what the driver does, and a lower bound: it does not know of holes. What a context takes besides (code, stacks, what
//! a pool holds back after a free) is measured by the caller and entered as [`AllocationPath::ContextOverhead`].
//!
//! **Limits of the approach.** Memory that is imported from another tenant is charged to its owner only. If the owner frees
//! it first, it stays occupied until the importer lets go, and the ledger does not count it any more; the reserve has to
//! cover that.
//!
//! # Terms and units
//!
//! *Charge*: what an allocation costs its tenant, in bytes, after rounding. *Granted*: the sum of all charges, of
//! confirmed and unconfirmed entries alike. *Room*: what a tenant could still be granted. All sizes are bytes. The ledger
//! knows no time.
//!
//! # Scenarios
//!
//! - S1: the driver refuses what the ledger granted: all is as before.
//! - S2: a tenant at its limit is refused although the GPU has room.
//! - S3: the remainder is what is not guaranteed to others, used or not.
//! - S4: small allocations share pages, `cuMemCreate` rounds each one up.
//! - S5: host memory and imports cost nothing.
//! - S6: entries that are unknown, or not in the state that an event needs, are reported and nothing changes.
//! - S7: a tenant dies: all it had is returned, its guarantee stays.
//! - S8: limits beyond the GPU are refused unless overcommit was asked for; even then the GPU is not promised twice.
//! - S9: what `cuMemGetInfo` should say inside a tenant.
//! - S10: sizes that no GPU has and ids that are in use are refused.

use std::collections::BTreeMap;

use crate::tenant::{Class, TenantId};
use crate::units::Bytes;

#[cfg(test)]
mod tests;

/// The unit in which the device hands out memory.
pub const PAGE: Bytes = Bytes::from_mib(2);

/// Entries that a tenant may have at a time. Frameworks that pool have thousands; a program with a million leaks, and the
/// book should not grow with it.
pub const MAX_ENTRIES: usize = 1 << 20;

/// Tenants on one GPU: more than MPS takes clients (48 in the vendor's document). The list is scanned, so it stays short.
pub const MAX_TENANTS: usize = 64;

/// A way to allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllocationPath {
    /// `cuMemAlloc` and the runtime's `cudaMalloc`.
    CuMemAlloc,
    /// `cuMemAllocPitch`: height times the pitch that the driver chose.
    Pitch,
    /// Stream-ordered: `cuMemAllocAsync`, `cuMemAllocFromPoolAsync`.
    Pool,
    /// Allocation nodes of a graph, while the graph keeps their memory.
    Graph,
    /// `cuMemCreate`.
    Vmm,
    /// `cuMemAllocManaged`. Counted in full although parts may be on the host: all of it can move to the device.
    Managed,
    /// Arrays and mipmapped arrays, with all their levels.
    Array,
    /// What a context takes by itself, as measured: code, stacks, printf buffers, what pools hold back.
    ContextOverhead,
    /// Memory of the host that the device can reach, allocated or registered. Not the device's: costs nothing.
    HostRegistered,
    /// Memory of another process (IPC handles, imported or shared VMM handles): costs its owner, not the importer.
    Imported,
}

impl AllocationPath {
    /// Every path.
    pub const ALL: [Self; 10] = [
        Self::CuMemAlloc,
        Self::Pitch,
        Self::Pool,
        Self::Graph,
        Self::Vmm,
        Self::Managed,
        Self::Array,
        Self::ContextOverhead,
        Self::HostRegistered,
        Self::Imported,
    ];

    /// What `bytes` cost; `None` if that does not fit 64 bits.
    fn cost(self, bytes: Bytes) -> Option<Cost> {
        let whole_pages = || bytes.0.checked_next_multiple_of(PAGE.0).map(|own| Cost { own, shared: 0 });
        match self {
            Self::HostRegistered | Self::Imported => Some(Cost::default()),
            Self::ContextOverhead => Some(Cost { own: bytes.0, shared: 0 }),
            Self::Vmm => whole_pages(),
            Self::CuMemAlloc | Self::Pitch | Self::Pool | Self::Graph | Self::Managed | Self::Array => {
                if bytes < PAGE {
                    Some(Cost { own: 0, shared: bytes.0 })
                } else {
                    whole_pages()
                }
            }
        }
    }
}

/// The caller's name for an allocation, unique among those that its tenant has at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AllocationId(pub u64);

/// How much a tenant may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// At most this.
    Limit(Bytes),
    /// What is not guaranteed to others; for best-effort tenants.
    Remainder,
}

/// A tenant and what it is entitled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entitlement {
    /// Who.
    pub tenant: TenantId,
    /// A latency-sensitive tenant needs a limit, which is always guaranteed.
    pub class: Class,
    /// How much.
    pub quota: Quota,
}

/// A GPU's memory and those who share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// All of it.
    pub whole: Bytes,
    /// What no tenant gets.
    pub reserve: Bytes,
    /// Whether best-effort limits may exceed what there is; they are not guaranteed then.
    pub overcommit: bool,
    /// The tenants.
    pub tenants: Vec<Entitlement>,
}

/// Why memory cannot be shared like that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// What is guaranteed, and the reserve, do not fit.
    #[error(
        "the memory limits add up to {}, but tenants can have {} together: the GPU has {} and keeps {} for itself; lower \
         a limit, or stop a tenant that has one",
        gib(*.limits, true), gib(less(*.whole, *.reserve), false), gib(*.whole, false), gib(*.reserve, true)
    )]
    Beyond {
        /// The sum of the guaranteed limits, at most the largest number of bytes there is.
        limits: Bytes,
        /// The reserve.
        reserve: Bytes,
        /// The GPU.
        whole: Bytes,
    },
    /// A latency-sensitive tenant without a limit.
    #[error(
        "{tenant} is latency-sensitive and has no memory limit; only best-effort tenants can take the remainder"
    )]
    Unlimited {
        /// Who.
        tenant: TenantId,
    },
    /// A tenant twice.
    #[error("{tenant} is listed twice; list each tenant once")]
    Twice {
        /// Who.
        tenant: TenantId,
    },
    /// Too many tenants.
    #[error("{given} tenants cannot share one GPU; it takes at most {MAX_TENANTS}")]
    Tenants {
        /// How many there are.
        given: usize,
    },
}

/// What happened, always to one tenant's allocation or to the tenant as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A tenant is about to ask the driver for memory.
    Reserve {
        /// Who.
        tenant: TenantId,
        /// The name of the new entry.
        id: AllocationId,
        /// How much it asks for, before rounding.
        bytes: Bytes,
        /// How.
        path: AllocationPath,
    },
    /// The driver gave what was reserved.
    Commit {
        /// Who.
        tenant: TenantId,
        /// Which.
        id: AllocationId,
    },
    /// The driver refused what was reserved.
    Failed {
        /// Who.
        tenant: TenantId,
        /// Which.
        id: AllocationId,
    },
    /// A tenant gave back what had been committed.
    Free {
        /// Who.
        tenant: TenantId,
        /// Which.
        id: AllocationId,
    },
    /// A tenant is gone, and with it all that it had.
    TenantGone {
        /// Who.
        tenant: TenantId,
    },
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The tenant may ask the driver. Answer with [`Event::Commit`] or [`Event::Failed`].
    Granted {
        /// By how much this raised what the tenant uses.
        charged: Bytes,
    },
    /// The tenant is out of memory: do not ask the driver. Nothing changed.
    Refused(Refusal),
    /// The entry is confirmed.
    Committed,
    /// The entry, or all of a tenant's, is gone.
    Returned {
        /// By how much this lowered what the tenant uses.
        bytes: Bytes,
        /// How many entries that were.
        entries: usize,
    },
    /// The event did not fit the book. Nothing changed; the caller has lost count, or a tenant freed twice.
    Misused(Misuse),
}

/// Why memory was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The tenant's own limit.
    #[error("{asked} more are beyond the tenant's limit of {limit}, of which {free} are free")]
    Quota {
        /// What it would have cost.
        asked: Bytes,
        /// What is left of the limit.
        free: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// The GPU, less what is guaranteed to others.
    #[error("{asked} more are beyond what is not guaranteed to others, of which {free} are free")]
    Whole {
        /// What it would have cost.
        asked: Bytes,
        /// What is left.
        free: Bytes,
    },
    /// More entries than the book holds.
    #[error("the tenant has {MAX_ENTRIES} allocations already; free some or allocate fewer, larger ones")]
    Entries,
}

/// Why an event did not fit the book.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// No such tenant on this GPU.
    #[error("no such tenant on this GPU")]
    Tenant,
    /// No such entry: never made, or freed already.
    #[error("no such allocation, or freed already")]
    Allocation,
    /// A new entry under a name that is in use.
    #[error("the name of this allocation is in use")]
    InUse,
    /// Committed or failed when it had been committed before.
    #[error("the driver's answer for this allocation had been given before")]
    Answered,
    /// Freed before the driver's answer was reported.
    #[error("the driver's answer for this allocation has not been given yet")]
    Pending,
}

/// The book of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLedger {
    whole: Bytes,
    accounts: Vec<Account>,
    /// What is not guaranteed to anybody, and how much of it is used.
    remainder: u64,
    remainder_used: u64,
}

/// A cost in bytes: pages of its own, and bytes on pages that the tenant's small allocations share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Cost {
    own: u64,
    shared: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Account {
    tenant: TenantId,
    limit: Option<Bytes>,
    guaranteed: bool,
    cost: Cost,
    entries: BTreeMap<AllocationId, Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    cost: Cost,
    committed: bool,
}

impl Cost {
    /// In whole pages, but for what was entered as measured.
    const fn charge(self) -> u64 {
        self.own + self.shared.next_multiple_of(PAGE.0)
    }

    fn plus(self, other: Self) -> Option<Self> {
        let (own, shared) = (self.own.checked_add(other.own)?, self.shared.checked_add(other.shared)?);
        own.checked_add(shared.checked_next_multiple_of(PAGE.0)?)?;
        Some(Self { own, shared })
    }

    /// Only ever takes away what was added.
    const fn minus(self, other: Self) -> Self {
        Self { own: self.own - other.own, shared: self.shared - other.shared }
    }
}

impl MemoryLedger {
    /// With nothing allocated.
    ///
    /// # Errors
    /// When more is guaranteed than there is, or a tenant's entitlement makes no sense.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        if config.tenants.len() > MAX_TENANTS {
            return Err(ConfigError::Tenants { given: config.tenants.len() });
        }
        let mut accounts: Vec<Account> = Vec::with_capacity(config.tenants.len());
        // Wider than sizes are, so that a sum that wraps around does not fit.
        let mut guaranteed = 0u128;
        for &Entitlement { tenant, class, quota } in &config.tenants {
            if accounts.iter().any(|account| account.tenant == tenant) {
                return Err(ConfigError::Twice { tenant });
            }
            let account = match (quota, class) {
                (Quota::Remainder, Class::LatencySensitive) => return Err(ConfigError::Unlimited { tenant }),
                (Quota::Remainder, Class::BestEffort) => Account::new(tenant, None, false),
                (Quota::Limit(limit), _) => {
                    Account::new(tenant, Some(limit), class == Class::LatencySensitive || !config.overcommit)
                }
            };
            let limit = account.limit.filter(|_| account.guaranteed).unwrap_or_default();
            guaranteed += u128::from(limit.0);
            accounts.push(account);
        }
        let taken = guaranteed + u128::from(config.reserve.0);
        let Some(remainder) = u64::try_from(taken).ok().and_then(|taken| config.whole.0.checked_sub(taken))
        else {
            let (whole, reserve) = (config.whole, config.reserve);
            let limits = Bytes(guaranteed.min(u64::MAX.into()) as u64);
            return Err(ConfigError::Beyond { limits, reserve, whole });
        };
        Ok(Self { whole: config.whole, accounts, remainder, remainder_used: 0 })
    }

    /// One that only counts, for a single tenant whose limit is held elsewhere: a process that was lent a part of its
    /// tenant's quota rounds and adds up as the node does, and compares the sum with what it was lent.
    pub fn unlimited(tenant: TenantId) -> Self {
        let whole = Bytes(u64::MAX);
        let accounts = vec![Account::new(tenant, Some(whole), true)];
        Self { whole, accounts, remainder: 0, remainder_used: 0 }
    }

    /// The policy's name in metrics.
    pub const fn name(&self) -> &'static str {
        "memory-ledger"
    }

    /// All memory of the GPU.
    pub const fn whole(&self) -> Bytes {
        self.whole
    }

    /// The sum of what tenants use.
    pub fn granted(&self) -> Bytes {
        Bytes(self.accounts.iter().map(|account| account.cost.charge()).sum())
    }

    /// What a tenant uses, after rounding; zero for one that is not on this GPU.
    pub fn used(&self, tenant: TenantId) -> Bytes {
        Bytes(self.account(tenant).map_or(0, |account| account.cost.charge()))
    }

    /// What a tenant could still be granted: the free memory that `cuMemGetInfo` should say inside it.
    pub fn free(&self, tenant: TenantId) -> Bytes {
        self.account(tenant).map_or(Bytes::ZERO, |account| {
            let own = account.limit.map_or(u64::MAX, |limit| limit.0 - account.cost.charge());
            let others = if account.guaranteed { u64::MAX } else { self.remainder - self.remainder_used };
            Bytes(own.min(others))
        })
    }

    /// What a tenant could have if nobody else had anything that it is not guaranteed: the total memory that
    /// `cuMemGetInfo` should say inside it. It never changes, because programs compute their share from it once.
    pub fn total(&self, tenant: TenantId) -> Bytes {
        self.account(tenant).map_or(Bytes::ZERO, |account| match account.limit {
            Some(limit) if account.guaranteed => limit,
            limit => limit.unwrap_or(Bytes(u64::MAX)).min(Bytes(self.remainder)),
        })
    }

    /// Takes in what happened and says what follows.
    pub fn step(&mut self, event: Event) -> Decision {
        let done = match event {
            Event::Reserve { tenant, id, bytes, path } => self.reserve(tenant, id, path.cost(bytes), bytes),
            Event::Commit { tenant, id } => self.commit(tenant, id),
            Event::Failed { tenant, id } => self.remove(tenant, id, false),
            Event::Free { tenant, id } => self.remove(tenant, id, true),
            Event::TenantGone { tenant } => self.clear(tenant),
        };
        done.unwrap_or_else(Decision::Misused)
    }

    fn account(&self, tenant: TenantId) -> Option<&Account> {
        self.accounts.iter().find(|account| account.tenant == tenant)
    }

    fn account_mut(&mut self, tenant: TenantId) -> Result<&mut Account, Misuse> {
        self.accounts.iter_mut().find(|account| account.tenant == tenant).ok_or(Misuse::Tenant)
    }

    fn reserve(
        &mut self,
        tenant: TenantId,
        id: AllocationId,
        cost: Option<Cost>,
        bytes: Bytes,
    ) -> Result<Decision, Misuse> {
        let account = self.account(tenant).ok_or(Misuse::Tenant)?;
        if account.entries.contains_key(&id) {
            return Err(Misuse::InUse);
        }
        if account.entries.len() >= MAX_ENTRIES {
            return Ok(Decision::Refused(Refusal::Entries));
        }
        let sum = cost.and_then(|cost| Some((cost, account.cost.plus(cost)?)));
        let asked = sum.map_or(bytes, |(_, sum)| Bytes(sum.charge() - account.cost.charge()));
        // What does not fit 64 bits fits no limit either; it must only not be mistaken for something small.
        let too_much = |free| sum.is_none() || asked > free;
        if let Some(limit) = account.limit {
            let free = Bytes(limit.0 - account.cost.charge());
            if too_much(free) {
                return Ok(Decision::Refused(Refusal::Quota { asked, free, limit }));
            }
        }
        if !account.guaranteed {
            let free = Bytes(self.remainder - self.remainder_used);
            if too_much(free) {
                return Ok(Decision::Refused(Refusal::Whole { asked, free }));
            }
        }
        let account = self.account_mut(tenant)?;
        if let Some((cost, sum)) = sum {
            account.cost = sum;
            account.entries.insert(id, Entry { cost, committed: false });
            if !account.guaranteed {
                self.remainder_used += asked.0;
            }
        }
        Ok(Decision::Granted { charged: asked })
    }

    fn commit(&mut self, tenant: TenantId, id: AllocationId) -> Result<Decision, Misuse> {
        let entry = self.account_mut(tenant)?.entries.get_mut(&id).ok_or(Misuse::Allocation)?;
        if entry.committed {
            return Err(Misuse::Answered);
        }
        entry.committed = true;
        Ok(Decision::Committed)
    }

    fn remove(&mut self, tenant: TenantId, id: AllocationId, committed: bool) -> Result<Decision, Misuse> {
        let account = self.account_mut(tenant)?;
        let entry = *account.entries.get(&id).ok_or(Misuse::Allocation)?;
        if entry.committed != committed {
            return Err(if committed { Misuse::Pending } else { Misuse::Answered });
        }
        account.entries.remove(&id);
        let left = account.cost.minus(entry.cost);
        self.lower(tenant, left, 1)
    }

    fn clear(&mut self, tenant: TenantId) -> Result<Decision, Misuse> {
        let entries = std::mem::take(&mut self.account_mut(tenant)?.entries).len();
        self.lower(tenant, Cost::default(), entries)
    }

    /// Leaves a tenant with the cost `left`.
    fn lower(&mut self, tenant: TenantId, left: Cost, entries: usize) -> Result<Decision, Misuse> {
        let account = self.account_mut(tenant)?;
        let bytes = Bytes(account.cost.charge() - left.charge());
        account.cost = left;
        if !account.guaranteed {
            self.remainder_used -= bytes.0;
        }
        Ok(Decision::Returned { bytes, entries })
    }
}

impl Account {
    const fn new(tenant: TenantId, limit: Option<Bytes>, guaranteed: bool) -> Self {
        Self { tenant, limit, guaranteed, cost: Cost { own: 0, shared: 0 }, entries: BTreeMap::new() }
    }
}

/// What is left of `whole`.
const fn less(whole: Bytes, part: Bytes) -> Bytes {
    Bytes(whole.0.saturating_sub(part.0))
}

/// In tenths of GiB, so that people can compare. What is needed is rounded up and what there is down: never do the two read the
/// same, and what is said to be there can be asked for.
fn gib(bytes: Bytes, up: bool) -> String {
    let tenths = u128::from(bytes.0) * 10;
    let tenths = if up { tenths.div_ceil(1 << 30) } else { tenths >> 30 };
    format!("{}.{}GiB", tenths / 10, tenths % 10)
}
