//! The call that fetches dials, over HTTP.

use std::time::Duration;

use http_body_util::Full;
use hyper::{Method, Request};
use quotagate_support::redis::Redis;
use serde_json::json;

use crate::common::{open, take, until};
use crate::http::{read, send};
use crate::served::{REPORT, Served, memory};

#[tokio::test]
async fn filter_receives_dials_and_their_version() {
    let server = memory().await;
    let (status, reply) = server.dials("test", Some(REPORT)).await;
    assert_eq!(
        (status.as_u16(), reply),
        (200, json!({"version": 0, "dials": [], "overridden": [], "document": {"number": 0}}))
    );
    let wish = json!({"policy": "p", "quota": 8, "for_ms": 60_000, "by": "ann"});
    let (status, made) = server.admin(Method::PUT, "/v1/dials", Some(wish)).await;
    assert_eq!(status, 200, "{made}");
    assert_eq!(
        made,
        json!({"domain": "test", "version": 1, "durable": false, "done": "set dial p: quota 8, for 1m"})
    );
    let (_, reply) = server.dials("test", None).await;
    assert_eq!((&reply["version"], &reply["dials"][0]["quota"]), (&json!(1), &json!(8)));
    assert!(reply["dials"][0]["for_ms"].as_u64().is_some_and(|left| left > 50_000), "{reply}");
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
    for domain in ["", "a!", "a:b", &"a".repeat(257)] {
        assert_eq!(server.dials(domain, None).await.0, 400, "{domain}");
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
    let reply = until("the store reads the invalid fields", Duration::from_secs(20), async || {
        let (_, reply) = server.dials("test", None).await;
        (reply["version"] == 71).then_some(reply)
    })
    .await;
    assert_eq!(
        (&reply["dials"][0]["quota"], reply["dials"].as_array().unwrap().len()),
        (&json!(8), 1),
        "{reply}"
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
    until("the key is not a hash", Duration::from_secs(20), async || {
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
        until("the policy is recorded", Duration::from_secs(20), async || {
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
    let (status, reply) = server.dials("test", None).await;
    assert_eq!((status.as_u16(), &reply["dials"][0]["quota"]), (200, &json!(8)));
    let (status, _) = server.dials("never-read", None).await;
    assert_eq!(status, 503);
    redis.thaw().unwrap();
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
        (
            503,
            json!({"error": "filters already ask for 64 domains, all known for longer than this one"})
        )
    );
    assert_eq!(server.dials("d0", None).await.0, 200);
}
