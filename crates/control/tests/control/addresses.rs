//! The two addresses of a store: each names the other one, and the admin address reports metrics
//! and health.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use quotagate_protocol::Reservation;
use quotagate_store::server::ListenAddr;
use serde_json::{Value, json};

use crate::common::take;
use crate::http::{read, send};
use crate::served::{Served, memory};

fn post(body: Bytes) -> Request<Full<Bytes>> {
    Request::post("/v1/reserve").header("host", "store").body(Full::new(body)).unwrap()
}

fn get(path: &str) -> Request<Full<Bytes>> {
    get_from("localhost", path)
}

fn get_from(host: &str, path: &str) -> Request<Full<Bytes>> {
    Request::get(path).header("host", host).body(Full::default()).unwrap()
}

fn request(reservations: &[Reservation]) -> Value {
    json!({"budget_ms": 5000, "reservations": reservations})
}

async fn call(address: &ListenAddr, request: Request<Full<Bytes>>) -> (StatusCode, Value) {
    read(send(address, request).await).await
}

#[tokio::test]
async fn each_address_names_the_other_one() {
    let server = memory().await;
    for path in ["/metrics", "/readyz", "/v1/boards", "/v1/domains", "/"] {
        let (status, reply) = call(&server.calls, get(path)).await;
        let error = reply["error"].as_str().unwrap_or_default();
        assert!(
            status == 421 && error.contains("a store's call address"),
            "{path} {status} {reply}"
        );
    }
    assert_eq!(call(&server.admin, get("/reserve")).await.0, 404);
    // A proxy sends the name of its cluster as the host.
    for path in ["/v1/reserve", "/v1/telemetry?domain=test"] {
        let (status, reply) = call(&server.admin, get_from("store", path)).await;
        let error = reply["error"].as_str().unwrap_or_default();
        assert!(
            status == 421 && error.contains("a store's admin address"),
            "{path} {status} {reply}"
        );
    }
}

#[tokio::test]
async fn metrics_count_calls_reservations_and_units() {
    let server = memory().await;
    let items = [
        take("seen", 4, 3),
        take("seen", 3, 3),
        Reservation { want: 0, ..take("seen", 3, 3) },
        Reservation { want: 0, min: 0, spare: 1, ..take("seen", 3, 3) },
    ];
    call(&server.calls, post(request(&items).to_string().into())).await;
    let mut back = request(&[]);
    back["refunds"] = json!([{"key": "test:p:{seen}", "window_s": 60, "window": 1, "units": 1}]);
    call(&server.calls, post(back.to_string().into())).await;
    assert_eq!(call(&server.calls, post("{".into())).await.0, 400);
    assert_eq!(call(&server.admin, get("/healthz")).await.0, 200);
    assert_eq!(call(&server.admin, get("/readyz")).await, (StatusCode::OK, json!({"ready": true})));
    let (_, metrics) = call(&server.admin, get("/metrics")).await;
    let metrics = metrics.as_str().unwrap();
    for line in [
        "quotagate_store_calls_total{status=\"200\"} 2",
        "quotagate_store_calls_total{status=\"400\"} 1",
        "quotagate_store_reservations_total{domain=\"test\",policy=\"p\",outcome=\"granted\"} 1",
        "quotagate_store_reservations_total{domain=\"test\",policy=\"p\",outcome=\"refused\"} 1",
        "quotagate_store_reservations_total{domain=\"test\",policy=\"p\",outcome=\"no_spare\"} 1",
        "quotagate_store_reservations_total{domain=\"test\",policy=\"p\",outcome=\"invalid\"} 1",
        "quotagate_store_units_granted_total{domain=\"test\",policy=\"p\"} 3",
        "quotagate_store_units_refused_total{domain=\"test\",policy=\"p\"} 3",
        "quotagate_store_units_refunded_total{domain=\"test\",policy=\"p\"} 1",
        "quotagate_store_call_seconds_count{backend=\"memory\"} 3",
        "quotagate_store_call_reservations_sum 4",
        "quotagate_store_ready 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn unreachable_backend_is_reported() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let store =
        quotagate_store::open(&format!("redis://127.0.0.1:{unused}").parse().unwrap(), "qg");
    let Served { calls, admin, stop: _stop, .. } = Served::start(store).await;
    let (status, reply) =
        call(&calls, post(request(&[take("down", 4, 3)]).to_string().into())).await;
    assert_eq!(status, 503, "{reply}");
    assert!(reply["error"].as_str().unwrap().contains("unreachable"), "{reply}");
    for path in ["/readyz", "/readyz?partial"] {
        assert_eq!(call(&admin, get(path)).await.0, StatusCode::SERVICE_UNAVAILABLE, "{path}");
    }
    let (status, reply) = call(&admin, get("/readyz")).await;
    assert_eq!((status, &reply["ready"]), (StatusCode::SERVICE_UNAVAILABLE, &json!(false)));
}
