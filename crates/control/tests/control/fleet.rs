//! Two stores beside one Redis: each shows what both counted.

use std::time::Duration;

use http_body_util::Full;
use hyper::Request;
use quotagate_support::redis::Redis;
use serde_json::{Value, json};

use crate::common::{open, take, until};
use crate::http::{read, send};
use crate::served::{REPORT, Served};

async fn reserve(server: &Served, key: &str, want: u64) {
    let call = json!({"budget_ms": 5000, "reservations": [take(key, 5, want)]}).to_string();
    let request = Request::post("/v1/reserve").header("host", "store");
    let request = request.body(Full::new(call.into())).unwrap();
    assert_eq!(read(send(&server.calls, request).await).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_store_shows_what_both_counted() {
    let redis = Redis::start().unwrap();
    let one = Served::start(open(&redis.url()).await).await;
    let other = Served::start(open(&redis.url()).await).await;
    for server in [&one, &other] {
        server.dials("test", Some(REPORT)).await;
        reserve(server, "jwt.sub=a", 4).await;
    }
    reserve(&one, "jwt.sub=b", 1).await;
    for server in [&one, &other] {
        let top = until("both stores are merged", Duration::from_secs(15), async || {
            let (_, top) = server.get("/v1/top").await;
            let whole = top["fullest"].as_array().is_some_and(|fullest| fullest.len() == 2)
                && top["publishers"].as_array().is_some_and(|all| all.len() == 2);
            (whole && top["fullest"][0]["used"] == 5).then_some(top)
        })
        .await;
        assert_eq!(top["fullest"][0]["partition"], "jwt.sub=a", "{top}");
        assert_eq!(top["refused"][0]["requests"], 1, "{top}");
        assert_eq!(top["publishers"][1]["kind"], "store", "{top}");
        assert_eq!(top["incomplete"], Value::Null, "{top}");
    }
}
