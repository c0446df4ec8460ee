//! HTTP in front of replicas.

pub mod config;
pub mod target;
