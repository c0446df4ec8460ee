//! Events: points in the work of a stream.

use std::cell::Cell;
use std::fmt;

use crate::context::Context;
use crate::error::DriverError;
use crate::sys::{Api, CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CUevent, CUresult};

/// An event. Belongs to the primary context and works with streams of its green contexts too.
///
/// Until it is recorded it counts as having happened. May be sent to another thread, but is used by one at a time.
pub struct Event {
    context: Context,
    raw: CUevent,
    timing: bool,
    /// Recorded by a stream that was recording a graph: then it is part of that graph.
    captured: Cell<bool>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("raw", &self.raw).field("timing", &self.timing).finish_non_exhaustive()
    }
}

impl Event {
    pub(crate) fn create(context: &Context, timing: bool) -> Result<Self, DriverError> {
        let _entered = context.enter()?;
        let flags = if timing { CU_EVENT_DEFAULT } else { CU_EVENT_DISABLE_TIMING };
        let mut raw = CUevent::NULL;
        // SAFETY: `raw` is a valid place for the answer; the context is current.
        let code = unsafe { (context.api().cuEventCreate)(&mut raw, flags) };
        context.api().check(code, "cuEventCreate", || "making an event".into())?;
        Ok(Self { context: context.clone(), raw, timing, captured: Cell::new(false) })
    }

    /// Waits until it has happened.
    ///
    /// # Errors
    /// What the driver returned, also for faults of earlier work.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.call("cuEventSynchronize", "waiting for an event", |api, raw| {
            // SAFETY: the event is alive.
            unsafe { (api.cuEventSynchronize)(raw) }
        })
    }

    /// Whether it has happened.
    ///
    /// # Errors
    /// What the driver returned, also for faults of earlier work.
    pub fn query(&self) -> Result<bool, DriverError> {
        let mut happened = true;
        self.call("cuEventQuery", "asking whether an event has happened", |api, raw| {
            // SAFETY: the event is alive.
            let code = unsafe { (api.cuEventQuery)(raw) };
            happened = code != CUresult::NOT_READY;
            if happened { code } else { CUresult::SUCCESS }
        })?;
        Ok(happened)
    }

    /// Milliseconds from `start` to this event, to about half a microsecond (the driver's documentation). Both must have
    /// timing, be recorded, and have happened.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] without timing, or what the driver returned: 600, `CUDA_ERROR_NOT_READY`, before both
    /// have happened.
    pub fn elapsed_since(&self, start: &Self) -> Result<f32, DriverError> {
        if !self.timing || !start.timing {
            let what = "the time between two events needs events made with timing";
            return Err(DriverError::Invalid(what.into()));
        }
        let mut milliseconds = 0.0_f32;
        self.call("cuEventElapsedTime", "asking for the time between two events", |api, raw| {
            // SAFETY: both events are alive; `milliseconds` is a valid place for the answer.
            unsafe { (api.cuEventElapsedTime)(&mut milliseconds, start.raw, raw) }
        })?;
        Ok(milliseconds)
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.raw
    }

    pub(crate) fn set_captured(&self, captured: bool) {
        self.captured.set(captured);
    }

    pub(crate) fn is_captured(&self) -> bool {
        self.captured.get()
    }

    fn call(
        &self,
        call: &'static str,
        what: &'static str,
        ask: impl FnOnce(&Api, CUevent) -> CUresult,
    ) -> Result<(), DriverError> {
        let _entered = self.context.enter()?;
        let code = ask(self.context.api(), self.raw);
        self.context.api().check(code, call, || what.into())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: this is the only owner, and the context is alive and current. An event may be destroyed before it
        // has happened. After a fault the call fails, and there is nothing left to release.
        let _ = unsafe { (self.context.api().cuEventDestroy_v2)(self.raw) };
    }
}
