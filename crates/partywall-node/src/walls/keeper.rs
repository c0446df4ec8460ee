//! The keeper of a node's MPS daemon: the daemon's parent, as a shepherd is a tenant's.
//!
//! It is a process of its own so that the node can die and come back under running tenants. It ends the daemon when it is told to
//! (SIGTERM), and when nobody is left whom the daemon could serve: no node has the folder and no tenant of the folder runs,
//! for a while. If it is killed, the kernel ends the daemon.

use std::fs;
use std::path::{Path, PathBuf};

use partywall_core::units::Nanos;
use partywall_driver::mps::{MpsDaemon, MpsOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::error::Error;
use crate::folder::{Folder, private_file, write_whole};
use crate::process::{self, Identity};
use crate::shepherd::status;
use crate::signals::Arrivals;

/// How often the keeper looks after its daemon and its folder.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// How long a folder may have neither node nor tenants: a node that ended by accident is started again within seconds.
const ORPHANED_FOR: Nanos = Nanos::from_secs(5);

/// What a keeper says on its output once its daemon answers; anything else is why not.
pub(super) const UP: &str = "up";

/// The file `mps.json`: who keeps the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// The boot that start times count from.
    pub(super) boot: String,
    /// The keeper.
    pub(super) keeper: Identity,
    /// The daemon.
    pub(super) daemon: u32,
}

impl Kept {
    /// What the file says, if it makes sense.
    pub(super) fn read(folder: &Folder) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.mps_kept()).ok()?).ok()
    }
}

/// Starts a daemon in `folder` and stays with it. `gpu` is the UUID of the GPU that it serves; `say` gets one line: `up`, or why not.
///
/// # Errors
/// When the system refuses what it needs, or the daemon ended by itself.
pub fn keep(
    folder: &Folder,
    control: PathBuf,
    gpu: Option<String>,
    say: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    // Fails only for the leader of a process group, which has a session for itself already or does not want one.
    let _ = rustix::process::setsid();
    let mut stops = [Signal::TERM, Signal::INT, Signal::HUP]
        .map(Arrivals::of)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let lock_path = folder.mps_lock();
    let lock = private_file(&lock_path).map_err(Error::file("open", &lock_path))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return say("the folder's last MPS daemon is just starting or ending; try again");
    }
    let options = MpsOptions { gpu, ..MpsOptions::new(control, folder.path()) };
    let mut daemon = match MpsDaemon::start_in(&options, &folder.mps()) {
        Ok(daemon) => daemon,
        Err(error) => return say(&error.to_string()),
    };
    let kept = Identity::own().map(|keeper| Kept { boot: process::boot_id(), keeper, daemon: daemon.pid() });
    let written = kept.ok_or_else(|| Error::Refused("/proc is not there".to_owned())).and_then(|kept| {
        let text = serde_json::to_vec(&kept)
            .map_err(|error| Error::file("write", folder.mps_kept())(error.into()))?;
        write_whole(&folder.mps_kept(), &text)
    });
    if let Err(error) = written {
        drop(daemon);
        return say(&error.to_string());
    }
    // Nobody there to hear it: then the folder is an orphan soon.
    let _ = say(UP);
    let ended = stay(folder, &mut daemon, &mut stops);
    let _ = fs::remove_file(folder.mps_kept());
    // Dropping it would do the same, and could not say that files are left.
    let stopped = daemon.stop().map(|_| ()).map_err(|error| Error::Refused(error.to_string()));
    ended.and(stopped)
}

fn stay(folder: &Folder, daemon: &mut MpsDaemon, stops: &mut [Arrivals]) -> Result<(), Error> {
    let boot = process::boot_id();
    let mut needed = clock::now();
    loop {
        let mut waiting: Vec<PollFd<'_>> =
            stops.iter().map(|stop| PollFd::new(stop, PollFlags::IN)).collect();
        // An interrupted wait is looked at like one that came to its end.
        let _ = poll(&mut waiting, Some(&LOOK_EVERY));
        if stops.iter_mut().fold(false, |any, stop| stop.take() | any) {
            return Ok(());
        }
        if let Some(error) = daemon.ended() {
            return Err(Error::Refused(error.to_string()));
        }
        let now = clock::now();
        if folder.is_locked() || has_tenants(folder.path(), &boot) {
            needed = now;
        } else if now.saturating_sub(needed) > ORPHANED_FOR {
            return Ok(());
        }
    }
}

/// Whether any tenant of the folder runs.
fn has_tenants(folder: &Path, boot: &str) -> bool {
    let tenants = fs::read_dir(folder.join("tenants")).into_iter().flatten().flatten();
    let mut statuses = tenants.filter_map(|tenant| status::read(&tenant.path().join("shepherd.json")));
    statuses.any(|status| status.boot == boot && status.end.is_none() && status.shepherd.is_alive())
}
