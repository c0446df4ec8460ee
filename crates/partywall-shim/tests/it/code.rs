//! Code on its way to the driver, with and without a colored arena.

use std::path::PathBuf;

use partywall_vram::ptx::rewrite::Options;
use tempfile::TempDir;

use crate::stage::{Program, driver, shim};

const ARENA: &str =
    "mask=0x2ab000,logical=0x700000000000,mapped=0x720000000000,length=0x200000000,parity=odd,pointers=arena";

/// Every way to load that the stand-in of the driver has.
const WAYS: [&str; 6] = [
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleLoad",
    "cuLibraryLoadData",
    "cuLinkAddData_v2",
];

struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap() }
    }

    fn put(&self, name: &str, bytes: &[u8]) -> String {
        let path: PathBuf = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn ptx(&self, body: &str) -> String {
        let head = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() {\n.reg .b64 %rd<3>; .reg .b32 %r<3>;\n";
        self.put("kernel.ptx", format!("{head}{body}\nret; }}\n").as_bytes())
    }

    /// An ELF file with nothing in it but these bytes.
    fn compiled(&self, bytes: &[u8]) -> String {
        let mut file = vec![0; 64];
        file[..4].copy_from_slice(b"\x7fELF");
        file[0x28..0x30].copy_from_slice(&(64 + bytes.len() as u64).to_le_bytes());
        file[0x3a] = 64;
        file[0x3c] = 1;
        file.extend(bytes);
        let mut section = [0; 64];
        section[4] = 1;
        section[0x18] = 64;
        section[0x20..0x28].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        file.extend(section);
        self.put("kernel.cubin", &file)
    }
}

/// What the program says that loads a file in these ways, and what is said on standard error.
fn loaded(ways: &[&str], path: &str, arena: Option<&str>) -> (Vec<String>, String) {
    let words: Vec<_> = ways.iter().flat_map(|way| [*way, path]).collect();
    let program =
        Program::plain("code", &words).env("LD_PRELOAD", shim()).env("PARTYWALL_REAL_CUDA", driver());
    let program = program.env("PARTYWALL_ARENA", arena.unwrap_or_default()).env("PARTYWALL_COVERAGE", "-");
    let (is_good, out, err) = program.outcome();
    assert!(is_good, "{out}\n{err}");
    (out.lines().map(str::to_owned).collect(), err)
}

const LOAD: &str = "ld.global.b32 %r1, [%rd1];";

#[test]
fn without_an_arena_code_is_passed_on() {
    let files = Files::new();
    let (lines, _) = loaded(&WAYS, &files.ptx(LOAD), None);
    let expected = WAYS.map(|way| {
        if way.contains("Link") { format!("{way} 0 by {way}") } else { format!("{way} 0 by {way} k 0") }
    });
    assert_eq!(lines, expected);
}

#[test]
fn in_an_arena_ptx_is_rewritten_before_the_driver_sees_it() {
    let files = Files::new();
    let (lines, _) = loaded(&WAYS, &files.ptx(LOAD), Some(ARENA));
    let by = |way: &str| match way {
        // Text is nothing that these two take.
        "cuModuleLoadFatBinary" | "cuModuleLoad" => "cuModuleLoadData".to_owned(),
        _ => way.to_owned(),
    };
    let expected = WAYS.map(|way| {
        let functions = if way.contains("Link") { "" } else { " k 0" };
        format!("{way} 0 by {} rewritten{functions}", by(way))
    });
    assert_eq!(lines, expected);
}

#[test]
fn what_cannot_be_rewritten_is_refused_by_name() {
    let files = Files::new();
    let (lines, said) = loaded(&WAYS, &files.ptx("ld.b32 %r1, [%rd1];"), Some(ARENA));
    assert_eq!(lines, WAYS.map(|way| format!("{way} 218")));
    let named = "line 6, k: `ld.b32` cannot be translated: its address is a generic one";
    assert_eq!(said.matches(named).count(), WAYS.len(), "{said}");
    let (lines, said) = loaded(&WAYS[..1], &files.ptx(LOAD), Some("mask=1"));
    assert_eq!(lines, ["cuModuleLoadData 801"]);
    assert!(said.contains("PARTYWALL_ARENA: `parity=` is missing; no code is loaded"), "{said}");
}

#[test]
fn no_function_of_code_that_is_not_rewritten_is_given_out() {
    let files = Files::new();
    let ways = ["cuModuleLoadData", "cuLibraryLoadData", "cuLinkAddData_v2"];
    let (lines, said) = loaded(&ways, &files.compiled(b"other code"), Some(ARENA));
    let expected = [
        "cuModuleLoadData 0 by cuModuleLoadData k 801",
        "cuLibraryLoadData 0 by cuLibraryLoadData k 801",
        "cuLinkAddData_v2 801",
    ];
    assert_eq!(lines, expected);
    assert!(said.contains("k: refused, because its compiled code is not rewritten for the arena"), "{said}");
    // The tenant counts as not guaranteed.
    assert!(said.contains("(compiled code that is not rewritten for the arena)"), "{said}");
    // Compiled from what was rewritten, for this arena.
    let options: Options = ARENA.parse().unwrap();
    let file = files.compiled(format!("\0{}\0", options.mark()).as_bytes());
    let (lines, said) = loaded(&ways[..2], &file, Some(ARENA));
    assert_eq!(
        lines,
        ["cuModuleLoadData 0 by cuModuleLoadData k 0", "cuLibraryLoadData 0 by cuLibraryLoadData k 0"]
    );
    assert!(!said.contains("not rewritten"), "{said}");
    let (lines, _) = loaded(&ways[..1], &file, Some(&ARENA.replace("odd", "even")));
    assert_eq!(lines, ["cuModuleLoadData 0 by cuModuleLoadData k 801"]);
}
