//! What the service says of its health, and how its connections end.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Bytes;
use quotagate_ratelimit::health::HealthNeeds;
use quotagate_store::server::ConnectionAge;
use quotagate_support::xds::XdsServer;

use crate::running::{GrpcClient, Start, rules, until};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const SERVING: &[u8] = &[8, 1];
const NOT_SERVING: &[u8] = &[8, 2];

/// A request about a service.
fn about(service: &str) -> Vec<u8> {
    let mut message = vec![10, u8::try_from(service.len()).unwrap()];
    message.extend(service.bytes());
    message
}

async fn check(client: &mut GrpcClient, service: &str) -> (String, Bytes) {
    client.call(CHECK, about(service)).await.unwrap()
}

#[tokio::test]
async fn grpc_health_says_whether_rules_are_in_force() {
    let server = XdsServer::start(0, None).unwrap();
    let service = Start::with_server(&server).run().await;
    let mut client = service.connect().await;
    let status = |code: &str, message: &'static [u8]| (code.to_owned(), Bytes::from(message));
    assert_eq!(check(&mut client, "ratelimit").await, status("0", NOT_SERVING));
    assert_eq!(client.call(CHECK, Vec::new()).await.unwrap(), status("0", NOT_SERVING));
    server.send("1", &[rules(1)]);
    until("the rules", async || server.is_used("1")).await;
    for name in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(check(&mut client, name).await, status("0", SERVING), "{name:?}");
    }
    assert_eq!(check(&mut client, "other").await.0, "5", "NOT_FOUND");
}

#[tokio::test]
async fn watch_tells_each_change_and_ends_with_the_service() {
    let server = XdsServer::start(0, None).unwrap();
    let mut service = Start::with_server(&server).run().await;
    let mut client = service.connect().await;
    let mut watch = client.start(WATCH, about("")).await.unwrap().into_body();
    let mut next = async || {
        let frame = watch.frame().await.unwrap().unwrap();
        frame.into_data().map(|framed| framed.slice(5..)).map_err(|frame| frame.into_trailers())
    };
    assert_eq!(next().await.unwrap(), NOT_SERVING);
    server.send("1", &[rules(1)]);
    assert_eq!(next().await.unwrap(), SERVING);
    service.stop.take().unwrap().send(Duration::from_secs(60)).unwrap();
    assert_eq!(next().await.unwrap(), NOT_SERVING);
    assert_eq!(next().await.unwrap_err().unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn service_that_may_start_empty_is_healthy_without_rules_and_store() {
    let server = XdsServer::start(0, None).unwrap();
    let nowhere = "redis://127.0.0.1:1".parse().unwrap();
    let run = async |rules, store| {
        let mut start = Start::with_server(&server);
        start.health = HealthNeeds { rules, store };
        start.store = quotagate_store::open(&nowhere, "qg");
        start.run().await
    };
    let service = run(false, false).await;
    assert_eq!(service.health().await, (true, "OK".to_owned()));
    let service = run(true, false).await;
    assert_eq!(service.health().await, (false, "no rules have come yet\n".to_owned()));
    let service = Arc::new(run(false, true).await);
    until("the outage", async || !service.health().await.0).await;
    assert!(service.health().await.1.contains("redis at 127.0.0.1:1"));
}

#[tokio::test]
async fn connection_is_asked_to_close_at_its_longest_age() {
    let server = XdsServer::start(0, None).unwrap();
    let mut start = Start::with_server(&server);
    let (most, grace) = (Duration::from_millis(500), Duration::from_secs(60));
    start.age = Some(ConnectionAge { most, grace });
    let service = start.run().await;
    let mut client = service.connect().await;
    assert!(client.is_open().await);
    until("the end of the connection", async || !client.is_open().await).await;
    assert!(service.connect().await.is_open().await);
}

#[tokio::test]
async fn first_call_is_answered_by_the_rules() {
    let text =
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 5}}]\n";
    let (start, _folder) = Start::with_file(text);
    let service = start.run().await;
    assert_eq!(service.connect().await.limit().await, Some(5));

    let server = XdsServer::start(0, None).unwrap();
    let service = Start { waits_for_rules: true, ..Start::with_server(&server) }.run().await;
    let mut client = service.connect().await;
    let first = tokio::spawn(async move { client.limit().await });
    until("the stream", async || server.streams() == 1).await;
    assert!(!first.is_finished());
    server.send("1", &[rules(7)]);
    assert_eq!(first.await.unwrap(), Some(7));
}
