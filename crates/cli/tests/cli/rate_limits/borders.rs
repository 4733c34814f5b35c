//! The borders of windows. Redis' clock jumps to both sides of them; that of the service stays the
//! machine's.

use std::thread::sleep;
use std::time::SystemTime;

use quotagate_support::redis::clock::Clock;

use super::{RECHECK, Service};

/// Monday 2027-03-01T00:00:00Z: a border of every window but that of a year.
const MONTH: i64 = 1_803_859_200;
/// Saturday 2028-01-01T00:00:00Z.
const YEAR: i64 = 1_830_297_600;
/// Each unit, its border, and the seconds of the window that begins there.
const UNITS: [(&str, i64, i64); 7] = [
    ("second", MONTH, 1),
    ("minute", MONTH, 60),
    ("hour", MONTH, 3600),
    ("day", MONTH, 86_400),
    ("week", MONTH, 7 * 86_400),
    ("month", MONTH, 31 * 86_400),
    ("year", YEAR, 366 * 86_400),
];

#[test]
fn windows_begin_at_the_borders_of_their_units_by_the_clock_of_redis() {
    let (clock, redis) = Clock::redis().unwrap();
    let rule = |(unit, ..): (&str, i64, i64)| {
        format!("- {{key: {unit}, rate_limit: {{unit: {unit}, requests_per_unit: 2}}}}\n")
    };
    let service = Service::start(&redis.url(), &UNITS.map(rule).concat(), &["--timeout", "20s"]);
    let set = |second: i64| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        clock.set(second - i64::try_from(now.as_secs()).unwrap()).unwrap();
        sleep(RECHECK);
    };
    // A second is over before the third request of a slow machine, so it has no full counter here.
    for (unit, border, length) in UNITS {
        let statuses = |requests: usize| -> Vec<u16> {
            (0..requests).map(|_| service.json(&[(unit, "v")]).status).collect()
        };
        let reset = || -> i64 {
            let answer = service.json(&[(unit, "v")]).json().unwrap();
            let reset = answer["statuses"][0]["durationUntilReset"].as_str().unwrap();
            reset.trim_end_matches('s').parse().unwrap()
        };
        if unit == "second" {
            set(border);
            assert_eq!(reset(), 1);
            continue;
        }
        // So far before the border that the requests are over when it comes.
        set(border - 40);
        assert_eq!(statuses(3), [200, 200, 429], "{unit}");
        assert!((1..=40).contains(&reset()), "{unit}");
        set(border + 1);
        assert_eq!(statuses(3), [200, 200, 429], "{unit}");
        let reset = reset();
        assert!((length - 40..=length).contains(&reset), "{unit}: {reset}");
    }
}
