//! The repository as the checks see it: its text files, and its crates as cargo describes them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::{Metadata, MetadataCommand, Package};

/// A crate of the workspace.
#[derive(Debug, Clone)]
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Its folder, from the root of the repository.
    pub(crate) folder: PathBuf,
    /// The crates of the workspace that it depends on, in any way: to run, to build or to be tested.
    pub(crate) needs: BTreeSet<String>,
    /// How many programs it makes.
    pub(crate) binaries: usize,
    /// Whether a plain `cargo run` or `cargo build` at the root takes it.
    pub(crate) is_default: bool,
    pub(crate) manifest: toml::Table,
}

/// The root of the repository this program was built from.
pub(crate) fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("xtask lies in a folder of the repository")?.to_owned())
}

/// Reads one file of the repository.
pub(crate) fn read(root: &Path, path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    fs::read_to_string(root.join(path)).with_context(|| format!("reading {}", path.display()))
}

/// Writes one file of the repository if its text differs, so that times of change mean something; whether it did.
pub(crate) fn write(root: &Path, path: &Path, text: &str) -> Result<bool> {
    let full = root.join(path);
    if fs::read_to_string(&full).is_ok_and(|now| now == text) {
        return Ok(false);
    }
    if let Some(folder) = full.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making the folder of {}", path.display()))?;
    }
    fs::write(&full, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(true)
}

/// The crates of the workspace, sorted by name. Needs cargo and no network.
pub(crate) fn crates(root: &Path) -> Result<Vec<Crate>> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .context("asking cargo for the crates of the workspace")?;
    let mut crates =
        metadata.packages.iter().map(|package| described(package, &metadata)).collect::<Result<Vec<_>>>()?;
    crates.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(crates)
}

fn described(package: &Package, metadata: &Metadata) -> Result<Crate> {
    let manifest = fs::read_to_string(&package.manifest_path)
        .with_context(|| format!("reading {}", package.manifest_path))?;
    let folder = package.manifest_path.parent().context("a manifest lies in a folder")?;
    let folder = folder.strip_prefix(&metadata.workspace_root).unwrap_or(folder);
    let is_ours = |name: &str| metadata.packages.iter().any(|other| other.name.as_str() == name);
    let needs = package.dependencies.iter().filter(|needed| needed.path.is_some() && is_ours(&needed.name));
    Ok(Crate {
        name: package.name.to_string(),
        folder: folder.as_std_path().to_owned(),
        needs: needs.map(|needed| needed.name.clone()).collect(),
        binaries: package.targets.iter().filter(|target| target.is_bin()).count(),
        is_default: metadata.workspace_default_members.contains(&package.id),
        manifest: manifest.parse().with_context(|| format!("parsing {}", package.manifest_path))?,
    })
}

/// All text files of the repository with their text, sorted by path; what `.gitignore` at the root names is left
/// out, and what is not UTF-8 is no text.
///
/// It does not ask git, because the tests also run where there is none.
pub(crate) fn text_files(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let ignored = Ignored::parse(&fs::read_to_string(root.join(".gitignore")).unwrap_or_default());
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder))
            .with_context(|| format!("listing `{}` of the repository", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if ignored.names(&path) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file()
                && let Ok(text) = String::from_utf8(fs::read(root.join(&path))?)
            {
                files.push((path, text));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The forms of `.gitignore` lines used here: `/path` from the root, `*.extension` and `name` anywhere.
struct Ignored {
    rules: Vec<String>,
}

impl Ignored {
    fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self { rules: lines.map(|line| line.trim_end_matches('/').to_owned()).collect() }
    }

    fn names(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let matches = |rule: &String| match (rule.strip_prefix('/'), rule.strip_prefix('*')) {
            (Some(from_root), _) => path == Path::new(from_root),
            (None, Some(ending)) => name.ends_with(ending),
            (None, None) => name == rule,
        };
        name == ".git" || self.rules.iter().any(matches)
    }
}

/// A folder for one test, removed when dropped.
#[cfg(test)]
pub(crate) struct Scratch(PathBuf);

#[cfg(test)]
impl Scratch {
    /// `name` is the test's own; files are `(path, text)`.
    pub(crate) fn with(name: &str, files: &[(&str, &str)]) -> Self {
        let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        for (path, text) in files {
            write(&folder, Path::new(path), text).unwrap();
        }
        Self(folder)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    pub(crate) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap()
    }
}

#[cfg(test)]
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_files_leave_out_what_is_ignored_or_no_text() {
        let scratch = Scratch::with(
            "text-files",
            &[
                (".gitignore", "# build\n/target\n*.tmp\nnode\n"),
                (".git/config", "x"),
                ("target/a.md", "x"),
                ("docs/target/a.md", "x"),
                ("docs/b.tmp", "x"),
                ("docs/node/c.md", "x"),
                ("README.md", "x"),
            ],
        );
        fs::write(scratch.root().join("picture.png"), [0xFF, 0xD8]).unwrap();
        let files = text_files(scratch.root()).unwrap();
        let paths: Vec<String> = files.iter().map(|(path, _)| path.display().to_string()).collect();
        assert_eq!(paths, [".gitignore", "README.md", "docs/target/a.md"]);
    }

    #[test]
    fn a_file_is_written_only_when_it_differs() {
        let scratch = Scratch::with("write", &[("a.txt", "x")]);
        assert!(!write(scratch.root(), Path::new("a.txt"), "x").unwrap());
        assert!(write(scratch.root(), Path::new("a.txt"), "y").unwrap());
        assert!(write(scratch.root(), Path::new("new/b.txt"), "z").unwrap());
        assert_eq!((scratch.text("a.txt").as_str(), scratch.text("new/b.txt").as_str()), ("y", "z"));
    }

    #[test]
    fn cargo_describes_this_workspace() {
        let crates = crates(&root().unwrap()).unwrap();
        let xtask = crates.iter().find(|one| one.name == "xtask").unwrap();
        assert_eq!(
            (xtask.folder.as_path(), xtask.binaries, xtask.is_default),
            (Path::new("xtask"), 1, false)
        );
        let core = crates.iter().find(|one| one.name == "partywall-core").unwrap();
        assert_eq!((core.folder.as_path(), core.binaries), (Path::new("crates/partywall-core"), 0));
    }
}
