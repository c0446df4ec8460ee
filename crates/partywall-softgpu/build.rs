//! Exports for every function of libcuda that the sources do not have, and the table of all of them.
//!
//! An executable that is linked against libcuda does not start when one name is missing. So what is not simulated exists
//! as well, and says so when it is called.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[path = "build_nvml.rs"]
mod nvml;

#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells build scripts what they need through the environment"
)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let list = root.join("../partywall-shim-api/api/cuda.txt");
    println!("cargo::rerun-if-changed={}", list.display());
    println!("cargo::rerun-if-changed=src/api");
    println!("cargo::rerun-if-changed=build.rs");
    // Its threads run until the process ends, so its code must not be unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let mut table = BTreeMap::new();
    for entry in fs::read_dir(root.join("src/api"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for name in defined(&text) {
            if let Some(other) = table.insert(name.to_owned(), format!("crate::api::{module}::{name}")) {
                return Err(format!("{}: {name} is also {other}", path.display()).into());
            }
        }
    }
    let mut missing = String::new();
    for line in fs::read_to_string(&list)?.lines().filter(|line| !line.starts_with('#')) {
        let Some(name) = line.split('\t').next().filter(|name| !name.is_empty()) else { continue };
        if !table.contains_key(name) {
            writeln!(missing, "missing!({name});")?;
            table.insert(name.to_owned(), format!("crate::api::missing::{name}"));
        }
    }
    let mut text = format!("pub(crate) static EXPORTS: [Export; {}] = [\n", table.len());
    for (name, path) in &table {
        writeln!(text, "    Export(\"{name}\", {path} as *const ()),")?;
    }
    text.push_str("];\n");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    nvml::write(&root, &out)?;
    write(&out.join("missing.rs"), &missing)?;
    write(&out.join("exports.rs"), &text)
}

/// The names in the lines `fn cuFoo(…` and `fn cuFoo / cuFoo_ptsz (…` of the macro `api!`.
fn defined(text: &str) -> impl Iterator<Item = &str> {
    let heads = text.lines().filter_map(|line| line.trim_start().strip_prefix("fn "));
    let names = heads.filter_map(|line| line.split_once('(')).flat_map(|(names, _)| names.split('/'));
    names.map(str::trim).filter(|name| name.starts_with("cu") && name[2..].starts_with(char::is_uppercase))
}

fn write(path: &Path, text: &str) -> Result<(), Box<dyn std::error::Error>> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}
