//! A node's folder: where its sockets, its state and its tenants' logs are.
//!
//! ```text
//! <folder>/                 0700, the user's own
//!   node.lock               locked while a node owns the folder
//!   control.sock            what the command line talks to
//!   tenants.sock            what tenants' processes talk to
//!   state.json              what a node that is started again needs
//!   node.log                what a node in the background says
//!   http                    the address that it answers HTTP on
//!   mps/                    pipes and logs of the node's MPS daemon, where its wall has one
//!   mps.json, mps.lock      who keeps that daemon; locked while somebody does
//!   proof.json              what is being found out about SM sets
//!   no-mps/                 empty: the pipe directory of tenants that must not meet a daemon
//!   tenants/<name>/
//!     orders.json           what the shepherd is to start
//!     shepherd.json         how that is going
//!     log, log.1, ...       what the tenant wrote, the newest in `log`
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use partywall_core::units::Nanos;
use rustix::event::{Timespec, poll};
use rustix::fs::{FlockOperation, flock};

use crate::clock;
use crate::error::Error;

/// Longest path of a socket that the system takes, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// How often a folder is asked for before it counts as taken, and how long between: the kernel tells the other ends of a
/// dying node's connections before it gives up the lock, and whoever hears of it starts another one at once.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// What is said of a fault about which nothing is known yet.
pub const FAULT_REPORTED: &str = "a fault of the GPU in a client of the node's MPS daemon; whose it is, and whether it ends all clients, is being found out";

/// How often it is looked whether more is known.
const NOTE_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// A node's folder, whether a node owns it or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder(PathBuf);

impl Folder {
    /// At this path, which need not exist. A relative path is one of the current directory's: tenants may be elsewhere.
    ///
    /// # Errors
    /// When the path is too long for a socket in it, or there is no current directory.
    pub fn at(path: &Path) -> Result<Self, Error> {
        let path = std::path::absolute(path).map_err(Error::file("find", path))?;
        let folder = Self(path);
        let longest = folder.control_socket().as_os_str().len().max(folder.tenant_socket().as_os_str().len());
        if longest > SOCKET_PATH_MAX {
            return Err(Error::Refused(format!(
                "the folder {} is too long: sockets in it would have a path of {longest} bytes, and the system takes \
                 {SOCKET_PATH_MAX}; choose a shorter one with --dir",
                folder.0.display()
            )));
        }
        Ok(folder)
    }

    /// Its path, absolute.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it unless it exists, for this user only.
    ///
    /// # Errors
    /// When it cannot be made, is not a folder, or others may write to it or own it.
    pub fn create(&self) -> Result<(), Error> {
        private_folder(&self.0)?;
        private_folder(&self.0.join("tenants"))
    }

    /// Takes the folder for one node, until the lock is dropped or its process ends however it ends.
    ///
    /// # Errors
    /// [`Error::Taken`] when a node has it.
    pub fn lock(&self) -> Result<Lock, Error> {
        let path = self.0.join("node.lock");
        let mut file = private_file(&path).map_err(Error::file("open", &path))?;
        let taken = (0..LOCK_ATTEMPTS).any(|attempt| {
            if attempt > 0 {
                // A wait for nothing but time; cut short, it is just shorter.
                let _ = poll(&mut [], Some(&LOCK_EVERY));
            }
            flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if !taken {
            let mut text = String::new();
            // Who it is is a courtesy.
            let _ = file.read_to_string(&mut text);
            let known = text.trim().parse::<u32>().map(|pid| format!("process {pid}"));
            let holder = known.unwrap_or_else(|_| "its process is unknown".to_owned());
            return Err(Error::Taken { folder: self.0.clone(), holder });
        }
        // A full disk is no reason not to own the folder: the number is a courtesy.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Lock(file))
    }

    /// What the command line talks to.
    pub fn control_socket(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    /// What tenants' processes talk to.
    pub fn tenant_socket(&self) -> PathBuf {
        self.0.join("tenants.sock")
    }

    /// What a node that is started again needs.
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// Where the node answers HTTP: an address and a port, in a line.
    pub fn http(&self) -> PathBuf {
        self.0.join("http")
    }

    /// What a node in the background says.
    pub fn node_log(&self) -> PathBuf {
        self.0.join("node.log")
    }

    /// Where the node's MPS daemon listens.
    pub fn mps(&self) -> PathBuf {
        self.0.join("mps")
    }

    /// Who keeps that daemon.
    pub fn mps_kept(&self) -> PathBuf {
        self.0.join("mps.json")
    }

    /// What that process holds.
    pub fn mps_lock(&self) -> PathBuf {
        self.0.join("mps.lock")
    }

    /// What a prover is to do, while there is one.
    pub fn proof(&self) -> PathBuf {
        self.0.join("proof.json")
    }

    /// A pipe directory without a daemon.
    pub fn no_mps(&self) -> PathBuf {
        self.0.join("no-mps")
    }

    /// Whether a node owns it now.
    pub fn is_locked(&self) -> bool {
        let file = File::open(self.0.join("node.lock"));
        // Shared and for a moment: a node that wants it just then tries again.
        file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// The folder of a tenant.
    pub fn tenant(&self, name: &str) -> TenantFolder {
        TenantFolder(self.0.join("tenants").join(name))
    }
}

/// A tenant's part of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantFolder(PathBuf);

impl TenantFolder {
    /// At this path.
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it unless it exists.
    ///
    /// # Errors
    /// As [`Folder::create`].
    pub fn create(&self) -> Result<(), Error> {
        private_folder(&self.0)
    }

    /// What the shepherd is to start.
    pub fn orders(&self) -> PathBuf {
        self.0.join("orders.json")
    }

    /// How that is going.
    pub fn status(&self) -> PathBuf {
        self.0.join("shepherd.json")
    }

    /// Why a tenant that belongs to a terminal ends, where that is not of its own doing; usually not there.
    pub fn fault(&self) -> PathBuf {
        self.0.join("fault")
    }

    /// What the node left in [`TenantFolder::fault`]. Where it is still finding out, that is waited for, within `patience`.
    pub fn fault_note(&self, patience: Nanos) -> Option<String> {
        let until = clock::now().saturating_add(patience);
        loop {
            let note = fs::read_to_string(self.fault()).ok().filter(|text| !text.is_empty());
            if note.as_deref() != Some(FAULT_REPORTED) || clock::now() >= until {
                return note;
            }
            // Interrupted: then it is looked at earlier.
            let _ = poll(&mut [], Some(&NOTE_EVERY));
        }
    }

    /// The log that is written now.
    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// An older log: 1 is the newest of them.
    pub fn old_log(&self, age: u32) -> PathBuf {
        self.0.join(format!("log.{age}"))
    }
}

/// A folder that is owned, until this is dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock is the open file")] File);

/// Opens a file for reading and writing that only this user may touch, and makes it unless it exists.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Writes a file whole or not at all: beside its place first, then renamed. Only this user may read it.
///
/// # Errors
/// When the disk does not take it; the file is then as it was.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let beside = path.with_extension("new");
    let written = private_file(&beside).and_then(|mut file| {
        file.set_len(0)?;
        file.write_all(bytes)
    });
    let renamed = written.and_then(|()| fs::rename(&beside, path));
    renamed.map_err(|error| {
        // The error that led here is the one to report.
        let _ = fs::remove_file(&beside);
        Error::File { action: "write", path: path.to_owned(), error }
    })
}

/// A folder that is ours alone; above it, folders are made as usual.
pub(crate) fn private_folder(path: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(Error::file("create", path))?;
    // Not through a link: somebody else's link in a folder for all would lead us to a place of his choice.
    let found = fs::symlink_metadata(path).map_err(Error::file("look at", path))?;
    let owner = rustix::process::geteuid().as_raw();
    let wrong = if !found.is_dir() {
        "is no folder (a link is none)".to_owned()
    } else if found.uid() != owner {
        format!("belongs to the user {}", found.uid())
    } else if found.mode() & 0o022 != 0 {
        format!("may be written by others (mode {:o})", found.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(Error::Refused(format!(
        "{} {wrong}; a node needs a folder of its own: remove it, or choose another with --dir",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_folder_is_owned_by_one_node() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::at(&scratch.path().join("node")).unwrap();
        folder.create().unwrap();
        let lock = folder.lock().unwrap();
        let refused = folder.lock().unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        assert!(folder.is_locked());
        drop(lock);
        assert!(!folder.is_locked());
        drop(folder.lock().unwrap());
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_folder_that_is_not_ours_alone_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let refused = |name: &str| {
            let path = scratch.path().join(name);
            Folder::at(&path).unwrap().create().unwrap_err().to_string()
        };
        fs::create_dir(scratch.path().join("open")).unwrap();
        fs::set_permissions(scratch.path().join("open"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused("open").contains("may be written by others (mode 777)"));
        symlink(scratch.path(), scratch.path().join("link")).unwrap();
        assert!(refused("link").contains("is no folder"));
        fs::write(scratch.path().join("file"), "").unwrap();
        assert!(refused("file").contains("cannot create"));
        let long = Folder::at(&scratch.path().join("x".repeat(100))).unwrap_err().to_string();
        assert!(long.contains("too long"), "{long}");
    }

    #[test]
    fn a_file_is_written_whole_or_not_at_all() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state.json");
        write_whole(&path, b"longer text").unwrap();
        write_whole(&path, b"text").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"text");
        fs::create_dir(scratch.path().join("folder")).unwrap();
        write_whole(&scratch.path().join("folder"), b"text").unwrap_err();
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2);
    }
}
