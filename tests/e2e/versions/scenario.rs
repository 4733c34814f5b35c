//! What every combination must do: policies that use each kind of message, and requests whose
//! answers follow from their quotas.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quotagate_support::envoy::Form;
use quotagate_support::http::{Client, Request};
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::{HEADER_PREFIX, STATUS_HEADER};
use quotagate_support::wait;
use serde_json::{Value, json};

/// A dial applies within 10 s; the rest is for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The quota of the policies that a fleet shares.
pub const SHARED: u64 = 100;

/// A policy of a time zone that does not exist. The native module knows all zones, and refuses its
/// configuration.
const NOWHERE: &str = "nowhere";

/// Each policy counts the paths that begin with its name.
pub fn document() -> Result<Value> {
    let policy = |name: &str, quota: u64, rest: Value| {
        let mut policy = json!({
            "name": name, "match": {"path": {"prefix": format!("/{name}")}},
            "partition_by": ["tenant"], "on_missing": "shared", "quota": quota, "window": "366d"
        });
        for (field, value) in rest.as_object().into_iter().flatten() {
            policy[field] = value.clone();
        }
        policy
    };
    let calendar = |zone: &str| json!({"window": {"calendar": "year", "time_zone": zone}});
    let settle = json!({"cost": {"reserve": 2, "settle": [{"response_header": "x-cost"}]}});
    let mut policies = vec![
        policy("fixed", 5, json!({})),
        policy("sliding", 5, json!({"sliding": true, "window": "1h"})),
        policy("calendar", 5, calendar("Europe/Berlin")),
        policy("leased", 60, json!({"precision": "lease", "partition_by": []})),
        policy("login", 3, json!({"count": {"status": [401]}})),
        policy("settled", 10, settle),
        policy("dialed", 1_000, json!({})),
        policy("shared", SHARED, json!({})),
        policy("rolling", SHARED, json!({"sliding": true, "window": "1h"})),
    ];
    if Form::of_run()? == Form::Wasm {
        policies.push(policy(NOWHERE, 5, calendar("Europe/Atlantis")));
    }
    Ok(crate::rig::document(policies.into()))
}

/// A request that the policy of this name counts.
pub fn request(policy: &str) -> Request {
    Request::get(&format!("/{policy}/x")).header("x-tenant", "t")
}

/// Sends requests of every policy, and checks each answer. An operator sets a dial at `operator`.
pub fn run(client: &mut Client, operator: &StoreProcess) -> Result<()> {
    for exact in ["fixed", "sliding", "calendar"] {
        expect(client, exact, &request(exact), &[200, 200, 200, 200, 200, 429, 429])?;
    }
    // The store does not know the time zone: that item fails, and nothing else does.
    if Form::of_run()? == Form::Wasm {
        expect(client, NOWHERE, &request(NOWHERE), &[503, 503])?;
    }
    let mut leased = 0;
    for _ in 0..80 {
        leased += u64::from(client.send(&request("leased"))?.status == 200);
    }
    ensure!((50..=60).contains(&leased), "a lease of 60 units admitted {leased}");
    expect(client, "refunds", &request("login"), &[200; 8])?;
    let failed = request("login").header(STATUS_HEADER, "401");
    expect(client, "failed logins", &failed, &[401, 401, 401, 429])?;
    let costly = request("settled").header(&format!("{HEADER_PREFIX}x-cost"), "4");
    expect(client, "charges", &costly, &[200, 200, 200, 429])?;
    let dial = json!({"policy": "dialed", "quota": 0, "by": "a test"});
    wait::until("the dial to be set", PATIENCE, || {
        client.send(&request("dialed"))?;
        operator.operate("PUT", "/v1/dials", &dial).map(Some)
    })?;
    wait::until_true("the dial to apply", PATIENCE, || {
        Ok(client.send(&request("dialed"))?.status == 429)
    })
}

fn expect(client: &mut Client, what: &str, request: &Request, statuses: &[u16]) -> Result<()> {
    let answered = statuses.iter().map(|_| Ok(client.send(request)?.status));
    let answered = answered.collect::<Result<Vec<_>>>().context(what.to_owned())?;
    ensure!(answered == statuses, "{what}: answered {answered:?}, and not {statuses:?}");
    Ok(())
}
