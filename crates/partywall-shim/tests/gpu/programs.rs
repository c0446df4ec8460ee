//! The programs that run as tenants.

use std::ffi::c_void;
use std::io::Read as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::confined;
use crate::cuda::{Cuda, Handle, OUT_OF_MEMORY, ok};

/// The variable that names one of them.
pub(crate) const PROGRAM: &str = "PARTYWALL_TEST_PROGRAM";

const PAGE: u64 = 2 << 20;

pub(crate) const fn mib(mib: u64) -> u64 {
    mib << 20
}

/// Runs the program that the environment names, if any.
pub(crate) fn run() {
    let Ok(program) = std::env::var(PROGRAM) else { return };
    match program.as_str() {
        "observe" => observe(),
        "churn" => churn(),
        "paths" => paths(),
        "view" => view(),
        "no-context" => no_context(),
        "contexts" => contexts(),
        "fork" => fork(),
        "graphs" => graphs(),
        "hold" => hold(),
        "unlimited" => unlimited(),
        "confined" => confined::run(),
        "cannot-be-had" => confined::cannot_be_had(),
        _ => panic!("no program {program}"),
    }
}

/// The driver as programs open it, with a context.
fn cuda() -> Cuda {
    let cuda = Cuda::open("libcuda.so.1");
    // SAFETY: documented use.
    unsafe { ok((cuda.cuInit)(0)) };
    context(&cuda);
    cuda
}

fn context(cuda: &Cuda) -> Handle {
    let mut context = null_mut();
    // SAFETY: documented use.
    unsafe { ok((cuda.cuCtxCreate_v2)(&raw mut context, 0, 0)) };
    context
}

impl Cuda {
    /// Free and total memory as the program is told.
    fn info(&self) -> (u64, u64) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: documented use.
        unsafe { ok((self.cuMemGetInfo_v2)(&raw mut free, &raw mut total)) };
        (free as u64, total as u64)
    }

    fn alloc(&self, bytes: u64) -> Result<u64, u32> {
        let mut address = 0;
        // SAFETY: documented use.
        let result = unsafe { (self.cuMemAlloc_v2)(&raw mut address, bytes as usize) };
        if result == 0 { Ok(address) } else { Err(result) }
    }

    fn free(&self, address: u64) -> u32 {
        // SAFETY: the driver checks addresses.
        unsafe { (self.cuMemFree_v2)(address) }
    }
}

/// What the device really has, seen from a process without the library.
fn device() -> (Cuda, u64) {
    let cuda = Cuda::open(&std::env::var("DRIVER").unwrap());
    // SAFETY: documented use.
    unsafe { ok((cuda.cuInit)(0)) };
    context(&cuda);
    let base = cuda.info();
    (cuda, base.0)
}

/// Prints the most that others hold from now on until its input ends, and what they hold then.
fn observe() {
    let (cuda, base) = device();
    println!("observing");
    static STOP: AtomicBool = AtomicBool::new(false);
    let watcher = std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        STOP.store(true, Ordering::Relaxed);
    });
    let (mut peak, mut last) = (0, 0);
    while !STOP.load(Ordering::Relaxed) {
        last = base.saturating_sub(cuda.info().0);
        peak = last.max(peak);
    }
    last = last.min(base.saturating_sub(cuda.info().0));
    watcher.join().unwrap();
    println!("peak {peak} last {last}");
}

/// A way to allocate. Mipmapped arrays are not simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Pitched,
    Managed,
    Array,
    Mapped,
    Async,
    Pool,
    Host,
}

const WAYS: [Way; 8] =
    [Way::Plain, Way::Pitched, Way::Managed, Way::Array, Way::Mapped, Way::Async, Way::Pool, Way::Host];

/// Something allocated, by its address or handle.
#[derive(Debug, Clone, Copy)]
struct Held {
    way: Way,
    name: u64,
    bytes: u64,
}

/// `CUmemAllocationProp`: pinned memory of device 0.
const PINNED: [u64; 4] = [1, 1, 0, 0];
/// `CUmemPoolProps`: the same.
const POOL: [u64; 11] = [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A description of a two-dimensional array of 32-bit floats.
fn array(bytes: u64) -> [usize; 5] {
    let height = (bytes / 4096).max(1) as usize;
    // Format FLOAT and one channel, then no flags.
    [1024, height, 0, 0x20 | 1 << 32, 0]
}

fn pool(cuda: &Cuda) -> Handle {
    let mut pool = null_mut();
    // SAFETY: documented use.
    unsafe { ok((cuda.cuMemPoolCreate)(&raw mut pool, &POOL)) };
    pool
}

fn take(cuda: &Cuda, way: Way, bytes: u64, pool: Handle) -> Result<Held, u32> {
    let size = bytes as usize;
    let (mut address, mut handle): (u64, Handle) = (0, null_mut());
    // SAFETY: documented use.
    let result = unsafe {
        match way {
            Way::Plain => (cuda.cuMemAlloc_v2)(&raw mut address, size),
            Way::Pitched => (cuda.cuMemAllocPitch_v2)(&raw mut address, &mut 0, 1000, size.div_ceil(1000), 4),
            Way::Managed => (cuda.cuMemAllocManaged)(&raw mut address, size, 1),
            Way::Array => (cuda.cuArray3DCreate_v2)(&raw mut handle, &array(bytes)),
            Way::Mapped => return take_mapped(cuda, bytes.next_multiple_of(PAGE)),
            Way::Async => (cuda.cuMemAllocAsync)(&raw mut address, size, null_mut()),
            Way::Pool => (cuda.cuMemAllocFromPoolAsync)(&raw mut address, size, pool, null_mut()),
            Way::Host => (cuda.cuMemAllocHost_v2)((&raw mut address).cast::<*mut c_void>(), size),
        }
    };
    let name = address | handle as u64;
    if result == 0 { Ok(Held { way, name, bytes }) } else { Err(result) }
}

fn take_mapped(cuda: &Cuda, bytes: u64) -> Result<Held, u32> {
    let (mut handle, mut address) = (0, 0);
    let size = bytes as usize;
    // SAFETY: documented use.
    unsafe {
        match (cuda.cuMemCreate)(&raw mut handle, size, &PINNED, 0) {
            0 => {}
            result => return Err(result),
        }
        ok((cuda.cuMemAddressReserve)(&raw mut address, size, 0, 0, 0));
        ok((cuda.cuMemMap)(address, size, 0, handle, 0));
        // The mapping keeps it.
        ok((cuda.cuMemRelease)(handle));
    }
    Ok(Held { way: Way::Mapped, name: address, bytes })
}

fn give(cuda: &Cuda, held: Held) {
    let name = held.name;
    // SAFETY: documented use.
    unsafe {
        match held.way {
            Way::Plain | Way::Pitched | Way::Managed => ok((cuda.cuMemFree_v2)(name)),
            Way::Array => ok((cuda.cuArrayDestroy)(name as Handle)),
            Way::Mapped => {
                ok((cuda.cuMemUnmap)(name, held.bytes as usize));
                ok((cuda.cuMemAddressFree)(name, held.bytes as usize));
            }
            Way::Async | Way::Pool => ok((cuda.cuMemFreeAsync)(name, null_mut())),
            Way::Host => ok((cuda.cuMemFreeHost)(name as Handle)),
        }
    }
}

/// A number that looks like chance.
fn chance(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Three threads take and give at random; each also gives what another one took.
fn churn() {
    let cuda = Cuda::open("libcuda.so.1");
    let mut current = null_mut();
    // SAFETY: documented use.
    unsafe {
        ok((cuda.cuInit)(0));
        ok((cuda.cuDevicePrimaryCtxRetain)(&raw mut current, 0));
        ok((cuda.cuCtxSetCurrent)(current));
    }
    let pool = pool(&cuda) as u64;
    let current = current as u64;
    let shared = std::sync::Mutex::new(Vec::new());
    let refused: u32 = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=3)
            .map(|seed| {
                scope.spawn({
                    let (cuda, shared) = (&cuda, &shared);
                    move || {
                        churn_thread(cuda, shared, [current, pool], u64::from(std::process::id()) << 8 | seed)
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // SAFETY: documented use.
    unsafe { ok((cuda.cuCtxSetCurrent)(current as Handle)) };
    // To the last page, and then on.
    let mut last = Vec::new();
    for bytes in [mib(16), PAGE] {
        loop {
            match cuda.alloc(bytes) {
                Ok(address) => last.push(address),
                Err(result) => break assert_eq!(result, OUT_OF_MEMORY),
            }
        }
    }
    assert!(refused > 0, "the quota was never reached");
    for address in last {
        ok(cuda.free(address));
    }
    for held in shared.into_inner().unwrap() {
        give(&cuda, held);
    }
    // It goes on, once its sibling has let go of what that one filled.
    let goes_on = (0..20_000).any(|_| {
        std::thread::yield_now();
        cuda.alloc(mib(64)).is_ok()
    });
    assert!(goes_on, "nothing is free, although all was given back");
}

fn churn_thread(
    cuda: &Cuda,
    shared: &std::sync::Mutex<Vec<Held>>,
    [context, pool]: [u64; 2],
    mut seed: u64,
) -> u32 {
    // SAFETY: documented use.
    unsafe { ok((cuda.cuCtxSetCurrent)(context as Handle)) };
    let mut refused = 0;
    for _ in 0..400 {
        let number = chance(&mut seed);
        let way = WAYS[(number >> 8) as usize % WAYS.len()];
        // Small ones too, and most of some MiB.
        let bytes = 1 + (number >> 16) % [4096, mib(1), mib(2), mib(24)][number as usize % 4];
        if number >> 40 & 7 < 5 {
            match take(cuda, way, bytes, pool as Handle) {
                Ok(held) => shared.lock().unwrap().push(held),
                Err(OUT_OF_MEMORY) => {
                    refused += 1;
                    // Makes room, so that the others go on.
                    let held: Vec<Held> = shared.lock().unwrap().drain(..).collect();
                    held.into_iter().for_each(|held| give(cuda, held));
                }
                Err(result) => panic!("{way:?} of {bytes} bytes: {result}"),
            }
        } else {
            let held = {
                let mut shared = shared.lock().unwrap();
                let index = number as usize % shared.len().max(1);
                (!shared.is_empty()).then(|| shared.swap_remove(index))
            };
            if let Some(held) = held {
                give(cuda, held);
            }
        }
    }
    refused
}

/// Each way by itself: what is free goes down by what the device gives, no less, and comes back.
fn paths() {
    let cuda = cuda();
    let free = cuda.info().0;
    let pool = pool(&cuda);
    for way in WAYS {
        for bytes in [1, 100_000, mib(1) + 1, mib(7), mib(40)] {
            let held = take(&cuda, way, bytes, pool).unwrap();
            let used = free - cuda.info().0;
            let least = if way == Way::Host { 0 } else { bytes.next_multiple_of(PAGE) };
            // Pools take more at a time.
            let most = match way {
                Way::Host => 0,
                Way::Async | Way::Pool => least.next_multiple_of(mib(32)),
                _ => least + PAGE,
            };
            assert!((least..=most).contains(&used), "{way:?} of {bytes}: {used} of {least} to {most}");
            give(&cuda, held);
            // SAFETY: documented use.
            unsafe { ok((cuda.cuCtxSynchronize)()) };
            assert_eq!(cuda.info().0, free, "{way:?} of {bytes} comes back");
        }
        if way != Way::Host {
            assert!(matches!(take(&cuda, way, mib(1025), pool), Err(OUT_OF_MEMORY)), "{way:?}");
        }
    }
    // SAFETY: documented use.
    unsafe { ok((cuda.cuMemPoolDestroy)(pool)) };
    assert_eq!(cuda.info().0, free);
    // What was never allocated is the driver's to judge.
    let address = cuda.alloc(mib(2)).unwrap();
    assert_ne!(cuda.free(address + 8), 0);
    ok(cuda.free(address));
    assert_ne!(cuda.free(address), 0);
    assert_eq!(cuda.info().0, free);
}

fn view() {
    let cuda = cuda();
    let mut total = 0;
    // SAFETY: documented use.
    unsafe { ok((cuda.cuDeviceTotalMem_v2)(&raw mut total, 0)) };
    let (free, all) = cuda.info();
    assert_eq!(total as u64, all);
    assert_eq!(free, mib(1024), "all but the context");
    let address = cuda.alloc(mib(100)).unwrap();
    assert_eq!(cuda.info(), (mib(924), all));
    // What is said to be free can be had.
    let rest = cuda.alloc(mib(924)).unwrap();
    assert_eq!(cuda.info(), (0, all));
    assert_eq!(cuda.alloc(1), Err(OUT_OF_MEMORY));
    ok(cuda.free(rest));
    ok(cuda.free(address));
    assert_eq!(cuda.info(), (free, all));
}

fn no_context() {
    let cuda = Cuda::open("libcuda.so.1");
    let mut context = null_mut();
    // SAFETY: documented use.
    unsafe {
        ok((cuda.cuInit)(0));
        assert_eq!((cuda.cuCtxCreate_v2)(&raw mut context, 0, 0), OUT_OF_MEMORY);
        assert_eq!((cuda.cuDevicePrimaryCtxRetain)(&raw mut context, 0), OUT_OF_MEMORY);
    }
}

fn contexts() {
    let cuda = cuda();
    let free = cuda.info().0;
    let (mut first, mut second) = (null_mut(), null_mut());
    // SAFETY: documented use.
    unsafe { ok((cuda.cuDevicePrimaryCtxRetain)(&raw mut second, 0)) };
    // The quota has room for two, and no third.
    assert_eq!(cuda.info().0, mib(256));
    // SAFETY: as above.
    unsafe {
        assert_eq!((cuda.cuCtxCreate_v2)(&raw mut first, 0, 0), OUT_OF_MEMORY);
        ok((cuda.cuCtxGetCurrent)(&raw mut first));
    }
    cuda.alloc(mib(64)).unwrap();
    // SAFETY: as above.
    unsafe { ok((cuda.cuCtxSetCurrent)(second)) };
    cuda.alloc(mib(32)).unwrap();
    assert_eq!(cuda.info().0, mib(256 - 96));
    // SAFETY: as above.
    unsafe { ok((cuda.cuCtxDestroy_v2)(first)) };
    assert_eq!(cuda.info().0, mib(256 - 32));
    // SAFETY: as above.
    unsafe { ok((cuda.cuDevicePrimaryCtxRelease_v2)(0)) };
    context(&cuda);
    assert_eq!(cuda.info().0, free);
}

/// A graph that allocates `bytes` and frees them again, and its executable form.
fn graph(cuda: &Cuda, bytes: u64) -> Result<[Handle; 2], u32> {
    let (mut graph, mut node, mut last, mut exec) = (null_mut(), null_mut(), null_mut(), null_mut());
    // The pool's properties first, then no other device's access, the size, and room for the address.
    let mut parameters = [0; 15];
    parameters[..11].copy_from_slice(&POOL);
    parameters[13] = bytes;
    // SAFETY: documented use.
    unsafe {
        ok((cuda.cuGraphCreate)(&raw mut graph, 0));
        match (cuda.cuGraphAddMemAllocNode)(&raw mut node, graph, null_mut(), 0, &raw mut parameters) {
            0 => {}
            result => {
                ok((cuda.cuGraphDestroy)(graph));
                return Err(result);
            }
        }
        ok((cuda.cuGraphAddMemFreeNode)(&raw mut last, graph, &raw const node, 1, parameters[14]));
        ok((cuda.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0));
    }
    Ok([graph, exec])
}

fn graphs() {
    let cuda = cuda();
    let free = cuda.info().0;
    let [held, exec] = graph(&cuda, mib(100)).unwrap();
    assert_eq!(graph(&cuda, mib(2000)), Err(OUT_OF_MEMORY));
    let launch = || {
        // SAFETY: documented use.
        unsafe {
            ok((cuda.cuGraphLaunch)(exec, null_mut()));
            ok((cuda.cuCtxSynchronize)());
        }
    };
    launch();
    let used = free - cuda.info().0;
    assert!((mib(100)..=mib(128)).contains(&used), "{used}");
    // Launched again, it has its memory already, also where there is no more.
    let rest = cuda.alloc(free - used).unwrap();
    launch();
    assert_eq!(cuda.info().0, 0);
    assert_eq!(graph(&cuda, mib(1)), Err(OUT_OF_MEMORY));
    ok(cuda.free(rest));
    // SAFETY: documented use.
    unsafe {
        ok((cuda.cuGraphExecDestroy)(exec));
        ok((cuda.cuGraphDestroy)(held));
    }
    // What graphs leave behind is given back before anything is refused.
    cuda.alloc(free).unwrap();
}

/// A child begins with nothing, although its parent is in the middle of it.
fn fork() {
    // A child that panics has no test harness to end it.
    let said = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        said(info);
        std::process::abort();
    }));
    // Before the parent uses CUDA: afterwards the driver is of no use to children.
    let cuda = Cuda::open("libcuda.so.1");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // SAFETY: the child only calls what it may: it has one thread, and the driver was not initialised before.
        let child = unsafe { libc::fork() };
        // SAFETY: documented use.
        unsafe { ok((cuda.cuInit)(0)) };
        context(&cuda);
        let free = cuda.info().0;
        let address = cuda.alloc(mib(128)).unwrap();
        assert!(cuda.info().0 <= free - mib(128));
        if child == 0 {
            // SAFETY: ends the child, without the parent's handlers.
            unsafe { libc::_exit(0) };
        }
        let worker = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Ok(address) = cuda.alloc(1000) {
                    ok(cuda.free(address));
                }
            }
        });
        // Its locks may be held when the process forks.
        for _ in 0..20 {
            // SAFETY: as above; the child does one thing and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // Whatever the driver says in such a child, it says something.
                let _ = cuda.alloc(1000);
                // SAFETY: as above.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: a child of this process.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        let mut status = 0;
        // SAFETY: a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        ok(cuda.free(address));
    });
}

fn hold() {
    let cuda = cuda();
    cuda.alloc(mib(512)).unwrap();
    println!("holding");
    let _ = std::io::stdin().read(&mut [0]);
}

fn unlimited() {
    let cuda = cuda();
    let (free, total) = cuda.info();
    let address = cuda.alloc(free - mib(64)).unwrap();
    assert!(total > mib(100_000));
    ok(cuda.free(address));
}
