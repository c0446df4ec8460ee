//! Reading memory: the short kernels of the victim, and the antagonists that stream from VRAM or go round in L2.
//!
//! Every word that is read is added up, over all requests of a run; the host knows the sum of every piece, because it
//! knows every word.

use std::collections::BTreeMap;

use partywall_core::tenant::Class;
use partywall_core::units::Bytes;
use partywall_driver::DeviceBuffer;
use partywall_driver::kernels::{Part, Policy, Shape, pattern};

use super::place::{Place, Sums};
use super::{Builtin, CachePolicy, Identity, Verdict, Workload, WorkloadError};

/// The victim: 40 kernels that read 100 MB together, as in the project's first measurements.
const VICTIM_KERNELS: usize = 40;
const VICTIM_PIECE: Bytes = Bytes(2_500_000);
/// The victim goes round in a buffer of which L2 has long lost the beginning when the end is reached.
const VICTIM_BUFFER: Bytes = Bytes::from_mib(512);
/// Far larger than any L2, and its sum takes the host a third of a second.
const STREAM_BUFFER: Bytes = Bytes::from_mib(1024);
/// About half a millisecond a launch at 4 TB/s: far longer than a launch takes, far shorter than a time slice.
const STREAM_BYTES: u64 = 2 << 30;
/// The part of L2 that the antagonist of L2 goes round in: even where L2 keeps a copy on each side it takes a quarter.
const L2_SHARE: u64 = 8;
/// About 1 ms a launch.
const L2_BYTES: u64 = 8 << 30;

/// The workload.
pub(super) struct Reads {
    place: Place,
    builtin: &'static Builtin,
    policy: Policy,
    buffer: DeviceBuffer,
    sums: Sums,
    shape: Shape,
    /// What one kernel reads, and the sum of each such piece of the buffer.
    piece: Bytes,
    piece_sums: Vec<u32>,
    next: usize,
    kernels: usize,
    passes: u32,
}

impl Reads {
    /// `vram-read` of either class, its evict-first form, or `l2`.
    ///
    /// # Errors
    /// What the driver returned, or that the memory is too small.
    pub(super) fn new(
        place: Place,
        builtin: &'static Builtin,
        asked: Option<Bytes>,
    ) -> Result<Self, WorkloadError> {
        let victim = builtin.class == Class::LatencySensitive;
        let policy = match (builtin.name, builtin.cache_policy) {
            ("l2", _) => Policy::L2,
            (_, Some(CachePolicy::EvictFirst)) => Policy::EvictFirst,
            _ => Policy::Default,
        };
        let size = match policy {
            Policy::L2 => {
                let part = Bytes(place.device().l2_bytes()?.0 / L2_SHARE);
                place.size(asked, part, Bytes::from_mib(1))?
            }
            _ => place.size_beyond_l2(asked, if victim { VICTIM_BUFFER } else { STREAM_BUFFER })?,
        };
        let buffer = place.patterned(size)?;
        let piece = if victim { VICTIM_PIECE } else { size };
        let kernels = if victim { VICTIM_KERNELS } else { 1 };
        let name = match policy {
            Policy::Default => "read_default",
            Policy::EvictFirst => "read_evict_first",
            Policy::L2 => "read_l2",
        };
        let filled = place.filled(name, if victim { 256 } else { 512 })?;
        // One load for each thread of the victim, so that a short kernel waits for memory once.
        let blocks = if victim { (piece.0 / 16).div_ceil(256) } else { u64::from(filled.blocks()) };
        let shape = Shape::new(filled.blocks().min(blocks as u32), filled.threads())?;
        let passes = match policy {
            _ if victim => 1,
            Policy::L2 => L2_BYTES / size.0,
            _ => STREAM_BYTES / size.0,
        };
        let piece_sums = piece_sums(size, piece);
        let sums = Sums::new(&place)?;
        let passes = u32::try_from(passes).unwrap_or(u32::MAX).max(1);
        Ok(Self { place, builtin, policy, buffer, sums, shape, piece, piece_sums, next: 0, kernels, passes })
    }
}

impl Workload for Reads {
    fn identity(&self) -> Identity {
        self.builtin.identity()
    }

    fn about(&self) -> BTreeMap<String, String> {
        let launch = format!(
            "{} kernels of {} blocks x {} threads",
            self.kernels,
            self.shape.blocks(),
            self.shape.threads()
        );
        let kernel = format!("{} of {}, {} times", self.piece, Bytes(self.buffer.len()), self.passes);
        [("request".to_owned(), launch), ("kernel_reads".to_owned(), kernel)].into()
    }

    fn work(&self) -> f64 {
        match self.builtin.class {
            Class::LatencySensitive => 1.0,
            Class::BestEffort => (self.piece.0 * u64::from(self.passes)) as f64 / 1e9,
        }
    }

    fn begin(&mut self) -> Result<(), WorkloadError> {
        self.sums.clear(&self.place)
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        for _ in 0..self.kernels {
            let piece = Part::new(&self.buffer, self.next as u64 * self.piece.0, self.piece.0)?;
            let Place { stream, kernels, .. } = &self.place;
            kernels.read(stream, self.shape, self.policy, piece, self.passes, self.sums.part())?;
            self.sums.expect(self.piece_sums[self.next].wrapping_mul(self.passes));
            self.next = (self.next + 1) % self.piece_sums.len();
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        let (found, expected) = self.sums.compare(&self.place)?;
        Ok(Verdict::compare("the sum of all words read", u64::from(found), u64::from(expected)))
    }
}

/// The sums of the pieces that fit, one after the other, into a buffer with the pattern.
fn piece_sums(size: Bytes, piece: Bytes) -> Vec<u32> {
    let words = piece.0 / 4;
    let sum = |index: u64| {
        (index * words..(index + 1) * words).fold(0_u32, |sum, word| sum.wrapping_add(pattern(word as u32)))
    };
    (0..size.0 / piece.0).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_summed_one_by_one_and_cover_what_fits() {
        let sums = piece_sums(Bytes(1000), Bytes(320));
        let word = |index| pattern(index);
        let by_hand = |words: std::ops::Range<u32>| words.map(word).fold(0, u32::wrapping_add);
        assert_eq!(sums, [by_hand(0..80), by_hand(80..160), by_hand(160..240)]);
        assert!(VICTIM_PIECE.0.is_multiple_of(16), "pieces begin at whole quads");
    }
}
