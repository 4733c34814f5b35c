//! Durations in the document.

use std::time::Duration;

use crate::document::{Node, Type};
use crate::duration;
use crate::protocol::{MAX_WINDOW_S, Window};

const DAY_S: u32 = 24 * 60 * 60;

/// A duration from 1 ms to 60 s.
pub(super) enum UpToAMinute {}

/// The length of a window: whole seconds from 1 s to 366 d.
pub(super) enum WindowLength {}

impl Type for UpToAMinute {
    type Out<'a> = Duration;

    fn read(node: &Node<'_>) -> Option<Duration> {
        let allowed = Duration::from_millis(1)..=Duration::from_secs(60);
        let duration = parse(node).filter(|duration| allowed.contains(duration));
        duration.or_else(|| refuse(node, "a duration from 1ms to 60s", "50ms"))
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        schema("1ms to 60s")
    }
}

impl Type for WindowLength {
    type Out<'a> = Window;

    fn read(node: &Node<'_>) -> Option<Window> {
        let whole = parse(node).filter(|duration| duration.subsec_nanos() == 0);
        let window =
            whole.and_then(|duration| Window::new(u32::try_from(duration.as_secs()).ok()?, 0));
        let days = MAX_WINDOW_S / DAY_S;
        window.or_else(|| {
            refuse(node, &format!("a duration of whole seconds from 1s to {days}d"), "1m")
        })
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        schema(&format!("1s to {}d, in whole seconds", MAX_WINDOW_S / DAY_S))
    }
}

fn parse(node: &Node<'_>) -> Option<Duration> {
    duration::parse(node.value().as_str()?).ok()
}

fn refuse<T>(node: &Node<'_>, what: &str, example: &str) -> Option<T> {
    let is = node.value();
    node.fault(format!("must be {what}, is {is}: write for example {example}"));
    None
}

/// The schema of durations. Only the reader knows how long a duration is, so it checks the bounds.
#[cfg(feature = "schema")]
fn schema(bounds: &str) -> serde_json::Value {
    let part = |unit: &str| format!("([0-9]+{unit})?");
    let parts: String = ["w", "d", "h", "m", "s", "ms"].map(part).concat();
    let pattern = format!("^(?=.*[1-9]){parts}$");
    serde_json::json!({"type": "string", "title": "duration", "pattern": pattern, "$comment": bounds})
}
