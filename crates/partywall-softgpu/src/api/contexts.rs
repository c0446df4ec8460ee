//! Contexts: primary ones, own ones, which is current, and what they are set to.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::abi::{ContextParameters, ExecAffinity, In, Out};
use crate::api::devices::one;
use crate::api::ready;
use crate::context::{self, Kind};
use crate::error::Code;
use crate::process;

/// `CU_EXEC_AFFINITY_TYPE_SM_COUNT`.
const SM_COUNT: u32 = 0;

/// Priorities of streams: the least and the most urgent, as on an H200.
pub(super) const PRIORITIES: (i32, i32) = (0, -5);

/// Limits of a context by `CUlimit`, with what they are at first, bytes or counts.
const LIMITS: [(u32, usize); 7] =
    [(0, 1 << 10), (1, 1 << 20), (2, 8 << 20), (3, 2), (4, 2048), (5, 64), (6, 0)];

api! {
    fn cuDevicePrimaryCtxRetain(place: Out<u64>, device: i32) {
        let process = one(device)?;
        if place.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        place.set(process.retain_primary()?.handle)
    }

    fn cuDevicePrimaryCtxRelease(device: i32) {
        one(device)?.release_primary(false)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        one(device)?.release_primary(false)
    }

    fn cuDevicePrimaryCtxReset(device: i32) {
        one(device)?.release_primary(true)
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        one(device)?.release_primary(true)
    }

    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) {
        one(device)?.set_primary_flags(flags);
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        one(device)?.set_primary_flags(flags);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let process = one(device)?;
        flags.set(process.primary_flags())?;
        active.set(i32::from(process.primary_context().is_some()))
    }

    fn cuCtxCreate(place: Out<u64>, flags: u32, device: i32) {
        create(place, flags, device, None)
    }

    fn cuCtxCreate_v2(place: Out<u64>, flags: u32, device: i32) {
        create(place, flags, device, None)
    }

    fn cuCtxCreate_v3(place: Out<u64>, affinities: In<ExecAffinity>, count: i32, flags: u32, device: i32) {
        create(place, flags, device, affinity(affinities, count)?)
    }

    fn cuCtxCreate_v4(place: Out<u64>, parameters: In<ContextParameters>, flags: u32, device: i32) {
        let wanted = match parameters.is_null() {
            true => None,
            false => {
                let parameters = parameters.get()?;
                affinity(parameters.affinity, parameters.affinities)?
            }
        };
        create(place, flags, device, wanted)
    }

    fn cuCtxDestroy(handle: u64) {
        destroy(handle)
    }

    fn cuCtxDestroy_v2(handle: u64) {
        destroy(handle)
    }

    fn cuCtxPushCurrent(handle: u64) {
        push(handle)
    }

    fn cuCtxPushCurrent_v2(handle: u64) {
        push(handle)
    }

    fn cuCtxPopCurrent(place: Out<u64>) {
        process::get()?;
        place.offer(context::pop()?);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(place: Out<u64>) {
        process::get()?;
        place.offer(context::pop()?);
        Ok(())
    }

    fn cuCtxSetCurrent(handle: u64) {
        let process = process::get()?;
        if handle != 0 {
            process.objects.contexts.get(handle).map_err(|_| Code::INVALID_CONTEXT)?;
        }
        context::replace(handle);
        Ok(())
    }

    fn cuCtxGetCurrent(place: Out<u64>) {
        process::get()?;
        place.set(context::current())
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        ready()?.current()?;
        device.set(0)
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, handle: u64) {
        ready()?.context(handle)?;
        device.set(0)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(ready()?.current()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: u32) {
        ready()?.current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(handle: u64, id: Out<u64>) {
        // A handle is never given twice, so it is as good an id as any.
        id.set(ready()?.context(handle)?.handle)
    }

    fn cuCtxSynchronize() {
        let process = ready()?;
        let context = process.current()?;
        synchronize(&context)
    }

    fn cuCtxSynchronize_v2(handle: u64) {
        let context = ready()?.context(handle)?;
        synchronize(&context)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        ready()?.current()?;
        least.offer(PRIORITIES.0);
        greatest.offer(PRIORITIES.1);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        let context = ready()?.current()?;
        let set = context.limits.lock().unwrap_or_else(PoisonError::into_inner).get(&limit).copied();
        let first = LIMITS.iter().find(|(known, _)| *known == limit).map(|(_, first)| *first);
        value.set(set.or(first).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        let context = ready()?.current()?;
        if !LIMITS.iter().any(|(known, _)| *known == limit) {
            return Err(Code::INVALID_VALUE);
        }
        context.limits.lock().unwrap_or_else(PoisonError::into_inner).insert(limit, value);
        Ok(())
    }

    fn cuCtxGetApiVersion(handle: u64, version: Out<u32>) {
        ready()?.context(handle)?;
        version.set(3020)
    }

    fn cuCtxGetCacheConfig(config: Out<u32>) {
        ready()?.current()?;
        config.set(0)
    }

    fn cuCtxSetCacheConfig(config: u32) {
        ready()?.current()?;
        if config > 3 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuCtxGetSharedMemConfig(config: Out<u32>) {
        ready()?.current()?;
        config.set(1)
    }

    fn cuCtxSetSharedMemConfig(config: u32) {
        ready()?.current()?;
        if config > 2 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuCtxResetPersistingL2Cache() {
        ready()?.current().map(|_| ())
    }

    fn cuCtxGetExecAffinity(answer: Out<ExecAffinity>, kind: u32) {
        let process = ready()?;
        let context = process.current()?;
        if kind != SM_COUNT {
            return Err(Code::UNSUPPORTED_EXEC_AFFINITY);
        }
        let sm_count = context.affinity.unwrap_or(context.sms().count());
        answer.set(ExecAffinity { kind, sm_count })
    }

    fn cuCtxEnablePeerAccess(peer: u64, _flags: u32) {
        ready()?.context(peer)?;
        Err(Code::PEER_ACCESS_UNSUPPORTED)
    }
}

fn create(place: Out<u64>, flags: u32, device: i32, affinity: Option<u32>) -> Result<(), Code> {
    let process = one(device)?;
    process.check()?;
    if place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    if affinity.is_some() && process.mps.is_none() {
        return Err(Code::UNSUPPORTED_EXEC_AFFINITY);
    }
    let context = process.make_context(Kind::Own, flags, affinity)?;
    context::push(context.handle);
    place.set(context.handle)
}

/// The SM count among affinities; `None` for none.
fn affinity(list: In<ExecAffinity>, count: i32) -> Result<Option<u32>, Code> {
    let count = usize::try_from(count).map_err(|_| Code::INVALID_VALUE)?;
    if count > 1 {
        return Err(Code::INVALID_VALUE);
    }
    match list.list(count)?.first() {
        None => Ok(None),
        Some(one) if one.kind == SM_COUNT && one.sm_count > 0 => Ok(Some(one.sm_count)),
        Some(_) => Err(Code::UNSUPPORTED_EXEC_AFFINITY),
    }
}

fn destroy(handle: u64) -> Result<(), Code> {
    let process = process::get()?;
    let context = process.objects.contexts.get(handle).map_err(|_| Code::INVALID_CONTEXT)?;
    if context.kind != Kind::Own {
        return Err(Code::INVALID_CONTEXT);
    }
    process.end_context(&context);
    if context::current() == handle {
        context::pop()?;
    }
    Ok(())
}

fn push(handle: u64) -> Result<(), Code> {
    let process = process::get()?;
    process.objects.contexts.get(handle).map_err(|_| Code::INVALID_CONTEXT)?;
    context::push(handle);
    Ok(())
}

fn synchronize(context: &context::Context) -> Result<(), Code> {
    let process = ready()?;
    for stream in context.place.streams() {
        stream.refuse_capture()?;
    }
    process.synchronize(context)
}
