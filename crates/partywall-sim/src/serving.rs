//! Inference engines in virtual time, and a router in front of them.
//!
//! | module | what is in it |
//! |---|---|
//! | [`engine`] | a model of one engine: a prompt at a time, streams of tokens, a cache of blocks |
//! | [`view`] | which engine holds which block, from their events |
//! | [`replay`] | a router in front of engines, under the load of a trace |
//! | [`generate`] | a load like a recorded one |
//! | [`copies`] | a load many times over |
//! | [`measures`] | what came of a replay |
//! | [`comparison`] | policies side by side |

mod cache;
pub mod comparison;
pub mod copies;
pub mod engine;
pub mod generate;
pub mod measures;
pub mod replay;
pub mod view;
