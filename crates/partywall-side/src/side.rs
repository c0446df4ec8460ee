//! An arena with addresses instead of places in it, made as the environment says.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use partywall_core::units::Bytes;
use partywall_driver::kernels::Kernels;
use partywall_driver::{Context, Cuda, DriverError, GreenContext, Priority, Stream};
use partywall_shim_api::environment;
use partywall_vram::arena::{Arena, ArenaError, Block};
use partywall_vram::pages::Source;
use partywall_vram::ptx::rewrite::{Options, Pointers};
use partywall_vram::sides::{Known, Side};
use partywall_vram::sms;

/// Allocations begin at such multiples, as those of the CUDA runtime do.
const ALIGNMENT: u64 = 512;

/// Which fresh addresses are looked at follows from this.
const SEED: u64 = 1;

/// Why there is no memory, or it cannot be used so.
#[derive(Debug, thiserror::Error)]
pub enum SideError {
    /// A variable is missing, or says something else than it may.
    #[error(
        "{name} is {found}; it should be {expected}. `partywall measure` sets it behind the wall `sides`"
    )]
    Variable {
        /// Which.
        name: &'static str,
        /// What it is.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
    /// The file cannot be read.
    #[error("{} cannot be read: {error}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file is something else.
    #[error("{} does not say where the sides of a GPU are: {error}", .path.display())]
    Known {
        /// Which.
        path: PathBuf,
        /// Why.
        error: serde_json::Error,
    },
    /// There is no such arena.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// What the driver returned.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// There is no room.
    #[error("{bytes} bytes were asked for: one at least is expected")]
    Nothing {
        /// What was asked for.
        bytes: isize,
    },
    /// An address of something else.
    #[error("{address:#x} and {bytes} bytes from there are not all of one allocation")]
    Address {
        /// Where.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// There is memory already.
    #[error("`partywall_side_begin` has been called before")]
    Begun,
    /// There is no memory yet.
    #[error("`partywall_side_begin` has not been called, or has failed")]
    NotBegun,
}

/// Memory of one side, with allocations in it.
#[derive(Debug)]
pub struct Memory {
    arena: Arena,
    /// By their addresses.
    blocks: BTreeMap<u64, Block>,
    context: Context,
    /// Copies run on the side's own SMs.
    stream: Stream,
    _sms: GreenContext,
}

impl Memory {
    /// As the values of `PARTYWALL_SIDE` and `PARTYWALL_SIDE_KNOWN` say.
    ///
    /// # Errors
    /// Where they are missing or wrong, or there is not so much memory.
    pub fn told(side: Option<&OsStr>, known: Option<&OsStr>, bytes: u64) -> Result<Self, SideError> {
        let wrong = |name, value: Option<&OsStr>, expected| {
            let found = value.map_or("not set".to_owned(), |value| format!("`{}`", value.to_string_lossy()));
            SideError::Variable { name, found, expected }
        };
        let chosen = match side.and_then(OsStr::to_str) {
            Some("first") => Side::First,
            Some("second") => Side::Second,
            _ => return Err(wrong(environment::SIDE, side, "`first` or `second`")),
        };
        let path = known.filter(|path| !path.is_empty()).map(PathBuf::from).ok_or_else(|| {
            let expected = "the path of a file that says where the sides of the GPU are";
            wrong(environment::SIDE_KNOWN, None, expected)
        })?;
        let known = match std::fs::read_to_string(&path) {
            Ok(known) => known,
            Err(error) => return Err(SideError::File { path, error }),
        };
        let known = serde_json::from_str(&known).map_err(|error| SideError::Known { path, error })?;
        Self::new(&Cuda::load()?, known, chosen, bytes)
    }

    /// On a side of the first device, of which so much is known.
    ///
    /// # Errors
    /// As above.
    pub fn new(cuda: &Cuda, known: Known, side: Side, bytes: u64) -> Result<Self, SideError> {
        let device = cuda.device(0)?;
        let context = device.primary()?;
        let kernels = Arc::new(Kernels::load(&context)?);
        let source = Source { device, kernels, known, seed: SEED };
        let arena = Arena::in_place(&source, side, Bytes(bytes))?;
        let green = sms::green_context(&source.device, &source.known, side, None)?;
        let stream = green.stream(Priority::Normal)?;
        Ok(Self { arena, blocks: BTreeMap::new(), context, stream, _sms: green })
    }

    /// How kernels have to be rewritten that use it.
    pub fn order(&self) -> String {
        let coloring = *self.arena.coloring();
        Options { coloring, pointers: Pointers::Arena, evict_first: false }.to_string()
    }

    /// Takes so many bytes: their address.
    ///
    /// # Errors
    /// Where there is no such room.
    pub fn take(&mut self, bytes: isize) -> Result<u64, SideError> {
        let wanted = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        let block = self.arena.allocate(wanted.ok_or(SideError::Nothing { bytes })?, ALIGNMENT)?;
        let address = self.arena.address(block.at);
        self.blocks.insert(address, block);
        Ok(address)
    }

    /// Gives an allocation back.
    ///
    /// # Errors
    /// Where none begins there.
    pub fn give(&mut self, address: u64) -> Result<(), SideError> {
        let block = self.blocks.remove(&address).ok_or(SideError::Address { address, bytes: 0 })?;
        Ok(self.arena.free(block)?)
    }

    /// Copies bytes into an allocation, after everything that the device does, and waits.
    ///
    /// # Errors
    /// Where they are not all of one, or what the driver returned.
    pub fn write(&self, to: u64, bytes: &[u8]) -> Result<(), SideError> {
        let at = self.at(to, bytes.len() as u64)?;
        self.context.synchronize()?;
        Ok(self.arena.write(&self.stream, at, bytes)?)
    }

    /// Copies bytes out of an allocation.
    ///
    /// # Errors
    /// As [`Memory::write`].
    pub fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), SideError> {
        let at = self.at(from, bytes.len() as u64)?;
        self.context.synchronize()?;
        Ok(self.arena.read(&self.stream, at, bytes)?)
    }

    /// Where in the arena an address is, of an allocation with so many bytes from there on.
    fn at(&self, address: u64, bytes: u64) -> Result<u64, SideError> {
        let found = self.blocks.range(..=address).next_back().and_then(|(begin, block)| {
            let offset = address - begin;
            (offset + bytes <= block.bytes).then_some(block.at + offset)
        });
        found.ok_or(SideError::Address { address, bytes })
    }
}
