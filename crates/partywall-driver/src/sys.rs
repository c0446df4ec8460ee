//! The CUDA driver API as it is in memory: hand-written declarations of what this crate calls, and one list from
//! which the table of functions is made.
//!
//! Signatures, values and layouts were compared by a compiler with `cuda.h` of CUDA 12.4 and of CUDA 13.0. The names
//! are those that the library exports (`cuMemAlloc_v2`), not those of the C macros in front of them (`cuMemAlloc`).
//! Where an export has several versions, the oldest that does what is needed is taken, so that one list serves every
//! driver from 12.4 on. Anything the driver returns is an integer here and never a Rust enum: a newer driver may return
//! values that this crate has not heard of.
#![allow(non_snake_case, reason = "fields are called what the driver exports, so that errors can name it")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::error::DriverError;
use crate::library::CudaVersion;

/// What every call returns; 0 is success. (An `enum` in C, which compilers make an `unsigned int`.)
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CUresult(pub(crate) u32);

impl CUresult {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const NOT_READY: Self = Self(600);
}

// Green contexts and unified addresses need 64 bits, and so do the casts between `usize` and `u64` in this crate.
const _: () = assert!(size_of::<usize>() == 8);

/// A device, by the number the driver gave it.
pub(crate) type CUdevice = c_int;
/// An address in device memory, or in pinned host memory as the device sees it.
pub(crate) type CUdeviceptr = c_ulonglong;
/// Physical memory made by `cuMemCreate`.
pub(crate) type CUmemGenericAllocationHandle = c_ulonglong;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) *mut c_void);

        impl $name {
            /// No object.
            pub(crate) const NULL: Self = Self(std::ptr::null_mut());
        }

        // SAFETY: a handle is a token that this crate only ever hands back to the driver, which may be called from any
        // thread (the pointer is never followed here). Which *objects* may be used from several threads at once is
        // decided by the types that own handles.
        unsafe impl Send for $name {}
        // SAFETY: as for `Send`: a shared token can only be copied.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// A context: the primary one of a device, or a green context seen as one.
    CUcontext;
    /// A green context.
    CUgreenCtx;
    /// What a green context shall have.
    CUdevResourceDesc;
    /// Loaded code.
    CUmodule;
    /// A kernel of a module.
    CUfunction;
    /// A stream.
    CUstream;
    /// An event.
    CUevent;
    /// A graph as captured.
    CUgraph;
    /// A graph ready to launch.
    CUgraphExec;
    /// A node of a graph.
    CUgraphNode;
    /// Kernels that belong to no context.
    CUlibrary;
    /// A kernel of a library.
    CUkernel;
}

/// The bytes of a UUID.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CUuuid {
    pub(crate) bytes: [u8; 16],
}

/// SMs of a [`CUdevResource`]. Drivers before CUDA 13.0 write the first field only.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CUdevSmResource {
    pub(crate) smCount: c_uint,
    pub(crate) minSmPartitionSize: c_uint,
    pub(crate) smCoscheduledAlignment: c_uint,
    /// The rest of the 48 bytes that the ABI keeps for every kind of resource.
    pub(crate) oversize: [u8; 36],
}

/// A resource that a green context can have. The driver's own part in the middle must be kept as it is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CUdevResource {
    /// [`CU_DEV_RESOURCE_TYPE_SM`] here; 0 is invalid.
    pub(crate) kind: c_uint,
    pub(crate) internal: [u8; 92],
    pub(crate) sm: CUdevSmResource,
}

impl CUdevResource {
    /// An invalid resource, for the driver to overwrite.
    pub(crate) const EMPTY: Self = Self {
        kind: 0,
        internal: [0; 92],
        sm: CUdevSmResource {
            smCount: 0,
            minSmPartitionSize: 0,
            smCoscheduledAlignment: 0,
            oversize: [0; 36],
        },
    };
}

/// Where memory is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CUmemLocation {
    /// [`CU_MEM_LOCATION_TYPE_DEVICE`] here.
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

/// What memory `cuMemCreate` shall make.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CUmemAllocationProp {
    /// [`CU_MEM_ALLOCATION_TYPE_PINNED`] here.
    pub(crate) kind: c_uint,
    /// 0: the memory is not shared with another process; or [`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`].
    pub(crate) requestedHandleTypes: c_uint,
    pub(crate) location: CUmemLocation,
    pub(crate) win32HandleMetaData: *mut c_void,
    pub(crate) compressionType: u8,
    pub(crate) gpuDirectRDMACapable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// Who may access mapped memory, and how.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CUmemAccessDesc {
    pub(crate) location: CUmemLocation,
    /// [`CU_MEM_ACCESS_FLAGS_PROT_READ`] or [`CU_MEM_ACCESS_FLAGS_PROT_READWRITE`].
    pub(crate) flags: c_uint,
}

/// `CUDA_KERNEL_NODE_PARAMS` of CUDA 12.0 and later: what a kernel node of a graph launches.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelNodeParams {
    pub(crate) func: CUfunction,
    pub(crate) gridDim: [c_uint; 3],
    pub(crate) blockDim: [c_uint; 3],
    pub(crate) sharedMemBytes: c_uint,
    pub(crate) kernelParams: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
    /// Only looked at where `func` is null.
    pub(crate) kern: CUkernel,
    /// The same; null is the current context.
    pub(crate) ctx: CUcontext,
}

/// `CUgraphExecUpdateResultInfo`: what kept an executable graph from being updated.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct GraphUpdate {
    pub(crate) result: c_uint,
    pub(crate) errorNode: CUgraphNode,
    pub(crate) errorFromNode: CUgraphNode,
}

impl GraphUpdate {
    /// Nothing, for the driver to overwrite.
    pub(crate) const EMPTY: Self =
        Self { result: 0, errorNode: CUgraphNode::NULL, errorFromNode: CUgraphNode::NULL };
}

const _: () = assert!(size_of::<GraphUpdate>() == 24, "the size of CUgraphExecUpdateResultInfo in cuda.h");

const _: () =
    assert!(size_of::<KernelNodeParams>() == 72, "the size of CUDA_KERNEL_NODE_PARAMS_v2 in cuda.h");

/// How many SMs a context may use.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CUexecAffinityParam {
    /// [`CU_EXEC_AFFINITY_TYPE_SM_COUNT`] here.
    pub(crate) kind: c_uint,
    pub(crate) smCount: c_uint,
}

pub(crate) const CU_DEV_RESOURCE_TYPE_SM: c_uint = 1;
pub(crate) const CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING: c_uint = 1;
pub(crate) const CU_GREEN_CTX_DEFAULT_STREAM: c_uint = 1;
pub(crate) const CU_STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const CU_EVENT_DEFAULT: c_uint = 0;
pub(crate) const CU_EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const CU_EVENT_WAIT_DEFAULT: c_uint = 0;
pub(crate) const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: c_uint = 1;
pub(crate) const CU_STREAM_CAPTURE_MODE_RELAXED: c_uint = 2;
pub(crate) const CU_JIT_ERROR_LOG_BUFFER: c_uint = 5;
pub(crate) const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;
pub(crate) const CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: c_uint = 8;
pub(crate) const CU_MEMHOSTALLOC_DEVICEMAP: c_uint = 2;
pub(crate) const CU_MEM_LOCATION_TYPE_DEVICE: c_uint = 1;
pub(crate) const CU_MEM_ALLOCATION_TYPE_PINNED: c_uint = 1;
pub(crate) const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_uint = 1;
pub(crate) const CU_MEM_ALLOC_GRANULARITY_MINIMUM: c_uint = 0;
pub(crate) const CU_MEM_ACCESS_FLAGS_PROT_READ: c_uint = 1;
pub(crate) const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_uint = 3;
pub(crate) const CU_EXEC_AFFINITY_TYPE_SM_COUNT: c_uint = 0;

/// Makes the table of functions from the one list below. What is `required` is in every driver from CUDA 12.4 on, and
/// loading fails without it. What is `optional` came later or is missing from partial drivers (Jetson, stand-ins); the
/// version says from which CUDA on a complete driver has it.
macro_rules! functions {
    (
        required { $($name:ident($($arg:ty),* $(,)?);)* }
        optional { $($later:ident since ($major:literal, $minor:literal) ($($later_arg:ty),* $(,)?);)* }
    ) => {
        /// The functions of the driver's library.
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> CUresult,)*
            $(pub(crate) $later: Option<unsafe extern "C" fn($($later_arg),*) -> CUresult>,)*
            /// The newest CUDA that the driver supports.
            pub(crate) version: CudaVersion,
        }

        impl Api {
            /// Looks every name up. `version` is the driver's and only goes into messages.
            ///
            /// # Errors
            /// [`DriverError::SymbolMissing`] with the first required name that the library does not have.
            ///
            /// # Safety
            /// Where `library` has one of these names, it must be the CUDA driver's function of that name, and the
            /// library must stay loaded for as long as the table is used.
            pub(crate) unsafe fn resolve(
                library: &libloading::Library,
                version: CudaVersion,
            ) -> Result<Self, DriverError> {
                Ok(Self {
                    $($name: {
                        // SAFETY: by this function's contract the symbol is the driver's function of this name, and
                        // the type is the one that cuda.h declares for it.
                        match unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) } {
                            Ok(symbol) => *symbol,
                            Err(_) => {
                                return Err(DriverError::symbol_missing(stringify!($name), version, CudaVersion::OLDEST));
                            }
                        }
                    },)*
                    $($later: {
                        // SAFETY: as above.
                        unsafe { library.get(concat!(stringify!($later), "\0").as_bytes()) }.ok().map(|symbol| *symbol)
                    },)*
                    version,
                })
            }

            $(
                /// The function, or an error that says which driver has it.
                pub(crate) fn $later(
                    &self,
                ) -> Result<unsafe extern "C" fn($($later_arg),*) -> CUresult, DriverError> {
                    let since = CudaVersion::new($major, $minor);
                    self.$later.ok_or_else(|| DriverError::symbol_missing(stringify!($later), self.version, since))
                }
            )*
        }

        /// All names of the list, for tests.
        #[cfg(test)]
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name),)* $(stringify!($later),)*];
    };
}

functions! {
    required {
        cuInit(c_uint);
        cuGetErrorName(CUresult, *mut *const c_char);
        cuGetErrorString(CUresult, *mut *const c_char);

        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDeviceGetAttribute(*mut c_int, c_uint, CUdevice);
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);

        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuCtxPushCurrent_v2(CUcontext);
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuCtxGetCurrent(*mut CUcontext);
        cuCtxSynchronize();
        cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);

        cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
        cuStreamDestroy_v2(CUstream);
        cuStreamSynchronize(CUstream);
        cuStreamQuery(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuStreamGetPriority(CUstream, *mut c_int);
        cuStreamBeginCapture_v2(CUstream, c_uint);
        cuStreamEndCapture(CUstream, *mut CUgraph);

        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuEventQuery(CUevent);
        cuEventSynchronize(CUevent);
        cuEventElapsedTime(*mut f32, CUevent, CUevent);

        cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuFuncSetAttribute(CUfunction, c_uint, c_int);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, CUfunction, c_int, usize);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
            *mut *mut c_void,
        );

        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
        cuMemsetD32Async(CUdeviceptr, c_uint, usize, CUstream);

        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        cuGraphUpload(CUgraphExec, CUstream);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuGraphExecDestroy(CUgraphExec);
        cuGraphDestroy(CUgraph);

        cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, c_uint);
        cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
        cuMemRelease(CUmemGenericAllocationHandle);
        cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        cuMemAddressFree(CUdeviceptr, usize);
        cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        cuMemUnmap(CUdeviceptr, usize);
        cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    }
    optional {
        cuMemExportToShareableHandle since (10, 2) (
            *mut c_void, CUmemGenericAllocationHandle, c_uint, c_ulonglong,
        );
        cuMemImportFromShareableHandle since (10, 2) (*mut CUmemGenericAllocationHandle, *mut c_void, c_uint);
        cuCtxGetExecAffinity since (11, 4) (*mut CUexecAffinityParam, c_uint);
        cuCtxSetCurrent since (4, 0) (CUcontext);
        cuGraphClone since (10, 0) (*mut CUgraph, CUgraph);
        cuGraphGetNodes since (10, 0) (CUgraph, *mut CUgraphNode, *mut usize);
        cuGraphKernelNodeSetParams_v2 since (12, 0) (CUgraphNode, *const KernelNodeParams);
        cuGraphExecUpdate_v2 since (12, 0) (CUgraphExec, CUgraph, *mut GraphUpdate);
        cuGraphExecKernelNodeSetParams_v2 since (12, 0) (CUgraphExec, CUgraphNode, *const KernelNodeParams);
        cuLibraryLoadData since (12, 0) (
            *mut CUlibrary, *const c_void, *mut c_uint, *mut *mut c_void, c_uint, *mut c_uint, *mut *mut c_void, c_uint,
        );
        cuLibraryUnload since (12, 0) (CUlibrary);
        cuLibraryGetKernel since (12, 0) (*mut CUkernel, CUlibrary, *const c_char);
        cuFuncLoad since (12, 4) (CUfunction);
        cuFuncGetParamInfo since (12, 4) (CUfunction, usize, *mut usize, *mut usize);
        cuDeviceGetDevResource since (12, 4) (CUdevice, *mut CUdevResource, c_uint);
        cuCtxGetDevResource since (12, 4) (CUcontext, *mut CUdevResource, c_uint);
        cuGreenCtxGetDevResource since (12, 4) (CUgreenCtx, *mut CUdevResource, c_uint);
        cuDevSmResourceSplitByCount since (12, 4) (
            *mut CUdevResource, *mut c_uint, *const CUdevResource, *mut CUdevResource, c_uint, c_uint,
        );
        cuDevResourceGenerateDesc since (12, 4) (*mut CUdevResourceDesc, *mut CUdevResource, c_uint);
        cuGreenCtxCreate since (12, 4) (*mut CUgreenCtx, CUdevResourceDesc, CUdevice, c_uint);
        cuGreenCtxDestroy since (12, 4) (CUgreenCtx);
        cuCtxFromGreenCtx since (12, 4) (*mut CUcontext, CUgreenCtx);
        cuGreenCtxStreamCreate since (12, 5) (*mut CUstream, CUgreenCtx, c_uint, c_int);
    }
}

#[cfg(test)]
mod tests;
