//! Small allocations share chunks of whole pages; a chunk that is empty goes back.

use std::collections::BTreeMap;

use crate::device::{Device, PAGE};
use crate::error::Code;
use crate::memory::arena::Arena;
use crate::memory::free_list::FreeList;

/// Every allocation begins at a multiple of this, as on a real device.
pub(crate) const ALIGNMENT: u64 = 512;

/// Chunks of one kind.
#[derive(Debug)]
pub(crate) struct Chunks {
    /// The least size of a chunk, a multiple of [`PAGE`].
    chunk: u64,
    chunks: BTreeMap<u64, Chunk>,
    allocated: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Chunk {
    length: u64,
    free: FreeList,
}

impl Chunks {
    pub(crate) fn new(chunk: u64) -> Self {
        Self { chunk, chunks: BTreeMap::new(), allocated: BTreeMap::new() }
    }

    /// Takes `bytes`, from a new chunk where no other has room.
    pub(crate) fn take(&mut self, bytes: u64, arena: &Arena, device: &Device) -> Result<u64, Code> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        let fits = self.chunks.values_mut().find_map(|chunk| chunk.free.take(bytes, ALIGNMENT));
        let address = match fits {
            Some(address) => address,
            None => self.grow(bytes, arena, device)?,
        };
        self.allocated.insert(address, bytes);
        Ok(address)
    }

    /// Takes back an allocation; the bytes it had. Its chunk stays.
    pub(crate) fn give(&mut self, address: u64) -> Option<u64> {
        let bytes = self.allocated.remove(&address)?;
        if let Some((_, chunk)) = self.chunks.range_mut(..=address).next_back() {
            chunk.free.give(address, bytes);
        }
        Some(bytes)
    }

    /// Gives empty chunks back until no more than `keep` bytes are left in chunks, or none is empty.
    pub(crate) fn trim(&mut self, keep: u64, arena: &Arena, device: &Device) {
        while self.reserved() > keep {
            let empty =
                self.chunks.iter().find(|(base, chunk)| chunk.free.whole() == Some((**base, chunk.length)));
            let Some((base, length)) = empty.map(|(base, chunk)| (*base, chunk.length)) else { return };
            self.chunks.remove(&base);
            arena.give(base, length);
            // Where it fails, the device is gone.
            let _ = device.give(length);
        }
    }

    /// Bytes of all chunks.
    pub(crate) fn reserved(&self) -> u64 {
        self.chunks.values().map(|chunk| chunk.length).sum()
    }

    fn grow(&mut self, bytes: u64, arena: &Arena, device: &Device) -> Result<u64, Code> {
        let length = bytes.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?.max(self.chunk);
        device.take(length)?;
        let base = arena.take(length).inspect_err(|_| {
            let _ = device.give(length);
        })?;
        let mut free = FreeList::new(base, length);
        let address = free.take(bytes, ALIGNMENT).ok_or(Code::OUT_OF_MEMORY)?;
        self.chunks.insert(base, Chunk { length, free });
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::tests::made;

    #[test]
    fn small_ones_share_a_page_and_the_last_gives_it_back() {
        let (_directory, folder) = made("l4");
        let device = Device::open(folder).unwrap();
        let arena = Arena::new(64 * PAGE).unwrap();
        let mut chunks = Chunks::new(PAGE);
        let a = chunks.take(1, &arena, &device).unwrap();
        let b = chunks.take(1000, &arena, &device).unwrap();
        assert_eq!((b - a, device.used().unwrap()), (512, PAGE));
        let large = chunks.take(3 * PAGE, &arena, &device).unwrap();
        assert_eq!((device.used().unwrap(), chunks.reserved()), (4 * PAGE, 4 * PAGE));
        assert_eq!((chunks.give(a), chunks.give(a)), (Some(512), None));
        chunks.trim(0, &arena, &device);
        assert_eq!(device.used().unwrap(), 4 * PAGE, "nothing is empty");
        assert_eq!((chunks.give(b), chunks.give(large)), (Some(1024), Some(3 * PAGE)));
        chunks.trim(0, &arena, &device);
        assert_eq!((device.used().unwrap(), chunks.reserved()), (0, 0));
        assert!(chunks.take(u64::MAX - 4096, &arena, &device).is_err());
    }
}
