//! A Redis with a long round trip.

use std::time::Duration;

use quotagate_support::redis::Redis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::common::{numbers, open, take};

/// The port of a proxy that delays every answer of the server on `port`.
async fn delayed(port: u16, delay: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(forward(client, server, delay));
        }
    });
    own
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
    let port = delayed(redis.port(), Duration::from_millis(200)).await;
    let store = open(&format!("redis://127.0.0.1:{port}")).await;
    assert_eq!(numbers(&*store, &take("far", 9, 2)).await, (2, 2));
}
