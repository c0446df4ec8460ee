//! HTTP in front of replicas.
