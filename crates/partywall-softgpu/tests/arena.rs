//! Memory of one color on this library, against plain memory.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic as tests do")]

mod site;

use std::sync::Arc;

use partywall_core::units::{Bytes, Nanos};
use partywall_driver::kernels::{
    Access, CHUNK_BYTES, Colored, Direction, Kernels, Linear, Load, Part, Passes, Range, Shape,
};
use partywall_driver::{Cuda, Device, DriverError, Priority, Stream};
use partywall_vram::address::{PAGE_BYTES, parity};
use partywall_vram::arena::{Arena, ArenaError, Block};
use partywall_vram::gpu::GpuProber;
use partywall_vram::pages::{PagesError, Source};
use partywall_vram::sides::{Found, Known, Side, SidesError, find};
use partywall_vram::tenant::{Request, Tenant, TenantError, View, Work};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const PAGE: u64 = PAGE_BYTES as u64;

fn device() -> (tempfile::TempDir, Device) {
    let directory = tempfile::tempdir().unwrap();
    // SAFETY: the library is this crate's, which behaves as documented for the driver API.
    let cuda = unsafe { Cuda::load_from(&site::folder(directory.path())) }.unwrap();
    (directory, cuda.device(0).unwrap())
}

fn known(device: &Device) -> Known {
    let mut prober = GpuProber::new(device, Bytes(32 * PAGE)).unwrap();
    match find(&mut prober, 500, 1).unwrap() {
        Found::Two(sides) => sides.known,
        other => panic!("{other:?}"),
    }
}

fn source(device: &Device) -> Source {
    let kernels = Arc::new(Kernels::load(&device.primary().unwrap()).unwrap());
    Source { device: device.clone(), kernels, known: known(device), seed: 3 }
}

/// Blocks with what should be in them.
type Plain = Vec<(Block, Vec<u8>)>;

fn check(arena: &Arena, stream: &Stream, plain: &Plain) {
    for (block, expected) in plain {
        let mut found = vec![0; expected.len()];
        arena.read(stream, block.at, &mut found).unwrap();
        assert!(found == *expected, "{block:?}");
    }
}

/// Allocates, writes, fills and frees as it is told, and holds everything against plain memory.
fn use_it(arena: &mut Arena, stream: &Stream, steps: &[(u8, u32, u32, u8)], plain: &mut Plain) {
    for &(what, one, other, value) in steps {
        if plain.is_empty() || what % 4 == 0 {
            let bytes = u64::from(one % 40_000) + 1;
            match arena.allocate(bytes, 1 << (other % 14)) {
                Ok(block) => {
                    let all = vec![value; bytes as usize];
                    arena.write(stream, block.at, &all).unwrap();
                    plain.push((block, all));
                }
                Err(error) => assert!(matches!(error, ArenaError::Allocator(_)), "{error}"),
            }
            continue;
        }
        let index = one as usize % plain.len();
        let (block, all) = &mut plain[index];
        let from = other as usize % all.len();
        let part = from..all.len().min(from + one as usize % 9_000 + 1);
        let range = Range { at: block.at + from as u64, bytes: part.len() as u64 };
        match what % 4 {
            1 => {
                let bytes: Vec<u8> = (0..part.len()).map(|index| value ^ index as u8).collect();
                arena.write(stream, range.at, &bytes).unwrap();
                all[part].copy_from_slice(&bytes);
            }
            2 => {
                arena.fill(stream, range, value).unwrap();
                stream.synchronize().unwrap();
                all[part].fill(value);
            }
            _ => {
                let (block, _) = plain.swap_remove(index);
                arena.free(block).unwrap();
            }
        }
    }
    check(arena, stream, plain);
}

#[test]
fn an_arena_is_memory_and_its_other_half_is_somebody_elses() {
    let (_directory, device) = device();
    let source = source(&device);
    let stream = device.primary().unwrap().stream(Priority::Normal).unwrap();
    let bytes = Bytes(2 * PAGE);
    let mut first = Arena::paired(&source, Side::First, bytes).unwrap();
    assert_eq!((first.bytes(), first.lost(), first.pages()), (bytes, Bytes::ZERO, 4));
    let files = first.export().unwrap();
    let mut second = Arena::join(&source, Side::Second, &files).unwrap();
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() });
    let step = (any::<u8>(), any::<u32>(), any::<u32>(), any::<u8>());
    let steps = proptest::collection::vec(step, 1..30);
    let arenas = std::cell::RefCell::new((&mut first, &mut second, Plain::new(), Plain::new()));
    runner
        .run(&(steps.clone(), steps), |(one, other)| {
            let (first, second, in_first, in_second) = &mut *arenas.borrow_mut();
            use_it(first, &stream, &one, in_first);
            use_it(second, &stream, &other, in_second);
            check(first, &stream, in_first);
            for (arena, plain) in [(first, in_first), (second, in_second)] {
                plain.drain(..).for_each(|(block, _)| arena.free(block).unwrap());
                assert_eq!(arena.free_bytes(), arena.bytes());
            }
            Ok(())
        })
        .unwrap();
    // Pages in another order are not what addresses say.
    let mut swapped = second.export().unwrap();
    swapped.swap(0, 1);
    let refused = Arena::join(&source, Side::First, &swapped).unwrap_err();
    assert!(matches!(refused, ArenaError::Misplaced { page: 0 }), "{refused}");
}

#[test]
fn every_byte_of_a_private_arena_is_on_its_side() {
    let (_directory, device) = device();
    let source = source(&device);
    let context = device.primary().unwrap();
    let (before, _) = context.memory_info().unwrap();
    let arena = Arena::private(&source, Side::Second, Bytes(3 * PAGE - 5)).unwrap();
    assert_eq!((arena.bytes(), arena.lost()), (Bytes(3 * PAGE), Bytes(3 * PAGE)));
    let (after, _) = context.memory_info().unwrap();
    assert!(before.0 - after.0 >= 6 * PAGE, "{before} {after}");
    assert!(arena.export().is_err());
    let coloring = *arena.coloring();
    assert_eq!(coloring.mask(), 0xab000 | 1 << 21);
    for at in (0..coloring.length()).step_by(4_096) {
        let place = coloring.place(coloring.logical() + at).unwrap();
        assert!(parity(place as u32 & coloring.mask()));
    }
    assert_eq!(arena.address(17), coloring.logical() + 17);
    let stream = context.stream(Priority::Normal).unwrap();
    let end = arena.bytes().0;
    assert!(arena.write(&stream, end - 3, &[1; 4]).is_err());
    arena.write(&stream, end - 4, &[1; 4]).unwrap();
}

#[test]
fn what_is_not_so_is_noticed_before_anything_is_colored() {
    let (_directory, device) = device();
    let mut source = source(&device);
    source.known.mask ^= 1 << 14;
    let refused = Arena::private(&source, Side::First, Bytes(4 * PAGE)).unwrap_err();
    assert!(matches!(refused, ArenaError::Pages(PagesError::Sides(SidesError::Wrong { .. }))), "{refused}");
    source.known.mask ^= 1 << 14;
    let refused = Arena::private(&source, Side::First, Bytes::ZERO).unwrap_err();
    assert!(matches!(refused, ArenaError::Size { .. }), "{refused}");
}

/// Four launches, each of which reads a quarter of a megabyte.
const REQUEST: Request = Request { launches: 4, bytes: Bytes(256 << 10) };

#[test]
fn a_tenant_keeps_to_its_side_and_what_it_reads_adds_up() {
    let (_directory, device) = device();
    let source = source(&device);
    let data = Bytes(8 << 20);
    let clock = || Nanos::ZERO;
    let arena = Arena::private(&source, Side::First, Tenant::arena_bytes(data)).unwrap();
    let mut tenant = Tenant::new(&source, arena, (data, REQUEST), None).unwrap();
    assert_eq!(tenant.sms(), 66);
    assert_eq!(tenant.try_copies(7).unwrap(), 0);
    for view in [View::Colored, View::Uncolored] {
        for work in [Work::Passes, Work::Requests, Work::Graphs] {
            let taken = tenant.measure(work, view, 64, 3, &clock).unwrap();
            assert_eq!(taken.device_us.len(), 3, "{work:?} {view:?}");
            assert_eq!(taken.host_us.len(), if work == Work::Passes { 0 } else { 3 });
        }
    }
    // A load changes what it writes to, and what is read then does not add up.
    tenant.start((Access::Read, true), (tenant.sms(), 32), View::Colored, true).unwrap();
    tenant.stop().unwrap();
    assert!(tenant.worked().unwrap() > Bytes::ZERO);
    assert!(tenant.measure(Work::Passes, View::Colored, 32, 1, &clock).is_ok());
    tenant.start((Access::ReadWrite, false), (tenant.sms(), 32), View::Colored, true).unwrap();
    tenant.stop().unwrap();
    let refused = tenant.measure(Work::Passes, View::Colored, 32, 1, &clock).unwrap_err();
    assert!(matches!(refused, TenantError::Sum { .. }), "{refused}");
    assert!(matches!(
        tenant.measure(Work::Passes, View::Colored, 32, 0, &clock),
        Err(TenantError::Count { count: 0 })
    ));
    // Fewer SMs of the side, and too little for them.
    let arena = Arena::private(&source, Side::Second, Tenant::arena_bytes(data)).unwrap();
    assert_eq!(Tenant::new(&source, arena, (data, REQUEST), Some(5)).unwrap().sms(), 10);
    let arena = Arena::private(&source, Side::Second, Tenant::arena_bytes(data)).unwrap();
    let refused = Tenant::new(&source, arena, (Bytes(1 << 20), REQUEST), None).unwrap_err();
    assert!(matches!(refused, TenantError::Data { .. }), "{refused}");
}

#[test]
fn what_would_leave_the_memory_never_reaches_the_gpu() {
    let (_directory, device) = device();
    let context = device.primary().unwrap();
    let kernels = Kernels::load(&context).unwrap();
    let stream = context.stream(Priority::Normal).unwrap();
    let (memory, host) = (context.alloc(Bytes(PAGE)).unwrap(), context.pinned(Bytes(4_096)).unwrap());
    let odd = Part::new(&memory, 16, PAGE - 16).unwrap();
    for (part, mask) in [(Part::all(&memory), 0), (Part::all(&memory), 1 << 9), (odd, 1 << 12)] {
        assert!(matches!(Colored::new(part, mask, false), Err(DriverError::Invalid(_))), "{mask:#x}");
    }
    let colored = Colored::new(Part::all(&memory), 0xab000, true).unwrap();
    assert_eq!(colored.bytes(), Bytes(PAGE / 2));
    let shape = Shape::new(4, 64).unwrap();
    let range = |at, bytes| Range { at, bytes };
    let beyond = |done: Result<(), DriverError>| matches!(done, Err(DriverError::OutOfBounds { .. }));
    let invalid = |done: Result<(), DriverError>| matches!(done, Err(DriverError::Invalid(_)));
    let copy =
        |range| kernels.arena_copy(&stream, shape, (colored, range), Direction::Gather, Linear::Host(&host));
    assert!(beyond(copy(range(PAGE / 2 - 7, 8))) && beyond(copy(range(u64::MAX, 2))));
    // Its first byte is byte 15 there.
    assert!(beyond(copy(range(15, 4_082))) && copy(range(15, 4_081)).is_ok());
    assert!(beyond(kernels.arena_fill(&stream, shape, (colored, range(0, PAGE / 2 + 1)), 0)));
    let read = |range, sums| kernels.arena_read(&stream, shape, (colored, range), sums);
    assert!(invalid(read(range(512, 1_024), 4_096)) && invalid(read(range(0, 1_000), 4_096)));
    assert!(invalid(read(range(0, 1_024), 4_097)) && beyond(read(range(0, 1_024), PAGE / 2 - 1_023)));
    let passes = |count, sums, times| {
        let passes = Passes { count, patience: Nanos(1), times };
        kernels.arena_passes(&stream, shape, (colored, range(0, 1_024)), sums, passes)
    };
    let times = Part::new(&memory, 0, 32).unwrap();
    assert!(
        beyond(passes(1, 0, times)) && beyond(passes(4, 4_096, times)) && passes(3, 4_096, times).is_ok()
    );
    assert!(invalid(passes(1 << 30, 4_096, times)));
    let load = Load { access: Access::Write, evict_first: true, every: 1, patience: Nanos(1) };
    let stream_of =
        |bytes, load| kernels.arena_stream(&stream, shape, (colored, range(0, bytes)), load, (&host, &host));
    assert!(invalid(stream_of(3 * CHUNK_BYTES, load)) && invalid(stream_of(4 * CHUNK_BYTES + 1_024, load)));
    assert!(invalid(stream_of(4 * CHUNK_BYTES, Load { every: 0, ..load })));
    assert!(invalid(stream_of(4 * CHUNK_BYTES, Load { patience: Nanos::ZERO, ..load })));
    assert!(beyond(stream_of(PAGE, load)) && stream_of(4 * CHUNK_BYTES, load).is_ok());
    stream.synchronize().unwrap();
}

#[test]
fn pages_that_are_shared_are_only_seen_by_color() {
    let (_directory, device) = device();
    let source = source(&device);
    let data = Bytes(8 << 20);
    let clock = || Nanos::ZERO;
    let first = Arena::paired(&source, Side::First, Tenant::arena_bytes(data)).unwrap();
    let second = Arena::join(&source, Side::Second, &first.export().unwrap()).unwrap();
    let mut first = Tenant::new(&source, first, (data, REQUEST), None).unwrap();
    let mut second = Tenant::new(&source, second, (data, REQUEST), None).unwrap();
    let refused = first.measure(Work::Passes, View::Uncolored, 32, 1, &clock).unwrap_err();
    assert!(matches!(refused, TenantError::Shared), "{refused}");
    second.start((Access::Write, false), (second.sms(), 32), View::Colored, true).unwrap();
    assert!(first.measure(Work::Requests, View::Colored, 32, 20, &clock).is_ok());
    assert_eq!(first.try_copies(1).unwrap(), 0);
    second.stop().unwrap();
    assert!(second.worked().unwrap() > Bytes::ZERO);
    // What the second wrote is in its own data, and not in the first's.
    let changed = second.measure(Work::Passes, View::Colored, 32, 2, &clock).unwrap_err();
    assert!(matches!(changed, TenantError::Sum { .. }), "{changed}");
    assert!(first.measure(Work::Passes, View::Colored, 32, 2, &clock).is_ok());
}
