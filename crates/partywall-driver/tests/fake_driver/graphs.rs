//! Graphs keep what they use, and streams do not stay in recording.

use partywall_core::units::Bytes;
use partywall_driver::{DriverError, KernelArg, Priority};

use crate::fake::Fake;

#[test]
fn a_graph_keeps_its_memory_and_its_code_until_its_launches_are_done() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let (device, pinned) = (context.alloc(Bytes(64)).unwrap(), context.pinned(Bytes(64)).unwrap());
    let function = context.module("text").unwrap().function("reader").unwrap();
    let graph = stream
        .capture(|stream| {
            stream.copy_to_device(&device, 0, &pinned, 0, 64)?;
            let args = [KernelArg::U32(1), KernelArg::Buffer(&device), KernelArg::F32(1.0)];
            // SAFETY: the stand-in runs nothing; it reads the three arguments that its kernels have.
            unsafe { function.launch(stream, (1, 1, 1), (1, 1, 1), 0, &args) }
        })
        .unwrap();
    let exec = graph.instantiate().unwrap();
    exec.upload(&stream).unwrap();
    fake.take();
    drop((device, pinned, function, graph));
    assert_eq!(fake.asked(), ["cuGraphDestroy 800"]);
    exec.launch(&stream).unwrap();
    exec.launch(&stream).unwrap();
    drop(exec);
    let mut asked = fake.asked();
    // Among themselves the things it kept go in any order.
    asked[4..].sort();
    assert_eq!(
        asked,
        [
            "cuGraphLaunch 900 on 400",
            "cuGraphLaunch 900 on 400",
            "cuStreamSynchronize 400",
            "cuGraphExecDestroy 900",
            "cuMemFreeHost",
            "cuMemFree_v2 0x10000",
            "cuModuleUnload 600",
        ]
    );
}

#[test]
fn after_a_fault_a_graph_does_not_free_what_the_device_may_use() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let (device, pinned) = (context.alloc(Bytes(64)).unwrap(), context.pinned(Bytes(64)).unwrap());
    let graph = stream.capture(|stream| stream.copy_to_host(&pinned, 0, &device, 0, 64)).unwrap();
    let exec = graph.instantiate().unwrap();
    exec.launch(&stream).unwrap();
    drop((graph, pinned));
    fake.fail("cuStreamSynchronize", 700);
    fake.take();
    drop(exec);
    assert_eq!(fake.asked(), ["cuStreamSynchronize 400", "cuGraphExecDestroy 900"]);
}

#[test]
fn a_graph_recorded_into_a_graph_is_kept_too() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let (device, pinned) = (context.alloc(Bytes(64)).unwrap(), context.pinned(Bytes(64)).unwrap());
    let copy = stream.capture(|stream| stream.copy_to_host(&pinned, 0, &device, 0, 64)).unwrap();
    let inner = copy.instantiate().unwrap();
    let outer = stream.capture(|stream| inner.launch(stream)).unwrap();
    drop((copy, inner, pinned, device));
    fake.take();
    drop(outer);
    assert_eq!(
        fake.asked(),
        ["cuGraphDestroy 801", "cuGraphExecDestroy 900", "cuMemFree_v2 0x10000", "cuMemFreeHost"]
    );
}

#[test]
fn recording_ends_whatever_happens() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let refused = stream.capture(|_| Err(DriverError::Invalid("no".into()))).unwrap_err();
    assert_eq!(refused.to_string(), "no");
    assert!(!stream.is_capturing());
    assert_eq!(
        fake.asked()[1..],
        ["cuStreamBeginCapture_v2 400 mode 1", "cuStreamEndCapture 400", "cuGraphDestroy 800"]
    );

    fake.fail("cuStreamEndCapture", 901);
    let error = stream.capture(|_| Ok(())).unwrap_err();
    assert_eq!(error.code(), Some(901));
    assert!(!stream.is_capturing());

    // On a thread that did not begin it, recording goes on.
    stream.begin_capture().unwrap();
    fake.fail("cuStreamEndCapture", 908);
    assert_eq!(stream.end_capture().unwrap_err().code(), Some(908));
    assert!(stream.is_capturing());
    fake.fail("cuStreamEndCapture", 0);
    fake.take();
    drop(stream);
    assert_eq!(fake.asked(), ["cuStreamEndCapture 400", "cuGraphDestroy 801", "cuStreamDestroy_v2 400"]);
}

#[test]
fn a_second_stream_cannot_slip_into_a_recording() {
    let fake = Fake::new();
    let context = fake.context();
    let (one, two) = (context.stream(Priority::Normal).unwrap(), context.stream(Priority::Normal).unwrap());
    let event = context.event(false).unwrap();
    one.begin_capture().unwrap();
    one.record(&event).unwrap();
    fake.take();
    assert!(matches!(two.wait(&event), Err(DriverError::Invalid(_))));
    assert_eq!(fake.take(), [""; 0]);
    one.wait(&event).unwrap();
    one.end_capture().unwrap();
    two.record(&event).unwrap();
    one.wait(&event).unwrap();
}
