//! `cargo xtask driver-api`: the lists of the functions that NVIDIA's driver libraries export, from NVIDIA's headers.
//!
//! `cuda.h` says more than it declares: a macro gives a function its newest version (`#define cuMemAlloc cuMemAlloc_v2`) and
//! says which default stream it has a variant for (`__CUDA_API_PTDS`, `__CUDA_API_PTSZ`); the old versions are declared at
//! its end. `cudaTypedefs.h` has a type for each of them that names the CUDA version that brought it, so the n-th version
//! of a function is the n-th type of its name: a count that does not match is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::problem::Problem;
use crate::wheel::{Wanted, Wheel, names};
use crate::workspace;

#[cfg(test)]
mod tests;

/// Where the lists are.
const FOLDER: &str = "crates/partywall-shim-api/api";
const REMEDY: &str = "run `cargo xtask driver-api` and commit the result";

/// The headers of libcuda, and of the libraries of the system that it works with.
const CUDA: Wheel = Wheel {
    package: "nvidia-cuda-runtime",
    version: "13.5.37",
    hashes: [
        "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
        "de2dc5a7367974228b0a69588a9acc9340d3768bef1bf38bf0801eb08497cd2d",
    ],
    wanted: "nvidia/cu13/include",
};

/// The header of libnvidia-ml.
const NVML: Wheel = Wheel {
    package: "nvidia-nvml-dev",
    version: "13.5.37",
    hashes: [
        "7394fcbefa9ba537e8238cbb1caa4cd2db6bbfbff208d217a8a884947113ae6d",
        "1331ad1707ca2c46e41b98eb8413efc23b5c151438e70733b91ba5bf53e05ed3",
    ],
    wanted: "nvidia/cu13/include/nvml.h",
};

/// The headers with declarations of functions of libcuda.
const CUDA_HEADERS: [&str; 4] = ["cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"];

/// One function of libcuda: name, base name, CUDA version, variant of the default stream.
type Row = (String, String, u32, &'static str);

/// Writes the lists and gives the paths of those that have changed.
///
/// # Errors
/// When the headers cannot be had, or do not agree with each other.
pub(crate) fn write(root: &Path) -> Result<Vec<PathBuf>> {
    let lists = match lists(root)? {
        Lists::Made(lists) => lists,
        Lists::NoHeaders(why) => bail!("no headers: {why}"),
    };
    let mut written = Vec::new();
    for (path, text) in lists {
        if workspace::write(root, &path, &text)? {
            written.push(path);
        }
    }
    Ok(written)
}

/// What a check came to.
pub(crate) enum Checked {
    /// Made again and compared; what differs.
    Compared(Vec<Problem>),
    /// The headers are not to be had, and why.
    NoHeaders(String),
}

/// One problem for each list that is not what the headers say.
///
/// # Errors
/// When the headers are not the known ones, or do not agree with each other.
pub(crate) fn check(root: &Path) -> Result<Checked> {
    let lists = match lists(root)? {
        Lists::Made(lists) => lists,
        Lists::NoHeaders(why) => return Ok(Checked::NoHeaders(why)),
    };
    let mut problems = Vec::new();
    for (path, text) in lists {
        if workspace::read(root, &path).ok().as_deref() != Some(text.as_str()) {
            problems.push(Problem::in_file(path, format!("differs from what the headers say; {REMEDY}")));
        }
    }
    Ok(Checked::Compared(problems))
}

/// The lists as the headers have them: each file's path and text.
enum Lists {
    Made([(PathBuf, String); 2]),
    NoHeaders(String),
}

fn lists(root: &Path) -> Result<Lists> {
    let (headers, header) = match (CUDA.fetch(root)?, NVML.fetch(root)?) {
        (Wanted::At(headers), Wanted::At(header)) => (headers, header),
        (Wanted::Missing(why), _) | (_, Wanted::Missing(why)) => return Ok(Lists::NoHeaders(why)),
    };
    let read = |name: &str| fs::read_to_string(headers.join(name)).with_context(|| format!("reading {name}"));
    let declarations = CUDA_HEADERS.iter().map(|name| read(name)).collect::<Result<Vec<_>>>()?;
    let typedefs = names(&headers, "", "h")?.into_iter().filter(|name| name.ends_with("Typedefs.h"));
    let typedefs = typedefs.map(|name| read(&name)).collect::<Result<Vec<_>>>()?;
    let nvml = fs::read_to_string(&header).with_context(|| format!("reading {}", header.display()))?;
    Ok(Lists::Made([
        (Path::new(FOLDER).join("cuda.txt"), cuda_list(&rows(&declarations.concat(), &typedefs.concat())?)),
        (Path::new(FOLDER).join("nvml.txt"), nvml_list(&nvml_names(&nvml))),
    ]))
}

fn cuda_list(rows: &[Row]) -> String {
    let Wheel { package, version, .. } = CUDA;
    let mut list = format!(
        "# Functions that libcuda.so.1 exports, from the headers of {package} {version}. Made by `cargo xtask driver-api`.\n\
         # name, base name as programs ask for it, CUDA version that brought it, variant of the default stream (ptds, ptsz, -)\n"
    );
    for (name, base, cuda, stream) in rows {
        list += &format!("{name}\t{base}\t{cuda}\t{stream}\n");
    }
    list
}

fn nvml_list(names: &BTreeSet<String>) -> String {
    let Wheel { package, version, .. } = NVML;
    let mut list = format!(
        "# Functions that libnvidia-ml.so.1 exports, from the header of {package} {version}. Made by `cargo xtask driver-api`.\n\
         # name\n"
    );
    for name in names {
        list += &format!("{name}\n");
    }
    list
}

/// Every function of libcuda, sorted by name.
fn rows(declarations: &str, typedefs: &str) -> Result<Vec<Row>> {
    let mut versions: BTreeMap<(String, &str), BTreeSet<u32>> = BTreeMap::new();
    for (base, cuda, stream) in lines(typedefs).iter().filter_map(|line| typedef(line)) {
        versions.entry((base.to_owned(), stream)).or_default().insert(cuda);
    }
    let mut functions: BTreeMap<(String, &str), BTreeMap<u32, String>> = BTreeMap::new();
    for name in cuda_names(declarations) {
        let (base, number, stream) = parts(&name);
        functions.entry((base.to_owned(), stream)).or_default().insert(number, name.clone());
    }
    for ((base, stream), names) in &functions {
        let known = versions.get(&(base.clone(), *stream)).map_or(0, BTreeSet::len);
        ensure!(known == names.len(), "{base} ({stream}): {known} types for {:?}", names.values());
    }
    let mut rows = Vec::new();
    for ((base, stream), versions) in versions {
        // The profiler's functions have types here, but their header is in another package.
        let names = functions.remove(&(base.clone(), stream));
        let names = names.unwrap_or_else(|| BTreeMap::from([(1, base.clone())]));
        ensure!(names.len() == versions.len(), "{base} ({stream}): types {versions:?} without a declaration");
        let pairs = names.into_values().zip(versions);
        rows.extend(pairs.map(|(name, cuda)| (name, base.clone(), cuda, stream)));
    }
    rows.sort();
    Ok(rows)
}

/// The names that the headers of libcuda declare or make by macros.
fn cuda_names(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in lines(text) {
        if let Some(name) = declared(&line, "CUDAAPI ", "cu") {
            names.insert(name.to_owned());
        }
        let Some((_, target)) = define(&line, "cu") else { continue };
        let variant = target.strip_prefix("__CUDA_API_PT").and_then(|rest| rest.split_once('('));
        if let Some((suffix @ ("DS" | "SZ"), name)) = variant {
            let name = name.trim_end_matches(')');
            names.extend([name.to_owned(), format!("{name}_pt{}", suffix.to_lowercase())]);
        } else if parts(target).1 > 1 && parts(target).2 == "-" {
            names.insert(target.to_owned());
        }
    }
    names
}

/// The names that the header of NVML declares, and those that it renames to a declared one: the library exports both.
fn nvml_names(text: &str) -> BTreeSet<String> {
    let lines = lines(text);
    let declared: BTreeSet<&str> =
        lines.iter().filter_map(|line| declared(line, "DECLDIR ", "nvml")).collect();
    let renamed = lines.iter().filter_map(|line| define(line, "nvml"));
    let renamed = renamed.filter(|(name, target)| declared.contains(name) || declared.contains(target));
    let both = renamed.flat_map(|(name, target)| [name, target]);
    both.chain(declared.iter().copied()).map(str::to_owned).collect()
}

/// A name into its base, the number of its version and its variant: `cuMemcpy2D_v2_ptds` is `cuMemcpy2D`, 2, `ptds`.
fn parts(name: &str) -> (&str, u32, &'static str) {
    let (name, stream) = match name.rsplit_once('_') {
        Some((rest, "ptds")) => (rest, "ptds"),
        Some((rest, "ptsz")) => (rest, "ptsz"),
        _ => (name, "-"),
    };
    let version = name.rsplit_once("_v").and_then(|(base, number)| Some((base, number.parse().ok()?)));
    version.map_or((name, 1, stream), |(base, number)| (base, number, stream))
}

/// The function that a line declares after `keyword`.
fn declared<'a>(line: &'a str, keyword: &str, prefix: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(keyword)?;
    let (name, _) = rest.split_once('(')?;
    let name = name.trim();
    (name.starts_with(prefix) && is_identifier(name)).then_some(name)
}

/// What a line gives another name to: `#define NAME TARGET`.
fn define<'a>(line: &'a str, prefix: &str) -> Option<(&'a str, &'a str)> {
    let mut words = line.trim_start().strip_prefix('#')?.split_whitespace();
    let (Some("define"), Some(name), Some(target), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return None;
    };
    (name.starts_with(prefix) && is_identifier(name)).then_some((name, target))
}

/// The function that a line has a type for, as base name, CUDA version and variant: `PFN_cuMemcpy_v7000_ptds`.
fn typedef(line: &str) -> Option<(&str, u32, &'static str)> {
    let (name, _) = line.split_once("*PFN_")?.1.split_once(')')?;
    let (base, cuda, stream) = parts(name.trim());
    (base.starts_with("cu") && cuda > 1).then_some((base, cuda, stream))
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The lines of a header without comments and without what is for Windows alone.
fn lines(text: &str) -> Vec<String> {
    let mut kept = Vec::new();
    // For each conditional that is open: whether it is about Windows, and whether its lines are kept.
    let mut open: Vec<(bool, bool)> = Vec::new();
    for line in without_comments(text).lines() {
        let words = line.trim_start().strip_prefix('#').map(str::trim_start);
        match words {
            Some(words) if words.starts_with("if") => {
                let windows =
                    words.contains("_WIN32") && !words.contains('!') && !words.starts_with("ifndef");
                open.push((windows, !windows));
            }
            Some(words) if words.starts_with("el") => {
                if let Some((true, keeps)) = open.last_mut() {
                    *keeps = true;
                }
            }
            Some(words) if words.starts_with("endif") => drop(open.pop()),
            _ if open.iter().all(|(_, keeps)| *keeps) => kept.push(line.to_owned()),
            _ => {}
        }
    }
    kept
}

/// Blanks for comments of both kinds.
fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::with_capacity(text.len());
    while let Some(start) = rest.find('/') {
        kept.push_str(&rest[..start]);
        let here = &rest[start..];
        let (blank, end) = if here.starts_with("/*") {
            (" ", here.find("*/").map_or(here.len(), |end| end + 2))
        } else if here.starts_with("//") {
            ("", here.find('\n').unwrap_or(here.len()))
        } else {
            ("/", 1)
        };
        kept.push_str(blank);
        rest = &here[end..];
    }
    kept + rest
}
