//! Green contexts: parts of the SMs.

use std::sync::Arc;

use crate::abi::{DeviceResource, In, Out};
use crate::api::contexts::PRIORITIES;
use crate::api::devices::one;
use crate::api::{ready, streams};
use crate::context::{self, Context, SM_WORDS, SmSet};
use crate::engine::stream::Kind;
use crate::error::Code;
use crate::process::Process;

/// `CU_DEV_RESOURCE_TYPE_SM`.
const SM: u32 = 1;

/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`, and the group sizes that it allows.
const IGNORE_COSCHEDULING: u32 = 1;
const PAIR: u32 = 2;

/// What the driver's own part of a resource begins with, so that one that the program made up is noticed.
const MARK: [u8; 4] = *b"SOFT";

api! {
    fn cuDeviceGetDevResource(device: i32, place: Out<DeviceResource>, kind: u32) {
        let process = one(device)?;
        give(process, place, kind, process.sms())
    }

    fn cuCtxGetDevResource(context: u64, place: Out<DeviceResource>, kind: u32) {
        let process = ready()?;
        let sms = process.context(context)?.sms();
        give(process, place, kind, sms)
    }

    fn cuGreenCtxGetDevResource(green: u64, place: Out<DeviceResource>, kind: u32) {
        let process = ready()?;
        let sms = green_context(process, green)?.sms();
        give(process, place, kind, sms)
    }

    fn cuStreamGetDevResource / cuStreamGetDevResource_ptsz (on: u64, place: Out<DeviceResource>, kind: u32) {
        let process = ready()?;
        let sms = crate::api::stream(process, on)?.place.sms;
        give(process, place, kind, sms)
    }

    fn cuDevSmResourceSplitByCount(
        groups: Out<DeviceResource>, count: Out<u32>, input: In<DeviceResource>, rest: Out<DeviceResource>, flags: u32,
        least: u32,
    ) {
        split(groups, count, input, rest, flags, least)
    }

    fn cuDevResourceGenerateDesc(place: Out<u64>, resources: In<DeviceResource>, count: u32) {
        let process = ready()?;
        if count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let sets = resources.list(count as usize)?;
        let mut union = SmSet::NONE;
        for set in sets.iter().map(sms_of) {
            union = union.union(set?);
        }
        place.set(process.objects.descriptions.add(Arc::new(union)))
    }

    fn cuGreenCtxCreate(place: Out<u64>, description: u64, device: i32, flags: u32) {
        const DEFAULT_STREAM: u32 = 1;
        let process = one(device)?;
        process.check()?;
        if flags != DEFAULT_STREAM || place.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let sms = *process.objects.descriptions.get(description).map_err(|_| Code::INVALID_VALUE)?;
        // A view of the primary context, which it keeps.
        process.retain_primary()?;
        let green = Context::new(context::Kind::Green, process.green_sms(sms), 0, None);
        place.set(green.handle)?;
        process.objects.contexts.put(green.handle, green);
        Ok(())
    }

    fn cuGreenCtxDestroy(green: u64) {
        let process = crate::process::get()?;
        let green = green_context(process, green)?;
        for stream in green.place.streams() {
            let _ = stream.synchronize(process);
            stream.close();
            let _ = process.objects.streams.remove(stream.handle);
        }
        process.objects.contexts.remove(green.handle)?;
        process.release_primary(false)
    }

    fn cuCtxFromGreenCtx(place: Out<u64>, green: u64) {
        place.set(green_context(ready()?, green)?.handle)
    }

    fn cuGreenCtxGetId(green: u64, id: Out<u64>) {
        id.set(green_context(ready()?, green)?.handle)
    }

    fn cuGreenCtxStreamCreate(place: Out<u64>, green: u64, flags: u32, priority: i32) {
        const NON_BLOCKING: u32 = 1;
        let green = green_context(ready()?, green)?;
        if flags != NON_BLOCKING || place.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
        place.set(streams::add(&green, Kind::NonBlocking, priority)?)
    }
}

fn green_context(process: &Process, handle: u64) -> Result<Arc<Context>, Code> {
    let found =
        process.objects.contexts.get(handle).ok().filter(|context| context.kind == context::Kind::Green);
    found.ok_or(Code::INVALID_CONTEXT)
}

fn give(process: &Process, place: Out<DeviceResource>, kind: u32, sms: SmSet) -> Result<(), Code> {
    if kind != SM {
        return Err(Code::INVALID_RESOURCE_TYPE);
    }
    place.set(resource(process, sms))
}

fn resource(process: &Process, sms: SmSet) -> DeviceResource {
    let gpu = &process.device.figures().gpu;
    let mut internal = [0; 92];
    internal[..4].copy_from_slice(&MARK);
    for (index, word) in sms.0.iter().enumerate() {
        internal[8 * index + 4..8 * index + 12].copy_from_slice(&word.to_le_bytes());
    }
    DeviceResource {
        kind: SM,
        internal,
        sm_count: sms.count(),
        min_partition: gpu.green_context_min.value,
        alignment: gpu.green_context_step.value,
        oversize: [0; 36],
    }
}

fn sms_of(resource: &DeviceResource) -> Result<SmSet, Code> {
    if resource.kind != SM {
        return Err(Code::INVALID_RESOURCE_TYPE);
    }
    if resource.internal[..4] != MARK {
        return Err(Code::INVALID_VALUE);
    }
    let set = SmSet(std::array::from_fn::<u64, SM_WORDS, _>(|index| {
        let bytes = &resource.internal[8 * index + 4..8 * index + 12];
        u64::from_le_bytes(bytes.try_into().unwrap_or_default())
    }));
    if set.count() == 0 { Err(Code::INVALID_RESOURCE_CONFIGURATION) } else { Ok(set) }
}

fn split(
    groups: Out<DeviceResource>,
    count: Out<u32>,
    input: In<DeviceResource>,
    rest: Out<DeviceResource>,
    flags: u32,
    least: u32,
) -> Result<(), Code> {
    let process = ready()?;
    let sms = sms_of(&input.get()?)?;
    let gpu = &process.device.figures().gpu;
    let (smallest, step) = match flags {
        0 => (gpu.green_context_min.value.max(1), gpu.green_context_step.value.max(1)),
        IGNORE_COSCHEDULING => (PAIR, PAIR),
        _ => return Err(Code::INVALID_VALUE),
    };
    let size = least.max(smallest).checked_next_multiple_of(step).ok_or(Code::INVALID_VALUE)?;
    let most = sms.count() / size;
    if groups.is_null() {
        return count.set(most);
    }
    let wanted = count.get()?.min(most);
    if wanted == 0 {
        return Err(Code::INVALID_RESOURCE_CONFIGURATION);
    }
    let mut members: Vec<u32> = sms.iter().collect();
    let from = usize::try_from(process.split_from()).unwrap_or(0) % members.len().max(1);
    members.rotate_left(from);
    for (index, group) in members.chunks_exact(size as usize).take(wanted as usize).enumerate() {
        groups.at(index).set(resource(process, SmSet::of(group.iter().copied())))?;
    }
    let left = SmSet::of(members.into_iter().skip((wanted * size) as usize));
    rest.offer(if left.count() == 0 {
        DeviceResource { kind: 0, ..resource(process, left) }
    } else {
        resource(process, left)
    });
    count.set(wanted)
}
