//! Memory that the driver keeps for later: pools, and the memory of graphs.
//!
//! An allocation from a pool may take memory of the device or may not, and a free gives none back until the driver feels
//! like it. So what is charged is what the driver says that the pool has reserved, found out after each allocation
//! ([`Book::settle`]). That alone would be too late: before an allocation as much is reserved as the pool may grow by
//! ([`Book::stretch`]). A pool grows in steps that the driver does not document; their size is learned.
//!
//! That also holds for what would fit the room that a pool has: whether the driver uses that room is its secret (holes, and
//! frees whose turn has not come). Letting it try where the quota has no room, and undoing it if it grew, was tried: tenants
//! then held up to one allocation more than their quota for a moment. So where a lease has no room, pools are trimmed first,
//! and what is left of the quota is room to grow again.

use std::collections::BTreeMap;

use partywall_core::memory_ledger::{AllocationId, AllocationPath, PAGE};
use partywall_core::units::Bytes;

use super::book::{Book, Lender, OutOfMemory, Reserved};

#[cfg(test)]
mod tests;

/// What a pool grows by, until this device has shown otherwise. Estimate: 32 MiB is what discrete GPUs are seen to do.
const STEP: Bytes = Bytes::from_mib(32);

/// What keeps memory for later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Store {
    /// A pool, by its handle.
    Pool(u64),
    /// The memory that the driver keeps for the graphs of a device, by its number.
    Graphs(i32),
}

impl Store {
    const fn path(self) -> AllocationPath {
        match self {
            Self::Pool(_) => AllocationPath::Pool,
            Self::Graphs(_) => AllocationPath::Graph,
        }
    }
}

/// The order in which what the driver says was asked for: answers may be entered in another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Ticket(u64);

/// All stores of a process.
#[derive(Debug, Default)]
pub(super) struct Elastic {
    /// Their accounts' numbers: a handle may be used again while what was allocated from its former pool lives.
    open: BTreeMap<Store, u64>,
    accounts: BTreeMap<u64, Account>,
    next: u64,
    tickets: u64,
    /// What stores were seen to grow by.
    step: Option<Bytes>,
}

#[derive(Debug, Default)]
struct Account {
    /// The entry in the ledger for what is reserved.
    entry: Option<AllocationId>,
    /// What the driver has reserved, as far as known.
    reserved: Bytes,
    /// What the program has allocated and not freed.
    used: Bytes,
    /// When `reserved` was asked for.
    ticket: Ticket,
    /// Whether its memory is not the device's.
    free: bool,
    /// Whether the program has destroyed it.
    retired: bool,
}

impl Elastic {
    fn open(&mut self, store: Store) -> (u64, &mut Account) {
        let number = *self.open.entry(store).or_insert_with(|| {
            self.next += 1;
            self.next
        });
        (number, self.accounts.entry(number).or_default())
    }

    /// The account of a store that the program uses now, to be named by what is allocated from it.
    pub(super) fn number(&mut self, store: Store) -> u64 {
        self.open(store).0
    }

    /// Something was allocated from it.
    pub(super) fn used(&mut self, number: u64, bytes: Bytes) {
        if let Some(account) = self.accounts.get_mut(&number) {
            account.used = Bytes(account.used.0.saturating_add(bytes.0));
        }
    }

    /// Something was freed. Gives the entry that is to be dropped when it was the last of a destroyed pool.
    pub(super) fn unused(&mut self, number: u64, bytes: Bytes) -> Option<AllocationId> {
        let account = self.accounts.get_mut(&number)?;
        account.used = Bytes(account.used.0.saturating_sub(bytes.0));
        if !account.retired || account.used > Bytes::ZERO {
            return None;
        }
        self.accounts.remove(&number)?.entry
    }

    fn learn(&mut self, growth: Bytes) {
        if growth > Bytes::ZERO {
            let step = Bytes(1 << growth.0.trailing_zeros().min(63)).clamp(PAGE, STEP);
            self.step = Some(self.step.map_or(step, |known| known.min(step)));
        }
    }
}

impl<L: Lender> Book<L> {
    /// Enters what an allocation of `bytes` may make a store grow by. `None` where that costs nothing.
    ///
    /// # Errors
    /// The tenant has no room for it.
    pub(crate) fn stretch(&self, store: Store, bytes: Bytes) -> Result<Option<Reserved>, OutOfMemory> {
        let step = {
            let mut state = self.state();
            if state.elastic.open(store).1.free {
                return Ok(None);
            }
            state.elastic.step
        };
        let whole = |step: Bytes| bytes.0.checked_next_multiple_of(step.0).map_or(bytes, Bytes);
        match self.reserve(store.path(), whole(step.unwrap_or(STEP))) {
            // Perhaps this device's steps are smaller than the estimate; the answer will show.
            Err(OutOfMemory) if step.is_none() => self.reserve(store.path(), whole(PAGE)).map(Some),
            reserved => reserved.map(Some),
        }
    }

    /// To be taken before the driver is asked what it has reserved.
    pub(crate) fn ticket(&self) -> Ticket {
        let mut state = self.state();
        state.elastic.tickets += 1;
        Ticket(state.elastic.tickets)
    }

    /// Enters what the driver says that a store has reserved, in place of what had been entered.
    ///
    /// # Errors
    /// It has grown, and the tenant has no room for that: undo the allocation and settle again.
    pub(crate) fn settle(
        &self,
        store: Store,
        ticket: Ticket,
        measured: Bytes,
        reserved: Option<Reserved>,
    ) -> Result<(), OutOfMemory> {
        let mut state = self.state();
        state.drop_entry(reserved.and_then(|reserved| reserved.id));
        let (number, account) = state.elastic.open(store);
        let (entry, before) = (account.entry, account.reserved);
        let news = ticket > account.ticket && !account.free;
        if news {
            state.drop_entry(entry);
            let entry = state.found(measured);
            state.elastic.learn(Bytes(measured.0.saturating_sub(before.0)));
            if let Some(account) = state.elastic.accounts.get_mut(&number) {
                *account = Account { entry, reserved: measured, ticket, ..std::mem::take(account) };
            }
        }
        self.publish(&state);
        drop(state);
        if news && measured > before {
            return self.cover();
        }
        self.trim(super::book::CHUNK);
        Ok(())
    }

    /// The stores that may have less reserved than is charged for them.
    pub(crate) fn shrinkable(&self) -> Vec<Store> {
        let state = self.state();
        let Elastic { open, accounts, .. } = &state.elastic;
        let more = |account: &Account| account.reserved > account.used;
        open.iter()
            .filter(|(_, number)| accounts.get(number).is_some_and(more))
            .map(|(&store, _)| store)
            .collect()
    }

    /// A pool was made, or found to be of memory that is not the device's (`free`).
    pub(crate) fn introduce(&self, store: Store, free: bool) {
        let mut state = self.state();
        state.elastic.open(store).1.free = free;
    }

    /// A pool was made by the program: what is known under its handle is another one.
    pub(crate) fn made(&self, store: Store, free: bool) {
        self.retire(store);
        self.introduce(store, free);
    }

    /// A pool is destroyed: its memory stays until what was allocated from it is freed.
    pub(crate) fn retire(&self, store: Store) {
        let mut state = self.state();
        let Some(number) = state.elastic.open.remove(&store) else { return };
        if let Some(account) = state.elastic.accounts.get_mut(&number) {
            account.retired = true;
        }
        let left = state.elastic.unused(number, Bytes::ZERO);
        state.drop_entry(left);
        self.publish(&state);
        drop(state);
        self.trim(super::book::CHUNK);
    }

    /// The name under which allocations from a store are held.
    pub(crate) fn number(&self, store: Store) -> u64 {
        self.state().elastic.number(store)
    }
}
