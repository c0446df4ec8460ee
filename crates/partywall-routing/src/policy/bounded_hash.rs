//! Consistent hashing with bounded loads.
//!
//! Replicas and requests are hashed onto a ring (Karger et al., STOC 1997), each replica at many places. A request goes to the first replica
//! behind its place that has at most 1.25 times the mean number of requests, itself counted (Mirrokni, Thorup, Zadimoghaddam, SODA 2018). So
//! requests that begin alike meet, without anything being known of caches, and no replica runs full. KubeAI routes like this, with 256
//! places a replica, by the first characters of the first message of a conversation.
//!
//! A request's place is its affinity where it has one. Else it is its first [`BEGINNING`] blocks: the first alone is in many workloads a
//! system prompt that all have in common, and would send all of them to one place.

use xxhash_rust::xxh3::xxh3_64;

use super::{Candidate, Choice, Policy, Request};
use crate::replica::ReplicaId;

/// Blocks by which a request is placed.
const BEGINNING: usize = 2;

/// Places of a replica on the ring: KubeAI's default.
const PLACES: u32 = 256;

/// Most requests of a replica, as a multiple of the mean: KubeAI's default.
const BOUND: f64 = 1.25;

/// Consistent hashing with bounded loads.
#[derive(Debug, Default)]
pub struct BoundedHash {
    members: Vec<ReplicaId>,
    /// Places in order, each with its member's index.
    ring: Vec<(u64, u32)>,
}

impl BoundedHash {
    /// Builds the ring anew where the candidates are not those it was built of.
    fn follow(&mut self, candidates: &[Candidate]) {
        if self.members.iter().eq(candidates.iter().map(|candidate| &candidate.replica)) {
            return;
        }
        self.members = candidates.iter().map(|candidate| candidate.replica).collect();
        self.ring.clear();
        for (index, member) in self.members.iter().enumerate() {
            for place in 0..PLACES {
                let name = (u64::from(member.0) << 32 | u64::from(place)).to_le_bytes();
                self.ring.push((xxh3_64(&name), index as u32));
            }
        }
        self.ring.sort_unstable();
    }
}

impl Policy for BoundedHash {
    fn name(&self) -> &'static str {
        "bounded-hash"
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &[Candidate]) -> Choice {
        self.follow(candidates);
        let beginning = &request.prefixes[..request.prefixes.len().min(BEGINNING)];
        let key = request.affinity.or_else(|| beginning.last().map(|prefix| prefix.0)).unwrap_or(0);
        let requests: u32 = candidates.iter().map(|candidate| candidate.load.requests()).sum();
        let bound = (BOUND * f64::from(requests + 1) / candidates.len() as f64).ceil();
        let place = xxh3_64(&key.to_le_bytes());
        let start = self.ring.partition_point(|(at, _)| *at < place);
        for (_, index) in self.ring[start..].iter().chain(&self.ring[..start]) {
            let requests = f64::from(candidates[*index as usize].load.requests());
            if requests + 1.0 <= bound {
                return Choice { candidate: *index as usize, cost: requests };
            }
        }
        // One is always below the mean.
        Choice { candidate: 0, cost: f64::from(requests) }
    }
}
