//! Requests of policies with dials and runtime overrides.

use quotagate_protocol::MAX_UNITS;

use super::*;
use crate::config::{Dialed, Precision};
use crate::response::{Now, quota_headers};

/// A fetch brings these dials and the names of these policies with runtime overrides.
fn fetch_dials(worker: &mut TestWorker, dials: &str, overridden: &str, version: u64, ms: u64) {
    worker.observe_traffic(at(ms));
    let id = worker.next_fetch(at(ms)).expect("a fetch is due").id;
    let body = format!(r#"{{"version":{version},"dials":[{dials}],"overridden":[{overridden}]}}"#)
        .into_bytes();
    let end = CallEnd::Answered { status: 200, by: AnsweredBy::Store, size: body.len(), body };
    worker.call_ended(id, &end, at(ms));
}

fn granted(granted: u64, used: u64, quota: u64) -> Granted {
    Ok(Grant { granted, used, quota, reset_ms: 30_000, window: 9, ..Grant::default() })
}

/// A worker whose policy `a` has this quota and runtime overrides.
fn overridden(quota: u64) -> TestWorker {
    let mut w = edited("deny", |config| config.policies[0].quota = quota);
    fetch_dials(&mut w, "", r#""a""#, 1, 0);
    w
}

#[test]
fn policy_with_overrides_asks_the_store_about_a_cost_above_the_quota() {
    for quota in [0, 5] {
        let mut w = edited("deny", |config| config.policies[0].quota = quota);
        assert_eq!(at_once(ask(&mut w, "early", &[0], 6, 0)), "-", "no partition has one");
        fetch_dials(&mut w, "", r#""a""#, 1, 0);
        assert_eq!(at_once(ask(&mut w, "one", &[0], 6, 1)), "waiting");
        let (id, request) = call(&mut w, 1);
        assert_eq!((request.reservations[0].quota, request.reservations[0].want), (quota, 6));
        answer(&mut w, id, &[granted(6, 6, 100)], 2);
        assert_eq!(summary(&mut w), "one=+94", "of the quota of the override");
        fetch_dials(&mut w, "", "", 2, 5_000);
        assert_eq!(
            at_once(ask(&mut w, "late", &[0], 6, 5_000)),
            "-",
            "no partition has one any more"
        );
    }
}

#[test]
fn partition_without_override_rechecks_zero_quota_once_per_second() {
    let mut w = overridden(0);
    assert_eq!(at_once(ask(&mut w, "one", &[0], 1, 0)), "waiting");
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[granted(0, 0, 0)], 1);
    assert_eq!(summary(&mut w), "one=-");
    for ms in 2..1_000 {
        assert_eq!(at_once(ask(&mut w, "more", &[0], 1, ms)), "-");
    }
    assert_eq!(at_once(ask(&mut w, "again", &[0], 1, 1_001)), "waiting");
    let (id, _) = call(&mut w, 1_001);
    answer(&mut w, id, &[granted(1, 1, 3)], 1_002);
    assert_eq!(summary(&mut w), "again=+2", "an override was set");
}

#[test]
fn blocked_partition_is_refused_by_the_worker_and_sees_a_quota_of_zero() {
    let mut w = overridden(5);
    ask(&mut w, "one", &[0], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[granted(0, 3, 0)], 1);
    let [(_, Decision::Refuse(refusal))] = &*decisions(&mut w) else { panic!("it is refused") };
    assert_eq!(
        (refusal.standings[0].balance.quota, refusal.standings[0].balance.remaining),
        (0, 0)
    );
    let Submitted::Decided(Decision::Refuse(known)) = ask(&mut w, "two", &[0], 1, 2) else {
        panic!("known")
    };
    let shown = |refusal: &Refusal| (refusal.standings[0].balance, refusal.until);
    assert_eq!(shown(&known), shown(refusal));
    assert_eq!((known.standings[0].by_store, refusal.standings[0].by_store), (false, true));
}

#[test]
fn override_below_the_quota_sets_the_remaining_and_the_shown_quota() {
    let mut w = overridden(5);
    ask(&mut w, "one", &[0], 2, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[granted(2, 2, 3)], 1);
    assert_eq!(summary(&mut w), "one=+1");
    ask(&mut w, "two", &[0], 2, 2);
    let (id, _) = call(&mut w, 2);
    answer(&mut w, id, &[granted(0, 2, 3)], 3);
    assert_eq!(summary(&mut w), "two=-");
    assert_eq!(
        at_once(ask(&mut w, "three", &[0], 2, 4)),
        "-",
        "1 of 3 is left, although 5 are configured"
    );
    assert_eq!(at_once(ask(&mut w, "four", &[0], 1, 4)), "waiting");
}

#[test]
fn on_failure_decides_a_cost_that_an_override_may_allow() {
    for (on_failure, expected) in [("allow", "one=+"), ("deny", "one=!"), ("local", "one=-")] {
        let mut w = edited(on_failure, |config| config.policies[0].quota = 0);
        fetch_dials(&mut w, "", r#""a""#, 1, 0);
        ask(&mut w, "one", &[0], 1, 0);
        let (id, _) = call(&mut w, 0);
        w.call_failed(id, at(1));
        assert_eq!(summary(&mut w), expected, "{on_failure}");
    }
}

#[test]
fn lease_holds_a_hundredth_of_the_overriding_quota() {
    for (quota, most) in [(30_000, 300), (5_000, 50), (MAX_UNITS, 500)] {
        let mut w = edited("deny", |config| {
            config.policies[0].quota = 10_000;
            config.policies[0].precision = Precision::Lease {
                ahead: Duration::from_millis(100),
                max: 500.try_into().unwrap(),
            };
        });
        // The demand exceeds the bound, and the first reply carries the quota.
        for round in 0..3 {
            for _ in 0..2_000 {
                ask(&mut w, "x", &[0], 1, round * 10);
            }
            while let Some(out) = w.next_call(at(round * 10)) {
                let request: ReserveRequest = serde_json::from_slice(&out.body()).unwrap();
                let asked: u64 = request.reservations.iter().map(|r| r.want + r.spare).sum();
                w.replied(out.id, &reply(&[granted(asked, asked, quota)]), at(round * 10));
            }
            decisions(&mut w);
        }
        let counter = &checks_of(&w.config, &[0], "x", 1)[0].counter;
        let (held, under_way) = w.leases.load(counter);
        assert!((1..=most).contains(&(held + under_way)), "{held} and {under_way} of {quota}");
    }
}

#[test]
fn unlimited_partition_sees_the_largest_numbers_that_headers_can_hold() {
    let mut w = overridden(5);
    ask(&mut w, "one", &[0], 7, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[granted(7, 57, MAX_UNITS)], 1);
    let [(_, Decision::Admit(admission))] = &*decisions(&mut w) else { panic!("it is admitted") };
    let now = || Now { monotonic: at(1), epoch: Duration::ZERO };
    let headers: Vec<String> = quota_headers(&w.config, &admission.standings, now)
        .into_iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    assert_eq!(
        headers,
        [
            "x-ratelimit-limit: 9007199254740991",
            "x-ratelimit-used: 57",
            "x-ratelimit-remaining: 9007199254740934",
            "x-ratelimit-reset: 30",
        ]
    );
}

#[test]
fn spent_counter_of_the_old_quota_refuses_nothing_after_a_dial() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[0], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[granted(0, 5, 5)], 1);
    assert_eq!(summary(&mut w), "one=-");
    assert_eq!(at_once(ask(&mut w, "two", &[0], 1, 2)), "-");
    fetch_dials(&mut w, r#"{"policy":"a","quota":8}"#, "", 1, 3);
    assert_eq!(w.config().policies[0].dialed_quota, Some(8));
    let eight = Config::dialed(&config("deny"), &[Dialed { quota: Some(8), ..Dialed::default() }]);
    let mut checks = checks_of(&eight, &[0], "x", 1);
    checks[0].counter.quota = 8;
    assert_eq!(at_once(w.submit("three", checks, at(3))), "waiting");
    let (_, request) = call(&mut w, 3);
    assert_eq!(request.reservations[0].quota, 8);
}

#[test]
fn request_is_decided_by_the_mode_of_its_policies_on_arrival() {
    for (dial, before, after) in
        [("shadow", "one=-", "~0"), ("off", "one=-", "~0"), ("enforce", "one=+~0", "-")]
    {
        let index = if dial == "enforce" { 2 } else { 0 };
        let mut w = worker("deny");
        let checks = checks_of(&w.config, &[index, 1], "x", 1);
        assert_eq!(at_once(w.submit("one", checks, at(0))), "waiting");
        let (id, _) = call(&mut w, 0);
        fetch_dials(
            &mut w,
            &format!(r#"{{"policy":"{}","mode":"{dial}"}}"#, ["a", "b", "s"][index]),
            "",
            1,
            1,
        );
        answer(&mut w, id, &[granted(0, 5, 5), granted(1, 1, 5)], 2);
        let decided = decisions(&mut w);
        let (_, decision) = &decided[0];
        match decision {
            Decision::Refuse(refusal) => {
                assert_eq!(violated(refusal), [0], "a 429 names the policies that refuse");
            }
            Decision::Admit(admission) => {
                let now = || Now { monotonic: at(2), epoch: Duration::ZERO };
                let shown = quota_headers(&w.config, &admission.standings, now);
                let remaining = ("x-ratelimit-remaining", "4".into());
                assert!(shown.contains(&remaining), "not of the shadow policy: {shown:?}");
            }
            Decision::Unavailable(_) => panic!("{dial}: {decision:?}"),
        }
        assert!(format!("one={}", brief(decision)).starts_with(before), "{dial}: {decision:?}");
        // The next request arrives now.
        let mut next = checks_of(&w.config, &[index], "x", 1);
        next[0].mode = if dial == "enforce" { Mode::Enforce } else { Mode::Shadow };
        let text = at_once(w.submit("two", next, at(3)));
        assert!(text.contains(after), "{dial}: {text}");
    }
}

#[test]
fn dialed_on_failure_applies_to_waiting_requests() {
    for (from, to, expected) in [("deny", "allow", "one=+"), ("allow", "deny", "one=!")] {
        let mut w = worker(from);
        submit(&mut w, "one", 0);
        let (id, _) = call(&mut w, 0);
        fetch_dials(&mut w, &format!(r#"{{"policy":"*","on_failure":"{to}"}}"#), "", 1, 1);
        w.call_failed(id, at(2));
        assert_eq!(summary(&mut w), expected);
    }
}

#[test]
fn reply_with_a_newer_dial_version_makes_a_fetch_due() {
    let mut w = worker("deny");
    submit(&mut w, "one", 0);
    let (id, _) = call(&mut w, 0);
    assert!(w.next_fetch(at(0)).is_none(), "the worker has not seen the arrival");
    let body = serde_json::to_vec(&ReserveReply { dials: 17, grants: vec![grant(1, 1)] }).unwrap();
    w.replied(id, &body, at(1));
    assert!(w.next_fetch(at(1)).is_some());
    assert_eq!(summary(&mut w), "one=+4");
}

#[test]
fn dials_are_fetched_while_the_breaker_is_open_and_do_not_heal_it() {
    let mut w = worker("deny");
    for i in 0..5 {
        submit(&mut w, "x", i);
        let (id, _) = call(&mut w, i);
        w.call_failed(id, at(i));
    }
    assert_eq!(ask(&mut w, "x", &[0], 1, 5), unavailable(), "the breaker is open");
    fetch_dials(&mut w, r#"{"policy":"*","on_failure":"allow"}"#, "", 1, 5);
    assert!(
        matches!(ask(&mut w, "x", &[0], 1, 6), Submitted::Decided(Decision::Admit(_))),
        "the breaker stays open"
    );
    for ms in 7..5_005 {
        w.observe_traffic(at(ms));
        assert!(w.next_fetch(at(ms)).is_none(), "{ms}");
    }
}

#[test]
fn failed_fetches_do_not_open_the_breaker() {
    let mut w = worker("deny");
    for i in 0..20 {
        w.observe_traffic(at(i * 5_000));
        let id = w.next_fetch(at(i * 5_000)).unwrap().id;
        w.call_failed(id, at(i * 5_000));
        assert!(w.calls.breaker.lets_through(at(i * 5_000)));
    }
    assert_eq!(at_once(ask(&mut w, "one", &[0], 1, 100_000)), "waiting");
}

#[test]
fn refusals_without_a_call_are_reported_by_counter() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[0, 2], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[granted(0, 5, 5), granted(0, 5, 5)], 1);
    decisions(&mut w);
    for _ in 0..3 {
        assert_eq!(at_once(ask(&mut w, "more", &[0], 1, 2)), "-");
    }
    assert_eq!(at_once(ask(&mut w, "more", &[2], 1, 2)), "+~0");
    w.take_tally();
    w.observe_traffic(at(3));
    let report = w.next_fetch(at(3)).unwrap().report.unwrap();
    assert!(
        report.ends_with(
            r#""refused":[{"key":"d:a:{x}","requests":3}],"would_refuse":[{"key":"d:s:{x}","requests":1}]}"#
        ),
        "shadow mode lets requests through: {report}"
    );
    assert!(report.contains(r#""on_failure":"deny","partition_by":[],"refused":4}"#), "{report}");
    assert!(report.contains(r#""partition_by":[],"shadow_refused":2}"#), "{report}");
    w.observe_traffic(at(5_003));
    let report = w.next_fetch(at(5_003)).map(|fetch| fetch.report);
    assert_eq!(report, None, "one at a time");
}
