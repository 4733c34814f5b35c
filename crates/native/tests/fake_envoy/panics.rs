//! A panic ends at the hook: its request is decided by `on_failure`, and so are those that wait.
//! Panics count for the process, so each of these tests runs in a process of its own.

use std::process::Command;
use std::time::{Duration, Instant};

use quotagate_native::test_faults;

use crate::document::{behind_cluster, grant, in_memory, policy};
use crate::host::{Envoy, OK, Request, eventually, logged};

/// Runs a test in a process of its own. Returns what it wrote, or `None` in that process.
pub fn alone(test: &str) -> Option<String> {
    const MARK: &str = "QUOTAGATE_ALONE";
    if std::env::var_os(MARK).is_some() {
        return None;
    }
    let program = std::env::current_exe().expect("a program");
    let arguments = [test, "--exact", "--nocapture", "--test-threads=1"];
    // A backtrace takes seconds under a sanitizer, during which the thread that panicked stands.
    let mut command = Command::new(program);
    command.args(arguments).env(MARK, "1").env("RUST_BACKTRACE", "0");
    let run = command.output().expect("it runs");
    let lines =
        [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).join("\n");
    assert!(run.status.success() && lines.contains("1 passed"), "{lines}");
    Some(lines)
}

/// The next pass of the worker's thread through `point` panics.
fn arm(envoy: &Envoy, point: &'static str) {
    envoy.workers[0].run(move || test_faults::arm(point));
}

fn deny(name: &str) -> Envoy {
    Envoy::start(1, &in_memory(name, &policy("p", 1000, ""), "", r#","on_failure":"deny""#))
}

/// New requests are counted again.
pub fn recovers(envoy: &Envoy) {
    recovers_at(envoy, "/");
}

/// New requests for this path are counted again.
pub fn recovers_at(envoy: &Envoy, path: &str) {
    eventually("it recovers", || {
        let stream = envoy.request(0, Request::get(path));
        let status = stream.status();
        stream.respond(200, &[], true);
        let is_counted = stream.response_header("x-ratelimit-remaining").is_some();
        stream.end();
        (status == 0 && is_counted).then_some(())
    });
}

#[test]
fn panic_on_arrival_is_decided_by_on_failure_and_counted() {
    if alone("panics::panic_on_arrival_is_decided_by_on_failure_and_counted").is_some() {
        return;
    }
    for point in ["arrive", "waits", "send_calls"] {
        for (on_failure, status) in [("deny", 503), ("allow", 0)] {
            let store = format!(r#","on_failure":"{on_failure}""#);
            let name = format!("arrival-{point}-{on_failure}");
            let envoy = Envoy::start(1, &in_memory(&name, &policy("p", 1000, ""), "", &store));
            recovers(&envoy);
            arm(&envoy, point);
            let stream = envoy.request(0, Request::get("/"));
            assert_eq!(stream.status(), status, "{point} {on_failure}");
            stream.end();
            recovers(&envoy);
            assert_eq!(envoy.counter("quotagate_panics", &[]), 1, "{point} {on_failure}");
        }
    }
    assert!(logged(&["request headers panicked"]) && logged(&["decisions panicked"]));
}

#[test]
fn panic_on_arrival_at_a_route_is_decided_by_its_document() {
    if alone("panics::panic_on_arrival_at_a_route_is_decided_by_its_document").is_some() {
        return;
    }
    let envoy = deny("route-listener");
    let route = envoy.route(&in_memory("route-own", &policy("own", 5, ""), "", ""));
    let route = route.expect("accepted");
    arm(&envoy, "arrive");
    let stream = envoy.request(0, Request::get("/").route(&route));
    assert_eq!(stream.status(), 0, "the route's document says allow");
    stream.end();
}

#[test]
fn panic_about_a_late_body_is_decided_by_on_failure() {
    if alone("panics::panic_about_a_late_body_is_decided_by_on_failure").is_some() {
        return;
    }
    let cost = r#","cost":{"reserve":{"request_json":"max_tokens","default":2}}"#;
    for (on_failure, status) in [("deny", 503), ("allow", 0)] {
        let store = format!(r#","on_failure":"{on_failure}""#);
        let name = format!("late-{on_failure}");
        let envoy = Envoy::start(1, &in_memory(&name, &policy("p", 1000, cost), "", &store));
        let stream = envoy.request(0, Request::get("/").with_body());
        arm(&envoy, "late");
        assert_eq!(stream.status(), status, "{on_failure}");
        stream.end();
        recovers(&envoy);
    }
    assert!(logged(&["request body panicked"]));
}

#[test]
fn requests_that_wait_are_decided_when_the_hook_of_another_one_panics() {
    if alone("panics::requests_that_wait_are_decided_when_the_hook_of_another_one_panics").is_some()
    {
        return;
    }
    for point in ["arrive", "waits", "send_calls"] {
        let store = r#","on_failure":"deny""#;
        let envoy = Envoy::start(1, &behind_cluster(&policy("p", 100, ""), "", store));
        let streams: Vec<_> = (0..4).map(|_| envoy.request(0, Request::get("/"))).collect();
        envoy.callout(0);
        arm(&envoy, point);
        let other = envoy.request(0, Request::get("/"));
        assert_eq!(other.status(), 503, "{point}");
        let begun = Instant::now();
        for stream in &streams {
            assert_eq!(stream.status(), 503, "{point}");
        }
        // Their deadline is 20 seconds away.
        assert!(begun.elapsed() < Duration::from_secs(5), "{point}: {:?}", begun.elapsed());
        for stream in streams.iter().chain([&other]) {
            stream.end();
        }
        // The main thread may still have to make calls of the old worker.
        envoy.main.run(|| ());
        // The end of a call of the old worker means nothing to the new one.
        let known = envoy.calls().len();
        let stream = envoy.request(0, Request::get("/"));
        let call = envoy.callout(known);
        envoy.end_callout(envoy.calls()[0].number, 0, OK, &grant(9, 9, 100));
        assert!(stream.is_held(), "{point}");
        envoy.end_callout(call.number, 0, OK, &grant(1, 5, 100));
        assert_eq!(stream.status(), 0, "{point}");
    }
}

#[test]
fn panic_while_decisions_are_carried_out_leaves_no_request_stuck() {
    if alone("panics::panic_while_decisions_are_carried_out_leaves_no_request_stuck").is_some() {
        return;
    }
    for point in ["decide", "carry_out"] {
        let envoy = deny(&format!("decisions-{point}"));
        for _ in 0..20 {
            arm(&envoy, point);
            let streams: Vec<_> = (0..4).map(|_| envoy.request(0, Request::get("/"))).collect();
            for stream in &streams {
                let status = stream.status();
                assert!([0, 503].contains(&status), "{point}: {status}");
                stream.respond(200, &[], true);
                stream.end();
            }
        }
        recovers(&envoy);
        assert!(envoy.counter("quotagate_panics", &[]) > 0, "{point}");
    }
}

#[test]
fn panic_in_a_response_or_at_the_end_of_a_stream_harms_no_other() {
    if alone("panics::panic_in_a_response_or_at_the_end_of_a_stream_harms_no_other").is_some() {
        return;
    }
    let counted = r#","count":{"status":[401],"abandoned":"refund"}"#;
    let envoy = Envoy::start(1, &in_memory("ends", &policy("p", 1000, counted), "", ""));
    for point in ["response", "complete"] {
        let stream = envoy.request(0, Request::get("/"));
        assert_eq!(stream.status(), 0);
        arm(&envoy, point);
        stream.respond(200, &[], true);
        stream.end();
        recovers(&envoy);
    }
    assert_eq!(envoy.counter("quotagate_panics", &[]), 2);
    assert!(logged(&["end of a stream panicked"]));
}

#[test]
fn panic_on_the_tick_thread_does_not_end_it() {
    if alone("panics::panic_on_the_tick_thread_does_not_end_it").is_some() {
        return;
    }
    let store = r#","on_failure":"deny","timeout":"60s""#;
    let envoy = Envoy::start(1, &behind_cluster(&policy("p", 100, ""), "", store));
    let streams: Vec<_> = (0..3).map(|_| envoy.request(0, Request::get("/"))).collect();
    envoy.callout(0);
    test_faults::arm_tick_thread("tick");
    let begun = Instant::now();
    for stream in &streams {
        assert_eq!(stream.status(), 503);
        stream.end();
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(logged(&["tick panicked"]));
    let envoy = deny("after-tick");
    recovers(&envoy);
}
