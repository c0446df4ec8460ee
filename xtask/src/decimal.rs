//! Decimal numbers that remember how many digits were written.
//!
//! The ledger says `1.03` and means "to two digits after the point". Binary floating point cannot hold that, nor
//! round 1.005 the way people do, so figures are compared as decimals: a file's number is taken by its shortest
//! decimal text and rounded half away from zero.

use std::cmp::Ordering;
use std::fmt;

/// More digits than any figure here needs, and few enough that aligning two numbers fits in 128 bits.
const MAX_DIGITS: u32 = 18;
/// Far outside the range of a 64-bit float, and far inside the range of the exponent.
const MAX_EXPONENT: i32 = 1_000;

/// `coefficient x 10^exponent`; the exponent is the place of the last digit that was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decimal {
    coefficient: i128,
    exponent: i32,
}

impl Decimal {
    /// Reads `-12.50`, `1_000` or `1.2e-7`. `None` for anything else, and beyond 18 digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (mantissa, power) = match text.split_once(['e', 'E']) {
            Some((mantissa, power)) => (mantissa, power.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (negative, mantissa) = match mantissa.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, mantissa.strip_prefix('+').unwrap_or(mantissa)),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if whole.is_empty() || (fraction.is_empty() && mantissa.contains('.')) {
            return None;
        }
        let mut coefficient: i128 = 0;
        for byte in whole.bytes().chain(fraction.bytes()).filter(|&byte| byte != b'_') {
            if !byte.is_ascii_digit() || coefficient >= ten_to(MAX_DIGITS - 1)? {
                return None;
            }
            coefficient = coefficient * 10 + i128::from(byte - b'0');
        }
        let places = i32::try_from(fraction.bytes().filter(|&byte| byte != b'_').count()).ok()?;
        let exponent = power.checked_sub(places).filter(|e| e.abs() <= MAX_EXPONENT)?;
        Some(Self { coefficient: if negative { -coefficient } else { coefficient }, exponent })
    }

    /// The place of the last digit: -2 for `1.03`, 0 for `12`.
    pub(crate) fn last_place(self) -> i32 {
        self.exponent
    }

    /// Whether the number is zero.
    pub(crate) fn is_zero(self) -> bool {
        self.coefficient == 0
    }

    /// The same digits, `powers` decimal places to the left (`1.2` shifted by 6 is 1 200 000, known to 100 000).
    pub(crate) fn shift(self, powers: i32) -> Self {
        Self { exponent: self.exponent + powers, ..self }
    }

    /// Rounds half away from zero so that the last digit is at `place`; `None` when the result has more digits
    /// than can be held.
    pub(crate) fn round_to(self, place: i32) -> Option<Self> {
        if self.is_zero() {
            return Some(Self { coefficient: 0, exponent: place });
        }
        let powers = self.exponent.checked_sub(place)?;
        let coefficient = if powers >= 0 {
            self.coefficient.checked_mul(ten_to(powers.unsigned_abs())?)?
        } else {
            match ten_to(powers.unsigned_abs()) {
                // Half the divisor is added away from zero, then the division cuts.
                Some(unit) => (self.coefficient + self.coefficient.signum() * (unit / 2)) / unit,
                None => 0,
            }
        };
        let limit = ten_to(MAX_DIGITS)?;
        (coefficient.abs() < limit).then_some(Self { coefficient, exponent: place })
    }

    /// The coefficient without trailing zeros, and the place of its last digit.
    fn normalised(self) -> (i128, i32) {
        let (mut coefficient, mut exponent) = (self.coefficient, self.exponent);
        if coefficient == 0 {
            return (0, 0);
        }
        while coefficient % 10 == 0 {
            coefficient /= 10;
            exponent += 1;
        }
        (coefficient, exponent)
    }
}

/// `10^powers`, where that fits.
fn ten_to(powers: u32) -> Option<i128> {
    10_i128.checked_pow(powers)
}

/// Numbers are equal when their values are: `1.0` is `1`.
impl PartialEq for Decimal {
    fn eq(&self, other: &Self) -> bool {
        self.normalised() == other.normalised()
    }
}

impl Eq for Decimal {}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((a, a_exponent), (b, b_exponent)) = (self.normalised(), other.normalised());
        if a.signum() != b.signum() || a == 0 {
            return a.signum().cmp(&b.signum());
        }
        let magnitude = |coefficient: i128, exponent: i32| {
            i64::from(coefficient.unsigned_abs().ilog10()) + i64::from(exponent)
        };
        let by_size = magnitude(a, a_exponent).cmp(&magnitude(b, b_exponent)).then_with(|| {
            // Of the same magnitude, so the exponents differ by less than `MAX_DIGITS`: aligning them fits.
            let lowest = a_exponent.min(b_exponent);
            let align = |c: i128, e: i32| c.unsigned_abs() * 10_u128.pow(e.abs_diff(lowest));
            align(a, a_exponent).cmp(&align(b, b_exponent))
        });
        if a < 0 { by_size.reverse() } else { by_size }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.coefficient.unsigned_abs().to_string();
        let sign = if self.coefficient < 0 { "-" } else { "" };
        if self.exponent >= 0 {
            let zeros = if self.is_zero() { 0 } else { self.exponent.unsigned_abs() as usize };
            return write!(out, "{sign}{digits}{}", "0".repeat(zeros));
        }
        let places = self.exponent.unsigned_abs() as usize;
        let padded = format!("{digits:0>width$}", width = places + 1);
        let (whole, fraction) = padded.split_at(padded.len() - places);
        write!(out, "{sign}{whole}.{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::parse(text).unwrap_or_else(|| panic!("`{text}` should be a number"))
    }

    #[test]
    fn written_digits_survive() {
        for (text, shown, place) in [
            ("1.030", "1.030", -3),
            ("12", "12", 0),
            ("-0.05", "-0.05", -2),
            ("+7.5", "7.5", -1),
            ("1_000_000", "1000000", 0),
            ("1.25e3", "1250", 1),
            ("5e-7", "0.0000005", -7),
            ("0e9", "0", 9),
        ] {
            let number = decimal(text);
            assert_eq!((number.to_string().as_str(), number.last_place()), (shown, place), "{text}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "",
            "-",
            ".5",
            "5.",
            "1,000",
            "0x10",
            "inf",
            "nan",
            "1.2.3",
            "1e",
            "1e2.5",
            "1234567890123456789",
        ] {
            assert!(Decimal::parse(text).is_none(), "`{text}`");
        }
    }

    #[test]
    fn halves_round_away_from_zero() {
        for (text, place, expected) in [
            ("1.005", -2, "1.01"),
            ("1.0049999", -2, "1.00"),
            ("-1.005", -2, "-1.01"),
            ("0.5", 0, "1"),
            ("0.49", 0, "0"),
            ("1249", 2, "1200"),
            ("1250", 2, "1300"),
            ("3", -2, "3.00"),
            ("1e-40", -2, "0.00"),
            ("9.99", -1, "10.0"),
        ] {
            assert_eq!(decimal(text).round_to(place).unwrap().to_string(), expected, "{text} to {place}");
        }
        assert_eq!(decimal("1e30").round_to(0), None, "31 digits cannot be held");
    }

    #[test]
    fn order_is_by_value() {
        let ascending =
            ["-1e300", "-2", "-1.999", "-1e-300", "0", "1e-300", "0.07", "0.15", "1", "1.5", "1e300"];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(decimal(a).cmp(&decimal(b)), i.cmp(&j), "{a} and {b}");
            }
        }
        assert_eq!(decimal("1.50"), decimal("1.5"));
        assert_eq!(decimal("-0"), decimal("0.00"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-+0-9._eE]{0,24}|.{0,12}") {
            if let Some(number) = Decimal::parse(&text) {
                // What is shown reads back as the same number, unless it takes more digits than can be held.
                if let Some(again) = Decimal::parse(&number.to_string()) {
                    prop_assert_eq!(number, again);
                }
            }
        }

        #[test]
        fn rounding_moves_by_at_most_half_a_unit(coefficient in -999_999_999_i64..=999_999_999, place in -3_i32..=6) {
            let number = Decimal { coefficient: i128::from(coefficient), exponent: -3 };
            let rounded = number.round_to(place).unwrap();
            let off = (rounded.coefficient * 10_i128.pow(rounded.exponent.abs_diff(-3)) - number.coefficient).abs();
            prop_assert!(2 * off <= 10_i128.pow(place.abs_diff(-3)), "{} became {}", number, rounded);
        }

        #[test]
        fn floats_compare_as_decimals_do(a in -1e12_f64..1e12, b in -1e12_f64..1e12) {
            prop_assert_eq!(decimal(&a.to_string()).partial_cmp(&decimal(&b.to_string())), a.partial_cmp(&b));
        }
    }
}
