//! The copier: looks at the device's marks and the node's page, asks [`Turns`], opens gates. It never calls the driver.
//!
//! One thread per process, started with the first copy that waits for its turn. With nothing to wait for it sleeps
//! until a copy is announced; see [`Desk::sleep`] for how it waits otherwise.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use partywall_core::tenant::Class;
use partywall_shim_api::page::{HEARTBEAT_LIMIT_NS, Pace, Page};

use super::pool::Pool;
use super::turns::{Action, Cut, DIRECTIONS, Event, Outlook, Rule, Turns};
use super::words::Slot;

/// What callers tell the copier.
#[derive(Debug)]
enum Message {
    Announce { id: u64, direction: usize, cut: Cut, counts: bool, slot: Slot },
    Entrust { id: u64, slot: Slot, pool: &'static Pool },
    Withdraw { id: u64 },
}

/// Where callers leave copies for the copier.
#[derive(Debug)]
pub(super) struct Desk {
    /// Copies are bounded by the slots that they need, and a copy leaves two messages.
    inbox: Mutex<(u64, Vec<Message>)>,
    /// Grows with each announcement.
    pub(super) changes: AtomicU32,
    /// 1 while the copier wants to be woken for `changes`.
    pub(super) asleep: AtomicU32,
    /// Bytes and copies that were to be gated and went straight to the driver.
    direct: [(AtomicU64, AtomicU64); DIRECTIONS],
}

impl Desk {
    /// With nothing on it.
    pub(super) const fn new() -> Self {
        Self {
            inbox: Mutex::new((0, Vec::new())),
            changes: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            direct: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; DIRECTIONS],
        }
    }

    /// A copy is about to be put into its stream. Returns its number.
    pub(super) fn announce(&self, direction: usize, cut: Cut, counts: bool, slot: &Slot) -> u64 {
        let id = {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            inbox.0 += 1;
            let id = inbox.0;
            inbox.1.push(Message::Announce { id, direction, cut, counts, slot: slot.clone() });
            id
        };
        self.changes.fetch_add(1, Ordering::Release);
        Page::fence();
        if self.asleep.load(Ordering::Relaxed) != 0 {
            wake(&self.changes);
        }
        id
    }

    /// All of a copy is in its stream. What it used goes back once it is through.
    pub(super) fn entrust(&self, id: u64, slot: Slot, pool: &'static Pool) {
        self.leave(Message::Entrust { id, slot, pool });
    }

    /// A copy failed half-way.
    pub(super) fn withdraw(&self, id: u64) {
        self.leave(Message::Withdraw { id });
    }

    fn leave(&self, message: Message) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).1.push(message);
    }

    /// A copy went straight to the driver for want of something.
    pub(super) fn count_direct(&self, direction: usize, bytes: u64) {
        self.direct[direction].0.fetch_add(bytes, Ordering::Relaxed);
        self.direct[direction].1.fetch_add(1, Ordering::Relaxed);
    }
}

/// Wakes whoever sleeps on a word.
pub(super) fn wake(word: &AtomicU32) {
    // That nobody sleeps there is no error, and there is no other.
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::PRIVATE, 1);
}

/// What is known of the node.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    /// The page. That of a process without a node says that nobody decides.
    pub(super) page: &'a Page,
    /// Whether the node answers.
    pub(super) connected: bool,
    /// Rings the node's bell.
    pub(super) ring: &'a dyn Fn(),
}

#[derive(Debug)]
struct Watched {
    slot: Slot,
    /// Progress as last seen.
    seen: u64,
    /// What is to be given back, once it is here.
    back: Option<(Slot, &'static Pool)>,
    over: bool,
    cut: Cut,
}

/// The copier, without its thread.
#[derive(Debug)]
pub(super) struct Copier {
    turns: Turns,
    watched: BTreeMap<u64, Watched>,
    rule: Rule,
    /// Which page the counters are of: its address and generation.
    page: (usize, u64),
    said: [super::turns::Counters; DIRECTIONS],
    granted: [u64; DIRECTIONS],
    pace: [Pace; DIRECTIONS],
    messages: VecDeque<Message>,
    actions: Vec<Action>,
    /// When anything last happened.
    pub(super) moved_at: u64,
}

impl Copier {
    /// With nothing to do.
    pub(super) fn new(pause_ns: u64) -> Self {
        Self {
            turns: Turns::new(pause_ns),
            watched: BTreeMap::new(),
            rule: Rule::Free,
            page: (0, 0),
            said: Default::default(),
            granted: [0; DIRECTIONS],
            pace: [Pace::Ahead; DIRECTIONS],
            messages: VecDeque::new(),
            actions: Vec::new(),
            moved_at: 0,
        }
    }

    /// Takes in all that has happened up to `now` and does what follows. Says what there is to wait for.
    pub(super) fn turn(&mut self, now: u64, desk: &Desk, view: View<'_>) -> Outlook {
        self.read_page(now, view);
        self.read_desk(now, desk);
        self.read_marks(now);
        self.step(now, Event::Tick);
        self.act();
        self.publish(desk, view);
        self.turns.outlook()
    }

    /// Opens every gate that there is, without asking anybody, and keeps nothing: for after a defect of this library.
    pub(super) fn give_up(&mut self, desk: &Desk) {
        for (_, watched) in std::mem::take(&mut self.watched) {
            watched.slot.open(watched.cut.packets());
        }
        let messages = std::mem::take(&mut desk.inbox.lock().unwrap_or_else(PoisonError::into_inner).1);
        for message in self.messages.drain(..).chain(messages) {
            if let Message::Announce { cut, slot, .. } = message {
                slot.open(cut.packets());
            }
        }
    }

    /// Bytes of packets with open gates that are not through.
    #[cfg(test)]
    pub(super) fn in_flight(&self, direction: usize) -> u64 {
        self.turns.in_flight(direction)
    }

    fn step(&mut self, now: u64, event: Event) {
        if event != Event::Tick {
            self.moved_at = now;
        }
        self.turns.step(now, event, &mut self.actions);
    }

    fn read_page(&mut self, now: u64, view: View<'_>) {
        let page = view.page;
        let current = (std::ptr::from_ref(page).addr(), page.header.generation.load(Ordering::Relaxed));
        if current != self.page {
            self.page = current;
            self.said = Default::default();
            self.granted = [0; DIRECTIONS];
            self.step(now, Event::NewPage);
        }
        let class = match page.header.class.load(Ordering::Relaxed) {
            0 => Class::LatencySensitive,
            _ => Class::BestEffort,
        };
        let beat = page.node.heartbeat_ns.load(Ordering::Relaxed);
        let rule = if page.node.copies_decided.load(Ordering::Relaxed) == 0 {
            Rule::Free
        } else if view.connected && now.saturating_sub(beat) <= HEARTBEAT_LIMIT_NS {
            Rule::Node
        } else {
            Rule::Alone(class)
        };
        if rule != self.rule {
            self.rule = rule;
            self.step(now, Event::Rule(rule));
        }
        for direction in 0..DIRECTIONS {
            let pace = Pace::of(page.node.pace[direction].load(Ordering::Relaxed));
            if pace != self.pace[direction] {
                self.pace[direction] = pace;
                self.step(now, Event::Pace { direction, pace });
            }
            let bytes = page.node.granted[direction].load(Ordering::Acquire);
            if bytes != self.granted[direction] {
                self.granted[direction] = bytes;
                self.step(now, Event::Granted { direction, bytes });
            }
        }
    }

    fn read_desk(&mut self, now: u64, desk: &Desk) {
        {
            let mut inbox = desk.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            self.messages.extend(inbox.1.drain(..));
        }
        while let Some(message) = self.messages.pop_front() {
            match message {
                Message::Announce { id, direction, cut, counts, slot } => {
                    self.watched.insert(id, Watched { slot, seen: 0, back: None, over: false, cut });
                    self.step(now, Event::Submit { id, direction, cut, counts });
                }
                Message::Entrust { id, slot, pool } => {
                    if let Some(watched) = self.watched.get_mut(&id) {
                        watched.back = Some((slot, pool));
                        self.give_back(id);
                    }
                }
                Message::Withdraw { id } => {
                    self.step(now, Event::Drop { id });
                    if self.watched.get(&id).is_some_and(|watched| watched.over) {
                        self.watched.remove(&id);
                    }
                }
            }
        }
    }

    fn read_marks(&mut self, now: u64) {
        for (&id, watched) in &mut self.watched {
            // Words that somebody overwrote make a copy end early, never backwards.
            let value = watched.slot.progress().min(1 + watched.cut.packets());
            if value > watched.seen {
                watched.seen = value;
                self.moved_at = now;
                self.turns.step(now, Event::Progress { id, value }, &mut self.actions);
            }
        }
    }

    fn act(&mut self) {
        let actions = std::mem::take(&mut self.actions);
        for &action in &actions {
            match action {
                Action::Open { id, packets } => {
                    if let Some(watched) = self.watched.get(&id) {
                        watched.slot.open(packets);
                    }
                }
                Action::Finished { id } => {
                    if let Some(watched) = self.watched.get_mut(&id) {
                        watched.over = true;
                    }
                    self.give_back(id);
                }
                // The words stay with what the device may still do to them.
                Action::Dropped { id } => {
                    self.watched.remove(&id);
                }
            }
        }
        self.actions = actions;
        self.actions.clear();
    }

    /// Gives back what a copy used, if it is over and all of it is here.
    fn give_back(&mut self, id: u64) {
        if self.watched.get(&id).is_none_or(|watched| !watched.over || watched.back.is_none()) {
            return;
        }
        let Some(Watched { cut, back: Some((slot, pool)), .. }) = self.watched.remove(&id) else { return };
        pool.put_slot(slot.after(&cut));
    }

    fn publish(&mut self, desk: &Desk, view: View<'_>) {
        let page = view.page;
        let mut news = false;
        for direction in 0..DIRECTIONS {
            let (counters, side) = (self.turns.counters(direction), &page.shim.copies[direction]);
            let said = std::mem::replace(&mut self.said[direction], counters);
            news |= (said.ready, said.done) != (counters.ready, counters.done);
            if said != counters {
                side.wait_ns.store(counters.wait_ns, Ordering::Relaxed);
                side.copies.store(counters.copies, Ordering::Relaxed);
                side.ready.store(counters.ready, Ordering::Release);
                side.started.store(counters.started, Ordering::Release);
                side.done.store(counters.done, Ordering::Release);
            }
            let direct = &desk.direct[direction];
            if direct.1.load(Ordering::Relaxed) != 0 {
                side.direct_bytes.fetch_add(direct.0.swap(0, Ordering::Relaxed), Ordering::Relaxed);
                side.direct_copies.fetch_add(direct.1.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        if news {
            Page::fence();
            if page.node.asleep.load(Ordering::Relaxed) != 0 {
                (view.ring)();
            }
        }
    }
}
