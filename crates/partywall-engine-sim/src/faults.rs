//! What an engine can be told to do wrong, and how often it did.
//!
//! A fault is a short text, the same on the command line and in `POST /fault`. Those that have a *share* strike evenly: of a share of
//! 0.25 every fourth, not each with a chance of a quarter, so that a test knows what it will see.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// Everything takes this many times as long.
    Slow(f64),
    /// Requests are taken and nothing moves. Health and metrics are still answered, as by an engine whose core hangs.
    Hang,
    /// A share of the requests is answered with an error.
    Error {
        /// Of the requests.
        share: f64,
        /// The HTTP status, 500 to 599.
        status: u16,
    },
    /// The connection of a share of the requests is closed in the middle of the answer.
    Cut {
        /// After so many tokens of output.
        tokens: u32,
        /// Of the requests.
        share: f64,
    },
    /// All of the replica is gone for good, as if its process had been killed.
    Die {
        /// After so many more tokens of output, over all requests; 0 is now.
        tokens: u64,
    },
    /// All requests are cut off, the cache is empty, event numbers begin at 0 again.
    Restart,
    /// The cache is emptied and says so. Refused while requests are running, as by vLLM.
    Clear,
    /// A share of the event messages is not sent. A replay still has them.
    DropEvents(f64),
    /// A share of the event messages is sent twice.
    DuplicateEvents(f64),
    /// A share of the event messages is sent after the one that follows.
    ReorderEvents(f64),
    /// The next so many event numbers are never used, and no replay has them.
    Gap(u64),
    /// Of a share of the prompts the engine says that it has stored them, and does not find them again.
    Lie(f64),
    /// Who asks for a replay gets no answer.
    NoReplay,
}

/// How faults are written, each with what it means: the one list, for messages and documentation.
pub const FORMS: &[(&str, &str)] = &[
    ("slow:FACTOR", "everything takes so many times as long"),
    ("hang", "requests are taken and nothing moves; health and metrics are still answered"),
    (
        "error:SHARE[:STATUS]",
        "that share of the requests is answered with an error, 500 if nothing else is said",
    ),
    (
        "cut:TOKENS[:SHARE]",
        "the connection is closed after so many tokens of an answer, of every request or of a share",
    ),
    ("die:TOKENS", "all of the replica is gone after so many more tokens over all requests; 0 is now"),
    ("restart", "requests are cut off, the cache is empty, event numbers begin at 0 (once)"),
    ("clear", "the cache is emptied and says so; refused while requests are running (once)"),
    ("drop-events:SHARE", "that share of the event messages is not sent; a replay has them"),
    ("duplicate-events:SHARE", "that share of the event messages is sent twice"),
    ("reorder-events:SHARE", "that share of the event messages is sent after the one that follows"),
    ("gap:N", "the next N event numbers are never used, and no replay has them (once)"),
    (
        "lie:SHARE",
        "of that share of the prompts the engine says that it has stored them, and does not find them again",
    ),
    ("no-replay", "who asks for a replay gets no answer"),
];

/// A text that is no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a fault: {reason}")]
pub struct NotAFault {
    text: String,
    reason: String,
}

impl Fault {
    /// What it is called in texts and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Slow(_) => "slow",
            Self::Hang => "hang",
            Self::Error { .. } => "error",
            Self::Cut { .. } => "cut",
            Self::Die { .. } => "die",
            Self::Restart => "restart",
            Self::Clear => "clear",
            Self::DropEvents(_) => "drop-events",
            Self::DuplicateEvents(_) => "duplicate-events",
            Self::ReorderEvents(_) => "reorder-events",
            Self::Gap(_) => "gap",
            Self::Lie(_) => "lie",
            Self::NoReplay => "no-replay",
        }
    }

    /// It happens once and is over.
    pub const fn is_once(&self) -> bool {
        matches!(self, Self::Restart | Self::Clear | Self::Gap(_))
    }
}

impl FromStr for Fault {
    type Err = NotAFault;

    fn from_str(text: &str) -> Result<Self, NotAFault> {
        let not = |reason: String| NotAFault { text: text.to_owned(), reason };
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let form = FORMS.iter().find(|(form, _)| form.split(':').next() == Some(name));
        let Some((form, _)) = form else {
            let known: Vec<&str> = FORMS.iter().map(|(form, _)| *form).collect();
            return Err(not(format!("write one of {}", known.join(", "))));
        };
        let wrong = || not(format!("write {form}"));
        let mut number = |otherwise: Option<f64>, low: f64, high: f64| -> Result<f64, NotAFault> {
            let Some(part) = parts.next() else { return otherwise.ok_or_else(wrong) };
            let number: f64 = part.parse().map_err(|_| wrong())?;
            if (low..=high).contains(&number) {
                Ok(number)
            } else {
                Err(not(format!("{part} is not between {low} and {high}")))
            }
        };
        const COUNT: f64 = u32::MAX as f64;
        let fault = match name {
            "slow" => Self::Slow(number(None, 0.001, 1e6)?),
            "hang" => Self::Hang,
            "error" => Self::Error {
                share: number(None, 0.0, 1.0)?,
                status: number(Some(500.0), 500.0, 599.0)? as u16,
            },
            "cut" => {
                Self::Cut { tokens: number(None, 0.0, COUNT)? as u32, share: number(Some(1.0), 0.0, 1.0)? }
            }
            "die" => Self::Die { tokens: number(None, 0.0, COUNT)? as u64 },
            "restart" => Self::Restart,
            "clear" => Self::Clear,
            "drop-events" => Self::DropEvents(number(None, 0.0, 1.0)?),
            "duplicate-events" => Self::DuplicateEvents(number(None, 0.0, 1.0)?),
            "reorder-events" => Self::ReorderEvents(number(None, 0.0, 1.0)?),
            "gap" => Self::Gap(number(None, 1.0, COUNT)? as u64),
            "lie" => Self::Lie(number(None, 0.0, 1.0)?),
            _ => Self::NoReplay,
        };
        if parts.next().is_some() { Err(wrong()) } else { Ok(fault) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Slow(number)
            | Self::DropEvents(number)
            | Self::DuplicateEvents(number)
            | Self::ReorderEvents(number)
            | Self::Lie(number) => write!(f, ":{number}"),
            Self::Error { share, status } => write!(f, ":{share}:{status}"),
            Self::Cut { tokens, share } => write!(f, ":{tokens}:{share}"),
            Self::Die { tokens } | Self::Gap(tokens) => write!(f, ":{tokens}"),
            Self::Hang | Self::Restart | Self::Clear | Self::NoReplay => Ok(()),
        }
    }
}

/// The faults that last, at most one of each name, and how often each has struck.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    lasting: BTreeMap<&'static str, Lasting>,
    struck: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Clone, Copy)]
struct Lasting {
    fault: Fault,
    /// What of the next strike has come together, 0 to 1.
    due: f64,
}

impl Faults {
    /// From now on; in place of one of the same name.
    pub fn set(&mut self, fault: Fault) {
        self.lasting.insert(fault.name(), Lasting { fault, due: 0.0 });
    }

    /// Ends the fault of that name, or all. Gives whether there was one.
    pub fn mend(&mut self, name: Option<&str>) -> bool {
        let before = self.lasting.len();
        self.lasting.retain(|known, _| name.is_some_and(|name| name != *known));
        self.lasting.len() < before
    }

    /// Those that last now.
    pub fn lasting(&self) -> impl Iterator<Item = Fault> {
        self.lasting.values().map(|lasting| lasting.fault)
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<Fault> {
        self.lasting.get(name).map(|lasting| lasting.fault)
    }

    /// How much slower everything is; infinite while it hangs.
    pub fn slowdown(&self) -> f64 {
        match (self.get("hang"), self.get("slow")) {
            (Some(_), _) => f64::INFINITY,
            (None, Some(Fault::Slow(factor))) => factor,
            _ => 1.0,
        }
    }

    /// Whether the one of this name strikes now; counts that it does.
    pub fn strikes(&mut self, name: &str) -> Option<Fault> {
        let lasting = self.lasting.get_mut(name)?;
        let share = match lasting.fault {
            Fault::Error { share, .. }
            | Fault::Cut { share, .. }
            | Fault::DropEvents(share)
            | Fault::DuplicateEvents(share)
            | Fault::ReorderEvents(share)
            | Fault::Lie(share) => share,
            _ => 1.0,
        };
        lasting.due += share;
        // Sums of shares such as a tenth fall short of one by a rounding error.
        if lasting.due < 1.0 - 1e-9 {
            return None;
        }
        lasting.due -= 1.0;
        let fault = lasting.fault;
        self.count(&fault);
        Some(fault)
    }

    /// Counts one that has happened.
    pub fn count(&mut self, fault: &Fault) {
        *self.struck.entry(fault.name()).or_default() += 1;
    }

    /// How often each has struck, every name that there is.
    pub fn struck(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let name = |form: &'static str| form.split_once(':').map_or(form, |(name, _)| name);
        FORMS.iter().map(move |(form, _)| {
            let name = name(form);
            (name, self.struck.get(name).copied().unwrap_or(0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written() {
        let texts = [
            "slow:2.5",
            "hang",
            "error:0.5:503",
            "cut:20:1",
            "die:0",
            "restart",
            "clear",
            "drop-events:0.1",
            "duplicate-events:1",
            "reorder-events:0.5",
            "gap:3",
            "lie:0.25",
            "no-replay",
        ];
        assert_eq!(texts.len(), FORMS.len());
        for text in texts {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        assert_eq!("error:1".parse(), Ok(Fault::Error { share: 1.0, status: 500 }));
        assert_eq!("cut:7".parse(), Ok(Fault::Cut { tokens: 7, share: 1.0 }));
    }

    #[test]
    fn the_page_for_users_has_every_form() {
        let page = include_str!("../../../docs/engine-sim.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        for (form, meaning) in FORMS {
            let row = format!("| `{form}` | {meaning} |");
            assert!(rows.contains(&row.as_str()), "docs/engine-sim.md has no row {row}");
        }
    }

    #[test]
    fn what_is_no_fault_is_told_what_would_be_one() {
        let reason = |text: &str| text.parse::<Fault>().unwrap_err().to_string();
        assert!(reason("explode").contains("cut:TOKENS[:SHARE]"), "{}", reason("explode"));
        assert_eq!(reason("slow"), "`slow` is not a fault: write slow:FACTOR");
        assert_eq!(reason("hang:1"), "`hang:1` is not a fault: write hang");
        assert_eq!(reason("lie:2"), "`lie:2` is not a fault: 2 is not between 0 and 1");
        assert_eq!(reason("slow:NaN"), "`slow:NaN` is not a fault: NaN is not between 0.001 and 1000000");
    }

    #[test]
    fn a_share_strikes_evenly() {
        let mut faults = Faults::default();
        faults.set("drop-events:0.1".parse().unwrap());
        let struck: Vec<usize> = (1..=30).filter(|_| faults.strikes("drop-events").is_some()).collect();
        assert_eq!(struck, [10, 20, 30]);
        assert_eq!(faults.struck().find(|(name, _)| *name == "drop-events"), Some(("drop-events", 3)));
        faults.set("drop-events:0".parse().unwrap());
        assert!((0..100).all(|_| faults.strikes("drop-events").is_none()));
    }

    #[test]
    fn mending_ends_one_or_all() {
        let mut faults = Faults::default();
        for text in ["hang", "slow:3", "no-replay"] {
            faults.set(text.parse().unwrap());
        }
        assert!(faults.slowdown().is_infinite());
        assert!(faults.mend(Some("hang")) && !faults.mend(Some("hang")));
        assert_eq!(faults.slowdown(), 3.0);
        assert!(faults.mend(None));
        assert_eq!((faults.slowdown(), faults.lasting().count()), (1.0, 0));
    }
}
