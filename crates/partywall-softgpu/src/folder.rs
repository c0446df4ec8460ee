//! The driver folder: where this library was loaded from, and what lies beside it.

use std::ffi::{CStr, OsStr, c_void};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use partywall_core::soft_gpu::{FILE, FORMAT, SoftGpu};

use crate::device::layout::{MAGIC, Shared};
use crate::environment;

/// With what the name of the file begins that all processes map. The version of its layout follows: programs of another one, left from before
/// an update or built beside this one, have a device of their own and do not meet what they cannot read.
pub const STATE: &str = "device";

/// Why there is no device.
#[derive(Debug)]
pub struct FolderError(String);

impl std::fmt::Display for FolderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FolderError {}

/// A driver folder and the device that its `gpu.json` describes.
#[derive(Debug, Clone, PartialEq)]
pub struct Folder {
    path: PathBuf,
    figures: SoftGpu,
}

impl Folder {
    /// The folder of this process: `PARTYWALL_SOFTGPU_DIR`, else where the library was loaded from.
    ///
    /// # Errors
    /// As [`Folder::open`]; also where the loader does not say where the library is.
    pub fn of_this_process() -> Result<Self, FolderError> {
        if let Some(path) = environment::get(environment::DIRECTORY).filter(|path| !path.is_empty()) {
            return Self::open(Path::new(&path));
        }
        let library = own_path().ok_or_else(|| {
            FolderError(format!(
                "the loader does not say where this library is; set {}",
                environment::DIRECTORY
            ))
        })?;
        // The path by which it was loaded, links not resolved: the links are what lies in the folder.
        Self::open(library.parent().unwrap_or_else(|| Path::new(".")))
    }

    /// The folder at `path`.
    ///
    /// # Errors
    /// Where its `gpu.json` is missing, is not that of a simulated device, or has another format.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let file = path.join(FILE);
        let text = fs::read_to_string(&file).map_err(|error| describe(&file, &error))?;
        let figures: SoftGpu = serde_json::from_str(&text)
            .map_err(|error| FolderError(format!("{}: not a simulated device: {error}", file.display())))?;
        if figures.format != FORMAT {
            let found = figures.format;
            return Err(FolderError(format!(
                "{}: format {found}, and this library reads {FORMAT}; make the folder anew",
                file.display()
            )));
        }
        Ok(Self { path: path.to_owned(), figures })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the device is.
    pub fn figures(&self) -> &SoftGpu {
        &self.figures
    }

    /// The file of the shared state.
    pub fn state(&self) -> PathBuf {
        self.path.join(format!("{STATE}-{:x}-{:x}", MAGIC & 0xffff, size_of::<Shared>()))
    }
}

fn describe(file: &Path, error: &io::Error) -> FolderError {
    FolderError(format!(
        "{}: {error}; this library is part of a driver folder, as `partywall --gpu sim:…` makes them",
        file.display()
    ))
}

/// The path under which the object with this code was loaded.
fn own_path() -> Option<PathBuf> {
    static HERE: u8 = 0;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address is that of a static of this object, and `info` is a valid place for the answer.
    let found = unsafe { libc::dladdr((&raw const HERE).cast::<c_void>(), info.as_mut_ptr()) };
    // SAFETY: all zeroes is a valid `Dl_info` of null pointers, and dladdr wrote over it.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: on success this is a string that the loader keeps for as long as the object is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use partywall_core::catalogue::Catalogue;

    /// A folder for a model of the catalogue, which lives for as long as the result.
    pub(crate) fn made(id: &str) -> (tempfile::TempDir, Folder) {
        let directory = tempfile::tempdir().unwrap();
        let gpu = Catalogue::builtin().unwrap().get(id).unwrap().clone();
        let figures = SoftGpu::new(&gpu, "NVIDIA Test");
        fs::write(directory.path().join(FILE), serde_json::to_string(&figures).unwrap()).unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        (directory, folder)
    }

    #[test]
    fn a_folder_says_what_the_device_is() {
        let (directory, folder) = made("h200");
        assert_eq!(folder.figures().gpu.sms.value, 132);
        let state = folder.state();
        assert_eq!(state.parent(), Some(directory.path()));
        let version = format!("device-{:x}-{:x}", MAGIC & 0xffff, size_of::<Shared>());
        assert_eq!(state.file_name(), Some(OsStr::new(&version)));
    }

    #[test]
    fn what_is_no_driver_folder_is_said() {
        let (directory, folder) = made("l4");
        let file = directory.path().join(FILE);
        let check = |text: &str, expect: &str| {
            fs::write(&file, text).unwrap();
            let error = Folder::open(directory.path()).unwrap_err().to_string();
            assert!(error.contains(expect) && error.contains("gpu.json"), "{error}");
        };
        check("{", "not a simulated device");
        let other = serde_json::to_string(&SoftGpu { format: 7, ..folder.figures().clone() }).unwrap();
        check(&other, "format 7, and this library reads 1");
        fs::remove_file(&file).unwrap();
        let error = Folder::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("part of a driver folder"), "{error}");
    }

    #[test]
    fn the_loader_knows_where_this_code_is() {
        assert!(own_path().unwrap().exists());
    }
}
