//! A stand-in inference engine: OpenAI's API over modelled times, and a real block cache that tells its events.
//!
//! Gateways and routers are tried against it without a GPU. It answers like vLLM in what such a program can see: how long a first token
//! takes, given what waits before it and what of the prompt is in the cache; when a cache's blocks come and go, told on ZMQ in the shapes of
//! vLLM and SGLang; and what of all that goes wrong, on request. The model of the engine is the simulator's
//! ([`partywall_sim::serving::engine`]), here stepped by a clock, so both worlds see the same engine.
//!
//! | module | what is in it |
//! |---|---|
//! | [`settings`], [`error`] | what an engine is like; why it does not start |
//! | [`server`] | replicas behind listeners |
//! | [`api`] | OpenAI's paths, and those for faults |
//! | [`replica`] | the task that owns an engine and steps it by the [`clock`] |
//! | [`tokens`], [`blocks`] | what a token is, what is in a block |
//! | [`tokenizer`] | the same for others, as the files that a model brings |
//! | [`events`] | what is told of the cache |
//! | [`faults`] | what goes wrong on request |
//! | [`metrics`] | the page for Prometheus |

pub mod api;
pub mod blocks;
pub mod clock;
pub mod error;
pub mod events;
pub mod faults;
pub mod metrics;
pub mod replica;
pub mod server;
pub mod settings;
pub mod tokenizer;
pub mod tokens;
