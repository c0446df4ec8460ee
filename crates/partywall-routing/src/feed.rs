//! Whether what an engine says about its cache is all of it, in order.
//!
//! # Problem
//!
//! Engines publish batches of events with a sequence number, over a socket that loses what nobody was there to hear. A subscriber that
//! comes late has missed the beginning; one that is slow, or whose connection broke, has a gap; an engine that was started again counts
//! from zero, and its cache is empty. Whoever overlooks any of these routes by a cache that is not there, for hours. Against that an engine
//! keeps its last batches in a ring and sends them again when asked, from a number on; how many, and whether at all, is its
//! configuration.
//!
//! # Approach
//!
//! A [`Feed`] is the reader of one engine's sequence. It is told of every batch, by number, and says what to do with it: apply it now, keep
//! it until a gap is closed, drop it; and when to ask for a replay and when to clear what is known. The batches themselves stay with the
//! caller.
//!
//! - *Late.* After a subscription it asks for a replay from zero, or from the number that it has not seen, and keeps what comes live
//!   meanwhile. What the ring no longer has is lost.
//! - *Gap.* It asks for a replay from the missing number. If there is none to be had, or the ring no longer has it, what was missing is
//!   lost. After up to [`Limits::small_gap`] lost batches what is known stays, and the feed is *degraded*: some blocks are thought to be
//!   there that are not, or the reverse. After more it is cleared: wrong about most is worse than knowing nothing.
//! - *Again from zero.* A number that was there before with a later mark (an engine's time) is an engine that was started again:
//!   everything is cleared, and what was missed since is asked for from zero. An engine that was started again may also be beyond the last
//!   number already when it is heard; then nothing seems to be missing but some batches. So a replay is asked for from one batch before
//!   the missing one, and when that has another mark than it had, it is of another life.
//! - *Twice.* A batch that was heard before is dropped. It is recognised by number and mark, and so is one that comes live after a replay
//!   brought it. A live number that goes back is neither, and then a restart is the safe guess: the index knows less for a while, never
//!   something wrong.
//! - *Quiet.* A batch that is lost and followed by none leaves no gap: one that was published before the engine had noticed the subscription, or
//!   the last one of a burst. So a replay is also asked for after [`Limits::quiet`] without a batch, then after twice that time, and so on
//!   up to [`Limits::quiet_most`].
//! - *Silent.* An engine of which nothing has come within [`Limits::silence`] has probably no publisher: that has to be seen,
//!   because everything else looks as if its cache were empty.
//!
//! While a replay is under way no other is asked for, unless the connection was new; when it takes longer than [`Limits::patience`] it counts as failed.
//!
//! # What follows from it
//!
//! - F1: batches in order are applied at once.
//! - F2: a late subscriber gets what was before, first.
//! - F3: a gap is closed by a replay, and nothing is applied out of order or twice.
//! - F4: a gap that cannot be closed degrades when it is small and clears when it is large.
//! - F5: an engine that was started again is cleared, whatever its first number that is heard.
//! - F6: a copy is dropped.
//! - F7: a publisher that is not there is visible.
//! - F8: a replay that never ends is given up, and what is kept for it is bounded.
//! - F9: a batch that is lost and followed by none is asked for, less and less often while nothing comes.
//!
//! Over any sequence of losses, copies and restarts: as long as replays reach far enough, what is applied since the last clear is what the
//! engine published since it started, in order.

use std::collections::{BTreeSet, VecDeque};

use partywall_core::units::Nanos;

#[cfg(test)]
mod tests;

/// How patient a feed is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Lost batches after which what is known is still worth more than nothing.
    pub small_gap: u64,
    /// Batches that are kept while a replay is under way. More end it.
    pub kept: usize,
    /// Batches that are remembered to recognise copies.
    pub remembered: usize,
    /// How long a replay may take.
    pub patience: Nanos,
    /// How long nothing has to come before a publisher is called missing.
    pub silence: Nanos,
    /// How long nothing has to come before it is asked whether something was lost, the first time and at most.
    pub quiet: Nanos,
    /// See [`Limits::quiet`].
    pub quiet_most: Nanos,
}

impl Default for Limits {
    /// A small gap is less than a second of a busy engine (100 batches a second), and what is kept is what engines keep in their rings.
    fn default() -> Self {
        Self {
            small_gap: 64,
            kept: 10_000,
            remembered: 64,
            patience: Nanos::from_secs(10),
            silence: Nanos::from_secs(60),
            quiet: Nanos::from_secs(2),
            quiet_most: Nanos::from_secs(60),
        }
    }
}

/// Something that a feed is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The subscription stands, for the first time or again.
    Subscribed,
    /// A batch came.
    Live {
        /// Its number.
        seq: u64,
        /// The engine's time, as a number that grows with it: tells it from another batch with the same number.
        mark: u64,
    },
    /// A batch came that a replay brought.
    Replayed {
        /// Its number.
        seq: u64,
        /// As with a live one.
        mark: u64,
    },
    /// The replay is over.
    ReplayEnded,
    /// There is no replay to be had, or it broke off.
    ReplayFailed,
    /// Time has passed.
    Tick,
}

/// Something to be done, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing that is known of this engine's cache is true any more.
    Clear,
    /// Apply this batch: the one that the event was about, or one that was kept.
    Apply {
        /// Its number.
        seq: u64,
    },
    /// Keep this batch until it is to be applied or dropped.
    Keep {
        /// Its number.
        seq: u64,
    },
    /// This batch is not needed: the one that the event was about, or one that was kept.
    Drop {
        /// Its number.
        seq: u64,
    },
    /// Ask the engine for its batches again. A replay that is under way already is not waited for.
    Replay {
        /// From this number on.
        from: u64,
    },
}

/// How far what is known of an engine's cache can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Nothing has come yet.
    Waiting,
    /// Nothing has come for so long that there is probably no publisher.
    Missing,
    /// It is what the engine said.
    Exact,
    /// Some of what the engine said was lost.
    Degraded,
}

/// What happened to a feed since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Batches that were applied.
    pub applied: u64,
    /// Batches that were there before.
    pub copies: u64,
    /// Times that a number was missing.
    pub gaps: u64,
    /// Batches that never came.
    pub lost: u64,
    /// Replays that were asked for.
    pub replays: u64,
    /// Replays that failed, took too long, or would have had to keep too much.
    pub failed_replays: u64,
    /// Engines that were started again.
    pub restarts: u64,
    /// Times that everything was cleared.
    pub clears: u64,
}

/// The reader of one engine's sequence.
#[derive(Debug, Clone)]
pub struct Feed {
    limits: Limits,
    /// Whether there is somebody to ask for a replay.
    replays: bool,
    /// The number that is to be applied next.
    next: u64,
    /// Since when a replay is under way.
    replaying: Option<Nanos>,
    /// The number that was missing when it was asked for, if one was.
    asked: Option<u64>,
    kept: BTreeSet<u64>,
    /// The batches that were heard last, with their marks.
    heard: VecDeque<(u64, u64)>,
    /// The last number that came live.
    last_live: Option<u64>,
    /// The latest mark.
    newest: u64,
    /// When it was told of something first.
    since: Option<Nanos>,
    /// When it is asked whether something was lost, if nothing comes until then, and how long that was from the last time.
    look: Option<(Nanos, Nanos)>,
    degraded: bool,
    /// Whether anything was applied since the last clear.
    knows: bool,
    counts: Counts,
}

impl Feed {
    /// Of an engine that can be asked for a replay, or cannot.
    pub fn new(limits: Limits, replays: bool) -> Self {
        Self {
            limits,
            replays,
            next: 0,
            replaying: None,
            asked: None,
            kept: BTreeSet::new(),
            heard: VecDeque::new(),
            last_live: None,
            newest: 0,
            since: None,
            look: None,
            degraded: false,
            knows: false,
            counts: Counts::default(),
        }
    }

    /// What to do after an event.
    pub fn step(&mut self, now: Nanos, event: Event) -> Vec<Action> {
        self.since.get_or_insert(now);
        let mut actions = Vec::new();
        match event {
            Event::Subscribed => {
                if self.replays {
                    // Also when one is under way: it may be of the life before.
                    self.ask(now, None, &mut actions);
                    self.look_after(now, self.limits.quiet);
                }
            }
            Event::Live { seq, mark } => {
                self.look_after(now, self.limits.quiet);
                self.live(now, seq, mark, &mut actions);
            }
            Event::Replayed { seq, mark } => self.replayed(now, seq, mark, &mut actions),
            Event::ReplayEnded if self.replaying.is_some() => self.ended(now, &mut actions),
            Event::ReplayFailed if self.replaying.is_some() => {
                self.counts.failed_replays += 1;
                self.settle(&mut actions);
            }
            Event::ReplayEnded | Event::ReplayFailed => {}
            Event::Tick => {
                if self.replaying.is_some_and(|since| now.saturating_sub(since) > self.limits.patience) {
                    self.counts.failed_replays += 1;
                    self.settle(&mut actions);
                    self.look_after(now, self.limits.quiet);
                } else if let Some((_, wait)) =
                    self.look.filter(|(at, _)| *at <= now && self.replaying.is_none())
                {
                    self.ask(now, None, &mut actions);
                    self.look_after(now, wait.saturating_add(wait).min(self.limits.quiet_most.max(wait)));
                }
            }
        }
        actions
    }

    /// Asks again after so long, if nothing comes until then.
    fn look_after(&mut self, now: Nanos, wait: Nanos) {
        if self.replays {
            self.look = Some((now.saturating_add(wait), wait));
        }
    }

    /// How far what is known can be trusted.
    pub fn health(&self, now: Nanos) -> Health {
        if !self.heard.is_empty() {
            return if self.degraded { Health::Degraded } else { Health::Exact };
        }
        let silent = self.since.is_some_and(|since| now.saturating_sub(since) > self.limits.silence);
        if silent { Health::Missing } else { Health::Waiting }
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn live(&mut self, now: Nanos, seq: u64, mark: u64, actions: &mut Vec<Action>) {
        if self.heard.contains(&(seq, mark)) {
            self.copy(seq, actions);
            return;
        }
        let top = self.kept.last().map_or(self.next, |&last| self.next.max(last + 1));
        if seq < top {
            let behind_a_replay = mark <= self.newest && self.last_live.is_none_or(|last| seq > last);
            if behind_a_replay {
                self.copy(seq, actions);
                return;
            }
            self.restart(actions);
        }
        self.last_live = Some(seq);
        self.hear(seq, mark);
        if self.replaying.is_some() {
            self.keep(seq, actions);
        } else if seq == self.next {
            self.apply(seq, actions);
        } else {
            self.counts.gaps += 1;
            if self.replays {
                self.ask(now, Some(self.next), actions);
                self.keep(seq, actions);
            } else {
                self.lose(seq, actions);
                self.apply(seq, actions);
            }
        }
    }

    fn replayed(&mut self, now: Nanos, seq: u64, mark: u64, actions: &mut Vec<Action>) {
        if self.replaying.is_none() {
            actions.push(Action::Drop { seq });
            return;
        }
        if self.heard.iter().any(|&(known, with)| known == seq && with != mark) {
            actions.push(Action::Drop { seq });
            self.restart(actions);
            self.ask(now, None, actions);
            return;
        }
        if seq < self.next {
            actions.push(Action::Drop { seq });
            return;
        }
        // What is kept and comes before it is in order, and what is kept under the same number is the same.
        while let Some(&first) = self.kept.first()
            && first <= seq
        {
            self.kept.remove(&first);
            if first < seq {
                self.reach(first, actions);
            }
        }
        self.hear(seq, mark);
        self.reach(seq, actions);
        while self.kept.remove(&self.next) {
            self.apply(self.next, actions);
        }
    }

    /// The engine was started again: what it said before is over.
    fn restart(&mut self, actions: &mut Vec<Action>) {
        self.counts.restarts += 1;
        for seq in std::mem::take(&mut self.kept) {
            actions.push(Action::Drop { seq });
        }
        self.heard.clear();
        self.last_live = None;
        self.newest = 0;
        self.replaying = None;
        self.clear(actions);
        self.next = 0;
    }

    /// The engine has sent all that it had when it was asked. What is missing then was lost on its way since, so it is asked again, unless
    /// that was what it was asked for.
    fn ended(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        while self.kept.remove(&self.next) {
            self.apply(self.next, actions);
        }
        if !self.kept.is_empty() && self.asked != Some(self.next) {
            self.ask(now, Some(self.next), actions);
        } else {
            self.settle(actions);
        }
    }

    /// The replay is over, one way or another: what is still missing is lost.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        self.replaying = None;
        for seq in std::mem::take(&mut self.kept) {
            self.reach(seq, actions);
        }
    }

    /// Applies a batch, giving up those before it.
    fn reach(&mut self, seq: u64, actions: &mut Vec<Action>) {
        if seq > self.next {
            self.lose(seq, actions);
        }
        self.apply(seq, actions);
    }

    fn lose(&mut self, until: u64, actions: &mut Vec<Action>) {
        let lost = until - self.next;
        self.counts.lost += lost;
        if lost > self.limits.small_gap && self.knows {
            self.clear(actions);
        }
        self.degraded = true;
        self.next = until;
    }

    fn clear(&mut self, actions: &mut Vec<Action>) {
        self.counts.clears += 1;
        self.degraded = false;
        self.knows = false;
        actions.push(Action::Clear);
    }

    fn apply(&mut self, seq: u64, actions: &mut Vec<Action>) {
        self.counts.applied += 1;
        self.next = seq + 1;
        self.knows = true;
        actions.push(Action::Apply { seq });
    }

    fn keep(&mut self, seq: u64, actions: &mut Vec<Action>) {
        self.kept.insert(seq);
        actions.push(Action::Keep { seq });
        if self.kept.len() > self.limits.kept {
            self.counts.failed_replays += 1;
            self.settle(actions);
        }
    }

    fn ask(&mut self, now: Nanos, missing: Option<u64>, actions: &mut Vec<Action>) {
        self.counts.replays += 1;
        self.replaying = Some(now);
        self.asked = missing;
        actions.push(Action::Replay { from: self.next.saturating_sub(1) });
    }

    fn copy(&mut self, seq: u64, actions: &mut Vec<Action>) {
        self.counts.copies += 1;
        actions.push(Action::Drop { seq });
    }

    fn hear(&mut self, seq: u64, mark: u64) {
        if self.heard.contains(&(seq, mark)) {
            return;
        }
        self.newest = self.newest.max(mark);
        self.heard.push_back((seq, mark));
        if self.heard.len() > self.limits.remembered {
            self.heard.pop_front();
        }
    }
}
