//! How many calls a request costs, and how long it waits: the model of `docs/design/batching.md`
//! against the worker.

use quotagate_scale::batching::model;

use super::*;

const MS: Duration = Duration::from_millis(1);
/// The document whose numbers are checked.
const DOCUMENT: &str = include_str!("../../../../docs/design/batching.md");

/// Calls per request by the model.
fn predicted(rate: u32, round_trip: Duration) -> f64 {
    1.0 / model(rate.into(), round_trip).items
}

/// The rows of the first table: rate, round trip, and the cells after them.
fn rows() -> impl Iterator<Item = (u32, u64, Vec<f64>)> {
    let cells = |line: &str| {
        line.trim_matches('|').split('|').map(|cell| cell.trim().parse::<f64>().ok()).collect()
    };
    DOCUMENT.lines().filter(|line| line.starts_with('|')).filter_map(move |line| {
        let cells: Option<Vec<f64>> = cells(line);
        let [rate, ms, rest @ ..] = cells.as_deref()? else { return None };
        Some((*rate as u32, (ms * 1000.0) as u64, rest.to_vec()))
    })
}

/// The time within which this part of the requests was decided.
fn waited(report: &Report, part: f64) -> Duration {
    report.measured.waits.quantile(part)
}

fn near(a: f64, b: f64, percent: f64) -> bool {
    (a - b).abs() <= b.abs() * percent / 100.0
}

#[test]
fn calls_and_waits_match_the_model() {
    let mut checked = 0;
    for (rate, us, cells) in rows() {
        let [said, simulated, p50, p99] = cells[..] else { panic!("{cells:?}") };
        let seconds = u64::from(30_000 / rate).clamp(1, 30);
        let measured = run(
            Precision::Exact,
            Traffic { rate, partitions: 1, together: 1 },
            steady(us),
            1,
            seconds,
        );
        let calls = measured.calls_a_request();
        let case = format!("{rate}/s, {us} us");
        let model = predicted(rate, Duration::from_micros(us));
        assert!(near(model, said, 2.0), "{case}: the model says {model}");
        assert!(near(calls, said, 8.0), "{case}: {calls} calls a request, the model says {said}");
        assert!(near(calls, simulated, 4.0), "{case}: {calls} calls a request");
        for (part, ms) in [(0.50, p50), (0.99, p99)] {
            let wait = waited(&measured, part).as_secs_f64() * 1000.0;
            assert!(near(wait, ms, 8.0), "{case}: {part} of all requests waited {wait} ms");
        }
        checked += 1;
    }
    assert!(checked >= 12, "{checked}");
}

#[test]
fn one_slow_call_does_not_double_the_calls_for_good() {
    let traffic = Traffic { rate: 20_000, partitions: 1, together: 1 };
    let usual = run(Precision::Exact, traffic, steady(500), 1, 2);
    // One call in a hundred takes 10 ms, during which the others leave after 5 ms.
    let stalls = run(
        Precision::Exact,
        traffic,
        NetworkSetup { slow: Some(Duration::from_millis(10)), ..steady(500) },
        1,
        2,
    );
    let (calls, usual) = (stalls.calls_a_request(), usual.calls_a_request());
    assert!(calls <= usual, "{calls} calls a request, {usual} without stalls");
    assert!(
        waited(&stalls, 0.50) < MS && waited(&stalls, 0.99) < 7 * MS,
        "{:?}",
        waited(&stalls, 0.99)
    );
}

#[test]
fn a_lone_request_waits_for_its_own_call_only() {
    for us in [100, 500, 2_000] {
        let lone = run(
            Precision::Exact,
            Traffic { rate: 10, partitions: 1, together: 1 },
            steady(us),
            0,
            100,
        );
        let us = Duration::from_micros(us);
        assert_eq!((waited(&lone, 0.50), waited(&lone, 0.90)), (us, us));
    }
}
