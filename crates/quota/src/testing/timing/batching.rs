//! How many calls a request costs, and how long it waits: the model of `docs/design/batching.md`
//! against the worker.

use super::*;
use crate::worker::GATHER;

/// The document whose numbers are checked.
const DOCUMENT: &str = include_str!("../../../../../docs/design/batching.md");

/// Calls per request by Little's law, at `rate` requests a second and calls of `us` microseconds.
fn model(rate: u64, us: u64) -> f64 {
    let (rate, trip, gather) = (rate as f64 / 1e6, us as f64, GATHER.as_micros() as f64);
    let between =
        if trip <= gather { trip + (-rate * trip).exp() / rate } else { gather + 2.0 / rate };
    1.0 / (rate * between)
}

/// The rows of the first table: rate, round trip, and the cells after them.
fn rows() -> impl Iterator<Item = (u64, u64, Vec<f64>)> {
    let cells = |line: &str| {
        line.trim_matches('|').split('|').map(|cell| cell.trim().parse::<f64>().ok()).collect()
    };
    DOCUMENT.lines().filter(|line| line.starts_with('|')).filter_map(move |line| {
        let cells: Option<Vec<f64>> = cells(line);
        let [rate, ms, rest @ ..] = cells.as_deref()? else { return None };
        Some((*rate as u64, (ms * 1000.0) as u64, rest.to_vec()))
    })
}

fn near(a: f64, b: f64, percent: f64) -> bool {
    (a - b).abs() <= b.abs() * percent / 100.0
}

#[test]
fn calls_and_waits_match_the_model() {
    let mut checked = 0;
    for (rate, us, cells) in rows() {
        let [said, simulated, p50, p99] = cells[..] else { panic!("{cells:?}") };
        let seconds = (30_000 / rate).clamp(1, 30);
        let measured = run(
            exact(),
            Traffic { rate, partitions: 1, together: 1 },
            Wire::steady(us),
            1,
            seconds,
        );
        let calls = measured.calls_a_request();
        let case = format!("{rate}/s, {us} us");
        assert!(near(model(rate, us), said, 2.0), "{case}: the model says {}", model(rate, us));
        assert!(near(calls, said, 8.0), "{case}: {calls} calls a request, the model says {said}");
        assert!(near(calls, simulated, 4.0), "{case}: {calls} calls a request");
        for (percent, ms) in [(50, p50), (99, p99)] {
            let wait = measured.wait_us(percent) as f64 / 1000.0;
            assert!(near(wait, ms, 8.0), "{case}: p{percent} {wait} ms");
        }
        checked += 1;
    }
    assert!(checked >= 12, "{checked}");
}

#[test]
fn one_slow_call_does_not_double_the_calls_for_good() {
    let traffic = Traffic { rate: 20_000, partitions: 1, together: 1 };
    let steady = run(exact(), traffic, Wire::steady(500), 1, 2);
    // One call in a hundred takes 10 ms, during which the others leave after 5 ms.
    let stalls = run(exact(), traffic, Wire { usual_us: 500, slow_us: 10_000 }, 1, 2);
    let (calls, usual) = (stalls.calls_a_request(), steady.calls_a_request());
    assert!(calls <= usual, "{calls} calls a request, {usual} without stalls");
    assert!(stalls.wait_us(50) < 1_000 && stalls.wait_us(99) < 7_000, "{} us", stalls.wait_us(99));
}

#[test]
fn a_lone_request_waits_for_its_own_call_only() {
    for us in [100, 500, 2_000] {
        let lone = run(
            exact(),
            Traffic { rate: 10, partitions: 1, together: 1 },
            Wire::steady(us),
            0,
            100,
        );
        assert!(lone.wait_us(50) == us && lone.wait_us(90) == us, "{us}");
    }
}
