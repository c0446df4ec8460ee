//! Graphs node by node.

use std::cell::RefCell;
use std::sync::Arc;

use crate::abi::{
    AllocationNode, Copy3D, FillNode, HostNode, In, KernelNode, KernelNodeV1, MemoryOperation, Out,
};
use crate::api::graphs::{indices, name_node, node_of};
use crate::api::launches::{Shape, made};
use crate::api::ready;
use crate::engine::graph::{Node, kind};
use crate::engine::operation::{Data, Fill, Launch, Operation};
use crate::error::Code;
use crate::process::Process;

api! {
    fn cuGraphAddEmptyNode(place: Out<u64>, graph: u64, after: In<u64>, count: usize) {
        add(place, graph, (after, count), kind::EMPTY, Operation::Nothing)
    }

    fn cuGraphAddKernelNode(place: Out<u64>, graph: u64, after: In<u64>, count: usize, node: In<KernelNodeV1>) {
        add(place, graph, (after, count), kind::KERNEL, launch(ready()?, &first(&node.get()?))?)
    }

    fn cuGraphAddKernelNode_v2(place: Out<u64>, graph: u64, after: In<u64>, count: usize, node: In<KernelNode>) {
        add(place, graph, (after, count), kind::KERNEL, launch(ready()?, &node.get()?)?)
    }

    fn cuGraphKernelNodeSetParams(node: u64, parameters: In<KernelNodeV1>) {
        set(node, kind::KERNEL, launch(ready()?, &first(&parameters.get()?))?)
    }

    fn cuGraphKernelNodeSetParams_v2(node: u64, parameters: In<KernelNode>) {
        set(node, kind::KERNEL, launch(ready()?, &parameters.get()?)?)
    }

    fn cuGraphExecKernelNodeSetParams(exec: u64, node: u64, parameters: In<KernelNodeV1>) {
        let process = ready()?;
        process.objects.execs.get(exec)?.set(node, launch(process, &first(&parameters.get()?))?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, parameters: In<KernelNode>) {
        let process = ready()?;
        process.objects.execs.get(exec)?.set(node, launch(process, &parameters.get()?)?)
    }

    fn cuGraphKernelNodeGetParams_v2(node: u64, place: Out<KernelNode>) {
        let (graph, index) = node_of(ready()?, node)?;
        let Operation::Launch(launch) = graph.nodes()[index].operation.clone() else {
            return Err(Code::INVALID_VALUE);
        };
        place.set(parameters_of(&launch))
    }

    fn cuGraphAddMemcpyNode(
        place: Out<u64>, graph: u64, after: In<u64>, count: usize, copy: In<Copy3D>, _context: u64,
    ) {
        add(place, graph, (after, count), kind::COPY, copying(ready()?, &copy.get()?)?)
    }

    fn cuGraphMemcpyNodeSetParams(node: u64, copy: In<Copy3D>) {
        set(node, kind::COPY, copying(ready()?, &copy.get()?)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(exec: u64, node: u64, copy: In<Copy3D>, _context: u64) {
        let process = ready()?;
        process.objects.execs.get(exec)?.set(node, copying(process, &copy.get()?)?)
    }

    fn cuGraphAddMemsetNode(
        place: Out<u64>, graph: u64, after: In<u64>, count: usize, fill: In<FillNode>, _context: u64,
    ) {
        add(place, graph, (after, count), kind::FILL, filling(ready()?, &fill.get()?)?)
    }

    fn cuGraphMemsetNodeSetParams(node: u64, fill: In<FillNode>) {
        set(node, kind::FILL, filling(ready()?, &fill.get()?)?)
    }

    fn cuGraphExecMemsetNodeSetParams(exec: u64, node: u64, fill: In<FillNode>, _context: u64) {
        let process = ready()?;
        process.objects.execs.get(exec)?.set(node, filling(process, &fill.get()?)?)
    }

    fn cuGraphAddHostNode(place: Out<u64>, graph: u64, after: In<u64>, count: usize, node: In<HostNode>) {
        add(place, graph, (after, count), kind::HOST, host(&node.get()?)?)
    }

    fn cuGraphKernelNodeGetAttribute(node: u64, attribute: u32, place: Out<[u8; 64]>) {
        const CARVEOUT: u32 = 14;
        let (graph, index) = node_of(ready()?, node)?;
        if graph.nodes()[index].kind != kind::KERNEL || attribute > CARVEOUT {
            return Err(Code::INVALID_VALUE);
        }
        // Nothing of a launch's attributes is kept here: each is as if it had not been set.
        place.set([0; 64])
    }

    fn cuGraphExecHostNodeSetParams(exec: u64, node: u64, parameters: In<HostNode>) {
        ready()?.objects.execs.get(exec)?.set(node, host(&parameters.get()?)?)
    }

    fn cuGraphAddChildGraphNode(place: Out<u64>, graph: u64, after: In<u64>, count: usize, child: u64) {
        // The node has a copy of its own.
        let child = ready()?.objects.graphs.get(child)?.clone_nodes();
        add(place, graph, (after, count), kind::GRAPH, Operation::Graph(Arc::new(child.ordered()?)))?;
        let (graph, index) = node_of(ready()?, place.get()?)?;
        graph.nodes()[index].child = Some(child);
        Ok(())
    }

    fn cuGraphAddEventRecordNode(place: Out<u64>, graph: u64, after: In<u64>, count: usize, event: u64) {
        let event = ready()?.objects.events.get(event)?;
        add(place, graph, (after, count), kind::RECORD, Operation::RecordAgain(event))
    }

    fn cuGraphAddEventWaitNode(place: Out<u64>, graph: u64, after: In<u64>, count: usize, event: u64) {
        let event = ready()?.objects.events.get(event)?;
        add(place, graph, (after, count), kind::WAIT, Operation::WaitAgain(event))
    }

    fn cuGraphAddBatchMemOpNode(place: Out<u64>, graph: u64, after: In<u64>, count: usize, node: In<Batch>) {
        let process = ready()?;
        let operations = super::memory_operations::list_of(process, &node.get()?)?;
        let child = operations.into_iter().map(|operation| Node::new(kind::MEMORY_OPERATION, operation, &[]));
        add(place, graph, (after, count), kind::MEMORY_OPERATION, Operation::Graph(Arc::new(child.collect())))
    }

    fn cuGraphAddMemAllocNode(
        place: Out<u64>, graph: u64, after: In<u64>, count: usize, node: Out<AllocationNode>,
    ) {
        let process = ready()?;
        let asked = node.get()?;
        let address = super::pools::for_graph(process, &*process.objects.graphs.get(graph)?, asked.bytes as u64)?;
        add(place, graph, (after, count), kind::ALLOCATE, Operation::Nothing)?;
        let (graph, index) = node_of(process, place.get()?)?;
        graph.nodes()[index].memory = (address, asked.bytes as u64);
        node.set(AllocationNode { address, ..asked })
    }

    fn cuGraphAddMemFreeNode(place: Out<u64>, graph: u64, after: In<u64>, count: usize, address: u64) {
        // The memory is the graph's and stays until it goes: what was freed may be allocated by its next launch.
        ready()?.memory.addresses.find(address).ok_or(Code::INVALID_VALUE)?;
        add(place, graph, (after, count), kind::FREE, Operation::Nothing)
    }

    fn cuGraphMemAllocNodeGetParams(node: u64, place: Out<AllocationNode>) {
        let (graph, index) = node_of(ready()?, node)?;
        let (address, bytes) = graph.nodes()[index].memory;
        if address == 0 {
            return Err(Code::INVALID_VALUE);
        }
        place.set(AllocationNode { pool: super::pools::PROPERTIES, access: 0, access_count: 0, bytes: bytes as usize, address })
    }
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Batch {
    _context: u64,
    pub(super) count: u32,
    pub(super) list: In<MemoryOperation>,
    pub(super) flags: u32,
}

fn add(
    place: Out<u64>,
    graph: u64,
    after: (In<u64>, usize),
    kind: u32,
    operation: Operation,
) -> Result<(), Code> {
    let process = ready()?;
    let graph = process.objects.graphs.get(graph)?;
    let after = indices(process, &graph, after.0, after.1)?;
    if place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let index = graph.add(kind, operation, &after);
    let handle = graph.nodes()[index].handle;
    name_node(process, &graph, handle);
    place.set(handle)
}

fn set(node: u64, kind: u32, operation: Operation) -> Result<(), Code> {
    let (graph, index) = node_of(ready()?, node)?;
    let mut nodes = graph.nodes();
    if nodes[index].kind != kind {
        return Err(Code::INVALID_VALUE);
    }
    nodes[index].operation = operation;
    Ok(())
}

/// What a kernel node launches. The list of parameters is valid until the next such call of the thread, and what it points to for as long
/// as the node has them.
fn parameters_of(launch: &Launch) -> KernelNode {
    thread_local! {
        static LIST: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    let first = launch.arguments.as_ptr() as u64;
    let offsets = launch.function.kernel.parameters.iter().map(|(offset, _)| *offset as u64);
    let parameters = LIST.with_borrow_mut(|list| {
        *list = offsets.map(|offset| first + offset).collect();
        list.as_ptr() as u64
    });
    let Launch { grid, block, shared, .. } = *launch;
    KernelNode {
        function: launch.function.handle,
        grid,
        block,
        shared,
        parameters,
        extra: 0,
        kernel: 0,
        context: 0,
    }
}

/// The newer form of a kernel node.
fn first(node: &KernelNodeV1) -> KernelNode {
    let KernelNodeV1 { function, grid, block, shared, parameters, extra } = *node;
    KernelNode { function, grid, block, shared, parameters, extra, kernel: 0, context: 0 }
}

fn launch(process: &Process, node: &KernelNode) -> Result<Operation, Code> {
    let shape = Shape { grid: node.grid, block: node.block, shared: node.shared };
    let function = if node.function == 0 { node.kernel } else { node.function };
    // cuda.h: "This field is ignored if func is set". Then it is the current context (H200, CUDA 13.0), as it is for 0.
    let context = if node.function == 0 { node.context } else { 0 };
    let sms = process.context(context)?.sms();
    let (parameters, extra) = (In::from_address(node.parameters), In::from_address(node.extra));
    Ok(Operation::Launch(Arc::new(made(process, function, shape, parameters, extra, sms)?)))
}

fn copying(process: &Process, copy: &Copy3D) -> Result<Operation, Code> {
    Ok(Operation::Copy(Arc::new(super::copies::space(process, copy)?)))
}

fn filling(process: &Process, node: &FillNode) -> Result<Operation, Code> {
    let fill = Fill {
        address: node.destination,
        pitch: node.pitch as u64,
        value: node.value,
        element: node.element,
        width: node.width as u64,
        height: node.height as u64,
    };
    super::fills::fill(process, fill)
}

fn host(node: &HostNode) -> Result<Operation, Code> {
    node.function.ok_or(Code::INVALID_VALUE)?;
    Ok(Operation::Host { function: node.function, data: Data(node.data as *mut std::ffi::c_void) })
}
