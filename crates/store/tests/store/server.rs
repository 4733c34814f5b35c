//! The HTTP service: its answers, and that no grant is lost when its caller leaves.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::calls::Calls;
use crate::common::{take, until};
use crate::gated::Gated;
use crate::http::read;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::{http1, http2};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use quotagate_protocol::Reservation;
use quotagate_store::server::{ListenAddr, Listener, Tokens, digest_of};
use quotagate_store::store::{Health, Store};
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};

struct Server {
    store: Arc<Gated>,
    calls: Calls,
}

impl Server {
    async fn start() -> Self {
        Self::with("127.0.0.1:0", None).await
    }

    async fn with(listen: &str, tokens: Option<Tokens>) -> Self {
        let store = Gated::open();
        let calls = Calls::with(Arc::clone(&store) as Arc<dyn Store>, listen, tokens).await;
        Self { store, calls }
    }

    async fn post(&self, body: &Value) -> (StatusCode, Value) {
        call(&self.calls.address, post(body.to_string().into())).await
    }
}

fn post(body: Bytes) -> Request<Full<Bytes>> {
    Request::post("http://store/v1/reserve").header("host", "store").body(Full::new(body)).unwrap()
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://store{path}"))
        .header("host", "store")
        .body(Full::default())
        .unwrap()
}

fn request(reservations: &[Reservation]) -> Value {
    json!({"budget_ms": 5000, "reservations": reservations})
}

async fn h1(address: &ListenAddr) -> http1::SendRequest<Full<Bytes>> {
    match address {
        ListenAddr::Tcp(address) => {
            let (send, connection) =
                http1::handshake(TokioIo::new(TcpStream::connect(address).await.unwrap()))
                    .await
                    .unwrap();
            tokio::spawn(connection);
            send
        }
        ListenAddr::Unix(path) => {
            let (send, connection) =
                http1::handshake(TokioIo::new(UnixStream::connect(path).await.unwrap()))
                    .await
                    .unwrap();
            tokio::spawn(connection);
            send
        }
    }
}

async fn h2(address: &ListenAddr) -> http2::SendRequest<Full<Bytes>> {
    let ListenAddr::Tcp(address) = address else { panic!("HTTP/2 over TCP only") };
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (send, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    send
}

async fn call(address: &ListenAddr, request: Request<Full<Bytes>>) -> (StatusCode, Value) {
    read(h1(address).await.send_request(request).await.unwrap()).await
}

#[tokio::test]
async fn same_port_speaks_both_versions_of_http() {
    let server = Server::start().await;
    let body = request(&[take("a", 5, 3), take("b", 5, 9)]).to_string();
    let (status, reply) = read(
        h2(&server.calls.address).await.send_request(post(body.clone().into())).await.unwrap(),
    )
    .await;
    assert_eq!(status, 200);
    assert_eq!(reply["grants"][0]["granted"], 3);
    assert_eq!(reply["grants"][1]["granted"], 5);
    assert_eq!(reply["dials"], 0);
    let (status, reply) = call(&server.calls.address, post(body.into())).await;
    assert_eq!((status, &reply["grants"][0]["used"]), (StatusCode::OK, &json!(5)));
}

#[tokio::test]
async fn slots_are_reserved_over_http() {
    let server = Server::start().await;
    let message = |serial: u64, held: u64, want: u64| {
        json!({
            "key": "test:p:{slots}", "kind": "in_flight", "quota": 4, "want": want, "min": want.min(1),
            "holding": {"worker": "0123456789abcdef.0.x", "serial": serial, "held": held},
        })
    };
    let wrong =
        json!({"key": "test:p:{slots}", "kind": "in_flight", "quota": 4, "want": 1, "min": 1});
    let body =
        json!({"budget_ms": 5000, "reservations": [message(1, 0, 3), wrong, message(2, 3, 3)]});
    let (status, reply) = server.post(&body).await;
    assert_eq!(status, 200);
    let grant = |granted: u64, used: u64, serial: u64| json!({"granted": granted, "used": used, "quota": 4, "reset_ms": 9000, "window": serial});
    assert_eq!((&reply["grants"][0], &reply["grants"][2]), (&grant(3, 3, 1), &grant(1, 4, 2)));
    let error = reply["grants"][1]["error"].as_str().unwrap();
    assert!(error.starts_with("holding: "), "{error}");
    let heartbeat = json!({"budget_ms": 5000, "reservations": [message(3, 1, 0)]});
    let (_, reply) = server.post(&heartbeat).await;
    assert_eq!(reply["grants"][0], grant(0, 1, 3));
}

#[tokio::test]
async fn health_path_says_whether_calls_are_counted_and_needs_no_token() {
    let mut server = Server::with("127.0.0.1:0", Tokens::new(b"s3cret-of-the-callers\n")).await;
    let ask = async |method: &str| {
        let request = Request::builder().method(method).uri("/healthz").header("host", "store");
        call(&server.calls.address, request.body(Full::default()).unwrap()).await
    };
    assert_eq!(ask("GET").await, (StatusCode::OK, json!({"ready": true})));
    assert_eq!(ask("HEAD").await.0, StatusCode::OK);
    assert_eq!(ask("POST").await.0, StatusCode::METHOD_NOT_ALLOWED);
    // One of several servers is away.
    *server.store.health.lock().unwrap() =
        Health { faults: vec!["10.0.0.1:6379 is away".to_owned()], ..Health::default() };
    assert_eq!(ask("GET").await.0, StatusCode::OK);
    server.store.health.lock().unwrap().outage = true;
    let (status, reply) = ask("GET").await;
    assert_eq!(
        (status, &reply["error"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("nothing can be counted"))
    );
    *server.store.health.lock().unwrap() = Health::default();
    server.calls.stop.take().unwrap().send(Duration::from_secs(60)).unwrap();
    until("the store says that it leaves", Duration::from_secs(30), async || {
        (ask("GET").await.0 == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
}

#[tokio::test]
async fn unix_socket_serves_and_is_cleaned_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("q.sock");
    let listen = format!("unix:{}", path.display());
    // A stale socket file without a listener.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut server = Server::with(&listen, None).await;
    let (status, reply) = server.post(&request(&[take("u", 5, 3)])).await;
    assert_eq!((status, &reply["grants"][0]["granted"]), (StatusCode::OK, &json!(3)));
    let second = Listener::bind(&listen.parse().unwrap()).await;
    assert!(second.is_err(), "another process listens on the socket");
    server.calls.stop.take();
    server.calls.running.await.unwrap();
    assert!(!Path::new(&path).exists());
}

#[tokio::test]
async fn malformed_call_is_rejected_as_a_whole() {
    let server = Server::start().await;
    let good = json!(take("x", 5, 1));
    let with = |field: &str, value: Value| {
        let mut item = good.clone();
        item[field] = value;
        json!({"budget_ms": 50, "reservations": [good.clone(), item]})
    };
    let mut lacking = good.clone();
    lacking.as_object_mut().unwrap().remove("want");
    for (body, field) in [
        (json!({"reservations": [good.clone()]}), "."),
        (json!({"budget_ms": "50", "reservations": [good.clone()]}), "budget_ms"),
        (json!({"budget_ms": 50, "reservations": good.clone()}), "reservations"),
        (json!({"budget_ms": 50, "reservations": [good.clone(), lacking]}), "reservations[1]"),
        (with("want", json!(-1)), "reservations[1].want"),
        (with("want", json!(1.5)), "reservations[1].want"),
        (with("key", json!(7)), "reservations[1].key"),
        (with("count_denied", json!("yes")), "reservations[1].count_denied"),
    ] {
        let (status, reply) = server.post(&body).await;
        assert_eq!(status, 400, "{body} {reply}");
        assert_eq!(reply["field"], field, "{reply}");
        assert!(reply["error"].as_str().unwrap().starts_with(field), "{reply}");
    }
    for text in ["", "{", "[]", "null", "{\"budget_ms\":1} {}", "\u{0}"] {
        let (status, reply) = call(&server.calls.address, post(text.into())).await;
        assert_eq!(status, 400, "{text:?} {reply}");
    }
    assert_eq!(server.store.used("x").await, 0);
}

#[tokio::test]
async fn call_that_is_too_large_is_rejected() {
    let server = Server::start().await;
    let (status, _) = call(&server.calls.address, post(vec![b' '; 1024 * 1024 + 1].into())).await;
    assert_eq!(status, 413);
    let many: Vec<_> = (0..1024).map(|_| take("m", 9999, 1)).collect();
    let mut body = request(&many);
    assert_eq!(server.post(&body).await.0, 200);
    body["refunds"] = json!([{"key": "test:p:{m}", "window_s": 60, "window": 1, "units": 1}]);
    assert_eq!(server.post(&body).await.0, 413);
    assert_eq!(server.store.used("m").await, 1024);
}

#[tokio::test]
async fn item_out_of_bounds_fails_alone() {
    let server = Server::start().await;
    let bad = Reservation { min: 9, ..take("bad", 5, 1) };
    let odd = Reservation { key: "a b".into(), ..take("odd", 5, 1) };
    let mut body = request(&[take("g", 5, 2), bad, take("h", 5, 3), odd]);
    body["refunds"] = json!([{"key": "nonsense", "window_s": 60, "window": 1, "units": 1}]);
    let (status, reply) = server.post(&body).await;
    assert_eq!(status, 200);
    let grants = reply["grants"].as_array().unwrap();
    assert_eq!((&grants[0]["granted"], &grants[2]["granted"]), (&json!(2), &json!(3)));
    assert!(grants[1]["error"].as_str().unwrap().starts_with("min: "), "{reply}");
    assert!(grants[3]["error"].as_str().unwrap().starts_with("key: "), "{reply}");
}

#[tokio::test]
async fn fields_of_a_newer_version_are_ignored() {
    let server = Server::start().await;
    let mut item = json!(take("x", 5, 2));
    item["burst"] = json!({"units": 7});
    let body = json!({"budget_ms": 5000, "reservations": [item], "more": [1]});
    let (status, reply) = server.post(&body).await;
    assert_eq!((status, &reply["grants"][0]["granted"]), (StatusCode::OK, &json!(2)), "{reply}");
}

#[tokio::test]
async fn window_of_a_newer_version_fails_alone_and_counts_nothing() {
    let server = Server::start().await;
    for kind in
        [json!("lunar"), json!({"lunar": {"phase": 1}}), json!({"calendar": {"unit": "era"}})]
    {
        let mut odd = json!(take("odd", 5, 2));
        odd["kind"] = kind.clone();
        let refund = json!({"key": "test:p:{good}", "kind": kind, "window_s": 60, "window": 1,
            "units": 1});
        let body = json!({"budget_ms": 5000, "refunds": [refund.clone()], "charges": [refund],
            "reservations": [odd, take("good", 5, 1)]});
        let (status, reply) = server.post(&body).await;
        assert_eq!(
            (status, &reply["grants"][1]["granted"]),
            (StatusCode::OK, &json!(1)),
            "{reply}"
        );
        let error = reply["grants"][0]["error"].as_str().unwrap();
        assert!(error.starts_with("kind: ") && error.contains("upgrade the stores"), "{error}");
    }
    assert_eq!((server.store.used("odd").await, server.store.used("good").await), (0, 3));
}

#[tokio::test]
async fn token_is_required() {
    let server = Server::with("127.0.0.1:0", Tokens::new(b"s3cret-of-the-callers\n")).await;
    let body = || Bytes::from(request(&[take("t", 5, 1)]).to_string());
    for (shown, expected) in [
        (None, 401),
        (Some("Bearer wrong"), 401),
        (Some("s3cret-of-the-callers"), 401),
        (Some("Bearer s3cret-of-the-callers"), 200),
    ] {
        let mut request = post(body());
        if let Some(shown) = shown {
            request.headers_mut().insert("authorization", shown.parse().unwrap());
        }
        assert_eq!(call(&server.calls.address, request).await.0, expected, "{shown:?}");
    }
    assert_eq!(server.store.used("t").await, 1);
}

#[tokio::test]
async fn token_of_a_domain_calls_for_no_other_one() {
    let digest: String = digest_of(b"edge").iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!("edge call test,pay {digest}\n");
    let server = Server::with("127.0.0.1:0", Tokens::new(line.as_bytes())).await;
    let ask = async |path: &str, body: &Value| {
        let request = Request::post(path).header("host", "store");
        let request = request.header("authorization", "Bearer edge");
        let request = request.body(Full::from(body.to_string())).unwrap();
        call(&server.calls.address, request).await
    };
    let foreign = Reservation { key: "shop:p:{t}".into(), ..take("t", 5, 1) };
    let refund = json!({"budget_ms": 5000, "reservations": [],
        "refunds": [{"key": "shop:p:{t}", "window_s": 60, "window": 1, "units": 1}]});
    assert_eq!(ask("/v1/reserve", &request(&[take("t", 5, 1)])).await.0, 200);
    for (path, body) in [
        ("/v1/reserve", request(&[take("t", 5, 1), foreign])),
        ("/v1/reserve", refund),
        ("/v1/telemetry?domain=shop", json!({})),
        ("/v1/telemetry", json!({})),
        ("/v1/document?domain=shop", json!({})),
    ] {
        let (status, reply) = ask(path, &body).await;
        let error = reply["error"].as_str().unwrap();
        assert_eq!(status, 403, "{path}: {error}");
        assert!(error.contains("calls of pay,test"), "{error}");
    }
    for path in ["/v1/telemetry?domain=test", "/v1/document?domain=pay"] {
        assert_ne!(ask(path, &json!({})).await.0, 403, "{path}");
    }
    assert_eq!(server.store.used("t").await, 1);
}

#[tokio::test]
async fn other_paths_and_methods_are_rejected_by_name() {
    let server = Server::start().await;
    let (status, reply) = call(&server.calls.address, get("/v1/reserve")).await;
    assert_eq!(
        (status, &reply["error"]),
        (StatusCode::METHOD_NOT_ALLOWED, &json!("this path takes POST only"))
    );
    assert_eq!(call(&server.calls.address, get("/nothing")).await.0, 404);
}

#[tokio::test]
async fn late_grant_is_refunded() {
    let server = Server::start().await;
    server.store.close_gate();
    let mut body = request(&[take("slow", 5, 3)]);
    body["budget_ms"] = json!(30);
    let (status, reply) = server.post(&body).await;
    assert_eq!(status, 504, "{reply}");
    assert_eq!(server.store.used("slow").await, 3);
    server.store.open_gate(1);
    until("the refund", Duration::from_secs(20), async || {
        (server.store.used("slow").await == 0).then_some(())
    })
    .await;
    body["budget_ms"] = json!(0);
    assert_eq!(server.post(&body).await.0, 504);
    assert_eq!(server.store.entered.load(SeqCst), 1, "no call may start without a budget");
}

#[tokio::test]
async fn hanging_item_does_not_delay_the_rest_of_its_call() {
    let server = Server::start().await;
    server.store.close_gate();
    let slow = take("slow", 5, 3);
    let quick = Reservation { key: "test:quick:{*}".into(), ..slow.clone() };
    let mut body = request(&[slow, quick]);
    body["budget_ms"] = json!(100);
    let (status, reply) = server.post(&body).await;
    assert_eq!(status, 200, "{reply}");
    assert!(reply["grants"][0]["error"].is_string(), "{reply}");
    assert_eq!(reply["grants"][1]["granted"], 3, "{reply}");
    assert_eq!(server.store.used("slow").await, 3);
    server.store.open_gate(1);
    until("the refund of the late grant", Duration::from_secs(20), async || {
        (server.store.used("slow").await == 0).then_some(())
    })
    .await;
    assert_eq!(server.store.memory.len(), 1, "the late grant must leave no counter");
}

#[tokio::test]
async fn grant_of_a_caller_that_left_is_refunded() {
    let server = Server::start().await;
    server.store.close_gate();
    let body = request(&[take("gone", 9, 3)]).to_string();
    let mut first = h1(&server.calls.address).await;
    let waiting = tokio::spawn(async move { first.send_request(post(body.into())).await.is_ok() });
    server.store.entered(1).await;
    waiting.abort();
    // The client resets the stream, and the connection stays open.
    let body = request(&[take("reset", 9, 4)]).to_string();
    let mut second = h2(&server.calls.address).await;
    let mut kept = second.clone();
    let waiting = tokio::spawn(async move { second.send_request(post(body.into())).await.is_ok() });
    server.store.entered(2).await;
    waiting.abort();
    let body = request(&[take("kept", 9, 5)]).to_string();
    let answered =
        tokio::spawn(
            async move { read(kept.send_request(post(body.into())).await.unwrap()).await },
        );
    server.store.entered(3).await;
    assert_eq!((server.store.used("gone").await, server.store.used("reset").await), (3, 4));
    server.store.open_gate(3);
    assert_eq!(answered.await.unwrap().1["grants"][0]["granted"], 5);
    until("the refunds", Duration::from_secs(20), async || {
        (server.store.used("gone").await + server.store.used("reset").await == 0).then_some(())
    })
    .await;
    assert_eq!(server.store.used("kept").await, 5);
}

#[tokio::test]
async fn accepted_calls_are_answered_before_shutdown() {
    let mut server = Server::start().await;
    server.store.close_gate();
    let (one, two) =
        (request(&[take("drain", 9, 3)]).to_string(), request(&[take("drain", 9, 4)]).to_string());
    let (mut first, mut second) =
        (h1(&server.calls.address).await, h2(&server.calls.address).await);
    let one =
        tokio::spawn(
            async move { read(first.send_request(post(one.into())).await.unwrap()).await },
        );
    let two =
        tokio::spawn(
            async move { read(second.send_request(post(two.into())).await.unwrap()).await },
        );
    server.store.entered(2).await;
    server.calls.stop.take();
    let ListenAddr::Tcp(address) = server.calls.address else { panic!() };
    until("nothing more is accepted", Duration::from_secs(20), async || {
        TcpStream::connect(address).await.err()
    })
    .await;
    assert!(!server.calls.running.is_finished());
    server.store.open_gate(2);
    assert_eq!(one.await.unwrap().1["grants"][0]["granted"], 3);
    assert_eq!(two.await.unwrap().1["grants"][0]["granted"], 4);
    server.calls.running.await.unwrap();
    assert_eq!(server.store.memory.len(), 1);
}
