//! The memory quota and the SMs of a tenant on the simulated GPU: programs in processes of their own, with the library preloaded, a
//! node beside them, and an observer that sees what the device really gave.
//!
//! A program is this test's own executable, run with the name of one of [`PROGRAMS`] in its environment.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a helper that fails fails its test, and a program is told by its environment what to do"
)]

mod confined;
mod cuda;
mod node;
mod programs;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use partywall_core::catalogue::Catalogue;
use partywall_core::soft_gpu::{FILE, SoftGpu};
use tempfile::TempDir;

use node::{Node, TOKEN};
use partywall_shim_api::page::SmSet;
use programs::{PROGRAM, mib};

/// A shared object, which cargo puts beside the tests' own programs.
fn library(name: &str) -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name(name);
    assert!(library.is_file(), "{} should have been built with the tests", library.display());
    library
}

/// A simulated GPU.
struct Gpu {
    folder: TempDir,
    /// What a context takes of it, bytes.
    context: u64,
}

impl Gpu {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let gpu = Catalogue::builtin().unwrap().get("h200").unwrap().clone();
        let figures = SoftGpu::new(&gpu, "NVIDIA H200");
        std::fs::write(folder.path().join(FILE), serde_json::to_string(&figures).unwrap()).unwrap();
        std::os::unix::fs::symlink(library("libpartywall_softgpu.so"), folder.path().join("libcuda.so.1"))
            .unwrap();
        Self { folder, context: figures.context().0 }
    }

    fn driver(&self) -> PathBuf {
        self.folder.path().join("libcuda.so.1")
    }

    /// One of the programs, without Partywall.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["program", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(PROGRAM, name).env("DRIVER", self.driver()).env_remove("LD_LIBRARY_PATH");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command
    }

    /// One of the programs in a tenant.
    fn tenant(&self, name: &str, node: &Path) -> Command {
        let mut command = self.program(name);
        command.env("LD_PRELOAD", library("libpartywall_shim.so")).env("PARTYWALL_REAL_CUDA", self.driver());
        command.env("PARTYWALL_SOCKET", node).env("PARTYWALL_TOKEN", TOKEN);
        command
    }

    /// What the device gives to others at most, from now on.
    fn observe(&self) -> Observer {
        let mut child = self.program("observe").spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.ends_with("observing\n") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the observer ended");
        }
        Observer { child, output }
    }
}

struct Observer {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Observer {
    /// The most that it saw, and what it saw last, bytes.
    fn end(mut self) -> (u64, u64) {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success());
        let figure = |name: &str| {
            let (_, rest) = text.split_once(name).unwrap_or_else(|| panic!("no {name} in {text}"));
            rest.split_whitespace().next().unwrap().parse().unwrap()
        };
        (figure("peak "), figure("last "))
    }
}

/// Runs programs to their ends, which must be good ones.
fn run(commands: impl IntoIterator<Item = Command>) {
    let children: Vec<Child> = commands.into_iter().map(|mut command| command.spawn().unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn program() {
    programs::run();
}

/// By every path, in random order, from threads of two processes.
#[test]
fn the_device_never_gives_a_tenant_more_than_its_quota() {
    let gpu = Gpu::new();
    let quota = 2 * gpu.context + mib(700);
    let node = Node::new(quota, gpu.context);
    let observer = gpu.observe();
    run([gpu.tenant("churn", node.path()), gpu.tenant("churn", node.path())]);
    let (peak, last) = observer.end();
    assert!(peak <= quota, "{} MiB beyond the quota", (peak - quota) >> 20);
    // It was tried: they fill it to the last pages.
    assert!(peak + mib(32) >= quota, "only {} of {} MiB were used", peak >> 20, quota >> 20);
    assert_eq!(last, 0);
    node.wait_until_empty();
}

#[test]
fn each_path_counts_what_the_device_gives() {
    let gpu = Gpu::new();
    let node = Node::new(gpu.context + mib(1024), gpu.context);
    run([gpu.tenant("paths", node.path())]);
}

#[test]
fn a_tenant_sees_its_quota_as_the_device() {
    let gpu = Gpu::new();
    let node = Node::new(gpu.context + mib(1024), gpu.context);
    run([gpu.tenant("view", node.path())]);
}

#[test]
fn a_quota_without_room_for_a_context_refuses_it() {
    let gpu = Gpu::new();
    for quota in [0, gpu.context - mib(2)] {
        let node = Node::new(quota, gpu.context);
        let observer = gpu.observe();
        run([gpu.tenant("no-context", node.path())]);
        assert_eq!(observer.end().0, 0);
    }
}

#[test]
fn what_a_context_held_is_gone_with_it() {
    let gpu = Gpu::new();
    let node = Node::new(2 * gpu.context + mib(256), gpu.context);
    run([gpu.tenant("contexts", node.path())]);
}

#[test]
fn graphs_count_by_what_the_driver_keeps_for_them() {
    let gpu = Gpu::new();
    let node = Node::new(gpu.context + mib(1024), gpu.context);
    run([gpu.tenant("graphs", node.path())]);
}

#[test]
fn a_child_after_fork_holds_nothing() {
    let gpu = Gpu::new();
    // For the parent, the child that uses CUDA, and one at a time of those that only ask.
    let node = Node::new(3 * gpu.context + mib(512), gpu.context);
    run([gpu.tenant("fork", node.path())]);
    node.wait_until_empty();
}

#[test]
fn what_a_killed_process_held_is_returned() {
    let gpu = Gpu::new();
    let node = Node::new(gpu.context + mib(512), gpu.context);
    for _ in 0..3 {
        let mut child = gpu.tenant("hold", node.path()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.ends_with("holding\n") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the program ended");
        }
        assert!(node.leased() >= mib(512));
        child.kill().unwrap();
        child.wait().unwrap();
        node.wait_until_empty();
    }
}

#[test]
fn a_tenant_whose_node_is_not_there_gets_nothing() {
    let gpu = Gpu::new();
    let observer = gpu.observe();
    run([gpu.tenant("no-context", &gpu.folder.path().join("nobody.sock"))]);
    assert_eq!(observer.end().0, 0);
}

#[test]
fn without_a_node_nothing_is_limited() {
    let gpu = Gpu::new();
    let mut command = gpu.tenant("unlimited", Path::new(""));
    command.env_remove("PARTYWALL_SOCKET").env_remove("PARTYWALL_TOKEN");
    run([command]);
}

#[test]
fn kernels_stay_on_the_sms_of_the_tenant() {
    let gpu = Gpu::new();
    let mut tenants = Vec::new();
    for groups in ["0 33", "33 33", "4 1", ""] {
        let set = groups.split_once(' ').map(|(first, count)| SmSet {
            first: first.parse().unwrap(),
            groups: count.parse().unwrap(),
            sms_per_group: 2,
        });
        let node = Node::confining(gpu.context, set);
        let mut tenant = gpu.tenant("confined", node.path());
        tenant.env(confined::GROUPS, groups);
        tenants.push((node, tenant));
    }
    let (_nodes, tenants): (Vec<_>, Vec<_>) = tenants.into_iter().unzip();
    run(tenants);
}

#[test]
fn a_tenant_whose_sms_cannot_be_had_does_not_compute() {
    let gpu = Gpu::new();
    for (first, groups, sms_per_group) in [(0, 67, 2), (66, 1, 2), (u32::MAX, 2, 2), (0, 8, 8)] {
        let node = Node::confining(gpu.context, Some(SmSet { first, groups, sms_per_group }));
        run([gpu.tenant("cannot-be-had", node.path())]);
    }
}
