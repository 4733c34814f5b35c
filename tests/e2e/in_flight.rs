//! Policies that limit how many requests run at once, on all proxies.

mod operated;
mod outages;
mod replaced;
mod shapes;
mod waiting;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quotagate_support::envoy::edits;
use quotagate_support::http::{Client, Request};
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::DELAY_HEADER;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::rig::{Rig, document, per_caller};

/// At most two requests of everybody at once.
fn two_at_once() -> Value {
    json!({"name": "running", "partition_by": [], "in_flight": 2})
}

fn limited(policies: Value) -> Value {
    let mut document = document(policies);
    document["response"] = json!({"headers": ["ietf", "x_ratelimit", "concurrency"]});
    document
}

/// A request that the upstream answers after this time.
fn slow(ms: u64) -> Request {
    Request::get("/").header(DELAY_HEADER, ms.to_string())
}

/// Starts requests, and waits until they have reached the upstream.
fn start(rig: &Rig, requests: u64, request: &Request) -> Result<Vec<Client>> {
    let before = rig.upstream.requests();
    let mut clients = Vec::new();
    for _ in 0..requests {
        let mut client = rig.client()?;
        client.start(request)?;
        clients.push(client);
    }
    wait::until_true("the requests to run", Duration::from_secs(20), || {
        Ok(rig.upstream.requests() == before + requests)
    })?;
    Ok(clients)
}

/// At most so many requests of everybody at once, on all proxies.
fn at_once(limit: u64) -> Value {
    limited(json!([{"name": "running", "partition_by": [], "in_flight": limit}]))
}

/// The slots of a policy that each proxy holds of everybody's partition, as a store shows them: the
/// proxy with the most comes first, and proxies without slots are left out.
fn held(store: &StoreProcess, policy: &str) -> Result<Vec<u64>> {
    let usage = match store.operate("GET", "/v1/usage?partition=*", &Value::Null) {
        Err(error) if error.to_string().contains("no policy counts this partition now") => {
            return Ok(Vec::new());
        }
        usage => usage?,
    };
    let found = usage["found"].as_array().context("no rows")?;
    let row = found.iter().find(|row| row["policy"] == policy).unwrap_or(&Value::Null);
    let proxies = row["slots"]["proxies"].as_array().cloned().unwrap_or_default();
    let held = proxies.iter().map(|proxy| proxy["held"].as_u64().unwrap_or_default());
    Ok(held.filter(|held| *held > 0).collect())
}

/// Waits until the proxies hold these slots of [`at_once`]. What a store knows of policies comes
/// within seconds.
fn until_held(store: &StoreProcess, slots: &[u64]) -> Result<()> {
    until_held_of(store, "running", slots)
}

/// The same for any policy.
fn until_held_of(store: &StoreProcess, policy: &str, slots: &[u64]) -> Result<()> {
    let mut last = Vec::new();
    wait::until_true("the slots to be held", Duration::from_secs(20), || {
        last = held(store, policy)?;
        Ok(last == slots)
    })
    .with_context(|| format!("{policy}: {last:?} are held, not {slots:?}"))
}

/// Runs cases that mostly wait, all at once.
fn all_at_once(cases: &[fn() -> Result<()>]) -> Result<()> {
    thread::scope(|scope| {
        let running: Vec<_> = cases.iter().map(|case| scope.spawn(case)).collect();
        running.into_iter().try_for_each(|case| case.join().expect("its panic was printed"))
    })
}

/// Opens a WebSocket for each client.
fn open(clients: &mut [Client]) -> Result<()> {
    for client in clients {
        let status = client.send(&Request::websocket("/chat"))?.status;
        ensure!(status == 101, "answered {status}");
    }
    Ok(())
}

/// Whether these WebSockets are open.
fn echo(clients: &mut [Client]) -> Result<()> {
    for client in clients {
        ensure!(client.exchange(b"still here")? == b"still here", "no echo");
    }
    Ok(())
}

/// Waits until a request is admitted.
fn admitted_soon(rig: &Rig) -> Result<()> {
    let mut client = rig.client()?;
    wait::until_true("a slot to be free", Duration::from_secs(5), || {
        Ok(client.send(&Request::get("/"))?.status == 200)
    })
}

#[test]
fn third_request_at_once_is_refused_without_retry_after_until_one_is_answered() -> Result<()> {
    let rig = Rig::start(limited(json!([two_at_once()])))?;
    let mut running = start(&rig, 2, &slow(2_000))?;
    let refused = rig.client()?.send(&Request::get("/"))?;
    assert_eq!((refused.status, refused.header("retry-after")), (429, None));
    assert_eq!(refused.header("x-concurrency-limit"), Some("2"));
    assert_eq!(refused.header("x-concurrency-remaining"), Some("0"));
    assert_eq!(refused.header("x-ratelimit-limit"), None, "slots have no reset");
    assert_eq!(
        refused.header("ratelimit-policy"),
        Some("\"running\";q=2;qu=\"concurrent-requests\"")
    );
    assert_eq!(refused.header("ratelimit"), Some("\"running\";r=0"));
    for client in &mut running {
        assert_eq!(client.finish()?.status, 200);
    }
    admitted_soon(&rig)
}

#[test]
fn client_that_resets_and_upstream_that_is_late_free_their_slots() -> Result<()> {
    let rig = Rig::start_with(limited(json!([two_at_once()])), |options| {
        options.edit(edits::route_timeout("1s"))
    })?;
    // Their clients leave.
    drop(start(&rig, 2, &slow(9_000))?);
    admitted_soon(&rig)?;
    // The upstream takes too long.
    let mut late = start(&rig, 2, &slow(9_000))?;
    for client in &mut late {
        assert_eq!(client.finish()?.status, 504);
    }
    admitted_soon(&rig)
}

#[test]
fn request_that_another_policy_refuses_holds_no_slot() -> Result<()> {
    let mut quota = per_caller(1);
    quota["match"] = json!({"path": {"exact": "/limited"}});
    let rig = Rig::start(limited(json!([two_at_once(), quota])))?;
    let statuses = rig.statuses(&vec![Request::get("/limited"); 4])?;
    assert_eq!(statuses, [200, 429, 429, 429]);
    let mut running = start(&rig, 2, &slow(500))?;
    assert_eq!(rig.client()?.send(&Request::get("/"))?.status, 429);
    for client in &mut running {
        assert_eq!(client.finish()?.status, 200);
    }
    Ok(())
}

#[test]
fn waiting_request_is_served_when_one_ends_or_refused_with_retry_after() -> Result<()> {
    let mut policy = two_at_once();
    policy["max_wait"] = json!("3s");
    let rig = Rig::start(limited(json!([policy])))?;
    let running = start(&rig, 2, &slow(1_000))?;
    let begun = Instant::now();
    assert_eq!(rig.client()?.send(&Request::get("/"))?.status, 200);
    assert!(begun.elapsed() > Duration::from_millis(300), "{:?}", begun.elapsed());
    drop(running);
    let _running = start(&rig, 2, &slow(9_000))?;
    let begun = Instant::now();
    let refused = rig.client()?.send(&Request::get("/"))?;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    let waited = begun.elapsed();
    assert!((2_900..6_000).contains(&waited.as_millis()), "{waited:?}");
    Ok(())
}

#[test]
fn websocket_holds_its_slot_as_long_as_it_is_open() -> Result<()> {
    all_at_once(&[|| websocket_holds(true), || websocket_holds(false)])
}

fn websocket_holds(with_traffic: bool) -> Result<()> {
    let rig = Rig::start_with(at_once(2), |options| options.edit(edits::websocket))?;
    let mut clients = [rig.client()?, rig.client()?];
    open(&mut clients)?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(11) {
        if with_traffic {
            assert_eq!(rig.client()?.send(&Request::get("/"))?.status, 429);
        }
        thread::sleep(Duration::from_millis(1_500));
    }
    assert_eq!(rig.client()?.send(&Request::get("/"))?.status, 429);
    echo(&mut clients)?;
    drop(clients);
    admitted_soon(&rig)
}
