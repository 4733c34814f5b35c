//! How the filter reports failed calls: statistics and log lines.

use std::thread;

use crate::document::{DENY, document, policy};
use crate::host::{configure, host, lines, metric, queue, reply, request, tick};

fn start() {
    assert!(configure(&document(&policy("p", ""), "", &format!(r#"{DENY},"token":"s3cret""#))));
}

/// Ends one request's call this way. Asserts that the outcome is counted once and the log says
/// `said`.
fn check(status: u16, answers_itself: bool, body: &str, outcome: &str, said: &str) {
    start();
    host(|h| h.answers_itself = answers_itself);
    request(2);
    reply(1, status, body);
    assert_eq!(host(|h| h.answered.clone()), [(2, 503)], "{outcome}");
    tick();
    let counted = metric(&format!("quotagate_calls.d.{outcome}"));
    assert_eq!((counted, lines(said)), (1, 1), "{outcome}: {:?}", host(|h| h.log.clone()));
    assert_eq!(lines("s3cret"), 0);
}

#[test]
fn end_of_a_call_is_read_from_its_status_its_sender_and_its_body() {
    thread::scope(|scope| {
        for (status, answers_itself, body, outcome, said) in [
            (0, false, "", "cut_off", "broke off"),
            (503, true, "connection refused", "unreachable", "connection refused"),
            (503, false, r#"{"error":"Redis is down"}"#, "refused", "503: \"Redis is down\""),
            (500, false, "no s3cret", "refused", "500: \"no [token]\""),
            (200, false, "<html>", "malformed", "not a reply to the call"),
        ] {
            // Each thread has its own host.
            scope.spawn(move || check(status, answers_itself, body, outcome, said));
        }
    });
}

#[test]
fn call_that_cannot_be_sent_is_answered_from_a_separate_callback_and_logged() {
    start();
    host(|h| h.refuse_calls = true);
    assert!(!request(2));
    assert!(
        host(|h| h.answered.is_empty()),
        "no answer may be sent within the stream's own callback"
    );
    assert!(queue());
    assert_eq!(host(|h| h.answered.clone()), [(2, 503)]);
    tick();
    for name in ["quotagate_calls.d.dispatch_failed", "quotagate_fetches_failed.d"] {
        assert_eq!(metric(name), 1, "{name}");
    }
    assert_eq!(lines("a call to the store failed: no host of its cluster"), 1);
}
