//! Memory of graphs: what their allocation nodes take, and what captured allocations became.
//!
//! A graph's memory is the device's from its first launch, or upload, on; the driver keeps it for later launches of any graph
//! until it is told to trim. So before the first launch as much is reserved as the graph's nodes ask for, and after it is
//! entered what the driver says that it has reserved for all graphs of the device.
//!
//! A graph without allocations costs one load at each launch.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{c_char, c_ulonglong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use partywall_core::memory_ledger::PAGE;
use partywall_core::units::Bytes;

use crate::copies::{LEGACY, PER_THREAD, meant};
use crate::hooks::{Hook, hooks};
use crate::process::page;
use crate::sys::{self, CUresult};

use super::abi::{
    AllocationNode, CUdevice, CUgraph, CUgraphExec, CUgraphNode, CUstream, NODE_ALLOCATION, NODE_GRAPH, real,
};
use super::elastic::Store;
use super::{account, book, device, lock, relieve, reserved_by, settle};

/// The hooks of this module.
pub(super) static HOOKS: &[Hook] = hooks![
    cuGraphAddMemAllocNode,
    cuGraphInstantiate,
    cuGraphInstantiate_v2,
    cuGraphInstantiateWithFlags,
    cuGraphInstantiateWithParams,
    cuGraphInstantiateWithParams_ptsz,
    cuGraphUpload,
    cuGraphUpload_ptsz,
    cuGraphLaunch,
    cuGraphLaunch_ptsz,
    cuGraphExecDestroy,
    cuDeviceGraphMemTrim,
];

/// How deep graphs within graphs are looked into. The driver documents no limit; nobody nests by hand this deep.
const DEPTH_MAX: u32 = 16;

/// A graph that allocates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allocating {
    device: CUdevice,
    /// What its nodes ask for together, in whole pages each. They may share.
    bytes: Bytes,
    /// Whether the driver has given it memory since it was last trimmed.
    is_backed: bool,
}

/// How many graphs allocate: none, in most programs.
static ALLOCATING: AtomicUsize = AtomicUsize::new(0);

/// In a child after `fork`.
pub(super) fn forked() {
    ALLOCATING.store(0, Ordering::Relaxed);
}

/// What the nodes of a graph allocate on the device.
fn allocations(graph: CUgraph, depth: u32) -> Bytes {
    let mut count = 0;
    // SAFETY: the program's graph; without a place for nodes only their number is given.
    let result = unsafe { real::cuGraphGetNodes(graph, ptr::null_mut(), &raw mut count) };
    if result != CUresult::SUCCESS || count == 0 || depth == 0 {
        return Bytes::ZERO;
    }
    let mut nodes: Vec<CUgraphNode> = vec![ptr::null_mut(); count];
    // SAFETY: as above, with room for `count` nodes.
    let result = unsafe { real::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) };
    nodes.truncate(if result == CUresult::SUCCESS { count } else { 0 });
    let sum = nodes.into_iter().map(|node| allocation(node, depth).0).fold(0, u64::saturating_add);
    Bytes(sum)
}

fn allocation(node: CUgraphNode, depth: u32) -> Bytes {
    let mut kind = 0;
    // SAFETY: a node that the driver has just named, and a place for the answer.
    if unsafe { real::cuGraphNodeGetType(node, &raw mut kind) } != CUresult::SUCCESS {
        return Bytes::ZERO;
    }
    if kind == NODE_GRAPH {
        let mut child = ptr::null_mut();
        // SAFETY: as above.
        let result = unsafe { real::cuGraphChildGraphNodeGetGraph(node, &raw mut child) };
        return if result == CUresult::SUCCESS { allocations(child, depth - 1) } else { Bytes::ZERO };
    }
    let mut parameters = AllocationNode::EMPTY;
    let is_allocation = kind == NODE_ALLOCATION
        // SAFETY: as above.
        && unsafe { real::cuGraphMemAllocNodeGetParams(node, &raw mut parameters) } == CUresult::SUCCESS;
    if !is_allocation || parameters.pool.location.is_host() {
        return Bytes::ZERO;
    }
    Bytes((parameters.bytes as u64).checked_next_multiple_of(PAGE.0).unwrap_or(u64::MAX))
}

/// Calls the driver for what may give a graph its memory. Whether it was given is entered; what was given cannot be undone.
fn backed(graph: Allocating, call: impl FnOnce() -> CUresult) -> CUresult {
    let store = Store::Graphs(graph.device);
    let room = book().stretch(store, graph.bytes);
    let room =
        room.or_else(|refused| if relieve() { book().stretch(store, graph.bytes) } else { Err(refused) });
    let Ok(room) = room else { return CUresult::OUT_OF_MEMORY };
    let result = call();
    let ticket = book().ticket();
    match (reserved_by(store), room) {
        // What does not fit is counted all the same: nothing more is granted until it does.
        (Some(reserved), room) => {
            let _ = book().settle(store, ticket, reserved, room);
        }
        (None, Some(room)) => book().cancel(room),
        (None, None) => {}
    }
    result
}

/// Instantiates a graph through `call`. `flags` are those that the program gave.
///
/// # Safety
/// With success, `call` has had the driver write to `exec`.
unsafe fn instantiate(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    // SAFETY: the caller's promise.
    let result = unsafe { instantiate_counted(exec, graph, call) };
    if result == CUresult::SUCCESS {
        // SAFETY: the driver has written to it.
        crate::launch::instantiated(unsafe { *exec }.addr(), graph.addr(), flags);
    }
    result
}

/// Instantiates a graph through `call`, with the memory that it allocates.
///
/// # Safety
/// As for [`instantiate`].
unsafe fn instantiate_counted(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let bytes = allocations(graph, DEPTH_MAX);
    if bytes == Bytes::ZERO {
        return call();
    }
    let graph = Allocating { device: device().unwrap_or(0), bytes, is_backed: false };
    // Some instantiations upload at once.
    let result = backed(graph, call);
    if result == CUresult::SUCCESS {
        // SAFETY: the driver has written to it.
        let exec = unsafe { *exec };
        if lock(&account().graphs).insert(exec as usize, graph).is_none() {
            ALLOCATING.fetch_add(1, Ordering::Relaxed);
        }
    }
    result
}

/// Launches or uploads a graph through `call`.
fn launch(exec: CUgraphExec, call: impl FnOnce() -> CUresult) -> CUresult {
    if ALLOCATING.load(Ordering::Relaxed) == 0 {
        return call();
    }
    launch_allocating(exec, call)
}

#[cold]
fn launch_allocating(exec: CUgraphExec, call: impl FnOnce() -> CUresult) -> CUresult {
    let known = lock(&account().graphs).get(&(exec as usize)).copied();
    let Some(graph) = known.filter(|graph| !graph.is_backed) else { return call() };
    let result = backed(graph, call);
    if result == CUresult::SUCCESS
        && let Some(graph) = lock(&account().graphs).get_mut(&(exec as usize))
    {
        graph.is_backed = true;
    }
    result
}

/// Has the driver give back what it keeps for graphs that are not running.
pub(super) fn trim(device: CUdevice) -> CUresult {
    for graph in lock(&account().graphs).values_mut().filter(|graph| graph.device == device) {
        graph.is_backed = false;
    }
    // SAFETY: a number, and the driver says whether it is a device.
    unsafe { real::cuDeviceGraphMemTrim(device) }
}

unsafe extern "C" fn cuDeviceGraphMemTrim(device: CUdevice) -> CUresult {
    let result = trim(device);
    if result == CUresult::SUCCESS {
        settle(Store::Graphs(device));
    }
    result
}

unsafe extern "C" fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult {
    let known = (ALLOCATING.load(Ordering::Relaxed) > 0)
        .then(|| lock(&account().graphs).remove(&(exec as usize)))
        .flatten();
    let pieces = crate::launch::forget(exec.addr());
    // SAFETY: the argument is the program's, passed on as it is.
    let result = unsafe { real::cuGraphExecDestroy(exec) };
    if let Some(pieces) = pieces.filter(|_| result != CUresult::SUCCESS) {
        pieces.restore();
    }
    if let Some(graph) = known {
        if result == CUresult::SUCCESS {
            ALLOCATING.fetch_sub(1, Ordering::Relaxed);
            settle(Store::Graphs(graph.device));
        } else {
            lock(&account().graphs).insert(exec as usize, graph);
        }
    }
    result
}

unsafe extern "C" fn cuGraphAddMemAllocNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *mut AllocationNode,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    let call = || unsafe { real::cuGraphAddMemAllocNode(node, graph, dependencies, count, parameters) };
    // SAFETY: null, or parameters to read, as the driver's documentation says.
    let asked = unsafe { parameters.as_ref() }.filter(|asked| !asked.pool.location.is_host());
    let Some(asked) = asked else { return call() };
    // The device's driver may take the memory now, or at the first launch.
    let bytes = Bytes(asked.bytes as u64);
    backed(Allocating { device: device().unwrap_or(0), bytes, is_backed: false }, call)
}

unsafe extern "C" fn cuGraphInstantiate(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    error_node: *mut CUgraphNode,
    log: *mut c_char,
    log_bytes: usize,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe {
        instantiate(exec, graph, 0, || real::cuGraphInstantiate(exec, graph, error_node, log, log_bytes))
    }
}

unsafe extern "C" fn cuGraphInstantiate_v2(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    error_node: *mut CUgraphNode,
    log: *mut c_char,
    log_bytes: usize,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe {
        instantiate(exec, graph, 0, || real::cuGraphInstantiate_v2(exec, graph, error_node, log, log_bytes))
    }
}

unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe { instantiate(exec, graph, flags, || real::cuGraphInstantiateWithFlags(exec, graph, flags)) }
}

/// The flags in `CUDA_GRAPH_INSTANTIATE_PARAMS`: its first field.
///
/// # Safety
/// Null, or such parameters.
unsafe fn flags_of(parameters: *mut c_void) -> c_ulonglong {
    // SAFETY: the caller's promise.
    unsafe { parameters.cast::<c_ulonglong>().as_ref() }.copied().unwrap_or(0)
}

unsafe extern "C" fn cuGraphInstantiateWithParams(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut c_void,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe {
        instantiate(exec, graph, flags_of(parameters), || {
            real::cuGraphInstantiateWithParams(exec, graph, parameters)
        })
    }
}

unsafe extern "C" fn cuGraphInstantiateWithParams_ptsz(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut c_void,
) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    unsafe {
        instantiate(exec, graph, flags_of(parameters), || {
            real::cuGraphInstantiateWithParams_ptsz(exec, graph, parameters)
        })
    }
}

unsafe extern "C" fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    launch(exec, || unsafe { real::cuGraphUpload(exec, stream) })
}

unsafe extern "C" fn cuGraphUpload_ptsz(exec: CUgraphExec, stream: CUstream) -> CUresult {
    // SAFETY: the arguments are the program's, passed on as they are.
    launch(exec, || unsafe { real::cuGraphUpload_ptsz(exec, stream) })
}

unsafe extern "C" fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult {
    page().shim.graph_launches.fetch_add(1, Ordering::Relaxed);
    let to = || meant(sys::CUstream(stream), LEGACY);
    // SAFETY: the arguments are the program's, passed on as they are.
    let call = |exec| unsafe { real::cuGraphLaunch(exec, stream) };
    launch(exec, || crate::launch::launch_graph(exec, to, call))
}

unsafe extern "C" fn cuGraphLaunch_ptsz(exec: CUgraphExec, stream: CUstream) -> CUresult {
    page().shim.graph_launches.fetch_add(1, Ordering::Relaxed);
    let to = || meant(sys::CUstream(stream), PER_THREAD);
    // SAFETY: the arguments are the program's, passed on as they are.
    let call = |exec| unsafe { real::cuGraphLaunch_ptsz(exec, stream) };
    launch(exec, || crate::launch::launch_graph(exec, to, call))
}
