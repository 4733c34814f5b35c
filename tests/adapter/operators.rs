//! What operators see: filter state for access logs, and statistics.

use crate::document::{ALL_LOG_FIELDS, DENY, document, grant, policy};
use crate::host::{
    configure, end, host, lines, queue, replace, reply, request, response, stop, tick,
};

const TENANTS_ONLY: &str = r#","partition_by":["tenant"],"on_missing":"deny""#;

/// The filter state of the stream, sorted by name, without the product's prefix.
fn logged(id: u32) -> String {
    let mut state: Vec<String> = host(|h| {
        let of_stream = h.filter_state.iter().filter(|((stream, _), _)| *stream == id);
        of_stream
            .map(|((_, name), value)| format!("{name}={value}").replace("quotagate.", ""))
            .collect()
    });
    state.sort();
    state.join(" ")
}

fn metrics() -> Vec<(String, i64)> {
    let mut metrics = host(|h| h.metrics.clone());
    metrics.sort();
    metrics
}

fn start(policies: &str) {
    assert!(configure(&document(policies, ALL_LOG_FIELDS, DENY)));
}

#[test]
fn name_of_the_proxy_is_logged_once() {
    start(&policy("p", ""));
    assert!(replace(&document(&policy("p", ""), "", "")));
    let name = host(|h| String::from_utf8(h.shared_data["quotagate.process"].0.clone()).unwrap());
    let said = "the name of this proxy is ";
    assert_eq!((lines(&format!("quotagate: {said}{name}")), lines(said)), (1, 1));
}

#[test]
fn access_log_has_every_decision() {
    start(&policy("p", TENANTS_ONLY));
    request(2);
    end(2);
    assert_eq!(logged(2), "decision=missing_identity policy=p");

    host(|h| h.set_request_header("x-tenant", b"a}"));
    request(3);
    reply(1, 200, &grant(1, 99));
    response(3, 200);
    end(3);
    assert_eq!(logged(3), "decision=admitted partition=header.x-tenant=a%7D policy=p used=99");

    request(4);
    reply(2, 200, &grant(0, 100));
    end(4);
    assert_eq!(logged(4), "decision=refused partition=header.x-tenant=a%7D policy=p used=100");
    request(5);
    end(5);
    assert_eq!(logged(5), logged(4), "from the ledger");

    host(|h| h.set_request_header("x-tenant", b"b"));
    host(|h| h.refuse_calls = true);
    request(6);
    queue();
    end(6);
    assert_eq!(logged(6), "decision=unavailable partition=header.x-tenant=b policy=p");
}

#[test]
fn access_log_shows_the_last_step_of_a_client_that_left() {
    start(&policy("p", ""));
    request(2);
    end(2);
    assert_eq!(logged(2), "");
    request(3);
    reply(1, 200, &grant(2, 2));
    end(3);
    reply(2, 200, &grant(1, 1));
    assert_eq!(logged(3), "");
    request(4);
    reply(3, 200, &grant(1, 2));
    end(4);
    assert_eq!(logged(4), "decision=admitted partition=* policy=p used=2");
}

#[test]
fn shadow_decision_is_logged_while_the_request_runs() {
    start(&policy("p", r#","mode":"shadow""#));
    for (id, used, expected) in [
        (2, 99, "decision=admitted partition=* policy=p used=99"),
        (3, 100, "decision=shadow_refused partition=* policy=p used=100"),
    ] {
        assert!(request(id), "the request must continue at once");
        reply(id - 1, 200, &grant(u64::from(id == 2), used));
        assert!(
            host(|h| h.resumed.is_empty() && h.answered.is_empty()),
            "the stream must be neither resumed nor answered"
        );
        response(id, 200);
        end(id);
        assert_eq!(logged(id), expected);
    }
    assert!(host(|h| h.response_headers.is_empty()), "a client must not see it");
    assert!(request(4), "known to be spent");
    end(4);
    assert_eq!(logged(4), "decision=shadow_refused partition=* policy=p used=100");
}

#[test]
fn request_that_ends_before_the_shadow_reply_is_logged_without_a_count() {
    start(&policy("p", r#","mode":"shadow""#));
    request(2);
    response(2, 200);
    end(2);
    assert_eq!(logged(2), "decision=admitted partition=* policy=p");
    reply(1, 200, &grant(1, 1));
    assert_eq!(logged(2), "decision=admitted partition=* policy=p");
    assert!(host(|h| h.resumed.is_empty()));
}

#[test]
fn uncounted_request_makes_no_host_call_beyond_reading_its_facts() {
    start(&policy("p", r#","match":{"methods":["PUT"]}"#));
    host(|h| h.set_request_header(":method", b"GET"));
    let before = host(|h| h.made);
    assert!(request(2));
    response(2, 200);
    end(2);
    assert_eq!(host(|h| h.made) - before, 1, "the method was read");
    assert_eq!(logged(2), "");
}

#[test]
fn statistics_are_written_on_ticks() {
    start(&format!("{},{}", policy("p", ""), policy("q", TENANTS_ONLY)));
    request(2);
    request(3);
    assert_eq!(metrics(), [], "nothing is written while requests run");
    tick();
    assert_eq!(metrics(), [("quotagate_missing_identity.d.q".into(), 2)]);
    request(4);
    tick();
    tick();
    assert_eq!(metrics(), [("quotagate_missing_identity.d.q".into(), 3)], "defined once");
}

#[test]
fn root_writes_its_last_statistics_when_it_ends() {
    start(&policy("p", TENANTS_ONLY));
    request(2);
    stop();
    assert_eq!(metrics(), [("quotagate_missing_identity.d.p".into(), 1)]);
}
