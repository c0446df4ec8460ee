//! Into which pieces a graph is cut.
//!
//! # Problem
//!
//! The pieces of a graph are launched one after the other into a stream, each through before the next one begins. The graph's nodes
//! must still run in an order that its edges allow.
//!
//! # Approach
//!
//! The nodes are put into an order in which each comes after all that it waits for, and that is cut into runs of a few kernels. Whatever
//! a node waits for is then in its own piece, where the edge still is, or in an earlier one. A way from one node of a piece to
//! another leads through nodes between them in the order, so through none of another piece: no edge has to be added.
//!
//! Among the nodes that may come next the one that was made first does: in a captured graph that is the program's own order, and
//! branches that were captured in turns stay beside each other in a piece.
//!
//! # Scenarios
//!
//! - S1: a chain, branches, diamonds: any piece together with those before it needs nothing of those behind it.
//! - S2: edges in a circle: no order, so no pieces.
//! - S3: a graph within the graph that is longer than a piece: a piece of its own, to be cut in turn.
//! - S4: a graph of very many nodes: longer pieces, so that there are not too many.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Kernels, copies and fills in a piece: what the device is busy with for some time. So few that a piece of a network takes some tens of
/// microseconds, and so many that launching it (two or three microseconds of the host) is no more than launching its kernels.
pub(super) const KERNELS: u32 = 4;

/// Nodes of any kind in a piece.
const NODES: usize = 16;

/// Pieces of a graph: each takes memory of the driver's, on the device as well.
const PIECES: u32 = 1024;

/// A node, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weight {
    /// Kernels, copies and fills in it: more than one in a graph within the graph.
    pub(super) kernels: u32,
    /// Whether it is a graph.
    pub(super) is_graph: bool,
}

/// A piece: a part of the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// Places in the order.
    pub(super) places: Range<usize>,
    /// One node, a graph that is to be cut itself.
    pub(super) is_nested: bool,
}

/// How many kernels go into a piece of a graph with so many in all.
pub(super) fn limit(kernels: u32) -> u32 {
    kernels.div_ceil(PIECES).max(KERNELS)
}

/// Nodes 0 to `count` in an order that fits the edges, each from an earlier to a later one; `None` where there is none.
pub(super) fn order(count: usize, edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    let mut waits = vec![0_usize; count];
    let mut later = vec![Vec::new(); count];
    for &(from, to) in edges {
        later.get_mut(from)?.push(to);
        *waits.get_mut(to)? += 1;
    }
    let mut ready: BinaryHeap<_> = (0..count).filter(|&node| waits[node] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse(node)) = ready.pop() {
        order.push(node);
        for &next in &later[node] {
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    (order.len() == count).then_some(order)
}

/// Pieces of at most `limit` kernels each, of nodes in their order. `flat`: no graph is part of a piece, however short it is.
pub(super) fn pieces(nodes: &[Weight], limit: u32, flat: bool) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut kernels = 0_u32;
    for (place, node) in nodes.iter().enumerate() {
        let is_nested = node.is_graph && (flat || node.kernels > limit);
        match pieces.last_mut() {
            Some(last)
                if !last.is_nested
                    && !is_nested
                    && last.places.len() < NODES
                    && kernels.saturating_add(node.kernels) <= limit =>
            {
                last.places.end += 1;
                kernels += node.kernels;
            }
            _ => {
                pieces.push(Piece { places: place..place + 1, is_nested });
                kernels = node.kernels;
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const KERNEL: Weight = Weight { kernels: 1, is_graph: false };
    const OTHER: Weight = Weight { kernels: 0, is_graph: false };

    fn graph(kernels: u32) -> Weight {
        Weight { kernels, is_graph: true }
    }

    fn lengths(nodes: &[Weight], limit: u32) -> Vec<usize> {
        pieces(nodes, limit, false).iter().map(|piece| piece.places.len()).collect()
    }

    #[test]
    fn s1_the_order_is_the_one_in_which_nodes_were_made_where_edges_allow_it() {
        assert_eq!(order(4, &[(0, 1), (1, 2), (2, 3)]), Some(vec![0, 1, 2, 3]));
        assert_eq!(order(4, &[(3, 0), (0, 1), (0, 2)]), Some(vec![3, 0, 1, 2]));
        assert_eq!(order(4, &[(0, 1), (0, 2), (1, 3), (2, 3), (0, 1)]), Some(vec![0, 1, 2, 3]));
        assert_eq!(order(0, &[]), Some(vec![]));
    }

    #[test]
    fn s2_a_circle_has_no_order_and_a_node_that_is_not_there_none_either() {
        assert_eq!(order(3, &[(0, 1), (1, 2), (2, 0)]), None);
        assert_eq!(order(2, &[(0, 2)]), None);
        assert_eq!(order(2, &[(2, 0)]), None);
    }

    #[test]
    fn s3_pieces_have_a_few_kernels_and_long_graphs_are_pieces_of_their_own() {
        assert_eq!(lengths(&[KERNEL; 10], 4), [4, 4, 2]);
        assert_eq!(lengths(&[OTHER, KERNEL, KERNEL, OTHER, KERNEL, KERNEL, OTHER, KERNEL], 4), [7, 1]);
        assert_eq!(lengths(&[OTHER; 40], 4), [16, 16, 8]);
        let nodes = [KERNEL, graph(9), OTHER, graph(3), KERNEL, KERNEL];
        let nested = pieces(&nodes, 4, false);
        let shape: Vec<_> = nested.iter().map(|piece| (piece.places.clone(), piece.is_nested)).collect();
        assert_eq!(shape, [(0..1, false), (1..2, true), (2..5, false), (5..6, false)]);
        let flat: Vec<_> = pieces(&nodes, 4, true).into_iter().map(|piece| piece.is_nested).collect();
        assert_eq!(flat, [false, true, false, true, false]);
        assert!(pieces(&[], 4, false).is_empty());
    }

    #[test]
    fn s4_very_long_graphs_have_longer_pieces() {
        assert_eq!((limit(1), limit(4_096), limit(4_097), limit(100_000)), (4, 4, 5, 98));
        assert!(limit(u32::MAX) > 1);
    }

    /// Graphs whose nodes were made in any order.
    fn graphs() -> impl Strategy<Value = (usize, Vec<(usize, usize)>)> {
        (1_usize..60).prop_flat_map(|count| {
            let made = Just((0..count).collect::<Vec<_>>()).prop_shuffle();
            let edges = proptest::collection::vec((0..count, 0..count), 0..150);
            (made, edges).prop_map(move |(made, edges)| {
                let edges = edges.into_iter().filter(|(from, to)| from != to);
                let edges = edges.map(|(a, b)| (made[a.min(b)], made[a.max(b)]));
                (count, edges.collect())
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn pieces_have_every_node_once_and_need_nothing_of_later_ones(
            (count, edges) in graphs(),
            weights in proptest::collection::vec((0_u32..7, any::<bool>()), 60),
            limit in 1_u32..9,
            flat in any::<bool>(),
        ) {
            let order = order(count, &edges).unwrap();
            let weights = weights.into_iter().map(|(kernels, is_graph)| Weight { kernels, is_graph });
            let weights: Vec<_> = weights.take(count).collect();
            let mut before = BTreeSet::new();
            for piece in pieces(&weights, limit, flat) {
                let of_it: BTreeSet<_> = order[piece.places.clone()].iter().copied().collect();
                prop_assert!(of_it.is_disjoint(&before));
                let kernels: u32 = weights[piece.places.clone()].iter().map(|node| node.kernels).sum();
                let is_graph = |place: usize| weights[place].is_graph;
                prop_assert!(!flat || piece.is_nested || !piece.places.clone().any(is_graph));
                prop_assert!(of_it.len() == 1 || (kernels <= limit && of_it.len() <= NODES));
                before.extend(of_it);
                prop_assert!(edges.iter().all(|(from, to)| !before.contains(to) || before.contains(from)));
            }
            prop_assert_eq!(before.len(), count);
        }
    }
}
