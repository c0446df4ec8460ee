//! Physical memory behind addresses.

use partywall_core::units::Bytes;
use partywall_driver::vmm::{Access, AddressRange, PhysicalMemory, granularity};
use partywall_driver::{DriverError, Priority};

use crate::fake::Fake;

const PAGE: u64 = 2 << 20;

#[test]
fn memory_is_taken_mapped_and_made_accessible() {
    let fake = Fake::new();
    let context = fake.context();
    assert_eq!(granularity(&context).unwrap(), Bytes(PAGE));
    fake.take();
    let memory = PhysicalMemory::create(&context, Bytes(PAGE)).unwrap();
    let mut range = AddressRange::reserve(&context, Bytes(2 * PAGE), Bytes(0)).unwrap();
    range.map(PAGE, &memory).unwrap();
    range.set_access(PAGE, PAGE, Access::Read).unwrap();
    assert_eq!(
        fake.asked(),
        [
            "cuMemCreate -> 1 size 2097152 prop 1 0 1 0 flags 0",
            "cuMemAddressReserve 4194304 align 0 at 0 flags 0",
            "cuMemMap 0x40200000 2097152 offset 0 of 1 flags 0",
            "cuMemSetAccess 0x40200000 2097152 type 1 id 0 flags 1 count 1",
        ]
    );
    // The mapping keeps the memory; both go with the range, the mapping first.
    drop(memory);
    drop(range);
    assert_eq!(
        fake.asked(),
        ["cuMemUnmap 0x40200000 2097152", "cuMemRelease 1", "cuMemAddressFree 0x40000000 4194304"]
    );
}

#[test]
fn mistakes_never_reach_the_driver() {
    let fake = Fake::new();
    let context = fake.context();
    let memory = PhysicalMemory::create(&context, Bytes(PAGE)).unwrap();
    let mut range = AddressRange::reserve(&context, Bytes(2 * PAGE), Bytes(0)).unwrap();
    fake.take();
    assert!(matches!(range.map(PAGE + 1, &memory), Err(DriverError::OutOfBounds { .. })));
    assert!(matches!(range.set_access(0, 2 * PAGE + 1, Access::Read), Err(DriverError::OutOfBounds { .. })));
    let error = range.unmap(PAGE).unwrap_err();
    assert!(
        error.to_string().starts_with("no mapping begins 2097152 bytes into AddressRange(4MiB at"),
        "{error}"
    );
    assert_eq!(fake.take(), [""; 0]);
}

#[test]
fn pages_can_be_exchanged() {
    let fake = Fake::new();
    let context = fake.context();
    let memory = PhysicalMemory::create(&context, Bytes(PAGE)).unwrap();
    let mut range = AddressRange::reserve(&context, Bytes(PAGE), Bytes(0)).unwrap();
    range.map(0, &memory).unwrap();
    drop(memory);
    fake.take();
    let back = range.unmap(0).unwrap();
    range.map(0, &PhysicalMemory::create(&context, Bytes(PAGE)).unwrap()).unwrap();
    drop(back);
    assert_eq!(
        fake.asked(),
        [
            "cuMemUnmap 0x40000000 2097152",
            "cuMemCreate -> 2 size 2097152 prop 1 0 1 0 flags 0",
            "cuMemMap 0x40000000 2097152 offset 0 of 2 flags 0",
            "cuMemRelease 1",
        ]
    );
}

#[test]
fn a_fully_mapped_range_is_a_buffer() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let page = || PhysicalMemory::create(&context, Bytes(PAGE)).unwrap();

    let mut range = AddressRange::reserve(&context, Bytes(2 * PAGE), Bytes(0)).unwrap();
    range.map(PAGE, &page()).unwrap();
    let error = range.into_buffer().unwrap_err();
    assert!(error.to_string().contains("has nothing mapped 0 bytes from its beginning"), "{error}");

    let mut range = AddressRange::reserve(&context, Bytes(2 * PAGE), Bytes(0)).unwrap();
    range.map(PAGE, &page()).unwrap();
    range.map(0, &page()).unwrap();
    fake.take();
    let buffer = range.into_buffer().unwrap();
    stream.fill(&buffer, 2 * PAGE - 1, 1, 0).unwrap();
    assert!(stream.fill(&buffer, 2 * PAGE, 1, 0).is_err());
    drop(buffer);
    assert_eq!(
        fake.asked(),
        [
            "cuMemSetAccess 0x40000000 4194304 type 1 id 0 flags 3 count 1",
            "cuMemsetD8Async 0x403fffff = 0 x 1 on 400",
            "cuMemUnmap 0x40000000 2097152",
            "cuMemRelease 3",
            "cuMemUnmap 0x40200000 2097152",
            "cuMemRelease 2",
            "cuMemAddressFree 0x40000000 4194304",
        ]
    );
}

#[test]
fn memory_goes_to_another_process_as_a_file() {
    let fake = Fake::new();
    let context = fake.context();
    fake.take();
    let memory = PhysicalMemory::create_shared(&context, Bytes(PAGE)).unwrap();
    let file = memory.export().unwrap();
    let there = PhysicalMemory::import(&context, &file, Bytes(PAGE)).unwrap();
    assert_eq!(there.size(), Bytes(PAGE));
    drop(file);
    drop((memory, there));
    assert_eq!(
        fake.asked(),
        [
            "cuMemCreate -> 1 size 2097152 prop 1 1 1 0 flags 0",
            "cuMemExportToShareableHandle 1 type 1 flags 0",
            "cuMemImportFromShareableHandle file type 1",
            "cuMemRelease 1",
            "cuMemRelease 70",
        ]
    );
}
