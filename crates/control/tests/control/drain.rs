//! What operators see while the server drains.

use std::time::Duration;

use crate::common::{open, until};
use crate::http::{host, read, send};
use crate::served::Served;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use serde_json::Value;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

async fn start() -> Served {
    Served::start(open("memory:").await).await
}

async fn begin_to_drain(server: &mut Served) {
    server.stop.take().unwrap().send(LONG).unwrap();
    until("it is not ready", Duration::from_secs(30), async || {
        let (status, reply) = server.get("/readyz").await;
        let names_the_reason = reply["faults"].to_string().contains("the store is shutting down");
        (status == StatusCode::SERVICE_UNAVAILABLE && names_the_reason).then_some(())
    })
    .await;
}

#[tokio::test]
async fn draining_server_is_alive_but_not_ready() {
    let mut server = start().await;
    begin_to_drain(&mut server).await;
    assert_eq!(server.get("/healthz").await.0, StatusCode::OK);
}

#[tokio::test]
async fn event_streams_end_when_the_server_drains() {
    let mut server = start().await;
    let request = Request::get("/v1/events").header("host", host(&server.admin));
    let events = send(&server.admin, request.body(Full::default()).unwrap()).await;
    begin_to_drain(&mut server).await;
    let ended = tokio::time::timeout(Duration::from_secs(30), read(events)).await;
    let (status, _): (StatusCode, Value) = ended.expect("the stream of events did not end");
    assert_eq!(status, StatusCode::OK);
}
