//! What the registry knows of a tenant.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use partywall_core::units::{Bytes, Nanos};
use partywall_shim_api::frame::Disposition;

use super::claims::{Counters, Levels};
use crate::facts::{CoverageView, DirectionView, MemoryView};
use crate::tenant::TenantSpec;

/// Frames that a tenant's processes together may send at once: a hundred children that start at once and say what they use.
const BURST_FRAMES: u64 = 4_000;

/// And in the long run. One takes the node a few microseconds: a tenant that sends no more than this takes a hundredth of a processor.
const FRAMES_PER_SECOND: u64 = 2_000;

/// Names of entry points that are kept: the driver has some 800.
const MAX_NAMES: usize = 4_096;

/// Longest name of an entry point.
const MAX_NAME: usize = 100;

/// Notices that are kept.
const MAX_NOTICES: usize = 16;

/// The ways of allocating in the order of the page, as reports call them.
pub(crate) const PATHS: [&str; partywall_shim_api::page::MEMORY_PATHS] =
    ["cuMemAlloc", "pitch", "pool", "graph", "vmm", "managed", "array", "context", "host", "imported"];

/// A tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) spec: TenantSpec,
    /// Of processes that have ended.
    pub(crate) ended: Counters,
    pub(crate) ended_late: u64,
    pub(crate) coverage: [BTreeSet<String>; 4],
    /// Whether any process has said what it uses.
    pub(crate) heard: bool,
    pub(crate) notices: VecDeque<String>,
    /// What it did that shows that it cannot be trusted: each once.
    pub(crate) marks: BTreeSet<&'static str>,
    pub(crate) processes_total: u64,
    pub(crate) processes_refused: u64,
    pub(crate) restarts: u32,
    /// Whether it is nobody's tenant, but one of the node's own probes.
    pub(crate) is_probe: bool,
    /// Why it is not known that its SMs are its own.
    pub(crate) sms_problem: Option<String>,
    /// Whether a run of its command has ended, and the next process belongs to a new one.
    pub(crate) over: bool,
    /// Whether a process of this run was seen to be a client of the node's MPS daemon.
    pub(crate) attached: bool,
    /// What a context of its took last.
    pub(crate) context: Option<Bytes>,
    frames: Frames,
}

impl Tenant {
    pub(crate) fn new(spec: TenantSpec, now: Nanos) -> Self {
        Self {
            spec,
            ended: Counters::default(),
            ended_late: 0,
            coverage: Default::default(),
            heard: false,
            notices: VecDeque::new(),
            marks: BTreeSet::new(),
            processes_total: 0,
            processes_refused: 0,
            restarts: 0,
            is_probe: false,
            sms_problem: None,
            over: false,
            attached: false,
            context: None,
            frames: Frames { left: BURST_FRAMES, at: now },
        }
    }

    /// A process has registered. With the first of a new run, what the one before it did is forgotten: until then people may want to
    /// know.
    pub(crate) fn begin(&mut self) {
        self.processes_total += 1;
        if std::mem::take(&mut self.over) {
            self.coverage = Default::default();
            self.heard = false;
            self.attached = false;
            self.notices.clear();
            self.marks.clear();
        }
    }

    /// Whether one more frame may be taken now.
    pub(crate) fn may_speak(&mut self, now: Nanos) -> bool {
        self.frames.take(now)
    }

    /// Takes in names of entry points; `false` if some are none, or there are too many.
    pub(crate) fn covers(&mut self, disposition: Disposition, names: &str) -> bool {
        self.heard = true;
        let list = &mut self.coverage[disposition as usize];
        let mut sense = true;
        for name in names.split_ascii_whitespace() {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            if name.len() > MAX_NAME
                || !name.bytes().all(is_name)
                || (list.len() >= MAX_NAMES && !list.contains(name))
            {
                sense = false;
            } else {
                list.insert(name.to_owned());
            }
        }
        sense
    }

    /// Keeps what a process has to say, once, as one line.
    pub(crate) fn notes(&mut self, text: &str) {
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = line.trim();
        if line.is_empty() || self.notices.iter().any(|known| known == line) {
            return;
        }
        if self.notices.len() >= MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(line.to_owned());
    }

    /// Whether its promises hold, and why not.
    pub(crate) fn guarantee(&self, unknown: u32, uncounted: Bytes) -> (Option<bool>, Vec<String>) {
        let mut reasons: Vec<String> = self.marks.iter().map(|&mark| mark.to_owned()).collect();
        reasons.extend(self.sms_problem.clone());
        let names = &self.coverage[Disposition::Unknown as usize];
        if !names.is_empty() {
            let some: Vec<_> = names.iter().take(5).map(String::as_str).collect();
            let more = if names.len() > some.len() { ", …" } else { "" };
            reasons.push(format!(
                "{} unknown entry points of the driver: {}{more}",
                names.len(),
                some.join(", ")
            ));
        } else if unknown > 0 {
            reasons.push(format!("{unknown} unknown entry points of the driver"));
        }
        if uncounted > Bytes::ZERO {
            reasons.push(format!("holds {uncounted} of GPU memory that was not counted"));
        }
        reasons.extend(self.notices.iter().cloned());
        let guaranteed = if !reasons.is_empty() { Some(false) } else { self.heard.then_some(true) };
        (guaranteed, reasons)
    }

    pub(crate) fn coverage_view(&self) -> CoverageView {
        let [enforced, passed, refused, unknown] = self.coverage.clone();
        CoverageView { enforced, passed, refused, unknown }
    }
}

/// A tenant's memory by the claims of its processes; what the node knows itself is filled in by the caller.
pub(crate) fn memory_view<'a>(counters: &Counters, levels: impl Iterator<Item = &'a Levels>) -> MemoryView {
    let mut by_path: BTreeMap<&'static str, Bytes> = PATHS.iter().map(|&path| (path, Bytes::ZERO)).collect();
    for level in levels {
        for (path, &bytes) in PATHS.iter().zip(&level.memory_by_path) {
            let sum = by_path.entry(path).or_default();
            *sum = Bytes(sum.0.saturating_add(bytes));
        }
    }
    MemoryView {
        by_path,
        allocations: counters.allocations,
        refusals: counters.refusals,
        ..MemoryView::default()
    }
}

pub(crate) fn direction_view(counters: &Counters, direction: usize) -> DirectionView {
    let side = &counters.copies[direction];
    DirectionView {
        bytes: Bytes(side.bytes),
        copies: side.copies,
        wait_ns: Nanos(side.wait_ns),
        direct_bytes: Bytes(side.direct_bytes),
        direct_copies: side.direct_copies,
    }
}

/// How many frames may still be taken.
#[derive(Debug)]
struct Frames {
    left: u64,
    at: Nanos,
}

impl Frames {
    fn take(&mut self, now: Nanos) -> bool {
        let earned = now.saturating_sub(self.at).0 / (1_000_000_000 / FRAMES_PER_SECOND);
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(BURST_FRAMES);
            self.at = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}
