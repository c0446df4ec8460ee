//! What a process holds.

use std::collections::BTreeMap;

use partywall_core::memory_ledger::{AllocationId, AllocationPath, Decision, Event, MemoryLedger, PAGE};
use partywall_core::tenant::TenantId;
use partywall_core::units::Bytes;
use partywall_shim_api::page::MEMORY_PATHS;

use super::{Holding, Key, Owner, Reserved, Taken};
use crate::memory::elastic::Elastic;
use crate::memory::vmm::Vmm;

/// The only tenant in a process's ledger.
const SELF: TenantId = TenantId(0);

/// What [`Book`] knows.
#[derive(Debug)]
pub(in crate::memory) struct State {
    ledger: MemoryLedger,
    next: u64,
    pub(super) lease: Bytes,
    /// What the page said last: what counts besides, and whether there is a limit at all.
    pub(super) context: Bytes,
    pub(super) limited: bool,
    pub(super) held: BTreeMap<Key, Holding>,
    /// Pages that allocations share, by number, with how many are on each.
    pages: BTreeMap<u64, (AllocationId, u32)>,
    pub(in crate::memory) elastic: Elastic,
    pub(in crate::memory) vmm: Vmm,
    pub(super) by_path: [u64; MEMORY_PATHS],
    pub(super) peak: Bytes,
    pub(super) allocations: u64,
    pub(super) refusals: u64,
}

impl State {
    /// Of a process that holds nothing.
    pub(super) fn new(lease: Bytes) -> Self {
        Self {
            ledger: MemoryLedger::unlimited(SELF),
            next: 0,
            lease,
            context: Bytes::ZERO,
            limited: true,
            held: BTreeMap::new(),
            pages: BTreeMap::new(),
            elastic: Elastic::default(),
            vmm: Vmm::default(),
            by_path: [0; MEMORY_PATHS],
            peak: Bytes::ZERO,
            allocations: 0,
            refusals: 0,
        }
    }

    /// What is held, by the ledger's rounding.
    pub(in crate::memory) fn used(&self) -> Bytes {
        self.ledger.used(SELF)
    }

    /// By how much `more` than is used would be beyond the lease.
    pub(in crate::memory) fn over(&self, more: Bytes) -> Bytes {
        if !self.limited {
            return Bytes::ZERO;
        }
        let all = self.used().0.saturating_add(self.context.0).saturating_add(more.0);
        Bytes(all.saturating_sub(self.lease.0))
    }

    /// What was lent and is not used.
    pub(super) fn slack(&self) -> Bytes {
        if !self.limited {
            return Bytes::ZERO;
        }
        Bytes(self.lease.0.saturating_sub(self.used().0.saturating_add(self.context.0)))
    }

    /// Makes an entry, or says by how much the lease is too small; `None` if no lease would be large enough.
    pub(super) fn enter(&mut self, path: AllocationPath, bytes: Bytes) -> Result<Reserved, Option<Bytes>> {
        let id = self.reserve(bytes)?;
        let over = self.over(Bytes::ZERO);
        if over > Bytes::ZERO {
            self.drop_entry(Some(id));
            return Err(Some(over));
        }
        self.peak = self.peak.max(self.used());
        self.allocations += 1;
        Ok(Reserved { id: Some(id), path, bytes })
    }

    /// In whole pages, whatever the path. Imports too: whose they are cannot be known, and who imports may be the last to let
    /// go. Small arrays too: they have no address that would show which of them share a page, and their sum, tried before,
    /// is too little by the holes between them.
    fn reserve(&mut self, bytes: Bytes) -> Result<AllocationId, Option<Bytes>> {
        self.next += 1;
        let id = AllocationId(self.next);
        match self.ledger.step(Event::Reserve { tenant: SELF, id, bytes, path: AllocationPath::Vmm }) {
            Decision::Granted { .. } => Ok(id),
            _ => Err(None),
        }
    }

    /// Enters what the driver has given already, whether it fits the lease or not.
    pub(in crate::memory) fn found(&mut self, bytes: Bytes) -> Option<AllocationId> {
        let id = self.reserve(bytes).ok()?;
        self.ledger.step(Event::Commit { tenant: SELF, id });
        self.peak = self.peak.max(self.used());
        Some(id)
    }

    /// Marks a reservation as given by the driver.
    pub(in crate::memory) fn confirm(&mut self, reserved: &Reserved) {
        if let Some(id) = reserved.id {
            self.ledger.step(Event::Commit { tenant: SELF, id });
        }
    }

    /// Removes an entry, confirmed or not.
    pub(in crate::memory) fn drop_entry(&mut self, id: Option<AllocationId>) {
        if let Some(id) = id
            && let Decision::Misused(_) = self.ledger.step(Event::Free { tenant: SELF, id })
        {
            self.ledger.step(Event::Failed { tenant: SELF, id });
        }
    }

    /// Changes what a path holds, as asked for.
    pub(in crate::memory) fn count(&mut self, path: AllocationPath, more: Bytes, less: Bytes) {
        let Some(index) = AllocationPath::ALL.iter().position(|&each| each == path) else { return };
        if let Some(bytes) = self.by_path.get_mut(index) {
            *bytes = bytes.saturating_add(more.0).saturating_sub(less.0);
        }
    }

    pub(super) fn hold(&mut self, key: Key, holding: Holding) {
        self.count(holding.path, holding.bytes, Bytes::ZERO);
        if let Owner::Pool(pool) = holding.owner {
            self.elastic.used(pool, holding.bytes);
        }
        if let Some(stale) = self.held.insert(key, holding) {
            // The driver hands out what it has: so the one before was freed in a way that is not seen here.
            self.release(key, &stale);
        }
    }

    /// Finds the pages on which an allocation is that is smaller than one, and lets its own entry go for theirs.
    pub(super) fn share(&mut self, key: Key) {
        let Some(holding) = self.held.get_mut(&key) else { return };
        let Some((first, last)) = shared(key, holding) else { return };
        let mut own = holding.id.take();
        for page in first..=last {
            if let Some((_, count)) = self.pages.get_mut(&page) {
                *count += 1;
            } else if let Some(id) = own.take().or_else(|| self.found(PAGE)) {
                self.pages.insert(page, (id, 1));
            }
        }
        self.drop_entry(own);
    }

    /// What is known to be held under a key is not any more.
    pub(super) fn release(&mut self, key: Key, holding: &Holding) {
        self.count(holding.path, Bytes::ZERO, holding.bytes);
        self.drop_entry(holding.id);
        if let Some((first, last)) = shared(key, holding) {
            for page in first..=last {
                if let Some((_, count)) = self.pages.get_mut(&page) {
                    *count -= 1;
                    if *count == 0 {
                        let gone = self.pages.remove(&page);
                        self.drop_entry(gone.map(|(id, _)| id));
                    }
                }
            }
        }
        if let Owner::Pool(pool) = holding.owner {
            let left = self.elastic.unused(pool, holding.bytes);
            self.drop_entry(left);
        }
    }

    pub(super) fn take(&mut self, key: Key) -> Option<Taken> {
        let holding = self.held.get_mut(&key)?;
        if holding.opens > 1 {
            holding.opens -= 1;
            return Some(Taken { key, holding: *holding, stays: true });
        }
        Some(Taken { key, holding: self.held.remove(&key)?, stays: false })
    }
}

/// The pages on which an allocation is, first and last, if it may share them.
fn shared(key: Key, holding: &Holding) -> Option<(u64, u64)> {
    use AllocationPath::{CuMemAlloc, Managed, Pitch};
    let Key::Device(address) = key else { return None };
    let shares = matches!(holding.path, CuMemAlloc | Managed | Pitch) && holding.bytes < PAGE;
    let last = address.saturating_add(holding.bytes.0.saturating_sub(1));
    shares.then_some((address / PAGE.0, last / PAGE.0))
}
