//! How calls fail: the counts, the log lines, and that a failed call admits no request.

use super::*;

/// The outcomes of calls.
fn calls(worker: &mut TestWorker) -> String {
    let text = |(counted, n): (Counted, u64)| match counted {
        Counted::Calls(outcome) => Some(format!("{}={n}", outcome.name())),
        Counted::Requests(..) | Counted::RefusedDocument => None,
    };
    worker.take_tally().into_iter().filter_map(text).collect::<Vec<_>>().join(" ")
}

fn notices(worker: &mut TestWorker) -> String {
    worker.take_notices().iter().map(Notice::to_string).collect::<Vec<_>>().join("; ")
}

fn answered(status: u16, by: AnsweredBy, body: &[u8]) -> CallEnd {
    CallEnd::Answered { status, by, body: body.to_vec(), size: body.len() }
}

fn numbers(granted: u64, used: u64, quota: u64, reset_ms: u64, window: u64) -> CallEnd {
    let grant = Ok(Grant { granted, used, quota, reset_ms, window, ..Grant::default() });
    answered(200, AnsweredBy::Store, &reply(&[grant]))
}

#[test]
fn every_failure_is_counted_and_logged_and_admits_no_request() {
    use AnsweredBy::{Host, Store};
    let ok = |body: &[u8]| answered(200, Store, body);
    let deep = "[".repeat(100_000);
    let large = CallEnd::Answered { status: 200, by: Store, body: b"{".to_vec(), size: 10_000_000 };
    for (end, counted, logged) in [
        (CallEnd::Reset, "cut_off=1", "broke off"),
        (answered(503, Host, b"refused"), "unreachable=1", "no answer: \"refused\""),
        (answered(504, Host, b""), "timed_out=1", "in time"),
        (
            answered(401, Store, br#"{"error":"no"}"#),
            "refused=1",
            "it answered 401; see store.token: \"no\"",
        ),
        (answered(302, Store, b""), "refused=1", "302"),
        (answered(400, Store, b"{}"), "refused=1", "400"),
        (answered(503, Store, b""), "refused=1", "503"),
        (answered(504, Store, b""), "refused=1", "504"),
        (ok(b"<html>"), "malformed=1", "not a reply to the call"),
        (ok(b""), "malformed=1", "not a reply"),
        (ok(br#"{"grants":[{"granted":1,"#), "malformed=1", "not a reply"),
        (
            ok(br#"{"grants":[{"granted":-1,"used":1,"quota":5,"reset_ms":1,"window":9}]}"#),
            "malformed=1",
            "-1",
        ),
        (
            ok(br#"{"grants":[{"granted":1e99,"used":1,"quota":5,"reset_ms":1,"window":9}]}"#),
            "malformed=1",
            "",
        ),
        (ok(deep.as_bytes()), "malformed=1", ""),
        (large, "malformed=1", "10000000 bytes, at most 1048576"),
        (ok(&reply(&[])), "malformed=1", "0 grants for 1 reservations"),
        (ok(&reply(&[grant(1, 1), grant(1, 1)])), "malformed=1", "2 grants for 1 reservations"),
        (ok(&reply(&[grant(2, 2)])), "malformed=1", "2 units granted where 1 were asked for"),
        (
            numbers(1, 0, 5, 30_000, 9),
            "ok=1 item_failed=1",
            "could not count for d:a: \"no counter can have these numbers",
        ),
        (numbers(1, 1, 1 << 53, 30_000, 9), "ok=1 item_failed=1", "no counter"),
        (numbers(0, u64::MAX, 5, 30_000, 9), "ok=1 item_failed=1", "no counter"),
        (numbers(1, 1, 5, 60_001, 9), "ok=1 item_failed=1", "no counter"),
        (numbers(1, 1, 5, 30_000, u64::MAX), "ok=1 item_failed=1", "no counter"),
        (
            ok(&reply(&[Err("down".into())])),
            "ok=1 item_failed=1",
            "could not count for d:a: \"down\"",
        ),
        (ok(br#"{"grants":[{}]}"#), "ok=1 item_failed=1", "neither"),
    ] {
        for (on_failure, decision) in [("deny", "one=!"), ("allow", "one=+")] {
            let mut w = worker(on_failure);
            submit(&mut w, "one", 0);
            let (id, _) = call(&mut w, 0);
            w.call_ended(id, &end, at(1));
            assert_eq!(summary(&mut w), decision, "{end:?}");
            assert_eq!(calls(&mut w), counted, "{end:?}");
            let line = notices(&mut w);
            assert!(line.contains(logged) && !line.is_empty(), "{end:?}: {line}");
            assert_eq!(
                returned(&mut w, 20),
                [],
                "{end:?}: units of a rejected reply are not refunded"
            );
        }
    }
}

#[test]
fn unsent_or_lost_call_is_counted_once() {
    let mut w = worker("deny");
    for (fault, counted, logged) in [
        (CallFault::NoCluster, "dispatch_failed=1", "no such cluster"),
        (CallFault::NoHost, "dispatch_failed=1", ""),
        (
            CallFault::Declined("busy".into()),
            "refused=1",
            "it did not carry out the call: \"busy\"",
        ),
    ] {
        submit(&mut w, "one", 0);
        let (id, _) = call(&mut w, 0);
        w.call_not_sent(id, &fault, at(0));
        w.call_ended(id, &CallEnd::Reset, at(0));
        assert_eq!((summary(&mut w), calls(&mut w)), ("one=!".into(), counted.into()));
        let line = notices(&mut w);
        assert!(line.contains(logged), "{fault:?}: {line}");
    }
    submit(&mut w, "one", 10);
    let (id, _) = call(&mut w, 10);
    w.tick(at(10_000));
    w.replied(id, &reply(&[grant(1, 1)]), at(10_001));
    assert_eq!((summary(&mut w), calls(&mut w)), ("one=!".into(), "timed_out=1".into()));
}

#[test]
fn too_large_grant_fails_its_whole_reply_and_impossible_numbers_only_their_item() {
    let odd = impossible_grant();
    for (second, expected, counted) in [
        (grant(2, 2), "one=! two=!", "malformed=1"),
        (odd, "one=+4 two=!", "ok=1 item_failed=1"),
        (Err("down".into()), "one=+4 two=!", "ok=1 item_failed=1"),
    ] {
        let mut w = worker("deny");
        // Both wait while another call is under way.
        submit(&mut w, "zero", 0);
        let (zero, _) = call(&mut w, 0);
        w.submit("one", checks(&[0], "y", 1), at(0));
        w.submit("two", checks(&[0], "z", 1), at(0));
        w.replied(zero, &reply(&[grant(1, 1)]), at(1));
        let (id, request) = call(&mut w, 1);
        assert_eq!(request.reservations.len(), 2);
        summary(&mut w);
        calls(&mut w);
        w.replied(id, &reply(&[grant(1, 1), second]), at(2));
        assert_eq!((summary(&mut w), calls(&mut w)), (expected.into(), counted.into()));
    }
}

#[test]
fn breaker_opening_and_healing_are_logged_and_counted() {
    let mut w = worker("deny");
    for _ in 0..crate::worker::call::breaker::LIMIT {
        submit(&mut w, "x", 0);
        let (id, _) = call(&mut w, 0);
        w.call_ended(id, &CallEnd::Reset, at(0));
    }
    assert_eq!(calls(&mut w), "cut_off=5 suspended=1");
    let logged = notices(&mut w);
    assert_eq!(logged.matches("broke off").count(), 1, "{logged}");
    assert!(logged.contains("the store does not answer"), "{logged}");
    submit(&mut w, "probe", 250);
    let (id, _) = call(&mut w, 250);
    w.replied(id, &reply(&[grant(1, 1)]), at(251));
    assert_eq!((calls(&mut w), notices(&mut w)), ("ok=1".into(), "the store answers again".into()));
}

#[test]
fn call_with_only_refunds_is_counted_like_any_other() {
    let mut w = worker("deny");
    let gone = submit(&mut w, "gone", 0);
    let (id, _) = call(&mut w, 0);
    w.cancel(gone, at(0));
    w.replied(id, &reply(&[grant(1, 1)]), at(0));
    w.tick(at(20));
    let (back, request) = call(&mut w, 20);
    assert!(request.reservations.is_empty());
    w.call_ended(back, &answered(200, AnsweredBy::Store, b"<html>"), at(21));
    assert_eq!(calls(&mut w), "ok=1 malformed=1");
}
