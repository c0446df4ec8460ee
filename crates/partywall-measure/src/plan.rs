//! What to measure: tenants, walls, which pairs of tenants behind which walls, and how long.
//!
//! From the pairs follow the cells. A pair behind a wall is a co-run cell; it needs its latency-sensitive tenant alone
//! behind that wall, and both tenants solo. Each of these is one cell however many pairs need it. The co-run cells stand
//! last, in the order of the plan, and make the rows of the record.

mod builtin;
mod file;
mod node;
mod place;

use std::collections::BTreeMap;

use partywall_core::measure::Evidence;
use partywall_core::tenant::{Class, Slo};
use partywall_core::units::Nanos;
use partywall_core::wall::Wall;

pub use builtin::{Size, built_in};
pub use file::{EXAMPLE, PlanError};
pub use node::NodeSetting;
pub use place::{Place, Setting, SideMemory, measurable};

use crate::load::Load;
use crate::record::{CellKind, ErrorKind, EvidenceRule, Processes, Record};

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
    /// Whether latency-sensitive tenants are also measured alone behind each wall, and best-effort ones on their side.
    pub alone: bool,
    /// How long a tenant may take to answer; see [`Patience`].
    pub patience: Patience,
    /// Who takes part.
    pub tenants: Vec<Tenant>,
    /// What is measured.
    pub pairs: Vec<Pair>,
    /// Loads of tenants with a duty, where an earlier measurement has found them out.
    pub duties: BTreeMap<usize, Load>,
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
    /// What it does in cells; of a tenant with a [`duty`](Self::duty), in the run that finds out how fast it is.
    pub load: Load,
    /// Its requests arrive at random (Poisson), so often that their rate times its median service time solo is this, which is
    /// measured first.
    pub duty: Option<f64>,
    /// What it is promised by a node, if there is one around it.
    pub slo: Slo,
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

/// Two tenants behind a wall.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// The wall.
    pub place: Place,
    /// The latency-sensitive tenant.
    pub ls: usize,
    /// The best-effort tenant.
    pub be: usize,
    /// Who else runs at the same time, of both classes.
    pub beside: Vec<usize>,
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
    /// Who else does.
    pub beside: Vec<usize>,
    /// Whether it comes before those that have it not.
    pub priority: bool,
    /// Longest window over all rounds: of the pairs that need the cell, the longest.
    pub time_max: Nanos,
    /// The pair that it is the co-run cell of.
    pub pair: Option<usize>,
}

impl Pair {
    /// All that run at the same time, the latency-sensitive tenant first, then the best-effort one.
    pub fn tenants(&self) -> impl Iterator<Item = usize> {
        [self.ls, self.be].into_iter().chain(self.beside.iter().copied())
    }

    /// The two, where they need a process that no other pair has.
    fn own_process(&self) -> Option<(usize, usize)> {
        (self.place.processes == Processes::One).then_some((self.ls, self.be))
    }
}

impl Cell {
    /// All that take part, latency-sensitive first where both are named.
    pub fn tenants(&self) -> impl Iterator<Item = usize> {
        self.ls.into_iter().chain(self.be).chain(self.beside.iter().copied())
    }
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
                let (beside, priority, time_max) = (Vec::new(), false, Nanos::ZERO);
                cells.push(Cell { place, kind, ls, be, beside, priority, time_max, pair: None });
                cells.len() - 1
            });
            cells[at].priority |= pair.priority;
            cells[at].time_max = cells[at].time_max.max(time_max(pair));
        };
        for pair in &self.pairs {
            for tenant in pair.tenants() {
                need(CellKind::Solo, &Place::SOLO, tenant, pair);
            }
        }
        for pair in self.pairs.iter().filter(|pair| self.alone && pair.place.has_alone()) {
            // What half of the chip is to a best-effort tenant is what a neighbour on the other half should leave it.
            let wanted = |tenant: &usize| {
                self.tenants[*tenant].class == Class::LatencySensitive || pair.place.side_memory().is_some()
            };
            for tenant in pair.tenants().filter(wanted) {
                need(CellKind::Alone, &pair.place, tenant, pair);
            }
        }
        cells.sort_by_key(|cell| cell.kind);
        cells.extend(self.pairs.iter().enumerate().map(|(index, pair)| Cell {
            place: pair.place.clone(),
            kind: CellKind::Corun,
            ls: Some(pair.ls),
            be: Some(pair.be),
            beside: pair.beside.clone(),
            priority: pair.priority,
            time_max: time_max(pair),
            pair: Some(index),
        }));
        cells
    }

    /// Requests of the latency-sensitive tenant after which a round of a cell ends.
    pub fn requests_per_round(&self) -> u64 {
        self.requests_wanted.div_ceil(u64::from(self.rounds))
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
            .filter(|pair| {
                let (of_ls, of_be): (Vec<usize>, Vec<usize>) =
                    pair.tenants().partition(|&one| self.tenants[one].class == Class::LatencySensitive);
                of_ls.iter().all(|&one| kept(ls, one)) && of_be.iter().all(|&one| kept(be, one))
            })
            .filter(|pair| walls.is_empty() || walls.contains(&pair.place.wall))
            .cloned()
            .collect();
        if pairs.is_empty() {
            return Err("no pair of the plan has these victims, antagonists and walls together".to_owned());
        }
        self.pairs = pairs;
        Ok(())
    }

    /// Goes on where `record` ended: leaves out the pairs that it has figures of, and takes over the rates that it found out.
    ///
    /// # Errors
    /// When nothing is left.
    pub fn go_on(&mut self, record: &Record) -> Result<(), String> {
        let name = |index: usize| self.tenants[index].name.as_str();
        let found = |pair: &Pair| {
            record.rows.iter().any(|row| {
                let place = (row.wall, &*row.setting, row.processes);
                let mut others: Vec<&str> =
                    row.beside.iter().map(|name| &**name).chain([&*row.ls, &*row.be]).collect();
                let mut own: Vec<&str> = pair.tenants().map(name).collect();
                others.sort_unstable();
                own.sort_unstable();
                place == (pair.place.wall, &*pair.place.setting.to_string(), pair.place.processes)
                    && own == others
                    && row.error.as_ref().is_none_or(|error| error.kind != ErrorKind::Skipped)
            })
        };
        let left: Vec<Pair> = self.pairs.iter().filter(|pair| !found(pair)).cloned().collect();
        if left.is_empty() {
            return Err(format!("{} has all that the plan measures", record.name));
        }
        let known = record.tenants.iter().filter(|tenant| tenant.duty.is_some() && tenant.load.is_open());
        let known = known.filter_map(|known| {
            let same = |tenant: &Tenant| tenant.name == known.name && tenant.duty == known.duty;
            Some((self.tenants.iter().position(same)?, known.load))
        });
        self.duties = known.collect();
        self.pairs = left;
        Ok(())
    }

    /// How long the plan may take if no tenant is late: an upper bound, with `start` for each process or group of
    /// processes that is started.
    pub fn time_bound(&self, start: Nanos) -> Nanos {
        let warming = self.warmup.0.saturating_mul(u64::from(self.rounds));
        let mut places: Vec<(Place, Option<(usize, usize)>)> =
            self.pairs.iter().map(|pair| (pair.place.clone(), pair.own_process())).collect();
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

#[cfg(test)]
mod tests;
