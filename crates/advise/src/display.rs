//! How numbers and other people's texts are shown to people.

/// Control characters, and those of Unicode that are invisible or turn the direction of reading.
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// As policies write it.
pub(crate) fn window(seconds: u32) -> String {
    for (unit, length) in [("d", 86_400), ("h", 3600), ("m", 60)] {
        if seconds >= length && seconds.is_multiple_of(length) {
            return format!("{}{unit}", seconds / length);
        }
    }
    format!("{seconds}s")
}

/// A share that is less than this limit, also as it is written: 0.00999 % is not 0.01 %.
pub(crate) fn percent_below(share: f64, limit: f64) -> String {
    let (text, most) = (percent(share), percent(limit));
    if share < limit && text == most { format!("< {most}") } else { text }
}

/// Two digits that say something, for shares however small.
pub(crate) fn percent(share: f64) -> String {
    let value = share * 100.0;
    let places = match value {
        // What is not all is not written as all.
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
    // 0.10 says no more than 0.1.
    let text = format!("{value:.places$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

/// How many characters of a line are shown.
const LENGTH: usize = 120;

/// A line fit for a terminal: cut, and with nothing harmful.
pub(crate) fn shown(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line.get(..LENGTH * 4).unwrap_or(line)).into_owned();
    let mut text: String =
        line.chars().take(LENGTH).map(|c| if is_harmful(c) { '\u{fffd}' } else { c }).collect();
    if line.chars().nth(LENGTH).is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (n, text) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (123_456, "123,456"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(n), text);
        }
    }

    #[test]
    fn lines_are_cut() {
        assert_eq!(shown("é".repeat(500).as_bytes()).chars().count(), LENGTH + 1);
        assert_eq!(shown(&[b'x'; LENGTH]).chars().count(), LENGTH);
    }

    #[test]
    fn nothing_harmful_is_shown() {
        let line = "a\u{61c}b\u{e0041}c\u{ad}d\u{180e}e\u{fff9}é";
        assert_eq!(shown(line.as_bytes()), "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}é");
    }

    #[test]
    fn what_is_less_than_a_limit_is_not_written_as_the_limit() {
        let shares = [0.0, 0.000_05, 0.000_099_9, 0.0001];
        assert_eq!(
            shares.map(|share| percent_below(share, 0.0001)),
            ["0 %", "0.005 %", "< 0.01 %", "0.01 %"]
        );
    }

    #[test]
    fn numbers_are_written_for_people() {
        let shares = [0.0, 1.0, 0.123, 0.0123, 0.001, 0.00012, 0.000_001];
        assert_eq!(shares.map(percent), ["0 %", "100 %", "12 %", "1.2 %", "0.1 %", "0.012 %", "0.0001 %"]);
        assert_eq!([1e-12, 0.994, 0.996].map(percent), ["< 0.000001 %", "99 %", "> 99 %"]);
    }
}
