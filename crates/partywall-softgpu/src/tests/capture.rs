//! Capturing streams into graphs, and launching these.

use super::{
    allocate, alone, ask, begin, cuEventRecord, cuMemsetD32Async, cuStreamSynchronize, cuStreamWaitEvent,
    kernels, launch, new_event, new_stream, read_u32,
};

unsafe extern "C" {
    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) -> u32;
    fn cuStreamEndCapture(stream: u64, place: *mut u64) -> u32;
    fn cuStreamIsCapturing(stream: u64, status: *mut u32) -> u32;
    fn cuGraphInstantiateWithFlags(place: *mut u64, graph: u64, flags: u64) -> u32;
    fn cuGraphLaunch(exec: u64, stream: u64) -> u32;
    fn cuGraphExecDestroy(exec: u64) -> u32;
    fn cuGraphDestroy(graph: u64) -> u32;
    fn cuGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize) -> u32;
    fn cuMemAllocAsync(place: *mut u64, bytes: usize, stream: u64) -> u32;
    fn cuMemFreeAsync(address: u64, stream: u64) -> u32;
    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: *mut u64) -> u32;
}

#[test]
fn branches_join_a_capture_and_come_back() {
    alone("capture::branches_join_a_capture_and_come_back", &[], || {
        begin();
        let (main, side) = (new_stream(1), new_stream(1));
        let (fork, join) = (new_event(), new_event());
        let (kernels, word) = (kernels(), allocate(4).unwrap());
        let graph = {
            // SAFETY: handles are alive, places are valid; so below.
            unsafe {
                assert_eq!(cuStreamBeginCapture_v2(main, 0), 0);
                assert_eq!(cuMemsetD32Async(word, 1, 1, main), 0);
                assert_eq!((cuEventRecord(fork, main), cuStreamWaitEvent(side, fork, 0)), (0, 0));
                assert_eq!(ask(|place| cuStreamIsCapturing(side, place)), Ok(1));
                assert_eq!(launch(kernels["step_once"], side, word), 0);
                assert_eq!((cuEventRecord(join, side), cuStreamWaitEvent(main, join, 0)), (0, 0));
                assert_eq!(launch(kernels["step_once"], main, word), 0);
                ask(|place| cuStreamEndCapture(main, place)).unwrap()
            }
        };
        assert_eq!(read_u32(word), 0, "nothing was done");
        let once = 1_664_525_u32.wrapping_add(1_013_904_223);
        let twice = once.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // SAFETY: as above.
        unsafe {
            assert_eq!(ask(|place| cuStreamIsCapturing(side, place)), Ok(0));
            let mut count = 0;
            assert_eq!((cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count), count), (0, 3));
            let exec = ask(|place| cuGraphInstantiateWithFlags(place, graph, 0)).unwrap();
            for _ in 0..3 {
                assert_eq!((cuGraphLaunch(exec, main), cuStreamSynchronize(main)), (0, 0));
                assert_eq!(read_u32(word), twice, "each launch begins with the fill");
            }
            assert_eq!((cuGraphExecDestroy(exec), cuGraphDestroy(graph), cuGraphDestroy(graph)), (0, 0, 400));
        }
    });
}

#[test]
fn waiting_ends_a_capture_in_an_error() {
    alone("capture::waiting_ends_a_capture_in_an_error", &[], || {
        begin();
        let stream = new_stream(1);
        // SAFETY: as above.
        unsafe {
            assert_eq!(cuStreamBeginCapture_v2(stream, 0), 0);
            assert_eq!(cuStreamSynchronize(stream), 900);
            assert_eq!(ask(|place| cuStreamIsCapturing(stream, place)), Ok(2));
            assert_eq!(ask(|place| cuStreamEndCapture(stream, place)), Err(901));
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert_eq!(cuStreamBeginCapture_v2(0, 0), 900, "stream 0");
        }
    });
}

#[test]
fn memory_of_a_graph_lives_as_long_as_what_was_made_of_it() {
    alone("capture::memory_of_a_graph_lives_as_long_as_what_was_made_of_it", &[], || {
        begin();
        let stream = new_stream(1);
        // SAFETY: as above.
        unsafe {
            let reserved = || ask(|place| cuDeviceGetGraphMemAttribute(0, 2, place)).unwrap();
            assert_eq!(cuStreamBeginCapture_v2(stream, 0), 0);
            let memory = ask(|place| cuMemAllocAsync(place, 1 << 20, stream)).unwrap();
            assert_eq!(cuMemsetD32Async(memory, 3, 1, stream), 0);
            assert_eq!(cuMemFreeAsync(memory, stream), 0);
            let graph = ask(|place| cuStreamEndCapture(stream, place)).unwrap();
            let exec = ask(|place| cuGraphInstantiateWithFlags(place, graph, 0)).unwrap();
            assert_eq!(cuGraphDestroy(graph), 0);
            assert_eq!((cuGraphLaunch(exec, stream), cuStreamSynchronize(stream)), (0, 0));
            assert_eq!((read_u32(memory), reserved()), (3, 32 << 20));
            assert_eq!(cuGraphExecDestroy(exec), 0);
            assert_eq!(reserved(), 0);
        }
    });
}
