//! What the host says of calls that fail, and what the filter makes of it: statistics and lines of
//! the log.

use std::thread;
use std::time::{Duration, Instant};

use crate::document::{document, grant, policy};
use crate::host::{configure, host, queue, reply, request, tick};

/// After so many failures in a row no call is made for a while.
const LIMIT: usize = 5;

fn start() {
    assert!(configure(&document(&policy("p", ""), "", r#","on_failure":"deny","token":"s3cret""#)));
}

fn calls(outcome: &str) -> i64 {
    tick();
    // What is no outcome of a call has a name of its own.
    let names = [format!("quotagate_calls.d.{outcome}"), format!("quotagate_{outcome}.d")];
    host(|h| {
        h.metrics.iter().find(|(known, _)| names.contains(known)).map_or(0, |(_, count)| *count)
    })
}

fn lines(said: &str) -> usize {
    host(|h| h.log.iter().filter(|line| line.contains(said)).count())
}

/// One request's call ends so; the counter that rises, and what the log says.
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
fn every_end_of_a_call_is_told_apart() {
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
            // Each has a host of its own.
            scope.spawn(move || check(status, answers_itself, body, outcome, said));
        }
    });
}

#[test]
fn a_call_that_cannot_leave_is_told_and_its_request_answered() {
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
fn failures_in_a_row_make_two_lines_and_the_return_a_third() {
    start();
    for id in 2..=20 {
        let before = host(|h| h.calls.len());
        request(id);
        let calls = host(|h| h.calls.len());
        if calls > before {
            reply(calls as u32, 0, "");
        }
        // Before the pause is over: a machine that stands still meanwhile would let a probe leave.
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
        assert!(Instant::now() < deadline, "no probe leaves");
        thread::sleep(Duration::from_millis(1));
    }
    reply(LIMIT as u32 + 1, 200, &grant(1, 1));
    assert_eq!((calls("ok"), lines("answers again")), (1, 1));
}
