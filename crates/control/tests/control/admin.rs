//! The admin address, and the call that fetches dials, over HTTP.

use crate::common::{open, take, until};
use crate::http::{host, read, send};
use crate::served::Served;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use quotagate_control::App;
use quotagate_operate::api::Snapshot;
use quotagate_store::server::Tokens;
use quotagate_support::redis::Redis;
use serde_json::{Value, json};
use std::time::Duration;

const REPORT: &[u8] = br#"{"policies":[{"name":"p","quota":5,"window_s":31622400,"stagger":false,"mode":"enforce","on_failure":"allow","admitted":3}]}"#;

async fn memory() -> Served {
    Served::start(open("memory:").await).await
}

#[tokio::test]
async fn filter_receives_dials_and_their_version() {
    let server = memory().await;
    let (status, told) = server.dials("test", Some(REPORT)).await;
    assert_eq!(
        (status.as_u16(), told),
        (200, json!({"version": 0, "dials": [], "overridden": []}))
    );
    let wish = json!({"policy": "p", "quota": 8, "for_ms": 60_000, "by": "ann"});
    let (status, made) = server.admin(Method::PUT, "/v1/dials", Some(wish)).await;
    assert_eq!(status, 200, "{made}");
    assert_eq!(
        made,
        json!({"domain": "test", "version": 1, "durable": false, "done": "set dial p: quota 8, for 1m"})
    );
    let (_, told) = server.dials("test", None).await;
    assert_eq!((&told["version"], &told["dials"][0]["quota"]), (&json!(1), &json!(8)));
    assert!(told["dials"][0]["for_ms"].as_u64().is_some_and(|left| left > 50_000), "{told}");
    let call = json!({"budget_ms": 5000, "reservations": [take("a", 5, 1)]}).to_string();
    let request =
        Request::post("/v1/reserve").header("host", "store").body(Full::new(call.into())).unwrap();
    let (_, reply) = read(send(&server.calls, request).await).await;
    assert_eq!(reply["dials"], 1, "{reply}");
    let (_, boards) = server.get("/v1/boards").await;
    assert_eq!(
        (&boards[0]["dials"][0]["by"], &boards[0]["policies"][0]["quota"]),
        (&json!("ann"), &json!(5))
    );
    let (status, _) =
        server.admin(Method::DELETE, "/v1/dials", Some(json!({"policy": "p", "by": "ann"}))).await;
    assert_eq!(status, 200);
    assert_eq!(server.dials("test", None).await.1["dials"], json!([]));
    let (_, history) = server.get("/v1/history").await;
    assert_eq!(history.as_array().unwrap().len(), 2, "{history}");
}

#[tokio::test]
async fn invalid_reports_are_ignored() {
    let server = memory().await;
    for bad in [&b""[..], b"{", b"[]", b"{\"policies\":7}", &[b'x'; 13_000], b"{\"policies\":[]}"] {
        assert_eq!(server.dials("test", Some(bad)).await.0, 200);
    }
    assert_eq!(server.get("/v1/boards").await.1, json!([]));
    let odd = br#"{"policies":[{"name":"<b>","quota":5,"window_s":60,"stagger":false,"mode":"enforce","on_failure":"allow"},{"name":"w","quota":5,"window_s":0,"stagger":false,"mode":"enforce","on_failure":"allow"}]}"#;
    assert_eq!(server.dials("test", Some(odd)).await.0, 200);
    assert_eq!(server.get("/v1/boards").await.1, json!([]));
    for domain in ["", "A", "a%20b", &"a".repeat(65)] {
        assert_eq!(server.dials(domain, None).await.0, 400, "{domain}");
    }
}

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
    let app = App::new(store, Tokens::new(b"caller")).admin_tokens(Tokens::new(b"operator"));
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
        (own.as_str(), "/v1/boards", Some("operator"), 200),
        ("store.svc", "/v1/boards", Some("operator"), 200),
        (&own, "/v1/boards", Some("caller"), 401),
        (&own, "/v1/boards", None, 401),
        (&own, "/v1/nothing", None, 401),
        ("evil.example", "/v1/boards", Some("operator"), 421),
        ("evil.example", "/healthz", None, 200),
        ("evil.example", "/readyz", None, 200),
        ("evil.example", "/metrics", None, 200),
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

#[tokio::test(flavor = "multi_thread")]
async fn invalid_dials_are_ignored_one_by_one() {
    let redis = Redis::start().unwrap();
    let server = Served::start(open(&redis.url()).await).await;
    let cli = |command: &[&str]| redis.cli(command).unwrap();
    let dials = "qg:dials:{test}";
    server.dials("test", Some(REPORT)).await;
    let good = json!({"policy": "p", "quota": 8, "by": "ann"});
    assert_eq!(server.admin(Method::PUT, "/v1/dials", Some(good.clone())).await.0, 200);
    let large = format!("{{{}", "x".repeat(1_000_000));
    for (field, value) in [
        ("q", "nonsense"),
        ("r", "{\"mode\":7}"),
        ("*", large.as_str()),
        ("UP", "{}"),
        ("\u{fffd}", ""),
    ] {
        cli(&["HSET", dials, field, value]);
    }
    for n in 0..5000 {
        cli(&["HSET", dials, &format!("f{n}"), "1"]);
    }
    cli(&["HSET", dials, "#version", "71"]);
    let told = until("the store reads the invalid fields", Duration::from_secs(5), async || {
        let (_, told) = server.dials("test", None).await;
        (told["version"] == 71).then_some(told)
    })
    .await;
    assert_eq!(
        (&told["dials"][0]["quota"], told["dials"].as_array().unwrap().len()),
        (&json!(8), 1),
        "{told}"
    );
    // An operator can clear an invalid field, whether or not it looks like a dial.
    for policy in ["r", "q"] {
        let clear = || Some(json!({"policy": policy, "by": "ann"}));
        let (status, made) = server.admin(Method::DELETE, "/v1/dials", clear()).await;
        assert_eq!(status, 200, "{made}");
        assert_eq!(made["done"], format!("cleared dial {policy}, which could not be read"));
        assert!(!cli(&["HKEYS", dials]).lines().lines().any(|field| field == policy), "{policy}");
        assert_eq!(server.admin(Method::DELETE, "/v1/dials", clear()).await.0, 404);
    }
    cli(&["HSET", dials, "#version", "71"]);
    // Other dials can still be set.
    let all = json!({"policy": "*", "mode": "shadow", "by": "ann"});
    let (status, made) = server.admin(Method::PUT, "/v1/dials", Some(all)).await;
    assert_eq!((status.as_u16(), &made["version"]), (200, &json!(72)), "{made}");
    cli(&["HSET", dials, "#version", "many"]);
    assert_eq!(server.admin(Method::PUT, "/v1/dials", Some(good.clone())).await.1["version"], 1);
    cli(&["DEL", dials]);
    cli(&["SET", dials, "text"]);
    until("the key is not a hash", Duration::from_secs(5), async || {
        (server.dials("test", None).await.1["dials"] == json!([])).then_some(())
    })
    .await;
    let (status, reply) = server.admin(Method::PUT, "/v1/dials", Some(good.clone())).await;
    assert_eq!(status, 502, "{reply}");
    assert!(reply["error"].as_str().unwrap().contains("delete it"), "{reply}");
    cli(&["DEL", dials]);
    assert_eq!(server.admin(Method::PUT, "/v1/dials", Some(good)).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn dials_outlive_the_store_and_are_served_while_redis_hangs() {
    let mut redis = Redis::start().unwrap();
    {
        let server = Served::start(open(&redis.url()).await).await;
        server.dials("test", Some(REPORT)).await;
        let wish = json!({"policy": "p", "quota": 8, "by": "ann"});
        let put = async || server.admin(Method::PUT, "/v1/dials", Some(wish.clone())).await;
        // The store records the policy in the background.
        assert_eq!(put().await.0, 200);
        until("the policy is recorded", Duration::from_secs(5), async || {
            redis
                .cli(&["HGET", "qg:policies:{test}", "p"])
                .unwrap()
                .lines()
                .contains("31622400")
                .then_some(())
        })
        .await;
    }
    let server = Served::start(open(&redis.url()).await).await;
    let (_, boards) = server.get("/v1/boards").await;
    assert_eq!(
        (&boards[0]["durable"], &boards[0]["policies"][0]["name"]),
        (&json!(true), &json!("p")),
        "{boards}"
    );
    assert_eq!(server.dials("test", None).await.1["dials"][0]["quota"], 8);
    redis.freeze().unwrap();
    let (status, told) = server.dials("test", None).await;
    assert_eq!((status.as_u16(), &told["dials"][0]["quota"]), (200, &json!(8)));
    let (status, _) = server.dials("never-read", None).await;
    assert_eq!(status, 503);
    redis.thaw().unwrap();
}

#[tokio::test]
async fn overrides_usage_reset_and_top_over_http() {
    let server = memory().await;
    server.dials("test", Some(REPORT)).await;
    let reserve = async |want: u64| {
        let call =
            json!({"budget_ms": 5000, "reservations": [take("jwt.sub=a", 5, want)]}).to_string();
        let request = Request::post("/v1/reserve").header("host", "store");
        let request = request.body(Full::new(call.into())).unwrap();
        read(send(&server.calls, request).await).await.1["grants"][0]["granted"].as_u64().unwrap()
    };
    assert_eq!(reserve(4).await, 4);
    let (_, usage) = server.get("/v1/usage?partition=jwt.sub=a").await;
    assert_eq!(
        (&usage["found"][0]["used"], &usage["found"][0]["quota_from"]),
        (&json!(4), &json!("reservation")),
        "{usage}"
    );
    let place = json!({"policy": "p", "partition": "jwt.sub=a", "by": "ann"});
    let with = |allow: Value| json!({"policy": "p", "partition": "jwt.sub=a", "by": "ann", "allow": allow});
    let (status, made) =
        server.admin(Method::PUT, "/v1/overrides", Some(with(json!({"quota": 6})))).await;
    assert_eq!((status.as_u16(), &made["version"]), (200, &json!(1)), "{made}");
    assert_eq!(reserve(9).await, 2);
    assert_eq!(reserve(1).await, 0);
    assert_eq!(
        server.admin(Method::PUT, "/v1/overrides", Some(with(json!("blocked")))).await.0,
        200
    );
    let (_, listed) = server.get("/v1/overrides?policy=p").await;
    assert_eq!(listed[0]["allow"], "blocked", "{listed}");
    assert_eq!(server.admin(Method::DELETE, "/v1/overrides", Some(place.clone())).await.0, 200);
    assert_eq!(server.admin(Method::DELETE, "/v1/overrides", Some(place.clone())).await.0, 404);
    assert_eq!(server.admin(Method::POST, "/v1/reset", Some(place.clone())).await.0, 200);
    assert_eq!(server.admin(Method::POST, "/v1/reset", Some(place)).await.0, 404);
    assert_eq!(reserve(5).await, 5);
    let (_, top) = server.get("/v1/top?domain=test&limit=5").await;
    assert_eq!(
        (&top["fullest"][0]["used"], &top["refused"][0]["requests"]),
        (&json!(5), &json!(2)),
        "{top}"
    );
    assert_eq!(server.get("/v1/top?limit=x").await.0, 400);
    assert_eq!(server.get("/v1/usage?partition=a%20b").await.0, 400);
    assert_eq!(server.get("/v1/usage?partition=jwt.sub=nobody").await.0, 404);
}

#[tokio::test]
async fn usage_shows_the_policys_quota_once_override_and_dial_are_cleared() {
    let server = memory().await;
    server.dials("test", Some(REPORT)).await;
    let reserve = async |quota: u64, want: u64| {
        let call = json!({"budget_ms": 5000, "reservations": [take("jwt.sub=a", quota, want)]})
            .to_string();
        let request = Request::post("/v1/reserve").header("host", "store");
        read(send(&server.calls, request.body(Full::new(call.into())).unwrap()).await).await.1
    };
    let usage = async || {
        let (_, usage) = server.get("/v1/usage?partition=jwt.sub=a").await;
        (
            usage["found"][0]["quota"].clone(),
            usage["found"][0]["quota_from"].as_str().unwrap().to_owned(),
        )
    };
    let place = json!({"policy": "p", "partition": "jwt.sub=a", "by": "ann"});
    let over =
        json!({"policy": "p", "partition": "jwt.sub=a", "by": "ann", "allow": {"quota": 50}});
    server.admin(Method::PUT, "/v1/overrides", Some(over)).await;
    reserve(5, 3).await;
    assert_eq!(usage().await, (json!(50), "override".to_owned()));
    let (_, top) = server.get("/v1/top").await;
    assert_eq!(top["fullest"][0]["quota_from"], "override", "{top}");
    server.admin(Method::DELETE, "/v1/overrides", Some(place)).await;
    assert_eq!(usage().await, (json!(5), "reservation".to_owned()), "the quota in the call");
    let dial = json!({"policy": "p", "quota": 8, "by": "ann"});
    server.admin(Method::PUT, "/v1/dials", Some(dial)).await;
    assert_eq!(usage().await, (json!(8), "dial".to_owned()));
    reserve(8, 1).await;
    assert_eq!(usage().await, (json!(8), "reservation".to_owned()));
    server.admin(Method::DELETE, "/v1/dials", Some(json!({"policy": "p", "by": "ann"}))).await;
    assert_eq!(usage().await, (json!(5), "policy".to_owned()));
}

#[tokio::test]
async fn partial_grant_counts_as_one_refusal() {
    let server = memory().await;
    let call =
        json!({"budget_ms": 5000, "reservations": [take("a", 5, 30), take("b", 5, 5)]}).to_string();
    let request = Request::post("/v1/reserve").header("host", "store");
    let (status, _) =
        read(send(&server.calls, request.body(Full::new(call.into())).unwrap()).await).await;
    assert_eq!(status, 200);
    let (_, top) = server.get("/v1/top").await;
    let refused = top["refused"].as_array().unwrap();
    assert_eq!(
        (refused.len(), &refused[0]["partition"], &refused[0]["requests"]),
        (1, &json!("a"), &json!(1))
    );
}

#[tokio::test]
async fn overrides_are_listed_up_to_a_limit() {
    let server = memory().await;
    server.dials("test", Some(REPORT)).await;
    for n in 0..70 {
        let wish = json!({"policy": "p", "partition": format!("jwt.sub={n}"), "allow": "blocked", "by": "ann"});
        assert_eq!(server.admin(Method::PUT, "/v1/overrides", Some(wish)).await.0, 200);
    }
    for (query, count) in
        [("", 70), ("?limit=69", 69), ("?domain=test&limit=2", 2), ("?limit=0", 0)]
    {
        let (_, listed) = server.get(&format!("/v1/overrides{query}")).await;
        assert_eq!(listed.as_array().unwrap().len(), count, "{query}");
    }
    assert_eq!(server.get("/v1/overrides?limit=few").await.0, 400);
}

#[tokio::test]
async fn listeners_get_a_snapshot_per_second_until_shutdown() {
    let mut server = memory().await;
    let report = br#"{"policies":[{"name":"p","quota":5,"window_s":60,"stagger":false,"mode":"enforce","on_failure":"allow"}],"refused":[{"key":"test:p:{a}","requests":7},{"key":"other:p:{a}","requests":7}]}"#;
    server.dials("test", Some(report)).await;
    let listen = async || {
        let request = Request::get("/v1/events").header("host", host(&server.admin));
        send(&server.admin, request.body(Full::default()).unwrap()).await
    };
    let mut events = listen().await;
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    for _ in 0..2 {
        let frame = events.frame().await.unwrap().unwrap().into_data().unwrap();
        let text = String::from_utf8(frame.to_vec()).unwrap();
        let data = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).unwrap();
        let snapshot: Snapshot = serde_json::from_str(data).unwrap();
        assert_eq!(
            (snapshot.backend.as_str(), snapshot.boards[0].domain.as_str()),
            ("memory", "test")
        );
        assert_eq!((snapshot.top.refused.len(), snapshot.top.refused[0].requests), (1, 7));
    }
    let mut others = Vec::new();
    for _ in 0..31 {
        others.push(listen().await);
    }
    assert_eq!(listen().await.status(), 503, "32 clients listen");
    others.clear();
    until("a permit is free again", Duration::from_secs(5), async || {
        (listen().await.status() == 200).then_some(())
    })
    .await;
    server.stop.take();
    let last = tokio::time::timeout(Duration::from_secs(3), async {
        while let Some(frame) = events.frame().await {
            frame.unwrap();
        }
    });
    last.await.unwrap();
    tokio::time::timeout(Duration::from_secs(3), server.running).await.unwrap().unwrap();
}

#[tokio::test]
async fn shadow_mode_adds_no_refusals_and_uncounted_requests_are_shown() {
    let server = memory().await;
    let report = json!({"policies": [
        {"name": "p", "quota": 5, "window_s": 60, "stagger": false, "mode": "shadow", "on_failure": "allow",
         "shadow_refused": 9, "missing_identity": 4, "store_error": 6},
        {"name": "q", "quota": 5, "window_s": 60, "stagger": false, "mode": "enforce", "on_failure": "allow",
         "admitted": 9}]});
    server.dials("test", Some(report.to_string().as_bytes())).await;
    let shadow =
        quotagate_quota::protocol::Reservation { shadow: true, ..take("jwt.sub=shadow", 5, 9) };
    let call = json!({"budget_ms": 5000, "reservations": [shadow, take("jwt.sub=refused", 5, 9)]})
        .to_string();
    let request =
        Request::post("/v1/reserve").header("host", "store").body(Full::new(call.into())).unwrap();
    assert_eq!(read(send(&server.calls, request).await).await.0, 200);
    let (_, top) = server.get("/v1/top").await;
    let refused = top["refused"].as_array().unwrap();
    assert_eq!((refused.len(), &refused[0]["partition"]), (1, &json!("jwt.sub=refused")), "{top}");
    let uncounted =
        json!([{"domain": "test", "policy": "p", "store_error": 6, "missing_identity": 4}]);
    assert_eq!(top["uncounted"], uncounted);
    assert_eq!(server.get("/v1/top?policy=q").await.1["uncounted"], json!([]));
}

#[tokio::test]
async fn metrics_name_policies_but_no_partitions() {
    let server = memory().await;
    server.dials("test", Some(REPORT)).await;
    let wish = json!({"policy": "p", "quota": 8, "by": "ann"});
    server.admin(Method::PUT, "/v1/dials", Some(wish)).await;
    let wish =
        json!({"policy": "p", "partition": "jwt.sub=somebody", "allow": "blocked", "by": "ann"});
    server.admin(Method::PUT, "/v1/overrides", Some(wish)).await;
    let short = |n: u64| quotagate_quota::protocol::Reservation {
        window_s: 1,
        ..take("somebody-else", 4, n)
    };
    let call =
        json!({"budget_ms": 5000, "reservations": [take("jwt.sub=somebody", 5, 1), short(3)]})
            .to_string();
    let request =
        Request::post("/v1/reserve").header("host", "store").body(Full::new(call.into())).unwrap();
    assert_eq!(read(send(&server.calls, request).await).await.0, 200);
    let text = until("the window of one second has ended", Duration::from_secs(5), async || {
        let (_, text) = server.get("/metrics").await;
        let text = text.as_str().unwrap().to_owned();
        text.contains("window_fullness_count{domain=\"test\",policy=\"p\"} 1").then_some(text)
    })
    .await;
    for line in [
        "quotagate_store_requests_total{domain=\"test\",policy=\"p\",outcome=\"admitted\"} 3",
        "quotagate_store_dials{domain=\"test\"} 1",
        "quotagate_store_overrides{domain=\"test\"} 1",
        "quotagate_store_window_fullness_bucket{le=\"0.75\",domain=\"test\",policy=\"p\"} 1",
        "quotagate_store_window_fullness_bucket{le=\"0.5\",domain=\"test\",policy=\"p\"} 0",
        "quotagate_store_partitions_watched 1",
        "quotagate_store_partitions_unwatched_total 0",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("somebody"), "{text}");
}

#[tokio::test]
async fn metrics_use_the_requested_format_and_every_family_has_help_and_type() {
    let server = memory().await;
    server.dials("test", Some(REPORT)).await;
    let scrape = async |accept: &str| {
        let request =
            Request::get("/metrics").header("host", host(&server.admin)).header("accept", accept);
        let response = send(&server.admin, request.body(Full::default()).unwrap()).await;
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (kind, String::from_utf8(body.to_vec()).unwrap())
    };
    let (kind, open) = scrape("application/openmetrics-text;version=1.0.0,text/plain;q=0.5").await;
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(
        open.contains("# TYPE quotagate_store_refunds counter\n") && open.ends_with("# EOF\n"),
        "{open}"
    );
    let (kind, plain) = scrape("*/*").await;
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(plain.contains("# TYPE quotagate_store_refunds_total counter\n"), "{plain}");
    assert!(!plain.contains("# EOF"), "{plain}");
    let version =
        format!("quotagate_store_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    for sample in [
        &version,
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
        "process_open_fds ",
    ] {
        assert!(plain.contains(&format!("\n{sample}")), "{sample}: {plain}");
    }
    for sample in plain.lines().filter(|line| !line.starts_with('#')) {
        let name = sample.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        for mark in ["HELP", "TYPE"] {
            let described = |of: &str| plain.contains(&format!("# {mark} {of} "));
            assert!(described(name) || described(family), "{name} has no {mark}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_scrapes_see_every_gauge() {
    let server = std::sync::Arc::new(memory().await);
    server.dials("test", Some(REPORT)).await;
    let scrapers = (0..4).map(|_| {
        let server = std::sync::Arc::clone(&server);
        tokio::spawn(async move {
            for _ in 0..100 {
                let (_, text) = server.get("/metrics").await;
                let text = text.as_str().unwrap();
                assert!(text.contains("quotagate_store_dials{domain=\"test\"} 0"), "{text}");
                assert!(text.contains("quotagate_store_overrides{domain=\"test\"} 0"), "{text}");
            }
        })
    });
    for scraper in scrapers.collect::<Vec<_>>() {
        scraper.await.unwrap();
    }
}

#[tokio::test]
async fn too_many_domains_are_rejected() {
    let server = memory().await;
    for n in 0..64 {
        assert_eq!(server.dials(&format!("d{n}"), None).await.0, 200);
    }
    let (status, reply) = server.dials("one-more", None).await;
    assert_eq!(
        (status.as_u16(), reply),
        (503, json!({"error": "filters already ask for 64 domains"}))
    );
    assert_eq!(server.dials("d0", None).await.0, 200);
}
