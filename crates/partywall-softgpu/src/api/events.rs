//! Events.

use std::sync::{Arc, PoisonError};

use crate::abi::Out;
use crate::api::{ready, stream};
use crate::engine::event::{Event, Shared};
use crate::engine::graph::kind;
use crate::engine::operation::Operation;
use crate::engine::stream::{Stream, node_kind};
use crate::error::Code;
use crate::process::Process;

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
/// In a capture: a node of the graph that records or waits, and no edge.
const EXTERNAL: u32 = 1;

api! {
    fn cuEventCreate(place: Out<u64>, flags: u32) {
        let process = ready()?;
        process.current()?;
        let shared = flags & INTERPROCESS != 0;
        if flags > 7 || place.is_null() || (shared && flags & DISABLE_TIMING == 0) {
            return Err(Code::INVALID_VALUE);
        }
        let shared = if shared { Some(Shared::new(None)?) } else { None };
        let event = Event::new(flags & DISABLE_TIMING == 0, shared);
        place.set(process.objects.events.add(Arc::new(event)))
    }

    fn cuEventDestroy(handle: u64) {
        ready()?.objects.events.remove(handle).map(|_| ())
    }

    fn cuEventDestroy_v2(handle: u64) {
        ready()?.objects.events.remove(handle).map(|_| ())
    }

    fn cuEventRecord / cuEventRecord_ptsz (handle: u64, on: u64) {
        record(handle, on, 0)
    }

    fn cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz (handle: u64, on: u64, flags: u32) {
        record(handle, on, flags)
    }

    fn cuStreamWaitEvent / cuStreamWaitEvent_ptsz (on: u64, handle: u64, flags: u32) {
        let process = ready()?;
        let stream = stream(process, on)?;
        let event = process.objects.events.get(handle)?;
        if flags > EXTERNAL {
            return Err(Code::INVALID_VALUE);
        }
        wait(process, &stream, &event, flags)
    }

    fn cuEventQuery(handle: u64) {
        let event = ready()?.objects.events.get(handle)?;
        refuse_captured(&event)?;
        match event.mark() {
            Some(mark) if mark.passed().is_none() => Err(Code::NOT_READY),
            _ => Ok(()),
        }
    }

    fn cuEventSynchronize(handle: u64) {
        let process = ready()?;
        let event = process.objects.events.get(handle)?;
        refuse_captured(&event)?;
        if let Some(mark) = event.mark() {
            mark.wait(process)?;
        }
        process.settle_pools();
        process.check()
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        elapsed(milliseconds, start, end)
    }

    fn cuCtxRecordEvent(context: u64, handle: u64) {
        record_all(context, handle)
    }

    fn cuGreenCtxRecordEvent(context: u64, handle: u64) {
        record_all(context, handle)
    }

    fn cuCtxWaitEvent(context: u64, handle: u64) {
        wait_all(context, handle)
    }

    fn cuGreenCtxWaitEvent(context: u64, handle: u64) {
        wait_all(context, handle)
    }
}

fn record(handle: u64, on: u64, flags: u32) -> Result<(), Code> {
    let process = ready()?;
    let stream = stream(process, on)?;
    let event = process.objects.events.get(handle)?;
    if flags > EXTERNAL {
        return Err(Code::INVALID_VALUE);
    }
    match stream.capture() {
        Some(_) if flags == EXTERNAL => {
            stream.submit(process, kind::RECORD, Operation::RecordAgain(event)).map(|_| ())
        }
        Some(capture) => {
            let mut captured = event.captured.lock().unwrap_or_else(PoisonError::into_inner);
            *captured = Some((capture.session, capture.last));
            Ok(())
        }
        None => {
            let operation = Operation::Record(event.record());
            stream.submit(process, node_kind(&operation), operation).map(|_| ())
        }
    }
}

fn wait(process: &'static Process, stream: &Arc<Stream>, event: &Arc<Event>, flags: u32) -> Result<(), Code> {
    let here = stream.capture();
    if here.is_some() && flags == EXTERNAL {
        return stream.submit(process, kind::WAIT, Operation::WaitAgain(Arc::clone(event))).map(|_| ());
    }
    let captured = event.captured.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let captured = captured.filter(|(session, _)| session.is_active());
    match (here, captured) {
        (Some(mut capture), Some((session, nodes))) if Arc::ptr_eq(&capture.session, &session) => {
            for node in nodes {
                if !capture.last.contains(&node) {
                    capture.last.push(node);
                }
            }
            stream.set_capture(Some(capture));
            Ok(())
        }
        // Two captures, or a capture that would wait for work outside.
        (Some(capture), _) => {
            capture.session.invalidate();
            Err(Code::STREAM_CAPTURE_ISOLATION)
        }
        // The stream joins the capture.
        (None, Some((session, last))) => {
            stream.set_capture(Some(crate::engine::capture::Capture { session, last }));
            Ok(())
        }
        (None, None) => match event.mark() {
            Some(mark) => stream.submit(process, kind::WAIT, Operation::Wait(mark)).map(|_| ()),
            None => Ok(()),
        },
    }
}

fn refuse_captured(event: &Event) -> Result<(), Code> {
    if event.is_captured() { Err(Code::CAPTURED_EVENT) } else { Ok(()) }
}

fn elapsed(milliseconds: Out<f32>, start: u64, end: u64) -> Result<(), Code> {
    let process = ready()?;
    let time = |handle| process.objects.events.get(handle).and_then(|event| event.time());
    let (start, end) = (time(start)?, time(end)?);
    milliseconds.set((end as f64 - start as f64) as f32 / 1e6)
}

/// Records an event behind everything in a context: a stream of its own waits for the others.
fn record_all(context: u64, handle: u64) -> Result<(), Code> {
    let process = ready()?;
    let context = process.context(context)?;
    let event = process.objects.events.get(handle)?;
    let gather = Stream::new(&context.place, crate::engine::stream::Kind::NonBlocking, 0);
    for stream in context.place.streams() {
        if stream.handle != gather.handle && !stream.is_idle() {
            stream.refuse_capture()?;
            let passed = Event::new(false, None).record();
            let mark = crate::engine::event::Mark::Recording(Arc::clone(&passed));
            stream.submit(process, kind::RECORD, Operation::Record(passed))?;
            gather.submit(process, kind::WAIT, Operation::Wait(mark))?;
        }
    }
    gather.submit(process, kind::RECORD, Operation::Record(event.record()))?;
    gather.close();
    Ok(())
}

fn wait_all(context: u64, handle: u64) -> Result<(), Code> {
    let process = ready()?;
    let context = process.context(context)?;
    let event = process.objects.events.get(handle)?;
    for stream in context.place.streams() {
        wait(process, &stream, &event, 0)?;
    }
    Ok(())
}
