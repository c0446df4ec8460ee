//! The driver API as a program sees it: by `dlsym` on what `libcuda.so.1` opens to.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::transmute;

use libloading::Library;

/// Memory that there is no more of.
pub(crate) const OUT_OF_MEMORY: u32 = 2;

/// Makes a table of functions.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the names are the driver's")]
        pub(crate) struct Cuda {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Cuda {
            /// The driver that a name or a path opens to.
            pub(crate) fn open(library: &str) -> Self {
                // SAFETY: the library under test, or the simulated driver.
                let library = Box::leak(Box::new(unsafe { Library::new(library) }.unwrap()));
                Self {
                    $($name: {
                        // SAFETY: cuda.h has these prototypes.
                        let found = unsafe { library.get::<*const c_void>(concat!(stringify!($name), "\0").as_bytes()) };
                        // SAFETY: as above; a function pointer of any type has the size of an address.
                        unsafe { transmute::<*const c_void, unsafe extern "C" fn($($argument),*) -> u32>(*found.unwrap()) }
                    },)*
                }
            }
        }
    };
}

pub(crate) type Handle = *mut c_void;

functions! {
    cuInit(c_uint);
    cuCtxGetDevResource(Handle, *mut c_void, c_uint);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuCtxCreate_v2(*mut Handle, c_uint, c_int);
    cuCtxDestroy_v2(Handle);
    cuCtxGetCurrent(*mut Handle);
    cuCtxSetCurrent(Handle);
    cuCtxSynchronize();
    cuCtxPushCurrent_v2(Handle);
    cuCtxPopCurrent_v2(*mut Handle);
    cuDeviceGetAttribute(*mut c_int, c_uint, c_int);
    cuDevicePrimaryCtxReset_v2(c_int);
    cuStreamCreate(*mut Handle, c_uint);
    cuStreamGetCtx(Handle, *mut Handle);
    cuStreamBeginCapture_v2(Handle, c_uint);
    cuStreamEndCapture(Handle, *mut Handle);
    cuModuleLoadData(*mut Handle, *const c_void);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuMemsetD32_v2(u64, c_uint, usize);
    cuMemcpyDtoH_v2(*mut c_void, u64, usize);
    cuLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemAllocPitch_v2(*mut u64, *mut usize, usize, usize, c_uint);
    cuMemAllocManaged(*mut u64, usize, c_uint);
    cuMemFree_v2(u64);
    cuMemAllocHost_v2(*mut *mut c_void, usize);
    cuMemFreeHost(*mut c_void);
    cuArray3DCreate_v2(*mut Handle, *const [usize; 5]);
    cuArrayDestroy(Handle);
    cuMemCreate(*mut u64, usize, *const [u64; 4], u64);
    cuMemRelease(u64);
    cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
    cuMemAddressFree(u64, usize);
    cuMemMap(u64, usize, usize, u64, u64);
    cuMemUnmap(u64, usize);
    cuMemAllocAsync(*mut u64, usize, Handle);
    cuMemAllocFromPoolAsync(*mut u64, usize, Handle, Handle);
    cuMemFreeAsync(u64, Handle);
    cuMemPoolCreate(*mut Handle, *const [u64; 11]);
    cuMemPoolDestroy(Handle);
    cuGraphCreate(*mut Handle, c_uint);
    cuGraphAddMemAllocNode(*mut Handle, Handle, *const Handle, usize, *mut [u64; 15]);
    cuGraphAddMemFreeNode(*mut Handle, Handle, *const Handle, usize, u64);
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    cuGraphLaunch(Handle, Handle);
    cuGraphExecDestroy(Handle);
    cuGraphDestroy(Handle);
}

/// Says which call failed.
pub(crate) fn ok(result: u32) {
    assert_eq!(result, 0, "a call of the driver failed");
}
