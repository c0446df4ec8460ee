//! Physical pages whose constants are known.
//!
//! The driver hands out pages of 2 MiB and does not say which; their constants are as good as drawn by lot. So pages are taken, mapped for a
//! moment, asked, and kept or given back, until there are as many of each kind as are wanted. Only then is it decided where they are mapped.

use std::sync::Arc;

use partywall_core::units::Bytes;
use partywall_driver::kernels::Kernels;
use partywall_driver::vmm::{AddressRange, PhysicalMemory, granularity};
use partywall_driver::{Context, Device, DeviceBuffer, DriverError};

use crate::address::PAGE_BYTES;
use crate::gpu::GpuProber;
use crate::sides::{Known, Side, Sides, SidesError, find_knowing};

/// Pages that are taken beyond those that are wanted, for a start: of 2n drawn by lot, n + 8 of one kind is rare for the small n where it matters.
const SPARE: u32 = 16;

/// Times as many pages as are wanted, and so many more, after which it is no chance that one kind is missing.
const MOST: u32 = 2;
const MOST_SPARE: u32 = 256;

/// Groups of SMs of each side that are asked.
const WITNESSES: usize = 4;

/// Fresh addresses that what is known is held against, each time it is used. A wrong mask is wrong for half of them.
pub const CHECKS: u32 = 512;

/// Why pages cannot be had, or are not what they should be.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// What the driver returned.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Where they are cannot be told, or is not where what is known of the GPU says.
    #[error("{0}")]
    Sides(#[from] SidesError<DriverError>),
    /// Physical memory does not come in pages of 2 MiB.
    #[error(
        "this GPU's driver hands out physical memory in units of {found}; coloring knows units of 2MiB only"
    )]
    Granularity {
        /// The unit.
        found: Bytes,
    },
    /// Pages of one kind are missing.
    #[error(
        "of {taken} pages {first} begin on the first side and {second} on the second; {pairs} of each are wanted"
    )]
    Uneven {
        /// How many were looked at.
        taken: u32,
        /// Kept ones by where they begin.
        first: usize,
        /// The others.
        second: usize,
        /// How many of each.
        pairs: u32,
    },
}

/// Where pages come from, and what says where they are.
#[derive(Debug, Clone)]
pub struct Source {
    /// The GPU.
    pub device: Device,
    /// What measures.
    pub kernels: Arc<Kernels>,
    /// What is known of the GPU.
    pub known: Known,
    /// Which addresses are looked at follows from this.
    pub seed: u64,
}

/// As many pages that begin on the one side as on the other.
#[derive(Debug)]
pub struct Pages {
    /// First those of the first side.
    pub by_side: [Vec<PhysicalMemory>; 2],
    /// How many were looked at.
    pub taken: u32,
}

impl Source {
    /// Takes `pairs` pages of each kind; `shared`: of those that other processes can be given.
    ///
    /// # Errors
    /// Where there is not so much memory, or the pages cannot be told apart.
    pub fn take(&self, pairs: u32, shared: bool) -> Result<Pages, PagesError> {
        let context = self.device.primary()?;
        let found = granularity(&context)?;
        if found != Bytes(u64::from(PAGE_BYTES)) {
            return Err(PagesError::Granularity { found });
        }
        let mut pages = Pages { by_side: [Vec::new(), Vec::new()], taken: 0 };
        // Held until all are there, or the driver would hand out the same again.
        let mut others = Vec::new();
        loop {
            let missing = pages.by_side.iter().map(|kept| pairs - kept.len() as u32).sum::<u32>();
            if missing == 0 {
                return Ok(pages);
            }
            if pages.taken > 2 * MOST * pairs + MOST_SPARE {
                let [first, second] = pages.by_side.map(|kept| kept.len());
                return Err(PagesError::Uneven { taken: pages.taken, first, second, pairs });
            }
            let batch = (0..missing + SPARE.min(missing)).map(|_| {
                let size = Bytes(u64::from(PAGE_BYTES));
                if shared {
                    PhysicalMemory::create_shared(&context, size)
                } else {
                    PhysicalMemory::create(&context, size)
                }
            });
            let batch = batch.collect::<Result<Vec<_>, _>>()?;
            pages.taken += batch.len() as u32;
            let (sides, _) = self.look(mapped(&context, &batch, ALIGNMENT)?)?;
            for (page, side) in batch.into_iter().zip(sides.pages) {
                let kept = &mut pages.by_side[usize::from(side == Side::Second)];
                if kept.len() < pairs as usize { kept.push(page) } else { others.push(page) }
            }
        }
    }

    /// Where pages are that are mapped one after the other, held against [`CHECKS`] fresh addresses; and gives the memory back.
    ///
    /// # Errors
    /// As [`find_knowing`].
    pub fn look(&self, memory: DeviceBuffer) -> Result<(Sides, DeviceBuffer), PagesError> {
        let mut prober = GpuProber::over(&self.device, Arc::clone(&self.kernels), memory)?;
        let sides = find_knowing(&mut prober, &self.known, WITNESSES, CHECKS, self.seed)?;
        Ok((sides, prober.into_memory()))
    }
}

/// Where pages are mapped from, unless there is a reason for more: a multiple of two of them.
pub const ALIGNMENT: Bytes = Bytes(2 * PAGE_BYTES as u64);

/// Pages one after the other, from a multiple of `alignment` on.
///
/// # Errors
/// What the driver returned.
pub fn mapped(
    context: &Context,
    pages: &[PhysicalMemory],
    alignment: Bytes,
) -> Result<DeviceBuffer, DriverError> {
    let page = u64::from(PAGE_BYTES);
    let mut range = AddressRange::reserve(context, Bytes(page * pages.len() as u64), alignment)?;
    for (index, memory) in pages.iter().enumerate() {
        range.map(index as u64 * page, memory)?;
    }
    range.into_buffer()
}
