//! Calendar windows and sliding windows, against a plain computation.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;

use jiff::{Timestamp, tz::TimeZone};
use proptest::prelude::*;
use quotagate_advise::{Advice, Error, Fields, Length, Limits, Options, advise};
use quotagate_protocol::Unit;

use crate::brute::Brute;

/// A request: user, time in milliseconds, cost.
type Request = (u32, u64, u32);

/// Writes a log and reads it. Lines are as long as those of an access log.
fn run(requests: &[Request], options: Options) -> Result<Advice, Error> {
    let mut text = String::new();
    for (user, at_ms, cost) in requests {
        let _ = writeln!(text, "{at_ms} {user} {cost} {:>80}", "GET /");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(&path, text).unwrap();
    let operator = |name: &str| Some(format!("REQ({name})"));
    let fields = Fields {
        format: Some("%START_TIME% %REQ(USER)% %REQ(COST)% %REQ(PATH)%".to_owned()),
        key: operator("USER"),
        cost: operator("COST"),
        ..Fields::default()
    };
    let limits = Limits { users: 0.1, windows: 0.05 };
    advise(&Options { logs: vec![path], fields, limits, ..options })
}

fn calendar(unit: Unit, zone: &str) -> Options {
    Options {
        windows: vec![Length::Calendar(unit)],
        time_zone: Some(zone.to_owned()),
        ..Options::default()
    }
}

fn sliding(seconds: u32) -> Options {
    Options { windows: vec![Length::Seconds(seconds)], sliding: true, ..Options::default() }
}

fn slices(requests: &[Request], seconds: u64) -> Brute {
    let slice = |(user, at_ms, cost): &Request| (*user, at_ms / (seconds * 50), *cost);
    Brute::of_slices(requests.iter().map(slice))
}

fn ms(text: &str) -> u64 {
    text.parse::<Timestamp>().unwrap().as_millisecond().try_into().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn calendar_windows_are_those_of_local_dates(
        times in prop::collection::vec((0..9_u32, 0..200 * 24 * 3_600_000_u64, 1..50_u32), 1..400),
        zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/Havana", "Asia/Kathmandu"]),
        (unit, label) in prop::sample::select(vec![
            (Unit::Hour, "%Y-%j %H %z"),
            (Unit::Day, "%Y-%j"),
            (Unit::Week, "%G-%V"),
            (Unit::Month, "%Y-%m"),
            (Unit::Year, "%Y"),
        ]),
    ) {
        // Over the change of the clocks in October and over the new year.
        let begin = ms("2026-08-15T00:00:00Z");
        let requests: Vec<Request> =
            times.into_iter().map(|(user, at, cost)| (user, begin + at, cost)).collect();
        let tz = TimeZone::get(zone).unwrap();
        let mut numbers: HashMap<String, u64> = HashMap::new();
        let window = |(user, at_ms, cost): &Request| {
            let at = Timestamp::from_millisecond((*at_ms).try_into().unwrap()).unwrap();
            let label = at.to_zoned(tz.clone()).strftime(label).to_string();
            let next = numbers.len() as u64;
            (*user, *numbers.entry(label).or_insert(next), *cost)
        };
        let brute = Brute::of(requests.iter().map(window));
        brute.check(&run(&requests, calendar(unit, zone)).unwrap());
    }

    #[test]
    fn a_sliding_window_counts_21_slices(
        times in prop::collection::vec((0..5_u32, 0..60_000_u64, 1..50_u32), 1..300),
        seconds in prop::sample::select(vec![1_u32, 7, 60]),
        sorted: bool,
    ) {
        let mut requests: Vec<Request> = times
            .into_iter()
            .map(|(user, at, cost)| (user, 1_795_301_700_000 + at, cost))
            .collect();
        if sorted {
            requests.sort_by_key(|(_, at_ms, _)| *at_ms);
        }
        let show_users = 5;
        let advice = run(&requests, Options { show_users, ..sliding(seconds) }).unwrap();
        let brute = slices(&requests, seconds.into());
        brute.check(&advice);
        let mut most: Vec<u64> = brute.users.clone();
        most.sort_unstable_by(|one, two| two.cmp(one));
        let top = advice.windows[0].top_users.iter().map(|user| u64::from(user.most));
        prop_assert_eq!(top.collect::<Vec<_>>(), most);
    }
}

#[test]
fn a_burst_across_a_boundary_is_one_user_window_only_if_windows_slide() {
    // Ten requests in the last second of a minute, and ten in the next.
    let begin = ms("2026-11-21T22:55:59Z");
    let requests: Vec<Request> = (0..20).map(|i| (1, begin + i * 100, 1)).collect();
    let fixed = run(&requests, Options::default()).unwrap();
    let slide = run(&requests, Options { show_users: 1, ..sliding(60) }).unwrap();
    let quota = |advice: &Advice| advice.windows[0].recommended.quota;
    assert_eq!((quota(&fixed), quota(&slide)), (10, 20));
    let text = slide.text();
    assert!(text.contains("Recommended: 20 per 1m (sliding)."), "{text}");
    assert!(text.contains("\n    window: 1m\n    sliding: true\n"), "{text}");
    // Twenty slices of 3 s before the last one.
    assert!(text.contains("  20  1 (at 2026-11-21T22:55:00Z)\n"), "{text}");
    // A unit counts in several slices, so units above a quota do not add up.
    assert!(!text.contains("requests above it"), "{text}");
    let json = serde_json::to_value(&slide).unwrap();
    assert_eq!(json["windows"][0]["sliding"], true);
    assert_eq!(json["windows"][0]["window_s"], 60);
    assert!(json["windows"][0]["recommended"]["units"].is_null());
}

#[test]
fn sliding_windows_stay_exact_when_old_slices_are_closed() {
    let memory = 4 << 20;
    // Each user every other second; a line is up to 4 s late.
    let mut requests: Vec<(u64, Request)> = (0..350_u64)
        .flat_map(|second| {
            (0..1500_u32).filter(move |user| (u64::from(*user) + second) % 2 == 0).map(
                move |user| {
                    let late = u64::from(user * user % 37) * 100;
                    let at = 1_795_300_000_000 + second * 1000 + u64::from(user % 1000);
                    (at + late, (user, at, 1 + (user * 7 + second as u32) % 5))
                },
            )
        })
        .collect();
    requests.sort_unstable();
    let requests: Vec<Request> = requests.into_iter().map(|(_, request)| request).collect();
    // With several threads, the memory that is needed would depend on the speed of the machine.
    let options = Options { memory, lateness_s: 5, threads: 1, ..sliding(2) };
    let brute = {
        let mut windows = slices(&requests[..1], 2);
        windows.windows.clear();
        windows.users.clear();
        for user in 0..1500 {
            let own: Vec<Request> =
                requests.iter().filter(|request| request.0 == user).copied().collect();
            let one = slices(&own, 2);
            windows.windows.extend(one.windows);
            windows.users.extend(one.users);
        }
        windows
    };
    assert!(brute.windows.len() * 17 > memory, "{} counts", brute.windows.len());
    let advice = run(&requests, options).unwrap();
    let window = &advice.windows[0];
    assert_eq!((&window.sample, window.late), (&None, 0));
    brute.check(&advice);
}

#[test]
fn requests_for_closed_slices_count_as_windows_of_their_own() {
    let mut requests: Vec<Request> =
        (0..120_000_u32).map(|i| (i % 5000, 1_795_300_000_000 + u64::from(i) * 20, 1)).collect();
    let on_time = requests.len();
    requests.extend((0..100).map(|i| (i, 1_795_300_000_000, 1_000_000)));
    let options = Options { memory: 2 << 20, lateness_s: 1, threads: 1, ..sliding(1) };
    let advice = run(&requests, options).unwrap();
    let window = &advice.windows[0];
    assert_eq!((window.late, window.most, &window.sample), (100, 1_000_000, &None));
    assert_eq!(window.user_windows, on_time as u64 + 100);
}

#[test]
fn a_day_of_the_calendar_begins_at_local_midnight() {
    // The evening before, and 25 hours that are one day in Berlin.
    let hours = |from: &str, number: u64| {
        let from = ms(from);
        (0..number).map(move |hour| (1, from + hour * 3_600_000, 1))
    };
    let requests: Vec<Request> =
        hours("2026-10-24T20:00:00Z", 2).chain(hours("2026-10-24T22:00:00Z", 25)).collect();
    let show_users = 1;
    let berlin = Options { show_users, ..calendar(Unit::Day, "europe/berlin") };
    let advice = run(&requests, berlin).unwrap();
    let window = &advice.windows[0];
    assert_eq!((window.user_windows, window.recommended.quota), (2, 25));
    let text = advice.text();
    for part in [
        " user-windows of day (Europe/Berlin), from ",
        "Recommended: 25 per day (Europe/Berlin).",
        "  25  1 (at 2026-10-25T00:00:00+02:00)\n",
        "\n    window: {calendar: day, time_zone: Europe/Berlin}\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let snippet: serde_json::Value = serde_saphyr::from_str(&advice.snippet).unwrap();
    let window = &snippet["policies"][0]["window"];
    assert_eq!(
        (&window["calendar"], &window["time_zone"]),
        (&"day".into(), &"Europe/Berlin".into())
    );
    let json = serde_json::to_value(&advice).unwrap();
    assert_eq!(json["windows"][0]["calendar"], "day");
    assert_eq!(json["windows"][0]["time_zone"], "Europe/Berlin");

    let utc = Options { time_zone: None, ..calendar(Unit::Day, "") };
    let advice = run(&requests, utc).unwrap();
    assert_eq!(advice.windows[0].recommended.quota, 23);
    assert!(advice.snippet.contains("window: {calendar: day, time_zone: UTC}"));
}

#[test]
fn windows_that_contradict_each_other_are_errors() {
    let requests = [(1, 1_795_300_000_000, 1)];
    for (options, why) in [
        (calendar(Unit::Day, "Europe/Belrin"), "similar names are Europe/Berlin"),
        (
            Options { windows: vec![Length::Seconds(60)], ..calendar(Unit::Day, "UTC") },
            "leave out --time-zone",
        ),
        (
            Options { sliding: true, time_zone: None, ..calendar(Unit::Month, "") },
            "a calendar window does not slide",
        ),
        (Options { windows: vec![Length::Seconds(0)], ..Options::default() }, "at least 1 second"),
    ] {
        let error = run(&requests, options).unwrap_err();
        assert!(matches!(&error, Error::Usage(text) if text.contains(why)), "{error}");
    }
}

/// The year 1970 has no number of a slice that is before the first request by years.
#[test]
fn times_years_apart_never_stop_a_sliding_count() {
    let times = [1_795_300_000_000, 0, 1_795_300_000_500, 4_000_000_000_000];
    let requests: Vec<Request> = times.iter().map(|at_ms| (1, *at_ms, 1)).collect();
    let advice = run(&requests, sliding(1)).unwrap();
    assert_eq!((advice.read.requests, advice.read.malformed, advice.windows[0].most), (2, 2, 2));
    let advice = run(&requests, sliding(3600)).unwrap();
    assert_eq!((advice.read.requests, advice.read.malformed), (4, 0));
    let advice = run(&requests, calendar(Unit::Week, "Asia/Tokyo")).unwrap();
    assert_eq!((advice.read.requests, advice.read.malformed), (4, 0));
}

/// The store counts them apart, too.
#[test]
fn hour_ends_where_clocks_go_back_by_half_an_hour() {
    let before = (0, ms("2026-04-04T14:59:00Z"), 1);
    let after = (0, ms("2026-04-04T15:10:00Z"), 1);
    let options = Options { show_users: 1, ..calendar(Unit::Hour, "Australia/Lord_Howe") };
    let advice = run(&[before, after], options).unwrap();
    assert_eq!(advice.windows[0].top_users[0].most, 1);
}
