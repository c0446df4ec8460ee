//! Memory of virtual memory management: it lives until its last handle is released *and* its last mapping is gone.
//!
//! A handle's value may be used again by the driver after its last release, while mappings keep the former memory; so
//! handles and mappings both point to a record. Each change is begun before the driver is asked and ended after it has answered; a
//! record stays for as long as a change of it is under way.
//!
//! Memory of another process that was imported has no size until it is mapped, and is charged for the largest extent that
//! was mapped. What a file descriptor that was exported keeps alive after the last handle here is not seen.

use std::collections::BTreeMap;

use partywall_core::memory_ledger::{AllocationId, AllocationPath};
use partywall_core::units::Bytes;

use super::book::{Book, Lender, OutOfMemory, Reserved, State};

#[cfg(test)]
mod tests;

/// All of a process.
#[derive(Debug, Default)]
pub(super) struct Vmm {
    records: BTreeMap<u64, Record>,
    handles: BTreeMap<u64, u64>,
    /// By their first address.
    mappings: BTreeMap<u64, Mapping>,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    /// Its entry in the ledger; `None` if it costs nothing, or nothing yet.
    entry: Option<AllocationId>,
    path: AllocationPath,
    bytes: Bytes,
    handles: u32,
    mappings: u32,
    /// Changes that the driver has not answered.
    pending: u32,
}

#[derive(Debug, Clone, Copy)]
struct Mapping {
    bytes: Bytes,
    record: u64,
}

/// A handle that is being released.
#[derive(Debug)]
#[must_use = "a release ends"]
pub(crate) struct Releasing {
    handle: u64,
    record: u64,
}

/// A range that is being mapped.
#[derive(Debug)]
#[must_use = "a mapping ends"]
pub(crate) struct MappingBegun {
    record: u64,
    /// What an import that is mapped is charged in place of what it was before.
    larger: Option<Reserved>,
}

/// Ranges that are being unmapped.
#[derive(Debug)]
#[must_use = "an unmapping ends"]
pub(crate) struct Unmapping(Vec<(u64, Mapping)>);

impl Vmm {
    fn add(&mut self, handle: u64, entry: Option<AllocationId>, path: AllocationPath, bytes: Bytes) {
        self.next += 1;
        let record = Record { entry, path, bytes, handles: 1, mappings: 0, pending: 0 };
        self.records.insert(self.next, record);
        self.handles.insert(handle, self.next);
    }
}

impl State {
    /// Applies a change to a record, and forgets it if that was the last thing that kept it.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Record)) {
        let Some(record) = self.vmm.records.get_mut(&number) else { return };
        change(record);
        let record = *record;
        if (record.handles, record.mappings, record.pending) == (0, 0, 0) {
            self.vmm.records.remove(&number);
            self.drop_entry(record.entry);
            self.count(record.path, Bytes::ZERO, record.bytes);
        }
    }

    /// Forgets what a handle stood for: the driver uses its value again.
    fn unbind(&mut self, handle: u64) {
        if let Some(stale) = self.vmm.handles.remove(&handle) {
            self.change(stale, |record| record.handles = 0);
        }
    }
}

impl<L: Lender> Book<L> {
    /// The driver has made memory; `reserved` is `None` if it is the host's.
    pub(crate) fn created(&self, reserved: Option<Reserved>, bytes: Bytes, handle: u64) {
        let mut state = self.state();
        state.unbind(handle);
        let path = reserved.as_ref().map_or(AllocationPath::HostRegistered, |reserved| reserved.path);
        if let Some(reserved) = &reserved {
            state.confirm(reserved);
        }
        state.count(path, bytes, Bytes::ZERO);
        state.vmm.add(handle, reserved.and_then(|reserved| reserved.id), path, bytes);
        self.publish(&state);
    }

    /// The driver has opened memory of another process, or once more what this one has.
    pub(crate) fn imported(&self, handle: u64) {
        let mut state = self.state();
        match state.vmm.handles.get(&handle).copied() {
            Some(record) => state.change(record, |record| record.handles += 1),
            None => state.vmm.add(handle, None, AllocationPath::Imported, Bytes::ZERO),
        }
    }

    /// A handle is about to be released; `None` for one that is not in this account.
    pub(crate) fn release(&self, handle: u64) -> Option<Releasing> {
        let mut state = self.state();
        let number = *state.vmm.handles.get(&handle)?;
        let record = state.vmm.records.get_mut(&number)?;
        record.pending += 1;
        record.handles -= 1;
        if record.handles == 0 {
            state.vmm.handles.remove(&handle);
        }
        Some(Releasing { handle, record: number })
    }

    /// The driver has released it, or not.
    pub(crate) fn released(&self, releasing: Releasing, done: bool) {
        let mut state = self.state();
        if !done {
            state.vmm.handles.entry(releasing.handle).or_insert(releasing.record);
        }
        state.change(releasing.record, |record| {
            record.pending -= 1;
            record.handles += u32::from(!done);
        });
        self.publish(&state);
        drop(state);
        self.trim(super::book::CHUNK);
    }

    /// The first `extent` bytes of a handle's memory are about to be mapped; `None` for one that is not in this account.
    ///
    /// # Errors
    /// It is imported, and the tenant has no room for it.
    pub(crate) fn map(&self, handle: u64, extent: Bytes) -> Result<Option<MappingBegun>, OutOfMemory> {
        let (number, grows) = {
            let mut state = self.state();
            let Some(&number) = state.vmm.handles.get(&handle) else { return Ok(None) };
            let Some(record) = state.vmm.records.get_mut(&number) else { return Ok(None) };
            record.pending += 1;
            (number, record.path == AllocationPath::Imported && extent > record.bytes)
        };
        let larger = grows.then(|| self.reserve(AllocationPath::Imported, extent)).transpose();
        match larger {
            Ok(larger) => Ok(Some(MappingBegun { record: number, larger })),
            Err(refused) => {
                self.state().change(number, |record| record.pending -= 1);
                Err(refused)
            }
        }
    }

    /// The driver has mapped it at `address`.
    pub(crate) fn mapped(&self, begun: MappingBegun, address: u64, bytes: Bytes) {
        let mut state = self.state();
        if let Some(stale) = state.vmm.mappings.insert(address, Mapping { bytes, record: begun.record }) {
            state.change(stale.record, |record| record.mappings -= 1);
        }
        let known = state.vmm.records.get(&begun.record).map(|record| (record.entry, record.bytes));
        if let (Some(larger), Some((entry, before))) = (begun.larger, known) {
            if larger.bytes > before {
                state.confirm(&larger);
                state.drop_entry(entry);
                state.count(AllocationPath::Imported, larger.bytes, before);
                state.change(begun.record, |record| (record.entry, record.bytes) = (larger.id, larger.bytes));
            } else {
                // Another thread has mapped more of it meanwhile.
                state.drop_entry(larger.id);
            }
        }
        state.change(begun.record, |record| {
            record.pending -= 1;
            record.mappings += 1;
        });
        self.publish(&state);
    }

    /// The driver has not mapped it.
    pub(crate) fn not_mapped(&self, begun: MappingBegun) {
        if let Some(larger) = begun.larger {
            self.cancel(larger);
        }
        let mut state = self.state();
        state.change(begun.record, |record| record.pending -= 1);
        self.publish(&state);
    }

    /// A range is about to be unmapped, with all mappings in it.
    pub(crate) fn unmap(&self, address: u64, bytes: Bytes) -> Unmapping {
        let mut state = self.state();
        let end = address.saturating_add(bytes.0);
        let inside = |start: u64, mapping: &Mapping| start.saturating_add(mapping.bytes.0) <= end;
        let range = state.vmm.mappings.range(address..end);
        let found: Vec<(u64, Mapping)> = range
            .filter(|&(&start, mapping)| inside(start, mapping))
            .map(|(&start, &mapping)| (start, mapping))
            .collect();
        for (start, mapping) in &found {
            state.vmm.mappings.remove(start);
            state.change(mapping.record, |record| {
                record.pending += 1;
                record.mappings -= 1;
            });
        }
        Unmapping(found)
    }

    /// The driver has unmapped it, or not.
    pub(crate) fn unmapped(&self, unmapping: Unmapping, done: bool) {
        let mut state = self.state();
        for (start, mapping) in unmapping.0 {
            if !done {
                state.vmm.mappings.insert(start, mapping);
            }
            state.change(mapping.record, |record| {
                record.pending -= 1;
                record.mappings += u32::from(!done);
            });
        }
        self.publish(&state);
        drop(state);
        self.trim(super::book::CHUNK);
    }

    /// The driver has given another reference to what is mapped at `address`.
    pub(crate) fn retained(&self, handle: u64, address: u64) {
        let mut state = self.state();
        let below = state.vmm.mappings.range(..=address).next_back();
        let inside = below.filter(|(start, mapping)| address - *start < mapping.bytes.0);
        let Some(number) = inside.map(|(_, mapping)| mapping.record) else { return };
        if state.vmm.handles.get(&handle).is_some_and(|&bound| bound != number) {
            state.unbind(handle);
        }
        state.vmm.handles.insert(handle, number);
        state.change(number, |record| record.handles += 1);
    }
}
