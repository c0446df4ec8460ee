//! What `partywall tenant` is asked to host: `[TAG=]NAME[:CLASS][,size=BYTES][,awake]`, one for each tenant, and how the
//! tenants of one process share the GPU.

use std::str::FromStr;

use partywall_core::diagnostic::quoted;
use partywall_core::tenant::Class;
use partywall_core::units::Bytes;
use partywall_driver::GroupSet;

use super::pretend::{PRETEND, Pretence};
use super::{Builtin, CATALOGUE, find};

/// Most tenants of one process: each has a thread that looks at the clock, and an experiment has two.
pub const TENANTS_MAX: usize = 8;
/// Longest tag: it stands in every line.
const TAG_MAX: usize = 64;

/// A tenant to host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantSpec {
    /// What the lines of the protocol call it, where a process hosts several; the name unless given.
    pub tag: String,
    /// What it does.
    pub kind: Kind,
    /// Latency-sensitive tenants have high priority where streams have priorities.
    pub class: Class,
    /// Replaces the built-in's own size of a buffer or a copy.
    pub size: Option<Bytes>,
    /// Whether its host looks at the clock all the time between requests, as a service that polls does.
    pub awake: bool,
}

/// What a tenant does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Real work on a GPU.
    Builtin(&'static Builtin),
    /// Work that is only pretended.
    Pretend,
}

impl Kind {
    fn has_size(self) -> bool {
        matches!(self, Self::Builtin(builtin) if builtin.has_size())
    }
}

/// Everything that `partywall tenant` was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantArguments {
    /// The tenants, at least one.
    pub tenants: Vec<TenantSpec>,
    /// Which part of the GPU they run on.
    pub sharing: Sharing,
    /// Number of the device among the visible ones.
    pub device: u32,
    /// How pretended tenants behave.
    pub pretence: Pretence,
}

/// How the tenants of one process share the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sharing {
    /// Each has a stream of the whole GPU; all the same priority.
    Whole,
    /// Each has a stream of the whole GPU, whose priority is that of its class.
    StreamPriority,
    /// Each tenant in turn has a green context over these groups of the one split of all SMs.
    GreenContexts(Vec<GroupSet>),
}

/// Arguments that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    /// There is no such built-in tenant.
    #[error("there is no tenant {0}; there are {names} and {PRETEND}", names = names())]
    Unknown(String),
    /// The class is none.
    #[error("{0} is no class; write latency-sensitive (or ls) or best-effort (or be)")]
    Class(String),
    /// An option behind a comma is not known or has no value that makes sense.
    #[error("{option} is no option of the tenant {name}; {help}")]
    Option {
        /// What was given.
        option: String,
        /// To which tenant.
        name: String,
        /// What would be right.
        help: &'static str,
    },
    /// The tag cannot be used.
    #[error("{0} cannot name a tenant; use 1 to {TAG_MAX} letters, digits and - _ . @ +")]
    Tag(String),
    /// Two tenants have the same tag.
    #[error("two tenants are called {0}; write NAME=TENANT to tell them apart")]
    SameTag(String),
    /// Too few or too many tenants.
    #[error("{0} tenants in one process; host 1 to {TENANTS_MAX}")]
    Tenants(usize),
    /// As many sets of groups as tenants are needed.
    #[error("{tenants} tenants and {sets} sets of SM groups; give each tenant one set, or none at all")]
    GroupSets {
        /// How many tenants there are.
        tenants: usize,
        /// How many sets.
        sets: usize,
    },
    /// Two tenants would share SMs, which is what green contexts are there to prevent.
    #[error("the SM groups {0} and {1} overlap; make them disjoint")]
    SharedGroups(GroupSet, GroupSet),
}

impl FromStr for TenantSpec {
    type Err = ArgumentsError;

    fn from_str(text: &str) -> Result<Self, ArgumentsError> {
        let mut parts = text.split(',');
        let head = parts.next().unwrap_or_default();
        let (tag, rest) = head.split_once('=').map_or((None, head), |(tag, rest)| (Some(tag), rest));
        let (name, class) = rest.split_once(':').map_or((rest, None), |(name, class)| (name, Some(class)));
        let class = class.map(parse_class).transpose()?;
        let kind = if name == PRETEND {
            Kind::Pretend
        } else {
            Kind::Builtin(find(name, class).ok_or_else(|| ArgumentsError::Unknown(quoted(name)))?)
        };
        let class = class.unwrap_or(match kind {
            Kind::Builtin(builtin) => builtin.class,
            Kind::Pretend => Class::LatencySensitive,
        });
        let (mut size, mut awake) = (None, false);
        for part in parts {
            if part == "awake" {
                awake = true;
                continue;
            }
            let value = part.strip_prefix("size=").and_then(|value| value.parse::<Bytes>().ok());
            match value {
                Some(value) if value > Bytes::ZERO && kind.has_size() => size = Some(value),
                _ => {
                    let help = if kind.has_size() {
                        "write size=BYTES, such as size=512MiB, or awake"
                    } else {
                        "write awake"
                    };
                    return Err(ArgumentsError::Option { option: quoted(part), name: name.to_owned(), help });
                }
            }
        }
        let tag = tag.unwrap_or(name);
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@+".contains(c);
        if tag.is_empty() || tag.len() > TAG_MAX || !tag.chars().all(allowed) {
            return Err(ArgumentsError::Tag(quoted(tag)));
        }
        Ok(Self { tag: tag.to_owned(), kind, class, size, awake })
    }
}

impl TenantArguments {
    /// Whether the parts go together.
    ///
    /// # Errors
    /// No tenants, too many, two of one name, or SM groups that do not go with them.
    pub fn check(&self) -> Result<(), ArgumentsError> {
        if !(1..=TENANTS_MAX).contains(&self.tenants.len()) {
            return Err(ArgumentsError::Tenants(self.tenants.len()));
        }
        let mut tags: Vec<&str> = self.tenants.iter().map(|tenant| tenant.tag.as_str()).collect();
        tags.sort_unstable();
        if let Some(pair) = tags.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ArgumentsError::SameTag(quoted(pair[0])));
        }
        if let Sharing::GreenContexts(sets) = &self.sharing {
            if sets.len() != self.tenants.len() {
                return Err(ArgumentsError::GroupSets { tenants: self.tenants.len(), sets: sets.len() });
            }
            for (index, one) in sets.iter().enumerate() {
                if let Some(other) = sets[index + 1..].iter().find(|other| !one.is_disjoint(other)) {
                    return Err(ArgumentsError::SharedGroups(one.clone(), other.clone()));
                }
            }
        }
        Ok(())
    }
}

fn parse_class(text: &str) -> Result<Class, ArgumentsError> {
    match text {
        "latency-sensitive" | "ls" => Ok(Class::LatencySensitive),
        "best-effort" | "be" => Ok(Class::BestEffort),
        _ => Err(ArgumentsError::Class(quoted(text))),
    }
}

fn names() -> String {
    // A name that is there for both classes is listed once.
    let first = |one: &&Builtin| find(one.name, None) == Some(*one);
    CATALOGUE.iter().filter(first).map(|one| one.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(text: &str) -> Result<TenantSpec, String> {
        text.parse().map_err(|error: ArgumentsError| error.to_string())
    }

    #[test]
    fn specs_that_people_write() {
        let plain = spec("vram-read").unwrap();
        assert_eq!(
            (plain.tag.as_str(), plain.class, plain.size),
            ("vram-read", Class::LatencySensitive, None)
        );
        let full = spec("be=vram-read:best-effort,size=8GiB").unwrap();
        assert_eq!(
            (full.tag.as_str(), full.class, full.size),
            ("be", Class::BestEffort, Some(Bytes::from_gib(8)))
        );
        assert_eq!(full.kind, Kind::Builtin(find("vram-read", Some(Class::BestEffort)).unwrap()));
        assert_eq!(spec("compute:ls").unwrap().class, Class::LatencySensitive);
        assert!(
            !full.awake
                && spec("copy-h2d,size=64KiB,awake").unwrap().awake
                && spec("matmul,awake").unwrap().awake
        );
        assert_eq!(spec("pretend:be").unwrap().kind, Kind::Pretend);
    }

    #[test]
    fn refusals_say_what_would_be_right() {
        assert!(spec("vram").unwrap_err().starts_with("there is no tenant `vram`; there are read-latency, "));
        let class = "`urgent` is no class; write latency-sensitive (or ls) or best-effort (or be)";
        assert_eq!(spec("matmul:urgent").unwrap_err(), class);
        for option in ["size=0B", "size=", "size=12 parsecs", "depth=2", ""] {
            assert!(spec(&format!("l2,{option}")).unwrap_err().contains("write size=BYTES"), "{option}");
        }
        for none in ["pretend", "matmul"] {
            let expected = format!("`size=1MiB` is no option of the tenant {none}; write awake");
            assert_eq!(spec(&format!("{none},size=1MiB")).unwrap_err(), expected);
        }
        assert!(spec("a b=l2").unwrap_err().contains("cannot name a tenant"));
        assert!(spec("=l2").unwrap_err().contains("cannot name a tenant"));
    }

    #[test]
    fn the_parts_must_go_together() {
        let check = |tenants: &[&str], sharing| {
            let tenants = tenants.iter().map(|text| text.parse().unwrap()).collect();
            let arguments = TenantArguments { tenants, sharing, device: 0, pretence: Pretence::default() };
            arguments.check().map_err(|error| error.to_string())
        };
        let two = ["a=pretend", "b=pretend"];
        let groups =
            |sets: &[&str]| Sharing::GreenContexts(sets.iter().map(|set| set.parse().unwrap()).collect());
        assert_eq!(check(&two, groups(&["0-1", "2,3"])), Ok(()));
        assert!(check(&two, groups(&["0-1"])).unwrap_err().starts_with("2 tenants and 1 sets"));
        assert!(
            check(&two, groups(&["0-1", "1-2"]))
                .unwrap_err()
                .starts_with("the SM groups 0-1 and 1-2 overlap")
        );
        assert!(check(&["l2", "l2"], Sharing::Whole).unwrap_err().starts_with("two tenants are called `l2`"));
        assert!(check(&[], Sharing::Whole).unwrap_err().starts_with("0 tenants"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn no_text_panics(text in ".*", tail in "(l2|pretend)[:=,a-z0-9]*") {
            let _ = text.parse::<TenantSpec>();
            let _ = tail.parse::<TenantSpec>();
        }
    }
}
