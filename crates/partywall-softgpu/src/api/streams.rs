//! Streams.

use crate::abi::{HostFunction, Out, StreamCallback};
use crate::api::contexts::PRIORITIES;
use crate::api::{ready, stream, submit};
use crate::context;
use crate::engine::operation::{Data, Operation};
use crate::engine::stream::{Kind, Stream};
use crate::error::Code;

const NON_BLOCKING: u32 = 1;

api! {
    fn cuStreamCreate(place: Out<u64>, flags: u32) {
        create(place, flags, 0)
    }

    fn cuStreamCreateWithPriority(place: Out<u64>, flags: u32, priority: i32) {
        create(place, flags, priority)
    }

    fn cuStreamDestroy(handle: u64) {
        destroy(handle)
    }

    fn cuStreamDestroy_v2(handle: u64) {
        destroy(handle)
    }

    fn cuStreamSynchronize / cuStreamSynchronize_ptsz (handle: u64) {
        let process = ready()?;
        let stream = stream(process, handle)?;
        stream.refuse_capture()?;
        stream.synchronize(process)?;
        process.settle_pools();
        Ok(())
    }

    fn cuStreamQuery / cuStreamQuery_ptsz (handle: u64) {
        let stream = stream(ready()?, handle)?;
        stream.refuse_capture()?;
        if stream.is_idle() { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamGetPriority / cuStreamGetPriority_ptsz (handle: u64, priority: Out<i32>) {
        priority.set(stream(ready()?, handle)?.priority)
    }

    fn cuStreamGetFlags / cuStreamGetFlags_ptsz (handle: u64, flags: Out<u32>) {
        let kind = stream(ready()?, handle)?.kind;
        flags.set(if kind == Kind::NonBlocking { NON_BLOCKING } else { 0 })
    }

    fn cuStreamGetId / cuStreamGetId_ptsz (handle: u64, id: Out<u64>) {
        id.set(stream(ready()?, handle)?.handle)
    }

    fn cuStreamGetDevice / cuStreamGetDevice_ptsz (handle: u64, device: Out<i32>) {
        stream(ready()?, handle)?;
        device.set(0)
    }

    fn cuStreamGetCtx / cuStreamGetCtx_ptsz (handle: u64, place: Out<u64>) {
        let stream = stream(ready()?, handle)?;
        // A stream of a green context has no other context that this version could name.
        place.set(stream.place.context)
    }

    fn cuStreamGetCtx_v2 / cuStreamGetCtx_v2_ptsz (handle: u64, place: Out<u64>, green: Out<u64>) {
        let stream = stream(ready()?, handle)?;
        let context = stream.place.context;
        place.set(if stream.place.green { 0 } else { context })?;
        green.set(if stream.place.green { context } else { 0 })
    }

    fn cuStreamGetGreenCtx(handle: u64, place: Out<u64>) {
        let stream = stream(ready()?, handle)?;
        place.set(if stream.place.green { stream.place.context } else { 0 })
    }

    fn cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz (handle: u64, address: u64, _bytes: usize, _flags: u32) {
        let process = ready()?;
        process.memory.addresses.find(address).ok_or(Code::INVALID_VALUE)?;
        submit(process, handle, Operation::Nothing)
    }

    fn cuStreamAddCallback / cuStreamAddCallback_ptsz (handle: u64, function: StreamCallback, data: Data, flags: u32) {
        if function.is_none() || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let process = ready()?;
        stream(process, handle)?.refuse_capture()?;
        submit(process, handle, Operation::Callback { function, stream: handle, data })
    }

    fn cuLaunchHostFunc / cuLaunchHostFunc_ptsz (handle: u64, function: HostFunction, data: Data) {
        host(handle, function, data)
    }

    fn cuLaunchHostFunc_v2 / cuLaunchHostFunc_v2_ptsz (handle: u64, function: HostFunction, data: Data, _sync: u32) {
        host(handle, function, data)
    }
}

fn host(handle: u64, function: HostFunction, data: Data) -> Result<(), Code> {
    if function.is_none() {
        return Err(Code::INVALID_VALUE);
    }
    submit(ready()?, handle, Operation::Host { function, data })
}

fn create(place: Out<u64>, flags: u32, priority: i32) -> Result<(), Code> {
    let process = ready()?;
    let current = process.current()?;
    if place.is_null() || flags > NON_BLOCKING {
        return Err(Code::INVALID_VALUE);
    }
    let kind = if flags == NON_BLOCKING { Kind::NonBlocking } else { Kind::Blocking };
    place.set(add(&current, kind, priority)?)
}

/// Makes a stream in a context; its handle.
pub(super) fn add(context: &context::Context, kind: Kind, priority: i32) -> Result<u64, Code> {
    let process = ready()?;
    let stream = Stream::new(&context.place, kind, priority.clamp(PRIORITIES.1, PRIORITIES.0));
    let handle = stream.handle;
    process.objects.streams.put(handle, stream);
    Ok(handle)
}

fn destroy(handle: u64) -> Result<(), Code> {
    let process = ready()?;
    let stream = process.objects.streams.remove(handle)?;
    if let Some(capture) = stream.capture() {
        capture.session.invalidate();
    }
    // What it has is done; nobody waits for it here.
    stream.close();
    Ok(())
}
