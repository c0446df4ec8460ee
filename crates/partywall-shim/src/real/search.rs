//! Where the real `libcuda.so.1` may be.
//!
//! The loader cannot be asked for it by name: it would give this library, which has that name. So the places in which the
//! loader would look are tried by path, in its order.

use std::ffi::{CString, OsStr, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use partywall_shim_api::environment;

use crate::loader;
use crate::process::variable;
use crate::say::say;

/// The file's name in each folder.
const FILE: &str = "libcuda.so.1";

/// Where drivers are installed, by distributions, containers, WSL and NixOS.
const FOLDERS: [&str; 10] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

/// Files with lines that name further folders of the loader.
const LOADER_CONFIGURATION: &str = "/etc/ld.so.conf.d";

/// A function that this library exports and no driver does: a copy of it elsewhere is known by that.
const MARK: &std::ffi::CStr = c"partywall_shim_version";

/// Opens the first real driver; `None` if there is none.
pub(super) fn open() -> Option<*mut c_void> {
    if let Some(path) = variable(environment::REAL_CUDA) {
        let path = PathBuf::from(path);
        let opened = try_open(&path);
        if opened.is_none() {
            say(&format!(
                "{}={}: cannot be loaded as the CUDA driver",
                environment::REAL_CUDA,
                path.display()
            ));
        }
        return opened;
    }
    let library_path = variable("LD_LIBRARY_PATH").unwrap_or_default();
    candidates(&library_path, &configured(Path::new(LOADER_CONFIGURATION)))
        .into_iter()
        .find_map(|path| try_open(&path))
}

/// Every path to try, in order.
fn candidates(library_path: &OsStr, configured: &[PathBuf]) -> Vec<PathBuf> {
    let listed = library_path.as_bytes().split(|byte| matches!(byte, b':' | b';'));
    let listed =
        listed.filter(|folder| !folder.is_empty()).map(|folder| PathBuf::from(OsStr::from_bytes(folder)));
    let usual = FOLDERS.into_iter().map(PathBuf::from);
    listed.chain(configured.iter().cloned()).chain(usual).map(|folder| folder.join(FILE)).collect()
}

/// The folders that the loader's configuration names, in the order of its files' names.
fn configured(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    files.sort();
    let texts = files.into_iter().filter_map(|path| fs::read_to_string(path).ok());
    texts.flat_map(|text| folders_in(&text)).collect()
}

/// The folders in one file of the loader's configuration: absolute paths, one a line; `#` begins a comment.
fn folders_in(text: &str) -> Vec<PathBuf> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| line.starts_with('/')).map(PathBuf::from).collect()
}

/// Opens what lies at `path` unless it is this library, or a copy of it.
fn try_open(path: &Path) -> Option<*mut c_void> {
    let file = fs::metadata(path).ok()?;
    let ourselves = loader::ourselves().and_then(|object| fs::metadata(object.file()).ok());
    if ourselves.is_some_and(|own| (own.dev(), own.ino()) == (file.dev(), file.ino())) {
        return None;
    }
    // A path without a slash would be searched for. Links are not followed: a driver may look for its own files beside
    // the path under which it was loaded.
    let path = CString::new(std::path::absolute(path).ok()?.as_os_str().as_bytes()).ok()?;
    let handle = loader::open(&path, libc::RTLD_NOW | libc::RTLD_LOCAL);
    (!handle.is_null() && loader::symbol(handle, MARK).is_null()).then_some(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_loaders() {
        let configured = [PathBuf::from("/opt/driver")];
        let paths = candidates(OsStr::new("/a:/b;;/c"), &configured);
        let expected = ["/a/libcuda.so.1", "/b/libcuda.so.1", "/c/libcuda.so.1", "/opt/driver/libcuda.so.1"];
        assert!(paths.iter().zip(expected).all(|(path, expected)| path == Path::new(expected)), "{paths:?}");
        assert_eq!(paths.len(), 4 + FOLDERS.len());
    }

    #[test]
    fn the_loaders_configuration_is_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b.conf"), "/second # why\n").unwrap();
        fs::write(folder.path().join("a.conf"), "# nothing\n\ninclude x/*.conf\n  /first\n").unwrap();
        fs::write(folder.path().join("c.txt"), "/third\n").unwrap();
        assert_eq!(configured(folder.path()), [PathBuf::from("/first"), PathBuf::from("/second")]);
        assert!(configured(&folder.path().join("missing")).is_empty());
    }

    #[test]
    fn what_is_no_library_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert!(try_open(&path).is_none(), "missing");
        fs::write(&path, "not a library").unwrap();
        assert!(try_open(&path).is_none());
        assert!(try_open(&std::env::current_exe().unwrap()).is_none(), "this program itself");
    }
}
