//! The memory quota of this process's tenant, and what the program is told about memory.
//!
//! Every way to allocate is a hook here: what it may cost is entered in this process's account ([`book`]) before the driver is
//! asked, and settled with what the driver says. Beyond the quota the program gets the ordinary out-of-memory error, and
//! the driver never sees the call. What each way counts for, and what is not seen, is written down in `docs/memory.md`.
//!
//! Without a quota, and in a process that is no tenant's, everything is counted and nothing is refused. A tenant's process that its
//! node does not know yet gets nothing.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use partywall_core::memory_ledger::AllocationPath;
use partywall_core::units::Bytes;
use partywall_shim_api::page::Page;

use crate::hooks::Hook;
use crate::sys::CUresult;
use crate::{node, process, sms};

use abi::{CUcontext, CUdevice, real};
use book::{Book, Key, Lease, Lender, OutOfMemory, Owner, Reserved, Taken};
use elastic::Store;

mod abi;
mod arrays;
mod book;
mod contexts;
mod elastic;
mod graphs;
mod host;
mod imports;
mod mapped;
mod plain;
mod pools;
mod size;
mod view;
mod vmm;
mod waits;

pub(crate) use view::NVML_HOOKS;

/// The hooks of this area.
pub(crate) static HOOKS: &[&[Hook]] = &[
    plain::HOOKS,
    arrays::HOOKS,
    host::HOOKS,
    imports::HOOKS,
    mapped::HOOKS,
    pools::HOOKS,
    graphs::HOOKS,
    contexts::HOOKS,
    view::HOOKS,
    waits::HOOKS,
];

/// Those of them that refuse nothing.
#[cfg(test)]
pub(crate) static COUNTED: &[&[Hook]] = &[host::HOOKS, waits::HOOKS];

/// The node, by the connection that this process has.
#[derive(Debug)]
struct Connection;

impl Lender for Connection {
    fn page(&self) -> Option<&Page> {
        Some(process::page())
    }

    fn ask(&self, need: Bytes, want: Bytes) -> Option<Lease> {
        let node::Lease { total_bytes, granted } = node::ask(need.0, want.0)?;
        Some(Lease { total: Bytes(total_bytes), granted })
    }

    fn give(&self, bytes: Bytes) -> bool {
        node::give(bytes.0)
    }
}

/// What this process knows about its memory.
#[derive(Debug)]
struct Account {
    book: Book<Connection>,
    /// Graphs that allocate, by their executable handles.
    graphs: Mutex<BTreeMap<usize, graphs::Allocating>>,
    contexts: contexts::Contexts,
}

/// Null until the first allocation. What it points to is leaked: other threads use it, and in a child after `fork` its locks
/// may be held by threads that do not exist there.
static ACCOUNT: AtomicPtr<Account> = AtomicPtr::new(ptr::null_mut());

fn account() -> &'static Account {
    // SAFETY: null, or leaked by `open`.
    unsafe { ACCOUNT.load(Ordering::Acquire).as_ref() }.unwrap_or_else(open)
}

fn book() -> &'static Book<Connection> {
    &account().book
}

#[cold]
fn open() -> &'static Account {
    // A child after `fork` comes here again.
    process::start();
    let lease = node::lease().map_or(Bytes::ZERO, |lease| Bytes(lease.total_bytes));
    let new = Box::into_raw(Box::new(Account {
        book: Book::new(Connection, lease),
        graphs: Mutex::default(),
        contexts: contexts::Contexts::default(),
    }));
    match ACCOUNT.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked from a box, and published now.
        Ok(_) => unsafe { &*new },
        Err(earlier) => {
            // SAFETY: not published, so nobody else has it.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: not null, so another thread has leaked it.
            unsafe { &*earlier }
        }
    }
}

/// The process has registered, for the first time or again.
pub(crate) fn registered(_page: &'static Page) {
    // SAFETY: null, or leaked by `open`.
    let account = unsafe { ACCOUNT.load(Ordering::Acquire).as_ref() };
    if let (Some(account), Some(lease)) = (account, node::lease()) {
        account.book.set_lease(Bytes(lease.total_bytes));
    }
}

/// The node wants memory back that is not used.
pub(crate) fn recalled() {
    // SAFETY: null, or leaked by `open`.
    if let Some(account) = unsafe { ACCOUNT.load(Ordering::Acquire).as_ref() } {
        account.book.recall();
    }
}

/// In a child after `fork`: nothing was allocated here.
pub(crate) fn forked() {
    ACCOUNT.store(ptr::null_mut(), Ordering::Release);
    graphs::forked();
}

/// A lock whose holder cannot have panicked halfway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters an allocation; before it is refused, what pools and graphs keep for later is given back.
fn reserve(path: AllocationPath, bytes: Bytes) -> Result<Reserved, OutOfMemory> {
    book().reserve(path, bytes).or_else(
        |refused| {
            if relieve() { book().reserve(path, bytes) } else { Err(refused) }
        },
    )
}

/// Calls the driver for `bytes` under a path, and holds what it gives under the key that `key` finds.
fn allocate(
    path: AllocationPath,
    bytes: Bytes,
    call: impl FnOnce() -> CUresult,
    key: impl FnOnce() -> Key,
) -> CUresult {
    let Ok(reserved) = reserve(path, bytes) else { return CUresult::OUT_OF_MEMORY };
    let result = call();
    if result == CUresult::SUCCESS {
        book().commit(reserved, key(), owner());
    } else {
        book().cancel(reserved);
    }
    result
}

/// Calls the driver to free what is held under a key. What is not in the account is the driver's to judge.
fn free(key: Key, call: impl FnOnce() -> CUresult) -> CUresult {
    let taken = book().take(key);
    let result = call();
    answered(taken, result);
    result
}

/// Enters what the driver said to a free.
fn answered(taken: impl IntoIterator<Item = Taken>, result: CUresult) {
    if result == CUresult::SUCCESS {
        book().gone(taken);
    } else {
        book().put_back(taken);
    }
}

/// With what an allocation goes away that is made now.
fn owner() -> Owner {
    let mut context: CUcontext = ptr::null_mut();
    // SAFETY: a place for the answer.
    let result = unsafe { real::cuCtxGetCurrent(&raw mut context) };
    if result == CUresult::SUCCESS && !context.is_null() {
        Owner::Context(sms::outer(context) as u64)
    } else {
        Owner::Process
    }
}

/// The device of the current context.
fn device() -> Option<CUdevice> {
    let mut device = 0;
    // SAFETY: a place for the answer.
    let result = unsafe { real::cuCtxGetDevice(&raw mut device) };
    (result == CUresult::SUCCESS).then_some(device)
}

/// What the driver has reserved for a store; `None` if it does not say.
fn reserved_by(store: Store) -> Option<Bytes> {
    let mut bytes = 0u64;
    let value = (&raw mut bytes).cast();
    // SAFETY: the attributes are 64 bits, and a store is only asked for while its pool has not been destroyed.
    let result = unsafe {
        match store {
            Store::Pool(pool) => real::cuMemPoolGetAttribute(pools::handle(pool), abi::POOL_RESERVED, value),
            Store::Graphs(device) => real::cuDeviceGetGraphMemAttribute(device, abi::GRAPHS_RESERVED, value),
        }
    };
    (result == CUresult::SUCCESS).then_some(Bytes(bytes))
}

/// Enters what the driver has reserved for a store by now.
fn settle(store: Store) {
    let ticket = book().ticket();
    if let Some(bytes) = reserved_by(store) {
        // Nothing was allocated here, so there is nothing to undo where it has grown.
        let _ = book().settle(store, ticket, bytes, None);
    }
}

/// Enters what the driver has reserved for all stores that may have shrunk.
fn settle_all() {
    for store in book().shrinkable() {
        settle(store);
    }
}

/// Has the driver give back what it keeps for later; whether that was anything.
fn relieve() -> bool {
    let before = book().held_bytes();
    for store in book().shrinkable() {
        // That it cannot be trimmed shows in what it has reserved.
        let _ = match store {
            // SAFETY: a pool that has not been destroyed.
            Store::Pool(pool) => unsafe { real::cuMemPoolTrimTo(pools::handle(pool), 0) },
            Store::Graphs(device) => graphs::trim(device),
        };
        settle(store);
    }
    book().held_bytes() < before
}
