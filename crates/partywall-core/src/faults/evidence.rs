//! What is known of whose fault a fault was.
//!
//! NVIDIA's documentation of MPS says that a fatal fault is reported to all clients without saying which of them caused it, and leaves
//! open with which error. So errors are sorted by what they say of their process ([`Origin`]): some can only be its own, if others got
//! another one; some can only be another's. When everybody gets the same, what is left is who got it first, and that is no
//! proof: a process that waits for short kernels hears of everything before one that is busy with something else. The MPS server's log
//! may name a process; where it does, that counts. Where the fault is contained (see the module above) one tenant alone is told, and
//! nothing has to be weighed.
//!
//! One driver was watched (580.159, on an H200). After an illegal address all clients got 700, two of them that computed within 0.3 ms
//! of each other; after a `trap` all got 719, a client that computed 0.37 s after the culprit; one that was idle got either
//! with its next call, seconds later. The log called every client "error trigging", and one of them first, which was not the culprit. So there an illegal address is nobody's
//! for certain. After a device-side assertion the culprit alone got 710, and the others computed on.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tenant::TenantId;
use crate::units::Nanos;

/// A lead below this is chance: clients that wait hear of a fault at the same time, give or take what their machine does besides.
/// An estimate.
pub const LEAD: Nanos = Nanos::from_millis(5);

/// What an error says of the process that it is returned to. The numbers are those of `CUresult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Its own kernel has done something: an illegal address, an assertion.
    Own,
    /// Something has gone wrong, here or elsewhere.
    Unsaid,
    /// It was ended because of something else: by the MPS server, or by the device.
    Elsewhere,
}

impl Origin {
    /// Of an error that ends all work of a process on the device; `None` for any other, after which it can go on. That a server is not
    /// ready or takes no more clients (805, 807 to 809) ends nothing that had begun.
    pub const fn of_code(code: u32) -> Option<Self> {
        match code {
            // Illegal address, time limit, assertion, hardware stack, instruction, alignment, address space, program counter, leak
            // of tensor memory.
            700 | 702 | 710 | 714..=718 | 721 => Some(Self::Own),
            // The launch failed.
            719 => Some(Self::Unsaid),
            // A memory error that was contained, a call to the MPS server failed, terminated by it.
            722 | 806 | 810 => Some(Self::Elsewhere),
            _ => None,
        }
    }
}

/// That the driver has returned a fault to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Whose process.
    pub tenant: TenantId,
    /// The error, as the driver numbers them.
    pub code: u32,
    /// When.
    pub at: Nanos,
}

/// How it is known who caused a fault, or why it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The MPS server's log names a process of this tenant and of no other.
    NamedByServer,
    /// It got an error that can be its own, and the others got one that says less.
    OnlyOwnCode,
    /// It was the only client.
    Alone,
    /// It alone was told, and the MPS server and its other clients went on.
    Contained,
    /// It was let in last, after the others had gone on without it for longer than it takes to a fault.
    LetInLast,
    /// It was the first to report, clearly before the others: not sure.
    ReportedFirst,
    /// Unknown: several report a fault of their own at the same time.
    Several,
    /// Unknown: nobody reports a fault that could be its own.
    Nobody,
    /// Unknown: the server's log names one tenant and the errors another.
    Conflict,
}

impl Evidence {
    /// How much it counts: two for what is sure, one for what is not, nothing where nobody was named or nobody else came to harm.
    pub const fn weight(self) -> u32 {
        match self {
            Self::NamedByServer | Self::OnlyOwnCode | Self::Alone | Self::LetInLast => 2,
            Self::ReportedFirst => 1,
            Self::Contained | Self::Several | Self::Nobody | Self::Conflict => 0,
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NamedByServer => "named by the MPS server's log",
            Self::OnlyOwnCode => "the only one with an error of its own",
            Self::Alone => "the only client",
            Self::Contained => "contained: nobody else was told, and the MPS server goes on",
            Self::LetInLast => "let in last, after the others had gone on without it",
            Self::ReportedFirst => "reported first, which is not sure",
            Self::Several => "several report an error of their own at the same time",
            Self::Nobody => "nobody reports an error of its own",
            Self::Conflict => "the MPS server's log names another tenant than the errors do",
        })
    }
}

/// Who caused a fault, by what was reported and whom the server's log names.
pub(super) fn weigh(
    reports: &[Report],
    named: &[TenantId],
    clients: &[TenantId],
) -> (Option<TenantId>, Evidence) {
    let by_errors = by_errors(reports, clients);
    let mut logged: Vec<TenantId> = named.iter().copied().filter(|tenant| clients.contains(tenant)).collect();
    logged.sort_unstable();
    logged.dedup();
    match (&logged[..], by_errors) {
        ([one], (Some(other), Evidence::OnlyOwnCode)) if *one != other => (None, Evidence::Conflict),
        ([_], (_, Evidence::Alone)) => by_errors,
        ([one], _) => (Some(*one), Evidence::NamedByServer),
        _ => by_errors,
    }
}

fn by_errors(reports: &[Report], clients: &[TenantId]) -> (Option<TenantId>, Evidence) {
    let origin = |report: &Report| Origin::of_code(report.code);
    // Of a tenant's processes one has done it, and the others are told as all others are.
    let mut first: Vec<Report> = Vec::new();
    for report in reports {
        match first.iter_mut().find(|known| known.tenant == report.tenant) {
            Some(known) => {
                known.at = known.at.min(report.at);
                let says_more =
                    origin(report) == Some(Origin::Own) || origin(known) == Some(Origin::Elsewhere);
                known.code = if says_more { report.code } else { known.code };
            }
            None => first.push(*report),
        }
    }
    first.sort_by_key(|report| report.at);
    let own: Vec<&Report> = first.iter().filter(|report| origin(report) == Some(Origin::Own)).collect();
    let maybe: Vec<&Report> =
        first.iter().filter(|report| origin(report) != Some(Origin::Elsewhere)).collect();
    match (&own[..], &maybe[..]) {
        ([one], _) | ([], [one]) if clients == [one.tenant] => (Some(one.tenant), Evidence::Alone),
        // That others were told something else shows that this driver makes a difference.
        ([one], _) if first.len() > 1 => (Some(one.tenant), Evidence::OnlyOwnCode),
        ([], [one]) if first.len() > 1 => (Some(one.tenant), Evidence::OnlyOwnCode),
        (_, []) => (None, Evidence::Nobody),
        (_, [one, rest @ ..]) => match rest.first() {
            Some(next) if next.at.saturating_sub(one.at) < LEAD => (None, Evidence::Several),
            _ => (Some(one.tenant), Evidence::ReportedFirst),
        },
    }
}
