//! Capturing: streams that write down what they are given instead of doing it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::graph::{Graph, NodeIndex};

/// One capture: from the beginning in one stream to the end in the same one. Other streams join by waiting for its events.
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) graph: Arc<Graph>,
    /// The stream in which it began.
    pub(crate) origin: u64,
    over: AtomicBool,
    invalid: AtomicBool,
}

impl Session {
    pub(crate) fn new(graph: Arc<Graph>, origin: u64) -> Arc<Self> {
        let (over, invalid) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { id: crate::objects::number(), graph, origin, over, invalid })
    }

    /// Whether it has not ended.
    pub(crate) fn is_active(&self) -> bool {
        !self.over.load(Ordering::Acquire)
    }

    /// Whether something was done that no graph can hold.
    pub(crate) fn is_invalid(&self) -> bool {
        self.invalid.load(Ordering::Acquire)
    }

    pub(crate) fn invalidate(&self) {
        self.invalid.store(true, Ordering::Release);
    }

    /// Ends it for all its streams.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }
}

/// A capture as one of its streams has it.
#[derive(Clone)]
pub(crate) struct Capture {
    pub(crate) session: Arc<Session>,
    /// The nodes that the next one depends on.
    pub(crate) last: Vec<NodeIndex>,
}
