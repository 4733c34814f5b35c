//! Operating needs exactly the rights in Redis that the documents list for it.

use std::sync::Arc;
use std::time::Duration;

use crate::acl::{is_refused, names, nothing_is_refused, without};
use crate::calls::NO_CALLS;
use crate::common::{numbers, one, open, take};
use quotagate_operate::Operate;
use quotagate_operate::api::{Allow, ClearDial, ClearOverride, Reset, SetDial, SetOverride};
use quotagate_operate::watch::Wanted;
use quotagate_store::server::{Event, Hooks};
use quotagate_store::store::{CheckedReservation, Store};
use quotagate_support::cluster::{Cluster, SlotMove};
use quotagate_support::redis::Redis;
use quotagate_support::rights::{allow, documented};
use tokio::time::timeout;

/// Does everything that operators do. Returns the errors.
async fn operate_everything(redis: &Redis) -> Vec<String> {
    let url = format!("redis://quotagate:s3cret@127.0.0.1:{}", redis.port());
    operate_all(&open(&url).await).await
}

async fn operate_all(store: &Arc<dyn Store>) -> Vec<String> {
    let operate = Operate::new(Arc::clone(store));
    let cached = operate.views.wanted("test").await.unwrap();
    let report = br#"{"policies":[{"name":"p","quota":5,"window_s":31622400,"stagger":false,"mode":"enforce","on_failure":"allow"}]}"#;
    cached.learn(report).unwrap();
    operate.directory.write_down(&cached).await;
    let (policy, by) = ("p".to_owned(), "ann".to_owned());
    let dial = SetDial {
        domain: Some("test".to_owned()),
        policy: policy.clone(),
        mode: None,
        include_shadow: false,
        enforced_for: None,
        quota: Some(7),
        on_failure: None,
        for_ms: None,
        by: by.clone(),
    };
    let domain = dial.domain.clone();
    let cleared = ClearDial { domain: domain.clone(), policy: policy.clone(), by: by.clone() };
    let reset = Reset {
        domain: domain.clone(),
        policy: policy.clone(),
        partition: "jwt.sub=a".to_owned(),
        by: by.clone(),
    };
    let over = SetOverride {
        domain: domain.clone(),
        policy: policy.clone(),
        partition: "jwt.sub=a".to_owned(),
        allow: Allow::Blocked,
        for_ms: Some(60_000),
        by: by.clone(),
    };
    let off = ClearOverride { domain, policy, partition: "jwt.sub=a".to_owned(), by };
    let counted = take("jwt.sub=a", 9, 1);
    let grant = one(&**store, &counted).await;
    let counted = CheckedReservation::new(counted).unwrap();
    operate.observe(Event::Reserved(&counted, &Ok(grant)));
    timeout(Duration::from_millis(500), operate.run()).await.unwrap_err();
    let others = operate.fleet.look().await.top(Wanted::default(), 9).incomplete;
    let failed = [
        operate.dials.set(&dial).await.err(),
        operate.dials.clear(&cleared).await.err(),
        operate.overrides.set(&over).await.err(),
        operate.overrides.list(Some("test"), None, 9).await.err(),
        operate.overrides.clear(&off).await.err(),
        operate.history.list(Some("test"), 9).await.err(),
        operate.counters.usage(Some("test"), "jwt.sub=a", &NO_CALLS).await.err(),
        operate.counters.reset(&reset).await.err(),
    ];
    let failed = failed.into_iter().flatten().map(|fault| fault.to_string());
    failed.chain(others).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn operating_needs_more_rights_and_counting_works_without_them() {
    let redis = Redis::start().unwrap();
    let rights = documented().unwrap();
    allow(redis.port(), &rights.one).unwrap();
    let failed = operate_everything(&redis).await;
    assert!(
        failed.len() == 6 && failed[0].contains("lacks a right that operating needs"),
        "{failed:?}"
    );
    let store = open(&format!("redis://quotagate:s3cret@127.0.0.1:{}", redis.port())).await;
    assert_eq!(numbers(&*store, &take("jwt.sub=a", 9, 1)).await, (1, 2), "it counts");
    drop(store);
    let all = [rights.one, rights.operate.clone()].concat();
    redis.cli(&["ACL", "LOG", "RESET"]).unwrap();
    allow(redis.port(), &all).unwrap();
    assert_eq!(operate_everything(&redis).await, [""; 0]);
    nothing_is_refused(redis.port());
    assert!(names(&rights.operate).count() > 5, "{all:?}");
    for name in names(&rights.operate) {
        redis.cli(&["FLUSHALL"]).unwrap();
        allow(redis.port(), &without(&all, name)).unwrap();
        operate_everything(&redis).await;
        is_refused(redis.port(), name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operating_a_cluster_needs_no_more_rights_while_a_slot_moves() {
    let cluster = Cluster::start().unwrap();
    let rights = documented().unwrap();
    let all = [rights.one, rights.cluster, rights.operate].concat();
    cluster.ports().into_iter().for_each(|port| allow(port, &all).unwrap());
    let url = cluster.url().replace("redis-cluster://", "redis-cluster://quotagate:s3cret@");
    let store = open(&url).await;
    assert_eq!(operate_all(&store).await, [""; 0]);
    // This override keeps every hash of the domain in existence while its slot moves. A cluster
    // rejects a step if only some of its keys are there.
    let stays = SetOverride {
        domain: Some("test".to_owned()),
        policy: "p".to_owned(),
        partition: "jwt.sub=stays".to_owned(),
        allow: Allow::Blocked,
        for_ms: None,
        by: "ann".to_owned(),
    };
    Operate::new(Arc::clone(&store)).overrides.set(&stays).await.unwrap();
    // The slot of the dials, and that of the counters and overrides.
    for tag in ["test", "jwt.sub=a"] {
        let slot = SlotMove::of(&cluster, tag).unwrap();
        slot.begin().unwrap();
        assert_eq!(operate_all(&store).await, [""; 0], "{tag} begins to move");
        slot.keys().unwrap();
        assert_eq!(operate_all(&store).await, [""; 0], "{tag} has moved");
        slot.end().unwrap();
        assert_eq!(operate_all(&store).await, [""; 0], "{tag} is on its new shard");
    }
    cluster.ports().into_iter().for_each(nothing_is_refused);
}
