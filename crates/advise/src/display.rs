//! How numbers and untrusted texts are written for people.

use indicatif::HumanCount;
use unicode_general_category::{GeneralCategory, get_general_category};

/// Longest part of an untrusted text that is shown, in characters.
const LENGTH: usize = 120;

/// `1234567` as `1,234,567`.
pub(crate) fn number(number: impl Into<u64>) -> String {
    HumanCount(number.into()).to_string()
}

/// `1 line is` or `2 lines are`, with the number before one of these phrases.
pub(crate) fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{} {}", number(count), if count == 1 { one } else { several })
}

/// The length of a window, as policies write it.
pub(crate) fn window(seconds: u32) -> String {
    for (unit, length) in [("d", 86_400), ("h", 3600), ("m", 60)] {
        if seconds >= length && seconds.is_multiple_of(length) {
            return format!("{}{unit}", seconds / length);
        }
    }
    format!("{seconds}s")
}

/// A share below this limit. It never reads like the limit: 0.00999 % becomes `< 0.01 %`.
pub(crate) fn percent_below(share: f64, limit: f64) -> String {
    let (text, most) = (percent(share), percent(limit));
    if share < limit && text == most { format!("< {most}") } else { text }
}

/// A share with two significant digits, however small.
pub(crate) fn percent(share: f64) -> String {
    let value = share * 100.0;
    let decimals = match value {
        // Almost all is not all.
        _ if (99.5..100.0).contains(&value) => return "> 99 %".to_owned(),
        _ if value >= 10.0 || value == 0.0 => 0,
        _ if value >= 1.0 => 1,
        _ if value >= 0.1 => 2,
        _ if value >= 0.01 => 3,
        _ if value >= 0.001 => 4,
        _ if value >= 0.0001 => 5,
        _ if value >= 0.000_001 => 6,
        _ => return "< 0.000001 %".to_owned(),
    };
    // 0.1, not 0.10.
    let text = format!("{value:.decimals$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

/// An untrusted text for a terminal: cut, and without control characters or characters that are
/// invisible or change the direction of text.
pub(crate) fn shown(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line.get(..LENGTH * 4).unwrap_or(line)).into_owned();
    let mut text: String =
        line.chars().take(LENGTH).map(|c| if is_harmful(c) { '\u{fffd}' } else { c }).collect();
    if line.chars().nth(LENGTH).is_some() {
        text.push('…');
    }
    text
}

fn is_harmful(c: char) -> bool {
    use GeneralCategory::{
        Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, Unassigned,
    };
    matches!(
        get_general_category(c),
        Control | Format | LineSeparator | ParagraphSeparator | PrivateUse | Unassigned
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (123_456, "123,456"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(number(n as u64), text);
        }
    }

    #[test]
    fn long_lines_are_cut() {
        assert_eq!(shown("é".repeat(500).as_bytes()).chars().count(), LENGTH + 1);
        assert_eq!(shown(&[b'x'; LENGTH]).chars().count(), LENGTH);
    }

    #[test]
    fn harmful_characters_are_replaced() {
        let line = "a\u{61c}b\u{e0041}c\u{ad}d\u{180e}e\u{fff9}é";
        assert_eq!(shown(line.as_bytes()), "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}é");
    }

    #[test]
    fn a_share_below_the_limit_never_reads_like_the_limit() {
        let shares = [0.0, 0.000_05, 0.000_099_9, 0.0001];
        assert_eq!(
            shares.map(|share| percent_below(share, 0.0001)),
            ["0 %", "0.005 %", "< 0.01 %", "0.01 %"]
        );
    }

    #[test]
    fn shares_have_two_significant_digits() {
        let shares = [0.0, 1.0, 0.123, 0.0123, 0.001, 0.00012, 0.000_001];
        assert_eq!(
            shares.map(percent),
            ["0 %", "100 %", "12 %", "1.2 %", "0.1 %", "0.012 %", "0.0001 %"]
        );
        assert_eq!([1e-12, 0.994, 0.996].map(percent), ["< 0.000001 %", "99 %", "> 99 %"]);
    }
}
