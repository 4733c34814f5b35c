//! Runtime overrides through a real Envoy, store and Redis.

use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_support::http::{self, Request, Response};
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::rig::{Rig, document};

const PATIENCE: Duration = Duration::from_secs(60);

fn policies() -> Value {
    let policy = |name: &str, quota: u64| {
        json!({
            "name": name, "match": {"path": {"exact": format!("/{name}")}}, "partition_by": ["tenant"],
            "on_missing": "deny", "quota": quota, "window": "366d"
        })
    };
    json!([policy("some", 2), policy("nobody", 0), policy("plenty", 100_000)])
}

fn allow(rig: &Rig, policy: &str, tenant: &str, allow: Value) -> Result<()> {
    let partition = format!("header.x-tenant={tenant}");
    let wish = json!({"policy": policy, "partition": partition, "allow": allow, "by": "a test"});
    wait::until("the override to be set", PATIENCE, || {
        rig.store.operate("PUT", "/v1/overrides", &wish).map(Some)
    })?;
    Ok(())
}

fn send(rig: &Rig, policy: &str, tenant: &str) -> Result<Response> {
    rig.client()?.send(&Request::get(&format!("/{policy}")).header("x-tenant", tenant))
}

fn admitted(rig: &Rig, policy: &str, tenant: &str, requests: usize) -> Result<usize> {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += usize::from(send(rig, policy, tenant)?.status == 200);
    }
    Ok(admitted)
}

#[test]
fn runtime_overrides_raise_lift_and_block() -> Result<()> {
    let rig = Rig::start(document(policies()))?;
    assert_eq!(admitted(&rig, "some", "other", 5)?, 2);
    allow(&rig, "some", "alice", json!({"quota": 4}))?;
    allow(&rig, "some", "bob", json!("unlimited"))?;
    allow(&rig, "some", "mallory", json!("blocked"))?;
    let first = send(&rig, "some", "alice")?;
    assert_eq!((first.status, first.header("x-ratelimit-limit")), (200, Some("4")));
    assert_eq!(admitted(&rig, "some", "alice", 9)?, 3);
    assert_eq!(admitted(&rig, "some", "bob", 50)?, 50);
    let shown = send(&rig, "some", "bob")?;
    let policy = shown.header("ratelimit-policy").unwrap_or_default();
    assert!(policy.starts_with(r#""some";q=999999999999999;w="#), "{policy}");
    let refused = send(&rig, "some", "mallory")?;
    assert_eq!((refused.status, refused.header("x-ratelimit-limit")), (429, Some("0")));
    assert_eq!(admitted(&rig, "some", "carol", 5)?, 2, "other tenants keep their quota");
    Ok(())
}

#[test]
fn runtime_override_admits_one_tenant_of_a_zero_quota() -> Result<()> {
    let rig = Rig::start(document(policies()))?;
    assert_eq!(admitted(&rig, "nobody", "partner", 3)?, 0);
    allow(&rig, "nobody", "partner", json!({"quota": 3}))?;
    let mut passed = 0;
    wait::until_true("the partner to be admitted", PATIENCE, || {
        // Traffic of other tenants also makes the worker recheck.
        send(&rig, "some", "other")?;
        passed += admitted(&rig, "nobody", "partner", 1)?;
        Ok(passed == 3)
    })?;
    assert_eq!(admitted(&rig, "nobody", "partner", 5)?, 0, "the override grants exactly three");
    assert_eq!(admitted(&rig, "nobody", "stranger", 5)?, 0);
    Ok(())
}

/// The number of scripts that Redis ran, for counters and for the control store.
fn scripts(rig: &Rig) -> Result<u64> {
    let stats = rig.redis.cli(&["INFO", "commandstats"])?.lines();
    let line =
        stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).context("no script ran")?;
    let calls = line
        .split_once("calls=")
        .and_then(|(_, rest)| rest.split_once(','))
        .context("no number")?
        .0;
    Ok(calls.parse()?)
}

#[test]
fn runtime_override_needs_no_extra_round_trip() -> Result<()> {
    const REQUESTS: usize = 300;
    let rig = Rig::start(document(policies()))?;
    assert_eq!(admitted(&rig, "plenty", "other", 1)?, 1);
    allow(&rig, "plenty", "alice", json!({"quota": 200_000}))?;
    let mut asked = Vec::new();
    for tenant in ["dave", "alice"] {
        let (before, since) = (scripts(&rig)?, std::time::Instant::now());
        assert_eq!(admitted(&rig, "plenty", tenant, REQUESTS)?, REQUESTS);
        // The store also checks for changed dials once per second.
        let looked = 4 * (since.elapsed().as_secs() + 2);
        let scripts = scripts(&rig)? - before;
        println!(
            "{tenant}: {scripts} scripts for {REQUESTS} requests, at most {looked} of them to check for dials"
        );
        asked.push((scripts, looked));
    }
    for (scripts, looked) in asked {
        assert!((REQUESTS as u64..=REQUESTS as u64 + looked).contains(&scripts), "{scripts}");
    }
    Ok(())
}

#[test]
fn one_override_blocks_a_party_in_all_policies() -> Result<()> {
    let on = |name: &str, entries: &[&str]| {
        json!({
            "name": name, "match": {"path": {"exact": format!("/{name}")}}, "partition_by": entries,
            "quota": 1000, "window": "366d"
        })
    };
    let policies =
        json!([on("caller", &["tenant"]), on("both", &["method", "tenant"]), on("all", &[])]);
    let rig = Rig::start(document(policies))?;
    let statuses = |tenant: &str| {
        ["caller", "both", "all"].map(|policy| send(&rig, policy, tenant).map(|reply| reply.status))
    };
    let all = |tenant: &str, expected: [u16; 3]| -> Result<bool> {
        let statuses: Vec<u16> = statuses(tenant).into_iter().collect::<Result<_>>()?;
        Ok(statuses == expected)
    };
    assert!(all("mallory", [200; 3])? && all("alice", [200; 3])?);
    let mut wish = json!({"policy": "*", "partition": "header.x-tenant=mallory", "allow": "blocked", "by": "a test"});
    let made = wait::until("the override to be set", PATIENCE, || {
        rig.store.operate("PUT", "/v1/overrides", &wish).map(Some)
    })?;
    let remark = made["remark"].as_str().unwrap_or_default();
    assert!(remark.starts_with("It changes nothing in all: "), "{made}");
    let blocked = || all("mallory", [429, 429, 200]);
    wait::until_true("the party to be refused", PATIENCE, blocked)?;
    assert!(all("alice", [200; 3])?, "others keep their quota");
    wish.as_object_mut().context("an object")?.remove("allow");
    rig.store.operate("DELETE", "/v1/overrides", &wish)?;
    wait::until_true("the party to be admitted again", PATIENCE, || all("mallory", [200; 3]))
}

#[test]
fn shadow_policy_names_whom_it_would_refuse() -> Result<()> {
    let trial = json!([{
        "name": "trial", "match": {"path": {"exact": "/trial"}}, "partition_by": ["tenant"], "quota": 2,
        "window": "366d", "mode": "shadow"
    }]);
    let rig = Rig::start(document(trial))?;
    let would = || -> Result<Vec<(String, u64)>> {
        assert_eq!(send(&rig, "trial", "alice")?.status, 200, "it refuses nobody");
        let top = http::get(rig.store.admin_port(), "/v1/top")?.json()?;
        assert_eq!(top["refused"], json!([]));
        let listed = top["would_refuse"].as_array().context("a list")?.iter();
        let named =
            |of: &Value| Some((of["partition"].as_str()?.to_owned(), of["requests"].as_u64()?));
        Ok(listed.filter_map(named).collect())
    };
    wait::until_true("the party to be named", PATIENCE, || {
        Ok(would()?
            .iter()
            .any(|(partition, requests)| partition == "header.x-tenant=alice" && *requests > 3))
    })
}
