//! Times in logs, as milliseconds since the Unix epoch.
//!
//! Without a format, a time is RFC 3339, Envoy's default, or a number: seconds, milliseconds,
//! microseconds or nanoseconds, depending on its size. Other times need a format in the notation of
//! strftime.

use jiff::fmt::strtime::BrokenDownTime;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The format of times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TimeFormat {
    /// RFC 3339 or a number.
    Known,
    /// A format of `strftime`; UTC if it has no offset.
    Strftime(String),
}

impl TimeFormat {
    /// The time in these bytes.
    pub(crate) fn milliseconds(&self, bytes: &[u8]) -> Option<i64> {
        match self {
            Self::Known => rfc_3339(bytes).or_else(|| number(bytes)),
            Self::Strftime(format) => strftime(format, bytes),
        }
    }
}

fn rfc_3339(bytes: &[u8]) -> Option<i64> {
    let (head, rest) = bytes.split_first_chunk::<19>()?;
    let &[
        y1,
        y2,
        y3,
        y4,
        b'-',
        o1,
        o2,
        b'-',
        d1,
        d2,
        b'T' | b't' | b' ',
        h1,
        h2,
        b':',
        m1,
        m2,
        b':',
        s1,
        s2,
    ] = head
    else {
        return None;
    };
    let year = two(y1, y2)? * 100 + two(y3, y4)?;
    let (month, day) = (two(o1, o2)?, two(d1, d2)?);
    let (hour, minute, second) = (two(h1, h2)?, two(m1, m2)?, two(s1, s2)?);
    // 60 is a leap second.
    if !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let (fraction, zone) = fraction(rest);
    let offset_minutes = match zone {
        b"Z" | b"z" | b"" => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] | [sign @ (b'+' | b'-'), h1, h2, m1, m2] => {
            let minutes = two(*h1, *h2)? * 60 + two(*m1, *m2)?;
            if *sign == b'-' { -minutes } else { minutes }
        }
        _ => return None,
    };
    let minutes = hour * 60 + minute - offset_minutes;
    Some(days(year, month, day) * DAY_MS + (minutes * 60 + second) * 1000 + fraction)
}

fn two(tens: u8, ones: u8) -> Option<i64> {
    (tens.is_ascii_digit() && ones.is_ascii_digit())
        .then(|| i64::from(tens - b'0') * 10 + i64::from(ones - b'0'))
}

/// Milliseconds after the point, if there is one, and what follows.
fn fraction(bytes: &[u8]) -> (i64, &[u8]) {
    let Some(digits) = bytes.strip_prefix(b".") else { return (0, bytes) };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at_checked(end).unwrap_or((digits, b""));
    let decimals = digits.iter().copied().chain([b'0'; 3]).take(3);
    (decimals.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')), rest)
}

/// Days since 1970-01-01 in the Gregorian calendar: years begin in March, so that a leap day is the
/// last of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + (month * 153 + 2) / 5 + day - 1 - 719_468
}

fn number(bytes: &[u8]) -> Option<i64> {
    let text = str::from_utf8(bytes).ok()?;
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    // Seconds until the year 5138, and so on by thousands.
    let milliseconds = match value {
        _ if value < 1e11 => value * 1e3,
        _ if value < 1e14 => value,
        _ if value < 1e17 => value / 1e3,
        _ => value / 1e6,
    };
    Some(milliseconds as i64)
}

fn strftime(format: &str, bytes: &[u8]) -> Option<i64> {
    let parsed = BrokenDownTime::parse(format, bytes).ok()?;
    let time = match parsed.to_timestamp() {
        Ok(time) => time,
        Err(_) => parsed.to_datetime().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp(),
    };
    Some(time.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: &str) -> Option<i64> {
        TimeFormat::Known.milliseconds(text.as_bytes())
    }

    #[test]
    fn rfc_3339_is_parsed() {
        for text in [
            "2026-11-21T22:55:41.123Z",
            "2026-11-21T22:55:41.123456Z",
            "2026-11-21T23:55:41.123+01:00",
        ] {
            assert_eq!(known(text), Some(1_795_301_741_123), "{text}");
        }
        assert_eq!(known("2026-11-21 22:55:41.1"), Some(1_795_301_741_100));
        assert_eq!(known("2026-11-21T17:25:41-0530"), Some(1_795_301_741_000));
    }

    #[test]
    fn the_calendar_is_that_of_jiff() {
        for text in [
            "1970-01-01T00:00:00Z",
            "2000-02-29T12:00:00Z",
            "2024-12-31T23:59:59Z",
            "2100-03-01T00:00:00Z",
        ] {
            let expected: jiff::Timestamp = text.parse().unwrap();
            assert_eq!(known(text), Some(expected.as_millisecond()), "{text}");
        }
    }

    #[test]
    fn the_unit_of_a_number_follows_from_its_size() {
        for text in ["1795301741.123", "1795301741123", "1795301741123456", "1795301741123456789"] {
            assert_eq!(known(text), Some(1_795_301_741_123), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_times() {
        let bad = [
            "",
            "-",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-11-21T22:55:41.123X",
            "2026-11-21",
            "NaN",
            "-5",
        ];
        for text in bad {
            assert_eq!(known(text), None, "{text}");
        }
    }

    #[test]
    fn other_formats_are_given_in_strftime_notation() {
        let format = TimeFormat::Strftime("%d/%b/%Y:%H:%M:%S %z".to_owned());
        assert_eq!(format.milliseconds(b"21/Nov/2026:23:55:41 +0100"), Some(1_795_301_741_000));
        assert_eq!(format.milliseconds(b"2026-11-21T22:55:41Z"), None);
        let utc = TimeFormat::Strftime("%Y/%m/%d %H:%M:%S".to_owned());
        assert_eq!(utc.milliseconds(b"2026/11/21 22:55:41"), Some(1_795_301_741_000));
        let epoch = TimeFormat::Strftime("%s".to_owned());
        assert_eq!(epoch.milliseconds(b"1795301741"), Some(1_795_301_741_000));
    }
}
