//! A limiter behind this one: the limits in its responses stay correct.

use anyhow::Result;
use quotagate_support::http::{Request, Response};
use serde_json::{Value, json};

use crate::rig::{Rig, document};

/// A quota that all clients share, in a window so long that it does not end during a test.
fn shared(name: &str, quota: u64, families: Value) -> Value {
    let policy = json!({"name": name, "partition_by": [], "quota": quota, "window": "366d"});
    let mut document = document(json!([policy]));
    document["response"] = json!({"headers": families});
    document
}

/// Two chained Envoys, the outer with a quota of 100 and the inner with 1. Returns an answer that
/// both admit, and one that the inner refuses.
fn chained(families: &Value) -> Result<[Response; 2]> {
    let inner = Rig::start(shared("inner", 1, families.clone()))?;
    let port = inner.envoy.port();
    let outer = Rig::start_with(shared("outer", 100, families.clone()), |mut options| {
        options.upstream = port;
        options
    })?;
    let mut client = outer.client()?;
    let answers = [client.send(&Request::get("/"))?, client.send(&Request::get("/"))?];
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 429]);
    Ok(answers)
}

#[test]
fn both_limits_are_listed_and_the_short_headers_show_the_tighter_one() -> Result<()> {
    for (answer, outer) in chained(&json!(["ietf", "x_ratelimit"]))?.iter().zip([99, 98]) {
        let listed = answer.header_all("ratelimit");
        let [listed] = *listed else { panic!("one line: {listed:?}") };
        assert!(listed.starts_with("\"inner\";r=0;t="), "{listed}");
        assert!(listed.contains(&format!(", \"outer\";r={outer};t=")), "{listed}");
        let policies = "\"inner\";q=1;w=31622400, \"outer\";q=100;w=31622400";
        assert_eq!(answer.header_all("ratelimit-policy"), [policies]);
        assert_eq!(answer.header_all("x-ratelimit-limit"), ["1"]);
        assert_eq!(answer.header_all("x-ratelimit-remaining"), ["0"]);
    }
    Ok(())
}

#[test]
fn families_with_room_for_one_limit_show_the_tighter_one() -> Result<()> {
    for answer in chained(&json!(["draft_07", "draft_03"]))? {
        let limit = answer.header_all("ratelimit").join(" | ");
        assert!(limit.starts_with("limit=1, remaining=0, reset="), "{limit}");
        assert_eq!(answer.header_all("ratelimit-remaining"), ["0"]);
        assert_eq!(answer.header_all("ratelimit-limit"), ["1"]);
    }
    Ok(())
}
