//! Linker settings of the shared object, and one forwarder for each function of the driver.

use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

/// The functions that libcuda exports: the first column is the name.
const LIST: &str = "../partywall-shim-api/api/cuda.txt";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Under its own name in `LD_PRELOAD` or as `libcuda.so.1` in a folder: who asks the loader for the driver gets this
    // library either way. It is never unloaded, because the process keeps pointers into it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={LIST}");

    let list = fs::read_to_string(LIST).map_err(|error| format!("{LIST}: {error}"))?;
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let names: Vec<&str> = lines.filter_map(|line| line.split('\t').next()).collect();
    if !names.is_sorted() || names.is_empty() {
        return Err(format!("{LIST} should have names in its first column, sorted by byte").into());
    }
    #[allow(clippy::disallowed_methods, reason = "this is how cargo tells a build script where to write")]
    let folder = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    fs::write(folder.join("forwarders.rs"), source(&names)?)?;
    Ok(())
}

/// What `src/forwarders.rs` includes: the names, and the macro that makes the exports over all of them.
fn source(names: &[&str]) -> Result<String, std::fmt::Error> {
    let mut source = String::new();
    writeln!(
        source,
        "/// How many functions libcuda exports.\npub(crate) const COUNT: usize = {};\n",
        names.len()
    )?;
    writeln!(source, "/// Their names, sorted.\npub(crate) static NAMES: [&CStr; COUNT] = [")?;
    for name in names {
        writeln!(source, "    c\"{name}\",")?;
    }
    writeln!(source, "];\n\n#[cfg(not(test))]\nforwarders! {{")?;
    for (index, name) in names.iter().enumerate() {
        writeln!(source, "    {index} {name}")?;
    }
    writeln!(source, "}}")?;
    Ok(source)
}
