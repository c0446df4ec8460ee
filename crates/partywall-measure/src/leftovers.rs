//! What a measurement that was killed left in the temporary folder: private directories of its MPS daemons, the empty
//! one of tenants without MPS, the sockets of its nodes, and what told tenants of sides. It cannot remove them itself, and the next one does.
//!
//! Whoever holds the [`Lock`] is the only measurement, so that these directories are nobody's, with one exception: what
//! the killed one started may still be ending, an MPS daemon for seconds. Its processes carry the directory in
//! their environment. Where one is found, the directory stays for the measurement after.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use partywall_driver::mps::DIRECTORY_PREFIX;
use rustix::process::geteuid;

use crate::gpu::EMPTY_PREFIX;
use crate::lock::Lock;
use crate::node::NODE_PREFIX;
use crate::sides::SIDES_PREFIX;

/// Removes such directories from the folder that `lock` is in; how many there were. Only what has a name of ours, is a
/// directory and no link to one, belongs to this user, and is in no process's environment.
pub fn remove(lock: &Lock) -> usize {
    let entries = fs::read_dir(lock.directory()).into_iter().flatten().flatten();
    let left: Vec<_> = entries.filter(|entry| is_ours(&entry.file_name(), &entry.path())).collect();
    if left.is_empty() {
        return 0;
    }
    let environments = environments();
    let unused = left
        .iter()
        .map(fs::DirEntry::path)
        .filter(|path| !environments.iter().any(|environment| names(environment, path)));
    // What cannot be removed is in nobody's way.
    unused.filter(|path| fs::remove_dir_all(path).is_ok()).count()
}

fn is_ours(name: &OsStr, path: &Path) -> bool {
    let random = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let named = name.to_str().is_some_and(|name| {
        [DIRECTORY_PREFIX, EMPTY_PREFIX, NODE_PREFIX, SIDES_PREFIX]
            .iter()
            .any(|prefix| name.strip_prefix(prefix).is_some_and(random))
    });
    // Of the entry itself: a link says that it is one.
    let about = || fs::symlink_metadata(path);
    named && about().is_ok_and(|about| about.is_dir() && about.uid() == geteuid().as_raw())
}

/// Of every process that may be looked into: those of this user, at least.
fn environments() -> Vec<Vec<u8>> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes.filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit));
    numbered.filter_map(|entry| fs::read(entry.path().join("environ")).ok()).collect()
}

/// Whether a variable has `path`, or something in it, as its value.
fn names(environment: &[u8], path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    environment.split(|&byte| byte == 0).any(|variable| {
        let value = variable.splitn(2, |&byte| byte == b'=').nth(1);
        let rest = value.and_then(|value| value.strip_prefix(path));
        rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_directories_with_names_of_ours_go() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("kept"), "").unwrap();
        let at = |name: &str| folder.path().join(name);
        let gone = ["partywall-mps-a1B2c3", "partywall-no-mps-XyZ123"];
        let kept = [
            "partywall-mps-",
            "partywall-mps-a.b",
            "partywall-mps-a-b",
            "partywall-soft-0",
            "mps-a1B2c3",
            "tmp",
        ];
        gone.iter().chain(&kept).for_each(|name| fs::create_dir_all(at(name).join("pipe")).unwrap());
        fs::write(at("partywall-mps-a1B2c3").join("pipe/control"), "").unwrap();
        fs::write(at("partywall-mps-aFile"), "").unwrap();
        symlink(elsewhere.path(), at("partywall-mps-aLink")).unwrap();
        symlink(elsewhere.path(), at("partywall-no-mps-XyZ123").join("inner")).unwrap();
        let lock = Lock::take(folder.path()).unwrap();
        assert_eq!(remove(&lock), gone.len());
        assert!(gone.iter().all(|name| !at(name).exists()));
        assert!(kept.iter().all(|name| at(name).join("pipe").exists()));
        assert!(at("partywall-mps-aFile").exists() && at("partywall-mps-aLink").exists());
        assert!(elsewhere.path().join("kept").exists(), "links are not followed");
        assert_eq!(remove(&lock), 0);
    }

    #[test]
    fn a_directory_that_a_process_still_uses_stays_until_it_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let used = folder.path().join("partywall-mps-used");
        fs::create_dir_all(used.join("pipe")).unwrap();
        // Waits for the end of its input, and no longer.
        let mut process = Command::new("cat")
            .env("CUDA_MPS_PIPE_DIRECTORY", used.join("pipe"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Who has only just been started may not show its environment yet. One that answers does.
        process.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        process.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let lock = Lock::take(folder.path()).unwrap();
        assert_eq!(remove(&lock), 0);
        assert!(used.exists());
        drop(process.stdin.take());
        process.wait().unwrap();
        assert_eq!(remove(&lock), 1);
        assert!(!used.exists());
    }

    #[test]
    fn a_longer_name_is_another_directory() {
        let path = Path::new("/folder/partywall-mps-a");
        for (environment, expected) in [
            ("X=1\0DIR=/folder/partywall-mps-a\0", true),
            ("DIR=/folder/partywall-mps-a/pipe", true),
            ("DIR=/folder/partywall-mps-ab/pipe\0", false),
            ("DIR=see /folder/partywall-mps-a\0", false),
            ("/folder/partywall-mps-a\0\0", false),
            ("", false),
        ] {
            assert_eq!(names(environment.as_bytes(), path), expected, "{environment}");
        }
    }
}
