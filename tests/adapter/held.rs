//! Policies that count by status hold units while a request runs. Units that do not count are
//! refunded once.

use crate::document::{ALL_LOG_FIELDS, DENY, document, grant, policy};
use crate::host::{
    call, configure, crowd, end, fifth_call, grpc_response, host, queue, reply, request, response,
    tick, trailers,
};

/// A policy with this `count`.
fn counting(count: &str) {
    let policies = policy("logins", &format!(r#","count":{count}"#));
    assert!(configure(&document(&policies, ALL_LOG_FIELDS, DENY)));
}

/// Starts with `abandoned: refund`, which the tests of invariant 3 need.
fn start() {
    counting(r#"{"status":[401,403],"abandoned":"refund"}"#);
}

/// The units of each refund in the calls since `first`. Calls count from 1.
fn refunded_units(first: usize) -> Vec<String> {
    tick();
    tick();
    let units = |number| {
        let call = call(number);
        let (_, refunds) = call.split_once(r#""refunds":[{"#)?;
        let (_, units) = refunds.split_once(r#""units":"#)?;
        Some(units.split_once('}')?.0.to_owned())
    };
    (first..=host(|h| h.calls.len())).filter_map(units).collect()
}

#[test]
fn uncounted_status_refunds_its_unit_and_the_headers_show_it() {
    start();
    request(2);
    reply(1, 200, &grant(1, 3));
    response(2, 200);
    assert_eq!(host(|h| h.response_headers["x-ratelimit-remaining"].clone()), "98");
    assert!(host(|h| h.ticking));
    end(2);
    assert_eq!(refunded_units(2), ["1"]);
    assert_eq!(host(|h| h.filter_state[&(2, "quotagate.used".into())].clone()), "2");
}

#[test]
fn invariant_3_client_that_leaves_while_it_waits_always_gets_a_refund() {
    counting(r#"{"status":[401,403],"grpc_status":[]}"#);
    request(2);
    // The stream is gone before it is resumed, but the host reports it only later.
    host(|h| h.dead.insert(2));
    reply(1, 200, &grant(1, 3));
    assert!(host(|h| h.resumed.is_empty()));
    end(2);
    assert_eq!(refunded_units(2), ["1"]);
}

#[test]
fn grpc_answer_counts_by_the_status_in_its_trailers() {
    counting(r#"{"status":[401],"grpc_status":[16]}"#);
    request(2);
    reply(1, 200, &grant(1, 3));
    grpc_response(2);
    trailers(2, "0");
    end(2);
    assert_eq!(refunded_units(2), ["1"]);
    assert_eq!(host(|h| h.filter_state[&(2, "quotagate.used".into())].clone()), "2");
}

#[test]
fn trailers_make_no_host_call_without_held_units() {
    assert!(configure(&document(&policy("p", ""), "", "")));
    request(2);
    reply(1, 200, &grant(1, 1));
    grpc_response(2);
    let before = host(|h| h.made);
    trailers(2, "0");
    assert_eq!(host(|h| h.made), before);
}

#[test]
fn invariant_3_client_that_leaves_between_decision_and_resumption_gets_one_refund() {
    start();
    crowd(2..42);
    reply(1, 200, &grant(1, 1));
    fifth_call();
    reply(5, 200, &grant(40, 41));
    assert_eq!(host(|h| h.resumed.len()), 1 + 32, "eight requests are decided and not resumed yet");
    end(41);
    end(2);
    while queue() {}
    assert!(host(|h| h.resumed.len() == 40 && !h.resumed.contains(&41)));
    assert_eq!(refunded_units(6), ["2"], "one resumed request and one that was not");
}

#[test]
fn status_is_not_read_without_held_units() {
    assert!(configure(&document(&policy("p", ""), r#""response":{"headers":[]},"#, "")));
    request(2);
    reply(1, 200, &grant(1, 1));
    let before = host(|h| h.made);
    response(2, 200);
    assert_eq!(host(|h| h.made), before);
}
