//! The Redis rights in `docs/reference/store.md` are sufficient for the store, and each is
//! necessary.

use std::sync::Arc;
use std::time::Duration;

use crate::acl::{is_refused, names, nothing_is_refused, without};
use crate::common::{back, batch, numbers, open, take, try_one, until};
use crate::in_flight::say;
use quotagate_store::store::{Store, StoreError};
use quotagate_support::cluster::{Cluster, SlotMove};
use quotagate_support::redis::Redis;
use quotagate_support::resp;
use quotagate_support::rights::{allow, documented, refused};
use quotagate_support::sentinel::Sentinel;

/// The rights without which the store is ready, and counts all but slots.
const FOR_SLOTS: [&str; 3] = ["hgetall", "hset", "hdel"];

/// Waits until the backend is ready, or until Redis denied it a command that it needs for that.
async fn opened(url: &str, port: u16) -> Option<Arc<dyn Store>> {
    let store = quotagate_store::open(&url.parse().unwrap(), "qg");
    until("the store is ready, or refused", Duration::from_secs(10), async || {
        let ready = store.health().faults.is_empty();
        let mut refused = refused(port).unwrap().into_iter();
        (ready || refused.any(|name| !FOR_SLOTS.contains(&&*name))).then_some(ready)
    })
    .await
    .then_some(store)
}

/// Runs every operation of the store on one server.
async fn everything(redis: &Redis, database: u8) {
    let url = format!("redis://quotagate:s3cret@127.0.0.1:{}/{database}", redis.port());
    let Some(store) = opened(&url, redis.port()).await else { return };
    let ask = take("a", 9, 3);
    let admin = |command: &[&str]| redis.cli(command).unwrap();
    let mut grants = store.reserve(&batch(vec![], vec![ask.clone()])).await;
    admin(&["SCRIPT", "FLUSH"]);
    let again = batch(vec![], vec![take("b", 9, 1), take("c", 9, 1)]);
    store.reserve(&again).await;
    // A counter that was written by hand does not expire until the store counts on it.
    let key = admin(&["KEYS", "qg:test:p:{a}:*"]).lines();
    if !key.is_empty() {
        admin(&["PERSIST", &key]);
    }
    if let Ok(grant) = grants.remove(0) {
        store.reserve(&batch(vec![back(&ask, grant, 1)], vec![ask.clone()])).await;
        store.reserve(&batch(vec![back(&ask, grant, 1)], vec![ask])).await;
    }
    // A worker has died a while ago.
    let dead = "redis.call('HSET', KEYS[1], 'dead', string.rep('\0', 64))";
    admin(&["EVAL", dead, "1", "qg:test:p:{slots}:slots"]);
    store.reserve(&batch(vec![], vec![say("slots", 4, "a", 1, 0, 1)])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn user_without_the_rights_for_slots_counts_all_else() {
    let redis = Redis::start().unwrap();
    let all = documented().unwrap().one;
    for name in ["hgetall", "hset"] {
        allow(redis.port(), &without(&all, name)).unwrap();
        let url = format!("redis://quotagate:s3cret@127.0.0.1:{}", redis.port());
        let store = open(&url).await;
        assert_eq!(numbers(&*store, &take(name, 9, 2)).await, (2, 2));
        let slots = try_one(&*store, &say(name, 4, "a", 1, 0, 1)).await;
        assert!(matches!(slots, Err(StoreError::Refused(_))), "{slots:?}");
        assert_eq!(store.health().faults, [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documented_rights_suffice_on_one_server_and_each_is_needed() {
    let redis = Redis::start().unwrap();
    let all = documented().unwrap().one;
    allow(redis.port(), &all).unwrap();
    everything(&redis, 0).await;
    nothing_is_refused(redis.port());
    let store = open(&format!("redis://quotagate:s3cret@127.0.0.1:{}", redis.port())).await;
    assert_eq!(numbers(&*store, &take("sound", 9, 2)).await, (2, 2));
    drop(store);
    assert!(names(&all).count() > 8, "{all:?}");
    for name in names(&all) {
        redis.cli(&["FLUSHALL"]).unwrap();
        redis.cli(&["ACL", "LOG", "RESET"]).unwrap();
        allow(redis.port(), &without(&all, name)).unwrap();
        everything(&redis, 0).await;
        is_refused(redis.port(), name);
    }
}

/// The store's answer to `/readyz` while it lacks a right.
async fn complaint(store: &dyn Store, rule: &str) -> String {
    until(rule, Duration::from_secs(10), async || {
        store.health().faults.into_iter().find(|fault| fault.contains("ACL SETUSER"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn suggested_command_grants_the_missing_rights() {
    let redis = Redis::start().unwrap();
    let all = documented().unwrap().one;
    let url = format!("redis://quotagate:s3cret@127.0.0.1:{}", redis.port());
    let useful = ["script|load", "info", "role"];
    let missing = names(&all)
        .filter(|name| !useful.contains(name) && !FOR_SLOTS.contains(name))
        .map(|name| format!("+{name}"));
    for rule in missing.chain(["~qg:*".to_owned()]) {
        let rest: Vec<_> = all.iter().filter(|kept| **kept != rule).cloned().collect();
        allow(redis.port(), &rest).unwrap();
        let store = quotagate_store::open(&url.parse().unwrap(), "qg");
        let said = complaint(&*store, &rule).await;
        assert!(store.health().outage, "{rule}");
        let command = said.split("run ").last().unwrap().split(' ').collect::<Vec<_>>();
        assert_eq!(command, ["ACL", "SETUSER", "quotagate", &rule]);
        redis.cli(&command).unwrap();
        until(&rule, Duration::from_secs(20), async || {
            store.health().faults.is_empty().then_some(())
        })
        .await;
        if rule == "+eval" {
            // A connected store needs this right only after SCRIPT FLUSH.
            continue;
        }
        // The right is removed again while the store runs.
        allow(redis.port(), &rest).unwrap();
        assert!(complaint(&*store, &rule).await.ends_with(&rule), "{rule}");
    }
    // Keys that could not be deleted without PEXPIRE expire by themselves.
    for key in redis.cli(&["KEYS", "*"]).unwrap().lines().lines() {
        let left: i64 = redis.cli(&["PTTL", key]).unwrap().lines().parse().unwrap();
        assert!((1..=70_000).contains(&left), "{key}: {left}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_missing_rights_are_named_at_once() {
    let redis = Redis::start().unwrap();
    allow(redis.port(), &["~other:*", "-@all", "+time", "+get"].map(str::to_owned)).unwrap();
    let store = quotagate_store::open(
        &format!("redis://quotagate:s3cret@127.0.0.1:{}", redis.port()).parse().unwrap(),
        "qg",
    );
    let said = complaint(&*store, "everything").await;
    let rules = "+evalsha +eval ~qg:* +set +incrby +decrby +pttl +pexpire +script|load +info \
                 +hgetall +hset +hdel +role";
    assert!(said.ends_with(&format!("run ACL SETUSER quotagate {rules}")), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_database_needs_one_more_right() {
    let redis = Redis::start().unwrap();
    let rights = documented().unwrap();
    allow(redis.port(), &rights.one).unwrap();
    everything(&redis, 3).await;
    is_refused(redis.port(), "select");
    allow(redis.port(), &[rights.one, rights.database].concat()).unwrap();
    everything(&redis, 3).await;
    nothing_is_refused(redis.port());
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_needs_one_right_of_its_own() {
    let redis = Redis::start().unwrap();
    let sentinel = Sentinel::start(&redis).unwrap();
    let port = sentinel.port();
    let rights = documented().unwrap();
    let url = format!("redis-sentinel://quotagate:s3cret@127.0.0.1:{port}/mymaster");
    until("the sentinel answers", Duration::from_secs(10), async || {
        resp::command(port, &["PING"]).ok()
    })
    .await;
    allow(redis.port(), &rights.one).unwrap();
    assert!(opened(&url, redis.port()).await.is_some(), "a sentinel without a password");
    // From now on the sentinel requires a password.
    allow(port, &without(&rights.sentinel, "sentinel|get-master-addr-by-name")).unwrap();
    resp::command(port, &["ACL", "SETUSER", "looker", "on", ">looks", "~*", "&*", "+@all"])
        .unwrap();
    resp::command(port, &["ACL", "SETUSER", "default", "-@all", "+acl"]).unwrap();
    assert!(opened(&url, port).await.is_none());
    is_refused(port, "sentinel|get-master-addr-by-name");
}

/// Counts before, during and after the move of this tag's slot, as far as the rights allow.
async fn count_while_it_moves(cluster: &Cluster, store: &dyn Store, tag: &str) -> Vec<Option<u64>> {
    let ask = take(tag, 99, 1);
    let count = async || try_one(store, &ask).await.ok().map(|grant| grant.used);
    let mut used = vec![count().await];
    let slot = SlotMove::of(cluster, tag).unwrap();
    slot.begin().unwrap();
    // The store looks for an absent override on both nodes.
    used.push(count().await);
    slot.keys().unwrap();
    used.push(count().await);
    slot.end().unwrap();
    used.push(count().await);
    used
}

#[tokio::test(flavor = "multi_thread")]
async fn documented_rights_suffice_on_a_cluster_while_a_slot_moves_and_each_is_needed() {
    let cluster = Cluster::start().unwrap();
    let rights = documented().unwrap();
    let all = [rights.one, rights.cluster.clone()].concat();
    let allow_all =
        |rules: &[String]| cluster.ports().into_iter().for_each(|port| allow(port, rules).unwrap());
    let url = cluster.url().replace("redis-cluster://", "redis-cluster://quotagate:s3cret@");
    allow_all(&all);
    let store = open(&url).await;
    assert_eq!(count_while_it_moves(&cluster, &*store, "moving").await, [1, 2, 3, 4].map(Some));
    until("the map is read again", Duration::from_secs(20), async || {
        try_one(&*store, &take("other", 99, 1)).await.ok().filter(|grant| grant.granted == 1)
    })
    .await;
    cluster.ports().into_iter().for_each(nothing_is_refused);
    drop(store);
    assert_eq!(names(&rights.cluster).collect::<Vec<_>>(), ["cluster|slots", "asking"]);
    let somewhere = |name: &str| {
        let refused: Vec<_> =
            cluster.ports().into_iter().map(|port| refused(port).unwrap()).collect();
        refused.iter().flatten().any(|object| object == name)
    };
    allow_all(&without(&all, "cluster|slots"));
    let store = quotagate_store::open(&url.parse().unwrap(), "qg");
    until("the map is refused", Duration::from_secs(10), async || {
        somewhere("cluster|slots").then_some(())
    })
    .await;
    let command = "run ACL SETUSER quotagate +cluster|slots on every node";
    assert!(complaint(&*store, command).await.contains(command));
    drop(store);
    allow_all(&without(&all, "asking"));
    let store = open(&url).await;
    let used = count_while_it_moves(&cluster, &*store, "again").await;
    assert!(used.contains(&None) && somewhere("asking"), "{used:?}");
}
