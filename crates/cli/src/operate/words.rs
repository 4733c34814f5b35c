//! How numbers, times and other people's texts are shown.

use std::time::{Duration, UNIX_EPOCH};

pub(crate) use quotagate_advise::{grouped as number, is_harmful};
use quotagate_quota::protocol::{Mode, OnFailure};

/// A text of unknown origin as a terminal may get it: what would move its cursor, change its colours or the order of what
/// is read, stands as `\u{1b}`.
pub(crate) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmful(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// A count with the noun for it.
pub(crate) fn count(number_of: u64, one: &str, many: &str) -> String {
    if number_of == 1 { format!("1 {one}") } else { format!("{} {many}", number(number_of)) }
}

/// How long, in at most two units: `42 s`, `90 s`, `41 min`, `3 h 5 min`, `2 d`.
pub(crate) fn duration(ms: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    // What is left is never told shorter than it is.
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

/// The moment, `2026-01-31 23:59:58` in UTC, of so many milliseconds since the Unix epoch.
pub(crate) fn moment(ms: u64) -> String {
    // Beyond the year 9999 there is no such text.
    let last = Duration::from_secs(253_402_300_799);
    let at = UNIX_EPOCH + Duration::from_millis(ms).min(last);
    let text = humantime::format_rfc3339_seconds(at).to_string();
    text.trim_end_matches('Z').replace('T', " ")
}

/// As configurations write it.
pub(crate) const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
    }
}

/// As configurations write it.
pub(crate) const fn on_failure(on_failure: OnFailure) -> &'static str {
    match on_failure {
        OnFailure::Allow => "allow",
        OnFailure::Deny => "deny",
        OnFailure::Local => "local",
    }
}

/// An argument as a shell takes it.
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
    fn counts_have_their_nouns() {
        assert_eq!(
            (count(1, "dial", "dials"), count(0, "dial", "dials")),
            ("1 dial".into(), "0 dials".into())
        );
    }

    #[test]
    fn times_are_told_as_people_say_them() {
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
        assert_eq!(moment(u64::MAX), "9999-12-31 23:59:59");
    }

    #[test]
    fn nothing_harmful_reaches_a_terminal() {
        assert_eq!(clean("ann\u{1b}[2J\r\n\u{9b}1m"), r"ann\u{1b}[2J\u{d}\u{a}\u{9b}1m");
        assert_eq!(clean("a\u{202e}b\u{200b}\u{feff}\u{e0041}"), r"a\u{202e}b\u{200b}\u{feff}\u{e0041}");
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
