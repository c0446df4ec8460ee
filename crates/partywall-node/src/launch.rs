//! Starting a node in the background.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use partywall_core::config::WallChoice;

use crate::error::Error;
use crate::folder::Folder;

/// Option of `partywall node`: end when standard input is closed.
pub const UNTIL_CLOSED: &str = "--until-closed";
/// Option of `partywall node`: end when the last tenant was stopped.
pub const UNTIL_STOPPED: &str = "--until-stopped";
/// Option of `partywall node`: remove the folder at the end.
pub const TEMPORARY: &str = "--temporary";

/// Option of `partywall node`: what stands between tenants.
pub const WALL: &str = "--wall";

/// What kind of node is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// Goes on after this process, until somebody has stopped its last tenant; what it says goes into `node.log`.
    Detached,
    /// Ends with this process, however that ends, and its tenants with it; it speaks on our standard error.
    Owned,
    /// The same, and its folder goes too.
    Temporary,
}

/// A node that was started.
#[derive(Debug)]
pub struct Launched {
    child: Child,
}

impl Launched {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends a node that ends with this process, and waits until it has.
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        // Who attends a command may have taken note of the node's end already; then there is nothing to wait for.
        let _ = self.child.wait();
    }
}

/// Starts a node of `folder` with the program `exe` and this wall, and waits until it answers.
///
/// # Errors
/// When it cannot be started, or ends before it answers; what it said is in the message, or on standard error already.
pub fn launch(
    exe: &Path,
    folder: &Folder,
    background: Background,
    wall: Option<WallChoice>,
) -> Result<Launched, Error> {
    folder.create()?;
    let mut command = Command::new(exe);
    command.arg("node").arg("--dir").arg(folder.path()).stdout(Stdio::piped());
    command.args(wall.iter().flat_map(|wall| [WALL.to_owned(), wall.to_string()]));
    match background {
        Background::Detached => {
            let path = folder.node_log();
            let log = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
            let log = log.map_err(Error::file("write", path))?;
            command.arg(UNTIL_STOPPED).stdin(Stdio::null()).stderr(log);
        }
        Background::Owned => drop(command.arg(UNTIL_CLOSED).stdin(Stdio::piped())),
        Background::Temporary => drop(command.args([UNTIL_CLOSED, TEMPORARY]).stdin(Stdio::piped())),
    }
    let failed = |error| Error::Start { program: exe.display().to_string(), error };
    let mut child = command.spawn().map_err(failed)?;
    let mut line = String::new();
    // It says one line when it answers; if it ends before that, there is none.
    let _ = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
    if line.is_empty() {
        let _ = child.wait();
        let said = match background {
            Background::Detached => std::fs::read_to_string(folder.node_log()).ok(),
            Background::Owned | Background::Temporary => None,
        };
        return Err(Error::NotLaunched { said: said.map(|said| said.trim().to_owned()) });
    }
    Ok(Launched { child })
}
