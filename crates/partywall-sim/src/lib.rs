//! A model of a GPU under contention, in virtual time, and the deciders replayed in it.
//!
//! From a recorded [`profile`] and a GPU of the catalogue comes a [`kernel::Program`]; a wall becomes a [`layout`]; the
//! [`machine`] runs tenants with their [`load`] on it and counts what they got; an [`experiment`] compares that with
//! the same arrivals alone. Same seed, same bytes.

pub mod chance;
mod contention;
mod error;
pub mod experiment;
pub mod ims;
pub mod kernel;
pub mod layout;
mod link;
pub mod load;
pub mod machine;
pub mod metrics;
pub mod parallel;
pub mod params;
mod power;
pub mod profile;
pub mod scenario;
pub mod serving;
pub mod speed;
pub mod trace;
pub mod validate;

pub use error::SimError;
