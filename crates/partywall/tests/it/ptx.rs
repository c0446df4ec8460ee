//! Kernels that keep to a part of the memory: rewritten by the program, and through it by compilers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::{json, text};

const ARENA: &str =
    "mask=0x2ab000,logical=0x700000000000,mapped=0x720000000000,length=0x200000000,parity=odd";
const KERNEL: &str = "// a kernel\n.version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() {\n.reg .b64 %rd<3>; .reg .b32 %r<3>;\n\
                      ld.global.b32 %r1, [%rd1];\nret; }\n";

/// Files, and a stand-in for the assembler: it prints its arguments, writes the input to the output, and ends as the file `status` says.
struct Assembler {
    folder: TempDir,
}

impl Assembler {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let made = Self { folder };
        let script = "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'release 12.9'; exit; fi\necho \"$@\"\ncat \"$2\" > \"$4\"\nexit $(cat \"$(dirname \"$0\")/status\")\n";
        made.put("ptxas", script);
        fs::set_permissions(made.path("ptxas"), fs::Permissions::from_mode(0o755)).unwrap();
        made.put("status", "0");
        made.put("kernel.ptx", KERNEL);
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn program(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        command
            .current_dir(self.folder.path())
            .env_remove("PARTYWALL_ARENA")
            .args(["vram", "ptxas", "--real", "./ptxas"]);
        command
    }

    fn assemble(&self, more: &[&str]) -> Output {
        self.program().args(more).args(["--", "-v", "kernel.ptx", "-o", "out"]).output().unwrap()
    }

    fn out(&self) -> String {
        fs::read_to_string(self.path("out")).unwrap()
    }
}

#[test]
fn ptx_is_rewritten() {
    let files = Assembler::new();
    let rewrite = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        command
            .current_dir(files.folder.path())
            .args(["vram", "rewrite", "kernel.ptx", "--arena"])
            .args(more);
        command.output().unwrap()
    };
    let shown = text(&rewrite(&[ARENA]).stdout);
    assert!(
        shown.starts_with("// a kernel\n.version 8.0\n")
            && shown.contains("ld.global.b32 %r1, [%partywall_b];"),
        "{shown}"
    );
    let report = json(&rewrite(&[&format!("{ARENA},evict-first"), "--json", "--out", "new.ptx"]));
    let expected = serde_json::json!([{"name": "k", "kernel": true, "translated": 1, "evict_first": 1}]);
    assert_eq!(report["functions"], expected);
    let written = fs::read_to_string(files.path("new.ptx")).unwrap();
    assert!(
        written.contains("ld.global.cs.b32") && written.contains(report["mark"].as_str().unwrap()),
        "{written}"
    );
    // What is wrong is said, and nothing is written.
    let wrong = rewrite(&["mask=1"]);
    assert!(
        wrong.status.code() == Some(2) && text(&wrong.stderr).contains("`parity=` is missing"),
        "{}",
        text(&wrong.stderr)
    );
    files.put("kernel.ptx", &KERNEL.replace("ld.global", "ld"));
    let refused = rewrite(&[ARENA, "--out", "other.ptx"]);
    let said = text(&refused.stderr);
    assert!(
        refused.status.code() == Some(2)
            && said.contains("line 7, k: `ld.b32` cannot be translated")
            && said.contains("pointers=any"),
        "{said}"
    );
    assert!(!files.path("other.ptx").exists());
}

#[test]
fn it_is_the_assembler_for_others() {
    let files = Assembler::new();
    // Without an arena nothing changes.
    let plain = files.assemble(&[]);
    assert_eq!((text(&plain.stdout).as_str(), plain.status.code()), ("-v kernel.ptx -o out\n", Some(0)));
    assert_eq!(files.out(), KERNEL);
    // With one, given or from the environment, the assembler gets another text under the same name.
    let given = files.assemble(&["--arena", ARENA, "--log", "log"]);
    let said = text(&given.stdout);
    let words: Vec<_> = said.split_whitespace().collect();
    assert!(
        given.status.success() && words[1].ends_with("/kernel.ptx") && words[2..] == ["-o", "out"],
        "{said}"
    );
    let rewritten = files.out();
    assert!(rewritten.contains("[%partywall_b]"), "{rewritten}");
    let from_environment = files
        .program()
        .env("PARTYWALL_ARENA", ARENA)
        .args(["--", "-v", "kernel.ptx", "-o", "out"])
        .output()
        .unwrap();
    assert!(from_environment.status.success() && files.out() == rewritten);
    // How it ends is how this ends, and a kernel that is refused never gets there.
    files.put("status", "255");
    assert_eq!(files.assemble(&["--arena", ARENA]).status.code(), Some(255));
    files.put("status", "0");
    files.put("kernel.ptx", &KERNEL.replace("ld.global", "ld"));
    fs::remove_file(files.path("out")).unwrap();
    let refused = files.assemble(&["--arena", ARENA, "--log", "log"]);
    assert!(
        refused.status.code() == Some(2)
            && text(&refused.stderr).contains("kernel.ptx is not rewritten:\nline 7, k: `ld.b32`"),
        "{}",
        text(&refused.stderr)
    );
    assert!(!files.path("out").exists());
    let log = fs::read_to_string(files.path("log")).unwrap();
    let log: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&log[0]["functions"][0]["translated"], &log[0]["refused"]),
        (&1.into(), &serde_json::Value::Null)
    );
    assert!(log[1]["refused"].as_str().unwrap().starts_with("line 7, k: `ld.b32`"));
    for words in [&["--options-file", "words"][..], &["-v", "-o", "kernel.ptx"]] {
        let output = files.program().args(["--arena", ARENA, "--"]).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    }
}

#[test]
fn compilers_that_ask_for_the_version_learn_the_arena() {
    let files = Assembler::new();
    let version = |program: &Path, arena: &str| {
        let output = Command::new(program).env("PARTYWALL_ARENA", arena).arg("--version").output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let installed = files.program().args(["--install", "wrapped"]).output().unwrap();
    let settings = text(&installed.stdout);
    let path = files.path("wrapped").canonicalize().unwrap().join("ptxas");
    assert_eq!(settings.trim_end(), format!("export TRITON_PTXAS_PATH='{}'", path.display()));
    assert_eq!(version(&path, ""), "release 12.9\n");
    let odd = version(&path, ARENA);
    assert!(odd.starts_with("release 12.9\nKernels are rewritten for partywall_arena_"), "{odd}");
    assert_ne!(odd, version(&path, &ARENA.replace("odd", "even")));
    // With the arena in it, caches are apart as well.
    let installed = files.program().args(["--arena", ARENA, "--install", "wrapped"]).output().unwrap();
    assert!(text(&installed.stdout).contains("TORCHINDUCTOR_CACHE_DIR="), "{}", text(&installed.stdout));
    assert_eq!(version(&path, ""), odd);
    // It would call itself for ever.
    let own = files.program().args(["--install", "."]).output().unwrap();
    assert_eq!((own.status.code(), text(&own.stderr).contains("would take its own place")), (Some(2), true));
}
