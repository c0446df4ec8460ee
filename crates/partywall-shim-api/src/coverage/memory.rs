//! Memory of the device and of the host.

use super::{Rule, Subject, enforced, passed, watched};

pub(super) const MEMORY: Subject = Subject {
    name: "Memory",
    about: "Every way to memory of the device counts against the tenant's quota; what would exceed it fails as if the device \
            had no more.",
    rules: &RULES,
};

const RULES: [Rule; 10] = [
    enforced(
        &["cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemFree"],
        "counted in full for as long as it is held; managed memory too, wherever it is at the moment",
    ),
    enforced(
        &[
            "cuArrayCreate",
            "cuArray3DCreate",
            "cuArrayDestroy",
            "cuMipmappedArrayCreate",
            "cuMipmappedArrayDestroy",
        ],
        "counted by the size of the array's elements and levels",
    ),
    enforced(
        &[
            "cuMemAllocAsync",
            "cuMemAllocFromPoolAsync",
            "cuMemFreeAsync",
            "cuMemPoolCreate",
            "cuMemPoolDestroy",
            "cuMemPoolTrimTo",
            "cuMemGetDefaultMemPool",
            "cuMemGetMemPool",
        ],
        "counted by what the pool has reserved; pools of the host's memory cost nothing",
    ),
    enforced(
        &["cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemRetainAllocationHandle"],
        "physical memory is counted until the last handle to it and the last mapping of it are gone",
    ),
    enforced(
        &[
            "cuIpcOpenMemHandle",
            "cuIpcCloseMemHandle",
            "cuMemImportFromShareableHandle",
            "cuMemPoolImportFromShareableHandle",
            "cuMemPoolImportPointer",
        ],
        "memory of another process is counted to the importer as well as to its owner; shared handles when they are mapped",
    ),
    enforced(&["cuDeviceGraphMemTrim"], "what the driver keeps for graphs is counted until it is given back"),
    enforced(
        &["cuMemGetInfo", "cuDeviceTotalMem"],
        "says what the tenant has: its quota, and what it and its processes have left of it",
    ),
    watched(
        &["cuMemAllocHost", "cuMemFreeHost", "cuMemHostAlloc", "cuMemHostRegister", "cuMemHostUnregister"],
        "memory of the host: counted, and costs nothing of the quota; the host's own limits apply",
    ),
    passed(
        &[
            "cuMemExportToShareableHandle",
            "cuMemPoolExportPointer",
            "cuMemPoolExportToShareableHandle",
            "cuIpcGetMemHandle",
            "cuMemGetHandleForAddressRange",
        ],
        "the memory stays its owner's. What only an exported descriptor keeps alive is seen by the node, not here",
    ),
    passed(
        &[
            "cuArray3DGetDescriptor",
            "cuArrayGetDescriptor",
            "cuArrayGetMemoryRequirements",
            "cuArrayGetPlane",
            "cuArrayGetSparseProperties",
            "cuDeviceGetDefaultMemPool",
            "cuDeviceGetGraphMemAttribute",
            "cuDeviceGetMemPool",
            "cuDeviceSetGraphMemAttribute",
            "cuDeviceSetMemPool",
            "cuMemAddressFree",
            "cuMemAddressReserve",
            "cuMemAdvise",
            "cuMemBatchDecompressAsync",
            "cuMemDiscardAndPrefetchBatchAsync",
            "cuMemDiscardBatchAsync",
            "cuMemGetAccess",
            "cuMemGetAddressRange",
            "cuMemGetAllocationGranularity",
            "cuMemGetAllocationPropertiesFromHandle",
            "cuMemGetLocationInfo",
            "cuMemHostGetDevicePointer",
            "cuMemHostGetFlags",
            "cuMemMapArrayAsync",
            "cuMemPoolGetAccess",
            "cuMemPoolGetAttribute",
            "cuMemPoolSetAccess",
            "cuMemPoolSetAttribute",
            "cuMemPrefetchAsync",
            "cuMemPrefetchBatchAsync",
            "cuMemRangeGetAttribute",
            "cuMemRangeGetAttributes",
            "cuMemSetAccess",
            "cuMemSetMemPool",
            "cuMipmappedArrayGetLevel",
            "cuMipmappedArrayGetMemoryRequirements",
            "cuMipmappedArrayGetSparseProperties",
            "cuPointerGetAttribute",
            "cuPointerGetAttributes",
            "cuPointerSetAttribute",
            "cuStreamAttachMemAsync",
        ],
        "adds no memory: addresses, access, attributes, and where managed memory is at the moment",
    ),
];
