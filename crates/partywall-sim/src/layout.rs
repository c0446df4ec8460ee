//! What a wall does to the tenants of a GPU: who may use how many SMs, who waits for whom, who shares memory with
//! whom, who dies with whom.

use partywall_core::gpu::Gpu;
use partywall_core::sm_arbiter::{self, SmArbiter};
use partywall_core::tenant::{Class, Share, TenantId};
use partywall_core::units::{Nanos, SmCount};
use partywall_core::wall::Wall;

use crate::contention::MemoryCut;
use crate::kernel::Program;

mod text;

pub use text::NodeText;

/// What a layout needs to know of a tenant.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// What it cares about.
    pub class: Class,
    /// SMs it asked for; otherwise the wall's default applies.
    pub share: Option<Share>,
}

/// How waiting kernels get SMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// In the order in which they became ready, beside each other as far as there is room.
    Concurrent,
    /// The same, but latency-sensitive tenants first, and as soon as blocks of others end.
    Priority,
    /// One tenant at a time, in turn.
    Sliced,
}

/// A tenant's place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Place {
    /// SMs at most.
    pub(crate) cap: f64,
    /// Whether these are certain SMs, side by side, as those were on which networks were recorded, and not any of the chip.
    pub(crate) compact: bool,
    /// Part of the memory system.
    pub(crate) memory: usize,
    /// Tenants of one domain die of each other's faults.
    pub(crate) fault_domain: usize,
    /// How long it keeps the GPU where tenants take turns and others wait; `None`: as the driver has it.
    pub(crate) slice: Option<Nanos>,
}

impl Place {
    /// What the widths of the kernels of `program` do not explain of its latency here.
    pub(crate) fn remainder(&self, program: &Program) -> f64 {
        if self.compact { program.remainder.at(self.cap) } else { 1.0 }
    }
}

/// What a wall makes of a GPU and its tenants.
#[derive(Debug, Clone)]
pub struct Layout {
    pub(crate) dispatch: Dispatch,
    pub(crate) places: Vec<Place>,
    pub(crate) memory: MemoryCut,
    /// Whether tenants are MPS clients, which costs each launch something.
    pub(crate) mps: bool,
    /// How best-effort launches go to the device, where the wall decides about them.
    pub(crate) turnstile: Option<Turnstile>,
    /// The arbiter that has them held, where the wall has one.
    pub(crate) arbiter: Option<sm_arbiter::Config>,
    /// What each tenant got, for people: `64 SMs`, `4g.71gb`.
    pub described: Vec<String>,
}

/// Why a wall cannot be built on a GPU for these tenants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The part cannot do it.
    #[error("`{wall}` does not exist on {gpu}: {why}")]
    Unavailable {
        /// Which wall.
        wall: Wall,
        /// The GPU's name.
        gpu: String,
        /// What is missing.
        why: &'static str,
    },
    /// Too many tenants for it.
    #[error("`{wall}` on {gpu} takes at most {most} tenants; there are {given}")]
    TooMany {
        /// Which wall.
        wall: Wall,
        /// The GPU's name.
        gpu: String,
        /// The most it takes.
        most: usize,
        /// How many there are.
        given: usize,
    },
    /// Exclusive shares beyond the whole.
    #[error("the shares of `{wall}` add up to {sum} SMs in its steps; {gpu} has {usable} to give")]
    Oversubscribed {
        /// Which wall.
        wall: Wall,
        /// The GPU's name.
        gpu: String,
        /// What the shares need.
        sum: u32,
        /// What there is.
        usable: u32,
    },
    /// The arbiter refused.
    #[error("`partywall` cannot lay out these tenants: {0}")]
    Arbiter(#[from] sm_arbiter::ConfigError),
}

/// SMs in the groups that the driver splits them into.
pub(crate) const GROUP: u32 = 2;

/// The wall `partywall` as it is built around programs as they are: what a node is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Whether tenants are clients of MPS; otherwise they take turns.
    pub mps: bool,
    /// How best-effort launches are decided about; `None`: they are not.
    pub launches: Option<NodeLaunches>,
    /// The time slice of best-effort tenants, where tenants take turns; `None`: as the driver has it.
    pub slice: Option<Nanos>,
}

/// The time slice of latency-sensitive tenants where best-effort ones have been given one: their requests are not interrupted.
const LS_SLICE: Nanos = Nanos::from_millis(20);

/// How a node decides about best-effort launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLaunches {
    /// How they go to the device.
    pub turnstile: Turnstile,
    /// Whether they are held while a latency-sensitive tenant is active.
    pub hold: bool,
    /// How long all of them must have been idle before they go on.
    pub release: Nanos,
}

/// How many launches of a best-effort tenant are on the device at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turnstile {
    /// Chunks.
    pub chunks: u32,
    /// For how long the device is to be busy with one; zero: only the number of launches bounds it.
    pub chunk: Nanos,
    /// Launches in one at most.
    pub launches: u32,
}

impl Default for NodeLaunches {
    /// As it comes.
    fn default() -> Self {
        let turnstile = Turnstile { chunks: 2, chunk: Nanos::from_micros(100), launches: 16 };
        Self { turnstile, hold: true, release: Nanos::from_micros(50) }
    }
}

impl Default for Node {
    /// As the wall comes: clients of MPS, launches decided about.
    fn default() -> Self {
        Self { mps: true, launches: Some(NodeLaunches::default()), slice: None }
    }
}

impl Layout {
    /// Builds `wall` on `gpu` for `members`; `exclusive` is laid out like `mps` without its costs, for one tenant at
    /// a time.
    ///
    /// # Errors
    /// The part lacks the mechanism, or the tenants do not fit.
    pub fn new(wall: Wall, gpu: &Gpu, members: &[Member]) -> Result<Self, LayoutError> {
        let whole = gpu.sms.value;
        let builder = Builder { wall, gpu, members };
        match wall {
            Wall::Exclusive => Ok(builder.shared(Dispatch::Concurrent, false)),
            Wall::StreamPriority => Ok(builder.shared(Dispatch::Priority, false)),
            Wall::TimeSlicing => Ok(builder.shared(Dispatch::Sliced, false)),
            Wall::Mps => Ok(builder.shared(Dispatch::Concurrent, true)),
            Wall::MpsPercentage => Ok(builder.percentages()),
            Wall::MpsStatic => builder.disjoint(gpu.green_context_step.value, mps_static_usable(whole)),
            Wall::GreenContexts => builder.disjoint(gpu.green_context_step.value, whole),
            Wall::Mig => builder.mig(),
            Wall::Sides => builder.sides(),
            Wall::Partywall => builder.node(&Node::default()),
        }
    }

    /// Builds `wall`, and if that is `partywall`, as a node is told to where something is said.
    ///
    /// # Errors
    /// As [`Layout::new`] and [`Layout::node`].
    pub fn behind(
        wall: Wall,
        node: Option<&Node>,
        gpu: &Gpu,
        members: &[Member],
    ) -> Result<Self, LayoutError> {
        match node {
            Some(node) if wall == Wall::Partywall => Self::node(node, gpu, members),
            _ => Self::new(wall, gpu, members),
        }
    }

    /// Builds the wall `partywall` as a node is told to.
    ///
    /// # Errors
    /// More SMs are asked for than there are, or there are too many tenants.
    pub fn node(node: &Node, gpu: &Gpu, members: &[Member]) -> Result<Self, LayoutError> {
        Builder { wall: Wall::Partywall, gpu, members }.node(node)
    }
}

impl Layout {
    /// The same with SM sets of exactly these sizes, in the order of the tenants, whatever the steps are in which the
    /// wall cuts by itself. What is measured is cut as the driver allows, which may be finer.
    #[must_use]
    pub fn with_sms(mut self, sms: &[SmCount]) -> Self {
        for ((place, described), sms) in self.places.iter_mut().zip(&mut self.described).zip(sms) {
            place.cap = f64::from(sms.0);
            *described = sms.to_string();
        }
        self
    }

    /// The same with all tenants in one process, which needs no MPS.
    #[must_use]
    pub fn in_one_process(self) -> Self {
        Self { mps: false, ..self }
    }

    /// The place of one tenant, with nobody else there: for what its part of the wall costs without neighbours.
    #[must_use]
    pub fn only(&self, tenant: usize) -> Self {
        Self {
            places: vec![self.places[tenant]],
            arbiter: None,
            described: vec![self.described[tenant].clone()],
            ..self.clone()
        }
    }
}

/// SMs that static partitions can hand out: 15 chunks of 8 of an H200's 132 (published listings); others keep a
/// tenth back likewise.
fn mps_static_usable(whole: u32) -> u32 {
    whole * 10 / 11
}

struct Builder<'a> {
    wall: Wall,
    gpu: &'a Gpu,
    members: &'a [Member],
}

impl Builder<'_> {
    fn unavailable(&self, why: &'static str) -> LayoutError {
        LayoutError::Unavailable { wall: self.wall, gpu: self.gpu.name.clone(), why }
    }

    fn too_many(&self, most: usize) -> LayoutError {
        LayoutError::TooMany { wall: self.wall, gpu: self.gpu.name.clone(), most, given: self.members.len() }
    }

    /// Fault domains by the wall's own word: one each where faults are contained, else one for all.
    fn domain(&self, tenant: usize) -> usize {
        if self.wall.fault_contained() { tenant } else { 0 }
    }

    /// Walls that give away certain SMs take them side by side; a percentage of MPS is a number of SMs, wherever.
    fn compact(&self) -> bool {
        match self.wall {
            Wall::Exclusive | Wall::StreamPriority | Wall::TimeSlicing | Wall::Mps | Wall::MpsPercentage => {
                false
            }
            Wall::MpsStatic | Wall::GreenContexts | Wall::Mig | Wall::Sides | Wall::Partywall => true,
        }
    }

    fn with_caps(&self, dispatch: Dispatch, mps: bool, caps: &[u32]) -> Layout {
        let places = caps.iter().enumerate().map(|(tenant, &cap)| Place {
            cap: f64::from(cap),
            compact: self.compact(),
            memory: 0,
            fault_domain: self.domain(tenant),
            slice: None,
        });
        Layout {
            dispatch,
            places: places.collect(),
            memory: MemoryCut { share: 1.0, launches_inside: false },
            mps,
            turnstile: None,
            arbiter: None,
            described: caps.iter().map(|cap| format!("{cap} SMs")).collect(),
        }
    }

    fn shared(&self, dispatch: Dispatch, mps: bool) -> Layout {
        self.with_caps(dispatch, mps, &vec![self.gpu.sms.value; self.members.len()])
    }

    /// Equal percentages unless asked otherwise; they cap and do not reserve, so they may add up to more than 100.
    fn percentages(&self) -> Layout {
        let equal = Share::Percent((100 / self.members.len().max(1)).max(1) as u8);
        let caps: Vec<u32> = self
            .members
            .iter()
            .map(|member| member.share.unwrap_or(equal).of(SmCount(self.gpu.sms.value)).0)
            .collect();
        self.with_caps(Dispatch::Concurrent, true, &caps)
    }

    /// SM sets that exclude each other, in steps: what was asked for is rounded down, so that halves fit. What does not
    /// divide goes to the last tenant that did not ask.
    fn disjoint(&self, step: u32, usable: u32) -> Result<Layout, LayoutError> {
        let caps = self.split(step.max(1), usable)?;
        Ok(self.with_caps(Dispatch::Concurrent, true, &caps))
    }

    fn split(&self, step: u32, usable: u32) -> Result<Vec<u32>, LayoutError> {
        let whole = SmCount(self.gpu.sms.value);
        let asked: Vec<Option<u32>> = self
            .members
            .iter()
            .map(|member| member.share.map(|share| (share.of(whole).0 / step * step).max(step)))
            .collect();
        let taken: u32 = asked.iter().flatten().sum();
        let silent = asked.iter().filter(|share| share.is_none()).count() as u32;
        let left = usable.saturating_sub(taken);
        let each = left.checked_div(silent).map_or(0, |each| each / step * step);
        if taken > usable || (silent > 0 && each == 0) {
            let sum = taken + silent * step;
            return Err(LayoutError::Oversubscribed {
                wall: self.wall,
                gpu: self.gpu.name.clone(),
                sum,
                usable,
            });
        }
        let mut caps: Vec<u32> = asked.iter().map(|share| share.unwrap_or(each)).collect();
        if self.wall == Wall::GreenContexts
            && let Some(last) = asked.iter().rposition(Option::is_none)
        {
            caps[last] += left - each * silent;
        }
        Ok(caps)
    }

    /// Instances of one profile for all, then larger ones for tenants from the first on, as far as they fit.
    fn mig(&self) -> Result<Layout, LayoutError> {
        let mig = self.gpu.mig.as_ref().ok_or_else(|| self.unavailable("the part has no MIG"))?;
        let mut profiles: Vec<_> =
            mig.profiles.iter().filter(|profile| !profile.name.contains('+')).collect();
        profiles.sort_by_key(|profile| (profile.sms.value, profile.memory_slices));
        let count = self.members.len();
        let most = profiles.iter().map(|profile| profile.instances as usize).max().unwrap_or(0);
        let fits = |chosen: &[usize]| {
            let names: Vec<&str> = chosen.iter().map(|&index| profiles[index].name.as_str()).collect();
            mig.place(&names).is_ok()
        };
        let equal = (0..profiles.len()).rev().find(|&index| fits(&vec![index; count]));
        let mut chosen = vec![equal.ok_or_else(|| self.too_many(most))?; count];
        // Latency-sensitive tenants first.
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|&tenant| self.members[tenant].class);
        for tenant in order {
            while chosen[tenant] + 1 < profiles.len() {
                chosen[tenant] += 1;
                if !fits(&chosen) {
                    chosen[tenant] -= 1;
                    break;
                }
            }
        }
        let caps: Vec<u32> = chosen.iter().map(|&index| profiles[index].sms.value).collect();
        let mut layout = self.with_caps(Dispatch::Concurrent, false, &caps);
        // Parts differ in size; the model cuts memory into equal ones, so it takes the smallest.
        let slices = chosen.iter().map(|&index| profiles[index].memory_slices).min().unwrap_or(1);
        layout.memory =
            MemoryCut { share: f64::from(slices) / f64::from(mig.memory_slices), launches_inside: true };
        for (tenant, place) in layout.places.iter_mut().enumerate() {
            place.memory = tenant;
        }
        layout.described = chosen.iter().map(|&index| profiles[index].name.clone()).collect();
        Ok(layout)
    }

    /// Latency-sensitive tenants on side 0, best-effort ones on side 1; where all are of one class they alternate.
    /// The tenants of a side split its SMs equally.
    fn sides(&self) -> Result<Layout, LayoutError> {
        let sides = self.gpu.sides.value as usize;
        if sides < 2 {
            return Err(self.unavailable("its L2 and memory are one part"));
        }
        let mixed = self.members.iter().any(|m| m.class == Class::BestEffort)
            && self.members.iter().any(|m| m.class == Class::LatencySensitive);
        let side_of = |tenant: usize| match (mixed, self.members[tenant].class) {
            (true, Class::LatencySensitive) => 0,
            (true, Class::BestEffort) => 1,
            (false, _) => tenant % sides,
        };
        let on = |side: usize| (0..self.members.len()).filter(|&tenant| side_of(tenant) == side).count();
        let per_side = self.gpu.sms.value / sides as u32;
        // 2-SM groups can be taken from either side; see the Green Context facts.
        let caps: Vec<u32> = (0..self.members.len())
            .map(|tenant| per_side / on(side_of(tenant)).max(1) as u32 / 2 * 2)
            .collect();
        if caps.contains(&0) {
            return Err(self.too_many(per_side as usize / 2 * sides));
        }
        let mut layout = self.with_caps(Dispatch::Concurrent, true, &caps);
        layout.memory = MemoryCut { share: 1.0 / sides as f64, launches_inside: false };
        for (tenant, place) in layout.places.iter_mut().enumerate() {
            place.memory = side_of(tenant);
            layout.described[tenant] = format!("{} SMs of side {}", caps[tenant], place.memory);
        }
        Ok(layout)
    }

    /// Clients of MPS or turns below; those who asked for SMs on SMs of their own, as far as they go; best-effort launches as the
    /// node decides about them.
    fn node(&self, node: &Node) -> Result<Layout, LayoutError> {
        let (whole, step) = (self.gpu.sms.value, GROUP);
        let sms = |share: Share| match share {
            Share::Percent(_) => share.of(SmCount(whole)).0 / step * step,
            Share::Sms(SmCount(sms)) => sms.next_multiple_of(step),
        };
        let asked: Vec<Option<u32>> =
            self.members.iter().map(|member| member.share.map(|share| sms(share).max(step))).collect();
        let sum = asked.iter().flatten().fold(0_u32, |sum, sms| sum.saturating_add(*sms));
        if sum > whole {
            return Err(LayoutError::Oversubscribed {
                wall: self.wall,
                gpu: self.gpu.name.clone(),
                sum,
                usable: whole,
            });
        }
        let caps: Vec<u32> = asked.iter().map(|asked| asked.unwrap_or(whole)).collect();
        let dispatch = if node.mps { Dispatch::Concurrent } else { Dispatch::Sliced };
        let mut layout = self.with_caps(dispatch, node.mps, &caps);
        for (place, asked) in layout.places.iter_mut().zip(&asked) {
            place.compact = asked.is_some();
        }
        if let Some(slice) = node.slice {
            for (place, member) in layout.places.iter_mut().zip(self.members) {
                place.slice = Some(if member.class == Class::BestEffort { slice } else { LS_SLICE });
            }
        }
        if let Some(launches) = &node.launches {
            layout.turnstile = Some(launches.turnstile);
            let tenants = self.members.iter().enumerate();
            let tenants = tenants.map(|(index, member)| (TenantId(index as u32), member.class));
            let config = sm_arbiter::Config::holding(tenants, launches.release).filter(|_| launches.hold);
            config.as_ref().map(SmArbiter::new).transpose()?;
            layout.arbiter = config;
            for (described, member) in layout.described.iter_mut().zip(self.members) {
                if member.class == Class::BestEffort && layout.arbiter.is_some() {
                    described.push_str(", held for requests");
                }
            }
        }
        Ok(layout)
    }
}

#[cfg(test)]
mod tests;
