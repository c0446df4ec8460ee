use proptest::prelude::*;

use super::super::book::tests::{Node, mib};
use super::*;

fn create(book: &Book<&Node>, handle: u64, bytes: Bytes) -> Result<(), OutOfMemory> {
    let reserved = book.reserve(AllocationPath::Vmm, bytes)?;
    book.created(Some(reserved), bytes, handle);
    Ok(())
}

fn map(book: &Book<&Node>, handle: u64, address: u64, bytes: Bytes) -> Result<bool, OutOfMemory> {
    let Some(begun) = book.map(handle, bytes)? else { return Ok(false) };
    book.mapped(begun, address, bytes);
    Ok(true)
}

fn unmap(book: &Book<&Node>, address: u64, bytes: Bytes) {
    let unmapping = book.unmap(address, bytes);
    book.unmapped(unmapping, true);
}

fn release(book: &Book<&Node>, handle: u64) -> bool {
    let Some(releasing) = book.release(handle) else { return false };
    book.released(releasing, true);
    true
}

#[test]
fn memory_lives_until_the_last_handle_and_mapping_is_gone() {
    let node = Node::with(mib(64));
    let book = Book::new(&node, Bytes::ZERO);
    create(&book, 7, mib(10)).unwrap();
    assert!(map(&book, 7, 1 << 30, mib(10)).unwrap());
    assert!(map(&book, 7, 1 << 31, mib(10)).unwrap());
    assert!(release(&book, 7));
    assert_eq!(book.held_bytes(), mib(10));
    assert!(!release(&book, 7));
    book.retained(7, (1 << 31) + 5);
    unmap(&book, 1 << 30, mib(10));
    unmap(&book, 1 << 31, mib(10));
    assert_eq!(book.held_bytes(), mib(10));
    assert!(release(&book, 7));
    assert_eq!(book.held_bytes(), Bytes::ZERO);
}

#[test]
fn a_range_is_unmapped_with_all_that_is_in_it() {
    let node = Node::with(mib(64));
    let book = Book::new(&node, Bytes::ZERO);
    for handle in 0..3 {
        create(&book, handle, mib(2)).unwrap();
        map(&book, handle, handle * mib(2).0, mib(2)).unwrap();
        release(&book, handle);
    }
    // Not a part of one.
    unmap(&book, 0, mib(1));
    unmap(&book, mib(1).0, mib(1));
    assert_eq!(book.held_bytes(), mib(6));
    unmap(&book, 0, mib(4));
    assert_eq!(book.held_bytes(), mib(2));
    let unmapping = book.unmap(mib(4).0, mib(2));
    book.unmapped(unmapping, false);
    assert_eq!(book.held_bytes(), mib(2));
    unmap(&book, mib(4).0, mib(2));
    assert_eq!(book.held_bytes(), Bytes::ZERO);
}

#[test]
fn a_handle_that_comes_again_is_another_one() {
    let node = Node::with(mib(64));
    let book = Book::new(&node, Bytes::ZERO);
    create(&book, 7, mib(10)).unwrap();
    map(&book, 7, 1 << 30, mib(10)).unwrap();
    // The driver uses the value again while the release is under way.
    let releasing = book.release(7).unwrap();
    create(&book, 7, mib(4)).unwrap();
    book.released(releasing, true);
    assert_eq!(book.held_bytes(), mib(14));
    assert!(release(&book, 7));
    assert_eq!(book.held_bytes(), mib(10));
    unmap(&book, 1 << 30, mib(10));
    assert_eq!(book.held_bytes(), Bytes::ZERO);
}

#[test]
fn what_the_driver_refuses_is_as_before() {
    let node = Node::with(mib(64));
    let book = Book::new(&node, Bytes::ZERO);
    create(&book, 7, mib(10)).unwrap();
    let begun = book.map(7, mib(10)).unwrap().unwrap();
    // Released by another thread meanwhile; then the driver does not map it.
    assert!(release(&book, 7));
    assert_eq!(book.held_bytes(), mib(10));
    book.not_mapped(begun);
    assert_eq!(book.held_bytes(), Bytes::ZERO);
    create(&book, 7, mib(10)).unwrap();
    let releasing = book.release(7).unwrap();
    book.released(releasing, false);
    assert!(release(&book, 7));
    assert_eq!(book.held_bytes(), Bytes::ZERO);
}

#[test]
fn imports_are_charged_when_they_are_mapped() {
    let node = Node::with(mib(64));
    let book = Book::new(&node, Bytes::ZERO);
    book.imported(9);
    book.imported(9);
    assert_eq!(book.held_bytes(), Bytes::ZERO);
    assert!(map(&book, 9, 1 << 30, mib(4)).unwrap());
    assert!(map(&book, 9, 1 << 31, mib(2)).unwrap());
    assert!(map(&book, 9, 1 << 32, mib(6)).unwrap());
    assert_eq!(book.held_bytes(), mib(6));
    assert_eq!(map(&book, 9, 1 << 33, mib(65)), Err(OutOfMemory));
    assert!(!map(&book, 10, 1 << 33, mib(65)).unwrap(), "a multicast object, or not ours");
    assert!(release(&book, 9) && release(&book, 9) && !release(&book, 9));
    for address in [1 << 30, 1 << 31, 1 << 32] {
        assert_eq!(book.held_bytes(), mib(6));
        unmap(&book, address, mib(6));
    }
    assert_eq!(book.held_bytes(), Bytes::ZERO);
}

#[test]
fn memory_of_the_host_costs_nothing() {
    let node = Node::with(Bytes::ZERO);
    let book = Book::new(&node, Bytes::ZERO);
    book.created(None, mib(100), 7);
    assert!(map(&book, 7, 1 << 30, mib(100)).unwrap());
    assert!(release(&book, 7));
    unmap(&book, 1 << 30, mib(100));
    assert_eq!(book.held_bytes(), Bytes::ZERO);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against a plain count of references per allocation.
    #[test]
    fn what_is_referenced_is_held(steps in prop::collection::vec((0u8..5, 0u64..4, 0u64..6), 0..60)) {
        let node = Node::with(mib(64));
        let book = Book::new(&node, Bytes::ZERO);
        let mut handles = [0u32; 4];
        let mut slots: [Option<usize>; 6] = [None; 6];
        let address = |slot: u64| (slot + 1) * mib(2).0;
        for (step, handle, slot) in steps {
            let (which, at) = (handle as usize, slot as usize);
            let referenced = handles[which] > 0 || slots.contains(&Some(which));
            match step {
                0 if !referenced => {
                    create(&book, handle, mib(2)).unwrap();
                    handles[which] = 1;
                }
                1 => {
                    prop_assert_eq!(release(&book, handle), handles[which] > 0);
                    handles[which] = handles[which].saturating_sub(1);
                }
                2 if slots[at].is_none() => {
                    let mapped = map(&book, handle, address(slot), mib(2)).unwrap();
                    prop_assert_eq!(mapped, handles[which] > 0);
                    slots[at] = mapped.then_some(which);
                }
                3 => {
                    unmap(&book, address(slot), mib(2));
                    slots[at] = None;
                }
                4 => {
                    if let Some(which) = slots[at] {
                        book.retained(which as u64, address(slot) + 1);
                        handles[which] += 1;
                    }
                }
                _ => {}
            }
            let live = (0..4).filter(|&which| handles[which] > 0 || slots.contains(&Some(which))).count();
            prop_assert_eq!(book.held_bytes(), mib(2 * live as u64));
        }
    }
}
