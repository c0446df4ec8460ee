//! A probe: fills its SMs with blocks, says how many are there, and lets them leave when told to.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use partywall_core::units::{Bytes, Nanos};
use partywall_driver::device::Attribute;
use partywall_driver::error::DriverError;
use partywall_driver::green::GroupSet;
use partywall_driver::kernels::{Kernels, Stay, Stayed};
use partywall_driver::{Context, Cuda, PinnedBuffer, Priority, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Said, Told};
use crate::error::Error;

/// How often blocks are counted while there are some.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };

/// Most SMs of a set: more than any GPU has.
const SMS_MAX: u32 = 4_096;

/// Is a probe of `sms` SMs until `input` ends. Without `groups` something else confines this process. Blocks stay for `patience` when
/// nobody releases them.
///
/// # Errors
/// When nobody listens. What goes wrong on the GPU is said on `output`.
pub fn run(
    (sms, groups): (u32, Option<&GroupSet>),
    patience: Nanos,
    input: impl Read + AsFd,
    output: &mut impl Write,
) -> Result<(), Error> {
    let mut lines = Lines { input, bytes: Vec::new() };
    let done = match Probe::open(sms, groups, patience) {
        Ok(mut probe) => {
            let told = probe.stay(&mut lines, output);
            // Blocks that are still there leave before their memory goes.
            let _ = probe.release();
            told
        }
        Err(error) => Err(error),
    };
    match done {
        Ok(()) => Ok(()),
        Err(Trouble::Mute(error)) => Err(Error::System { action: "speaking with the prover", error }),
        Err(Trouble::Driver(error)) => say(output, &Said::Failed { why: error.to_string() })
            .map_err(|error| Error::System { action: "speaking with the prover", error }),
    }
}

#[derive(Debug)]
enum Trouble {
    Driver(DriverError),
    Mute(io::Error),
}

impl From<DriverError> for Trouble {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Mute(error)
    }
}

fn say(output: &mut impl Write, said: &Said) -> io::Result<()> {
    serde_json::to_writer(&mut *output, said)?;
    output.write_all(b"\n")?;
    output.flush()
}

/// Blocks of one launch, and the words through which they are known.
struct Crowd {
    stream: Stream,
    states: PinnedBuffer,
    go: PinnedBuffer,
    blocks: u32,
    is_launched: bool,
}

impl Crowd {
    fn new(context: &Context, stream: Stream, blocks: u32) -> Result<Self, DriverError> {
        let (states, go) = (context.pinned(Bytes(4 * u64::from(blocks)))?, context.pinned(Bytes(4))?);
        Ok(Self { stream, states, go, blocks, is_launched: false })
    }

    fn launch(&mut self, kernels: &Kernels, shared: Bytes, patience: Nanos) -> Result<(), DriverError> {
        self.go.store_u32(0, 0)?;
        (0..u64::from(self.blocks)).try_for_each(|block| self.states.store_u32(4 * block, 0))?;
        let stay = Stay { blocks: self.blocks, shared, patience };
        self.is_launched = true;
        kernels.stay(&self.stream, stay, &self.states, &self.go)
    }

    fn there(&self) -> Result<u32, DriverError> {
        if self.is_launched {
            Stayed::of(&self.states, self.blocks).map(|stayed| stayed.there)
        } else {
            Ok(0)
        }
    }
}

struct Probe {
    kernels: Kernels,
    set: Crowd,
    more: Crowd,
    shared: Bytes,
    sms: u32,
    patience: Nanos,
    /// The blocks have been told to leave.
    is_leaving: bool,
}

impl Probe {
    fn open(sms: u32, groups: Option<&GroupSet>, patience: Nanos) -> Result<Self, Trouble> {
        if !(1..=SMS_MAX).contains(&sms) {
            let what = format!("a set of {sms} SMs: 1 to {SMS_MAX} are possible");
            return Err(DriverError::Invalid(what).into());
        }
        let device = Cuda::load()?.device(0)?;
        let context = device.primary()?;
        // For as long as this process lives: whoever confines it does so where the primary context is made current.
        std::mem::forget(context.make_current()?);
        let green = groups.map(|groups| device.sm_split()?.green_context(groups)).transpose()?;
        let stream = || match &green {
            Some(green) => green.stream(Priority::High),
            None => context.stream(Priority::High),
        };
        let shared = device.attribute(Attribute::MaxSharedMemoryPerBlockOptin)?;
        let mut probe = Self {
            kernels: Kernels::load(&context)?,
            set: Crowd::new(&context, stream()?, sms)?,
            more: Crowd::new(&context, stream()?, 1)?,
            shared: Bytes(u64::try_from(shared).unwrap_or(0)),
            sms: green.as_ref().map_or(context.sms()?, |green| green.sms()).0,
            patience,
            is_leaving: false,
        };
        // The first launch takes longer than others, and makes this process a client of MPS at the latest.
        probe.more.launch(&probe.kernels, Bytes(4), patience)?;
        probe.release()?;
        Ok(probe)
    }

    /// Does what it is told until nothing more will come.
    fn stay(&mut self, lines: &mut Lines<impl Read + AsFd>, output: &mut impl Write) -> Result<(), Trouble> {
        say(output, &Said::Ready { sms: self.sms })?;
        let mut last = (0, false);
        loop {
            let is_busy = self.set.is_launched || self.more.is_launched;
            let Some(told) = lines.next(is_busy.then_some(&LOOK_EVERY))? else { return Ok(()) };
            for told in told {
                match told {
                    Told::Fill => self.set.launch(&self.kernels, self.shared, self.patience)?,
                    Told::More => self.more.launch(&self.kernels, self.shared, self.patience)?,
                    Told::Release => self.let_go()?,
                }
            }
            let counted = (self.set.there()?, self.more.there()? > 0);
            if self.is_leaving && self.set.stream.query()? && self.more.stream.query()? {
                (self.set.is_launched, self.more.is_launched, self.is_leaving) = (false, false, false);
                last = (0, false);
                say(output, &Said::Empty)?;
            } else if counted != last {
                last = counted;
                say(output, &Said::Counted { there: counted.0, more: counted.1 })?;
            }
        }
    }

    fn let_go(&mut self) -> Result<(), DriverError> {
        self.is_leaving = true;
        self.set.go.store_u32(0, 1)?;
        self.more.go.store_u32(0, 1)
    }

    /// Lets all blocks leave, and waits for that.
    fn release(&mut self) -> Result<(), DriverError> {
        self.let_go()?;
        self.set.stream.synchronize()?;
        self.more.stream.synchronize()?;
        (self.set.is_launched, self.more.is_launched, self.is_leaving) = (false, false, false);
        Ok(())
    }
}

/// What comes in, by lines.
struct Lines<R> {
    input: R,
    bytes: Vec<u8>,
}

impl<R: Read + AsFd> Lines<R> {
    /// Waits for something, for so long; `None` at the end.
    fn next(&mut self, limit: Option<&Timespec>) -> io::Result<Option<Vec<Told>>> {
        let ready = poll(&mut [PollFd::new(&self.input, PollFlags::IN)], limit).unwrap_or(0);
        if ready > 0 {
            let mut piece = [0; 256];
            match self.input.read(&mut piece)? {
                0 => return Ok(None),
                count => self.bytes.extend_from_slice(&piece[..count]),
            }
        }
        let mut told = Vec::new();
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            told.push(serde_json::from_slice(&line)?);
        }
        Ok(Some(told))
    }
}
