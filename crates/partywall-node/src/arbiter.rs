//! The thread that gives processes their turns on the link: it reads what they say in their pages, has [`turns`] decide, and writes
//! what they are granted.
//!
//! A packet is on the link for ten microseconds, and every microsecond between two is lost to the link. So while packets are in
//! flight the thread looks at the pages again and again, and no system call stands between a packet that is done and the next
//! grant. When nothing has moved for [`SPIN`] it sleeps, on the bells that came with the pages. With few processors it gives way
//! between looks to whoever wants to run: the tenants' copiers have to get one too.
//!
//! On 2 processors that other programs load four times over, packets of 9.3 us, of one tenant or of 64, wait for 0.2 us for the next grant
//! at the 99th percentile with two in flight, and the link stands still for 5 % of the time at most (November 2026).
//!
//! Copies that go straight to the driver are no packets, and [`room`] is made for those of latency-sensitive tenants.
//!
//! Bells are eventfds that the tenants hold as well, so the thread relies on nothing about them: it waits for edges, and never
//! reads. A tenant that rings without end keeps this thread awake and nobody waiting.

pub mod room;
pub mod squeeze;
pub mod turns;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;

use partywall_core::copy_scheduler::{Config, ConfigError, Direction};
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::{Bytes, Nanos};
use partywall_shim_api::page::{Mapped, Page};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::clock;
use crate::leases::ProcessId;
use room::Room;
use squeeze::{LaunchOptions, Setting, Squeeze, TurnWatch};
use turns::{Grant, Turns};

#[cfg(test)]
mod tests;

/// How long the thread goes on looking when nothing moves. A packet of 1.5 MiB takes 28 us on PCIe 5 x16, and 512 KiB 80 us on the slowest link in
/// use; what takes longer waits for a time slice, and a wake-up more or less does not matter then.
pub const SPIN: Nanos = Nanos::from_micros(100);

/// The largest packet, unless the options say otherwise. On an H200 (PCIe 5 x16, November 2026) a packet costs the copy engine 5.5 us
/// besides its bytes, so that one tenant reaches 0.63 of the link's rate with 512 KiB, 0.84 with 1.5 MiB and 0.93 with 4 MiB; and
/// small copies of others wait for one packet (`docs/copies.md`).
pub const PACKET: Bytes = Bytes::from_kib(1536);

/// With this many processors or fewer, the thread gives way between looks.
const FEW_PROCESSORS: usize = 8;

/// Looks between two readings of the clock while it need not give way: a look takes well below a microsecond.
const LOOKS: u32 = 16;

/// The wake-up's name among the bells.
const WAKE: u64 = u64::MAX;

/// How copies are decided about. From text for experiments: `packet=1536KiB,in-flight=2,direct-ls=16MiB,direct-be=64KiB`, each part
/// optional, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOptions {
    /// Whether they are at all; otherwise they go straight to the driver, and are counted.
    pub decided: bool,
    /// Packets and how many of them are in flight. The weights come with the tenants.
    pub scheduler: Config,
    /// Copies of latency-sensitive tenants up to this size go straight to the driver, announced (see [`room`]): 16 MiB take 0.3 ms
    /// on PCIe 5 x16, for which others wait.
    pub direct_max_ls: Bytes,
    /// The same for best-effort tenants, which are not announced: a 64 KiB copy has the fixed cost of a packet mostly.
    pub direct_max_be: Bytes,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            decided: true,
            scheduler: Config { packet: PACKET, ..Config::default() },
            direct_max_ls: Bytes::from_mib(16),
            direct_max_be: Bytes::from_kib(64),
        }
    }
}

impl CopyOptions {
    /// Copies up to this size go straight to the driver.
    pub const fn direct_max(&self, class: Class) -> Bytes {
        match class {
            Class::LatencySensitive => self.direct_max_ls,
            Class::BestEffort => self.direct_max_be,
        }
    }
}

/// Why a text does not say how copies or launches are decided about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// A part that is not known.
    #[error(
        "`{0}` says nothing about copies; write off, or packet=1536KiB, in-flight=2, direct-ls=16MiB, direct-be=64KiB, min-charge=64KiB with commas \
         between"
    )]
    Part(String),
    /// The same about launches.
    #[error(
        "`{0}` says nothing about launches; write off, or chunks=2, chunk=100us, launches=16, release=50us, squeezed=16sms, duty=50%, slice=200us, turn=40ms, fixed with commas between"
    )]
    Launches(String),
    /// A value that is none.
    #[error("`{part}`: {reason}")]
    Value {
        /// The part.
        part: String,
        /// What is wrong.
        reason: String,
    },
    /// Together they make no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The value of a part.
fn value<T: FromStr<Err: fmt::Display>>(part: &str, text: &str) -> Result<T, OptionsError> {
    let wrong = |error: T::Err| OptionsError::Value { part: part.to_owned(), reason: error.to_string() };
    text.parse().map_err(wrong)
}

impl FromStr for CopyOptions {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        let mut options = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                None if part == "off" => options.decided = false,
                Some(("packet", size)) => options.scheduler.packet = value(part, size)?,
                Some(("in-flight", count)) => options.scheduler.in_flight = value(part, count)?,
                Some(("direct-ls", size)) => options.direct_max_ls = value(part, size)?,
                Some(("direct-be", size)) => options.direct_max_be = value(part, size)?,
                Some(("min-charge", size)) => options.scheduler.min_charge = value(part, size)?,
                _ => return Err(OptionsError::Part(part.to_owned())),
            }
        }
        // A packet below what packets are charged for at least is an experiment with small packets, not with charges.
        let packet = options.scheduler.packet;
        if !text.contains("min-charge") {
            options.scheduler.min_charge = options.scheduler.min_charge.min(packet);
        }
        Turns::new(options.scheduler)?;
        Ok(options)
    }
}

/// What the arbiter tells about a process.
#[derive(Debug, Default)]
pub struct CopyWatch {
    /// Bytes granted, per direction.
    pub granted: [AtomicU64; 2],
    /// How often it was late with a packet.
    pub late: AtomicU64,
    /// Whether it said what cannot be.
    pub nonsense: AtomicBool,
}

/// What the registry tells the arbiter.
#[derive(Debug)]
enum Command {
    Tenant { id: TenantId, class: Class, weight: u32 },
    NoTenant { id: TenantId },
    Process { process: ProcessId, tenant: TenantId, page: Arc<Mapped>, bell: OwnedFd, watch: Arc<CopyWatch> },
    NoProcess { process: ProcessId },
    Steer { setting: Setting },
    HoldUntil { at: Nanos },
}

/// The arbiter's end that others hold. The thread ends when it is dropped.
#[derive(Debug)]
pub struct Arbiter {
    commands: Option<Sender<Command>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    turns: Arc<TurnWatch>,
}

impl Arbiter {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the parameters are impossible, or the system gives no thread or descriptor.
    pub fn start(config: Config, launches: LaunchOptions) -> io::Result<Self> {
        let turns = Turns::new(config).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let bells = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&bells, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let (sender, commands) = mpsc::channel();
        let watch = Arc::new(TurnWatch::default());
        let few = std::thread::available_parallelism().is_ok_and(|count| count.get() <= FEW_PROCESSORS);
        let state = Thread {
            commands,
            wake: wake.clone(),
            bells,
            turns,
            pages: BTreeMap::new(),
            done: Vec::new(),
            grants: Vec::new(),
            news: Vec::new(),
            room: Room::default(),
            squeeze: Squeeze::new(launches, Arc::clone(&watch)),
            gives_way: few,
        };
        let thread = std::thread::Builder::new().name("copies".to_owned()).spawn(move || state.run())?;
        Ok(Self { commands: Some(sender), wake, thread: Some(thread), turns: watch })
    }

    /// A tenant may have processes from now on.
    pub fn add_tenant(&self, id: TenantId, class: Class, weight: u32) {
        self.send(Command::Tenant { id, class, weight });
    }

    /// A tenant and its processes are gone.
    pub fn remove_tenant(&self, id: TenantId) {
        self.send(Command::NoTenant { id });
    }

    /// A process has registered.
    pub fn add(
        &self,
        process: ProcessId,
        tenant: TenantId,
        page: Arc<Mapped>,
        bell: OwnedFd,
        watch: Arc<CopyWatch>,
    ) {
        self.send(Command::Process { process, tenant, page, bell, watch });
    }

    /// A process is gone.
    pub fn remove(&self, process: ProcessId) {
        self.send(Command::NoProcess { process });
    }

    /// Best-effort processes launch nothing until then, whoever is at work. A time that is over ends it.
    pub fn hold_until(&self, at: Nanos) {
        self.send(Command::HoldUntil { at });
    }

    /// How best-effort processes take turns with each other.
    pub fn turns(&self) -> &TurnWatch {
        &self.turns
    }

    /// Best-effort processes have this from now on.
    pub fn steer(&self, setting: Setting) {
        self.send(Command::Steer { setting });
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // The thread ends after this end alone, so somebody listens.
            let _ = commands.send(command);
            self.ring();
        }
    }

    fn ring(&self) {
        // The counter only overflows when it was rung already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Arbiter {
    fn drop(&mut self) {
        self.commands = None;
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A process that has a page.
#[derive(Debug)]
struct Known {
    tenant: TenantId,
    page: Arc<Mapped>,
    bell: OwnedFd,
    watch: Arc<CopyWatch>,
}

/// The state of the thread.
struct Thread {
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
    bells: OwnedFd,
    turns: Turns,
    pages: BTreeMap<ProcessId, Known>,
    grants: Vec<Grant>,
    /// Who says something new: process, direction, ready and done.
    news: Vec<(ProcessId, Direction, (u64, u64))>,
    /// What each process says is done, by direction.
    done: Vec<[u64; 2]>,
    /// What is done for copies that go straight.
    room: Room,
    /// Who launches nothing now.
    squeeze: Squeeze,
    gives_way: bool,
}

impl Thread {
    fn run(mut self) {
        let mut moved_at = clock::now();
        let mut looks = 0;
        while self.obey() {
            self.make_room();
            let is_watching = self.squeeze.look(clock::now);
            if self.look() {
                moved_at = clock::now();
                continue;
            }
            looks += 1;
            if (self.turns.is_busy() || is_watching) && looks % LOOKS != 0 && !self.gives_way {
                std::hint::spin_loop();
                continue;
            }
            let now = clock::now();
            self.expire(now);
            self.room.expire(now);
            // Also with nothing in flight: between the parts of a large copy there is nothing for a moment.
            // And while a copy is announced, for which packets stand still longer than that.
            if now.saturating_sub(moved_at) < SPIN || self.room.is_wanted() || is_watching {
                std::thread::yield_now();
            } else {
                self.sleep();
                // What woke it is only the first of what happens now.
                moved_at = clock::now();
            }
        }
    }

    /// Takes in what the registry says; `false` at the end.
    fn obey(&mut self) -> bool {
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            };
            let now = clock::now();
            match command {
                Command::Tenant { id, class, weight } => {
                    self.turns.add_tenant(now, id, class, weight);
                }
                Command::NoTenant { id } => {
                    let of_tenant =
                        |(&process, known): (&ProcessId, &Known)| (known.tenant == id).then_some(process);
                    let gone: Vec<_> = self.pages.iter().filter_map(of_tenant).collect();
                    gone.into_iter().for_each(|process| self.forget(now, process));
                    self.turns.remove_tenant(now, id, &mut self.grants);
                }
                Command::Process { process, tenant, page, bell, watch } => {
                    let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
                    // Without a bell the process is looked at all the same, whenever somebody else rings; it fails only for want of
                    // kernel memory.
                    let _ = epoll::add(&self.bells, &bell, epoll::EventData::new_u64(process.0), events);
                    if let Some(class) = self.turns.class(tenant)
                        && self.turns.add(process, tenant)
                    {
                        self.room.add(process, class, &page);
                        self.squeeze.add(now, process, tenant, class, &page);
                        self.pages.insert(process, Known { tenant, page, bell, watch });
                    }
                }
                Command::NoProcess { process } => self.forget(now, process),
                Command::HoldUntil { at } => self.squeeze.hold_until(now, at),
                Command::Steer { setting } => self.squeeze.set(now, setting),
            }
            self.publish();
        }
    }

    fn forget(&mut self, now: Nanos, process: ProcessId) {
        if let Some(known) = self.pages.remove(&process) {
            // The tenant may hold the bell still, and it would go on ringing.
            let _ = epoll::delete(&self.bells, &known.bell);
        }
        self.room.remove(process);
        self.squeeze.remove(now, process);
        self.turns.remove(now, process, &mut self.grants);
    }

    /// Has copies announced while packets are under way, and packets make room while copies are.
    fn make_room(&mut self) {
        for direction in Direction::ALL {
            if self.turns.is_under_way(direction) || self.room.is_announced(direction) {
                self.room.look(direction, clock::now);
            }
        }
    }

    /// Looks at all pages once; whether anything moved.
    fn look(&mut self) -> bool {
        // All that is done first and all that is ready after: what became ready before something that is seen as done is seen too.
        let done = |known: &Known| {
            [0, 1].map(|direction| known.page.shim.copies[direction].done.load(Ordering::Acquire))
        };
        self.done.clear();
        self.done.extend(self.pages.values().map(done));
        for ((&process, known), done) in self.pages.iter().zip(&self.done) {
            for direction in Direction::ALL {
                let ready = known.page.shim.copies[direction as usize].ready.load(Ordering::Acquire);
                let claim = (ready, done[direction as usize]);
                if self.turns.is_news(process, direction, claim) {
                    self.news.push((process, direction, claim));
                }
            }
        }
        if self.news.is_empty() {
            return false;
        }
        let now = clock::now();
        let (mut moved, mut news) = (false, std::mem::take(&mut self.news));
        for is_done in [false, true] {
            for &(process, direction, (ready, done)) in &news {
                let seen = if is_done {
                    self.turns.done(now, process, direction, done, &mut self.grants)
                } else {
                    self.turns.ready(now, process, direction, ready, &mut self.grants)
                };
                moved |= seen.moved;
                if let Some(known) = self.pages.get(&process).filter(|_| seen.nonsense) {
                    known.watch.nonsense.store(true, Ordering::Relaxed);
                }
            }
        }
        news.clear();
        self.news = news;
        self.publish();
        moved
    }

    fn expire(&mut self, now: Nanos) {
        for process in self.turns.expire(now, &mut self.grants) {
            if let Some(known) = self.pages.get(&process) {
                known.watch.late.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.publish();
    }

    /// Writes grants into their pages.
    fn publish(&mut self) {
        for grant in self.grants.drain(..) {
            if let Some(known) = self.pages.get(&grant.process) {
                let direction = grant.direction as usize;
                known.watch.granted[direction].store(grant.granted, Ordering::Relaxed);
                known.page.node.granted[direction].store(grant.granted, Ordering::Release);
                known.page.wake_grants();
            }
        }
    }

    /// Waits for a bell, a command, or a packet's time to be over.
    fn sleep(&mut self) {
        let say = |pages: &BTreeMap<ProcessId, Known>, asleep| {
            pages.values().for_each(|known| known.page.node.asleep.store(asleep, Ordering::Relaxed));
        };
        say(&self.pages, 1);
        self.room.rest();
        Page::fence();
        if !self.squeeze.look(clock::now) && !self.look() {
            let due = [self.turns.deadline(), self.squeeze.deadline()].into_iter().flatten().min();
            let limit = due.map(|at| {
                let left = at.saturating_sub(clock::now()).0;
                Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 }
            });
            let mut events = Vec::with_capacity(16);
            // Interrupted or not: the caller looks again.
            let _ = epoll::wait(&self.bells, rustix::buffer::spare_capacity(&mut events), limit.as_ref());
            if events.iter().any(|event: &epoll::Event| event.data.u64() == WAKE) {
                let _ = rustix::io::read(self.wake.as_fd(), &mut [0; 8]);
            }
        }
        say(&self.pages, 0);
    }
}
