//! Finding out on the GPU whether tenants' SM sets are their own.
//!
//! What is done when, and what follows from it, is `partywall_core::sm_proof`'s decision. Here are the processes around it. Those that
//! take SMs are *probes* ([`probe`]): each is confined as a tenant's process is, by the same library with the same page, because it
//! registers as a process of a tenant that the node keeps for it and that has the same set. A *prover* ([`prover`]) starts them, makes
//! sure that they are clients of one MPS server, and takes them through the steps. Both are processes of their own: a node has no
//! context, and waits for nothing.
//!
//! Nothing can hang for good. Blocks leave by themselves after a time; a probe ends when its prover is gone; the node ends a prover
//! that takes too long.

use std::collections::BTreeMap;
use std::path::PathBuf;

use partywall_core::sm_proof::Finding;
use serde::{Deserialize, Serialize};

pub mod probe;
pub mod prover;

/// What a prover is to do: the file that it is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The MPS daemon whose clients the probes have to be. Without one, only a set alone can be looked at.
    pub mps: Option<MpsPlace>,
    /// Who is looked at.
    pub probes: Vec<ProbeTask>,
}

/// Where an MPS daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MpsPlace {
    /// Its control program.
    pub control: PathBuf,
    /// The folder with its pipes.
    pub folder: PathBuf,
}

/// A probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeTask {
    /// SMs that its set should have.
    pub sms: u32,
    /// Whether that has to be shown, or is known.
    pub alone: bool,
    /// Groups of the device's split, as in `0-31`, where it confines itself; otherwise it is confined by what is preloaded.
    #[serde(default)]
    pub groups: Option<String>,
    /// What its environment has besides that of the prover.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What was found; `None` where nothing could be.
    pub finding: Option<Finding>,
    /// Why nothing could be found.
    pub problem: Option<String>,
    /// The most that was seen of each probe.
    pub probes: Vec<Seen>,
    /// How long sets were held, together and alone, milliseconds.
    pub held_ms: u64,
}

/// The most that was seen of a probe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// SMs that its set should have.
    pub sms: u32,
    /// Blocks of those that fill its set that were there at a time.
    pub there: u32,
    /// Whether one block more was there with all of them.
    pub more: bool,
}

/// What a prover says to a probe, a word a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Told {
    /// Launch a block for each SM.
    Fill,
    /// Launch one block more.
    More,
    /// Let all of them leave.
    Release,
}

/// What a probe says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Said {
    /// It can fill its set now.
    Ready {
        /// SMs that the driver says it has.
        sms: u32,
    },
    /// So many of its blocks are there now.
    Counted {
        /// Of those that fill its set.
        there: u32,
        /// Whether the one block more is.
        more: bool,
    },
    /// None is there any more.
    Empty,
    /// It cannot go on.
    Failed {
        /// Why.
        why: String,
    },
}
