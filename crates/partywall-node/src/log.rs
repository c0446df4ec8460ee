//! A tenant's log: what it wrote to its standard output and standard error, in the order in which it did.
//!
//! The files are bounded: the newest is `log`, and when it is full it becomes `log.1`, that `log.2`, and so on until
//! the oldest is gone. A disk that takes no more never holds the tenant up: what cannot be written is dropped and
//! counted, and once writing works again a line in the log says how much is missing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use crate::error::Error;
use crate::folder::TenantFolder;

/// Bytes of one file: small enough to open in an editor.
pub const FILE_BYTES_MAX: u64 = 8 << 20;
/// Bytes above that until a line ends: lines are kept whole up to here.
pub const LINE_BYTES_MAX: u64 = 64 << 10;
/// Older files that are kept: with the newest, 32 MiB a tenant.
pub const OLD_FILES: u32 = 3;

/// The writing end.
#[derive(Debug)]
pub struct Log {
    folder: TenantFolder,
    file: Option<File>,
    bytes: u64,
    at_line_start: bool,
    lost: u64,
    unsaid: u64,
}

impl Log {
    /// Goes on with the log in `folder`, or begins it. Where it cannot be opened, it is tried again at each write.
    pub fn open(folder: TenantFolder) -> Self {
        let mut log = Self { folder, file: None, bytes: 0, at_line_start: true, lost: 0, unsaid: 0 };
        log.reopen();
        log
    }

    /// Bytes that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Appends `bytes`, or counts what of them could not be.
    pub fn write(&mut self, bytes: &[u8]) {
        if self.is_full() {
            self.rotate();
        }
        if self.file.is_none() {
            self.reopen();
        }
        if self.unsaid > 0 {
            let gap = if self.at_line_start { "" } else { "\n" };
            let note = format!("{gap}[partywall: {} bytes of this log could not be written]\n", self.unsaid);
            if self.append(note.as_bytes()) == note.len() {
                self.unsaid = 0;
            }
        }
        // After a gap that could not be mentioned nothing may follow as if there were none.
        let written = if self.unsaid == 0 { self.append(bytes) } else { 0 };
        let missing = (bytes.len() - written) as u64;
        self.lost += missing;
        self.unsaid += missing;
    }

    /// Bytes of `bytes` that were written.
    fn append(&mut self, bytes: &[u8]) -> usize {
        let Some(file) = &mut self.file else { return 0 };
        let mut written = 0;
        while written < bytes.len() {
            match file.write(&bytes[written..]) {
                Ok(0) => break,
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if let Some(last) = written.checked_sub(1) {
            self.at_line_start = bytes[last] == b'\n';
        }
        self.bytes += written as u64;
        written
    }

    fn is_full(&self) -> bool {
        let max = if self.at_line_start { FILE_BYTES_MAX } else { FILE_BYTES_MAX + LINE_BYTES_MAX };
        self.bytes >= max
    }

    fn rotate(&mut self) {
        self.file = None;
        for age in (1..OLD_FILES).rev() {
            // One that is not there need not be moved.
            let _ = fs::rename(self.folder.old_log(age), self.folder.old_log(age + 1));
        }
        // Where this does not work the full file is found again, and what follows is dropped: the bound holds.
        let _ = fs::rename(self.folder.log(), self.folder.old_log(1));
        self.reopen();
    }

    fn reopen(&mut self) {
        let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(self.folder.log());
        let Ok(file) = opened else { return };
        let Ok(found) = file.metadata() else { return };
        self.bytes = if found.is_file() { found.len() } else { 0 };
        // A line that a shepherd before this one did not end, nobody ends any more.
        self.at_line_start = true;
        if !self.is_full() {
            self.file = Some(file);
        }
    }
}

/// The reading end: follows a log over its files.
#[derive(Debug)]
pub struct Follower {
    folder: TenantFolder,
    file: Option<File>,
}

impl Follower {
    /// From the oldest byte that is kept.
    pub fn from_start(folder: TenantFolder) -> Self {
        let oldest = (1..=OLD_FILES).rev().map(|age| folder.old_log(age)).chain([folder.log()]);
        let file = oldest.into_iter().find_map(|path| File::open(path).ok());
        Self { folder, file }
    }

    /// From what is written from now on.
    pub fn from_now(folder: TenantFolder) -> Self {
        let mut file = File::open(folder.log()).ok();
        // Not every file can be sought in; then there is nothing before now either.
        let _ = file.as_mut().map(|file| file.seek(SeekFrom::End(0)));
        Self { folder, file }
    }

    /// Appends to `out` what is there to be read now, at most `limit` bytes; says how much.
    ///
    /// # Errors
    /// When a file cannot be read. That there is no log (yet) is none.
    pub fn read(&mut self, out: &mut Vec<u8>, limit: u64) -> Result<u64, Error> {
        let mut total = 0;
        while total < limit {
            let Some(file) = &mut self.file else {
                self.file = File::open(self.folder.log()).ok();
                if self.file.is_none() {
                    break;
                }
                continue;
            };
            // Looked up before reading: what is written between the two is read, or is in the next file.
            let next = newer(&self.folder, file).map_err(Error::file("look at", self.folder.log()))?;
            let read = file.take(limit - total).read_to_end(out);
            let read = read.map_err(Error::file("read", self.folder.log()))? as u64;
            total += read;
            match next {
                Some(path) if total < limit => self.file = File::open(path).ok(),
                _ if read == 0 => break,
                _ => {}
            }
        }
        Ok(total)
    }
}

/// The file after `file`; `None` while it is the newest.
fn newer(folder: &TenantFolder, file: &File) -> io::Result<Option<PathBuf>> {
    let ours = file.metadata().map(|found| (found.dev(), found.ino()))?;
    let is_ours = |path: PathBuf| fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == ours);
    if is_ours(folder.log()) {
        return Ok(None);
    }
    let age = (1..=OLD_FILES).find(|age| is_ours(folder.old_log(*age)));
    Ok(Some(match age {
        Some(1) => folder.log(),
        Some(age) => folder.old_log(age - 1),
        // Gone already: what followed it is the oldest that is left.
        None => (1..=OLD_FILES)
            .rev()
            .map(|age| folder.old_log(age))
            .find(|path| path.exists())
            .unwrap_or(folder.log()),
    })
    .filter(|path| path.exists()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn scratch() -> (tempfile::TempDir, TenantFolder) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = TenantFolder::at(scratch.path());
        (scratch, folder)
    }

    fn all(follower: &mut Follower) -> Vec<u8> {
        let mut out = Vec::new();
        follower.read(&mut out, u64::MAX).unwrap();
        out
    }

    #[test]
    fn a_log_is_bounded_and_its_end_is_kept() {
        let (scratch, folder) = scratch();
        let mut log = Log::open(folder.clone());
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        let lines = 5 * FILE_BYTES_MAX / 1024;
        for number in 0..lines {
            log.write(format!("{number:>9}").as_bytes());
            log.write(&line);
        }
        let size = |entry: io::Result<fs::DirEntry>| entry.unwrap().metadata().unwrap().len();
        let sizes: Vec<u64> = fs::read_dir(scratch.path()).unwrap().map(size).collect();
        assert_eq!(sizes.len(), 1 + OLD_FILES as usize);
        assert!(sizes.iter().all(|size| *size <= FILE_BYTES_MAX + LINE_BYTES_MAX), "{sizes:?}");
        let kept = all(&mut Follower::from_start(folder));
        let last = format!("{:>9}", lines - 1);
        assert_eq!(&kept[kept.len() - 1033..][..9], last.as_bytes());
        assert_eq!(kept.len() % 1033, 0, "lines are whole");
        assert_eq!(log.lost(), 0);
    }

    #[test]
    fn a_follower_goes_on_over_files() {
        let (_scratch, folder) = scratch();
        let mut log = Log::open(folder.clone());
        log.write(b"before\n");
        let (mut now, mut start) = (Follower::from_now(folder.clone()), Follower::from_start(folder));
        for text in ["one\n", "two\n", "three\n"] {
            log.write(text.as_bytes());
            log.rotate();
        }
        log.write(b"four\n");
        assert_eq!(all(&mut now), b"one\ntwo\nthree\nfour\n");
        assert_eq!(all(&mut start), b"before\none\ntwo\nthree\nfour\n");
        assert_eq!(all(&mut start), b"");
        log.write(b"five\n");
        assert_eq!((all(&mut now), all(&mut start)), (b"five\n".to_vec(), b"five\n".to_vec()));
    }

    #[test]
    fn what_a_full_disk_does_not_take_is_counted_and_said() {
        let (_scratch, folder) = scratch();
        // Every write to it ends as one to a full disk.
        symlink("/dev/full", folder.log()).unwrap();
        let mut log = Log::open(folder.clone());
        log.write(b"twelve bytes");
        assert_eq!(log.lost(), 12);
        // The disk has room again.
        fs::remove_file(folder.log()).unwrap();
        log.file = None;
        log.write(b"after\n");
        assert_eq!(log.lost(), 12);
        let text = String::from_utf8(all(&mut Follower::from_start(folder))).unwrap();
        assert_eq!(text, "[partywall: 12 bytes of this log could not be written]\nafter\n");
    }

    #[test]
    fn no_log_is_no_error() {
        let (_scratch, folder) = scratch();
        assert_eq!(all(&mut Follower::from_start(folder.clone())), b"");
        assert_eq!(all(&mut Follower::from_now(folder)), b"");
    }
}
