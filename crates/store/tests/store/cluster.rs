//! Behaviour that needs a real Redis Cluster: slots that move, and primaries that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::calls::Calls;
use crate::common::{back, batch, numbers, one, open, take, try_one, until};
use crate::http::{read, send};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use quotagate_protocol::Reservation;
use quotagate_store::store::{Batch, Reserved, Store, StoreError};
use quotagate_support::cluster::{Cluster, SlotMove};
use serde_json::{Value, json};

fn cli(cluster: &Cluster, node: usize, command: &[&str]) -> String {
    cluster.cli(node, command).unwrap().lines().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn counting_stays_exact_while_the_slot_moves() {
    let cluster = Cluster::start().unwrap();
    let store = open(&cluster.url()).await;
    let (granted, calls, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
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
        until("calls continue", Duration::from_secs(20), async || {
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
        "every unit is counted exactly once"
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
    // The slot moves without its counter, as if the window had ended.
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
    assert_eq!(
        (grant.granted, grant.used, grant.quota),
        (1, 2, 9),
        "the override moved before the counter"
    );
    again.keys().unwrap();
    let grant = one(&*store, &ask).await;
    assert_eq!((grant.granted, grant.used, grant.quota), (1, 3, 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_primary_fails_only_its_keys_until_the_replica_takes_over() {
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
async fn hanging_primary_does_not_delay_the_others() {
    let mut cluster = Cluster::start().unwrap();
    let store = open(&cluster.url()).await;
    // Partitions on each of the three primaries.
    let asks: Vec<Reservation> = (0..30).map(|n| take(&format!("party{n}"), 10, 1)).collect();
    all_serve(&*store, &asks.iter().collect::<Vec<_>>()).await;
    let hung = |cluster: &Cluster, ask: &Reservation| {
        let partition = ask.key.split_once('{').unwrap().1.trim_end_matches('}').to_owned();
        let slot: usize = cli(cluster, 1, &["CLUSTER", "KEYSLOT", &partition]).parse().unwrap();
        slot < 16384 / 3
    };
    let expected: Vec<bool> = asks.iter().map(|ask| !hung(&cluster, ask)).collect();
    cluster.freeze_node(0).unwrap();
    let reserved = std::sync::Mutex::new(vec![None; asks.len()]);
    let work = batch(vec![], asks);
    let on_reserved = |at: usize, outcome| reserved.lock().unwrap()[at] = Some(outcome);
    let mut carried_out = store.carry_out(&work, &on_reserved);
    // The frozen node never answers. The others answer within this time, long before the store
    // gives up on the frozen one.
    let waited = tokio::time::timeout(Duration::from_millis(500), &mut carried_out).await;
    assert!(waited.is_err(), "the frozen node's items must still be pending");
    let served: Vec<bool> =
        reserved.lock().unwrap().iter().map(|s| matches!(s, Some(Ok(_)))).collect();
    assert_eq!(served, expected);
    assert!(expected.contains(&true) && expected.contains(&false));
    carried_out.await;
    assert!(reserved.lock().unwrap().iter().all(Option::is_some), "all items must have an outcome");
    cluster.thaw_node(0).unwrap();
}

async fn all_serve(store: &dyn Store, asks: &[&Reservation]) {
    for ask in asks {
        one(store, ask).await;
    }
}

/// A cluster without full coverage: when a primary fails, its replica never takes over and the
/// other primaries keep serving.
pub fn uncovered() -> Cluster {
    Cluster::start_with(&[
        "--cluster-require-full-coverage",
        "no",
        "--cluster-replica-no-failover",
        "yes",
    ])
    .unwrap()
}

/// A reservation of one unit in a slot of this primary.
pub fn of_primary(cluster: &Cluster, node: usize) -> Reservation {
    let mut keys = (0..).map(|n| format!("k{n}"));
    let key = keys.find(|key| SlotMove::of(cluster, key).unwrap().from() == node).unwrap();
    take(&key, 1_000_000, 1)
}

async fn call(served: &Calls, budget_ms: u32, asks: &[&Reservation]) -> (StatusCode, Value) {
    let body = json!({"budget_ms": budget_ms, "reservations": asks}).to_string();
    let request = Request::post("/v1/reserve").header("host", "store");
    read(send(&served.address, request.body(Full::new(Bytes::from(body))).unwrap()).await).await
}

/// Whether each item of the reply was granted. `None` unless the store answered 200.
fn granted(reply: &(StatusCode, Value)) -> Option<Vec<bool>> {
    let grants = reply.1["grants"].as_array().filter(|_| reply.0 == StatusCode::OK)?;
    Some(grants.iter().map(|grant| grant["granted"] == 1).collect())
}

async fn within_200_ms(store: &dyn Store, ask: &Reservation) -> Reserved {
    let deadline = Instant::now() + Duration::from_millis(200);
    store.reserve(&Batch { deadline, ..batch(vec![], vec![ask.clone()]) }).await.remove(0)
}

/// A reservation of more units than the quota: the store grants nothing and returns the units used.
fn too_much(ask: &Reservation) -> Reservation {
    Reservation { want: ask.quota + 1, min: ask.quota + 1, ..ask.clone() }
}

/// Waits until items of a frozen primary fail without being sent, long before the connection
/// closes.
async fn until_given_up(store: &dyn Store, ask: &Reservation) {
    let ask = too_much(ask);
    until("its items fail without being sent", Duration::from_secs(10), async || {
        let soon =
            tokio::time::timeout(Duration::from_millis(50), within_200_ms(store, &ask)).await;
        matches!(soon, Ok(Err(StoreError::Unreachable(why))) if why.ends_with("does not answer"))
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_to_a_lost_primary_is_answered_and_names_the_failed_items() {
    let mut cluster = uncovered();
    let store = open(&cluster.url()).await;
    let served = Calls::start(Arc::clone(&store)).await;
    let (lost, kept) = (of_primary(&cluster, 0), of_primary(&cluster, 1));
    all_serve(&*store, &[&lost, &kept]).await;
    cluster.kill_node(0).unwrap();
    for _ in 0..5 {
        let reply = call(&served, 5_000, &[&lost]).await;
        assert_eq!(granted(&reply), Some(vec![false]), "{reply:?}");
        let reply = call(&served, 5_000, &[&lost, &kept]).await;
        assert_eq!(granted(&reply), Some(vec![false, true]), "{reply:?}");
    }
    for node in [1, 2] {
        cluster.kill_node(node).unwrap();
    }
    until("a store without any primary says so", Duration::from_secs(10), async || {
        let (status, _) = call(&served, 5_000, &[&lost, &kept]).await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_to_a_silent_primary_is_answered_within_its_budget() {
    let mut cluster = uncovered();
    let store = open(&cluster.url()).await;
    let served = Calls::start(Arc::clone(&store)).await;
    let (lost, kept) = (of_primary(&cluster, 0), of_primary(&cluster, 1));
    all_serve(&*store, &[&lost, &kept]).await;
    cluster.freeze_node(0).unwrap();
    let reply = call(&served, 600, &[&lost]).await;
    assert_eq!(granted(&reply), Some(vec![false]), "{reply:?}");
    let why = reply.1["grants"][0]["error"].as_str().unwrap_or_default();
    assert!(why.contains("silent"), "{why}");
    cluster.thaw_node(0).unwrap();
    until("later grants are refunded", Duration::from_secs(10), async || {
        (served.undone.count() == 1).then_some(())
    })
    .await;
    let used = async || one(&*store, &too_much(&lost)).await.used;
    until("the refund", Duration::from_secs(10), async || (used().await == 1).then_some(())).await;
    let reply = call(&served, 5_000, &[&lost, &kept]).await;
    assert_eq!(granted(&reply), Some(vec![true, true]), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_primary_is_skipped_until_it_answers_again() {
    let mut cluster = uncovered();
    let store = open(&cluster.url()).await;
    let (lost, kept) = (of_primary(&cluster, 0), of_primary(&cluster, 1));
    all_serve(&*store, &[&lost, &kept]).await;
    cluster.freeze_node(0).unwrap();
    until_given_up(&*store, &lost).await;
    // The store keeps skipping the silent primary, also after its connection closes and no new one
    // can be made.
    let until_closed = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until_closed {
        let (lost, kept) = tokio::join!(within_200_ms(&*store, &lost), one(&*store, &kept));
        assert!(matches!(lost, Err(StoreError::Unreachable(_))), "{lost:?}");
        assert_eq!(kept.granted, 1);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.thaw_node(0).unwrap();
    all_serve_again(&*store, &lost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_reach_a_silent_primary_and_delay_no_call() {
    let mut cluster = uncovered();
    let store = open(&cluster.url()).await;
    let (lost, kept) = (of_primary(&cluster, 0), of_primary(&cluster, 1));
    let grant = one(&*store, &Reservation { want: 7, ..lost.clone() }).await;
    cluster.freeze_node(0).unwrap();
    until_given_up(&*store, &lost).await;
    let deadline = Instant::now() + Duration::from_millis(200);
    let asks = batch(vec![back(&lost, grant, 7)], vec![kept]);
    assert!(store.reserve(&Batch { deadline, ..asks }).await.remove(0).is_ok());
    cluster.thaw_node(0).unwrap();
    let used = async || try_one(&*store, &too_much(&lost)).await.ok().map(|grant| grant.used);
    until("the refund", Duration::from_secs(10), async || used().await.filter(|used| *used == 0))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_that_rejects_all_commands_is_reported_down() {
    // With full coverage, the default, the other primaries reject commands after one is lost.
    let mut cluster = Cluster::start_with(&["--cluster-replica-no-failover", "yes"]).unwrap();
    let store = open(&cluster.url()).await;
    let served = Calls::start(Arc::clone(&store)).await;
    let asks = [0, 1, 2].map(|node| of_primary(&cluster, node));
    let asks: Vec<&Reservation> = asks.iter().collect();
    all_serve(&*store, &asks).await;
    cluster.kill_node(0).unwrap();
    until("nothing can be counted", Duration::from_secs(20), async || {
        let (status, _) = call(&served, 200, &asks).await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
}

async fn all_serve_again(store: &dyn Store, ask: &Reservation) {
    until("the primary serves again", Duration::from_secs(10), async || {
        try_one(store, ask).await.ok()
    })
    .await;
}
