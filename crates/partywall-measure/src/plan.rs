//! What to measure: tenants, walls, which pairs of tenants behind which walls, and how long.
//!
//! From the pairs follow the cells. A pair behind a wall is a co-run cell; it needs its latency-sensitive tenant alone
//! behind that wall, and both tenants solo. Each of these is one cell however many pairs need it. The co-run cells stand
//! last, in the order of the plan, and make the rows of the record.

mod builtin;
mod file;

use std::collections::BTreeMap;
use std::fmt;

use partywall_core::measure::Evidence;
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_core::wall::Wall;

pub use builtin::{Size, built_in};
pub use file::{EXAMPLE, PlanError};

use crate::load::Load;
use crate::record::{CellKind, EvidenceRule, Processes};

/// Most cells of a plan: at half a second each they take 14 hours, and a mistyped plan would make millions.
pub const CELLS_MAX: usize = 100_000;

/// A plan. Tenants and pairs are named by their index.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// `quick`, `full`, or the file's name.
    pub name: String,
    /// Seed of arrivals and of the bootstrap.
    pub seed: u64,
    /// How often each cell is measured.
    pub rounds: u32,
    /// How long tenants run beside each other before anything counts.
    pub warmup: Nanos,
    /// Longest window of a cell over all rounds.
    pub time_max: Nanos,
    /// Requests of the latency-sensitive tenant after which a cell ends.
    pub requests_wanted: u64,
    /// How many samples a percentile needs.
    pub evidence: EvidenceRule,
    /// How long a tenant may take to answer; see [`Patience`].
    pub patience: Patience,
    /// Who takes part.
    pub tenants: Vec<Tenant>,
    /// What is measured.
    pub pairs: Vec<Pair>,
}

/// How long tenants may take before they count as hung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// From its start until it is ready. First use of a GPU library by a process can take a minute.
    pub ready: Nanos,
    /// From `stop` to `done`: the request in flight, which MPS can stretch to a second, and the lines held back.
    pub stop: Nanos,
}

impl Default for Patience {
    fn default() -> Self {
        Self { ready: Nanos::from_secs(180), stop: Nanos::from_secs(20) }
    }
}

/// Who takes part.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its name, once per plan.
    pub name: String,
    /// Its class.
    pub class: Class,
    /// What it runs.
    pub program: Program,
    /// What it does in cells.
    pub load: Load,
    /// Environment variables that it gets besides ours.
    pub env: BTreeMap<String, String>,
    /// What stands in for it in a rehearsal.
    pub pretend: Pretend,
}

/// What a tenant runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// One of Partywall's own tenants: its name and options, as `partywall tenant` takes them.
    BuiltIn(String),
    /// A program that speaks the line protocol.
    Command(Vec<String>),
}

/// What stands in for a tenant in a rehearsal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pretend {
    /// Partywall's pretended tenant, with these further arguments.
    BuiltIn(Vec<String>),
    /// A program of the user's, such as the real one with an option that makes it do without GPU.
    Command(Vec<String>),
}

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
    /// SMs: `64/68`.
    Sms(u32, u32),
    /// UUIDs of MIG instances: `MIG-…/MIG-…`.
    Instances(String, String),
}

/// Two tenants behind a wall.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// The wall.
    pub place: Place,
    /// The latency-sensitive tenant.
    pub ls: usize,
    /// The best-effort tenant.
    pub be: usize,
    /// Whether it comes before those that have it not.
    pub priority: bool,
    /// Longest window of its cells over all rounds, where it differs from the plan's.
    pub time_max: Option<Nanos>,
    /// What is known of it.
    pub expect: Option<Expect>,
}

/// What is known of a pair.
#[derive(Debug, Clone, PartialEq)]
pub struct Expect {
    /// Of what.
    pub of: Ratio,
    /// The ratio.
    pub ratio: f64,
    /// Where it comes from.
    pub source: String,
    /// Why something else is measured here, where that is known.
    pub differs: Option<String>,
}

/// Which ratio of medians is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ratio {
    /// Beside the other / solo on the whole GPU.
    #[default]
    Slowdown,
    /// Beside the other / alone in the same part.
    Interference,
}

/// What is measured in one set-up.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Where; [`Place::SOLO`] for solo.
    pub place: Place,
    /// What for.
    pub kind: CellKind,
    /// The latency-sensitive tenant, if it takes part.
    pub ls: Option<usize>,
    /// The best-effort tenant, if it takes part.
    pub be: Option<usize>,
    /// Whether it comes before those that have it not.
    pub priority: bool,
    /// Longest window over all rounds: of the pairs that need the cell, the longest.
    pub time_max: Nanos,
    /// The pair that it is the co-run cell of.
    pub pair: Option<usize>,
}

impl Plan {
    /// The cells: solo, alone, co-run.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = Vec::new();
        let mut index: BTreeMap<(CellKind, Place, usize), usize> = BTreeMap::new();
        let time_max = |pair: &Pair| pair.time_max.unwrap_or(self.time_max);
        let mut need = |kind, place: &Place, tenant: usize, pair: &Pair| {
            let at = *index.entry((kind, place.clone(), tenant)).or_insert_with(|| {
                let ls = (self.tenants[tenant].class == Class::LatencySensitive).then_some(tenant);
                let be = if ls.is_some() { None } else { Some(tenant) };
                let place = place.clone();
                cells.push(Cell { place, kind, ls, be, priority: false, time_max: Nanos::ZERO, pair: None });
                cells.len() - 1
            });
            cells[at].priority |= pair.priority;
            cells[at].time_max = cells[at].time_max.max(time_max(pair));
        };
        for pair in &self.pairs {
            need(CellKind::Solo, &Place::SOLO, pair.ls, pair);
            need(CellKind::Solo, &Place::SOLO, pair.be, pair);
        }
        for pair in self.pairs.iter().filter(|pair| pair.place.has_alone()) {
            need(CellKind::Alone, &pair.place, pair.ls, pair);
        }
        cells.sort_by_key(|cell| cell.kind);
        cells.extend(self.pairs.iter().enumerate().map(|(index, pair)| Cell {
            place: pair.place.clone(),
            kind: CellKind::Corun,
            ls: Some(pair.ls),
            be: Some(pair.be),
            priority: pair.priority,
            time_max: time_max(pair),
            pair: Some(index),
        }));
        cells
    }

    /// `core`'s rule for percentiles.
    pub const fn evidence(&self) -> Evidence {
        match self.evidence {
            EvidenceRule::Recorded => Evidence::Recorded,
            EvidenceRule::Shown => Evidence::Shown,
        }
    }

    /// Keeps the pairs with one of these victims, antagonists and walls; an empty list keeps all.
    ///
    /// # Errors
    /// A name that the plan does not have, with those that it has.
    pub fn restrict(&mut self, ls: &[String], be: &[String], walls: &[Wall]) -> Result<(), String> {
        for (names, class, what) in
            [(ls, Class::LatencySensitive, "victim"), (be, Class::BestEffort, "antagonist")]
        {
            let known: Vec<&str> =
                self.tenants.iter().filter(|one| one.class == class).map(|one| one.name.as_str()).collect();
            if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
                let unknown = partywall_core::diagnostic::quoted(unknown);
                return Err(format!("the plan has no {what} {unknown}; it has {}", known.join(", ")));
            }
        }
        let mut has: Vec<Wall> = self.pairs.iter().map(|pair| pair.place.wall).collect();
        has.sort_unstable();
        has.dedup();
        if let Some(wall) = walls.iter().find(|wall| !has.contains(wall)) {
            let has: Vec<&str> = has.iter().map(|wall| wall.id()).collect();
            let help = match wall {
                Wall::Mig => format!("; {MIG_HELP}"),
                _ => String::new(),
            };
            return Err(format!("the plan does not have the wall `{wall}`; it has {}{help}", has.join(", ")));
        }
        let name = |index: usize| &self.tenants[index].name;
        let kept = |list: &[String], index| list.is_empty() || list.contains(name(index));
        let pairs: Vec<Pair> = self
            .pairs
            .iter()
            .filter(|pair| kept(ls, pair.ls) && kept(be, pair.be))
            .filter(|pair| walls.is_empty() || walls.contains(&pair.place.wall))
            .cloned()
            .collect();
        if pairs.is_empty() {
            return Err("no pair of the plan has these victims, antagonists and walls together".to_owned());
        }
        self.pairs = pairs;
        Ok(())
    }

    /// How long the plan may take if no tenant is late: an upper bound, with `start` for each process or group of
    /// processes that is started.
    pub fn time_bound(&self, start: Nanos) -> Nanos {
        let warming = self.warmup.0.saturating_mul(u64::from(self.rounds));
        let mut places: Vec<(Place, Option<(usize, usize)>)> =
            self.pairs.iter().map(|pair| (pair.place.clone(), pair.place.own_process(pair))).collect();
        places.sort_unstable();
        places.dedup();
        let cells = self
            .cells()
            .iter()
            .fold(0_u64, |sum, cell| sum.saturating_add(warming.saturating_add(cell.time_max.0)));
        // One more start: that of the tenants solo.
        Nanos(cells.saturating_add(start.0.saturating_mul(places.len() as u64 + 1)))
    }
}

/// A plan that is built in cannot know them.
const MIG_HELP: &str = "instances are made by whoever owns the GPU (`partywall doctor` lists those that there are) and named in a \
                        plan of one's own: --plan FILE with { wall = \"mig\", setting = \"MIG-uuid/MIG-uuid\" }";

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
        let may = match wall {
            Wall::GreenContexts => true,
            _ => processes == plain.processes,
        };
        if !may {
            return Err(format!("`{wall}` needs processes = \"{}\"", plain.processes.id()));
        }
        let setting = Setting::parse(wall, setting)?;
        Ok(Self { wall, setting, processes })
    }

    /// Whether a tenant alone behind the wall is something else than solo. For time-slicing it is not: without a
    /// neighbour there is nothing to take turns with.
    pub fn has_alone(&self) -> bool {
        !matches!(self.wall, Wall::Exclusive | Wall::TimeSlicing)
    }

    /// Whether the tenants are clients of an MPS daemon.
    pub fn has_mps(&self) -> bool {
        match self.wall {
            Wall::Mps | Wall::MpsPercentage => true,
            Wall::GreenContexts => self.processes == Processes::Separate,
            _ => false,
        }
    }

    /// Whether a GPU fault of one tenant ends the others.
    pub fn shares_faults(&self) -> bool {
        self.has_mps() || self.processes == Processes::One
    }

    /// The pair, where it needs a process that no other pair has.
    fn own_process(&self, pair: &Pair) -> Option<(usize, usize)> {
        (self.processes == Processes::One).then_some((pair.ls, pair.be))
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
        let halves = || text.split_once('/');
        // `parse` alone would take "+1".
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = |text: &str| digits(text).then(|| text.parse::<u32>().ok()).flatten();
        let numbers = || halves().and_then(|(a, b)| Some((number(a)?, number(b)?)));
        let shown = partywall_core::diagnostic::quoted(text);
        match wall {
            Wall::TimeSlicing | Wall::Mps | Wall::StreamPriority if text.is_empty() => Ok(Self::None),
            Wall::TimeSlicing | Wall::Mps | Wall::StreamPriority => {
                Err(format!("`{wall}` has nothing to set; leave the setting out"))
            }
            Wall::MpsPercentage => match numbers() {
                Some((a @ 1..=100, b @ 1..=100)) => Ok(Self::Percent(a as u8, b as u8)),
                _ => Err(format!(
                    "{shown} are no percentages of SMs; write setting = \"50/50\", 1 to 100 each"
                )),
            },
            Wall::GreenContexts => match numbers() {
                Some((a @ 1.., b @ 1..)) => Ok(Self::Sms(a, b)),
                _ => Err(format!("{shown} are no numbers of SMs; write setting = \"64/68\"")),
            },
            Wall::Mig => match halves() {
                Some((a, b)) if a.starts_with("MIG-") && b.starts_with("MIG-") => {
                    Ok(Self::Instances(a.to_owned(), b.to_owned()))
                }
                _ => Err(format!("{shown} names no two instances; write setting = \"MIG-uuid/MIG-uuid\"")),
            },
            Wall::Exclusive | Wall::MpsStatic | Wall::Sides | Wall::Partywall => Err(unmeasurable(wall.id())),
        }
    }
}

/// The walls that can be measured, in the order in which they are listed to people.
const MEASURABLE: [Wall; 6] =
    [Wall::TimeSlicing, Wall::Mps, Wall::MpsPercentage, Wall::GreenContexts, Wall::StreamPriority, Wall::Mig];

/// The wall of this id, if it can be measured.
///
/// # Errors
/// What was given, and what can be measured.
pub fn measurable(id: &str) -> Result<Wall, String> {
    let wall = MEASURABLE.into_iter().find(|wall| wall.id() == id);
    wall.ok_or_else(|| match id.parse::<Wall>() {
        Ok(_) => unmeasurable(id),
        Err(_) => format!("{} is no wall; {}", partywall_core::diagnostic::quoted(id), choice()),
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
            Self::Instances(ls, be) => write!(f, "{ls}/{be}"),
        }
    }
}

#[cfg(test)]
mod tests;
