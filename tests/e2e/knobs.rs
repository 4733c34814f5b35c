//! Every knob of a policy once; the tables of what each may be are in the tests of the core.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{self, Client, Request};
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{edits, jwt, ports, wait};
use serde_json::{Value, json};

use crate::rig::{Rig, document, one_each, per_caller, reset_of};

const LIMIT: Duration = Duration::from_secs(10);

/// `one_each` for callers, with these fields.
fn policy(name: &str, fields: &Value) -> Value {
    let mut policy = one_each(name, &["caller"]);
    for (field, value) in fields.as_object().unwrap() {
        policy[field] = value.clone();
    }
    policy
}

/// How many of `requests` pass; all else is refused.
fn admitted(rig: &Rig, request: &Request, requests: usize) -> Result<usize> {
    let statuses = rig.statuses(&vec![request.clone(); requests])?;
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    Ok(statuses.iter().filter(|status| **status == 200).count())
}

fn with(path: &str, claims: &Value) -> Request {
    Request::get(path).bearer(&jwt::token_with(claims).unwrap())
}

#[test]
fn quotas_by_claim_tier_and_override() -> Result<()> {
    let rig = Rig::start_with(
        document(json!([
            policy("claim", &json!({"quota_from": {"jwt": {"claim": "quota"}, "max": 3}})),
            policy("tier", &json!({"tiers": {"source": {"jwt": {"claim": "plan"}}, "quotas": {"gold": 3}}})),
            policy(
                "override",
                &json!({"overrides": [
                    {"value": "jwt.sub=alice", "quota": 3}, {"network": "10.0.0.0/8", "unlimited": true}, {"network": "192.0.2.0/24", "quota": 0}
                ]})
            ),
            policy(
                "all",
                &json!({
                    "quota_from": {"jwt": {"claim": "quota"}}, "tiers": {"source": {"jwt": {"claim": "plan"}}, "quotas": {"gold": 3}},
                    "overrides": [{"value": "jwt.sub=a", "quota": 4}]
                })
            )
        ])),
        |options| options.edit(edits::trusted_hops(1)),
    )?;
    let from = |address: &str| Request::get("/override").from_address(address);
    let cases = [
        (with("/claim", &json!({"sub": "a", "quota": 2})), 2),
        (with("/claim", &json!({"sub": "b", "quota": 9})), 3),
        (with("/claim", &json!({"sub": "c", "quota": 2.5})), 1),
        (with("/claim", &json!({"sub": "d"})), 1),
        (with("/tier", &json!({"sub": "a", "plan": "gold"})), 3),
        (with("/tier", &json!({"sub": "b", "plan": "silver"})), 1),
        (with("/override", &json!({"sub": "alice"})), 3),
        (with("/override", &json!({"sub": "bob"})), 1),
        (from("10.1.2.3"), 5),
        (from("192.0.2.1"), 0),
        (from("198.51.100.1"), 1),
        (with("/all", &json!({"sub": "a", "quota": 2, "plan": "gold"})), 4),
        (with("/all", &json!({"sub": "b", "quota": 2, "plan": "gold"})), 2),
        (with("/all", &json!({"sub": "c", "plan": "gold"})), 3),
        (with("/all", &json!({"sub": "d"})), 1),
    ];
    for (request, expected) in cases {
        assert_eq!(admitted(&rig, &request, 5)?, expected, "{request:?}");
    }
    assert!(!rig.partitions("override")?.iter().any(|party| party == "ip=10.1.2.3"), "unlimited asks nobody");
    Ok(())
}

#[test]
fn costs_by_number_and_by_header() -> Result<()> {
    let rig = Rig::start(document(json!([
        policy("number", &json!({"quota": 7, "cost": 3})),
        policy(
            "header",
            &json!({"quota": 7, "cost": {"header": {"name": "x-cost", "default": 2, "max": 4}}})
        )
    ])))?;
    let mut client = rig.client()?;
    let mut remaining = |request: Request| -> Result<(u16, String)> {
        let response = client.send(&request)?;
        Ok((response.status, response.header("x-ratelimit-remaining").unwrap_or_default().to_owned()))
    };
    let left = |status: u16, remaining: &str| (status, remaining.to_owned());
    assert_eq!(remaining(Request::get("/number"))?, left(200, "4"));
    assert_eq!(remaining(Request::get("/number"))?, left(200, "1"));
    assert_eq!(remaining(Request::get("/number"))?, left(429, "1"));
    let cost = |cost: &str| Request::get("/header").header("x-cost", cost);
    assert_eq!(remaining(cost("1"))?, left(200, "6"));
    assert_eq!(remaining(cost("-1"))?, left(200, "4"), "rubbish is the default");
    assert_eq!(remaining(cost("99999999999999999999999"))?, left(200, "0"), "too much is the largest");
    assert_eq!(remaining(cost("1"))?, left(429, "0"));
    Ok(())
}

#[test]
fn staggered_windows_end_at_different_times() -> Result<()> {
    let rig = Rig::start(document(json!([
        policy("staggered", &json!({"stagger": true, "quota": 9})),
        policy("plain", &json!({"quota": 9}))
    ])))?;
    let mut client = rig.client()?;
    let mut reset = |path: &str, who: &str| -> Result<u64> {
        Ok(reset_of(&client.send(&with(path, &json!({"sub": who})))?))
    };
    assert!(reset("/plain", "alice")?.abs_diff(reset("/plain", "bob")?) <= 1);
    let (alice, bob) = (reset("/staggered", "alice")?, reset("/staggered", "bob")?);
    assert!(alice.abs_diff(bob) > 60, "{alice} and {bob}");
    assert!(reset("/staggered", "alice")?.abs_diff(alice) <= 1, "always the same");
    Ok(())
}

#[test]
fn what_a_policy_refuses_counts_where_it_says_so() -> Result<()> {
    let rig = Rig::start(document(json!([policy("denied", &json!({"count_denied": true}))])))?;
    assert_eq!(admitted(&rig, &Request::get("/denied"), 4)?, 1);
    let key = rig.redis.cli(&["KEYS", "*:denied:*"])?.lines();
    assert_eq!(rig.redis.cli(&["GET", &key])?.lines(), "4");
    Ok(())
}

/// A policy of five failed log-ins.
fn log_ins() -> Result<Rig> {
    Rig::start(document(json!([policy("login", &json!({"quota": 5, "count": {"status": [401, 403]}}))])))
}

#[test]
fn five_wrong_passwords_in_flight_are_not_six() -> Result<()> {
    let rig = log_ins()?;
    let wrong =
        Request::post("/login", b"").header("x-answer-status", "401").header("x-answer-delay-ms", "300");
    let mut clients = (0..12).map(|_| rig.client()).collect::<Result<Vec<Client>>>()?;
    for client in &mut clients {
        client.start(&wrong)?;
    }
    let mut statuses =
        clients.iter_mut().map(|client| Ok(client.finish()?.status)).collect::<Result<Vec<_>>>()?;
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![401; 5], vec![429; 7]].concat());
    assert_eq!(rig.upstream.requests(), 5);
    Ok(())
}

#[test]
fn a_right_password_costs_nothing() -> Result<()> {
    let rig = log_ins()?;
    let answered = |status: &str| Request::post("/login", b"").header("x-answer-status", status);
    let mut client = rig.client()?;
    for _ in 0..20 {
        let response = client.send(&answered("200"))?;
        assert_eq!((response.status, response.header("x-ratelimit-remaining")), (200, Some("5")));
    }
    for (remaining, status) in ["4", "3", "2", "1", "0"].iter().zip(["401", "403", "401", "401", "403"]) {
        let response = client.send(&answered(status))?;
        assert_eq!(
            (response.status.to_string().as_str(), response.header("x-ratelimit-remaining")),
            (status, Some(*remaining))
        );
    }
    assert_eq!(client.send(&answered("200"))?.status, 429);
    Ok(())
}

#[test]
fn a_share_of_the_quota_is_there_without_the_store() -> Result<()> {
    let upstream = Upstream::start()?;
    let mut document = document(json!([policy("local", &json!({"quota": 20, "on_failure": "local"}))]));
    document["store"] =
        json!({"cluster": "quota_store", "timeout": "100ms", "on_failure": "deny", "local_share": 0.2});
    let envoy = Envoy::start(&EnvoyOptions::new(upstream.port(), ports::free()?).document(document))?;
    let mut client = Client::connect(envoy.port())?;
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(client.send(&Request::get("/local"))?.status);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    Ok(())
}

#[test]
fn leased_units_are_all_used_or_returned() -> Result<()> {
    const REQUESTS: usize = 400;
    let lease = json!({"quota": 100_000, "precision": "lease", "lease": {"ahead": "1s", "max": 100}});
    let rig = Rig::start(document(json!([policy("leased", &lease)])))?;
    assert_eq!(admitted(&rig, &Request::get("/leased"), REQUESTS)?, REQUESTS);
    let key = rig.redis.cli(&["KEYS", "*:leased:*"])?.lines();
    wait::until_true("the idle lease to go back", LIMIT, || {
        let used: usize = rig.redis.cli(&["GET", &key])?.lines().parse()?;
        assert!(used >= REQUESTS, "{used}");
        Ok(used == REQUESTS)
    })?;
    let calls = rig.envoy.stats("cluster.quota_store.upstream_rq_total")?;
    let calls: usize = calls.trim().rsplit(' ').next().unwrap_or_default().parse()?;
    assert!(calls < REQUESTS / 4, "{calls} calls for {REQUESTS} requests, one after the other");
    Ok(())
}

#[test]
fn the_stores_token_is_sent() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("token");
    fs::write(&file, "s3cret-token\n")?;
    let store = StoreProcess::start("memory:", &["--token-file", file.to_str().unwrap()])?;
    let upstream = Upstream::start()?;
    let mut logs = String::new();
    for (token, status) in [(Some("s3cret-token"), 200), (Some("another"), 503), (None, 503)] {
        let mut document = document(json!([per_caller(5)]));
        if let Some(token) = token {
            document["store"]["token"] = json!(token);
        }
        let envoy = Envoy::start(&EnvoyOptions::new(upstream.port(), store.port()).document(document))?;
        assert_eq!(http::get(envoy.port(), "/")?.status, status, "{token:?}");
        logs += &envoy.log();
    }
    assert!(!(logs + &store.log()).contains("s3cret-token"));
    Ok(())
}
