//! Which SMs are full: a block with more than half of an SM's shared memory leaves no room for another such block, whoever launched
//! it.
//!
//! Clients of one MPS daemon share the SMs at the same time, so an SM that a block of one fills is full for all of them.
//! Processes that are not of one group take turns: what the one has there is set aside while the other runs, so they do not see each
//! other's blocks, and seeing both there at a time would prove nothing.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::context::SmSet;
use crate::device::layout::Entry;
use crate::device::{Device, DeviceError};

impl Device {
    /// Takes up to `most` SMs of a set that no block of this process's group fills; which.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub(crate) fn fill_sms(&self, sms: SmSet, most: u64) -> Result<SmSet, DeviceError> {
        let _locked = self.lock()?;
        let Some(own) = self.own_index() else { return Ok(SmSet::NONE) };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut taken = self.take_places(sms, most, own);
        if (taken.count() as usize) < most {
            // Somebody may have died with blocks on the device.
            self.reclaim();
            taken = taken.union(self.take_places(sms, most - taken.count() as usize, own));
        }
        Ok(taken)
    }

    /// Takes up to `most` SMs. Under the lock.
    fn take_places(&self, sms: SmSet, most: usize, own: usize) -> SmSet {
        let mark = mark(&self.shared().entries[own], own);
        let place = |sm: &u32| self.place(*sm, own).map(|place| (*sm, place));
        let taken = sms.iter().filter_map(|sm| place(&sm)).take(most);
        SmSet::of(taken.map(|(sm, place)| {
            place.store(mark, Relaxed);
            sm
        }))
    }

    /// Gives back what [`Device::fill_sms`] took.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub(crate) fn empty_sms(&self, sms: SmSet) -> Result<(), DeviceError> {
        let _locked = self.lock()?;
        let Some(own) = self.own_index() else { return Ok(()) };
        let mark = mark(&self.shared().entries[own], own);
        for sm in sms.iter() {
            let places = self.shared().filled.get(sm as usize).into_iter().flatten();
            places.filter(|place| place.load(Relaxed) == mark).for_each(|place| place.store(0, Relaxed));
        }
        Ok(())
    }

    /// Nothing on the device is of the entry `index`, which gets another process. Under the lock.
    pub(super) fn forget_blocks(&self, index: usize) {
        let its = |word: &&AtomicU64| word.load(Relaxed) as u32 == index as u32 + 1;
        self.shared().filled.iter().flatten().filter(its).for_each(|word| word.store(0, Relaxed));
    }

    /// A place for a block of the group of entry `own` on an SM; `None` where the SM is full. Under the lock.
    fn place(&self, sm: u32, own: usize) -> Option<&AtomicU64> {
        let entries = &self.shared().entries;
        let mut free = None;
        for place in self.shared().filled.get(sm as usize)? {
            let word = place.load(Relaxed);
            let index = (word as u32).wrapping_sub(1) as usize;
            match entries.get(index).filter(|entry| word != 0 && mark(entry, index) == word) {
                Some(holder) if group(holder) == group(&entries[own]) => return None,
                Some(_) => {}
                None => free = Some(place),
            }
        }
        free
    }
}

fn mark(entry: &Entry, index: usize) -> u64 {
    u64::from(entry.pid.load(Relaxed)) << 32 | (index as u64 + 1)
}

/// Whose blocks are there at the same time.
fn group(entry: &Entry) -> u64 {
    match entry.mps_group.load(Relaxed) {
        0 => u64::from(entry.pid.load(Relaxed)),
        group => group,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::tests::made;

    /// As many processes as there are groups, all with one pid, but entries of their own.
    fn processes<const N: usize>(groups: [u64; N]) -> (tempfile::TempDir, [Device; N]) {
        let (directory, folder) = made("h200");
        let devices = groups.map(|group| {
            let device = Device::open(folder.clone()).unwrap();
            device.add_context(group).unwrap();
            device
        });
        (directory, devices)
    }

    #[test]
    fn an_sm_is_filled_once_by_clients_of_one_daemon() {
        let (_directory, [a, b]) = processes([9, 9]);
        let first = a.fill_sms(SmSet::of(20..30), 20).unwrap();
        assert_eq!(first.count(), 10);
        assert_eq!(b.fill_sms(SmSet::of(25..35), 20).unwrap(), SmSet::of(30..35));
        assert_eq!(a.fill_sms(SmSet::of(20..30), 20).unwrap(), SmSet::NONE);
        // What one gives back is its own.
        b.empty_sms(SmSet::of(20..35)).unwrap();
        assert_eq!(b.fill_sms(SmSet::of(20..35), 3).unwrap(), SmSet::of(30..33));
        a.empty_sms(SmSet::of(25..30)).unwrap();
        assert_eq!(b.fill_sms(SmSet::of(20..35), 30).unwrap(), SmSet::of((25..30).chain(33..35)));
    }

    #[test]
    fn processes_that_take_turns_do_not_see_each_other() {
        let (_directory, [a, other]) = processes([9, 10]);
        assert_eq!(a.fill_sms(SmSet::of(0..8), 8).unwrap().count(), 8);
        assert_eq!(other.fill_sms(SmSet::of(4..12), 8).unwrap().count(), 8);
        // And what the one has stays its own.
        assert_eq!(a.fill_sms(SmSet::of(0..9), 9).unwrap(), SmSet::of([8]));
        other.empty_sms(SmSet::of(0..12)).unwrap();
        assert_eq!(a.fill_sms(SmSet::of(0..9), 9).unwrap(), SmSet::NONE);
    }

    #[test]
    fn what_the_dead_filled_is_free() {
        let (_directory, [a, b]) = processes([9, 9]);
        assert_eq!(a.fill_sms(SmSet::of(0..8), 8).unwrap().count(), 8);
        drop(a);
        assert_eq!(b.fill_sms(SmSet::of(0..8), 8).unwrap().count(), 8);
    }
}
