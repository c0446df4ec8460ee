//! The driver API as it is in memory: what callers pass and get.
//!
//! Handles are numbers here (C has pointers, which callers may not follow): they name entries of [`crate::objects`]. Layouts
//! are those of `cuda.h` of CUDA 13.0 on 64-bit Linux, which a test compares with sizes that a C compiler gave.

use std::ffi::{CStr, c_char, c_void};

use crate::error::Code;

/// Where an answer goes: a pointer that the caller gave.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the answer.
    pub(crate) fn set(self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: only callers of the C interface make values of this type (C has no null check that means anything else), and
        // the interface demands a place for one `T`, or an array of which this is the first. Packed callers exist: unaligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the answer, unless the caller does not want it.
    pub(crate) fn offer(self, value: T) {
        // The only error is a null pointer.
        let _ = self.set(value);
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Reads what the caller put there: in-out arguments.
    pub(crate) fn get(self) -> Result<T, Code>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// The place of the element `index` of an array.
    pub(crate) fn at(self, index: usize) -> Self {
        if self.0.is_null() { self } else { Self(self.0.wrapping_add(index)) }
    }

    /// As [`In::from_address`].
    pub(crate) fn from_address(address: u64) -> Self {
        Self(address as *mut T)
    }

    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// What the caller gives by pointer.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn get(self) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: as for `Out::set`: a caller of the C interface passes a pointer to a `T`.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The first `count` elements of an array.
    pub(crate) fn list(self, count: usize) -> Result<Vec<T>, Code> {
        (0..count)
            .map(|index| {
                if self.0.is_null() {
                    Err(Code::INVALID_VALUE)
                } else {
                    Self(self.0.wrapping_add(index)).get()
                }
            })
            .collect()
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// What a field of a caller's structure points to: a structure holds what a call would take.
    pub(crate) fn from_address(address: u64) -> Self {
        Self(address as *const T)
    }
}

/// A string that ends with a zero byte.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: a caller of the C interface passes a string that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Writes a text and its end into a caller's buffer of `room` bytes, cut where it does not fit.
pub(crate) fn put_text(text: &str, place: Out<u8>, room: usize) -> Result<(), Code> {
    if room == 0 || place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    for (index, byte) in bytes.iter().enumerate() {
        place.at(index).set(*byte)?;
    }
    place.at(bytes.len()).set(0)
}

/// A function of the program that streams call.
pub(crate) type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// A function of the program that streams call with what came of the work before.
pub(crate) type StreamCallback = Option<unsafe extern "C" fn(u64, u32, *mut c_void)>;

/// `CUdevResource`: SMs are a bit mask in the driver's own part.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceResource {
    pub(crate) kind: u32,
    pub(crate) internal: [u8; 92],
    pub(crate) sm_count: u32,
    pub(crate) min_partition: u32,
    pub(crate) alignment: u32,
    pub(crate) oversize: [u8; 36],
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocationProperties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: u64,
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// `CUexecAffinityParam`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExecAffinity {
    pub(crate) kind: u32,
    pub(crate) sm_count: u32,
}

/// `CUctxCreateParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ContextParameters {
    pub(crate) affinity: In<ExecAffinity>,
    pub(crate) affinities: i32,
    pub(crate) cig: u64,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) attributes: u64,
    pub(crate) attribute_count: u32,
}

/// `CUstreamBatchMemOpParams`, waiting and writing alike.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryOperation {
    pub(crate) operation: u32,
    pub(crate) address: u64,
    pub(crate) value: u64,
    pub(crate) flags: u32,
    pub(crate) alias: u64,
    pub(crate) pad: u64,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Copy2D {
    pub(crate) src_x: usize,
    pub(crate) src_y: usize,
    pub(crate) src_kind: u32,
    pub(crate) src_host: u64,
    pub(crate) src_device: u64,
    pub(crate) src_array: u64,
    pub(crate) src_pitch: usize,
    pub(crate) dst_x: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_kind: u32,
    pub(crate) dst_host: u64,
    pub(crate) dst_device: u64,
    pub(crate) dst_array: u64,
    pub(crate) dst_pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Copy3D {
    pub(crate) src_x: usize,
    pub(crate) src_y: usize,
    pub(crate) src_z: usize,
    pub(crate) src_lod: usize,
    pub(crate) src_kind: u32,
    pub(crate) src_host: u64,
    pub(crate) src_device: u64,
    pub(crate) src_array: u64,
    pub(crate) reserved0: u64,
    pub(crate) src_pitch: usize,
    pub(crate) src_height: usize,
    pub(crate) dst_x: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_z: usize,
    pub(crate) dst_lod: usize,
    pub(crate) dst_kind: u32,
    pub(crate) dst_host: u64,
    pub(crate) dst_device: u64,
    pub(crate) dst_array: u64,
    pub(crate) reserved1: u64,
    pub(crate) dst_pitch: usize,
    pub(crate) dst_height: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`; the older one ends before `kernel`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelNode {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) parameters: u64,
    pub(crate) extra: u64,
    pub(crate) kernel: u64,
    pub(crate) context: u64,
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelNodeV1 {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) parameters: u64,
    pub(crate) extra: u64,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct FillNode {
    pub(crate) destination: u64,
    pub(crate) pitch: usize,
    pub(crate) value: u32,
    pub(crate) element: u32,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HostNode {
    pub(crate) function: HostFunction,
    pub(crate) data: u64,
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolProperties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: u64,
    pub(crate) max_size: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocationNode {
    pub(crate) pool: PoolProperties,
    pub(crate) access: u64,
    pub(crate) access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) address: u64,
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrayDescription {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Array3DDescription {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

/// `CUipcMemHandle`, `CUipcEventHandle` and `CUmemPoolPtrExportData`: 64 bytes that other processes get.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Shareable {
    pub(crate) words: [u64; 8],
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct InstantiateParameters {
    pub(crate) flags: u64,
    pub(crate) stream: u64,
    pub(crate) error_node: u64,
    pub(crate) result: u32,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UpdateResult {
    pub(crate) result: u32,
    pub(crate) error_node: u64,
    pub(crate) error_from: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    /// As gcc printed them for cuda.h of CUDA 13.0 on x86-64.
    const SIZES: [usize; 18] = [144, 32, 12, 24, 56, 48, 128, 200, 72, 56, 40, 88, 120, 24, 40, 64, 32, 24];

    #[test]
    fn sizes_are_those_of_the_c_header() {
        let sizes = [
            size_of::<DeviceResource>(),
            size_of::<AllocationProperties>(),
            size_of::<AccessDescription>(),
            size_of::<ContextParameters>(),
            size_of::<LaunchConfig>(),
            size_of::<MemoryOperation>(),
            size_of::<Copy2D>(),
            size_of::<Copy3D>(),
            size_of::<KernelNode>(),
            size_of::<KernelNodeV1>(),
            size_of::<FillNode>(),
            size_of::<PoolProperties>(),
            size_of::<AllocationNode>(),
            size_of::<ArrayDescription>(),
            size_of::<Array3DDescription>(),
            size_of::<Shareable>(),
            size_of::<InstantiateParameters>(),
            size_of::<UpdateResult>(),
        ];
        assert_eq!(sizes, SIZES);
    }

    #[test]
    fn texts_are_cut_where_they_do_not_fit() {
        let mut room = [9_u8; 4];
        put_text("abcdef", Out(room.as_mut_ptr()), 4).unwrap();
        assert_eq!(&room, b"abc\0");
        assert_eq!(put_text("a", Out(room.as_mut_ptr()), 0), Err(Code::INVALID_VALUE));
    }
}
