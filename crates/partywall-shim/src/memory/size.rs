//! What an array takes, as far as its description says.
//!
//! Drivers lay arrays out in blocks and do not say how; the padding is not in these numbers. It shows up as memory that
//! the node measures besides.

use std::ffi::c_uint;

use partywall_core::units::Bytes;

use super::abi::{
    ARRAY_CUBEMAP, ARRAY_DEFERRED, ARRAY_LAYERED, ARRAY_SPARSE, Array3dDescriptor, Array3dDescriptorV1,
    ArrayDescriptor, ArrayDescriptorV1,
};

impl From<ArrayDescriptor> for Array3dDescriptor {
    fn from(ArrayDescriptor { width, height, format, channels }: ArrayDescriptor) -> Self {
        Self { width, height, depth: 0, format, channels, flags: 0 }
    }
}

impl From<ArrayDescriptorV1> for Array3dDescriptor {
    fn from(ArrayDescriptorV1 { width, height, format, channels }: ArrayDescriptorV1) -> Self {
        Self { width: width as usize, height: height as usize, depth: 0, format, channels, flags: 0 }
    }
}

impl From<Array3dDescriptorV1> for Array3dDescriptor {
    fn from(descriptor: Array3dDescriptorV1) -> Self {
        let Array3dDescriptorV1 { width, height, depth, format, channels, flags } = descriptor;
        let [width, height, depth] = [width, height, depth].map(|extent| extent as usize);
        Self { width, height, depth, format, channels, flags }
    }
}

/// How elements of a format are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    /// Each channel by itself, in bits.
    Channel(u64),
    /// All channels together, in bits.
    Whole(u64),
    /// Blocks of 4 by 4 elements, in bytes.
    Block(u64),
}

/// By the numbers of `CUarray_format`.
fn element(format: c_uint) -> Element {
    match format {
        // UNSIGNED_INT8, SIGNED_INT8, UNORM_INT8X*, SNORM_INT8X*
        0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 => Element::Channel(8),
        // UNSIGNED_INT16, SIGNED_INT16, HALF, UNORM_INT16X*, SNORM_INT16X*
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => Element::Channel(16),
        // UNSIGNED_INT32, SIGNED_INT32, FLOAT
        0x03 | 0x0a | 0x20 => Element::Channel(32),
        // BC1, BC4
        0x91 | 0x92 | 0x97 | 0x98 => Element::Block(8),
        // BC2, BC3, BC5, BC6H, BC7
        0x93..=0x96 | 0x99..=0x9e => Element::Block(16),
        // NV12: a plane in full and two at a quarter, 8 bits each
        0xb0 => Element::Whole(12),
        // NV16, YUY2
        0xa2 | 0xa5 => Element::Whole(16),
        // P010, P016, Y444_PLANAR8, YUV444_8bit_SemiPlanar
        0x9f | 0xa1 | 0xb2 | 0xb4 => Element::Whole(24),
        // P210, P216, Y210, Y216, AYUV, Y410, UNORM_INT_101010_2
        0xa3 | 0xa4 | 0xa6..=0xa9 | 0x50 => Element::Whole(32),
        // Y444_PLANAR10, YUV444_16bit_SemiPlanar
        0xb3 | 0xb5 => Element::Whole(48),
        // Y416
        0xb1 => Element::Whole(64),
        // A format of a later CUDA: as large as any.
        _ => Element::Whole(128),
    }
}

/// What an array with that many levels takes; 1 for one that is not mipmapped. The largest number for what no device has.
pub(super) fn of_array(descriptor: Array3dDescriptor, levels: c_uint) -> Bytes {
    let Array3dDescriptor { width, height, depth, format, channels, flags } = descriptor;
    if flags & (ARRAY_SPARSE | ARRAY_DEFERRED) != 0 {
        return Bytes::ZERO;
    }
    let [width, height, depth] = [width, height, depth].map(|extent| (extent as u64).max(1));
    let layered = flags & (ARRAY_LAYERED | ARRAY_CUBEMAP) != 0;
    let longest = if layered { width.max(height) } else { width.max(height).max(depth) };
    // More levels than halvings are not made.
    let levels = levels.clamp(1, longest.ilog2() + 1);
    let element = element(format);
    let level = |level: u32| {
        let [width, height] = [width, height].map(|extent| (extent >> level).max(1));
        let depth = if layered { depth } else { (depth >> level).max(1) };
        let bits = match element {
            Element::Channel(bits) => [width, height, depth, bits * u64::from(channels.max(1))],
            Element::Whole(bits) => [width, height, depth, bits],
            Element::Block(bytes) => [width.div_ceil(4), height.div_ceil(4), depth, 8 * bytes],
        };
        bits.into_iter().map(u128::from).fold(1, u128::saturating_mul).div_ceil(8)
    };
    let all = (0..levels).map(level).fold(0, u128::saturating_add);
    Bytes(u64::try_from(all).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(
        extents: [usize; 3],
        format: c_uint,
        channels: c_uint,
        flags: c_uint,
        levels: c_uint,
        bytes: u64,
    ) {
        let [width, height, depth] = extents;
        let descriptor = Array3dDescriptor { width, height, depth, format, channels, flags };
        assert_eq!(of_array(descriptor, levels), Bytes(bytes), "{descriptor:?}");
    }

    #[test]
    fn arrays_take_what_their_elements_take() {
        check([100, 0, 0], 0x20, 1, 0, 1, 400);
        check([100, 50, 0], 0x10, 4, 0, 1, 100 * 50 * 8);
        check([64, 64, 64], 0x01, 2, 0, 1, 64 * 64 * 64 * 2);
        check([64, 64, 6], 0x01, 4, ARRAY_CUBEMAP, 1, 64 * 64 * 6 * 4);
        // Layers stay, depth halves.
        check([4, 4, 4], 0x01, 1, ARRAY_LAYERED, 3, 4 * (16 + 4 + 1));
        check([4, 4, 4], 0x01, 1, 0, 3, 64 + 8 + 1);
        check([4, 4, 4], 0x01, 1, 0, 30, 64 + 8 + 1);
        check([8, 8, 0], 0x91, 4, 0, 4, 4 * 8 + 3 * 8);
        check([16, 16, 0], 0xb0, 3, 0, 1, 16 * 16 * 3 / 2);
        check([16, 16, 0], 0x7777, 1, 0, 1, 16 * 16 * 16);
        check([16, 16, 0], 0x01, 1, ARRAY_SPARSE, 1, 0);
        check([16, 16, 0], 0x01, 1, ARRAY_DEFERRED, 1, 0);
        check([usize::MAX, usize::MAX, usize::MAX], 0x20, 4, 0, u32::MAX, u64::MAX);
    }

    proptest! {
        #[test]
        fn any_description_has_a_size(
            extents: [usize; 3], format: c_uint, channels: c_uint, flags: c_uint, levels: c_uint
        ) {
            let [width, height, depth] = extents;
            let descriptor = Array3dDescriptor { width, height, depth, format, channels, flags };
            let one = of_array(descriptor, 1);
            prop_assert!(of_array(descriptor, levels) >= one);
        }
    }
}
