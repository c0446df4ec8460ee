//! The vocabulary of Partywall and everything that decides.
//!
//! Nothing here does I/O, reads a clock, starts a thread or draws a random number: time and events come in as
//! arguments, actions go out as values. The simulator, the node daemon and the shim run the same code.

pub mod catalogue;
pub mod chunk_size;
pub mod config;
pub mod copy_scheduler;
pub mod device_turns;
pub mod diagnostic;
pub mod duty_cycle;
pub mod faults;
pub mod governor;
pub mod gpu;
pub mod guarantee;
pub mod measure;
pub mod memory_ledger;
pub mod restart;
pub mod sm_arbiter;
pub mod sm_proof;
pub mod sm_sets;
pub mod soft_gpu;
pub mod tenant;
pub mod units;
pub mod wall;
