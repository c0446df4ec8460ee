//! A folder for one test: its node, its tenants, and how they are found in the process table.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::patience::{until, until_or};
use crate::simulated::own_gpu;
use crate::text;

/// The variable by which a test finds its tenants' processes, and nobody else's.
const MARK: &str = "PARTYWALL_TEST_MARK";

/// A process that is killed when it is dropped.
pub(super) struct Process(Child);

impl Process {
    pub(super) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed()).unwrap()
    }

    /// How it ended.
    #[track_caller]
    pub(super) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("a process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Ends it without a word.
    pub(super) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// A folder for one test. What it started is gone when it is dropped.
pub(super) struct Home {
    scratch: tempfile::TempDir,
    mark: String,
    /// With what processes find a GPU and a folder for temporary files that are this test's alone.
    own: Option<BTreeMap<String, String>>,
}

impl Home {
    /// On the simulated GPU that all such tests share.
    pub(super) fn new(name: &str) -> Self {
        let scratch = tempfile::Builder::new().prefix("pw-").tempdir().unwrap();
        Self { scratch, mark: format!("{name}-{}", std::process::id()), own: None }
    }

    /// On one of its own, behind a link of `pcie_gb_s`.
    pub(super) fn with_gpu(name: &str, pcie_gb_s: f64) -> Self {
        let mut home = Self::new(name);
        let [gpu, temporary] = ["gpu", "tmp"].map(|name| home.path().join(name));
        for folder in [&gpu, &temporary] {
            fs::create_dir(folder).unwrap();
        }
        let mut own = own_gpu(&gpu, pcie_gb_s);
        own.insert("TMPDIR".to_owned(), temporary.display().to_string());
        home.own = Some(own);
        home
    }

    pub(super) fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// The program that starts and asks MPS daemons of its own GPU.
    pub(super) fn mps_control(&self) -> PathBuf {
        let path = &self.own.as_ref().unwrap()["PATH"];
        partywall_driver::mps::find_control(Some(OsStr::new(path))).unwrap()
    }

    pub(super) fn partywall(&self, arguments: &[&str]) -> Command {
        self.program(Path::new(env!("CARGO_BIN_EXE_partywall")), arguments)
    }

    pub(super) fn program(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        if let Some(own) = &self.own {
            command.envs(own);
        } else if matches!(arguments.first(), Some(&("node" | "run" | "up"))) {
            // Wherever the test runs, there is this one.
            command.args(["--gpu", "sim:h200"]);
        }
        command.args(arguments).stdin(Stdio::null());
        command.env("PARTYWALL_DIR", self.path().join("node")).env(MARK, &self.mark);
        command
    }

    /// Started, and not waited for.
    pub(super) fn spawn(&self, arguments: &[&str]) -> Process {
        let mut command = self.partywall(arguments);
        Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// The same, with what it prints in a file.
    pub(super) fn spawn_into(&self, arguments: &[&str], file: &Path) -> Process {
        let mut command = self.partywall(arguments);
        Process(command.stdout(fs::File::create(file).unwrap()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// A node that answers.
    #[track_caller]
    pub(super) fn node(&self) -> Process {
        self.node_with(&[])
    }

    /// The same, with options of its own.
    #[track_caller]
    pub(super) fn node_with(&self, options: &[&str]) -> Process {
        let arguments = [&["node"], options].concat();
        let mut node = self.spawn(&arguments);
        until("the node answers", || {
            // One that is just ending had the folder still.
            if node.0.try_wait().unwrap().is_some() {
                node = self.spawn(&arguments);
            }
            self.partywall(&["ps"]).output().unwrap().status.success()
        });
        node
    }

    #[track_caller]
    pub(super) fn answers(&self) {
        until("the node answers", || self.partywall(&["ps"]).output().unwrap().status.success());
    }

    /// What is printed.
    #[track_caller]
    pub(super) fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.partywall(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// A configuration file with this text.
    pub(super) fn file(&self, content: &str) -> String {
        let path = (0..).map(|n| self.path().join(format!("{n}.toml"))).find(|path| !path.exists()).unwrap();
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    /// A tenant that is a shell script, as part of a file.
    pub(super) fn tenant(&self, name: &str, script: &str, more: &str) -> String {
        let script = serde_json::to_string(script).unwrap();
        let head =
            format!("[[tenant]]\nname = \"{name}\"\nclass = \"best-effort\"\nmemory = \"1GiB\"\n{more}\n");
        format!("{head}command = [\"sh\", \"-c\", {script}]\n")
    }

    /// A tenant of one process that does nothing for long.
    pub(super) fn sleeper(&self, name: &str, more: &str) -> String {
        self.tenant(name, "exec sleep 1000", more)
    }

    /// What `ps` says of all tenants.
    #[track_caller]
    pub(super) fn reports(&self) -> Vec<Value> {
        serde_json::from_str(&self.succeeds(&["ps", "--json"])).unwrap()
    }

    /// Waits until what `ps` says of all tenants is this, and gives it; what it says then is part of the panic.
    #[track_caller]
    pub(super) fn until_reported(&self, what: &str, is: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let mut reports = Vec::new();
        until_or(
            || {
                reports = self.reports();
                is(&reports)
            },
            || format!("{what}: {:#?}", self.reports()),
        );
        reports
    }

    /// What `ps` says of one.
    #[track_caller]
    pub(super) fn report(&self, name: &str) -> Value {
        self.reports().into_iter().find(|report| report["name"] == name).unwrap()
    }

    /// The first process of a tenant, once it runs.
    #[track_caller]
    pub(super) fn pid(&self, name: &str) -> i32 {
        let mut pid = None;
        until("a tenant runs", || {
            pid = self.report(name)["pid"].as_i64();
            pid.is_some()
        });
        i32::try_from(pid.unwrap()).unwrap()
    }

    /// What the shepherd of a tenant wrote last.
    pub(super) fn shepherd(&self, name: &str) -> Value {
        let path = self.path().join("node/tenants").join(name).join("shepherd.json");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    pub(super) fn shepherd_pid(&self, name: &str) -> i32 {
        i32::try_from(self.shepherd(name)["shepherd"]["pid"].as_i64().unwrap()).unwrap()
    }

    #[track_caller]
    pub(super) fn stop_all(&self) {
        self.succeeds(&["stop", "--all"]);
        self.nothing_runs();
    }

    #[track_caller]
    pub(super) fn nothing_runs(&self) {
        let left = self.marked();
        assert!(left.is_empty(), "processes are left: {left:?}");
    }

    /// The processes of this test's tenants that are alive.
    pub(super) fn marked(&self) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.mark);
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours = pids.filter(|pid| {
            let has = |variable: &str| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(variable.as_bytes()))
            };
            // Nodes, shepherds and the command line have the mark too, and no token.
            has(&mark) && has("PARTYWALL_TOKEN=")
        });
        ours.collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // A test that went well has ended what it started, or says so here.
            let folder = self.path().join("node/control.sock");
            if folder.exists() {
                let _ = self.partywall(&["stop", "--all"]).output();
            }
            self.nothing_runs();
            return;
        }
        let kill = |pid: i32| Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        let tenants: Vec<PathBuf> = fs::read_dir(self.path().join("node/tenants"))
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        for name in tenants.iter().filter_map(|path| path.file_name().and_then(OsStr::to_str)) {
            if let Ok(pid) = std::panic::catch_unwind(|| self.shepherd_pid(name)) {
                let _ = kill(pid);
            }
        }
        for pid in self.marked() {
            let _ = kill(pid);
        }
    }
}

pub(super) fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

pub(super) fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
