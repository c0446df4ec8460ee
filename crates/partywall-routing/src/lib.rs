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
//! | [`index`] | the exact index of cached blocks, fed by events |
//! | [`feed`] | the order of one stream of events: gaps, restarts, duplicates |
//! | [`approximate`] | what replicas are taken to hold because of what was sent to them |
//! | [`replica`] | what is known of a replica: what it can do, what it has to do, how its GPU is |
//! | [`breaker`] | whether a replica gets requests at all: health checks and a circuit breaker |
//! | [`traffic`] | how busy replicas are |
//! | `backlog` | what a replica still has to do |
//! | [`policy`] | the rules by which a replica is chosen, one file each |
//! | [`admission`] | when a request may go |
//! | [`router`] | where each request goes and when: the decider around a policy |

pub mod admission;
pub mod approximate;
mod backlog;
pub mod breaker;
pub mod cached;
mod eviction;
pub mod feed;
pub mod index;
pub mod policy;
pub mod prefix;
pub mod replica;
pub mod router;
mod table;
pub mod traffic;
