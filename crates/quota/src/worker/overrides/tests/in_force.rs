//! What is in force after a reply, and which log lines say what was ignored.

use proptest::prelude::*;
use quotagate_protocol::MAX_UNITS;
use serde_json::{Value, json};

use super::*;
use crate::config::MAX_POLICIES;

const POLICIES: usize = 3;

#[test]
fn dial_of_a_policy_precedes_the_dial_for_all_field_by_field() {
    let mut w = worker();
    assert_eq!(in_force(&w), CONFIGURED);
    for (version, dials, expected) in [
        (1, json!([{"policy": "a", "quota": 8}]), "Enforce 8 Deny, Shadow - Deny, Off - Deny"),
        (
            2,
            json!([{"policy": "*", "mode": "shadow"}]),
            "Shadow - Deny, Shadow - Deny, Shadow - Deny",
        ),
        (
            3,
            json!([{"policy": "*", "mode": "off", "on_failure": "allow"},
                   {"policy": "a", "mode": "enforce", "quota": 0}, {"policy": "s", "on_failure": "local"}]),
            "Enforce 0 Allow, Off - Local, Off - Allow",
        ),
        (
            4,
            json!([{"policy": "o", "mode": "enforce"}]),
            "Enforce - Deny, Shadow - Deny, Enforce - Deny",
        ),
        (5, json!([]), CONFIGURED),
    ] {
        fetched(&mut w, version * 5_000, &reply(version, dials));
        assert_eq!(in_force(&w), expected);
    }
    assert_eq!(lines(&mut w), [""; 0]);
}

#[test]
fn overridden_policies_are_marked() {
    let mut w = worker();
    let mut reply = reply(1, json!([]));
    reply["overridden"] = json!(["s", "unknown", "s", 7]);
    fetched(&mut w, 0, &reply);
    assert_eq!(in_force(&w), "Enforce - Deny, Shadow - Deny!, Off - Deny");
    // An override of a party in all policies.
    reply["overridden"] = vec![json!("*"); 10_000].into();
    reply["version"] = json!(2);
    fetched(&mut w, 5_000, &reply);
    assert_eq!(in_force(&w), "Enforce - Deny!, Shadow - Deny!, Off - Deny!");
    assert_eq!(lines(&mut w), [""; 0]);
}

#[test]
fn share_of_a_shadow_policy_is_enforced_and_a_wrong_share_refuses_nobody() {
    let of = |share: Value| {
        let mut w = worker();
        let dials = json!([{"policy": "a", "mode": "shadow", "enforced_for": share}]);
        fetched(&mut w, 0, &reply(1, dials));
        let a = &w.config().policies[0];
        (a.mode, a.enforced_for.is_some(), lines(&mut w).len())
    };
    assert_eq!(of(json!({"percent": 5})), (Mode::Shadow, true, 0));
    assert_eq!(of(json!({"only": ["jwt.sub=x"]})), (Mode::Shadow, true, 0));
    for wrong in [
        json!({}),
        json!({"percent": 101}),
        json!({"percent": -1}),
        json!({"percent": 5, "only": 7}),
        json!({"percent": 5, "more": 7}),
        json!({"only": vec!["jwt.sub=x"; 33]}),
        json!({"only": ["x".repeat(2049)]}),
        json!(7),
    ] {
        assert_eq!(of(wrong), (Mode::Shadow, false, 1));
    }
    // It belongs to the mode of the same dial.
    let mut w = worker();
    let dials = json!([{"policy": "a", "mode": "enforce"}, {"policy": "*", "mode": "shadow", "enforced_for": {"percent": 5}}]);
    fetched(&mut w, 0, &reply(1, dials));
    let shares: Vec<_> = w.config().policies.iter().map(|of| of.enforced_for.is_some()).collect();
    assert_eq!(shares, [false, true, true]);
}

#[test]
fn dial_reverts_by_itself_counted_from_receipt() {
    let mut w = worker();
    let dials = json!([{"policy": "a", "quota": 8, "for_ms": 3_000}, {"policy": "*", "mode": "off", "for_ms": 1_000},
                       {"policy": "s", "quota": 1, "for_ms": 0}]);
    fetched(&mut w, 100, &reply(1, dials));
    assert_eq!(in_force(&w), "Off 8 Deny, Off - Deny, Off - Deny");
    w.tick(at(1_099));
    assert_eq!(in_force(&w), "Off 8 Deny, Off - Deny, Off - Deny");
    w.tick(at(1_100));
    assert_eq!(in_force(&w), "Enforce 8 Deny, Shadow - Deny, Off - Deny");
    assert_eq!(w.observe_traffic(at(3_099)).policies[0].dialed_quota, Some(8));
    assert_eq!(w.observe_traffic(at(3_100)).policies[0].dialed_quota, None, "even without a tick");
    assert_eq!(in_force(&w), CONFIGURED);
}

#[test]
fn each_reply_sets_the_remaining_time_of_a_dial() {
    let mut w = worker();
    let dial = |ms| json!([{"policy": "a", "quota": 8, "for_ms": ms}]);
    fetched(&mut w, 0, &reply(1, dial(6_000)));
    fetched(&mut w, 5_000, &reply(1, dial(2_000)));
    w.tick(at(6_999));
    assert!(in_force(&w).starts_with("Enforce 8"));
    w.tick(at(7_000));
    assert_eq!(in_force(&w), CONFIGURED);
    fetched(&mut w, 10_000, &reply(2, json!([{"policy": "a", "quota": 8, "for_ms": u64::MAX}])));
    // Half of what a time can hold.
    w.tick(at(u64::MAX / 2_000_000));
    assert!(in_force(&w).starts_with("Enforce 8"), "no time overflows");
}

#[test]
fn invalid_dials_are_ignored_and_the_others_apply() {
    for (dials, expected, line) in [
        (
            json!([{"policy": "a", "mode": "of", "quota": 8}]),
            "Enforce 8 Deny",
            "mode in the dial of a",
        ),
        (
            json!([{"policy": "a", "mode": 3, "quota": 8}]),
            "Enforce 8 Deny",
            "mode in the dial of a",
        ),
        (
            json!([{"policy": "a", "quota": -1, "mode": "off"}]),
            "Off - Deny",
            "quota in the dial of a",
        ),
        (
            json!([{"policy": "a", "quota": "8", "mode": "off"}]),
            "Off - Deny",
            "quota in the dial of a",
        ),
        (
            json!([{"policy": "a", "quota": MAX_UNITS + 1, "mode": "off"}]),
            "Off - Deny",
            "quota in the dial of a",
        ),
        (
            json!([{"policy": "*", "quota": 8, "mode": "off"}]),
            "Off - Deny",
            "quota in the dial of *",
        ),
        (
            json!([{"policy": "a", "quota": 8, "on_failure": []}]),
            "Enforce 8 Deny",
            "on_failure in the dial of a",
        ),
        (
            json!([{"policy": "a", "quota": 8, "for_ms": "1h"}]),
            "Enforce - Deny",
            "the dial of a: its for_ms is not a whole number",
        ),
        (
            json!([{"policy": "X!", "quota": 8}]),
            "Enforce - Deny",
            "the dial of X!: no policy can have that name",
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
            line => vec![format!("part of the store's dials is ignored: \"{line}\"")],
        };
        assert_eq!(lines(&mut w), expected, "{dials}");
        assert_eq!(failures(&mut w), 0);
    }
}

#[test]
fn same_invalid_dial_is_logged_once_and_another_at_most_every_ten_seconds() {
    let mut w = worker();
    let bad = |name: &str| reply(1, json!([{"policy": name}, {"policy": "a", "quota": 8}]));
    for fetch in 0..10 {
        fetched(&mut w, fetch * 5_000, &bad("s3cret\n"));
    }
    let said = |name| {
        format!(
            "part of the store's dials is ignored: \"the dial of {name}: no policy can have that name\""
        )
    };
    assert_eq!(lines(&mut w), [said(r"[token]\n")]);
    fetched(&mut w, 50_000, &bad("Y!"));
    assert_eq!(lines(&mut w), [said("Y!")]);
    fetched(&mut w, 55_000, &bad("Z"));
    assert_eq!(lines(&mut w), [""; 0]);
}

#[test]
fn at_most_as_many_dials_are_read_as_policies_can_have() {
    let mut dials: Vec<Value> =
        (0..=MAX_POLICIES).map(|i| json!({"policy": format!("P!{i}"), "quota": 1})).collect();
    dials.push(json!({"policy": "a", "quota": 8}));
    let mut w = worker();
    fetched(&mut w, 0, &reply(1, dials.clone().into()));
    assert_eq!(in_force(&w), CONFIGURED);
    dials.swap(MAX_POLICIES, MAX_POLICIES + 1);
    fetched(&mut w, 5_000, &reply(1, dials.into()));
    assert!(in_force(&w).starts_with("Enforce 8"));
}

#[test]
fn dials_for_other_filters_of_the_domain_are_ignored_and_not_counted() {
    let mut dials: Vec<Value> =
        (0..70).map(|i| json!({"policy": format!("p{i}"), "quota": 1})).collect();
    dials.push(json!({"policy": "a", "quota": 8}));
    let mut reply = reply(1, dials.into());
    reply["overridden"] = (0..70).map(|i| format!("p{i}")).chain(["s".to_owned()]).collect();
    let mut w = worker();
    fetched(&mut w, 0, &reply);
    assert_eq!(in_force(&w), "Enforce 8 Deny, Shadow - Deny!, Off - Deny");
    assert_eq!(lines(&mut w), [""; 0]);
}

#[test]
fn malformed_reply_and_failed_call_change_nothing() {
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
    let status =
        |status, by| CallEnd::Answered { status, by, body: b"no s3cret".to_vec(), size: 9 };
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
        w.observe_traffic(now);
        let fetch = w.next_fetch(now).expect("the next fetch is due as usual");
        w.call_ended(fetch.id, &end, now);
        assert!(w.calls.breaker.lets_through(now), "{end:?}");
        assert!(in_force(&w).starts_with("Enforce 8"), "{end:?}");
        assert_eq!(failures(&mut w), 1, "{end:?}");
        let lines = lines(&mut w);
        assert!(
            lines.len() == 1
                && lines[0]
                    .starts_with("fetching dials failed, so the last known dials stay in force: "),
            "{lines:?}"
        );
        assert!(!lines[0].contains("s3cret"), "{lines:?}");
    }
}

#[test]
fn older_store_without_dials_is_logged_once_and_is_not_a_failure() {
    let mut w = worker();
    for fetch in 0..20 {
        w.observe_traffic(at(fetch * 5_000));
        let id = w.next_fetch(at(fetch * 5_000)).unwrap().id;
        let end =
            CallEnd::Answered { status: 404, by: AnsweredBy::Store, body: Vec::new(), size: 0 };
        w.call_ended(id, &end, at(fetch * 5_000));
    }
    assert_eq!(failures(&mut w), 0);
    assert_eq!(lines(&mut w), ["the store does not support dials: it is older than this filter"]);
}

fn any_dial() -> impl Strategy<Value = Value> {
    let mode = prop_oneof![
        Just(json!("enforce")),
        Just(json!("shadow")),
        Just(json!("off")),
        Just(json!(null))
    ];
    let quota = prop_oneof![
        Just(json!(null)),
        (0..=MAX_UNITS).prop_map(|quota| json!(quota)),
        Just(json!("x"))
    ];
    let failure =
        prop_oneof![Just(json!("allow")), Just(json!("local")), Just(json!(null)), Just(json!(1))];
    let time =
        prop_oneof![Just(json!(null)), (0..20_000_u64).prop_map(|ms| json!(ms)), Just(json!(true))];
    let name = prop_oneof![Just("*"), Just("a"), Just("s"), Just("o"), Just("unknown")];
    (name, mode, quota, failure, time).prop_map(|(policy, mode, quota, on_failure, for_ms)| {
        json!({"policy": policy, "mode": mode, "quota": quota, "on_failure": on_failure, "for_ms": for_ms})
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Compares with a second, simpler form of the rules.
    #[test]
    fn dials_in_force_follow_the_rules(dials in prop::collection::vec(any_dial(), 0..6), later in 0..20_000_u64) {
        let mut w = worker();
        fetched(&mut w, 0, &reply(1, dials.clone().into()));
        let config = w.observe_traffic(at(later)).clone();
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
            prop_assert_eq!((&policy.name, policy.quota, policy.window.clone()), (&was.name, was.quota, was.window.clone()));
        }
    }
}
