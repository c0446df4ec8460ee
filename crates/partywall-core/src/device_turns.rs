//! Whose turn the device is, where several best-effort processes may not compute beside each other.
//!
//! # Problem
//!
//! Without an MPS daemon processes take turns on the device, a *time slice* each. Short slices (50 us) of best-effort processes let a
//! request of a latency-sensitive one in at once, whatever kernels they run. But two processes at work with such slices do nothing but
//! change hands: on an H200 (driver 580) neither made any progress (measured, November 2026). Slices of a millisecond are long enough
//! for them, and a request then waits a millisecond for each.
//!
//! # Approach
//!
//! One process at a time may launch: it has the *turn*. The others hold their launches. So one alone has work on the device, and slices can be
//! short for all of them. Turns are much longer than slices, because each costs a change of hands and a moment in which nothing is there.
//!
//! A turn changes in two steps. First the one who has it is told to hold. Once all but the next one are *through* with what they have on
//! the device, the next one is *released*. Until then nobody is: two with work under way would keep each other from ever being through.
//! Work that takes longer than [`Config::late`] is waited for no longer. Its process is *late*, and the caller has to see to it that
//! slices are longer while that goes on ([`DeviceTurns::overlaps`]).
//!
//! Who has the turn keeps it while nobody else wants it, also when it has nothing to do: what nobody waits for need not be taken away.
//! While somebody waits, it is lost
//!
//! - after [`Config::turn`], if the one that waits has not had more of the device than it; the least served one is next. Time after the
//!   end of a turn, in which it still had work there, counts as had: so long kernels gain nothing. Who did not want the device is not owed
//!   anything for that;
//! - when nothing is under way and nothing is held any more, for [`Config::idle`]: a program that waits for its results and launches on does not lose
//!   it each time. What a process has launched last may not be marked, so nobody sees when it is through; then that takes [`Config::unmarked`].
//!
//! **Time while everybody is held** for a request counts a tenth ([`HELD_RATE`]): nobody should lose its turn to a request, and beside
//! requests that never end turns should go on, slowly.
//!
//! # Terms and units
//!
//! Processes are whatever the caller names them. *Wants*: something is under way or waits. Times are nanoseconds of the caller's clock.
//!
//! # Scenarios
//!
//! - T1: one process alone has the turn, and keeps it beside others that want nothing.
//! - T2: two want it: they have it by turns, and each waits until the other one is through.
//! - T3: who has nothing to do loses it to one that waits, after a moment, and not before.
//! - T4: unmarked launches are given time to be through.
//! - T5: who is late is not waited for any longer, and that is said until it is through.
//! - T6: kernels longer than a turn are made good for: the other one has as much.
//! - T7: while all are held for a request, time counts a tenth.
//! - T8: who goes, at any moment, takes nothing along.
//! - T9: three processes of which one comes late and one often rests: each gets its turn.

use std::collections::BTreeMap;

use crate::units::Nanos;

#[cfg(test)]
mod tests;

/// How many nanoseconds count as one while the process whose turn it is is held for other reasons.
pub const HELD_RATE: u64 = 10;

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// A turn, while others wait.
    pub turn: Nanos,
    /// How long who has the turn may have nothing to do, while others wait.
    pub idle: Nanos,
    /// The same where its last launches are not marked, and how long these are waited for at the end of a turn.
    pub unmarked: Nanos,
    /// How long work is waited for at the end of a turn.
    pub late: Nanos,
}

/// What a process has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Whether a launch waits.
    pub waits: bool,
    /// Whether something is on the device, as far as that is marked.
    pub under_way: bool,
    /// Launches without a mark behind them: they may be through or not.
    pub unmarked: u32,
}

impl Work {
    fn is_wanting(self) -> bool {
        self.waits || self.under_way
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<P> {
    /// A process is there, with nothing to do. It holds until it is released.
    Came {
        /// Which.
        process: P,
    },
    /// It is gone, with all that it had on the device.
    Gone {
        /// Which.
        process: P,
    },
    /// What it has to do is something else now.
    Work {
        /// Which.
        process: P,
        /// What.
        work: Work,
    },
    /// Whether the process whose turn it is is held for other reasons.
    Held(bool),
    /// All processes have been looked at since the last action was done: what they had launched by then has been said. Needed while
    /// [`DeviceTurns::is_changing`], and when [`DeviceTurns::deadline`] has come.
    Looked,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<P> {
    /// The process may launch.
    Release {
        /// Which.
        process: P,
    },
    /// It may not.
    Hold {
        /// Which.
        process: P,
    },
    /// It is not waited for any longer, although it has work on the device.
    Late {
        /// Which.
        process: P,
    },
}

#[derive(Debug, Clone, Copy, Default)]
struct Member {
    work: Work,
    /// When that last changed.
    changed: Counted,
    /// How long it has had the device; of those that want it, all the same from when they want it on.
    had: Counted,
    /// When it began to wait, as a number that grows.
    ticket: u64,
    /// Whether it was not waited for, and is not through since.
    late: bool,
}

/// Time as it counts, in parts of a nanosecond: [`HELD_RATE`] of them.
type Counted = u64;

const fn counted(time: Nanos) -> Counted {
    time.0.saturating_mul(HELD_RATE)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase<P> {
    Nobody,
    Turn { of: P, since: Counted },
    Change { from: Option<P>, since: Counted },
}

/// The decider.
#[derive(Debug, Clone)]
pub struct DeviceTurns<P> {
    config: Config,
    members: BTreeMap<P, Member>,
    phase: Phase<P>,
    /// The last step, by the caller's clock and as it counts.
    at: Nanos,
    now: Counted,
    held: bool,
    tickets: u64,
}

impl<P: Copy + Ord> DeviceTurns<P> {
    /// Nobody is there.
    pub const fn new(config: Config) -> Self {
        Self {
            config,
            members: BTreeMap::new(),
            phase: Phase::Nobody,
            at: Nanos::ZERO,
            now: 0,
            held: false,
            tickets: 0,
        }
    }

    /// Whose turn it is; `None` while it changes.
    pub const fn turn(&self) -> Option<P> {
        match self.phase {
            Phase::Turn { of, .. } => Some(of),
            Phase::Nobody | Phase::Change { .. } => None,
        }
    }

    /// What a process has to do, as it was last said; `None` where it is not known.
    pub fn work(&self, process: P) -> Option<Work> {
        self.members.get(&process).map(|member| member.work)
    }

    /// Whether nobody is released because work has to be through first.
    pub const fn is_changing(&self) -> bool {
        matches!(self.phase, Phase::Change { .. })
    }

    /// Whether the turn may change soon: somebody waits for it.
    pub fn is_contested(&self) -> bool {
        self.is_changing() || self.next().is_some()
    }

    /// Whether somebody has work on the device while it is another one's turn.
    pub fn overlaps(&self) -> bool {
        let mut others = self.members.iter().filter(|&(&process, _)| Some(process) != self.turn());
        self.turn().is_some() && others.any(|(_, member)| member.work.under_way)
    }

    /// When [`Event::Looked`] is due, if nothing else happens; `None` while nothing is waited for.
    pub fn deadline(&self) -> Option<Nanos> {
        let due = match self.phase {
            Phase::Nobody => return None,
            Phase::Turn { of, since } => self.turn_ends(of, since)?,
            Phase::Change { from, since } => {
                let through = self.waited_for(from).filter_map(|(_, member)| self.through_at(member, since));
                through.chain([since.saturating_add(counted(self.config.late))]).min()?
            }
        };
        let left = due.saturating_sub(self.now);
        let left = if self.held { left } else { left.div_ceil(HELD_RATE) };
        Some(self.at.saturating_add(Nanos(left)))
    }

    /// Takes in what happened at `now` and appends what follows to `actions`.
    pub fn step(&mut self, now: Nanos, event: Event<P>, actions: &mut Vec<Action<P>>) {
        self.pass(now);
        match event {
            Event::Came { process } => {
                let member = Member { changed: self.now, had: self.level(), ..Member::default() };
                self.members.insert(process, member);
                if self.phase == Phase::Nobody {
                    self.release(process, actions);
                }
            }
            Event::Gone { process } => {
                self.members.remove(&process);
                match self.phase {
                    Phase::Turn { of, .. } if of == process => self.change(None),
                    Phase::Change { from: Some(from), since } if from == process => {
                        self.phase = Phase::Change { from: None, since };
                    }
                    _ => {}
                }
            }
            Event::Work { process, work } => self.works(process, work),
            Event::Held(held) => self.held = held,
            Event::Looked => self.looked(actions),
        }
        if let Phase::Turn { of, since } = self.phase
            && self.turn_ends(of, since).is_some_and(|end| end <= self.now)
        {
            let ticket = self.ticket();
            self.members.entry(of).and_modify(|member| member.ticket = ticket);
            self.change(Some(of));
            actions.push(Action::Hold { process: of });
        }
    }

    /// Lets time pass, and counts it for who has had the device.
    fn pass(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.at);
        let passed = if self.held { passed.0 } else { counted(passed) };
        self.at = self.at.max(now);
        self.now = self.now.saturating_add(passed);
        if let Phase::Turn { of: process, .. } | Phase::Change { from: Some(process), .. } = self.phase {
            let had = |member: &mut Member| member.had = member.had.saturating_add(passed);
            self.members.entry(process).and_modify(had);
        }
    }

    fn works(&mut self, process: P, work: Work) {
        let (level, ticket, now) = (self.level(), self.ticket(), self.now);
        let Some(member) = self.members.get_mut(&process).filter(|member| member.work != work) else {
            return;
        };
        if work.is_wanting() && !member.work.is_wanting() {
            member.had = member.had.max(level);
        }
        if work.waits && !member.work.waits {
            member.ticket = ticket;
        }
        member.late &= work.under_way;
        (member.work, member.changed) = (work, now);
    }

    /// Releases the next one, if all others are through or late.
    fn looked(&mut self, actions: &mut Vec<Action<P>>) {
        let Phase::Change { from, since } = self.phase else { return };
        let is_over = self.now.saturating_sub(since) >= counted(self.config.late);
        let now = self.now;
        let wait = |member: &Member| self.through_at(member, since).is_none_or(|at| at > now);
        let late: Vec<P> =
            self.waited_for(from).filter(|(_, member)| wait(member)).map(|(process, _)| process).collect();
        if !late.is_empty() && !is_over {
            return;
        }
        for process in late {
            self.members.entry(process).and_modify(|member| member.late = member.work.under_way);
            actions.push(Action::Late { process });
        }
        match self.candidate(from) {
            Some(process) => self.release(process, actions),
            None => self.phase = Phase::Nobody,
        }
    }

    fn release(&mut self, process: P, actions: &mut Vec<Action<P>>) {
        self.phase = Phase::Turn { of: process, since: self.now };
        actions.push(Action::Release { process });
    }

    fn change(&mut self, from: Option<P>) {
        self.phase = Phase::Change { from, since: self.now };
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// What who begins to want the device is taken to have had: as much as who has it.
    fn level(&self) -> Counted {
        let at_it = match self.phase {
            Phase::Turn { of, .. } => Some(of),
            Phase::Change { from, .. } => from,
            Phase::Nobody => None,
        };
        let had = at_it.and_then(|process| self.members.get(&process)).map(|member| member.had);
        let least = || self.members.values().map(|member| member.had).min();
        had.or_else(least).unwrap_or(0)
    }

    /// Who waits and is next, beside the one whose turn it is.
    fn next(&self) -> Option<(P, &Member)> {
        self.first_waiting(self.turn())
    }

    /// Of those that wait, but for one: who has had least, and of equals who came first.
    fn first_waiting(&self, but: Option<P>) -> Option<(P, &Member)> {
        let others =
            self.members.iter().filter(|&(&process, member)| Some(process) != but && member.work.waits);
        let first = others.min_by_key(|(_, member)| (member.had, member.ticket));
        first.map(|(&process, member)| (process, member))
    }

    /// Who gets the turn at the end of a change: another one that waits, or the one that had it, or anybody.
    fn candidate(&self, from: Option<P>) -> Option<P> {
        let next = self.first_waiting(from).map(|(process, _)| process);
        next.or(from).or_else(|| self.members.keys().next().copied())
    }

    /// Whose work has to be through before the turn changes: everybody's but that of the one who gets it, and what is late already.
    fn waited_for(&self, from: Option<P>) -> impl Iterator<Item = (P, &Member)> {
        let to = self.candidate(from);
        let others = self.members.iter().map(|(&process, member)| (process, member));
        others.filter(move |&(process, member)| Some(process) != to && !member.late)
    }

    /// When what a process has on the device is taken to be through, after it was told to hold; `None`: when it says so.
    fn through_at(&self, member: &Member, held: Counted) -> Option<Counted> {
        match member.work {
            Work { under_way: true, .. } => None,
            Work { unmarked: 0, .. } => Some(held),
            _ => Some(member.changed.saturating_add(counted(self.config.unmarked))),
        }
    }

    /// When the turn is over; `None` while nobody waits for it.
    fn turn_ends(&self, of: P, since: Counted) -> Option<Counted> {
        let (_, next) = self.next()?;
        let member = self.members.get(&of)?;
        // Behind the one that waits it goes on until it has had as much.
        let behind = self.now.saturating_add(next.had.saturating_sub(member.had));
        let used = since.saturating_add(counted(self.config.turn)).max(behind);
        let rests = match member.work {
            work if work.is_wanting() => return Some(used),
            Work { unmarked: 0, .. } => self.config.idle,
            _ => self.config.unmarked.max(self.config.idle),
        };
        Some(used.min(member.changed.max(since).saturating_add(counted(rests))))
    }
}
