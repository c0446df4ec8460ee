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
    fn cuGraphGetEdges_v2(graph: u64, from: *mut u64, to: *mut u64, data: *mut u64, count: *mut usize)
    -> u32;
    fn cuGraphClone(place: *mut u64, graph: u64) -> u32;
    fn cuGraphNodeFindInClone(place: *mut u64, original: u64, clone: u64) -> u32;
    fn cuGraphDestroyNode(node: u64) -> u32;
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

/// A graph of fills one after the other, as a capture leaves it; its nodes.
unsafe fn chain(stream: u64, word: u64, count: u32) -> (u64, Vec<u64>) {
    // SAFETY: the caller's stream and memory.
    unsafe {
        assert_eq!(cuStreamBeginCapture_v2(stream, 0), 0);
        for value in 0..count {
            assert_eq!(cuMemsetD32Async(word, value, 1, stream), 0);
        }
        let graph = ask(|place| cuStreamEndCapture(stream, place)).unwrap();
        (graph, nodes(graph))
    }
}

unsafe fn nodes(graph: u64) -> Vec<u64> {
    let mut count = 0;
    // SAFETY: the caller's graph, and room for as many nodes as it has.
    unsafe {
        assert_eq!(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count), 0);
        let mut nodes = vec![0; count];
        assert_eq!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count), 0);
        nodes
    }
}

#[test]
fn a_clone_is_taken_apart_and_the_original_stays() {
    alone("capture::a_clone_is_taken_apart_and_the_original_stays", &[], || {
        begin();
        let (stream, word) = (new_stream(1), allocate(4).unwrap());
        // SAFETY: handles are alive, places are valid.
        unsafe {
            let (graph, all) = chain(stream, word, 5);
            let clone = ask(|place| cuGraphClone(place, graph)).unwrap();
            let find = |node, clone| ask(|place| cuGraphNodeFindInClone(place, node, clone));
            let cloned: Vec<u64> = all.iter().map(|node| find(*node, clone).unwrap()).collect();
            assert_eq!(cloned, nodes(clone));
            assert_eq!((cuGraphDestroyNode(cloned[4]), cuGraphDestroyNode(cloned[2])), (0, 0));
            assert_eq!(cuGraphDestroyNode(cloned[2]), 400);
            assert_eq!(find(all[2], clone), Err(1), "it was removed");
            assert_eq!(find(cloned[0], clone), Err(1), "it is none of the original's");
            assert_eq!(find(all[3], clone), Ok(cloned[3]));
            let again = ask(|place| cuGraphClone(place, clone)).unwrap();
            assert_eq!((find(all[0], again), find(cloned[0], again).is_ok()), (Err(1), true));
            // What came after the one that is gone comes after nothing now.
            let (mut from, mut to, mut data, mut count) = ([0; 8], [0; 8], [7; 8], 8);
            let edges = [from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr()];
            assert_eq!(cuGraphGetEdges_v2(clone, edges[0], edges[1], edges[2], &mut count), 0);
            assert_eq!((count, from[0], to[0], data[0]), (1, cloned[0], cloned[1], 0));
            let run = |graph| {
                let exec = ask(|place| cuGraphInstantiateWithFlags(place, graph, 0)).unwrap();
                assert_eq!((cuGraphLaunch(exec, stream), cuStreamSynchronize(stream)), (0, 0));
                read_u32(word)
            };
            assert_eq!((run(clone), run(graph), nodes(graph).len()), (3, 4, 5));
        }
    });
}

#[test]
fn graphs_with_memory_are_neither_cloned_nor_taken_apart() {
    alone("capture::graphs_with_memory_are_neither_cloned_nor_taken_apart", &[], || {
        begin();
        let stream = new_stream(1);
        // SAFETY: as above.
        unsafe {
            assert_eq!(cuStreamBeginCapture_v2(stream, 0), 0);
            let memory = ask(|place| cuMemAllocAsync(place, 1 << 20, stream)).unwrap();
            assert_eq!(cuMemsetD32Async(memory, 3, 1, stream), 0);
            assert_eq!(cuMemFreeAsync(memory, stream), 0);
            let graph = ask(|place| cuStreamEndCapture(stream, place)).unwrap();
            assert_eq!(ask(|place| cuGraphClone(place, graph)), Err(801));
            assert!(nodes(graph).into_iter().all(|node| cuGraphDestroyNode(node) == 801));
        }
    });
}

#[test]
fn launches_of_one_graph_in_several_streams_come_one_after_the_other() {
    alone("capture::launches_of_one_graph_in_several_streams_come_one_after_the_other", &[], || {
        begin();
        let (kernels, word) = (kernels(), allocate(4).unwrap());
        let streams: Vec<u64> = (0..4).map(|_| new_stream(1)).collect();
        let mut expected = read_u32(word);
        // SAFETY: as above.
        unsafe {
            assert_eq!(cuStreamBeginCapture_v2(streams[0], 0), 0);
            for _ in 0..10 {
                assert_eq!(launch(kernels["step_once"], streams[0], word), 0);
            }
            let graph = ask(|place| cuStreamEndCapture(streams[0], place)).unwrap();
            let exec = ask(|place| cuGraphInstantiateWithFlags(place, graph, 0)).unwrap();
            for round in 0..40 {
                assert_eq!(cuGraphLaunch(exec, streams[round % 4]), 0);
            }
            assert!(streams.iter().all(|stream| cuStreamSynchronize(*stream) == 0));
        }
        for _ in 0..400 {
            expected = expected.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        }
        assert_eq!(read_u32(word), expected);
    });
}
