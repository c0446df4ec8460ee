//! The life of a request: it arrives, is copied in, runs its kernels, is copied out; and what a fault does to it.

use partywall_core::copy_scheduler::{CopyId, Direction};
use partywall_core::sm_arbiter;
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::{Bytes, Nanos};

use super::{Arrival, Event, Fault, Machine, Packet, Phase, QUEUE_MAX, Request};
use crate::link;
use crate::metrics::Counts;

/// Prompt tokens that one pass over a language model's kernels takes in; each generated token takes a pass of its
/// own. (Estimate: chunked prefill in serving engines, 512 to 2 048 tokens.)
const PROMPT_TOKENS_PER_PASS: u32 = 512;

/// Passes of one request at most.
const PASSES_MAX: u32 = 1 << 16;

fn passes(arrival: &Arrival) -> u32 {
    (arrival.input_tokens.div_ceil(PROMPT_TOKENS_PER_PASS).saturating_add(arrival.output_tokens))
        .clamp(1, PASSES_MAX)
}

impl Machine<'_> {
    /// Queues a tenant's first arrival, or the first batch of its closed loop.
    pub(super) fn start_load(&mut self, index: usize) {
        if self.tenants[index].closed.is_some() {
            // Not all at the same moment: programs that loop do not start together.
            let jitter = self.host_delay(index);
            self.after(self.now + jitter, Event::Requeue(index as u32, self.tenants[index].lives));
        } else {
            self.draw_arrival(index);
        }
    }

    fn draw_arrival(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        let Some(arrival) = tenant.arrivals.as_mut().and_then(Iterator::next) else { return };
        tenant.next_passes = passes(&arrival);
        self.after(arrival.at.0, Event::Arrive(index as u32));
    }

    pub(super) fn arrive(&mut self, index: usize) {
        let passes = self.tenants[index].next_passes;
        self.offer(index, passes);
        self.draw_arrival(index);
    }

    /// A closed loop queues its next batch.
    pub(super) fn requeue(&mut self, index: usize, life: u32) {
        let Some(closed) = self.tenants[index].closed else { return };
        if self.tenants[index].lives != life {
            return;
        }
        self.tenants[index].outstanding = closed.depth;
        for _ in 0..closed.depth {
            self.offer(index, 1);
        }
    }

    fn offer(&mut self, index: usize, passes: u32) {
        let tenant = &mut self.tenants[index];
        tenant.counts.offered += 1;
        // What nobody was there to serve says nothing about whether the load can be served.
        if tenant.phase == Phase::Down {
            tenant.counts.lost += 1;
            return;
        }
        if let Some(meter) = &mut tenant.meter {
            meter.arrived(Nanos(self.now));
        }
        if tenant.queue.len() >= QUEUE_MAX {
            tenant.counts.lost += 1;
            return;
        }
        tenant.queue.push_back(Request { arrived: self.now, started: 0, passes });
        if tenant.phase == Phase::Idle {
            if tenant.class == Class::LatencySensitive {
                self.tell_arbiter(sm_arbiter::Event::LsActive { tenant: TenantId(index as u32) });
            }
            self.begin_request(index);
        }
        self.ask(index, passes);
    }

    fn begin_request(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        let Some(mut request) = tenant.queue.pop_front() else {
            tenant.phase = Phase::Idle;
            if tenant.class == Class::LatencySensitive {
                self.tell_arbiter(sm_arbiter::Event::LsIdle { tenant: TenantId(index as u32) });
            }
            return;
        };
        request.started = self.now;
        tenant.current = Some(request);
        tenant.pass = 0;
        if tenant.program.input > Bytes::ZERO {
            let bytes = tenant.program.input;
            self.copy(index, Direction::HostToDevice, bytes);
        } else {
            self.begin_kernels(index);
        }
    }

    fn copy(&mut self, index: usize, direction: Direction, bytes: Bytes) {
        let tenant = &mut self.tenants[index];
        tenant.phase = Phase::Copying;
        tenant.copies += 1;
        let id = CopyId(tenant.copies);
        let who = (TenantId(index as u32), tenant.class);
        self.link.submit(self.now, who, (id, direction, bytes), &mut self.link_outcomes);
        self.apply_link();
    }

    pub(super) fn packet_done(&mut self, packet: Packet) {
        self.link.packet_done(self.now, packet, &mut self.link_outcomes);
        self.apply_link();
    }

    fn apply_link(&mut self) {
        // What is finished may submit the next copy, which appends; so take the list as it is now.
        let mut outcomes = std::mem::take(&mut self.link_outcomes);
        for outcome in &outcomes {
            match *outcome {
                link::Outcome::Started(packet) => self.after(packet.done_at, Event::Packet(packet)),
                link::Outcome::Finished { tenant, id } => self.copy_done(tenant.index(), id),
                // A tenant has one copy at a time, so its queue cannot be full; losing the request would be loud.
                link::Outcome::Refused { tenant, .. } => {
                    let refused = &mut self.tenants[tenant.index()];
                    refused.counts.lost += u64::from(refused.current.take().is_some());
                    self.next_request(tenant.index());
                }
            }
        }
        outcomes.clear();
        self.link_outcomes = outcomes;
    }

    fn copy_done(&mut self, index: usize, id: CopyId) {
        let tenant = &self.tenants[index];
        if tenant.phase != Phase::Copying || id != CopyId(tenant.copies) {
            return;
        }
        let passes = tenant.current.map_or(0, |request| request.passes);
        let kernels_done = tenant.program.kernels.is_empty() || tenant.pass >= passes;
        match (kernels_done, tenant.pass >= passes) {
            (false, _) => self.begin_kernels(index),
            (true, true) => self.request_done(index),
            // A program without kernels: its passes are its copies.
            (true, false) => self.pass_done(index),
        }
    }

    fn begin_kernels(&mut self, index: usize) {
        if self.tenants[index].program.kernels.is_empty() {
            self.pass_done(index);
        } else {
            self.ready(index, 0);
        }
    }

    fn ready(&mut self, index: usize, kernel: usize) {
        let tenant = &mut self.tenants[index];
        tenant.next = kernel;
        tenant.phase = Phase::Waiting;
        tenant.since = self.now;
        tenant.placed.rate = 0.0;
    }

    pub(super) fn kernel_done(&mut self, index: usize) {
        self.kernels += 1;
        if let Some(launches) = &mut self.tenants[index].launches {
            launches.kernel_done(self.now);
            self.go(index);
        }
        let tenant = &mut self.tenants[index];
        let next = tenant.next + 1;
        if next < tenant.program.kernels.len() {
            self.ready(index, next);
        } else {
            self.pass_done(index);
        }
    }

    fn pass_done(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        tenant.pass += 1;
        let passes = tenant.current.map_or(0, |request| request.passes);
        if tenant.pass < passes {
            if tenant.program.kernels.is_empty() {
                let bytes = tenant.program.input;
                self.copy(index, Direction::HostToDevice, bytes);
            } else {
                self.ready(index, 0);
            }
        } else if tenant.program.output > Bytes::ZERO {
            let bytes = tenant.program.output;
            self.copy(index, Direction::DeviceToHost, bytes);
        } else {
            self.request_done(index);
        }
    }

    fn request_done(&mut self, index: usize) {
        let now = self.now;
        let tenant = &mut self.tenants[index];
        if let Some(request) = tenant.current.take() {
            let counts: &mut Counts = &mut tenant.counts;
            let response = Nanos(now - request.arrived);
            counts.service.record(Nanos(now - request.started));
            counts.response.record(response);
            counts.completed += 1;
            if let Some(meter) = &mut tenant.meter {
                meter.completed(Nanos(now));
            }
            counts.missed += u64::from(tenant.objective.is_some_and(|objective| response > objective));
            counts.items += f64::from(request.passes) * tenant.program.items - tenant.uncounted;
            tenant.uncounted = 0.0;
        }
        self.next_request(index);
    }

    /// Goes on after a request that is over.
    fn next_request(&mut self, index: usize) {
        // Not idle before the next request has been looked for, so that the arbiter is told once.
        self.tenants[index].phase = Phase::Copying;
        self.begin_request(index);
        let tenant = &mut self.tenants[index];
        if let Some(closed) = tenant.closed {
            tenant.outstanding = tenant.outstanding.saturating_sub(1);
            if tenant.outstanding == 0 {
                let life = tenant.lives;
                let delay = closed.pause.0 + self.host_delay(index);
                self.after(self.now + delay, Event::Requeue(index as u32, life));
            }
        }
    }

    /// From the end of a synchronised batch to the next launch on the GPU, pauses apart: what is known of the tenant's
    /// host and the way to it and back, or what is known of hosts in general; half to one and a half times that, and never
    /// nothing.
    fn host_delay(&mut self, index: usize) -> u64 {
        let tenant = &mut self.tenants[index];
        let known = tenant.closed.and_then(|closed| closed.host);
        let known = known.map(|host| host.0 as f64 + self.setup.params.reach_ns);
        ((known.unwrap_or(self.setup.params.host_ns) * tenant.host.uniform(0.5, 1.5)) as u64).max(1)
    }

    /// Ends every tenant of a fault domain. A tenant that is down already does nothing, and so causes nothing.
    pub(super) fn fault(&mut self, fault: Fault) {
        let faulty = &self.tenants[fault.tenant.index()];
        if faulty.phase == Phase::Down {
            return;
        }
        let domain = faulty.place.fault_domain;
        for index in 0..self.tenants.len() {
            if self.tenants[index].place.fault_domain == domain {
                self.end_tenant(index);
                self.after(self.now + fault.restart.0, Event::Restart(index as u32));
            }
        }
    }

    fn end_tenant(&mut self, index: usize) {
        let now = Nanos(self.now);
        let tenant = &mut self.tenants[index];
        let lost = tenant.unfinished();
        tenant.counts.lost += lost;
        if let Some(meter) = &mut tenant.meter {
            // They left; as a backlog that never shrinks they would look like a load that cannot be served.
            (0..lost).for_each(|_| meter.completed(now));
        }
        tenant.queue.clear();
        tenant.current = None;
        tenant.uncounted = 0.0;
        if let Some(launches) = &mut tenant.launches {
            launches.clear();
        }
        tenant.lives += 1;
        tenant.phase = Phase::Down;
        let id = TenantId(index as u32);
        self.link.cancel(self.now, id, &mut self.link_outcomes);
        self.apply_link();
        self.tell_arbiter(sm_arbiter::Event::TenantGone { tenant: id });
    }

    pub(super) fn restart(&mut self, index: usize) {
        if self.tenants[index].phase != Phase::Down {
            return;
        }
        self.tenants[index].phase = Phase::Idle;
        self.tell_arbiter(sm_arbiter::Event::TenantBack { tenant: TenantId(index as u32) });
        if self.tenants[index].closed.is_some() {
            self.start_load(index);
        }
    }

    /// Each wake-up the arbiter asks for replaces the one before.
    pub(super) fn wake_arbiter(&mut self) {
        if self.arbiter_wake == Some(Nanos(self.now)) {
            self.arbiter_wake = None;
            self.tell_arbiter(sm_arbiter::Event::Tick);
        }
    }

    pub(super) fn tell_arbiter(&mut self, event: sm_arbiter::Event) {
        if let Some(arbiter) = &mut self.arbiter {
            arbiter.step(Nanos(self.now), event, &mut self.arbiter_actions);
            self.apply_arbiter();
        }
    }

    pub(super) fn apply_arbiter(&mut self) {
        let actions = std::mem::take(&mut self.arbiter_actions);
        for action in &actions {
            match *action {
                sm_arbiter::Action::Assign { tenant, sms } => {
                    self.hold(tenant.index(), sms.is_empty());
                }
                sm_arbiter::Action::WakeAt(at) => {
                    self.arbiter_wake = Some(at.max(Nanos(self.now)));
                    self.after(at.0, Event::ArbiterTick);
                }
                sm_arbiter::Action::Ignored { .. } => {}
            }
        }
        self.arbiter_actions = actions;
        self.arbiter_actions.clear();
    }
}
