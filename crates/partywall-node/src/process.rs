//! Processes of this machine as `/proc` shows them: who one is for good, who descends from whom, who carries a
//! tenant's token.
//!
//! A process number is used again by another process, so a process that is remembered is remembered with the time at
//! which it started and the boot that this time counts from. Signals go through a pidfd that was opened before that
//! was checked: they reach the process that was meant or nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;

use partywall_shim_api::environment::TOKEN;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::tenant::Token;

/// Most steps from a process to the first: nobody nests that deep, and a table read while it changes could have a ring.
const MAX_DEPTH: usize = 1000;

/// Which process, for good: a number, and what tells it from others that get the number before or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    /// The process number.
    pub pid: i32,
    /// When it started, in the kernel's clock ticks since boot.
    pub start_ticks: u64,
}

/// The fields of `/proc/<pid>/stat` that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// One letter: `Z` and `X` are dead.
    pub state: char,
    /// The parent's process number.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its terminal; 0 if it has none.
    pub terminal: i32,
    /// The process group that the terminal's keys go to; -1 without terminal.
    pub foreground: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl Stat {
    /// Reads a line of `/proc/<pid>/stat`; `None` if it is none. The name in it may hold anything, also brackets.
    pub fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // proc(5) numbers fields from 1 and the state is the third.
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            terminal: field(7)?.parse().ok()?,
            foreground: field(8)?.parse().ok()?,
            start_ticks: field(22)?.parse().ok()?,
        })
    }

    /// Of a process; `None` if there is none.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
    }

    /// Whether it still runs; a zombie does not.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }
}

impl Identity {
    /// Of the process that has this number now.
    pub fn of(pid: i32) -> Option<Self> {
        Stat::of(pid).map(|stat| Self { pid, start_ticks: stat.start_ticks })
    }

    /// Of this process.
    pub fn own() -> Option<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Whether this very process still runs.
    pub fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.is_alive() && stat.start_ticks == self.start_ticks)
    }

    /// A descriptor of this very process, which becomes readable when it ends; `None` if it is gone already.
    pub fn open(&self) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // In this order: if it is still the one now, then the descriptor is of it.
        self.is_alive().then_some(fd)
    }
}

/// Sends a signal to this very process, or to nobody.
pub fn signal(identity: &Identity, signal: Signal) {
    if let Some(fd) = identity.open() {
        // It may end between the two: then there is nobody to signal.
        let _: Result<(), Errno> = pidfd_send_signal(fd, signal);
    }
}

/// The boot that start times count from; empty where the kernel does not say.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// All processes, as they were while the table was read.
#[derive(Debug, Default)]
pub struct Table {
    processes: BTreeMap<i32, Stat>,
}

impl Table {
    /// Reads `/proc`. A process that ends meanwhile may be in it or not.
    pub fn read() -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        Self { processes: pids.filter_map(|pid| Some((pid, Stat::of(pid)?))).collect() }
    }

    /// Everything below the processes in `roots` that is alive, without them.
    pub fn descendants(&self, roots: impl IntoIterator<Item = i32>) -> Vec<Identity> {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for (pid, stat) in &self.processes {
            children.entry(stat.parent).or_default().push(*pid);
        }
        let mut found = BTreeSet::new();
        let mut open: Vec<i32> = roots.into_iter().collect();
        while let Some(pid) = open.pop() {
            let below = children.get(&pid).into_iter().flatten();
            open.extend(below.filter(|child| found.insert(**child)));
        }
        self.alive(found)
    }

    /// Every process that carries `token` in its environment, and everything below these. `own` is left out.
    pub fn carriers(&self, token: &Token, own: i32) -> Vec<Identity> {
        let carries = |pid: &i32| token_of(*pid).is_some_and(|carried| carried == *token);
        let mut found: BTreeSet<i32> = self.processes.keys().copied().filter(carries).collect();
        found.extend(self.descendants(found.iter().copied()).into_iter().map(|process| process.pid));
        found.remove(&own);
        self.alive(found)
    }

    /// Whether `pid` is strictly below one of `roots`.
    pub fn is_below(&self, pid: i32, roots: &BTreeSet<i32>) -> bool {
        let mut at = pid;
        for _ in 0..MAX_DEPTH {
            let Some(stat) = self.processes.get(&at) else { return false };
            if roots.contains(&stat.parent) {
                return true;
            }
            at = stat.parent;
        }
        true
    }

    fn alive(&self, pids: BTreeSet<i32>) -> Vec<Identity> {
        let stats = pids.into_iter().filter_map(|pid| Some((pid, self.processes.get(&pid)?)));
        let alive = stats.filter(|(_, stat)| stat.is_alive());
        alive.map(|(pid, stat)| Identity { pid, start_ticks: stat.start_ticks }).collect()
    }
}

/// The tenant's token that a process was started with; `None` also where its environment may not be read.
pub fn token_of(pid: i32) -> Option<Token> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(TOKEN.as_bytes())?.strip_prefix(b"=")?;
        std::str::from_utf8(value).ok()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str = "17 (a) b (c)) S 1 17 16 34816 18 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 5 6 7";

    #[test]
    fn a_line_of_stat_is_read_whatever_the_name() {
        let expected =
            Stat { state: 'S', parent: 1, group: 17, terminal: 34816, foreground: 18, start_ticks: 4711 };
        assert_eq!(Stat::parse(LINE), Some(expected));
        assert_eq!(Stat::parse(LINE.trim_end_matches(" 4711 5 6 7")), None);
        assert_eq!(Stat::parse("17 S"), None);
    }

    #[test]
    fn this_process_is_itself_and_no_other() {
        let own = Identity::own().unwrap();
        assert!(own.is_alive() && own.open().is_some());
        let other = Identity { start_ticks: own.start_ticks + 1, ..own };
        assert!(!other.is_alive() && other.open().is_none());
        assert!(!boot_id().is_empty());
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_the_dead_are_not() {
        let stat =
            |parent, state| Stat { state, parent, group: 0, terminal: 0, foreground: -1, start_ticks: 9 };
        let processes =
            [(1, stat(0, 'S')), (5, stat(1, 'S')), (6, stat(5, 'Z')), (7, stat(6, 'R')), (8, stat(1, 'S'))];
        let table = Table { processes: processes.into_iter().collect() };
        let below: Vec<i32> = table.descendants([5]).into_iter().map(|process| process.pid).collect();
        assert_eq!(below, [7]);
        assert!(table.is_below(7, &BTreeSet::from([5])) && table.is_below(7, &BTreeSet::from([6])));
        assert!(!table.is_below(5, &BTreeSet::from([5])) && !table.is_below(8, &BTreeSet::from([5])));
        let ring = [(5, stat(6, 'S')), (6, stat(5, 'S'))];
        let table = Table { processes: ring.into_iter().collect() };
        assert!(table.is_below(5, &BTreeSet::from([9])), "who cannot be placed is taken for a tenant");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_text_panics(text in ".{0,80}") {
            let _ = Stat::parse(&text);
        }
    }
}
