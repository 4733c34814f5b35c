//! Durations as configurations write them: `500ms`, `10s`, `1m`, `1h`, `7d`.

use std::time::Duration;

use super::reader::Node;
use crate::protocol::{MAX_WINDOW_S, Window};

/// A short time, 1 ms to 60 s; `example` is one that is usual.
pub(super) fn up_to_a_minute(node: &Node<'_>, example: &str) -> Option<Duration> {
    let allowed = Duration::from_millis(1)..=Duration::from_secs(60);
    let parsed = parse(node.value().as_str().unwrap_or_default()).filter(|d| allowed.contains(d));
    parsed.or_else(|| refuse(node, "a duration from 1ms to 60s", example))
}

/// The window of a policy: 1 s to 366 d in whole seconds.
pub(super) fn window(node: &Node<'_>) -> Option<Window> {
    let parsed = parse(node.value().as_str().unwrap_or_default())
        .filter(|d| d.subsec_nanos() == 0)
        .and_then(|d| Window::new(u32::try_from(d.as_secs()).ok()?, 0));
    let days = MAX_WINDOW_S / DAY;
    parsed.or_else(|| refuse(node, &format!("a duration of whole seconds from 1s to {days}d"), "1m"))
}

const DAY: u32 = 24 * 60 * 60;

fn refuse<T>(node: &Node<'_>, what: &str, example: &str) -> Option<T> {
    let is = node.value();
    node.fault(format!("must be {what}, is {is}: write for example {example}"));
    None
}

/// Digits and one unit; `None` for anything else, and for what is too long to hold.
fn parse(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => u64::from(DAY) * 1000,
        _ => return None,
    };
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(ms)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit() {
        for (text, ms) in [
            ("0ms", Some(0)),
            ("500ms", Some(500)),
            ("10s", Some(10_000)),
            ("1m", Some(60_000)),
            ("1h", Some(3_600_000)),
            ("7d", Some(604_800_000)),
            ("007s", Some(7_000)),
            ("", None),
            ("s", None),
            ("10", None),
            ("1.5s", None),
            ("-1s", None),
            ("+1s", None),
            ("1 s", None),
            ("1h30m", None),
            ("1S", None),
            ("\u{661}s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(parse(text), ms.map(Duration::from_millis), "{text:?}");
        }
    }
}
