//! Copies and fills stay inside their memory; pinned memory stays while the device may use it.

use partywall_core::units::Bytes;
use partywall_driver::{DriverError, Priority};
use proptest::prelude::*;

use crate::fake::Fake;

#[test]
fn copies_and_fills_go_to_the_stream() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let (device, pinned) = (context.alloc(Bytes(64)).unwrap(), context.pinned(Bytes(32)).unwrap());
    fake.take();
    stream.copy_to_device(&device, 16, &pinned, 8, 24).unwrap();
    stream.copy_to_host(&pinned, 0, &device, 32, 32).unwrap();
    stream.copy_device(&device, 0, &device, 32, 32).unwrap();
    stream.fill(&device, 1, 3, 7).unwrap();
    stream.fill_u32(&device, 4, 8, 9).unwrap();
    assert_eq!(
        fake.asked(),
        [
            "cuMemcpyHtoDAsync_v2 0x10010 24 on 400",
            "cuMemcpyDtoHAsync_v2 0x10020 32 on 400",
            "cuMemcpyDtoDAsync_v2 0x10000 0x10020 32 on 400",
            "cuMemsetD8Async 0x10001 = 7 x 3 on 400",
            "cuMemsetD32Async 0x10004 = 9 x 2 on 400",
        ]
    );
}

#[test]
fn what_does_not_fit_never_reaches_the_driver() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let (device, pinned) = (context.alloc(Bytes(64)).unwrap(), context.pinned(Bytes(32)).unwrap());
    fake.take();
    let huge = u64::MAX;
    let mut bytes = [0; 4];
    for (what, result) in [
        ("to device, destination", stream.copy_to_device(&device, 41, &pinned, 0, 24)),
        ("to device, source", stream.copy_to_device(&device, 0, &pinned, 9, 24)),
        ("to device, overflow", stream.copy_to_device(&device, huge, &pinned, 0, 1)),
        ("to host, destination", stream.copy_to_host(&pinned, 1, &device, 0, 32)),
        ("to host, source", stream.copy_to_host(&pinned, 0, &device, 64, 1)),
        ("within, destination", stream.copy_device(&device, 60, &device, 0, 5)),
        ("within, source", stream.copy_device(&device, 0, &device, 60, huge)),
        ("within, overlap", stream.copy_device(&device, 0, &device, 15, 16)),
        ("fill", stream.fill(&device, 0, 65, 0)),
        ("fill 32", stream.fill_u32(&device, 64, 4, 0)),
        ("fill 32, offset", stream.fill_u32(&device, 2, 4, 0)),
        ("fill 32, length", stream.fill_u32(&device, 4, 6, 0)),
        ("read", pinned.read(29, &mut bytes)),
        ("write", pinned.write(huge, &bytes)),
        ("word", pinned.store_u32(32, 1)),
        ("word between words", pinned.store_u64(4, 1)),
        ("no bytes", context.alloc(Bytes(0)).map(|_| ())),
        ("no pinned bytes", context.pinned(Bytes(0)).map(|_| ())),
    ] {
        let error = result.expect_err(what);
        assert!(
            matches!(error, DriverError::OutOfBounds { .. } | DriverError::Invalid(_)),
            "{what}: {error}"
        );
    }
    let error = stream.fill(&device, 60, 8, 0).unwrap_err();
    assert_eq!(error.to_string(), "range to fill: 8 bytes from byte 60 on do not fit into 64 bytes");
    assert_eq!(fake.take(), [""; 0]);
}

#[test]
fn pinned_memory_waits_for_the_streams_that_may_use_it() {
    let fake = Fake::new();
    let context = fake.context();
    let (one, two) = (context.stream(Priority::Normal).unwrap(), context.stream(Priority::Normal).unwrap());
    let (device, pinned) = (context.alloc(Bytes(64)).unwrap(), context.pinned(Bytes(32)).unwrap());
    for _ in 0..3 {
        one.copy_to_device(&device, 0, &pinned, 0, 32).unwrap();
        two.copy_to_host(&pinned, 0, &device, 0, 32).unwrap();
    }
    // The stream's owner goes first; the stream itself stays for whoever waits for it.
    drop(two);
    fake.take();
    drop(pinned);
    assert_eq!(
        fake.asked(),
        ["cuStreamSynchronize 400", "cuStreamSynchronize 401", "cuMemFreeHost", "cuStreamDestroy_v2 401"]
    );
}

#[test]
fn pinned_memory_that_the_device_may_still_write_is_not_freed() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let (device, pinned) = (context.alloc(Bytes(64)).unwrap(), context.pinned(Bytes(32)).unwrap());
    stream.copy_to_host(&pinned, 0, &device, 0, 32).unwrap();
    fake.fail("cuStreamSynchronize", 700);
    fake.take();
    drop(pinned);
    assert_eq!(fake.asked(), ["cuStreamSynchronize 400"]);
}

#[test]
fn streams_that_are_gone_and_idle_are_forgotten() {
    let fake = Fake::new();
    let context = fake.context();
    let (device, pinned) = (context.alloc(Bytes(64)).unwrap(), context.pinned(Bytes(32)).unwrap());
    let destroyed = || fake.asked().iter().filter(|line| line.starts_with("cuStreamDestroy_v2")).count();
    let use_and_drop = || {
        let stream = context.stream(Priority::Normal).unwrap();
        stream.copy_to_device(&device, 0, &pinned, 0, 32).unwrap();
    };
    (0..8).for_each(|_| use_and_drop());
    assert_eq!(destroyed(), 0);
    // Those that still have work are kept.
    fake.fail("cuStreamQuery", 600);
    use_and_drop();
    assert_eq!(destroyed(), 0);
    fake.fail("cuStreamQuery", 0);
    use_and_drop();
    assert_eq!(destroyed(), 9);
    drop(pinned);
    assert_eq!(destroyed(), 1);
}

#[test]
fn words_of_pinned_memory() {
    let fake = Fake::new();
    let context = fake.context();
    let pinned = context.pinned(Bytes(32)).unwrap();
    assert_eq!(pinned.len(), 32);
    assert_eq!(pinned.load_u64(24).unwrap(), 0);
    pinned.store_u32(28, 7).unwrap();
    pinned.store_u64(8, u64::MAX - 1).unwrap();
    assert_eq!(pinned.load_u32(28).unwrap(), 7);
    assert_eq!(pinned.load_u64(8).unwrap(), u64::MAX - 1);
    assert!(matches!(pinned.load_u32(2), Err(DriverError::Invalid(_))));
}

#[test]
fn bytes_written_are_bytes_read_at_any_alignment() {
    let fake = Fake::new();
    let context = fake.context();
    let pinned = context.pinned(Bytes(100)).unwrap();
    let expect = std::cell::RefCell::new(vec![0_u8; 100]);
    let piece =
        (0..=100_usize).prop_flat_map(|at| (Just(at), prop::collection::vec(any::<u8>(), 0..=100 - at)));
    proptest!(ProptestConfig::with_cases(128), |((at, bytes) in piece, from in 0..100_usize)| {
        pinned.write(at as u64, &bytes).unwrap();
        let mut expect = expect.borrow_mut();
        expect[at..at + bytes.len()].copy_from_slice(&bytes);
        let mut read = vec![0; 100 - from];
        pinned.read(from as u64, &mut read).unwrap();
        prop_assert_eq!(&read, &expect[from..]);
    });
}
