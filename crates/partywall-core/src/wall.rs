//! The walls: every way there is to let several tenants live on one GPU, by the ids that configuration, reports
//! and the ledger use.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An isolation mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Wall {
    /// One tenant has the GPU to itself; the others are elsewhere.
    Exclusive,
    /// One process, one stream per tenant, the latency-sensitive ones at high priority.
    StreamPriority,
    /// Separate processes; the GPU changes between them about every 2 ms. What one gets without doing anything.
    TimeSlicing,
    /// Separate processes that share the GPU at the same time.
    Mps,
    /// MPS with a cap on the SMs of each client (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`).
    MpsPercentage,
    /// MPS with exclusive SM partitions (`sm_partition`; driver R590 and later).
    MpsStatic,
    /// Hardware partitions of SMs, L2 and VRAM.
    Mig,
    /// Disjoint SM sets through Green Contexts, across processes under MPS.
    GreenContexts,
    /// A software MIG: SMs and data of a tenant on one side of the chip; needs kernels built for it.
    Sides,
    /// What a node does for unmodified programs: best-effort launches go in chunks and are held while latency-sensitive tenants are
    /// active, SMs of one's own for who asks, fair copies.
    Partywall,
}

impl Wall {
    /// Every wall, in the order in which reports list them.
    pub const ALL: [Self; 10] = [
        Self::Exclusive,
        Self::StreamPriority,
        Self::TimeSlicing,
        Self::Mps,
        Self::MpsPercentage,
        Self::MpsStatic,
        Self::Mig,
        Self::GreenContexts,
        Self::Sides,
        Self::Partywall,
    ];

    /// The id that configuration, reports and the ledger use.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::StreamPriority => "stream-priority",
            Self::TimeSlicing => "time-slicing",
            Self::Mps => "mps",
            Self::MpsPercentage => "mps-percentage",
            Self::MpsStatic => "mps-static",
            Self::Mig => "mig",
            Self::GreenContexts => "green-contexts",
            Self::Sides => "sides",
            Self::Partywall => "partywall",
        }
    }

    /// Whether a fatal GPU fault of one tenant leaves the others running.
    ///
    /// Measured on the H200 for MPS with and without Green Contexts: it does not (one illegal access ends every
    /// client). A process outside MPS survives, and a MIG instance is a fault domain of its own (vendor document).
    /// `partywall` and `sides` stand on MPS and inherit that.
    pub const fn fault_contained(self) -> bool {
        match self {
            Self::Exclusive | Self::TimeSlicing | Self::Mig => true,
            Self::StreamPriority
            | Self::Mps
            | Self::MpsPercentage
            | Self::MpsStatic
            | Self::GreenContexts
            | Self::Sides
            | Self::Partywall => false,
        }
    }

    /// One line for people.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Exclusive => "the latency-sensitive tenant alone on the GPU; best-effort work is elsewhere",
            Self::StreamPriority => "one process, streams with priorities",
            Self::TimeSlicing => "the driver's default between processes",
            Self::Mps => "processes share all SMs at once",
            Self::MpsPercentage => "MPS with a cap on each client's SMs",
            Self::MpsStatic => "MPS with exclusive SM partitions (R590)",
            Self::Mig => "hardware partitions of SMs, L2 and VRAM",
            Self::GreenContexts => "disjoint SM sets, shared memory system",
            Self::Sides => "SMs and data on one side of the chip (kernels built for it)",
            Self::Partywall => "best-effort launches held for requests, fair copies",
        }
    }
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

/// A text that names no wall.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no wall; choose one of {}", Wall::ALL.map(Wall::id).join(", "))]
pub struct UnknownWall {
    /// What was given.
    pub given: String,
}

impl FromStr for Wall {
    type Err = UnknownWall;
    fn from_str(text: &str) -> Result<Self, UnknownWall> {
        Self::ALL
            .into_iter()
            .find(|wall| wall.id() == text)
            .ok_or_else(|| UnknownWall { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_serde_names_agree_and_parse_back() {
        for wall in Wall::ALL {
            assert_eq!(serde_json::to_string(&wall).unwrap(), format!("\"{}\"", wall.id()));
            assert_eq!(wall.id().parse(), Ok(wall));
        }
        assert!(
            "vmps"
                .parse::<Wall>()
                .unwrap_err()
                .to_string()
                .contains("choose one of exclusive, stream-priority")
        );
    }
}
