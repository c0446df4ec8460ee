//! What the control program says, as values.

use super::ServerStatus;
use crate::library::CudaVersion;

/// A list of process ids: numbers above 0 between white space. An empty answer is an empty list.
pub(super) fn pids(answer: &str) -> Option<Vec<u32>> {
    answer.split_whitespace().map(|word| word.parse().ok().filter(|&pid| pid > 0)).collect()
}

/// A percentage: `100.0`.
pub(super) fn percentage(answer: &str) -> Option<f64> {
    let value: f64 = answer.trim().parse().ok()?;
    (0.0..=100.0).contains(&value).then_some(value)
}

/// How a server is: one word, such as `ACTIVE`.
pub(super) fn status(answer: &str) -> ServerStatus {
    match answer.trim() {
        "ACTIVE" => ServerStatus::Active,
        "FAULT" => ServerStatus::Fault,
        _ => ServerStatus::Other,
    }
}

/// Whether the control program says that the pipe directory has no daemon.
pub(super) fn no_daemon(answer: &str) -> bool {
    answer.contains("Cannot find MPS control daemon process")
}

/// The version in a text such as `CUDA MPS Control binary version: 13000`.
pub(super) fn version(answer: &str) -> Option<CudaVersion> {
    let lower = answer.to_ascii_lowercase();
    let (_, rest) = lower.split_once("version")?;
    let digits = rest.trim_start_matches([':', ' ']);
    let digits = &digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())];
    let number: i32 = digits.parse().ok()?;
    (number >= 1000).then(|| CudaVersion::from_number(number))
}

/// The last lines of a text within `most` bytes, on one line.
pub(super) fn tail(text: &str, most: usize) -> String {
    let mut start = text.len().saturating_sub(most);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let lines = text[start..].lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_of_process_ids() {
        let cases = [
            ("", Some(vec![])),
            ("\n", Some(vec![])),
            ("27\n28\n", Some(vec![27, 28])),
            ("Server is not ready\n", None),
            ("0\n", None),
            ("99999999999\n", None),
        ];
        for (answer, expected) in cases {
            assert_eq!(pids(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn a_status_is_one_word_and_nothing_else() {
        assert_eq!(status("ACTIVE\n"), ServerStatus::Active);
        assert_eq!(status("FAULT\n"), ServerStatus::Fault);
        for other in ["", "INITIALIZING\n", "Server 7 not found\n", "NOT ACTIVE"] {
            assert_eq!(status(other), ServerStatus::Other, "{other}");
        }
    }

    #[test]
    fn percentages_and_versions() {
        assert_eq!(percentage("100.0\n"), Some(100.0));
        for wrong in ["", "150.0", "-1", "NaN", "inf", "full"] {
            assert_eq!(percentage(wrong), None, "{wrong}");
        }
        let release = |major, minor| Some(CudaVersion::new(major, minor));
        assert_eq!(version("CUDA MPS Control binary version: 13000\n"), release(13, 0));
        assert_eq!(version("Binary version: 12080"), release(12, 8));
        for wrong in ["", "usage: [-d | -f]", "version: ", "version: 12"] {
            assert_eq!(version(wrong), None, "{wrong}");
        }
        assert!(no_daemon("Cannot find MPS control daemon process\n") && !no_daemon("100.0"));
    }

    #[test]
    fn a_tail_is_one_line_and_cut_between_characters() {
        assert_eq!(tail("one\n\n two\n", 100), "one | two");
        assert_eq!(tail("ääää", 3), "ä");
        assert_eq!(tail("", 3), "");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_answer_is_too_strange(answer in "\\PC{0,40}|([0-9]{1,6}\n){0,5}|.{0,6}version: ?[0-9]{0,12}.{0,3}") {
            let count = answer.split_whitespace().count();
            prop_assert!(pids(&answer).is_none_or(|pids| pids.len() == count));
            prop_assert!(percentage(&answer).is_none_or(|value| (0.0..=100.0).contains(&value)));
            prop_assert!(version(&answer).is_none_or(|release| release.major() > 0));
            prop_assert!(tail(&answer, 8).len() <= 8 * 3);
        }
    }
}
