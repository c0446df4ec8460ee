//! What the command line and a node say to each other: JSON, one line each way, on the socket `control.sock`.
//!
//! Only processes of the same user are answered, and none that belongs to a tenant: whoever could reach this socket could
//! stop its neighbours. A reply that takes its time (`stop` is answered when everything has stopped) holds up nobody else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use partywall_core::config::{TenantConfig, WallChoice};
use partywall_core::faults::Evidence;
use partywall_core::sm_sets::SmSet;
use partywall_core::tenant::{Baseline, Class, Share, Slo, TenantId};
use partywall_core::units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

use crate::shepherd::status::End;
use crate::tenant::TenantFacts;

/// Longest line in bytes: an environment and the commands of all tenants fit many times.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// A tenant that the process which asks starts itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Its name; without one the node makes one up.
    pub name: Option<String>,
    /// What it cares about.
    pub class: Class,
    /// Its memory; without it, no limit.
    pub memory: Option<Bytes>,
    /// The weight of its copies; without it, that of its class.
    pub weight: Option<u32>,
    /// The wall that the node must have; without it, any.
    #[serde(default)]
    pub wall: Option<WallChoice>,
    /// Its share of the SMs.
    #[serde(default)]
    pub share: Option<Share>,
    /// The SMs that are left to it while it is squeezed.
    #[serde(default)]
    pub squeezed: Option<Share>,
    /// What its requests are promised.
    #[serde(default)]
    pub slo: Slo,
    /// What is known of them alone.
    #[serde(default)]
    pub baseline: Baseline,
    /// The program and its arguments, for people to read.
    pub command: Vec<String>,
    /// What LD_PRELOAD is now.
    pub preload: Option<String>,
    /// Between SIGTERM and SIGKILL.
    pub grace: Nanos,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Whose GPU is it that the node keeps? Answered with [`Reply::Gpu`].
    Gpu,
    /// How are the tenants? Answered with [`Reply::Tenants`].
    Ps,
    /// What stands between tenants? Answered with [`Reply::Wall`].
    Wall,
    /// Start these tenants, in this order. One that runs already, as described, is left running; if another one of its
    /// name runs, nothing is started. Answered with [`Reply::Done`], which names them.
    Up {
        /// The tenants.
        tenants: Vec<TenantConfig>,
        /// The wall that the node must have; `auto`: any.
        #[serde(default)]
        wall: WallChoice,
        /// The environment that theirs is made from.
        env: BTreeMap<String, String>,
        /// The directory that they start in, absolute.
        directory: PathBuf,
        /// Between SIGTERM and SIGKILL.
        grace: Nanos,
    },
    /// The process that asks will start this tenant itself and stay its parent. Answered with [`Reply::Attached`].
    Attach(Attach),
    /// Stop these tenants. Answered with [`Reply::Done`] when all have stopped.
    Stop {
        /// Which; none means all.
        names: Vec<String>,
    },
    /// Stop these tenants and start them again, and forget how often they failed. Answered with [`Reply::Done`] at once.
    Restart {
        /// Which; none means all.
        names: Vec<String>,
    },
    /// Wait until none of these runs or is to be started again. Answered with [`Reply::Tenants`], of these.
    Wait {
        /// Which; none means all.
        names: Vec<String>,
    },
    /// Where is the log of this tenant? Answered with [`Reply::Log`].
    Logs {
        /// Which.
        name: String,
    },
    /// What is known of this tenant's calls to the driver? Answered with [`Reply::Coverage`].
    Coverage {
        /// Which.
        name: String,
    },
    /// End the node. Answered with [`Reply::Done`] just before it does.
    Shutdown {
        /// Leave the tenants running, for a node that is started later.
        keep_tenants: bool,
    },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// It was not done, and nothing has changed.
    Refused {
        /// Why, and what would be right.
        message: String,
    },
    /// The GPU that the node keeps.
    Gpu {
        /// The id of a simulated one; `None`: the machine's.
        simulated: Option<String>,
    },
    /// How tenants are.
    Tenants {
        /// In the order in which they came.
        tenants: Vec<TenantReport>,
    },
    /// What stands between tenants.
    Wall {
        /// The wall.
        wall: WallChoice,
    },
    /// It was done, to these tenants.
    Done {
        /// Their names.
        names: Vec<String>,
    },
    /// A tenant that the asking process is to start.
    Attached {
        /// Its name.
        name: String,
        /// Its folder.
        folder: PathBuf,
        /// The environment variables to set for it.
        variables: BTreeMap<String, String>,
    },
    /// Where a log is.
    Log {
        /// The tenant's folder, see [`crate::log`].
        folder: PathBuf,
    },
    /// What is known of a tenant's processes.
    Coverage {
        /// Everything.
        facts: TenantFacts,
    },
}

/// What a tenant is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// It is about to be started, or started again.
    Waiting,
    /// It runs.
    Running,
    /// It was asked to end, or its rest is being ended.
    Stopping,
    /// It was stopped.
    Stopped,
    /// It ended by itself, well, and is left.
    Finished,
    /// It ended by itself, not well, and is left.
    Failed,
}

impl Activity {
    /// Whether it runs or will by itself.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Waiting | Self::Running | Self::Stopping)
    }

    /// For people: the word that is in JSON too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Finished => "finished",
            Self::Failed => "failed",
        }
    }
}

/// A fault of the GPU in a client of the node's MPS daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultReport {
    /// Which, counted from 1 since the node was started.
    pub number: u64,
    /// How long ago it was first reported, nanoseconds.
    pub ago_ns: u64,
    /// The tenant that caused it; `None` where that is not known, or not yet.
    pub culprit: Option<String>,
    /// How that is known, or why it is not; `None` while it is being found out.
    pub evidence: Option<Evidence>,
    /// The errors that the driver has returned to tenants, as it numbers them.
    pub told: BTreeMap<String, BTreeSet<u32>>,
    /// How long after the first report each of them was first told, nanoseconds.
    #[serde(default)]
    pub told_after_ns: BTreeMap<String, u64>,
    /// How the MPS server said that it was, where one tenant alone had been told and it was asked; see [`Evidence::Contained`].
    #[serde(default)]
    pub server: Option<ServerSaid>,
    /// From the fault to the first good request of a latency-sensitive tenant, or of anybody where there is none, nanoseconds. Of a
    /// tenant whose requests are not counted it is the first launch, to a tenth of a second. `None` while there was none, and of a fault that was contained.
    pub recover_ns: Option<u64>,
}

/// How an MPS server says that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerSaid {
    /// It serves its clients.
    Active,
    /// A fault has ended all its clients.
    Faulted,
    /// Nothing that could be made use of, or nothing in time.
    Nothing,
}

/// How a tenant is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantReport {
    /// Its number in this node.
    pub id: TenantId,
    /// Its name.
    pub name: String,
    /// What it cares about.
    pub class: Class,
    /// What it is doing.
    pub activity: Activity,
    /// The number of its first process; `None` while it has none.
    pub pid: Option<i32>,
    /// How long it has been running, nanoseconds.
    pub running_for_ns: Option<u64>,
    /// In how long it is started again, nanoseconds.
    pub starts_in_ns: Option<u64>,
    /// Times it was started again after it had ended by itself.
    pub restarts: u32,
    /// How its last run ended; `None` before that.
    pub end: Option<End>,
    /// The same for people.
    pub end_text: Option<String>,
    /// What a shell would make of that end.
    pub exit_code: Option<u8>,
    /// The GPU memory that it may hold; `None`: no limit but the GPU's.
    pub memory: Option<Bytes>,
    /// The weight of its copies.
    pub weight: u32,
    /// What stands between it and the others.
    pub wall: WallChoice,
    /// The share of the SMs that it asked for.
    pub share: Option<Share>,
    /// The SMs that it has to itself: positions on the line of groups that the driver splits the GPU into.
    pub sms: Option<SmSet>,
    /// Those that are left to it while it is squeezed.
    #[serde(default)]
    pub squeezed_sms: Option<SmSet>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Bytes of its log that could not be written, in this run.
    pub log_bytes_lost: u64,
    /// Faults of the GPU that it caused, those that ended nobody else's work among them.
    #[serde(default)]
    pub faults: u32,
    /// Whether it is kept out because of them; starting it again by name lets it in.
    #[serde(default)]
    pub kept_out: bool,
    /// Why its last run ended, where that was not of its own doing, or why it is not started again.
    #[serde(default)]
    pub note: Option<String>,
    /// The last fault that ended its work, of its own doing or not.
    #[serde(default)]
    pub last_fault: Option<FaultReport>,
    /// What is known of its processes; without `detail`, which the verb coverage has.
    pub facts: TenantFacts,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_lines_that_people_can_type() {
        let typed = |text: &str| serde_json::from_str::<Request>(text).map_err(|error| error.to_string());
        assert_eq!(typed(r#"{"verb":"ps"}"#), Ok(Request::Ps));
        assert_eq!(
            typed(r#"{"verb":"stop","names":["a"]}"#),
            Ok(Request::Stop { names: vec!["a".to_owned()] })
        );
        assert!(typed(r#"{"verb":"stop"}"#).unwrap_err().contains("names"));
        assert!(typed(r#"{"verb":"reboot"}"#).unwrap_err().contains("reboot"));
        assert!(typed(r#"{"verb":"shutdown","keep_tenants":true,"now":1}"#).unwrap_err().contains("now"));
    }

    #[test]
    fn a_configured_tenant_survives_the_way() {
        let config =
            partywall_core::config::Config::parse(partywall_core::config::EXAMPLE, "example").unwrap();
        let request = Request::Up {
            tenants: config.tenants,
            wall: config.gpu.wall,
            env: BTreeMap::new(),
            directory: PathBuf::from("/"),
            grace: Nanos::from_secs(1),
        };
        let line = serde_json::to_string(&request).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_line_panics(line in ".{0,200}") {
            prop_assert!(serde_json::from_str::<Request>(&line).is_err());
        }
    }
}
