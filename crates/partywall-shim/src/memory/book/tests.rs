use std::sync::Mutex;

use partywall_core::memory_ledger::PAGE;
use partywall_shim_api::page::Mapped;
use proptest::prelude::*;

use super::*;
use AllocationPath::{CuMemAlloc, HostRegistered, Imported, Managed};

pub(in crate::memory) fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

/// A node with one tenant and a quota, and what was said to it.
pub(in crate::memory) struct Node {
    quota: Bytes,
    leased: Mutex<Bytes>,
    pub(in crate::memory) page: Mapped,
    pub(in crate::memory) asked: Mutex<Vec<(Bytes, Bytes)>>,
    gone: Mutex<bool>,
}

impl Node {
    pub(in crate::memory) fn with(quota: Bytes) -> Self {
        let (page, _) = Mapped::create(1, 0, 0, None).unwrap();
        page.node.quota_bytes.store(quota.0, Relaxed);
        Self {
            quota,
            leased: Mutex::new(Bytes::ZERO),
            page,
            asked: Mutex::new(Vec::new()),
            gone: Mutex::new(false),
        }
    }

    fn leased(&self) -> Bytes {
        *self.leased.lock().unwrap()
    }
}

impl Lender for &Node {
    fn page(&self) -> Option<&Page> {
        Some(&self.page)
    }

    fn ask(&self, need: Bytes, want: Bytes) -> Option<Lease> {
        self.asked.lock().unwrap().push((need, want));
        let mut leased = self.leased.lock().unwrap();
        let free = self.quota - *leased;
        let granted = need <= free;
        if granted {
            *leased = *leased + want.min(free);
        }
        (!*self.gone.lock().unwrap()).then_some(Lease { total: *leased, granted })
    }

    fn give(&self, bytes: Bytes) -> bool {
        let taken = !*self.gone.lock().unwrap();
        if taken {
            let mut leased = self.leased.lock().unwrap();
            *leased = *leased - bytes;
        }
        taken
    }
}

/// An allocation at the beginning of a page of its own.
fn alloc(book: &Book<&Node>, bytes: Bytes, page: u64) -> Result<(), OutOfMemory> {
    alloc_at(book, bytes, page * PAGE.0)
}

fn alloc_at(book: &Book<&Node>, bytes: Bytes, address: u64) -> Result<(), OutOfMemory> {
    let reserved = book.reserve(CuMemAlloc, bytes)?;
    book.commit(reserved, Key::Device(address), Owner::Context(1));
    Ok(())
}

fn free(book: &Book<&Node>, page: u64) -> bool {
    free_at(book, page * PAGE.0)
}

fn free_at(book: &Book<&Node>, address: u64) -> bool {
    let taken = book.take(Key::Device(address));
    let known = taken.is_some();
    book.gone(taken);
    known
}

fn shown(node: &Node, path: AllocationPath) -> u64 {
    let index = AllocationPath::ALL.iter().position(|&each| each == path).unwrap();
    node.page.shim.memory_by_path[index].load(Relaxed)
}

#[test]
fn a_lease_grows_in_chunks_and_exactly_near_the_quota() {
    let node = Node::with(mib(100));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, Bytes(1), 1).unwrap();
    assert_eq!(node.leased(), CHUNK);
    // Within the chunk nobody is asked.
    alloc(&book, mib(62), 2).unwrap();
    assert_eq!(*node.asked.lock().unwrap(), [(mib(2), CHUNK)]);
    alloc(&book, mib(36), 3).unwrap();
    assert_eq!(node.leased(), mib(100));
    assert_eq!(alloc(&book, Bytes(1), 5), Err(OutOfMemory));
    assert_eq!(book.held_bytes(), mib(100));
    // The program can go on.
    assert!(free(&book, 3));
    alloc(&book, mib(36), 5).unwrap();
    let shim = &node.page.shim;
    assert_eq!(shim.memory_bytes.load(Relaxed), mib(100).0);
    assert_eq!(shim.memory_peak_bytes.load(Relaxed), mib(100).0);
    assert_eq!(shim.allocations.load(Relaxed), 4);
    assert_eq!(shim.refusals.load(Relaxed), 1);
    assert_eq!(shown(&node, CuMemAlloc), mib(98).0 + 1);
}

#[test]
fn small_allocations_count_by_the_pages_on_which_they_are() {
    let node = Node::with(mib(10));
    let book = Book::new(&node, Bytes::ZERO);
    for slot in 0..4 {
        alloc_at(&book, mib(2) - Bytes(1), slot * PAGE.0).unwrap();
        alloc_at(&book, Bytes(1), slot * PAGE.0 + PAGE.0 - 1).unwrap();
    }
    assert_eq!(book.held_bytes(), mib(8));
    // One that lies on two.
    alloc_at(&book, Bytes(2), 5 * PAGE.0 - 1).unwrap();
    assert_eq!(book.held_bytes(), mib(12));
    assert!(free_at(&book, 5 * PAGE.0 - 1));
    // A hole keeps its page.
    for slot in 0..4 {
        assert!(free_at(&book, slot * PAGE.0));
    }
    assert_eq!(book.held_bytes(), mib(8));
    for slot in 0..4 {
        assert!(free_at(&book, slot * PAGE.0 + PAGE.0 - 1));
    }
    assert_eq!(book.held_bytes(), Bytes::ZERO);
}

#[test]
fn small_arrays_count_a_page_each() {
    let node = Node::with(mib(10));
    let book = Book::new(&node, Bytes::ZERO);
    for (handle, bytes) in [(1, Bytes(1)), (2, mib(1) - Bytes(1)), (3, mib(1) - Bytes(1)), (4, mib(1))] {
        let reserved = book.reserve(AllocationPath::Array, bytes).unwrap();
        book.commit(reserved, Key::Array(handle), Owner::Context(1));
    }
    assert_eq!(book.held_bytes(), mib(8));
}

#[test]
fn slack_is_given_back_beyond_two_chunks_and_on_recall() {
    let node = Node::with(mib(10_000));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, mib(1000), 1).unwrap();
    alloc(&book, mib(100), 2).unwrap();
    assert!(free(&book, 2));
    let kept = node.leased() - mib(1000);
    assert!(kept <= mib(128), "two chunks stay: {kept}");
    assert!(free(&book, 1));
    assert_eq!(node.leased(), CHUNK);
    alloc(&book, mib(10), 1).unwrap();
    book.recall();
    assert_eq!(node.leased(), mib(10));
    book.recall();
    assert_eq!(node.leased(), mib(10));
}

#[test]
fn a_recall_while_the_node_is_asked_waits_and_leaves_what_was_asked_for() {
    let node = Node::with(mib(10_000));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, mib(1), 1).unwrap();
    let turn = book.turn.lock().unwrap();
    // The thread that reads the answers must not be held up.
    book.recall();
    assert_eq!(node.leased(), CHUNK);
    drop(turn);
    alloc(&book, mib(100), 2).unwrap();
    assert_eq!(node.leased(), book.held_bytes());
    assert_eq!(node.asked.lock().unwrap().len(), 2);
}

#[test]
fn what_the_driver_refuses_is_rolled_back() {
    let node = Node::with(mib(64));
    let book = Book::new(&node, Bytes::ZERO);
    let reserved = book.reserve(CuMemAlloc, mib(64)).unwrap();
    assert_eq!(alloc(&book, Bytes(1), 1), Err(OutOfMemory));
    book.cancel(reserved);
    assert_eq!(book.held_bytes(), Bytes::ZERO);
    alloc(&book, mib(64), 1).unwrap();
}

#[test]
fn memory_counts_until_the_driver_has_freed_it() {
    let node = Node::with(mib(10));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, mib(10), 1).unwrap();
    let taken = book.take(Key::Device(PAGE.0)).unwrap();
    assert_eq!(alloc(&book, mib(2), 2), Err(OutOfMemory));
    // A second free of the same, from another thread, is not ours.
    assert!(book.take(Key::Device(PAGE.0)).is_none());
    book.put_back([taken]);
    assert_eq!(book.held_bytes(), mib(10));
    assert!(free(&book, 1));
    assert!(!free(&book, 1), "freed twice");
    assert!(!free(&book, 77), "never allocated here");
    assert_eq!(book.held_bytes(), Bytes::ZERO);
}

#[test]
fn an_address_that_comes_again_was_freed_unseen() {
    let node = Node::with(mib(10));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, mib(4), 1).unwrap();
    alloc(&book, mib(6), 1).unwrap();
    assert_eq!((book.held_bytes(), shown(&node, CuMemAlloc)), (mib(6), mib(6).0));
    // The same between a free and its answer: the driver has given the address away before the free returned.
    let taken = book.take(Key::Device(PAGE.0)).unwrap();
    alloc(&book, mib(2), 1).unwrap();
    book.put_back([taken]);
    assert_eq!((book.held_bytes(), shown(&node, CuMemAlloc)), (mib(2), mib(2).0));
}

#[test]
fn what_turns_out_larger_is_charged_so_or_not_held() {
    let node = Node::with(mib(10));
    let book = Book::new(&node, Bytes::ZERO);
    let reserved = book.reserve(AllocationPath::Pitch, mib(4)).unwrap();
    book.commit_as(reserved, mib(6), Key::Device(1), Owner::Process).unwrap();
    assert_eq!(book.held_bytes(), mib(6));
    let reserved = book.reserve(AllocationPath::Pitch, mib(4)).unwrap();
    let larger = book.commit_as(reserved, mib(6), Key::Device(2), Owner::Process);
    assert_eq!(larger, Err(OutOfMemory));
    assert_eq!(book.held_bytes(), mib(6));
    assert!(book.take(Key::Device(2)).is_none());
}

#[test]
fn a_context_takes_what_it_holds_with_it() {
    let node = Node::with(mib(100));
    let book = Book::new(&node, Bytes::ZERO);
    for (address, context) in [(1, 1), (2, 2), (3, 1)] {
        let reserved = book.reserve(Managed, mib(10)).unwrap();
        book.commit(reserved, Key::Device(address), Owner::Context(context));
    }
    book.note(HostRegistered, mib(1000), Key::Host(1), Owner::Context(1));
    let taken = book.take_context(1);
    assert_eq!(taken.len(), 3);
    book.put_back(taken);
    assert_eq!((book.held_bytes(), shown(&node, HostRegistered)), (mib(30), mib(1000).0));
    book.gone(book.take_context(1));
    assert_eq!((book.held_bytes(), shown(&node, HostRegistered)), (mib(10), 0));
}

#[test]
fn imports_count_for_whoever_imports_and_close_as_often_as_they_were_opened() {
    let node = Node::with(mib(10));
    let book = Book::new(&node, Bytes::ZERO);
    let reserved = book.reserve(Imported, mib(1)).unwrap();
    book.commit(reserved, Key::Device(PAGE.0), Owner::Context(1));
    assert_eq!(book.held_bytes(), PAGE);
    assert!(book.reopened(Key::Device(PAGE.0)));
    assert!(!book.reopened(Key::Device(0)));
    assert!(free(&book, 1));
    assert_eq!((book.held_bytes(), shown(&node, Imported)), (PAGE, mib(1).0));
    let last = book.take(Key::Device(PAGE.0)).unwrap();
    book.put_back([last]);
    assert!(free(&book, 1));
    assert_eq!((book.held_bytes(), shown(&node, Imported)), (Bytes::ZERO, 0));
}

#[test]
fn contexts_count_as_the_node_measures_them() {
    let node = Node::with(mib(1000));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, mib(64), 1).unwrap();
    node.page.node.context_bytes.store(mib(500).0, Relaxed);
    assert_eq!(book.used_bytes(), mib(564));
    assert_eq!(alloc(&book, mib(500), 2), Err(OutOfMemory));
    alloc(&book, mib(436), 2).unwrap();
    assert_eq!(node.leased(), mib(1000));
    // It may come after the fact that there is too little room.
    node.page.node.context_bytes.store(mib(501).0, Relaxed);
    assert_eq!(book.cover(), Err(OutOfMemory));
    node.page.node.context_bytes.store(0, Relaxed);
    assert_eq!(book.cover(), Ok(()));
}

#[test]
fn without_a_quota_nobody_is_asked() {
    let node = Node::with(Bytes(u64::MAX));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, Bytes::from_gib(1000), 1).unwrap();
    assert!(node.asked.lock().unwrap().is_empty());
    assert_eq!(node.page.shim.memory_bytes.load(Relaxed), Bytes::from_gib(1000).0);
    // Sizes that no device has are the driver's to refuse, but must not be mistaken for small ones.
    assert_eq!(alloc(&book, Bytes(u64::MAX), 2), Err(OutOfMemory));
    assert!(free(&book, 1));
    book.recall();
    assert_eq!(book.held_bytes(), Bytes::ZERO);
}

#[test]
fn without_the_node_the_last_lease_goes_on() {
    let node = Node::with(mib(1000));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, mib(500), 1).unwrap();
    *node.gone.lock().unwrap() = true;
    let lease = node.leased();
    assert_eq!(alloc(&book, mib(100), 2), Err(OutOfMemory));
    alloc(&book, lease - mib(500), 2).unwrap();
    assert!(free(&book, 1));
    // The node did not answer that it took anything back.
    alloc(&book, mib(500), 1).unwrap();
    // Another node comes, and the process has registered with what it holds.
    *node.gone.lock().unwrap() = false;
    *node.leased.lock().unwrap() = book.held_bytes();
    book.set_lease(book.held_bytes());
    alloc(&book, mib(10), 3).unwrap();
    assert_eq!(node.leased(), lease + CHUNK);
}

#[test]
fn a_quota_of_zero_refuses_everything() {
    let node = Node::with(Bytes::ZERO);
    let book = Book::new(&node, Bytes::ZERO);
    assert_eq!(alloc(&book, Bytes(1), 1), Err(OutOfMemory));
    book.note(HostRegistered, mib(1), Key::Host(1), Owner::Process);
    assert_eq!(shown(&node, HostRegistered), mib(1).0);
}

#[test]
fn threads_together_never_hold_more_than_the_quota() {
    let node = Node::with(mib(512));
    let book = Book::new(&node, Bytes::ZERO);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (book, node) = (&book, &node);
            scope.spawn(move || {
                for round in 0..300u64 {
                    let key = Key::Device(thread << 40 | round << 32);
                    // Sizes that all threads together cannot have at once.
                    let Ok(reserved) = book.reserve(CuMemAlloc, mib(1 + (round * 7 + thread * 13) % 200))
                    else {
                        continue;
                    };
                    assert!(book.held_bytes() <= node.quota);
                    book.commit(reserved, key, Owner::Process);
                    book.gone(book.take(key));
                }
            });
        }
    });
    assert_eq!(book.held_bytes(), Bytes::ZERO);
    book.recall();
    assert_eq!(node.leased(), Bytes::ZERO);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is allocated and freed: what is held is what the ledger of the survivors says, never beyond the quota, always
    /// covered by the lease, and the page says the same.
    #[test]
    fn books_balance(steps in prop::collection::vec((any::<bool>(), 0u64..8, 1u64..(90 << 20)), 0..60)) {
        let node = Node::with(mib(200));
        let book = Book::new(&node, Bytes::ZERO);
        let mut live: std::collections::BTreeMap<u64, u64> = Default::default();
        for (allocate, address, bytes) in steps {
            if allocate && !live.contains_key(&address) {
                if alloc(&book, Bytes(bytes), address).is_ok() {
                    live.insert(address, bytes);
                }
            } else {
                prop_assert_eq!(free(&book, address), live.remove(&address).is_some());
            }
            let held: u64 = live.values().map(|bytes| bytes.next_multiple_of(PAGE.0)).sum();
            prop_assert_eq!(book.held_bytes(), Bytes(held));
            prop_assert!(book.held_bytes() <= node.leased() && node.leased() <= node.quota);
            prop_assert!(node.leased().0 - book.held_bytes().0 <= 2 * CHUNK.0);
            prop_assert_eq!(node.page.shim.memory_bytes.load(Relaxed), book.held_bytes().0);
            prop_assert_eq!(shown(&node, CuMemAlloc), live.values().sum::<u64>());
        }
    }
}
