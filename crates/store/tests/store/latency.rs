//! A Redis with a long round trip.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use quotagate_store::store::Batch;
use quotagate_support::redis::Redis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::common::{batch, numbers, open, take, until};

/// The port of a proxy that delays every answer of the server on `port`, and the number of
/// connections that it has accepted.
async fn delayed(port: u16, delay: Duration) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    let accepted = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&accepted);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            counted.fetch_add(1, SeqCst);
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(forward(client, server, delay));
        }
    });
    (own, accepted)
}

async fn forward(client: TcpStream, server: TcpStream, delay: Duration) -> Option<()> {
    let (mut asked, mut answers) = client.into_split();
    let (mut answered, mut to) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut asked, &mut to).await });
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let read = answered.read(&mut bytes).await.ok().filter(|&read| read > 0)?;
        sleep(delay).await;
        answers.write_all(&bytes[..read]).await.ok()?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn round_trips_of_200_ms_do_not_prevent_connecting() {
    let redis = Redis::start().unwrap();
    let (port, _) = delayed(redis.port(), Duration::from_millis(200)).await;
    let store = open(&format!("redis://127.0.0.1:{port}")).await;
    assert_eq!(numbers(&*store, &take("far", 9, 2)).await, (2, 2));
}

/// Redis may take as long as the callers wait for the store.
#[tokio::test(flavor = "multi_thread")]
async fn redis_that_answers_within_the_budget_of_calls_is_no_outage() {
    let redis = Redis::start().unwrap();
    let (port, connections) = delayed(redis.port(), Duration::from_millis(1300)).await;
    let store = quotagate_store::open(&format!("redis://127.0.0.1:{port}").parse().unwrap(), "qg");
    until("the store is ready", Duration::from_secs(60), async || {
        store.health().faults.is_empty().then_some(())
    })
    .await;
    for used in [2, 4, 6] {
        let deadline = Instant::now() + Duration::from_secs(30);
        let batch = Batch { deadline, ..batch(vec![], vec![take("far", 9, 2)]) };
        let reserved = store.reserve(&batch).await.remove(0).unwrap();
        assert_eq!((reserved.granted, reserved.used), (2, used));
    }
    assert_eq!(store.health().faults, [""; 0], "its probes waited as long");
    assert_eq!(connections.load(SeqCst), 1, "no connection was replaced");
}
