//! Who sits on a GPU, by which parameters, and where the latency-sensitive tenants are put.

use std::fmt;

use crate::tenant::{Class, TenantId};
use crate::units::{Nanos, SmCount};

/// Tenants on one GPU: more than MPS takes clients (48 in the vendor's document). The lists are scanned, so they stay short.
pub const MAX_SEATS: usize = 64;

/// Consecutive SMs of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SmRange {
    /// The first.
    pub first: u32,
    /// How many; zero for none.
    pub count: u32,
}

impl SmRange {
    /// From `first` up to but not including `end`; empty where that is not after `first`.
    pub const fn between(first: u32, end: u32) -> Self {
        Self { first, count: end.saturating_sub(first) }
    }
    /// The SM after the last.
    pub const fn end(self) -> u32 {
        self.first + self.count
    }
    /// Whether there is no SM in it.
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }
    /// Whether some SM is in both.
    pub const fn overlaps(self, other: Self) -> bool {
        self.count > 0 && other.count > 0 && self.first < other.end() && other.first < self.end()
    }
}

impl fmt::Display for SmRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first, self.end())
    }
}

/// A tenant of the GPU and what it is entitled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// Keeps its SMs.
    LatencySensitive {
        /// Who.
        tenant: TenantId,
        /// Its SMs, at least one; rounded up to the step.
        floor: SmCount,
    },
    /// Takes an equal part of what is left.
    BestEffort {
        /// Who.
        tenant: TenantId,
    },
}

impl Seat {
    /// Who sits there.
    pub const fn tenant(self) -> TenantId {
        match self {
            Self::LatencySensitive { tenant, .. } | Self::BestEffort { tenant } => tenant,
        }
    }
}

/// How BE follows LS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Follow {
    /// What all BE tenants together keep while an LS tenant is active. Zero stops them.
    pub be_min: SmCount,
    /// LS SMs, from the low end, that are never lent.
    pub ls_reserve: SmCount,
    /// How long all LS tenants must have been idle before BE gets more.
    pub release_after: Nanos,
    /// The longest BE kernel beside which LS SMs may be lent: what an LS request may have to wait.
    pub lend_limit: Nanos,
}

/// How SMs move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Not at all.
    Static,
    /// BE follows LS activity.
    Follow(Follow),
}

/// A GPU and those who share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// All SMs that may be given out.
    pub whole: SmCount,
    /// The step in which they can be cut.
    pub step: SmCount,
    /// How they move.
    pub policy: Policy,
    /// The tenants; LS ranges are laid out in this order from SM 0, BE ranges behind them in this order.
    pub seats: Vec<Seat>,
}

impl Config {
    /// For tenants whose launches cannot be told apart by SMs: each counts as one, and what matters is whether it has any. A
    /// best-effort tenant has none, and so holds its launches, from when a latency-sensitive one is active until all of them have been
    /// idle for `release_after`. `None` where there are not tenants of both classes: then nobody has to hold.
    pub fn holding(
        tenants: impl IntoIterator<Item = (TenantId, Class)>,
        release_after: Nanos,
    ) -> Option<Self> {
        let seats: Vec<Seat> = tenants
            .into_iter()
            .map(|(tenant, class)| match class {
                Class::LatencySensitive => Seat::LatencySensitive { tenant, floor: SmCount(1) },
                Class::BestEffort => Seat::BestEffort { tenant },
            })
            .collect();
        let is_ls = |seat: &Seat| matches!(seat, Seat::LatencySensitive { .. });
        let both = seats.iter().any(is_ls) && !seats.iter().all(is_ls);
        let follow =
            Follow { be_min: SmCount(0), ls_reserve: SmCount(0), release_after, lend_limit: Nanos::ZERO };
        both.then_some(Self {
            whole: SmCount(seats.len() as u32),
            step: SmCount(1),
            policy: Policy::Follow(follow),
            seats,
        })
    }
}

/// Why a GPU cannot be shared like that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The step is zero or larger than the GPU.
    #[error("SMs cannot be cut in steps of {step} on a GPU of {whole}; choose a step from 1 to {}", whole.0)]
    Step {
        /// What was asked for.
        step: SmCount,
        /// The GPU.
        whole: SmCount,
    },
    /// Too many tenants.
    #[error("{given} tenants cannot share one GPU; it takes at most {MAX_SEATS}")]
    Seats {
        /// How many there are.
        given: usize,
    },
    /// A tenant twice.
    #[error("{tenant} is listed twice; list each tenant once")]
    Twice {
        /// Who.
        tenant: TenantId,
    },
    /// A latency-sensitive tenant without SMs.
    #[error("{tenant} is latency-sensitive and has no SMs; give it a floor of at least one")]
    EmptyFloor {
        /// Who.
        tenant: TenantId,
    },
    /// The floors do not fit.
    #[error("the floors need {floors} in steps of {}, but the GPU has {whole}; lower them", step.0)]
    Floors {
        /// Their sum, each rounded up to the step.
        floors: SmCount,
        /// The step.
        step: SmCount,
        /// The GPU.
        whole: SmCount,
    },
    /// BE would have less than a step each where something must be left for them.
    #[error("{} are left for {tenants} best-effort tenants {when}; they need {need}: a step of {} each", left, step.0)]
    BestEffort {
        /// How many share it.
        tenants: usize,
        /// In which situation.
        when: &'static str,
        /// What they would have.
        left: SmCount,
        /// What they need.
        need: SmCount,
        /// The step.
        step: SmCount,
    },
    /// `be_min` reaches into the floors.
    #[error("`be_min` is {be_min}, but only {left} are outside the floors; lower one of them")]
    Squeeze {
        /// What was asked for.
        be_min: SmCount,
        /// What there is.
        left: SmCount,
    },
    /// More in reserve than LS has.
    #[error("`ls_reserve` is {reserve}, but the floors are {floors} together; reserve at most that")]
    Reserve {
        /// What was asked for.
        reserve: SmCount,
        /// The sum of the floors.
        floors: SmCount,
    },
}

/// A tenant as the arbiter keeps it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tenant {
    pub(super) id: TenantId,
    pub(super) present: bool,
    pub(super) sms: SmRange,
    pub(super) role: Role,
}

/// What the arbiter knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Ls { active: bool },
    Be { longest: Option<Nanos> },
}

/// The LS ranges from SM 0 up, and BE tenants without SMs yet.
pub(super) fn lay_out(config: &Config) -> Result<Vec<Tenant>, ConfigError> {
    let (whole, step) = (config.whole, config.step);
    if step.0 == 0 || step > whole {
        return Err(ConfigError::Step { step, whole });
    }
    if config.seats.len() > MAX_SEATS {
        return Err(ConfigError::Seats { given: config.seats.len() });
    }
    let mut tenants: Vec<Tenant> = Vec::with_capacity(config.seats.len());
    // Wider than the counts: a sum of floors that wraps around would fit.
    let mut floors = 0u64;
    for seat in &config.seats {
        let id = seat.tenant();
        if tenants.iter().any(|t| t.id == id) {
            return Err(ConfigError::Twice { tenant: id });
        }
        let (role, sms) = match *seat {
            Seat::BestEffort { .. } => (Role::Be { longest: None }, SmRange::default()),
            Seat::LatencySensitive { floor: SmCount(0), .. } => {
                return Err(ConfigError::EmptyFloor { tenant: id });
            }
            Seat::LatencySensitive { floor, .. } => {
                let first = floors;
                floors += u64::from(floor.0).next_multiple_of(u64::from(step.0));
                (
                    Role::Ls { active: false },
                    SmRange::between(first as u32, floors.min(u32::MAX.into()) as u32),
                )
            }
        };
        tenants.push(Tenant { id, present: true, sms, role });
    }
    if floors > u64::from(whole.0) {
        let floors = SmCount(floors.min(u32::MAX.into()) as u32);
        return Err(ConfigError::Floors { floors, step, whole });
    }
    Ok(tenants)
}
