//! The link to the host: each direction carries one copy at a time, in the order in which they became ready, whole.
//!
//! That is what an H200 does on PCIe: 64 KiB take 8 us alone, and 10 ms behind another process's 512 MiB. A copy holds its
//! direction for its bytes at the link's rate; the rest of what a copy takes passes beside other copies.

use std::sync::atomic::Ordering::Relaxed;

use crate::device::{Device, DeviceError};

/// What a copy takes besides its bytes: 64 KiB take 8.3 us on an H200, of which 1.2 at the link's rate.
pub const LATENCY_NS: u64 = 7_000;

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the host to the device.
    ToDevice = 0,
    /// From the device to the host.
    ToHost = 1,
}

impl Device {
    /// Takes the next free place on the link for a copy that can begin at `ready`, and says when the copy will be done.
    /// Call it when the copy has reached the head of its stream, not before: who has a place keeps it.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub fn reserve_link(&self, direction: Direction, ready: u64, bytes: u64) -> Result<u64, DeviceError> {
        let own = self.own_entry();
        let _locked = self.lock()?;
        let link = &self.shared().links[direction as usize];
        let start = link.free_at.load(Relaxed).max(ready);
        let hold = (bytes as f64 / self.figures().gpu.pcie_bytes_per_ns()) as u64;
        link.free_at.store(start + hold, Relaxed);
        link.bytes.fetch_add(bytes, Relaxed);
        link.busy_ns.fetch_add(hold, Relaxed);
        if let Some(entry) = own {
            entry.link_bytes[direction as usize].fetch_add(bytes, Relaxed);
        }
        Ok(start + hold + LATENCY_NS)
    }

    /// Bytes that have gone over the link in this direction since the state was made.
    pub fn link_bytes(&self, direction: Direction) -> u64 {
        self.shared().links[direction as usize].bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::tests::made;

    #[test]
    fn copies_of_a_direction_wait_for_each_other_and_not_for_the_other_direction() {
        let (_directory, folder) = made("h200");
        let device = Device::open(folder).unwrap();
        let long = device.reserve_link(Direction::ToDevice, 1_000, 57_000_000).unwrap();
        assert_eq!(long, 1_001_000 + LATENCY_NS);
        let behind = device.reserve_link(Direction::ToDevice, 2_000, 57_000).unwrap();
        assert_eq!(behind, 1_002_000 + LATENCY_NS);
        let other = device.reserve_link(Direction::ToHost, 2_000, 57_000).unwrap();
        assert_eq!(other, 3_000 + LATENCY_NS);
        assert_eq!(device.link_bytes(Direction::ToDevice), 57_057_000);
    }
}
