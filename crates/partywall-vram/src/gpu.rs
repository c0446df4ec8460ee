//! A prober that measures on a GPU.
//!
//! Takes memory of its own, which it gives back when it is dropped, and changes none of anybody's. It measures what a GPU does that has
//! nothing else to do: beside other work times are wrong more often, and the checks of the maps say so.

use std::collections::BTreeMap;
use std::sync::Arc;

use partywall_core::units::Bytes;
use partywall_driver::kernels::{Atomics, Kernels, LINE_BYTES, NO_PLACE, Part, Shape};
use partywall_driver::{
    Context, Device, DeviceBuffer, DriverError, GreenContext, GroupSet, PinnedBuffer, Priority, SmSplit,
    Stream,
};

use crate::address::{Address, LINE_BYTES as LINE, PAGE_BYTES};
use crate::prober::{Probe, Prober};

/// Probes that are sent to the GPU together, bounded by what they take in memory: 8 bytes each. Fewer for memory of which little is asked.
const AT_ONCE: usize = 1 << 20;
const FEW_AT_ONCE: usize = 1 << 13;

/// Atomic operations in a chain: enough to average what a single one takes more or less, and 5 us.
const CHAIN: u32 = 25;

/// Blocks, threads and operations of each thread by which slices are told: two streams from 8 SMs each saturate one.
const BLOCKS: u32 = 16;
const THREADS: u32 = 256;
const STREAM: u32 = 64;

/// Places by which it is found out what one stream takes alone.
const ALONE: usize = 33;

/// Lists of places begin at multiples of so many.
const ALIGNED: usize = 4;

/// Measures on a GPU.
#[derive(Debug)]
pub struct GpuProber {
    split: SmSplit,
    /// Made when they are asked for: each is a millisecond, and takes something of the driver's.
    groups: Vec<Option<(GreenContext, Stream)>>,
    stream: Stream,
    kernels: Arc<Kernels>,
    memory: DeviceBuffer,
    exchange: Exchange,
    /// By the groups that were asked for: where pairs of streams come from.
    crowds: BTreeMap<Vec<u16>, Crowd>,
}

/// SMs that streams come from.
#[derive(Debug)]
struct Crowd {
    /// Its stream of launches is the SMs' as long as this is there.
    _sms: GreenContext,
    stream: Stream,
    /// Cycles of a stream to one place alone.
    alone: u32,
}

/// Memory that lists of places and times pass through.
#[derive(Debug)]
struct Exchange {
    at_once: usize,
    host: PinnedBuffer,
    places: DeviceBuffer,
    times: DeviceBuffer,
    arrived: DeviceBuffer,
}

impl GpuProber {
    /// Takes `bytes` of the device's memory, in whole pages, to look at.
    ///
    /// # Errors
    /// What the driver returned: among it that there is not so much memory, or that it has no Green Contexts.
    pub fn new(device: &Device, bytes: Bytes) -> Result<Self, DriverError> {
        let context: Context = device.primary()?;
        let kernels = Arc::new(Kernels::load(&context)?);
        let memory = context.alloc(Bytes(bytes.0 / u64::from(PAGE_BYTES) * u64::from(PAGE_BYTES)))?;
        Self::with(device, kernels, memory, AT_ONCE)
    }

    /// Looks at whole pages that somebody else put together.
    ///
    /// # Errors
    /// As [`GpuProber::new`].
    pub fn over(device: &Device, kernels: Arc<Kernels>, memory: DeviceBuffer) -> Result<Self, DriverError> {
        Self::with(device, kernels, memory, FEW_AT_ONCE)
    }

    fn with(
        device: &Device,
        kernels: Arc<Kernels>,
        memory: DeviceBuffer,
        at_once: usize,
    ) -> Result<Self, DriverError> {
        let context = device.primary()?;
        let split = device.sm_split()?;
        let list = Bytes(4 * (2 * at_once + ALIGNED * split.groups()) as u64);
        Ok(Self {
            groups: (0..split.groups()).map(|_| None).collect(),
            split,
            stream: context.stream(Priority::Normal)?,
            kernels,
            memory,
            exchange: Exchange {
                at_once,
                host: context.pinned(list)?,
                places: context.alloc(list)?,
                times: context.alloc(list)?,
                arrived: context.alloc(Bytes(LINE_BYTES))?,
            },
            crowds: BTreeMap::new(),
        })
    }

    /// The memory that it looked at.
    pub fn into_memory(self) -> DeviceBuffer {
        self.memory
    }

    /// Makes sure that groups can be asked.
    fn prepare(&mut self, probes: &[Probe]) -> Result<(), DriverError> {
        for probe in probes {
            let missing = || DriverError::Invalid(format!("there is no group {} of SMs", probe.group));
            let group = self.groups.get_mut(usize::from(probe.group)).ok_or_else(missing)?;
            if group.is_none() {
                *group = Some(context_of(&self.split, [probe.group])?);
            }
        }
        Ok(())
    }

    /// Makes sure that streams can come from SMs of these groups, the farther apart the better. What they take alone they take at the first places
    /// that are asked about.
    fn gather(&mut self, groups: &[u16], pairs: &[(Address, Address)]) -> Result<(), DriverError> {
        if self.crowds.contains_key(groups) || pairs.is_empty() {
            return Ok(());
        }
        if groups.is_empty() {
            return Err(DriverError::Invalid("streams have to come from somewhere".to_owned()));
        }
        let wanted = (BLOCKS.div_ceil(self.split.sms_per_group().0) as usize).min(groups.len());
        let chosen = (0..wanted).map(|index| groups[index * groups.len() / wanted]);
        let (sms, stream) = context_of(&self.split, chosen)?;
        let alone = pairs.iter().take(ALONE).flat_map(|(one, _)| [Self::line(*one), NO_PLACE]);
        let mut cycles = self.pairs(&stream, &alone.collect::<Vec<_>>())?;
        cycles.sort_unstable();
        let alone = cycles[cycles.len() / 2].max(1);
        self.crowds.insert(groups.to_vec(), Crowd { _sms: sms, stream, alone });
        Ok(())
    }

    /// Gives the GPU lists of places, has `submit` do something with them, and takes what it measured.
    fn exchange(
        &self,
        places: &[u32],
        submit: impl FnOnce(&Self) -> Result<(), DriverError>,
    ) -> Result<Vec<u32>, DriverError> {
        let Exchange { host, places: to, times, .. } = &self.exchange;
        let bytes = 4 * places.len() as u64;
        let raw: Vec<u8> = places.iter().flat_map(|place| place.to_le_bytes()).collect();
        host.write(0, &raw)?;
        self.stream.copy_to_device(to, 0, host, 0, bytes)?;
        self.stream.fill(times, 0, bytes, 0)?;
        self.stream.synchronize()?;
        submit(self)?;
        self.stream.copy_to_host(host, 0, times, 0, bytes)?;
        self.stream.synchronize()?;
        let mut raw = vec![0; raw.len()];
        host.read(0, &mut raw)?;
        let words = raw
            .chunks_exact(4)
            .map(|word| word.iter().rev().fold(0, |all, &byte| all << 8 | u32::from(byte)));
        Ok(words.collect())
    }

    fn atomics(
        &self,
        first: usize,
        places: usize,
        count: usize,
        length: u32,
    ) -> Result<Atomics<'_>, DriverError> {
        let (at, bytes) = (4 * first as u64, 4 * places as u64);
        Ok(Atomics {
            memory: Part::all(&self.memory),
            places: Part::new(&self.exchange.places, at, bytes)?,
            count: count as u32,
            length,
            times: Part::new(&self.exchange.times, at, bytes)?,
        })
    }

    fn line(address: Address) -> u32 {
        address.page * (PAGE_BYTES / LINE) + address.offset / LINE
    }

    /// What some of these probes measure, of one batch, of groups that can be asked.
    fn some(&self, probes: &[Probe]) -> Result<Vec<f32>, DriverError> {
        // Each group's places in a row: what is in them, and where the row begins.
        let mut of_group: Vec<Vec<usize>> = vec![Vec::new(); self.groups.len()];
        for (index, probe) in probes.iter().enumerate() {
            of_group[usize::from(probe.group)].push(index);
        }
        let mut places = Vec::with_capacity(probes.len() + ALIGNED * self.groups.len());
        let mut begins = Vec::with_capacity(self.groups.len());
        for group in &of_group {
            begins.push(places.len());
            places.extend(group.iter().map(|&index| Self::line(probes[index].address)));
            places.resize(places.len().next_multiple_of(ALIGNED), NO_PLACE);
        }
        let times = self.exchange(&places, |this| {
            for ((group, &begin), ready) in of_group.iter().zip(&begins).zip(&this.groups) {
                if let Some((green, stream)) = ready.as_ref().filter(|_| !group.is_empty()) {
                    let atomics = this.atomics(begin, group.len(), group.len(), CHAIN)?;
                    this.kernels.chain_atomics(stream, green.sms().0.min(group.len() as u32), &atomics)?;
                }
            }
            this.groups.iter().flatten().try_for_each(|(_, stream)| stream.synchronize())
        })?;
        let mut cycles = vec![0.0; probes.len()];
        for (group, begin) in of_group.iter().zip(begins) {
            for (&index, time) in group.iter().zip(&times[begin..]) {
                cycles[index] = *time as f32 / 256.0;
            }
        }
        Ok(cycles)
    }

    /// Cycles for pairs of places, of one batch.
    fn pairs(&self, stream: &Stream, lines: &[u32]) -> Result<Vec<u32>, DriverError> {
        let count = lines.len() / 2;
        let times = self.exchange(lines, |this| {
            let arrived = &this.exchange.arrived;
            this.stream.fill(arrived, 0, arrived.len(), 0)?;
            this.stream.synchronize()?;
            let atomics = this.atomics(0, lines.len(), count, STREAM)?;
            this.kernels.contend(stream, Shape::new(BLOCKS, THREADS)?, &atomics, Part::all(arrived))?;
            stream.synchronize()
        })?;
        Ok(times[..count].to_vec())
    }
}

/// A context and a stream of some groups of SMs.
fn context_of(
    split: &SmSplit,
    groups: impl IntoIterator<Item = u16>,
) -> Result<(GreenContext, Stream), DriverError> {
    let groups = GroupSet::new(groups.into_iter().map(u32::from))
        .map_err(|error| DriverError::Invalid(error.to_string()))?;
    let green = split.green_context(&groups)?;
    let stream = green.stream(Priority::Normal)?;
    Ok((green, stream))
}

impl Prober for GpuProber {
    type Error = DriverError;

    fn pages(&self) -> u32 {
        (self.memory.len() / u64::from(PAGE_BYTES)) as u32
    }

    fn groups(&self) -> u16 {
        self.groups.len() as u16
    }

    fn latencies(&mut self, probes: &[Probe]) -> Result<Vec<f32>, DriverError> {
        let mut cycles = Vec::with_capacity(probes.len());
        self.prepare(probes)?;
        for some in probes.chunks(self.exchange.at_once) {
            cycles.extend(self.some(some)?);
        }
        Ok(cycles)
    }

    fn contention(&mut self, groups: &[u16], pairs: &[(Address, Address)]) -> Result<Vec<f32>, DriverError> {
        self.gather(groups, pairs)?;
        let Some(Crowd { stream, alone, .. }) = self.crowds.get(groups) else { return Ok(Vec::new()) };
        let mut ratios = Vec::with_capacity(pairs.len());
        for some in pairs.chunks(self.exchange.at_once / 2) {
            let lines: Vec<u32> =
                some.iter().flat_map(|(one, other)| [Self::line(*one), Self::line(*other)]).collect();
            let cycles = self.pairs(stream, &lines)?;
            ratios.extend(cycles.into_iter().map(|cycles| cycles as f32 / *alone as f32));
        }
        Ok(ratios)
    }
}
