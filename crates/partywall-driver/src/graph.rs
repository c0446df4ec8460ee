//! Graphs: work recorded once and launched often.
//!
//! A graph keeps what it uses: buffers, pinned memory and modules that were handed to recorded calls live for as long as it
//! does.
//!
//! On an H200 with CUDA 13.0, kernels recorded in a green context stayed on its SMs also when the graph was launched in a
//! stream of the primary context. NVIDIA documents neither this nor the other way round: record and launch in streams
//! of the same context.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::context::Context;
use crate::error::DriverError;
use crate::in_flight::InFlight;
use crate::stream::Stream;
use crate::sys::{CUgraph, CUgraphExec};

/// What a graph can keep: anything that may be dropped on any thread.
pub(crate) trait Keep: Send + Sync {}

impl<T: Send + Sync> Keep for T {}

type Kept = Arc<Vec<Arc<dyn Keep>>>;

/// Recorded work. May be sent to another thread, but is used by one at a time.
pub struct Graph {
    context: Context,
    raw: CUgraph,
    kept: Kept,
    not_sync: PhantomData<Cell<()>>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("raw", &self.raw)
            .field("keeps", &self.kept.len())
            .finish_non_exhaustive()
    }
}

impl Graph {
    pub(crate) fn own(context: Context, raw: CUgraph, kept: Vec<Arc<dyn Keep>>) -> Result<Self, DriverError> {
        if raw == CUgraph::NULL {
            return Err(DriverError::Invalid("the driver recorded no graph".into()));
        }
        Ok(Self { context, raw, kept: Arc::new(kept), not_sync: PhantomData })
    }

    pub(crate) fn raw(&self) -> CUgraph {
        self.raw
    }

    /// Makes it ready to launch.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn instantiate(&self) -> Result<GraphExec, DriverError> {
        let _entered = self.context.enter()?;
        let mut raw = CUgraphExec::NULL;
        // SAFETY: the graph is alive; `raw` is a valid place for the answer; 0 asks for nothing special.
        let code = unsafe { (self.context.api().cuGraphInstantiateWithFlags)(&mut raw, self.raw, 0) };
        self.context
            .api()
            .check(code, "cuGraphInstantiateWithFlags", || "making a graph ready to launch".into())?;
        let shared = Launchable {
            context: self.context.clone(),
            raw,
            kept: ManuallyDrop::new(Arc::clone(&self.kept)),
            in_flight: InFlight::default(),
        };
        Ok(GraphExec { shared: Arc::new(shared), not_sync: PhantomData })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: this is the only owner, and the context is alive and current. Graphs made ready from it are copies.
        let _ = unsafe { (self.context.api().cuGraphDestroy)(self.raw) };
    }
}

/// A graph ready to launch. May be sent to another thread, but is used by one at a time.
///
/// Dropping it waits for its launches, because then what it keeps may go.
pub struct GraphExec {
    shared: Arc<Launchable>,
    not_sync: PhantomData<Cell<()>>,
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphExec").field("raw", &self.shared.raw).finish_non_exhaustive()
    }
}

impl GraphExec {
    /// Puts the graph onto the device, which otherwise happens in the first launch.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn upload(&self, stream: &Stream) -> Result<(), DriverError> {
        stream.hold_in_flight(&self.shared, &self.shared.in_flight);
        stream.call("cuGraphUpload", "putting a graph onto the device", |api, queue| {
            // SAFETY: graph and stream are alive.
            unsafe { (api.cuGraphUpload)(self.shared.raw, queue) }
        })
    }

    /// Submits the recorded work. Launches of the same graph run one after the other, also in different streams.
    ///
    /// This is safe because whoever recorded a kernel promised that it may run whenever the graph is launched
    /// ([`crate::module::Function::launch`]).
    ///
    /// # Errors
    /// What the driver returned, for this launch or earlier work.
    pub fn launch(&self, stream: &Stream) -> Result<(), DriverError> {
        stream.hold_in_flight(&self.shared, &self.shared.in_flight);
        stream.call("cuGraphLaunch", "launching a graph", |api, queue| {
            // SAFETY: graph and stream are alive, and so is all that the graph uses: it keeps it until its launches are
            // done.
            unsafe { (api.cuGraphLaunch)(self.shared.raw, queue) }
        })
    }
}

/// What a [`GraphExec`] and graphs that launch it own together.
struct Launchable {
    context: Context,
    raw: CUgraphExec,
    /// Dropped by hand, and only when all launches are done.
    kept: ManuallyDrop<Kept>,
    in_flight: InFlight,
}

impl Drop for Launchable {
    fn drop(&mut self) {
        let settled = self.in_flight.settle();
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: this is the only owner, and the context is alive and current; the driver lets launches that are
            // under way end.
            let _ = unsafe { (self.context.api().cuGraphExecDestroy)(self.raw) };
        }
        if settled {
            // SAFETY: dropped here only, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.kept) };
        }
    }
}
