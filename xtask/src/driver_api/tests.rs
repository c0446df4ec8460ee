use super::*;

/// What cuda.h looks like, in small.
const HEADER: &str = "\
#if defined(_WIN32)
#define CUDAAPI __stdcall
#else
#define CUDAAPI
#endif
#define cuMemAlloc cuMemAlloc_v2 /* the newest */
#define cuMemcpy   __CUDA_API_PTDS(cuMemcpy)
#define cuStreamWait __CUDA_API_PTSZ(cuStreamWait_v2)
#define CU_LIMIT 12
#define cuOdd cuMemAlloc_v2 + 1
/** Says that ::cuComment(
 *  CUresult CUDAAPI cuCommentToo(int);
 */
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize); // CUresult CUDAAPI cuTail(void);
CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
__CUDA_DEPRECATED CUresult CUDAAPI cuStreamWait(CUstream stream);
#ifdef _WIN32
CUresult CUDAAPI cuWindows(void);
#endif
#ifndef _WIN32
CUresult CUDAAPI cuElsewhere(void);
#endif
typedef void (CUDAAPI *CUcallback)(void *data);
static inline CUresult cuMemAlloc_v2_ptsz(void) { return cuMemAlloc_v2(0, 0); }
";

const TYPES: &str = "\
#define PFN_cuMemAlloc  PFN_cuMemAlloc_v3020
typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)(CUdeviceptr_v2 *dptr, size_t bytesize);
typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v2000)(CUdeviceptr_v1 *dptr, unsigned int bytesize);
typedef CUresult (CUDAAPI *PFN_cuMemcpy_v4000)(CUdeviceptr_v2 dst, CUdeviceptr_v2 src, size_t ByteCount);
typedef CUresult (CUDAAPI *PFN_cuMemcpy_v7000_ptds)(CUdeviceptr_v2 dst, CUdeviceptr_v2 src, size_t ByteCount);
typedef CUresult (CUDAAPI *PFN_cuStreamWait_v2000)(CUstream stream);
typedef CUresult (CUDAAPI *PFN_cuStreamWait_v11000)(CUstream stream);
typedef CUresult (CUDAAPI *PFN_cuStreamWait_v11000_ptsz)(CUstream stream);
typedef CUresult (CUDAAPI *PFN_cuElsewhere_v5000)(void);
typedef CUresult (CUDAAPI *PFN_cuProfilerStop_v4000)(void);
";

#[test]
fn every_version_and_variant_has_a_row() {
    let list = cuda_list(&rows(HEADER, TYPES).unwrap());
    let rows: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        "cuElsewhere\tcuElsewhere\t5000\t-",
        "cuMemAlloc\tcuMemAlloc\t2000\t-",
        "cuMemAlloc_v2\tcuMemAlloc\t3020\t-",
        "cuMemcpy\tcuMemcpy\t4000\t-",
        "cuMemcpy_ptds\tcuMemcpy\t7000\tptds",
        "cuProfilerStop\tcuProfilerStop\t4000\t-",
        "cuStreamWait\tcuStreamWait\t2000\t-",
        "cuStreamWait_v2\tcuStreamWait\t11000\t-",
        "cuStreamWait_v2_ptsz\tcuStreamWait\t11000\tptsz",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn headers_that_do_not_agree_are_refused() {
    let error = rows(HEADER, &TYPES.replace("PFN_cuMemAlloc_v2000", "PFN_cuOther_v2000")).unwrap_err();
    assert_eq!(error.to_string(), "cuMemAlloc (-): 1 types for [\"cuMemAlloc\", \"cuMemAlloc_v2\"]");
    let more = format!("{TYPES}typedef int (*PFN_cuProfilerStop_v4010)(void);\n");
    let error = rows(HEADER, &more).unwrap_err();
    assert_eq!(error.to_string(), "cuProfilerStop (-): types {4000, 4010} without a declaration");
}

#[test]
fn nvml_exports_a_name_and_what_it_is_renamed_to() {
    let header = "\
#define nvmlInit nvmlInit_v2
#define nvmlFlagDefault 0x00
#define nvmlOldCount nvmlNewCount
nvmlReturn_t DECLDIR nvmlInit_v2(void);
nvmlReturn_t DECLDIR nvmlShutdown(void);
nvmlReturn_t DECLDIR nvmlNewCount(unsigned int *count);
";
    let names = nvml_names(header);
    let expected = ["nvmlInit", "nvmlInit_v2", "nvmlNewCount", "nvmlOldCount", "nvmlShutdown"];
    assert!(names.iter().map(String::as_str).eq(expected), "{names:?}");
}

#[test]
fn names_come_apart() {
    assert_eq!(parts("cuMemcpy2D_v2_ptds"), ("cuMemcpy2D", 2, "ptds"));
    assert_eq!(parts("cuInit"), ("cuInit", 1, "-"));
    assert_eq!(parts("cuLaunchKernel_ptsz"), ("cuLaunchKernel", 1, "ptsz"));
    assert_eq!(parts("cu_very_odd"), ("cu_very_odd", 1, "-"));
}

#[test]
fn comments_go_and_code_stays() {
    assert_eq!(without_comments("a / b /* c\nd */ e // f\ng /* open"), "a / b   e \ng  ");
}
