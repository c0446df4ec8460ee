//! Tenants that use a simulated GPU step by step (`steps.c`), and how what they hold is seen from outside.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use partywall_core::units::Bytes;
use rustix::process::Pid;
use serde_json::Value;

use super::home::{Home, Process};
use crate::patience::{until, until_or};
use crate::text;

/// What a tenant holds, as the node tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// Processes that use the GPU.
    pub(super) processes: u64,
    /// Their GPU memory, contexts included.
    pub(super) bytes: u64,
}

impl Held {
    pub(super) const NOTHING: Self = Self { processes: 0, bytes: 0 };

    /// As `ps` says.
    #[track_caller]
    pub(super) fn of(report: &Value) -> Self {
        let facts = &report["facts"];
        let bytes: Bytes = facts["memory_used"].as_str().unwrap().parse().unwrap();
        Self { processes: facts["processes"].as_u64().unwrap(), bytes: bytes.0 }
    }
}

/// A home with a GPU of its own, and the program.
pub(super) struct Stage {
    pub(super) home: Home,
    program: PathBuf,
    /// What there was before anybody used the GPU.
    before: (u64, Vec<OsString>),
}

impl Stage {
    /// The GPU is behind a link of `pcie_gb_s`.
    pub(super) fn new(name: &str, pcie_gb_s: f64) -> Self {
        let home = Home::with_gpu(name, pcie_gb_s);
        let program = home.path().join("steps");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tenants/steps.c");
        // The C compiler.
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(source).arg("-ldl");
        let said = compiler.output().unwrap();
        assert!(said.status.success(), "{}", text(&said.stderr));
        let mut stage = Self { home, program, before: (0, Vec::new()) };
        stage.before = (stage.free_bytes(), stage.folder_of_the_gpu());
        stage
    }

    /// A tenant that takes these steps, as part of a file.
    pub(super) fn tenant(&self, name: &str, memory: &str, steps: &[&str], more: &str) -> String {
        let command: Vec<&str> =
            [self.program.to_str().unwrap()].into_iter().chain(steps.iter().copied()).collect();
        format!(
            "[[tenant]]\nname = \"{name}\"\nclass = \"best-effort\"\nmemory = \"{memory}\"\n{more}\ncommand = {}\n",
            serde_json::to_string(&command).unwrap()
        )
    }

    /// Has the node start tenants.
    #[track_caller]
    pub(super) fn up(&self, tenants: &str) {
        let file = self.home.file(tenants);
        self.home.succeeds(&["up", "--detach", &file]);
    }

    /// `partywall run` with these steps.
    pub(super) fn run(&self, steps: &[&str]) -> Command {
        let arguments = [&["run", "--", self.program.to_str().unwrap()], steps].concat();
        self.home.partywall(&arguments)
    }

    /// How often a tenant has said that it is through a step.
    pub(super) fn said(&self, name: &str, step: &str) -> usize {
        let log = self.home.path().join("node/tenants").join(name).join("log");
        text(&fs::read(log).unwrap_or_default()).lines().filter(|line| *line == step).count()
    }

    /// Waits until it has said so often enough.
    #[track_caller]
    pub(super) fn until_said(&self, name: &str, step: &str, times: usize) {
        let what = || {
            format!(
                "{name} has said {step} {times}, not {} times: {}",
                self.said(name, step),
                self.home.report(name)
            )
        };
        until_or(|| self.said(name, step) >= times, what);
    }

    /// What it holds now.
    #[track_caller]
    pub(super) fn held(&self, name: &str) -> Held {
        Held::of(&self.home.report(name))
    }

    /// Waits until it holds this.
    #[track_caller]
    pub(super) fn until_held(&self, name: &str, held: Held) {
        let mut found = Held::NOTHING;
        until(&format!("{name} holds {held:?}"), || {
            found = self.held(name);
            found == held
        });
    }

    /// What it holds once its contexts were measured; before, the node counts what it expects them to take.
    #[track_caller]
    pub(super) fn measured(&self, name: &str) -> Held {
        until(&format!("the contexts of {name} are measured"), || {
            let known = self.home.succeeds(&["coverage", name, "--json"]);
            let known: Value = serde_json::from_str(&known).unwrap();
            let processes = known["processes"].as_array().unwrap();
            !processes.is_empty() && processes.iter().all(|process| process["context_measured"] == true)
        });
        self.held(name)
    }

    /// Memory that is free on the GPU, as a program says that no node knows of.
    #[track_caller]
    pub(super) fn free_bytes(&self) -> u64 {
        let steps = ["init", "context", "free"];
        let output = self.home.program(&self.program, &steps).output().unwrap();
        let said = text(&output.stdout);
        let bytes = said.lines().find_map(|line| line.strip_suffix(" bytes"));
        assert!(bytes.is_some(), "{said}");
        bytes.unwrap().parse().unwrap()
    }

    fn folder_of_the_gpu(&self) -> Vec<OsString> {
        let names = |path: PathBuf| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
        let user = names(self.home.path().join("gpu")).next().unwrap();
        let mut names: Vec<OsString> = names(self.home.path().join("gpu").join(user).join("h200")).collect();
        names.sort_unstable();
        names
    }

    /// Stops all tenants, ends the node, and looks for what is left of them.
    #[track_caller]
    pub(super) fn leaves_nothing(&self, mut node: Process) {
        self.home.stop_all();
        until("the pages are gone", || pages(node.pid()) == 0);
        assert_eq!(self.free_bytes(), self.before.0, "memory of the GPU is left");
        self.home.succeeds(&["stop", "--node-only"]);
        assert!(node.wait().success());
        for name in ["control.sock", "tenants.sock"] {
            assert!(!self.home.path().join("node").join(name).exists(), "{name} is left");
        }
        assert_eq!(
            fs::read_dir(self.home.path().join("tmp")).unwrap().count(),
            0,
            "temporary files are left"
        );
        assert_eq!(self.folder_of_the_gpu(), self.before.1);
    }
}

/// How many pages a node shares with processes.
pub(super) fn pages(node: Pid) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", node.as_raw_nonzero())).unwrap();
    maps.lines().filter(|line| line.contains("memfd:partywall-page")).count()
}
