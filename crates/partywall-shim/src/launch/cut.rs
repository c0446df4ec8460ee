//! Cuts a graph: makes executable pieces of it.
//!
//! Pieces are clones of the graph without the nodes of the others. To clone the whole graph for each piece would be quadratic, so a clone
//! is cloned and each of the two loses a half, and so on: with n nodes, n log n calls. The program's graph itself is only read.
//!
//! Not every graph means the same in pieces:
//!
//! - Memory nodes and conditional ones cannot be cloned (documented for `cuGraphClone`).
//! - Nodes that wait for a word in memory or for a semaphore may wait for another branch of the same graph, which then never comes.
//! - Kernels whose parameters the device itself changes are tied to the one executable graph that they were made for.
//! - Kernels on several devices may wait for each other, as those of collective operations do.
//! - An error anywhere: a graph that cannot be cut goes as a whole.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, ptr};

use super::COOPERATIVE;
use super::order::{Piece, Weight, limit, order, pieces};
use crate::copies::apart;
use crate::say::say;
use crate::sms::Squeezed;
use crate::sys::CUresult;

/// `CUgraph`, `CUgraphNode` and `CUgraphExec`: pointers to what only the driver knows.
pub(super) type Handle = usize;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`: only with a stream to upload in, which pieces do not have.
const UPLOAD: c_ulonglong = 2;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`.
pub(super) const DEVICE_LAUNCH: c_ulonglong = 4;

/// `CUgraphNodeType`.
mod kind {
    use std::ffi::c_uint;

    pub(super) const KERNEL: c_uint = 0;
    pub(super) const COPY: c_uint = 1;
    pub(super) const FILL: c_uint = 2;
    pub(super) const HOST: c_uint = 3;
    pub(super) const GRAPH: c_uint = 4;
    pub(super) const EMPTY: c_uint = 5;
    pub(super) const EVENT_WAIT: c_uint = 6;
    pub(super) const EVENT_RECORD: c_uint = 7;
    pub(super) const SEMAPHORE_SIGNAL: c_uint = 8;
}

/// `CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE`, from CUDA 12.4 on.
const DEVICE_UPDATABLE: c_uint = 13;

/// How deep graphs within graphs are looked into, as for their memory.
const DEPTH_MAX: u32 = 16;

/// `CUDA_KERNEL_NODE_PARAMS` of CUDA 12.0 and later: all but the context is passed on as it is.
#[derive(Default)]
#[repr(C)]
struct KernelNode {
    before: [u64; 8],
    context: usize,
}

const _: () = assert!(size_of::<KernelNode>() == 72, "the size of CUDA_KERNEL_NODE_PARAMS_v2 in cuda.h");

mod real {
    use super::{Handle, KernelNode, c_int, c_uint, c_ulonglong};

    crate::real::functions! {
        fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
        fn cuGraphGetEdges(graph: Handle, from: *mut Handle, to: *mut Handle, count: *mut usize);
        fn cuGraphGetEdges_v2(
            graph: Handle, from: *mut Handle, to: *mut Handle, data: *mut u64, count: *mut usize,
        );
        fn cuGraphNodeGetType(node: Handle, kind: *mut c_uint);
        fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: *mut Handle);
        fn cuGraphKernelNodeGetAttribute(node: Handle, attribute: c_uint, value: *mut [u64; 8]);
        fn cuGraphKernelNodeGetParams_v2(node: Handle, parameters: *mut KernelNode);
        fn cuGraphKernelNodeSetParams_v2(node: Handle, parameters: *const KernelNode);
        fn cuGraphClone(clone: *mut Handle, graph: Handle);
        fn cuGraphNodeFindInClone(found: *mut Handle, original: Handle, clone: Handle);
        fn cuGraphDestroyNode(node: Handle);
        fn cuGraphDestroy(graph: Handle);
        fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: c_ulonglong);
        fn cuGraphExecDestroy(exec: Handle);
        fn cuCtxGetDevice(device: *mut c_int);
        fn cuDeviceGetCount(count: *mut c_int);
        fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, is_active: *mut c_int);
    }
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is no longer than a piece.
    Short,
    /// It cannot be cut.
    Whole,
    /// Its pieces, to be launched in this order.
    Cut(Vec<Cutting>),
}

/// A piece.
#[derive(Debug)]
pub(super) struct Cutting {
    pub(super) own: Exec,
    /// The same kernels on the squeezed set.
    pub(super) squeezed: Option<Exec>,
}

/// A piece that can be launched.
#[derive(Debug)]
pub(super) struct Exec(pub(super) Handle);

impl Drop for Exec {
    fn drop(&mut self) {
        // One that is running is freed when it is through (documented).
        // SAFETY: instantiated for us alone, and handed to nobody who keeps it.
        let _ = apart(|| unsafe { real::cuGraphExecDestroy(self.0) });
    }
}

/// A graph of ours.
#[derive(Debug)]
pub(super) struct Ours(pub(super) Handle);

impl Drop for Ours {
    fn drop(&mut self) {
        // SAFETY: made for us alone, as a clone or by a capture of ours.
        let _ = unsafe { real::cuGraphDestroy(self.0) };
    }
}

/// Cuts a graph of the program that it has just instantiated with these flags. `squeezed`: each piece is also to be had on that set, and so a
/// graph that is no longer than a piece becomes one.
pub(super) fn cut(graph: Handle, flags: c_ulonglong, squeezed: Option<&Squeezed>) -> Outcome {
    if flags & DEVICE_LAUNCH != 0 {
        return Outcome::Whole;
    }
    apart(|| {
        let Some(kernels) = kernels_of(graph, DEPTH_MAX) else { return Outcome::Whole };
        let mut execs = Vec::new();
        let is_short = match read(graph) {
            None => return Outcome::Whole,
            Some(shape) => {
                matches!(&shape.pieces(limit(kernels), false)[..], [] | [Piece { is_nested: false, .. }])
            }
        };
        if kernels == 0 || (is_short && squeezed.is_none()) {
            return Outcome::Short;
        }
        if has_other_devices() {
            return Outcome::Whole;
        }
        let cutter = Cutter { limit: limit(kernels), flags: flags & !UPLOAD, squeezed };
        match cutter.cut(graph, DEPTH_MAX, &mut execs) {
            Some(()) if execs.len() > 1 || (is_short && !execs.is_empty()) => Outcome::Cut(execs),
            _ => Outcome::Whole,
        }
    })
}

/// Whether the process computes on other devices as well.
fn has_other_devices() -> bool {
    let (mut current, mut count) = (0, 0);
    // SAFETY: places for the answers.
    let is_known = unsafe {
        good(real::cuCtxGetDevice(&raw mut current)).and(good(real::cuDeviceGetCount(&raw mut count)))
    };
    let is_active = |device| {
        let (mut flags, mut is_active) = (0, 0);
        // SAFETY: as above.
        let result = unsafe { real::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut is_active) };
        good(result).is_none() || is_active != 0
    };
    is_known.is_none() || (0..count).any(|device| device != current && is_active(device))
}

fn good(result: CUresult) -> Option<()> {
    (result == CUresult::SUCCESS).then_some(())
}

/// The nodes of a graph, in the order in which the driver names them.
fn nodes_of(graph: Handle) -> Option<Vec<Handle>> {
    let mut count = 0;
    // SAFETY: a graph of the program or of ours; without a place for nodes only their number is given.
    good(unsafe { real::cuGraphGetNodes(graph, ptr::null_mut(), &raw mut count) })?;
    let mut nodes = vec![0; count];
    if count > 0 {
        // SAFETY: as above, with room for `count` nodes.
        good(unsafe { real::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) })?;
        nodes.truncate(count);
    }
    Some(nodes)
}

/// The edges of a graph. Where some say more than that one node comes after the whole of another, as those of programmatic launches
/// do, that is asked for as well, or the driver does not answer. Between pieces, which come after the whole of each other, it is lost.
fn edges_of(graph: Handle) -> Option<Vec<(Handle, Handle)>> {
    let get = |from: *mut Handle, to: *mut Handle, data: *mut u64, count: &mut usize| {
        // SAFETY: a graph of the program or of ours, and room for as many edges as `count` says, or none.
        let result = unsafe { real::cuGraphGetEdges_v2(graph, from, to, data, count) };
        if result == CUresult::NOT_FOUND {
            // SAFETY: as above; a driver before CUDA 12.3, where edges say nothing more.
            return unsafe { real::cuGraphGetEdges(graph, from, to, count) };
        }
        result
    };
    let mut count = 0;
    good(get(ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), &mut count))?;
    if count == 0 {
        return Some(Vec::new());
    }
    // `CUgraphEdgeData` has eight bytes.
    let (mut from, mut to, mut data) = (vec![0; count], vec![0; count], vec![0; count]);
    good(get(from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count))?;
    Some(from.into_iter().zip(to).take(count).collect())
}

fn kind_of(node: Handle) -> Option<c_uint> {
    let mut kind = 0;
    // SAFETY: a node that the driver has just named, and a place for the answer.
    good(unsafe { real::cuGraphNodeGetType(node, &raw mut kind) })?;
    Some(kind)
}

fn child_of(node: Handle) -> Option<Handle> {
    let mut graph = 0;
    // SAFETY: as above; the graph stays the node's.
    good(unsafe { real::cuGraphChildGraphNodeGetGraph(node, &raw mut graph) })?;
    Some(graph)
}

/// How long a node is; `None` where its graph is not to be cut.
fn weigh(node: Handle, depth: u32) -> Option<Weight> {
    let kernels = |kernels| Some(Weight { kernels, is_graph: false });
    match kind_of(node)? {
        kind::KERNEL if is_updatable(node) => None,
        kind::KERNEL | kind::COPY | kind::FILL => kernels(1),
        kind::HOST | kind::EMPTY | kind::EVENT_WAIT | kind::EVENT_RECORD | kind::SEMAPHORE_SIGNAL => {
            kernels(0)
        }
        kind::GRAPH => {
            let kernels = kernels_of(child_of(node)?, depth.checked_sub(1)?)?;
            Some(Weight { kernels, is_graph: true })
        }
        // Waits for semaphores, memory, memory operations, conditions, and what newer drivers have.
        _ => None,
    }
}

/// Whether the device itself changes a kernel's parameters.
fn is_updatable(node: Handle) -> bool {
    let mut value = [0_u64; 8];
    // SAFETY: a kernel node, and room for `CUlaunchAttributeValue`, 64 bytes. A driver that does not know the attribute has no such nodes.
    let result = unsafe { real::cuGraphKernelNodeGetAttribute(node, DEVICE_UPDATABLE, &raw mut value) };
    good(result).is_some() && value[0] as c_int != 0
}

fn kernels_of(graph: Handle, depth: u32) -> Option<u32> {
    nodes_of(graph)?
        .into_iter()
        .try_fold(0_u32, |sum, node| Some(sum.saturating_add(weigh(node, depth)?.kernels)))
}

/// A graph's nodes in an order that fits its edges.
struct Shape {
    nodes: Vec<(Handle, Weight)>,
}

impl Shape {
    fn pieces(&self, limit: u32, flat: bool) -> Vec<Piece> {
        pieces(&self.nodes.iter().map(|(_, weight)| *weight).collect::<Vec<_>>(), limit, flat)
    }
}

fn read(graph: Handle) -> Option<Shape> {
    let nodes = nodes_of(graph)?;
    let places: BTreeMap<Handle, usize> =
        nodes.iter().enumerate().map(|(place, node)| (*node, place)).collect();
    let edges = edges_of(graph)?.into_iter();
    let edges: Option<Vec<_>> =
        edges.map(|(from, to)| Some((*places.get(&from)?, *places.get(&to)?))).collect();
    let order = order(nodes.len(), &edges?)?;
    let weighed = |place: usize| Some((nodes[place], weigh(nodes[place], DEPTH_MAX)?));
    Some(Shape { nodes: order.into_iter().map(weighed).collect::<Option<_>>()? })
}

/// Clones a graph; the clones of these nodes.
fn cloned(graph: Handle, nodes: &[Handle]) -> Option<(Ours, Vec<Handle>)> {
    let mut clone = 0;
    // SAFETY: a graph of the program or of ours, and a place for the answer.
    good(unsafe { real::cuGraphClone(&raw mut clone, graph) })?;
    let clone = Ours(clone);
    let find = |node: &Handle| {
        let mut found = 0;
        // SAFETY: a node of the graph, which it had when it was cloned.
        good(unsafe { real::cuGraphNodeFindInClone(&raw mut found, *node, clone.0) })?;
        Some(found)
    };
    let nodes = nodes.iter().map(find).collect::<Option<_>>()?;
    Some((clone, nodes))
}

/// Takes nodes out of a clone.
fn without(nodes: &[Handle]) -> Option<()> {
    // SAFETY: nodes of a clone of ours, each once.
    nodes.iter().try_for_each(|node| good(unsafe { real::cuGraphDestroyNode(*node) }))
}

fn instantiated(graph: Handle, flags: c_ulonglong) -> Result<Exec, Refusal> {
    let mut exec = 0;
    // SAFETY: a clone of ours, and a place for the answer.
    let result = unsafe { real::cuGraphInstantiateWithFlags(&raw mut exec, graph, flags) };
    refusal("cuGraphInstantiateWithFlags", result)?;
    Ok(Exec(exec))
}

/// Why a graph cannot go onto the squeezed set.
#[derive(Debug)]
enum Refusal {
    /// The driver refuses what is asked of it.
    Driver(&'static str, CUresult),
    /// It has a cooperative kernel.
    Cooperative,
    /// The driver does not say what it is made of.
    Unreadable,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(function, result) => write!(f, "{function} returns {}", result.0),
            Self::Cooperative => f.write_str("a kernel of it is cooperative"),
            Self::Unreadable => f.write_str("its nodes cannot be read"),
        }
    }
}

fn refusal(function: &'static str, result: CUresult) -> Result<(), Refusal> {
    if result == CUresult::SUCCESS { Ok(()) } else { Err(Refusal::Driver(function, result)) }
}

/// Whether a kernel needs all its blocks on the SMs at once: the number of them was chosen by the SMs that the program was told of.
fn is_cooperative(node: Handle) -> bool {
    let mut value = [0_u64; 8];
    // SAFETY: as in `is_updatable`.
    let result = unsafe { real::cuGraphKernelNodeGetAttribute(node, COOPERATIVE, &raw mut value) };
    good(result).is_none_or(|()| value[0] as c_int != 0)
}

/// Has the kernels of a graph of ours run in another context.
fn put_onto(graph: Handle, context: usize) -> Result<(), Refusal> {
    for node in nodes_of(graph).ok_or(Refusal::Unreadable)? {
        if kind_of(node).ok_or(Refusal::Unreadable)? != kind::KERNEL {
            continue;
        }
        if is_cooperative(node) {
            return Err(Refusal::Cooperative);
        }
        let mut parameters = KernelNode::default();
        // SAFETY: a kernel node, and room for its parameters. What they point to stays the node's.
        let result = unsafe { real::cuGraphKernelNodeGetParams_v2(node, &raw mut parameters) };
        refusal("cuGraphKernelNodeGetParams", result)?;
        parameters.context = context;
        // SAFETY: as above; the driver has copied them when it returns.
        let result = unsafe { real::cuGraphKernelNodeSetParams_v2(node, &raw const parameters) };
        refusal("cuGraphKernelNodeSetParams", result)?;
    }
    Ok(())
}

/// Says once in a process why one of its graphs is held where it would be squeezed.
fn say_once(refusal: &Refusal) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        say(&format!("a graph cannot go onto the squeezed SMs, so it is held instead: {refusal}"));
    }
}

struct Cutter<'a> {
    limit: u32,
    flags: c_ulonglong,
    squeezed: Option<&'a Squeezed>,
}

impl Cutter<'_> {
    /// Makes a piece ready: on the SMs of its capture, and on the squeezed set. There the driver takes the context of a kernel node from
    /// its parameters or from the current one, depending on what kind of kernel it is (H200, CUDA 13.0), so both say the same.
    fn piece(&self, clone: &Ours) -> Option<Cutting> {
        let own = instantiated(clone.0, self.flags).ok()?;
        let squeezed = self.squeezed.and_then(|squeezed| {
            let made = squeezed.within(|context| {
                put_onto(clone.0, context)?;
                instantiated(clone.0, self.flags)
            });
            made?.inspect_err(say_once).ok()
        });
        Some(Cutting { own, squeezed })
    }

    fn cut(&self, graph: Handle, depth: u32, execs: &mut Vec<Cutting>) -> Option<()> {
        let shape = read(graph)?;
        // A graph within the graph would have to be put onto the other set with its own kernels.
        let pieces = shape.pieces(self.limit, self.squeezed.is_some());
        let nodes: Vec<Handle> = shape.nodes.iter().map(|(node, _)| *node).collect();
        let (clone, nodes) = cloned(graph, &nodes)?;
        self.halve(clone, &nodes, &pieces, depth, execs)
    }

    /// Makes these pieces, one behind the other, of a clone that has just their nodes.
    fn halve(
        &self,
        clone: Ours,
        nodes: &[Handle],
        pieces: &[Piece],
        depth: u32,
        execs: &mut Vec<Cutting>,
    ) -> Option<()> {
        match pieces {
            [] => Some(()),
            [piece] if piece.is_nested => self.cut(child_of(*nodes.first()?)?, depth.checked_sub(1)?, execs),
            [_] => {
                execs.push(self.piece(&clone)?);
                Some(())
            }
            _ => {
                let (first, second) = pieces.split_at(pieces.len() / 2);
                let middle = first.iter().map(|piece| piece.places.len()).sum();
                let (other, others) = cloned(clone.0, nodes)?;
                let (_, behind) = nodes.split_at_checked(middle)?;
                let (before, rest) = others.split_at_checked(middle)?;
                without(behind)?;
                without(before)?;
                self.halve(clone, &nodes[..middle], first, depth, execs)?;
                self.halve(other, rest, second, depth, execs)
            }
        }
    }
}
