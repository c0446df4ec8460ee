//! `partywall vram`.

use clap::{Args, Subcommand};
use partywall_core::units::Bytes;

use super::GpuChoice;

/// `partywall vram`.
#[derive(Debug, Subcommand)]
pub enum VramCommand {
    /// Find out on which side of the chip every byte of memory is, and every SM.
    ///
    /// Takes memory of its own, measures how long atomic operations on it take, and gives it back. On a GPU that does something else
    /// at the same time it takes longer, and is refused where it cannot be sure. No setting is changed.
    Map(MapArguments),
}

/// `partywall vram map`.
#[derive(Debug, Args)]
pub struct MapArguments {
    /// The GPU.
    #[command(flatten)]
    pub gpu: GpuChoice,
    /// Which device, as CUDA counts them.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub device: u32,
    /// How much memory to look at. Without it: all that is free, but for 1 GiB.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Hold the map against so many fresh addresses.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pub checks: u32,
    /// Also find the slices of the L2, of the first so much of it; 1GiB without a size. Takes half a minute a GiB on an H200.
    #[arg(long, value_name = "SIZE", num_args = 0..=1, default_missing_value = "1GiB")]
    pub slices: Option<Bytes>,
    /// Which addresses are looked at follows from this.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Print as JSON, with the side of every page.
    #[arg(long)]
    pub json: bool,
}
