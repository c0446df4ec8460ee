//! What this crate asks of the driver, and in which order, held against a stand-in that writes it down.
//!
//! The stand-in is C, built by the C compiler that linking needs anyway. No GPU and no driver take part.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod fake;
mod graphs;
mod green;
mod handles;
mod loading;
mod memory;
mod modules;
mod virtual_memory;
