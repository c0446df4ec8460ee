//! The layouts, against sizes and offsets that a C compiler printed for cuda.h of CUDA 12.4 and 13.0 on x86-64.

use std::mem::{align_of, offset_of, size_of};

use super::*;

#[test]
fn layouts_are_those_of_the_c_header() {
    assert_eq!((size_of::<CUresult>(), align_of::<CUresult>()), (4, 4));
    assert_eq!(size_of::<CUcontext>(), size_of::<*mut c_void>());
    assert_eq!((size_of::<CUuuid>(), align_of::<CUuuid>()), (16, 1));
    assert_eq!(size_of::<CUdeviceptr>(), 8);

    assert_eq!((size_of::<CUdevResource>(), align_of::<CUdevResource>()), (144, 4));
    assert_eq!(offset_of!(CUdevResource, kind), 0);
    assert_eq!(offset_of!(CUdevResource, internal), 4);
    assert_eq!(offset_of!(CUdevResource, sm), 96);
    assert_eq!(size_of::<CUdevSmResource>(), 48);
    assert_eq!(offset_of!(CUdevSmResource, smCount), 0);
    assert_eq!(offset_of!(CUdevSmResource, minSmPartitionSize), 4);
    assert_eq!(offset_of!(CUdevSmResource, smCoscheduledAlignment), 8);

    assert_eq!((size_of::<CUmemLocation>(), align_of::<CUmemLocation>()), (8, 4));
    assert_eq!(offset_of!(CUmemLocation, id), 4);
    assert_eq!((size_of::<CUmemAllocationProp>(), align_of::<CUmemAllocationProp>()), (32, 8));
    assert_eq!(offset_of!(CUmemAllocationProp, kind), 0);
    assert_eq!(offset_of!(CUmemAllocationProp, requestedHandleTypes), 4);
    assert_eq!(offset_of!(CUmemAllocationProp, location), 8);
    assert_eq!(offset_of!(CUmemAllocationProp, win32HandleMetaData), 16);
    assert_eq!(offset_of!(CUmemAllocationProp, compressionType), 24);
    assert_eq!(offset_of!(CUmemAllocationProp, gpuDirectRDMACapable), 25);
    assert_eq!(offset_of!(CUmemAllocationProp, usage), 26);
    assert_eq!(offset_of!(CUmemAllocationProp, reserved), 28);

    assert_eq!((size_of::<CUmemAccessDesc>(), align_of::<CUmemAccessDesc>()), (12, 4));
    assert_eq!(offset_of!(CUmemAccessDesc, flags), 8);
    assert_eq!((size_of::<CUexecAffinityParam>(), align_of::<CUexecAffinityParam>()), (8, 4));
    assert_eq!(offset_of!(CUexecAffinityParam, smCount), 4);
}

#[test]
fn optional_functions_are_pointers_that_may_be_null() {
    type Call = unsafe extern "C" fn(CUgreenCtx) -> CUresult;
    assert_eq!(size_of::<Option<Call>>(), size_of::<*mut c_void>());
}

#[test]
fn names_are_listed_once() {
    let mut names = NAMES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), NAMES.len());
}
