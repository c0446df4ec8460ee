//! Exports for every function of NVML that the sources do not have: programs look names up, and a name that is missing
//! reads as a library that is broken.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Writes a line `missing!(nvmlFoo);` for each of them to `nvml_missing.rs` in `out`.
pub(crate) fn write(root: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let list = root.join("../partywall-shim-api/api/nvml.txt");
    println!("cargo::rerun-if-changed={}", list.display());
    println!("cargo::rerun-if-changed=src/nvml");
    println!("cargo::rerun-if-changed=build_nvml.rs");
    let mut simulated = BTreeSet::new();
    for entry in fs::read_dir(root.join("src/nvml"))? {
        simulated.extend(defined(&fs::read_to_string(entry?.path())?).map(str::to_owned));
    }
    let text = fs::read_to_string(&list)?;
    let names = text.lines().filter(|line| line.starts_with("nvml"));
    let mut missing = String::new();
    for name in names.filter(|name| !simulated.contains(*name)) {
        writeln!(missing, "missing!({name});")?;
    }
    Ok(fs::write(out.join("nvml_missing.rs"), missing)?)
}

/// The names in lines such as `extern "C" fn nvmlFoo(…`, in the macro `answers!` `nvmlFoo -> u32 = …`, and in `nothing!`
/// the name alone.
fn defined(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim_start();
        let head = line.strip_prefix("extern \"C\" fn ").unwrap_or(line);
        let end = head.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(head.len());
        let (name, rest) = head.split_at(end);
        let defines = rest.is_empty() || rest.starts_with('(') || rest.starts_with(" -> ");
        (name.starts_with("nvml") && defines).then_some(name)
    })
}
