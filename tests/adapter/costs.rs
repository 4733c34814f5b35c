//! How many host calls a request costs. Reading the clock is not among them: it is one in Wasm, and
//! none here.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::document::{document, policy};
use crate::host::{configure, end, host, reply, request, response};

/// A stream that is measured, after those that prepare it.
const MEASURED: u32 = 1000;

/// Host calls with the headers of a request, with those of its response, and at its end.
type Calls = (usize, usize, usize);

/// Runs `f`, and returns how many host calls it made.
fn made(f: impl FnOnce()) -> usize {
    let before = host(|h| h.made);
    f();
    host(|h| h.made) - before
}

fn calls(status: u16) -> Calls {
    (
        made(|| assert_eq!(request(MEASURED), status == 200)),
        made(|| response(MEASURED, status)),
        made(|| end(MEASURED)),
    )
}

/// Grants what each reservation of every call asks for, from the call `token` on, and returns the
/// number of calls. Requests that are sent together need one call more for each 5 ms that the
/// machine takes.
fn grant_all_from(token: u32) -> u32 {
    let (mut next, mut used) = (token, HashMap::new());
    while host(|h| h.calls.len()) >= next as usize {
        grant_all(next, &mut used);
        next += 1;
    }
    next - 1
}

/// `used` has the units of each key.
fn grant_all(token: u32, used: &mut HashMap<String, u64>) {
    let body = host(|h| h.calls[token as usize - 1].1.clone());
    let request: Value = serde_json::from_slice(&body).unwrap();
    let mut grant = |reservation: &Value| {
        let units = |field: &str| reservation[field].as_u64().unwrap_or_default();
        let granted = units("want") + units("spare");
        let used = used.entry(reservation["key"].to_string()).or_default();
        *used += granted;
        json!({
            "granted": granted, "used": *used, "quota": reservation["quota"], "reset_ms": 60_000, "window": 1,
        })
    };
    let reservations = request["reservations"].as_array().unwrap();
    let grants: Vec<Value> = reservations.iter().map(&mut grant).collect();
    let body = json!({ "grants": grants }).to_string();
    reply(token, 200, &body);
}

/// A request whose units are in the lease.
fn leased(fields: &str, sections: &str) -> Calls {
    let fields = format!(
        r#","partition_by":["tenant"],"on_missing":"shared","precision":"lease","lease":{{"ahead":"60s"}}{fields}"#
    );
    let policy = policy("p", &fields).replace(r#""quota":100"#, r#""quota":1000000"#);
    assert!(configure(&document(&policy, sections, "")));
    for id in 2..60 {
        request(id);
    }
    let sent = grant_all_from(1) as usize;
    let calls = calls(200);
    assert_eq!(host(|h| (h.calls.len(), h.answered.len())), (sent, 0), "the lease has units");
    calls
}

/// A request whose counter is known to be spent. No tick takes the statistics meanwhile.
fn refused(sections: &str) -> Calls {
    let policy = policy("p", r#","partition_by":["tenant"],"on_missing":"shared""#);
    assert!(configure(&document(&policy, sections, "")));
    request(2);
    reply(
        1,
        200,
        r#"{"grants":[{"granted":0,"used":100,"quota":100,"reset_ms":60000,"window":1}]}"#,
    );
    let calls = calls(429);
    assert_eq!(host(|h| (h.calls.len(), h.answered.len())), (1, 2), "the ledger knows");
    calls
}

fn on_its_own_host<T: Send + 'static>(case: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(case).join().unwrap()
}

const NOTHING: &str = r#""response":{"headers":[]},"#;
/// All fields for access logs, and two header families.
const EVERYTHING: &str = r#""access_log":["decision","policy","partition","used"],
    "response":{"headers":["ietf","x_ratelimit"]},"#;

#[test]
fn only_configured_fields_and_families_cost_host_calls() {
    // One call fetches the request's headers. Each field of the access log is one, and each quota
    // header one to see whether the upstream has it, and one to set it.
    for (sections, expected) in [
        (NOTHING, (1, 0, 0)),
        (r#""access_log":["decision"],"response":{"headers":[]},"#, (2, 0, 0)),
        (r#""response":{"headers":["draft_07"]},"#, (1, 2, 0)),
        (r#""response":{"headers":["ietf"]},"#, (1, 4, 0)),
        ("", (1, 8, 0)),
        (EVERYTHING, (5, 12, 0)),
    ] {
        assert_eq!(on_its_own_host(move || leased("", sections)), expected, "{sections}");
    }
}

#[test]
fn response_that_is_read_for_its_status_is_read_once() {
    const BY_STATUS: &str = r#","count":{"status":[200],"grpc_status":[0]}"#;
    for (sections, expected) in [(NOTHING, (1, 1, 0)), ("", (1, 5, 0))] {
        assert_eq!(on_its_own_host(move || leased(BY_STATUS, sections)), expected, "{sections}");
    }
}

#[test]
fn refusal_from_the_ledger_reads_the_request_once_and_answers() {
    for (sections, expected) in [(NOTHING, (2, 0, 0)), ("", (2, 0, 0)), (EVERYTHING, (6, 0, 0))] {
        assert_eq!(on_its_own_host(move || refused(sections)), expected, "{sections}");
    }
}
