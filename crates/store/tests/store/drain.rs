//! Shutdown of the server: which callers it asks to leave, which it still serves, and for how long.

use std::time::{Duration, Instant};

use crate::calls::Calls;
use crate::common::{open, take, until};
use crate::http::{host, read};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::{http1, http2};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::TcpStream;

/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(60);

async fn start() -> Calls {
    Calls::start(open("memory:").await).await
}

fn reserve() -> Request<Full<Bytes>> {
    let body = json!({"budget_ms": 5000, "reservations": [take("drain", 99, 1)]}).to_string();
    Request::post("http://store/v1/reserve")
        .header("host", "store")
        .body(Full::new(body.into()))
        .unwrap()
}

async fn h1(server: &Calls) -> http1::SendRequest<Full<Bytes>> {
    let stream = TokioIo::new(TcpStream::connect(host(&server.address)).await.unwrap());
    let (send, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    send
}

async fn h2(server: &Calls) -> http2::SendRequest<Full<Bytes>> {
    let stream = TokioIo::new(TcpStream::connect(host(&server.address)).await.unwrap());
    let (send, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    send
}

async fn begin_to_drain(server: &mut Calls) {
    server.stop.take().unwrap().send(LONG).unwrap();
    until("it drains", Duration::from_secs(20), async || {
        server.connections.is_draining().then_some(())
    })
    .await;
}

#[tokio::test]
async fn draining_server_asks_http1_connections_to_close_and_breaks_none() {
    let mut server = start().await;
    let mut kept = h1(&server).await;
    let response = kept.send_request(reserve()).await.unwrap();
    assert_eq!(response.headers().get("connection"), None);
    read(response).await;
    begin_to_drain(&mut server).await;
    // Idle connections stay open, because the next call may be on its way.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!kept.is_closed(), "an idle connection was closed");
    for (connection, used) in [(&mut kept, 2), (&mut h1(&server).await, 3)] {
        let response = connection.send_request(reserve()).await.unwrap();
        assert_eq!(response.headers()["connection"], "close");
        let (status, reply) = read(response).await;
        assert_eq!(
            (status, &reply["grants"][0]["used"]),
            (StatusCode::OK, &json!(used)),
            "{reply}"
        );
        until("the connection is closed", Duration::from_secs(20), async || {
            connection.is_closed().then_some(())
        })
        .await;
    }
    assert!(!server.running.is_finished());
}

#[tokio::test]
async fn draining_server_sends_goaway_to_old_and_new_http2_connections() {
    let mut server = start().await;
    let mut kept = h2(&server).await;
    read(kept.send_request(reserve()).await.unwrap()).await;
    begin_to_drain(&mut server).await;
    let closes = async |connection: &http2::SendRequest<Full<Bytes>>| {
        until("the connection is closed", Duration::from_secs(20), async || {
            connection.is_closed().then_some(())
        })
        .await;
    };
    closes(&kept).await;
    let mut new = h2(&server).await;
    let (status, reply) = read(new.send_request(reserve()).await.unwrap()).await;
    assert_eq!((status, &reply["grants"][0]["used"]), (StatusCode::OK, &json!(2)), "{reply}");
    closes(&new).await;
    assert!(!server.running.is_finished());
}

#[tokio::test]
async fn drained_server_closes_idle_connections_and_ends() {
    let mut server = start().await;
    let mut kept = h1(&server).await;
    read(kept.send_request(reserve()).await.unwrap()).await;
    let begun = Instant::now();
    server.stop.take().unwrap().send(Duration::from_millis(300)).unwrap();
    (&mut server.running).await.unwrap();
    assert!(
        begun.elapsed() >= Duration::from_millis(300),
        "the server served for only {:?}",
        begun.elapsed()
    );
    until("the connection is closed", Duration::from_secs(20), async || {
        kept.is_closed().then_some(())
    })
    .await;
    assert!(TcpStream::connect(host(&server.address)).await.is_err());
}
