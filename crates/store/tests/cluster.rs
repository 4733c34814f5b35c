//! What only a real Redis Cluster can show: slots on the move, primaries that end.

#![cfg(test)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use common::{numbers, one, open, take, try_one, until};
use quotagate_quota::wire::Reservation;
use quotagate_store::store::{Store, StoreError};
use quotagate_support::cluster::{Cluster, SlotMove};

fn cli(cluster: &Cluster, node: usize, command: &[&str]) -> String {
    cluster.cli(node, command).unwrap().lines().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn counting_stays_exact_while_the_slot_moves() {
    let cluster = Cluster::start().unwrap();
    let store = open(&cluster.url()).await;
    let (granted, calls, stop) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let counting: Vec<_> = (0..8)
        .map(|_| {
            let (store, granted, calls, stop) =
                (Arc::clone(&store), Arc::clone(&granted), Arc::clone(&calls), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(SeqCst) {
                    let grant = try_one(&*store, &take("moving", 1_000_000, 1)).await.unwrap();
                    granted.fetch_add(grant.granted, SeqCst);
                    calls.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    let some_calls = async || {
        let before = calls.load(SeqCst);
        until("calls go on", Duration::from_secs(5), async || {
            (calls.load(SeqCst) > before + 200).then_some(())
        })
        .await;
    };
    some_calls().await;
    let moving = SlotMove::of(&cluster, "moving").unwrap();
    moving.begin().unwrap();
    some_calls().await;
    moving.keys().unwrap();
    some_calls().await;
    moving.end().unwrap();
    some_calls().await;
    stop.store(true, SeqCst);
    for task in counting {
        task.await.unwrap();
    }
    let counted = granted.load(SeqCst);
    assert_eq!(
        one(&*store, &take("moving", counted + 1, 7)).await.granted,
        1,
        "all was counted, nothing twice"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_hold_while_the_slot_moves() {
    let cluster = Cluster::start().unwrap();
    let store = open(&cluster.url()).await;
    let ask = take("vip", 5, 1);
    let moving = SlotMove::of(&cluster, "vip").unwrap();
    assert_eq!(numbers(&*store, &ask).await, (1, 1));
    moving.begin().unwrap();
    assert_eq!(numbers(&*store, &ask).await, (1, 2), "no override");
    // The slot is handed over without its counter, as if that window had ended.
    for key in moving.left().unwrap() {
        cli(&cluster, moving.from(), &["DEL", &key]);
    }
    moving.end().unwrap();
    cli(&cluster, moving.to(), &["SET", "qg:test:p:{vip}:override", "blocked"]);
    let grant = one(&*store, &ask).await;
    assert_eq!((grant.granted, grant.quota), (0, 0));
    cli(&cluster, moving.to(), &["SET", "qg:test:p:{vip}:override", "9"]);
    assert_eq!(numbers(&*store, &ask).await, (1, 1));
    let again = SlotMove::of(&cluster, "vip").unwrap().back();
    again.begin().unwrap();
    again.key("qg:test:p:{vip}:override").unwrap();
    let grant = one(&*store, &ask).await;
    assert_eq!((grant.granted, grant.used, grant.quota), (1, 2, 9), "the override went ahead of the counter");
    again.keys().unwrap();
    let grant = one(&*store, &ask).await;
    assert_eq!((grant.granted, grant.used, grant.quota), (1, 3, 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_a_primary_fails_its_keys_alone_until_the_replica_takes_over() {
    let mut cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"]).unwrap();
    let store = open(&cluster.url()).await;
    let of_node = |node: usize| {
        let key = (0..)
            .map(|n| format!("k{n}"))
            .find(|key| SlotMove::of(&cluster, key).unwrap().from() == node)
            .unwrap();
        Reservation { min: 1, ..take(&key, 1_000_000, 1) }
    };
    let (lost, kept) = (of_node(0), [of_node(1), of_node(2)]);
    one(&*store, &lost).await;
    cluster.kill_node(0).unwrap();
    let mut failed = 0;
    until("the replica serves", Duration::from_secs(20), async || {
        for ask in &kept {
            one(&*store, ask).await;
        }
        let outcome = try_one(&*store, &lost).await;
        if let Err(error) = &outcome {
            assert!(error.is_outage() || *error == StoreError::Late, "{error}");
            failed += 1;
        }
        outcome.ok()
    })
    .await;
    assert!(failed > 0);
    all_serve(&*store, &[&lost, &kept[0], &kept[1]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_hangs_holds_up_nothing_of_the_others() {
    let mut cluster = Cluster::start().unwrap();
    let store = open(&cluster.url()).await;
    // Partitions of each of the three primaries.
    let asks: Vec<Reservation> = (0..30).map(|n| take(&format!("party{n}"), 10, 1)).collect();
    all_serve(&*store, &asks.iter().collect::<Vec<_>>()).await;
    let hung = |cluster: &Cluster, ask: &Reservation| {
        let partition = ask.key.split_once('{').unwrap().1.trim_end_matches('}').to_owned();
        let slot: usize = cli(cluster, 1, &["CLUSTER", "KEYSLOT", &partition]).parse().unwrap();
        slot < 16384 / 3
    };
    let expected: Vec<bool> = asks.iter().map(|ask| !hung(&cluster, ask)).collect();
    cluster.freeze_node(0).unwrap();
    let settled = std::sync::Mutex::new(vec![None; asks.len()]);
    let batch = common::batch(vec![], asks);
    let settle = |at: usize, outcome| settled.lock().unwrap()[at] = Some(outcome);
    let mut work = store.carry_out(&batch, &settle);
    // The frozen node answers never; the others within this, long before it is given up.
    let waited = tokio::time::timeout(Duration::from_millis(500), &mut work).await;
    assert!(waited.is_err(), "the frozen node's items are still open");
    let served: Vec<bool> = settled.lock().unwrap().iter().map(|s| matches!(s, Some(Ok(_)))).collect();
    assert_eq!(served, expected);
    assert!(expected.contains(&true) && expected.contains(&false));
    work.await;
    assert!(settled.lock().unwrap().iter().all(Option::is_some), "in the end all are settled");
    cluster.thaw_node(0).unwrap();
}

async fn all_serve(store: &dyn Store, asks: &[&Reservation]) {
    for ask in asks {
        one(store, ask).await;
    }
}
