//! What an address is.

use crate::abi::{In, Out};
use crate::api::ready;
use crate::error::Code;
use crate::memory::addresses::{Kind, Span};
use crate::process::Process;

const ON_HOST: u32 = 1;
const ON_DEVICE: u32 = 2;

api! {
    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) {
        let span = ready()?.memory.addresses.find(address).filter(|span| span.kind.on_device());
        let span = span.ok_or(Code::NOT_FOUND)?;
        base.offer(span.start);
        bytes.offer(span.length as usize);
        Ok(())
    }

    fn cuPointerGetAttribute(place: Out<u8>, attribute: u32, address: u64) {
        let process = ready()?;
        let span = process.memory.addresses.find(address).ok_or(Code::INVALID_VALUE)?;
        put(process, &span, place, attribute, address)
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, places: In<Out<u8>>, address: u64) {
        let process = ready()?;
        let span = process.memory.addresses.find(address);
        let attributes = attributes.list(count as usize)?;
        for (attribute, place) in attributes.into_iter().zip(places.list(count as usize)?) {
            match &span {
                // Attributes that an address does not have are zero here, and no error.
                Some(span) => match put(process, span, place, attribute, address) {
                    Err(Code::INVALID_VALUE) => blank(place, attribute)?,
                    other => other?,
                },
                None => blank(place, attribute)?,
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: In<u32>, attribute: u32, address: u64) {
        const SYNC_MEMOPS: u32 = 6;
        let process = ready()?;
        value.get()?;
        process.memory.addresses.find(address).ok_or(Code::INVALID_VALUE)?;
        if attribute == SYNC_MEMOPS { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}

/// Writes one attribute of an address that is known. The types are those of `CUpointer_attribute`'s documentation.
fn put(process: &Process, span: &Span, place: Out<u8>, attribute: u32, address: u64) -> Result<(), Code> {
    let device = span.kind.on_device();
    let managed = matches!(span.kind, Kind::Managed);
    match attribute {
        1 => place.cast::<u64>().set(span.context),
        2 => place.cast::<u32>().set(if device { ON_DEVICE } else { ON_HOST }),
        3 => place.cast::<u64>().set(address),
        4 if !device || managed => place.cast::<u64>().set(address),
        6 => place.cast::<u8>().set(0),
        7 => place.cast::<u64>().set(span.id),
        8 => place.cast::<u8>().set(u8::from(managed)),
        9 => place.cast::<i32>().set(0),
        10 => place.cast::<u8>().set(u8::from(matches!(span.kind, Kind::Device { .. }))),
        11 => place.cast::<u64>().set(span.start),
        12 => place.cast::<usize>().set(span.length as usize),
        13 => place.cast::<u8>().set(1),
        14 => place.cast::<u64>().set(match &span.kind {
            Kind::Mapped { physical, .. } => u64::from(physical.handle_types),
            Kind::Pool { pool } => u64::from(process.objects.pools.get(*pool)?.handle_types),
            _ => 0,
        }),
        15 => place.cast::<u8>().set(0),
        16 => place.cast::<u32>().set(match span.kind {
            Kind::Mapped { access, .. } => access,
            _ => 3,
        }),
        17 => place.cast::<u64>().set(match span.kind {
            Kind::Pool { pool } => pool,
            _ => 0,
        }),
        18 if matches!(span.kind, Kind::Mapped { .. }) => place.cast::<usize>().set(span.length as usize),
        19 if matches!(span.kind, Kind::Mapped { .. }) => place.cast::<u64>().set(span.start),
        20 => place.cast::<u64>().set(span.id),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Writes the zero of an attribute.
fn blank(place: Out<u8>, attribute: u32) -> Result<(), Code> {
    match attribute {
        6 | 8 | 10 | 13 | 15 | 21 => place.set(0),
        2 | 16 => place.cast::<u32>().set(0),
        // No device.
        9 => place.cast::<i32>().set(-2),
        1..=20 => place.cast::<u64>().set(0),
        _ => Err(Code::INVALID_VALUE),
    }
}
