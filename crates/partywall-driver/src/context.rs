//! The primary context of a device: memory, code and events of this process live in it.
//!
//! A context is *current* or not on each thread, and most driver calls act on the current one. Nothing here relies on what
//! callers made current: every call makes its context current for its own duration where it is not already (finding out
//! takes some nanoseconds), so handles can be used and dropped on any thread. [`Context::make_current`] only saves
//! the change back and forth.

use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use partywall_core::units::{Bytes, SmCount};

use crate::device::Device;
use crate::error::DriverError;
use crate::event::Event;
use crate::memory::{DeviceBuffer, PinnedBuffer};
use crate::module::Module;
use crate::stream::{Priority, Stream};
use crate::sys::{
    Api, CU_DEV_RESOURCE_TYPE_SM, CU_EXEC_AFFINITY_TYPE_SM_COUNT, CUcontext, CUdevResource,
    CUexecAffinityParam, CUresult,
};

/// The primary context of a device, retained. Cheap to clone; everything made in it keeps it alive.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: CUcontext,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: releases the one reference that `retain` took. Everything made in the context holds an `Arc` of this,
        // so nothing of ours is left in it. An error (the process is ending, or a fault) leaves nothing to do.
        let _ = unsafe { (self.device.cuda.api.cuDevicePrimaryCtxRelease_v2)(self.device.raw) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.inner.device.ordinal).finish_non_exhaustive()
    }
}

/// A context is current on this thread until this is dropped. Drop such values in the reverse order of their making.
#[must_use = "the context stops being current when this is dropped"]
#[derive(Debug)]
pub struct Current<'a> {
    _entered: Entered<'a>,
}

impl<'a> Current<'a> {
    /// `raw` is the context's own or that of a green context of its device, which is borrowed for as long.
    pub(crate) fn enter(context: &'a Context, raw: CUcontext) -> Result<Self, DriverError> {
        Ok(Self { _entered: context.push(raw)? })
    }
}

impl Context {
    pub(crate) fn retain(device: &Device) -> Result<Self, DriverError> {
        let api = &device.cuda.api;
        let mut raw = CUcontext::NULL;
        // SAFETY: `raw` is a valid place for the answer.
        let code = unsafe { (api.cuDevicePrimaryCtxRetain)(&mut raw, device.raw) };
        api.check(code, "cuDevicePrimaryCtxRetain", || {
            format!("making the primary context of device {}", device.ordinal)
        })?;
        Ok(Self { inner: Arc::new(Inner { device: device.clone(), raw }) })
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Makes it current on this thread, which saves time in calls made before the result is dropped.
    ///
    /// # Errors
    /// What the driver returned; so for all the following.
    pub fn make_current(&self) -> Result<Current<'_>, DriverError> {
        Current::enter(self, self.inner.raw)
    }

    /// Waits until everything submitted to this context is done. From CUDA 12.5 on this is documented to cover the green
    /// contexts of the device as well; with an older driver synchronize those too.
    ///
    /// # Errors
    /// What the driver returned, also for faults of earlier work.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let _entered = self.enter()?;
        self.synchronize_current("waiting for the primary context")
    }

    /// A stream. It does not wait for the default stream.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn stream(&self, priority: Priority) -> Result<Stream, DriverError> {
        Stream::in_primary(self, priority)
    }

    /// An event; with `timing`, one that remembers when it happened (which costs a little more).
    ///
    /// # Errors
    /// What the driver returned.
    pub fn event(&self, timing: bool) -> Result<Event, DriverError> {
        Event::create(self, timing)
    }

    /// Loads PTX, compiling it for this GPU.
    ///
    /// # Errors
    /// What the driver returned, with the compiler's log; [`DriverError::Invalid`] for text with a zero byte.
    pub fn module(&self, ptx: &str) -> Result<Module, DriverError> {
        Module::load(self, ptx)
    }

    /// Device memory. Its contents are undefined.
    ///
    /// # Errors
    /// What the driver returned ([`DriverError::is_out_of_memory`]); [`DriverError::Invalid`] for no bytes.
    pub fn alloc(&self, size: Bytes) -> Result<DeviceBuffer, DriverError> {
        DeviceBuffer::alloc(self, size)
    }

    /// Pinned host memory, zeroed, that the device can copy from and to and that kernels can access.
    ///
    /// # Errors
    /// As [`Context::alloc`].
    pub fn pinned(&self, size: Bytes) -> Result<PinnedBuffer, DriverError> {
        PinnedBuffer::alloc(self, size)
    }

    /// Free and total device memory, in that order.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn memory_info(&self) -> Result<(Bytes, Bytes), DriverError> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both are valid places for the answer.
        let code = unsafe { (self.api().cuMemGetInfo_v2)(&mut free, &mut total) };
        self.api().check(code, "cuMemGetInfo_v2", || "asking for free memory".into())?;
        Ok((Bytes(free as u64), Bytes(total as u64)))
    }

    /// The SMs that kernels of this context use.
    ///
    /// # Errors
    /// [`DriverError::SymbolMissing`], or what the driver returned.
    pub fn sms(&self) -> Result<SmCount, DriverError> {
        let ask = self.api().cuCtxGetDevResource()?;
        let mut resource = CUdevResource::EMPTY;
        // SAFETY: the context is alive; `resource` is a valid place for the answer.
        let code = unsafe { ask(self.raw(), &mut resource, CU_DEV_RESOURCE_TYPE_SM) };
        self.api().check(code, "cuCtxGetDevResource", || "asking for the SMs of a context".into())?;
        Ok(SmCount(resource.sm.smCount))
    }

    /// The SMs that execution affinity (an MPS percentage per context) leaves to this context.
    ///
    /// # Errors
    /// [`DriverError::SymbolMissing`], or what the driver returned (224 where affinity is not supported).
    pub fn affinity_sms(&self) -> Result<SmCount, DriverError> {
        let call = self.api().cuCtxGetExecAffinity()?;
        let _entered = self.enter()?;
        let mut affinity = CUexecAffinityParam { kind: CU_EXEC_AFFINITY_TYPE_SM_COUNT, smCount: 0 };
        // SAFETY: `affinity` is a valid place for the answer.
        let code = unsafe { call(&mut affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT) };
        self.api().check(code, "cuCtxGetExecAffinity", || "asking for the SMs of the context".into())?;
        Ok(SmCount(affinity.smCount))
    }

    pub(crate) fn raw(&self) -> CUcontext {
        self.inner.raw
    }

    pub(crate) fn api(&self) -> &Api {
        &self.inner.device.cuda.api
    }

    /// Makes the primary context current until the result is dropped; does nothing where it is current already.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DriverError> {
        let api = self.api();
        let mut current = CUcontext::NULL;
        // SAFETY: `current` is a valid place for the answer.
        let code = unsafe { (api.cuCtxGetCurrent)(&mut current) };
        api.check(code, "cuCtxGetCurrent", || "asking for the current context".into())?;
        if current == self.inner.raw {
            return Ok(Entered { api, pushed: false, not_send: PhantomData });
        }
        self.push(self.inner.raw)
    }

    /// Makes a context of this device (this one, or a green one) current until the result is dropped.
    pub(crate) fn push(&self, raw: CUcontext) -> Result<Entered<'_>, DriverError> {
        let api = self.api();
        // SAFETY: `raw` is this context, or a green context that the caller keeps alive.
        let code = unsafe { (api.cuCtxPushCurrent_v2)(raw) };
        api.check(code, "cuCtxPushCurrent_v2", || "making the context current".into())?;
        Ok(Entered { api, pushed: true, not_send: PhantomData })
    }

    /// Waits for whichever context is current.
    pub(crate) fn synchronize_current(&self, what: &str) -> Result<(), DriverError> {
        // SAFETY: takes nothing.
        let code = unsafe { (self.api().cuCtxSynchronize)() };
        self.api().check(code, "cuCtxSynchronize", || what.into())
    }

    /// The most and the least urgent priority of streams, in that order; smaller is more urgent.
    pub(crate) fn priorities(&self) -> Result<(i32, i32), DriverError> {
        let _entered = self.enter()?;
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        // SAFETY: both are valid places for the answer.
        let code = unsafe { (self.api().cuCtxGetStreamPriorityRange)(&mut least, &mut greatest) };
        self.api()
            .check(code, "cuCtxGetStreamPriorityRange", || "asking for the stream priorities".into())?;
        Ok((greatest, least))
    }
}

/// A context was made current on this thread, and stops being so when this is dropped.
pub(crate) struct Entered<'a> {
    api: &'a Api,
    pushed: bool,
    /// Being current is a matter of the thread.
    not_send: PhantomData<*mut ()>,
}

impl fmt::Debug for Entered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").field("pushed", &self.pushed).finish_non_exhaustive()
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = CUcontext::NULL;
            // SAFETY: takes back this thread's push; `popped` is a valid place for the answer. Where it fails (the driver
            // is shutting down) nothing is current any more.
            let _: CUresult = unsafe { (self.api.cuCtxPopCurrent_v2)(&mut popped) };
        }
    }
}
