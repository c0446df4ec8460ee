//! PTX, read as far as it takes to change what its instructions do to memory, and left as it is everywhere else.
//!
//! | module | what is in it |
//! |---|---|
//! | [`source`] | a module's text as functions and instructions, each with its place |
//! | [`rewrite`] | global accesses through the translation of a [`crate::coloring::Coloring`] |

pub mod rewrite;
pub mod source;
