//! Documents with faults: what is in force instead.

use crate::document::{DENY, document, grant, policy};
use crate::host::{
    CONTINUE, STOP_ALL, call, configure, configure_with_bodies, headers, host, lines, metric,
    replace, reply, request, response, tick,
};

/// Policies that settle costs by the response's body.
const SETTLED: &str = r#","cost":{"reserve":5,"settle":[{"usage":"total"}]}"#;

fn good() -> String {
    document(&policy("p", ""), "", DENY)
}

fn wrong(sections: &str, store: &str) -> String {
    document(&policy("p", r#","qouta":1"#), sections, store)
}

fn is_logged(words: &str) -> bool {
    lines(words) > 0
}

/// How many refused documents of this domain were counted.
fn refusals(domain: &str) -> i64 {
    metric(&format!("quotagate_documents_refused.{domain}"))
}

/// The quota in the response to a request on the stream `id`.
fn limit(id: u32) -> Option<String> {
    let before = host(|h| {
        h.response_headers.clear();
        h.calls.len()
    });
    request(id);
    let calls = host(|h| h.calls.len());
    if calls > before {
        reply(calls as u32, 200, &grant(1, 1));
    }
    response(id, 200);
    host(|h| h.response_headers.get("x-ratelimit-limit").cloned())
}

#[test]
fn wrong_document_leaves_the_last_good_one_in_force() {
    assert!(configure(&good()));
    assert!(replace(&wrong("", "")));
    assert!(is_logged(r#"configuration refused: policies[0].qouta: unknown field"#));
    assert!(is_logged("the last good document of the domain d stays in force"));
    assert_eq!(refusals("d"), 1);
    assert_eq!(limit(11).as_deref(), Some("100"));
    assert!(call(1).contains(r#""key":"d:p:{*}""#));
}

#[test]
fn document_for_the_other_file_or_form_leaves_the_last_good_one_in_force() {
    assert!(configure(&good()));
    assert!(replace(&document(&policy("p", SETTLED), "", "")));
    assert!(is_logged("configuration refused: policies: quotagate-bodies.wasm reads the bodies"));
    assert_eq!(limit(12).as_deref(), Some("100"));
    assert!(replace(&good().replace(r#""cluster":"s""#, r#""redis":"redis://u:s3cret@r:1""#)));
    assert!(is_logged("configuration refused: store.redis: needs the native form"));
    assert!(!is_logged("s3cret"));
    assert_eq!(refusals("d"), 3, "once each, and with the report of the first");
}

#[test]
fn good_document_of_the_other_file_does_not_stay_in_force() {
    assert!(configure_with_bodies(&document(&policy("p", SETTLED), "", "")));
    let kept = host(|h| h.shared_data.clone());
    // Another thread has a module of its own, which knows nothing of bodies.
    let plain = std::thread::spawn(move || {
        host(|h| h.shared_data = kept);
        assert!(configure(&wrong("", DENY)));
        assert!(is_logged("every request is answered with 503"));
    });
    plain.join().unwrap();
}

#[test]
fn without_a_good_document_every_request_is_answered_as_on_failure_says() {
    assert!(configure(&wrong("", DENY)));
    assert!(is_logged("this process has no good document of this filter"));
    assert_eq!(headers(2, false), STOP_ALL);
    assert_eq!(host(|h| (h.answered.clone(), h.calls.len())), (vec![(2, 503)], 0));
    assert!(replace("{"), "not even JSON");
    assert_eq!(headers(3, true), CONTINUE);
    assert_eq!(limit(4), None);
    assert!(replace(&good()));
    assert_eq!(limit(14).as_deref(), Some("100"));
}

#[test]
fn worker_that_knows_no_store_calls_none() {
    for (document, domain) in
        [(r#"{"domain":"d"}"#, "d"), ("", "unknown"), (&*wrong("", r#","token":"?""#), "d")]
    {
        let document = document.to_owned();
        std::thread::spawn(move || {
            assert!(configure(&document));
            for id in 2..5 {
                assert_eq!(headers(id, true), CONTINUE);
                tick();
            }
            assert!(host(|h| h.fetches.is_empty() && h.calls.is_empty()));
            assert!(refusals(domain) > 0, "{:?}", host(|h| h.metrics.clone()));
            assert!(!is_logged("call to the store failed"));
        })
        .join()
        .unwrap();
    }
}

#[test]
fn mark_of_a_client_is_removed_while_no_document_is_in_force() {
    assert!(configure("{"));
    host(|h| h.set_request_header("x-quotagate-exceeded", b"p"));
    assert_eq!(headers(2, true), CONTINUE);
    assert!(host(|h| h.request_headers.is_empty()));
}

#[test]
fn document_that_says_reject_is_rejected_whatever_else_is_wrong() {
    assert!(configure(&good()));
    assert!(!replace(&wrong(r#""on_wrong_document":"reject","#, "")));
    assert!(!replace(r#"{"on_wrong_document":"reject"}"#));
}

#[test]
fn other_filter_of_the_same_domain_keeps_its_own_document() {
    let named = |name: &[u8]| {
        host(|h| h.properties.insert("plugin_name".into(), Ok(name.to_vec())));
    };
    named(b"one");
    assert!(configure(&good()));
    named(b"another");
    assert!(replace(&wrong("", "")));
    assert_eq!(limit(15), None);
    named(b"one");
    assert!(replace(&wrong("", "")));
    assert_eq!(limit(16).as_deref(), Some("100"));
}

#[test]
fn good_document_is_kept_although_another_thread_keeps_one() {
    assert!(configure(&good()));
    let theirs = host(|h| h.shared_data.values().next().cloned()).unwrap().0;
    host(|h| h.written_meanwhile = Some(theirs));
    assert!(replace(&good().replace("100", "200")));
    assert!(replace(&wrong("", "")));
    assert_eq!(limit(17).as_deref(), Some("100"), "as the store says");
    assert!(call(host(|h| h.calls.len())).contains(r#""quota":200"#));
}
