//! `count: {status}`: only failed log-ins count. A request holds its unit while it runs.
//!
//! | case | expected |
//! | --- | --- |
//! | 20 wrong passwords at once, quota 5 | five reach the upstream, on one worker and on two |
//! | a right password | gets a refund, and the headers show it |
//! | right passwords in flight | hold their units until the answer |
//! | which statuses | only the listed ones |
//! | a client that leaves | counts, or gets a refund with `abandoned: refund` |
//! | an absent upstream | counts by the status of Envoy's own answer |
//! | gRPC | counts by `grpc-status`, in headers or trailers |
//! | a request that another policy refuses | holds no unit |

use std::thread;
use std::time::Duration;

use anyhow::Result;
use quotagate_support::http::{Client, Request};
use quotagate_support::{edits, http2, wait};
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{Rig, document, per_caller};

const LIMIT: Duration = Duration::from_secs(20);

/// Five failed log-ins for each caller.
fn failed_logins() -> Value {
    let mut policy = per_caller(5);
    policy["name"] = json!("failed-logins");
    policy["count"] = json!({"status": [401, 403], "grpc_status": [7, 16]});
    policy
}

fn answered(status: u16) -> Request {
    Request::post("/login", b"password=...").header("x-answer-status", status.to_string())
}

fn slowly(status: u16, milliseconds: u32) -> Request {
    answered(status).header("x-answer-delay-ms", milliseconds.to_string())
}

/// Each request has its own connection: Envoy closes one after it answers before the body arrives.
fn one_by_one(rig: &Rig, requests: &[Request]) -> Result<Vec<u16>> {
    requests.iter().map(|request| Ok(rig.client()?.send(request)?.status)).collect()
}

#[test]
fn exactly_five_of_twenty_concurrent_wrong_passwords_reach_the_upstream() -> Result<()> {
    for workers in [1, 2] {
        let mut rig =
            Rig::start_with(document(json!([failed_logins()])), |o| o.concurrency(workers))?;
        let statuses = rig.statuses_together(&vec![slowly(401, 1_000); 20])?;
        let of = |status: u16| statuses.iter().filter(|s| **s == status).count();
        assert_eq!((of(401), of(429)), (5, 15), "{workers} workers: {statuses:?}");
        assert_eq!(rig.upstream.requests(), 5, "{workers} workers");
        inspect::settled(&rig.redis, "failed-logins", 5)?;
        assert_eq!(
            one_by_one(&rig, &[answered(401), answered(200)])?,
            [429, 429],
            "the spent quota refuses right passwords too"
        );
    }
    Ok(())
}

#[test]
fn right_password_gets_a_refund() -> Result<()> {
    let rig = Rig::start(document(json!([failed_logins()])))?;
    let mut client = rig.client()?;
    let mut login = |status: u16| -> Result<(u16, String)> {
        let response = client.send(&answered(status))?;
        let remaining = response.header("x-ratelimit-remaining").unwrap_or_default();
        let limit = response.header("ratelimit").unwrap_or_default();
        assert!(limit.starts_with(&format!("\"failed-logins\";r={remaining};t=")), "{limit}");
        Ok((response.status, remaining.to_owned()))
    };
    for _ in 0..12 {
        assert_eq!(login(200)?, (200, "5".to_owned()), "right passwords must not spend the quota");
    }
    inspect::settled(&rig.redis, "failed-logins", 0)?;
    for remaining in (0..5).rev() {
        assert_eq!(login(200)?, (200, (remaining + 1).to_string()));
        assert_eq!(login(401)?, (401, remaining.to_string()));
    }
    assert_eq!(login(200)?.0, 429, "no unit is left");
    assert_eq!(rig.upstream.requests(), 12 + 10);
    inspect::settled(&rig.redis, "failed-logins", 5)
}

#[test]
fn right_passwords_in_flight_hold_their_units_until_the_answer() -> Result<()> {
    let rig = Rig::start(document(json!([failed_logins()])))?;
    let mut clients = (0..5).map(|_| rig.client()).collect::<Result<Vec<Client>>>()?;
    for client in &mut clients {
        client.start(&slowly(200, 3_000))?;
    }
    wait::until_true("five under way", LIMIT, || Ok(rig.upstream.requests() == 5))?;
    assert_eq!(one_by_one(&rig, &[answered(401)])?, [429]);
    for client in &mut clients {
        assert_eq!(client.finish()?.status, 200);
    }
    inspect::settled(&rig.redis, "failed-logins", 0)?;
    // The worker knows that the counter is spent, and rechecks it once per second.
    wait::until_true("the units to be refunded", LIMIT, || {
        Ok(one_by_one(&rig, &[answered(401)])? == [401])
    })?;
    inspect::settled(&rig.redis, "failed-logins", 1)
}

#[test]
fn only_the_listed_statuses_count() -> Result<()> {
    let rig = Rig::start(document(json!([failed_logins()])))?;
    let mut client = rig.client()?;
    let mut used = 0;
    for (status, counts) in [
        (200, 0),
        (401, 1),
        (204, 0),
        (302, 0),
        (403, 1),
        (400, 0),
        (404, 0),
        (429, 0),
        (500, 0),
        (503, 0),
    ] {
        used += counts;
        let response = client.send(&answered(status))?;
        assert_eq!(response.status, status);
        assert_eq!(response.header_all("x-ratelimit-used"), [used.to_string()], "after {status}");
    }
    inspect::settled(&rig.redis, "failed-logins", 2)
}

#[test]
fn client_that_resets_requests_reaches_the_upstream_no_more_than_the_quota() -> Result<()> {
    let rig = Rig::start(document(json!([failed_logins()])))?;
    for sent in 1..=60 {
        let mut client = rig.client()?;
        client.start(&slowly(401, 10_000))?;
        if sent <= 5 {
            wait::until_true("the request to be under way", LIMIT, || {
                Ok(rig.upstream.requests() == sent)
            })?;
        } else {
            thread::sleep(Duration::from_millis(30));
        }
    }
    inspect::settled(&rig.redis, "failed-logins", 5)?;
    assert_eq!(rig.upstream.requests(), 5);
    assert_eq!(one_by_one(&rig, &[answered(401)])?, [429]);
    Ok(())
}

#[test]
fn client_that_leaves_gets_a_refund_with_abandoned_refund() -> Result<()> {
    let mut policy = failed_logins();
    policy["count"]["abandoned"] = json!("refund");
    let rig = Rig::start(document(json!([policy])))?;
    let mut clients = (0..5).map(|_| rig.client()).collect::<Result<Vec<Client>>>()?;
    for client in &mut clients {
        client.start(&slowly(401, 10_000))?;
    }
    wait::until_true("five under way", LIMIT, || Ok(rig.upstream.requests() == 5))?;
    assert_eq!(inspect::counters(&rig.redis, "failed-logins")?.get("ip=127.0.0.1"), Some(&5));
    drop(clients);
    inspect::settled(&rig.redis, "failed-logins", 0)?;
    assert_eq!(one_by_one(&rig, &vec![answered(401); 6])?, [401, 401, 401, 401, 401, 429]);
    inspect::settled(&rig.redis, "failed-logins", 5)
}

#[test]
fn grpc_answer_counts_by_its_grpc_status() -> Result<()> {
    let rig =
        Rig::start_with(document(json!([failed_logins()])), |o| o.edit(edits::http2_upstream))?;
    let mut client = http2::Http2Client::connect(rig.envoy.port())?;
    let grpc = Request::post("/auth.Login/Login", b"")
        .header("x-answer-header-content-type", "application/grpc");
    let mut used = 0;
    // The status comes in trailers after a body, or in the headers. 5 is NOT_FOUND.
    for header in ["x-answer-trailer-grpc-status", "x-answer-header-grpc-status"] {
        for (status, counts) in [("0", 0), ("16", 1), ("5", 0), ("16", 1)] {
            used += counts;
            let answer = client.send(&grpc.clone().header(header, status))?;
            assert_eq!(
                (answer.response.status, answer.grpc_status()),
                (200, Some(status)),
                "{header}"
            );
            inspect::settled(&rig.redis, "failed-logins", used)?;
        }
    }
    // The fifth request is admitted, and no later one.
    assert_eq!(
        client.send(&grpc.header("x-answer-trailer-grpc-status", "16"))?.grpc_status(),
        Some("16")
    );
    assert_eq!(client.send(&Request::post("/auth.Login/Login", b""))?.response.status, 429);
    Ok(())
}

#[test]
fn envoys_answer_for_an_absent_upstream_counts_by_its_status() -> Result<()> {
    for (status, counted) in [(401, 0), (503, 3)] {
        let mut policy = failed_logins();
        policy["count"] = json!({"status": [status]});
        let nowhere = quotagate_support::ports::free()?;
        let rig = Rig::start_with(document(json!([policy])), |mut options| {
            options.upstream = nowhere;
            options
        })?;
        assert_eq!(one_by_one(&rig, &vec![answered(401); 3])?, [503, 503, 503]);
        inspect::settled(&rig.redis, "failed-logins", counted)?;
    }
    Ok(())
}

#[test]
fn request_refused_by_another_policy_holds_no_unit() -> Result<()> {
    let all = json!({"name": "all", "partition_by": [], "quota": 2, "window": "366d"});
    let mut rig = Rig::start(document(json!([failed_logins(), all])))?;
    let statuses = rig.statuses_together(&vec![answered(401); 4])?;
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 2, "{statuses:?}");
    inspect::settled(&rig.redis, "failed-logins", 2)?;
    inspect::settled(&rig.redis, "all", 2)
}
