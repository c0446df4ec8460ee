//! Which request goes to which replica.
//!
//! A *replica* is one copy of an inference server. It keeps the keys and values that it computed for the beginning of a prompt, in
//! blocks, and skips that work when another prompt begins alike. So where a request goes decides how long it waits, how much is computed
//! twice, and what is pushed out of whose cache. Everything here decides about that and does nothing else: no I/O, no clock, no thread,
//! no randomness. The gateway and the simulator step the same code.
//!
//! | module | what is in it |
//! |---|---|
//! | [`prefix`] | what a prompt begins with, as one number per block |
//! | [`replica`] | what is known of a replica: what it can do, what it has to do, how its GPU is |
//! | [`cached`] | who holds how much of a prompt's beginning: one question, two ways to know |
//! | [`index`] | exactly who holds what, from what engines say |
//! | [`approximate`] | roughly who holds what, from what was sent to whom |
//! | [`feed`] | whether what an engine says is all of it, in order |
//! | [`policy`] | the rules by which a replica is chosen, one file each |

pub mod approximate;
pub mod cached;
pub mod feed;
pub mod index;
pub mod policy;
pub mod prefix;
pub mod replica;
mod table;
