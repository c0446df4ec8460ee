//! Where memory lives: the sides and slices of a GPU's memory system, found from user space.
//!
//! The L2 of a large GPU is in two halves, and half of the memory hangs behind each. What is on one *side* does not get in the way of what is
//! on the other. Nothing documented says where an address lives, but what an access takes does: an atomic operation runs where its address
//! lives, so it takes longer from the other side, and two streams of them that go to the same *slice* of the L2 slow each other down.
//!
//! What finds this out is arithmetic over a [`prober::Prober`], which measures. On a GPU that is kernels; in tests it is a
//! [`model::Model`] of a memory system, with the noise that measurements have.
//!
//! | module | what is in it |
//! |---|---|
//! | [`address`] | pages of 2 MiB, and places in them |
//! | [`prober`] | what is measured |
//! | [`split`] | whether numbers are of two kinds |
//! | [`sides`] | which side each group of SMs, and each byte of memory, is on |
//! | [`slices`] | which slice of the L2 a place belongs to |
//! | [`gpu`] | a prober that measures on a GPU |
//! | [`cache`] | what was found out about GPUs before |
//! | [`pages`] | physical pages of which it is known where they are |
//! | [`arena`] | memory of one color, with [`allocator`] for its bytes |
//! | [`sms`] | the SMs of a side |
//! | [`tenant`] | a reader and a writer to measure with, which keep to a side |
//! | [`model`] | memory systems to try it with |
//! | [`coloring`] | where the bytes of an arena of one color are |
//! | [`ptx`] | kernels whose accesses go there |

pub mod address;
pub mod allocator;
pub mod arena;
pub mod cache;
mod chance;
pub mod coloring;
pub mod gpu;
pub mod model;
pub mod pages;
pub mod prober;
pub mod ptx;
pub mod sides;
pub mod slices;
pub mod sms;
pub mod split;
pub mod tenant;
