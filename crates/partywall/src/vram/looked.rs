//! `partywall vram known`: where the sides are, for programs.

use partywall_core::soft_gpu::is_simulated;
use partywall_core::units::Bytes;
use partywall_driver::{Cuda, DriverError};
use partywall_measure::sides::Looked;
use partywall_vram::address::PAGE_BYTES;
use partywall_vram::gpu::GpuProber;
use partywall_vram::prober::Prober as _;
use partywall_vram::sides::Found;

use super::known::Kept;
use crate::cli::vram::KnownArguments;
use crate::error::Failure;
use crate::output;

/// Memory that is looked at, at most: that of 512 pages tells a mask as well as all of it would.
const LOOKED_AT: Bytes = Bytes(1 << 30);

/// Fresh addresses that what is found is held against.
const CHECKS: u32 = 10_000;

pub(super) fn run(arguments: &KnownArguments) -> Result<(), Failure> {
    let driver = |error: DriverError| Failure::machine(error, None);
    let device = Cuda::load().map_err(driver)?.device(arguments.device).map_err(driver)?;
    let name = device.name().map_err(driver)?;
    let (free, _) = device.primary().map_err(driver)?.memory_info().map_err(driver)?;
    // Half of what is free: contexts grow.
    let page = u64::from(PAGE_BYTES);
    let bytes = Bytes(LOOKED_AT.0.min(free.0 / 2) / page * page);
    if bytes.0 == 0 {
        let message =
            format!("{name}: {free} of memory are free, too little to find its sides; it takes 4MiB");
        return Err(Failure::machine(message, None));
    }
    let sms_per_group = device.sm_split().map_err(driver)?.sms_per_group().0;
    let mut prober = GpuProber::new(&device, bytes).map_err(driver)?;
    let kept = Kept::of(&device, prober.groups())?;
    let known = match kept.find(&mut prober, arguments.fresh, CHECKS, arguments.seed)? {
        (Found::Two(sides), _) => sides.known,
        (Found::One { apart }, _) => {
            let message = format!(
                "{name} has one side, as far as can be told: addresses are {apart:.1} deviations apart, which is not two kinds"
            );
            return Err(Failure::machine(message, None));
        }
    };
    let looked = Looked::new(name.clone(), is_simulated(&name), sms_per_group, known);
    output::print(&output::json(&looked.map_err(|error| Failure::machine(error, None))?)?)
}
