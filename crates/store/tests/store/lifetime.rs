//! A store that is dropped leaves no task and no connection behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quotagate_protocol::ReserveRequest;
use quotagate_store::server::{CallEndpoint, Connections};
use quotagate_support::redis::Redis;
use quotagate_support::sentinel::Sentinel;
use tokio::runtime::Handle;

use crate::cluster::uncovered;
use crate::common::{open, take, until};

/// Opens a store, makes calls, and drops everything, so many times.
async fn come_and_go(url: &str, times: usize) {
    for number in 0..times {
        // Every second store goes before it is connected.
        let store = if number % 2 == 0 {
            open(url).await
        } else {
            quotagate_store::open(&url.parse().unwrap(), "qg")
        };
        let endpoint = CallEndpoint::new(Arc::clone(&store), Arc::<Connections>::default());
        let endpoint = Arc::new(endpoint);
        let reservations = vec![take("a", 1_000_000, 1)];
        let request =
            ReserveRequest { charges: vec![], budget_ms: 2_000, refunds: vec![], reservations };
        let called = endpoint.call(request, Instant::now()).await;
        assert!(number % 2 > 0 || called.is_ok_and(|reply| reply.take().grants[0].is_ok()));
    }
}

/// Waits until only as many tasks live as before.
async fn no_more_tasks_than(before: usize) {
    let alive = || Handle::current().metrics().num_alive_tasks();
    until("the tasks end", Duration::from_secs(20), async || (alive() <= before).then_some(()))
        .await;
}

/// The connections of other clients to a server.
fn clients(list: &str) -> usize {
    list.lines().filter(|line| !line.contains("cmd=client")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_that_were_dropped_leave_no_task_and_no_connection() {
    let redis = Redis::start().unwrap();
    let before = Handle::current().metrics().num_alive_tasks();
    come_and_go(&redis.url(), 50).await;
    no_more_tasks_than(before).await;
    until("the connections close", Duration::from_secs(20), async || {
        let list = redis.cli(&["CLIENT", "LIST"]).unwrap().lines();
        (clients(&list) == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_server_does_not_keep_a_dropped_store() {
    let mut redis = Redis::start().unwrap();
    let before = Handle::current().metrics().num_alive_tasks();
    let store = open(&redis.url()).await;
    redis.freeze().unwrap();
    let endpoint = CallEndpoint::new(Arc::clone(&store), Arc::<Connections>::default());
    let reservations = vec![take("a", 9, 1)];
    let request = ReserveRequest { charges: vec![], budget_ms: 50, refunds: vec![], reservations };
    assert!(Arc::new(endpoint).call(request, Instant::now()).await.is_err());
    drop(store);
    no_more_tasks_than(before).await;
    redis.thaw().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_sentinels_and_clusters_leave_no_task() {
    let before = Handle::current().metrics().num_alive_tasks();
    come_and_go("memory:", 50).await;
    no_more_tasks_than(before).await;
    let redis = Redis::start().unwrap();
    come_and_go(&Sentinel::start(&redis).unwrap().url(), 4).await;
    no_more_tasks_than(before).await;
    let cluster = uncovered();
    come_and_go(&cluster.url(), 4).await;
    no_more_tasks_than(before).await;
    for node in 0..3 {
        until("the connections close", Duration::from_secs(20), async || {
            let list = cluster.cli(node, &["CLIENT", "LIST", "TYPE", "normal"]).unwrap().lines();
            (clients(&list) == 0).then_some(())
        })
        .await;
    }
}
