//! `cargo xtask kernels`: compiles `kernels/*.cu` to the PTX that is checked in beside them.
//!
//! The compiler is NVRTC, a library that needs no GPU, of one fixed version from PyPI: PTX of CUDA 12.4 is what drivers
//! from that version on load. It lands under `target/` and nowhere else. Where it cannot be had, the first line of each
//! PTX file still says whether it belongs to its source.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::problem::{self, Problem};
use crate::wheel::{Wanted, Wheel, names};
use crate::workspace;

/// Where the sources are; the PTX is in `ptx` below.
const FOLDER: &str = "kernels";
/// What every source includes.
const PRELUDE: &str = "prelude.cuh";
const VERSION: &str = "12.4.127";
/// Where it is from.
const COMPILER: Wheel = Wheel {
    package: "nvidia-cuda-nvrtc-cu12",
    version: VERSION,
    hashes: [
        "a178759ebb095827bd30ef56598ec182b85547f1508941a3d560eb7ea1fbf338",
        "0eedf14185e04b76aa05b1fea04133e59f465b6f960c0cbf4e37c3cb6b0ea198",
    ],
    wanted: "nvidia/cuda_nvrtc/lib",
};
/// The oldest GPUs that CUDA 12 compiles for without a warning; newer ones run it, too.
const OPTIONS: [&str; 2] = ["--gpu-architecture=compute_70", "--std=c++17"];
/// The program that talks to the library, which takes `unsafe` in Rust.
const SCRIPT: &str = include_str!("kernels/nvrtc.py");
const REMEDY: &str = "run `cargo xtask kernels` and commit the result";

#[derive(Serialize)]
struct Task<'a> {
    library: &'a Path,
    options: [&'a str; 2],
    headers: BTreeMap<&'a str, &'a str>,
    sources: &'a BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Compiled {
    version: String,
    ptx: BTreeMap<String, String>,
}

/// The sources by file name, and what they include.
struct Sources {
    files: BTreeMap<String, String>,
    prelude: String,
}

impl Sources {
    fn read(root: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for name in names(root, FOLDER, "cu")? {
            let text = workspace::read(root, Path::new(FOLDER).join(&name))?;
            files.insert(name, text);
        }
        Ok(Self { files, prelude: workspace::read(root, Path::new(FOLDER).join(PRELUDE))? })
    }

    /// The first line of a source's PTX: changes whenever the PTX may.
    fn first_line(&self, source: &str) -> String {
        let hash = fnv1a(&[source, &self.prelude, &OPTIONS.join(" ")]);
        format!("// NVRTC {VERSION}, {}, source {hash:016x}", OPTIONS[0])
    }
}

/// Compiles everything and writes what differs; the paths of all PTX files.
///
/// # Errors
/// When there is no compiler, or it does not accept a source.
pub(crate) fn build(root: &Path) -> Result<Vec<PathBuf>> {
    let library = match COMPILER.fetch(root)? {
        Wanted::At(library) => library,
        Wanted::Missing(why) => bail!("no compiler: {why}"),
    };
    let sources = Sources::read(root)?;
    let mut paths = Vec::new();
    for (path, text) in compile(&sources, &library)? {
        workspace::write(root, &path, &text)?;
        paths.push(path);
    }
    for problem in orphans(root, &sources)? {
        fs::remove_file(root.join(&problem.path))
            .with_context(|| format!("removing {}", problem.path.display()))?;
    }
    Ok(paths)
}

/// What can be said without the compiler: whether each PTX file says that it was made from its source as it is now.
fn unmarked(root: &Path) -> Result<Vec<Problem>> {
    let sources = Sources::read(root)?;
    let mut problems = orphans(root, &sources)?;
    for (name, source) in &sources.files {
        let path = ptx_path(name);
        match fs::read_to_string(root.join(&path)) {
            Ok(ptx) if ptx.lines().next() == Some(sources.first_line(source).as_str()) => {}
            Ok(_) => problems.push(Problem::in_file(
                path,
                format!("is not from {FOLDER}/{name} and {FOLDER}/{PRELUDE} as they are now; {REMEDY}"),
            )),
            Err(_) => problems.push(Problem::in_file(path, format!("is missing; {REMEDY}"))),
        }
    }
    Ok(problems)
}

/// How thoroughly the PTX files were checked.
pub(crate) enum Checked {
    /// Compiled again and compared; what differs.
    Compiled(Vec<Problem>),
    /// Only the marks in their first lines, which are right; why the compiler is not to be had.
    MarksOnly(String),
}

/// Checks the marks and, where there is a compiler, everything.
///
/// # Errors
/// When a mark is wrong, compiler or not.
pub(crate) fn check(root: &Path) -> Result<Checked> {
    problem::none_of(&unmarked(root)?)?;
    Ok(match COMPILER.fetch(root)? {
        Wanted::At(library) => Checked::Compiled(differing(root, &library)?),
        Wanted::Missing(why) => Checked::MarksOnly(why),
    })
}

/// Compiles again and compares.
fn differing(root: &Path, library: &Path) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for (path, text) in compile(&Sources::read(root)?, library)? {
        if fs::read_to_string(root.join(&path)).ok().as_deref() != Some(text.as_str()) {
            problems.push(Problem::in_file(path, format!("differs from what the compiler makes; {REMEDY}")));
        }
    }
    Ok(problems)
}

/// Every PTX file with its text.
fn compile(sources: &Sources, library: &Path) -> Result<Vec<(PathBuf, String)>> {
    let headers = BTreeMap::from([(PRELUDE, sources.prelude.as_str())]);
    let task = serde_json::to_vec(&Task { library, options: OPTIONS, headers, sources: &sources.files })?;
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting python3")?;
    let mut input = child.stdin.take().context("python3 has a standard input")?;
    // The script reads everything before it writes anything, so this cannot block for ever.
    input.write_all(&task).context("passing the sources to python3")?;
    drop(input);
    let output = child.wait_with_output().context("waiting for python3")?;
    ensure!(output.status.success(), "the compiler does not accept the kernels; it says why above");
    let mut compiled: Compiled = serde_json::from_slice(&output.stdout).context("reading the PTX")?;
    ensure!(VERSION.starts_with(&compiled.version), "this is NVRTC {}, not {VERSION}", compiled.version);
    let line = |(name, source): (&String, &String)| {
        let ptx = compiled.ptx.remove(name).ok_or_else(|| anyhow!("no PTX for {name}"))?;
        Ok((ptx_path(name), format!("{}\n{}\n", sources.first_line(source), ptx.trim())))
    };
    sources.files.iter().map(line).collect()
}

/// PTX files that no source belongs to.
fn orphans(root: &Path, sources: &Sources) -> Result<Vec<Problem>> {
    let folder = Path::new(FOLDER).join("ptx");
    if !root.join(&folder).is_dir() {
        return Ok(Vec::new());
    }
    let mut ptx = names(root, &folder, "ptx")?;
    ptx.retain(|name| !sources.files.keys().any(|source| ptx_path(source).ends_with(name)));
    let message = format!("has no source; {REMEDY}");
    Ok(ptx.into_iter().map(|name| Problem::in_file(folder.join(name), &message)).collect())
}

fn ptx_path(source: &str) -> PathBuf {
    Path::new(FOLDER).join("ptx").join(source).with_extension("ptx")
}

/// FNV-1a, 64 bits, of texts with their lengths: tells versions of a file apart and needs no library. It keeps nobody
/// from forging a PTX file; compiling again does.
fn fnv1a(texts: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut eat = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    for text in texts {
        (text.len() as u64).to_le_bytes().into_iter().for_each(&mut eat);
        text.bytes().for_each(&mut eat);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Scratch;

    #[test]
    fn the_ptx_that_is_checked_in_is_from_the_sources() {
        assert_eq!(unmarked(&workspace::root().unwrap()).unwrap(), []);
    }

    #[test]
    fn a_change_without_its_ptx_is_found() {
        let scratch = Scratch::with("kernels", &[("kernels/a.cu", "one"), ("kernels/prelude.cuh", "two")]);
        let root = scratch.root();
        let complaints =
            || -> Vec<String> { unmarked(root).unwrap().iter().map(Problem::to_string).collect() };
        let remedy = "run `cargo xtask kernels` and commit the result";
        assert_eq!(complaints(), [format!("kernels/ptx/a.ptx: is missing; {remedy}")]);
        let mark =
            |line: &str| workspace::write(root, &ptx_path("a.cu"), &format!("{line}\n.version")).unwrap();
        mark(&Sources::read(root).unwrap().first_line("one"));
        assert!(complaints().is_empty());
        let stale = "kernels/ptx/a.ptx: is not from kernels/a.cu and kernels/prelude.cuh as they are now";
        workspace::write(root, Path::new("kernels/a.cu"), "One").unwrap();
        assert_eq!(complaints(), [format!("{stale}; {remedy}")]);
        workspace::write(root, Path::new("kernels/a.cu"), "one").unwrap();
        workspace::write(root, Path::new("kernels/prelude.cuh"), "Two").unwrap();
        assert_eq!(complaints(), [format!("{stale}; {remedy}")]);
        fs::remove_file(root.join("kernels/a.cu")).unwrap();
        assert_eq!(complaints(), [format!("kernels/ptx/a.ptx: has no source; {remedy}")]);
    }

    #[test]
    fn the_hash_is_fnv() {
        assert_eq!(fnv1a(&[]), 0xcbf2_9ce4_8422_2325);
        assert_ne!(fnv1a(&["ab", "c"]), fnv1a(&["a", "bc"]), "where a text ends counts");
        // One text of length 0 is eight zero bytes: the offset times the prime to the eighth power.
        let prime = 0x0100_0000_01b3_u64;
        assert_eq!(fnv1a(&[""]), (0..8).fold(0xcbf2_9ce4_8422_2325_u64, |hash, _| hash.wrapping_mul(prime)));
    }
}
