//! A reader and a writer to measure with, which keep to a side: its memory and its SMs.
//!
//! What is measured is what somebody waits for (*passes* over memory in one long launch, *requests* of a few short launches) beside a
//! neighbour that never pauses (a *load*). Each is a process of its own with a tenant of its own; a tenant can be either. Every one can also look at
//! its memory *uncolored*: the same pages and the same instructions, and of every two stretches the first, whichever side that is on.
//!
//! All that a load's neighbour may have to wait for (memory, graphs, code) is made before the load begins.

use std::collections::BTreeMap;
use std::sync::Arc;

use partywall_core::units::{Bytes, Nanos};
use partywall_driver::kernels::{
    Access, CHUNK_BYTES, Colored, Kernels, Load, PIECE_BYTES, Part, Passes, Range, SLOT_BYTES, Shape,
};
use partywall_driver::{
    Context, DeviceBuffer, DriverError, Event, GraphExec, GreenContext, PinnedBuffer, Priority, Stream,
};

use crate::arena::{Arena, Block};
use crate::pages::Source;
use crate::sms;

pub use error::TenantError;

mod error;

/// What a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Launches, one after the other; at most [`LAUNCHES_MAX`].
    pub launches: u32,
    /// What each reads: whole pieces of 1 KiB, no more than all data. 0 for launches that do nothing else.
    pub bytes: Bytes,
}

/// Most launches of a request.
pub const LAUNCHES_MAX: u32 = 256;

/// Most passes of one launch.
pub const PASSES_MAX: u32 = 20_000;

/// Passes and requests that come before those that count.
const WARM_UP: u32 = 8;

/// What all bytes of the data are, so that sums can be told.
const BYTE: u8 = 0x35;

/// Blocks that wait longer than this for each other are not all there.
const PATIENCE: Nanos = Nanos::from_secs(5);

/// Room for slots of sums: of a thousand SMs, more than any GPU has.
const SLOTS_BYTES: u64 = 256 << 10;

/// A load ends by itself after this, should nobody end it.
const LOAD_PATIENCE: Nanos = Nanos::from_secs(120);

/// Chunks between two looks of a load: 0.3 ms at 32 GB/s a block.
const LOOK_EVERY: u32 = 128;

/// How a tenant looks at its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum View {
    /// One side.
    Colored,
    /// Both.
    Uncolored,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Passes over all of the data in one launch.
    Passes,
    /// Requests of a few launches.
    Requests,
    /// The same, each recorded as a graph.
    Graphs,
}

/// What passes or requests took.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// By the device's clock, microseconds.
    pub device_us: Vec<f64>,
    /// By the host's, from before the first launch until it is known that all is done; none for passes.
    pub host_us: Vec<f64>,
}

/// A tenant on a side.
pub struct Tenant {
    arena: Arena,
    green: GreenContext,
    stream: Stream,
    data: Block,
    /// A slot that counts blocks, and one for the sum of each.
    sums: Block,
    times: DeviceBuffer,
    host: PinnedBuffer,
    events: [Event; 2],
    /// By which of the codes, threads and view.
    graphs: BTreeMap<(usize, u32, View), [GraphExec; 2]>,
    /// The kernels that passes and requests are made of, in one place or several, and which of them are used.
    codes: Vec<Arc<Kernels>>,
    code: usize,
    load: LoadWords,
    request: Request,
}

/// What a load and the host say to each other.
struct LoadWords {
    go: PinnedBuffer,
    progress: PinnedBuffer,
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenant")
            .field("arena", &self.arena)
            .field("green", &self.green)
            .finish_non_exhaustive()
    }
}

impl Tenant {
    /// What an arena has to hold for a tenant with so many bytes of data.
    pub const fn arena_bytes(data: Bytes) -> Bytes {
        Bytes(data.0 + SLOTS_BYTES + CHUNK_BYTES)
    }

    /// With so many bytes of data in an arena, and on all SMs of the arena's side, or on `groups` groups of them.
    ///
    /// # Errors
    /// Where there is no room or no green context.
    pub fn new(
        source: &Source,
        mut arena: Arena,
        (data, request): (Bytes, Request),
        groups: Option<usize>,
    ) -> Result<Self, TenantError> {
        let is_whole = request.bytes.0.is_multiple_of(PIECE_BYTES) && request.bytes <= data;
        if !(1..=LAUNCHES_MAX).contains(&request.launches) || !is_whole {
            return Err(TenantError::Request(request));
        }
        let context: Context = source.device.primary()?;
        let green = sms::green_context(&source.device, &source.known, arena.side(), groups)?;
        let blocks = u64::from(green.sms().0);
        let slots = SLOT_BYTES * (blocks + 1);
        if !data.0.is_multiple_of(CHUNK_BYTES) || data.0 / CHUNK_BYTES < blocks || slots > SLOTS_BYTES {
            return Err(TenantError::Data { bytes: data });
        }
        let data = arena.allocate(data.0, CHUNK_BYTES)?;
        let sums = arena.allocate(slots, PIECE_BYTES)?;
        let times = Bytes(8 * (u64::from(PASSES_MAX) + 1));
        let host = context.pinned(Bytes(times.0.max(slots + PIECE_BYTES)))?;
        let words = LoadWords { go: context.pinned(Bytes(4))?, progress: context.pinned(Bytes(4 * blocks))? };
        let tenant = Self {
            stream: green.stream(Priority::Normal)?,
            times: context.alloc(times)?,
            events: [context.event(true)?, context.event(true)?],
            graphs: BTreeMap::new(),
            load: words,
            request,
            codes: vec![Arc::clone(&source.kernels)],
            code: 0,
            arena,
            green,
            data,
            sums,
            host,
        };
        tenant.fill_data()?;
        Ok(tenant)
    }

    /// Loads the kernels of passes and requests once more, which is in another place of the device's memory. Code is somewhere, and what
    /// that does to launches is what several places tell.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn load_again(&mut self, source: &Source) -> Result<(), TenantError> {
        self.codes.push(Arc::new(Kernels::load(&source.device.primary()?)?));
        Ok(())
    }

    /// Makes passes and requests of the kernels that were loaded so many times later than the first.
    ///
    /// # Errors
    /// Where they were not.
    pub fn use_code(&mut self, code: usize) -> Result<(), TenantError> {
        if code >= self.codes.len() {
            return Err(TenantError::Code { code, loaded: self.codes.len() });
        }
        self.code = code;
        Ok(())
    }

    /// Makes all data [`BYTE`], however they are looked at.
    fn fill_data(&self) -> Result<(), TenantError> {
        let all = Range { at: self.data.at, bytes: self.data.bytes };
        for view in [View::Colored, View::Uncolored] {
            if self.has(view) {
                self.arena.fill_as(&self.stream, self.view(view)?, all, BYTE)?;
            }
        }
        Ok(self.stream.synchronize()?)
    }

    /// Whether memory can be looked at so: what somebody else has the other half of is his.
    pub fn has(&self, view: View) -> bool {
        view == View::Colored || !self.arena.is_paired()
    }

    /// Its memory.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Its SMs.
    pub fn sms(&self) -> u32 {
        self.green.sms().0
    }

    /// Bytes that a load touches in each of its chunks' passages, and those that passes and requests read.
    pub fn data(&self) -> Bytes {
        Bytes(self.data.bytes)
    }

    /// Writes bytes of the seed's all over the data by color, reads them back, and clears them; how many were wrong.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn try_copies(&self, seed: u32) -> Result<u64, TenantError> {
        let bytes: Vec<u8> = (0..self.data.bytes as u32)
            .map(|index| partywall_driver::kernels::pattern(index ^ seed) as u8)
            .collect();
        self.arena.write(&self.stream, self.data.at, &bytes)?;
        let mut back = vec![0; bytes.len()];
        self.arena.read(&self.stream, self.data.at, &mut back)?;
        // A copy by color has changed what is seen without, too.
        self.fill_data()?;
        let wrong = bytes.iter().zip(&back).filter(|(one, other)| one != other).count();
        self.arena.read(&self.stream, self.data.at, &mut back)?;
        let left = back.iter().filter(|byte| **byte != BYTE).count();
        Ok((wrong + left) as u64)
    }

    fn view(&self, view: View) -> Result<Colored<'_>, TenantError> {
        if !self.has(view) {
            return Err(TenantError::Shared);
        }
        Ok(match view {
            View::Colored => self.arena.colored()?,
            View::Uncolored => self.arena.uncolored()?,
        })
    }

    fn shape(&self, threads: u32) -> Result<Shape, DriverError> {
        Shape::new(self.green.sms().0, threads)
    }

    /// Where the sums of blocks are.
    fn slots(&self) -> u64 {
        self.sums.at + SLOT_BYTES
    }

    /// Does the work `count` times, with so many threads on each SM. `clock` is the host's.
    ///
    /// # Errors
    /// Where it was not done right, there is no measurement.
    pub fn measure(
        &mut self,
        work: Work,
        view: View,
        threads: u32,
        count: u32,
        clock: &dyn Fn() -> Nanos,
    ) -> Result<Taken, TenantError> {
        if !(1..=PASSES_MAX - WARM_UP).contains(&count) {
            return Err(TenantError::Count { count });
        }
        let sums = Range { at: self.sums.at, bytes: self.sums.bytes };
        self.arena.fill_as(&self.stream, self.view(view)?, sums, 0)?;
        let all = count + WARM_UP;
        let (mut taken, bytes) = match work {
            Work::Passes => (self.passes(view, threads, all)?, self.data.bytes * u64::from(all)),
            Work::Requests | Work::Graphs => {
                let each = u64::from(self.request.launches) * self.request.bytes.0;
                (self.requests(work, view, threads, all, clock)?, each * u64::from(all))
            }
        };
        self.check(view, bytes)?;
        taken.device_us.drain(..WARM_UP as usize);
        taken.host_us.drain(..taken.host_us.len().min(WARM_UP as usize));
        Ok(taken)
    }

    fn passes(&self, view: View, threads: u32, count: u32) -> Result<Taken, TenantError> {
        let bytes = 8 * (u64::from(count) + 1);
        self.stream.fill(&self.times, 0, bytes, 0)?;
        let range = Range { at: self.data.at, bytes: self.data.bytes };
        let passes = Passes { count, patience: PATIENCE, times: Part::all(&self.times) };
        let (shape, arena) = (self.shape(threads)?, (self.view(view)?, range));
        self.codes[self.code].arena_passes(&self.stream, shape, arena, self.slots(), passes)?;
        self.stream.copy_to_host(&self.host, 0, &self.times, 0, bytes)?;
        self.stream.synchronize()?;
        let ends = (0..=u64::from(count)).map(|pass| self.host.load_u64(8 * pass));
        let ends = ends.collect::<Result<Vec<u64>, _>>()?;
        if let Some(pass) = ends.iter().position(|end| *end == 0) {
            return Err(TenantError::NotTogether { pass: pass as u32, passes: count });
        }
        let took = ends.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e3);
        Ok(Taken { device_us: took.collect(), host_us: Vec::new() })
    }

    fn requests(
        &mut self,
        work: Work,
        view: View,
        threads: u32,
        count: u32,
        clock: &dyn Fn() -> Nanos,
    ) -> Result<Taken, TenantError> {
        if work == Work::Graphs && !self.graphs.contains_key(&(self.code, threads, view)) {
            let record = |half| -> Result<GraphExec, TenantError> {
                let launches = |_: &Stream| self.launches(view, threads, half);
                let graph = self.stream.capture(launches)?.instantiate()?;
                graph.upload(&self.stream)?;
                Ok(graph)
            };
            let graphs = [record(0)?, record(1)?];
            self.stream.synchronize()?;
            self.graphs.insert((self.code, threads, view), graphs);
        }
        let graphs = self.graphs.get(&(self.code, threads, view)).filter(|_| work == Work::Graphs);
        let [begin, end] = &self.events;
        let mut taken = Taken::default();
        for request in 0..count {
            let half = request % 2;
            let before = clock();
            self.stream.record(begin)?;
            match graphs {
                Some(graphs) => graphs[half as usize].launch(&self.stream)?,
                None => self.launches(view, threads, half)?,
            }
            self.stream.record(end)?;
            end.synchronize()?;
            taken.host_us.push(clock().saturating_sub(before).0 as f64 / 1e3);
            taken.device_us.push(f64::from(end.elapsed_since(begin)?) * 1e3);
        }
        Ok(taken)
    }

    /// A request: it goes on where the one before ended, so that nothing it reads is still in L2 for its sake.
    fn launches(&self, view: View, threads: u32, half: u32) -> Result<(), DriverError> {
        let Request { launches, bytes: Bytes(bytes) } = self.request;
        let windows = self.data.bytes.checked_div(bytes).unwrap_or(1);
        for launch in 0..launches {
            let window = u64::from(half * launches + launch) % windows;
            let range = Range { at: self.data.at + window * bytes, bytes };
            let arena = self.view(view).map_err(|error| DriverError::Invalid(error.to_string()))?;
            self.codes[self.code].arena_read(
                &self.stream,
                self.shape(threads)?,
                (arena, range),
                self.slots(),
            )?;
        }
        Ok(())
    }

    /// Whether the sums are those of so many bytes.
    fn check(&self, view: View, bytes: u64) -> Result<(), TenantError> {
        let (at, length) = (self.slots(), self.sums.bytes - SLOT_BYTES);
        let range = Range { at, bytes: length };
        self.arena.gather_as(&self.stream, self.view(view)?, range, &self.host)?;
        self.stream.synchronize()?;
        let slots = (0..length / SLOT_BYTES).map(|slot| self.host.load_u32(slot * SLOT_BYTES));
        let found = slots.collect::<Result<Vec<u32>, _>>()?.into_iter().fold(0, u32::wrapping_add);
        let expected = u32::from_ne_bytes([BYTE; 4]).wrapping_mul((bytes / 4) as u32);
        if found == expected { Ok(()) } else { Err(TenantError::Sum { found, expected }) }
    }

    /// Begins to work through the data with a block on each of so many SMs, and so many threads in it, until it is stopped. `gentle`: looks at
    /// the host after each chunk, for a simulated GPU.
    ///
    /// # Errors
    /// Where there are not so many SMs, or what the driver returned.
    pub fn start(
        &self,
        (access, evict_first): (Access, bool),
        (sms, threads): (u32, u32),
        view: View,
        gentle: bool,
    ) -> Result<(), TenantError> {
        if !(1..=self.sms()).contains(&sms) {
            return Err(TenantError::Sms { asked: sms, own: self.sms() });
        }
        let LoadWords { go, progress } = &self.load;
        go.store_u32(0, 0)?;
        (0..u64::from(self.sms())).try_for_each(|block| progress.store_u32(4 * block, 0))?;
        let every = if gentle { 1 } else { LOOK_EVERY };
        let load = Load { access, evict_first, every, patience: LOAD_PATIENCE };
        let arena = (self.view(view)?, Range { at: self.data.at, bytes: self.data.bytes });
        let shape = Shape::new(sms, threads)?;
        self.arena.kernels().arena_stream(&self.stream, shape, arena, load, (go, progress))?;
        Ok(())
    }

    /// Bytes of its data that a load has worked through.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn worked(&self) -> Result<Bytes, TenantError> {
        let words = (0..u64::from(self.sms())).map(|block| self.load.progress.load_u32(4 * block));
        let chunks = words.collect::<Result<Vec<u32>, _>>()?.into_iter().map(u64::from).sum::<u64>();
        Ok(Bytes(chunks * CHUNK_BYTES))
    }

    /// Ends a load, if there is one, and waits.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn stop(&self) -> Result<(), TenantError> {
        self.load.go.store_u32(0, 1)?;
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // Or what is dropped now would wait for a load that does not end.
        let _ = self.load.go.store_u32(0, 1);
    }
}
