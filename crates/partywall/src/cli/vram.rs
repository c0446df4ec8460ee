//! `partywall vram`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use partywall_core::units::Bytes;
use partywall_vram::ptx::order::OrderError;
use partywall_vram::ptx::rewrite::Options;

use super::GpuChoice;

/// `partywall vram`.
#[derive(Debug, Subcommand)]
pub enum VramCommand {
    /// Find out on which side of the chip every byte of memory is, and every SM.
    ///
    /// Takes memory of its own, measures how long atomic operations on it take, and gives it back. On a GPU that does something else
    /// at the same time it takes longer, and is refused where it cannot be sure. No setting is changed.
    Map(MapArguments),
    /// Measure what a neighbour does to a tenant when each keeps to a side of the chip, and when neither does.
    ///
    /// Two processes under an MPS daemon of their own, each on the SMs of a side: one reads, in one long launch and in requests of a few
    /// short ones, the other never pauses. Once with the data of each on its side, once with the same data anywhere. Interference
    /// is the time beside the neighbour, divided by the time alone in the same partition. What was read and copied is checked. On a
    /// simulated GPU everything is done the same way, and the figures mean nothing. No setting is changed.
    Interfere(InterfereArguments),
    /// Say where the sides are, for programs: what the wall `sides` of `partywall measure` starts.
    ///
    /// Prints JSON: the bits of an address that turn the side, and the sides of SMs. The exit status is 1 where the GPU has one side.
    #[command(hide = true)]
    Known(KnownArguments),
    /// Be one of the two: what `interfere` starts.
    #[command(hide = true)]
    Neighbour,
    /// Rewrite PTX so that its accesses to global memory go to a colored arena.
    ///
    /// What cannot be translated is named with its line, and then nothing is written and the exit status is 2. What is not touched stays as it is.
    Rewrite(RewriteArguments),
    /// Be `ptxas` for Triton and others that call it: rewrite kernels for the arena in force, then assemble them.
    ///
    /// The arena is the one of --arena or, without it, of PARTYWALL_ARENA; without either, everything is passed on as it is. The exit status is
    /// that of the assembler, or 2 where a kernel cannot be rewritten. `--version` also tells the arena, so that compilers that ask for it,
    /// as Triton does, keep rewritten kernels apart from others in their caches.
    Ptxas(PtxasArguments),
}

/// Whose the pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum PagesArgument {
    /// Each has its own, and leaves half of each unused.
    Private,
    /// Both have the same, each a half of each page; then nothing is measured without colors.
    Paired,
}

/// What the tenant does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum WorkArgument {
    /// Passes over the data in one long launch.
    Long,
    /// Requests of a few short launches.
    Short,
    /// The same requests, each a CUDA graph.
    Graph,
}

/// What the neighbour does, and whether its accesses are the first to leave L2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum LoadArgument {
    /// Reads.
    Read,
    /// Reads, evict-first.
    ReadEvictFirst,
    /// Writes.
    Write,
    /// Writes, evict-first.
    WriteEvictFirst,
    /// Reads and writes.
    Mixed,
    /// Reads and writes, evict-first.
    MixedEvictFirst,
}

/// What commands that look at a GPU share.
#[derive(Debug, Args)]
pub struct LookArguments {
    /// The GPU.
    #[command(flatten)]
    pub gpu: GpuChoice,
    /// Which device, as CUDA counts them.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub device: u32,
    /// Do not use what was found out about this GPU before: the bits of an address that turn the side, and the sides of SMs.
    #[arg(long)]
    pub fresh: bool,
    /// Which addresses are looked at follows from this.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Print as JSON: all that was found out.
    #[arg(long)]
    pub json: bool,
}

/// `partywall vram known`.
#[derive(Debug, Args)]
pub struct KnownArguments {
    /// The GPU.
    #[command(flatten)]
    pub gpu: GpuChoice,
    /// Which device, as CUDA counts them.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub device: u32,
    /// Do not use what was found out about this GPU before.
    #[arg(long)]
    pub fresh: bool,
    /// Which addresses are looked at follows from this.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// `partywall vram interfere`.
#[derive(Debug, Args)]
pub struct InterfereArguments {
    /// Where to look.
    #[command(flatten)]
    pub look: LookArguments,
    /// What the tenant does.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "long,short,graph", value_name = "LIST")]
    pub work: Vec<WorkArgument>,
    /// What the neighbour does.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "read,read-evict-first,write-evict-first,mixed-evict-first",
        value_name = "LIST"
    )]
    pub loads: Vec<LoadArgument>,
    /// Threads of the tenant on each SM: multiples of 32, up to 1024.
    #[arg(long, value_delimiter = ',', default_value = "32,128,512,1024", value_name = "LIST")]
    pub threads: Vec<u32>,
    /// Threads of the neighbour on each SM: with fewer it asks less of its side.
    #[arg(long, value_delimiter = ',', default_value = "1024", value_name = "LIST")]
    pub load_threads: Vec<u32>,
    /// SMs of the neighbour, at most those of its side: with fewer it asks less of its side, and leaves SMs to others. Default: all of them.
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with = "held")]
    pub load_sms: Vec<u32>,
    /// Give the neighbour no more SMs than it takes to move so many per cent of the most that it moves alone on its half. Just below what fills a side
    /// its memory answers much sooner.
    #[arg(long, value_name = "PERCENT")]
    pub held: Option<f64>,
    /// Passes or requests behind each figure. Of fewer than 5000 there is no p99.
    #[arg(long, default_value_t = 5_000, value_name = "N")]
    pub requests: u32,
    /// Launches of a request.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub launches: u32,
    /// What each launch of a request reads; 0B for launches that read nothing.
    #[arg(long, default_value = "8MiB", value_name = "SIZE")]
    pub launch_data: Bytes,
    /// Load the tenant's kernels in so many places, and measure with those of each: whether it matters where code is.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub code_places: u32,
    /// Whose the pages are that the data are in.
    #[arg(long, value_enum, default_value = "private", value_name = "WHOSE")]
    pub pages: PagesArgument,
    /// Data of the tenant.
    #[arg(long, default_value = "64MiB", value_name = "SIZE")]
    pub data: Bytes,
    /// Data of the neighbour.
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    pub load_data: Bytes,
}

/// `partywall vram rewrite`.
#[derive(Debug, Args)]
pub struct RewriteArguments {
    /// The PTX.
    pub file: PathBuf,
    /// Where the arena is and what is to be done: `mask=M,logical=A,mapped=B,length=L,parity=even|odd`, and perhaps
    /// `,split=BIT`, `,pointers=arena|any|fenced` and `,evict-first`.
    ///
    /// The mask has the address bits whose parity is the side; stretches are as long as its lowest bit. `length` bytes are seen at `logical`,
    /// in twice as many that are mapped at `mapped`. `split` is the bit of the mask that is put into an address to make its parity right; without
    /// it, the lowest one. Addresses outside: there are none (`arena`), they stay as they are (`any`), or they are
    /// made into some of the arena (`fenced`). With `evict-first` what is accessed leaves the L2 before anything else.
    #[arg(long, value_name = "ARENA", value_parser = arena)]
    pub arena: Options,
    /// Where to write it. Without it: standard output.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print what was done to each function as JSON instead of the text.
    #[arg(long)]
    pub json: bool,
}

/// `partywall vram ptxas`.
#[derive(Debug, Args)]
#[command(after_help = PTXAS_EXAMPLES)]
pub struct PtxasArguments {
    /// The assembler itself. With --install once for each, as `ptxas` and `ptxas-blackwell`.
    #[arg(long, value_name = "FILE", required = true)]
    pub real: Vec<PathBuf>,
    /// The arena, as `partywall vram rewrite` takes it.
    #[arg(long, value_name = "ARENA", value_parser = arena)]
    pub arena: Option<Options>,
    /// Append a line of JSON for each file that was rewritten or refused.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Assemble nothing, but write a program of the same name for each assembler into a folder, and print the environment in which
    /// Triton and PyTorch use it.
    #[arg(long, value_name = "DIR", conflicts_with = "words")]
    pub install: Option<PathBuf>,
    /// What the assembler is called with.
    #[arg(last = true, value_name = "ARGUMENT")]
    pub words: Vec<OsString>,
}

const PTXAS_EXAMPLES: &str = "Examples:
  partywall vram ptxas --real /usr/local/cuda/bin/ptxas -- -arch=sm_90a kernel.ptx -o kernel.cubin
  eval \"$(partywall vram ptxas --real $BIN/ptxas --arena $ARENA --install wrapped)\"";

fn arena(text: &str) -> Result<Options, String> {
    text.parse().map_err(|error: OrderError| error.to_string())
}

/// `partywall vram map`.
#[derive(Debug, Args)]
pub struct MapArguments {
    /// Where to look.
    #[command(flatten)]
    pub look: LookArguments,
    /// How much memory to look at. Without it: all that is free, but for 1 GiB.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Hold the map against so many fresh addresses.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pub checks: u32,
    /// Also find the slices of the L2, of the first so much of it; 1GiB without a size. Takes half a minute a GiB on an H200.
    #[arg(long, value_name = "SIZE", num_args = 0..=1, default_missing_value = "1GiB")]
    pub slices: Option<Bytes>,
}
