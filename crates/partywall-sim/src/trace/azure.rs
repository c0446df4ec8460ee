//! Azure's traces of LLM inference: CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens. The trace of 2023
//! has times with seven decimals (`2023-11-16 18:17:03.9799600`), that of 2024 has six and `+00:00` behind them.

use std::io::BufRead;

use partywall_core::units::Nanos;

use super::lines::{Line, Lines};
use super::{Rows, TraceError, TraceRequest, whole_file};

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";
const TIME: &str = "a time such as 2023-11-16 18:17:03.9799600";

pub(super) fn read(file: &str, reader: &mut dyn BufRead) -> Result<Vec<TraceRequest>, TraceError> {
    let mut lines = Lines::new(file, reader);
    let Some(header) = lines.next()? else {
        return Err(whole_file(file, "the file is empty", format!("expected the header {HEADER}")));
    };
    if header.text.trim_start_matches('\u{feff}').trim_end() != HEADER {
        return Err(header.error(0, "this is not the header of an Azure LLM trace", HEADER));
    }
    let mut rows = Rows::default();
    while let Some(line) = lines.next()? {
        let mut fields = Fields { line: &line, next: 0 };
        let (time_at, time) = fields.next("TIMESTAMP")?;
        let at =
            moment(time).ok_or_else(|| line.error(time_at, format!("`{}` is no time", brief(time)), TIME))?;
        let input = fields.tokens("ContextTokens")?;
        let output = fields.tokens("GeneratedTokens")?;
        if fields.next <= line.text.len() {
            return Err(line.error(fields.next - 1, "the row has more than three fields", HEADER));
        }
        rows.push(at, input, output).map_err(|(problem, expected)| line.whole(problem, expected))?;
    }
    rows.finish(file, "expected rows such as 2023-11-16 18:17:03.9799600,4808,10")
}

/// The comma-separated fields of a row, left to right. The format has no quoting.
struct Fields<'a> {
    line: &'a Line<'a>,
    /// Where the next field starts; past the end of the line when there is none.
    next: usize,
}

impl<'a> Fields<'a> {
    /// The next field and the byte it starts at.
    fn next(&mut self, name: &str) -> Result<(usize, &'a str), TraceError> {
        let text = self.line.text;
        let Some(rest) = text.get(self.next..) else {
            return Err(self.line.error(text.len(), format!("the row ends before {name}"), HEADER));
        };
        let field = rest.split(',').next().unwrap_or(rest);
        let start = self.next;
        self.next += field.len() + 1;
        Ok((start, field))
    }

    fn tokens(&mut self, name: &str) -> Result<u32, TraceError> {
        let (start, field) = self.next(name)?;
        // `parse` takes a plus sign, the format does not.
        let digits = field.bytes().all(|byte| byte.is_ascii_digit());
        field.parse().ok().filter(|_| digits).ok_or_else(|| {
            let problem = format!("{name} is `{}`", brief(field));
            self.line.error(start, problem, "a whole number of tokens, 0 to 4294967295")
        })
    }
}

/// The start of a field, short enough for a message.
fn brief(field: &str) -> String {
    const SHOWN: usize = 40;
    if field.chars().count() <= SHOWN {
        return field.to_owned();
    }
    field.chars().take(SHOWN).chain(['…']).collect()
}

/// Nanoseconds since 1970 of `YYYY-MM-DD hh:mm:ss`, with up to nine decimals and `+00:00` or `Z` behind it if need be.
fn moment(text: &str) -> Option<Nanos> {
    let text = text.strip_suffix("+00:00").or_else(|| text.strip_suffix('Z')).unwrap_or(text);
    let (whole, decimals) = text.split_once('.').map_or((text, None), |(whole, rest)| (whole, Some(rest)));
    let bytes = whole.as_bytes();
    let marks = [(4, b'-'), (7, b'-'), (10, b' '), (13, b':'), (16, b':')];
    if bytes.len() != 19 || marks.iter().any(|&(at, mark)| bytes[at] != mark) {
        return None;
    }
    let number = |from: usize, to: usize| digits(bytes.get(from..to)?);
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    // Until 2500, so that nanoseconds since 1970 fit 64 bits.
    if !(1970..=2500).contains(&year) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days_since_1970(year, month, day)?;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
    let nanos = match decimals.map(str::as_bytes) {
        None => 0,
        Some(decimals @ ([_] | [_, ..])) if decimals.len() <= 9 => {
            digits(decimals)? * 10u64.pow(9 - decimals.len() as u32)
        }
        Some(_) => return None,
    };
    Some(Nanos(seconds * 1_000_000_000 + nanos))
}

/// The value of at most nine ASCII digits.
fn digits(bytes: &[u8]) -> Option<u64> {
    bytes.iter().try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + u64::from(byte - b'0')))
}

/// Days from 1970-01-01 in the Gregorian calendar, or `None` where the month has no such day.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let february = if leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = usize::try_from(month).ok()?.checked_sub(1)?;
    if !(1..=*lengths.get(before)?).contains(&day) {
        return None;
    }
    // Leap years before `year`, counted from year 0; 477 of them were before 1970.
    let past = year - 1;
    let leap_days = past / 4 - past / 100 + past / 400 - 477;
    Some((year - 1970) * 365 + leap_days + lengths[..before].iter().sum::<u64>() + day - 1)
}

#[cfg(test)]
pub(super) const SAMPLE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r
2024-02-28 23:59:59.9999999,1200,9\r
2024-02-28 23:59:59.9999999,80,0\r
2024-02-29 00:00:01.0000000,7000,311";

#[cfg(test)]
mod tests {
    use super::super::TraceFormat::AzureLlm;
    use super::super::{TaskLoad, tests};
    use super::*;

    #[test]
    fn rows_become_offsets_from_the_first() {
        let trace = tests::read(AzureLlm, SAMPLE.as_bytes()).unwrap();
        let TaskLoad::Listed(requests) = &trace.tasks[0].load else { panic!("{trace:?}") };
        let found: Vec<_> = requests.iter().map(|r| (r.at.0, r.input_tokens, r.output_tokens)).collect();
        assert_eq!(found, [(0, 1200, 9), (0, 80, 0), (1_000_000_100, 7000, 311)]);
    }

    #[test]
    fn times_of_both_years_and_their_limits() {
        let millis = |text| moment(text).map(|at| at.0 / 1_000_000);
        assert_eq!(millis("1970-01-01 00:00:00"), Some(0));
        assert_eq!(millis("2023-11-16 18:17:03.5"), Some(1_700_158_623_500));
        assert_eq!(millis("2024-05-10 00:00:00.250000+00:00"), Some(1_715_299_200_250));
        assert_eq!(millis("2000-02-29 12:00:00Z"), Some(951_825_600_000));
        for wrong in [
            "2023-02-29 00:00:00",
            "2100-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-00-01 00:00:00",
            "2023-04-31 00:00:00",
            "2023-04-00 00:00:00",
            "2023-04-01 24:00:00",
            "2023-04-01 00:60:00",
            "2023-04-01 00:00:60",
            "2023-04-01 00:00:00.",
            "2023-04-01 00:00:00.1234567890",
            "1969-12-31 23:59:59",
            "2023-04-01 00:00:00+02:00",
            "2023-4-1 0:0:0",
            "+023-04-01 00:00:00",
            "",
            "2023-04-01 00:00:0é",
        ] {
            assert_eq!(moment(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn errors_point_at_the_place() {
        let check = |rows: &str, expected: &str| {
            let message = tests::read(AzureLlm, format!("{HEADER}\n{rows}").as_bytes()).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        };
        check("", "t: the file has no requests; expected rows such as 2023");
        check(
            "2023-11-16 1:17:03,5,5",
            "t:2:1: `2023-11-16 1:17:03` is no time; expected a time such as 2023",
        );
        check("2023-11-16 18:17:03,,5", "t:2:21: ContextTokens is ``; expected a whole number of tokens");
        check("2023-11-16 18:17:03,7,+5", "t:2:23: GeneratedTokens is `+5`; ");
        check("2023-11-16 18:17:03,7", "t:2:22: the row ends before GeneratedTokens; ");
        check("2023-11-16 18:17:03,7,5,", "t:2:24: the row has more than three fields; ");
        let (early, late) = ("2023-11-16 18:17:03,7,5\n", "2023-11-16 18:17:04.5,7,5\n");
        check(&format!("{late}\n{early}"), "t:4: the time goes back by 1.5s against the row before; ");
        check(
            &format!("{early}2099-11-16 18:17:04.5,7,5\n"),
            "t:3: the time is 2398377601.5s after the first",
        );
        let header = tests::read(AzureLlm, b"time,in,out\n").unwrap_err();
        assert_eq!(header, format!("t:1:1: this is not the header of an Azure LLM trace; expected {HEADER}"));
    }
}
