//! What a test needs: the library under test, a driver behind it, a program in front of it, and a node beside it.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use partywall_core::catalogue::Catalogue;
use partywall_driver::soft::SoftDriver;
use partywall_shim_api::VERSION;
use partywall_shim_api::frame::{ToNode, ToShim};
use partywall_shim_api::page::{Mapped, Page};
use partywall_shim_api::socket::{Listener, Socket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tempfile::TempDir;

/// How long a test waits for what should happen at once.
const LIMIT_S: i64 = 20;

/// Where the C sources are.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");

/// The library under test: cargo puts it beside the tests' own programs.
pub(crate) fn shim() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.with_file_name("libpartywall_shim.so");
    assert!(library.is_file(), "{} should have been built with the tests", library.display());
    library
}

/// What was compiled for all tests, and stays until they are through.
struct Built {
    folder: TempDir,
}

fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        let driver = folder.path().join("driver/libcuda.so.1");
        std::fs::create_dir(driver.parent().unwrap()).unwrap();
        // As the real one, it does not let others come between its own functions.
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"];
        compile("driver.c", &driver, &flags, &[]);
        compile("nvml.c", &driver.with_file_name("libnvidia-ml.so.1"), &["-shared", "-fPIC"], &[]);
        compile("program.c", &folder.path().join("program"), &["-pthread"], &[]);
        compile("code.c", &folder.path().join("code"), &[], &[]);
        compile("copying.c", &folder.path().join("copying"), &["-pthread"], &[]);
        compile("graphs.c", &folder.path().join("graphs"), &["-pthread"], &[]);
        compile("resized.c", &folder.path().join("resized"), &["-pthread"], &[]);
        compile("program.c", &folder.path().join("linked"), &["-pthread", "-DLINKED"], &[&driver]);
        Built { folder }
    })
}

fn compile(source: &str, output: &Path, flags: &[&str], libraries: &[&Path]) {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-o"]).arg(output).args(flags);
    compiler.arg(Path::new(SOURCES).join(source)).args(libraries).arg("-ldl");
    let said = compiler.output().expect("a C compiler called `cc`");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

/// The driver behind the library under test.
pub(crate) fn driver() -> PathBuf {
    built().folder.path().join("driver/libcuda.so.1")
}

/// The program, run with commands; see program.c.
pub(crate) struct Program {
    command: Command,
}

impl Program {
    /// With the library preloaded, and the driver named to it.
    pub(crate) fn preloaded(commands: &[&str]) -> Self {
        let mut program = Self::plain("program", commands);
        program.command.env("LD_PRELOAD", shim()).env("PARTYWALL_REAL_CUDA", driver());
        program
    }

    /// As [`Program::preloaded`], linked against the driver.
    pub(crate) fn linked(commands: &[&str]) -> Self {
        let mut program = Self::plain("linked", commands);
        program.command.env("LD_PRELOAD", shim()).env("PARTYWALL_REAL_CUDA", driver());
        program
    }

    /// With nothing of Partywall.
    pub(crate) fn plain(file: &str, commands: &[&str]) -> Self {
        let mut command = Command::new(built().folder.path().join(file));
        command.args(commands).env("REAL", driver());
        for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "PARTYWALL_REAL_CUDA", "PARTYWALL_SOCKET"] {
            command.env_remove(name);
        }
        Self { command }
    }

    /// With NVML where the loader finds it.
    pub(crate) fn with_nvml(self) -> Self {
        let folder = driver().parent().unwrap().to_owned();
        self.env("LD_LIBRARY_PATH", folder)
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.command.env(name, value.into());
        self
    }

    /// As a process of a node's tenant.
    pub(crate) fn under(self, node: &Node) -> Self {
        self.env("PARTYWALL_SOCKET", &node.path).env("PARTYWALL_TOKEN", TOKEN_TEXT)
    }

    /// Runs it to its end, which must be a good one; its lines.
    pub(crate) fn lines(mut self) -> Vec<String> {
        let output = self.command.output().unwrap();
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
        out.lines().map(str::to_owned).collect()
    }

    /// Runs it to its end; whether that was a good one, its lines, and what it said on standard error.
    pub(crate) fn outcome(mut self) -> (bool, String, String) {
        let output = self.command.output().unwrap();
        let (out, err) = texts(&output);
        (output.status.success(), out, err)
    }

    /// Starts it, to be followed line by line.
    pub(crate) fn start(mut self) -> Running {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Running { child, input, output: BufReader::new(output) }
    }
}

/// A program that copies, or that launches graphs (see copying.c, graphs.c and resized.c), with the library preloaded and the simulated device
/// behind it. The folder is for that.
pub(crate) fn simulated(file: &str, folder: &TempDir, commands: &[&str]) -> Program {
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap().clone();
    let library = std::env::current_exe().unwrap().with_file_name("libpartywall_softgpu.so");
    let driver = SoftDriver::make(&gpu, &library, folder.path()).unwrap();
    let mut program = Program::plain(file, commands);
    let driver = driver.folder().join("libcuda.so.1");
    program.command.env("LD_PRELOAD", shim()).env("PARTYWALL_REAL_CUDA", driver);
    program
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A program that is running. Killed when dropped.
pub(crate) struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Reads its lines up to this one; the lines before.
    pub(crate) fn until(&mut self, line: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut text = String::new();
            assert_ne!(self.output.read_line(&mut text).unwrap(), 0, "no `{line}` after {lines:?}");
            if text.trim_end() == line {
                return lines;
            }
            lines.push(text.trim_end().to_owned());
        }
    }

    /// Its next line.
    pub(crate) fn line(&mut self) -> String {
        let mut text = String::new();
        assert_ne!(self.output.read_line(&mut text).unwrap(), 0, "it has ended");
        text.trim_end().to_owned()
    }

    /// Lets it go on from a `wait`.
    pub(crate) fn go(&mut self) {
        self.input.write_all(b"go\n").unwrap();
    }

    /// Waits for its end; whether that was a good one.
    pub(crate) fn end(mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The token of the only tenant.
const TOKEN: [u8; 16] = *b"sixteen octets!!";
const TOKEN_TEXT: &str = "7369787465656e206f63746574732121";

/// What it may hold.
const QUOTA_BYTES: u64 = 10 << 30;

/// A node that does what a test tells it to.
pub(crate) struct Node {
    listener: Listener,
    pub(crate) path: PathBuf,
    _folder: TempDir,
}

/// A process that a node has welcomed.
pub(crate) struct Tenant {
    pub(crate) socket: Socket,
    pub(crate) page: Mapped,
    pub(crate) held_bytes: u64,
    _bell: OwnedFd,
}

impl Node {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("tenants.sock");
        Self { listener: Listener::bind(&path).unwrap(), path, _folder: folder }
    }

    /// Its end and a new start, at the same place.
    pub(crate) fn restart(&mut self) {
        std::fs::remove_file(&self.path).unwrap();
        self.listener = Listener::bind(&self.path).unwrap();
    }

    /// Whether a process is waiting to be accepted.
    pub(crate) fn is_wanted(&self) -> bool {
        readable(&self.listener, 0)
    }

    /// The next process, which must say who it is.
    pub(crate) fn accept(&self) -> (Socket, u64) {
        assert!(readable(&self.listener, LIMIT_S), "nobody has come");
        let socket = self.listener.accept().unwrap().unwrap();
        let hello = next(&socket).expect("a greeting");
        let ToNode::Hello { version, token, held_bytes } = hello else { panic!("{hello:?}") };
        assert_eq!((version, token), (VERSION, TOKEN));
        (socket, held_bytes)
    }

    /// The next process, made welcome.
    pub(crate) fn welcome(&self) -> Tenant {
        self.welcome_as(0, |_| {})
    }

    /// As [`Node::welcome`], in a class (0 latency-sensitive, 1 best-effort) and with more in its page.
    pub(crate) fn welcome_as(&self, class: u32, set_up: impl FnOnce(&Page)) -> Tenant {
        let (socket, held_bytes) = self.accept();
        let (page, file) = Mapped::create(1, 1, class, None).unwrap();
        page.node.quota_bytes.store(QUOTA_BYTES, Ordering::Relaxed);
        set_up(&page);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let welcome = ToShim::Welcome { version: VERSION, lease_bytes: 1 << 30 };
        socket.send(&welcome.encode(), &[file.as_fd(), bell.as_fd()]).unwrap();
        Tenant { socket, page, held_bytes, _bell: bell }
    }
}

impl Tenant {
    /// Whether the process has let go of the connection, within the limit; frames before that are read over.
    pub(crate) fn is_over(&self) -> bool {
        while let Some(_frame) = next(&self.socket) {}
        true
    }
}

/// The next frame of a process; `None` when the connection is over.
pub(crate) fn next(socket: &Socket) -> Option<ToNode> {
    assert!(readable(socket, LIMIT_S), "nothing has come");
    let received = socket.receive().ok()?.expect("what is readable");
    Some(ToNode::decode(&received.bytes).unwrap())
}

fn readable(what: impl AsFd, seconds: i64) -> bool {
    let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut [PollFd::new(&what, PollFlags::IN)], Some(&limit)).unwrap() > 0
}
