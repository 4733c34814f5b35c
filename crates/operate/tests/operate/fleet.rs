//! What several processes saw that share a backend.

use std::sync::Arc;
use std::time::Duration;

use quotagate_operate::Operate;
use quotagate_operate::api::{PublisherKind, Top};
use quotagate_operate::watch::Wanted;
use quotagate_protocol::Reservation;
use quotagate_store::server::{Event, Hooks};
use quotagate_store::store::{CheckedReservation, Store};
use quotagate_support::cluster::Cluster;
use quotagate_support::redis::Redis;
use serde_json::json;
use tokio::time::timeout;

use crate::before;
use crate::common::{one, open, take, until};
use crate::operators::report;

/// Reserves a unit, and shows the answer to this process.
async fn count(operate: &Operate, store: &Arc<dyn Store>, ask: Reservation) {
    let grant = one(&**store, &ask).await;
    let ask = CheckedReservation::new(ask).unwrap();
    operate.observe(Event::Reserved(&ask, &Ok(grant)));
}

/// Lets a process work for a moment, in which it publishes once.
async fn work(operate: &Operate) {
    timeout(Duration::from_millis(500), operate.run()).await.unwrap_err();
}

async fn top(operate: &Operate) -> Top {
    operate.fleet.look().await.top(Wanted::default(), 10)
}

async fn suite(store: &Arc<dyn Store>) {
    let (proxy, other) = (Operate::in_proxy(Arc::clone(store)), Operate::new(Arc::clone(store)));
    proxy.dials("test", &report(&["p"])).await.unwrap();
    count(&proxy, store, take("jwt.sub=a", 3, 3)).await;
    count(&proxy, store, take("jwt.sub=a", 3, 1)).await;
    work(&proxy).await;
    count(&other, store, take("jwt.sub=a", 3, 1)).await;
    count(&other, store, take("jwt.sub=b", 3, 1)).await;
    // A policy in shadow mode lets requests through, and names whom it would refuse.
    count(&other, store, Reservation { shadow: true, ..take("jwt.sub=t", 3, 4) }).await;
    let let_through =
        json!({"policies": [], "would_refuse": [{"key": "test:p:{jwt.sub=t}", "requests": 5}]});
    other.dials("test", let_through.to_string().as_bytes()).await.unwrap();
    work(&other).await;
    let third = Operate::new(Arc::clone(store));
    let seen = top(&third).await;
    assert_eq!(seen.incomplete, None);
    let fullest: Vec<_> = seen.fullest.iter().map(|of| (of.partition.as_str(), of.used)).collect();
    assert_eq!(fullest, [("jwt.sub=a", 3), ("jwt.sub=t", 3), ("jwt.sub=b", 1)]);
    let refused: Vec<_> =
        seen.refused.iter().map(|of| (of.partition.as_str(), of.requests)).collect();
    assert_eq!(refused, [("jwt.sub=a", 2)], "the sum");
    let would_refuse: Vec<_> =
        seen.would_refuse.iter().map(|of| (of.partition.as_str(), of.requests)).collect();
    assert_eq!(would_refuse, [("jwt.sub=t", 6)]);
    let kinds: Vec<_> = seen.publishers.iter().map(|publisher| publisher.kind).collect();
    assert_eq!(kinds, [PublisherKind::Store, PublisherKind::Store, PublisherKind::Proxy]);
    let sight = third.fleet.look().await;
    assert_eq!(sight.top(Wanted { policy: Some("q"), ..Wanted::default() }, 10).fullest, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_share_redis_see_each_other() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    suite(&store).await;
    let keys = redis.cli(&["KEYS", "qg:publish*"]).unwrap();
    let lines = keys.lines();
    let published = lines.lines().filter(|key| key.contains(":published:"));
    let published: Vec<_> = published.map(str::to_owned).collect();
    assert_eq!(published.len(), 2, "{keys:?}");
    for (key, most) in
        published.iter().map(|key| (key.as_str(), 20_000)).chain([("qg:publishers:{*}", 180_000)])
    {
        let left: u64 = redis.cli(&["PTTL", key]).unwrap().lines().trim().parse().unwrap();
        assert!((1..=most).contains(&left), "{key} is kept for {left} ms");
    }
    // A process that is gone disappears.
    let key = published.first().unwrap();
    redis.cli(&["PEXPIRE", key, "1"]).unwrap();
    until("its picture has expired", Duration::from_secs(20), async || {
        let fresh = Operate::new(Arc::clone(&store));
        (top(&fresh).await.publishers.len() == 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_share_a_cluster_see_each_other() {
    let cluster = Cluster::start().unwrap();
    suite(&open(&cluster.url()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_pictures_are_ignored() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let proxy = Operate::in_proxy(Arc::clone(&store));
    count(&proxy, &store, take("jwt.sub=a", 3, 3)).await;
    work(&proxy).await;
    let keys = redis.cli(&["KEYS", "qg:published:*"]).unwrap();
    let key = keys.lines().trim().to_owned();
    let large = format!("{{\"fullest\":\"{}\"}}", "x".repeat(1_000_000));
    for (field, value) in [
        ("x", "nonsense"),
        ("y", "{\"fullest\":{\"domain\":\"<b>\"}}"),
        ("z", "{\"series\":7}"),
        ("large", large.as_str()),
        ("\u{fffd}", "{"),
    ] {
        redis.cli(&["HSET", &key, field, value]).unwrap();
    }
    let index = "qg:publishers:{*}";
    redis.cli(&["HSET", index, "0000000000000000", "{\"id\":\"0000000000000000\"}"]).unwrap();
    redis.cli(&["HSET", index, "../../etc", "{}"]).unwrap();
    let seen = top(&Operate::new(Arc::clone(&store))).await;
    assert_eq!((seen.fullest.len(), seen.publishers.len(), seen.incomplete), (1, 2, None));
    redis.cli(&["DEL", &key]).unwrap();
    redis.cli(&["SET", &key, "text"]).unwrap();
    let seen = top(&Operate::new(Arc::clone(&store))).await;
    assert_eq!((seen.fullest.len(), seen.publishers.len(), seen.incomplete), (0, 1, None));
    redis.cli(&["DEL", index]).unwrap();
    redis.cli(&["SET", index, "text"]).unwrap();
    work(&proxy).await;
    assert_eq!(top(&Operate::new(Arc::clone(&store))).await.publishers.len(), 1);
}

#[tokio::test]
async fn hanging_redis_hides_others_for_less_than_a_second() {
    let mut redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let operate = Operate::new(Arc::clone(&store));
    count(&operate, &store, take("jwt.sub=a", 3, 3)).await;
    redis.freeze().unwrap();
    let seen = before(Duration::from_secs(1), top(&operate)).await;
    redis.thaw().unwrap();
    assert_eq!(seen.fullest.len(), 1, "its own");
    assert!(seen.incomplete.unwrap().contains("did not answer in time"));
}
