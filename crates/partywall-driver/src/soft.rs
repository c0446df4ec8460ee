//! Driver folders: everything of a machine with an NVIDIA GPU that programs look for, for a simulated one.
//!
//! A folder has the stand-in for `libcuda.so.1` and `libnvidia-ml.so.1` (one shared object, under both names), the
//! stand-in for the control program of MPS, and `gpu.json` with the figures of the device. A process that has it first in
//! `LD_LIBRARY_PATH` and in `PATH` ([`SoftDriver::environment`]) finds a machine with this one GPU, which it shares with
//! all other processes that have the same folder. Both variables are read when a process starts, so whoever wants the
//! simulated GPU for itself has to start again; [`SoftDriver::is_in_force`] says whether it has.
//!
//! One folder for each user and model: what two commands do on `sim:h200` at the same time they do on the same GPU.

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use partywall_core::gpu::Gpu;
use partywall_core::soft_gpu::{FILE, SoftGpu};

use crate::mps::CONTROL;
use crate::survey::known::driver_name;
use crate::{library, nvml};

/// The crate whose shared object stands in for the driver's.
pub const LIBRARY: &str = "partywall_softgpu";

/// What the user writes before the id of a simulated GPU: `sim:h200`.
pub const PREFIX: &str = "sim:";

/// Where the dynamic loader looks first, and where programs are looked for.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
const SEARCH_PATH: &str = "PATH";

const CONTROL_SCRIPT: &str = include_str!("soft/mps-control.sh");

/// Why there is no driver folder.
#[derive(Debug, thiserror::Error)]
pub enum SoftError {
    /// The shared object was not installed, or not built.
    #[error("the simulated GPU needs {file}, which is in none of: {}; `cargo build` makes it beside the program, and an \
             installed program has it in ../lib/partywall", listed(.looked))]
    NoLibrary {
        /// The file.
        file: String,
        /// The folders in which it was looked for.
        looked: Vec<PathBuf>,
    },
    /// A file or folder cannot be made.
    #[error("cannot make {path} for the simulated GPU: {error}", path = path.display())]
    Make {
        /// What.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Somebody else's folder is in the way.
    #[error("{path} is not a folder that belongs to this user alone; remove it, or set TMPDIR to another folder", path = path.display())]
    NotOurs {
        /// The folder.
        path: PathBuf,
    },
}

fn listed(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A shared object of ours (`partywall_softgpu`: `libpartywall_softgpu.so`), from where the program lies: cargo puts it
/// into `deps` beside the program, and tests into the same folder as it; installed, it is in `../lib/partywall`.
///
/// # Errors
/// [`SoftError::NoLibrary`] with every folder that was looked into.
pub fn find_library(name: &str, exe: &Path) -> Result<PathBuf, SoftError> {
    let file = format!("lib{name}.so");
    let beside = exe.parent().unwrap_or(Path::new("."));
    let above = beside.parent().unwrap_or(beside);
    // `deps` before its parent: cargo refreshes what lies in the parent only for some commands.
    let looked =
        vec![beside.join("deps"), beside.to_owned(), above.join("deps"), above.join("lib").join("partywall")];
    let found = looked.iter().map(|folder| folder.join(&file)).find(|path| path.is_file());
    found.ok_or(SoftError::NoLibrary { file, looked })
}

/// A driver folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SoftDriver {
    folder: PathBuf,
}

impl SoftDriver {
    /// Makes the folder for `gpu` in `temporary`, with the stand-in `library`, or brings the one that is there up to
    /// date. Processes that use it are not disturbed, and others may do the same at the same time: every file appears
    /// whole or not at all.
    ///
    /// # Errors
    /// [`SoftError::Make`] and [`SoftError::NotOurs`].
    pub fn make(gpu: &Gpu, library: &Path, temporary: &Path) -> Result<Self, SoftError> {
        let uid = rustix::process::geteuid();
        let all = temporary.join(format!("partywall-soft-{}", uid.as_raw()));
        let folder = all.join(&gpu.id);
        for folder in [&all, &folder] {
            private_folder(folder, uid.as_raw())?;
        }
        let library =
            fs::canonicalize(library).map_err(|error| SoftError::Make { path: library.to_owned(), error })?;
        let name = driver_name(&gpu.id).unwrap_or_else(|| gpu.name.clone());
        let figures = serde_json::to_string_pretty(&SoftGpu::new(gpu, &name)).map_err(io::Error::from);
        let figures = figures.map_err(|error| SoftError::Make { path: folder.join(FILE), error })?;
        write(&folder.join(FILE), figures.as_bytes(), 0o600)?;
        write(&folder.join(CONTROL), CONTROL_SCRIPT.as_bytes(), 0o700)?;
        for name in [library::LIBRARY, nvml::LIBRARY] {
            link(&folder.join(name), &library)?;
        }
        Ok(Self { folder })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The variables with which a process finds this GPU and no other, from what they are now (`variable` tells).
    /// `CUDA_VISIBLE_DEVICES` and the variables of MPS keep their meaning.
    pub fn environment(&self, variable: impl Fn(&str) -> Option<OsString>) -> Vec<(&'static str, OsString)> {
        let first = |name: &str| {
            let mut value = self.folder.clone().into_os_string();
            if let Some(rest) = variable(name).filter(|rest| !rest.is_empty()) {
                value.push(":");
                value.push(rest);
            }
            value
        };
        [LIBRARY_PATH, SEARCH_PATH].map(|name| (name, first(name))).into()
    }

    /// Whether a process that was started with these variables finds this GPU.
    pub fn is_in_force(&self, variable: impl Fn(&str) -> Option<OsString>) -> bool {
        let begins = |value: &OsStr| std::env::split_paths(value).next().as_deref() == Some(&self.folder);
        [LIBRARY_PATH, SEARCH_PATH].iter().all(|name| variable(name).is_some_and(|value| begins(&value)))
    }
}

/// The id of the simulated GPU that a program finds when it is started with these variables; `None` where it finds what the
/// machine has. As the dynamic loader does it: the first folder that has the library decides.
pub fn found(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let path = variable(LIBRARY_PATH)?;
    let folder = std::env::split_paths(&path).find(|folder| folder.join(library::LIBRARY).exists())?;
    let figures: SoftGpu = serde_json::from_str(&fs::read_to_string(folder.join(FILE)).ok()?).ok()?;
    Some(figures.gpu.id)
}

/// A folder that belongs to this user and that nobody else can look into: in a folder for everybody's temporary files,
/// anybody may have made one of this name.
fn private_folder(path: &Path, uid: u32) -> Result<(), SoftError> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(SoftError::Make { path: path.to_owned(), error }),
    }
    let about =
        fs::symlink_metadata(path).map_err(|error| SoftError::Make { path: path.to_owned(), error })?;
    if about.is_dir() && about.uid() == uid && about.mode() & 0o077 == 0 {
        Ok(())
    } else {
        Err(SoftError::NotOurs { path: path.to_owned() })
    }
}

/// Writes a file where it does not have these bytes already.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SoftError> {
    if fs::read(path).is_ok_and(|held| held == bytes) {
        return Ok(());
    }
    replace(path, |beside| {
        fs::write(beside, bytes)?;
        fs::set_permissions(beside, fs::Permissions::from_mode(mode))
    })
}

/// Makes a link where it does not lead there already.
fn link(path: &Path, to: &Path) -> Result<(), SoftError> {
    if fs::read_link(path).is_ok_and(|held| held == to) {
        return Ok(());
    }
    replace(path, |beside| symlink(to, beside))
}

/// Makes something beside its place and moves it there.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), SoftError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let beside = path.with_file_name(name);
    make(&beside).and_then(|()| fs::rename(&beside, path)).map_err(|error| {
        // It may not be there.
        let _ = fs::remove_file(&beside);
        SoftError::Make { path: path.to_owned(), error }
    })
}
