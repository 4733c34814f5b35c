//! Published documents change the policies of running proxies: no listener is updated, no request
//! is lost, and counters whose policy stays go on.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form, ListenerFile};
use quotagate_support::http::{self, Request};
use quotagate_support::redis::Redis;
use quotagate_support::resp;
use quotagate_support::sentinel::Sentinel;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::inspect;
use crate::load::Load;
use crate::rig::{self, Rig};
use crate::updates::Footprint;

/// Every worker has taken a document up within 10 s. The rest is for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A document that says `live: true`, with these policies.
pub fn live(policies: Value) -> Value {
    let mut document = rig::document(policies);
    document["live"] = json!(true);
    document
}

/// A policy that counts only `/NAME`.
pub fn of_path(name: &str, quota: u64) -> Value {
    json!({
        "name": name, "match": {"path": {"exact": format!("/{name}")}}, "partition_by": [],
        "quota": quota, "window": "366d"
    })
}

/// Publishes a document with these policies.
pub fn publish(store: &StoreProcess, policies: Value) -> Result<()> {
    let wish = json!({"document": rig::document(policies), "by": "a test"});
    store.operate("POST", "/v1/documents", &wish)?;
    Ok(())
}

/// Waits until every worker has reported the document with this number, and no other one. What the
/// store shows of proxies lags behind them.
fn until_taken_up(store: &StoreProcess, number: u64) -> Result<()> {
    wait::until_true("the document to be taken up", PATIENCE, || {
        let listed = http::get(store.admin_port(), "/v1/documents?domain=shop")?.json()?;
        let documents = listed["in_force"]["documents"].as_array().cloned().unwrap_or_default();
        Ok(!documents.is_empty() && documents.iter().all(|of| of["number"] == json!(number)))
    })
}

/// What the store says of the published document and of its proxies.
pub fn document_status(store: &StoreProcess) -> Result<Value> {
    http::get(store.admin_port(), "/v1/documents?domain=shop")?.json()
}

/// Waits until the metrics of the store have this line.
fn until_metric(store: &StoreProcess, line: &str) -> Result<()> {
    wait::until_true(line, PATIENCE, || {
        let page = http::get(store.admin_port(), "/metrics")?.text();
        Ok(page.lines().any(|of| of == line))
    })
}

/// How Envoy answers this path.
pub fn status(port: u16, path: &str) -> Result<u16> {
    Ok(http::get(port, path)?.status)
}

/// Waits until so many workers have logged that the document with this number is in force. In the
/// Wasm form, Envoy's main thread logs it, too.
pub fn until_in_force(envoy: &Envoy, number: u64, workers: usize) -> Result<Duration> {
    let lines = workers + usize::from(Form::of_run()? == Form::Wasm);
    let (since, line) = (Instant::now(), format!("the published document number {number} ("));
    wait::until_true("the document to be in force", PATIENCE, || {
        Ok(envoy.log().matches(&line).count() >= lines)
    })?;
    Ok(since.elapsed())
}

/// The policies of a document with this number. The one that stays moves in the list, and others
/// come and go.
fn around(stays: &Value, number: u64) -> Value {
    let other = |name: &str| of_path(&format!("{name}-{}", number / 2), 1);
    match number % 3 {
        0 => json!([other("a"), stays, other("b")]),
        1 => json!([stays, other("a")]),
        _ => json!([other("c"), other("b"), other("a"), stays]),
    }
}

/// `QUOTAGATE_SWAPS` sets how many documents are published.
#[test]
fn swaps_under_load_lose_no_request_close_no_connection_and_keep_the_count() -> Result<()> {
    let swaps = std::env::var("QUOTAGATE_SWAPS").map_or(Ok(20), |swaps| swaps.parse::<u64>())?;
    // A little more than the load uses until the last swap.
    let quota = 400 * swaps;
    let stays = rig::per_caller(quota);
    let start = live(json!([stays]));
    let rig = Rig::start_with(start, |options| options.concurrency(2))?;
    let load = Load::start(rig.envoy.port(), 4, Duration::from_millis(20));
    let mut kept = [rig.client()?, rig.client()?];
    let (mut admitted, mut slowest) = (0, Duration::ZERO);
    for number in 1..=swaps {
        publish(&rig.store, around(&stays, number))?;
        slowest = slowest.max(until_in_force(&rig.envoy, number, 2)?);
        for client in &mut kept {
            // On the connection of before the first swap: an error would say that it was closed.
            match client.send(&Request::get("/"))?.status {
                200 => admitted += 1,
                status => assert_eq!(status, 429, "number {number}"),
            }
        }
    }
    // Whatever is left is demanded now.
    let [client, _] = &mut kept;
    while client.send(&Request::get("/"))?.status == 200 {
        admitted += 1;
    }
    let statuses = load.stop()?;
    let stat = |name: &str| inspect::stat(&rig.envoy, &format!("^{name}$"));
    println!("{swaps} swaps, the slowest after {slowest:?}: {statuses:?}, and {admitted}");
    println!(
        "listener updates {}, drained {}, reset {}",
        stat("listener_manager.listener_modified")?,
        stat("http.ingress.downstream_cx_drain_close")?,
        stat("http.ingress.downstream_rq_rx_reset")?
    );
    assert!(statuses.keys().all(|status| [200, 429].contains(status)), "{statuses:?}");
    admitted += statuses.get(&200).copied().unwrap_or_default();
    assert_eq!(admitted, quota, "exactly the quota, over {swaps} swaps");
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
    println!("without traffic after {:?}", until_in_force(&rig.envoy, 1, 2)?);
    until_taken_up(&rig.store, 1)?;
    let status_of = document_status(&rig.store)?;
    let taken_up = &status_of["taken_up"];
    assert_eq!((&taken_up["have"], &taken_up["live"]), (&json!(1), &json!(1)), "{status_of}");
    let row = &status_of["proxies"][0];
    assert_eq!((&row["state"], &row["number"]), (&json!("published"), &json!(1)), "{status_of}");
    // In the Wasm form, Envoy's main thread has one, too.
    let workers = row["workers"].as_array().context("no workers")?;
    assert!(workers.len() >= 2, "{status_of}");
    let since = workers.iter().map(|worker| worker["since_ms"].as_u64().unwrap_or_default());
    let published = status_of["documents"][0]["at_ms"].as_u64().context("no time")?;
    for since in since {
        // Both times are to the second.
        assert!((published - 2000..published + 60_000).contains(&since), "{status_of}");
    }
    let digest = status_of["documents"][0]["digest"].as_str().context("no digest")?;
    let line = format!(r#"quotagate_document{{domain="shop",digest="{digest}",number="1"}} 1"#);
    until_metric(&rig.store, &line)?;
    until_metric(&rig.store, r#"quotagate_document_behind_seconds{domain="shop"} 0"#)?;
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
    let newer = newer.to_string();
    let refused = |number: u64, digest: &str| -> Result<String> {
        let record = json!({"number": number, "digest": digest, "by": "-", "at_ms": 1});
        let (number, record) = (number.to_string(), record.to_string());
        let redis = |command: &[&str]| rig.redis.cli(command).map(drop);
        redis(&["HSET", "qg:texts:{shop}", &number, &newer])?;
        redis(&["HSET", "qg:documents:{shop}", &number, &record, "#last", &record])?;
        redis(&["HSET", "qg:dials:{shop}", "#version", "99-9000000000000000"])?;
        let mut sentence = String::new();
        wait::until_true("the refusal to be reported", PATIENCE, || {
            let listed = http::get(rig.store.admin_port(), "/v1/documents?domain=shop")?.json()?;
            sentence = listed["refused"][0].as_str().unwrap_or_default().to_owned();
            Ok(sentence.contains(&format!("published as number {number}: ")))
        })?;
        assert!(sentence.contains("stays in force"), "{sentence}");
        let log = rig.envoy.log();
        assert!(log.contains(&format!("number {number} is refused")), "{log}");
        Ok(sentence)
    };
    // Whatever damaged it: it is not what was published. The fault says which digest it has.
    let sentence = refused(2, "0123456789ab")?;
    let (_, digest) = sentence.split_once("has the digest ").context("the digest")?;
    let digest = digest.split(',').next().context("the digest")?;
    let sentence = refused(3, digest)?;
    wait::until_true("the proxy to refuse it in the status", PATIENCE, || {
        let status_of = document_status(&rig.store)?;
        let row = &status_of["proxies"][0];
        Ok((&row["state"], &row["number"], &row["refuses"])
            == (&json!("behind"), &json!(1), &json!(3)))
    })?;
    wait::until_true("the proxy to be behind in the metrics", PATIENCE, || {
        let page = http::get(rig.store.admin_port(), "/metrics")?.text();
        let behind = page.lines().find(|line| line.starts_with("quotagate_document_behind_s"));
        Ok(behind.is_some_and(|line| !line.ends_with(" 0")))
    })?;
    assert!(sentence.contains("policies[0].speed: unknown field"), "{sentence}");
    let statuses = [status(port, "/x")?, status(port, "/x")?, status(port, "/x")?];
    assert_eq!(statuses, [200, 200, 429], "number 1 stays in force");
    publish(&rig.store, json!([of_path("x", 4)]))?;
    until_taken_up(&rig.store, 4)?;
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

/// The share of the proxies that this one belongs to, by the name in its reports.
fn share(rig: &Rig) -> Result<u64> {
    let mut name = None;
    wait::until_true("the proxy's name", PATIENCE, || {
        for key in rig.redis.cli(&["KEYS", "qg:published:*"])?.lines().lines() {
            let seen = rig.redis.cli(&["HVALS", key])?.lines();
            let mut of_domain = seen.lines().filter_map(|item| {
                let item: Value = serde_json::from_str(item).ok()?;
                Some(item["in_force"]["proxies"][0]["proxy"].as_str()?.to_owned())
            });
            name = of_domain.next_back().or(name.take());
        }
        Ok(name.is_some())
    })?;
    Ok(quotagate_protocol::share_of(&name.context("the name")?))
}

/// Waits for two reports of the proxy. The store has told it which document is published in its
/// answer to the second one at the latest.
fn until_it_has_heard(rig: &Rig) -> Result<()> {
    let requests = || -> Result<u64> {
        let listed = document_status(&rig.store)?;
        let documents = listed["in_force"]["documents"].as_array().cloned().unwrap_or_default();
        Ok(documents.iter().filter_map(|of| of["requests"].as_u64()).sum())
    };
    let mut reports = 0;
    let mut known = requests()?;
    wait::until_true("two reports", PATIENCE, || {
        // One of them is counted, whichever document is in force.
        for path in ["/x", "/y"] {
            status(rig.envoy.port(), path)?;
        }
        let now = requests()?;
        (reports, known) = (reports + u32::from(now > known), now);
        Ok(reports > 1)
    })
}

#[test]
fn redis_that_loses_its_data_takes_no_published_document_back() -> Result<()> {
    let rig = Rig::start(live(json!([of_path("x", 0)])))?;
    let port = rig.envoy.port();
    publish(&rig.store, json!([of_path("y", 0)]))?;
    until_taken_up(&rig.store, 1)?;
    assert_eq!([status(port, "/x")?, status(port, "/y")?], [200, 429]);
    rig.redis.cli(&["FLUSHALL"])?;
    until_metric(&rig.store, r#"quotagate_records_lost{domain="shop",records="document"} 1"#)?;
    until_it_has_heard(&rig)?;
    assert_eq!([status(port, "/x")?, status(port, "/y")?], [200, 429]);
    let said = document_status(&rig.store)?;
    assert_eq!((&said["lost"], &said["proxies"][0]["number"]), (&json!(true), &json!(1)), "{said}");
    let sentence = "the backend lost what was published in shop: it has no record of number 1";
    for text in [&said.to_string(), &rig.store.log()] {
        assert!(text.contains(sentence), "{text}");
    }
    assert!(!rig.envoy.log().contains("the embedded one is in force"), "{}", rig.envoy.log());
    // Until there is a record again, be it of a withdrawal.
    rig.store.operate("DELETE", "/v1/documents", &json!({"domain": "shop", "by": "a test"}))?;
    wait::until_true("the embedded document", PATIENCE, || Ok(status(port, "/x")? == 429))?;
    Ok(())
}

#[test]
fn document_for_a_share_of_the_proxies_is_taken_up_there_alone() -> Result<()> {
    let rig = Rig::start(live(json!([of_path("x", 3)])))?;
    let wish = |policies: Value, percent: u64| json!({"document": rig::document(policies), "percent": percent, "by": "a test"});
    let change = |wish: &Value| rig.store.operate("POST", "/v1/documents", wish).map(drop);
    publish(&rig.store, json!([of_path("x", 4)]))?;
    until_taken_up(&rig.store, 1)?;
    let share = share(&rig)?;
    let mut number = 1;
    // A share that ends just before this proxy.
    if share > 0 {
        change(&wish(json!([of_path("x", 5)]), share))?;
        until_it_has_heard(&rig)?;
        change(&json!({"domain": "shop", "rollback_to": 1, "by": "a test"}))?;
        number = 3;
        until_taken_up(&rig.store, number)?;
        assert!(!rig.envoy.log().contains("document number 2 ("), "{}", rig.envoy.log());
    }
    // And one that ends just behind it.
    if share < 99 {
        change(&wish(json!([of_path("x", 6)]), share + 1))?;
        number += 1;
        until_in_force(&rig.envoy, number, 1)?;
        until_taken_up(&rig.store, number)?;
        change(&json!({"domain": "shop", "rollback_to": number, "by": "a test"}))?;
        until_taken_up(&rig.store, number + 1)?;
    }
    Ok(())
}

#[test]
fn document_for_a_time_is_taken_up_and_gives_way_by_itself() -> Result<()> {
    let rig = Rig::start(live(json!([of_path("x", 3)])))?;
    publish(&rig.store, json!([of_path("x", 4)]))?;
    until_taken_up(&rig.store, 1)?;
    let policies = json!([of_path("y", 0)]);
    let wish = json!({"document": rig::document(policies), "for_ms": 20_000, "by": "a test"});
    rig.store.operate("POST", "/v1/documents", &wish)?;
    let since = Instant::now();
    until_in_force(&rig.envoy, 2, 1)?;
    wait::until_true("a refusal", Duration::from_secs(5), || {
        Ok(status(rig.envoy.port(), "/y")? == 429)
    })
    .with_context(|| rig.envoy.log())?;
    until_taken_up(&rig.store, 3)?;
    assert!(since.elapsed() >= Duration::from_secs(20), "not before its time");
    println!("taken up everywhere {:?} after it was published for 20 s", since.elapsed());
    assert_eq!(status(rig.envoy.port(), "/y")?, 200);
    let history = http::get(rig.store.admin_port(), "/v1/history?domain=shop")?.json()?;
    let done = history[0]["done"].as_str().unwrap_or_default();
    assert!(done.ends_with("the time of number 2 is over"), "{history}");
    Ok(())
}

#[test]
fn filter_goes_by_its_own_document_while_a_rule_file_is_published() -> Result<()> {
    let rig = Rig::start(live(json!([of_path("x", 0)])))?;
    assert_eq!(status(rig.envoy.port(), "/x")?, 429);
    publish(&rig.store, json!([of_path("y", 0)]))?;
    until_taken_up(&rig.store, 1)?;
    assert_eq!(status(rig.envoy.port(), "/x")?, 200);
    assert_eq!(status(rig.envoy.port(), "/y")?, 429);
    rig.store.operate("DELETE", "/v1/documents", &json!({"domain": "shop", "by": "a test"}))?;
    wait::until_true("the embedded document", PATIENCE, || {
        Ok(status(rig.envoy.port(), "/x")? == 429)
    })?;
    let rules = "domain: shop\ndescriptors:\n\
                 - {key: k, rate_limit: {unit: year, requests_per_unit: 0}}\n";
    let wish = json!({"document": rules, "domain": "shop", "by": "a test"});
    rig.store.operate("POST", "/v1/documents", &wish)?;
    until_it_has_heard(&rig)?;
    assert_eq!(document_status(&rig.store)?["documents"][0]["kind"], json!("rules"));
    assert_eq!(status(rig.envoy.port(), "/x")?, 429);
    assert_eq!(status(rig.envoy.port(), "/y")?, 200);
    assert!(!rig.envoy.log().contains("document number 3"), "{}", rig.envoy.log());
    Ok(())
}

/// The most policies that a document may have: each one is enforced, and documents that were
/// replaced leave no memory behind.
#[test]
fn documents_of_1024_policies_replace_each_other() -> Result<()> {
    const POLICIES: usize = 1024;
    /// Swaps before memory is compared.
    const FIRST: u64 = 4;
    const LAST: u64 = 12;
    /// A document and its tables have a megabyte or two for each worker. If they stayed, the swaps
    /// after the first ones would leave more than this.
    const GROWTH_KIB: u64 = 12 * 1024;
    let rig = Rig::start_with(live(json!([])), |options| options.concurrency(2))?;
    let port = rig.envoy.port();
    let resident = || Ok::<_, anyhow::Error>(Footprint::of(&rig.envoy, &rig.redis)?.resident_kib);
    let before = resident()?;
    let (mut first, mut slowest) = (before, Duration::ZERO);
    for number in 1..=LAST {
        let policies: Vec<Value> =
            (0..POLICIES).map(|policy| of_path(&format!("p{policy}-{number}"), 1)).collect();
        publish(&rig.store, json!(policies))?;
        slowest = slowest.max(until_in_force(&rig.envoy, number, 2)?);
        let last = format!("/p{}-{number}", POLICIES - 1);
        assert_eq!([status(port, &last)?, status(port, &last)?], [200, 429], "number {number}");
        if number == FIRST {
            first = resident()?;
        }
    }
    let last = resident()?;
    println!(
        "{POLICIES} policies: in force after {slowest:?} at most; KiB without, after {FIRST} and \
         {LAST} swaps: {before}, {first}, {last}"
    );
    assert!(last < first + GROWTH_KIB, "{last} KiB after {LAST} swaps, {first} after {FIRST}");
    Ok(())
}

/// Two proxies of two workers each, whose store and Redis they share.
struct Pair {
    rig: Rig,
    other: Envoy,
}

impl Pair {
    fn start(redis: Redis, document: &Value) -> Result<Self> {
        let rig = Rig::start_on(redis, document.clone(), |options| options.concurrency(2))?;
        let other = Self::another(&rig, document)?;
        Ok(Self { rig, other })
    }

    fn another(rig: &Rig, document: &Value) -> Result<Envoy> {
        let options = EnvoyOptions::new(rig.upstream.port(), rig.store.port());
        let options = options.redis(&rig.redis.url()).concurrency(2);
        Envoy::start(&options.document(document.clone()))
    }

    fn until_in_force(&self, number: u64) -> Result<()> {
        for envoy in [&self.rig.envoy, &self.other] {
            until_in_force(envoy, number, 2)?;
        }
        Ok(())
    }

    /// Demands what is left, through both proxies. Returns how much that was.
    fn drain(&self) -> Result<u64> {
        let mut admitted = 0;
        for envoy in [&self.rig.envoy, &self.other] {
            wait::until_true("the quota to be used up", PATIENCE, || {
                loop {
                    match status(envoy.port(), "/")? {
                        200 => admitted += 1,
                        // After a failure the next call waits for a moment.
                        status => return Ok(status == 429),
                    }
                }
            })?;
        }
        Ok(admitted)
    }
}

#[test]
fn store_redis_or_proxy_that_freezes_during_a_swap_costs_no_request_and_no_unit() -> Result<()> {
    let quota = 2_500;
    let stays = rig::per_caller(quota);
    let mut pair = Pair::start(Redis::start()?, &live(json!([stays])))?;
    let load = Load::start(pair.rig.envoy.port(), 4, Duration::from_millis(20));
    for number in 1..=6 {
        publish(&pair.rig.store, around(&stays, number))?;
        let Pair { rig, other } = &mut pair;
        match number % 3 {
            0 => rig.store.freeze()?,
            1 => rig.redis.freeze()?,
            _ => other.freeze()?,
        }
        std::thread::sleep(Duration::from_millis(1_500));
        match number % 3 {
            0 => rig.store.thaw()?,
            1 => rig.redis.thaw()?,
            _ => other.thaw()?,
        }
        pair.until_in_force(number)?;
    }
    let mut admitted = pair.drain()?;
    let statuses = load.stop()?;
    println!("6 swaps with freezes: {statuses:?}, and {admitted}");
    assert!(statuses.keys().all(|status| [200, 429].contains(status)), "{statuses:?}");
    admitted += statuses.get(&200).copied().unwrap_or_default();
    assert_eq!(admitted, quota);
    Ok(())
}

#[test]
fn store_redis_or_proxy_that_dies_during_a_swap_admits_no_more_than_the_quota() -> Result<()> {
    let quota = 6_000;
    let stays = rig::per_caller(quota);
    // A Redis that loses nothing.
    let redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"])?;
    let document = live(json!([stays]));
    let mut pair = Pair::start(redis, &document)?;
    let load = Load::start(pair.rig.envoy.port(), 4, Duration::from_millis(20));
    for number in 1..=6 {
        publish(&pair.rig.store, around(&stays, number))?;
        let Pair { rig, other } = &mut pair;
        match number % 3 {
            0 => {
                let (port, url) = (rig.store.port(), rig.redis.url());
                rig.store.kill()?;
                std::thread::sleep(Duration::from_millis(500));
                rig.store = StoreProcess::start_on(port, &url, &[])?;
            }
            1 => {
                rig.redis.kill()?;
                std::thread::sleep(Duration::from_millis(500));
                rig.redis.restart()?;
            }
            _ => {
                other.kill()?;
                *other = Pair::another(rig, &document)?;
            }
        }
        pair.until_in_force(number)?;
    }
    let mut admitted = pair.drain()?;
    let statuses = load.stop()?;
    println!("6 swaps with ends: {statuses:?}, and {admitted}");
    assert!(statuses.keys().all(|status| [200, 429, 503].contains(status)), "{statuses:?}");
    admitted += statuses.get(&200).copied().unwrap_or_default();
    // Whatever died may have counted the requests that were under way, and answered none of them.
    let (clients, ends) = (4, 6);
    assert!((quota - clients * ends..=quota).contains(&admitted), "{admitted} of {quota}");
    Ok(())
}

/// The store, and the native module, reach Redis through a Sentinel.
#[test]
fn failover_keeps_the_published_document_and_a_further_one_replaces_it() -> Result<()> {
    let at_once = ["--repl-diskless-sync-delay", "0"];
    let mut primary = Redis::start_with(&at_once)?;
    let follows = ["--replicaof", "127.0.0.1", &primary.port().to_string()];
    let replica = Redis::start_with(&[&follows[..], &at_once].concat())?;
    let sentinel = Sentinel::start(&primary)?;
    let store = StoreProcess::start(&sentinel.url(), &[])?;
    let upstream = Upstream::start()?;
    let options = EnvoyOptions::new(upstream.port(), store.port()).redis(&sentinel.url());
    let embedded = live(json!([of_path("x", 0)]));
    let envoy = Envoy::start(&options.concurrency(2).document(embedded))?;
    let port = envoy.port();
    wait::until_true("the store to find the primary", PATIENCE, || {
        publish(&store, json!([of_path("y", 0)])).map(|()| true)
    })?;
    until_in_force(&envoy, 1, 2)?;
    until_taken_up(&store, 1)?;
    wait::until_true(
        "the replica to have it, and the Sentinel to know the replica",
        PATIENCE,
        || {
            let has_document = replica.cli(&["HLEN", "qg:texts:{shop}"])?.lines() == "1";
            let known =
                resp::command(sentinel.port(), &["SENTINEL", "REPLICAS", "mymaster"])?.lines();
            Ok(has_document && known.contains(&replica.port().to_string()))
        },
    )?;
    primary.kill()?;
    let killed = Instant::now();
    wait::until_true("the replica to take over", PATIENCE, || {
        assert_eq!(status(port, "/x")?, 200, "the embedded document would ask for a unit");
        Ok(replica.cli(&["INFO", "replication"])?.lines().contains("role:master"))
    })?;
    until_taken_up(&store, 1)?;
    assert_eq!(document_status(&store)?["documents"][0]["number"], json!(1));
    wait::until_true("counting through the new primary", PATIENCE, || {
        Ok(status(port, "/y")? == 429)
    })?;
    println!("counting through the new primary after {:?}", killed.elapsed());
    publish(&store, json!([of_path("z", 0)]))?;
    println!("the next document in force after {:?}", until_in_force(&envoy, 2, 2)?);
    until_taken_up(&store, 2)?;
    assert_eq!(["/x", "/y", "/z"].map(|path| status(port, path).ok()), [200, 200, 429].map(Some));
    assert!(!envoy.log().contains("the embedded one is in force"), "{}", envoy.log());
    Ok(())
}

/// As in a fleet of an older and a newer build: only the Wasm form can carry the document out.
#[test]
fn document_that_one_of_two_proxies_cannot_carry_out_leaves_that_one_and_the_count_alone()
-> Result<()> {
    let redis = Redis::start()?;
    let store = StoreProcess::start(&redis.url(), &[])?;
    let upstream = Upstream::start()?;
    let embedded = live(json!([rig::per_caller(20)]));
    let start = |form| {
        let options = EnvoyOptions::new(upstream.port(), store.port()).redis(&redis.url());
        Envoy::start(&options.form(form).document(embedded.clone()))
    };
    let [newer, older] = [start(Form::Wasm)?, start(Form::Native)?];
    let mut nested = of_path("x", 1);
    nested["cost"] = json!({
        "reserve": 1, "settle": [{"metadata": {"filter": "a", "path": ["b", "c"]}}]
    });
    publish(&store, json!([nested, rig::per_caller(20)]))?;
    until_in_force(&newer, 1, 1)?;
    wait::until_true("the refusal to be reported", PATIENCE, || {
        let listed = http::get(store.admin_port(), "/v1/documents?domain=shop")?.json()?;
        let sentence = listed["refused"][0].as_str().unwrap_or_default().to_owned();
        Ok(sentence.contains("published as number 1: ") && sentence.contains("metadata.path"))
    })?;
    let mut admitted = 0;
    for _ in 0..15 {
        for envoy in [&newer, &older] {
            admitted += u64::from(status(envoy.port(), "/")? == 200);
        }
    }
    assert_eq!(admitted, 20, "both count in one counter");
    assert_eq!([status(newer.port(), "/x")?, status(older.port(), "/x")?], [429, 429]);
    assert!(!older.log().contains("number 1 ("), "{}", older.log());
    Ok(())
}
