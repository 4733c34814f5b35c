//! Which counter a moment falls into.

use std::fmt;
use std::time::Duration;

use quotagate_calendar::{Span, UnknownZone, is_known, span_at};
use quotagate_protocol::{Invalid, Sliding, Window};

/// A counter of a key. Two windows with equal ones count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterId {
    /// Of one fixed window.
    Fixed {
        /// The length of the window.
        seconds: u32,
        /// The number of the window.
        number: u64,
    },
    /// Of one window of a calendar.
    Calendar(Span),
    /// Of every sliding window of this length: it holds all slices.
    Sliding(Sliding),
    /// Of slots: it holds what each worker said of them.
    InFlight,
}

/// The longest that the last window of a calendar is kept.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

impl CounterId {
    /// How long operators can still see it after the end of its window: that of a calendar for as
    /// long as it was, at most [`KEPT`].
    pub fn kept_for(&self) -> Duration {
        match self {
            Self::Calendar(span) => Duration::from_secs(span.seconds()).min(KEPT),
            Self::Fixed { .. } | Self::Sliding(_) | Self::InFlight => Duration::ZERO,
        }
    }
}

/// Where units are counted: a counter, and the window or the slice in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The counter.
    pub id: CounterId,
    /// The number of the window, or of the slice of a sliding window. Slots have none.
    pub number: u64,
    /// The time of the window; empty for a slice, and for slots.
    pub span: Span,
}

impl Position {
    /// The position at `now` since the Unix epoch. It is over if the calendar does not reach so
    /// far.
    pub fn at(window: &Window, now: Duration) -> Self {
        let number = match window {
            Window::Fixed(fixed) => fixed.number_at(now),
            Window::Sliding(sliding) => sliding.slice_at(now),
            Window::Calendar(calendar) => return Self::of_calendar(span_at(calendar, now)),
            Window::InFlight => 0,
        };
        Self::numbered(window, number)
    }

    /// The position with this number. One that never was is over.
    pub fn numbered(window: &Window, number: u64) -> Self {
        match window {
            Window::Fixed(fixed) => {
                let id = CounterId::Fixed { seconds: fixed.seconds(), number };
                let end = fixed.start_of(number.saturating_add(1));
                Self { id, number, span: Span { start: fixed.start_of(number), end } }
            }
            Window::Sliding(sliding) => {
                Self { id: CounterId::Sliding(*sliding), number, span: Span::default() }
            }
            Window::InFlight => Self { id: CounterId::InFlight, number, span: Span::default() },
            Window::Calendar(calendar) => {
                let span = span_at(calendar, Duration::from_secs(number));
                let never = Span { start: number, end: number };
                Self::of_calendar(if span.start == number { span } else { never })
            }
        }
    }

    const fn of_calendar(span: Span) -> Self {
        Self { id: CounterId::Calendar(span), number: span.start, span }
    }

    /// The window before it; `None` unless it is of a calendar, which has one.
    pub fn before(&self, window: &Window) -> Option<Self> {
        let Window::Calendar(_) = window else { return None };
        let before = Self::at(window, Duration::from_secs(self.span.start.checked_sub(1)?));
        (before.span.end > before.span.start).then_some(before)
    }

    /// What [`Grant::window_s`](quotagate_protocol::Grant) says.
    pub fn window_s(&self) -> u32 {
        match self.id {
            CounterId::Calendar(span) => u32::try_from(span.seconds()).unwrap_or(u32::MAX),
            CounterId::Fixed { .. } | CounterId::Sliding(_) | CounterId::InFlight => 0,
        }
    }
}

impl Default for Position {
    /// A position that is over.
    fn default() -> Self {
        Self::of_calendar(Span::default())
    }
}

/// The end of the key of slots.
const SLOTS: &str = "slots";

/// The end of the key in Redis.
impl fmt::Display for CounterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed { number, .. } => write!(f, "{number}"),
            Self::Calendar(Span { start, end }) => write!(f, "{start}-{end}"),
            Self::Sliding(sliding) => write!(f, "s{}", sliding.seconds()),
            Self::InFlight => f.write_str(SLOTS),
        }
    }
}

/// Whether a text may be the [end](CounterId) of a key.
pub fn is_counter_id(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if text == SLOTS {
        return true;
    }
    match (text.strip_prefix('s'), text.split_once('-')) {
        (Some(seconds), _) => is_number(seconds),
        (None, Some((start, end))) => is_number(start) && is_number(end),
        (None, None) => is_number(text),
    }
}

/// Returns `window` if its time zone is known, or if it needs none.
///
/// # Errors
/// When the time zone of a calendar window is not known. The error names it.
pub fn known(window: Window) -> Result<Window, Invalid> {
    match &window {
        Window::Calendar(calendar) if !is_known(calendar) => {
            // Without similar names: a caller may send such a reservation with every request.
            let reason = UnknownZone::named(&calendar.time_zone).to_string();
            Err(Invalid { field: "kind", reason })
        }
        _ => Ok(window),
    }
}
