//! The SMs of a side.

use partywall_driver::{Device, DriverError, GreenContext, GroupSet};

use crate::sides::{Known, Side};

/// The groups of SMs on a side, at most so many of them: the first by number.
///
/// # Errors
/// [`DriverError::Invalid`] where the side has none, or none are asked for.
pub fn groups(known: &Known, side: Side, most: Option<usize>) -> Result<GroupSet, DriverError> {
    let here = known.groups_on(side).take(most.unwrap_or(usize::MAX)).map(u32::from);
    GroupSet::new(here).map_err(|_| {
        DriverError::Invalid(format!("no group of SMs is on the {} side, or none is asked for", name(side)))
    })
}

/// A green context of the SMs on a side, or of `most` groups of them.
///
/// # Errors
/// As [`groups`], or what the driver returned.
pub fn green_context(
    device: &Device,
    known: &Known,
    side: Side,
    most: Option<usize>,
) -> Result<GreenContext, DriverError> {
    device.sm_split()?.green_context(&groups(known, side, most)?)
}

const fn name(side: Side) -> &'static str {
    match side {
        Side::First => "first",
        Side::Second => "second",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sides::{Group, Scale};

    #[test]
    fn groups_are_those_of_the_side() {
        let group = |second| Group { side: Side::second(second), middle_cycles: 400.0 };
        let scale = Scale {
            groups: [false, true, true, false, true].map(group).to_vec(),
            far_cycles: 200.0,
            deviation_cycles: 5.0,
            separation: 30.0,
        };
        let known = Known { mask: 0xab000, scale };
        let text = |side, most| groups(&known, side, most).map(|groups| groups.to_string()).ok();
        assert_eq!(text(Side::First, None).as_deref(), Some("0,3"));
        assert_eq!(text(Side::Second, None).as_deref(), Some("1-2,4"));
        assert_eq!(text(Side::Second, Some(2)).as_deref(), Some("1-2"));
        assert_eq!(text(Side::First, Some(0)), None);
    }
}
