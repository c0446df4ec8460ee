//! Faults to inject into a process: `PARTYWALL_SOFTGPU_FAULT`, a list such as `oom-after=10|hang-at-launch=3`.

use std::str::FromStr;

/// What shall go wrong, and when. Counts are of this process and begin at 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// `oom-after=N`: allocations after the first N fail as if memory were used up.
    pub oom_after: Option<u64>,
    /// `illegal-access-at-launch=N`: the Nth launch touches memory that is not there.
    pub illegal_access_at_launch: Option<u64>,
    /// `assert-at-launch=N`: an assertion of the Nth launch does not hold, which ends the work of this process alone.
    pub assert_at_launch: Option<u64>,
    /// `assert-for-all-at-launch=N`: the same with a driver that ends all clients of the MPS daemon for it.
    pub assert_for_all_at_launch: Option<u64>,
    /// `hang-at-launch=N`: the Nth launch never ends.
    pub hang_at_launch: Option<u64>,
    /// `device-lost-after=N`: the device falls off the bus at the launch after the first N, for all processes.
    pub device_lost_after: Option<u64>,
    /// `split-from=N`: groups of SMs are counted from SM N on, and around: as if the driver did not split the SMs of the device
    /// in every process the same way.
    pub split_from: Option<u64>,
    /// `green-more=N`: a green context runs on N SMs more than were asked for.
    pub green_more: Option<u64>,
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut faults = Self::default();
        for part in text.split(['|', ',']).map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = || {
                format!(
                    "`{part}` is not a fault; write oom-after=N, illegal-access-at-launch=N, assert-at-launch=N, assert-for-all-at-launch=N, hang-at-launch=N, device-lost-after=N, split-from=N or green-more=N, with | between them"
                )
            };
            let (name, count) = part.split_once('=').ok_or_else(wrong)?;
            let count = count.trim().parse().map_err(|_| wrong())?;
            let place = match name.trim() {
                "oom-after" => &mut faults.oom_after,
                "illegal-access-at-launch" => &mut faults.illegal_access_at_launch,
                "assert-at-launch" => &mut faults.assert_at_launch,
                "assert-for-all-at-launch" => &mut faults.assert_for_all_at_launch,
                "hang-at-launch" => &mut faults.hang_at_launch,
                "device-lost-after" => &mut faults.device_lost_after,
                "split-from" => &mut faults.split_from,
                "green-more" => &mut faults.green_more,
                _ => return Err(wrong()),
            };
            *place = Some(count);
        }
        Ok(faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_of_faults() {
        let faults: Faults = "oom-after=10 | hang-at-launch=3".parse().unwrap();
        assert_eq!(faults, Faults { oom_after: Some(10), hang_at_launch: Some(3), ..Faults::default() });
        assert_eq!("".parse(), Ok(Faults::default()));
        for wrong in ["oom-after", "oom-after=x", "oom=3", "oom-after=-1"] {
            let message = wrong.parse::<Faults>().unwrap_err();
            assert!(
                message.starts_with(&format!("`{wrong}` is not a fault; write oom-after=N")),
                "{message}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_text_is_trouble(text in "\\PC*") {
            let _ = text.parse::<Faults>();
        }
    }
}
