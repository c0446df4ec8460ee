//! A model of a device for tests: streams that do one thing after the other, in any order among each other, drawn
//! from a seed. It answers the [`Driver`] calls, runs a copier and plays the node, a step at a time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

use partywall_shim_api::page::{HEARTBEAT_LIMIT_NS, Mapped};

use super::copier::{Copier, Desk, View};
use super::driver::{Code, Driver, Mark, Stream};
use super::pool::Pool;
use super::submit::{Job, Place, submit};
use super::turns::Outlook;
use super::words::{Ticket, gate_reached, write_progress};
use crate::sys::CUresult;

/// What is done to a piece of modelled device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// Which copy of the program it is.
    pub(super) number: usize,
    pub(super) direction: usize,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Mark(Mark),
    Copy(Target, u64, u64),
    /// Waits until something outside has happened.
    Await(usize),
    /// Something of the program's: all copies that it put there before must be whole, none that came after begun.
    Probe(usize),
}

/// How the model behaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Habits {
    pub(super) seed: u64,
    /// Copies of a direction go in the order in which the driver was asked for them, whatever their streams: what a
    /// hardware queue that streams share does.
    pub(super) one_queue: bool,
    /// Bytes that the node lets be in flight.
    pub(super) window: u64,
    pub(super) packet: u64,
    /// Whether the node wants packets one by one now and then.
    pub(super) neighbours: bool,
    /// After how many steps the node dies.
    pub(super) node_dies: Option<u64>,
    /// The calls to the driver that fail: the first one and the one that does not any more.
    pub(super) fails: Option<(u64, u64)>,
    pub(super) class: u32,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            seed: 1,
            one_queue: false,
            window: 16,
            packet: 8,
            neighbours: false,
            node_dies: None,
            fails: None,
            class: 0,
        }
    }
}

pub(super) struct World {
    streams: BTreeMap<Stream, VecDeque<(u64, Op)>>,
    queues: [VecDeque<u64>; 2],
    reached: BTreeSet<usize>,
    asked: u64,
    calls: u64,
    chance: u64,
    pub(super) habits: Habits,
    pub(super) copier: Copier,
    pub(super) page: Mapped,
    pub(super) now: u64,
    pub(super) steps: u64,
    /// Per copy of the program: how often each byte was copied.
    pub(super) bytes: Vec<Vec<u8>>,
    /// Per copy, the stream.
    homes: Vec<Stream>,
    pub(super) outlook: Outlook,
    pub(super) most_in_flight: u64,
}

/// The model, and what callers share.
pub(super) struct Model {
    pub(super) world: RefCell<World>,
    pub(super) desk: &'static Desk,
    pub(super) pool: &'static Pool,
}

impl World {
    fn draw(&mut self, below: u64) -> u64 {
        self.chance = self.chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.chance >> 33) % below
    }

    fn put(&mut self, stream: Stream, op: Op) {
        self.asked += 1;
        if let Op::Copy(target, ..) = op {
            self.queues[target.direction].push_back(self.asked);
        }
        self.streams.entry(stream).or_default().push_back((self.asked, op));
    }

    /// Does the first thing in a stream, if it may.
    fn try_stream(&mut self, stream: Stream) -> bool {
        let Some(&(number, op)) = self.streams[&stream].front() else { return false };
        match op {
            // SAFETY: the addresses are those of words, which stay.
            Op::Mark(Mark::Write { address, value }) => unsafe { write_progress(address, value) },
            Op::Mark(Mark::Wait { address, value }) => {
                // SAFETY: as above.
                let reached = unsafe { gate_reached(address, value) };
                if !reached {
                    return false;
                }
            }
            Op::Copy(target, from, bytes) => {
                let queue = &mut self.queues[target.direction];
                if self.habits.one_queue && queue.front() != Some(&number) {
                    return false;
                }
                queue.retain(|&waiting| waiting != number);
                for count in &mut self.bytes[target.number][from as usize..(from + bytes) as usize] {
                    *count += 1;
                }
            }
            Op::Await(what) if !self.reached.contains(&what) => return false,
            Op::Await(_) => {}
            Op::Probe(copies) => {
                for number in (0..self.bytes.len()).filter(|&number| self.homes[number] == stream) {
                    let expected = u8::from(number < copies);
                    assert!(
                        self.bytes[number].iter().all(|&count| count == expected),
                        "copy {number} before {copies}"
                    );
                }
            }
        }
        if let Some(queue) = self.streams.get_mut(&stream) {
            queue.pop_front();
        }
        true
    }

    /// One step of the device, the copier or the node. False: the device had nothing that it could do.
    fn step(&mut self, desk: &Desk) -> bool {
        self.steps += 1;
        self.now += 1_000;
        let alive = self.habits.node_dies.is_none_or(|at| self.steps < at);
        if alive {
            self.page.node.heartbeat_ns.store(self.now, Ordering::Relaxed);
        } else if self.habits.node_dies == Some(self.steps) {
            self.now += HEARTBEAT_LIMIT_NS;
        }
        match self.draw(4) {
            0 => {
                let view = View { page: &self.page, connected: true, ring: &|| {} };
                self.outlook = self.copier.turn(self.now, desk, view);
                for direction in 0..2 {
                    self.most_in_flight = self.most_in_flight.max(self.copier.in_flight(direction));
                }
                true
            }
            1 if alive => {
                for direction in 0..2 {
                    if self.habits.neighbours && self.draw(8) == 0 {
                        let pace = self.draw(3) as u32;
                        self.page.node.pace[direction].store(pace, Ordering::Relaxed);
                    }
                    let side = &self.page.shim.copies[direction];
                    let (ready, done) =
                        (side.ready.load(Ordering::Relaxed), side.done.load(Ordering::Relaxed));
                    assert!(done <= side.started.load(Ordering::Relaxed));
                    let granted = &self.page.node.granted[direction];
                    let most = ready.min(done + self.habits.window).max(granted.load(Ordering::Relaxed));
                    assert!(side.started.load(Ordering::Relaxed) <= granted.load(Ordering::Relaxed));
                    granted.store(most, Ordering::Release);
                }
                true
            }
            _ => {
                let streams: Vec<Stream> = self
                    .streams
                    .iter()
                    .filter(|(_, ops)| !ops.is_empty())
                    .map(|(&stream, _)| stream)
                    .collect();
                if streams.is_empty() {
                    return false;
                }
                let first = self.draw(streams.len() as u64) as usize;
                (0..streams.len()).any(|at| self.try_stream(streams[(first + at) % streams.len()]))
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.streams.values().all(VecDeque::is_empty)
    }
}

impl Model {
    pub(super) fn new(habits: Habits) -> Self {
        let (page, _) = Mapped::create(7, 0, habits.class, None).unwrap();
        page.node.copies_decided.store(1, Ordering::Relaxed);
        let world = World {
            streams: BTreeMap::new(),
            queues: Default::default(),
            reached: BTreeSet::new(),
            asked: 0,
            calls: 0,
            chance: habits.seed,
            habits,
            copier: Copier::new(5_000),
            page,
            now: 1,
            steps: 0,
            bytes: Vec::new(),
            homes: Vec::new(),
            outlook: Outlook::Idle,
            most_in_flight: 0,
        };
        let (desk, pool) = (Box::leak(Box::new(Desk::new())), Box::leak(Box::new(Pool::new())));
        Self { world: RefCell::new(world), desk, pool }
    }

    /// One step; see [`World::step`].
    pub(super) fn step(&self) -> bool {
        self.world.borrow_mut().step(self.desk)
    }

    /// Steps until the device has nothing left. Panics if that never comes.
    pub(super) fn settle(&self) {
        for _ in 0..2_000_000 {
            self.step();
            let world = self.world.borrow();
            if world.is_empty() && world.outlook == Outlook::Idle {
                return;
            }
        }
        panic!("something waits for ever");
    }

    pub(super) fn place(&self, stream: Stream) -> Place<'_, Self> {
        Place { driver: self, pool: self.pool, desk: self.desk, stream }
    }

    /// The program copies.
    pub(super) fn copy(&self, stream: Stream, direction: usize, bytes: u64) -> Result<Option<Ticket>, Code> {
        let (number, packet) = {
            let mut world = self.world.borrow_mut();
            world.bytes.push(vec![0; bytes as usize]);
            world.homes.push(stream);
            (world.bytes.len() - 1, world.habits.packet)
        };
        let what = Target { number, direction };
        submit(self.place(stream), &Job { what: &what, direction, bytes, packet, grain: 1 })
    }

    /// The program puts something else into a stream.
    pub(super) fn probe(&self, stream: Stream) {
        let mut world = self.world.borrow_mut();
        let copies = world.bytes.len();
        world.put(stream, Op::Probe(copies));
    }

    /// A stream waits for something that has not happened.
    pub(super) fn hold(&self, stream: Stream, what: usize) {
        self.world.borrow_mut().put(stream, Op::Await(what));
    }

    /// It happens.
    pub(super) fn release(&self, what: usize) {
        self.world.borrow_mut().reached.insert(what);
    }

    fn call(&self, stream: Stream, op: Op) -> Result<(), Code> {
        let mut world = self.world.borrow_mut();
        world.calls += 1;
        if world.habits.fails.is_some_and(|(first, end)| (first..end).contains(&world.calls)) {
            return Err(CUresult(700));
        }
        world.put(stream, op);
        Ok(())
    }
}

impl Driver for Model {
    type What = Target;

    fn marks(&self, stream: Stream, marks: &[Mark]) -> Result<(), Code> {
        marks.iter().try_for_each(|&mark| self.call(stream, Op::Mark(mark)))
    }

    fn copy(&self, stream: Stream, what: &Target, offset: u64, bytes: u64) -> Result<(), Code> {
        self.call(stream, Op::Copy(*what, offset, bytes))
    }

    fn register(&self, address: usize, _: usize) -> Result<u64, Code> {
        Ok(address as u64)
    }

    fn trouble(&self, _: Stream) -> Result<(), Code> {
        Ok(())
    }

    fn drain(&self, stream: Stream) -> Result<(), Code> {
        while self.world.borrow().streams.get(&stream).is_some_and(|ops| !ops.is_empty()) {
            self.step();
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.world.borrow().now
    }

    fn nap(&self) {
        for _ in 0..8 {
            self.step();
        }
    }
}
