//! Streams: queues of work for the device.

use std::cell::RefCell;
use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::context::Context;
use crate::error::{DriverError, check_range};
use crate::event::Event;
use crate::graph::{Graph, Keep};
use crate::green::GreenInner;
use crate::in_flight::InFlight;
use crate::memory::{DeviceBuffer, PinnedBuffer};
use crate::sys::{
    Api, CU_EVENT_WAIT_DEFAULT, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_NON_BLOCKING, CUgraph,
    CUresult, CUstream,
};

/// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`: recording goes on.
const CAPTURE_WRONG_THREAD: u32 = 908;

/// How urgent the kernels of a stream are. Copies do not care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// The most urgent that the device has.
    High,
    /// What streams have when nothing is said.
    Normal,
    /// The least urgent that the device has; on GPUs so far the same as normal.
    Low,
    /// The driver's number: smaller is more urgent, 0 is normal; clamped by the driver to what the device has.
    Level(i32),
}

/// A stream, in a primary or a green context.
///
/// May be sent to another thread, but is used by one at a time: it may be recording a graph.
pub struct Stream {
    inner: Arc<StreamInner>,
    /// While a graph is being recorded: what the graph will use.
    capture: RefCell<Option<Vec<Arc<dyn Keep>>>>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capturing = self.capture.borrow().is_some();
        f.debug_struct("Stream").field("raw", &self.inner.raw).field("capturing", &capturing).finish()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_capturing() {
            // The driver's stream may live on for those who wait for it, and nobody could end the recording.
            drop(self.end_capture());
        }
        self.inner.closed.store(true, Ordering::Release);
    }
}

impl Stream {
    pub(crate) fn in_primary(context: &Context, priority: Priority) -> Result<Self, DriverError> {
        let _entered = context.enter()?;
        let level = priority.level(context)?;
        let api = context.api();
        let mut raw = CUstream::NULL;
        // SAFETY: `raw` is a valid place for the answer; the context is current.
        let code = unsafe { (api.cuStreamCreateWithPriority)(&mut raw, CU_STREAM_NON_BLOCKING, level) };
        api.check(code, "cuStreamCreateWithPriority", || "making a stream".into())?;
        Ok(Self::own(Home::Primary(context.clone()), raw))
    }

    pub(crate) fn in_green(green: &Arc<GreenInner>, priority: Priority) -> Result<Self, DriverError> {
        let context = green.context();
        let create = context.api().cuGreenCtxStreamCreate()?;
        let _entered = context.enter()?;
        let level = priority.level(context)?;
        let mut raw = CUstream::NULL;
        // SAFETY: `raw` is a valid place for the answer; the green context is alive, as `green` owns it.
        let code = unsafe { create(&mut raw, green.raw(), CU_STREAM_NON_BLOCKING, level) };
        context
            .api()
            .check(code, "cuGreenCtxStreamCreate", || "making a stream in a green context".into())?;
        Ok(Self::own(Home::Green(Arc::clone(green)), raw))
    }

    fn own(home: Home, raw: CUstream) -> Self {
        let inner = StreamInner { home, raw, closed: AtomicBool::new(false) };
        Self { inner: Arc::new(inner), capture: RefCell::new(None) }
    }

    /// The primary context it belongs to (through its green context, where it is in one).
    pub fn context(&self) -> &Context {
        self.inner.home.context()
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.inner.raw
    }

    /// The driver's number for its priority: smaller is more urgent.
    ///
    /// # Errors
    /// What the driver returned; so for all the following. Errors of earlier work of the context can surface in any call.
    pub fn priority(&self) -> Result<i32, DriverError> {
        let mut level: c_int = 0;
        self.call("cuStreamGetPriority", "asking for the priority of a stream", |api, raw| {
            // SAFETY: the stream is alive; `level` is a valid place for the answer.
            unsafe { (api.cuStreamGetPriority)(raw, &mut level) }
        })?;
        Ok(level)
    }

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.call("cuStreamSynchronize", "waiting for a stream", |api, raw| {
            // SAFETY: the stream is alive.
            unsafe { (api.cuStreamSynchronize)(raw) }
        })
    }

    /// Whether all submitted work is done.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn query(&self) -> Result<bool, DriverError> {
        let mut ready = true;
        self.call("cuStreamQuery", "asking whether a stream is done", |api, raw| {
            // SAFETY: the stream is alive.
            let code = unsafe { (api.cuStreamQuery)(raw) };
            ready = code != CUresult::NOT_READY;
            if ready { code } else { CUresult::SUCCESS }
        })?;
        Ok(ready)
    }

    /// The event happens when all work submitted so far is done.
    ///
    /// # Errors
    /// What the driver returned: 400, `CUDA_ERROR_INVALID_HANDLE`, where the event is of another device.
    pub fn record(&self, event: &Event) -> Result<(), DriverError> {
        event.set_captured(self.is_capturing());
        self.call("cuEventRecord", "recording an event", |api, raw| {
            // SAFETY: event and stream are alive; the driver keeps what it needs of an event that is dropped early.
            unsafe { (api.cuEventRecord)(event.raw(), raw) }
        })
    }

    /// Work submitted from now on waits until the event happens. Streams of other contexts are fine.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] where the event is part of a graph that another stream recorded (a graph records one
    /// stream here), or what the driver returned.
    pub fn wait(&self, event: &Event) -> Result<(), DriverError> {
        if event.is_captured() && !self.is_capturing() {
            let what =
                "this event is part of a graph that another stream recorded; a graph records one stream";
            return Err(DriverError::Invalid(what.into()));
        }
        self.call("cuStreamWaitEvent", "making a stream wait for an event", |api, raw| {
            // SAFETY: event and stream are alive.
            unsafe { (api.cuStreamWaitEvent)(raw, event.raw(), CU_EVENT_WAIT_DEFAULT) }
        })
    }

    /// Submits a copy of `length` bytes from pinned to device memory.
    ///
    /// The bytes are read when the copy runs, so they should not be changed before it is done.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], or what the driver returned.
    pub fn copy_to_device(
        &self,
        to: &DeviceBuffer,
        to_offset: u64,
        from: &PinnedBuffer,
        from_offset: u64,
        length: u64,
    ) -> Result<(), DriverError> {
        check_range("destination of a copy to the device", to_offset, length, to.len())?;
        check_range("source of a copy to the device", from_offset, length, from.len())?;
        self.hold(&to.shared());
        self.hold_in_flight(&from.shared(), from.in_flight());
        self.call("cuMemcpyHtoDAsync_v2", "submitting a copy to the device", |api, raw| {
            // SAFETY: both ranges are inside their memory, which stays allocated until the copy is done: freeing pinned
            // memory waits for the streams noted in it, and a graph keeps what it records.
            unsafe {
                let source = from.host_address().add(from_offset as usize);
                (api.cuMemcpyHtoDAsync_v2)(to.address() + to_offset, source.cast(), length as usize, raw)
            }
        })
    }

    /// Submits a copy of `length` bytes from device to pinned memory.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], or what the driver returned.
    pub fn copy_to_host(
        &self,
        to: &PinnedBuffer,
        to_offset: u64,
        from: &DeviceBuffer,
        from_offset: u64,
        length: u64,
    ) -> Result<(), DriverError> {
        check_range("destination of a copy to the host", to_offset, length, to.len())?;
        check_range("source of a copy to the host", from_offset, length, from.len())?;
        self.hold(&from.shared());
        self.hold_in_flight(&to.shared(), to.in_flight());
        self.call("cuMemcpyDtoHAsync_v2", "submitting a copy to the host", |api, raw| {
            // SAFETY: as in `copy_to_device`; Rust code only reads pinned memory in ways that bear the device writing.
            unsafe {
                let destination = to.host_address().add(to_offset as usize);
                (api.cuMemcpyDtoHAsync_v2)(
                    destination.cast(),
                    from.address() + from_offset,
                    length as usize,
                    raw,
                )
            }
        })
    }

    /// Submits a copy of `length` bytes within device memory. The ranges must not overlap.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], [`DriverError::Invalid`] for ranges that overlap, or what the driver returned.
    pub fn copy_device(
        &self,
        to: &DeviceBuffer,
        to_offset: u64,
        from: &DeviceBuffer,
        from_offset: u64,
        length: u64,
    ) -> Result<(), DriverError> {
        check_range("destination of a copy within the device", to_offset, length, to.len())?;
        check_range("source of a copy within the device", from_offset, length, from.len())?;
        let (target, source) = (to.address() + to_offset, from.address() + from_offset);
        if target < source + length && source < target + length {
            let what = format!("a copy of {length} bytes within the device has ranges that overlap");
            return Err(DriverError::Invalid(what));
        }
        self.hold(&to.shared());
        self.hold(&from.shared());
        self.call("cuMemcpyDtoDAsync_v2", "submitting a copy within the device", |api, raw| {
            // SAFETY: both ranges are inside their device memory. If it is freed before the copy is done, no memory of
            // this process is touched: the driver waits, or the device faults.
            unsafe { (api.cuMemcpyDtoDAsync_v2)(target, source, length as usize, raw) }
        })
    }

    /// Submits filling `length` bytes with one value.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], or what the driver returned.
    pub fn fill(&self, to: &DeviceBuffer, offset: u64, length: u64, value: u8) -> Result<(), DriverError> {
        check_range("range to fill", offset, length, to.len())?;
        self.hold(&to.shared());
        self.call("cuMemsetD8Async", "submitting a fill", |api, raw| {
            // SAFETY: the range is inside the device memory; see `copy_device` for its lifetime.
            unsafe { (api.cuMemsetD8Async)(to.address() + offset, value, length as usize, raw) }
        })
    }

    /// Submits filling `length` bytes with a 32-bit value. Offset and length are multiples of 4.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], [`DriverError::Invalid`], or what the driver returned.
    pub fn fill_u32(
        &self,
        to: &DeviceBuffer,
        offset: u64,
        length: u64,
        value: u32,
    ) -> Result<(), DriverError> {
        check_range("range to fill", offset, length, to.len())?;
        if !offset.is_multiple_of(4) || !length.is_multiple_of(4) {
            let what = format!(
                "a fill with 32-bit values needs multiples of 4, not {length} bytes from {offset} on"
            );
            return Err(DriverError::Invalid(what));
        }
        self.hold(&to.shared());
        self.call("cuMemsetD32Async", "submitting a fill", |api, raw| {
            // SAFETY: as in `fill`; the count is in 32-bit words.
            unsafe { (api.cuMemsetD32Async)(to.address() + offset, value, (length / 4) as usize, raw) }
        })
    }

    /// From here on work is not run but recorded, until [`Stream::end_capture`] on the same thread. While it records,
    /// this thread must not allocate, free or synchronize: the driver refuses and the recording is lost. Other threads
    /// are not affected.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn begin_capture(&self) -> Result<(), DriverError> {
        self.call("cuStreamBeginCapture_v2", "beginning to record a graph", |api, raw| {
            // SAFETY: the stream is alive.
            unsafe { (api.cuStreamBeginCapture_v2)(raw, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) }
        })?;
        self.capture.replace(Some(Vec::new()));
        Ok(())
    }

    /// Ends recording. The graph keeps alive the buffers and modules that were handed to recorded calls.
    ///
    /// # Errors
    /// What the driver returned, among it that the recording was invalidated (901) or began on another thread (908;
    /// then it goes on).
    pub fn end_capture(&self) -> Result<Graph, DriverError> {
        let mut graph = CUgraph::NULL;
        let ended = self.call("cuStreamEndCapture", "ending to record a graph", |api, raw| {
            // SAFETY: the stream is alive; `graph` is a valid place for the answer.
            unsafe { (api.cuStreamEndCapture)(raw, &mut graph) }
        });
        let on_wrong_thread = matches!(&ended, Err(error) if error.code() == Some(CAPTURE_WRONG_THREAD));
        let kept = if on_wrong_thread { None } else { self.capture.take() };
        ended?;
        let kept = kept.unwrap_or_default();
        Graph::own(self.context().clone(), graph, kept)
    }

    /// Records what `work` submits. Ends recording in any case.
    ///
    /// # Errors
    /// What `work` or the driver returned.
    pub fn capture(&self, work: impl FnOnce(&Self) -> Result<(), DriverError>) -> Result<Graph, DriverError> {
        self.begin_capture()?;
        let worked = work(self);
        let graph = self.end_capture();
        worked.and(graph)
    }

    /// Whether a graph is being recorded.
    pub fn is_capturing(&self) -> bool {
        self.capture.borrow().is_some()
    }

    /// Makes the context current and calls the driver with this stream.
    pub(crate) fn call(
        &self,
        call: &'static str,
        what: &'static str,
        submit: impl FnOnce(&Api, CUstream) -> CUresult,
    ) -> Result<(), DriverError> {
        let context = self.context();
        let _entered = context.enter()?;
        let code = submit(context.api(), self.inner.raw);
        context.api().check(code, call, || what.into())
    }

    /// While a graph is being recorded, keeps what it will use.
    pub(crate) fn hold<T: Keep + 'static>(&self, used: &Arc<T>) {
        if let Some(kept) = self.capture.borrow_mut().as_mut() {
            let used: Arc<dyn Keep> = Arc::<T>::clone(used);
            kept.push(used);
        }
    }

    /// As [`Stream::hold`]; otherwise the resource waits for this stream before it is freed.
    pub(crate) fn hold_in_flight<T: Keep + 'static>(&self, used: &Arc<T>, in_flight: &InFlight) {
        if self.is_capturing() {
            self.hold(used);
        } else {
            in_flight.note(&self.inner);
        }
    }
}

impl Priority {
    fn level(self, context: &Context) -> Result<c_int, DriverError> {
        Ok(match self {
            Self::High => context.priorities()?.0,
            Self::Normal => 0,
            Self::Low => context.priorities()?.1,
            Self::Level(level) => level,
        })
    }
}

/// Where a stream is, kept alive by it.
enum Home {
    Primary(Context),
    Green(Arc<GreenInner>),
}

impl Home {
    fn context(&self) -> &Context {
        match self {
            Self::Primary(context) => context,
            Self::Green(green) => green.context(),
        }
    }
}

/// The driver's stream. Lives on behind its [`Stream`] for as long as a resource has to wait for it.
pub(crate) struct StreamInner {
    home: Home,
    raw: CUstream,
    /// The owner is gone: nothing is submitted any more.
    closed: AtomicBool,
}

impl StreamInner {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether the driver says for certain that everything is done.
    pub(crate) fn is_idle(&self) -> bool {
        let Ok(_entered) = self.home.context().enter() else { return false };
        // SAFETY: the stream is alive.
        let code = unsafe { (self.home.context().api().cuStreamQuery)(self.raw) };
        code == CUresult::SUCCESS
    }

    /// Waits; whether that succeeded.
    pub(crate) fn wait_quietly(&self) -> bool {
        let Ok(_entered) = self.home.context().enter() else { return false };
        // SAFETY: the stream is alive.
        let code = unsafe { (self.home.context().api().cuStreamSynchronize)(self.raw) };
        code == CUresult::SUCCESS
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        let context = self.home.context();
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: this is the only owner of the stream, and its context is alive and current. The driver finishes the work
        // that is still in it. After a fault the call fails, and there is nothing left to release.
        let _ = unsafe { (context.api().cuStreamDestroy_v2)(self.raw) };
    }
}
