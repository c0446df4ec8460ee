//! Inference engines in virtual time, and a router in front of them.
//!
//! | module | what is in it |
//! |---|---|
//! | [`engine`] | a model of one engine: a prompt at a time, streams of tokens, a cache of blocks |

mod cache;
pub mod engine;
