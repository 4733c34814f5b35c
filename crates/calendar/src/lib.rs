//! When the windows of a calendar begin and end.
//!
//! Time zones come from a library with bundled data, so every host counts alike. A day, week, month
//! or year begins with the first second of its first day on local clocks. A minute or an hour is
//! one of the local clock. If clocks change within it, a new window begins.

use std::collections::HashMap;
use std::sync::{LazyLock, PoisonError, RwLock};
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp, ToSpan, Zoned};
use quotagate_protocol::{Calendar, Unit};

/// Where the calendar ends: in the year 9999. A later moment has only the window that contains this
/// one, if that window contains both.
const LAST_S: u64 = 253_370_764_800;
/// Most hints about a time zone that is not known.
const HINTS: usize = 3;

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
/// The window of each calendar that was asked for last, so that a reservation searches no time
/// zone. Bound: one for each known time zone and unit.
static LATEST: LazyLock<RwLock<HashMap<Calendar, Span>>> = LazyLock::new(RwLock::default);

/// A time from a second since the Unix epoch, to the one before another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first second.
    pub start: u64,
    /// The second after the last one.
    pub end: u64,
}

/// The name of a time zone that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown time zone `{name}`: must be an IANA name such as Europe/Berlin{hint}")]
pub struct UnknownZone {
    name: String,
    hint: String,
}

impl UnknownZone {
    /// The error for this name, without similar ones.
    pub fn named(name: &str) -> Self {
        Self { name: name.chars().take(64).collect(), hint: String::new() }
    }
}

impl Span {
    /// Its length in seconds.
    pub const fn seconds(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether this second is within it.
    pub const fn contains(self, second: u64) -> bool {
        self.start <= second && second < self.end
    }
}

/// Checks the name of a time zone.
///
/// # Errors
/// When no time zone has exactly this name. The error has names that are similar.
pub fn check_zone(name: &str) -> Result<(), UnknownZone> {
    if zone(name).is_some() {
        return Ok(());
    }
    let mut names: Vec<_> = ZONES
        .available()
        .map(|known| {
            (strsim::jaro_winkler(&name.to_lowercase(), &known.as_str().to_lowercase()), known)
        })
        .filter(|(likeness, _)| *likeness > 0.85)
        .collect();
    names.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let names: Vec<_> = names.iter().take(HINTS).map(|(_, known)| known.as_str()).collect();
    let hint = match names.as_slice() {
        [] => String::new(),
        names => format!(", perhaps {}", names.join(" or ")),
    };
    Err(UnknownZone { hint, ..UnknownZone::named(name) })
}

/// Whether the time zone of `calendar` is known.
pub fn is_known(calendar: &Calendar) -> bool {
    LATEST.read().unwrap_or_else(PoisonError::into_inner).contains_key(calendar)
        || zone(&calendar.time_zone).is_some()
}

/// The window of `calendar` that `now` (since the Unix epoch) falls into. If its time zone is not
/// known, or if `now` is beyond the calendar: a window that is over at `now`.
pub fn span_at(calendar: &Calendar, now: Duration) -> Span {
    let now = now.as_secs();
    let latest = LATEST.read().unwrap_or_else(PoisonError::into_inner).get(calendar).copied();
    if let Some(span) = latest.filter(|span| span.contains(now)) {
        return span;
    }
    let Some(span) = find(calendar, now) else { return Span { start: 0, end: 1 } };
    LATEST.write().unwrap_or_else(PoisonError::into_inner).insert(calendar.clone(), span);
    span
}

/// The time zone with exactly this name.
fn zone(name: &str) -> Option<TimeZone> {
    let zone = ZONES.get(name).ok()?;
    (zone.iana_name() == Some(name) && !zone.is_unknown()).then_some(zone)
}

/// The window in this time zone that `now` (in Unix seconds) falls into. `None` beyond the
/// calendar.
pub fn window_at(zone: &TimeZone, unit: Unit, now: u64) -> Option<Span> {
    let at = Timestamp::from_second(i64::try_from(now.min(LAST_S)).ok()?).ok()?;
    let span = match unit {
        Unit::Minute => within_clock(zone, at, 60),
        Unit::Hour => within_clock(zone, at, 60 * 60),
        unit @ (Unit::Day | Unit::Week | Unit::Month | Unit::Year) => whole_days(zone, at, unit),
    };
    span.filter(|span| span.contains(now))
}

fn find(calendar: &Calendar, now: u64) -> Option<Span> {
    window_at(&zone(&calendar.time_zone)?, calendar.unit, now)
}

/// The minute or the hour of the local clock, cut where the clock changes.
fn within_clock(zone: &TimeZone, at: Timestamp, seconds: i64) -> Option<Span> {
    let offset = zone.to_offset(at);
    let past = (at.as_second() + i64::from(offset.seconds())).rem_euclid(seconds);
    let mut start = Timestamp::from_second(at.as_second() - past).ok()?;
    let mut end = Timestamp::from_second(start.as_second() + seconds).ok()?;
    let second = SignedDuration::from_secs(1);
    if zone.to_offset(start) != offset {
        start = zone.preceding(at.checked_add(second).ok()?).next()?.timestamp();
    }
    if zone.to_offset(end.checked_sub(second).ok()?) != offset {
        end = zone.following(at).next()?.timestamp();
    }
    span(start, end)
}

/// The window that begins with the first second of a day.
fn whole_days(zone: &TimeZone, at: Timestamp, unit: Unit) -> Option<Span> {
    let date = at.to_zoned(zone.clone()).date();
    let mut first = match unit {
        Unit::Week => {
            date.checked_sub(i32::from(date.weekday().to_monday_zero_offset()).days()).ok()?
        }
        Unit::Month => date.first_of_month(),
        Unit::Year => date.first_of_year(),
        Unit::Minute | Unit::Hour | Unit::Day => date,
    };
    let mut start = first_second(zone, first)?;
    loop {
        let next = after(first, unit)?;
        let end = first_second(zone, next)?;
        // Shortly after midnight, clocks that go back reach the last day once more.
        if at < end {
            return span(start, end);
        }
        (first, start) = (next, end);
    }
}

fn after(first: Date, unit: Unit) -> Option<Date> {
    let step = match unit {
        Unit::Week => 1.week(),
        Unit::Month => 1.month(),
        Unit::Year => 1.year(),
        Unit::Minute | Unit::Hour | Unit::Day => 1.day(),
    };
    first.checked_add(step).ok()
}

/// When a day begins in this time zone. For a day that the zone skips: when the next one begins.
fn first_second(zone: &TimeZone, date: Date) -> Option<Timestamp> {
    let midnight: Zoned = date.to_zoned(zone.clone()).ok()?;
    Some(midnight.start_of_day().ok()?.timestamp())
}

fn span(start: Timestamp, end: Timestamp) -> Option<Span> {
    let start = u64::try_from(start.as_second()).unwrap_or_default();
    Some(Span { start, end: u64::try_from(end.as_second()).ok()? })
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::Window;

    use super::*;

    fn calendar(unit: Unit, zone: &str) -> Calendar {
        Calendar { unit, time_zone: zone.into() }
    }

    fn seconds(text: &str) -> u64 {
        text.parse::<Timestamp>().unwrap().as_second().try_into().unwrap()
    }

    #[test]
    fn windows_follow_the_local_calendar() {
        let hour = 3600;
        let day = 24 * hour;
        // The unit, the zone, a moment, the start of its window, and the length of it. Python's
        // `zoneinfo` shows the same local times at both ends.
        for (unit, zone, at, start, length) in [
            (Unit::Day, "UTC", "2026-11-22T16:00:00Z", "2026-11-22T00:00:00Z", day),
            // Clocks go forward and back.
            (Unit::Day, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", 23 * hour),
            (Unit::Day, "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", 25 * hour),
            (
                Unit::Week,
                "Europe/Berlin",
                "2026-10-25T12:00:00Z",
                "2026-10-18T22:00:00Z",
                7 * day + hour,
            ),
            (
                Unit::Month,
                "Europe/Berlin",
                "2026-03-31T21:59:59Z",
                "2026-02-28T23:00:00Z",
                31 * day - hour,
            ),
            // Leap days and the ends of months.
            (Unit::Month, "UTC", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", 29 * day),
            (Unit::Month, "UTC", "2026-02-28T23:59:59Z", "2026-02-01T00:00:00Z", 28 * day),
            (Unit::Year, "UTC", "2028-12-31T23:59:59Z", "2028-01-01T00:00:00Z", 366 * day),
            (
                Unit::Year,
                "America/New_York",
                "2027-01-01T04:59:59Z",
                "2026-01-01T05:00:00Z",
                365 * day,
            ),
            // Weeks begin on Monday, in the old year if need be.
            (Unit::Week, "UTC", "2027-01-03T23:59:59Z", "2026-12-28T00:00:00Z", 7 * day),
            (Unit::Week, "UTC", "2027-01-04T00:00:00Z", "2027-01-04T00:00:00Z", 7 * day),
            // Odd offsets, of 5:45 and of a change by half an hour.
            (Unit::Hour, "Asia/Kathmandu", "2026-11-22T16:00:00Z", "2026-11-22T15:15:00Z", hour),
            (Unit::Minute, "Asia/Kathmandu", "2026-11-22T16:00:59Z", "2026-11-22T16:00:00Z", 60),
            (
                Unit::Hour,
                "Australia/Lord_Howe",
                "2026-04-04T14:30:00Z",
                "2026-04-04T14:00:00Z",
                hour,
            ),
            (
                Unit::Hour,
                "Australia/Lord_Howe",
                "2026-04-04T15:10:00Z",
                "2026-04-04T15:00:00Z",
                hour / 2,
            ),
            (
                Unit::Hour,
                "Australia/Lord_Howe",
                "2026-04-04T15:30:00Z",
                "2026-04-04T15:30:00Z",
                hour,
            ),
            // The same hour twice: two windows.
            (Unit::Hour, "Europe/Berlin", "2026-10-25T00:59:59Z", "2026-10-25T00:00:00Z", hour),
            (Unit::Hour, "Europe/Berlin", "2026-10-25T01:00:00Z", "2026-10-25T01:00:00Z", hour),
            // No midnight: clocks go from 0:00 to 1:00.
            (Unit::Day, "Asia/Beirut", "2026-03-29T12:00:00Z", "2026-03-28T22:00:00Z", 23 * hour),
            // Midnight twice: clocks went from 0:01 back to 23:01.
            (
                Unit::Day,
                "America/St_Johns",
                "2010-11-07T02:45:00Z",
                "2010-11-07T02:30:00Z",
                25 * hour,
            ),
            // A day that never was, and the change of rules with it.
            (Unit::Day, "Pacific/Apia", "2011-12-30T09:00:00Z", "2011-12-29T10:00:00Z", day),
            (Unit::Day, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", day),
            (Unit::Month, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-01T10:00:00Z", 30 * day),
        ] {
            let found = span_at(&calendar(unit, zone), Duration::from_secs(seconds(at)));
            let start = seconds(start);
            assert_eq!(found, Span { start, end: start + length }, "{unit:?} {zone} {at}");
        }
    }

    #[test]
    fn windows_follow_one_another_and_are_never_longer_than_their_unit_says() {
        for zone in [
            "Europe/Berlin",
            "Pacific/Apia",
            "America/St_Johns",
            "Asia/Beirut",
            "Africa/Monrovia",
            "Australia/Lord_Howe",
            "America/Sao_Paulo",
            "Antarctica/Troll",
        ] {
            for (unit, windows) in [
                (Unit::Hour, 9_000),
                (Unit::Day, 20_000),
                (Unit::Week, 2_000),
                (Unit::Month, 700),
                (Unit::Year, 60),
            ] {
                let calendar = calendar(unit, zone);
                let longest = Window::Calendar(calendar.clone()).seconds();
                let from = if unit == Unit::Hour { seconds("2011-01-01T00:00:00Z") } else { 0 };
                let mut span = find(&calendar, from).unwrap();
                for _ in 0..windows {
                    let next = find(&calendar, span.end).unwrap();
                    assert_eq!(next.start, span.end, "{unit:?} {zone}");
                    assert!(next.seconds() <= longest.into(), "{unit:?} {zone} {next:?}");
                    assert_eq!(find(&calendar, next.end - 1), Some(next), "{unit:?} {zone}");
                    span = next;
                }
            }
        }
    }

    #[test]
    fn moment_beyond_the_calendar_is_in_no_window() {
        for (zone, now) in [("Nowhere", 7), ("UTC", LAST_S + 400 * 86_400), ("UTC", u64::MAX)] {
            let span = span_at(&calendar(Unit::Day, zone), Duration::from_secs(now));
            assert!(!span.contains(now), "{zone} {now} {span:?}");
        }
    }

    #[test]
    fn unknown_time_zone_is_named_with_similar_ones() {
        assert_eq!(check_zone("Europe/Berlin"), Ok(()));
        assert_eq!(check_zone("UTC"), Ok(()));
        for (name, hint) in [
            ("europe/berlin", "Europe/Berlin"),
            ("Europe/Berln", "Europe/Berlin"),
            ("America/New York", "America/New_York"),
            ("Etc/Unknown", ""),
        ] {
            let text = check_zone(name).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(hint), "{text}");
        }
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
        for ((name, from, days), unit) in
            walks.iter().flat_map(|walk| Unit::ALL.map(|unit| (walk, unit)))
        {
            let zone = zone(name).unwrap();
            let mut last: Option<((i16, i32, i32), u64)> = None;
            let mut span = Span::default();
            let step = if *days > 20 { 30 * 60 } else { 60 };
            for number in 0..days * 24 * 3600 / step {
                let at = seconds(from) + number * step;
                let moment = Timestamp::from_second(at.try_into().unwrap()).unwrap();
                let local = moment.to_zoned(zone.clone()).datetime();
                let date = local.date();
                let day = i32::from(date.day_of_year());
                let clock = i32::from(local.hour()) * 60 + i32::from(local.minute());
                let offset = zone.to_offset(moment).seconds();
                let iso = date.iso_week_date();
                let (shown, restarts) = match unit {
                    Unit::Minute => ((date.year(), day * 10_000 + clock, offset), true),
                    Unit::Hour => ((date.year(), day * 100 + clock / 60, offset), clock % 60 == 0),
                    Unit::Day => ((date.year(), day, 0), false),
                    Unit::Week => ((iso.year(), i32::from(iso.week()), 0), false),
                    Unit::Month => ((date.year(), i32::from(date.month()), 0), false),
                    Unit::Year => ((date.year(), 0, 0), false),
                };
                let start = match last {
                    Some((old, start)) if old == shown && !restarts => Some(start),
                    Some(_) => Some(at),
                    // The first window may have begun before.
                    None => None,
                };
                let found = window_at(&zone, unit, at).unwrap();
                assert!(found.contains(at), "{name} {local} {unit:?} {found:?}");
                let start = start.unwrap_or(found.start);
                assert_eq!(found.start, start, "{name} {local} {unit:?}");
                // Whatever a window covers has the same beginning.
                if span.contains(at) {
                    assert_eq!(span, found, "{name} {local} {unit:?}");
                } else {
                    span = found;
                }
                last = Some((shown, start));
            }
        }
    }
}
