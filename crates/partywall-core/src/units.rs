//! Quantities with their unit in the type. Times are integers so that virtual time adds up exactly; text forms
//! (`"5ms"`, `"12GiB"`) are what people write in configuration and what messages print.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time or a duration, in nanoseconds. Points count from wherever the caller's clock starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

/// An amount of memory or of copied data, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A number of streaming multiprocessors.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct SmCount(pub u32);

/// Why a text is not a quantity; says what would be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The text does not start with a number.
    #[error("`{text}` has no number; write {expected}")]
    NoNumber {
        /// What was given.
        text: String,
        /// Examples of what would be right.
        expected: &'static str,
    },
    /// Nothing is behind the number, not even behind a zero: configuration and its schema want a unit everywhere.
    #[error("`{text}` has no unit; write {expected}")]
    NoUnit {
        /// What was given.
        text: String,
        /// Examples of what would be right.
        expected: &'static str,
    },
    /// The part behind the number is not a known unit.
    #[error("`{text}` has the unknown unit `{unit}`; write {expected}")]
    UnknownUnit {
        /// What was given.
        text: String,
        /// The part behind the number.
        unit: String,
        /// Examples of what would be right.
        expected: &'static str,
    },
    /// The quantity does not fit, or is not finite and at least zero.
    #[error("`{text}` is out of range; write {expected}")]
    OutOfRange {
        /// What was given.
        text: String,
        /// Examples of what would be right.
        expected: &'static str,
    },
}

impl Nanos {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// Later than every event: 584 years.
    pub const MAX: Self = Self(u64::MAX);

    const UNITS: &'static [(&'static str, u64)] = &[
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("min", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    const EXPECTED: &'static str = "a time such as \"5ms\", \"250us\" or \"2s\"";

    /// From whole microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us * 1_000)
    }
    /// From whole milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }
    /// From whole seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s * 1_000_000_000)
    }
    /// From milliseconds, rounded to the nearest nanosecond; negative and NaN become zero.
    pub fn from_ms_f64(ms: f64) -> Self {
        Self((ms * 1e6).round() as u64)
    }
    /// In milliseconds.
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// In microseconds.
    pub fn as_us(self) -> f64 {
        self.0 as f64 / 1e3
    }
    /// In seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// The difference, or zero where `earlier` is later.
    pub fn saturating_sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
    /// The sum, or [`Nanos::MAX`].
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Bytes {
    /// Zero.
    pub const ZERO: Self = Self(0);

    const UNITS: &'static [(&'static str, u64)] = &[
        ("B", 1),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
    ];
    const EXPECTED: &'static str = "a size such as \"12GiB\" or \"512MiB\"";

    /// From whole kibibytes.
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib << 10)
    }
    /// From whole mebibytes.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib << 20)
    }
    /// From whole gibibytes.
    pub const fn from_gib(gib: u64) -> Self {
        Self(gib << 30)
    }
    /// In gibibytes.
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / (1u64 << 30) as f64
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl FromStr for Nanos {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, Self::UNITS, Self::EXPECTED).map(Self)
    }
}

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, Self::UNITS, Self::EXPECTED).map(Self)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&render(self.0, &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)]))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&render(
            self.0,
            &[("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)],
        ))
    }
}

impl fmt::Display for SmCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} SMs", self.0)
    }
}

macro_rules! text_serde {
    ($type:ident, $pattern:literal, $description:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
        impl JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "pattern": $pattern, "description": $description })
            }
        }
    };
}
text_serde!(Nanos, r"^\s*[0-9]+(\.[0-9]+)?\s*(ns|us|ms|s|min|h)\s*$", "A time: \"5ms\", \"250us\", \"2s\".");
text_serde!(
    Bytes,
    r"^\s*[0-9]+(\.[0-9]+)?\s*(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)\s*$",
    "A size: \"12GiB\", \"512MiB\"."
);

fn parse(text: &str, units: &[(&str, u64)], expected: &'static str) -> Result<u64, UnitError> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..digits], trimmed[digits..].trim());
    let decimal = decimal(number).ok_or_else(|| UnitError::NoNumber { text: text.to_owned(), expected })?;
    if unit.is_empty() {
        return Err(UnitError::NoUnit { text: text.to_owned(), expected });
    }
    let (_, scale) = units.iter().find(|(name, _)| *name == unit).ok_or_else(|| UnitError::UnknownUnit {
        text: text.to_owned(),
        unit: unit.to_owned(),
        expected,
    })?;
    let (digits, power) = decimal;
    let value = digits.checked_mul(u128::from(*scale)).map(|scaled| (scaled + power / 2) / power);
    // 2^62, not 2^64: leaves room to add two of them.
    match value {
        Some(value) if value < 1 << 62 => Ok(value as u64),
        _ => Err(UnitError::OutOfRange { text: text.to_owned(), expected }),
    }
}

/// `"12.5"` as (125, 10): exact, where a float would lose the last nanosecond of a long time.
fn decimal(number: &str) -> Option<(u128, u128)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = &fraction[..fraction.len().min(12)];
    let power = 10u128.pow(fraction.len() as u32);
    // 20 digits hold every u64; longer numbers are out of range anyway, and saturate there.
    let whole = if whole.len() > 20 { u128::from(u64::MAX) } else { whole.parse::<u128>().ok()? };
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse::<u128>().ok()? };
    Some((whole * power + fraction, power))
}

/// The largest unit that needs at most three decimals, so that what is printed parses back to the same value.
fn render(value: u64, units: &[(&str, u64)]) -> String {
    for &(name, scale) in units {
        if value < scale && scale > 1 {
            continue;
        }
        let thousandths = u128::from(value) * 1000;
        if thousandths % u128::from(scale) == 0 {
            let (whole, rest) =
                (thousandths / u128::from(scale) / 1000, thousandths / u128::from(scale) % 1000);
            let text = if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}") };
            let text = if rest == 0 { &text } else { text.trim_end_matches('0') };
            return format!("{text}{name}");
        }
    }
    format!("{value}{}", units[units.len() - 1].0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_people_write() {
        let time = |text: &str| text.parse::<Nanos>().map_err(|e| e.to_string());
        assert_eq!(time("5ms"), Ok(Nanos::from_millis(5)));
        assert_eq!(time(" 0.25 ms "), Ok(Nanos::from_micros(250)));
        assert_eq!(time("2min"), Ok(Nanos::from_secs(120)));
        assert_eq!(
            time("5 parsecs").unwrap_err(),
            "`5 parsecs` has the unknown unit `parsecs`; write a time such as \"5ms\", \"250us\" or \"2s\""
        );
        assert!(time("ms").unwrap_err().contains("has no number"));
        assert_eq!(
            time(" 5 ").unwrap_err(),
            "` 5 ` has no unit; write a time such as \"5ms\", \"250us\" or \"2s\""
        );
        let none = "0".parse::<Bytes>().unwrap_err().to_string();
        assert_eq!(none, "`0` has no unit; write a size such as \"12GiB\" or \"512MiB\"");
        assert!(time("99999999999999999999h").unwrap_err().contains("out of range"));
        assert_eq!("12GiB".parse(), Ok(Bytes::from_gib(12)));
        assert_eq!("1.5 MB".parse(), Ok(Bytes(1_500_000)));
    }

    #[test]
    fn texts_we_print() {
        let shown =
            [Nanos(0), Nanos(999), Nanos::from_micros(1_250), Nanos::from_secs(3600)].map(|n| n.to_string());
        assert_eq!(shown, ["0ns", "999ns", "1.25ms", "3600s"]);
        assert_eq!(Bytes::from_mib(1536).to_string(), "1.5GiB");
    }

    proptest! {
        #[test]
        fn printed_quantities_parse_back(value in 0u64..(1 << 62)) {
            prop_assert_eq!(Nanos(value).to_string().parse(), Ok(Nanos(value)));
            prop_assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<Nanos>();
            let _ = text.parse::<Bytes>();
        }
    }
}
