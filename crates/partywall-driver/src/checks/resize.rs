//! Facts that decide whether a tenant's SMs can change while it runs: what of its work follows which of several green contexts.
//!
//! A check here passes when the question was answered, whatever the answer; the numbers are the answer. `on_a` and `on_b` count the
//! SMs of two disjoint sets on which blocks ran, by the SM id that a kernel reads (outside MPS it is the device's).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use partywall_core::units::{Bytes, Nanos};

use super::{Bench, Problem, groups, ids, pair};
use crate::clock;
use crate::context::Context;
use crate::error::DriverError;
use crate::event::Event;
use crate::graph::Graph;
use crate::green::GreenContext;
use crate::kernels::Part;
use crate::memory::DeviceBuffer;
use crate::stream::Stream;
use crate::sys::{
    Api, CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING, CUcontext, CUevent, CUfunction, CUgraph,
    CUgraphNode, CUkernel, CUlibrary, CUresult, CUstream, KernelNodeParams,
};

mod one_node;
mod order;

/// Numbers by name: the answer of a check.
pub(super) type Facts = BTreeMap<&'static str, f64>;

type Question = fn(&Bench) -> Result<Facts, Problem>;

/// The checks, with what is asked.
pub(super) const QUESTIONS: [(&str, Question); 8] = [
    ("which SMs kernel nodes of a cloned graph use that were given another green context", nodes),
    ("which SMs a launch uses into a stream of one green context while another is current", streams),
    ("what changing the current green context costs", switches),
    ("what making a graph of 500 kernels ready costs", graphs),
    ("in which contexts' streams an event of a green context is recorded and waited for", events),
    (
        "which SMs a launch uses as a graph of one node recorded elsewhere, and what that costs",
        one_node::launches,
    ),
    ("for which blocking streams the default stream of a green context waits", defaults),
    ("what the streams of a green context keep in order", order::kept),
];

const PTX: &str = concat!(include_str!("../../../../kernels/ptx/placement.ptx"), "\0");

/// SM ids that are counted.
const IDS: u32 = 1024;
/// How long a block stays, so that blocks spread over the SMs.
const SPREAD: Nanos = Nanos::from_micros(200);
/// How long something is given to happen that may be waiting.
const PAUSE: Duration = Duration::from_millis(30);
/// How long blocks stay that others may wait for.
const HELD: Nanos = Nanos::from_secs(2);
const SWITCHES: u32 = 10_000;
const NODES: u32 = 500;
const COPIES: u32 = 8;

/// Two disjoint sets, a quarter of the groups and the rest, and what tells on which of them blocks ran.
struct Sets<'b> {
    bench: &'b Bench,
    a: (GreenContext, Stream),
    b: (GreenContext, Stream),
    ids: [BTreeSet<usize>; 2],
    counts: DeviceBuffer,
    blocks: u32,
}

impl<'b> Sets<'b> {
    fn new(bench: &'b Bench) -> Result<Self, Problem> {
        let n = bench.device.sm_split()?.groups() as u32;
        let [a, b] = pair(bench, groups(0..n / 4)?, groups(n / 4..n)?)?;
        let ids = [ids(bench, &a.1, a.0.sms().0 * 16)?, ids(bench, &b.1, b.0.sms().0 * 16)?];
        let counts = bench.alloc(4 * u64::from(IDS))?;
        bench.stream.synchronize()?;
        Ok(Self { bench, a, b, ids, counts, blocks: bench.device.sms()?.0 * 4 })
    }

    fn context(&self) -> &Context {
        &self.bench.context
    }

    /// SMs of each set that had blocks since this was last asked. All blocks must have run: results are not to depend on where.
    fn ran(&self) -> Result<[f64; 2], Problem> {
        self.ended()?;
        let bytes: [u8; 4 * IDS as usize] = self.bench.first(&self.counts)?;
        self.bench.stream.fill(&self.counts, 0, self.counts.len(), 0)?;
        self.bench.stream.synchronize()?;
        let counts: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        super::same("blocks that ran", counts.iter().sum::<u32>(), self.blocks)?;
        let of = |ids: &BTreeSet<usize>| {
            ids.iter().filter(|id| counts.get(**id).is_some_and(|count| *count > 0)).count()
        };
        Ok([of(&self.ids[0]) as f64, of(&self.ids[1]) as f64])
    }

    fn capture(&self) -> Result<Graph, DriverError> {
        let counts = Part::all(&self.counts);
        self.a.1.capture(|stream| self.bench.kernels.count_by_sm(stream, self.blocks, counts, SPREAD))
    }

    /// The arguments of `count_by_sm`.
    fn arguments(&self) -> Arguments {
        Arguments { counts: self.counts.address(), ids: IDS, stay: SPREAD.0 }
    }
}

struct Arguments {
    counts: u64,
    ids: u32,
    stay: u64,
}

impl Arguments {
    fn places(&mut self) -> [*mut c_void; 3] {
        [(&raw mut self.counts).cast(), (&raw mut self.ids).cast(), (&raw mut self.stay).cast()]
    }
}

/// The kernel in both its forms: of a module, and of a library, which belongs to no context.
struct Code {
    function: CUfunction,
    kernel: CUkernel,
    library: CUlibrary,
    unload: unsafe extern "C" fn(CUlibrary) -> CUresult,
    _module: crate::module::Function,
}

impl Code {
    fn load(bench: &Bench) -> Result<Self, DriverError> {
        let module = bench.context.module(PTX.trim_end_matches('\0'))?.function("count_by_sm")?;
        let api = bench.context.api();
        let (load, find) = (api.cuLibraryLoadData()?, api.cuLibraryGetKernel()?);
        let (mut library, mut kernel) = (CUlibrary::NULL, CUkernel::NULL);
        let image = PTX.as_ptr().cast();
        // SAFETY: the image ends with a zero byte; there are no options.
        let code = unsafe { load(&mut library, image, null_mut(), null_mut(), 0, null_mut(), null_mut(), 0) };
        api.check(code, "cuLibraryLoadData", || "loading a library of kernels".into())?;
        // SAFETY: a place for the answer, a library that is loaded, and a name.
        let code = unsafe { find(&mut kernel, library, c"count_by_sm".as_ptr()) };
        api.check(code, "cuLibraryGetKernel", || "looking for the kernel `count_by_sm`".into())?;
        let unload = api.cuLibraryUnload()?;
        Ok(Self { function: module.raw(), kernel, library, unload, _module: module })
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: loaded above; what was launched is done.
        let _ = unsafe { (self.unload)(self.library) };
    }
}

/// `CUDA_KERNEL_NODE_PARAMS` has a context, which cuda.h says is ignored where `func` is set: so a node is also given the kernel of a
/// library.
fn nodes(bench: &Bench) -> Result<Facts, Problem> {
    let (sets, code) = (Sets::new(bench)?, Code::load(bench)?);
    let (mut facts, captured) = (Facts::new(), sets.capture()?);
    let mut ran = |names: [&'static str; 2], graph: &Graph, stream: &Stream| -> Result<(), Problem> {
        graph.instantiate()?.launch(stream)?;
        facts.extend(names.into_iter().zip(sets.ran()?));
        Ok(())
    };
    ran(["captured_on_a", "captured_on_b"], &captured, &sets.a.1)?;
    ran(["launched_in_b_on_a", "launched_in_b_on_b"], &captured, &sets.b.1)?;
    ran(["launched_in_primary_on_a", "launched_in_primary_on_b"], &captured, &bench.stream)?;
    let none = (CUfunction::NULL, CUkernel::NULL);
    let (by_function, by_kernel) = ((code.function, none.1), (none.0, code.kernel));
    let (primary, green) = (None, Some(sets.b.0.as_context()));
    let cases = [
        ("function_code", ["function_on_a", "function_on_b"], by_function, primary, green),
        ("current_code", ["current_on_a", "current_on_b"], by_function, green, None),
        ("kernel_code", ["kernel_on_a", "kernel_on_b"], by_kernel, primary, green),
        ("kernel_current_code", ["kernel_current_on_a", "kernel_current_on_b"], by_kernel, green, None),
    ];
    let mut codes = Facts::new();
    for (name, names, what, current, context) in cases {
        let clone = sets.changed(&captured, what, current, context.unwrap_or(CUcontext::NULL))?;
        match clone {
            Ok(clone) => {
                codes.insert(name, 0.0);
                ran(names, &clone, &sets.a.1)?;
            }
            Err(code) => drop(codes.insert(name, f64::from(code.0))),
        }
    }
    facts.extend(codes);
    Ok(facts)
}

impl Sets<'_> {
    /// A clone of a graph of one kernel, which is set anew; or the error with which that is refused.
    fn changed(
        &self,
        graph: &Graph,
        (function, kernel): (CUfunction, CUkernel),
        current: Option<CUcontext>,
        context: CUcontext,
    ) -> Result<Result<Graph, CUresult>, DriverError> {
        let api = self.context().api();
        let (clone, list, set) =
            (api.cuGraphClone()?, api.cuGraphGetNodes()?, api.cuGraphKernelNodeSetParams_v2()?);
        let mut raw = CUgraph::NULL;
        // SAFETY: a place for the answer, and a graph that is alive.
        api.check(unsafe { clone(&mut raw, graph.raw()) }, "cuGraphClone", || "copying a graph".into())?;
        // What it uses outlives it here: the caller has it.
        let cloned = Graph::own(self.context().clone(), raw, Vec::new())?;
        let (mut node, mut count) = (CUgraphNode::NULL, 1);
        // SAFETY: room for one node, which is as many as there are.
        let code = unsafe { list(raw, &mut node, &mut count) };
        api.check(code, "cuGraphGetNodes", || "listing the nodes of a graph".into())?;
        let mut arguments = self.arguments();
        let mut places = arguments.places();
        let parameters = KernelNodeParams {
            func: function,
            gridDim: [self.blocks, 1, 1],
            blockDim: [32, 1, 1],
            sharedMemBytes: 0,
            kernelParams: places.as_mut_ptr(),
            extra: null_mut(),
            kern: kernel,
            ctx: context,
        };
        let _current = current.map(|current| self.context().push(current)).transpose()?;
        // SAFETY: a node of a graph that is alive; the arguments are those of the kernel, and are copied before the call returns.
        match unsafe { set(node, &parameters) } {
            CUresult::SUCCESS => Ok(Ok(cloned)),
            code => Ok(Err(code)),
        }
    }

    /// Launches the kernel while a context is current.
    fn launch(&self, function: CUfunction, stream: CUstream, current: CUcontext) -> Result<(), DriverError> {
        let mut arguments = self.arguments();
        let mut places = arguments.places();
        let _current = self.context().push(current)?;
        launch(self.context().api(), function, stream, self.blocks, places.as_mut_ptr())
    }
}

/// Dynamic shared memory of every launch here: `stay` writes a word of it, which without any is a fault.
const SHARED: c_uint = 4;

fn launch(
    api: &Api,
    function: CUfunction,
    stream: CUstream,
    blocks: c_uint,
    places: *mut *mut c_void,
) -> Result<(), DriverError> {
    // SAFETY: the callers' arguments are those of the kernel, and point to memory that outlives it; no kernel uses more shared memory.
    let code =
        unsafe { (api.cuLaunchKernel)(function, blocks, 1, 1, 32, 1, 1, SHARED, stream, places, null_mut()) };
    api.check(code, "cuLaunchKernel", || "launching a probe kernel".into())
}

fn streams(bench: &Bench) -> Result<Facts, Problem> {
    let (sets, code) = (Sets::new(bench)?, Code::load(bench)?);
    let mut facts = Facts::new();
    let b = sets.b.0.as_context();
    let cases = [
        (["stream_of_a_on_a", "stream_of_a_on_b"], sets.a.1.raw()),
        (["stream_of_primary_on_a", "stream_of_primary_on_b"], bench.stream.raw()),
        (["default_stream_on_a", "default_stream_on_b"], CUstream::NULL),
    ];
    for (names, stream) in cases {
        sets.launch(code.function, stream, b)?;
        facts.extend(names.into_iter().zip(sets.ran()?));
    }
    let captured = {
        sets.a.1.begin_capture()?;
        let launched = sets.launch(code.function, sets.a.1.raw(), b);
        let graph = sets.a.1.end_capture();
        launched?;
        graph?
    };
    captured.instantiate()?.launch(&sets.a.1)?;
    facts.extend(["captured_on_a", "captured_on_b"].into_iter().zip(sets.ran()?));
    Ok(facts)
}

fn switches(bench: &Bench) -> Result<Facts, Problem> {
    let sets = Sets::new(bench)?;
    let api = bench.context.api();
    let set = api.cuCtxSetCurrent()?;
    let _current = sets.a.0.make_current()?;
    let cost = |contexts: [CUcontext; 2]| -> Result<f64, Problem> {
        let since = clock::now();
        for round in 0..SWITCHES {
            // SAFETY: contexts that are alive; the one that was current is so again at the end.
            let code = unsafe { set(contexts[(round % 2) as usize]) };
            api.check(code, "cuCtxSetCurrent", || "changing the current context".into())?;
        }
        Ok(clock::now().saturating_sub(since).0 as f64 / f64::from(SWITCHES))
    };
    let (a, b) = (sets.a.0.as_context(), sets.b.0.as_context());
    let facts = [("same_ns", cost([a, a])?), ("other_ns", cost([b, a])?)];
    Ok(facts.into())
}

fn graphs(bench: &Bench) -> Result<Facts, Problem> {
    let value = bench.alloc(16)?;
    bench.stream.synchronize()?;
    let captured = bench
        .stream
        .capture(|stream| (0..NODES).try_for_each(|_| bench.kernels.step_once(stream, Part::all(&value))))?;
    let free = || bench.context.memory_info().map(|(free, _)| free.0 as f64);
    // The first one sets things up that the others find.
    let mut ready = vec![captured.instantiate()?];
    let (before, since) = (free()?, clock::now());
    for _ in 0..COPIES {
        ready.push(captured.instantiate()?);
    }
    let instantiated = clock::now().saturating_sub(since);
    for graph in &ready {
        graph.upload(&bench.stream)?;
    }
    bench.stream.synchronize()?;
    let uploaded = clock::now().saturating_sub(since).saturating_sub(instantiated);
    let each = |time: Nanos| time.0 as f64 / 1e6 / f64::from(COPIES);
    let bytes = (before - free()?) / f64::from(COPIES);
    Ok([("instantiate_ms", each(instantiated)), ("upload_ms", each(uploaded)), ("device_bytes", bytes)]
        .into())
}

/// An event that was made while one context was current.
struct Mark<'b> {
    api: &'b Api,
    raw: CUevent,
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `Sets::mark` for nobody else; one that has not happened goes when it has.
        let _ = unsafe { (self.api.cuEventDestroy_v2)(self.raw) };
    }
}

/// The driver's answers are numbers of errors, 0 for none: whether an event made in one context may be recorded in a stream of another, and
/// whether a stream of a third may wait for it. Then whether a stream of B does wait, and what both calls take.
fn events(bench: &Bench) -> Result<Facts, Problem> {
    let sets = Sets::new(bench)?;
    let api = bench.context.api();
    let (a, b, primary) = (sets.a.0.as_context(), sets.b.0.as_context(), bench.context.raw());
    let (in_a, in_b, in_primary) = (sets.a.1.raw(), sets.b.1.raw(), bench.stream.raw());
    let (of_a, of_b, of_primary) = (sets.mark(a)?, sets.mark(b)?, sets.mark(primary)?);
    // SAFETY: events and streams that are alive, here and below.
    let record = |event: &Mark<'_>, stream| unsafe { (api.cuEventRecord)(event.raw, stream) };
    // SAFETY: as above.
    let wait = |stream, event: &Mark<'_>| unsafe { (api.cuStreamWaitEvent)(stream, event.raw, 0) };
    let mut facts = Facts::new();
    let cases = [
        ("of_b_in_a_code", "of_b_in_a_waited_in_b_code", &of_b, in_a, in_b),
        ("of_b_in_primary_code", "of_b_in_primary_waited_in_b_code", &of_b, in_primary, in_b),
        ("of_a_in_a_code", "of_a_in_a_waited_in_b_code", &of_a, in_a, in_b),
        ("of_a_in_b_code", "of_a_in_b_waited_in_a_code", &of_a, in_b, in_a),
        ("of_primary_in_a_code", "of_primary_in_a_waited_in_b_code", &of_primary, in_a, in_b),
        ("of_primary_in_b_code", "of_primary_in_b_waited_in_a_code", &of_primary, in_b, in_a),
    ];
    let _current = bench.context.push(b)?;
    for (recorded, waited, event, first, second) in cases {
        facts.insert(recorded, f64::from(record(event, first).0));
        facts.insert(waited, f64::from(wait(second, event).0));
    }
    let waits = sets.holds(a, in_a, |done| {
        api.check(record(&of_b, in_a), "cuEventRecord", || "recording an event in another context".into())?;
        api.check(wait(in_b, &of_b), "cuStreamWaitEvent", || {
            "waiting for an event of another context".into()
        })?;
        // SAFETY: as above.
        let code = unsafe { (api.cuEventRecord)(done.raw(), in_b) };
        api.check(code, "cuEventRecord", || "recording an event".into())
    })?;
    facts.insert("b_waits_for_a", f64::from(u8::from(waits)));
    let since = clock::now();
    for _ in 0..SWITCHES {
        api.check(record(&of_b, in_a), "cuEventRecord", || "recording an event in another context".into())?;
        api.check(wait(in_b, &of_b), "cuStreamWaitEvent", || {
            "waiting for an event of another context".into()
        })?;
    }
    let each = clock::now().saturating_sub(since).0 as f64 / f64::from(SWITCHES);
    facts.insert("record_and_wait_ns", each);
    sets.ended()?;
    Ok(facts)
}

fn defaults(bench: &Bench) -> Result<Facts, Problem> {
    let sets = Sets::new(bench)?;
    let (a, b, primary) = (sets.a.0.as_context(), sets.b.0.as_context(), bench.context.raw());
    let facts = [
        ("a_for_its_own", sets.waits(a, 0, a)?),
        ("a_for_its_own_non_blocking", sets.waits(a, CU_STREAM_NON_BLOCKING, a)?),
        ("a_for_one_of_b", sets.waits(b, 0, a)?),
        ("a_for_one_of_primary", sets.waits(primary, 0, a)?),
        ("primary_for_one_of_a", sets.waits(a, 0, primary)?),
        ("primary_for_its_own", sets.waits(primary, 0, primary)?),
    ];
    Ok(facts.into())
}

impl<'b> Sets<'b> {
    fn mark(&self, of: CUcontext) -> Result<Mark<'b>, DriverError> {
        let bench: &'b Bench = self.bench;
        let api = bench.context.api();
        let _current = bench.context.push(of)?;
        let mut raw = CUevent::NULL;
        // SAFETY: a place for the answer.
        let code = unsafe { (api.cuEventCreate)(&mut raw, CU_EVENT_DISABLE_TIMING) };
        api.check(code, "cuEventCreate", || "making an event".into())?;
        Ok(Mark { api, raw })
    }
}

impl Sets<'_> {
    /// Waits for everything.
    fn ended(&self) -> Result<(), DriverError> {
        self.context().synchronize()?;
        self.a.0.synchronize()?;
        self.b.0.synchronize()
    }

    /// 1 where the default stream of one context waits for a kernel in a stream of another, 0 where not.
    fn waits(&self, of: CUcontext, flags: c_uint, default: CUcontext) -> Result<f64, Problem> {
        let (context, api) = (self.context(), self.context().api());
        let count = context.module(PTX.trim_end_matches('\0'))?.function("count_by_sm")?;
        let mut stream = CUstream::NULL;
        {
            let _current = context.push(of)?;
            // SAFETY: a place for the answer; the stream belongs to the current context.
            let code = unsafe { (api.cuStreamCreateWithPriority)(&mut stream, flags, 0) };
            api.check(code, "cuStreamCreateWithPriority", || "making a stream".into())?;
        }
        let waits = self.holds(of, stream, |done| {
            let _current = context.push(default)?;
            let mut arguments = Arguments { stay: 0, ..self.arguments() };
            launch(api, count.raw(), CUstream::NULL, 1, arguments.places().as_mut_ptr())?;
            // SAFETY: the event is alive; no stream is the default stream of the current context.
            let code = unsafe { (api.cuEventRecord)(done.raw(), CUstream::NULL) };
            api.check(code, "cuEventRecord", || "recording an event".into())
        });
        // SAFETY: nothing is in it any more.
        let _ = unsafe { (api.cuStreamDestroy_v2)(stream) };
        Ok(f64::from(u8::from(waits?)))
    }

    /// Whether what `queue` queues, with an event behind it, waits for a kernel in a stream, which belongs to the context `of`.
    fn holds(
        &self,
        of: CUcontext,
        stream: CUstream,
        queue: impl FnOnce(&Event) -> Result<(), DriverError>,
    ) -> Result<bool, Problem> {
        let hold = |stay: CUfunction, places: *mut *mut c_void| {
            let _current = self.context().push(of)?;
            launch(self.context().api(), stay, stream, 1, places)
        };
        self.held(hold, queue)
    }

    /// As [`Sets::holds`], where `hold` launches the kernel with its arguments.
    fn held(
        &self,
        hold: impl FnOnce(CUfunction, *mut *mut c_void) -> Result<(), DriverError>,
        queue: impl FnOnce(&Event) -> Result<(), DriverError>,
    ) -> Result<bool, Problem> {
        let context = self.context();
        let stay = context.module(PTX.trim_end_matches('\0'))?.function("stay")?;
        let (states, go, done) =
            (context.pinned(Bytes(4))?, context.pinned(Bytes(4))?, context.event(false)?);
        let (mut at, mut go_at, mut patience) = (states.device_address(), go.device_address(), HELD.0);
        let mut places: [*mut c_void; 3] =
            [(&raw mut at).cast(), (&raw mut go_at).cast(), (&raw mut patience).cast()];
        let held = || -> Result<bool, DriverError> {
            hold(stay.raw(), places.as_mut_ptr())?;
            queue(&done)?;
            let through = clock::wait_for(PAUSE, || match done.query() {
                Ok(false) => None,
                other => Some(other),
            });
            Ok(!through.unwrap_or(Ok(false))?)
        };
        let held = held();
        // Whatever went wrong, the memory that the kernel looks at stays until it has left.
        go.store_u32(0, 1)?;
        self.ended()?;
        done.synchronize()?;
        Ok(held?)
    }
}

/// A line for people.
pub(super) fn text(facts: &Facts) -> String {
    let told = facts.iter().map(|(name, number)| format!("{name} {}", (number * 1000.0).round() / 1000.0));
    told.collect::<Vec<_>>().join(", ")
}
