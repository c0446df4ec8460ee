//! The exported functions, as programs call them: by their C interface, each test in a process of its own, because a process
//! has one driver.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::environment;
use crate::folder::tests::made;

mod capture;
mod faults;
mod memory;
mod processes;
mod streams;

/// Set in a process that a test started: what it shall do.
const PART: &str = "PARTYWALL_SOFTGPU_TEST_PART";

/// Runs `body` in a process of its own on a new device. `name` is the test's, with its module.
fn alone(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if environment::get(PART).is_some() {
        return body();
    }
    let (directory, _folder) = made("h200");
    let output = command(name, "alone", directory.path(), variables).output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "the test `{name}` was not found: {said}");
}

/// This test again, as another process with a part to play.
fn command(name: &str, part: &str, directory: &Path, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("tests::{name}"), "--nocapture", "--test-threads=1"]);
    command
        .env(PART, part)
        .env(environment::DIRECTORY, directory)
        .env_remove(environment::MPS_PIPE_DIRECTORY);
    command.envs(variables.iter().copied());
    command
}

/// A process with a part, which is talked to by lines.
struct Player {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Player {
    fn start(name: &str, part: &str, directory: &Path, variables: &[(&str, &str)]) -> Self {
        let mut command = command(name, part, directory, variables);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, input, lines }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next line that begins with `> `; what the test harness prints is skipped.
    fn hear(&mut self) -> String {
        for line in self.lines.by_ref() {
            if let Some((_, said)) = line.unwrap().split_once("> ") {
                return said.to_owned();
            }
        }
        panic!("the other process ended");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a player: says a line, and waits for one.
fn say(line: &str) {
    println!("> {line}");
}

fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuDevicePrimaryCtxRetain(place: *mut u64, device: i32) -> u32;
    fn cuCtxSetCurrent(context: u64) -> u32;
    fn cuCtxSynchronize() -> u32;
    fn cuGetProcAddress_v2(
        name: *const c_char,
        place: *mut *const c_void,
        version: i32,
        flags: u64,
        status: *mut u32,
    ) -> u32;
    fn cuModuleLoadData(place: *mut u64, image: *const c_void) -> u32;
    fn cuModuleGetFunction(place: *mut u64, module: u64, name: *const c_char) -> u32;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32;
    fn cuMemAlloc_v2(place: *mut u64, bytes: usize) -> u32;
    fn cuMemFree_v2(address: u64) -> u32;
    fn cuMemHostAlloc(place: *mut u64, bytes: usize, flags: u32) -> u32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> u32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32;
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) -> u32;
    fn cuStreamCreate(place: *mut u64, flags: u32) -> u32;
    fn cuStreamSynchronize(stream: u64) -> u32;
    fn cuStreamQuery(stream: u64) -> u32;
    fn cuEventCreate(place: *mut u64, flags: u32) -> u32;
    fn cuEventRecord(event: u64, stream: u64) -> u32;
    fn cuEventQuery(event: u64) -> u32;
    fn cuEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64) -> u32;
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) -> u32;
    fn cuLaunchKernel(
        function: u64,
        gx: u32,
        gy: u32,
        gz: u32,
        bx: u32,
        by: u32,
        bz: u32,
        shared: u32,
        stream: u64,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
}

/// The driver started, with the primary context current.
fn begin() -> u64 {
    let mut context = 0;
    // SAFETY: the answer's place is valid.
    let codes = unsafe { [cuInit(0), cuDevicePrimaryCtxRetain(&mut context, 0), cuCtxSetCurrent(context)] };
    assert_eq!(codes, [0; 3]);
    context
}

/// An answer that comes by pointer, with what the call returned.
fn ask<T: Default>(call: impl FnOnce(*mut T) -> u32) -> Result<T, u32> {
    let mut answer = T::default();
    match call(&mut answer) {
        0 => Ok(answer),
        code => Err(code),
    }
}

fn allocate(bytes: usize) -> Result<u64, u32> {
    // SAFETY: the answer's place is valid.
    ask(|place| unsafe { cuMemAlloc_v2(place, bytes) })
}

fn new_stream(flags: u32) -> u64 {
    // SAFETY: the answer's place is valid.
    ask(|place| unsafe { cuStreamCreate(place, flags) }).unwrap()
}

fn new_event() -> u64 {
    // SAFETY: the answer's place is valid.
    ask(|place| unsafe { cuEventCreate(place, 0) }).unwrap()
}

fn read_u32(address: u64) -> u32 {
    // SAFETY: the answer's place is valid for four bytes.
    ask(|place: *mut u32| unsafe { cuMemcpyDtoH_v2(place.cast(), address, 4) }).unwrap()
}

/// Kernels without bodies, one of which is known by its name.
const PTX: &CStr = c".version 8.4
.target sm_70
.visible .entry step_once(.param .u64 value) { ret; }
.visible .entry something_else(.param .u32 n) { ret; }
";

/// The kernels of [`PTX`] by name.
fn kernels() -> BTreeMap<&'static str, u64> {
    // SAFETY: the image is text that ends with a zero byte; the answers' places are valid.
    let module = ask(|place| unsafe { cuModuleLoadData(place, PTX.as_ptr().cast()) }).unwrap();
    let find = |name: &CStr| {
        // SAFETY: as above.
        ask(|place| unsafe { cuModuleGetFunction(place, module, name.as_ptr()) }).unwrap()
    };
    BTreeMap::from([("step_once", find(c"step_once")), ("something_else", find(c"something_else"))])
}

/// Launches a kernel of one parameter with one block.
fn launch<T>(function: u64, stream: u64, parameter: T) -> u32 {
    let mut parameter = parameter;
    let mut list = [(&raw mut parameter).cast::<c_void>()];
    // SAFETY: the kernels of these tests have one parameter, of the size of `T`.
    unsafe { cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, list.as_mut_ptr(), std::ptr::null_mut()) }
}

#[test]
fn nothing_works_before_the_start_and_in_a_forked_child() {
    alone("nothing_works_before_the_start_and_in_a_forked_child", &[], || {
        assert_eq!(allocate(1), Err(3), "not initialized");
        begin();
        // SAFETY: the child calls two functions that allocate nothing, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(if cuInit(0) == 3 && cuCtxSynchronize() == 3 { 0 } else { 1 }) };
        }
        let mut status = 1;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(allocate(1).is_ok());
    });
}

#[test]
fn functions_are_found_by_version_and_stream() {
    alone("functions_are_found_by_version_and_stream", &[], || {
        begin();
        let find = |name: &CStr, version, flags| {
            let (mut place, mut status) = (std::ptr::null(), 9);
            // SAFETY: the name ends with a zero byte, and the answers' places are valid.
            let code = unsafe { cuGetProcAddress_v2(name.as_ptr(), &mut place, version, flags, &mut status) };
            (code, place, status)
        };
        let export = |name| crate::api::export(name).unwrap().cast::<c_void>();
        let cases = [
            (c"cuMemAlloc", 13000, 0, (0, export("cuMemAlloc_v2"), 0)),
            (c"cuCtxCreate", 11040, 0, (0, export("cuCtxCreate_v3"), 0)),
            (c"cuCtxCreate", 12050, 0, (0, export("cuCtxCreate_v4"), 0)),
            (c"cuLaunchKernel", 12000, 2, (0, export("cuLaunchKernel_ptsz"), 0)),
            (c"cuLaunchKernel", 12000, 1, (0, export("cuLaunchKernel"), 0)),
            (c"cuGreenCtxCreate", 12000, 0, (0, std::ptr::null(), 2)),
            (c"cuNothing", 13000, 0, (0, std::ptr::null(), 1)),
        ];
        for (name, version, flags, expect) in cases {
            assert_eq!(find(name, version, flags), expect, "{name:?} {version} {flags}");
        }
        assert_eq!(find(c"cuMemAlloc", 99000, 0).0, 1, "newer than the driver");
    });
}

#[test]
fn what_is_not_simulated_says_so() {
    unsafe extern "C" {
        fn cuTexRefCreate(place: *mut u64) -> u32;
    }
    // SAFETY: it touches nothing.
    assert_eq!(unsafe { cuTexRefCreate(std::ptr::null_mut()) }, 801);
}
