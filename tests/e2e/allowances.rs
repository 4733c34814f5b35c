//! How many units a partition has, and how many a request takes.
//!
//! | field | expected |
//! | --- | --- |
//! | `quota_from` | a whole number in a claim, at most `max`; for any other value `quota` applies |
//! | `tiers` | selected by a claim; for an unknown or missing tier `quota` applies |
//! | `overrides` by `value` | raw for one source, encoded for several, raw for a secret key |
//! | `overrides` by `network` | the address behind a trusted hop, IPv4, mapped and IPv6 |
//! | precedence | the first override that matches, then `quota_from`, tier, `quota` |
//! | what operators see | the quota in force, at a store that counted nothing |
//! | `cost` | a number, or a header within its bounds; above the quota: no store call |
//! | `quota: 0` | refuses every request |

use std::time::Duration;

use anyhow::Result;
use quotagate_support::edits;
use quotagate_support::envoy::EnvoyOptions;
use quotagate_support::http::{Request, Response};
use quotagate_support::jwt;
use quotagate_support::store::StoreProcess;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{Rig, document};

const LIMIT: Duration = Duration::from_secs(30);

/// A policy for each verified user with these additional fields.
fn per_user(fields: Value) -> Value {
    let mut document = document(json!([policy("per-user", &["user"], fields)]));
    document["identities"]["user"] = json!([{"jwt": {"claim": "sub"}}]);
    document
}

/// A policy with quota 2, unless `fields` sets another.
fn policy(name: &str, partition_by: &[&str], fields: Value) -> Value {
    let mut policy =
        json!({"name": name, "partition_by": partition_by, "quota": 2, "window": "366d"});
    let fields = fields.as_object().expect("fields");
    policy.as_object_mut().expect("a policy").extend(fields.clone());
    policy
}

fn with_claims(claims: Value) -> Result<Request> {
    Ok(Request::get("/").bearer(&jwt::token_with(&claims)?))
}

fn user(name: &str) -> Result<Request> {
    with_claims(json!({"sub": name}))
}

/// Asserts that exactly `quota` of these requests pass and that each answer shows this quota.
fn assert_quota(rig: &Rig, request: &Request, quota: u64, what: &str) -> Result<()> {
    let mut client = rig.client()?;
    for n in 0..=quota {
        let response = client.send(request)?;
        assert_eq!(
            response.status,
            if n < quota { 200 } else { 429 },
            "{what}: request {n} of {quota}"
        );
        assert_eq!(response.header_all("x-ratelimit-limit"), [quota.to_string()], "{what}");
    }
    Ok(())
}

/// Asserts that these requests pass without being counted.
fn assert_unlimited(rig: &Rig, request: &Request, what: &str) -> Result<()> {
    let mut client = rig.client()?;
    for _ in 0..6 {
        let response = client.send(request)?;
        assert_eq!((response.status, response.header("x-ratelimit-limit")), (200, None), "{what}");
    }
    Ok(())
}

#[test]
fn every_store_knows_the_quota_of_a_tier() -> Result<()> {
    let tiers = json!({"source": {"jwt": {"claim": "tier"}}, "quotas": {"free": 3, "gold": 9}});
    let rig = Rig::start(per_user(json!({"quota": 5, "tiers": tiers})))?;
    let of = |sub: &str, tier: &str| with_claims(json!({"sub": sub, "tier": tier}));
    let requests = [of("ann", "free")?, of("bob", "gold")?, of("eve", "none")?];
    assert_eq!(rig.statuses(&requests)?, [200, 200, 200]);
    let other = StoreProcess::start(&rig.redis.url(), &[])?;
    for (user, quota) in [("ann", 3), ("bob", 9), ("eve", 5)] {
        let path = format!("/v1/usage?partition=jwt.sub={user}");
        // Proxies report their policies within seconds.
        let usage = wait::until("the other store to know the policy", LIMIT, || {
            Ok(Some(other.operate("GET", &path, &Value::Null)?))
        })?;
        let found = &usage["found"][0];
        assert_eq!((&found["used"], &found["quota"]), (&json!(1), &json!(quota)), "{usage}");
    }
    Ok(())
}

#[test]
fn quota_from_accepts_only_whole_numbers() -> Result<()> {
    let rig = Rig::start(per_user(
        json!({"quota": 2, "quota_from": {"jwt": {"claim": "quota"}, "max": 4}}),
    ))?;
    let cases = [
        (json!(3), 3),
        (json!(3.0), 3),
        (json!(0), 0),
        (json!(4), 4),
        (json!(5), 4),
        (json!(9_007_199_254_740_991_u64), 4),
        (json!(-1), 2),
        (json!(2.5), 2),
        (json!("3"), 3),
        // Envoy stores a number in eight bytes.
        (json!("00000003"), 3),
        (json!("3.0"), 2),
        (json!(true), 2),
        (json!(null), 2),
        (json!([3]), 2),
        (json!({"quota": 3}), 2),
    ];
    for (i, (claim, quota)) in cases.into_iter().enumerate() {
        let what = format!("the claim {claim}");
        assert_quota(
            &rig,
            &with_claims(json!({"sub": format!("user-{i}"), "quota": claim}))?,
            quota,
            &what,
        )?;
    }
    assert_quota(&rig, &user("without")?, 2, "no claim")
}

#[test]
fn quota_from_reads_nested_claims_and_other_payloads() -> Result<()> {
    let from = json!({"jwt": {"payload": "other", "claim": "limits.requests"}});
    let rig = Rig::start_with(per_user(json!({"quota_from": from})), |options| {
        options.edit(edits::second_issuer)
    })?;
    let other = jwt::OTHER.token(&json!({"limits": {"requests": 3}}))?;
    assert_quota(&rig, &user("alice")?.header("x-other-token", &other), 3, "with a second token")?;
    assert_quota(&rig, &user("bob")?, 2, "with one token")
}

#[test]
fn tier_sets_the_quota() -> Result<()> {
    let tiers =
        json!({"source": {"jwt": {"claim": "plan"}}, "quotas": {"free": 1, "gold": 3, "none": 0}});
    let rig = Rig::start(per_user(json!({"quota": 2, "tiers": tiers})))?;
    let plans = [
        (json!("free"), 1),
        (json!("gold"), 3),
        (json!("none"), 0),
        (json!("Gold"), 2),
        (json!("silver"), 2),
        (json!(""), 2),
        (json!(3), 2),
        (json!(["gold"]), 3),
        (json!([1, null, "gold"]), 3),
        (json!([["free"], {"a": "free"}, true, "gold"]), 3),
    ];
    for (i, (plan, quota)) in plans.into_iter().enumerate() {
        let what = format!("the plan {plan}");
        assert_quota(
            &rig,
            &with_claims(json!({"sub": format!("user-{i}"), "plan": plan}))?,
            quota,
            &what,
        )?;
    }
    assert_quota(&rig, &user("without")?, 2, "no plan")
}

#[test]
fn override_wins_over_quota_from_over_tier_over_quota() -> Result<()> {
    let rig = Rig::start(per_user(json!({
        "quota": 2,
        "quota_from": {"jwt": {"claim": "quota"}},
        "tiers": {"source": {"jwt": {"claim": "plan"}}, "quotas": {"gold": 5}},
        "overrides": [
            {"value": "alice", "quota": 3},
            {"value": "root", "unlimited": true}
        ]
    })))?;
    let all = |name: &str| with_claims(json!({"sub": name, "quota": 4, "plan": "gold"}));
    assert_quota(&rig, &all("alice")?, 3, "the override")?;
    assert_unlimited(&rig, &all("root")?, "the override")?;
    assert_quota(&rig, &all("bob")?, 4, "quota_from")?;
    assert_quota(&rig, &with_claims(json!({"sub": "carol", "plan": "gold"}))?, 5, "the tier")?;
    assert_quota(&rig, &user("dave")?, 2, "the quota")
}

#[test]
fn override_of_several_sources_or_entries_names_the_encoded_partition() -> Result<()> {
    let rig = Rig::start(document(json!([
        policy(
            "per-caller",
            &["caller"],
            json!({
                "match": {"path": {"exact": "/caller"}},
                "overrides": [{"value": "jwt.sub=alice", "quota": 3}, {"value": "ip=127.0.0.1", "quota": 1}]
            })
        ),
        policy(
            "per-pair",
            &["tenant", "caller"],
            json!({
                "match": {"path": {"exact": "/pair"}},
                "overrides": [{"value": "header.x-tenant=acme%20inc,jwt.sub=alice", "quota": 1}]
            })
        )
    ])))?;
    let token = jwt::token("alice")?;
    assert_quota(&rig, &Request::get("/caller").bearer(&token), 3, "the subject")?;
    assert_quota(&rig, &Request::get("/caller"), 1, "the address")?;
    let pair = |tenant: &str| Request::get("/pair").header("x-tenant", tenant);
    assert_quota(&rig, &pair("acme inc").bearer(&token), 1, "the pair")?;
    assert_quota(&rig, &pair("acme").bearer(&token), 2, "another tenant")?;
    assert_quota(&rig, &pair("acme inc"), 2, "another caller")
}

#[test]
fn invariant_5_override_of_a_secret_key_is_raw_and_leaves_no_trace() -> Result<()> {
    let overrides =
        json!([{"value": "s3cret-vip", "quota": 3}, {"value": "s3cret-root", "unlimited": true}]);
    let rig = Rig::start(document(json!([policy(
        "per-key",
        &["key"],
        json!({"overrides": overrides})
    )])))?;
    let key = |value: &str| Request::get("/").header("x-api-key", value);
    assert_quota(&rig, &key("s3cret-vip"), 3, "the override")?;
    assert_unlimited(&rig, &key("s3cret-root"), "the override")?;
    assert_quota(&rig, &key("s3cret-other"), 2, "no override")?;
    let seen = [rig.redis.cli(&["KEYS", "*"])?.lines(), rig.envoy.log(), rig.store.log()].concat();
    assert!(!seen.contains("s3cret"), "{seen}");
    Ok(())
}

#[test]
fn override_by_network_reads_the_trusted_address() -> Result<()> {
    let overrides = json!([
        {"network": "10.1.0.0/16", "quota": 3},
        {"network": "10.0.0.0/8", "unlimited": true},
        {"network": "2001:db8:1::/48", "quota": 1},
        {"network": "2001:db8:2::7/128", "unlimited": true}
    ]);
    let rig = Rig::start_with(
        document(json!([policy("per-caller", &["caller"], json!({"overrides": overrides}))])),
        |options| options.edit(edits::trusted_hops(1)),
    )?;
    let from = |address: &str| Request::get("/").from_address(address);
    assert_quota(&rig, &from("10.1.255.255"), 3, "the first network that matches")?;
    assert_unlimited(&rig, &from("10.2.0.1"), "the second")?;
    assert_unlimited(&rig, &from("::ffff:10.3.0.1"), "the second, mapped into IPv6")?;
    assert_quota(&rig, &from("11.0.0.1"), 2, "none")?;
    assert_quota(&rig, &from("2001:db8:1:ffff::1"), 1, "the third")?;
    assert_quota(&rig, &from("2001:db8:3::1"), 2, "none")?;
    assert_unlimited(&rig, &from("2001:db8:2::7"), "one address of a /64")?;
    assert_quota(&rig, &from("2001:db8:2::8"), 2, "its neighbour, known by the /64")?;
    // The policy counts by subject, so the address does not matter.
    assert_quota(
        &rig,
        &user("alice")?.from_address("10.2.0.1"),
        2,
        "a subject within the network",
    )?;
    // The client writes every entry before the last one, so they are not trusted.
    assert_quota(&rig, &from("10.2.0.1, 192.0.2.9"), 2, "a claimed address")?;
    let counted = inspect::counters(&rig.redis, "per-caller")?;
    assert!(
        !counted.contains_key("ip=10.2.0.1"),
        "an unlimited partition must make no store call: {counted:?}"
    );
    Ok(())
}

#[test]
fn cost_is_reserved_in_one_step() -> Result<()> {
    let rig = Rig::start(per_user(json!({"quota": 7, "cost": 3})))?;
    let mut client = rig.client()?;
    let mut send = || client.send(&user("alice")?);
    let remaining = |response: &Response| {
        (response.status, response.header("x-ratelimit-remaining").map(str::to_owned))
    };
    assert_eq!(remaining(&send()?), (200, Some("4".to_owned())));
    assert_eq!(remaining(&send()?), (200, Some("1".to_owned())));
    assert_eq!(send()?.status, 429, "one unit is left, the request costs three");
    assert_eq!(inspect::counters(&rig.redis, "per-user")?.get("jwt.sub=alice"), Some(&6));
    Ok(())
}

#[test]
fn cost_from_a_header_stays_within_its_bounds() -> Result<()> {
    let rig = Rig::start(per_user(json!({
        "quota": 100, "cost": {"header": {"name": "x-cost", "default": 2, "max": 5}}
    })))?;
    let cases: [(&[&str], u64); 17] = [
        (&["1"], 1),
        (&["4"], 4),
        (&["5"], 5),
        (&["6"], 5),
        (&["99999999999999999999"], 5),
        (&["18446744073709551617"], 5),
        (&[], 2),
        (&[""], 2),
        (&["0"], 2),
        (&["-1"], 2),
        (&["1.5"], 2),
        (&["1e0"], 2),
        (&["0x3"], 2),
        (&["3 3"], 2),
        (&["3,3"], 5),
        (&["3", "3"], 5),
        (&["٣"], 2),
    ];
    let mut client = rig.client()?;
    for (i, (values, cost)) in cases.into_iter().enumerate() {
        let name = format!("user-{i}");
        let request =
            values.iter().fold(user(&name)?, |request, value| request.header("x-cost", value));
        let response = client.send(&request)?;
        assert_eq!(response.status, 200, "{values:?}");
        assert_eq!(response.header_all("x-ratelimit-used"), [cost.to_string()], "{values:?}");
        let counted = inspect::counters(&rig.redis, "per-user")?;
        assert_eq!(counted.get(&format!("jwt.sub={name}")), Some(&cost), "{values:?}");
    }
    Ok(())
}

#[test]
fn cost_above_the_quota_is_refused_without_a_store_call() -> Result<()> {
    let cost = json!({"header": {"name": "x-cost", "max": 10}});
    let rig =
        Rig::start_with(per_user(json!({"quota": 3, "cost": cost})), EnvoyOptions::through_store)?;
    let costs = |cost: &str| Ok::<_, anyhow::Error>(user("alice")?.header("x-cost", cost));
    let mut client = rig.client()?;
    for _ in 0..2 {
        let response = client.send(&costs("4")?)?;
        assert_eq!(response.status, 429);
        assert_eq!(response.header("retry-after"), Some((366 * 24 * 3600).to_string().as_str()));
    }
    assert_eq!(rig.redis.cli(&["KEYS", "qg:shop:*"])?.lines(), "");
    assert_eq!(inspect::calls(&rig.store, 200)?, 0);
    assert_eq!(client.send(&costs("3")?)?.status, 200, "nothing of the quota was spent");
    Ok(())
}

#[test]
fn quota_of_zero_admits_no_request() -> Result<()> {
    let rig = Rig::start(per_user(json!({"quota": 0})))?;
    let response = rig.client()?.send(&user("alice")?)?;
    assert_eq!((response.status, response.header("x-ratelimit-limit")), (429, Some("0")));
    assert_eq!(
        (response.header("retry-after"), response.header("ratelimit")),
        (None, Some("\"per-user\";r=0"))
    );
    assert_eq!(
        (rig.redis.cli(&["KEYS", "qg:shop:*"])?.lines(), rig.upstream.requests()),
        (String::new(), 0)
    );
    Ok(())
}

#[test]
fn roles_in_a_list_give_the_first_tier_of_the_document() -> Result<()> {
    let quotas = json!({"admin": 4, "premium": 3, "free": 1});
    let tiers = json!({"tiers": {"source": {"jwt": {"claim": "roles"}}, "quotas": quotas}});
    let rig = Rig::start(per_user(tiers))?;
    for (sub, roles, quota) in [
        ("a", json!(["free", "premium"]), 3),
        ("b", json!(["x", "free"]), 1),
        ("c", json!("admin"), 4),
        ("d", json!([]), 2),
        ("e", json!([1, "free"]), 1),
        ("f", json!(["x"]), 2),
    ] {
        assert_quota(&rig, &with_claims(json!({"sub": sub, "roles": roles}))?, quota, sub)?;
    }
    Ok(())
}
