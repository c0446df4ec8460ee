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
//! | [`cached`] | what is asked of an index of cached blocks |
//! | [`replica`] | what is known of a replica: what it can do, what it has to do, how its GPU is |
//! | [`breaker`] | whether a replica gets requests at all: health checks and a circuit breaker |
//! | `backlog` | what a replica still has to do |
//! | [`policy`] | the rules by which a replica is chosen, one file each |
//! | [`admission`] | when a request may go |
//! | [`router`] | where each request goes and when: the decider around a policy |

pub mod admission;
mod backlog;
pub mod breaker;
pub mod cached;
pub mod index;
mod eviction;
pub mod policy;
pub mod prefix;
pub mod replica;
pub mod router;
pub mod traffic;
