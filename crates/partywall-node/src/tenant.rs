//! A tenant as the node knows it: its description, and what passes between the part of the node that starts and
//! stops tenants ([`crate::node`]) and the part that serves their processes (memory, copies, coverage).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::str::FromStr;

use crate::promise::PromiseFacts;
use partywall_core::config::{Restart, TenantConfig};
use partywall_core::copy_scheduler;
use partywall_core::sm_sets::SmSet;
use partywall_core::tenant::{Baseline, Class, Share, Slo, TenantId};
use partywall_core::units::{Bytes, Nanos};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of a token: too many to guess.
pub const TOKEN_BYTES: usize = 16;

/// Tenants of one node at most: each costs a shepherd process, and a GPU has room for far fewer.
pub const MAX_TENANTS: usize = 256;

/// A tenant: what runs, and what it was given. Lives as long as the node keeps the tenant, over all its runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantSpec {
    /// Its number, never used again by this node for another tenant, also after a restart of the node.
    pub id: TenantId,
    /// Its name, once per node; see `partywall_core::config` for what a name is.
    pub name: String,
    /// What it cares about.
    pub class: Class,
    /// The GPU memory that all its processes together may hold; `None`: no limit but the GPU's.
    pub memory: Option<Bytes>,
    /// The weight of its copies against those of other tenants, 1 to `partywall_core::config::MAX_WEIGHT`.
    pub weight: u32,
    /// The program and its arguments; at least the program.
    pub command: Vec<String>,
    /// Environment variables set for it, besides those of whoever started it.
    pub env: BTreeMap<String, String>,
    /// Whether it is started again when it ends.
    pub restart: Restart,
    /// What its requests were promised.
    #[serde(default)]
    pub slo: Slo,
    /// What is known of them alone.
    #[serde(default)]
    pub baseline: Baseline,
    /// The SMs that it asked for.
    #[serde(default)]
    pub share: Option<Share>,
    /// The SMs that it has to itself, while it is there and its wall gives it some.
    #[serde(default)]
    pub sms: Option<SmSet>,
    /// The SMs that it asked for while it is squeezed.
    #[serde(default)]
    pub squeezed: Option<Share>,
    /// Those that it has then, a part of its own; without, it is held.
    #[serde(default)]
    pub squeezed_sms: Option<SmSet>,
    /// What its processes prove with that they are its own.
    pub token: Token,
}

/// Where a tenant computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The SMs that it has to itself.
    pub sms: Option<SmSet>,
    /// Those that are left to it while it is squeezed.
    pub squeezed: Option<SmSet>,
}

impl TenantSpec {
    /// The same tenant in its place.
    #[must_use]
    pub fn placed(self, place: Place) -> Self {
        Self { sms: place.sms, squeezed_sms: place.squeezed, ..self }
    }

    /// The tenant that `config` describes, with the number and the token that the node chose.
    pub fn from_config(config: &TenantConfig, id: TenantId, token: Token) -> Self {
        Self {
            id,
            name: config.name.clone(),
            class: config.class,
            memory: Some(config.memory),
            weight: config.weight.unwrap_or_else(|| default_weight(config.class)),
            command: config.command.clone(),
            env: config.env.clone(),
            restart: config.restart,
            slo: config.slo,
            baseline: config.baseline,
            share: config.share,
            sms: None,
            squeezed: config.squeezed,
            squeezed_sms: None,
            token,
        }
    }
}

/// The weight of the copies of a tenant that was given none.
pub fn default_weight(class: Class) -> u32 {
    copy_scheduler::Config::default().weight(class)
}

/// Names a tenant and proves that a process belongs to it: 32 hexadecimal digits in the environment of its
/// processes. Debug output does not show it, so that it does not end in a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token([u8; TOKEN_BYTES]);

/// A text that is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a token is 32 hexadecimal digits")]
pub struct TokenError;

impl Token {
    /// A token of these bytes, which nobody can guess.
    pub const fn from_bytes(bytes: [u8; TOKEN_BYTES]) -> Self {
        Self(bytes)
    }

    /// One that the system draws.
    ///
    /// # Errors
    /// Where the system has no random numbers.
    pub fn random() -> rustix::io::Result<Self> {
        let (mut bytes, mut filled) = ([0; TOKEN_BYTES], 0);
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(Self(bytes))
    }

    /// Its bytes.
    pub const fn bytes(&self) -> [u8; TOKEN_BYTES] {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl FromStr for Token {
    type Err = TokenError;
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let digits = text.as_bytes();
        if digits.len() != 2 * TOKEN_BYTES {
            return Err(TokenError);
        }
        let mut bytes = [0; TOKEN_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(TokenError);
            // Two digits of four bits each.
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Something that happened to a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantEvent {
    /// Its command was started: the first time (`run` 1) or again, or found running by a restarted node.
    Started {
        /// Which run this is, from 1.
        run: u32,
    },
    /// None of its processes is left; it may be started again.
    Ended {
        /// Which run this was.
        run: u32,
    },
}

/// Something that a tenant's processes show by what they write into their pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The driver has returned an error that ends a process's work on the device.
    Fault {
        /// Which process; `None` where it lives in another namespace.
        pid: Option<u32>,
        /// The error, as the driver numbers them.
        code: u32,
        /// When.
        at: Nanos,
    },
    /// A process has registered.
    Registered,
    /// A process has had a request done, or launched something, and no fault.
    Worked {
        /// When.
        at: Nanos,
    },
}

/// Faults of the GPU, as metrics tell of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultFacts {
    /// Faults in clients of the node's MPS daemon.
    pub faults: u64,
    /// Those of them that ended nobody's work but that of who caused them.
    pub contained: u64,
    /// How many of them each tenant caused.
    pub caused: BTreeMap<TenantId, u32>,
    /// From the last one that ended all clients to the first good request; `None` while there was none.
    pub recover: Option<Nanos>,
}

/// What is known of a tenant's processes, added up over all of them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TenantFacts {
    /// Processes that use the GPU through Partywall now.
    pub processes: u32,
    /// GPU memory that they hold.
    pub memory_used: Bytes,
    /// Whether everything that they resolved of the driver is covered; `None` while none of them has said.
    pub guaranteed: Option<bool>,
    /// Names of entry points that they resolved and nobody knows, sorted.
    pub unknown: Vec<String>,
    /// Why what was promised to it cannot be enforced, a line each.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// How the promise about its requests stands; `None` for best-effort tenants, and of a node that knows nothing of promises.
    #[serde(default)]
    pub promise: Option<Box<PromiseFacts>>,
    /// Everything else, for programs: memory by path, copies, launches, the coverage table.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub detail: serde_json::Value,
}

/// The part of the node that serves tenants' processes, as the part that starts and stops them sees it. Calls
/// return at once; none of them waits for a tenant.
pub trait TenantService {
    /// A tenant exists from now on: its processes may register with its token.
    ///
    /// # Errors
    /// When it cannot be served; the tenant is not started then.
    fn add_tenant(&mut self, spec: &TenantSpec) -> std::io::Result<()>;

    /// As [`TenantService::add_tenant`], for a tenant that is only there for something to be found out about its SMs, and is not
    /// told of.
    ///
    /// # Errors
    /// As there.
    fn add_probe(&mut self, spec: &TenantSpec) -> std::io::Result<()>;

    /// Why it is not known that a tenant's SMs are its own; `None` where it is.
    fn sms_problem(&mut self, id: TenantId, problem: Option<String>);

    /// A tenant of which nothing runs is about to be started on other SMs than before.
    fn confine(&mut self, id: TenantId, place: Place);

    /// The wall does not stand any more for processes that are there; if it was `rebuilt`, it does for those that come.
    fn wall_fell(&mut self, why: &str, rebuilt: bool);

    /// Something happened to a tenant that was added.
    fn tenant_event(&mut self, id: TenantId, event: TenantEvent);

    /// The tenant is gone for good: its token is worth nothing any more.
    fn remove_tenant(&mut self, id: TenantId);

    /// What processes behind the node's MPS daemon have shown since this was last asked, in the order of time. Nothing behind
    /// other walls.
    fn signs(&mut self) -> Vec<(TenantId, Sign)>;

    /// Readable while there are such signs.
    fn bell(&self) -> Option<BorrowedFd<'_>>;

    /// The tenants that have processes which are clients of the MPS daemon as far as is known, with the ids of these.
    fn behind_mps(&self) -> BTreeMap<TenantId, BTreeSet<u32>>;

    /// What each process behind the MPS daemon has launched so far, by a number of its own.
    fn launched(&self) -> BTreeMap<TenantId, BTreeMap<u64, u64>>;

    /// What metrics are to tell of faults.
    fn faulted(&mut self, facts: FaultFacts);

    /// What is known now of each tenant that was added.
    fn snapshot(&self) -> BTreeMap<TenantId, TenantFacts>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_is_32_digits_and_is_not_shown() {
        let token: Token = "00112233445566778899aabbccddeeff".parse().unwrap();
        assert_eq!(token.bytes()[..3], [0x00, 0x11, 0x22]);
        assert_eq!(token.to_string(), "00112233445566778899aabbccddeeff");
        assert_eq!(format!("{token:?}"), "Token(..)");
        for wrong in ["", "0011", "00112233445566778899aabbccddeefg", "+0112233445566778899aabbccddeeff"] {
            assert_eq!(wrong.parse::<Token>(), Err(TokenError), "{wrong}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn tokens_survive_their_text(bytes in any::<[u8; 16]>()) {
            let token = Token::from_bytes(bytes);
            prop_assert_eq!(token.to_string().parse(), Ok(token));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Token>();
        }
    }
}
