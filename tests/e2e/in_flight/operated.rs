//! Limits that operators change while streams are open, and slots that they free.

use std::time::{Duration, Instant};

use anyhow::Result;
use quotagate_support::envoy::edits;
use quotagate_support::http::Client;
use quotagate_support::http::Request;
use quotagate_support::wait;
use serde_json::{Value, json};

use super::{
    admitted_soon, all_at_once, at_once, echo, limited, open, slow, start, until_held,
    until_held_of,
};
use crate::rig::Rig;
use crate::two_proxies::Fleet;

/// Every worker applies a change within 10 s. The rest is for a busy machine.
const IN_FORCE: Duration = Duration::from_secs(60);

/// Three WebSockets are open, then `lower` sets the limit of 3 to 1: no stream is cut, and nothing
/// is admitted until all have ended.
fn lowered(lower: impl Fn(&Rig) -> Result<()>) -> Result<()> {
    let mut document = at_once(3);
    document["live"] = json!(true);
    let rig = Rig::start_with(document, |options| options.edit(edits::websocket))?;
    let mut clients = (0..3).map(|_| rig.client()).collect::<Result<Vec<_>>>()?;
    open(&mut clients)?;
    until_held(&rig.store, &[3])?;
    lower(&rig)?;
    let mut client = rig.client()?;
    let mut refused = || {
        let refused = client.send(&Request::get("/"))?;
        assert_eq!(refused.status, 429);
        anyhow::Ok(refused.header("x-concurrency-limit").map(str::to_owned))
    };
    wait::until_true("the lower limit", IN_FORCE, || Ok(refused()?.as_deref() == Some("1")))?;
    for left in [2, 1] {
        echo(&mut clients)?;
        clients.truncate(left);
        until_held(&rig.store, &[left as u64])?;
        refused()?;
    }
    drop(clients);
    admitted_soon(&rig)?;
    let _running = start(&rig, 1, &slow(2_000))?;
    refused()?;
    Ok(())
}

#[test]
fn stream_holds_its_slot_while_its_policy_is_withdrawn_and_published_again() -> Result<()> {
    let mut document = at_once(1);
    document["live"] = json!(true);
    let rig = Rig::start_with(document, |options| options.edit(edits::websocket))?;
    let mut clients = [rig.client()?];
    open(&mut clients)?;
    for (policies, status) in [(json!([]), 200), (at_once(1)["policies"].clone(), 429)] {
        let mut document = at_once(1);
        document["policies"] = policies;
        change(&rig, "POST", "/v1/documents", &json!({"document": document, "by": "a test"}))?;
        wait::until_true("the document to be in force", IN_FORCE, || {
            Ok(rig.client()?.send(&Request::get("/"))?.status == status)
        })?;
    }
    echo(&mut clients)?;
    drop(clients);
    admitted_soon(&rig)
}

/// Sends a change. A store learns of a policy soon after the first request.
fn change(rig: &Rig, method: &str, path: &str, wish: &Value) -> Result<()> {
    wait::until("the change to be made", IN_FORCE, || {
        rig.store.operate(method, path, wish).map(Some)
    })?;
    Ok(())
}

#[test]
fn limit_below_what_is_held_cuts_no_stream_and_admits_nothing_until_it_fits() -> Result<()> {
    all_at_once(&[lowered_by_override, lowered_by_dial, lowered_by_document])
}

fn lowered_by_override() -> Result<()> {
    lowered(|rig| {
        let wish = json!({
            "policy": "running", "partition": "*", "allow": {"quota": 1}, "by": "a test"
        });
        change(rig, "PUT", "/v1/overrides", &wish)
    })
}

fn lowered_by_dial() -> Result<()> {
    lowered(|rig| {
        let wish = json!({"policy": "running", "quota": 1, "by": "a test"});
        change(rig, "PUT", "/v1/dials", &wish)
    })
}

fn lowered_by_document() -> Result<()> {
    lowered(|rig| {
        let wish = json!({"document": at_once(1), "by": "a test"});
        change(rig, "POST", "/v1/documents", &wish)
    })
}

#[test]
fn release_frees_the_slots_of_a_dead_proxy_and_one_that_lives_takes_its_own_again() -> Result<()> {
    let mut fleet = Fleet::start_with(&at_once(4), edits::websocket)?;
    let mut clients = fleet.clients(4)?;
    open(&mut clients)?;
    until_held(&fleet.stores[0], &[2, 2])?;
    let usage = fleet.stores[0].operate("GET", "/v1/usage?partition=*", &Value::Null)?;
    for envoy in &fleet.envoys {
        let log = envoy.log();
        let proxies = usage["found"][0]["slots"]["proxies"].as_array();
        let mut names = proxies.into_iter().flatten().filter_map(|of| of["proxy"].as_str());
        let is_logged = |name| log.contains(&format!("the name of this proxy is {name}"));
        assert!(names.any(is_logged), "{usage}\n{log}");
    }
    fleet.envoys[1].kill()?;
    let killed = Instant::now();
    let wish = json!({"policy": "running", "partition": "*", "by": "a test"});
    fleet.stores[0].operate("POST", "/v1/release", &wish)?;
    until_held(&fleet.stores[0], &[2])?;
    let port = fleet.envoys[0].port();
    let mut more = [Client::connect(port)?, Client::connect(port)?];
    open(&mut more)?;
    assert_eq!(Client::connect(port)?.send(&Request::get("/"))?.status, 429);
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}: the slots could have expired");
    clients.truncate(1);
    echo(&mut clients)
}

#[test]
fn only_modes_that_count_hold_slots_and_only_enforce_refuses() -> Result<()> {
    let modes = [("shadow", &[1][..]), ("mark", &[1]), ("off", &[])];
    let policy = |(mode, _): (&str, _)| {
        json!({
            "name": mode, "match": {"path": {"exact": format!("/{mode}")}}, "partition_by": [],
            "in_flight": 1, "mode": mode
        })
    };
    let document = limited(json!(modes.map(policy)));
    let rig = Rig::start_with(document, |options| options.edit(edits::websocket))?;
    let mut clients = Vec::new();
    for (mode, _) in modes {
        for _ in 0..2 {
            let mut client = rig.client()?;
            let request = Request::websocket(&format!("/{mode}"));
            assert_eq!(client.send(&request)?.status, 101, "{mode}");
            clients.push(client);
        }
    }
    for (mode, held) in modes {
        until_held_of(&rig.store, mode, held)?;
    }
    echo(&mut clients)?;
    drop(clients);
    for (mode, _) in modes {
        until_held_of(&rig.store, mode, &[])?;
    }
    Ok(())
}
