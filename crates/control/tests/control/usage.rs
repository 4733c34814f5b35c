//! Overrides, usage and the top lists, over HTTP.

use http_body_util::Full;
use hyper::{Method, Request};
use serde_json::{Value, json};

use crate::common::take;
use crate::http::{read, send};
use crate::served::{REPORT, memory};

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
        (&json!(4), &json!("policy")),
        "{usage}"
    );
    let partition = json!({"policy": "p", "partition": "jwt.sub=a", "by": "ann"});
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
    let (status, none) = server.get("/v1/overrides?policy=*").await;
    assert!(status == 200 && none == json!([]), "none of all policies: {status} {none}");
    let (_, listed) = server.get("/v1/overrides?policy=p").await;
    assert_eq!(listed[0]["allow"], "blocked", "{listed}");
    assert_eq!(server.admin(Method::DELETE, "/v1/overrides", Some(partition.clone())).await.0, 200);
    assert_eq!(server.admin(Method::DELETE, "/v1/overrides", Some(partition.clone())).await.0, 404);
    assert_eq!(server.admin(Method::POST, "/v1/reset", Some(partition.clone())).await.0, 200);
    assert_eq!(server.admin(Method::POST, "/v1/reset", Some(partition)).await.0, 404);
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
    let partition = json!({"policy": "p", "partition": "jwt.sub=a", "by": "ann"});
    let over =
        json!({"policy": "p", "partition": "jwt.sub=a", "by": "ann", "allow": {"quota": 50}});
    server.admin(Method::PUT, "/v1/overrides", Some(over)).await;
    reserve(5, 3).await;
    assert_eq!(usage().await, (json!(50), "override".to_owned()));
    let (_, top) = server.get("/v1/top").await;
    assert_eq!(top["fullest"][0]["quota_from"], "override", "{top}");
    server.admin(Method::DELETE, "/v1/overrides", Some(partition)).await;
    assert_eq!(usage().await, (json!(5), "policy".to_owned()), "the quota in the call");
    let dial = json!({"policy": "p", "quota": 8, "by": "ann"});
    server.admin(Method::PUT, "/v1/dials", Some(dial)).await;
    assert_eq!(usage().await, (json!(8), "dial".to_owned()));
    reserve(8, 1).await;
    assert_eq!(usage().await, (json!(8), "dial".to_owned()), "the call named the dial's quota");
    server.admin(Method::DELETE, "/v1/dials", Some(json!({"policy": "p", "by": "ann"}))).await;
    assert_eq!(usage().await, (json!(5), "policy".to_owned()));
}

#[tokio::test]
async fn usage_says_mode_refusals_and_since_when() {
    let server = memory().await;
    let policy = |name: &str, tiers: bool| {
        json!({"name": name, "quota": 5, "window_s": 31_622_400, "stagger": false, "mode": "enforce",
            "on_failure": "allow", "tiers": tiers})
    };
    let report = json!({"policies": [policy("p", false), policy("tiered", true)],
        "refused": [{"key": "test:tiered:{jwt.sub=a}", "requests": 3}]});
    server.dials("test", Some(report.to_string().as_bytes())).await;
    let call = json!({"budget_ms": 5000, "reservations": [take("jwt.sub=a", 5, 9)]}).to_string();
    let request = Request::post("/v1/reserve").header("host", "store");
    let sent = send(&server.calls, request.body(Full::new(call.into())).unwrap()).await;
    assert_eq!(read(sent).await.0, 200);
    let dial = json!({"policy": "*", "mode": "shadow", "by": "ann"});
    assert_eq!(server.admin(Method::PUT, "/v1/dials", Some(dial)).await.0, 200);
    let (_, usage) = server.get("/v1/usage?partition=jwt.sub=a").await;
    let [p, tiered] = [&usage["found"][0], &usage["found"][1]];
    assert_eq!((&p["mode"], &p["refused"], &p["used"]), (&json!("shadow"), &json!(1), &json!(5)));
    assert!(p["refused_for_ms"].as_u64().is_some_and(|ms| ms < 60_000), "{usage}");
    // Filters refused it, and this store has counted nothing of it.
    let seen = ["quota_from", "quota", "refused", "used"].map(|field| tiered[field].clone());
    assert_eq!(seen, [json!("unknown"), Value::Null, json!(3), json!(0)], "{usage}");
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
async fn shadow_mode_adds_no_refusals_and_uncounted_requests_are_shown() {
    let server = memory().await;
    let report = json!({"policies": [
        {"name": "p", "quota": 5, "window_s": 60, "stagger": false, "mode": "shadow", "on_failure": "allow",
         "shadow_refused": 9, "marked": 0, "missing_identity": 4, "store_error": 6,
         "settled_if_missing": 5},
        {"name": "q", "quota": 5, "window_s": 60, "stagger": false, "mode": "enforce", "on_failure": "allow",
         "admitted": 9}]});
    server.dials("test", Some(report.to_string().as_bytes())).await;
    let shadow = quotagate_protocol::Reservation { shadow: true, ..take("jwt.sub=shadow", 5, 9) };
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
    let (_, metrics) = server.get("/metrics").await;
    let settled = r#"quotagate_settled_if_missing_total{domain="test",policy="p"} 5"#;
    assert!(metrics.as_str().unwrap().contains(settled), "{metrics}");
    assert_eq!(server.get("/v1/top?policy=q").await.1["uncounted"], json!([]));
}
