//! Arrays: only the memory that they take. Copies from and to them are not simulated.

use std::sync::Arc;

use crate::abi::{Array3DDescription, ArrayDescription, In, Out};
use crate::api::ready;
use crate::error::Code;
use crate::objects::Array;

api! {
    fn cuArrayCreate_v2(place: Out<u64>, description: In<ArrayDescription>) {
        let ArrayDescription { width, height, format, channels } = description.get()?;
        create(place, Array3DDescription { width, height, depth: 0, format, channels, flags: 0 })
    }

    fn cuArray3DCreate_v2(place: Out<u64>, description: In<Array3DDescription>) {
        create(place, description.get()?)
    }

    fn cuArrayGetDescriptor_v2(place: Out<ArrayDescription>, array: u64) {
        let Array3DDescription { width, height, format, channels, .. } = ready()?.objects.arrays.get(array)?.description;
        place.set(ArrayDescription { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2(place: Out<Array3DDescription>, array: u64) {
        place.set(ready()?.objects.arrays.get(array)?.description)
    }

    fn cuArrayDestroy(array: u64) {
        let process = ready()?;
        let array = process.objects.arrays.remove(array)?;
        process.quiesce()?;
        process.memory.free(array.address)
    }
}

/// Bytes of an element's channel.
fn channel_bytes(format: u32) -> Option<usize> {
    match format {
        0x01 | 0x08 => Some(1),
        0x02 | 0x09 | 0x10 => Some(2),
        0x03 | 0x0a | 0x20 => Some(4),
        _ => None,
    }
}

fn create(place: Out<u64>, description: Array3DDescription) -> Result<(), Code> {
    let process = ready()?;
    let context = process.current()?.handle;
    let Array3DDescription { width, height, depth, format, channels, .. } = description;
    let element = channel_bytes(format).ok_or(Code::NOT_SUPPORTED)?;
    if width == 0 || !matches!(channels, 1 | 2 | 4) || place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let sizes = [width, height.max(1), depth.max(1), element, channels as usize];
    let bytes = sizes.into_iter().try_fold(1_usize, usize::checked_mul).ok_or(Code::OUT_OF_MEMORY)? as u64;
    process.inject_at_allocation()?;
    let address = process.memory.allocate(bytes, false, context)?;
    place.set(process.objects.arrays.add(Arc::new(Array { address, description })))
}
