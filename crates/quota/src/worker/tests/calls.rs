//! When calls leave, what they ask for, and which requests get their units.

use super::*;

#[test]
fn lone_request_is_sent_at_once() {
    let mut w = worker("allow");
    submit(&mut w, "one", 0);
    let out = w.next_call(at(0)).unwrap();
    assert_eq!(out.timeout, Duration::from_millis(50));
    let body = String::from_utf8(out.body()).unwrap();
    assert_eq!(
        body,
        r#"{"budget_ms":50,"reservations":[{"key":"d:a:{x}","window_s":60,"quota":5,"want":1,"min":1}]}"#
    );
    assert!(w.next_call(at(0)).is_none());
    w.replied(out.id, &reply(&[grant(1, 3)]), at(2));
    let standing = Standing {
        policy: 0,
        counter: checks(&[0], "x", 1).remove(0).counter,
        mode: Mode::Enforce,
        granted: true,
        by_store: false,
        cost: NonZeroU64::MIN,
        counts_until: at(30_002),
        balance: Balance { window_s: 60, quota: 5, remaining: 2, resets: at(30_002) },
    };
    assert_eq!(
        decisions(&mut w),
        [("one", Decision::Admit(Admission { standings: vec![standing], ..Admission::default() }))]
    );
    assert_eq!(tally(&mut w), "a.admitted=1");
    assert!(w.is_idle());
}

#[test]
fn gathered_requests_share_one_call_and_are_served_in_order() {
    let mut w = worker("allow");
    submit(&mut w, "one", 0);
    let (first, _) = call(&mut w, 0);
    for who in ["two", "three", "four"] {
        submit(&mut w, who, 1);
        assert!(w.next_call(at(1)).is_none(), "a call is under way");
    }
    w.replied(first, &reply(&[grant(1, 1)]), at(2));
    let (second, request) = call(&mut w, 2);
    assert_eq!(
        (request.reservations.len(), request.reservations[0].want, request.reservations[0].min),
        (1, 3, 1)
    );
    assert_eq!(request.budget_ms, 49, "the youngest has waited for a millisecond");
    w.replied(second, &reply(&[grant(2, 5)]), at(3));
    assert_eq!(summary(&mut w), "one=+4 two=+1 three=+0 four=-");
}

#[test]
fn slow_call_delays_the_next_only_briefly_and_calls_are_bounded() {
    let mut w = worker("allow");
    for i in 0..MAX_IN_FLIGHT as u64 {
        submit(&mut w, "x", i * 6);
        assert!(i == 0 || w.next_call(at(i * 6 + 4)).is_none());
        call(&mut w, i * 6 + 5);
    }
    submit(&mut w, "x", 40);
    assert!(w.next_call(at(48)).is_none(), "at most MAX_IN_FLIGHT");
}

#[test]
fn full_batch_leaves_before_any_call_has_returned() {
    let mut w = worker("allow");
    submit(&mut w, "x", 0);
    call(&mut w, 0);
    for _ in 1..FULL_BATCH {
        submit(&mut w, "x", 0);
        assert!(w.next_call(at(0)).is_none());
    }
    submit(&mut w, "x", 0);
    assert_eq!(call(&mut w, 0).1.reservations[0].want, FULL_BATCH as u64);
}

#[test]
fn invariant_2_request_is_decided_by_its_deadline_and_a_late_grant_is_refunded() {
    for (on_failure, expected) in [("allow", "one=+"), ("deny", "one=!")] {
        let mut w = worker(on_failure);
        submit(&mut w, "one", 0);
        let (id, _) = call(&mut w, 0);
        w.tick(at(49));
        assert_eq!(summary(&mut w), "");
        w.tick(at(50));
        assert_eq!(summary(&mut w), expected);
        w.replied(id, &reply(&[grant(1, 1)]), at(51));
        w.tick(at(60));
        let (_, request) = call(&mut w, 60);
        assert_eq!(
            (request.refunds[0].units, request.refunds[0].window, request.reservations.len()),
            (1, 9, 0)
        );
    }
}

#[test]
fn gathering_requests_are_decided_by_their_deadline() {
    let mut w = worker("deny");
    submit(&mut w, "one", 0);
    call(&mut w, 0);
    submit(&mut w, "two", 1);
    w.tick(at(50));
    w.tick(at(51));
    assert_eq!(summary(&mut w), "one=! two=!");
    assert!(w.next_call(at(52)).is_none(), "no request waits any more");
}

#[test]
fn client_that_left_holds_no_units_and_delays_no_other_request() {
    let mut w = worker("allow");
    let (gone, stays) = (submit(&mut w, "gone", 0), submit(&mut w, "stays", 0));
    assert_ne!(gone, stays);
    let (id, request) = call(&mut w, 0);
    assert_eq!(request.reservations[0].want, 2);
    w.cancel(gone, at(0));
    w.replied(id, &reply(&[grant(2, 2)]), at(1));
    assert_eq!(summary(&mut w), "stays=+4");
    let next = submit(&mut w, "next", 2);
    w.cancel(next, at(2));
    submit(&mut w, "last", 2);
    let (_, request) = call(&mut w, 2);
    assert_eq!((request.refunds[0].units, request.reservations[0].want), (1, 1));
}

#[test]
fn client_that_leaves_before_its_decision_is_taken_holds_no_units() {
    let mut w = worker("allow");
    let (gone, _) = (submit(&mut w, "gone", 0), submit(&mut w, "stays", 0));
    let (id, _) = call(&mut w, 0);
    w.replied(id, &reply(&[grant(2, 2)]), at(1));
    w.cancel(gone, at(1));
    assert_eq!(summary(&mut w), "stays=+3");
    w.tick(at(10));
    assert_eq!(call(&mut w, 10).1.refunds[0].units, 1);
}

#[test]
fn units_of_one_policy_are_refunded_if_another_refuses() {
    let mut w = worker("allow");
    w.submit("one", checks(&[0, 1], "x", 1), at(0));
    w.submit("two", checks(&[0], "x", 1), at(0));
    let (id, request) = call(&mut w, 0);
    assert_eq!(request.reservations.iter().map(|r| r.want).collect::<Vec<_>>(), [2, 1]);
    w.replied(id, &reply(&[grant(2, 2), grant(0, 5)]), at(1));
    let decided = decisions(&mut w);
    let Decision::Refuse(refusal) = &decided[0].1 else { panic!("{decided:?}") };
    assert_eq!((&*violated(refusal), refusal.until), (&[1][..], at(30_001)));
    assert_eq!(refusal.standings.iter().map(|s| s.balance.remaining).collect::<Vec<_>>(), [5, 0]);
    assert!(
        matches!(&decided[1], ("two", Decision::Admit(s)) if s.standings[0].balance.remaining == 4)
    );
    w.tick(at(10));
    let (_, request) = call(&mut w, 10);
    assert_eq!(
        request.refunds.iter().map(|r| (&*r.key, r.units)).collect::<Vec<_>>(),
        [("d:a:{x}", 1)]
    );
}

#[test]
fn spent_counter_is_refused_without_a_call_and_rechecked_once_per_second() {
    let mut w = worker("allow");
    submit(&mut w, "one", 0);
    let (id, _) = call(&mut w, 0);
    w.replied(id, &reply(&[grant(1, 5)]), at(0));
    assert_eq!(summary(&mut w), "one=+0");
    let refused = w.submit("two", checks(&[0, 1], "x", 1), at(10));
    assert!(
        matches!(&refused, Submitted::Decided(Decision::Refuse(r)) if violated(r) == [0] && r.until == at(30_000))
    );
    assert!(w.next_call(at(10)).is_none(), "the other policy is not asked either");
    submit(&mut w, "probe", 1_000);
    assert!(matches!(
        w.submit("three", checks(&[0], "x", 1), at(1_000)),
        Submitted::Decided(Decision::Refuse(_))
    ));
    let (id, _) = call(&mut w, 1_000);
    w.replied(id, &reply(&[grant(1, 2)]), at(1_001));
    assert_eq!(summary(&mut w), "probe=+3");
    submit(&mut w, "open again", 1_002);
}

#[test]
fn requests_gather_for_a_quarter_of_a_short_timeout() {
    let mut w = edited("deny", |config| config.store.timeout = Duration::from_millis(8));
    submit(&mut w, "one", 0);
    call(&mut w, 0);
    submit(&mut w, "two", 1);
    assert!(w.next_call(at(2)).is_none());
    call(&mut w, 3);
}

#[test]
fn call_that_no_request_waits_for_delays_no_other_call() {
    let mut w = worker("deny");
    let gone = submit(&mut w, "gone", 0);
    call(&mut w, 0);
    w.cancel(gone, at(1));
    submit(&mut w, "next", 1);
    call(&mut w, 1);
}

#[test]
fn returning_call_does_not_release_a_batch_while_requests_wait_for_another() {
    let mut w = worker("deny");
    submit(&mut w, "one", 0);
    let (slow, _) = call(&mut w, 0);
    submit(&mut w, "two", 1);
    let (quick, _) = call(&mut w, 6);
    submit(&mut w, "three", 7);
    answer(&mut w, slow, &[grant(1, 1)], 8);
    assert!(w.next_call(at(8)).is_none(), "otherwise two would always be under way");
    answer(&mut w, quick, &[grant(1, 2)], 9);
    call(&mut w, 9);
}

#[test]
fn reservation_names_its_window_with_the_offset() {
    let mut w = edited("deny", |config| config.policies[0].window = Window::new(60, 20).unwrap());
    submit(&mut w, "one", 0);
    let (_, request) = call(&mut w, 0);
    assert_eq!((request.reservations[0].window_s, request.reservations[0].offset_s), (60, 20));
}

#[test]
fn refund_that_arrives_after_others_left_waits_for_the_next_tick() {
    let mut w = worker("deny");
    for (ms, refunds) in [(0, 1), (12, 0)] {
        let gone = submit(&mut w, "gone", ms);
        let (id, _) = call(&mut w, ms);
        answer(&mut w, id, &[grant(1, 1)], ms);
        w.cancel(gone, at(ms));
        if refunds > 0 {
            assert!(w.next_call(at(ms)).is_none(), "not before a tick");
            assert_eq!(returned(&mut w, 10), [("d:a:{x}".to_owned(), 1)]);
        }
    }
    assert!(w.next_call(at(13)).is_none(), "it gathers with other refunds");
    assert_eq!(returned(&mut w, 20), [("d:a:{x}".to_owned(), 1)]);
}

#[test]
fn has_decisions_tells_whether_decisions_are_left_to_take() {
    let mut w = worker("deny");
    submit(&mut w, "one", 0);
    let (id, _) = call(&mut w, 0);
    assert!(!w.has_decisions());
    answer(&mut w, id, &[grant(1, 1)], 1);
    assert!(w.has_decisions());
    assert_eq!(summary(&mut w), "one=+4");
    assert!(!w.has_decisions());
}

#[test]
fn successor_ignores_calls_and_tickets_of_its_predecessor() {
    let mut w = worker("deny");
    let Submitted::Waiting(ticket) = w.submit("lost", checks(&[0], "x", 1), at(0)) else {
        panic!("it waits")
    };
    let (old, _) = call(&mut w, 0);
    let mut w = w.successor(2);
    submit(&mut w, "new", 1);
    let (new, _) = call(&mut w, 1);
    w.replied(old, &reply(&[grant(1, 1)]), at(2));
    w.cancel(ticket, at(2));
    assert_eq!(summary(&mut w), "", "neither reaches the new request");
    w.replied(new, &reply(&[grant(1, 2)]), at(3));
    assert_eq!(summary(&mut w), "new=+3");
}
