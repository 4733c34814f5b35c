//! Counters among many keys of Redis.

use std::sync::Arc;

use quotagate_operate::Operate;
use quotagate_protocol::Reservation;
use quotagate_protocol::dials::{PartitionEntry, Report};
use quotagate_store::store::Store;
use quotagate_support::redis::Redis;

use crate::calls::NO_CALLS;
use crate::common::{batch, one, open, take};
use crate::operators::report;

/// An operator's view of the domain `many`: `user` counts by user, `both` by user and method.
async fn reported(store: &Arc<dyn Store>, names: &[&str]) -> Operate {
    let operate = Operate::new(Arc::clone(store));
    let mut sent: Report = serde_json::from_slice(&report(names)).unwrap();
    let entry = |name: &str| PartitionEntry { name: name.to_owned(), forms: vec![name.to_owned()] };
    for policy in &mut sent.policies {
        let by: &[&str] = if policy.name == "both" { &["jwt.sub", "method"] } else { &["jwt.sub"] };
        policy.partition_by = Some(by.iter().copied().map(entry).collect());
    }
    let cached = operate.views.wanted("many").await.unwrap();
    cached.learn(&serde_json::to_vec(&sent).unwrap()).unwrap();
    operate.directory.write_down(&cached).await;
    operate
}

fn ask(policy: &str, partition: &str) -> Reservation {
    let key = format!("many:{policy}:{{{partition}}}").into();
    Reservation { key, window_s: 3600, ..take("", 5, 1) }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_of_a_whole_partition_searches_no_keys() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let searched = || {
        let commands = redis.cli(&["INFO", "commandstats"]).unwrap().lines();
        commands.contains("cmdstat_scan")
    };
    let operate = reported(&store, &["user", "other"]).await;
    one(&*store, &ask("user", "jwt.sub=a")).await;
    let found = operate.counters.usage(Some("many"), "jwt.sub=a", &NO_CALLS).await.unwrap();
    assert_eq!((found.found.len(), found.incomplete), (1, None));
    assert!(!searched());
    // Nobody knows the methods of a user.
    let operate = reported(&store, &["user", "both"]).await;
    one(&*store, &ask("both", "jwt.sub=a,method=GET")).await;
    let found = operate.counters.usage(Some("many"), "jwt.sub=a", &NO_CALLS).await.unwrap();
    assert_eq!(found.found.len(), 2);
    assert!(searched());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_parties_of_a_policy_are_listed_by_a_store_that_counted_none() {
    const PARTIES: u64 = 2500;
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    reported(&store, &["user", "both"]).await;
    for parties in (0..PARTIES).collect::<Vec<_>>().chunks(500) {
        let asks = parties.iter().map(|party| Reservation {
            quota: party + 1,
            own_quota: true,
            ..ask("user", &format!("jwt.sub={party:04}"))
        });
        store.reserve(&batch(vec![], asks.collect())).await;
    }
    one(&*store, &ask("both", "jwt.sub=a,method=GET")).await;
    let operate = Operate::new(open(&redis.url()).await);
    let (mut all, mut from) = (std::collections::BTreeMap::new(), None);
    loop {
        let page = operate.counters.parties(None, "user", from.as_deref(), &NO_CALLS);
        let page = page.await.unwrap();
        let found = page.found.into_iter().map(|found| found.usage);
        all.extend(found.map(|of| (of.partition, (of.used, of.quota))));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    let expected = (0..PARTIES).map(|party| (format!("jwt.sub={party:04}"), (1, Some(party + 1))));
    assert_eq!(all, expected.collect());
}
