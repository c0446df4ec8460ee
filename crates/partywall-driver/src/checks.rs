//! What this crate promises, tried on the device that is there: the tests that need a GPU.
//!
//! `partywall doctor --check` runs them, so that everybody can, with nothing but the program. Each check says what it saw;
//! none changes a setting of the GPU, and together they take some seconds and less than a GiB.

use std::collections::{BTreeMap, BTreeSet};

use partywall_core::units::{Bytes, Nanos};
use serde::Serialize;

use crate::context::Context;
use crate::device::{Attribute, Device};
use crate::error::DriverError;
use crate::green::{GreenContext, GroupSet};
use crate::kernels::{
    Kernels, LinkCycle, Meeting, Part, Policy, Product, Shape, multiplied, pattern, small, stepped,
};
use crate::memory::DeviceBuffer;
use crate::stream::{Priority, Stream};
use crate::vmm::{self, Access, AddressRange, PhysicalMemory};

mod resize;

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checked {
    /// What was tried.
    pub name: &'static str,
    /// Whether it holds.
    pub passed: bool,
    /// What was seen.
    pub saw: String,
    /// The same as numbers, where the check is a question: it passes whatever the answer is.
    pub facts: BTreeMap<&'static str, f64>,
}

/// Why a check did not pass.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("{0}")]
    Wrong(String),
}

type Check = fn(&Bench) -> Result<String, Problem>;

const CHECKS: [(&str, Check); 13] = [
    ("memory holds what a kernel wrote", memory),
    ("copies arrive, at odd places too", copies),
    ("too large an allocation is an ordinary error", out_of_memory),
    ("events time a kernel", events),
    ("a graph replays what was captured", graph),
    ("streams have priorities", priorities),
    ("pointer chase", chase),
    ("reads and writes", traffic),
    ("tensor cores", tensor_cores),
    ("virtual memory: map, use, unmap", virtual_memory),
    ("green contexts of one split hold their SMs", green_contexts),
    ("disjoint green contexts run at the same time", disjoint),
    ("overlapping green contexts are told apart", overlapping),
];

/// All checks, one after the other; after a fault that ends the context the others are not tried.
///
/// # Errors
/// The device cannot be used at all.
pub fn run(device: &Device) -> Result<Vec<Checked>, DriverError> {
    let context = device.primary()?;
    let _current = context.make_current()?;
    let bench = Bench {
        kernels: Kernels::load(&context)?,
        stream: context.stream(Priority::Normal)?,
        context: context.clone(),
        device: device.clone(),
    };
    let mut checked = Vec::new();
    for (name, check) in CHECKS {
        let found = check(&bench).map(|saw| (saw, BTreeMap::new()));
        if checked_off(&mut checked, name, found) {
            return Ok(checked);
        }
    }
    for (name, question) in resize::QUESTIONS {
        let found = question(&bench).map(|facts| (resize::text(&facts), facts));
        if checked_off(&mut checked, name, found) {
            break;
        }
    }
    Ok(checked)
}

/// Notes what came of a check; whether nothing more can be tried.
fn checked_off(
    checked: &mut Vec<Checked>,
    name: &'static str,
    found: Result<(String, BTreeMap<&'static str, f64>), Problem>,
) -> bool {
    let (passed, saw, facts, ended) = match found {
        Ok((saw, facts)) => (true, saw, facts, false),
        // A question that this driver is too old for has no answer.
        Err(Problem::Driver(error @ DriverError::SymbolMissing { .. })) => {
            (true, error.to_string(), BTreeMap::new(), false)
        }
        Err(problem) => {
            let ended = matches!(&problem, Problem::Driver(error) if error.is_fatal());
            (false, problem.to_string(), BTreeMap::new(), ended)
        }
    };
    checked.push(Checked { name, passed, saw, facts });
    ended
}

/// What checks work with.
struct Bench {
    device: Device,
    context: Context,
    kernels: Kernels,
    stream: Stream,
}

impl Bench {
    fn alloc(&self, bytes: u64) -> Result<DeviceBuffer, DriverError> {
        let buffer = self.context.alloc(Bytes(bytes))?;
        self.stream.fill(&buffer, 0, bytes, 0)?;
        Ok(buffer)
    }

    /// The first `N` bytes of a buffer, once the stream is done.
    fn first<const N: usize>(&self, buffer: &DeviceBuffer) -> Result<[u8; N], DriverError> {
        let pinned = self.context.pinned(Bytes(N as u64))?;
        self.stream.copy_to_host(&pinned, 0, buffer, 0, N as u64)?;
        self.stream.synchronize()?;
        let mut bytes = [0; N];
        pinned.read(0, &mut bytes)?;
        Ok(bytes)
    }

    fn first_u32(&self, buffer: &DeviceBuffer) -> Result<u32, DriverError> {
        self.first(buffer).map(u32::from_le_bytes)
    }

    fn first_u64(&self, buffer: &DeviceBuffer) -> Result<u64, DriverError> {
        self.first(buffer).map(u64::from_le_bytes)
    }

    /// Whether all words are the pattern plus `add`.
    fn expect_pattern(&self, part: Part<'_>, add: u32) -> Result<(), Problem> {
        let wrong = self.alloc(16)?;
        self.kernels.count_wrong(&self.stream, part, 0, add, Part::all(&wrong))?;
        same("wrong words", self.first_u64(&wrong)?, 0)
    }

    fn wide(&self) -> Result<Shape, DriverError> {
        Shape::new(self.device.sms()?.0 * 2, 512)
    }
}

fn same<T: PartialEq + std::fmt::Display>(what: &str, found: T, wanted: T) -> Result<(), Problem> {
    if found == wanted { Ok(()) } else { Err(Problem::Wrong(format!("{what}: {found} instead of {wanted}"))) }
}

fn memory(bench: &Bench) -> Result<String, Problem> {
    const SIZE: u64 = 256 << 20;
    let (free, total) = bench.context.memory_info()?;
    let buffer = bench.alloc(SIZE)?;
    bench.kernels.fill_pattern(&bench.stream, Part::all(&buffer), 0, 7)?;
    bench.expect_pattern(Part::all(&buffer), 7)?;
    let during = bench.context.memory_info()?.0;
    if during.0 + SIZE > free.0 + (64 << 20) {
        return Err(Problem::Wrong(format!(
            "{} were allocated, free went from {free} to {during}",
            Bytes(SIZE)
        )));
    }
    Ok(format!("{} of {total}, {free} free before", Bytes(SIZE)))
}

fn copies(bench: &Bench) -> Result<String, Problem> {
    const SIZE: usize = (1 << 20) + 13;
    let bytes: Vec<u8> = (0..SIZE).map(|i| pattern(i as u32) as u8).collect();
    let (there, back) =
        (bench.context.pinned(Bytes(SIZE as u64))?, bench.context.pinned(Bytes(SIZE as u64))?);
    there.write(0, &bytes)?;
    let (a, b) = (bench.alloc(SIZE as u64 + 5)?, bench.alloc(SIZE as u64 + 5)?);
    bench.stream.copy_to_device(&a, 5, &there, 0, SIZE as u64)?;
    bench.stream.copy_device(&b, 3, &a, 5, SIZE as u64)?;
    bench.stream.copy_to_host(&back, 0, &b, 3, SIZE as u64)?;
    bench.stream.synchronize()?;
    let mut found = vec![0; SIZE];
    back.read(0, &mut found)?;
    match bytes.iter().zip(&found).position(|(a, b)| a != b) {
        None => Ok(format!("{SIZE} bytes to the device, within it and back")),
        Some(at) => {
            Err(Problem::Wrong(format!("byte {at} of {SIZE} is {} instead of {}", found[at], bytes[at])))
        }
    }
}

fn out_of_memory(bench: &Bench) -> Result<String, Problem> {
    let size = Bytes(bench.device.total_memory()?.0 + (1 << 30));
    match bench.context.alloc(size) {
        Err(DriverError::Cuda { name, .. }) if name == "CUDA_ERROR_OUT_OF_MEMORY" => {
            Ok(format!("{name} for {size}"))
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err(Problem::Wrong(format!("{size} were allocated on a smaller device"))),
    }
}

fn events(bench: &Bench) -> Result<String, Problem> {
    let out = bench.alloc(64)?;
    let (before, after) = (bench.context.event(true)?, bench.context.event(true)?);
    let mut times = [0.0; 2];
    for (time, iterations) in times.iter_mut().zip([640_000, 2_560_000]) {
        bench.stream.record(&before)?;
        bench.kernels.multiply_add(&bench.stream, Shape::new(1, 32)?, Part::all(&out), iterations)?;
        bench.stream.record(&after)?;
        after.synchronize()?;
        *time = after.elapsed_since(&before)?;
        same("result of multiply-adds", f32::from_le_bytes(bench.first(&out)?), multiplied(0, iterations))?;
    }
    let ratio = times[1] / times[0];
    if !(3.0..5.0).contains(&ratio) {
        return Err(Problem::Wrong(format!(
            "four times the work took {ratio:.2} times as long: {times:?} ms"
        )));
    }
    Ok(format!("{:.2} and {:.2} ms for work of 1 and 4", times[0], times[1]))
}

fn graph(bench: &Bench) -> Result<String, Problem> {
    const NODES: u32 = 100;
    const LAUNCHES: u32 = 20;
    let value = bench.alloc(16)?;
    let captured = bench
        .stream
        .capture(|stream| (0..NODES).try_for_each(|_| bench.kernels.step_once(stream, Part::all(&value))))?;
    same("value after the capture", bench.first_u32(&value)?, 0)?;
    let replay = captured.instantiate()?;
    for _ in 0..LAUNCHES {
        replay.launch(&bench.stream)?;
    }
    same("value after the replays", bench.first_u32(&value)?, stepped(0, u64::from(NODES * LAUNCHES)))?;
    Ok(format!("{LAUNCHES} launches of {NODES} kernels"))
}

fn priorities(bench: &Bench) -> Result<String, Problem> {
    let high = bench.context.stream(Priority::High)?.priority()?;
    let low = bench.context.stream(Priority::Low)?.priority()?;
    // Lower numbers come first.
    if high < low {
        Ok(format!("{high} before {low}"))
    } else {
        Err(Problem::Wrong(format!("high is {high}, low {low}")))
    }
}

fn chase(bench: &Bench) -> Result<String, Problem> {
    const STEPS: u32 = 1000;
    let cycle = LinkCycle::new(Bytes::from_mib(64), Bytes(256))?;
    let (links, cursor) = (bench.alloc(cycle.bytes().0)?, bench.alloc(16)?);
    bench.kernels.fill_links(&bench.stream, Part::all(&links), cycle)?;
    let (before, after) = (bench.context.event(true)?, bench.context.event(true)?);
    bench.stream.record(&before)?;
    let start = Part::new(&cursor, 0, 4)?;
    bench.kernels.chase(&bench.stream, Shape::new(1, 32)?, Part::all(&links), cycle, start, STEPS)?;
    bench.stream.record(&after)?;
    same("node after the steps", bench.first_u32(&cursor)?, cycle.after(0, u64::from(STEPS)))?;
    Ok(format!(
        "{:.0} ns a link through {}",
        after.elapsed_since(&before)? * 1e6 / STEPS as f32,
        cycle.bytes()
    ))
}

fn traffic(bench: &Bench) -> Result<String, Problem> {
    const SIZE: u64 = 512 << 20;
    let (data, sums) = (bench.alloc(SIZE)?, bench.alloc(256 * 64)?);
    let part = Part::all(&data);
    bench.kernels.fill_pattern(&bench.stream, part, 0, 0)?;
    let (before, after) = (bench.context.event(true)?, bench.context.event(true)?);
    let mut told = Vec::new();
    for policy in [Policy::Default, Policy::EvictFirst, Policy::L2] {
        bench.stream.record(&before)?;
        bench.kernels.read(&bench.stream, bench.wide()?, policy, part, 4, Part::all(&sums))?;
        bench.stream.record(&after)?;
        after.synchronize()?;
        let gb_s = 4.0 * SIZE as f64 / 1e6 / f64::from(after.elapsed_since(&before)?);
        told.push(format!("{policy:?} {gb_s:.0} GB/s"));
    }
    for (add, policy) in [(1, Policy::Default), (2, Policy::EvictFirst)] {
        bench.kernels.read_write(&bench.stream, bench.wide()?, policy, part, 1)?;
        bench.expect_pattern(part, add)?;
    }
    Ok(told.join(", "))
}

fn tensor_cores(bench: &Bench) -> Result<String, Problem> {
    const N: u32 = 1024;
    let mut told = Vec::new();
    for tile in [64, 128] {
        let product = Product::new(N, N, N, tile)?;
        let (a_bytes, b_bytes, c_bytes) = product.bytes();
        let (a, b, c) = (bench.alloc(a_bytes.0)?, bench.alloc(b_bytes.0)?, bench.alloc(c_bytes.0)?);
        bench.kernels.fill_halves(&bench.stream, Part::all(&a), 0)?;
        bench.kernels.fill_halves(&bench.stream, Part::all(&b), 1 << 24)?;
        let (before, after) = (bench.context.event(true)?, bench.context.event(true)?);
        for _ in 0..2 {
            bench.stream.record(&before)?;
            bench.kernels.matmul(&bench.stream, product, Part::all(&a), Part::all(&b), Part::all(&c))?;
            bench.stream.record(&after)?;
        }
        let pinned = bench.context.pinned(c_bytes)?;
        bench.stream.copy_to_host(&pinned, 0, &c, 0, c_bytes.0)?;
        bench.stream.synchronize()?;
        for sample in 0..64 {
            let (row, column) = (pattern(sample) % N, pattern(sample + 1000) % N);
            let exact: i32 = (0..N).map(|k| small(row * N + k) * small((1 << 24) + k * N + column)).sum();
            let found = f32::from_bits(pinned.load_u32(u64::from(row * N + column) * 4)?);
            same(&format!("element {row}, {column} with tiles of {tile}"), found, exact as f32)?;
        }
        let tflops = 2.0 * f64::from(N).powi(3) / 1e9 / f64::from(after.elapsed_since(&before)?);
        told.push(format!("{tflops:.0} TFLOP/s in tiles of {tile}"));
    }
    Ok(told.join(", "))
}

fn virtual_memory(bench: &Bench) -> Result<String, Problem> {
    let page = vmm::granularity(&bench.context)?;
    let mut range = AddressRange::reserve(&bench.context, Bytes(2 * page.0), page)?;
    let pages =
        [PhysicalMemory::create(&bench.context, page)?, PhysicalMemory::create(&bench.context, page)?];
    // The second page first in the range.
    range.map(0, &pages[1])?;
    range.map(page.0, &pages[0])?;
    range.set_access(0, 2 * page.0, Access::ReadWrite)?;
    let address = range.address();
    let buffer = range.into_buffer()?;
    bench.kernels.fill_pattern(&bench.stream, Part::all(&buffer), 0, 3)?;
    bench.expect_pattern(Part::all(&buffer), 3)?;
    same("address", buffer.address(), address)?;
    drop(buffer);
    Ok(format!("two pages of {page}"))
}

/// Which SM ids blocks of a context see.
fn ids(bench: &Bench, stream: &Stream, blocks: u32) -> Result<BTreeSet<usize>, Problem> {
    const IDS: usize = 1024;
    let counts = bench.alloc(4 * IDS as u64)?;
    bench.stream.synchronize()?;
    bench.kernels.count_by_sm(stream, blocks, Part::all(&counts), Nanos::from_micros(200))?;
    stream.synchronize()?;
    let bytes: [u8; 4 * IDS] = bench.first(&counts)?;
    let seen = bytes.chunks_exact(4).enumerate().filter(|(_, count)| count.iter().any(|byte| *byte != 0));
    Ok(seen.map(|(id, _)| id).collect())
}

/// Two green contexts over groups of one split: the first `first` of them, and `second`.
fn pair(bench: &Bench, first: GroupSet, second: GroupSet) -> Result<[(GreenContext, Stream); 2], Problem> {
    let split = bench.device.sm_split()?;
    let make = |groups: &GroupSet| -> Result<(GreenContext, Stream), DriverError> {
        let context = split.green_context(groups)?;
        let stream = context.stream(Priority::Normal)?;
        Ok((context, stream))
    };
    Ok([make(&first)?, make(&second)?])
}

fn groups(range: impl IntoIterator<Item = u32>) -> Result<GroupSet, Problem> {
    GroupSet::new(range).map_err(|error| Problem::Wrong(error.to_string()))
}

fn green_contexts(bench: &Bench) -> Result<String, Problem> {
    let split = bench.device.sm_split()?;
    let n = split.groups() as u32;
    // Every third group and the rest: unions that no contiguous split would give.
    let [a, b] = pair(bench, groups((0..n).filter(|g| g % 3 == 0))?, groups((0..n).filter(|g| g % 3 != 0))?)?;
    let seen = [&a, &b].map(|(context, stream)| ids(bench, stream, context.sms().0 * 16));
    let [seen_a, seen_b] = seen;
    let (seen_a, seen_b) = (seen_a?, seen_b?);
    same("SMs seen in the first", seen_a.len(), a.0.sms().0 as usize)?;
    same("SMs seen in the second", seen_b.len(), b.0.sms().0 as usize)?;
    same("SMs seen in both", seen_a.intersection(&seen_b).count(), 0)?;
    Ok(format!(
        "{n} groups of {} SMs; {} and {} SMs by id",
        split.sms_per_group().0,
        seen_a.len(),
        seen_b.len()
    ))
}

/// How many of the blocks of two sets meet, when each fills its SMs.
fn meeting(bench: &Bench, sets: &[(GreenContext, Stream); 2]) -> Result<(u32, u32), Problem> {
    let shared = bench.device.attribute(Attribute::MaxSharedMemoryPerBlockOptin)?.max(0) as u64;
    let counters = bench.alloc(512)?;
    bench.stream.synchronize()?;
    let expected: u32 = sets.iter().map(|(context, _)| context.sms().0).sum();
    for (context, stream) in sets {
        let meeting = Meeting {
            blocks: context.sms().0,
            shared: Bytes(shared),
            expected,
            patience: Nanos::from_millis(50),
        };
        bench.kernels.meet(stream, meeting, Part::new(&counters, 0, 16)?, Part::new(&counters, 256, 16)?)?;
    }
    for (_, stream) in sets {
        stream.synchronize()?;
    }
    let bytes: [u8; 512] = bench.first(&counters)?;
    let met = u32::from_le_bytes([bytes[256], bytes[257], bytes[258], bytes[259]]);
    Ok((met, expected))
}

fn disjoint(bench: &Bench) -> Result<String, Problem> {
    let n = bench.device.sm_split()?.groups() as u32;
    let sets = pair(bench, groups(0..n / 2)?, groups(n / 2..n)?)?;
    let (met, expected) = meeting(bench, &sets)?;
    same("blocks that met", met, expected)?;
    Ok(format!("{met} blocks, one an SM, met across two sets"))
}

/// The proof must be able to fail.
fn overlapping(bench: &Bench) -> Result<String, Problem> {
    let n = bench.device.sm_split()?.groups() as u32;
    let sets = pair(bench, groups(0..n / 2 + 1)?, groups(n / 2..n)?)?;
    let (met, expected) = meeting(bench, &sets)?;
    if met >= expected {
        return Err(Problem::Wrong(format!("all {met} blocks met although two sets share a group")));
    }
    Ok(format!("{met} of {expected} blocks met where two sets share a group"))
}
