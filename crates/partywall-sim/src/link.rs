//! The link between host and device: two directions that do not disturb each other, each serving one packet after
//! another; which packet is next is the copy scheduler's to decide.
//!
//! A packet occupies the link for its bytes and is reported done a latency later. With one packet in flight that
//! latency is a hole on the link after each packet (1 MiB packets: 37 of 57 GB/s measured), with two it is hidden.

use partywall_core::copy_scheduler::{
    Action, Config, ConfigError, CopyId, CopyScheduler, Direction, Event, Refusal,
};
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::{Bytes, Nanos};

/// From the end of a copy's bytes to the host or stream seeing it: 8.3 us for 64 KiB less 1.2 us on the link (H200).
const LATENCY_NS: u64 = 7_100;

/// A packet on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Packet {
    pub(crate) done_at: u64,
    pub(crate) tenant: TenantId,
    pub(crate) id: CopyId,
    pub(crate) direction: Direction,
}

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Started(Packet),
    Finished { tenant: TenantId, id: CopyId },
    Refused { tenant: TenantId, id: CopyId, why: Refusal },
}

/// One GPU's link.
#[derive(Debug)]
pub(crate) struct Link {
    scheduler: CopyScheduler,
    /// Bytes per nanosecond each way.
    bandwidth: f64,
    free_at: [u64; 2],
    actions: Vec<Action>,
}

impl Link {
    pub(crate) fn new(bandwidth: f64, config: Config) -> Result<Self, ConfigError> {
        Ok(Self { scheduler: CopyScheduler::new(config)?, bandwidth, free_at: [0; 2], actions: Vec::new() })
    }

    pub(crate) fn submit(
        &mut self,
        now: u64,
        (tenant, class): (TenantId, Class),
        (id, direction, bytes): (CopyId, Direction, Bytes),
        outcomes: &mut Vec<Outcome>,
    ) {
        self.step(now, Event::Submit { tenant, class, id, direction, bytes }, outcomes);
    }

    pub(crate) fn packet_done(&mut self, now: u64, packet: Packet, outcomes: &mut Vec<Outcome>) {
        let Packet { tenant, id, direction, .. } = packet;
        self.step(now, Event::PacketDone { tenant, id, direction }, outcomes);
    }

    /// Forgets the copies of a tenant that is gone; packets on their way still arrive and are ignored.
    pub(crate) fn cancel(&mut self, now: u64, tenant: TenantId, outcomes: &mut Vec<Outcome>) {
        self.step(now, Event::Cancel { tenant }, outcomes);
    }

    fn step(&mut self, now: u64, event: Event, outcomes: &mut Vec<Outcome>) {
        self.actions.clear();
        self.scheduler.step(Nanos(now), event, &mut self.actions);
        for action in &self.actions {
            match *action {
                Action::StartPacket { tenant, id, direction, bytes, .. } => {
                    let free_at = &mut self.free_at[usize::from(direction == Direction::DeviceToHost)];
                    *free_at = now.max(*free_at) + (bytes.0 as f64 / self.bandwidth).ceil() as u64;
                    let done_at = *free_at + LATENCY_NS;
                    outcomes.push(Outcome::Started(Packet { done_at, tenant, id, direction }));
                }
                Action::CopyDone { tenant, id, .. } => outcomes.push(Outcome::Finished { tenant, id }),
                Action::Refused { tenant, id, why, .. } => {
                    outcomes.push(Outcome::Refused { tenant, id, why })
                }
                // A dropped copy ends with its tenant, and a packet of such a copy is the only stray there can be.
                Action::Dropped { .. } | Action::Stray { .. } => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
