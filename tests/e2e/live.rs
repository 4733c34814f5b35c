//! Published documents change the policies of running proxies: no listener is updated, no request
//! is lost, and counters whose policy stays go on.

use std::time::{Duration, Instant};

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions, ListenerFile};
use quotagate_support::http::{self, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::inspect;
use crate::load::Load;
use crate::rig::{self, Rig};

/// Every worker has taken a document up within this time.
const TAKEN_UP: Duration = Duration::from_secs(10);
/// Extra time for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A document that says `live: true`, with these policies.
fn live(policies: Value) -> Value {
    let mut document = rig::document(policies);
    document["live"] = json!(true);
    document
}

/// A policy that counts only `/NAME`.
fn of_path(name: &str, quota: u64) -> Value {
    json!({
        "name": name, "match": {"path": {"exact": format!("/{name}")}}, "partition_by": [],
        "quota": quota, "window": "366d"
    })
}

fn publish(store: &StoreProcess, policies: Value) -> Result<()> {
    let wish = json!({"document": rig::document(policies), "by": "a test"});
    store.operate("POST", "/v1/documents", &wish)?;
    Ok(())
}

/// Waits until every worker has reported the document with this number, and no other one. What the
/// store shows of proxies lags behind them.
fn until_taken_up(store: &StoreProcess, number: u64) -> Result<Duration> {
    let since = Instant::now();
    wait::until_true("the document to be taken up", PATIENCE, || {
        let listed = http::get(store.admin_port(), "/v1/documents?domain=shop")?.json()?;
        let documents = listed["in_force"]["documents"].as_array().cloned().unwrap_or_default();
        Ok(!documents.is_empty() && documents.iter().all(|of| of["number"] == json!(number)))
    })?;
    Ok(since.elapsed())
}

fn status(port: u16, path: &str) -> Result<u16> {
    Ok(http::get(port, path)?.status)
}

#[test]
fn swaps_under_load_lose_no_request_close_no_connection_and_keep_the_count() -> Result<()> {
    const QUOTA: u64 = 1_000;
    let stays = rig::per_caller(QUOTA);
    let start = live(json!([stays]));
    let rig = Rig::start_with(start, |options| options.concurrency(2))?;
    let load = Load::start(rig.envoy.port(), 4, Duration::from_millis(20));
    let swaps: u64 =
        std::env::var("QUOTAGATE_SWAPS").ok().and_then(|swaps| swaps.parse().ok()).unwrap_or(8);
    for number in 1..=swaps {
        // The policy that stays moves in the list, and others come and go.
        let other = |name: &str| of_path(&format!("{name}-{}", number / 2), 1);
        let policies = match number % 3 {
            0 => json!([other("a"), stays, other("b")]),
            1 => json!([stays, other("a")]),
            _ => json!([other("c"), other("b"), other("a"), stays]),
        };
        publish(&rig.store, policies)?;
        let took = until_taken_up(&rig.store, number)?;
        println!("number {number} after {took:?}");
    }
    // Whatever is left is demanded now.
    let mut client = rig.client()?;
    let mut more = 0;
    while client.send(&Request::get("/"))?.status == 200 {
        more += 1;
    }
    let statuses = load.stop()?;
    println!("{statuses:?}, and {more}");
    assert!(statuses.keys().all(|status| [200, 429].contains(status)), "{statuses:?}");
    let admitted = statuses.get(&200).copied().unwrap_or_default() + more;
    assert_eq!(admitted, QUOTA, "exactly the quota, over {swaps} swaps");
    assert_eq!(inspect::stat(&rig.envoy, "^listener_manager.listener_modified$")?, 0);
    assert_eq!(inspect::stat(&rig.envoy, "^http.ingress.downstream_cx_drain_close$")?, 0);
    assert_eq!(inspect::stat(&rig.envoy, "^http.ingress.downstream_rq_rx_reset$")?, 0);
    Ok(())
}

#[test]
fn proxy_without_traffic_takes_up_what_is_published_and_goes_back() -> Result<()> {
    let rig = Rig::start_with(live(json!([])), |options| options.concurrency(2))?;
    let port = rig.envoy.port();
    publish(&rig.store, json!([of_path("x", 1)]))?;
    let since = Instant::now();
    wait::until_true("both workers to take the document up", PATIENCE, || {
        Ok(rig.envoy.log().matches("the published document number 1 (").count() >= 2)
    })?;
    println!("without traffic after {:?}", since.elapsed());
    assert!(since.elapsed() < TAKEN_UP, "{:?}", since.elapsed());
    until_taken_up(&rig.store, 1)?;
    let statuses = [status(port, "/x")?, status(port, "/x")?, status(port, "/y")?];
    assert_eq!(statuses, [200, 429, 200]);
    rig.store.operate("DELETE", "/v1/documents", &json!({"domain": "shop", "by": "a test"}))?;
    wait::until_true("the embedded document", PATIENCE, || Ok(status(port, "/x")? == 200))?;
    assert!(rig.envoy.log().contains("the embedded one is in force"), "{}", rig.envoy.log());
    Ok(())
}

#[test]
fn document_that_a_proxy_cannot_take_up_is_refused_reported_and_replaced() -> Result<()> {
    let rig = Rig::start(live(json!([of_path("x", 3)])))?;
    let port = rig.envoy.port();
    publish(&rig.store, json!([of_path("x", 2)]))?;
    until_taken_up(&rig.store, 1)?;
    // A newer store could publish a field that this build does not know.
    let mut newer = rig::document(json!([of_path("x", 100)]));
    newer.as_object_mut().expect("an object").remove("store");
    newer["policies"][0]["speed"] = json!("high");
    let record = json!({"number": 2, "digest": "0123456789ab", "by": "-", "at_ms": 1});
    let (newer, record) = (newer.to_string(), record.to_string());
    let redis = |command: &[&str]| rig.redis.cli(command).map(drop);
    redis(&["HSET", "qg:texts:{shop}", "2", &newer])?;
    redis(&["HSET", "qg:documents:{shop}", "2", &record, "#last", &record])?;
    redis(&["HINCRBY", "qg:dials:{shop}", "#version", "1"])?;
    wait::until_true("the refusal to be reported", PATIENCE, || {
        let listed = http::get(rig.store.admin_port(), "/v1/documents?domain=shop")?.json()?;
        let refused = listed["refused"][0].as_str().unwrap_or_default().to_owned();
        Ok(refused.contains("published as number 2") && refused.contains("stays in force"))
    })?;
    assert!(rig.envoy.log().contains("number 2 is refused"), "{}", rig.envoy.log());
    let statuses = [status(port, "/x")?, status(port, "/x")?, status(port, "/x")?];
    assert_eq!(statuses, [200, 200, 429], "number 1 stays in force");
    publish(&rig.store, json!([of_path("x", 4)]))?;
    until_taken_up(&rig.store, 3)?;
    assert_eq!([status(port, "/x")?, status(port, "/x")?, status(port, "/x")?], [200, 200, 429]);
    Ok(())
}

#[test]
fn new_configuration_inherits_the_published_document_while_the_store_is_away() -> Result<()> {
    let redis = Redis::start()?;
    let mut store = StoreProcess::start(&redis.url(), &[])?;
    let upstream = Upstream::start()?;
    let file = ListenerFile::new()?;
    let (at, to) = (upstream.port(), store.port());
    // While the store is away, the embedded document answers 503, and the published one does not.
    let policy = |on_failure: &str| {
        let mut policy = of_path("x", 5);
        policy["on_failure"] = json!(on_failure);
        json!([policy])
    };
    let options = |headers: Value| {
        let mut document = live(policy("deny"));
        document["store"] = json!({"cluster": "quota_store", "timeout": "50ms"});
        document["response"]["headers"] = headers;
        EnvoyOptions::new(at, to).document(document)
    };
    let first = options(json!([]));
    file.publish("1", &first.config()?)?;
    let envoy = Envoy::start(&first.edit(file.edit()))?;
    let port = envoy.port();
    publish(&store, policy("allow"))?;
    until_taken_up(&store, 1)?;
    let updates = || inspect::stat(&envoy, "^listener_manager.lds.update_success$");
    let before = updates()?;
    store.kill()?;
    file.publish("2", &options(json!(["ietf"])).config()?)?;
    wait::until_true("the update", PATIENCE, || Ok(updates()? > before))?;
    for _ in 0..20 {
        assert_eq!(status(port, "/x")?, 200);
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
