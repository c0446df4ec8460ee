//! What the node tells about itself and its tenants, to people and to programs: the types behind the JSON API, and the source of the
//! metrics.

use std::collections::{BTreeMap, BTreeSet};

use partywall_core::config::WallChoice;
use partywall_core::sm_sets::SmSet;
use partywall_core::tenant::{Class, Share, TenantId};
use partywall_core::units::{Bytes, Nanos};
use serde::Serialize;

use crate::arbiter::squeeze::Setting;
use crate::promise::PromiseFacts;
use crate::tenant::TenantFacts;

/// The node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeView {
    /// Of Partywall.
    pub version: &'static str,
    /// Its process.
    pub pid: u32,
    /// Differs between any two starts of a node; 16 hexadecimal digits.
    pub generation: String,
    /// How long it has been running, in nanoseconds.
    pub uptime_ns: Nanos,
    /// All memory of the GPU.
    pub memory_bytes: Bytes,
    /// What no tenant gets.
    pub memory_reserve_bytes: Bytes,
    /// What is leased to processes.
    pub memory_leased_bytes: Bytes,
    /// Where the sizes of contexts come from, and what is wrong if they are estimates.
    pub contexts: Contexts,
    /// How copies are decided about.
    pub copies: CopyView,
    /// What best-effort tenants may launch; `None` where their launches are not decided about.
    pub launches: Option<SteeringView>,
    /// How best-effort processes compute one at a time; `None` where they need not.
    pub turns: Option<TurnsView>,
    /// What stands between tenants besides memory and copies.
    pub wall: WallChoice,
    /// Why it does not stand any more.
    pub wall_problem: Option<String>,
    /// Faults of the GPU in clients of the node's MPS daemon.
    pub faults: u64,
    /// Those of them that ended nobody's work but that of who caused them.
    pub faults_contained: u64,
    /// From the last one that ended all clients to the first good request, in nanoseconds; `None` while there was none.
    pub recover_ns: Option<Nanos>,
    /// The tenants, in the order of their numbers.
    pub tenants: Vec<TenantView>,
}

/// Where the sizes of contexts come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "source")]
pub enum Contexts {
    /// From what the driver shows for each process.
    Measured,
    /// From the configuration.
    Estimated {
        /// Why they are not measured.
        reason: String,
    },
}

/// What best-effort tenants may launch, and how that is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SteeringView {
    /// Whether somebody has a promise, for which it is sought.
    pub steered: bool,
    /// Whether the setting is on trial: it is not known yet whether promises are kept with it.
    pub on_trial: bool,
    /// What holds now.
    pub setting: Option<Setting>,
}

/// Best-effort processes that compute one at a time, because their time slices are short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TurnsView {
    /// How long one computes while others wait.
    pub turn_ns: Nanos,
    /// Turns so far.
    pub turns: u64,
    /// How often the next one began although something of another one was not through after a tenth of a second.
    pub late: u64,
    /// How often something of one was found on the device in the turn of another.
    pub overlaps: u64,
    /// Whether slices are longer for that.
    pub shared: bool,
}

/// How copies are decided about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CopyView {
    /// Whether they are; otherwise they go straight to the driver.
    pub decided: bool,
    /// Largest packet.
    pub packet_bytes: Bytes,
    /// Packets in flight, per direction.
    pub in_flight: u32,
    /// Copies of latency-sensitive tenants up to this size go straight to the driver.
    pub direct_max_ls_bytes: Bytes,
    /// The same for best-effort tenants.
    pub direct_max_be_bytes: Bytes,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantView {
    /// Its number.
    pub id: TenantId,
    /// Its name.
    pub name: String,
    /// What it cares about.
    pub class: Class,
    /// The weight of its copies.
    pub weight: u32,
    /// The share of the SMs that it asked for.
    pub share: Option<Share>,
    /// The SMs that it has to itself.
    pub sms: Option<SmSet>,
    /// Those that are left to it while it is squeezed; `None`: it is held instead.
    pub squeezed_sms: Option<SmSet>,
    /// Whether what was promised to it can be enforced; `None` while none of its processes has said what it uses.
    pub guaranteed: Option<bool>,
    /// Why not, a line each.
    pub reasons: Vec<String>,
    /// How the promise about its requests stands; `None` for best-effort tenants.
    pub promise: Option<PromiseFacts>,
    /// How often its command was started again.
    pub restarts: u32,
    /// Faults of the GPU that it caused, as far as that is known.
    pub faults: u32,
    /// Its memory.
    pub memory: MemoryView,
    /// Its copies from host to device.
    pub host_to_device: DirectionView,
    /// Its copies from device to host.
    pub device_to_host: DirectionView,
    /// Kernels launched one by one, by processes that ended too; as are all counts.
    pub launches: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Graphs that there are now and that are launched in pieces, because launches are decided about.
    pub graphs_cut: u32,
    /// Graphs that cannot be cut: one launch of such a one may keep the device busy for as long as it takes.
    pub graphs_whole: u32,
    /// Graphs that are held while it is squeezed, although it has a set for that: those that cannot be put onto it.
    pub graphs_unsqueezed: u32,
    /// How long the device stays with one of its processes while others wait, where that was set; zero: as the driver has it.
    pub slice_ns: Nanos,
    /// Time that launches waited for their turn, summed up over threads.
    pub held_ns: Nanos,
    /// For how long the device was busy with its launches, summed up over streams, as far as is known: those of best-effort tenants, while launches
    /// are decided about.
    pub busy_ns: Nanos,
    /// Launches onto its squeezed set, a piece of a graph being one.
    pub squeezed_launches: u64,
    /// Launches that went to its own set while it was squeezed, because they cannot go there.
    pub unsqueezed_launches: u64,
    /// How often it was squeezed or let go and launched something after that.
    pub resizes: u64,
    /// From the decision to the first launch that followed it, the last time: the longest of its processes.
    pub resize_ns: Nanos,
    /// The longest of these since its processes began.
    pub longest_resize_ns: Nanos,
    /// How often a packet was not through in time.
    pub late_packets: u64,
    /// What it resolved or called of the driver.
    pub coverage: CoverageView,
    /// What its processes had to say lately.
    pub notices: Vec<String>,
    /// Processes that ever registered.
    pub processes_total: u64,
    /// Processes that were not let in.
    pub processes_refused: u64,
    /// Its processes now.
    pub processes: Vec<ProcessView>,
}

/// A tenant's memory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct MemoryView {
    /// What its processes together may hold.
    pub quota_bytes: Bytes,
    /// Whether that is kept free for it.
    pub guaranteed: bool,
    /// What they were given.
    pub leased_bytes: Bytes,
    /// What they hold, contexts included.
    pub used_bytes: Bytes,
    /// The part of it that contexts take.
    pub context_bytes: Bytes,
    /// Held and not given: above zero, the tenant holds memory that was not counted.
    pub uncounted_bytes: Bytes,
    /// What was asked for, before rounding, by way of allocating.
    pub by_path: BTreeMap<&'static str, Bytes>,
    /// Allocations granted.
    pub allocations: u64,
    /// Allocations refused because of the quota.
    pub refusals: u64,
}

/// Copies of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DirectionView {
    /// Bytes that waited for their turn and are through.
    pub bytes: Bytes,
    /// Those copies.
    pub copies: u64,
    /// How long they waited, summed up.
    pub wait_ns: Nanos,
    /// Bytes that went straight to the driver.
    pub direct_bytes: Bytes,
    /// Those copies.
    pub direct_copies: u64,
}

/// What a tenant resolved or called of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct CoverageView {
    /// Where Partywall enforces its promises.
    pub enforced: BTreeSet<String>,
    /// Passed through knowingly.
    pub passed: BTreeSet<String>,
    /// Refused.
    pub refused: BTreeSet<String>,
    /// In nobody's list.
    pub unknown: BTreeSet<String>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessView {
    /// Its id, as the node sees it; `None` where it lives in another namespace.
    pub pid: Option<u32>,
    /// What it was given.
    pub leased_bytes: Bytes,
    /// What its shim counts.
    pub used_bytes: Bytes,
    /// What it holds besides.
    pub context_bytes: Bytes,
    /// Whether that was measured.
    pub context_measured: bool,
    /// Whether it was seen to be a client of the node's MPS daemon; `None` where it does not have to be, or is not known yet.
    pub mps_client: Option<bool>,
    /// Whether it speaks with the node; otherwise what it holds is counted until it ends.
    pub connected: bool,
}

impl TenantView {
    /// The short form that the control socket gives.
    pub fn facts(&self) -> TenantFacts {
        TenantFacts {
            processes: self.processes.len() as u32,
            memory_used: self.memory.used_bytes,
            guaranteed: self.guaranteed,
            unknown: self.coverage.unknown.iter().cloned().collect(),
            reasons: self.reasons.clone(),
            promise: self.promise.clone().map(Box::new),
            // Nothing in it fails to be JSON: keys are text and numbers are whole.
            detail: serde_json::to_value(self).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use partywall_core::guarantee::{Config, Event, Phase, Tracker};
    use partywall_core::tenant::Slo;

    use super::*;
    use crate::promise::{BreakFacts, Cause};

    /// A promise that was broken once and is kept now.
    fn promise() -> PromiseFacts {
        let slo = Slo { slowdown: Some(2.0), p99: None };
        let mut tracker = Tracker::new(Config { slo, baseline: Some(Nanos::from_millis(1)) });
        let (mut now, mut said) = (Nanos::ZERO, Vec::new());
        let slow = [1u64; 1_100].into_iter().chain([3; 50]).chain([1; 4_950]);
        for ms in slow {
            now = now.saturating_add(Nanos::from_millis(1));
            let (took, phase) = (Some(Nanos::from_millis(ms)), Phase::Beside);
            tracker.step(now, Event::Request { end: now, took, phase }, &mut said);
            tracker.step(now, Event::Time, &mut said);
        }
        let by = vec![Cause { tenant: "greedy".to_owned(), time_ns: Nanos::from_secs(1) }];
        let long = Nanos::from_secs(2);
        let history = vec![BreakFacts { began_ago_ns: long, lasted_ns: long, goes_on: false, by }];
        PromiseFacts { status: tracker.status(now, &[]), history }
    }

    /// A node with one tenant, for tests of what is made of it.
    pub(crate) fn node() -> NodeView {
        let side = |bytes| DirectionView { bytes: Bytes(bytes), copies: 1, ..DirectionView::default() };
        let tenant = TenantView {
            id: TenantId(3),
            name: "detector".to_owned(),
            class: Class::LatencySensitive,
            weight: 8,
            share: None,
            sms: None,
            squeezed_sms: None,
            guaranteed: Some(false),
            reasons: vec!["1 unknown entry points of the driver: cuFoo".to_owned()],
            promise: Some(promise()),
            restarts: 2,
            faults: 1,
            memory: MemoryView {
                quota_bytes: Bytes(500),
                by_path: [("vmm", Bytes::from_mib(2))].into(),
                ..MemoryView::default()
            },
            host_to_device: side(1),
            device_to_host: side(4096),
            launches: 7,
            graph_launches: 0,
            graphs_cut: 0,
            graphs_whole: 0,
            graphs_unsqueezed: 0,
            slice_ns: Nanos::ZERO,
            held_ns: Nanos::ZERO,
            busy_ns: Nanos::ZERO,
            squeezed_launches: 0,
            unsqueezed_launches: 0,
            resizes: 0,
            resize_ns: Nanos::ZERO,
            longest_resize_ns: Nanos::ZERO,
            late_packets: 0,
            coverage: CoverageView { unknown: ["cuFoo".to_owned()].into(), ..CoverageView::default() },
            notices: Vec::new(),
            processes_total: 1,
            processes_refused: 0,
            processes: Vec::new(),
        };
        NodeView {
            version: "0",
            pid: 1,
            generation: "00".to_owned(),
            uptime_ns: Nanos(5),
            memory_bytes: Bytes(1000),
            memory_reserve_bytes: Bytes(0),
            memory_leased_bytes: Bytes(0),
            contexts: Contexts::Estimated { reason: "no NVML".to_owned() },
            copies: CopyView {
                decided: true,
                packet_bytes: Bytes(1),
                in_flight: 2,
                direct_max_ls_bytes: Bytes(0),
                direct_max_be_bytes: Bytes(0),
            },
            launches: None,
            turns: Some(TurnsView {
                turn_ns: Nanos::from_millis(40),
                turns: 9,
                late: 0,
                overlaps: 0,
                shared: false,
            }),
            wall: WallChoice::Auto,
            wall_problem: None,
            faults: 1,
            faults_contained: 0,
            recover_ns: Some(Nanos::from_millis(2_300)),
            tenants: vec![tenant],
        }
    }

    #[test]
    fn the_short_form_says_what_the_long_one_does() {
        let tenant = &node().tenants[0];
        let facts = tenant.facts();
        assert_eq!((facts.guaranteed, &facts.unknown[..]), (Some(false), &["cuFoo".to_owned()][..]));
        assert_eq!(facts.detail["device_to_host"]["copies"], 1);
        assert_eq!(
            facts.detail["memory"]["by_path"]["vmm"].to_string(),
            serde_json::to_string(&Bytes::from_mib(2)).unwrap()
        );
    }
}
