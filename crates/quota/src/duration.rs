//! Durations as people write them: `500ms`, `90s`, `1h30m`, `7d`.
//!
//! The policy document and the command line share this one spelling. A duration is one or more
//! whole numbers, each with a unit, the largest unit first. The precision is a millisecond.
//!
//! ```
//! use std::time::Duration;
//! use quotagate_quota::duration;
//!
//! assert_eq!(duration::parse("1h30m"), Ok(Duration::from_secs(5400)));
//! assert_eq!(duration::format(Duration::from_secs(5400)), "1h30m");
//! assert_eq!(
//!     duration::parse("90").unwrap_err().to_string(),
//!     "must be a duration such as 500ms, 90s, 1h30m or 7d"
//! );
//! ```

use std::fmt::Write as _;
use std::time::Duration;

/// The text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a duration such as 500ms, 90s, 1h30m or 7d")]
pub struct NotADuration;

/// The units and their milliseconds, the largest first.
const UNITS: [(&str, u64); 6] =
    [("w", 7 * DAY_MS), ("d", DAY_MS), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const DAY_MS: u64 = 24 * 3_600_000;

/// Reads a duration.
///
/// # Errors
/// If `text` is not a duration, or is longer than 2^64 - 1 milliseconds.
pub fn parse(text: &str) -> Result<Duration, NotADuration> {
    let mut units = UNITS.iter();
    let mut total = 0_u64;
    let mut rest = text;
    loop {
        let (number, after) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
        let (name, after) =
            after.split_at(after.bytes().take_while(u8::is_ascii_lowercase).count());
        // The iterator only moves forward, so it rejects a unit that is repeated or larger than the
        // one before.
        let (_, ms) = units.find(|(unit, _)| *unit == name).ok_or(NotADuration)?;
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*ms));
        total = part.and_then(|part| total.checked_add(part)).ok_or(NotADuration)?;
        if after.is_empty() {
            return Ok(Duration::from_millis(total));
        }
        rest = after;
    }
}

/// Writes a duration as [`parse`] reads it, in days and smaller units. Cuts off fractions of a
/// millisecond.
pub fn format(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    let mut text = String::new();
    for (unit, ms) in UNITS.iter().filter(|(unit, _)| *unit != "w") {
        let number = rest / u128::from(*ms);
        rest %= u128::from(*ms);
        if number > 0 {
            // Writing into a String cannot fail.
            let _ = write!(text, "{number}{unit}");
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_a_duration_come_in_descending_order() {
        for (text, ms) in [
            ("0ms", Some(0)),
            ("500ms", Some(500)),
            ("10s", Some(10_000)),
            ("1m", Some(60_000)),
            ("1h", Some(3_600_000)),
            ("7d", Some(604_800_000)),
            ("2w", Some(1_209_600_000)),
            ("007s", Some(7_000)),
            ("1h30m", Some(5_400_000)),
            ("1d12h", Some(129_600_000)),
            ("1m1ms", Some(60_001)),
            ("90m", Some(5_400_000)),
            ("1h90m", Some(9_000_000)),
            ("", None),
            ("s", None),
            ("10", None),
            ("1h30", None),
            ("1.5s", None),
            ("-1s", None),
            ("+1s", None),
            ("1 s", None),
            ("1h 30m", None),
            ("30m1h", None),
            ("1h1h", None),
            ("1S", None),
            ("1min", None),
            ("\u{661}s", None),
            ("1\u{e4}", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
            ("18446744073709551615ms1ms", None),
            ("18446744073709551s616ms", None),
        ] {
            assert_eq!(parse(text).ok(), ms.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn a_formatted_duration_parses_to_itself() {
        for (ms, text) in [
            (0, "0s"),
            (1, "1ms"),
            (1500, "1s500ms"),
            (90_000, "1m30s"),
            (5_400_000, "1h30m"),
            (604_800_000, "7d"),
            (u64::MAX, "213503982334d14h25m51s615ms"),
        ] {
            let duration = Duration::from_millis(ms);
            assert_eq!(format(duration), text);
            assert_eq!(parse(text), Ok(duration));
        }
        assert_eq!(format(Duration::from_micros(1999)), "1ms");
        assert_eq!(format(Duration::from_nanos(1)), "0s");
    }
}
