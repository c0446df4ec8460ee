//! What the device does over time: streams, events, graphs.

pub(crate) mod capture;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod operation;
mod run;
pub(crate) mod stream;
