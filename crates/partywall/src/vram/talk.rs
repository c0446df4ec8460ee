//! What `interfere` and the processes that it starts say to each other: JSON, a line each, over standard input and output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use partywall_driver::mps::MpsDaemon;
use partywall_vram::sides::{Known, Side};
use serde::{Deserialize, Serialize};

use crate::error::Failure;

/// What a neighbour is told, the first thing first.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Told {
    Begin {
        device: u32,
        known: Known,
        side: Side,
        data: u64,
        request: Requests,
        code_places: u32,
        seed: u64,
        gentle: bool,
        pages: Pages,
    },
    Copies {
        seed: u32,
    },
    Measure {
        work: Work,
        view: View,
        threads: u32,
        count: u32,
        code: u32,
    },
    Start {
        load: Load,
        view: View,
        sms: u32,
        threads: u32,
    },
    Worked,
    Stop,
}

/// What a request is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Requests {
    pub(super) launches: u32,
    /// What each launch reads.
    pub(super) bytes: u64,
}

/// Where the pages of an arena are from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pages {
    /// Its own.
    Private,
    /// Its own, enough for so many bytes on each side, which it offers to whoever connects to the socket.
    Offered { bytes: u64, at: PathBuf },
    /// So many that somebody else offers there.
    Fetched { count: usize, at: PathBuf },
}

/// What it says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Said {
    Ready(Ready),
    /// Bytes that were copied wrong.
    Copied {
        wrong: u64,
    },
    Measured(Measured),
    Done,
    /// Bytes of its data that it has worked through, and when by its clock.
    Worked {
        bytes: u64,
        at_ns: u64,
    },
    Failed(String),
}

/// What a neighbour is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) sms: u32,
    pub(super) data_bytes: u64,
    /// What its arena holds, pages of 2 MiB behind it, and bytes of them that nobody can use.
    pub(super) arena_bytes: u64,
    pub(super) pages: usize,
    pub(super) lost_bytes: u64,
    pub(super) took_s: f64,
}

/// What something took, microseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) count: u32,
    pub(super) p50_us: f64,
    pub(super) p99_us: Option<f64>,
    pub(super) max_us: f64,
    /// By the host's clock; none for passes.
    pub(super) host_p50_us: Option<f64>,
    pub(super) host_p99_us: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Work {
    Long,
    Short,
    Graph,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum View {
    Colored,
    Uncolored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Access {
    Read,
    Write,
    Mixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Load {
    pub(super) access: Access,
    pub(super) evict_first: bool,
}

/// A process that was started.
pub(super) struct Neighbour {
    child: Child,
    /// `None` when it was told to end.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Neighbour {
    /// This program again, as a client of the daemon.
    pub(super) fn start(daemon: &MpsDaemon) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(Failure::internal)?;
        let mut command = Command::new(program);
        command.args(["vram", "neighbour"]).envs(daemon.environment());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Failure::internal)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::internal("a process that was started has no standard input or output"));
        };
        Ok(Self { child, to: Some(to), from: BufReader::new(from) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it something, and waits for what it says.
    pub(super) fn tell(&mut self, told: &Told) -> Result<Said, Failure> {
        let mut line = serde_json::to_string(told).map_err(Failure::internal)?;
        line.push('\n');
        let mut answer = String::new();
        let written = self.to.as_mut().map(|to| to.write_all(line.as_bytes()));
        if !matches!(written, Some(Ok(()))) || !matches!(self.from.read_line(&mut answer), Ok(1..)) {
            let status = self.child.try_wait().ok().flatten();
            let status = status.map_or(String::new(), |status| format!(" ({status})"));
            return Err(Failure::machine(format!("one of the two processes ended{status}"), None));
        }
        match serde_json::from_str(&answer).map_err(Failure::internal)? {
            Said::Failed(why) => Err(Failure::machine(why, None)),
            said => Ok(said),
        }
    }

    /// Lets it end, and waits.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        drop(self.to.take());
        let status = self.child.wait().map_err(Failure::internal)?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::machine(format!("one of the two processes did not end well ({status})"), None))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // What it had begun ends with its standard input; killed, it could take the other client with it.
        if self.to.take().is_some() {
            let _ = self.child.wait();
        }
    }
}
