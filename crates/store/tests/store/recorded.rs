//! Calls that filters of earlier versions sent: this store answers them as theirs did.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::Value;

use crate::calls::Calls;
use crate::http::{read, send};

const RECORDED: [&str; 1] = [include_str!("../../../quota/tests/fixtures/recorded/e5bfeff.json")];

#[tokio::test]
async fn recorded_calls_are_answered_as_by_the_store_of_their_version() {
    for text in RECORDED {
        let record: Value = serde_json::from_str(text).unwrap();
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let calls = Calls::start(Arc::clone(&store)).await;
        // The record's windows are over, so a refund or charge of them has no effect today.
        let (mut adjusted, mut compared) = (BTreeSet::new(), 0);
        for exchange in record["exchanges"].as_array().unwrap() {
            let body = exchange["call"].as_str().unwrap();
            let path = exchange["path"].as_str().unwrap();
            let request = Request::post(path).header("host", "store");
            let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
            let (status, reply) = read(send(&calls.address, request).await).await;
            let recorded: Value =
                serde_json::from_str(exchange["reply"].as_str().unwrap()).unwrap();
            // This store does not lose its backend, as the recorded one did at the end.
            let is_down = exchange["status"] == 503;
            assert!(is_down || status.as_u16() == exchange["status"], "{body} {reply}");
            let call: Value = serde_json::from_str(body).unwrap();
            let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
            for adjustment in list(&call["refunds"]).iter().chain(&list(&call["charges"])) {
                adjusted.insert(adjustment["key"].to_string());
            }
            if is_down {
                continue;
            }
            let (now, then) = (list(&reply["grants"]), list(&recorded["grants"]));
            assert_eq!(now.len(), then.len(), "{body}");
            for ((now, then), item) in now.iter().zip(&then).zip(list(&call["reservations"])) {
                assert_eq!(now["error"].is_string(), then["error"].is_string(), "{now} {then}");
                assert_eq!(now["quota"], then["quota"]);
                if !adjusted.contains(&item["key"].to_string()) {
                    assert_eq!((&now["granted"], &now["used"]), (&then["granted"], &then["used"]));
                    compared += 1;
                }
            }
        }
        assert!(compared > 20, "{compared}");
    }
}
