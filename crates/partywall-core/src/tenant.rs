//! Tenants and what they were promised.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Nanos, SmCount};

/// What a tenant cares about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Keeps the tail latency that it has alone on the GPU.
    LatencySensitive,
    /// Takes everything that is left.
    BestEffort,
}

impl Class {
    /// The two letters the reports use: LS, BE.
    pub const fn short(self) -> &'static str {
        match self {
            Self::LatencySensitive => "LS",
            Self::BestEffort => "BE",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::LatencySensitive => "latency-sensitive",
            Self::BestEffort => "best-effort",
        })
    }
}

/// Index of a tenant in its node's or scenario's list.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct TenantId(pub u32);

impl TenantId {
    /// As a list index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant {}", self.0)
    }
}

/// How much of a GPU's SMs a tenant may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// A number of SMs.
    Sms(SmCount),
    /// A percentage of the SMs, rounded down as MPS does.
    Percent(u8),
}

impl Share {
    /// The SMs this is on a GPU of `whole` SMs; never more than it has, at least one.
    pub fn of(self, whole: SmCount) -> SmCount {
        let sms = match self {
            Self::Sms(SmCount(sms)) => sms,
            Self::Percent(percent) => whole.0 * u32::from(percent) / 100,
        };
        SmCount(sms.clamp(1, whole.0.max(1)))
    }
}

/// A text that is no share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is no share of the SMs; write a percentage such as 60% (1 to 100) or a number such as 80sms"
)]
pub struct ShareError {
    /// What was given.
    pub given: String,
}

/// `60%` or `80sms`, as the command line takes it.
impl FromStr for Share {
    type Err = ShareError;
    fn from_str(text: &str) -> Result<Self, ShareError> {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok());
        let number = |text: &str| digits(text).flatten().filter(|&number: &u32| number > 0);
        let percent = |text: &str| u8::try_from(number(text)?).ok().filter(|&percent| percent <= 100);
        let share = match (text.strip_suffix('%'), text.strip_suffix("sms")) {
            (Some(text), _) => percent(text).map(Self::Percent),
            (None, Some(text)) => number(text).map(SmCount).map(Self::Sms),
            (None, None) => None,
        };
        share.ok_or_else(|| ShareError { given: text.to_owned() })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sms(SmCount(sms)) => write!(f, "{sms}sms"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// What a tenant was promised about its requests.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Slo {
    /// 99 of 100 requests take this time at most. A node sees a request from its first launch to when all is through, not when it arrived.
    pub p99: Option<Nanos>,
    /// Largest allowed slowdown: co-run p99 over solo p99 of service time, a fraction of at least 1.
    pub slowdown: Option<f64>,
}

impl Slo {
    /// Whether anything was promised.
    pub const fn is_some(&self) -> bool {
        self.p99.is_some() || self.slowdown.is_some()
    }

    /// What is wrong with it, if anything is: of which part, and why.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if self.p99 == Some(Nanos::ZERO) {
            return Some(("p99", "no request completes within no time".to_owned()));
        }
        let slowdown = self.slowdown.filter(|slowdown| !(slowdown.is_finite() && *slowdown >= 1.0))?;
        Some(("slowdown", format!("a slowdown of {slowdown} cannot be promised: 1 is as fast as alone")))
    }
}

/// What is known of a tenant's requests alone, so that it need not be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Baseline {
    /// 99 of 100 requests take this time at most, alone on the whole GPU.
    pub p99: Option<Nanos>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_round_as_mps_does() {
        let whole = SmCount(132);
        let shares = [Share::Percent(50), Share::Percent(6), Share::Percent(0), Share::Sms(SmCount(999))];
        assert_eq!(shares.map(|share| share.of(whole).0), [66, 7, 1, 132]);
    }

    #[test]
    fn shares_are_written_with_their_unit() {
        for text in ["60%", "1%", "100%", "80sms"] {
            assert_eq!(text.parse::<Share>().unwrap().to_string(), text);
        }
        for wrong in ["", "%", "60", "0%", "101%", "+5%", "356%", "0sms", "sms", "80 sms", "99999999999sms"] {
            let error = wrong.parse::<Share>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}`")) && error.contains("80sms"), "{error}");
        }
    }
}
