//! Values of flags: durations, units, sizes and percentages.

use std::time::Duration;

use quotagate_protocol::MAX_UNITS;
use quotagate_quota::duration::{format, parse};

/// Longest duration that a flag takes, and longest window of a policy: 366 days.
pub(crate) const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Smallest size that a flag takes, in bytes.
const MIN_BYTES: usize = 1 << 20;

/// A duration from `min` to `max`, spelled as in policies: `90s`, `1h30m`, `7d`.
///
/// # Errors
/// One sentence for the person who typed it.
pub(crate) fn duration(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let time = parse(text).ok().filter(|time| (min..=max).contains(time));
    time.ok_or_else(|| {
        format!(
            "must be a duration from {} to {}, such as 30s, 15m or 1h",
            format(min),
            format(max)
        )
    })
}

/// The time until a change ends, in milliseconds.
///
/// # Errors
/// As [`duration`].
pub(crate) fn for_ms(text: &str) -> Result<u64, String> {
    let time = duration(text, Duration::from_secs(1), LONGEST)?;
    u64::try_from(time.as_millis()).map_err(|error| error.to_string())
}

/// A duration of whole seconds, at least one.
///
/// # Errors
/// As [`duration`].
pub(crate) fn seconds(text: &str) -> Result<u32, String> {
    let time = duration(text, Duration::from_secs(1), LONGEST)?;
    if time.subsec_nanos() > 0 {
        return Err("must be whole seconds, such as 10s, 1m or 1h30m".to_owned());
    }
    u32::try_from(time.as_secs()).map_err(|error| error.to_string())
}

/// A number of units. It may have separators, as [`crate::text::number`] writes them: `5000`,
/// `5,000`, `5 000`, `5_000`.
///
/// # Errors
/// One sentence for the person who typed it.
pub(crate) fn units(text: &str) -> Result<u64, String> {
    const SEPARATORS: [char; 5] = [',', '_', ' ', '\u{a0}', '\u{202f}'];
    let digits = match text.chars().find(|c| !c.is_ascii_digit()).filter(|c| SEPARATORS.contains(c))
    {
        Some(separator) => {
            let mut groups = text.split(separator);
            let first = groups.next().filter(|first| (1..=3).contains(&first.len()));
            // `1,5` and `1,0000` are typing errors, or fractions.
            first
                .filter(|_| groups.all(|group| group.len() == 3))
                .map(|_| text.replace(separator, ""))
        }
        None => Some(text.to_owned()),
    };
    let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    let number =
        digits.and_then(|digits| digits.parse().ok()).filter(|number| *number <= MAX_UNITS);
    number.ok_or_else(|| {
        format!("must be a whole number from 0 to {MAX_UNITS}, such as 5000 or 5,000")
    })
}

/// A percentage above 0: `0.1`, `1%`.
///
/// # Errors
/// One sentence for the person who typed it.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').trim_end().parse::<f64>().ok();
    number
        .filter(|number| *number > 0.0 && *number <= 100.0)
        .ok_or_else(|| "must be a percentage above 0 and at most 100, such as 0.1".to_owned())
}

/// A size in bytes: `512MiB`, `4G`.
///
/// # Errors
/// One sentence for the person who typed it.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text.get(number.len()..) {
        Some("K" | "KiB") => 1 << 10,
        Some("M" | "MiB") => 1 << 20,
        Some("G" | "GiB") => 1 << 30,
        _ => 0,
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(factor));
    bytes
        .filter(|bytes| *bytes >= MIN_BYTES)
        .ok_or_else(|| "must be a size of at least 1MiB, such as 512MiB or 4GiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::number;

    #[test]
    fn durations_may_be_compound_and_errors_name_the_bounds() {
        for (text, ms) in
            [("1s", 1000), ("90s", 90_000), ("1h30m", 5_400_000), ("366d", 31_622_400_000)]
        {
            assert_eq!(for_ms(text), Ok(ms));
        }
        for wrong in
            ["", "0s", "999ms", "1", "-1h", "367d", "1e9d", "99999999999999999999d", "soon"]
        {
            let error = for_ms(wrong).unwrap_err();
            assert_eq!(
                error, "must be a duration from 1s to 366d, such as 30s, 15m or 1h",
                "{wrong}"
            );
        }
    }

    #[test]
    fn whole_seconds_are_required_where_fractions_make_no_sense() {
        assert_eq!(
            ["10s", "1m", "1h30m", "2h", "366d"].map(|text| seconds(text).unwrap()),
            [10, 60, 5400, 7200, 366 * 86_400]
        );
        for bad in ["", "1", "0s", "1500ms", "367d", "-1m", "m", "9999999999d"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn units_are_read_as_the_commands_print_them() {
        for units_of in [0, 7, 999, 1000, 12_345, 1_000_000, MAX_UNITS] {
            let printed = number(units_of);
            for text in [
                units_of.to_string(),
                printed.replace(',', " "),
                printed.replace(',', "_"),
                printed,
            ] {
                assert_eq!(units(&text), Ok(units_of), "{text}");
            }
        }
        let above = (MAX_UNITS + 1).to_string();
        for wrong in [
            "",
            ",",
            "1,5",
            "1,00",
            "1,0000",
            "1000,000",
            "1,000_000",
            ",100",
            "1,",
            "1.5",
            "-1",
            "x",
            &above,
        ] {
            assert!(units(wrong).unwrap_err().contains("such as 5000 or 5,000"), "{wrong}");
        }
    }

    #[test]
    fn sizes_and_percentages_are_read() {
        assert_eq!(
            ["1MiB", "64M", "2GiB"].map(|text| bytes(text).unwrap()),
            [1 << 20, 64 << 20, 2 << 30]
        );
        assert_eq!(["0.1", "1%", "100"].map(|text| percent(text).unwrap()), [0.1, 1.0, 100.0]);
        for bad in ["", "1", "1KiB", "0GiB", "GiB", "99999999999999999999GiB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        for bad in ["", "0", "-1", "101", "NaN", "x"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
