//! What the streams of a green context keep in order: a kernel that stays, and then something else in the same stream, by the handles that
//! mean it.
//!
//! The default stream of a green context is no legacy default stream ([`super::defaults`]), and where the driver puts what comes
//! without a stream, kernels, graphs, fills, copies and events, decides whether a program that is confined computes what it
//! computes elsewhere.

use std::ffi::c_void;
use std::ptr;

use super::{Arguments, Facts, PTX, Sets, launch};
use crate::checks::{Bench, Problem};
use crate::error::DriverError;
use crate::event::Event;
use crate::memory::DeviceBuffer;
use crate::sys::{CU_STREAM_NON_BLOCKING, CUcontext, CUfunction, CUgraphExec, CUstream};

/// What is put into a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Kernel,
    Graph,
    Fill,
    Copy,
    /// Nothing but the event that is behind each of them.
    Event,
}

/// A stream, as a program names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    /// No stream.
    Null,
    /// The handle of the legacy default stream.
    Legacy,
    /// The handle of the thread's default stream.
    PerThread,
    /// One that was made.
    Made,
}

use Named::{Legacy, Made, Null, PerThread};
use What::{Copy as Move, Event as Mark, Fill, Graph, Kernel};

/// What, and where.
type Put = (What, Named);

/// 1 where the second waits for the first, 0 where not, -1 where one of them is refused. In each, both are put in while the green context is current.
const CASES: [(&str, Put, Put); 17] = [
    ("null_kernel_kernel", (Kernel, Null), (Kernel, Null)),
    ("null_kernel_graph", (Kernel, Null), (Graph, Null)),
    ("null_kernel_fill", (Kernel, Null), (Fill, Null)),
    ("null_kernel_copy", (Kernel, Null), (Move, Null)),
    ("null_kernel_event", (Kernel, Null), (Mark, Null)),
    ("null_graph_kernel", (Graph, Null), (Kernel, Null)),
    ("null_graph_graph", (Graph, Null), (Graph, Null)),
    ("null_graph_fill", (Graph, Null), (Fill, Null)),
    ("null_graph_event", (Graph, Null), (Mark, Null)),
    ("null_kernel_legacy_event", (Kernel, Null), (Mark, Legacy)),
    ("legacy_kernel_null_event", (Kernel, Legacy), (Mark, Null)),
    ("legacy_kernel_graph", (Kernel, Legacy), (Graph, Legacy)),
    ("per_thread_kernel_graph", (Kernel, PerThread), (Graph, PerThread)),
    ("per_thread_graph_event", (Graph, PerThread), (Mark, PerThread)),
    ("made_kernel_graph", (Kernel, Made), (Graph, Made)),
    ("made_graph_kernel", (Graph, Made), (Kernel, Made)),
    ("made_graph_event", (Graph, Made), (Mark, Made)),
];

pub(super) fn kept(bench: &Bench) -> Result<Facts, Problem> {
    let sets = Sets::new(bench)?;
    let context = sets.context();
    let a = sets.a.0.as_context();
    let mut made = CUstream::NULL;
    {
        let _current = context.push(a)?;
        // SAFETY: a place for the answer; the stream belongs to the current context.
        let code =
            unsafe { (context.api().cuStreamCreateWithPriority)(&mut made, CU_STREAM_NON_BLOCKING, 0) };
        context.api().check(code, "cuStreamCreateWithPriority", || "making a stream".into())?;
    }
    let mut facts = Facts::new();
    for (name, first, second) in CASES {
        let waits = match (Case { sets: &sets, current: a, made }).waits(first, second) {
            // A handle that this context does not take.
            Err(Problem::Driver(_)) => -1.0,
            waits => f64::from(u8::from(waits?)),
        };
        facts.insert(name, waits);
    }
    let primary = Case { sets: &sets, current: context.raw(), made: bench.stream.raw() };
    facts.insert(
        "primary_null_graph_kernel",
        f64::from(u8::from(primary.waits((Graph, Null), (Kernel, Null))?)),
    );
    // SAFETY: nothing is in it any more.
    let _ = unsafe { (context.api().cuStreamDestroy_v2)(made) };
    Ok(facts)
}

/// A context that is current, and a stream that was made in it.
struct Case<'a, 'b> {
    sets: &'a Sets<'b>,
    current: CUcontext,
    made: CUstream,
}

impl Case<'_, '_> {
    fn stream(&self, named: Named) -> CUstream {
        let handle = |number| CUstream(ptr::without_provenance_mut(number));
        match named {
            Null => CUstream::NULL,
            Legacy => handle(1),
            PerThread => handle(2),
            Made => self.made,
        }
    }

    fn waits(&self, first: Put, second: Put) -> Result<bool, Problem> {
        let context = self.sets.context();
        let _current = context.push(self.current)?;
        let count = context.module(PTX.trim_end_matches('\0'))?.function("count_by_sm")?;
        let words = [self.sets.bench.alloc(16)?, self.sets.bench.alloc(16)?];
        self.sets.bench.stream.synchronize()?;
        let mut arguments = Arguments { stay: 0, ..self.sets.arguments() };
        // Ready before the kernel stays: to make a graph ready may wait for it.
        let second_graph = match second.0 {
            Graph => Some(self.recorded(count.raw(), arguments.places().as_mut_ptr())?),
            _ => None,
        };
        let mut first_graph = None;
        let held = self.sets.held(
            |stay, places| {
                first_graph = match first.0 {
                    Graph => Some(self.recorded(stay, places)?),
                    _ => None,
                };
                self.put(first, stay, places, &words, first_graph)
            },
            |done| {
                self.put(second, count.raw(), arguments.places().as_mut_ptr(), &words, second_graph)?;
                self.record(done, second.1)
            },
        );
        for exec in [first_graph, second_graph].into_iter().flatten() {
            // SAFETY: made above, and its launch is over.
            let _ = unsafe { (context.api().cuGraphExecDestroy)(exec) };
        }
        held
    }

    fn record(&self, done: &Event, named: Named) -> Result<(), DriverError> {
        let api = self.sets.context().api();
        // SAFETY: the event is alive, and the stream one of the current context's.
        let code = unsafe { (api.cuEventRecord)(done.raw(), self.stream(named)) };
        api.check(code, "cuEventRecord", || "recording an event".into())
    }

    fn put(
        &self,
        (what, named): Put,
        kernel: CUfunction,
        places: *mut *mut c_void,
        words: &[DeviceBuffer; 2],
        graph: Option<CUgraphExec>,
    ) -> Result<(), DriverError> {
        let (context, stream) = (self.sets.context(), self.stream(named));
        let api = context.api();
        let (to, from) = (words[0].address(), words[1].address());
        match what {
            Kernel => launch(api, kernel, stream, 1, places),
            Graph => {
                let exec = graph.unwrap_or(CUgraphExec::NULL);
                // SAFETY: a graph that is ready, and a stream.
                let code = unsafe { (api.cuGraphLaunch)(exec, stream) };
                api.check(code, "cuGraphLaunch", || "launching a graph".into())
            }
            Fill => {
                // SAFETY: a word of ours.
                let code = unsafe { (api.cuMemsetD8Async)(to, 1, 4, stream) };
                api.check(code, "cuMemsetD8Async", || "submitting a fill".into())
            }
            Move => {
                // SAFETY: words of ours.
                let code = unsafe { (api.cuMemcpyDtoDAsync_v2)(to, from, 4, stream) };
                api.check(code, "cuMemcpyDtoDAsync_v2", || "submitting a copy within the device".into())
            }
            Mark => Ok(()),
        }
    }

    /// A graph of one kernel, recorded in a stream of the green context.
    fn recorded(&self, kernel: CUfunction, places: *mut *mut c_void) -> Result<CUgraphExec, DriverError> {
        let (api, on) = (self.sets.context().api(), &self.sets.a.1);
        on.begin_capture()?;
        let launched = launch(api, kernel, on.raw(), 1, places);
        let graph = on.end_capture();
        launched?;
        let graph = graph?;
        let mut exec = CUgraphExec::NULL;
        // SAFETY: a graph that is alive, and a place for the answer.
        let code = unsafe { (api.cuGraphInstantiateWithFlags)(&mut exec, graph.raw(), 0) };
        api.check(code, "cuGraphInstantiateWithFlags", || "making a graph ready to launch".into())?;
        Ok(exec)
    }
}
