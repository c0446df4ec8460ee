//! Where on the GPU a tenant runs: its context, its stream, and how many SMs that stream has.

use std::collections::BTreeMap;

use partywall_core::tenant::Class;
use partywall_core::units::{Bytes, SmCount};
use partywall_driver::device::Attribute;
use partywall_driver::kernels::{Kernels, Part, SLOT_BYTES, Shape};
use partywall_driver::{Context, Cuda, Device, DeviceBuffer, GreenContext, PinnedBuffer, Priority, Stream};

use super::WorkloadError;
use super::arguments::{Sharing, TenantArguments};

/// Slots for sums: as many as blocks that a large GPU holds at a time.
const SLOTS: u64 = 1024;

/// The largest part of the free memory that one buffer takes: several tenants, each with several buffers, must fit.
const FREE_SHARE: u64 = 8;

/// A stream on some SMs of a GPU, and everything needed to put work into it. Belongs to one thread.
pub struct Place {
    /// Where work goes.
    pub stream: Stream,
    /// The kernels.
    pub kernels: Kernels,
    /// Memory comes from here.
    pub context: Context,
    /// How many SMs the stream's kernels can use.
    pub sms: SmCount,
    green: Option<GreenContext>,
    priority: i32,
}

impl Place {
    /// The place of the tenant with this index.
    ///
    /// # Errors
    /// What the driver returned: there is no GPU, no such device, or it cannot do this kind of sharing.
    pub fn open(arguments: &TenantArguments, index: usize) -> Result<Self, WorkloadError> {
        let device = Cuda::load()?.device(arguments.device)?;
        let context = device.primary()?;
        // For as long as this thread lives: saves a change of context in every call.
        std::mem::forget(context.make_current()?);
        let class = arguments.tenants.get(index).map(|tenant| tenant.class);
        let priority = match (&arguments.sharing, class) {
            (Sharing::StreamPriority, Some(Class::LatencySensitive)) => Priority::High,
            (Sharing::StreamPriority, _) => Priority::Low,
            _ => Priority::Normal,
        };
        let green = match &arguments.sharing {
            Sharing::GreenContexts(sets) => match sets.get(index) {
                Some(groups) => Some(device.sm_split()?.green_context(groups)?),
                None => {
                    return Err(WorkloadError::Unfit(format!("there are no SM groups for tenant {index}")));
                }
            },
            Sharing::Whole | Sharing::StreamPriority => None,
        };
        let (stream, sms) = match &green {
            Some(green) => (green.stream(priority)?, green.sms()),
            None => (context.stream(priority)?, device.sms()?),
        };
        let (kernels, priority) = (Kernels::load(&context)?, stream.priority()?);
        Ok(Self { stream, kernels, context, sms, green, priority })
    }

    /// The GPU.
    pub fn device(&self) -> &Device {
        self.context.device()
    }

    /// For the record.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn about(&self) -> Result<BTreeMap<String, String>, WorkloadError> {
        let device = self.device();
        let mut about = BTreeMap::new();
        let mut say = |key: &str, value: String| about.insert(key.to_owned(), value);
        say("gpu", device.name()?);
        say("gpu_uuid", device.uuid()?.to_string());
        say("cuda", device.cuda().driver_version().to_string());
        say("sms", self.sms.0.to_string());
        say("stream_priority", self.priority.to_string());
        // CU_CTX_SCHED_AUTO: nothing is set, and the driver looks at the clock unless the machine has few cores.
        say("host_waits", "as the driver does by default".to_owned());
        if let Some(green) = &self.green {
            say("sm_groups", green.groups().to_string());
        }
        Ok(about)
    }

    /// A whole-number property of the GPU, 0 where it is negative.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn attribute(&self, attribute: Attribute) -> Result<u32, WorkloadError> {
        Ok(u32::try_from(self.device().attribute(attribute)?).unwrap_or(0))
    }

    /// Blocks of this kernel that fill the SMs.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn filled(&self, kernel: &str, threads: u32) -> Result<Shape, WorkloadError> {
        let per_sm = self.kernels.blocks_per_sm(kernel, threads, Bytes::ZERO)?;
        Ok(Shape::new((self.sms.0 * per_sm).clamp(1, Shape::BLOCKS_MAX), threads)?)
    }

    /// What a buffer is given: what was asked for, or `normal`, which is cut to a fraction of the free memory. A
    /// multiple of 1 MiB.
    ///
    /// # Errors
    /// Less than `least`, for which the workload would be another one.
    pub fn size(&self, asked: Option<Bytes>, normal: Bytes, least: Bytes) -> Result<Bytes, WorkloadError> {
        const MIB: u64 = 1 << 20;
        let (free, _) = self.context.memory_info()?;
        let size = asked.unwrap_or(Bytes(normal.0.min(free.0 / FREE_SHARE)));
        let size = Bytes(size.0 / MIB * MIB);
        if size < least || size == Bytes::ZERO {
            let message =
                format!("a buffer of {size} is too small: at least {least} are needed, {free} are free");
            return Err(WorkloadError::Unfit(message));
        }
        Ok(size)
    }

    /// What a buffer is given whose accesses are to miss L2: what was asked for, or `normal`, and more where L2 is large.
    ///
    /// # Errors
    /// Less than twice the L2, where a pass would find much of the one before; or what the driver returned.
    pub fn size_beyond_l2(&self, asked: Option<Bytes>, normal: Bytes) -> Result<Bytes, WorkloadError> {
        let l2 = self.device().l2_bytes()?;
        self.size(asked, Bytes(normal.0.max(8 * l2.0)), Bytes(2 * l2.0))
    }

    /// A buffer filled with the pattern, from index 0.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn patterned(&self, size: Bytes) -> Result<DeviceBuffer, WorkloadError> {
        let buffer = self.context.alloc(size)?;
        self.kernels.fill_pattern(&self.stream, Part::all(&buffer), 0, 0)?;
        Ok(buffer)
    }

    /// The words of a part of a buffer, after all work that was submitted.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn words(&self, from: &DeviceBuffer, offset: u64, count: usize) -> Result<Vec<u32>, WorkloadError> {
        let bytes = count as u64 * 4;
        let host = self.context.pinned(Bytes(bytes.max(4)))?;
        self.stream.copy_to_host(&host, 0, from, offset, bytes)?;
        self.stream.synchronize()?;
        let mut raw = vec![0; count * 4];
        host.read(0, &mut raw)?;
        Ok(raw.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
    }

    /// A buffer that holds these words.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn uploaded(&self, words: &[u32]) -> Result<DeviceBuffer, WorkloadError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let host: PinnedBuffer = self.context.pinned(Bytes(bytes.len() as u64))?;
        host.write(0, &bytes)?;
        let buffer = self.context.alloc(Bytes(bytes.len() as u64))?;
        self.stream.copy_to_device(&buffer, 0, &host, 0, bytes.len() as u64)?;
        self.stream.synchronize()?;
        Ok(buffer)
    }

    /// How many words of a part are not `pattern(index) + add`, after all work that was submitted.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn wrong_words(&self, words: Part<'_>, add: u32) -> Result<u64, WorkloadError> {
        let count = self.uploaded(&[0, 0])?;
        self.kernels.count_wrong(&self.stream, words, 0, add, Part::all(&count))?;
        let found = self.words(&count, 0, 2)?;
        Ok(u64::from(found[0]) | u64::from(found[1]) << 32)
    }

    /// The checksum of a part: its sum, and the sum weighted with the index, folded into one number.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn checksum(&self, words: Part<'_>) -> Result<u64, WorkloadError> {
        let sums = self.uploaded(&[0; 4])?;
        self.kernels.checksum(&self.stream, words, Part::all(&sums))?;
        let found = self.words(&sums, 0, 4)?;
        let wide = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Ok(wide(found[0], found[1]).rotate_left(32) ^ wide(found[2], found[3]))
    }
}

/// Sums that kernels add to, modulo 2^32, and what they must come to.
pub struct Sums {
    buffer: DeviceBuffer,
    expected: u32,
}

impl Sums {
    /// All zero.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn new(place: &Place) -> Result<Self, WorkloadError> {
        let buffer = place.context.alloc(Bytes(SLOTS * SLOT_BYTES))?;
        place.stream.fill(&buffer, 0, buffer.len(), 0)?;
        Ok(Self { buffer, expected: 0 })
    }

    /// For a kernel to add to.
    pub fn part(&self) -> Part<'_> {
        Part::all(&self.buffer)
    }

    /// Work was submitted that adds this much.
    pub fn expect(&mut self, sum: u32) {
        self.expected = self.expected.wrapping_add(sum);
    }

    /// Begins anew.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn clear(&mut self, place: &Place) -> Result<(), WorkloadError> {
        self.expected = 0;
        Ok(place.stream.fill(&self.buffer, 0, self.buffer.len(), 0)?)
    }

    /// What was found, and what should have been.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn compare(&self, place: &Place) -> Result<(u32, u32), WorkloadError> {
        let words = place.words(&self.buffer, 0, (SLOTS * SLOT_BYTES / 4) as usize)?;
        let slots = words.chunks((SLOT_BYTES / 4) as usize).map(|slot| slot[0]);
        Ok((slots.fold(0, u32::wrapping_add), self.expected))
    }
}
