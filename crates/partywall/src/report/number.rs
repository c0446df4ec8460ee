//! Numbers as people read them. Ratios stay fractions.

/// Three significant digits: `0.947`, `12.3`, `1280`. Large ones keep all digits before the point.
pub(super) fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return "-".to_owned();
    }
    if !(1e-6..1e7).contains(&value.abs()) {
        return format!("{value:.2e}");
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    let text = format!("{value:.*}", digits.max(0) as usize);
    // 0.9996 rounds up to 1.000: one digit more than asked for.
    let rounded: f64 = text.parse().unwrap_or(value);
    let digits = 2 - rounded.abs().log10().floor() as i32;
    format!("{value:.*}", digits.max(0) as usize)
}

/// A ratio to something that is 1: at least two decimals up to 10, so that 1.03 and 1.00 differ.
pub(super) fn ratio(value: f64) -> String {
    if (0.0..9.995).contains(&value) { format!("{value:.2}") } else { significant(value) }
}

/// A fraction of a whole: two decimals, more where two would round something to nothing or everything.
pub(super) fn fraction(value: f64) -> String {
    if value == 0.0 || value == 1.0 {
        return format!("{value}");
    }
    let small = value.abs().min((1.0 - value).abs());
    match small {
        _ if small >= 0.095 => format!("{value:.2}"),
        _ if small >= 0.0095 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// What stands where there is no number.
pub(super) const NONE: &str = "-";

/// `value` written by `format`, or the sign for no number.
pub(super) fn or_none(value: Option<f64>, format: fn(f64) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_fits_what_is_told() {
        let shown =
            [0.0, 0.9466, 0.99996, 12.34, 128.4, 12_345.6, 0.000_123_4, 1e300, f64::NAN].map(significant);
        assert_eq!(shown, ["0", "0.947", "1.00", "12.3", "128", "12346", "0.000123", "1.00e300", "-"]);
        assert_eq!([1.0, 1.034, 9.999, 57.61, 1234.5].map(ratio), ["1.00", "1.03", "10.0", "57.6", "1234"]);
        let shown = [0.0, 1.0, 0.724, 0.0132, 0.99, 0.0004, 0.9996].map(fraction);
        assert_eq!(shown, ["0", "1", "0.72", "0.013", "0.990", "0.0004", "0.9996"]);
    }
}
