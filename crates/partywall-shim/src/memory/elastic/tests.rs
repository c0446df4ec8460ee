use super::super::book::tests::{Node, mib};
use super::super::book::{Key, Owner};
use super::*;

const POOL: Store = Store::Pool(0x70);

/// An allocation after which the driver says that `reserved` are reserved.
fn alloc(book: &Book<&Node>, bytes: Bytes, address: u64, reserved: Bytes) -> Result<(), OutOfMemory> {
    let room = book.stretch(POOL, bytes)?;
    let ticket = book.ticket();
    book.settle(POOL, ticket, reserved, room)?;
    let owner = Owner::Pool(book.number(POOL));
    book.note(AllocationPath::Pool, bytes, Key::Device(address), owner);
    Ok(())
}

fn free(book: &Book<&Node>, address: u64) {
    let taken = book.take(Key::Device(address));
    assert!(taken.is_some());
    book.gone(taken);
}

#[test]
fn a_pool_costs_what_it_has_reserved() {
    let node = Node::with(mib(256));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, mib(1), 1, mib(32)).unwrap();
    assert_eq!(book.held_bytes(), mib(32));
    alloc(&book, mib(10), 2, mib(32)).unwrap();
    assert_eq!(book.held_bytes(), mib(32));
    assert_eq!(book.shrinkable(), [POOL]);
    free(&book, 1);
    free(&book, 2);
    assert_eq!(book.held_bytes(), mib(32), "the driver keeps it");
    let ticket = book.ticket();
    book.settle(POOL, ticket, Bytes::ZERO, None).unwrap();
    assert_eq!(book.held_bytes(), Bytes::ZERO);
    assert!(book.shrinkable().is_empty());
}

#[test]
fn a_pool_may_not_grow_beyond_the_quota() {
    let node = Node::with(mib(64));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, mib(20), 1, mib(32)).unwrap();
    alloc(&book, mib(20), 2, mib(64)).unwrap();
    // Although the pool has room for it: nobody knows whether the driver would use that.
    assert_eq!(alloc(&book, mib(10), 3, mib(64)), Err(OutOfMemory));
    free(&book, 1);
    let ticket = book.ticket();
    book.settle(POOL, ticket, mib(32), None).unwrap();
    alloc(&book, mib(10), 1, mib(32)).unwrap();
    // The driver takes more than expected: too late to refuse, so it is undone, and counts until it is gone.
    let refused = alloc(&book, mib(20), 3, mib(96));
    assert_eq!((refused, book.held_bytes()), (Err(OutOfMemory), mib(96)));
    let ticket = book.ticket();
    book.settle(POOL, ticket, mib(32), None).unwrap();
    assert_eq!(book.held_bytes(), mib(32));
}

#[test]
fn the_step_is_learned() {
    let node = Node::with(mib(40));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, mib(20), 1, mib(20)).unwrap();
    // Rounded to 32 MiB this would have been refused; the first time it is tried in pages, then it is known.
    alloc(&book, mib(3), 2, mib(24)).unwrap();
    alloc(&book, mib(16), 3, mib(40)).unwrap();
    let node = Node::with(mib(40));
    let book = Book::new(&node, Bytes::ZERO);
    alloc(&book, mib(1), 1, mib(32)).unwrap();
    assert!(matches!(book.stretch(POOL, mib(8)), Err(OutOfMemory)), "it would become 64 MiB");
}

#[test]
fn late_answers_are_not_entered() {
    let node = Node::with(mib(256));
    let book = Book::new(&node, Bytes::ZERO);
    let (early, late) = (book.ticket(), book.ticket());
    let room = [book.stretch(POOL, mib(30)).unwrap(), book.stretch(POOL, mib(30)).unwrap()];
    assert_eq!(book.held_bytes(), mib(64));
    let [first, second] = room;
    book.settle(POOL, late, mib(64), second).unwrap();
    assert_eq!(book.held_bytes(), mib(96), "the other one may grow it still");
    book.settle(POOL, early, mib(32), first).unwrap();
    assert_eq!(book.held_bytes(), mib(64));
}

#[test]
fn a_destroyed_pool_counts_until_its_last_allocation_is_freed() {
    let node = Node::with(mib(256));
    let book = Book::new(&node, Bytes::ZERO);
    book.made(POOL, false);
    alloc(&book, mib(20), 1, mib(32)).unwrap();
    book.retire(POOL);
    assert_eq!(book.held_bytes(), mib(32));
    // Another one under the same handle.
    book.made(POOL, false);
    alloc(&book, mib(20), 2, mib(64)).unwrap();
    assert_eq!(book.held_bytes(), mib(96));
    free(&book, 1);
    assert_eq!(book.held_bytes(), mib(64));
    free(&book, 2);
    book.retire(POOL);
    assert_eq!(book.held_bytes(), Bytes::ZERO);
}

#[test]
fn pools_of_the_host_cost_nothing() {
    let node = Node::with(Bytes::ZERO);
    let book = Book::new(&node, Bytes::ZERO);
    book.made(POOL, true);
    alloc(&book, mib(20), 1, mib(32)).unwrap();
    assert_eq!(book.held_bytes(), Bytes::ZERO);
    free(&book, 1);
}
