use std::cell::Cell;
use std::ptr;

use super::*;
use crate::copies::copier::Desk;
use crate::copies::driver::{Mark, Stream};
use crate::copies::pool::Pool;
use crate::copies::words::write_progress;
use crate::sys::CUresult;

/// A device that does everything at once, with its memory in this process.
#[derive(Default)]
struct AtOnce {
    copies: Cell<u32>,
    /// The copy that fails.
    fails_at: Option<u32>,
    no_pinned_memory: bool,
}

impl Driver for AtOnce {
    type What = What;

    fn marks(&self, _: Stream, marks: &[Mark]) -> Result<(), Code> {
        for mark in marks {
            if let &Mark::Write { address, value } = mark {
                // SAFETY: the address of a word, which stays.
                unsafe { write_progress(address, value) };
            }
        }
        Ok(())
    }

    fn copy(&self, _: Stream, what: &What, offset: u64, bytes: u64) -> Result<(), Code> {
        self.copies.set(self.copies.get() + 1);
        if self.fails_at == Some(self.copies.get()) {
            return Err(CUresult(1));
        }
        let (from, to) = match *what {
            What::In { to, from } => (from, to as usize),
            What::Out { to, from } => (from as usize, to),
            What::Rows(_) | What::Planes { .. } => unreachable!("not in these tests"),
        };
        // SAFETY: both are memory of the test.
        unsafe { move_bytes(from + offset as usize, to + offset as usize, bytes as usize) };
        Ok(())
    }

    fn register(&self, address: usize, _: usize) -> Result<u64, Code> {
        if self.no_pinned_memory { Err(CUresult::OUT_OF_MEMORY) } else { Ok(address as u64) }
    }

    fn trouble(&self, _: Stream) -> Result<(), Code> {
        Ok(())
    }

    fn drain(&self, _: Stream) -> Result<(), Code> {
        Ok(())
    }

    fn now(&self) -> u64 {
        0
    }

    fn nap(&self) {}
}

fn check(driver: &AtOnce, pool: &'static Pool, bytes: usize, packet: u64) -> Result<bool, Code> {
    let desk = Desk::new();
    let place = Place { driver, pool, desk: &desk, stream: 1 };
    let source: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
    let (mut device, mut back) = (vec![0_u8; bytes], vec![0_u8; bytes]);
    let at = device.as_mut_ptr().expose_provenance() as u64;
    let into = What::In { to: at, from: source.as_ptr().expose_provenance() };
    // SAFETY: both are of this length.
    if !unsafe { copy(place, into, bytes, packet) }? {
        return Ok(false);
    }
    let out = What::Out { to: back.as_mut_ptr().expose_provenance(), from: at };
    // SAFETY: both are of this length.
    assert!(unsafe { copy(place, out, bytes, packet) }?);
    // SAFETY: written through its address, which the compiler does not see.
    let back = unsafe { std::slice::from_raw_parts(ptr::from_ref(&back[0]), bytes) };
    assert!(back == source, "{bytes} bytes in packets of {packet}");
    Ok(true)
}

fn pool() -> &'static Pool {
    Box::leak(Box::new(Pool::new()))
}

#[test]
fn bytes_go_there_and_back() {
    let pool = pool();
    for (bytes, packet) in [(1, 1 << 20), (3_000_001, 1 << 20), (BUFFER_BYTES * 5, 100_000), (70_000, 65_536)]
    {
        assert_eq!(check(&AtOnce::default(), pool, bytes, packet), Ok(true));
    }
}

#[test]
fn a_refused_copy_comes_back_and_takes_no_buffers_along() {
    let pool = pool();
    for round in 0..3 * MAX_BUFFERS {
        let driver = AtOnce { fails_at: Some(1 + round as u32), ..AtOnce::default() };
        assert_eq!(check(&driver, pool, 8_000_000, 1 << 20), Err(CUresult(1)), "round {round}");
    }
    assert_eq!(check(&AtOnce::default(), pool, 8_000_000, 1 << 20), Ok(true));
}

#[test]
fn without_pinned_memory_nothing_is_done() {
    let pool = pool();
    let driver = AtOnce { no_pinned_memory: true, ..AtOnce::default() };
    for _ in 0..2 * MAX_BUFFERS {
        assert_eq!(check(&driver, pool, 8_000_000, 1 << 20), Ok(false));
    }
    assert_eq!(driver.copies.get(), 0);
}
