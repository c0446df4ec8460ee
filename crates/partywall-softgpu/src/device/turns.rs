//! Whose kernels run: processes outside MPS take turns, the clients of an MPS daemon are one group and run side by side.
//!
//! A group keeps the device while it has kernels to run and nobody waits, and for a time slice while somebody does. Kernels
//! are not interrupted: a turn ends with the kernel that is running. (A real device interrupts them; with kernels longer
//! than a slice this model is harder on the one who waits.)

use std::sync::atomic::Ordering::Relaxed;

use crate::device::{Device, DeviceError};

/// How long a group may go on while another waits, unless it was told otherwise: what the driver 580 asks for.
pub const SLICE_NS: u64 = 2_048_000;

/// Who waits says so again and again; one that has not for so long is gone.
const PATIENCE_NS: u64 = 50_000_000;

/// What comes of asking for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The kernel runs from this time on.
    Runs(u64),
    /// Another group has the device; ask again at this time.
    Wait(u64),
}

impl Device {
    /// Asks to run a kernel of `group` that is ready since `ready` and takes `duration`.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub fn ask_turn(&self, group: u64, ready: u64, now: u64, duration: u64) -> Result<Turn, DeviceError> {
        let own = self.own_entry();
        let _locked = self.lock()?;
        let turns = &self.shared().turns;
        let (owner, free_at) = (turns.owner.load(Relaxed), turns.free_at.load(Relaxed));
        let next = turns.next.load(Relaxed);
        let waits =
            next != 0 && next != group && now.saturating_sub(turns.next_at.load(Relaxed)) < PATIENCE_NS;
        let start = if owner == group {
            // Who has had a slice lets the one that waits go first.
            let slice = self.slice_ns();
            if waits && now.saturating_sub(turns.since.load(Relaxed)) >= slice {
                return Ok(Turn::Wait(now + slice / 20));
            }
            // A stream that is behind must not run in the time of those before.
            ready.max(turns.since.load(Relaxed))
        } else {
            if free_at > now || waits {
                if !waits {
                    turns.next.store(group, Relaxed);
                    turns.next_at.store(now, Relaxed);
                }
                return Ok(Turn::Wait(free_at.clamp(now + 10_000, now + SLICE_NS)));
            }
            turns.owner.store(group, Relaxed);
            turns.free_at.store(0, Relaxed);
            turns.next.store(0, Relaxed);
            let start = ready.max(free_at);
            turns.since.store(start, Relaxed);
            start
        };
        let end = start + duration;
        turns.free_at.fetch_max(end, Relaxed);
        let totals = &self.shared().totals;
        totals.launches.fetch_add(1, Relaxed);
        let counted = totals.busy_until.load(Relaxed);
        totals.busy_ns.fetch_add(end.saturating_sub(counted.max(start)), Relaxed);
        totals.busy_until.store(counted.max(end), Relaxed);
        if let Some(entry) = own {
            entry.launches.fetch_add(1, Relaxed);
            entry.busy_ns.fetch_add(duration, Relaxed);
        }
        Ok(Turn::Runs(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::tests::made;

    #[test]
    fn groups_exclude_each_other_and_their_members_do_not() {
        let (_directory, folder) = made("h200");
        let device = Device::open(folder).unwrap();
        let ask = |group, now, duration| device.ask_turn(group, now, now, duration).unwrap();
        assert_eq!(ask(1, 1_000, 50_000), Turn::Runs(1_000));
        assert_eq!(ask(1, 2_000, 50_000), Turn::Runs(2_000));
        assert_eq!(ask(2, 3_000, 10_000), Turn::Wait(52_000));
        assert_eq!(ask(2, 52_000, 10_000), Turn::Runs(52_000));
        assert_eq!(device.busy_ns(), 51_000 + 10_000);
        assert_eq!(device.launches(), 3);
    }

    #[test]
    fn a_slice_ends_when_another_waits_and_the_dead_are_not_waited_for() {
        let (_directory, folder) = made("h200");
        let device = Device::open(folder).unwrap();
        let ask = |group, now: u64, duration| device.ask_turn(group, now, now, duration).unwrap();
        let mut now = 1_000_000;
        assert_eq!(ask(1, now, 1_000_000), Turn::Runs(now));
        now += 1_000;
        assert!(matches!(ask(2, now, 1_000), Turn::Wait(_)));
        // Still within the slice.
        now += SLICE_NS / 2;
        assert_eq!(ask(1, now, 1_000_000), Turn::Runs(now));
        now += SLICE_NS / 2;
        assert!(matches!(ask(1, now, 1_000_000), Turn::Wait(_)), "the slice is over");
        // The other one never comes back.
        now += PATIENCE_NS;
        assert_eq!(ask(1, now, 1_000), Turn::Runs(now));
    }
}
