//! Graphs: operations with what each must come after.
//!
//! A graph runs its nodes one after the other, in an order that fits their dependencies: branches do not overlap in time. The
//! results are those of a real device; a graph with wide branches takes longer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::engine::event::Event;
use crate::engine::operation::Operation;
use crate::error::Code;
use crate::memory::pool::Pool;

/// A node's place in its graph.
pub(crate) type NodeIndex = usize;

/// A node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    /// `CUgraphNodeType`.
    pub(crate) kind: u32,
    pub(crate) operation: Operation,
    pub(crate) after: Vec<NodeIndex>,
    /// For allocations: the address and size.
    pub(crate) memory: (u64, u64),
    /// For graphs within the graph: what it was given, as a graph of its own that can be looked at.
    pub(crate) child: Option<Arc<Graph>>,
    /// The node that it was cloned from.
    pub(crate) origin: Option<u64>,
}

impl Node {
    /// A node that comes after those of these places.
    pub(crate) fn new(kind: u32, operation: Operation, after: &[NodeIndex]) -> Self {
        let handle = crate::objects::number();
        Self { handle, kind, operation, after: after.to_vec(), memory: (0, 0), child: None, origin: None }
    }
}

/// `CUgraphNodeType`, as far as graphs here have them.
pub(crate) mod kind {
    pub(crate) const KERNEL: u32 = 0;
    pub(crate) const COPY: u32 = 1;
    pub(crate) const FILL: u32 = 2;
    pub(crate) const HOST: u32 = 3;
    pub(crate) const GRAPH: u32 = 4;
    pub(crate) const EMPTY: u32 = 5;
    pub(crate) const WAIT: u32 = 6;
    pub(crate) const RECORD: u32 = 7;
    pub(crate) const ALLOCATE: u32 = 10;
    pub(crate) const FREE: u32 = 11;
    pub(crate) const MEMORY_OPERATION: u32 = 12;
}

/// A graph.
pub(crate) struct Graph {
    pub(crate) handle: u64,
    nodes: Mutex<Vec<Node>>,
    memory: Arc<Owned>,
}

/// What a node handle stands for.
pub(crate) struct NodeName {
    pub(crate) graph: Weak<Graph>,
}

/// Memory that belongs to a graph and to what was made ready from it.
#[derive(Default)]
pub(crate) struct Owned(Mutex<Vec<(Arc<Pool>, u64)>>);

impl Drop for Owned {
    fn drop(&mut self) {
        let owned = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (pool, address) in owned {
            if let Ok(process) = crate::process::get() {
                process.memory.addresses.remove(address, |_| true);
            }
            pool.give(address);
            pool.settle();
        }
    }
}

/// A graph that is ready to launch.
pub(crate) struct GraphExec {
    pub(crate) nodes: Mutex<Arc<Vec<Node>>>,
    pub(crate) flags: u64,
    /// Recorded behind each launch. Locked from one launch's look at it until it is recorded behind that.
    pub(crate) last: Mutex<Event>,
    memory: Arc<Owned>,
}

impl Graph {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { handle: crate::objects::number(), nodes: Mutex::default(), memory: Arc::default() })
    }

    /// Adds a node.
    pub(crate) fn add(&self, kind: u32, operation: Operation, after: &[NodeIndex]) -> NodeIndex {
        let mut nodes = self.nodes();
        nodes.push(Node::new(kind, operation, after));
        nodes.len() - 1
    }

    pub(crate) fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory that lives as long as the graph.
    pub(crate) fn own(&self, pool: Arc<Pool>, address: u64) {
        self.memory.0.lock().unwrap_or_else(PoisonError::into_inner).push((pool, address));
    }

    /// The place of a node.
    pub(crate) fn place_of(&self, handle: u64) -> Option<NodeIndex> {
        self.nodes().iter().position(|node| node.handle == handle)
    }

    /// Whether it has memory of its own, or a graph within it has.
    pub(crate) fn has_memory(&self) -> bool {
        let has = |node: &Node| {
            matches!(node.kind, kind::ALLOCATE | kind::FREE)
                || node.child.as_ref().is_some_and(|child| child.has_memory())
        };
        self.nodes().iter().any(has)
    }

    /// Takes a node out, with what others waited for because of it.
    pub(crate) fn remove(&self, gone: NodeIndex) {
        let mut nodes = self.nodes();
        nodes.remove(gone);
        for node in nodes.iter_mut() {
            node.after.retain(|before| *before != gone);
            node.after.iter_mut().filter(|before| **before > gone).for_each(|before| *before -= 1);
        }
    }

    /// The nodes in an order that fits their dependencies.
    pub(crate) fn ordered(&self) -> Result<Vec<Node>, Code> {
        let nodes = self.nodes();
        let mut waits: Vec<usize> = nodes.iter().map(|node| node.after.len()).collect();
        let mut later: Vec<Vec<NodeIndex>> = vec![Vec::new(); nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            node.after.iter().for_each(|before| later[*before].push(index));
        }
        let mut ready: Vec<NodeIndex> = (0..nodes.len()).rev().filter(|index| waits[*index] == 0).collect();
        let mut ordered = Vec::with_capacity(nodes.len());
        while let Some(index) = ready.pop() {
            ordered.push(nodes[index].clone());
            for &next in later[index].iter().rev() {
                waits[next] -= 1;
                if waits[next] == 0 {
                    ready.push(next);
                }
            }
        }
        // What is left over waits for itself.
        if ordered.len() == nodes.len() { Ok(ordered) } else { Err(Code::INVALID_VALUE) }
    }

    /// Ready to launch.
    pub(crate) fn instantiate(&self, flags: u64) -> Result<GraphExec, Code> {
        let nodes = Mutex::new(Arc::new(self.ordered()?));
        let last = Mutex::new(Event::new(false, None));
        Ok(GraphExec { nodes, flags, last, memory: Arc::clone(&self.memory) })
    }

    /// A graph with the same nodes.
    pub(crate) fn clone_nodes(&self) -> Arc<Self> {
        let mut nodes = self.nodes().clone();
        for node in &mut nodes {
            node.origin = Some(node.handle);
            node.handle = crate::objects::number();
            node.child = node.child.as_ref().map(|child| child.clone_nodes());
        }
        let memory = Arc::clone(&self.memory);
        Arc::new(Self { handle: crate::objects::number(), nodes: Mutex::new(nodes), memory })
    }
}

impl GraphExec {
    /// Whether it has memory of its own.
    pub(crate) fn has_memory(&self) -> bool {
        !self.memory.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(crate) fn program(&self) -> Arc<Vec<Node>> {
        Arc::clone(&self.nodes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another operation into the node of this handle.
    pub(crate) fn set(&self, node: u64, operation: Operation) -> Result<(), Code> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = Arc::make_mut(&mut nodes).iter_mut().find(|known| known.handle == node);
        found.ok_or(Code::INVALID_VALUE)?.operation = operation;
        Ok(())
    }

    /// Takes over a graph of the same shape.
    pub(crate) fn update(&self, graph: &Graph) -> Result<(), Code> {
        let new = graph.ordered()?;
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let same = nodes.len() == new.len() && nodes.iter().zip(&new).all(|(old, new)| old.kind == new.kind);
        if !same {
            return Err(Code::INVALID_VALUE);
        }
        // Handles stay those of the graph it was made of.
        let handles: Vec<u64> = nodes.iter().map(|node| node.handle).collect();
        let taken = new.into_iter().zip(handles).map(|(node, handle)| Node { handle, ..node });
        *nodes = Arc::new(taken.collect());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_fits_the_dependencies_and_a_circle_has_none() {
        let graph = Graph::new();
        let a = graph.add(kind::EMPTY, Operation::Nothing, &[]);
        let b = graph.add(kind::HOST, Operation::Nothing, &[a]);
        let c = graph.add(kind::KERNEL, Operation::Nothing, &[]);
        graph.nodes()[b].after.push(c);
        let kinds = || graph.ordered().map(|nodes| nodes.iter().map(|node| node.kind).collect::<Vec<_>>());
        assert_eq!(kinds(), Ok(vec![kind::EMPTY, kind::KERNEL, kind::HOST]));
        let exec = graph.instantiate(0).unwrap();
        assert!(exec.update(&graph.clone_nodes()).is_ok());
        let (clone, of) = (graph.clone_nodes(), graph.nodes()[c].handle);
        clone.remove(a);
        let left: Vec<_> = clone.nodes().iter().map(|node| (node.origin, node.after.clone())).collect();
        assert_eq!(left, [(Some(graph.nodes()[b].handle), vec![1]), (Some(of), vec![])]);
        graph.nodes()[c].after.push(b);
        assert_eq!(kinds(), Err(Code::INVALID_VALUE));
        assert!(exec.update(&graph).is_err() && exec.update(&Graph::new()).is_err());
    }
}
