//! How the wall `partywall` is set, as records and scenarios have it: `mps be=66sms chunks=2,chunk=100us`.
//!
//! `partywall measure` describes the words, and writes them into records. Those that the model knows nothing of are read all the same: the priority of
//! MPS clients (`level`), which is a hint to the server and was seen to take no room from a kernel that runs, and how copies between host and
//! device are scheduled (`straight`): the programs of records copy nothing.

use std::str::FromStr;

use partywall_core::tenant::Share;
use partywall_core::units::{Nanos, SmCount};

use super::{Node, NodeLaunches};

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeText {
    /// What the node is told.
    pub node: Node,
    /// The SMs of latency-sensitive tenants; `None`: all.
    pub ls: Option<SmCount>,
    /// The SMs of best-effort tenants; `None`: all.
    pub be: Option<SmCount>,
}

impl NodeText {
    /// SMs of the two classes as a layout takes them.
    pub(crate) fn shares(&self) -> [Option<Share>; 2] {
        [self.ls, self.be].map(|sms| sms.map(Share::Sms))
    }
}

impl FromStr for NodeText {
    /// Which word is none of it.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |word: &str| format!("`partywall` is set to `{text}`, of which `{word}` is not known");
        let mut words = text.split_ascii_whitespace();
        let mps = match words.next() {
            Some("mps") => true,
            Some("time-slicing") => false,
            other => return Err(wrong(other.unwrap_or_default())),
        };
        let mut setting = Self { node: Node { mps, launches: None, slice: None }, ls: None, be: None };
        let mut is_off = false;
        for word in words {
            let sms = |text: &str| text.strip_suffix("sms").and_then(|sms| sms.parse().ok()).map(SmCount);
            match word.split_once('=') {
                Some(("ls", text)) => setting.ls = Some(sms(text).ok_or_else(|| wrong(word))?),
                Some(("be", text)) => setting.be = Some(sms(text).ok_or_else(|| wrong(word))?),
                None if ["level", "straight"].contains(&word) => {}
                None if word == "decided" => _ = setting.node.launches.get_or_insert_default(),
                _ => {
                    let launches = setting.node.launches.get_or_insert_default();
                    for part in word.split(',').filter(|part| !part.is_empty()) {
                        is_off |= part == "off";
                        if let Some(text) = part.strip_prefix("slice=") {
                            setting.node.slice = Some(text.parse().map_err(|_| wrong(part))?);
                            continue;
                        }
                        option(launches, part).ok_or_else(|| wrong(part))?;
                    }
                }
            }
        }
        setting.node.launches.take_if(|_| is_off);
        Ok(setting)
    }
}

/// One of a node's options. Nobody is promised anything while something is measured, so nothing is steered and `fixed` changes nothing.
fn option(launches: &mut NodeLaunches, part: &str) -> Option<()> {
    let time = |text: &str| text.parse::<Nanos>().ok();
    let turnstile = &mut launches.turnstile;
    match part.split_once('=') {
        Some(("chunks", count)) => turnstile.chunks = count.parse().ok().filter(|count| *count > 0)?,
        Some(("chunk", text)) => turnstile.chunk = time(text)?,
        Some(("launches", count)) => turnstile.launches = count.parse().ok().filter(|count| *count > 0)?,
        Some(("release", text)) => launches.release = time(text)?,
        None if part == "off" || part == "fixed" => {}
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Turnstile;

    fn node(text: &str) -> Result<NodeText, String> {
        text.parse()
    }

    #[test]
    fn a_setting_is_what_its_words_say() {
        let as_it_comes = Some(NodeLaunches::default());
        let plain = NodeText { node: Node { mps: false, launches: None, slice: None }, ls: None, be: None };
        let decided = Node { mps: true, launches: as_it_comes, slice: None };
        for (text, expected) in [
            ("time-slicing", plain),
            (
                "time-slicing decided",
                NodeText { node: Node { launches: as_it_comes, ..plain.node }, ..plain },
            ),
            ("mps level straight fixed", NodeText { node: decided, ..plain }),
            (
                "mps ls=20sms be=66sms decided",
                NodeText { node: decided, ls: Some(SmCount(20)), be: Some(SmCount(66)) },
            ),
            ("mps off", NodeText { node: Node { launches: None, ..decided }, ..plain }),
            (
                "time-slicing off,slice=50us",
                NodeText { node: Node { slice: Some(Nanos::from_micros(50)), ..plain.node }, ..plain },
            ),
        ] {
            assert_eq!(node(text).unwrap(), expected, "{text}");
        }
        let launches = node("mps chunks=3,chunk=0us,launches=5,release=1ms").unwrap().node.launches.unwrap();
        let turnstile = Turnstile { chunks: 3, chunk: Nanos::ZERO, launches: 5 };
        assert_eq!(launches, NodeLaunches { turnstile, hold: true, release: Nanos::from_millis(1) });
    }

    #[test]
    fn words_that_are_not_known_are_named() {
        for (text, word) in [
            ("", ""),
            ("mig", "mig"),
            ("mps be=66", "be=66"),
            ("mps 66/66", "66/66"),
            ("mps chunks=0", "chunks=0"),
            ("mps chunk=long", "chunk=long"),
            ("time-slicing slice=short", "slice=short"),
        ] {
            let expected = format!("`partywall` is set to `{text}`, of which `{word}` is not known");
            assert_eq!(node(text).unwrap_err(), expected);
        }
    }
}
