//! Green contexts: parts of the device's SMs with streams of their own.
//!
//! The way there is prescribed by the driver: ask for the device's SMs, split them once into groups, and make a green context
//! from some of the groups. Any groups of *one* split can be united: tried on an H200 with CUDA 13.0, documented from CUDA
//! 12.5 on. So one split into the smallest groups, and a [`GroupSet`] that says which
//! of them, describe every part that can be had. The split is the same in every process on the same device, which is
//! how processes take parts that do not overlap; nothing checks that they do not.
//!
//! A green context is a view of the primary context: memory, modules and events are the primary context's and work in
//! both. Only streams belong to it. Kernels in its streams stay on its SMs.
//!
//! NVIDIA documents limits: a green context can be current to one thread at a time, calls to one green context from several
//! threads at once are not synchronized, and disjoint SMs do not promise that kernels run at the same time (streams
//! may share a hardware queue).

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use partywall_core::units::{Bytes, SmCount};

use crate::context::{Context, Current};
use crate::error::DriverError;
use crate::event::Event;
use crate::memory::{DeviceBuffer, PinnedBuffer};
use crate::module::Module;
use crate::stream::{Priority, Stream};
use crate::sys::{
    Api, CU_DEV_RESOURCE_TYPE_SM, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
    CU_GREEN_CTX_DEFAULT_STREAM, CUcontext, CUdevResource, CUdevResourceDesc, CUgreenCtx,
};

pub use self::groups::{GroupSet, GroupSetError, MAX_GROUPS};

mod groups;

/// The smallest group that any architecture has is asked for; the driver rounds up to what the device can do.
const SMALLEST: u32 = 2;

/// The device's SMs, split into groups of equal size.
#[derive(Clone)]
pub struct SmSplit {
    context: Context,
    groups: Arc<[CUdevResource]>,
    total: SmCount,
    per_group: SmCount,
}

impl fmt::Debug for SmSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (groups, each, total) = (self.groups.len(), self.per_group.0, self.total.0);
        write!(f, "SmSplit({groups} groups of {each} of {total} SMs)")
    }
}

impl SmSplit {
    /// The smallest groups that the device can do, without regard to which SMs can run a cluster together: 66 groups of
    /// 2 on an H200.
    pub(crate) fn smallest(context: &Context) -> Result<Self, DriverError> {
        Self::by_count(context, SMALLEST, true)
    }

    pub(crate) fn by_count(
        context: &Context,
        min_count: u32,
        ignore_coscheduling: bool,
    ) -> Result<Self, DriverError> {
        let api = context.api();
        let _entered = context.enter()?;
        let all = device_sms(context)?;
        let flags = if ignore_coscheduling { CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING } else { 0 };
        let split = api.cuDevSmResourceSplitByCount()?;
        let what = || {
            let hint = if ignore_coscheduling { " (small groups need CUDA 12.5 or later)" } else { "" };
            format!("splitting {} SMs into groups of {min_count}{hint}", all.sm.smCount)
        };
        let mut count = 0;
        // SAFETY: no groups are asked for, only their number, for which `count` is a valid place; `all` came from the driver.
        let code =
            unsafe { split(std::ptr::null_mut(), &mut count, &all, std::ptr::null_mut(), flags, min_count) };
        api.check(code, "cuDevSmResourceSplitByCount", what)?;
        let mut groups = vec![CUdevResource::EMPTY; count as usize];
        // SAFETY: `groups` has room for `count` groups; the rest that fits in no group is not asked for.
        let code =
            unsafe { split(groups.as_mut_ptr(), &mut count, &all, std::ptr::null_mut(), flags, min_count) };
        api.check(code, "cuDevSmResourceSplitByCount", what)?;
        groups.truncate(count as usize);
        let Some(first) = groups.first() else {
            return Err(DriverError::Invalid(format!(
                "{} SMs cannot be split into groups of {min_count}",
                all.sm.smCount
            )));
        };
        let per_group = SmCount(first.sm.smCount);
        Ok(Self {
            context: context.clone(),
            per_group,
            groups: groups.into(),
            total: SmCount(all.sm.smCount),
        })
    }

    /// How many groups there are, numbered from 0.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// SMs of each group.
    pub fn sms_per_group(&self) -> SmCount {
        self.per_group
    }

    /// SMs of the device. More than the groups together have, where some fit in no group.
    pub fn total_sms(&self) -> SmCount {
        self.total
    }

    /// A green context of some of the groups, in about a millisecond.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] for a group that there is not, [`DriverError::SymbolMissing`] before CUDA 12.4, or what the
    /// driver returned: 915, `CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION`, from drivers that cannot unite groups.
    pub fn green_context(&self, groups: &GroupSet) -> Result<GreenContext, DriverError> {
        let mut resources = Vec::with_capacity(groups.len());
        for group in groups.iter() {
            let Some(resource) = self.groups.get(group as usize) else {
                let last = self.groups.len() - 1;
                return Err(DriverError::Invalid(format!(
                    "there is no group {group} of SMs: this device has groups 0 to {last}, each of {} SMs",
                    self.per_group.0
                )));
            };
            resources.push(*resource);
        }
        let inner = GreenInner::create(&self.context, &mut resources, groups)?;
        let sms = inner.sms()?;
        Ok(GreenContext { inner: Arc::new(inner), groups: groups.clone(), sms, not_sync: PhantomData })
    }
}

/// A part of the device's SMs, with streams that stay on it.
///
/// May be sent to another thread, but is used by one at a time. Its streams may be used elsewhere; NVIDIA wants calls to one
/// green context from one thread at a time, so give each thread its own.
pub struct GreenContext {
    inner: Arc<GreenInner>,
    groups: GroupSet,
    sms: SmCount,
    not_sync: PhantomData<Cell<()>>,
}

impl fmt::Debug for GreenContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GreenContext({} SMs, groups {})", self.sms.0, self.groups)
    }
}

impl GreenContext {
    /// The primary context that it is a view of.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Its groups of the split it was made from.
    pub fn groups(&self) -> &GroupSet {
        &self.groups
    }

    /// Its SMs, as the driver reports them: normally groups times SMs per group.
    pub fn sms(&self) -> SmCount {
        self.sms
    }

    pub(crate) fn as_context(&self) -> CUcontext {
        self.inner.as_context
    }

    /// Makes it current on this thread, for code that uses the current context's default stream. Nothing in this crate
    /// needs it. While it is current, `cuCtxSynchronize` of such code waits for this green context only.
    ///
    /// # Errors
    /// What the driver returned; so for all the following.
    pub fn make_current(&self) -> Result<Current<'_>, DriverError> {
        Current::enter(&self.inner.context, self.inner.as_context)
    }

    /// Waits until everything in streams of this green context is done, and for nothing else: work that went to a stream of
    /// the primary context may still be running. See [`GreenContext::synchronize_both`].
    ///
    /// # Errors
    /// What the driver returned, also for faults of earlier work.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        self.inner.context.synchronize_current("waiting for a green context")
    }

    /// Waits for this green context and for the primary context.
    ///
    /// # Errors
    /// What the driver returned, also for faults of earlier work.
    pub fn synchronize_both(&self) -> Result<(), DriverError> {
        self.synchronize()?;
        self.inner.context.synchronize()
    }

    /// A stream whose kernels stay on this context's SMs. Copies do not use SMs.
    ///
    /// # Errors
    /// [`DriverError::SymbolMissing`] before CUDA 12.5, or what the driver returned.
    pub fn stream(&self, priority: Priority) -> Result<Stream, DriverError> {
        Stream::in_green(&self.inner, priority)
    }

    /// [`Context::event`] of the primary context.
    ///
    /// # Errors
    /// As there; so for all the following.
    pub fn event(&self, timing: bool) -> Result<Event, DriverError> {
        self.inner.context.event(timing)
    }

    /// [`Context::module`] of the primary context.
    ///
    /// # Errors
    /// As there.
    pub fn module(&self, ptx: &str) -> Result<Module, DriverError> {
        self.inner.context.module(ptx)
    }

    /// [`Context::alloc`] of the primary context.
    ///
    /// # Errors
    /// As there.
    pub fn alloc(&self, size: Bytes) -> Result<DeviceBuffer, DriverError> {
        self.inner.context.alloc(size)
    }

    /// [`Context::pinned`] of the primary context.
    ///
    /// # Errors
    /// As there.
    pub fn pinned(&self, size: Bytes) -> Result<PinnedBuffer, DriverError> {
        self.inner.context.pinned(size)
    }

    /// [`Context::memory_info`] of the primary context.
    ///
    /// # Errors
    /// As there.
    pub fn memory_info(&self) -> Result<(Bytes, Bytes), DriverError> {
        self.inner.context.memory_info()
    }
}

/// The driver's green context. Its streams own it too: it must outlive them.
pub(crate) struct GreenInner {
    context: Context,
    raw: CUgreenCtx,
    as_context: CUcontext,
}

impl GreenInner {
    fn create(
        context: &Context,
        resources: &mut [CUdevResource],
        groups: &GroupSet,
    ) -> Result<Self, DriverError> {
        let api = context.api();
        let (describe, create, convert) =
            (api.cuDevResourceGenerateDesc()?, api.cuGreenCtxCreate()?, api.cuCtxFromGreenCtx()?);
        let _entered = context.enter()?;
        let what = || {
            let hint = if groups.len() > 1 { " (uniting groups needs CUDA 12.5 or later)" } else { "" };
            format!("making a green context of the groups {groups}{hint}")
        };
        let mut desc = CUdevResourceDesc::NULL;
        // SAFETY: `resources` is an array of the given length, of groups that came from one split; `desc` is a valid place.
        let code = unsafe { describe(&mut desc, resources.as_mut_ptr(), resources.len() as u32) };
        api.check(code, "cuDevResourceGenerateDesc", what)?;
        let mut raw = CUgreenCtx::NULL;
        // SAFETY: `raw` is a valid place for the answer, and `desc` was just made for this device. (There is no call that
        // would free a description.)
        let code = unsafe { create(&mut raw, desc, context.device().raw, CU_GREEN_CTX_DEFAULT_STREAM) };
        api.check(code, "cuGreenCtxCreate", what)?;
        let mut green = Self { context: context.clone(), raw, as_context: CUcontext::NULL };
        // SAFETY: the green context is alive; the answer's place is valid. On an error `green` is destroyed.
        let code = unsafe { convert(&mut green.as_context, raw) };
        api.check(code, "cuCtxFromGreenCtx", what)?;
        Ok(green)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn raw(&self) -> CUgreenCtx {
        self.raw
    }

    fn sms(&self) -> Result<SmCount, DriverError> {
        let api: &Api = self.context.api();
        let ask = api.cuGreenCtxGetDevResource()?;
        let _entered = self.context.enter()?;
        let mut resource = CUdevResource::EMPTY;
        // SAFETY: the green context is alive; `resource` is a valid place for the answer.
        let code = unsafe { ask(self.raw, &mut resource, CU_DEV_RESOURCE_TYPE_SM) };
        api.check(code, "cuGreenCtxGetDevResource", || "asking for the SMs of a green context".into())?;
        Ok(SmCount(resource.sm.smCount))
    }
}

impl Drop for GreenInner {
    fn drop(&mut self) {
        let Ok(destroy) = self.context.api().cuGreenCtxDestroy() else { return };
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: this is the only owner; its streams owned it too, so they are destroyed already, as the driver demands.
        let _ = unsafe { destroy(self.raw) };
    }
}

/// All SMs of the device.
fn device_sms(context: &Context) -> Result<CUdevResource, DriverError> {
    let api = context.api();
    let ask = api.cuDeviceGetDevResource()?;
    let mut all = CUdevResource::EMPTY;
    // SAFETY: `all` is a valid place for the answer.
    let code = unsafe { ask(context.device().raw, &mut all, CU_DEV_RESOURCE_TYPE_SM) };
    api.check(code, "cuDeviceGetDevResource", || "asking for the device's SMs".into())?;
    Ok(all)
}
