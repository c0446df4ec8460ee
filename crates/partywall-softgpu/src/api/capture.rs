//! Capturing streams into graphs.

use std::sync::Arc;

use crate::abi::{In, Out};
use crate::api::{ready, stream};
use crate::engine::capture::{Capture, Session};
use crate::engine::graph::Graph;
use crate::engine::stream::{Kind, Stream};
use crate::error::Code;

/// `CUstreamCaptureStatus`.
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

api! {
    fn cuStreamBeginCapture / cuStreamBeginCapture_ptsz (on: u64) {
        begin(on, 0)
    }

    fn cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz (on: u64, mode: u32) {
        begin(on, mode)
    }

    fn cuStreamEndCapture / cuStreamEndCapture_ptsz (on: u64, place: Out<u64>) {
        let process = ready()?;
        let stream = stream(process, on)?;
        let capture = stream.capture().ok_or(Code::INVALID_VALUE)?;
        if capture.session.origin != stream.handle {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        capture.session.end();
        stream.set_capture(None);
        if capture.session.is_invalid() {
            place.offer(0);
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let graph = Arc::clone(&capture.session.graph);
        let handle = graph.handle;
        process.objects.graphs.put(handle, graph);
        place.set(handle)
    }

    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz (on: u64, status: Out<u32>) {
        status.set(status_of(&*stream(ready()?, on)?).0)
    }

    fn cuStreamGetCaptureInfo / cuStreamGetCaptureInfo_ptsz (on: u64, status: Out<u32>, id: Out<u64>) {
        info(on, status, id).map(|_| ())
    }

    fn cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz (
        on: u64, status: Out<u32>, id: Out<u64>, graph: Out<u64>, nodes: Out<*const u64>, count: Out<usize>,
    ) {
        info(on, status, id).and_then(|capture| detail(capture, graph, nodes, count))
    }

    fn cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz (
        on: u64, status: Out<u32>, id: Out<u64>, graph: Out<u64>, nodes: Out<*const u64>, edges: Out<u64>, count: Out<usize>,
    ) {
        edges.offer(0);
        info(on, status, id).and_then(|capture| detail(capture, graph, nodes, count))
    }

    fn cuStreamUpdateCaptureDependencies / cuStreamUpdateCaptureDependencies_ptsz (
        on: u64, nodes: In<u64>, count: usize, flags: u32,
    ) {
        update(on, nodes, count, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2 / cuStreamUpdateCaptureDependencies_v2_ptsz (
        on: u64, nodes: In<u64>, _edges: u64, count: usize, flags: u32,
    ) {
        update(on, nodes, count, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        thread_local! {
            static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
        }
        ready()?;
        let wanted = mode.get()?;
        if wanted > 2 {
            return Err(Code::INVALID_VALUE);
        }
        mode.set(MODE.replace(wanted))
    }
}

fn begin(on: u64, mode: u32) -> Result<(), Code> {
    let process = ready()?;
    let stream = stream(process, on)?;
    if mode > 2 {
        return Err(Code::INVALID_VALUE);
    }
    // Stream 0 orders itself with all others, which no graph can hold.
    if stream.kind == Kind::Legacy {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    if stream.capture().is_some() {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let session = Session::new(Graph::new(), stream.handle);
    stream.set_capture(Some(Capture { session, last: Vec::new() }));
    Ok(())
}

fn status_of(stream: &Stream) -> (u32, Option<Capture>) {
    match stream.capture() {
        None => (NONE, None),
        Some(capture) if capture.session.is_invalid() => (INVALIDATED, Some(capture)),
        Some(capture) => (ACTIVE, Some(capture)),
    }
}

fn info(on: u64, status: Out<u32>, id: Out<u64>) -> Result<Option<Capture>, Code> {
    let (state, capture) = status_of(&*stream(ready()?, on)?);
    status.set(state)?;
    if let Some(capture) = &capture {
        id.offer(capture.session.id);
    }
    Ok(capture.filter(|_| state == ACTIVE))
}

/// The graph so far, and what the next node depends on. The list is valid until the next call on this thread, as documented.
fn detail(
    capture: Option<Capture>,
    graph: Out<u64>,
    nodes: Out<*const u64>,
    count: Out<usize>,
) -> Result<(), Code> {
    thread_local! {
        static LIST: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let Some(capture) = capture else { return Ok(()) };
    let process = ready()?;
    process.objects.graphs.put(capture.session.graph.handle, Arc::clone(&capture.session.graph));
    graph.offer(capture.session.graph.handle);
    let handles = super::graphs::name_nodes(process, &capture.session.graph);
    LIST.with_borrow_mut(|list| {
        *list = capture.last.iter().filter_map(|index| handles.get(*index).copied()).collect();
        nodes.offer(list.as_ptr());
        count.offer(list.len());
    });
    Ok(())
}

fn update(on: u64, nodes: In<u64>, count: usize, flags: u32) -> Result<(), Code> {
    const SET: u32 = 1;
    let process = ready()?;
    let stream = stream(process, on)?;
    let mut capture = stream.capture().ok_or(Code::INVALID_VALUE)?;
    if flags == SET {
        capture.last.clear();
    }
    for handle in nodes.list(count)? {
        let (graph, index) = super::graphs::node_of(process, handle)?;
        if !Arc::ptr_eq(&graph, &capture.session.graph) {
            return Err(Code::INVALID_VALUE);
        }
        if !capture.last.contains(&index) {
            capture.last.push(index);
        }
    }
    stream.set_capture(Some(capture));
    Ok(())
}
