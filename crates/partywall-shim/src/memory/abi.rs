//! What the hooks of this area need of cuda.h (13.0): types, constants and the real functions.
#![allow(
    non_camel_case_types,
    reason = "the names are those of cuda.h, so that prototypes can be compared with it"
)]

use std::ffi::{c_int, c_uint, c_void};

/// An address of the device.
pub(super) type CUdeviceptr = u64;
/// A device, by its number.
pub(super) type CUdevice = c_int;
pub(super) type CUcontext = *mut c_void;
pub(super) type CUstream = *mut c_void;
pub(super) type CUmemoryPool = *mut c_void;
pub(super) type CUarray = *mut c_void;
pub(super) type CUmipmappedArray = *mut c_void;
pub(super) type CUexternalMemory = *mut c_void;
pub(super) type CUgraph = *mut c_void;
pub(super) type CUgraphExec = *mut c_void;
pub(super) type CUgraphNode = *mut c_void;
/// Memory that `cuMemCreate` made.
pub(super) type CUmemGenericAllocationHandle = u64;

/// `CUipcMemHandle`: passed by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct CUipcMemHandle([u8; 64]);

/// Where memory is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct CUmemLocation {
    kind: c_uint,
    number: c_int,
}

impl CUmemLocation {
    /// Whether memory there is the host's, not the device's: `HOST`, `HOST_NUMA` and `HOST_NUMA_CURRENT`.
    pub(super) const fn is_host(self) -> bool {
        matches!(self.kind, 2..=4)
    }
}

/// The beginning of `CUmemAllocationProp` and of `CUmemPoolProps`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct MemoryProperties {
    kind: c_uint,
    handle_types: c_uint,
    pub(super) location: CUmemLocation,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, with the pool's properties (88 bytes) first.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct AllocationNode {
    pub(super) pool: MemoryProperties,
    rest: [u64; 9],
    accesses: *const c_void,
    access_count: usize,
    pub(super) bytes: usize,
    address: CUdeviceptr,
}

impl AllocationNode {
    pub(super) const EMPTY: Self = Self {
        pool: MemoryProperties { kind: 0, handle_types: 0, location: CUmemLocation { kind: 0, number: 0 } },
        rest: [0; 9],
        accesses: std::ptr::null(),
        access_count: 0,
        bytes: 0,
        address: 0,
    };
}

const _: () =
    assert!(size_of::<AllocationNode>() == 120 && std::mem::offset_of!(AllocationNode, bytes) == 104);

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`, as far as its size.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct ExternalMemory {
    kind: c_uint,
    handle: [u64; 2],
    pub(super) bytes: u64,
}

const _: () = assert!(std::mem::offset_of!(ExternalMemory, bytes) == 24);

/// `CUDA_ARRAY_DESCRIPTOR_v2`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct ArrayDescriptor {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) format: c_uint,
    pub(super) channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v2`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Array3dDescriptor {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) depth: usize,
    pub(super) format: c_uint,
    pub(super) channels: c_uint,
    pub(super) flags: c_uint,
}

/// `CUDA_ARRAY_DESCRIPTOR_v1`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct ArrayDescriptorV1 {
    pub(super) width: c_uint,
    pub(super) height: c_uint,
    pub(super) format: c_uint,
    pub(super) channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Array3dDescriptorV1 {
    pub(super) width: c_uint,
    pub(super) height: c_uint,
    pub(super) depth: c_uint,
    pub(super) format: c_uint,
    pub(super) channels: c_uint,
    pub(super) flags: c_uint,
}

/// `CUDA_ARRAY3D_LAYERED`: the depth counts layers.
pub(super) const ARRAY_LAYERED: c_uint = 0x01;
/// `CUDA_ARRAY3D_CUBEMAP`: the depth counts faces.
pub(super) const ARRAY_CUBEMAP: c_uint = 0x04;
/// `CUDA_ARRAY3D_SPARSE`: without memory of its own.
pub(super) const ARRAY_SPARSE: c_uint = 0x40;
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`: without memory of its own.
pub(super) const ARRAY_DEFERRED: c_uint = 0x80;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`: 64 bits.
pub(super) const POOL_RESERVED: c_uint = 5;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`: 64 bits.
pub(super) const GRAPHS_RESERVED: c_uint = 2;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
pub(super) const CAPTURING: c_uint = 1;
/// `CU_GRAPH_NODE_TYPE_GRAPH`: a graph within a graph.
pub(super) const NODE_GRAPH: c_uint = 4;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
pub(super) const NODE_ALLOCATION: c_uint = 10;
/// `CU_STREAM_PER_THREAD`: what 0 stands for in the `_ptsz` variants.
pub(super) const STREAM_PER_THREAD: CUstream = std::ptr::without_provenance_mut(2);

/// The real functions.
pub(super) mod real {
    use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

    use super::{
        AllocationNode, Array3dDescriptor, Array3dDescriptorV1, ArrayDescriptor, ArrayDescriptorV1, CUarray,
        CUcontext, CUdevice, CUdeviceptr, CUexternalMemory, CUgraph, CUgraphExec, CUgraphNode,
        CUipcMemHandle, CUmemGenericAllocationHandle, CUmemLocation, CUmemoryPool, CUmipmappedArray,
        CUstream, ExternalMemory, MemoryProperties,
    };

    crate::real::functions! {
        fn cuCtxGetCurrent(context: *mut CUcontext);
        fn cuCtxGetDevice(device: *mut CUdevice);
        fn cuCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice);
        fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
        fn cuCtxCreate_v3(
            context: *mut CUcontext, affinities: *mut c_void, count: c_int, flags: c_uint, device: CUdevice,
        );
        fn cuCtxCreate_v4(context: *mut CUcontext, parameters: *mut c_void, flags: c_uint, device: CUdevice);
        fn cuCtxDestroy(context: CUcontext);
        fn cuCtxDestroy_v2(context: CUcontext);
        fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        fn cuDevicePrimaryCtxRelease(device: CUdevice);
        fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        fn cuDevicePrimaryCtxReset(device: CUdevice);
        fn cuDevicePrimaryCtxReset_v2(device: CUdevice);
        fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, is_active: *mut c_int);

        fn cuMemAlloc(address: *mut c_uint, bytes: c_uint);
        fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
        fn cuMemAllocPitch(
            address: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element_bytes: c_uint,
        );
        fn cuMemAllocPitch_v2(
            address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element_bytes: c_uint,
        );
        fn cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint);
        fn cuMemFree(address: c_uint);
        fn cuMemFree_v2(address: CUdeviceptr);
        fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);

        fn cuMemAllocHost(address: *mut *mut c_void, bytes: c_uint);
        fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize);
        fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemFreeHost(address: *mut c_void);
        fn cuMemHostRegister(address: *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemHostUnregister(address: *mut c_void);

        fn cuArrayCreate(array: *mut CUarray, descriptor: *const ArrayDescriptorV1);
        fn cuArrayCreate_v2(array: *mut CUarray, descriptor: *const ArrayDescriptor);
        fn cuArray3DCreate(array: *mut CUarray, descriptor: *const Array3dDescriptorV1);
        fn cuArray3DCreate_v2(array: *mut CUarray, descriptor: *const Array3dDescriptor);
        fn cuArrayDestroy(array: CUarray);
        fn cuMipmappedArrayCreate(
            array: *mut CUmipmappedArray, descriptor: *const Array3dDescriptor, levels: c_uint,
        );
        fn cuMipmappedArrayDestroy(array: CUmipmappedArray);

        fn cuIpcOpenMemHandle(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
        fn cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
        fn cuIpcCloseMemHandle(address: CUdeviceptr);
        fn cuImportExternalMemory(memory: *mut CUexternalMemory, descriptor: *const ExternalMemory);
        fn cuDestroyExternalMemory(memory: CUexternalMemory);

        fn cuMemCreate(
            handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const MemoryProperties,
            flags: c_ulonglong,
        );
        fn cuMemRelease(handle: CUmemGenericAllocationHandle);
        fn cuMemMap(
            address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle,
            flags: c_ulonglong,
        );
        fn cuMemUnmap(address: CUdeviceptr, bytes: usize);
        fn cuMemImportFromShareableHandle(
            handle: *mut CUmemGenericAllocationHandle, shared: *mut c_void, kind: c_uint,
        );
        fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);

        fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
        fn cuMemGetDefaultMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: c_uint);
        fn cuMemGetMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: c_uint);
        fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const MemoryProperties);
        fn cuMemPoolDestroy(pool: CUmemoryPool);
        fn cuMemPoolTrimTo(pool: CUmemoryPool, bytes_to_keep: usize);
        fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_uint, value: *mut c_void);
        fn cuMemPoolImportFromShareableHandle(
            pool: *mut CUmemoryPool, handle: *mut c_void, kind: c_uint, flags: c_ulonglong,
        );
        fn cuMemPoolImportPointer(address: *mut CUdeviceptr, pool: CUmemoryPool, shared: *mut c_void);
        fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        fn cuMemAllocAsync_ptsz(address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        fn cuMemAllocFromPoolAsync(
            address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
        );
        fn cuMemAllocFromPoolAsync_ptsz(
            address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
        );
        fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
        fn cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream);
        fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);

        fn cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: c_uint, value: *mut c_void);
        fn cuDeviceGraphMemTrim(device: CUdevice);
        fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
        fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut c_uint);
        fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph);
        fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, parameters: *mut AllocationNode);
        fn cuGraphAddMemAllocNode(
            node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
            parameters: *mut AllocationNode,
        );
        fn cuGraphInstantiate(
            exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log: *mut c_char,
            log_bytes: usize,
        );
        fn cuGraphInstantiate_v2(
            exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log: *mut c_char,
            log_bytes: usize,
        );
        fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
        fn cuGraphInstantiateWithParams(exec: *mut CUgraphExec, graph: CUgraph, parameters: *mut c_void);
        fn cuGraphInstantiateWithParams_ptsz(exec: *mut CUgraphExec, graph: CUgraph, parameters: *mut c_void);
        fn cuGraphUpload(exec: CUgraphExec, stream: CUstream);
        fn cuGraphUpload_ptsz(exec: CUgraphExec, stream: CUstream);
        fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
        fn cuGraphLaunch_ptsz(exec: CUgraphExec, stream: CUstream);
        fn cuGraphExecDestroy(exec: CUgraphExec);

        fn cuCtxSynchronize();
        fn cuCtxSynchronize_v2(context: CUcontext);
        fn cuStreamSynchronize(stream: CUstream);
        fn cuStreamSynchronize_ptsz(stream: CUstream);
        fn cuEventSynchronize(event: *mut c_void);

        fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint);
        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        fn cuDeviceTotalMem(bytes: *mut c_uint, device: CUdevice);
        fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    }
}
