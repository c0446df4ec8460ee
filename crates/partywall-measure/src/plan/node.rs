//! How the wall `partywall` is set: what a node puts around programs as they are.
//!
//! A text of words: first what stands below it (`time-slicing` or `mps`), then what is not as it comes.
//!
//! | word | what it does |
//! |---|---|
//! | `ls=66sms`, `be=66sms` | confines the tenants of a class to so many SMs: latency-sensitive ones to the first, best-effort ones to the last |
//! | `level` | best-effort tenants are MPS clients of the same priority as others, and not of a lower one |
//! | `straight` | copies go straight to the driver |
//! | `decided`, or options such as `chunks=2,chunk=100us` | launches are decided about, as the options of a node say; with `squeezed=16sms` best-effort tenants keep so many SMs while others are at work, with `duty=50%` so much of the time; with `slice=200us` they lose the device so often to who waits |

use std::fmt;
use std::str::FromStr;

use partywall_core::diagnostic::quoted;
use partywall_node::arbiter::squeeze::LaunchOptions;

/// How to write one.
const RIGHT: &str = "write setting = \"mps\" or \"time-slicing\", then what is wanted of ls=66sms, be=66sms, level, straight, decided, chunks=2,chunk=100us,squeezed=16sms,duty=50%,slice=200us";

/// A node around the tenants of a cell.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeSetting {
    /// Whether tenants are clients of an MPS daemon; otherwise they take turns.
    pub mps: bool,
    /// The SMs that latency-sensitive tenants are confined to, from the first; `None`: all.
    pub ls_sms: Option<u32>,
    /// The SMs that best-effort tenants are confined to, up to the last; `None`: all.
    pub be_sms: Option<u32>,
    /// Whether best-effort tenants are MPS clients of lower priority.
    pub lower: bool,
    /// Whether copies wait for their turn.
    pub copies: bool,
    /// How launches are decided about, as a node's options have it; `None`: they are not. Empty: as it comes.
    pub launches: Option<String>,
}

impl NodeSetting {
    /// SM sets, kept by the shim under MPS, and nothing else: what the wall `green-contexts` is for programs as they are.
    pub const fn sets_alone(ls_sms: u32, be_sms: u32) -> Self {
        let (ls_sms, be_sms) = (Some(ls_sms), Some(be_sms));
        Self { mps: true, ls_sms, be_sms, lower: false, copies: false, launches: None }
    }

    /// From a text.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let mps = match words.next() {
            Some("mps") => true,
            Some("time-slicing") => false,
            _ => return Err(format!("{} does not say what is below the node; {RIGHT}", quoted(text))),
        };
        let mut setting = Self { mps, ls_sms: None, be_sms: None, lower: mps, copies: true, launches: None };
        let mut options: Vec<&str> = Vec::new();
        for word in words {
            match word.split_once('=') {
                Some(("ls", sms)) => setting.ls_sms = Some(sms_of(word, sms)?),
                Some(("be", sms)) => setting.be_sms = Some(sms_of(word, sms)?),
                None if word == "level" => setting.lower = false,
                None if word == "straight" => setting.copies = false,
                None if word == "decided" => setting.launches = Some(String::new()),
                _ => options.extend(word.split(',').filter(|option| !option.is_empty())),
            }
        }
        if !options.is_empty() {
            setting.launches = Some(options.join(","));
        }
        let launches = setting.launch_options().map_err(|error| format!("{error}; {RIGHT}"))?;
        if setting.mps && launches.slice.is_some() {
            return Err(format!(
                "{}: clients of an MPS daemon share one turn and have no slices; {RIGHT}",
                quoted(text)
            ));
        }
        Ok(setting)
    }

    /// How launches are decided about.
    ///
    /// # Errors
    /// A part that is none of a node's options.
    pub fn launch_options(&self) -> Result<LaunchOptions, String> {
        match &self.launches {
            None => Ok(LaunchOptions { decided: false, ..LaunchOptions::default() }),
            Some(text) => LaunchOptions::from_str(text).map_err(|error| error.to_string()),
        }
    }
}

fn sms_of(word: &str, text: &str) -> Result<u32, String> {
    let digits = text.strip_suffix("sms").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let sms = digits.and_then(|digits| digits.parse().ok()).filter(|sms| (1..=4096).contains(sms));
    sms.ok_or_else(|| format!("{} is no number of SMs; write be=66sms", quoted(word)))
}

impl fmt::Display for NodeSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.mps { "mps" } else { "time-slicing" })?;
        for (class, sms) in [("ls", self.ls_sms), ("be", self.be_sms)] {
            if let Some(sms) = sms {
                write!(f, " {class}={sms}sms")?;
            }
        }
        if self.mps && !self.lower {
            f.write_str(" level")?;
        }
        if !self.copies {
            f.write_str(" straight")?;
        }
        match self.launches.as_deref() {
            None => Ok(()),
            Some("") => f.write_str(" decided"),
            Some(options) => write!(f, " {options}"),
        }
    }
}
