//! How numbers, times and untrusted texts are written for people and for shells.

use indicatif::HumanCount;
use jiff::Timestamp;
pub(crate) use quotagate_operate::text::is_harmful;

/// An untrusted text for a terminal: harmful characters are escaped, such as `\u{1b}`.
pub(crate) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmful(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// `1234567` as `1,234,567`.
pub(crate) fn number(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A number with its noun.
pub(crate) fn count(number_of: u64, one: &str, many: &str) -> String {
    if number_of == 1 { format!("1 {one}") } else { format!("{} {many}", number(number_of)) }
}

/// A duration in at most two units, rounded up: `42 s`, `90 s`, `41 min`, `3 h 5 min`, `2 d`.
pub(crate) fn duration(ms: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let s = ms.div_ceil(1000);
    let two = |large: u64, unit: &str, small: u64, of: &str| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {of}"),
    };
    match s {
        MINUTE => "1 min".to_owned(),
        0..=119 => format!("{s} s"),
        120..HOUR => format!("{} min", s.div_ceil(MINUTE)),
        HOUR..DAY => {
            let minutes = s.div_ceil(MINUTE);
            two(minutes / 60, "h", minutes % 60, "min")
        }
        _ => two(s / DAY, "d", s % DAY / HOUR, "h"),
    }
}

/// Milliseconds since the Unix epoch as `2026-01-31 23:59:58`, in UTC.
pub(crate) fn moment(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// An argument, quoted for a shell where that is necessary.
pub(crate) fn quoted(argument: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._@%+=:,/-".contains(&b);
    if !argument.is_empty() && argument.bytes().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_nouns() {
        assert_eq!(
            (count(1, "dial", "dials"), count(0, "dial", "dials")),
            ("1 dial".into(), "0 dials".into())
        );
    }

    #[test]
    fn durations_and_moments_are_written_for_people() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (123_456, "123,456"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(number(n), text);
        }
        for (ms, text) in [
            (0, "0 s"),
            (1, "1 s"),
            (60_000, "1 min"),
            (119_000, "119 s"),
            (120_000, "2 min"),
            (2_460_000, "41 min"),
            (3_600_000, "1 h"),
            (11_100_000, "3 h 5 min"),
            (86_399_999, "1 d"),
            (90_000_000, "1 d 1 h"),
            (172_800_000, "2 d"),
        ] {
            assert_eq!(duration(ms), text, "{ms}");
        }
        assert_eq!(moment(1_795_000_000_000), "2026-11-18 11:06:40");
        assert_eq!(moment(u64::MAX), "9999-12-30 22:00:00");
    }

    #[test]
    fn harmful_characters_are_escaped() {
        assert_eq!(clean("ann\u{1b}[2J\r\n\u{9b}1m"), r"ann\u{1b}[2J\u{d}\u{a}\u{9b}1m");
        assert_eq!(
            clean("a\u{202e}b\u{200b}\u{feff}\u{e0041}"),
            r"a\u{202e}b\u{200b}\u{feff}\u{e0041}"
        );
        assert_eq!(clean("jwt.sub=käse → 日本"), "jwt.sub=käse → 日本");
    }

    #[test]
    fn arguments_survive_a_shell() {
        for (argument, text) in [
            ("per-caller", "per-caller"),
            ("*", "'*'"),
            ("", "''"),
            ("a'b c", r"'a'\''b c'"),
            ("jwt.sub=a%20b,-", "jwt.sub=a%20b,-"),
        ] {
            assert_eq!(quoted(argument), text);
        }
    }
}
