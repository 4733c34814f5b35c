//! Numbers of windows: one for each time, in the order of time.

use std::mem::swap;
use std::ops::Range;
use std::sync::OnceLock;

use jiff::tz::TimeZone;
use quotagate_calendar::window_at;
use quotagate_protocol::Unit;

use super::Window;

/// Slices of a sliding window. Those that reach into it are one more.
const SLICES: u32 = 20;

/// How times become numbers of windows, for all threads.
#[derive(Debug)]
pub(crate) enum Scale {
    /// `floor(time / length)`.
    Fixed { ms: i64 },
    /// The number of the slice. Slices of 50 ms since 1970 are more than a `u32` counts, so they
    /// are counted from long before the first request.
    Sliding { slice_ms: i64, origin: OnceLock<i64> },
    /// The beginning of the window, in Unix seconds.
    Calendar(Unit, TimeZone),
}

impl Scale {
    pub(crate) fn new(window: &Window) -> Self {
        let ms = |seconds: u32| i64::from(seconds.max(1)) * 1000;
        match window {
            Window::Fixed { seconds } => Self::Fixed { ms: ms(*seconds) },
            Window::Sliding { seconds } => {
                let slice_ms = ms(*seconds) / i64::from(SLICES);
                Self::Sliding { slice_ms, origin: OnceLock::new() }
            }
            Window::Calendar { unit, time_zone } => Self::Calendar(*unit, time_zone.clone()),
        }
    }

    /// How many windows before one count together with it.
    pub(crate) fn reach(&self) -> u32 {
        match self {
            Self::Fixed { .. } | Self::Calendar(..) => 0,
            Self::Sliding { .. } => SLICES,
        }
    }

    /// When the window of this number began, in Unix milliseconds. For the number of a slice, this
    /// is when the oldest slice began that counts together with it.
    pub(crate) fn begin_ms(&self, number: u32) -> i64 {
        let number = i64::from(number);
        match self {
            Self::Fixed { ms } => number * ms,
            Self::Sliding { slice_ms, origin } => {
                let origin = origin.get().copied().unwrap_or_default();
                (origin + number - i64::from(SLICES)) * slice_ms
            }
            Self::Calendar(..) => number * 1000,
        }
    }
}

/// Numbers of windows, for one thread. It remembers the last two windows, because the lines of a
/// log are nearly in order.
#[derive(Debug)]
pub(crate) struct Numbers<'s> {
    scale: &'s Scale,
    windows: [(Range<i64>, Option<u32>); 2],
}

impl<'s> Numbers<'s> {
    pub(crate) fn new(scale: &'s Scale) -> Self {
        Self { scale, windows: [(0..0, None), (0..0, None)] }
    }

    /// The number of the window at this time. None before 1970, long after 2100, and for slices
    /// years away from the first request.
    pub(crate) fn at(&mut self, time_ms: i64) -> Option<u32> {
        match self.scale {
            Scale::Fixed { ms } => u32::try_from(time_ms.div_euclid(*ms)).ok(),
            Scale::Sliding { slice_ms, origin } => {
                let slice = time_ms.div_euclid(*slice_ms);
                let origin = origin.get_or_init(|| slice.saturating_sub(1 << 31).max(0));
                u32::try_from(slice.checked_sub(*origin)?).ok()
            }
            Scale::Calendar(unit, zone) => {
                let second = time_ms.div_euclid(1000);
                let [(last, number), (before, number_before)] = &mut self.windows;
                if last.contains(&second) {
                    return *number;
                }
                swap(last, before);
                swap(number, number_before);
                if !last.contains(&second) {
                    let span = window_at(zone, *unit, u64::try_from(second).ok()?)?;
                    let (start, end) = (i64::try_from(span.start), i64::try_from(span.end));
                    (*last, *number) = (start.ok()?..end.ok()?, u32::try_from(span.start).ok());
                }
                *number
            }
        }
    }

    /// The smallest number that may still get requests, if none before this time does.
    pub(crate) fn open(&mut self, time_ms: i64) -> u32 {
        match self.scale {
            Scale::Sliding { slice_ms, origin } => {
                // Without an origin, there was no request.
                let Some(origin) = origin.get() else { return 0 };
                let slice = time_ms.div_euclid(*slice_ms).saturating_sub(*origin);
                u32::try_from(slice.max(0)).unwrap_or(u32::MAX)
            }
            Scale::Fixed { .. } | Scale::Calendar(..) => {
                self.at(time_ms.max(0)).unwrap_or(u32::MAX)
            }
        }
    }
}
