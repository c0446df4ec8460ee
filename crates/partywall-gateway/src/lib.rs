//! HTTP in front of replicas.

pub mod kv_events;
