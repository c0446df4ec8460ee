//! The green context over a tenant's SMs, made with the driver.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use partywall_shim_api::page::SmSet;

use crate::sys::{CUresult, CUstream};

/// A device, by its number.
pub(crate) type CUdevice = c_int;

/// A context: a pointer to what only the driver knows.
pub(super) type CUcontext = *mut c_void;

/// `CU_DEV_RESOURCE_TYPE_SM`.
const SM: c_uint = 1;
/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`: groups of two SMs, where the driver otherwise gives eight.
const SMALL_GROUPS: c_uint = 1;
/// The least number of SMs of a group; the driver rounds up to what the device can do. The node asks for the same.
const LEAST: c_uint = 2;
/// `CU_GREEN_CTX_DEFAULT_STREAM`, without which the driver makes none.
const DEFAULT_STREAM: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`, the only streams that `cuGreenCtxStreamCreate` makes.
const NON_BLOCKING: c_uint = 1;
/// More groups than any device has: a page that says more is wrong.
const GROUPS_MAX: usize = 1024;

/// `CUdevResource` of cuda.h: what it is of, the driver's own part, and the number of SMs with room for more.
#[derive(Clone, Copy)]
#[repr(C)]
struct Resource {
    kind: c_uint,
    internal: [u8; 92],
    sm_count: c_uint,
    rest: [u8; 44],
}

const _: () = assert!(size_of::<Resource>() == 144, "the size of CUdevResource in cuda.h");

impl Resource {
    const EMPTY: Self = Self { kind: 0, internal: [0; 92], sm_count: 0, rest: [0; 44] };
}

mod real {
    use super::{CUcontext, CUdevice, CUstream, Resource, c_int, c_uint, c_void};

    crate::real::functions! {
        fn cuDeviceGetDevResource(device: CUdevice, resource: *mut Resource, kind: c_uint);
        fn cuDevSmResourceSplitByCount(
            groups: *mut Resource, count: *mut c_uint, input: *const Resource, rest: *mut Resource, flags: c_uint, least: c_uint,
        );
        fn cuDevResourceGenerateDesc(description: *mut *mut c_void, resources: *mut Resource, count: c_uint);
        fn cuGreenCtxCreate(green: *mut *mut c_void, description: *mut c_void, device: CUdevice, flags: c_uint);
        fn cuGreenCtxDestroy(green: *mut c_void);
        fn cuGreenCtxStreamCreate(stream: *mut CUstream, green: *mut c_void, flags: c_uint, priority: c_int);
        fn cuCtxFromGreenCtx(context: *mut CUcontext, green: *mut c_void);
        fn cuCtxPushCurrent_v2(context: CUcontext);
        fn cuCtxPopCurrent_v2(context: *mut CUcontext);
        fn cuCtxSynchronize();
    }
}

/// Both views of the primary context.
#[derive(Debug, Clone, Copy)]
pub(super) struct Confined {
    /// The program's.
    pub(super) primary: CUcontext,
    /// That of the tenant's SMs.
    pub(super) green: CUcontext,
    /// The green context itself, which is no context to the driver's other functions.
    pub(super) handle: *mut c_void,
}

// SAFETY: handles, which are valid in every thread of the process.
unsafe impl Send for Confined {}
// SAFETY: as above; they never change.
unsafe impl Sync for Confined {}

/// Why there is no green context.
#[derive(Debug)]
pub(super) struct Refusal {
    /// What the program gets.
    pub(super) code: CUresult,
    what: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

fn check(result: CUresult, function: &str) -> Result<(), Refusal> {
    match result {
        CUresult::SUCCESS => Ok(()),
        code => Err(Refusal { code, what: format!("{function} returned {}; it needs CUDA 12.5", code.0) }),
    }
}

/// The green context of some groups of a device's SMs.
pub(super) fn make(device: CUdevice, primary: CUcontext, set: SmSet) -> Result<Confined, Refusal> {
    let mut groups = split(device)?;
    let chosen = usize::try_from(set.first).ok().zip(usize::try_from(set.groups).ok());
    let chosen = chosen.and_then(|(first, count)| groups.get_mut(first..first.checked_add(count)?));
    let chosen = chosen.filter(|groups| groups.iter().all(|group| group.sm_count == set.sms_per_group));
    let Some(chosen) = chosen else {
        let found = groups.first().map_or(0, |group| group.sm_count);
        let what = format!(
            "the node says groups {} to {} of {} SMs each; here are {} groups of {found}",
            set.first,
            set.first.saturating_add(set.groups).saturating_sub(1),
            set.sms_per_group,
            groups.len()
        );
        return Err(Refusal { code: CUresult::INVALID_RESOURCE_CONFIGURATION, what });
    };
    let mut description = ptr::null_mut();
    let count = chosen.len() as c_uint;
    // SAFETY: groups of one split, as many as said, and a place for the answer.
    let result = unsafe { real::cuDevResourceGenerateDesc(&raw mut description, chosen.as_mut_ptr(), count) };
    check(result, "cuDevResourceGenerateDesc")?;
    let mut handle = ptr::null_mut();
    // SAFETY: a place for the answer, and a description for this device.
    let result = unsafe { real::cuGreenCtxCreate(&raw mut handle, description, device, DEFAULT_STREAM) };
    check(result, "cuGreenCtxCreate")?;
    let mut green = ptr::null_mut();
    // SAFETY: a place for the answer, and the green context that was just made.
    let result = unsafe { real::cuCtxFromGreenCtx(&raw mut green, handle) };
    let confined = Confined { primary, green, handle };
    check(result, "cuCtxFromGreenCtx").inspect_err(|_| destroy(confined))?;
    Ok(confined)
}

/// All SMs of a device in the smallest groups that there are, the same in every process.
fn split(device: CUdevice) -> Result<Vec<Resource>, Refusal> {
    let mut all = Resource::EMPTY;
    // SAFETY: a place for the answer.
    check(unsafe { real::cuDeviceGetDevResource(device, &raw mut all, SM) }, "cuDeviceGetDevResource")?;
    let function = "cuDevSmResourceSplitByCount";
    let (mut count, none) = (0, ptr::null_mut());
    // SAFETY: only the number of groups is asked for.
    let result = unsafe {
        real::cuDevSmResourceSplitByCount(none, &raw mut count, &raw const all, none, SMALL_GROUPS, LEAST)
    };
    check(result, function)?;
    let mut groups = vec![Resource::EMPTY; (count as usize).min(GROUPS_MAX)];
    count = groups.len() as c_uint;
    let place = groups.as_mut_ptr();
    // SAFETY: room for as many groups as said; the rest that fits in none is not asked for.
    let result = unsafe {
        real::cuDevSmResourceSplitByCount(place, &raw mut count, &raw const all, none, SMALL_GROUPS, LEAST)
    };
    check(result, function)?;
    groups.truncate(count as usize);
    Ok(groups)
}

/// Destroys a green context. That it fails leaves it to the end of the process.
pub(super) fn destroy(confined: Confined) {
    // SAFETY: made by `make`; whoever calls this has made sure that nobody finds it any more.
    let _ = unsafe { real::cuGreenCtxDestroy(confined.handle) };
}

/// A stream in a green context.
pub(super) fn stream(confined: Confined) -> Option<CUstream> {
    let mut stream = CUstream(ptr::null_mut());
    // SAFETY: a place for the answer, and a green context that is alive.
    let result = unsafe { real::cuGreenCtxStreamCreate(&raw mut stream, confined.handle, NON_BLOCKING, 0) };
    (result == CUresult::SUCCESS).then_some(stream)
}

/// Does something while a view is current.
pub(super) fn within<T>(context: CUcontext, work: impl FnOnce() -> T) -> Result<T, CUresult> {
    // SAFETY: a context of this process; it is taken away again below.
    let pushed = unsafe { real::cuCtxPushCurrent_v2(context) };
    if pushed != CUresult::SUCCESS {
        return Err(pushed);
    }
    let result = work();
    let mut popped = ptr::null_mut();
    // SAFETY: a place for the answer. What is popped is what was pushed.
    let _ = unsafe { real::cuCtxPopCurrent_v2(&raw mut popped) };
    Ok(result)
}

/// Waits for one view.
pub(super) fn synchronize(context: CUcontext) -> CUresult {
    // SAFETY: no arguments.
    within(context, || unsafe { real::cuCtxSynchronize() }).unwrap_or_else(|refused| refused)
}
