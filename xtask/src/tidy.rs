//! `cargo xtask tidy`: the invariants of ARCHITECTURE.md that a program can hold.
//!
//! It is a test as well, so that `cargo test --workspace` fails when one is broken. Each rule is a function from
//! what it looks at to what it finds; the list of rules is in [`check`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::problem::Problem;
use crate::workspace::{self, Crate};

/// The map and the arrows.
const MAP: &str = "ARCHITECTURE.md";
/// The heading whose `###` headings are the folders of the crates.
const MAP_HEADING: &str = "## Code map";
/// The info string of the block with one line `crate -> crate, crate` for each crate.
const ARROWS_FENCE: &str = "```arrows";

/// The crate that depends on no other of the workspace.
const CORE: &str = "partywall-core";

/// Crates that may hold `unsafe` code: they talk to C, or share memory with other processes.
const MAY_BE_UNSAFE: [&str; 6] = [
    "partywall-driver",
    "partywall-shim",
    "partywall-shim-api",
    "partywall-side",
    "partywall-softgpu",
    "partywall-vram",
];

/// Longest Rust file, in lines: about 600 is where one should look for the second idea, this is where one must.
const MAX_LINES: usize = 700;

/// What the README's shell blocks say, all of it: nothing else is needed on a fresh machine with Rust.
const README_COMMANDS: [&str; 2] = ["cargo run --release -- demo", "cargo test --workspace"];

/// Folders that exist on one machine and not on the next. Split so that this file passes its own rule.
const MACHINE_FOLDERS: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/tm", "p/"), concat!("/wo", "rk/")];

/// Runs every rule.
pub(crate) fn check(root: &Path) -> Result<Vec<Problem>> {
    let crates = workspace::crates(root)?;
    let files = workspace::text_files(root)?;
    let map = workspace::read(root, MAP)?;
    let readme = workspace::read(root, "README.md")?;
    let shared: toml::Table = workspace::read(root, "Cargo.toml")?.parse()?;
    let found = [
        mapped(&map, &crates),
        arrows(&map, &crates),
        lints(&shared, &crates),
        folders(&crates),
        default_member(&crates),
        core_stands_alone(&crates),
        lengths(&files),
        machine_paths(&files),
        readme_commands(&readme),
        readme_folders(&readme, &files),
    ];
    Ok(found.concat())
}

/// The commands in a README's `sh` blocks, in order.
pub(crate) fn commands(readme: &str) -> Vec<&str> {
    fenced(readme, "```sh").map(|(_, line)| line.trim()).filter(|line| !line.is_empty()).collect()
}

/// Every crate is in the map, and every crate in the map exists.
fn mapped(map: &str, crates: &[Crate]) -> Vec<Problem> {
    let mut drawn = BTreeMap::new();
    let mut inside = false;
    let mut offset = 0;
    for line in map.split_inclusive('\n') {
        if line.starts_with("## ") {
            inside = line.trim_end() == MAP_HEADING;
        } else if inside && let Some(folder) = heading_folder(line) {
            drawn.insert(folder, offset);
        }
        offset += line.len();
    }
    let mut problems = Vec::new();
    for one in crates {
        let folder = one.folder.display().to_string();
        if drawn.remove(folder.as_str()).is_none() {
            let message =
                format!("`{folder}` is not in the map; add a heading ### `{folder}` under \"{MAP_HEADING}\"");
            problems.push(Problem::in_file(MAP, message));
        }
    }
    for (folder, offset) in drawn {
        let message = format!("`{folder}` is in the map, but the workspace has no such crate");
        problems.push(Problem::at(MAP, map, offset, message));
    }
    problems
}

/// The folder in a heading such as ### `crates/partywall`.
fn heading_folder(line: &str) -> Option<&str> {
    line.trim_end().strip_prefix("### `")?.strip_suffix('`')
}

/// The arrows in the map are the dependencies between the crates, all of them and no others.
fn arrows(map: &str, crates: &[Crate]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut drawn: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for (offset, line) in fenced(map, ARROWS_FENCE) {
        let Some((from, to)) = line.split_once("->") else {
            let message = format!("`{}` should read `crate -> crate, crate`", line.trim());
            problems.push(Problem::at(MAP, map, offset, message));
            continue;
        };
        let from = from.trim();
        let to = to.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        if drawn.insert(from, (offset, to)).is_some() {
            problems.push(Problem::at(
                MAP,
                map,
                offset,
                format!("`{from}` has two lines of arrows; one is enough"),
            ));
        }
    }
    for one in crates {
        let needs: BTreeSet<&str> = one.needs.iter().map(String::as_str).collect();
        let right = format!("{} -> {}", one.name, needs.iter().copied().collect::<Vec<_>>().join(", "));
        let right = right.trim_end();
        match drawn.remove(one.name.as_str()) {
            None => {
                let message =
                    format!("the `arrows` block has no line for `{}`; it would be `{right}`", one.name);
                problems.push(Problem::in_file(MAP, message));
            }
            Some((offset, to)) if to != needs => {
                let message =
                    format!("the arrows of `{}` are not its dependencies, which are `{right}`", one.name);
                problems.push(Problem::at(MAP, map, offset, message));
            }
            Some(_) => {}
        }
    }
    for (from, (offset, _)) in drawn {
        let message = format!("arrows from `{from}`, but the workspace has no such crate");
        problems.push(Problem::at(MAP, map, offset, message));
    }
    problems
}

/// The lines inside the blocks of a Markdown text that begin with `fence`, each with its offset.
fn fenced<'a>(text: &'a str, fence: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let mut offset = 0;
    let mut block: Option<bool> = None;
    text.split_inclusive('\n').filter_map(move |line| {
        let start = offset;
        offset += line.len();
        let is_fence = line.starts_with("```");
        block = match block {
            Some(_) if is_fence => None,
            None if is_fence => {
                let wanted = line.trim_end() == fence;
                block = Some(wanted);
                return None;
            }
            other => other,
        };
        (block == Some(true)).then_some((start, line))
    })
}

/// Every crate takes the workspace's lints, which forbid `unsafe`; a crate that may hold it can have a table of its
/// own that differs in `unsafe_code` alone.
fn lints(shared: &toml::Table, crates: &[Crate]) -> Vec<Problem> {
    let shared = shared.get("workspace").and_then(|workspace| workspace.get("lints"));
    let shared = shared.and_then(toml::Value::as_table).cloned().unwrap_or_default();
    let mut problems = Vec::new();
    if !forbids_unsafe(&shared) {
        let message = "[workspace.lints.rust] should say `unsafe_code = \"forbid\"`";
        problems.push(Problem::in_file("Cargo.toml", message));
    }
    for one in crates {
        let own = one.manifest.get("lints").and_then(toml::Value::as_table).cloned().unwrap_or_default();
        if own.get("workspace").and_then(toml::Value::as_bool) == Some(true) {
            continue;
        }
        let manifest = one.folder.join("Cargo.toml");
        if !MAY_BE_UNSAFE.contains(&one.name.as_str()) {
            let message = "should say `[lints]` and `workspace = true`: this crate may not hold `unsafe`";
            problems.push(Problem::in_file(manifest, message));
        } else if without_unsafe(own) != without_unsafe(shared.clone()) {
            let message = "its [lints] may differ from the workspace's in `unsafe_code` alone";
            problems.push(Problem::in_file(manifest, message));
        }
    }
    problems
}

fn forbids_unsafe(lints: &toml::Table) -> bool {
    let level = lints.get("rust").and_then(|rust| rust.get("unsafe_code"));
    level.and_then(toml::Value::as_str) == Some("forbid")
}

fn without_unsafe(mut lints: toml::Table) -> toml::Table {
    if let Some(rust) = lints.get_mut("rust").and_then(toml::Value::as_table_mut) {
        rust.remove("unsafe_code");
    }
    lints
}

/// A crate lies in `crates/<its full name>`; only xtask lies at the root.
fn folders(crates: &[Crate]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for one in crates {
        let right =
            if one.name == "xtask" { PathBuf::from("xtask") } else { Path::new("crates").join(&one.name) };
        if one.folder != right {
            let message = format!("crate `{}` should lie in `{}`", one.name, right.display());
            problems.push(Problem::in_file(one.folder.join("Cargo.toml"), message));
        }
    }
    problems
}

/// A plain `cargo run` knows what to run: the default members are one crate with one program.
fn default_member(crates: &[Crate]) -> Vec<Problem> {
    let defaults: Vec<&Crate> = crates.iter().filter(|one| one.is_default).collect();
    match defaults.as_slice() {
        [one] if one.binaries == 1 => Vec::new(),
        _ => {
            let found: Vec<String> =
                defaults.iter().map(|one| format!("`{}` with {} programs", one.name, one.binaries)).collect();
            let message =
                format!("default-members should be one crate with one program; found {}", found.join(", "));
            vec![Problem::in_file("Cargo.toml", message)]
        }
    }
}

/// The vocabulary and the deciders depend on no other crate here, not even in tests.
fn core_stands_alone(crates: &[Crate]) -> Vec<Problem> {
    let core = crates.iter().find(|one| one.name == CORE);
    let needs =
        core.map(|core| core.needs.iter().cloned().collect::<Vec<_>>().join(", ")).unwrap_or_default();
    if needs.is_empty() {
        return Vec::new();
    }
    let message = format!("{CORE} depends on no crate of the workspace, but it names {needs}");
    vec![Problem::in_file(format!("crates/{CORE}/Cargo.toml"), message)]
}

/// No Rust file is longer than [`MAX_LINES`].
fn lengths(files: &[(PathBuf, String)]) -> Vec<Problem> {
    let rust = files.iter().filter(|(path, _)| path.extension().is_some_and(|extension| extension == "rs"));
    let lines = rust.map(|(path, text)| (path, text.lines().count()));
    let message = |lines| format!("has {lines} lines; at most {MAX_LINES}: look for the second idea in it");
    lines
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(path, lines)| Problem::in_file(path, message(lines)))
        .collect()
}

/// No file names a folder of somebody's machine.
fn machine_paths(files: &[(PathBuf, String)]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in files {
        for folder in MACHINE_FOLDERS {
            for (offset, _) in text.match_indices(folder) {
                let before = text[..offset].chars().next_back();
                // `docs/work/` or `example.org/home/` are relative to something else.
                if !before
                    .is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '~' | '}'))
                {
                    let message = format!(
                        "`{folder}` is a folder of one machine; write paths from the repository's root"
                    );
                    problems.push(Problem::at(path, text, offset, message));
                }
            }
        }
    }
    problems
}

/// The README asks for exactly the two commands.
fn readme_commands(readme: &str) -> Vec<Problem> {
    let found = commands(readme);
    if found == README_COMMANDS {
        return Vec::new();
    }
    let message =
        format!("the `sh` blocks should hold exactly `{}`; found {found:?}", README_COMMANDS.join("` and `"));
    vec![Problem::in_file("README.md", message)]
}

/// The README names every folder at the root, so that a newcomer knows where to look.
fn readme_folders(readme: &str, files: &[(PathBuf, String)]) -> Vec<Problem> {
    let first = |path: &PathBuf| Some(path.iter().next()?.to_str()?.to_owned());
    let below = files.iter().filter(|(path, _)| path.components().count() > 1);
    let folders: BTreeSet<String> = below.filter_map(|(path, _)| first(path)).collect();
    let unnamed = |folder: &String| !folder.starts_with('.') && !readme.contains(&format!("`{folder}/`"));
    let message = |folder: String| format!("name the folder `{folder}/` in a line that says what is in it");
    folders.into_iter().filter(unnamed).map(|folder| Problem::in_file("README.md", message(folder))).collect()
}

#[cfg(test)]
mod tests;
