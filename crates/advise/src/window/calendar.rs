//! Calendar windows: where they begin and end in a time zone.

use std::ops::Range;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp, ToSpan};

/// What a calendar window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// From a full minute.
    Minute,
    /// From a full hour. An hour that the clocks repeat is a window of its own.
    Hour,
    /// From midnight: 23 or 25 hours where the clocks change.
    Day,
    /// From midnight on Monday.
    Week,
    /// From midnight on the first.
    Month,
    /// From midnight on the first of January.
    Year,
}

impl Unit {
    /// All of them, the shortest first.
    pub const ALL: [Self; 6] =
        [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Its name in policy documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The unit of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name)
    }

    fn begin(self, at: DateTime) -> Option<DateTime> {
        let date = at.date();
        Some(match self {
            Self::Minute => date.at(at.hour(), at.minute(), 0, 0),
            Self::Hour => date.at(at.hour(), 0, 0, 0),
            Self::Day => date.at(0, 0, 0, 0),
            Self::Week => {
                let days = i32::from(date.weekday().to_monday_zero_offset());
                date.checked_sub(days.days()).ok()?.at(0, 0, 0, 0)
            }
            Self::Month => date.first_of_month().at(0, 0, 0, 0),
            Self::Year => date.first_of_year().at(0, 0, 0, 0),
        })
    }

    fn length(self) -> Span {
        match self {
            Self::Minute => 1.minute(),
            Self::Hour => 1.hour(),
            Self::Day => 1.day(),
            Self::Week => 1.week(),
            Self::Month => 1.month(),
            Self::Year => 1.year(),
        }
    }
}

/// Calendar windows in a time zone.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    unit: Unit,
    zone: TimeZone,
}

/// A part of a window, in Unix seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WindowPart {
    /// When the whole window begins.
    pub(crate) begin: i64,
    /// All these seconds belong to it, and the clocks do not change within them.
    pub(crate) seconds: Range<i64>,
}

impl Calendar {
    pub(crate) fn new(unit: Unit, zone: TimeZone) -> Self {
        Self { unit, zone }
    }

    /// The part of a window around this time. None if the time is beyond the year 9999.
    pub(crate) fn part(&self, second: i64) -> Option<WindowPart> {
        let at = Timestamp::from_second(second).ok()?;
        let offset = self.zone.to_offset(at);
        let local = self.unit.begin(offset.to_datetime(at))?;
        let here = |local| offset.to_timestamp(local).ok().map(Timestamp::as_second);
        // Within one offset, local time is plain arithmetic.
        let since = self.zone.preceding(Timestamp::from_second(second.checked_add(1)?).ok()?);
        let since = since.map(|change| change.timestamp().as_second()).next();
        let until = self.zone.following(at).map(|change| change.timestamp().as_second()).next();
        let begin_here = here(local)?;
        let end_here = here(local.checked_add(self.unit.length()).ok()?)?;
        let within = since.is_none_or(|since| since <= begin_here);
        let begin = if within && self.unit < Unit::Day { begin_here } else { self.begin(local)? };
        let from = since.map_or(begin_here, |since| since.max(begin_here));
        let to = until.map_or(end_here, |until| until.min(end_here));
        Some(WindowPart { begin, seconds: from..to })
    }

    /// The first moment of this local time, or the change of the clocks that skips it.
    fn begin(&self, local: DateTime) -> Option<i64> {
        let moment = match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset }
            | AmbiguousOffset::Fold { before: offset, .. } => offset.to_timestamp(local).ok()?,
            AmbiguousOffset::Gap { after, .. } => {
                // In the later offset, a skipped time lies before the change.
                let before = after.to_timestamp(local).ok()?;
                self.zone.following(before).next()?.timestamp()
            }
        };
        Some(moment.as_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calendar(unit: Unit, zone: &str) -> Calendar {
        Calendar::new(unit, jiff::tz::TimeZoneDatabase::bundled().get(zone).unwrap())
    }

    fn second(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    #[test]
    fn windows_begin_where_a_minute_by_minute_clock_shows_a_new_one() {
        // Clocks that change at night, at midnight, by half an hour, often, and over a whole day.
        let walks = [
            ("Europe/Berlin", "2026-01-01T00:00:00Z", 400),
            ("Europe/Berlin", "2028-02-20T00:00:00Z", 20),
            ("America/New_York", "2026-02-25T00:00:00Z", 20),
            ("America/Havana", "2026-10-25T00:00:00Z", 20),
            ("America/Sao_Paulo", "2018-10-25T00:00:00Z", 20),
            ("Africa/Casablanca", "2026-01-01T00:00:00Z", 120),
            ("Australia/Lord_Howe", "2026-03-25T00:00:00Z", 20),
            ("Australia/Lord_Howe", "2026-09-25T00:00:00Z", 20),
            ("Pacific/Apia", "2011-12-20T00:00:00Z", 20),
            ("Asia/Kathmandu", "2025-12-25T00:00:00Z", 10),
            ("UTC", "2027-12-25T00:00:00Z", 70),
        ];
        for ((zone, from, days), unit) in
            walks.iter().flat_map(|walk| Unit::ALL.map(|unit| (walk, unit)))
        {
            let calendar = calendar(unit, zone);
            let mut last: Option<((i16, i32), i64)> = None;
            let mut part = WindowPart { begin: 0, seconds: 0..0 };
            let step = if *days > 20 { 30 * 60 } else { 60 };
            for number in 0..days * 24 * 3600 / step {
                let at = second(from) + number * step;
                let local =
                    Timestamp::from_second(at).unwrap().to_zoned(calendar.zone.clone()).datetime();
                let date = local.date();
                let day = i32::from(date.day_of_year());
                let clock = i32::from(local.hour()) * 60 + i32::from(local.minute());
                let iso = date.iso_week_date();
                let (shown, restarts) = match unit {
                    Unit::Minute => ((date.year(), day * 10_000 + clock), true),
                    Unit::Hour => ((date.year(), day * 100 + clock / 60), clock % 60 == 0),
                    Unit::Day => ((date.year(), day), false),
                    Unit::Week => ((iso.year(), i32::from(iso.week())), false),
                    Unit::Month => ((date.year(), i32::from(date.month())), false),
                    Unit::Year => ((date.year(), 0), false),
                };
                let begin = match last {
                    Some((old, begin)) if old == shown && !restarts => Some(begin),
                    Some(_) => Some(at),
                    // The first window may have begun before.
                    None => None,
                };
                let found = calendar.part(at).unwrap();
                assert!(found.seconds.contains(&at), "{zone} {local} {unit:?} {found:?}");
                let begin = begin.unwrap_or(found.begin);
                assert_eq!(found.begin, begin, "{zone} {local} {unit:?}");
                // Whatever a part covers has the same beginning.
                if part.seconds.contains(&at) {
                    assert_eq!(part.begin, begin, "{zone} {local} {unit:?}");
                } else {
                    part = found;
                }
                last = Some((shown, begin));
            }
        }
    }

    #[test]
    fn days_have_23_or_25_hours_where_the_clocks_change() {
        let day = calendar(Unit::Day, "Europe/Berlin");
        for (at, begin, next) in [
            ("2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
            ("2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
        ] {
            assert_eq!(day.part(second(at)).unwrap().begin, second(begin));
            assert_eq!(day.part(second(next) - 1).unwrap().begin, second(begin));
            assert_eq!(day.part(second(next)).unwrap().begin, second(next));
        }
    }

    #[test]
    fn times_beyond_the_calendar_have_no_window() {
        let year = calendar(Unit::Year, "Europe/Berlin");
        for second in [i64::MIN, i64::MAX, 300_000_000_000, 253_402_207_200] {
            assert_eq!(year.part(second), None, "{second}");
        }
        assert!(year.part(0).is_some());
    }
}
