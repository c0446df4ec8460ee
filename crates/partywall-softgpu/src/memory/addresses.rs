//! What is behind every address that the driver gave or was told of: allocations, mappings, pinned host memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Code;
use crate::memory::physical::Physical;

/// A range of addresses.
#[derive(Clone)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) kind: Kind,
    /// The context that was current when it was made; 0 for none.
    pub(crate) context: u64,
    /// A number that no other span of this process has.
    pub(crate) id: u64,
}

/// What a range is.
#[derive(Clone)]
pub(crate) enum Kind {
    /// `cuMemAlloc`: whole pages of the arena, or a piece of a chunk.
    Device { small: bool },
    /// `cuMemAllocManaged`.
    Managed,
    /// A pool's, or a graph's.
    Pool { pool: u64 },
    /// Pinned host memory that the driver made.
    Host { flags: u32 },
    /// Host memory of the program that was pinned.
    Registered { flags: u32 },
    /// Mapped by the program; the device may read and write as the bits 1 and 2 of `access` say.
    Mapped { physical: Arc<Physical>, access: u32 },
    /// Memory of another process; the mapping as address and length.
    Imported { mapping: (u64, u64) },
}

impl Kind {
    /// Whether it is device memory, and not the host's.
    pub(crate) fn on_device(&self) -> bool {
        !matches!(self, Self::Host { .. } | Self::Registered { .. })
    }

    fn accessible(&self) -> bool {
        !matches!(self, Self::Mapped { access: 0, .. })
    }
}

/// All ranges, by their first address.
#[derive(Default)]
pub(crate) struct Addresses {
    spans: Mutex<BTreeMap<u64, Span>>,
}

impl Addresses {
    pub(crate) fn insert(&self, span: Span) {
        self.lock().insert(span.start, span);
    }

    /// Takes out the span that begins here, if `which` says yes to it.
    pub(crate) fn remove(&self, start: u64, which: impl FnOnce(&Span) -> bool) -> Option<Span> {
        let mut spans = self.lock();
        if which(spans.get(&start)?) { spans.remove(&start) } else { None }
    }

    /// The span with this address in it.
    pub(crate) fn find(&self, address: u64) -> Option<Span> {
        let spans = self.lock();
        let span = spans.range(..=address).next_back().map(|(_, span)| span)?;
        (address - span.start < span.length).then(|| span.clone())
    }

    /// Whether `length` bytes from `address` on are known, next to each other and accessible to the device; where
    /// `device` is set, in device memory.
    pub(crate) fn covers(&self, address: u64, length: u64, device: bool) -> bool {
        let spans = self.lock();
        let Some(end) = address.checked_add(length) else { return false };
        let mut at = address;
        while at < end || at == address {
            let Some((_, span)) = spans.range(..=at).next_back() else { return false };
            if at - span.start >= span.length || !span.kind.accessible() || (device && !span.kind.on_device())
            {
                return false;
            }
            at = span.start + span.length;
        }
        true
    }

    /// Changes what may be done with mapped memory in a range that mappings fill exactly; says which they are.
    pub(crate) fn set_access(&self, address: u64, length: u64, flags: u32) -> Result<Vec<(u64, u64)>, Code> {
        let end = address.checked_add(length).ok_or(Code::INVALID_VALUE)?;
        let mut spans = self.lock();
        let (mut at, mut found) = (address, Vec::new());
        while at < end {
            let span = spans
                .get(&at)
                .filter(|span| matches!(span.kind, Kind::Mapped { .. }))
                .ok_or(Code::INVALID_VALUE)?;
            found.push((span.start, span.length));
            at += span.length;
        }
        if at != end || found.is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        for (start, _) in &found {
            if let Some(Span { kind: Kind::Mapped { access, .. }, .. }) = spans.get_mut(start) {
                *access = flags;
            }
        }
        Ok(found)
    }

    /// The spans in a range of addresses.
    pub(crate) fn within(&self, address: u64, length: u64) -> Vec<Span> {
        let end = address.saturating_add(length);
        self.lock().range(address..end).map(|(_, span)| span.clone()).collect()
    }

    /// The spans that a context left behind.
    pub(crate) fn of_context(&self, context: u64) -> Vec<Span> {
        self.lock().values().filter(|span| span.context == context).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, length: u64, kind: Kind) -> Span {
        Span { start, length, kind, context: 1, id: start }
    }

    #[test]
    fn ranges_are_covered_by_neighbours_and_not_across_holes() {
        let addresses = Addresses::default();
        addresses.insert(span(100, 50, Kind::Managed));
        addresses.insert(span(150, 50, Kind::Device { small: true }));
        addresses.insert(span(300, 10, Kind::Host { flags: 0 }));
        for (address, length, device, expect) in [
            (100, 100, true, true),
            (120, 60, true, true),
            (100, 101, true, false),
            (99, 2, true, false),
            (300, 10, false, true),
            (300, 10, true, false),
            (150, 0, true, true),
            (250, 0, true, false),
            (u64::MAX, 2, false, false),
        ] {
            assert_eq!(addresses.covers(address, length, device), expect, "{address} {length}");
        }
        assert_eq!(addresses.find(199).map(|span| span.start), Some(150));
        assert!(addresses.find(200).is_none() && addresses.find(0).is_none());
        assert!(addresses.remove(150, |span| !span.kind.on_device()).is_none());
        assert!(addresses.remove(150, |span| span.kind.on_device()).is_some());
        assert_eq!(addresses.within(0, 1000).len(), 2);
        assert_eq!(addresses.set_access(100, 50, 3), Err(Code::INVALID_VALUE));
    }
}
