//! Dials through two real Envoys, each with its own store, over one real Redis Cluster.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quotagate_support::cluster::Cluster;
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::rig::{Rig, document};

/// Every proxy applies a dial within this time.
const IN_FORCE: Duration = Duration::from_secs(10);
/// Extra time for a busy machine, for steps without a bound of their own.
const PATIENCE: Duration = Duration::from_secs(60);

/// The fields are dropped in this order.
struct Fleet {
    clients: [Client; 2],
    envoys: [Envoy; 2],
    upstream: Upstream,
    stores: [StoreProcess; 2],
    cluster: Cluster,
}

/// Five units for each tenant, in a window that does not end during a test.
fn five() -> Value {
    document(json!([
        {"name": "per-tenant", "partition_by": ["tenant"], "on_missing": "shared", "quota": 5, "window": "366d"}
    ]))
}

impl Fleet {
    fn start() -> Result<Self> {
        let cluster = Cluster::start()?;
        let stores =
            [StoreProcess::start(&cluster.url(), &[])?, StoreProcess::start(&cluster.url(), &[])?];
        let upstream = Upstream::start()?;
        let envoy = |store: &StoreProcess| {
            Envoy::start(&EnvoyOptions::new(upstream.port(), store.port()).document(five()))
        };
        let envoys = [envoy(&stores[0])?, envoy(&stores[1])?];
        let clients = [Client::connect(envoys[0].port())?, Client::connect(envoys[1].port())?];
        Ok(Self { clients, envoys, upstream, stores, cluster })
    }

    /// Sends this many requests of the tenant through both proxies in turn; returns how many are
    /// admitted.
    fn admitted(&mut self, tenant: &str, requests: usize) -> Result<usize> {
        let mut admitted = 0;
        for i in 0..requests {
            let response = self.clients[i % 2].send(&get(tenant))?;
            assert!([200, 429].contains(&response.status), "{}", response.status);
            admitted += usize::from(response.status == 200);
        }
        Ok(admitted)
    }

    /// Sends a change to the first store. A store learns of a policy soon after the first request.
    fn change(&self, method: &str, change: &Value) -> Result<()> {
        wait::until("the dial to be set", PATIENCE, || {
            self.stores[0].operate(method, "/v1/dials", change).map(Some)
        })?;
        Ok(())
    }

    /// Waits until the answers of both proxies to this tenant satisfy `holds`; returns the time it
    /// took.
    fn both(
        &mut self,
        what: &str,
        tenant: &str,
        holds: impl Fn(&Response) -> bool,
    ) -> Result<Duration> {
        let since = Instant::now();
        for client in &mut self.clients {
            wait::until_true(what, PATIENCE, || Ok(holds(&client.send(&get(tenant))?)))?;
        }
        println!("{what}: after {:?}", since.elapsed());
        Ok(since.elapsed())
    }
}

fn get(tenant: &str) -> Request {
    Request::get("/").header("x-tenant", tenant)
}

fn dial(more: Value) -> Value {
    let mut dial = json!({"policy": "per-tenant", "by": "a test"});
    dial.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    dial
}

fn limit(response: &Response) -> Option<&str> {
    response.header("x-ratelimit-limit")
}

#[test]
fn dial_from_five_to_eight_admits_three_more() -> Result<()> {
    let mut fleet = Fleet::start()?;
    assert_eq!(fleet.admitted("a", 12)?, 5);
    fleet.change("PUT", &dial(json!({"quota": 8})))?;
    let since = Instant::now();
    let mut more = 0;
    wait::until_true("three more to be admitted", PATIENCE, || {
        more += fleet.admitted("a", 2)?;
        Ok(more >= 3)
    })?;
    println!("three more after {:?}", since.elapsed());
    assert!(since.elapsed() < IN_FORCE, "{:?}", since.elapsed());
    assert_eq!(more + fleet.admitted("a", 40)?, 3, "exactly");
    fleet.both("both to show the quota", "a", |response| limit(response) == Some("8"))?;
    assert_eq!(fleet.admitted("b", 20)?, 8, "a new tenant has the whole quota");
    assert_eq!(fleet.upstream.requests(), 16);
    Ok(())
}

#[test]
fn mode_dials_apply_within_ten_seconds_and_expiring_dials_revert() -> Result<()> {
    let mut fleet = Fleet::start()?;
    assert_eq!(fleet.admitted("a", 12)?, 5);
    let refused = |response: &Response| response.status == 429;
    let uncounted = |response: &Response| response.status == 200 && limit(response).is_none();
    fleet.change("PUT", &dial(json!({"mode": "shadow"})))?;
    let took = fleet.both("shadow", "a", uncounted)?;
    assert!(took < IN_FORCE, "{took:?}");
    let labels = [("domain", "shop"), ("policy", "per-tenant"), ("outcome", "shadow_refused")];
    let shadow = |fleet: &Fleet| fleet.envoys[0].metric("quotagate_requests", &labels);
    let counted = shadow(&fleet)?;
    fleet.change("PUT", &dial(json!({"mode": "off"})))?;
    // A client cannot distinguish off from shadow. The statistics can: they no longer change.
    let since = Instant::now();
    wait::until_true("off", PATIENCE, || {
        let before = shadow(&fleet)?;
        fleet.admitted("a", 10)?;
        std::thread::sleep(Duration::from_millis(100));
        Ok(shadow(&fleet)? == before && before != counted)
    })?;
    assert!(since.elapsed() < IN_FORCE, "{:?}", since.elapsed());
    println!("off: after {:?}", since.elapsed());
    fleet.change("DELETE", &dial(json!({})))?;
    let took = fleet.both("as configured", "a", refused)?;
    assert!(took < IN_FORCE, "{took:?}");

    let since = Instant::now();
    fleet.change("PUT", &dial(json!({"mode": "shadow", "for_ms": 3_000})))?;
    fleet.both("shadow for 3 s", "a", uncounted)?;
    fleet.both("it to revert", "a", refused)?;
    let took = since.elapsed();
    assert!(
        (Duration::from_secs(2)..Duration::from_secs(3) + IN_FORCE).contains(&took),
        "{took:?}"
    );
    Ok(())
}

#[test]
fn dials_survive_store_restarts_and_the_loss_of_a_redis_primary() -> Result<()> {
    let mut fleet = Fleet::start()?;
    fleet.admitted("a", 2)?;
    fleet.change("PUT", &dial(json!({"quota": 8})))?;
    fleet.both("the quota", "a", |response| limit(response) == Some("8"))?;

    let fresh = |fleet: &mut Fleet, tenant: &str| -> Result<()> {
        let (url, upstream) = (fleet.cluster.url(), fleet.upstream.port());
        for (i, store) in fleet.stores.iter_mut().enumerate() {
            let port = store.port();
            store.stop()?;
            *store = StoreProcess::start_on(port, &url, &[])?;
            let options = EnvoyOptions::new(upstream, store.port()).document(five());
            fleet.envoys[i] = Envoy::start(&options)?;
            fleet.clients[i] = Client::connect(fleet.envoys[i].port())?;
        }
        let shown = |response: &Response| limit(response) == Some("8");
        fleet.both("fresh Envoys to show the quota", "a", shown)?;
        assert_eq!(fleet.admitted(tenant, 20)?, 8);
        Ok(())
    };
    fresh(&mut fleet, "b").context("after the stores were restarted")?;

    let key = "qg:dials:{shop}";
    let slot: usize = fleet.cluster.cli(0, &["CLUSTER", "KEYSLOT", key])?.lines().parse()?;
    let primary = slot * 3 / 16_384;
    assert_eq!(
        fleet.cluster.cli(primary, &["EXISTS", key])?.lines(),
        "1",
        "this primary holds the dials"
    );
    fleet.cluster.cli(primary, &["WAIT", "1", "10000"])?;
    fleet.cluster.kill_node(primary)?;
    wait::until_true("the replica to take over", PATIENCE, || {
        Ok(fleet.cluster.cli(primary + 3, &["ROLE"])?.lines().starts_with("master"))
    })?;
    fresh(&mut fleet, "c").context("after the failover")
}

#[test]
fn malformed_dials_are_logged_once_and_ignored_and_the_others_apply() -> Result<()> {
    let mut rig = Rig::start(document(json!([
        {"name": "a", "partition_by": [], "quota": 100_000, "window": "366d"},
        {"name": "b", "partition_by": [], "quota": 90_000, "window": "366d"}
    ])))?;
    let mut client = rig.client()?;
    client.send(&Request::get("/"))?;
    let set = json!({"policy": "b", "quota": 50_000, "by": "a test"});
    wait::until("the dial to be set", PATIENCE, || {
        rig.store.operate("PUT", "/v1/dials", &set).map(Some)
    })?;
    for (field, value) in [
        ("a", "garbage"),
        ("nobody", r#"{"mode":"off"}"#),
        ("b:c", "{}"),
        ("\n\u{1b}", "{"),
        ("*", r#"{"mode":7}"#),
    ] {
        rig.redis.cli(&["HSET", "qg:dials:{shop}", field, value])?;
    }
    rig.redis.cli(&["HSET", "qg:dials:{shop}", "#version", "99-9000000000000000"])?;
    wait::until_true("the other dial to apply", PATIENCE, || {
        let response = client.send(&Request::get("/"))?;
        assert_eq!(response.status, 200);
        let policies = response.header("ratelimit-policy").unwrap_or_default().to_owned();
        assert!(policies.contains(r#""a";q=100000"#), "{policies}");
        Ok(policies.contains(r#""b";q=50000"#))
    })?;
    // There are four lines. `nobody` may be the policy of another filter, so it is not reported.
    let complaint = "ignored fields that are not dials: 4";
    // The store, or the store's library in the native module.
    let log = |rig: &Rig| if rig.counts_in_redis { rig.envoy.log() } else { rig.store.log() };
    wait::until_true("the store to complain", PATIENCE, || {
        client.send(&Request::get("/"))?;
        Ok(log(&rig).contains(complaint))
    })?;
    // A key of another type is not a hash of dials. The store keeps the dials it knows.
    rig.redis.cli(&["SET", "qg:dials:{shop}", "garbage"])?;
    let until = Instant::now() + Duration::from_secs(12);
    while Instant::now() < until {
        assert_eq!(client.send(&Request::get("/"))?.status, 200);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(log(&rig).matches(complaint).count(), 1, "one line");
    assert_eq!(log(&rig).matches("domain shop: ").count(), 2, "one for each state");
    assert!(
        rig.counts_in_redis || !rig.envoy.log().contains("dial"),
        "the store must not send malformed dials to the filter"
    );
    assert!(!rig.envoy.log().contains("panicked"));
    rig.envoy.check()?;
    rig.store.check()
}

#[test]
fn share_of_the_tenants_is_enforced_and_the_rest_is_in_shadow() -> Result<()> {
    let rig = Rig::start(document(json!([{
        "name": "trial", "partition_by": ["tenant"], "on_missing": "shared", "quota": 1, "window": "366d",
        "mode": "shadow"
    }])))?;
    let tenants: Vec<String> = (0..40).map(|n| format!("t{n}")).collect();
    let refused = || -> Result<Vec<String>> {
        let mut client = rig.client()?;
        let mut refused = Vec::new();
        for tenant in &tenants {
            // Those in shadow mode are not waited for, so one request may be the first.
            let statuses = [client.send(&get(tenant))?.status, client.send(&get(tenant))?.status];
            if statuses.contains(&429) {
                refused.push(tenant.clone());
            }
        }
        Ok(refused)
    };
    assert_eq!(refused()?, [""; 0]);
    let dial = |fields: Value| -> Result<()> {
        let mut wish = json!({"policy": "trial", "by": "a test", "enforced_for": fields});
        if fields.is_null() {
            wish.as_object_mut().context("an object")?.remove("enforced_for");
            wish["mode"] = json!("enforce");
        }
        let set = || rig.store.operate("PUT", "/v1/dials", &wish).map(Some);
        wait::until("the dial to be set", PATIENCE, set).map(drop)
    };
    // Whose second 64 bits of SHA-256("header.x-tenant=tN"), modulo 100, are below the percent.
    let ten: &[u32] = &[11, 39];
    let thirty: &[u32] = &[2, 3, 4, 5, 10, 11, 13, 14, 19, 20, 29, 30, 33, 34, 38, 39];
    for (percent, expected) in [(10, ten), (30, thirty)] {
        dial(json!({"percent": percent}))?;
        let expected: Vec<String> = expected.iter().map(|n| format!("t{n}")).collect();
        wait::until_true("the share to be refused", PATIENCE, || Ok(refused()? == expected))?;
    }
    dial(json!({"only": ["header.x-tenant=t5"]}))?;
    wait::until_true("one tenant to be refused", PATIENCE, || Ok(refused()? == ["t5"]))?;
    dial(Value::Null)?;
    wait::until_true("all to be refused", PATIENCE, || Ok(refused()?.len() == tenants.len()))
}
