//! What the registry tells.

use std::sync::atomic::Ordering;

use partywall_core::guarantee::Reason;
use partywall_core::tenant::TenantId;
use partywall_core::units::{Bytes, Nanos};

use super::claims::{Counters, Levels};
use super::member::{Connection, Member};
use super::state::State;
use super::tenant::{Tenant, direction_view, memory_view};
use crate::clock;
use crate::facts::{CopyView, MemoryView, NodeView, ProcessView, TenantView, TurnsView};
use crate::leases::ProcessId;
use crate::promise::PromiseFacts;

impl State {
    /// How everything is now.
    pub(crate) fn view(&mut self) -> NodeView {
        self.look_at_pages();
        let leased = self.tenants.keys().map(|&id| self.leases.leased(id).0).sum();
        let scheduler = self.copies.scheduler;
        NodeView {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            generation: format!("{:016x}", self.generation),
            uptime_ns: clock::now().saturating_sub(self.started),
            memory_bytes: self.book.whole,
            memory_reserve_bytes: self.book.reserve,
            memory_leased_bytes: Bytes(leased),
            contexts: self.measuring.source(),
            copies: CopyView {
                decided: self.copies.decided,
                packet_bytes: scheduler.packet,
                in_flight: scheduler.in_flight,
                direct_max_ls_bytes: self.copies.direct_max_ls,
                direct_max_be_bytes: self.copies.direct_max_be,
            },
            launches: self.launches.decided.then(|| self.promises.steering()),
            turns: self.turns_view(),
            wall: self.attaching.wall(),
            wall_problem: self.attaching.problem(),
            faults: self.faults.faults,
            faults_contained: self.faults.contained,
            recover_ns: self.faults.recover,
            tenants: self.told().map(|(&id, tenant)| self.tenant_view(id, tenant)).collect(),
        }
    }

    fn turns_view(&self) -> Option<TurnsView> {
        let arbiter = self.arbiter.as_ref().filter(|_| self.launches.takes_turns())?;
        let watch = arbiter.turns();
        let [turns, late, overlaps] =
            [&watch.turns, &watch.late, &watch.overlaps].map(|count| count.load(Ordering::Relaxed));
        let shared = watch.is_shared(clock::now());
        Some(TurnsView { turn_ns: self.launches.turn, turns, late, overlaps, shared })
    }

    /// Tenants that are somebody's.
    fn told(&self) -> impl Iterator<Item = (&TenantId, &Tenant)> {
        self.tenants.iter().filter(|(_, tenant)| !tenant.is_probe)
    }

    fn members(&self, id: TenantId) -> impl Iterator<Item = (u64, &Connection, &Member)> {
        self.connections.iter().filter_map(move |(&number, connection)| {
            let member = connection.member().filter(|member| member.tenant == id)?;
            Some((number, connection, member))
        })
    }

    fn tenant_view(&self, id: TenantId, tenant: &Tenant) -> TenantView {
        let mut counters: Counters = tenant.ended;
        self.members(id).for_each(|(_, _, member)| counters.add(&member.claims.counters));
        let late = |(_, _, member): (u64, &Connection, &Member)| member.copies.late.load(Ordering::Relaxed);
        let memory = self.memory(id, &counters);
        let unknown = self.members(id).map(|(_, _, member)| member.claims.levels.covered[3]).max();
        let (mut guaranteed, mut reasons) = tenant.guarantee(unknown.unwrap_or(0), memory.uncounted_bytes);
        // The names may be on their way, but the numbers say already that there are some.
        let counted =
            |(_, _, member): (u64, &Connection, &Member)| member.claims.levels.covered.iter().any(|&n| n > 0);
        if guaranteed.is_none() && self.members(id).any(counted) {
            guaranteed = Some(true);
        }
        if let Some(problem) = self.attaching.problem() {
            reasons.push(problem);
            guaranteed = Some(false);
        } else if self.attaching.is_needed() && !tenant.attached {
            // Nothing is promised before it was seen.
            guaranteed = guaranteed.filter(|guaranteed| !guaranteed);
        }
        let promise = self.promise(id, guaranteed, &reasons);
        let graphs = |kind: usize| {
            let of_member = |(_, _, member): (u64, &Connection, &Member)| member.claims.levels.graphs[kind];
            self.members(id).map(of_member).fold(0, u32::saturating_add)
        };
        let longest = |of: fn(&Levels) -> u64| {
            Nanos(self.members(id).map(|(_, _, member)| of(&member.claims.levels)).max().unwrap_or(0))
        };
        TenantView {
            id,
            name: tenant.spec.name.clone(),
            class: tenant.spec.class,
            weight: tenant.spec.weight,
            share: tenant.spec.share,
            sms: tenant.spec.sms,
            squeezed_sms: tenant.spec.squeezed_sms,
            guaranteed,
            reasons,
            promise,
            restarts: tenant.restarts,
            faults: self.faults.caused.get(&id).copied().unwrap_or(0),
            memory,
            host_to_device: direction_view(&counters, 0),
            device_to_host: direction_view(&counters, 1),
            launches: counters.launches,
            graph_launches: counters.graph_launches,
            graphs_cut: graphs(0),
            graphs_whole: graphs(1),
            graphs_unsqueezed: graphs(2),
            slice_ns: longest(|levels| u64::from(levels.slice_us) * 1_000),
            held_ns: Nanos(counters.held_ns),
            busy_ns: Nanos(counters.busy_ns),
            squeezed_launches: counters.squeezed_launches,
            unsqueezed_launches: counters.unsqueezed_launches,
            resizes: counters.resizes,
            resize_ns: longest(|levels| levels.resize_ns),
            longest_resize_ns: longest(|levels| levels.longest_resize_ns),
            late_packets: tenant.ended_late + self.members(id).map(late).sum::<u64>(),
            coverage: tenant.coverage_view(),
            notices: tenant.notices.iter().cloned().collect(),
            processes_total: tenant.processes_total,
            processes_refused: tenant.processes_refused,
            processes: self.members(id).map(|one| self.process_view(one)).collect(),
        }
    }

    /// How the promise about a tenant's requests stands, given whether all else that was promised to it can be kept.
    fn promise(&self, id: TenantId, guaranteed: Option<bool>, reasons: &[String]) -> Option<PromiseFacts> {
        let outside = if !self.launches.decided {
            vec![Reason::LaunchesUndecided]
        } else if guaranteed == Some(false) {
            reasons.iter().map(|text| Reason::Outside { text: text.clone() }).collect()
        } else if guaranteed.is_none() {
            let text = if self.attaching.is_needed() {
                "none of its processes has been seen among the clients of the node's MPS daemon yet"
            } else {
                "none of its processes has used the GPU yet"
            };
            vec![Reason::Outside { text: text.to_owned() }]
        } else {
            Vec::new()
        };
        self.promises.facts(clock::now(), id, &outside, |other| self.name_of(other))
    }

    fn memory(&self, id: TenantId, counters: &Counters) -> MemoryView {
        let levels: Vec<&Levels> = self.members(id).map(|(_, _, member)| &member.claims.levels).collect();
        let (mut used, mut context, mut uncounted) = (0u64, 0u64, 0u64);
        for (number, _, member) in self.members(id) {
            let held = self.leases.held(ProcessId(number));
            let counted = member.claims.levels.memory_bytes;
            used = used.saturating_add(held.context.0).saturating_add(counted);
            context = context.saturating_add(held.context.0);
            // Shown as soon as it is sure, like the mark on the tenant.
            let debt = if member.context.in_debt > 1 { held.debt().0 } else { 0 };
            uncounted = uncounted.saturating_add(debt);
        }
        MemoryView {
            quota_bytes: self.leases.quota(id),
            guaranteed: self.leases.is_guaranteed(id),
            leased_bytes: self.leases.leased(id),
            used_bytes: Bytes(used),
            context_bytes: Bytes(context),
            uncounted_bytes: Bytes(uncounted),
            ..memory_view(counters, levels.into_iter())
        }
    }

    fn process_view(&self, (number, connection, member): (u64, &Connection, &Member)) -> ProcessView {
        let held = self.leases.held(ProcessId(number));
        ProcessView {
            pid: connection.pid_number(),
            leased_bytes: held.lease,
            used_bytes: Bytes(member.claims.levels.memory_bytes),
            context_bytes: held.context,
            context_measured: member.context.measured,
            mps_client: member.attachment.seen,
            connected: connection.socket.is_some(),
        }
    }
}
