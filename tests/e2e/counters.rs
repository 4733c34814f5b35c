//! What the counters in Redis hold.
//!
//! | field | expected |
//! | --- | --- |
//! | `count_denied` | refused requests count, unless another policy refuses them |
//! | `stagger` | each partition has its own window boundaries |
//! | `window` | one second, which ends by Redis' clock, and 366 days |
//! | `mode: off` | counts nothing and makes no store call |
//! | several policies | each has its own cost; a refused request spends nothing |

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_support::envoy::EnvoyOptions;
use quotagate_support::http::Request;
use quotagate_support::{jwt, wait};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::inspect::{self, now};
use crate::rig::{Rig, document, per_caller, reset_of};

const LONGEST_S: u64 = 366 * 24 * 3600;

#[test]
fn refused_requests_count_with_count_denied() -> Result<()> {
    let mut policy = per_caller(2);
    policy["count_denied"] = json!(true);
    let rig = Rig::start_with(document(json!([policy])), |options| options.concurrency(2))?;
    let end = (now()? / LONGEST_S + 1) * LONGEST_S;
    for sent in 1..=6 {
        // Each request has its own connection, so that both workers get some.
        let response = rig.client()?.send(&Request::get("/"))?;
        assert_eq!(response.status, if sent <= 2 { 200 } else { 429 }, "request {sent}");
        assert_eq!(inspect::counters(&rig.redis, "per-caller")?.get("ip=127.0.0.1"), Some(&sent));
        if sent > 2 {
            let retry: u64 = response.header("retry-after").context("retry-after")?.parse()?;
            assert!((now()? + retry).abs_diff(end) <= 2, "{retry} s is not until the window's end");
            assert_eq!(retry, reset_of(&response));
        }
    }
    assert_eq!(rig.upstream.requests(), 2);
    Ok(())
}

#[test]
fn refusals_by_another_policy_are_not_counted_as_denied() -> Result<()> {
    let mut strict = per_caller(10);
    strict["count_denied"] = json!(true);
    let tight = json!({"name": "tight", "partition_by": [], "quota": 1, "window": "366d"});
    let mut rig = Rig::start(document(json!([strict, tight])))?;
    // The worker does not know yet that the quota is spent, so all requests get units of
    // `per-caller`.
    let statuses = rig.statuses_together(&vec![Request::get("/"); 4])?;
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 3, "{statuses:?}");
    inspect::settled(&rig.redis, "per-caller", 1)?;
    inspect::settled(&rig.redis, "tight", 1)
}

#[test]
fn staggered_windows_end_at_a_different_time_for_each_partition() -> Result<()> {
    let mut policy = per_caller(2);
    policy["stagger"] = json!(true);
    let rig = Rig::start(document(json!([policy])))?;
    let mut offsets = BTreeSet::new();
    for subject in ["alice", "bob", "carol {}"] {
        let partition = format!("jwt.sub={}", subject.replace(" {}", "%20%7B%7D"));
        let digest = Sha256::digest(partition.as_bytes());
        let offset = u64::from_be_bytes(digest[..8].try_into()?) % LONGEST_S;
        let number = (now()? + offset) / LONGEST_S;
        let end = (number + 1) * LONGEST_S - offset;

        let response = rig.client()?.send(&Request::get("/").bearer(&jwt::token(subject)?))?;
        assert_eq!(response.status, 200);
        assert!((now()? + reset_of(&response)).abs_diff(end) <= 2, "{subject} resets elsewhere");
        let key = format!("qg:shop:per-caller:{{{partition}}}:{number}");
        assert_eq!(rig.redis.cli(&["GET", &key])?.lines(), "1", "{key}");
        let ttl: u64 = rig.redis.cli(&["TTL", &key])?.lines().parse()?;
        assert!((now()? + ttl).abs_diff(end + 10) <= 2, "{ttl}");
        offsets.insert(offset);
    }
    assert_eq!(offsets.len(), 3);
    assert_eq!(inspect::counters(&rig.redis, "per-caller")?.len(), 3, "no other keys");
    Ok(())
}

#[test]
fn one_second_window_renews_the_quota() -> Result<()> {
    let rig = Rig::start(document(
        json!([{"name": "quick", "partition_by": [], "quota": 1, "window": "1s"}]),
    ))?;
    let mut client = rig.client()?;
    let mut statuses = Vec::new();
    wait::until_true("three windows with a refusal within", Duration::from_secs(20), || {
        let response = client.send(&Request::get("/"))?;
        if response.status == 429 {
            assert_eq!(response.header("retry-after"), Some("1"));
        }
        statuses.push(response.status);
        Ok(statuses.windows(2).filter(|pair| pair == &[429, 200]).count() == 3)
    })?;
    let admitted = statuses.iter().filter(|status| **status == 200).count() as u64;
    let windows = inspect::windows(&rig.redis, "quick")?;
    assert!(windows.iter().all(|(_, _, units)| *units == 1), "{windows:?}");
    assert_eq!(windows.len() as u64, admitted, "one unit in each window: {windows:?}");
    Ok(())
}

#[test]
fn longest_window_has_366_days() -> Result<()> {
    let rig = Rig::start(document(
        json!([{"name": "leap-year", "partition_by": [], "quota": 1, "window": "8784h"}]),
    ))?;
    assert_eq!(rig.statuses(&[Request::get("/"), Request::get("/")])?, [200, 429]);
    let windows = inspect::windows(&rig.redis, "leap-year")?;
    assert_eq!(windows, [("*".to_owned(), now()? / LONGEST_S, 1)]);
    Ok(())
}

#[test]
fn policy_that_is_off_makes_no_store_call() -> Result<()> {
    let mut off = per_caller(0);
    off["mode"] = json!("off");
    let rig = Rig::start_with(document(json!([off])), EnvoyOptions::through_store)?;
    let response = rig.client()?.send(&Request::get("/"))?;
    assert_eq!((response.status, response.header("x-ratelimit-limit")), (200, None));
    assert_eq!(inspect::calls(&rig.store, 200)?, 0);
    assert_eq!(rig.redis.cli(&["KEYS", "qg:shop:*"])?.lines(), "");
    Ok(())
}

#[test]
fn several_policies_each_take_their_cost_or_none_does() -> Result<()> {
    let total =
        json!({"name": "total", "partition_by": [], "quota": 10, "window": "365d", "cost": 3});
    let routes = json!({"name": "per-route", "partition_by": ["route", "method"], "quota": 100, "window": "1d"});
    let rig = Rig::start(document(json!([per_caller(2), total, routes])))?;
    let as_user = |name: &str| Ok::<_, anyhow::Error>(Request::get("/").bearer(&jwt::token(name)?));
    let mut client = rig.client()?;
    let mut violated = |name: &str| -> Result<Option<String>> {
        let response = client.send(&as_user(name)?)?;
        Ok(match response.status {
            200 => None,
            429 => Some(response.json()?["violated-policies"].to_string()),
            other => anyhow::bail!("answered {other}"),
        })
    };
    assert_eq!(violated("alice")?, None);
    assert_eq!(violated("alice")?, None);
    assert_eq!(violated("alice")?.as_deref(), Some("[\"per-caller\"]"));
    assert_eq!(violated("bob")?, None);
    assert_eq!(violated("carol")?.as_deref(), Some("[\"total\"]"));
    assert_eq!(violated("alice")?.as_deref(), Some("[\"per-caller\",\"total\"]"));
    inspect::settled(&rig.redis, "per-caller", 3)?;
    inspect::settled(&rig.redis, "total", 9)?;
    inspect::settled(&rig.redis, "per-route", 3)
}
