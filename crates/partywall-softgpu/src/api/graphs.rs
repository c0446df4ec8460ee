//! Graphs as a whole: making, looking at, making ready, launching.

use std::sync::{Arc, PoisonError};

use crate::abi::{In, InstantiateParameters, Out, UpdateResult};
use crate::api::{ready, stream, submit};
use crate::engine::graph::{Graph, NodeIndex, NodeName};
use crate::engine::operation::Operation;
use crate::error::Code;
use crate::process::Process;

api! {
    fn cuGraphCreate(place: Out<u64>, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let process = ready()?;
        let graph = Graph::new();
        place.set(graph.handle)?;
        process.objects.graphs.put(graph.handle, graph);
        Ok(())
    }

    fn cuGraphDestroy(graph: u64) {
        let process = crate::process::get()?;
        let graph = process.objects.graphs.remove(graph)?;
        let handles: Vec<u64> = graph.nodes().iter().map(|node| node.handle).collect();
        for handle in handles {
            let _ = process.objects.nodes.remove(handle);
        }
        Ok(())
    }

    fn cuGraphClone(place: Out<u64>, graph: u64) {
        let process = ready()?;
        let graph = process.objects.graphs.get(graph)?;
        if graph.has_memory() {
            return Err(Code::NOT_SUPPORTED);
        }
        let clone = graph.clone_nodes();
        place.set(clone.handle)?;
        process.objects.graphs.put(clone.handle, clone);
        Ok(())
    }

    fn cuGraphNodeFindInClone(place: Out<u64>, original: u64, clone: u64) {
        let process = ready()?;
        let clone = process.objects.graphs.get(clone)?;
        let found = clone.nodes().iter().find(|node| node.origin == Some(original)).map(|node| node.handle);
        let found = found.ok_or(Code::INVALID_VALUE)?;
        name_node(process, &clone, found);
        place.set(found)
    }

    fn cuGraphDestroyNode(node: u64) {
        let process = ready()?;
        let (graph, index) = node_of(process, node)?;
        if graph.has_memory() {
            return Err(Code::NOT_SUPPORTED);
        }
        graph.remove(index);
        process.objects.nodes.remove(node).map(drop)
    }

    fn cuGraphChildGraphNodeGetGraph(node: u64, place: Out<u64>) {
        let process = ready()?;
        let (graph, index) = node_of(process, node)?;
        let child = graph.nodes()[index].child.clone().ok_or(Code::INVALID_VALUE)?;
        place.set(child.handle)?;
        process.objects.graphs.put(child.handle, child);
        Ok(())
    }

    fn cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        let process = ready()?;
        let graph = process.objects.graphs.get(graph)?;
        list(&name_nodes(process, &graph), nodes, count)
    }

    fn cuGraphGetRootNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        let process = ready()?;
        let graph = process.objects.graphs.get(graph)?;
        let handles = name_nodes(process, &graph);
        let roots: Vec<bool> = graph.nodes().iter().map(|node| node.after.is_empty()).collect();
        let roots: Vec<u64> = handles.into_iter().zip(roots).filter(|(_, root)| *root).map(|(handle, _)| handle).collect();
        list(&roots, nodes, count)
    }

    fn cuGraphGetEdges(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) {
        edges(graph, from, to, Out::from_address(0), count)
    }

    fn cuGraphGetEdges_v2(graph: u64, from: Out<u64>, to: Out<u64>, data: Out<u64>, count: Out<usize>) {
        edges(graph, from, to, data, count)
    }

    fn cuGraphNodeGetType(node: u64, kind: Out<u32>) {
        let (graph, index) = node_of(ready()?, node)?;
        kind.set(graph.nodes()[index].kind)
    }

    fn cuGraphNodeGetDependencies(node: u64, nodes: Out<u64>, count: Out<usize>) {
        dependencies(node, nodes, count)
    }

    fn cuGraphNodeGetDependencies_v2(node: u64, nodes: Out<u64>, _data: u64, count: Out<usize>) {
        dependencies(node, nodes, count)
    }

    fn cuGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) {
        connect(graph, from, to, count)
    }

    fn cuGraphAddDependencies_v2(graph: u64, from: In<u64>, to: In<u64>, _data: u64, count: usize) {
        connect(graph, from, to, count)
    }

    fn cuGraphInstantiate(place: Out<u64>, graph: u64, _error: u64, _log: u64, _room: usize) {
        instantiate(place, graph, 0)
    }

    fn cuGraphInstantiate_v2(place: Out<u64>, graph: u64, _error: u64, _log: u64, _room: usize) {
        instantiate(place, graph, 0)
    }

    fn cuGraphInstantiateWithFlags(place: Out<u64>, graph: u64, flags: u64) {
        instantiate(place, graph, flags)
    }

    fn cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz (
        place: Out<u64>, graph: u64, parameters: Out<InstantiateParameters>,
    ) {
        let asked = parameters.get()?;
        let done = instantiate(place, graph, asked.flags);
        parameters.set(InstantiateParameters { error_node: 0, result: u32::from(done.is_err()), ..asked })?;
        done
    }

    fn cuGraphExecGetFlags(exec: u64, flags: Out<u64>) {
        flags.set(ready()?.objects.execs.get(exec)?.flags)
    }

    fn cuGraphExecUpdate(exec: u64, graph: u64, error_node: Out<u64>, result: Out<u32>) {
        let done = update(exec, graph);
        error_node.offer(0);
        result.offer(u32::from(done.is_err()));
        done
    }

    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, result: Out<UpdateResult>) {
        let done = update(exec, graph);
        result.offer(UpdateResult { result: u32::from(done.is_err()), error_node: 0, error_from: 0 });
        done
    }

    fn cuGraphUpload / cuGraphUpload_ptsz (exec: u64, on: u64) {
        let process = ready()?;
        process.objects.execs.get(exec)?;
        submit(process, on, Operation::Nothing)
    }

    fn cuGraphLaunch / cuGraphLaunch_ptsz (exec: u64, on: u64) {
        let process = ready()?;
        let exec = process.objects.execs.get(exec)?;
        if stream(process, on)?.capture().is_some() {
            return submit(process, on, Operation::Graph(exec.program()));
        }
        // A launch comes after the last one of the same graph, in whatever stream that was: documented.
        let last = exec.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mark) = last.mark().filter(|mark| mark.passed().is_none()) {
            submit(process, on, Operation::Wait(mark))?;
        }
        submit(process, on, Operation::Graph(exec.program()))?;
        submit(process, on, Operation::Record(last.record()))
    }

    fn cuGraphExecDestroy(exec: u64) {
        let process = crate::process::get()?;
        let exec = process.objects.execs.remove(exec)?;
        // Launches that are under way keep the nodes; memory of the graph must not go before they are done.
        let is_under_way =
            || Arc::strong_count(&exec.nodes.lock().unwrap_or_else(PoisonError::into_inner)) > 1;
        if exec.has_memory() && is_under_way() {
            let _ = process.quiesce();
        }
        Ok(())
    }

    fn cuDeviceGraphMemTrim(device: i32) {
        super::devices::one(device)?.settle_pools();
        Ok(())
    }
}

/// Makes a node known under its handle.
pub(super) fn name_node(process: &Process, graph: &Arc<Graph>, handle: u64) {
    process.objects.nodes.put(handle, Arc::new(NodeName { graph: Arc::downgrade(graph) }));
}

/// Makes the nodes of a graph known under their handles; these in the order of the nodes.
pub(super) fn name_nodes(process: &Process, graph: &Arc<Graph>) -> Vec<u64> {
    let handles: Vec<u64> = graph.nodes().iter().map(|node| node.handle).collect();
    handles.iter().for_each(|handle| name_node(process, graph, *handle));
    handles
}

/// The graph of a node, and its place there.
pub(super) fn node_of(process: &Process, node: u64) -> Result<(Arc<Graph>, NodeIndex), Code> {
    let name = process.objects.nodes.get(node)?;
    let graph = name.graph.upgrade().ok_or(Code::INVALID_HANDLE)?;
    let index = graph.place_of(node).ok_or(Code::INVALID_HANDLE)?;
    Ok((graph, index))
}

/// The places of nodes that are all of one graph.
pub(super) fn indices(
    process: &Process,
    graph: &Arc<Graph>,
    nodes: In<u64>,
    count: usize,
) -> Result<Vec<NodeIndex>, Code> {
    let place = |handle| {
        let (of, index) = node_of(process, handle)?;
        if Arc::ptr_eq(&of, graph) { Ok(index) } else { Err(Code::INVALID_VALUE) }
    };
    nodes.list(count)?.into_iter().map(place).collect()
}

/// Writes handles into an array with room for `count`, or says how many there are.
fn list(handles: &[u64], places: Out<u64>, count: Out<usize>) -> Result<(), Code> {
    if places.is_null() {
        return count.set(handles.len());
    }
    let room = count.get()?;
    for index in 0..room {
        // Beyond the last there are none: documented.
        places.at(index).set(handles.get(index).copied().unwrap_or(0))?;
    }
    count.set(handles.len().min(room))
}

/// Edges with their data of eight bytes each, which is all zeros here: the later comes after the whole of the earlier.
fn edges(graph: u64, from: Out<u64>, to: Out<u64>, data: Out<u64>, count: Out<usize>) -> Result<(), Code> {
    let process = ready()?;
    let graph = process.objects.graphs.get(graph)?;
    let handles = name_nodes(process, &graph);
    let (mut begins, mut ends) = (Vec::new(), Vec::new());
    for node in graph.nodes().iter() {
        for before in &node.after {
            begins.push(handles[*before]);
            ends.push(node.handle);
        }
    }
    if !from.is_null() {
        let room = count.get()?;
        list(&ends, to, count)?;
        if !data.is_null() {
            count.set(room)?;
            list(&vec![0; ends.len()], data, count)?;
        }
        count.set(room)?;
    }
    list(&begins, from, count)
}

fn dependencies(node: u64, nodes: Out<u64>, count: Out<usize>) -> Result<(), Code> {
    let process = ready()?;
    let (graph, index) = node_of(process, node)?;
    let handles = name_nodes(process, &graph);
    let after: Vec<u64> = graph.nodes()[index].after.iter().map(|before| handles[*before]).collect();
    list(&after, nodes, count)
}

fn connect(graph: u64, from: In<u64>, to: In<u64>, count: usize) -> Result<(), Code> {
    let process = ready()?;
    let graph = process.objects.graphs.get(graph)?;
    let (from, to) = (indices(process, &graph, from, count)?, indices(process, &graph, to, count)?);
    let mut nodes = graph.nodes();
    for (before, after) in from.into_iter().zip(to) {
        if before == after {
            return Err(Code::INVALID_VALUE);
        }
        if !nodes[after].after.contains(&before) {
            nodes[after].after.push(before);
        }
    }
    Ok(())
}

fn instantiate(place: Out<u64>, graph: u64, flags: u64) -> Result<(), Code> {
    let process = ready()?;
    if place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let exec = process.objects.graphs.get(graph)?.instantiate(flags)?;
    place.set(process.objects.execs.add(Arc::new(exec)))
}

fn update(exec: u64, graph: u64) -> Result<(), Code> {
    let process = ready()?;
    let graph = process.objects.graphs.get(graph)?;
    process.objects.execs.get(exec)?.update(&graph).map_err(|_| Code::GRAPH_EXEC_UPDATE_FAILURE)
}
