//! What operators see: filter state for access logs, and statistics.

use crate::costs::grant_all_from;
use crate::document::{ALL_LOG_FIELDS, document, grant, policy};
use crate::host::{configure, end, host, queue, reply, request, response, stop, tick};

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

fn start(policies: &str, on_failure: &str) {
    assert!(configure(&document(
        policies,
        ALL_LOG_FIELDS,
        &format!(r#","on_failure":"{on_failure}""#)
    )));
}

#[test]
fn access_log_has_every_decision() {
    start(&policy("p", TENANTS_ONLY), "deny");
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

/// What an admitted request writes if the document has these sections.
fn logged_with(sections: &str) -> String {
    assert!(configure(&document(&policy("p", ""), sections, "")));
    request(2);
    reply(1, 200, &grant(1, 99));
    end(2);
    logged(2)
}

#[test]
fn only_the_configured_access_log_fields_are_written() {
    assert_eq!(logged_with(r#""access_log":["policy"],"#), "policy=p");
}

#[test]
fn no_access_log_field_is_written_if_none_is_configured() {
    assert_eq!(logged_with(""), "");
}

#[test]
fn access_log_shows_that_a_request_was_not_counted() {
    start(&policy("p", ""), "allow");
    request(2);
    reply(1, 503, "");
    response(2, 200);
    end(2);
    assert_eq!(logged(2), "decision=store_error partition=* policy=p");
    assert!(host(|h| h.response_headers.is_empty()));
}

#[test]
fn access_log_shows_the_last_step_of_a_client_that_left() {
    start(&policy("p", ""), "deny");
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
    start(&policy("p", r#","mode":"shadow""#), "deny");
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
    start(&policy("p", r#","mode":"shadow""#), "deny");
    request(2);
    response(2, 200);
    end(2);
    assert_eq!(logged(2), "decision=admitted partition=* policy=p");
    reply(1, 200, &grant(1, 1));
    assert_eq!(logged(2), "decision=admitted partition=* policy=p");
    assert!(host(|h| h.resumed.is_empty()));
}

#[test]
fn shadow_policy_does_not_delay_requests_served_from_a_lease() {
    let leased = r#"{"name":"p","partition_by":[],"quota":10000,"window":"1m","precision":"lease","lease":{"ahead":"10s"}}"#;
    start(&format!("{leased},{}", policy("s", r#","mode":"shadow""#)), "deny");
    request(2);
    for id in 3..14 {
        assert!(!request(id), "it waits");
    }
    // Eleven requests waited together, so the worker expects as many within the next 10 s, and asks
    // for that many units more.
    grant_all_from(1);
    for (id, s, logs) in [
        (20, (1, 13), "decision=admitted partition=* policy=p used=13"),
        (21, (0, 100), "decision=shadow_refused partition=* policy=s used=100"),
    ] {
        assert!(request(id), "the request must continue at once");
        let call = host(|h| h.calls.len()) as u32;
        reply(call, 200, &grant(s.0, s.1));
        response(id, 200);
        end(id);
        assert_eq!(logged(id), logs);
    }
    assert_eq!(host(|h| h.resumed.len()), 12);
}

#[test]
fn uncounted_request_makes_no_host_call_beyond_reading_its_facts() {
    start(&policy("p", r#","match":{"methods":["PUT"]}"#), "deny");
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
    start(&format!("{},{}", policy("p", ""), policy("q", TENANTS_ONLY)), "deny");
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
fn statistics_count_every_outcome() {
    start(&format!("{},{}", policy("p", ""), policy("s", r#","mode":"shadow""#)), "deny");
    let both = |p: (u64, u64), s: (u64, u64)| {
        let one = |(granted, used): (u64, u64)| {
            format!(
                r#"{{"granted":{granted},"used":{used},"quota":100,"reset_ms":30000,"window":1}}"#
            )
        };
        format!(r#"{{"grants":[{},{}]}}"#, one(p), one(s))
    };
    request(2);
    reply(1, 200, &both((1, 99), (0, 100)));
    request(3);
    reply(2, 200, &grant(0, 100));
    request(4);
    tick();
    let counted =
        |name: &str| metrics().iter().find(|(n, _)| n.ends_with(name)).map_or(0, |(_, n)| *n);
    assert_eq!(counted("d.p.admitted"), 1);
    assert_eq!(counted("d.p.refused"), 2);
    assert_eq!(counted("from_ledger.d.p"), 1);
    assert!(counted("d.s.shadow_refused") >= 1);
}

#[test]
fn worker_ticks_until_pending_statistics_are_written() {
    start(&policy("p", TENANTS_ONLY), "deny");
    request(2);
    assert!(host(|h| h.ticking && h.calls.is_empty()));
    for _ in 0..101 {
        tick();
    }
    assert_eq!(metrics(), [("quotagate_missing_identity.d.p".into(), 1)]);
    assert!(
        host(|h| h.ticking),
        "it ticks until the next fetch of dials reports it, even without new requests"
    );
}

#[test]
fn worker_ticks_until_a_decision_of_the_ledger_is_counted() {
    start(&policy("p", ""), "deny");
    request(2);
    reply(1, 200, &grant(0, 100));
    for _ in 0..101 {
        tick();
    }
    assert!(!host(|h| h.ticking));
    request(3);
    assert_eq!(host(|h| h.answered.clone()), [(2, 429), (3, 429)]);
    assert!(host(|h| h.ticking));
}

#[test]
fn root_writes_its_last_statistics_when_it_ends() {
    start(&policy("p", TENANTS_ONLY), "deny");
    request(2);
    stop();
    assert_eq!(metrics(), [("quotagate_missing_identity.d.p".into(), 1)]);
}
