//! What leases save, and that they never cost more than counting exactly.

use super::*;

/// Calls and items per request, after the worker's refills have reached a steady size.
fn cost(precision: Precision, rate: u32, partitions: u32) -> (f64, f64) {
    let measured = run(precision, Traffic { rate, partitions, together: 1 }, steady(500), 12, 3);
    (measured.calls_a_request(), measured.scripts_a_request())
}

#[test]
fn a_lease_that_holds_units_saves_calls_and_items() {
    for (rate, partitions, ahead_ms, most_calls, most_items) in [
        (20_000, 1, 100, 0.003, 0.003),
        (4_000, 1_000, 1_000, 0.04, 0.5),
        // A lease holds forty units and a refill takes half of them: one item in twenty requests.
        (4_000, 1_000, 10_000, 0.004, 0.055),
        (15_000, 1_000, 1_000, 0.001, 0.13),
    ] {
        let (calls, items) = cost(leased(ahead_ms), rate, partitions);
        let case = format!("{rate}/s of {partitions}, {ahead_ms} ms ahead");
        assert!(
            calls <= most_calls && items <= most_items,
            "{case}: {calls} calls, {items} items a request"
        );
    }
}

#[test]
fn a_tiny_lease_costs_no_more_than_exact_counting() {
    // A lease of 0.4 units holds none. One of 1.5 units holds one, and every other request finds
    // it.
    for (rate, most_items) in [(4_000, 1.01), (15_000, 0.6)] {
        let (calls, items) = cost(leased(100), rate, 1_000);
        let (exact_calls, exact_items) = cost(Precision::Exact, rate, 1_000);
        assert!(
            calls <= exact_calls * 1.01,
            "{rate}/s: {calls} calls a request, exact {exact_calls}"
        );
        assert!(
            items <= exact_items * most_items,
            "{rate}/s: {items} items a request, exact {exact_items}"
        );
    }
}

#[test]
fn silence_between_bursts_does_not_end_a_lease() {
    // Before each burst came what a silence of many mean gaps refunded: 52 and 45 calls a second.
    for (rate, together, most) in [(5_000, 128, 22), (5_000, 32, 16), (500, 10, 20)] {
        let traffic = Traffic { rate, partitions: 1, together };
        let of = |precision| run(precision, traffic, steady(500), 12, 6).measured.calls / 6;
        let (calls, exact) = (of(leased(100)), of(Precision::Exact));
        assert!(
            calls <= most && calls * 3 < exact,
            "{rate}/s, {together} at once: {calls} calls a second, exact {exact}"
        );
    }
}
