//! Durations in the document.

use std::time::Duration;

use quotagate_protocol::{Calendar, Kind, MAX_TIME_ZONE, MAX_WINDOW_S, Unit, Window};

use crate::document::{At, Node, Text, Type, object, words};
use crate::duration;

const DAY_S: u32 = 24 * 60 * 60;

/// A duration from 1 ms to 60 s.
pub(super) enum UpToAMinute {}

/// How long a request waits for a slot: 0 to 5 s.
pub(super) enum MaxWait {}

/// A window: its length in whole seconds from 1 s to 366 d, or a unit of the calendar.
pub(super) enum WindowType {}

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

impl Type for MaxWait {
    type Out<'a> = Duration;

    fn read(node: &Node<'_>) -> Option<Duration> {
        let duration = parse(node).filter(|duration| *duration <= Duration::from_secs(5));
        duration.or_else(|| refuse(node, "a duration from 0ms to 5s", "2s"))
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        let mut schema = schema("0ms to 5s");
        let pattern = pattern("(?=.)");
        crate::document::book::set(&mut schema, "pattern", pattern.into());
        schema
    }
}

impl Type for WindowType {
    type Out<'a> = Window;

    fn read(node: &Node<'_>) -> Option<Window> {
        if node.value().is_object() {
            return CalendarWindow::read(node);
        }
        let whole = parse(node).filter(|duration| duration.subsec_nanos() == 0);
        let window =
            whole.and_then(|duration| Window::new(u32::try_from(duration.as_secs()).ok()?, 0));
        let days = MAX_WINDOW_S / DAY_S;
        window.or_else(|| {
            refuse(node, &format!("a duration of whole seconds from 1s to {days}d"), "1m")
        })
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> serde_json::Value {
        let length = schema(&format!("1s to {}d, in whole seconds", MAX_WINDOW_S / DAY_S));
        serde_json::json!({"anyOf": [length, CalendarWindow::schema(book)]})
    }
}

object! {
    /// A window that begins with a unit of the calendar. The store knows the time zones, with data
    /// of its own.
    CalendarWindow(CalendarWindowFields<'a>) -> Window {
        /// The unit that a window lasts for.
        required calendar: Unit = "month",
        /// The IANA name of the time zone. A day may have 23 or 25 hours in it.
        default("UTC") time_zone: At<Text<MAX_TIME_ZONE>> = "Europe/Berlin",
    }
}

impl CalendarWindowFields<'_> {
    fn build(self) -> Option<Window> {
        let unit = self.calendar;
        let (name, at) = self.time_zone?;
        let window =
            Window::of(&Kind::Calendar(Calendar { unit: unit?, time_zone: name.into() }), 0, 0);
        window.or_else(|| at.must("the IANA name of a time zone, such as Europe/Berlin"))
    }
}

words! {
    for Unit {
        /// A minute.
        Minute = "minute",
        /// An hour.
        Hour = "hour",
        /// A day, from local midnight.
        Day = "day",
        /// A week, from Monday.
        Week = "week",
        /// A month, from its first day.
        Month = "month",
        /// A year, from the first of January.
        Year = "year",
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
    let pattern = pattern("(?=.*[1-9])");
    serde_json::json!({"type": "string", "title": "duration", "pattern": pattern, "$comment": bounds})
}

/// The pattern of durations, with this look ahead.
#[cfg(feature = "schema")]
fn pattern(ahead: &str) -> String {
    let part = |unit: &str| format!("([0-9]+{unit})?");
    let parts: String = ["w", "d", "h", "m", "s", "ms"].map(part).concat();
    format!("^{ahead}{parts}$")
}
