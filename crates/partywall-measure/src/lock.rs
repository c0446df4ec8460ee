//! One measurement at a time on a machine: two would measure each other.
//!
//! The lock is the kernel's (`flock`), so it is gone with its holder however that ends; the file only carries who holds
//! it, and is removed at the end.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The file's name.
pub const NAME: &str = "partywall-measure.lock";

/// How often a file that vanished between opening and locking is opened again.
const ATTEMPTS: u32 = 16;

/// Why a measurement may not start.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another one runs.
    #[error(
        "another `partywall measure` is at work on this machine ({holder}): two would measure each other; wait until it is done"
    )]
    Held {
        /// The process, as far as it said.
        holder: String,
    },
    /// The file cannot be used.
    #[error("cannot lock {path}: {error}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

/// The lock, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the lock in `directory`; all users of the machine should give the same one.
    ///
    /// # Errors
    /// When another process has it, or the file cannot be made.
    pub fn take(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join(NAME);
        let failed = |error: std::io::Error| LockError::File { path: path.clone(), error };
        for _ in 0..ATTEMPTS {
            let mut file = open(&path).map_err(failed)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(LockError::Held { holder: holder(&mut file) });
            }
            // Its last holder may have removed it after we opened it: then others lock a new file.
            if !is_still(&path, &file) {
                continue;
            }
            let said = file.set_len(0).and_then(|()| writeln!(file, "process {}", std::process::id()));
            said.map_err(failed)?;
            return Ok(Self { path, _file: file });
        }
        Err(LockError::Held { holder: "several at once".to_owned() })
    }

    /// The folder that it is in.
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still locked, so that nobody else's file is removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path)
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.take(64).read_to_string(&mut text));
    let text = text.trim();
    if read.is_ok() && !text.is_empty() {
        text.escape_default().to_string()
    } else {
        "process unknown".to_owned()
    }
}

fn is_still(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let same = |a: std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    std::fs::metadata(path).and_then(|there| Ok(same(there, file.metadata()?))).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_and_nothing_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::take(directory.path()).unwrap();
        let refused = Lock::take(directory.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("(process {})", std::process::id())), "{refused}");
        drop(first);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        drop(Lock::take(directory.path()).unwrap());
    }

    #[test]
    fn a_file_that_a_dead_holder_left_is_no_obstacle() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(NAME), "process 1\n and much more").unwrap();
        let lock = Lock::take(directory.path()).unwrap();
        let text = std::fs::read_to_string(directory.path().join(NAME)).unwrap();
        assert_eq!(text, format!("process {}\n", std::process::id()));
        drop(lock);
        let error = Lock::take(&directory.path().join("nowhere")).unwrap_err().to_string();
        assert!(error.starts_with("cannot lock "), "{error}");
    }
}
