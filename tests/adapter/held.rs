//! Units that are held while a request runs, because its policy counts by status: what does not
//! count goes back, once.

use crate::document::{document, grant, policy};
use crate::host::{
    configure, crowd, end, fifth_call, grpc_response, host, queue, reply, request, response, tick,
    trailers,
};

/// A policy with this `count`.
fn counting(count: &str) {
    let policies = policy("logins", &format!(r#","count":{count}"#));
    assert!(configure(&document(&policies, "", r#","on_failure":"deny""#)));
}

/// Whoever leaves gets a refund, as the tests of invariant 3 want it.
fn start() {
    counting(r#"{"status":[401,403],"abandoned":"refund"}"#);
}

/// The units that the calls since the `first` (they count from 1) gave back, one a return.
fn returned(first: usize) -> Vec<String> {
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
fn a_status_that_counts_keeps_its_unit() {
    start();
    for (id, status) in [(2, 401), (3, 403)] {
        request(id);
        reply(id - 1, 200, &grant(1, u64::from(id)));
        response(id, status);
        end(id);
    }
    assert_eq!(host(|h| h.response_headers["x-ratelimit-remaining"].clone()), "97");
    assert!(returned(1).is_empty());
}

#[test]
fn a_status_that_does_not_count_gives_its_unit_back_and_the_headers_show_it_again() {
    start();
    request(2);
    reply(1, 200, &grant(1, 3));
    response(2, 200);
    assert_eq!(host(|h| h.response_headers["x-ratelimit-remaining"].clone()), "98");
    assert!(host(|h| h.ticking));
    end(2);
    assert_eq!(returned(2), ["1"]);
    assert_eq!(host(|h| h.filter_state[&(2, "quotagate.used".into())].clone()), "2");
}

#[test]
fn invariant_3_a_client_that_leaves_before_the_answer_gives_its_unit_back_once() {
    start();
    request(2);
    reply(1, 200, &grant(1, 3));
    end(2);
    assert!(host(|h| h.ticking));
    assert_eq!(returned(2), ["1"]);
}

#[test]
fn a_client_that_leaves_before_the_answer_counts_by_default() {
    counting(r#"{"status":[401,403],"grpc_status":[]}"#);
    request(2);
    reply(1, 200, &grant(1, 3));
    end(2);
    assert!(returned(2).is_empty());
}

#[test]
fn a_client_that_leaves_while_it_waits_gets_a_refund_whatever_abandoned_says() {
    counting(r#"{"status":[401,403],"grpc_status":[]}"#);
    request(2);
    // Gone before it was resumed, and the host says so only later.
    host(|h| h.dead.insert(2));
    reply(1, 200, &grant(1, 3));
    end(2);
    assert_eq!(returned(2), ["1"]);
}

#[test]
fn a_grpc_answer_counts_by_the_status_in_its_trailers() {
    for (status, refunded) in [("16", &[][..]), ("0", &["1"])] {
        std::thread::spawn(move || {
            counting(r#"{"status":[401],"grpc_status":[16]}"#);
            request(2);
            reply(1, 200, &grant(1, 3));
            grpc_response(2);
            trailers(2, status);
            end(2);
            assert_eq!(returned(2), refunded, "{status}");
            let used = if refunded.is_empty() { "3" } else { "2" };
            assert_eq!(host(|h| h.filter_state[&(2, "quotagate.used".into())].clone()), used);
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_grpc_stream_that_breaks_before_its_trailers_is_abandoned() {
    for (abandoned, refunded) in [("count", &[][..]), ("refund", &["1"])] {
        std::thread::spawn(move || {
            counting(&format!(
                r#"{{"status":[401],"grpc_status":[16],"abandoned":"{abandoned}"}}"#
            ));
            request(2);
            reply(1, 200, &grant(1, 3));
            grpc_response(2);
            end(2);
            assert_eq!(returned(2), refunded, "{abandoned}");
        })
        .join()
        .unwrap();
    }
}

#[test]
fn trailers_of_a_request_without_held_units_cost_no_host_call() {
    assert!(configure(&document(&policy("p", ""), "", "")));
    request(2);
    reply(1, 200, &grant(1, 1));
    grpc_response(2);
    let before = host(|h| h.made);
    trailers(2, "0");
    assert_eq!(host(|h| h.made), before);
}

#[test]
fn invariant_3_a_client_that_leaves_between_decision_and_resumption_gives_its_unit_back_once() {
    start();
    crowd(2..42);
    reply(1, 200, &grant(1, 1));
    fifth_call();
    reply(5, 200, &grant(40, 41));
    assert_eq!(host(|h| h.resumed.len()), 1 + 32, "eight are decided, and still to be resumed");
    end(41);
    end(2);
    while queue() {}
    assert!(host(|h| h.resumed.len() == 40 && !h.resumed.contains(&41)));
    assert_eq!(returned(6), ["2"], "one that was resumed, one that was not");
}

#[test]
fn invariant_3_a_stream_that_vanished_gives_its_unit_back_when_it_is_done() {
    start();
    request(2);
    // Gone; the host says so only later.
    host(|h| h.dead.insert(2));
    reply(1, 200, &grant(1, 3));
    assert!(host(|h| h.resumed.is_empty()));
    end(2);
    assert_eq!(returned(2), ["1"]);
}

#[test]
fn a_request_without_held_units_is_not_asked_for_its_status() {
    assert!(configure(&document(&policy("p", ""), r#""response":{"headers":[]},"#, "")));
    request(2);
    reply(1, 200, &grant(1, 1));
    let before = host(|h| h.made);
    response(2, 200);
    assert_eq!(host(|h| h.made), before);
}
