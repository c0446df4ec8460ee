//! The node's hold on its MPS daemon, by way of the daemon's keeper.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use partywall_core::config::WallChoice;
use partywall_core::units::Nanos;
use partywall_driver::mps::Contact;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal};

use super::Site;
use super::keeper::{Kept, UP};
use crate::clock;
use crate::error::Error;
use crate::folder::Folder;
use crate::process::Identity;
use crate::proof::MpsPlace;

/// How long a daemon has to answer a question.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// How long a keeper has to end its daemon: more than it gives the daemon.
const STOP_LIMIT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// A daemon with its keeper.
#[derive(Debug)]
pub(super) struct Mps {
    keeper: Identity,
    fd: OwnedFd,
    /// Whether the keeper is a child of this process, which has to take note of its end.
    ours: bool,
    contact: Contact,
    place: MpsPlace,
    /// When the node began with it.
    since: Nanos,
}

impl Mps {
    /// The one that a node of the folder has started before, if it is there.
    pub(super) fn find(folder: &Folder, boot: &str, control: Option<&Path>) -> Option<Self> {
        let Kept { keeper, .. } = Kept::read(folder).filter(|kept| kept.boot == boot)?;
        let fd = keeper.open()?;
        // Without the program nothing can be asked, and the daemon can still be stopped.
        let contact = Contact::new(control.unwrap_or(Path::new("")), &folder.mps(), ANSWER_LIMIT);
        let place = MpsPlace { control: control.unwrap_or(Path::new("")).to_owned(), folder: folder.mps() };
        Some(Self { keeper, fd, ours: false, contact, place, since: clock::now() })
    }

    /// A new one.
    pub(super) fn start(
        site: &Site<'_>,
        control: &Path,
        gpu: Option<&str>,
        wall: WallChoice,
    ) -> Result<Self, Error> {
        let failed = |why: String| Error::Wall { wall, why };
        let mut command = Command::new(site.exe);
        command.arg("mps-keeper").arg("--dir").arg(site.folder.path()).arg("--control").arg(control);
        command.args(gpu.into_iter().flat_map(|gpu| ["--gpu-uuid", gpu]));
        // Whoever reads the node's output must not wait for a keeper that outlives it.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let said = child.stdout.take().map(line).unwrap_or_default();
        let keeper = i32::try_from(child.id()).ok().and_then(Identity::of);
        let found = keeper.and_then(|keeper| Some((keeper, keeper.open()?)));
        match found.filter(|_| said == UP) {
            Some((keeper, fd)) => {
                let contact = Contact::new(control, &site.folder.mps(), ANSWER_LIMIT);
                let place = MpsPlace { control: control.to_owned(), folder: site.folder.mps() };
                Ok(Self { keeper, fd, ours: true, contact, place, since: clock::now() })
            }
            None => {
                // It has said why and ends, or has ended without a word.
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(if said.is_empty() { "its keeper ended without a word".to_owned() } else { said }))
            }
        }
    }

    pub(super) fn contact(&self) -> &Contact {
        &self.contact
    }

    pub(super) fn place(&self) -> MpsPlace {
        self.place.clone()
    }

    /// What becomes readable when the keeper has ended, and the daemon with it.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The keeper has ended: it does not stay in the process table. Says when the node began with it.
    pub(super) fn reap(self) -> Nanos {
        if self.ours {
            let _ = rustix::process::waitpid(Pid::from_raw(self.keeper.pid), WaitOptions::NOHANG);
        }
        self.since
    }

    /// Ends the daemon and waits for that.
    pub(super) fn stop(self) {
        // One that has ended already is waited for in no time.
        let _ = pidfd_send_signal(&self.fd, Signal::TERM);
        let ended = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&STOP_LIMIT));
        if !matches!(ended, Ok(1..)) {
            // The kernel ends the daemon then.
            let _ = pidfd_send_signal(&self.fd, Signal::KILL);
            let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&STOP_LIMIT));
        }
        self.reap();
    }
}

/// The first line that is said, without its end.
fn line(mut output: impl std::io::Read) -> String {
    let mut said = Vec::new();
    let mut byte = [0];
    // A keeper says one short line, and goes on with its output open.
    while matches!(output.read(&mut byte), Ok(1)) && byte != *b"\n" {
        said.push(byte[0]);
    }
    String::from_utf8_lossy(&said).trim().to_owned()
}
