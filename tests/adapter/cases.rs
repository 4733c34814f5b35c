//! How the adapter handles a host that behaves, and one that does not.

use crate::document::{DENY, document, grant, policy};
use crate::host::{
    CONTINUE, PAUSE, ROOT, STOP_ALL, WATERMARK, active, body_and_trailers, call, configure, crowd,
    dials, fifth_call, headers, host, queue, reply, request, response, stop, tick,
};

/// The status of a null or nested-null property, which the SDK does not expect.
const SERIALIZATION_FAILURE: u32 = 3;

fn start() {
    assert!(configure(&document(&policy("p", ""), "", DENY)));
}

/// Starts with a policy that counts by this identity.
fn start_by(identity: &str) {
    let by = format!(r#","partition_by":["{identity}"]"#);
    assert!(configure(&document(&policy("p", &by), "", DENY)));
}

#[test]
fn call_belongs_to_the_root_and_the_stream_is_active_again_after_it() {
    start();
    assert!(!request(5), "it waits");
    assert_eq!(host(|h| h.calls[0].0), ROOT);
    assert_eq!(active(), 5);
    assert!(host(|h| h.ticking));
    reply(1, 200, &grant(1, 1));
    assert_eq!(host(|h| h.resumed.clone()), [5]);
    response(5, 200);
    assert_eq!(host(|h| h.response_headers["x-ratelimit-remaining"].clone()), "99");
}

#[test]
fn waiting_request_holds_its_body_and_trailers() {
    start();
    assert_eq!(headers(5, false), STOP_ALL);
    assert_eq!(body_and_trailers(5), [WATERMARK, PAUSE]);
    reply(1, 200, &grant(1, 1));
    assert_eq!(body_and_trailers(5), [CONTINUE; 2]);
}

#[test]
fn at_most_32_streams_are_resumed_or_answered_in_one_callback() {
    start();
    crowd(2..101);
    reply(1, 200, &grant(1, 1));
    fifth_call();
    assert_eq!(host(|h| (h.calls.len(), h.resumed.len())), (5, 1));
    reply(5, 200, &grant(50, 51));
    let mut batches = Vec::new();
    let acted = || host(|h| h.resumed.len() + h.answered.len());
    let mut before = 1;
    batches.push(acted() - before);
    before = acted();
    while queue() {
        batches.push(acted() - before);
        before = acted();
    }
    assert_eq!(batches, [32, 32, 32, 3]);
    assert_eq!(host(|h| (h.resumed.len(), h.answered.len())), (51, 49));
    assert!(host(|h| h.answered.iter().all(|&(_, status)| status == 429)));
}

/// Starts, and sends a call that two requests share. Afterwards, two calls have ended.
fn start_with_a_shared_call() {
    start();
    (2..5).for_each(|id| assert!(!request(id)));
    reply(1, 200, &grant(1, 1));
    reply(2, 200, &grant(2, 3));
    assert_eq!(host(|h| (h.calls.len(), h.resumed.len())), (2, 3));
}

#[test]
fn requests_of_a_turn_share_a_call_once_several_shared_the_last_one() {
    start_with_a_shared_call();
    (5..7).for_each(|id| assert!(!request(id)));
    assert_eq!(host(|h| h.calls.len()), 2, "the turn of the event loop goes on");
    assert!(queue());
    assert!(call(3).contains(r#""want":2"#), "{}", call(3));
    assert!(!queue());
}

#[test]
fn call_leaves_at_once_when_the_queue_is_gone() {
    start_with_a_shared_call();
    host(|h| h.queue_is_gone = true);
    request(5);
    assert_eq!(host(|h| h.calls.len()), 3);
}

#[test]
fn tick_sends_the_call_whose_message_was_lost_and_the_next_one_gathers_again() {
    start_with_a_shared_call();
    (5..7).for_each(|id| assert!(!request(id)));
    host(|h| h.messages = 0);
    tick();
    assert_eq!(host(|h| h.calls.len()), 3);
    reply(3, 200, &grant(2, 5));
    request(7);
    assert_eq!(host(|h| h.calls.len()), 3);
    assert!(queue());
    assert_eq!(host(|h| h.calls.len()), 4);
}

#[test]
fn vanished_stream_is_not_resumed_and_no_other_stream_in_its_stead() {
    start();
    for id in 2..=4 {
        request(id);
    }
    reply(1, 200, &grant(1, 1));
    // The stream is gone, but the host has not reported it yet.
    host(|h| h.dead.insert(3));
    reply(2, 200, &grant(2, 3));
    assert_eq!(host(|h| h.resumed.clone()), [2, 4]);
}

#[test]
fn invariant_4_bytes_that_are_not_utf8_are_data() {
    start_by("tenant");
    host(|h| h.request_headers.push(("x-tenant".into(), b"\xff\0\n}".to_vec())));
    request(2);
    let body = call(1);
    assert!(body.contains("d:p:{header.x-tenant=%FF%00%0A%7D}"), "{body}");
}

#[test]
fn header_given_twice_identifies_no_client() {
    start_by("tenant");
    for value in [b"a", b"b"] {
        host(|h| h.request_headers.push(("x-tenant".into(), value.to_vec())));
    }
    request(2);
    let body = call(1);
    assert!(body.contains("d:p:{-}"), "{body}");
}

#[test]
fn headers_are_fetched_only_when_needed_and_all_at_once() {
    let fetches = |policies: &str| {
        let policies = policies.to_owned();
        let case = move || {
            let document = format!(
                r#"{{"domain":"d","store":{{"cluster":"s"}},"identities":{{
                    "a":[{{"header":{{"name":"x-a"}}}}, {{"cookie":{{"name":"c"}}}}],"b":[{{"header":{{"name":"x-b"}}}}],
                    "ip":[{{"client_ip":{{}}}}]}},"policies":[{policies}]}}"#
            );
            assert!(configure(&document));
            for (name, value) in
                [(":method", "GET"), (":path", "/"), (":authority", "h"), ("x-b", "1")]
            {
                host(|h| h.request_headers.push((name.into(), value.into())));
            }
            host(|h| h.properties.insert("source.address".into(), Ok(b"192.0.2.7:1".to_vec())));
            [2, 3].map(|id| {
                let (single, all) = host(|h| h.header_fetches);
                request(id);
                host(|h| (h.header_fetches.0 - single, h.header_fetches.1 - all))
            })
        };
        std::thread::spawn(case).join().unwrap()
    };
    let policy = |name: &str, by: &str| {
        format!(
            r#"{{"name":"{name}","quota":1,"window":"1s","on_missing":"shared","partition_by":{by}}}"#
        )
    };
    assert_eq!(fetches(&policy("p", "[]")), [(0, 0); 2]);
    assert_eq!(fetches(&policy("p", r#"["ip"]"#)), [(0, 0); 2]);
    assert_eq!(fetches(&policy("p", r#"["path"]"#)), [(1, 0); 2]);
    assert_eq!(fetches(&policy("p", r#"["method","path","host"]"#)), [(3, 0), (0, 1)], "learned");
    assert_eq!(fetches(&policy("p", r#"["path","b"]"#)), [(1, 1), (0, 1)], "learned");
    let headers = [policy("p", r#"["a","b"]"#), policy("q", r#"["b","path","method"]"#)].join(",");
    assert_eq!(fetches(&headers), [(0, 1); 2]);
}

#[test]
fn invariant_4_unreadable_claim_is_missing() {
    start_by("sub");
    host(|h| {
        let claim = "metadata.filter_metadata.envoy.filters.http.jwt_authn.jwt_payload.a.b";
        h.properties.insert(claim.into(), Err(SERIALIZATION_FAILURE));
        h.properties.insert("source.address".into(), Ok(b"192.0.2.7:1".to_vec()));
    });
    request(2);
    let body = call(1);
    assert!(body.contains("d:p:{ip=192.0.2.7}"), "{body}");
}

#[test]
fn bad_configuration_is_rejected_with_every_fault_in_the_log() {
    assert!(!configure(r#"{"domain":"!","policies":[],"on_wrong_document":"reject"}"#));
    let log = host(|h| h.log.join("\n"));
    assert!(log.contains("refused: domain: ") && log.contains("refused: store: "), "{log}");
}

#[test]
fn idle_worker_stops_ticking_and_starts_again() {
    start();
    request(2);
    reply(1, 200, &grant(1, 1));
    for _ in 0..99 {
        tick();
    }
    assert!(host(|h| h.ticking));
    tick();
    assert!(!host(|h| h.ticking));
    request(3);
    assert!(host(|h| h.ticking));
}

#[test]
fn root_ends_after_the_calls_that_are_under_way() {
    start();
    request(2);
    dials(0, "");
    assert!(!stop(), "Envoy would cut the call");
    tick();
    assert!(!host(|h| h.done));
    reply(1, 200, &grant(1, 1));
    assert!(host(|h| h.done));
}

#[test]
fn root_ends_after_a_second_although_a_call_is_still_under_way() {
    start();
    request(2);
    dials(0, "");
    assert!(!stop());
    std::thread::sleep(std::time::Duration::from_secs(1));
    tick();
    assert!(host(|h| h.done));
}

#[test]
fn root_without_calls_ends_at_once() {
    start();
    request(2);
    dials(0, "");
    reply(1, 200, &grant(1, 1));
    assert!(stop());
}
