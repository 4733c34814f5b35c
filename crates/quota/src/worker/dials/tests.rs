//! Given these replies, traffic and moments, expect these dials in force and these fetches.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{AnsweredBy, CallEnd, Worker};
use super::*;
use crate::config::{Mode, OnFailure};
use crate::wire::MAX_UNITS;
use crate::wire::dials::{MAX_REPORT, Report};

const POLICIES: usize = 3;

fn at(ms: u64) -> Monotonic {
    Monotonic::new(Duration::from_millis(ms))
}

/// Policies `a` (enforced), `s` (shadow) and `o` (off), quota 5 a minute; `deny`.
fn configured() -> Rc<Config> {
    let text = r#"{"domain":"shop.d","store":{"cluster":"c","timeout":"50ms","on_failure":"deny","token":"s3cret"},
        "policies":[{"name":"a","quota":5,"window":"1m"},{"name":"s","quota":5,"window":"1m","mode":"shadow"},
                    {"name":"o","quota":5,"window":"1m","mode":"off"}]}"#;
    Rc::new(Config::parse(text.as_bytes()).unwrap())
}

fn worker() -> Worker<()> {
    Worker::new(configured(), 1)
}

/// The mode, dialed quota and `on_failure` of each policy, and `!` where it is overridden.
fn in_force(worker: &Worker<()>) -> String {
    let policy = |policy: &crate::config::Policy| {
        let quota = policy.dialed_quota.map_or("-".to_owned(), |quota| quota.to_string());
        let overridden = if policy.is_overridden { "!" } else { "" };
        format!("{:?} {quota} {:?}{overridden}", policy.mode, policy.on_failure)
    };
    worker.config().policies.iter().map(policy).collect::<Vec<_>>().join(", ")
}

const CONFIGURED: &str = "Enforce - Deny, Shadow - Deny, Off - Deny";

fn ok(body: &[u8]) -> CallEnd {
    CallEnd::Answered { status: 200, by: AnsweredBy::Store, body: body.to_vec(), size: body.len() }
}

/// A request arrives, and the fetch that leaves then is answered so.
fn fetched(worker: &mut Worker<()>, ms: u64, reply: &Value) {
    worker.arrives(at(ms));
    let fetch = worker.next_fetch(at(ms)).expect("a fetch is due");
    worker.call_ended(fetch.id, &ok(reply.to_string().as_bytes()), at(ms));
}

fn reply(version: u64, dials: Value) -> Value {
    json!({"version": version, "dials": dials})
}

fn lines(worker: &mut Worker<()>) -> Vec<String> {
    worker.take_notices().iter().map(ToString::to_string).collect()
}

fn failures(worker: &mut Worker<()>) -> u64 {
    let of = |(counted, n): (super::super::Counted, u64)| match counted {
        super::super::Counted::Calls(CallOutcome::DialsFailed) => n,
        other => panic!("{other:?}"),
    };
    worker.take_tally().into_iter().map(of).sum()
}

#[test]
fn the_dial_of_a_policy_comes_before_the_one_for_all_field_by_field() {
    let mut w = worker();
    assert_eq!(in_force(&w), CONFIGURED);
    for (version, dials, expected) in [
        (1, json!([{"policy": "a", "quota": 8}]), "Enforce 8 Deny, Shadow - Deny, Off - Deny"),
        (2, json!([{"policy": "*", "mode": "shadow"}]), "Shadow - Deny, Shadow - Deny, Shadow - Deny"),
        (
            3,
            json!([{"policy": "*", "mode": "off", "on_failure": "allow"},
                   {"policy": "a", "mode": "enforce", "quota": 0}, {"policy": "s", "on_failure": "local"}]),
            "Enforce 0 Allow, Off - Local, Off - Allow",
        ),
        (4, json!([{"policy": "o", "mode": "enforce"}]), "Enforce - Deny, Shadow - Deny, Enforce - Deny"),
        (5, json!([]), CONFIGURED),
    ] {
        fetched(&mut w, version * 5_000, &reply(version, dials));
        assert_eq!(in_force(&w), expected);
    }
    assert_eq!(lines(&mut w), [""; 0]);
}

#[test]
fn overridden_policies_are_told() {
    let mut w = worker();
    let mut reply = reply(1, json!([]));
    reply["overridden"] = json!(["s", "unknown", "s", 7]);
    fetched(&mut w, 0, &reply);
    assert_eq!(in_force(&w), "Enforce - Deny, Shadow - Deny!, Off - Deny");
    assert_eq!(lines(&mut w), [""; 0]);
}

#[test]
fn a_dial_reverts_by_itself_counted_from_receipt() {
    let mut w = worker();
    let dials = json!([{"policy": "a", "quota": 8, "for_ms": 3_000}, {"policy": "*", "mode": "off", "for_ms": 1_000},
                       {"policy": "s", "quota": 1, "for_ms": 0}]);
    fetched(&mut w, 100, &reply(1, dials));
    assert_eq!(in_force(&w), "Off 8 Deny, Off - Deny, Off - Deny");
    w.tick(at(1_099));
    assert_eq!(in_force(&w), "Off 8 Deny, Off - Deny, Off - Deny");
    w.tick(at(1_100));
    assert_eq!(in_force(&w), "Enforce 8 Deny, Shadow - Deny, Off - Deny");
    assert_eq!(w.arrives(at(3_099)).policies[0].dialed_quota, Some(8));
    assert_eq!(w.arrives(at(3_100)).policies[0].dialed_quota, None, "though nobody ticked");
    assert_eq!(in_force(&w), CONFIGURED);
}

#[test]
fn a_reply_tells_anew_how_long_a_dial_has() {
    let mut w = worker();
    let dial = |ms| json!([{"policy": "a", "quota": 8, "for_ms": ms}]);
    fetched(&mut w, 0, &reply(1, dial(6_000)));
    fetched(&mut w, 5_000, &reply(1, dial(2_000)));
    w.tick(at(6_999));
    assert!(in_force(&w).starts_with("Enforce 8"));
    w.tick(at(7_000));
    assert_eq!(in_force(&w), CONFIGURED);
    fetched(&mut w, 10_000, &reply(2, json!([{"policy": "a", "quota": 8, "for_ms": u64::MAX}])));
    w.tick(at(u64::MAX / 2));
    assert!(in_force(&w).starts_with("Enforce 8"), "no time overflows");
}

#[test]
fn what_is_no_dial_is_left_out_and_the_others_apply() {
    for (dials, expected, line) in [
        (json!([{"policy": "a", "mode": "of", "quota": 8}]), "Enforce 8 Deny", "mode in the dial of a"),
        (json!([{"policy": "a", "mode": 3, "quota": 8}]), "Enforce 8 Deny", "mode in the dial of a"),
        (json!([{"policy": "a", "quota": -1, "mode": "off"}]), "Off - Deny", "quota in the dial of a"),
        (json!([{"policy": "a", "quota": "8", "mode": "off"}]), "Off - Deny", "quota in the dial of a"),
        (
            json!([{"policy": "a", "quota": MAX_UNITS + 1, "mode": "off"}]),
            "Off - Deny",
            "quota in the dial of a",
        ),
        (json!([{"policy": "*", "quota": 8, "mode": "off"}]), "Off - Deny", "quota in the dial of *"),
        (
            json!([{"policy": "a", "quota": 8, "on_failure": []}]),
            "Enforce 8 Deny",
            "on_failure in the dial of a",
        ),
        (
            json!([{"policy": "a", "quota": 8, "for_ms": "1h"}]),
            "Enforce - Deny",
            "the dial of a: its for_ms is none",
        ),
        (
            json!([{"policy": "X", "quota": 8}]),
            "Enforce - Deny",
            "the dial of X: no policy can have that name",
        ),
        (
            json!([{"policy": "a", "quota": 8}, {"policy": "a", "mode": "off"}]),
            "Enforce 8 Deny",
            "a second dial of a",
        ),
        (
            json!([7, null, {"policy": "a", "quota": 8}]),
            "Enforce 8 Deny",
            "a dial without a policy, and 1 more",
        ),
        (json!([{"policy": "a", "mode": null, "quota": 8, "more": 1}]), "Enforce 8 Deny", ""),
    ] {
        let mut w = worker();
        fetched(&mut w, 0, &reply(1, dials.clone()));
        assert!(in_force(&w).starts_with(expected), "{dials}: {}", in_force(&w));
        let expected = match line {
            "" => Vec::new(),
            line => vec![format!("of the dials in the store this is ignored: \"{line}\"")],
        };
        assert_eq!(lines(&mut w), expected, "{dials}");
        assert_eq!(failures(&mut w), 0);
    }
}

#[test]
fn the_same_bad_dial_is_told_once_and_another_one_in_ten_seconds() {
    let mut w = worker();
    let bad = |name: &str| reply(1, json!([{"policy": name}, {"policy": "a", "quota": 8}]));
    for fetch in 0..10 {
        fetched(&mut w, fetch * 5_000, &bad("s3cret\n"));
    }
    let said = |name| {
        format!(
            "of the dials in the store this is ignored: \"the dial of {name}: no policy can have that name\""
        )
    };
    assert_eq!(lines(&mut w), [said(r"[token]\n")]);
    fetched(&mut w, 50_000, &bad("Y"));
    assert_eq!(lines(&mut w), [said("Y")]);
    fetched(&mut w, 55_000, &bad("Z"));
    assert_eq!(lines(&mut w), [""; 0]);
}

#[test]
fn no_more_dials_are_read_than_there_can_be() {
    let mut dials: Vec<Value> = (0..65).map(|i| json!({"policy": format!("P{i}"), "quota": 1})).collect();
    dials.push(json!({"policy": "a", "quota": 8}));
    let mut w = worker();
    fetched(&mut w, 0, &reply(1, dials.clone().into()));
    assert_eq!(in_force(&w), CONFIGURED);
    dials.swap(64, 65);
    fetched(&mut w, 5_000, &reply(1, dials.into()));
    assert!(in_force(&w).starts_with("Enforce 8"));
}

#[test]
fn the_dials_of_policies_that_other_filters_of_the_domain_have_are_no_fault_and_take_no_place() {
    let mut dials: Vec<Value> = (0..70).map(|i| json!({"policy": format!("p{i}"), "quota": 1})).collect();
    dials.push(json!({"policy": "a", "quota": 8}));
    let mut reply = reply(1, dials.into());
    reply["overridden"] = (0..70).map(|i| format!("p{i}")).chain(["s".to_owned()]).collect();
    let mut w = worker();
    fetched(&mut w, 0, &reply);
    assert_eq!(in_force(&w), "Enforce 8 Deny, Shadow - Deny!, Off - Deny");
    assert_eq!(lines(&mut w), [""; 0]);
}

#[test]
fn a_body_that_is_no_reply_and_a_call_that_fails_change_nothing() {
    let large = reply(2, json!([])).to_string() + &" ".repeat(64 * 1024);
    let bodies = [
        "",
        "<html>",
        "[]",
        "7",
        "{}",
        r#"{"version":2}"#,
        r#"{"version":-1,"dials":[]}"#,
        r#"{"version":2,"dials":{}}"#,
        &large,
    ];
    let status = |status, by| CallEnd::Answered { status, by, body: b"no s3cret".to_vec(), size: 9 };
    let ends = bodies.iter().map(|body| ok(body.as_bytes())).chain([
        CallEnd::Reset,
        status(503, AnsweredBy::Store),
        status(504, AnsweredBy::Host),
        status(401, AnsweredBy::Store),
    ]);
    let mut w = worker();
    fetched(&mut w, 0, &reply(2, json!([{"policy": "a", "quota": 8}])));
    for (i, end) in ends.enumerate() {
        let now = at(10_000 * (i as u64 + 1));
        w.arrives(now);
        let fetch = w.next_fetch(now).expect("the next fetch is due as ever");
        assert_eq!(w.call_ended(fetch.id, &end, now), super::super::Change::None);
        assert!(in_force(&w).starts_with("Enforce 8"), "{end:?}");
        assert_eq!(failures(&mut w), 1, "{end:?}");
        let lines = lines(&mut w);
        assert!(
            lines.len() == 1
                && lines[0].starts_with("dials could not be fetched, those known stay in force: "),
            "{lines:?}"
        );
        assert!(!lines[0].contains("s3cret"), "{lines:?}");
    }
}

#[test]
fn an_older_store_that_knows_no_dials_is_told_once_and_is_no_fault() {
    let mut w = worker();
    for fetch in 0..20 {
        w.arrives(at(fetch * 5_000));
        let id = w.next_fetch(at(fetch * 5_000)).unwrap().id;
        let end = CallEnd::Answered { status: 404, by: AnsweredBy::Store, body: Vec::new(), size: 0 };
        w.call_ended(id, &end, at(fetch * 5_000));
    }
    assert_eq!(failures(&mut w), 0);
    assert_eq!(lines(&mut w), ["the store knows no dials: it is older than this filter"]);
}

/// The moments at which fetches leave, with requests at these; each is answered at once.
fn fetches(requests: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut w = worker();
    let mut left = Vec::new();
    for ms in requests {
        w.arrives(at(ms));
        if let Some(fetch) = w.next_fetch(at(ms)) {
            left.push(ms);
            w.call_ended(fetch.id, &ok(br#"{"version":0,"dials":[]}"#), at(ms));
        }
    }
    left
}

#[test]
fn dials_are_fetched_with_the_first_traffic_and_then_every_five_seconds_of_it() {
    assert_eq!(fetches((0..=17_000).step_by(10)), [0, 5_000, 10_000, 15_000]);
    assert_eq!(fetches([7, 5_006, 5_007, 60_000, 60_001, 64_999]), [7, 5_007, 60_000]);
    let mut w = worker();
    for ms in 0..20_000 {
        w.tick(at(ms));
        assert!(w.next_fetch(at(ms)).is_none() && w.is_idle(), "not without traffic");
    }
}

/// Another call's reply tells of this version.
fn told(w: &mut Worker<()>, version: u64, ms: u64) {
    w.dials.hear(version, at(ms));
}

#[test]
fn news_are_fetched_at_once_but_not_more_often_than_twice_a_second() {
    let mut w = worker();
    fetched(&mut w, 0, &reply(1, json!([])));
    let mut left = Vec::new();
    // Each reply of the store tells of a newer version than the one before.
    for ms in 1..=3_000 {
        told(&mut w, ms, ms);
        if let Some(fetch) = w.next_fetch(at(ms)) {
            left.push(ms);
            w.call_ended(fetch.id, &ok(reply(ms, json!([])).to_string().as_bytes()), at(ms));
        }
    }
    assert_eq!(left, [500, 1_000, 1_500, 2_000, 2_500, 3_000]);
    told(&mut w, 3_000, 4_000);
    assert!(w.next_fetch(at(4_000)).is_none(), "that is known");
    told(&mut w, 5_000, 4_001);
    assert!(w.next_fetch(at(4_001)).is_some(), "at once");
}

#[test]
fn one_fetch_is_under_way_at_a_time_and_news_meanwhile_are_fetched_after_it() {
    let mut w = worker();
    w.arrives(at(0));
    let first = w.next_fetch(at(0)).unwrap();
    told(&mut w, 3, 10);
    assert!(w.next_fetch(at(900)).is_none());
    w.call_ended(first.id, &ok(reply(2, json!([])).to_string().as_bytes()), at(900));
    let second = w.next_fetch(at(900)).expect("what was told has not come");
    told(&mut w, 4, 910);
    w.call_ended(second.id, &ok(reply(4, json!([])).to_string().as_bytes()), at(920));
    assert!(w.next_fetch(at(2_000)).is_none(), "what was told has come");
}

#[test]
fn a_store_that_tells_of_news_and_serves_none_is_not_hammered() {
    let mut w = worker();
    let mut left = 0;
    for ms in 0..10_000 {
        w.arrives(at(ms));
        told(&mut w, u64::MAX, ms);
        if let Some(fetch) = w.next_fetch(at(ms)) {
            left += 1;
            w.call_not_sent(fetch.id, &CallFault::NoHost, at(ms));
        }
    }
    assert_eq!(left, 10, "one a second");
}

#[test]
fn a_lost_fetch_is_given_up_and_its_late_reply_is_nobodys() {
    let mut w = worker();
    w.arrives(at(0));
    let fetch = w.next_fetch(at(0)).unwrap();
    assert_eq!(fetch.timeout, Duration::from_secs(1), "though requests wait for 50 ms at most");
    w.tick(at(1_999));
    assert_eq!(failures(&mut w), 0);
    w.tick(at(2_000));
    assert_eq!(failures(&mut w), 1);
    w.call_ended(
        fetch.id,
        &ok(reply(1, json!([{"policy": "a", "quota": 8}])).to_string().as_bytes()),
        at(2_001),
    );
    assert_eq!(in_force(&w), CONFIGURED);
    w.arrives(at(5_000));
    assert!(w.next_fetch(at(5_000)).is_some());
}

#[test]
fn a_store_that_is_behind_another_is_not_believed_and_one_that_began_anew_is() {
    let mut w = worker();
    let eight = json!([{"policy": "a", "quota": 8}]);
    fetched(&mut w, 0, &reply(17, eight.clone()));
    fetched(&mut w, 5_000, &reply(16, json!([])));
    assert!(in_force(&w).starts_with("Enforce 8"));
    told(&mut w, 17, 9_000);
    fetched(&mut w, 10_000, &reply(16, json!([])));
    assert!(in_force(&w).starts_with("Enforce 8"), "the other store has told of 17 a second ago");
    fetched(&mut w, 19_000, &reply(1, json!([])));
    assert_eq!(in_force(&w), CONFIGURED);
    fetched(&mut w, 24_000, &reply(1, eight));
    assert!(in_force(&w).starts_with("Enforce 8"), "what is fetched of an equal version holds as well");
}

#[test]
fn while_a_policy_is_off_time_is_heard_of_until_its_fetch_has_left() {
    let mut w = worker();
    w.arrives(at(0));
    assert!(!w.is_idle(), "nothing else may let it leave: requests that no policy counts are no work");
    w.next_fetch(at(0)).unwrap();
    assert!(w.is_idle());
    let text = r#"{"domain":"d","store":{"cluster":"c"},"policies":[{"name":"a","quota":5,"window":"1m"}]}"#;
    let mut w: Worker<()> = Worker::new(Rc::new(Config::parse(text.as_bytes()).unwrap()), 1);
    w.arrives(at(0));
    assert!(w.is_idle(), "it leaves with the first request that is counted");
}

#[test]
fn a_fetch_names_the_domain_and_reports_what_was_counted() {
    let mut w = worker();
    w.count(0, crate::decision::Outcome::MissingIdentity);
    w.take_tally();
    w.arrives(at(0));
    let fetch = w.next_fetch(at(0)).unwrap();
    assert_eq!(fetch.path, "/v1/dials?domain=shop.d");
    let text = fetch.report.unwrap();
    assert!(text.len() <= MAX_REPORT && !text.contains("s3cret"));
    let report: Report = serde_json::from_str(&text).unwrap();
    let told: Vec<_> = report.policies.iter().map(|p| (&*p.name, p.mode, p.missing_identity)).collect();
    assert_eq!(told, [("a", Mode::Enforce, 1), ("s", Mode::Shadow, 0), ("o", Mode::Off, 0)]);
    assert!(report.policies.iter().all(|p| p.quota == 5 && p.on_failure == OnFailure::Deny));
}

#[test]
fn a_report_says_what_is_configured_whatever_is_turned() {
    let mut w = worker();
    fetched(&mut w, 0, &reply(1, json!([{"policy": "*", "mode": "off"}, {"policy": "a", "quota": 8}])));
    w.arrives(at(5_000));
    let report: Report = serde_json::from_str(&w.next_fetch(at(5_000)).unwrap().report.unwrap()).unwrap();
    assert_eq!((report.policies[0].mode, report.policies[0].quota), (Mode::Enforce, 5));
}

/// What the fetch that leaves now reports of policy `a` as refused for want of identity; `None` where none leaves.
fn reported(w: &mut Worker<()>, ms: u64) -> Option<(CallId, u64)> {
    let fetch = w.next_fetch(at(ms))?;
    let report: Report = serde_json::from_str(&fetch.report.unwrap()).unwrap();
    Some((fetch.id, report.policies[0].missing_identity))
}

/// A request that names nobody arrives and is counted, and statistics take note of it.
fn counted(w: &mut Worker<()>, ms: u64) {
    w.arrives(at(ms));
    w.count(0, crate::decision::Outcome::MissingIdentity);
    w.take_tally();
}

#[test]
fn the_last_traffic_is_reported_without_any_more_and_then_there_is_silence() {
    for answer in [ok(br#"{"version":0,"dials":[]}"#), CallEnd::Reset] {
        let mut w = worker();
        let mut left = Vec::new();
        for ms in 0..60_000 {
            if ms < 7_000 && ms % 1_000 == 0 {
                counted(&mut w, ms);
            }
            w.tick(at(ms));
            w.take_notices();
            w.take_tally();
            if let Some((id, requests)) = reported(&mut w, ms) {
                left.push((ms, requests));
                w.call_ended(id, &answer, at(ms));
            }
        }
        let expected = match answer {
            CallEnd::Reset => [(0, 1), (5_000, 6), (10_000, 7)],
            _ => [(0, 1), (5_000, 5), (10_000, 1)],
        };
        assert_eq!(left, expected, "what was not received is told again, and nobody is called without end");
        w.take_tally();
        assert!(w.is_idle());
    }
}

#[test]
fn time_is_heard_of_while_something_is_unreported_and_not_for_a_request_that_nothing_counts() {
    let mut w = worker();
    fetched(&mut w, 0, &reply(0, json!([])));
    w.arrives(at(100));
    assert!(w.is_idle(), "nothing counted it");
    counted(&mut w, 200);
    assert!(!w.is_idle());
    w.tick(at(5_000));
    let (id, requests) = reported(&mut w, 5_000).expect("it is due");
    assert_eq!(requests, 1);
    w.call_ended(id, &ok(br#"{"version":0,"dials":[]}"#), at(5_001));
    assert!(w.is_idle());
}

#[test]
fn what_a_lost_or_unsent_report_told_is_told_again() {
    let mut w = worker();
    counted(&mut w, 0);
    let (_, requests) = reported(&mut w, 0).unwrap();
    assert_eq!(requests, 1);
    w.tick(at(2_000));
    counted(&mut w, 5_000);
    let (id, requests) = reported(&mut w, 5_000).unwrap();
    assert_eq!(requests, 2);
    w.call_not_sent(id, &CallFault::NoHost, at(5_000));
    counted(&mut w, 10_000);
    let (id, requests) = reported(&mut w, 10_000).unwrap();
    assert_eq!(requests, 3);
    w.call_ended(id, &ok(br#"{"version":0,"dials":[]}"#), at(10_000));
    counted(&mut w, 15_000);
    assert_eq!(reported(&mut w, 15_000).unwrap().1, 1);
}

fn any_dial() -> impl Strategy<Value = Value> {
    let mode =
        prop_oneof![Just(json!("enforce")), Just(json!("shadow")), Just(json!("off")), Just(json!(null))];
    let quota =
        prop_oneof![Just(json!(null)), (0..=MAX_UNITS).prop_map(|quota| json!(quota)), Just(json!("x"))];
    let failure = prop_oneof![Just(json!("allow")), Just(json!("local")), Just(json!(null)), Just(json!(1))];
    let time = prop_oneof![Just(json!(null)), (0..20_000_u64).prop_map(|ms| json!(ms)), Just(json!(true))];
    let name = prop_oneof![Just("*"), Just("a"), Just("s"), Just("o"), Just("unknown")];
    (name, mode, quota, failure, time).prop_map(|(policy, mode, quota, on_failure, for_ms)| {
        json!({"policy": policy, "mode": mode, "quota": quota, "on_failure": on_failure, "for_ms": for_ms})
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against the rules told once more, as plainly as they can be.
    #[test]
    fn what_is_in_force_is_what_the_rules_say(dials in prop::collection::vec(any_dial(), 0..6), later in 0..20_000_u64) {
        let mut w = worker();
        fetched(&mut w, 0, &reply(1, dials.clone().into()));
        let config = w.arrives(at(later)).clone();
        let configured = configured();
        prop_assert_eq!(config.policies.len(), POLICIES);
        for (policy, was) in config.policies.iter().zip(&configured.policies) {
            let found = |name: &str| {
                let is_read = |dial: &&&Value| dial["for_ms"].is_null() || dial["for_ms"].is_u64();
                let dial = dials.iter().filter(|dial| dial["policy"] == name).find(|dial| is_read(&dial));
                dial.filter(|dial| dial["for_ms"].as_u64().is_none_or(|ms| ms > later)).cloned().unwrap_or_default()
            };
            let (own, all) = (found(&policy.name), found("*"));
            let first = |field: &str, was: String| {
                own[field].as_str().or(all[field].as_str()).map_or(was, str::to_owned)
            };
            prop_assert_eq!(format!("{:?}", policy.mode).to_lowercase(), first("mode", format!("{:?}", was.mode).to_lowercase()));
            prop_assert_eq!(format!("{:?}", policy.on_failure).to_lowercase(), first("on_failure", format!("{:?}", was.on_failure).to_lowercase()));
            prop_assert_eq!(policy.dialed_quota, own["quota"].as_u64());
            prop_assert_eq!((&policy.name, policy.quota, policy.window), (&was.name, was.quota, was.window));
        }
    }
}
