//! The line protocol between `partywall measure` and its tenants, version 1.
//!
//! A tenant is a process. It reads one JSON object per line on standard input and writes one per line on standard
//! output; what it writes on standard error is kept for messages. `docs/tenants.md` is the same for people who bring
//! a program of their own.
//!
//! Every line has one message: an object with one key that names it. A process that hosts several tenants adds the key
//! `tenant` with the tenant's name, in both directions.
//!
//! All times are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.

use std::collections::BTreeMap;

use partywall_core::diagnostic::quoted;
use serde::{Deserialize, Serialize};

use crate::load::Load;

/// The version that `ready` must name.
pub const PROTOCOL: u32 = 1;
/// Longest line in either direction, in bytes, without the line break: bounds what a broken tenant can make us keep.
pub const LINE_MAX: usize = 64 << 10;
/// Most requests that a run may ask for: at 70 bytes a line, what both sides still hold in memory with ease.
pub const REQUESTS_MAX: u64 = 1_000_000;
/// The environment variable with the SM groups of a tenant under Green Contexts across processes; see
/// [`sm_groups`].
pub const SM_GROUPS: &str = "PARTYWALL_SM_GROUPS";

/// What a tenant says.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FromTenant {
    /// It is set up and waits for a run.
    Ready(Ready),
    /// It has done a request. May be held back until the run ends.
    Request(Request),
    /// The run has ended, all its requests were sent.
    Done(Done),
    /// Something went wrong that it cannot mend; the process may exit afterwards.
    Failed(Failed),
}

/// What a tenant is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToTenant {
    /// Start a run.
    Run(Run),
    /// Finish the request in flight, send held lines, then `done`.
    Stop(Stop),
    /// End the process. The end of standard input means the same.
    Exit(Exit),
}

/// A tenant that is set up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The process that holds the GPU context: the one that must be an MPS client.
    pub pid: u32,
    /// What work is counted in: `image`, `GB`, `token`.
    pub unit: String,
    /// Units that one request is worth at depth 1; above zero.
    pub work: f64,
    /// Anything worth recording: versions, checksums, sizes, `sms`, `cache_policy`.
    #[serde(default)]
    pub about: BTreeMap<String, String>,
}

/// A request that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// When it was due, ns. For a closed load the same as `start`, or a little earlier.
    pub scheduled: u64,
    /// When its work began on the host, ns: just before the first submission.
    pub start: u64,
    /// When its results were there, ns: the wait has returned.
    pub end: u64,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// The run's number.
    pub run: u64,
    /// How many `request` lines it had.
    pub requests: u64,
    /// [`CHECK_OK`], or what was wrong with the results.
    pub check: String,
    /// Of the outputs, if the tenant has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Median time between the return of a wait and the next submission, as achieved, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_gap_ns: Option<u64>,
}

/// [`Done::check`] of a run with right results.
pub const CHECK_OK: &str = "ok";

/// What a tenant could not do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failed {
    /// What went wrong, with the name of the error of the GPU if there is one.
    pub message: String,
}

/// A run to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Its number; `stop` and `done` repeat it.
    pub run: u64,
    /// What to do.
    pub load: Load,
    /// Start no earlier than this, ns: lets all tenants of a cell start together.
    pub begin: u64,
    /// End by itself after this many requests; at most [`REQUESTS_MAX`].
    pub requests_max: u64,
}

/// A run to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Its number.
    pub run: u64,
}

/// The end of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exit {}

/// A message, and which tenant of its process it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Line<M> {
    /// The tenant's name where a process hosts several; `None` elsewhere.
    pub tenant: Option<String>,
    /// The message.
    pub message: M,
}

/// A line that is not of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The line is too long.
    #[error("a line of more than {LINE_MAX} bytes, beginning {0}")]
    TooLong(String),
    /// The line is no message.
    #[error("not a line of the protocol: {line}: {reason}")]
    Rubbish {
        /// The line, quoted, shortened and without control characters.
        line: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A line as it is read: all keys that there are, of which one message must be there. Not an enum with `flatten`, which
/// would copy every line into an intermediate form first; runs have hundreds of thousands of lines.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FromTenantLine {
    tenant: Option<String>,
    ready: Option<Ready>,
    request: Option<Request>,
    done: Option<Done>,
    failed: Option<Failed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToTenantLine {
    tenant: Option<String>,
    run: Option<Run>,
    stop: Option<Stop>,
    exit: Option<Exit>,
}

#[derive(Serialize)]
struct Written<'a, M> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(flatten)]
    message: &'a M,
}

impl<M> Line<M> {
    /// A message of a process with one tenant.
    pub const fn of(message: M) -> Self {
        Self { tenant: None, message }
    }
}

impl<M: Serialize> Line<M> {
    /// The line to write, with its line break.
    pub fn write(&self) -> String {
        let written = Written { tenant: self.tenant.as_deref(), message: &self.message };
        // Only maps with keys that are no text, and failing writers, have errors; neither is here.
        serde_json::to_string(&written).unwrap_or_default() + "\n"
    }
}

impl Line<FromTenant> {
    /// Reads a line that a tenant wrote, without its line break.
    ///
    /// # Errors
    /// A line that is too long, is not JSON, has not exactly one known message, or a value that makes no sense.
    pub fn parse(line: &[u8]) -> Result<Self, ProtocolError> {
        let FromTenantLine { tenant, ready, request, done, failed } = read(line)?;
        let one = only([
            ready.map(FromTenant::Ready),
            request.map(FromTenant::Request),
            done.map(FromTenant::Done),
            failed.map(FromTenant::Failed),
        ]);
        let message = one.ok_or_else(|| {
            rubbish(line, "exactly one of `ready`, `request`, `done`, `failed` is expected")
        })?;
        check_from(&message).map_err(|reason| rubbish(line, &reason))?;
        Ok(Self { tenant, message })
    }
}

impl Line<ToTenant> {
    /// Reads a line that was written to a tenant, without its line break.
    ///
    /// # Errors
    /// A line that is too long, is not JSON, has not exactly one known message, or a load that nobody can serve.
    pub fn parse(line: &[u8]) -> Result<Self, ProtocolError> {
        let ToTenantLine { tenant, run, stop, exit } = read(line)?;
        let one = only([run.map(ToTenant::Run), stop.map(ToTenant::Stop), exit.map(ToTenant::Exit)]);
        let message = one.ok_or_else(|| rubbish(line, "exactly one of `run`, `stop`, `exit` is expected"))?;
        if let ToTenant::Run(run) = &message {
            run.load.check().map_err(|error| rubbish(line, &error.to_string()))?;
            if run.requests_max > REQUESTS_MAX {
                return Err(rubbish(line, &format!("`requests_max` is above {REQUESTS_MAX}")));
            }
        }
        Ok(Self { tenant, message })
    }
}

/// What types do not say about a tenant's messages.
fn check_from(message: &FromTenant) -> Result<(), String> {
    match message {
        FromTenant::Ready(ready) if ready.protocol != PROTOCOL => {
            Err(format!("protocol {} is not known; this is version {PROTOCOL}", ready.protocol))
        }
        FromTenant::Ready(ready) if !(ready.work.is_finite() && ready.work > 0.0) => {
            Err("`work` must be a number above zero".to_owned())
        }
        FromTenant::Request(request) if request.end < request.start => {
            Err("`end` is before `start`".to_owned())
        }
        _ => Ok(()),
    }
}

fn read<'l, T: Deserialize<'l>>(line: &'l [u8]) -> Result<T, ProtocolError> {
    if line.len() > LINE_MAX {
        return Err(ProtocolError::TooLong(shown(line)));
    }
    serde_json::from_slice(line).map_err(|error| rubbish(line, &error.to_string()))
}

fn only<M, const N: usize>(messages: [Option<M>; N]) -> Option<M> {
    let mut present = messages.into_iter().flatten();
    let first = present.next()?;
    present.next().is_none().then_some(first)
}

fn rubbish(line: &[u8], reason: &str) -> ProtocolError {
    ProtocolError::Rubbish { line: shown(line), reason: reason.to_owned() }
}

/// The beginning of a line for a message. Only the beginning is decoded: a line may be long.
fn shown(line: &[u8]) -> String {
    let beginning = line.get(..512).unwrap_or(line);
    quoted(&String::from_utf8_lossy(beginning))
}

/// A text for [`SM_GROUPS`] that names no groups.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} names no SM groups; write ranges such as 0-31 or 0-3,8-11, in rising order, below {SM_GROUPS_MAX}"
)]
pub struct SmGroupsError(String);

/// No GPU has as many groups; bounds what a mistyped range can make us keep.
pub const SM_GROUPS_MAX: usize = 4096;

/// The groups that a value of [`SM_GROUPS`] names: inclusive ranges of indices into the groups of one split of all SMs
/// into the smallest groups, comma-separated, rising and disjoint.
///
/// # Errors
/// A text that is none of that.
pub fn sm_groups(text: &str) -> Result<Vec<usize>, SmGroupsError> {
    let error = || SmGroupsError(quoted(text));
    let number = |text: &str| {
        // `parse` alone would take "+1".
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<usize>().ok().filter(|index| digits && *index < SM_GROUPS_MAX).ok_or_else(error)
    };
    let mut groups: Vec<usize> = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        let (first, last) = (number(first)?, number(last)?);
        if first > last || groups.last().is_some_and(|before| *before >= first) {
            return Err(error());
        }
        groups.extend(first..=last);
    }
    Ok(groups)
}

#[cfg(test)]
mod tests;
