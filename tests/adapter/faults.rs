//! How the filter reports failed calls: statistics and log lines.

use std::thread;
use std::time::{Duration, Instant};

use crate::document::{document, grant, policy};
use crate::host::{configure, host, queue, reply, request, tick};

/// After this many consecutive failures the filter pauses its calls.
const LIMIT: usize = 5;

fn start() {
    assert!(configure(&document(&policy("p", ""), "", r#","on_failure":"deny","token":"s3cret""#)));
}

fn calls(outcome: &str) -> i64 {
    tick();
    // Metrics that are not outcomes of a call have their full name here.
    let names = [format!("quotagate_calls.d.{outcome}"), format!("quotagate_{outcome}.d")];
    host(|h| {
        h.metrics.iter().find(|(known, _)| names.contains(known)).map_or(0, |(_, count)| *count)
    })
}

fn lines(said: &str) -> usize {
    host(|h| h.log.iter().filter(|line| line.contains(said)).count())
}

/// Ends one request's call this way. Asserts that the outcome is counted once and the log says
/// `said`.
fn check(status: u16, answers_itself: bool, body: &str, outcome: &str, said: &str) {
    start();
    host(|h| h.answers_itself = answers_itself);
    request(2);
    reply(1, status, body);
    assert_eq!(host(|h| h.answered.clone()), [(2, 503)], "{outcome}");
    assert_eq!((calls(outcome), lines(said)), (1, 1), "{outcome}: {:?}", host(|h| h.log.clone()));
    assert_eq!(lines("s3cret"), 0);
}

#[test]
fn every_outcome_of_a_call_is_counted_and_logged() {
    thread::scope(|scope| {
        for (status, answers_itself, body, outcome, said) in [
            (0, false, "", "cut_off", "broke off"),
            (504, true, "", "timed_out", "in time"),
            (503, true, "connection refused", "unreachable", "connection refused"),
            (503, false, r#"{"error":"Redis is down"}"#, "refused", "503: \"Redis is down\""),
            (401, false, "no s3cret", "refused", "401; see store.token"),
            (500, false, "no s3cret", "refused", "500: \"no [token]\""),
            (200, false, "<html>", "malformed", "not a reply to the call"),
            (200, false, r#"{"grants":[{"error":"moved"}]}"#, "items_failed", "for d:p: \"moved\""),
        ] {
            // Each thread has its own host.
            scope.spawn(move || check(status, answers_itself, body, outcome, said));
        }
    });
}

#[test]
fn call_that_cannot_be_sent_is_logged_and_its_request_answered() {
    start();
    host(|h| h.refuse_calls = true);
    request(2);
    assert!(queue());
    assert_eq!(host(|h| h.answered.clone()), [(2, 503)]);
    assert_eq!(
        (calls("dispatch_failed"), lines("a call to the store failed: no host of its cluster")),
        (1, 1)
    );
}

#[test]
fn consecutive_failures_log_two_lines_and_the_recovery_a_third() {
    start();
    for id in 2..=20 {
        let before = host(|h| h.calls.len());
        request(id);
        let calls = host(|h| h.calls.len());
        if calls > before {
            reply(calls as u32, 0, "");
        }
        // Only before the pause is over: on a stalled machine a probe could already be sent.
        if calls == LIMIT {
            break;
        }
    }
    assert_eq!(host(|h| h.answered.len()), LIMIT);
    assert_eq!((calls("cut_off"), calls("suspensions")), (LIMIT as i64, 1));
    assert_eq!((lines("broke off"), lines("does not answer")), (1, 1));
    let deadline = Instant::now() + Duration::from_secs(10);
    for id in 21.. {
        request(id);
        if host(|h| h.calls.len()) > LIMIT {
            break;
        }
        assert!(Instant::now() < deadline, "no probe was sent");
        thread::sleep(Duration::from_millis(1));
    }
    reply(LIMIT as u32 + 1, 200, &grant(1, 1));
    assert_eq!((calls("ok"), lines("answers again")), (1, 1));
}
