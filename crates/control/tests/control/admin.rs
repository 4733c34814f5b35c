//! Who may use the admin address, its errors, and its events.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use quotagate_control::App;
use quotagate_store::server::Tokens;
use serde_json::{Value, json};

use crate::common::open;
use crate::http::{host, read, send};
use crate::served::{REPORT, Served, memory};

#[tokio::test]
async fn errors_list_the_known_names() {
    let server = memory().await;
    server.dials("test", Some(REPORT)).await;
    let put = async |body: Value| server.admin(Method::PUT, "/v1/dials", Some(body)).await;
    let (status, reply) = put(json!({"policy": "x", "quota": 8, "by": "ann"})).await;
    assert_eq!(
        (status.as_u16(), &reply["field"], &reply["known"]),
        (404, &json!("policy"), &json!(["p"])),
        "{reply}"
    );
    let (status, reply) = put(json!({"domain": "x", "policy": "p", "quota": 8, "by": "ann"})).await;
    assert_eq!(
        (status.as_u16(), &reply["field"], &reply["known"]),
        (404, &json!("domain"), &json!(["test"])),
        "{reply}"
    );
    server.dials("other", Some(REPORT)).await;
    let (status, reply) = put(json!({"policy": "p", "quota": 8, "by": "ann"})).await;
    assert_eq!((status.as_u16(), &reply["known"]), (400, &json!(["other", "test"])), "{reply}");
    let (status, reply) = put(json!({"policy": "p", "quota": -8, "by": "ann"})).await;
    assert_eq!((status.as_u16(), &reply["field"]), (400, &json!("quota")), "{reply}");
    let (status, reply) = put(json!({"policy": "p", "by": "ann", "noise": 1})).await;
    assert_eq!((status.as_u16(), &reply["field"]), (400, &json!("noise")), "{reply}");
    assert_eq!(put(json!({"by": "x".repeat(70_000)})).await.0, 413);
    assert_eq!(server.admin(Method::POST, "/v1/dials", Some(json!({}))).await.0, 405);
    for path in ["/v1/nothing", "/reserve"] {
        assert_eq!(server.get(path).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn operators_need_a_token_and_probes_do_not() {
    let store = open("memory:").await;
    let app = App::new(store, Tokens::new(b"the-token-of-callers\n"))
        .admin_tokens(Tokens::new(b"the-token-of-operators\n"));
    let server = Served::app(app.admin_hosts(vec!["store.svc".to_owned()])).await;
    let with = async |name: &str, path: &str, token: Option<&str>| {
        let mut request = Request::get(path).header("host", name);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        read(send(&server.admin, request.body(Full::default()).unwrap()).await).await.0.as_u16()
    };
    let own = host(&server.admin);
    for (name, path, token, expected) in [
        (own.as_str(), "/v1/boards", Some("the-token-of-operators"), 200),
        ("store.svc", "/v1/boards", Some("the-token-of-operators"), 200),
        (&own, "/v1/boards", Some("the-token-of-callers"), 401),
        (&own, "/v1/boards", None, 401),
        (&own, "/v1/nothing", None, 401),
        ("evil.example", "/v1/boards", Some("the-token-of-operators"), 421),
        ("evil.example", "/healthz", None, 200),
        ("evil.example", "/readyz", None, 421),
        ("evil.example", "/metrics", None, 421),
        ("evil.example", "/", None, 421),
        (&own, "/readyz", None, 200),
        ("store.svc", "/metrics", None, 200),
        (&own, "/", None, 200),
    ] {
        assert_eq!(with(name, path, token).await, expected, "{name} {path} {token:?}");
    }
    assert_eq!(server.dials("test", None).await.0, 401);
}

#[tokio::test]
async fn web_pages_cannot_fetch_dials() {
    let server = memory().await;
    for (name, value) in [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")] {
        let request =
            Request::post("/v1/telemetry?domain=test").header("host", "store").header(name, value);
        let request = request.body(Full::<Bytes>::default()).unwrap();
        assert_eq!(read(send(&server.calls, request).await).await.0, 403, "{name}");
    }
}

#[tokio::test]
async fn pages_of_other_sites_cannot_exhaust_event_listeners() {
    let server = memory().await;
    let listen = async |site: Option<&str>| {
        let mut request = Request::get("/v1/events").header("host", host(&server.admin));
        if let Some(site) = site {
            request = request.header("sec-fetch-site", site);
        }
        send(&server.admin, request.body(Full::<Bytes>::default()).unwrap()).await
    };
    let mut held = Vec::new();
    for _ in 0..40 {
        let response = listen(Some("cross-site")).await;
        assert_eq!(response.status(), 403);
        held.push(response);
    }
    for site in [None, Some("same-origin")] {
        let response = listen(site).await;
        assert_eq!(response.status(), 200, "{site:?}");
        held.push(response);
    }
}

/// The name of an event and its data.
fn parsed(frame: &[u8]) -> (String, Value) {
    let text = str::from_utf8(frame).unwrap();
    let (name, data) = text.trim_end().split_once("\ndata: ").unwrap();
    (name.strip_prefix("event: ").unwrap().to_owned(), serde_json::from_str(data).unwrap())
}

#[tokio::test]
async fn listeners_get_the_picture_and_then_its_changes_until_shutdown() {
    let mut server = memory().await;
    let report = br#"{"policies":[{"name":"p","quota":5,"window_s":60,"stagger":false,"mode":"enforce","on_failure":"allow"}],"refused":[{"key":"test:p:{a}","requests":7},{"key":"other:p:{a}","requests":7}]}"#;
    server.dials("test", Some(report)).await;
    let listen = async || {
        let request = Request::get("/v1/events").header("host", host(&server.admin));
        send(&server.admin, request.body(Full::default()).unwrap()).await
    };
    let mut events = listen().await;
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    let mut next = async || {
        let frame = events.frame().await.unwrap().unwrap().into_data().unwrap();
        parsed(&frame)
    };
    let (name, mut picture) = next().await;
    assert_eq!((name.as_str(), &picture["backend"]), ("whole", &json!("memory")), "{picture}");
    assert_eq!(picture["domains"]["test"]["policies"]["p"]["quota"], 5, "{picture}");
    assert_eq!(picture["refused"]["test p a"]["requests"], 7, "{picture}");
    assert!(picture["refused"].as_object().unwrap().len() == 1, "{picture}");
    // One who comes later does not wait for the next picture.
    let frame = listen().await.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(parsed(&frame).0, "whole");
    server.dials("test", Some(report)).await;
    while picture["refused"]["test p a"]["requests"] != 14 {
        let (name, changes) = next().await;
        assert_eq!(name, "changes");
        assert!(changes.get("backend").is_none(), "it has not changed: {changes}");
        json_patch::merge(&mut picture, &changes);
    }
    assert_eq!(picture["domains"]["test"]["policies"]["p"]["quota"], 5, "{picture}");
    let mut others = Vec::new();
    for _ in 0..32 {
        others.push(listen().await);
    }
    let mut newest = others.pop().unwrap();
    assert_eq!(newest.status(), 200);
    // The oldest of 33 clients, who count as one operator, makes room.
    let ended = async {
        while let Some(frame) = events.frame().await {
            frame.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap();
    server.stop.take();
    let last = tokio::time::timeout(Duration::from_secs(30), async {
        while let Some(frame) = newest.frame().await {
            frame.unwrap();
        }
    });
    last.await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), server.running).await.unwrap().unwrap();
}

#[tokio::test]
async fn events_are_compressed_for_those_who_can_read_that() {
    let server = memory().await;
    server.dials("test", Some(REPORT)).await;
    let request = Request::get("/v1/events").header("host", host(&server.admin));
    let request = request.header("accept-encoding", "br, gzip").body(Full::default()).unwrap();
    let mut events = send(&server.admin, request).await;
    assert_eq!(events.headers()["content-encoding"], "gzip");
    let mut received = Vec::new();
    for wanted in ["event: whole\n", "event: changes\n"] {
        let mut text = String::new();
        while !text.contains(wanted) {
            received.extend(events.frame().await.unwrap().unwrap().into_data().unwrap());
            text.clear();
            // The stream has no end yet.
            let _ = flate2::read::GzDecoder::new(&*received).read_to_string(&mut text);
        }
    }
}
