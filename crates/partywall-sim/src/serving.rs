//! Inference engines in virtual time, and a router in front of them.
//!
//! | module | what is in it |
//! |---|---|
//! | [`engine`] | a model of one engine: a prompt at a time, streams of tokens, a cache of blocks |
//! | [`view`] | which engine holds which block, from their events |
//! | [`replay`] | a router in front of engines, under the load of a trace |

mod cache;
pub mod engine;
pub mod replay;
pub mod view;
