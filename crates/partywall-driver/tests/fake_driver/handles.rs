//! Streams, events and contexts: whose context is current when, and in which order things go.

use partywall_core::units::Bytes;
use partywall_driver::{DriverError, Priority};

use crate::fake::Fake;

#[test]
fn every_call_makes_its_context_current_unless_it_is() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    assert_eq!(
        fake.take(),
        [
            "cuCtxPushCurrent_v2 100",
            "cuStreamCreateWithPriority -> 400 flags 1 priority 0",
            "cuCtxPopCurrent_v2 100"
        ]
    );
    let current = context.make_current().unwrap();
    stream.synchronize().unwrap();
    assert!(stream.query().unwrap());
    drop(current);
    assert_eq!(
        fake.take(),
        ["cuCtxPushCurrent_v2 100", "cuStreamSynchronize 400", "cuStreamQuery 400", "cuCtxPopCurrent_v2 100"]
    );
}

#[test]
fn what_is_made_in_a_context_keeps_it_and_can_go_on_another_thread() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::High).unwrap();
    let event = context.event(true).unwrap();
    let buffer = context.alloc(Bytes(64)).unwrap();
    drop(context);
    assert!(!fake.asked().iter().any(|line| line.contains("Release")));
    std::thread::spawn(move || drop((stream, event, buffer))).join().unwrap();
    assert_eq!(
        fake.take(),
        [
            "cuCtxPushCurrent_v2 100",
            "cuStreamDestroy_v2 400",
            "cuCtxPopCurrent_v2 100",
            "cuCtxPushCurrent_v2 100",
            "cuEventDestroy_v2 500",
            "cuCtxPopCurrent_v2 100",
            "cuCtxPushCurrent_v2 100",
            "cuMemFree_v2 0x10000",
            "cuCtxPopCurrent_v2 100",
            "cuDevicePrimaryCtxRelease_v2 0",
        ]
    );
}

#[test]
fn priorities_are_those_of_the_device() {
    let fake = Fake::new();
    let context = fake.context();
    for (priority, level) in
        [(Priority::High, -5), (Priority::Normal, 0), (Priority::Low, 0), (Priority::Level(-3), -3)]
    {
        let stream = context.stream(priority).unwrap();
        let asked = fake.asked();
        drop(stream);
        fake.take();
        assert!(asked[0].ends_with(&format!("flags 1 priority {level}")), "{asked:?}");
    }
}

#[test]
fn events_know_whether_they_have_timing() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let (start, end) = (context.event(true).unwrap(), context.event(true).unwrap());
    let plain = context.event(false).unwrap();
    fake.take();
    stream.record(&start).unwrap();
    stream.record(&end).unwrap();
    stream.wait(&plain).unwrap();
    assert_eq!(end.elapsed_since(&start).unwrap(), 1.5);
    assert_eq!(
        fake.asked(),
        [
            "cuEventRecord 500 400",
            "cuEventRecord 501 400",
            "cuStreamWaitEvent 400 502 flags 0",
            "cuEventElapsedTime 500 501"
        ]
    );
    assert!(matches!(end.elapsed_since(&plain), Err(DriverError::Invalid(_))));
    assert_eq!(fake.take(), [""; 0]);
}

#[test]
fn not_ready_is_an_answer_and_not_an_error() {
    let fake = Fake::new();
    let context = fake.context();
    let (stream, event) = (context.stream(Priority::Normal).unwrap(), context.event(false).unwrap());
    fake.fail("cuStreamQuery", 600);
    assert!(!stream.query().unwrap());
    fake.fail("cuEventQuery", 600);
    assert!(!event.query().unwrap());
    assert!(stream.query().unwrap());
    fake.fail("cuEventQuery", 700);
    assert!(event.query().unwrap_err().is_fatal());
}

#[test]
fn dropping_after_a_fault_is_quiet() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let buffer = context.alloc(Bytes(64)).unwrap();
    fake.fail("cuCtxPushCurrent_v2", 700);
    assert!(stream.synchronize().unwrap_err().is_fatal());
    fake.take();
    drop((stream, buffer, context));
    // Nothing can be destroyed where the context cannot be made current; the process is about to end.
    assert_eq!(
        fake.take(),
        ["cuCtxPushCurrent_v2 100", "cuCtxPushCurrent_v2 100", "cuDevicePrimaryCtxRelease_v2 0"]
    );
}
