//! Who comes first: requests of several workers, and of one worker with several limits.

use super::*;

/// How many messages ask for slots.
fn asking(said: &[Reservation]) -> usize {
    said.iter().filter(|it| it.want > 0).count()
}

#[test]
fn worker_asks_less_often_while_answers_grant_nothing() {
    let mut rig = Rig::new(3, "deny");
    let (first, second) = (rig.admit(0, &[L]), rig.admit(0, &[L]));
    assert_eq!(rig.ask(1, "one", &[L]), None);
    let alone = asking(&rig.pass(2_000));
    assert!((18..30).contains(&alone), "{alone} while no other worker asks");
    assert_eq!(rig.ask(2, "two", &[L]), None);
    let both = asking(&rig.pass(2_000));
    assert!((36..60).contains(&both), "{both} of two workers");
    // What becomes free elsewhere is found within the longest pause.
    rig.free(0, first);
    rig.pass(100);
    assert_eq!(summary(&mut rig.workers[1]), "one=+0");
    rig.free(0, second);
    rig.pass(100);
    assert_eq!(summary(&mut rig.workers[2]), "two=+0");
}

/// Each worker has so many clients, which begin at this millisecond. Each client sends one request
/// after the other to policy `w`, for 3 s in all. Each request runs for 20 ms, and the store
/// answers at once. Returns how many requests of each worker ended, and the longest time in
/// milliseconds for which a slot was free while a request waited.
fn busy(limit: usize, max_wait: &str, clients: &[(usize, u64)]) -> (Vec<usize>, u64) {
    let mut rig = Rig::new(0, "deny");
    let text = slots_text("deny").replace("300ms", max_wait);
    let text = text.replace(r#""in_flight":2"#, &format!(r#""in_flight":{limit}"#));
    let config = Arc::new(Config::parse(text.as_bytes()).unwrap());
    rig.workers =
        (1..).zip(clients).map(|(seed, _)| Worker::new(Arc::clone(&config), seed)).collect();
    let mut running = Vec::<(u64, usize, Admission)>::new();
    let (mut ended, mut ready) = (vec![0; clients.len()], vec![0; clients.len()]);
    let (mut waiting, mut free_ms, mut longest_ms) = (0, 0, 0);
    let begun = rig.now;
    for _ in 0..3_000 {
        rig.now += 1;
        for (worker, (count, from)) in clients.iter().enumerate() {
            if rig.now == begun + 1 + from {
                ready[worker] += count;
            }
            for _ in 0..std::mem::take(&mut ready[worker]) {
                match rig.submit(worker, "x", &[W]) {
                    Submitted::Decided(Decision::Admit(admission)) => {
                        running.push((rig.now + 20, worker, admission));
                    }
                    Submitted::Waiting(_) => waiting += 1,
                    other => panic!("{other:?}"),
                }
            }
            if rig.now.is_multiple_of(10) {
                rig.workers[worker].tick(at(rig.now));
            }
            rig.exchange(worker);
            while let Some((_, decision)) = rig.workers[worker].next_decision() {
                waiting -= 1;
                match decision {
                    Decision::Admit(admission) => running.push((rig.now + 20, worker, admission)),
                    // Its client sends the next one.
                    _ => ready[worker] += 1,
                }
            }
        }
        for (_, worker, admission) in running.extract_if(.., |(ends, ..)| *ends <= rig.now) {
            (ended[worker], ready[worker]) = (ended[worker] + 1, ready[worker] + 1);
            rig.workers[worker].free(admission.slots.clone(), at(rig.now));
        }
        assert!(running.len() <= limit);
        free_ms = if running.len() < limit && waiting > 0 { free_ms + 1 } else { 0 };
        longest_ms = longest_ms.max(free_ms);
    }
    (ended, longest_ms)
}

#[test]
fn workers_whose_queues_are_never_empty_share_the_slots() {
    // Each slot serves a request every 21 ms, so 142 in 3 s at the most.
    for (limit, max_wait, clients, all, least) in [
        (2, "200ms", &[(20, 0), (20, 0)][..], 200, 50),
        (2, "2s", &[(200, 0), (20, 0)], 200, 50),
        (2, "5s", &[(80, 0), (80, 0)], 200, 50),
        (2, "5s", &[(10, 0), (1, 0)], 200, 9),
        (2, "200ms", &[(10, 0), (1, 0)], 200, 9),
        // Workers that begin at different times.
        (2, "5s", &[(20, 0), (1, 300), (5, 700)], 200, 9),
        (4, "5s", &[(20, 0), (20, 300), (20, 700), (3, 1_000)], 400, 30),
        // A worker without a slot asks every 50 to 100 ms. A single slot is free until then.
        (1, "300ms", &[(20, 0), (20, 0)], 60, 20),
        (1, "5s", &[(20, 0), (20, 0)], 60, 20),
        (1, "5s", &[(4, 0), (1, 300)], 60, 9),
        (1, "5s", &[(20, 0), (1, 300), (5, 700)], 60, 9),
    ] {
        let (ended, free_ms) = busy(limit, max_wait, clients);
        println!("{limit} slots, {max_wait}, {clients:?}: {ended:?} ended, free {free_ms} ms");
        assert!(ended.iter().sum::<usize>() >= all, "{ended:?}");
        assert!(*ended.iter().min().unwrap() >= least, "{ended:?}");
        assert!(free_ms <= 120, "a slot was free for {free_ms} ms while requests waited");
    }
}

#[test]
fn request_that_waits_briefly_is_asked_for_before_it_leaves() {
    let mut rig = Rig::new(2, "deny");
    let text = slots_text("deny").replace("300ms", "30ms");
    let config = Arc::new(Config::parse(text.as_bytes()).unwrap());
    rig.workers = (1..=2).map(|seed| Worker::new(Arc::clone(&config), seed)).collect();
    let (first, _second) = (rig.admit(0, &[W]), rig.admit(0, &[W]));
    let mut freed = Some(first);
    let mut admitted = None;
    for ms in 0..200 {
        rig.now += 1;
        if ms % 10 == 0 {
            rig.submit(1, "x", &[W]);
            rig.workers[1].tick(at(rig.now));
        }
        rig.exchange(1);
        if ms == 105 {
            rig.free(0, freed.take().unwrap());
        }
        while let Some((_, decision)) = rig.workers[1].next_decision() {
            if matches!(decision, Decision::Admit(_)) {
                admitted.get_or_insert(ms);
            }
        }
    }
    assert!(admitted.is_some_and(|ms| (105..140).contains(&ms)), "{admitted:?}");
}

#[test]
fn request_behind_one_that_waits_causes_no_call() {
    let mut rig = Rig::new(2, "deny");
    let (first, second) = (rig.admit(0, &[L]), rig.admit(0, &[L]));
    assert_eq!(rig.ask(1, "one", &[L]), None);
    assert!(matches!(rig.submit(1, "two", &[L]), Submitted::Waiting(_)));
    assert!(rig.exchange(1).is_empty());
    rig.pass(200);
    assert_eq!(summary(&mut rig.workers[1]), "", "it waits for more than the timeout");
    rig.free(0, first);
    rig.free(0, second);
    rig.pass(200);
    assert_eq!(summary(&mut rig.workers[1]), "one=+1 two=+0");
}

#[test]
fn each_request_takes_slots_within_the_limit_of_its_own_tier() {
    for order in [[("free", 2), ("pro", 10)], [("pro", 10), ("free", 2)]] {
        let mut rig = Rig::new(2, "deny");
        for _ in 0..5 {
            let Submitted::Waiting(_) = rig.submit_tier(1, "elsewhere", (A, 1, 10)) else {
                panic!()
            };
            rig.exchange(1);
        }
        assert_eq!(rig.held(A), 5);
        for (who, limit) in order {
            assert!(matches!(rig.submit_tier(0, who, (A, 1, limit)), Submitted::Waiting(_)));
        }
        rig.exchange(0);
        let mut decided: Vec<String> =
            summary(&mut rig.workers[0]).split(' ').map(str::to_owned).collect();
        decided.sort();
        assert_eq!(decided, ["free=-", "pro=+4"]);
    }
}

#[test]
fn request_of_a_higher_limit_does_not_wait_behind_one_of_a_lower_limit() {
    let mut rig = Rig::new(1, "deny");
    let running: Vec<Admission> = (0..2).map(|_| rig.admit(0, &[L])).collect();
    assert!(matches!(rig.submit_tier(0, "free", (L, 1, 2)), Submitted::Waiting(_)));
    rig.exchange(0);
    for who in ["pro", "another"] {
        assert!(matches!(rig.submit_tier(0, who, (L, 1, 3)), Submitted::Waiting(_)));
        rig.exchange(0);
    }
    let Some(("pro", Decision::Admit(pro))) = rig.workers[0].next_decision() else { panic!() };
    assert_eq!(summary(&mut rig.workers[0]), "");
    // Both limits go on being asked for.
    for admission in running {
        rig.free(0, admission);
        rig.pass(200);
    }
    assert_eq!(summary(&mut rig.workers[0]), "another=+0");
    rig.free(0, pro);
    rig.pass(200);
    assert_eq!(summary(&mut rig.workers[0]), "free=+0");
}

#[test]
fn request_of_a_lower_limit_does_not_overtake_one_of_a_higher_limit() {
    let mut rig = Rig::new(1, "deny");
    let mut running = Vec::new();
    let mut served = |rig: &mut Rig| {
        let mut names = Vec::new();
        while let Some((who, Decision::Admit(admission))) = rig.workers[0].next_decision() {
            names.push(who);
            running.push(admission);
        }
        (names, running.pop())
    };
    let asks = |rig: &mut Rig, who, cost, limit| {
        assert!(matches!(rig.submit_tier(0, who, (L, cost, limit)), Submitted::Waiting(_)));
        rig.pass(200);
    };
    asks(&mut rig, "small", 1, 2);
    let (_, small) = served(&mut rig);
    asks(&mut rig, "large", 4, 4);
    // There is room for it, and it would take the room that the large one waits for.
    asks(&mut rig, "next", 1, 2);
    assert_eq!(served(&mut rig), (vec![], None));
    rig.free(0, small.unwrap());
    rig.pass(200);
    let (names, large) = served(&mut rig);
    assert_eq!(names, ["large"]);
    rig.free(0, large.unwrap());
    rig.pass(200);
    assert_eq!(served(&mut rig).0, ["next"]);
}

#[test]
fn requests_of_a_lower_limit_that_arrive_during_a_message_do_not_overtake() {
    let mut rig = Rig::new(1, "deny");
    let asks = |rig: &mut Rig, who, cost, limit| {
        assert!(matches!(rig.submit_tier(0, who, (L, cost, limit)), Submitted::Waiting(_)));
    };
    asks(&mut rig, "first", 1, 8);
    let call = rig.workers[0].next_call(at(rig.now)).unwrap();
    asks(&mut rig, "large", 10, 10);
    asks(&mut rig, "second", 1, 8);
    let grants = vec![Ok(rig.store.reserve(&call.request.reservations[0], rig.now))];
    rig.workers[0].carried_out(call.id, ReserveReply { dials: 0, grants }, at(rig.now));
    rig.exchange(0);
    asks(&mut rig, "third", 1, 8);
    rig.pass(200);
    assert_eq!(summary(&mut rig.workers[0]), "first=+7");
}

#[test]
fn request_that_is_held_up_causes_no_messages_while_they_fail() {
    let mut rig = Rig::new(2, "deny");
    assert!(matches!(rig.submit_tier(1, "holds", (L, 10, 10)), Submitted::Waiting(_)));
    rig.exchange(1);
    assert!(matches!(rig.submit_tier(0, "high", (L, 1, 10)), Submitted::Waiting(_)));
    rig.exchange(0);
    rig.is_broken = true;
    rig.pass(1_010);
    assert!(matches!(rig.submit_tier(0, "low", (L, 1, 5)), Submitted::Waiting(_)));
    let mut messages = 0;
    while messages < 9
        && let Some(call) = rig.workers[0].next_call(at(rig.now))
    {
        messages += 1;
        let grants = call.request.reservations.iter();
        let grants = grants.map(|_| Err("the shard is down".to_owned())).collect();
        rig.workers[0].carried_out(call.id, ReserveReply { dials: 0, grants }, at(rig.now));
    }
    assert!(messages <= 1, "{messages} at one moment");
    rig.pass(200);
    let decided = summary(&mut rig.workers[0]);
    assert!(decided.contains("high=!") && decided.contains("low=!"), "{decided}");
}

#[test]
fn message_asks_for_no_request_behind_one_of_a_higher_limit() {
    let mut rig = Rig::new(2, "deny");
    let elsewhere: Vec<Admission> = (0..2).map(|_| rig.admit(1, &[L])).collect();
    for (who, cost, limit) in [("first", 1, 2), ("large", 4, 4), ("second", 1, 2)] {
        assert!(matches!(rig.submit_tier(0, who, (L, cost, limit)), Submitted::Waiting(_)));
        rig.exchange(0);
    }
    for mut admission in elsewhere {
        rig.workers[1].free(admission.slots.take(), at(rig.now));
    }
    rig.exchange(1);
    let said = rig.pass(200);
    assert!(said.iter().any(|it| it.quota == 2 && it.want > 0));
    assert!(said.iter().all(|it| it.quota != 2 || it.want <= 1));
    assert_eq!(summary(&mut rig.workers[0]), "first=+1");
}

#[test]
fn requests_of_a_low_limit_that_wait_hold_up_no_higher_limit_elsewhere() {
    let mut rig = Rig::new(2, "deny");
    let _running: Vec<Admission> = (0..2).map(|_| rig.admit(0, &[L])).collect();
    for _ in 0..8 {
        assert!(matches!(rig.submit_tier(0, "free", (L, 1, 2)), Submitted::Waiting(_)));
    }
    rig.exchange(0);
    rig.pass(50);
    assert!(matches!(rig.submit_tier(1, "pro", (L, 1, 10)), Submitted::Waiting(_)));
    rig.exchange(1);
    assert_eq!(summary(&mut rig.workers[1]), "pro=+7");
}

/// When each message of a worker leaves within a second, and the limit that it names. Each is
/// answered after so many milliseconds. The next request with a limit of `fresh` arrives as soon as
/// a message has asked for the last one.
fn limits_asked(rig: &mut Rig, fresh: &[u64], answer_ms: u64) -> Vec<(u64, u64)> {
    let (mut asked, mut next, begun) = (Vec::new(), 0, rig.now);
    let mut under_way: Option<(u64, CallId, ReserveReply)> = None;
    while rig.now < begun + 1_000 {
        if let Some((_, id, reply)) = under_way.take_if(|(at_ms, ..)| *at_ms <= rig.now) {
            rig.workers[0].carried_out(id, reply, at(rig.now));
        }
        while let Some((_, decision)) = rig.workers[0].next_decision() {
            if let Decision::Admit(admission) = decision {
                rig.workers[0].free(admission.slots.clone(), at(rig.now));
            }
        }
        if let Some(limit) = fresh.get(next % fresh.len().max(1))
            && !rig.workers[0].slots.has_unasked_requests()
        {
            next += 1;
            rig.submit_tier(0, "fresh", (L, 1, *limit));
        }
        if rig.now.is_multiple_of(10) {
            rig.workers[0].tick(at(rig.now));
        }
        if let Some(OutgoingCall { id, request, .. }) = rig.workers[0].next_call(at(rig.now)) {
            let one = &request.reservations[0];
            if one.want > 0 {
                asked.push((rig.now - begun, one.quota));
            }
            let grants = vec![Ok(rig.store.reserve(one, rig.now))];
            under_way = Some((rig.now + answer_ms, id, ReserveReply { dials: 0, grants }));
        }
        rig.now += 1;
    }
    asked
}

#[test]
fn limits_take_turns_while_fresh_requests_of_others_go_first() {
    for answer_ms in [1, 20] {
        let mut rig = Rig::new(2, "deny");
        let _running = (rig.admit(1, &[L]), rig.admit(1, &[L]));
        assert!(matches!(rig.submit_tier(0, "base", (L, 1, 2)), Submitted::Waiting(_)));
        rig.exchange(0);
        let asked = limits_asked(&mut rig, &[10, 9], answer_ms);
        let base: Vec<u64> =
            asked.iter().filter(|(_, limit)| *limit == 2).map(|(at_ms, _)| *at_ms).collect();
        assert!((10..=20).contains(&base.len()), "{} of {}: {base:?}", base.len(), asked.len());
        let longest = base.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest.unwrap() <= 100, "{longest:?}");
    }
}

#[test]
fn fresh_request_is_carried_by_the_second_message_at_the_latest() {
    let mut rig = Rig::new(2, "deny");
    let _running = (rig.admit(1, &[L]), rig.admit(1, &[L]));
    for limit in 1..=5 {
        rig.store.forget();
        rig.submit_tier(0, "waits", (L, 3, limit + 3));
        rig.exchange(0);
    }
    for _ in 0..40 {
        rig.now += 13;
        rig.submit_tier(0, "fresh", (L, 1, 20));
        let mut messages = 0;
        while rig.workers[0].slots.has_unasked_requests() {
            let call = rig.workers[0].next_call(at(rig.now)).expect("it is due");
            let one = &call.request.reservations[0];
            let grants = vec![Ok(rig.store.reserve(one, rig.now))];
            let reply = ReserveReply { dials: 0, grants };
            rig.workers[0].carried_out(call.id, reply, at(rig.now));
            messages += 1;
        }
        assert!(messages <= 2, "{messages} messages");
    }
}

#[test]
fn many_limits_that_wait_cost_fifty_messages_per_second_at_the_most() {
    let mut rig = Rig::new(2, "deny");
    let _running = (rig.admit(1, &[L]), rig.admit(1, &[L]));
    for limit in 0..40 {
        assert!(matches!(
            rig.submit_tier(0, "waits", (L, 9 + limit, 9 + limit)),
            Submitted::Waiting(_)
        ));
        rig.exchange(0);
    }
    let asked = limits_asked(&mut rig, &[], 1).len();
    assert!((30..=50).contains(&asked), "{asked} messages");
}
