//! Chains of dependent reads, one warp per SM: nothing but the latency of memory.

use std::collections::BTreeMap;

use partywall_core::units::Bytes;
use partywall_driver::DeviceBuffer;
use partywall_driver::kernels::{LinkCycle, Part, Shape, pattern};

use super::place::Place;
use super::{Builtin, Identity, Verdict, Workload, WorkloadError};

/// Several times any L2: most steps go to VRAM.
const BUFFER: Bytes = Bytes::from_mib(512);
/// A cache line for each node, so that no step finds what another brought.
const STRIDE: Bytes = Bytes(128);
/// At about 0.7 us a step a request takes about 45 us.
const STEPS: u32 = 64;

/// The workload.
pub(super) struct Chase {
    place: Place,
    builtin: &'static Builtin,
    links: DeviceBuffer,
    cycle: LinkCycle,
    cursors: DeviceBuffer,
    shape: Shape,
    /// Steps that each chain has taken.
    steps: u64,
}

impl Chase {
    /// `read-latency`.
    ///
    /// # Errors
    /// What the driver returned, or that the memory is too small.
    pub(super) fn new(
        place: Place,
        builtin: &'static Builtin,
        asked: Option<Bytes>,
    ) -> Result<Self, WorkloadError> {
        let size = place.size_beyond_l2(asked, BUFFER)?;
        let cycle = LinkCycle::new(size, STRIDE)?;
        let links = place.context.alloc(cycle.bytes())?;
        place.kernels.fill_links(&place.stream, Part::all(&links), cycle)?;
        let shape = Shape::new(place.sms.0.max(1), 32)?;
        let starts: Vec<u32> = (0..shape.all_threads() as u32).map(|chain| start(chain, cycle)).collect();
        let cursors = place.uploaded(&starts)?;
        Ok(Self { place, builtin, links, cycle, cursors, shape, steps: 0 })
    }
}

/// Where a chain begins.
fn start(chain: u32, cycle: LinkCycle) -> u32 {
    pattern(chain) & (cycle.nodes() - 1)
}

impl Workload for Chase {
    fn identity(&self) -> Identity {
        self.builtin.identity()
    }

    fn about(&self) -> BTreeMap<String, String> {
        let (chains, nodes) = (self.shape.all_threads(), self.cycle.nodes());
        let request = format!("{chains} chains of {STEPS} steps over {nodes} nodes {STRIDE} apart");
        [("request".to_owned(), request)].into()
    }

    /// Chains go on where they are: from the same start they would find in L2 what the last run left there.
    fn begin(&mut self) -> Result<(), WorkloadError> {
        Ok(())
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        let Place { stream, kernels, .. } = &self.place;
        let (links, cursors) = (Part::all(&self.links), Part::all(&self.cursors));
        kernels.chase(stream, self.shape, links, self.cycle, cursors, STEPS)?;
        self.steps += u64::from(STEPS);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        let found = self.place.words(&self.cursors, 0, self.shape.all_threads() as usize)?;
        let expected = |chain: usize| self.cycle.after(start(chain as u32, self.cycle), self.steps);
        let wrong = found.iter().enumerate().filter(|(chain, node)| expected(*chain) != **node).count();
        let checksum =
            found.iter().fold(0_u64, |sum, node| sum.wrapping_mul(31).wrapping_add(u64::from(*node)));
        let wrong =
            (wrong > 0).then(|| format!("{wrong} of {} chains are not where they should be", found.len()));
        Ok(Verdict { wrong, checksum })
    }
}
