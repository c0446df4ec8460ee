//! What the library adds to calls of the driver: `cargo bench -p partywall-shim`.
//!
//! The driver behind it does nothing, so a call without the library takes one or two nanoseconds, and the difference is the
//! library's. This program is the node; it starts itself again as a process of a tenant, which calls the bare driver and
//! the driver behind the library in turns, so that changes of the machine's clock meet both. Prints JSON: for each call,
//! the medians over all rounds in nanoseconds.
#![allow(clippy::print_stdout, reason = "its result goes to standard output")]

use std::ffi::{CString, OsStr, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use partywall_shim_api::frame::{ToNode, ToShim};
use partywall_shim_api::page::Mapped;
use partywall_shim_api::socket::{Listener, Socket};
use partywall_shim_api::{VERSION, environment};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};

type Failure = Box<dyn std::error::Error>;

/// Rounds over all calls: the median of so many moves by less than a tenth of a nanosecond between runs.
const ROUNDS: usize = 101;
/// Calls in a row, of one kind: long enough that reading the clock does not count.
const CALLS: u32 = 20_000;
/// What an allocation and a copy move.
const SMALL_BYTES: usize = 4096;
/// Tells the program that it is the tenant's process.
const TENANT: &str = "--tenant";

type Launch = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type LaunchEx = unsafe extern "C" fn(*const c_void, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> c_int;
type GraphLaunch = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type Free = unsafe extern "C" fn(u64) -> c_int;
type Copy = unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> c_int;
type Ask = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

/// The functions of one driver, bare or behind the library.
struct Driver {
    launch: Launch,
    launch_linked: Launch,
    launch_ex: LaunchEx,
    graph_launch: GraphLaunch,
    allocate: Allocate,
    free: Free,
    copy: Copy,
    _library: Library,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = arguments();
    match arguments.iter().position(|argument| argument == TENANT) {
        Some(at) => {
            let path = |offset| arguments.get(at + offset).map(PathBuf::from).ok_or("a path is missing");
            println!("{}", measured(&path(1)?, &path(2)?)?);
            Ok(())
        }
        None => node(),
    }
}

#[allow(clippy::disallowed_methods, reason = "a program of its own, which starts itself with arguments")]
fn arguments() -> Vec<String> {
    std::env::args().skip(1).collect()
}

/// The node's part: makes the driver, starts the tenant's process, and grants it whatever it asks for until it is gone.
fn node() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let driver = folder.path().join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/driver.c");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-std=gnu11",
        "-O2",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "-Wl,-Bsymbolic",
        "-o",
    ]);
    if !compiler.arg(&driver).arg(&source).status()?.success() {
        return Err("the driver cannot be compiled".into());
    }
    let socket = folder.path().join("tenants.sock");
    let listener = Listener::bind(&socket)?;
    let program = std::env::current_exe()?;
    let shim = program.with_file_name("libpartywall_shim.so");
    let mut tenant = Command::new(program);
    tenant.arg(TENANT).arg(&driver).arg(&shim).stdout(Stdio::piped());
    tenant.env(environment::REAL_CUDA, &driver).env(environment::SOCKET, &socket);
    tenant.env(environment::TOKEN, "00112233445566778899aabbccddeeff");
    let mut tenant = tenant.spawn()?;
    let welcomed = serve(&listener, &mut tenant)?;
    let output = tenant.wait_with_output()?;
    if !output.status.success() || !welcomed {
        return Err(format!("the tenant's process: {}, registered: {welcomed}", output.status).into());
    }
    print!("{}", String::from_utf8(output.stdout)?);
    Ok(())
}

/// Waits for the process, welcomes it and answers until it is gone; whether it came.
fn serve(listener: &Listener, tenant: &mut Child) -> Result<bool, Failure> {
    let socket = loop {
        if let Some(socket) = listener.accept()? {
            break socket;
        }
        if tenant.try_wait()?.is_some() {
            return Ok(false);
        }
        std::thread::yield_now();
    };
    let (page, file) = Mapped::create(1, 1, 0, None)?;
    let node = &page.node;
    node.quota_bytes.store(1 << 36, Ordering::Relaxed);
    // Alive, for as long as this takes.
    let now = clock_gettime(ClockId::Monotonic).tv_sec as u64 * 1_000_000_000;
    node.heartbeat_ns.store(now + 3_600_000_000_000, Ordering::Relaxed);
    node.copies_decided.store(1, Ordering::Relaxed);
    node.packet_bytes.store(1 << 19, Ordering::Relaxed);
    for most in &node.direct_max_bytes {
        most.store(1 << 16, Ordering::Relaxed);
    }
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    answer(&socket, &[file.as_fd(), bell.as_fd()])?;
    Ok(true)
}

/// Grants everything until the connection is over.
fn answer(socket: &Socket, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), Failure> {
    let mut total_bytes = 1 << 30;
    loop {
        let frame = match socket.wait(1_000) {
            Ok(Some(frame)) => ToNode::decode(&frame.bytes)?,
            Ok(None) => continue,
            Err(_) => return Ok(()),
        };
        match frame {
            ToNode::Hello { .. } => {
                let welcome = ToShim::Welcome { version: VERSION, lease_bytes: total_bytes };
                socket.send(&welcome.encode(), descriptors)?;
            }
            ToNode::Ask { want_bytes, .. } => {
                total_bytes += want_bytes;
                socket.send(&ToShim::Lease { total_bytes, granted: true }.encode(), &[])?;
            }
            ToNode::Give { bytes } => {
                total_bytes -= bytes.min(total_bytes);
                socket.send(&ToShim::Lease { total_bytes, granted: true }.encode(), &[])?;
            }
            ToNode::Coverage { .. } | ToNode::Notice { .. } => {}
        }
    }
}

impl Driver {
    /// Looks everything up in the library at `path` as programs do: through `cuGetProcAddress`, and launches also as a
    /// program has them that is linked against it.
    fn load(path: &Path) -> Result<Self, Failure> {
        // SAFETY: the stand-in or the library under test; both are made to be loaded.
        let library = unsafe { Library::open(Some(OsStr::new(path)), RTLD_NOW | RTLD_LOCAL)? };
        // SAFETY: each function is taken with the prototype that cuda.h gives it.
        unsafe {
            let ask: Ask = *library.get(b"cuGetProcAddress_v2\0")?;
            let init: unsafe extern "C" fn(c_uint) -> c_int = std::mem::transmute(asked(ask, "cuInit")?);
            if init(0) != 0 {
                return Err("cuInit fails".into());
            }
            Ok(Self {
                launch: std::mem::transmute::<*mut c_void, Launch>(asked(ask, "cuLaunchKernel")?),
                launch_linked: *library.get(b"cuLaunchKernel\0")?,
                launch_ex: std::mem::transmute::<*mut c_void, LaunchEx>(asked(ask, "cuLaunchKernelEx")?),
                graph_launch: std::mem::transmute::<*mut c_void, GraphLaunch>(asked(ask, "cuGraphLaunch")?),
                allocate: std::mem::transmute::<*mut c_void, Allocate>(asked(ask, "cuMemAlloc")?),
                free: std::mem::transmute::<*mut c_void, Free>(asked(ask, "cuMemFree")?),
                copy: std::mem::transmute::<*mut c_void, Copy>(asked(ask, "cuMemcpyHtoDAsync")?),
                _library: library,
            })
        }
    }
}

/// A function by its base name.
fn asked(ask: Ask, name: &str) -> Result<*mut c_void, Failure> {
    let symbol = CString::new(name)?;
    let mut found = std::ptr::null_mut();
    // SAFETY: a C string and a place for the answer; the last argument may be null.
    let result = unsafe { ask(symbol.as_ptr(), &raw mut found, 13000, 0, std::ptr::null_mut()) };
    if result == 0 && !found.is_null() { Ok(found) } else { Err(format!("{name}: error {result}").into()) }
}

/// Makes a function that makes a number of calls.
macro_rules! calls {
    (|$driver:ident| $call:expr) => {
        |$driver: &Driver, calls: u32| {
            for _ in 0..calls {
                // SAFETY: the driver's functions take anything, and the library under test passes on what it gets.
                black_box(unsafe { $call });
            }
        }
    };
}

const NULL: *mut c_void = std::ptr::null_mut();
const NONE: *mut *mut c_void = std::ptr::null_mut();

/// A call by the name that it has in the result, and what makes it so many times.
type Kind = (&'static str, fn(&Driver, u32));

/// The calls that are measured.
const KINDS: [Kind; 6] = [
    ("launch", calls!(|driver| (driver.launch)(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NONE, NONE))),
    ("launch_linked", calls!(|driver| (driver.launch_linked)(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NONE, NONE))),
    ("launch_ex", calls!(|driver| (driver.launch_ex)(NULL, NULL, NONE, NONE))),
    ("graph_launch", calls!(|driver| (driver.graph_launch)(NULL, NULL))),
    ("allocate_and_free_4096", calls!(|driver| allocated_and_freed(driver))),
    ("copy_to_device_4096", calls!(|driver| copied(driver))),
];

unsafe fn allocated_and_freed(driver: &Driver) -> c_int {
    let mut address = 0;
    // SAFETY: a place for the address, which is then given back.
    unsafe { (driver.allocate)(&raw mut address, SMALL_BYTES) + (driver.free)(address) }
}

unsafe fn copied(driver: &Driver) -> c_int {
    static SOURCE: [u8; SMALL_BYTES] = [0; SMALL_BYTES];
    // SAFETY: the source is as large as is said, and nothing is written to the target.
    unsafe { (driver.copy)(0x7f00_0000_0000, SOURCE.as_ptr().cast(), SMALL_BYTES, NULL) }
}

/// The tenant's part: measures, and gives the result as JSON.
fn measured(driver: &Path, shim: &Path) -> Result<String, Failure> {
    let (bare, shim) = (Driver::load(driver)?, Driver::load(shim)?);
    let mut took = vec![[Vec::new(), Vec::new()]; KINDS.len()];
    for _ in 0..ROUNDS {
        for ((_, call), [of_bare, of_shim]) in KINDS.iter().zip(&mut took) {
            of_bare.push(nanoseconds(|| call(&bare, CALLS)));
            of_shim.push(nanoseconds(|| call(&shim, CALLS)));
        }
    }
    let mut json = format!(
        "{{\n  \"schema\": \"partywall.shim-cost/1\",\n  \"processor\": \"{}\",\n  \"rounds\": {ROUNDS},\n  \
         \"calls_per_round\": {CALLS},\n  \"calls\": {{",
        processor()
    );
    for (position, ((name, _), [of_bare, of_shim])) in KINDS.iter().zip(&mut took).enumerate() {
        let (bare_ns, with_ns) = (median(of_bare), median(of_shim));
        let comma = if position == 0 { "" } else { "," };
        write!(
            json,
            "{comma}\n    \"{name}\": {{ \"bare_ns\": {bare_ns:.1}, \"with_shim_ns\": {with_ns:.1}, \"added_ns\": {:.1} }}",
            with_ns - bare_ns
        )?;
    }
    json.push_str("\n  }\n}");
    Ok(json)
}

/// How long one of [`CALLS`] calls took.
fn nanoseconds(calls: impl FnOnce()) -> f64 {
    #[allow(clippy::disallowed_methods, reason = "time is what is measured here")]
    let start = std::time::Instant::now();
    calls();
    start.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What the machine calls its processor.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    line.map_or("unknown", |(_, name)| name.trim()).replace(['"', '\\'], " ")
}
