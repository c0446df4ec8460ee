//! Whether this process is a client of an MPS daemon.
//!
//! The stand-in for `nvidia-cuda-mps-control` (a script of the driver crate) leaves its process id and its start time in
//! `soft-mps` in the pipe directory; a real daemon does not, and nothing here takes one for its own. A process becomes its
//! client when the daemon is alive at the time of `cuInit`: it puts its start time into `clients/<pid>`, which is all that
//! the daemon knows of its clients (those that a fault has ended are in `faulted`, too), and takes the daemon's default percentage from `percentage`. The *group* of a daemon's
//! clients is a number made from the identity of the pipe directory, so that several daemons do not get in each other's way.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::device::process;
use crate::environment;

/// Where the daemon listens unless told otherwise; the real one's default.
const DEFAULT_PIPE_DIRECTORY: &str = concat!("/tmp", "/nvidia-mps");

/// The file in the pipe directory with the daemon's process id and start time, in decimal.
const DAEMON: &str = "soft-mps";

/// The folder in the pipe directory with a file for each client.
const CLIENTS: &str = "clients";

/// The same for those that a fault has ended.
const FAULTED: &str = "faulted";

/// The file in the pipe directory with the most that a client may have of the SMs, per cent.
const PERCENTAGE: &str = "percentage";

/// What MPS leaves to this process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Client {
    /// See [`group`].
    pub group: u64,
    /// Share of the SMs, from 0 (exclusive) to 1.
    pub sm_share: f64,
}

/// Makes this process a client of the daemon that its environment names, if that is alive.
pub fn client() -> Option<Client> {
    client_of(&directory(), environment::text(environment::MPS_PERCENTAGE).as_deref())
}

/// A fault has ended all clients of the daemon that this process is a client of.
pub fn clients_have_faulted() {
    // Where nothing can be written there is no daemon any more that could say so.
    let _ = copy_clients(&directory());
}

fn copy_clients(directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory.join(FAULTED))?;
    for client in fs::read_dir(directory.join(CLIENTS))? {
        let client = client?;
        fs::copy(client.path(), directory.join(FAULTED).join(client.file_name()))?;
    }
    Ok(())
}

/// Where the daemon listens that this process's environment names.
fn directory() -> PathBuf {
    let named = environment::get(environment::MPS_PIPE_DIRECTORY).filter(|path| !path.is_empty());
    named.unwrap_or_else(|| DEFAULT_PIPE_DIRECTORY.into()).into()
}

/// Makes this process a client of the daemon that listens in `directory`; `own` is the percentage that it asks for.
fn client_of(directory: &Path, own: Option<&str>) -> Option<Client> {
    let group = daemon(directory)?;
    let pid = std::process::id();
    let start = process::start_time(pid)?;
    // Whole or not at all: the daemon may look at any time. Where it cannot be written, the daemon is as good as gone.
    let new = directory.join(format!(".{pid}.new"));
    fs::write(&new, format!("{start}\n")).ok()?;
    fs::rename(&new, directory.join(CLIENTS).join(pid.to_string())).ok()?;
    let most =
        fs::read_to_string(directory.join(PERCENTAGE)).ok().and_then(|text| share(&text)).unwrap_or(1.0);
    // A client's own percentage can only lower the daemon's.
    let sm_share = own.and_then(share).unwrap_or(1.0).min(most);
    Some(Client { group, sm_share })
}

/// The group of the daemon that listens in `directory`; `None` where there is none alive.
fn daemon(directory: &Path) -> Option<u64> {
    let text = fs::read_to_string(directory.join(DAEMON)).ok()?;
    let (pid, start) = text.trim().split_once(' ')?;
    let start: u64 = start.parse().ok()?;
    if process::start_time(pid.parse().ok()?)? == start { group(directory) } else { None }
}

/// The number that stands for the clients of the daemon of this pipe directory; never 0.
pub fn group(directory: &Path) -> Option<u64> {
    let meta = fs::metadata(directory).ok()?;
    // The top bit sets groups apart from process ids, which are the groups of processes outside MPS.
    Some((meta.dev() << 48) ^ meta.ino() | 1 << 63)
}

/// A percentage as `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` has it, as a share; `None` for what the daemon would ignore.
fn share(text: &str) -> Option<f64> {
    let percent: f64 = text.trim().parse().ok()?;
    (percent > 0.0 && percent <= 100.0).then_some(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_one_whose_process_lives() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(daemon(directory.path()), None);
        write_daemon(directory.path());
        assert_eq!(daemon(directory.path()), group(directory.path()));
        let reused = format!("{} 1\n", std::process::id());
        for text in ["4294967295 1", &reused, "no number", "7", ""] {
            fs::write(directory.path().join(DAEMON), text).unwrap();
            assert_eq!(daemon(directory.path()), None, "{text}");
        }
    }

    fn write_daemon(directory: &Path) {
        let pid = std::process::id();
        let start = process::start_time(pid).unwrap();
        fs::write(directory.join(DAEMON), format!("{pid} {start}\n")).unwrap();
    }

    #[test]
    fn a_client_is_on_the_daemons_list_and_within_its_percentage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write_daemon(path);
        assert_eq!(client_of(path, None), None, "its list cannot be written to");
        fs::create_dir(path.join(CLIENTS)).unwrap();
        let share = |own| client_of(path, own).unwrap().sm_share;
        assert_eq!((share(None), share(Some("40"))), (1.0, 0.4));
        fs::write(path.join(PERCENTAGE), "50.0\n").unwrap();
        assert_eq!((share(None), share(Some("40")), share(Some("80"))), (0.5, 0.4, 0.5));
        let pid = std::process::id();
        let listed = fs::read_to_string(path.join(CLIENTS).join(pid.to_string())).unwrap();
        assert_eq!(listed.trim().parse::<u64>().ok(), process::start_time(pid));
        fs::remove_file(path.join(DAEMON)).unwrap();
        assert_eq!(client_of(path, None), None);
    }

    #[test]
    fn percentages_are_above_0_and_at_most_100() {
        for (text, expect) in [
            ("50", Some(0.5)),
            (" 12.5\n", Some(0.125)),
            ("0", None),
            ("101", None),
            ("x", None),
            ("NaN", None),
        ] {
            assert_eq!(share(text), expect, "{text}");
        }
    }
}
