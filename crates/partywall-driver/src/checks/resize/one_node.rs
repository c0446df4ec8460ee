//! A launch that goes as a graph of one node: recorded in a stream of one green context, launched in a stream of another.
//!
//! Such a launch stays in the program's stream, so the driver keeps the order of everything; only the SMs are others. What is asked is
//! whether it is so, and what the ways of making such a graph cost beside a plain launch.

use std::ptr::null_mut;

use super::{Arguments, Code, Facts, Sets, launch};
use crate::checks::{Bench, Problem};
use crate::clock;
use crate::error::DriverError;
use crate::event::Event;
use crate::sys::{
    CU_STREAM_CAPTURE_MODE_RELAXED, CUcontext, CUgraph, CUgraphExec, CUgraphNode, CUkernel, CUresult,
    CUstream, GraphUpdate, KernelNodeParams,
};

/// Launches of each way that are timed, fewer than a stream holds before a launch waits.
const ROUNDS: u32 = 200;

pub(super) fn launches(bench: &Bench) -> Result<Facts, Problem> {
    let (sets, code) = (Sets::new(bench)?, Code::load(bench)?);
    let (in_a, in_primary) = (sets.a.1.raw(), bench.stream.raw());
    let a = sets.a.0.as_context();
    let mut facts = Facts::new();
    let cases = [
        (["in_a_on_a", "in_a_on_b"], in_a),
        (["in_primary_on_a", "in_primary_on_b"], in_primary),
        (["in_default_on_a", "in_default_on_b"], CUstream::NULL),
    ];
    let graphs = Graphs { sets: &sets, code: &code };
    for (names, stream) in cases {
        let exec = graphs.instantiated(graphs.recorded()?)?;
        {
            let _current = bench.context.push(a)?;
            graphs.launch(exec, stream)?;
        }
        facts.extend(names.into_iter().zip(sets.ran()?));
        graphs.destroy(exec)?;
    }
    graphs.changed(&mut facts)?;
    graphs.order(&mut facts)?;
    graphs.costs(&mut facts)?;
    Ok(facts)
}

struct Graphs<'a, 'b> {
    sets: &'a Sets<'b>,
    code: &'a Code,
}

impl Graphs<'_, '_> {
    /// 1 where the order of a stream is kept: what is launched as a graph and what is launched plainly, in a stream of A and in its default
    /// stream, and in a blocking stream of A beside the default stream.
    fn order(&self, facts: &mut Facts) -> Result<(), Problem> {
        let (bench, api) = (self.sets.bench, self.sets.context().api());
        let (a, in_a) = (self.sets.a.0.as_context(), self.sets.a.1.raw());
        let _current = bench.context.push(a)?;
        let mut blocking = CUstream::NULL;
        // SAFETY: a place for the answer.
        let code = unsafe { (api.cuStreamCreateWithPriority)(&mut blocking, 0, 0) };
        api.check(code, "cuStreamCreateWithPriority", || "making a stream".into())?;
        let cases = [
            ("stream_waits_for_node", in_a, in_a),
            ("default_waits_for_node", CUstream::NULL, CUstream::NULL),
            ("default_waits_for_node_of_blocking", blocking, CUstream::NULL),
            ("blocking_waits_for_node_of_default", CUstream::NULL, blocking),
        ];
        for (name, first, second) in cases {
            let node_first = self.sets.held(
                |stay, places| self.go_as_node(first, |stream| launch(api, stay, stream, 1, places)),
                |done| self.behind(second, done, |stream| self.one(stream)),
            )?;
            facts.insert(name, f64::from(u8::from(node_first)));
        }
        let cases = [
            ("node_waits_for_stream", in_a, in_a),
            ("node_waits_for_default", CUstream::NULL, CUstream::NULL),
            ("node_of_default_waits_for_blocking", blocking, CUstream::NULL),
            ("node_of_blocking_waits_for_default", CUstream::NULL, blocking),
        ];
        for (name, first, second) in cases {
            let node_second = self.sets.held(
                |stay, places| launch(api, stay, first, 1, places),
                |done| self.behind(second, done, |stream| self.go_as_node(stream, |other| self.one(other))),
            )?;
            facts.insert(name, f64::from(u8::from(node_second)));
        }
        // SAFETY: nothing is in it any more.
        let _ = unsafe { (api.cuStreamDestroy_v2)(blocking) };
        Ok(())
    }

    /// A launch of one block.
    fn one(&self, stream: CUstream) -> Result<(), DriverError> {
        let mut arguments = Arguments { stay: 0, ..self.sets.arguments() };
        launch(self.sets.context().api(), self.code.function, stream, 1, arguments.places().as_mut_ptr())
    }

    /// Launches into a stream, and records an event behind that.
    fn behind(
        &self,
        stream: CUstream,
        done: &Event,
        launches: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        launches(stream)?;
        let api = self.sets.context().api();
        // SAFETY: an event and a stream that are alive.
        let code = unsafe { (api.cuEventRecord)(done.raw(), stream) };
        api.check(code, "cuEventRecord", || "recording an event".into())
    }

    /// Has a launch go into a stream as a graph that is recorded in the stream of B.
    fn go_as_node(
        &self,
        stream: CUstream,
        launches: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let exec = self.instantiated(self.recorded_of(launches)?)?;
        self.launch(exec, stream)?;
        self.destroy(exec)
    }

    /// A graph of one launch of all blocks, recorded in the stream of B.
    fn recorded(&self) -> Result<CUgraph, DriverError> {
        let mut arguments = self.sets.arguments();
        let (api, function) = (self.sets.context().api(), self.code.function);
        self.recorded_of(|stream| {
            launch(api, function, stream, self.sets.blocks, arguments.places().as_mut_ptr())
        })
    }

    /// A graph of what `launches` launches.
    fn recorded_of(
        &self,
        launches: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<CUgraph, DriverError> {
        let (api, stream) = (self.sets.context().api(), self.sets.b.1.raw());
        // SAFETY: a stream that is alive.
        let code = unsafe { (api.cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED) };
        api.check(code, "cuStreamBeginCapture_v2", || "beginning to record a graph".into())?;
        let launched = launches(stream);
        let mut graph = CUgraph::NULL;
        // SAFETY: as above, and a place for the answer.
        let code = unsafe { (api.cuStreamEndCapture)(stream, &mut graph) };
        launched?;
        api.check(code, "cuStreamEndCapture", || "ending to record a graph".into())?;
        Ok(graph)
    }

    /// Makes a graph ready, and destroys it.
    fn instantiated(&self, graph: CUgraph) -> Result<CUgraphExec, DriverError> {
        let api = self.sets.context().api();
        let mut exec = CUgraphExec::NULL;
        // SAFETY: a graph of ours, and a place for the answer.
        let code = unsafe { (api.cuGraphInstantiateWithFlags)(&mut exec, graph, 0) };
        // SAFETY: nobody else has it; what was made from it is a copy.
        let _ = unsafe { (api.cuGraphDestroy)(graph) };
        api.check(code, "cuGraphInstantiateWithFlags", || "making a graph ready to launch".into())?;
        Ok(exec)
    }

    fn launch(&self, exec: CUgraphExec, stream: CUstream) -> Result<(), DriverError> {
        let api = self.sets.context().api();
        // SAFETY: alive, both of them.
        let code = unsafe { (api.cuGraphLaunch)(exec, stream) };
        api.check(code, "cuGraphLaunch", || "launching a graph".into())
    }

    fn destroy(&self, exec: CUgraphExec) -> Result<(), DriverError> {
        let api = self.sets.context().api();
        // SAFETY: made above; one that runs goes when it is through (documented).
        let code = unsafe { (api.cuGraphExecDestroy)(exec) };
        api.check(code, "cuGraphExecDestroy", || "destroying a graph".into())
    }

    fn update(&self, exec: CUgraphExec) -> Result<CUresult, DriverError> {
        let api = self.sets.context().api();
        let update = api.cuGraphExecUpdate_v2()?;
        let graph = self.recorded()?;
        let mut result = GraphUpdate::EMPTY;
        // SAFETY: a graph ready to launch, another, and a place for the answer.
        let code = unsafe { update(exec, graph, &mut result) };
        // SAFETY: nobody else has it.
        let _ = unsafe { (api.cuGraphDestroy)(graph) };
        Ok(code)
    }

    /// Where a launch runs after the graph was updated, and after its node was given new parameters: with the function alone while the
    /// primary context is current, and with the context of B.
    fn changed(&self, facts: &mut Facts) -> Result<(), Problem> {
        let api = self.sets.context().api();
        let exec = self.instantiated(self.recorded()?)?;
        facts.insert("updated_code", f64::from(self.update(exec)?.0));
        self.launch(exec, self.sets.a.1.raw())?;
        facts.extend(["updated_on_a", "updated_on_b"].into_iter().zip(self.sets.ran()?));
        self.destroy(exec)?;
        let set = api.cuGraphExecKernelNodeSetParams_v2()?;
        let cases = [
            ("set_code", ["set_on_a", "set_on_b"], CUcontext::NULL),
            ("set_context_code", ["set_context_on_a", "set_context_on_b"], self.sets.b.0.as_context()),
        ];
        for (name, names, context) in cases {
            let graph = self.recorded()?;
            let (mut node, mut count) = (CUgraphNode::NULL, 1);
            // SAFETY: a graph of one node, and room for it.
            let code = unsafe { (api.cuGraphGetNodes()?)(graph, &mut node, &mut count) };
            api.check(code, "cuGraphGetNodes", || "listing the nodes of a graph".into())?;
            let mut exec = CUgraphExec::NULL;
            // SAFETY: as in `instantiated`; the node is needed for longer.
            let code = unsafe { (api.cuGraphInstantiateWithFlags)(&mut exec, graph, 0) };
            api.check(code, "cuGraphInstantiateWithFlags", || "making a graph ready to launch".into())?;
            let mut arguments = self.sets.arguments();
            let parameters = self.parameters(&mut arguments, context);
            // SAFETY: the node of the graph that this was made from, and the parameters of its kernel.
            facts.insert(name, f64::from(unsafe { set(exec, node, &parameters.0) }.0));
            self.launch(exec, self.sets.a.1.raw())?;
            facts.extend(names.into_iter().zip(self.sets.ran()?));
            self.destroy(exec)?;
            // SAFETY: nobody else has it.
            let _ = unsafe { (api.cuGraphDestroy)(graph) };
        }
        Ok(())
    }

    fn parameters(
        &self,
        arguments: &mut Arguments,
        context: CUcontext,
    ) -> (KernelNodeParams, Box<[*mut std::ffi::c_void; 3]>) {
        let mut places = Box::new(arguments.places());
        let parameters = KernelNodeParams {
            func: self.code.function,
            gridDim: [self.sets.blocks, 1, 1],
            blockDim: [32, 1, 1],
            sharedMemBytes: 0,
            kernelParams: places.as_mut_ptr(),
            extra: null_mut(),
            kern: CUkernel::NULL,
            ctx: context,
        };
        (parameters, places)
    }

    fn costs(&self, facts: &mut Facts) -> Result<(), Problem> {
        let (api, in_a) = (self.sets.context().api(), self.sets.a.1.raw());
        let mut arguments = Arguments { stay: 0, ..self.sets.arguments() };
        let plain = || launch(api, self.code.function, in_a, 1, arguments.places().as_mut_ptr());
        facts.insert("plain_ns", self.each(plain)?);
        let fresh = || {
            let exec = self.instantiated(self.recorded()?)?;
            self.launch(exec, in_a)?;
            self.destroy(exec)
        };
        facts.insert("instantiated_ns", self.each(fresh)?);
        let exec = self.instantiated(self.recorded()?)?;
        facts.insert("launched_ns", self.each(|| self.launch(exec, in_a))?);
        facts.insert(
            "updated_ns",
            self.each(|| {
                self.update(exec)?;
                self.launch(exec, in_a)
            })?,
        );
        self.destroy(exec)?;
        Ok(())
    }

    /// What one of many takes on the host.
    fn each(&self, mut what: impl FnMut() -> Result<(), DriverError>) -> Result<f64, Problem> {
        what()?;
        self.sets.ended()?;
        let since = clock::now();
        for _ in 0..ROUNDS {
            what()?;
        }
        let each = clock::now().saturating_sub(since).0 as f64 / f64::from(ROUNDS);
        self.sets.ended()?;
        Ok(each)
    }
}
