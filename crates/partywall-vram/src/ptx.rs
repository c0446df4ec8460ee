//! PTX, read as far as it takes to change what its instructions do to memory, and left as it is everywhere else.
//!
//! | module | what is in it |
//! |---|---|
//! | [`source`] | a module's text as functions and instructions, each with its place |
//! | [`rewrite`] | global accesses through the translation of a [`crate::coloring::Coloring`] |
//! | `access` | what an instruction does to memory |
//! | `translation` | the instructions that compute where an address is |
//! | `eviction` | accesses that leave the L2 first |
//! | [`order`] | what is to be done to a tenant's kernels, as a text that processes hand on |

mod access;
mod eviction;
pub mod order;
pub mod rewrite;
pub mod source;
mod translation;
