//! Where MIG instances go.
//!
//! A GPU's memory is cut into a few slices (8 on the parts known here). Each profile takes a run of them, and only
//! some starts are allowed. A set of instances is possible when their runs do not overlap and no profile is used more
//! often than the GPU allows; compute slices never run out first. The order of creation matters to the driver, which
//! takes the first start that is free, so whoever creates instances should give the starts found here.

use crate::gpu::{Mig, MigProfile};

/// An instance and the memory slice it starts at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placed<'a> {
    /// Its profile.
    pub profile: &'a MigProfile,
    /// Its first memory slice.
    pub start: u32,
}

/// Why a set of instances cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A name that is not a profile of this GPU.
    #[error("`{given}` is no MIG profile of this GPU; choose from {}", known.join(", "))]
    UnknownProfile {
        /// What was given.
        given: String,
        /// Every profile.
        known: Vec<String>,
    },
    /// More instances of one profile than the GPU allows.
    #[error("{wanted} instances of {profile} were asked for, but this GPU has room for {most}")]
    TooMany {
        /// The profile.
        profile: String,
        /// How many were asked for.
        wanted: usize,
        /// How many there can be.
        most: u32,
    },
    /// More memory slices than there are.
    #[error("{instances} take {wanted} memory slices together, but this GPU has {have}")]
    TooWide {
        /// The instances, joined by `+`.
        instances: String,
        /// The slices they take.
        wanted: u32,
        /// The slices there are.
        have: u32,
    },
    /// The slices would suffice, but not with the starts that are allowed.
    #[error("{instances} have enough memory slices, but no allowed starts that do not overlap")]
    NoLayout {
        /// The instances, joined by `+`.
        instances: String,
    },
}

impl Mig {
    /// Starts for the wanted instances, in the order of `wanted`; nothing for nothing.
    ///
    /// A name is that of a profile (`3g.71gb`), or its part before the dot (`3g`), which means the profile of that
    /// many compute slices with the least memory and no media extensions. `self` should have passed
    /// [`crate::gpu::Gpu::validate`]; the search takes time exponential in the memory slices.
    ///
    /// # Errors
    /// Says what is in the way.
    pub fn place(&self, wanted: &[&str]) -> Result<Vec<Placed<'_>>, PlacementError> {
        let profiles = wanted.iter().map(|name| self.profile(name)).collect::<Result<Vec<_>, _>>()?;
        for profile in &profiles {
            let count = profiles.iter().filter(|other| other.name == profile.name).count();
            if count > profile.instances as usize {
                return Err(PlacementError::TooMany {
                    profile: profile.name.clone(),
                    wanted: count,
                    most: profile.instances,
                });
            }
        }
        let instances = || profiles.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(" + ");
        let width = profiles.iter().fold(0_u32, |sum, p| sum.saturating_add(p.memory_slices));
        if width > self.memory_slices {
            return Err(PlacementError::TooWide {
                instances: instances(),
                wanted: width,
                have: self.memory_slices,
            });
        }

        // Wide ones first: they have the fewest starts. Equal ones side by side, so that the search can skip the
        // layouts that differ only in which of two equal instances is where.
        let mut order: Vec<usize> = (0..profiles.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(profiles[i].memory_slices), profiles[i].id, i));
        let ordered: Vec<&MigProfile> = order.iter().map(|&i| profiles[i]).collect();
        let mut starts = Vec::with_capacity(ordered.len());
        if !search(&ordered, self.memory_slices, &mut starts) {
            return Err(PlacementError::NoLayout { instances: instances() });
        }
        let mut placed: Vec<(usize, Placed<'_>)> = order
            .iter()
            .zip(ordered.iter().zip(&starts))
            .map(|(&i, (&profile, &start))| (i, Placed { profile, start }))
            .collect();
        placed.sort_by_key(|(i, _)| *i);
        Ok(placed.into_iter().map(|(_, placed)| placed).collect())
    }

    /// The profile of that name, or of that part before the dot.
    ///
    /// # Errors
    /// Lists the profiles when there is none.
    pub fn profile(&self, name: &str) -> Result<&MigProfile, PlacementError> {
        let plainest = || {
            self.profiles
                .iter()
                .filter(|p| !p.name.contains('+') && p.name.split_once('.').is_some_and(|(g, _)| g == name))
                .min_by_key(|p| p.memory_slices)
        };
        self.profiles.iter().find(|p| p.name == name).or_else(plainest).ok_or_else(|| {
            PlacementError::UnknownProfile {
                given: name.to_owned(),
                known: self.profiles.iter().map(|p| p.name.clone()).collect(),
            }
        })
    }
}

/// Extends `starts` to one start for each profile; false, with `starts` as it was, when there is no way.
fn search(profiles: &[&MigProfile], slices: u32, starts: &mut Vec<u32>) -> bool {
    let Some(&profile) = profiles.get(starts.len()) else { return true };
    let placed: Vec<(u32, u32)> =
        profiles.iter().zip(starts.iter()).map(|(p, &s)| (s, s.saturating_add(p.memory_slices))).collect();
    let last_equal = match starts.len().checked_sub(1) {
        Some(before) if profiles[before].name == profile.name => Some(starts[before]),
        _ => None,
    };
    for &start in &profile.placements {
        let end = start.saturating_add(profile.memory_slices);
        let free = placed.iter().all(|&(from, to)| end <= from || to <= start);
        if !free || end > slices || last_equal.is_some_and(|last| start <= last) {
            continue;
        }
        starts.push(start);
        if search(profiles, slices, starts) {
            return true;
        }
        starts.pop();
    }
    false
}
