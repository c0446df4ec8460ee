//! Where tenants are measured: a wall, how it is set, and in how many processes; and the texts for that.

use std::fmt;

use partywall_core::diagnostic::quoted;
use partywall_core::wall::Wall;

use super::node::NodeSetting;
use crate::record::Processes;

/// A wall, how it is set, and in how many processes the tenants behind it run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The wall.
    pub wall: Wall,
    /// How it is set.
    pub setting: Setting,
    /// In how many processes.
    pub processes: Processes,
}

/// How a wall is set, the latency-sensitive tenant's part first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// There is nothing to set.
    None,
    /// Percent of the SMs, 1 to 100 each: `50/50`.
    Percent(u8, u8),
    /// SMs: `64/68`. Each tenant confines itself.
    Sms(u32, u32),
    /// SMs: `64/68 shim`. Tenants are programs as they are, and the shim confines them.
    ShimSms(u32, u32),
    /// A node around the tenants: `mps be=66sms chunk=100us`.
    Node(NodeSetting),
    /// UUIDs of MIG instances: `MIG-…/MIG-…`.
    Instances(String, String),
    /// What memory the tenants on the SMs of a side have: `private`, `plain`. Each takes part by itself.
    Side(SideMemory),
}

/// The memory of a tenant on the SMs of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SideMemory {
    /// Of the same side, in pages of which nobody has the other half: `private`.
    Private,
    /// As the driver gives it, on both sides: `plain`. What Green Contexts do by themselves on these SMs.
    Plain,
}

impl SideMemory {
    /// As it is written.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Plain => "plain",
        }
    }
}

impl Place {
    /// The whole GPU for one tenant.
    pub const SOLO: Self =
        Self { wall: Wall::Exclusive, setting: Setting::None, processes: Processes::Separate };

    /// A wall with nothing to set, and separate processes unless it needs one.
    pub const fn plain(wall: Wall) -> Self {
        let processes =
            if matches!(wall, Wall::StreamPriority) { Processes::One } else { Processes::Separate };
        Self { wall, setting: Setting::None, processes }
    }

    /// From the texts that plans and records have. No `processes` is what the wall usually has.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn parse(wall: Wall, setting: &str, processes: Option<Processes>) -> Result<Self, String> {
        let plain = Self::plain(wall);
        let processes = processes.unwrap_or(plain.processes);
        let setting = Setting::parse(wall, setting)?;
        let may = match setting {
            Setting::Sms(..) => true,
            _ => processes == plain.processes,
        };
        if !may {
            return Err(format!("`{wall}` needs processes = \"{}\"", plain.processes.id()));
        }
        Ok(Self { wall, setting, processes })
    }

    /// Whether a tenant alone behind the wall is something else than solo. For time-slicing it is not: without a
    /// neighbour there is nothing to take turns with.
    pub fn has_alone(&self) -> bool {
        !matches!(self.wall, Wall::Exclusive | Wall::TimeSlicing)
    }

    /// Whether the tenants are clients of an MPS daemon.
    pub fn has_mps(&self) -> bool {
        match (self.wall, &self.setting) {
            (Wall::Mps | Wall::MpsPercentage | Wall::Sides, _) => true,
            (Wall::GreenContexts, _) => self.processes == Processes::Separate,
            (_, Setting::Node(node)) => node.mps,
            _ => false,
        }
    }

    /// The node that the tenants run under, if the wall takes one.
    pub fn node(&self) -> Option<NodeSetting> {
        match &self.setting {
            Setting::Node(node) => Some(node.clone()),
            Setting::ShimSms(ls, be) => Some(NodeSetting::sets_alone(*ls, *be)),
            _ => None,
        }
    }

    /// The memory that tenants on a side have, where the wall is of sides.
    pub const fn side_memory(&self) -> Option<SideMemory> {
        match self.setting {
            Setting::Side(memory) => Some(memory),
            _ => None,
        }
    }

    /// Whether tenants are started one after the other: memory of a side is found by timing, which others at work disturb.
    pub fn starts_in_turn(&self) -> bool {
        self.side_memory() == Some(SideMemory::Private)
    }

    /// Whether a GPU fault of one tenant ends the others.
    pub fn shares_faults(&self) -> bool {
        self.has_mps() || self.processes == Processes::One
    }
}

impl fmt::Display for Place {
    /// `green-contexts 64/68 in one process`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.wall)?;
        let setting = self.setting.to_string();
        if !setting.is_empty() {
            write!(f, " {setting}")?;
        }
        let usual = Self::plain(self.wall).processes;
        if self.processes == usual { Ok(()) } else { f.write_str(" in one process") }
    }
}

impl Setting {
    fn parse(wall: Wall, text: &str) -> Result<Self, String> {
        // `parse` alone would take "+1".
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = |text: &str| digits(text).then(|| text.parse::<u32>().ok()).flatten();
        let numbers = |text: &str| text.split_once('/').and_then(|(a, b)| Some((number(a)?, number(b)?)));
        let shown = quoted(text);
        match wall {
            Wall::TimeSlicing | Wall::Mps | Wall::StreamPriority if text.is_empty() => Ok(Self::None),
            Wall::TimeSlicing | Wall::Mps | Wall::StreamPriority => {
                Err(format!("`{wall}` has nothing to set; leave the setting out"))
            }
            Wall::MpsPercentage => match numbers(text) {
                Some((a @ 1..=100, b @ 1..=100)) => Ok(Self::Percent(a as u8, b as u8)),
                _ => Err(format!(
                    "{shown} are no percentages of SMs; write setting = \"50/50\", 1 to 100 each"
                )),
            },
            Wall::GreenContexts => match (numbers(text), text.strip_suffix(" shim").and_then(numbers)) {
                (Some((a @ 1.., b @ 1..)), _) => Ok(Self::Sms(a, b)),
                (_, Some((a @ 1.., b @ 1..))) => Ok(Self::ShimSms(a, b)),
                _ => Err(format!(
                    "{shown} are no numbers of SMs; write setting = \"64/68\", or \"64/68 shim\" for programs that do not \
                     confine themselves"
                )),
            },
            Wall::Partywall => NodeSetting::parse(text).map(Self::Node),
            Wall::Mig => match text.split_once('/') {
                Some((a, b)) if a.starts_with("MIG-") && b.starts_with("MIG-") => {
                    Ok(Self::Instances(a.to_owned(), b.to_owned()))
                }
                _ => Err(format!("{shown} names no two instances; write setting = \"MIG-uuid/MIG-uuid\"")),
            },
            Wall::Sides => {
                let memory =
                    [SideMemory::Private, SideMemory::Plain].into_iter().find(|one| one.id() == text);
                memory.map(Self::Side).ok_or_else(|| {
                    format!(
                        "{shown} says nothing about the memory on a side; write setting = \"private\" for memory of that side alone, or \
                         \"plain\" for memory as it is"
                    )
                })
            }
            Wall::Exclusive | Wall::MpsStatic => Err(unmeasurable(wall.id())),
        }
    }
}

/// The walls that can be measured, in the order in which they are listed to people.
const MEASURABLE: [Wall; 8] = [
    Wall::TimeSlicing,
    Wall::Mps,
    Wall::MpsPercentage,
    Wall::GreenContexts,
    Wall::StreamPriority,
    Wall::Mig,
    Wall::Sides,
    Wall::Partywall,
];

/// The wall of this id, if it can be measured.
///
/// # Errors
/// What was given, and what can be measured.
pub fn measurable(id: &str) -> Result<Wall, String> {
    let wall = MEASURABLE.into_iter().find(|wall| wall.id() == id);
    wall.ok_or_else(|| match id.parse::<Wall>() {
        Ok(_) => unmeasurable(id),
        Err(_) => format!("{} is no wall; {}", quoted(id), choice()),
    })
}

fn unmeasurable(id: &str) -> String {
    format!("`{id}` cannot be measured by this version; {}", choice())
}

fn choice() -> String {
    format!("choose one of {}", MEASURABLE.map(Wall::id).join(", "))
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Percent(ls, be) => write!(f, "{ls}/{be}"),
            Self::Sms(ls, be) => write!(f, "{ls}/{be}"),
            Self::ShimSms(ls, be) => write!(f, "{ls}/{be} shim"),
            Self::Node(node) => node.fmt(f),
            Self::Instances(ls, be) => write!(f, "{ls}/{be}"),
            Self::Side(memory) => f.write_str(memory.id()),
        }
    }
}
