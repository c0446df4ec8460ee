//! Green contexts: unions of groups, streams, and what outlives what.

use partywall_core::units::{Bytes, SmCount};
use partywall_driver::{DriverError, GroupSet, Priority};

use crate::fake::Fake;

fn groups(text: &str) -> GroupSet {
    text.parse().unwrap()
}

#[test]
fn the_device_is_split_once_into_the_smallest_groups() {
    let fake = Fake::new();
    let split = fake.cuda.device(0).unwrap().sm_split().unwrap();
    assert_eq!((split.groups(), split.sms_per_group(), split.total_sms()), (66, SmCount(2), SmCount(132)));
    assert_eq!(format!("{split:?}"), "SmSplit(66 groups of 2 of 132 SMs)");
    let split = fake.cuda.device(0).unwrap().sm_split_min(10, false).unwrap();
    assert_eq!((split.groups(), split.sms_per_group()), (8, SmCount(16)));
}

#[test]
fn a_green_context_is_a_union_of_groups() {
    let fake = Fake::new();
    let split = fake.cuda.device(0).unwrap().sm_split().unwrap();
    fake.take();
    let green = split.green_context(&groups("40,0-2")).unwrap();
    assert_eq!(green.sms(), SmCount(8));
    assert_eq!(green.groups().to_string(), "0-2,40");
    let stream = green.stream(Priority::High).unwrap();
    assert_eq!(
        fake.asked(),
        [
            "cuDevResourceGenerateDesc 0 1 2 40",
            "cuGreenCtxCreate -> 200 device 0 flags 1",
            "cuCtxFromGreenCtx 200",
            "cuGreenCtxStreamCreate -> 400 in 200 flags 1 priority -5",
        ]
    );
    drop(stream);
}

#[test]
fn a_group_that_there_is_not_is_refused() {
    let fake = Fake::new();
    let split = fake.cuda.device(0).unwrap().sm_split().unwrap();
    fake.take();
    let error = split.green_context(&groups("60-66")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no group 66 of SMs: this device has groups 0 to 65, each of 2 SMs"
    );
    assert_eq!(fake.take(), [""; 0]);
}

#[test]
fn a_driver_that_cannot_unite_groups_says_what_can() {
    let fake = Fake::new();
    let split = fake.cuda.device(0).unwrap().sm_split().unwrap();
    fake.fail("cuDevResourceGenerateDesc", 915);
    let error = split.green_context(&groups("0-1")).unwrap_err();
    let expect = "making a green context of the groups 0-1 (uniting groups needs CUDA 12.5 or later): ";
    assert!(error.to_string().starts_with(expect), "{error}");
    assert!(!error.is_fatal());
}

#[test]
fn streams_go_before_their_green_context_and_it_before_the_primary() {
    let fake = Fake::new();
    let split = fake.cuda.device(0).unwrap().sm_split().unwrap();
    let green = split.green_context(&groups("0")).unwrap();
    let stream = green.stream(Priority::Normal).unwrap();
    let (device, pinned) = (green.alloc(Bytes(8)).unwrap(), green.pinned(Bytes(8)).unwrap());
    stream.copy_to_host(&pinned, 0, &device, 0, 8).unwrap();
    fake.take();
    drop((split, green, stream, device));
    assert_eq!(fake.asked(), ["cuMemFree_v2 0x10000"]);
    // The pinned memory was used by the stream, which is in the green context: so both are still there.
    drop(pinned);
    assert_eq!(
        fake.asked(),
        [
            "cuStreamSynchronize 400",
            "cuMemFreeHost",
            "cuStreamDestroy_v2 400",
            "cuGreenCtxDestroy 200",
            "cuDevicePrimaryCtxRelease_v2 0",
        ]
    );
}

#[test]
fn waiting_is_for_one_context_or_for_both() {
    let fake = Fake::new();
    let split = fake.cuda.device(0).unwrap().sm_split().unwrap();
    let green = split.green_context(&groups("0")).unwrap();
    fake.take();
    green.synchronize().unwrap();
    assert_eq!(fake.take(), ["cuCtxPushCurrent_v2 300", "cuCtxSynchronize in 300", "cuCtxPopCurrent_v2 300"]);
    green.synchronize_both().unwrap();
    assert_eq!(fake.asked(), ["cuCtxSynchronize in 300", "cuCtxSynchronize in 100"]);
}

#[test]
fn while_a_green_context_is_current_memory_still_goes_to_the_primary() {
    let fake = Fake::new();
    let split = fake.cuda.device(0).unwrap().sm_split().unwrap();
    let green = split.green_context(&groups("0")).unwrap();
    let current = green.make_current().unwrap();
    fake.take();
    let buffer = green.alloc(Bytes(8)).unwrap();
    assert_eq!(fake.take(), ["cuCtxPushCurrent_v2 100", "cuMemAlloc_v2 8", "cuCtxPopCurrent_v2 100"]);
    drop(current);
    assert_eq!(fake.take(), ["cuCtxPopCurrent_v2 300"]);
    drop(buffer);
}

#[test]
fn a_green_context_that_was_half_made_is_destroyed() {
    let fake = Fake::new();
    let split = fake.cuda.device(0).unwrap().sm_split().unwrap();
    fake.fail("cuCtxFromGreenCtx", 2);
    fake.take();
    assert!(matches!(split.green_context(&groups("0")), Err(DriverError::Cuda { code: 2, .. })));
    assert_eq!(fake.asked().last().unwrap(), "cuGreenCtxDestroy 200");
}
