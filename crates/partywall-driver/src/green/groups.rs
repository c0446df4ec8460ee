//! Which groups of a split: a set of numbers, written `0-31,40`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Numbers are below this, so that a slip of the pen is not a list of four thousand million groups. No GPU has 1 024 SMs.
pub const MAX_GROUPS: u32 = 1024;

/// Some groups of a split, at least one. Written as numbers and inclusive ranges: `0-31,40`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSet(BTreeSet<u32>);

/// Why something is not a set of groups.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupSetError {
    /// There is no group in it.
    #[error("a set of SM groups needs at least one group; write {EXPECTED}")]
    Empty,
    /// A part is neither a number nor a range of two.
    #[error("`{part}` in `{text}` is not a group of SMs; write {EXPECTED}")]
    NotAGroup {
        /// The part between commas.
        part: String,
        /// All that was given.
        text: String,
    },
    /// A number is too large.
    #[error("there is no group {group} of SMs on any GPU; groups are numbered from 0 to {}", MAX_GROUPS - 1)]
    TooLarge {
        /// The number.
        group: u32,
    },
    /// A range ends before it begins.
    #[error("`{part}` in `{text}` ends before it begins; write the smaller number first")]
    Backwards {
        /// The range.
        part: String,
        /// All that was given.
        text: String,
    },
    /// A group is in the set twice.
    #[error("group {group} is listed twice in `{text}`")]
    Twice {
        /// The group.
        group: u32,
        /// All that was given.
        text: String,
    },
}

const EXPECTED: &str = "numbers and ranges with commas between them, such as \"0-31,40\"";

impl GroupSet {
    /// The given groups, in any order; giving one twice changes nothing.
    ///
    /// # Errors
    /// [`GroupSetError::Empty`], [`GroupSetError::TooLarge`].
    pub fn new(groups: impl IntoIterator<Item = u32>) -> Result<Self, GroupSetError> {
        let mut set = BTreeSet::new();
        for group in groups {
            set.insert(checked(group)?);
        }
        if set.is_empty() { Err(GroupSetError::Empty) } else { Ok(Self(set)) }
    }

    /// How many groups it has; at least one.
    #[expect(clippy::len_without_is_empty, reason = "there is no empty set of groups")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The groups, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Whether no group is in both.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.0.is_disjoint(&other.0)
    }
}

impl FromStr for GroupSet {
    type Err = GroupSetError;

    fn from_str(text: &str) -> Result<Self, GroupSetError> {
        if text.trim().is_empty() {
            return Err(GroupSetError::Empty);
        }
        let mut set = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = range(part.trim(), text)?;
            for group in first..=last {
                if !set.insert(group) {
                    return Err(GroupSetError::Twice { group, text: text.into() });
                }
            }
        }
        Ok(Self(set))
    }
}

impl fmt::Display for GroupSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = groups.next() {
            let mut last = first;
            while let Some(next) = groups.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

/// `7` or `0-31`, with both ends.
fn range(part: &str, text: &str) -> Result<(u32, u32), GroupSetError> {
    let number = |digits: &str| {
        // `parse` would take a sign.
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(GroupSetError::NotAGroup { part: part.into(), text: text.into() });
        }
        // Only digits: what does not fit is merely too large.
        checked(digits.parse().unwrap_or(u32::MAX))
    };
    let (first, last) = match part.split_once('-') {
        None => (number(part)?, number(part)?),
        Some((first, last)) => (number(first.trim())?, number(last.trim())?),
    };
    if first > last {
        return Err(GroupSetError::Backwards { part: part.into(), text: text.into() });
    }
    Ok((first, last))
}

fn checked(group: u32) -> Result<u32, GroupSetError> {
    if group < MAX_GROUPS { Ok(group) } else { Err(GroupSetError::TooLarge { group }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_read_and_written_in_one_form() {
        for (text, groups, written) in [
            ("0-31,40", (0..32).chain([40]).collect::<Vec<u32>>(), "0-31,40"),
            ("7", vec![7], "7"),
            ("3,2,1", vec![1, 2, 3], "1-3"),
            (" 5 - 6 , 9 ", vec![5, 6, 9], "5-6,9"),
            ("0-0", vec![0], "0"),
            ("1023", vec![1023], "1023"),
        ] {
            let set: GroupSet = text.parse().unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), groups, "{text}");
            assert_eq!(set.to_string(), written);
            assert_eq!(set.len(), groups.len());
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        for (text, message) in [
            ("", "a set of SM groups needs at least one group; write"),
            (" ", "a set of SM groups needs at least one group; write"),
            ("0,,2", "`` in `0,,2` is not a group of SMs; write numbers and ranges"),
            ("0-", "`0-` in `0-` is not a group of SMs"),
            ("-3", "`-3` in `-3` is not a group of SMs"),
            ("1-2-3", "`1-2-3` in `1-2-3` is not a group of SMs"),
            ("+1", "`+1` in `+1` is not a group of SMs"),
            ("half", "`half` in `half` is not a group of SMs"),
            ("0-1024", "there is no group 1024 of SMs on any GPU; groups are numbered from 0 to 1023"),
            ("99999999999999999999", "there is no group 4294967295 of SMs on any GPU"),
            ("9-3", "`9-3` in `9-3` ends before it begins"),
            ("0-5,3", "group 3 is listed twice in `0-5,3`"),
        ] {
            let error = text.parse::<GroupSet>().unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
        assert_eq!(GroupSet::new([]), Err(GroupSetError::Empty));
        assert_eq!(GroupSet::new([1024]), Err(GroupSetError::TooLarge { group: 1024 }));
    }

    #[test]
    fn overlap_is_found() {
        let set = |text: &str| text.parse::<GroupSet>().unwrap();
        assert!(set("0-31").is_disjoint(&set("32-65")));
        assert!(!set("0-32").is_disjoint(&set("32-65")));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn written_sets_read_as_themselves(groups in prop::collection::btree_set(0..MAX_GROUPS, 1..80)) {
            let set = GroupSet::new(groups.iter().copied()).unwrap();
            prop_assert_eq!(set.to_string().parse::<GroupSet>(), Ok(set));
        }

        #[test]
        fn no_text_is_too_much(text in "[-0-9, +x]{0,24}") {
            if let Ok(set) = text.parse::<GroupSet>() {
                prop_assert!(set.iter().all(|group| group < MAX_GROUPS));
            }
        }
    }
}
