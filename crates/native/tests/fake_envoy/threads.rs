//! What crosses threads: wakes, deaths, stalls, and configurations that end under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quotagate_native::test_faults;

use crate::document::{behind_cluster, grant, in_memory, policy};
use crate::host::{AsEnvoy, Envoy, OK, Request, Stream, eventually, logged};
use crate::panics::{alone, recovers, recovers_at};

/// How often each worker of a load test sends a request.
const ROUNDS: usize = 150;

/// An Envoy with one worker and these streams that wait for its calls.
fn waiting(streams: usize) -> (Envoy, Vec<Arc<Stream>>) {
    let envoy = Envoy::start(1, &behind_cluster(&policy("p", 100, ""), "", ""));
    let streams = (0..streams).map(|_| envoy.request(0, Request::get("/"))).collect();
    (envoy, streams)
}

/// Grants what the calls from `first` on ask for, until these streams are decided.
fn grant_all(envoy: &Envoy, first: usize, streams: &[Arc<Stream>]) {
    let mut next = first;
    eventually("all are decided", || {
        if let Some(call) = envoy.calls().get(next) {
            let wanted = streams.len() as u64;
            envoy.end_callout(call.number, 0, OK, &grant(wanted, wanted, 100));
            next += 1;
        }
        streams.iter().all(|stream| stream.is_decided()).then_some(())
    });
}

#[test]
fn stream_that_dies_before_its_wake_leaves_the_others_to_the_next() {
    let (envoy, streams) = waiting(3);
    let call = envoy.callout(0);
    streams[0].end();
    envoy.end_callout(call.number, 0, OK, &grant(1, 1, 100));
    grant_all(&envoy, 1, &streams[1..]);
    assert!(!streams[0].is_decided());
}

#[test]
fn stream_that_dies_between_its_wake_and_its_hook_wakes_another() {
    let (envoy, streams) = waiting(3);
    let call = envoy.callout(0);
    // The worker is busy with an event that ends the stream, while its wake arrives behind it.
    let first = Arc::clone(&streams[0]);
    envoy.workers[0].post(move || {
        thread::sleep(Duration::from_millis(300));
        first.finish();
    });
    envoy.end_callout(call.number, 0, OK, &grant(1, 1, 100));
    grant_all(&envoy, 1, &streams[1..]);
}

#[test]
fn wake_that_is_lost_is_repeated_by_a_tick() {
    let (envoy, streams) = waiting(1);
    streams[0].lose_wakes(3);
    let call = envoy.callout(0);
    envoy.end_callout(call.number, 0, OK, &grant(1, 1, 100));
    assert_eq!(streams[0].status(), 0);
    assert!(streams[0].wakes() >= 4, "{}", streams[0].wakes());
}

/// Sends requests from all workers at once. Some leave, at every moment.
fn load(envoy: &Arc<Envoy>, tenants: usize) -> usize {
    let admitted = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..envoy.workers.len())
        .map(|worker| {
            let (envoy, admitted) = (Arc::clone(envoy), Arc::clone(&admitted));
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    let tenant = format!("t{}", round % tenants);
                    let as_envoy = AsEnvoy {
                        ends_when_answered: round % 2 == 0,
                        answers_when_resumed: (round % 7 == 0).then_some(503),
                    };
                    let request =
                        || Request::get("/").header("x-tenant", &tenant).with_envoy(as_envoy);
                    let streams = [0; 4].map(|_| envoy.request(worker, request()));
                    streams[0].end();
                    if round % 3 == 0 {
                        streams[1].takes_along(&streams[2]);
                    }
                    // The first one has ended, but may have been admitted before.
                    for stream in &streams {
                        let is_gone = || stream.state.lock().unwrap().filter == 0;
                        while !stream.is_decided() && !is_gone() && stream.is_held() {
                            thread::sleep(Duration::from_micros(100));
                        }
                        let state = stream.state.lock().unwrap();
                        let goes_on = state.is_resumed || state.action == Some(0);
                        drop(state);
                        admitted.fetch_add(usize::from(goes_on), Ordering::Relaxed);
                        stream.respond(200, &[], true);
                        stream.end();
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    admitted.load(Ordering::Relaxed)
}

#[test]
fn invariant_1_workers_together_never_admit_more_than_the_quota() {
    for (name, fields) in [
        ("exact", r#","partition_by":["tenant"]"#),
        ("lease", r#","partition_by":["tenant"],"precision":"lease""#),
    ] {
        let document = in_memory(&format!("load-{name}"), &policy("p", 100, fields), "", "");
        let envoy = Arc::new(Envoy::start(3, &document));
        let admitted = load(&envoy, 3);
        assert!(admitted <= 300, "{name}: {admitted}");
        assert!(admitted >= 200, "{name}: {admitted}");
    }
}

#[test]
fn configuration_that_ends_under_load_refunds_its_leases() {
    let document = in_memory("refunds", &policy("p", 1000, r#","precision":"lease""#), "", "");
    let mut envoy = Envoy::start(2, &document);
    let mut admitted = 0;
    for _ in 0..50 {
        for worker in [0, 1] {
            let stream = envoy.request(worker, Request::get("/"));
            assert_eq!(stream.status(), 0);
            stream.respond(200, &[], true);
            stream.end();
            admitted += 1;
        }
    }
    // A stream that still runs keeps the old configuration for a while.
    let last = envoy.request(0, Request::get("/"));
    admitted += 1;
    assert_eq!(last.status(), 0);
    let exact = in_memory("refunds", &policy("p", 1000, ""), "", "");
    envoy.update(&exact).expect("it is accepted");
    last.respond(200, &[], true);
    last.end();
    // The new configuration counts in the same store, and sees what the old one left there.
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        let stream = envoy.request(0, Request::get("/"));
        assert_eq!(stream.status(), 0);
        stream.respond(200, &[], true);
        admitted += 1;
        let remaining = stream.response_header("x-ratelimit-remaining");
        stream.end();
        let used = 1000 - remaining.unwrap().parse::<usize>().unwrap();
        assert!(used >= admitted, "never less than was admitted");
        if used == admitted {
            break;
        }
        assert!(Instant::now() < deadline, "{used} used, {admitted} admitted");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn configurations_that_come_and_go_leave_all_streams_decided() {
    let mut envoy =
        Envoy::start(2, &in_memory("come-0", &policy("p", 50, r#","precision":"lease""#), "", ""));
    for round in 1..20 {
        let streams: Vec<_> =
            (0..6).map(|index| envoy.request(index % 2, Request::get("/"))).collect();
        let document = in_memory(
            &format!("come-{}", round % 3),
            &policy("p", 50, r#","precision":"lease""#),
            "",
            "",
        );
        envoy.update(&document).expect("it is accepted");
        for stream in &streams {
            stream.decision();
            stream.respond(200, &[], true);
            stream.end();
        }
    }
}

#[test]
fn invariant_2_stalled_runtime_thread_delays_no_request_and_counts_its_seconds() {
    if alone("threads::invariant_2_stalled_runtime_thread_delays_no_request_and_counts_its_seconds")
        .is_some()
    {
        return;
    }
    let store = r#","timeout":"100ms","on_failure":"deny""#;
    let envoy = Envoy::start(2, &in_memory("stalls", &policy("p", 1000, ""), "", store));
    recovers(&envoy);
    quotagate_native::stall(Duration::from_secs(20));
    thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    // No other traffic stands in for ticks.
    for worker in [0, 1] {
        let stream = envoy.request(worker, Request::get("/"));
        assert_eq!(stream.status(), 503);
        stream.end();
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let counted = || envoy.counter("quotagate_runtime_stalled_seconds", &[]);
    while counted() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the stall is not counted");
        envoy.request(0, Request::get("/")).end();
        thread::sleep(Duration::from_millis(100));
    }
    assert!(logged(&["the runtime thread stalls"]));
    recovers(&envoy);
}

#[test]
fn invariant_2_any_hook_of_a_worker_decides_what_is_due_while_both_threads_stall() {
    if alone(
        "threads::invariant_2_any_hook_of_a_worker_decides_what_is_due_while_both_threads_stall",
    )
    .is_some()
    {
        return;
    }
    let store = r#","timeout":"100ms","on_failure":"deny""#;
    let policy = policy("p", 1000, r#","match":{"path":{"prefix":"/counted"}}"#);
    let envoy = Envoy::start(1, &in_memory("hooks", &policy, "", store));
    type Hook = fn(&Envoy, &Arc<Stream>);
    let hooks: [(&str, Hook); 5] = [
        ("a request arrives", |envoy, _| drop(envoy.request(0, Request::get("/counted")))),
        ("a request arrives that no policy counts", |envoy, _| {
            drop(envoy.request(0, Request::get("/")));
        }),
        ("a response arrives", |_, admitted| admitted.respond(200, &[], false)),
        ("a response goes on", |_, admitted| {
            admitted.response_body(&["more"], false);
        }),
        ("a stream ends", |_, admitted| admitted.end()),
    ];
    for (name, hook) in hooks {
        recovers_at(&envoy, "/counted");
        let admitted = envoy.request(0, Request::get("/counted"));
        assert_eq!(admitted.status(), 0, "{name}");
        quotagate_native::stall(Duration::from_secs(15));
        test_faults::stall_tick_thread(Duration::from_secs(15));
        thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        let stream = envoy.request(0, Request::get("/counted"));
        thread::sleep(Duration::from_millis(300));
        assert!(stream.is_held(), "{name}: nobody looks at its deadline");
        hook(&envoy, &admitted);
        assert_eq!(stream.status(), 503, "{name}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}: {:?}", begun.elapsed());
        stream.end();
    }
}

#[test]
fn all_streams_of_a_batch_are_decided_by_one_wake() {
    let (envoy, streams) = waiting(40);
    let wakes = || streams.iter().map(|stream| stream.wakes()).sum::<u32>();
    // Each one was woken for its call.
    let before = wakes();
    grant_all(&envoy, 0, &streams);
    assert!(wakes() - before < 20, "{before} before, {} now", wakes());
}

#[test]
fn requests_of_one_turn_of_the_event_loop_share_a_call() {
    let envoy = Envoy::start(1, &behind_cluster(&policy("p", 100, ""), "", ""));
    let streams = envoy.turn(0, vec![Request::get("/"); 10]);
    let call = envoy.callout(0);
    envoy.end_callout(call.number, 0, OK, &grant(10, 10, 100));
    for stream in &streams {
        assert_eq!(stream.status(), 0);
    }
    assert_eq!(envoy.calls().len(), 1);
}
