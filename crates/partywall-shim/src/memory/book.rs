//! The account of this process: what it holds, and how much of its tenant's quota it was lent.
//!
//! # Problem
//!
//! The quota belongs to a tenant, and a tenant may have many processes. Asking the node at every allocation would cost a
//! round trip each; not asking would let two processes spend the last gigabyte twice.
//!
//! # Approach
//!
//! A process has a *lease*, a part of the quota that nobody else can spend. An allocation is entered here before the driver is
//! asked ([`Book::reserve`]); where the lease is too small, the node is asked for more, in chunks. What the driver then says is
//! reported by [`Book::commit`] or [`Book::cancel`]. A free takes the entry out first ([`Book::take`]), so that the address can be
//! entered again by another thread the moment the driver has freed it, and its memory counts until the driver has
//! answered ([`Book::gone`]); if the driver refuses, the entry comes back ([`Book::put_back`]).
//!
//! Adding up is `core`'s memory ledger, without a limit of its own: the limit is the lease, less what the node found this
//! process to hold beyond what is counted here (contexts above all).
//!
//! The device hands out pages. An allocation smaller than a page may share one, and which one shows in its address: so a whole
//! page is reserved for it, and given back if the page that the driver chose is counted already. Where an allocation has no
//! address (small arrays) it counts as if it left no hole.
//!
//! Slack stays bounded: with more than two chunks unused, all but one are given back, and all of them when the node recalls.
//!
//! # Locks
//!
//! `state` is held for a few steps through trees, never across a call into the driver or to the node. `turn` is held while
//! the node is asked, so that its answers are taken in the order in which they came.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use partywall_core::memory_ledger::{AllocationId, AllocationPath};
use partywall_core::units::Bytes;
use partywall_shim_api::page::{MEMORY_PATHS, Page};

pub(super) use state::State;

mod state;
#[cfg(test)]
pub(super) mod tests;

/// The unit in which a lease grows and shrinks. Large enough that a framework's start is some dozen questions, small
/// against any quota.
pub(crate) const CHUNK: Bytes = Bytes::from_mib(64);

/// How often an allocation asks again because others took what the node had granted. Each time somebody got memory, so
/// more than a few rounds mean that the quota is spent.
const ROUNDS_MAX: u32 = 16;

const _: () = assert!(AllocationPath::ALL.len() == MEMORY_PATHS, "the page counts every path");

/// What the node says about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    /// All of it, bytes.
    pub(crate) total: Bytes,
    /// Whether the question got at least what it needs.
    pub(crate) granted: bool,
}

/// Who lends memory: the connection to the node. `None` where the node cannot be reached.
pub(crate) trait Lender {
    /// The page that this process shares with the node.
    fn page(&self) -> Option<&Page>;
    /// Asks for a lease that is larger by `need`, better by `want`, bytes.
    fn ask(&self, need: Bytes, want: Bytes) -> Option<Lease>;
    /// Gives back `bytes` of the lease, without waiting for an answer. False if the node cannot be reached.
    fn give(&self, bytes: Bytes) -> bool;
}

/// The tenant has no room for it. Nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

/// What an allocation is found again by when it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// Memory of the device, own or imported, by its address.
    Device(u64),
    /// Memory of the host, by its address.
    Host(u64),
    /// An array, by its handle.
    Array(u64),
    /// A mipmapped array, by its handle.
    Mipmapped(u64),
    /// External memory, by its handle.
    External(u64),
    /// What a context takes by itself, by its handle.
    Context(u64),
}

/// With what an allocation goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// With the context that was current when it was made.
    Context(u64),
    /// With its pool, which is what it is charged to.
    Pool(u64),
    /// Only when it is freed.
    Process,
}

/// An allocation that was granted and that the driver has not answered yet.
#[derive(Debug)]
#[must_use = "what was reserved is committed or cancelled"]
pub(crate) struct Reserved {
    /// Its entry in the ledger; `None` if it costs nothing.
    pub(super) id: Option<AllocationId>,
    /// How it is counted.
    pub(super) path: AllocationPath,
    /// What was asked for.
    pub(super) bytes: Bytes,
}

/// An allocation that the driver has given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holding {
    id: Option<AllocationId>,
    path: AllocationPath,
    bytes: Bytes,
    owner: Owner,
    /// How often it was opened; above one only for memory of other processes.
    opens: u32,
}

/// An allocation that is about to be freed.
#[derive(Debug)]
#[must_use = "what was taken is gone or put back"]
pub(crate) struct Taken {
    key: Key,
    holding: Holding,
    /// Whether it stays open after this.
    stays: bool,
}

/// The account of a process.
#[derive(Debug)]
pub(crate) struct Book<L> {
    lender: L,
    turn: Mutex<()>,
    /// A recall that came while the node was being asked, for whoever asks to carry out.
    recalled: AtomicBool,
    /// Whether something was freed to a pool since that was last looked at.
    freed_to_pool: AtomicBool,
    state: Mutex<State>,
}

impl<L: Lender> Book<L> {
    /// The account of a process that holds nothing and has a lease.
    pub(crate) fn new(lender: L, lease: Bytes) -> Self {
        Self {
            lender,
            turn: Mutex::new(()),
            recalled: AtomicBool::new(false),
            freed_to_pool: AtomicBool::new(false),
            state: Mutex::new(State::new(lease)),
        }
    }

    /// Enters an allocation before the driver is asked. May ask the node.
    ///
    /// # Errors
    /// The tenant has no room for it.
    pub(crate) fn reserve(&self, path: AllocationPath, bytes: Bytes) -> Result<Reserved, OutOfMemory> {
        for _ in 0..ROUNDS_MAX {
            let (need, lease) = {
                let mut state = self.state();
                match state.enter(path, bytes) {
                    Ok(reserved) => {
                        self.publish(&state);
                        return Ok(reserved);
                    }
                    Err(None) => break,
                    Err(Some(need)) => (need, state.lease),
                }
            };
            if !self.borrow(need, lease) {
                break;
            }
        }
        self.refused();
        Err(OutOfMemory)
    }

    /// The driver refused.
    pub(crate) fn cancel(&self, reserved: Reserved) {
        let mut state = self.state();
        state.drop_entry(reserved.id);
        self.publish(&state);
        drop(state);
        self.trim(CHUNK);
    }

    /// The driver gave it.
    pub(crate) fn commit(&self, reserved: Reserved, key: Key, owner: Owner) {
        let mut state = self.state();
        state.confirm(&reserved);
        let Reserved { id, path, bytes } = reserved;
        state.hold(key, Holding { id, path, bytes, owner, opens: 1 });
        state.share(key);
        self.publish(&state);
    }

    /// The driver gave what costs nothing.
    pub(crate) fn note(&self, path: AllocationPath, bytes: Bytes, key: Key, owner: Owner) {
        let mut state = self.state();
        state.hold(key, Holding { id: None, path, bytes, owner, opens: 1 });
        self.publish(&state);
    }

    /// The driver gave it, and it is of another size than expected.
    ///
    /// # Errors
    /// The tenant has no room for the difference: free it. The reservation is cancelled; nothing is held.
    pub(crate) fn commit_as(
        &self,
        reserved: Reserved,
        bytes: Bytes,
        key: Key,
        owner: Owner,
    ) -> Result<(), OutOfMemory> {
        if bytes == reserved.bytes {
            self.commit(reserved, key, owner);
            return Ok(());
        }
        let path = reserved.path;
        self.cancel(reserved);
        let reserved = self.reserve(path, bytes)?;
        self.commit(reserved, key, owner);
        Ok(())
    }

    /// Takes out what is about to be freed; `None` for what is not in this account.
    pub(crate) fn take(&self, key: Key) -> Option<Taken> {
        self.state().take(key)
    }

    /// Takes out all that a context holds, before the context is destroyed.
    pub(crate) fn take_context(&self, context: u64) -> Vec<Taken> {
        let mut state = self.state();
        let owned = |holding: &Holding| holding.owner == Owner::Context(context);
        let keys: Vec<Key> =
            state.held.iter().filter(|(_, holding)| owned(holding)).map(|(&key, _)| key).collect();
        keys.into_iter()
            .filter_map(|key| Some(Taken { key, holding: state.held.remove(&key)?, stays: false }))
            .collect()
    }

    /// The driver refused to free it.
    pub(crate) fn put_back(&self, taken: impl IntoIterator<Item = Taken>) {
        let mut state = self.state();
        for Taken { key, holding, stays } in taken {
            match state.held.get_mut(&key) {
                Some(holding) if stays => holding.opens += 1,
                // In use again: so it was freed after all.
                Some(_) => state.release(key, &holding),
                None => drop(state.held.insert(key, holding)),
            }
        }
        self.publish(&state);
    }

    /// The driver has freed it.
    pub(crate) fn gone(&self, taken: impl IntoIterator<Item = Taken>) {
        let mut state = self.state();
        for Taken { key, holding, stays } in taken {
            if let Owner::Pool(_) = holding.owner {
                self.freed_to_pool.store(true, Relaxed);
            }
            if !stays {
                state.release(key, &holding);
            }
        }
        self.publish(&state);
        drop(state);
        self.trim(CHUNK);
    }

    /// Counts one more opening of what is open already; false if it is not.
    pub(crate) fn reopened(&self, key: Key) -> bool {
        self.state().held.get_mut(&key).map(|holding| holding.opens += 1).is_some()
    }

    /// Gives back all that is lent and not used: a sibling needs it. Does not wait for anybody, because it is called by the
    /// thread that brings the node's answers.
    pub(crate) fn recall(&self) {
        // What pools have given back is found out by a thread of the program.
        self.freed_to_pool.store(true, Relaxed);
        self.recalled.store(true, SeqCst);
        drop(self.try_turn());
    }

    /// Whether something was freed to a pool since this was last asked, or memory is wanted back.
    pub(crate) fn was_freed_to_pool(&self) -> bool {
        self.freed_to_pool.load(Relaxed) && self.freed_to_pool.swap(false, Relaxed)
    }

    /// What the process holds, in bytes as the ledger counts: what it says when it registers again.
    pub(crate) fn held_bytes(&self) -> Bytes {
        self.state().used()
    }

    /// What the process uses of its tenant's quota: what it holds and what the node found besides.
    pub(crate) fn used_bytes(&self) -> Bytes {
        let mut state = self.state();
        self.look(&mut state);
        Bytes(state.used().0.saturating_add(state.context.0))
    }

    /// A lease that the node has set by itself: when the process has registered again.
    pub(crate) fn set_lease(&self, lease: Bytes) {
        let mut state = self.state();
        state.lease = lease;
        // The page may be a new one.
        self.publish(&state);
    }

    /// Whether memory that was found after the fact fits: asks the node where the lease does not cover what is held.
    ///
    /// # Errors
    /// The tenant has no room for what is held.
    pub(crate) fn cover(&self) -> Result<(), OutOfMemory> {
        for _ in 0..ROUNDS_MAX {
            let (over, lease) = {
                let mut state = self.state();
                self.look(&mut state);
                (state.over(Bytes::ZERO), state.lease)
            };
            if over == Bytes::ZERO {
                return Ok(());
            }
            if !self.borrow(over, lease) {
                break;
            }
        }
        self.refused();
        Err(OutOfMemory)
    }

    /// The state, looked at together with the page.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A panic with the lock held ends the process, so it is never poisoned.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.look(&mut state);
        state
    }

    fn look(&self, state: &mut State) {
        if let Some(page) = self.lender.page() {
            state.context = Bytes(page.node.context_bytes.load(Relaxed));
            state.limited = page.node.quota_bytes.load(Relaxed) != u64::MAX;
        }
    }

    fn refused(&self) {
        let mut state = self.state();
        state.refusals += 1;
        self.publish(&state);
    }

    /// Makes the lease larger by `need`; `lease` is what it was when that was found. True if it is worth to look again.
    fn borrow(&self, need: Bytes, lease: Bytes) -> bool {
        let held = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut turn = Turn { book: self, held: Some(held), keep: Bytes::ZERO };
        let slack = {
            let state = self.state();
            if state.lease.0 > lease.0 {
                // Another thread has asked meanwhile, for itself; perhaps this one's need is met by the rest of its chunk.
                return true;
            }
            state.slack()
        };
        turn.keep = Bytes(slack.0.saturating_add(need.0));
        let want = Bytes(need.0.checked_next_multiple_of(CHUNK.0).unwrap_or(need.0));
        let Some(lease) = self.lender.ask(need, want) else { return false };
        self.state().lease = lease.total;
        if !lease.granted {
            turn.keep = Bytes::ZERO;
        }
        lease.granted
    }

    /// Gives back all but `keep` of what is not used, where that is more than two chunks. Leaves it where the node is being
    /// asked by somebody else: that one needs memory.
    pub(super) fn trim(&self, keep: Bytes) {
        if self.state().slack().0 > 2 * CHUNK.0
            && let Some(turn) = self.try_turn()
        {
            self.give_back(keep);
            drop(turn);
        }
    }

    fn try_turn(&self) -> Option<Turn<'_, L>> {
        let held = match self.turn.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Turn { book: self, held: Some(held), keep: Bytes::ZERO })
    }

    /// Gives back all unused memory but `keep`. The caller has the turn.
    fn give_back(&self, keep: Bytes) {
        let give = {
            let mut state = self.state();
            let give = Bytes(state.slack().0.saturating_sub(keep.0));
            // From now on nobody here spends it.
            state.lease = state.lease - give;
            give
        };
        // Where nobody takes it, the next registration or question will set the lease.
        if give > Bytes::ZERO && !self.lender.give(give) {
            let mut state = self.state();
            state.lease = Bytes(state.lease.0.saturating_add(give.0));
        }
    }

    /// Writes the totals to the page.
    pub(super) fn publish(&self, state: &State) {
        let Some(page) = self.lender.page() else { return };
        let shim = &page.shim;
        shim.memory_bytes.store(state.used().0, Relaxed);
        shim.memory_peak_bytes.store(state.peak.0, Relaxed);
        for (field, bytes) in shim.memory_by_path.iter().zip(state.by_path) {
            field.store(bytes, Relaxed);
        }
        shim.allocations.store(state.allocations, Relaxed);
        shim.refusals.store(state.refusals, Relaxed);
    }
}

/// The right to speak with the node. Whoever has it also carries out recalls that come meanwhile.
struct Turn<'a, L: Lender> {
    book: &'a Book<L>,
    held: Option<MutexGuard<'a, ()>>,
    /// What was just asked for, and is not to be given back before it is used.
    keep: Bytes,
}

impl<L: Lender> Drop for Turn<'_, L> {
    fn drop(&mut self) {
        while self.held.is_some() {
            if self.book.recalled.swap(false, SeqCst) {
                self.book.give_back(self.keep);
            }
            self.held = None;
            // One that came after the look above, and found the turn taken.
            if self.book.recalled.load(SeqCst) {
                self.held = self.book.turn.try_lock().ok();
            }
        }
    }
}
