//! The MPS server's log: whether it names processes in connection with a fault.
//!
//! The server writes to a file of the log directory, and to what its daemon was given for an output where that stays in the foreground.
//! Its text is documented nowhere and differs between drivers, so a line only counts if it speaks of a fault and has the id of a process
//! that is looked for, which is a whole number there. Where nothing of that kind is written, nothing is found.
//!
//! Driver 580 says of one client that it "encountered a fatal GPU error", and then of each of them in turn that it is "error trigging". The one was
//! the culprit in one fault on an H200 and an innocent one in the next: the client that had been there longest in both. So a log that blames more
//! than one names nobody.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// What a line about a fault has one of.
const FAULT: [&str; 3] = ["fault", "fatal", "exception"];

/// What is said of clients that only suffer from it, or leave.
const CONSEQUENCE: [&str; 3] = ["disconnect", "exit", "waiting"];

/// What is said of whom the server takes for the cause: of all clients, by a driver that does not know.
const BLAMED: [&str; 2] = ["error trigging", "error triggering"];

/// Read at once, from the end: what was written since the last look is a few lines.
const READ_BYTES: u64 = 64 << 10;

/// Where the server may write, in the daemon's directory.
const FILES: [&str; 2] = ["log/server.log", "output"];

/// The log of the server that the node's daemon starts.
#[derive(Debug)]
pub(crate) struct ServerLog([Tail; FILES.len()]);

#[derive(Debug)]
struct Tail {
    path: PathBuf,
    /// What was there before does not count any more.
    from: u64,
}

impl ServerLog {
    /// Of the daemon in this directory, from its end on.
    pub(crate) fn of(directory: &Path) -> Self {
        let mut log = Self(FILES.map(|file| Tail { path: directory.join(file), from: 0 }));
        log.skip();
        log
    }

    /// Forgets what is there now.
    pub(crate) fn skip(&mut self) {
        for tail in &mut self.0 {
            tail.from = tail.path.metadata().map_or(0, |found| found.len());
        }
    }

    /// The processes of these that are named in connection with a fault since the last [`ServerLog::skip`].
    pub(crate) fn named(&self, pids: &BTreeSet<u32>) -> BTreeSet<u32> {
        self.0.iter().filter_map(|tail| tail.text().ok()).flat_map(|text| named(&text, pids)).collect()
    }
}

impl Tail {
    fn text(&self) -> std::io::Result<String> {
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        // A new server may have begun a new file.
        let from = if self.from > length { 0 } else { self.from };
        file.seek(SeekFrom::Start(from.max(length.saturating_sub(READ_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(READ_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn named(text: &str, pids: &BTreeSet<u32>) -> BTreeSet<u32> {
    let (mut found, mut blamed) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        // The time and the process that writes, in brackets.
        let said = line.split_once("] ").map_or(line, |(_, said)| said).to_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
        let numbers = said.split(|c: char| !c.is_ascii_alphanumeric()).filter_map(|word| word.parse().ok());
        let processes = numbers.filter(|number| pids.contains(number));
        if has(&BLAMED) {
            blamed.extend(processes);
        } else if has(&FAULT) && !has(&CONSEQUENCE) {
            found.extend(processes);
        }
    }
    if blamed.len() > 1 { BTreeSet::new() } else { found }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn processes_are_named_by_lines_about_faults_alone() {
        let pids = BTreeSet::from([4267, 4281, 4428]);
        for (line, expected) in [
            ("[2026-04-28 18:20:41.986 Server 4428] Client {PID: 4267, Context ID: 0} connected", &[][..]),
            (
                "[2026-04-28 18:20:41.986 Server 4428] Fatal GPU exception in client {PID: 4267, Context ID: 0}",
                &[4267],
            ),
            ("[2026-04-28 18:20:41.986 Server 4428] Fatal fault; client {PID: 4281} disconnected", &[]),
            (
                "[2026-04-28 18:20:41.986 Server 4428] Client process 4281 encountered a FAULT at 0x4267",
                &[4281],
            ),
            ("[2026-04-28 18:20:41.986 Server 4428] Status changed to FAULT", &[]),
            ("exception: 4267 and 4281 and 14281", &[4267, 4281]),
            // Driver 580, of each client in turn.
            (
                "[2026-11-22 06:30:18.785 Server  4428] All clients belonging to error trigging process 4267 will be torn down",
                &[],
            ),
        ] {
            assert_eq!(named(line, &pids), expected.iter().copied().collect(), "{line}");
        }
    }

    /// What driver 580 wrote on an H200 when an illegal address of another client than 966 had ended all of them.
    #[test]
    fn who_blames_all_names_nobody() {
        let pids = BTreeSet::from([966, 1242]);
        let log = "[2026-11-22 15:23:47.383 Server   789] Client {PID: 966, Context: 1} encountered a fatal GPU error.\n\
                   [2026-11-22 15:23:47.383 Server   789] Server is handling a fatal GPU error.\n\
                   [2026-11-22 15:23:47.383 Server   789] All clients belonging to error trigging process 966 will be torn down\n\
                   [2026-11-22 15:23:47.383 Server   789] All clients belonging to error trigging process 1242 will be torn down\n";
        assert_eq!(named(log, &pids), BTreeSet::new());
        assert_eq!(named(log.lines().next().unwrap(), &pids), BTreeSet::from([966]));
        assert_eq!(named(log, &BTreeSet::from([966])), BTreeSet::from([966]), "the only client");
    }

    #[test]
    fn only_what_is_new_counts() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("log")).unwrap();
        let pids = BTreeSet::from([7]);
        let mut log = ServerLog::of(folder.path());
        assert_eq!(log.named(&pids), BTreeSet::new());
        let path = folder.path().join("log/server.log");
        let mut file = File::create(&path).unwrap();
        writeln!(file, "fault of 7").unwrap();
        assert_eq!(log.named(&pids), pids);
        log.skip();
        assert_eq!(log.named(&pids), BTreeSet::new());
        writeln!(file, "and another fault of 7").unwrap();
        assert_eq!(log.named(&pids), pids);
        std::fs::write(&path, "fault: 7\n").unwrap();
        assert_eq!(log.named(&pids), pids, "a new file");
        log.skip();
        std::fs::write(folder.path().join("output"), "[time Server 3] fault of client {PID: 7}\n").unwrap();
        assert_eq!(log.named(&pids), pids, "in the foreground");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_names_nobody_else(text in ".{0,300}", pid in 1u32..100) {
            let pids = BTreeSet::from([pid]);
            prop_assert!(named(&text, &pids).is_subset(&pids));
        }
    }
}
