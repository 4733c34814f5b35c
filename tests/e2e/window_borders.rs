//! The borders of windows: what is admitted on both sides, and what the headers say. Redis' clock
//! jumps to each moment; the clocks of Envoy and of the store stay the machine's.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form};
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::redis::clock::Clock;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{Rig, document, reset_of};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
const QUOTA: u64 = 10;

/// A worker rechecks a counter that it remembers as spent once per second.
const RECHECK: Duration = Duration::from_millis(1100);

/// A replica follows, and the store reconnects, within a second. The rest allows for a slow
/// machine.
const REPLICATED: Duration = Duration::from_secs(20);

/// A policy of this name for each caller on the path `/NAME`.
fn policy(name: &str, window: Value) -> Value {
    json!({
        "name": name, "match": {"path": {"exact": format!("/{name}")}}, "partition_by": ["caller"],
        "quota": QUOTA, "window": window
    })
}

/// Envoy in front of a Redis whose clock can jump.
struct Scene {
    clock: Clock,
    client: Client,
    rig: Rig,
}

impl Scene {
    /// Starts Redis at this second, then the others.
    fn start(policies: Value, second: u64) -> Result<Self> {
        let (clock, redis) = Clock::redis()?;
        set(&clock, second)?;
        let rig = Rig::start_on(redis, document(policies), |options| options)?;
        Ok(Self { clock, client: rig.client()?, rig })
    }

    /// Sets Redis' clock to this second, and waits until requests recheck spent counters.
    fn jump(&self, second: u64) -> Result<()> {
        set(&self.clock, second)?;
        sleep(RECHECK);
        Ok(())
    }

    /// Seconds since 1970 on Redis' clock.
    fn time(&self) -> Result<f64> {
        let lines = self.rig.redis.cli(&["TIME"])?.lines();
        let (seconds, micros) = lines.split_once('\n').context("no time")?;
        Ok(seconds.trim().parse::<f64>()? + micros.trim().parse::<f64>()? / 1e6)
    }

    /// Sends a request to the policy of this name. Its headers must name `end`, a second on Redis'
    /// clock, as the time when units return.
    fn send(&mut self, name: &str, end: u64) -> Result<Response> {
        let before = self.time()?;
        let response = self.client.send(&Request::get(&format!("/{name}")))?;
        let after = self.time()?;
        let reset = reset_of(&response) as f64;
        // A worker knows the time late by the delay of a reply.
        let (least, most) = ((end as f64 - after).floor(), (end as f64 - before).ceil() + 1.0);
        assert!((least..=most).contains(&reset), "{name}: {reset} is not {least} to {most}");
        let retry = (response.status == 429).then(|| reset.to_string());
        assert_eq!(response.header("retry-after"), retry.as_deref(), "{name}");
        Ok(response)
    }

    /// How many of so many requests are admitted. The others are over the quota.
    fn admitted(&mut self, name: &str, requests: u64, end: u64) -> Result<u64> {
        let mut admitted = 0;
        for _ in 0..requests {
            match self.send(name, end)?.status {
                200 => admitted += 1,
                status => assert_eq!(status, 429, "{name}"),
            }
        }
        Ok(admitted)
    }
}

fn set(clock: &Clock, second: u64) -> Result<()> {
    clock.set(i64::try_from(second)? - i64::try_from(inspect::now()?)?)
}

/// The most that was admitted within the length of one window.
fn most(admitted: &[(u64, u64)]) -> u64 {
    let within = |start: u64| {
        let counts = admitted.iter().filter(|(at, _)| (start..start + HOUR).contains(at));
        counts.map(|(_, count)| count).sum()
    };
    admitted.iter().map(|(start, _)| within(*start)).max().unwrap_or_default()
}

#[test]
fn fixed_window_admits_twice_the_quota_around_its_border_and_sliding_window_once() -> Result<()> {
    let mut sliding = policy("sliding", json!("1h"));
    sliding["sliding"] = json!(true);
    let border = (inspect::now()? / DAY + 2) * DAY;
    let policies = json!([policy("fixed", json!("1h")), sliding]);
    let mut scene = Scene::start(policies, border - 400)?;
    let (mut fixed_admitted, mut sliding_admitted) = (Vec::new(), Vec::new());
    // Slices of three minutes begin at the border. Units return when their slice has left the last
    // hour: those of the first step at 3240, those of the second one at 3600.
    for (from_border, requests, fixed, fixed_end, sliding, sliding_end) in [
        (-400, 4, 4, 0, 4, 3240),
        (-30, 20, 6, 0, 6, 3240),
        (30, 20, 10, 3600, 0, 3240),
        // An hour after the first step, its slice still reaches into the last hour.
        (3220, 20, 0, 3600, 0, 3240),
        (3250, 20, 0, 3600, 4, 3600),
        (3580, 20, 0, 3600, 0, 3600),
        (3610, 20, 10, 7200, 6, 7020),
    ] {
        let at = border.saturating_add_signed(from_border);
        scene.jump(at)?;
        let admitted = [
            scene.admitted("fixed", requests, border + fixed_end)?,
            scene.admitted("sliding", requests, border + sliding_end)?,
        ];
        assert_eq!(admitted, [fixed, sliding], "{from_border} s from the border");
        fixed_admitted.push((at, fixed));
        sliding_admitted.push((at, sliding));
    }
    assert_eq!((most(&fixed_admitted), most(&sliding_admitted)), (2 * QUOTA, QUOTA));
    Ok(())
}

#[test]
fn calendar_windows_end_at_local_midnight_when_clocks_and_months_change() -> Result<()> {
    // Midnights in Berlin in the spring of 2027: clocks go forward on Sunday, March 28.
    const SUNDAY: u64 = 1_806_188_400; // 2027-03-27T23:00:00Z
    const MONDAY: u64 = 1_806_271_200; // 2027-03-28T22:00:00Z
    const APRIL: u64 = 1_806_530_400; // 2027-03-31T22:00:00Z

    let berlin = |unit| json!({"calendar": unit, "time_zone": "Europe/Berlin"});
    let policies = json!([policy("day", berlin("day")), policy("month", berlin("month"))]);
    let mut scene = Scene::start(policies, SUNDAY - DAY)?;
    // Units left before the border, hours of the window before it, and of the one after it.
    for (name, border, left, before, after) in [
        ("day", SUNDAY, QUOTA, 24, 23),
        ("day", MONDAY, QUOTA - 1, 23, 24),
        ("day", APRIL, QUOTA, 24, 24),
        ("month", APRIL, QUOTA, 31 * 24 - 1, 30 * 24),
    ] {
        let shown = |hours| format!("\"{name}\";q={QUOTA};w={}", hours * HOUR);
        scene.jump(border - 20)?;
        assert_eq!(scene.admitted(name, QUOTA + 1, border)?, left, "{name} before {border}");
        let refused = scene.send(name, border)?;
        assert_eq!(refused.header_all("ratelimit-policy"), [shown(before)]);
        assert_eq!(refused.status, 429);
        scene.jump(border)?;
        let admitted = scene.send(name, border + after * HOUR)?;
        assert_eq!(admitted.header_all("ratelimit-policy"), [shown(after)]);
        assert_eq!(admitted.header("x-ratelimit-used"), Some("1"), "{name} after {border}");
        assert_eq!(admitted.status, 200);
    }
    Ok(())
}

#[test]
fn windows_follow_the_clock_of_the_store_and_not_envoys() -> Result<()> {
    let day = json!({"calendar": "day", "time_zone": "UTC"});
    let policies = json!([policy("calendar", day), policy("fixed", json!("1d"))]);
    for hours_ahead in [-30_i64, 7] {
        let machine = inspect::now()?;
        let there = machine.saturating_add_signed(hours_ahead * i64::try_from(HOUR)?);
        let midnight = (there / DAY + 1) * DAY;
        // Far enough from midnight for the first requests.
        let there = there.min(midnight - 60);
        let mut scene = Scene::start(policies.clone(), there)?;
        for name in ["calendar", "fixed"] {
            assert_eq!(scene.admitted(name, QUOTA + 1, midnight)?, QUOTA, "{name}");
            let refused = scene.send(name, midnight)?;
            // Clients compare this time with their own clock.
            let reset: u64 = refused.header("x-ratelimit-reset").unwrap_or_default().parse()?;
            let expected = machine + midnight - there;
            assert!(reset.abs_diff(expected) <= 3, "{reset} is not {expected}");
        }
        // No window ends on the machine's clock.
        for (at, admitted, end) in [
            (midnight + 5, QUOTA, midnight + DAY),
            (midnight - 20, 0, midnight),
            (midnight + 5, 0, midnight + DAY),
        ] {
            scene.jump(at)?;
            for name in ["calendar", "fixed"] {
                assert_eq!(scene.admitted(name, QUOTA, end)?, admitted, "{name} at {at}");
            }
        }
    }
    Ok(())
}

#[test]
fn unknown_time_zone_is_refused_by_the_native_module_and_a_store_failure_in_wasm() -> Result<()> {
    const UNKNOWN: &str = "unknown time zone `Europe/Berlim`";
    let day = json!({"calendar": "day", "time_zone": "Europe/Berlim"});
    let policies = json!([policy("day", day), policy("hour", json!({"calendar": "hour"}))]);
    let mut document = document(policies);
    if Form::of_run()? == Form::Native {
        document["on_wrong_document"] = json!("reject");
        let refused = Envoy::start(&EnvoyOptions::new(1, 1).document(document));
        let log = format!("{:#}", refused.expect_err("the document is refused"));
        let fault = format!("configuration refused: policies[0].window.time_zone: {UNKNOWN}");
        assert!(log.contains(&fault), "{log}");
        return Ok(());
    }
    for (on_failure, status) in [("deny", 503), ("allow", 200)] {
        document["store"]["on_failure"] = json!(on_failure);
        let rig = Rig::start(document.clone())?;
        let requests = ["/day", "/day", "/hour"].map(Request::get);
        assert_eq!(rig.statuses(&requests)?, [status, status, 200], "{on_failure}");
        assert!(rig.envoy.log().contains(UNKNOWN), "{}", rig.envoy.log());
        assert!(rig.partitions("day")?.is_empty(), "nothing is counted");
        assert_eq!(rig.partitions("hour")?, ["ip=127.0.0.1"], "the other policy counts");
    }
    Ok(())
}

#[test]
fn promoted_replica_whose_clock_is_before_the_border_grants_no_day_twice() -> Result<()> {
    let midnight = (inspect::now()? / DAY + 2) * DAY;
    let day = json!({"calendar": "day", "time_zone": "UTC"});
    let mut scene = Scene::start(json!([policy("day", day)]), midnight - 60)?;
    let (behind, replica) = Clock::redis()?;
    set(&behind, midnight - 60)?;
    let port = scene.rig.redis.port().to_string();
    scene.rig.redis.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"])?;
    replica.cli(&["REPLICAOF", "127.0.0.1", &port])?;
    let counts = |start: u64, units: u64| {
        let key = format!("qg:shop:day:{{ip=127.0.0.1}}:{start}-{}", start + DAY);
        wait::until_true("the replica to have the counter", REPLICATED, || {
            Ok(replica.cli(&["GET", &key])?.lines() == units.to_string())
        })
    };
    assert_eq!(scene.admitted("day", QUOTA, midnight)?, QUOTA);
    counts(midnight - DAY, QUOTA)?;
    scene.jump(midnight)?;
    assert_eq!(scene.admitted("day", 6, midnight + DAY)?, 6);
    counts(midnight, 6)?;

    // The replica takes over the address of the primary. Its clock shows the day before.
    scene.rig.redis.stop()?;
    replica.cli(&["REPLICAOF", "NO", "ONE"])?;
    set(&behind, midnight - 40)?;
    scene.clock = behind;
    replica.cli(&["CONFIG", "SET", "port", &port])?;
    wait::until_true("requests to be counted", REPLICATED, || {
        let status = scene.client.send(&Request::get("/day"))?.status;
        assert!([429, 503].contains(&status), "{status}");
        Ok(status == 429)
    })?;
    assert_eq!(scene.admitted("day", QUOTA, midnight)?, 0);
    scene.jump(midnight)?;
    assert_eq!(scene.admitted("day", QUOTA, midnight + DAY)?, QUOTA - 6);
    Ok(())
}
