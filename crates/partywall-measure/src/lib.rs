//! Tenants on a real GPU behind every wall: the line protocol, the method, the statistics and the record.
//!
//! - [`protocol`] and [`load`]: how `measure` and its tenants talk, and what a tenant is asked to do.
//! - [`synthetic`]: the built-in tenants.
//! - [`plan`]: what to measure. [`method`]: when, until when, and what becomes of it. [`stage`]: what a wall needs around
//!   its tenants; [`sides`]: what the wall of that name needs. [`tenant`]: tenants as child processes. [`gpu`]: the machine.
//! - [`window`], [`statistics`], [`rows`]: from requests to percentiles, intervals and ratios.
//! - [`record`] and [`compare`]: the file that a measurement leaves, and two of them against each other.
//! - [`clock`], [`lock`] and [`leftovers`]: the edge, where time is read, a second measurement is kept out, and what a
//!   killed one left is removed.

pub mod clock;
pub mod compare;
pub mod gpu;
pub mod leftovers;
pub mod load;
pub mod lock;
pub mod merge;
pub mod method;
pub mod node;
pub mod plan;
pub mod protocol;
pub mod record;
pub mod rows;
pub mod sides;
pub mod stage;
pub mod statistics;
pub mod summary;
pub mod synthetic;
pub mod tenant;
pub mod window;
