//! Which processes are alive: a pid alone does not say, because pids are reused.

use std::fs;

/// The start time of a process in clock ticks since boot; `None` where there is none, or only what its parent has not
/// collected yet.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    start_time_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The same in the text of `/proc/<pid>/stat`.
fn start_time_in(stat: &str) -> Option<u64> {
    // The name of the program is in parentheses and may hold anything, also parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    // Zombies have given all memory back.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // Field 22 of all; the state was field 3.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn this_process_is_alive_and_others_are_not() {
        assert!(start_time(std::process::id()).is_some());
        assert_eq!(start_time(u32::MAX), None);
    }

    #[test]
    fn names_may_hold_anything() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(start_time_in(stat), Some(4242));
        assert_eq!(start_time_in(&stat.replace(" S ", " Z ")), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_text_is_trouble(text in "\\PC*") {
            let _ = start_time_in(&text);
        }
    }
}
