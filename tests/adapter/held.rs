//! Policies that count by status hold units while a request runs. Units that do not count are
//! refunded once.

use crate::document::{ALL_LOG_FIELDS, document, grant, policy};
use crate::host::{
    configure, crowd, end, fifth_call, grpc_response, host, queue, reply, request, response, tick,
    trailers,
};

/// A policy with this `count`.
fn counting(count: &str) {
    let policies = policy("logins", &format!(r#","count":{count}"#));
    assert!(configure(&document(&policies, ALL_LOG_FIELDS, r#","on_failure":"deny""#)));
}

/// Starts with `abandoned: refund`, which the tests of invariant 3 need.
fn start() {
    counting(r#"{"status":[401,403],"abandoned":"refund"}"#);
}

/// The units of each refund in the calls since `first`. Calls count from 1.
fn refunded_units(first: usize) -> Vec<String> {
    tick();
    tick();
    host(|h| {
        let bodies = h
            .calls
            .iter()
            .skip(first - 1)
            .map(|(_, body)| String::from_utf8_lossy(body).into_owned());
        let units = bodies.filter_map(|body| {
            let (_, refunds) = body.split_once(r#""refunds":[{"#)?;
            let (_, units) = refunds.split_once(r#""units":"#)?;
            Some(units.split_once('}')?.0.to_owned())
        });
        units.collect()
    })
}

#[test]
fn counted_status_keeps_its_unit() {
    start();
    for (id, status) in [(2, 401), (3, 403)] {
        request(id);
        reply(id - 1, 200, &grant(1, u64::from(id)));
        response(id, status);
        end(id);
    }
    assert_eq!(host(|h| h.response_headers["x-ratelimit-remaining"].clone()), "97");
    assert!(refunded_units(1).is_empty());
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
fn invariant_3_client_that_leaves_before_the_answer_gets_one_refund() {
    start();
    request(2);
    reply(1, 200, &grant(1, 3));
    end(2);
    assert!(host(|h| h.ticking));
    assert_eq!(refunded_units(2), ["1"]);
}

#[test]
fn client_that_leaves_before_the_answer_counts_by_default() {
    counting(r#"{"status":[401,403],"grpc_status":[]}"#);
    request(2);
    reply(1, 200, &grant(1, 3));
    end(2);
    assert!(refunded_units(2).is_empty());
}

#[test]
fn client_that_leaves_while_it_waits_always_gets_a_refund() {
    counting(r#"{"status":[401,403],"grpc_status":[]}"#);
    request(2);
    // The stream is gone before it is resumed, but the host reports it only later.
    host(|h| h.dead.insert(2));
    reply(1, 200, &grant(1, 3));
    end(2);
    assert_eq!(refunded_units(2), ["1"]);
}

#[test]
fn grpc_answer_counts_by_the_status_in_its_trailers() {
    for (status, refunded) in [("16", &[][..]), ("0", &["1"])] {
        std::thread::spawn(move || {
            counting(r#"{"status":[401],"grpc_status":[16]}"#);
            request(2);
            reply(1, 200, &grant(1, 3));
            grpc_response(2);
            trailers(2, status);
            end(2);
            assert_eq!(refunded_units(2), refunded, "{status}");
            let used = if refunded.is_empty() { "3" } else { "2" };
            assert_eq!(host(|h| h.filter_state[&(2, "quotagate.used".into())].clone()), used);
        })
        .join()
        .unwrap();
    }
}

#[test]
fn grpc_stream_that_breaks_before_its_trailers_is_abandoned() {
    for (abandoned, refunded) in [("count", &[][..]), ("refund", &["1"])] {
        std::thread::spawn(move || {
            counting(&format!(
                r#"{{"status":[401],"grpc_status":[16],"abandoned":"{abandoned}"}}"#
            ));
            request(2);
            reply(1, 200, &grant(1, 3));
            grpc_response(2);
            end(2);
            assert_eq!(refunded_units(2), refunded, "{abandoned}");
        })
        .join()
        .unwrap();
    }
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
fn invariant_3_vanished_stream_gets_its_refund_when_it_is_done() {
    start();
    request(2);
    // The stream is gone, but the host reports it only later.
    host(|h| h.dead.insert(2));
    reply(1, 200, &grant(1, 3));
    assert!(host(|h| h.resumed.is_empty()));
    end(2);
    assert_eq!(refunded_units(2), ["1"]);
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
