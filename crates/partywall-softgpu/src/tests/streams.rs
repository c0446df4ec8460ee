//! Order: within a stream, between streams, with the host.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{
    allocate, alone, ask, begin, cuCtxSynchronize, cuEventElapsedTime, cuEventQuery, cuEventRecord,
    cuMemFree_v2, cuMemHostAlloc, cuMemcpyHtoD_v2, cuMemsetD32Async, cuStreamQuery, cuStreamSynchronize,
    cuStreamWaitEvent, kernels, launch, new_event, new_stream, read_u32,
};

unsafe extern "C" {
    fn cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32) -> u32;
    fn cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, flags: u32) -> u32;
    fn cuLaunchHostFunc(stream: u64, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> u32;
}

const NOT_READY: u32 = 600;
const BLOCKING: u32 = 0;
const NON_BLOCKING: u32 = 1;

/// A word that host and device see.
fn pinned() -> &'static AtomicU32 {
    // SAFETY: the answer's place is valid, and the memory is never freed, aligned to a page and zero.
    unsafe { &*(ask(|place| cuMemHostAlloc(place, 4096, 2)).unwrap() as *const AtomicU32) }
}

fn address(word: &AtomicU32) -> u64 {
    std::ptr::from_ref(word) as u64
}

#[test]
fn a_stream_waits_for_a_word_and_others_for_it() {
    alone("streams::a_stream_waits_for_a_word_and_others_for_it", &[], || {
        begin();
        let (gate, done) = (pinned(), pinned());
        let (first, second) = (new_stream(NON_BLOCKING), new_stream(NON_BLOCKING));
        let (event, device) = (new_event(), allocate(4).unwrap());
        // SAFETY: addresses are of memory that lives on; the handles are alive.
        unsafe {
            assert_eq!(cuStreamWaitValue32_v2(first, address(gate), 1, 0), 0);
            assert_eq!(cuMemsetD32Async(device, 5, 1, first), 0);
            assert_eq!(cuEventRecord(event, first), 0);
            assert_eq!(cuStreamWaitEvent(second, event, 0), 0);
            assert_eq!(cuStreamWriteValue32_v2(second, address(done), 3, 0), 0);
            assert_eq!([cuStreamQuery(first), cuStreamQuery(second), cuEventQuery(event)], [NOT_READY; 3]);
            assert_eq!(done.load(Ordering::Acquire), 0);
            gate.store(1, Ordering::Release);
            assert_eq!(cuStreamSynchronize(second), 0);
            assert_eq!((done.load(Ordering::Acquire), cuEventQuery(event)), (3, 0));
            assert_eq!(read_u32(device), 5);
            assert_eq!(cuStreamWaitValue32_v2(first, 64, 1, 0), 1, "no memory that the driver knows");
            assert_eq!(cuStreamWaitValue32_v2(first, address(gate) + 2, 1, 0), 1, "not aligned");
        }
    });
}

#[test]
fn stream_0_is_ordered_with_blocking_streams_only() {
    alone("streams::stream_0_is_ordered_with_blocking_streams_only", &[], || {
        begin();
        let gate = pinned();
        let (blocking, free) = (new_stream(BLOCKING), new_stream(NON_BLOCKING));
        let word = allocate(64).unwrap();
        // SAFETY: as above.
        unsafe {
            assert_eq!(cuStreamWaitValue32_v2(blocking, address(gate), 1, 0), 0);
            // Behind the stream that waits, and in front of what it is given next.
            assert_eq!(cuMemsetD32Async(word, 1, 1, 0), 0);
            assert_eq!(cuMemsetD32Async(word, 2, 1, blocking), 0);
            assert_eq!(cuMemsetD32Async(word + 4, 9, 1, free), 0);
            assert_eq!(cuStreamSynchronize(free), 0, "it waits for nobody");
            assert_eq!([cuStreamQuery(0), cuStreamQuery(blocking)], [NOT_READY; 2]);
            gate.store(1, Ordering::Release);
            assert_eq!(cuCtxSynchronize(), 0);
        }
        assert_eq!((read_u32(word), read_u32(word + 4)), (2, 9));
    });
}

#[test]
fn host_functions_run_in_order() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn note(data: *mut c_void) {
        let next = SEEN.load(Ordering::Relaxed) * 10 + data as u32;
        SEEN.store(next, Ordering::Relaxed);
    }
    alone("streams::host_functions_run_in_order", &[], || {
        begin();
        let stream = new_stream(NON_BLOCKING);
        for number in 1..=4_usize {
            // SAFETY: the function takes a number in the place of a pointer.
            assert_eq!(unsafe { cuLaunchHostFunc(stream, note, number as *mut c_void) }, 0);
        }
        // SAFETY: the handle is alive.
        assert_eq!(unsafe { cuStreamSynchronize(stream) }, 0);
        assert_eq!(SEEN.load(Ordering::Relaxed), 1234);
    });
}

#[test]
fn kernels_take_their_time_and_do_their_work() {
    alone("streams::kernels_take_their_time_and_do_their_work", &[], || {
        begin();
        let kernels = kernels();
        let value = allocate(4).unwrap();
        let (before, after, never) = (new_event(), new_event(), new_event());
        let stream = new_stream(NON_BLOCKING);
        let start = 1_u32;
        // SAFETY: sizes are those of the memory; handles are alive.
        unsafe {
            assert_eq!(cuMemcpyHtoD_v2(value, (&raw const start).cast(), 4), 0);
            assert_eq!(cuEventRecord(before, stream), 0);
            for _ in 0..100 {
                assert_eq!(launch(kernels["something_else"], stream, 0_u32), 0);
            }
            assert_eq!(launch(kernels["step_once"], stream, value), 0);
            assert_eq!(cuEventRecord(after, stream), 0);
            assert_eq!(cuStreamSynchronize(stream), 0);
            let time = ask(|place| cuEventElapsedTime(place, before, after)).unwrap();
            assert!(time > 0.5, "100 kernels of 5 us took {time} ms");
            assert_eq!(ask(|place| cuEventElapsedTime(place, before, never)), Err(400));
        }
        assert_eq!(read_u32(value), 1_664_525 + 1_013_904_223);
        assert_eq!(launch(12345, stream, 0_u32), 400, "no such kernel");
        // SAFETY: freed once.
        assert_eq!(unsafe { cuMemFree_v2(value) }, 0);
    });
}
