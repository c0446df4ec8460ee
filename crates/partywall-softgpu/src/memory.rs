//! Device memory of this process: where its bytes are, and what each address is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{Device, PAGE};
use crate::error::Code;
use crate::objects::number;
use addresses::{Addresses, Kind, Span};
use arena::Arena;
use chunks::Chunks;
use pool::Pool;

pub(crate) mod addresses;
pub(crate) mod arena;
pub(crate) mod chunks;
mod free_list;
pub(crate) mod physical;
pub(crate) mod pool;

/// Allocations below this share pages, as on a real device.
const SMALL: u64 = 1 << 20;

/// All memory of the process.
pub(crate) struct Memory {
    pub(crate) device: &'static Device,
    pub(crate) arena: &'static Arena,
    pub(crate) addresses: Addresses,
    small: Mutex<Chunks>,
}

impl Memory {
    pub(crate) fn new(device: &'static Device) -> Result<Self, Code> {
        // Streams of other threads may use it until the process ends.
        let arena: &'static Arena = Box::leak(Box::new(Arena::new(device.total())?));
        Ok(Self { device, arena, addresses: Addresses::default(), small: Mutex::new(Chunks::new(PAGE)) })
    }

    /// Allocates as `cuMemAlloc` does.
    pub(crate) fn allocate(&self, bytes: u64, managed: bool, context: u64) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let small = bytes < SMALL;
        let start = if small {
            self.small().take(bytes, self.arena, self.device)?
        } else {
            let length = bytes.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
            self.device.take(length)?;
            self.arena.take(length).inspect_err(|_| {
                let _ = self.device.give(length);
            })?
        };
        let kind = if managed && !small { Kind::Managed } else { Kind::Device { small } };
        self.addresses.insert(Span { start, length: bytes, kind, context, id: number() });
        Ok(start)
    }

    /// Frees what [`Memory::allocate`] gave.
    pub(crate) fn free(&self, start: u64) -> Result<(), Code> {
        let ours = |span: &Span| matches!(span.kind, Kind::Device { .. } | Kind::Managed);
        let span = self.addresses.remove(start, ours).ok_or(Code::INVALID_VALUE)?;
        self.give(&span);
        Ok(())
    }

    fn give(&self, span: &Span) {
        if matches!(span.kind, Kind::Device { small: true }) {
            let mut small = self.small();
            small.give(span.start);
            small.trim(0, self.arena, self.device);
        } else {
            let length = span.length.next_multiple_of(PAGE);
            self.arena.give(span.start, length);
            let _ = self.device.give(length);
        }
    }

    /// Allocates from a pool.
    pub(crate) fn allocate_from(
        &self,
        pool: &Pool,
        handle: u64,
        bytes: u64,
        context: u64,
    ) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let start = pool.take(bytes)?;
        self.addresses.insert(Span {
            start,
            length: bytes,
            kind: Kind::Pool { pool: handle },
            context,
            id: number(),
        });
        Ok(start)
    }

    /// Frees all that a context allocated, when it is destroyed.
    pub(crate) fn free_of_context(&self, context: u64) {
        for span in self.addresses.of_context(context) {
            if matches!(span.kind, Kind::Device { .. } | Kind::Managed) {
                let _ = self.free(span.start);
            }
        }
    }

    /// Maps physical memory at addresses that the program reserved; inaccessible until told otherwise.
    pub(crate) fn map(&self, start: u64, physical: &Arc<physical::Physical>) -> Result<(), Code> {
        let length = physical.bytes;
        if !self.addresses.within(start, length).is_empty() || self.addresses.find(start).is_some() {
            return Err(Code::INVALID_VALUE);
        }
        let (file, offset) = physical.file();
        arena::map(start, length, file, offset, rustix::mm::ProtFlags::empty())?;
        let kind = Kind::Mapped { physical: Arc::clone(physical), access: 0 };
        self.addresses.insert(Span { start, length, kind, context: 0, id: number() });
        Ok(())
    }

    fn small(&self) -> MutexGuard<'_, Chunks> {
        self.small.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
