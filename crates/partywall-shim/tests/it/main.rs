//! The library in front of unmodified programs: C programs that open, link and look up the driver in every way, with the
//! library preloaded or in the driver's place, a small driver behind it and a node that does as it is told.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper that fails fails its test"
)]

mod code;
mod copies;
mod coverage;
mod graphs;
mod lookups;
mod processes;
mod resized;
mod stage;
mod ways_in;
