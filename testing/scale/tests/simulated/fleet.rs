//! A small fleet, in a second of virtual time.

use std::num::NonZeroU32;
use std::time::Duration;

use quotagate_scale::batching::{model, simulated};
use quotagate_scale::report::Report;
use quotagate_scale::setup::{Fleet, NetworkSetup, Precision, Setup, Spread};
use quotagate_scale::world;

const LEASE: Precision = Precision::Lease { ahead: Duration::from_millis(100) };

/// 20 proxies and 10,000 partitions; about a tenth of all requests is for the first partition. 1 ms
/// to the store.
fn fleet() -> Setup {
    Setup {
        fleet: Fleet {
            proxies: NonZeroU32::new(20).unwrap(),
            partitions: NonZeroU32::new(10_000).unwrap(),
            zipf: 1.0,
            rate: 10_000.0,
            together: NonZeroU32::MIN,
            spread: Spread::All,
        },
        network: NetworkSetup {
            round_trip: Duration::from_millis(1),
            sigma: 0.5,
            slow: None,
            lost: 0.0,
            late: 0.0,
        },
        quota: 1_000_000,
        window_s: NonZeroU32::MIN,
        precision: Precision::Exact,
        length: Duration::from_secs(1),
        warm_up: Duration::ZERO,
        seed: 1,
    }
}

/// The report of a run without over-admission and without undecided requests.
fn run(setup: &Setup) -> Report {
    let report = world::run(setup, |_| ()).unwrap();
    assert_eq!(report.fault(), None, "{setup:?}");
    report
}

#[test]
fn invariant_1_no_counter_of_a_fleet_admits_more_than_its_quota() {
    for precision in [Precision::Exact, LEASE] {
        for (lost, late) in [(0.0, 0.0), (0.05, 0.05)] {
            for (seed, quota) in [(1, 40), (2, 200)] {
                let network = NetworkSetup { lost, late, ..fleet().network };
                let report = run(&Setup { precision, network, seed, quota, ..fleet() });
                let totals = report.totals;
                assert!(
                    totals.reached > 0 && report.measured.refused > 0,
                    "hot partitions reach {quota}"
                );
                assert!(
                    totals.demanded > totals.within && totals.reached < 1_000,
                    "and others do not"
                );
                let fails = lost > 0.0;
                assert_eq!(report.measured.unavailable > 0, fails);
                let least = if fails { 0.7 } else { 0.98 };
                assert!(
                    report.of_reached() > least,
                    "{precision:?} {quota}: {}",
                    report.of_reached()
                );
                assert!(
                    report.of_within() > least,
                    "{precision:?} {quota}: {}",
                    report.of_within()
                );
            }
        }
    }
}

#[test]
fn leases_send_fewer_scripts_for_hot_traffic() {
    let (exact, lease) = (run(&fleet()), run(&Setup { precision: LEASE, ..fleet() }));
    assert!(exact.hottest() > 750.0, "{}", exact.hottest());
    assert!(lease.hottest() < exact.hottest() / 2.0, "{} of {}", lease.hottest(), exact.hottest());
    assert!(lease.measured.waits.waited() < exact.measured.waits.waited());

    let mut one = fleet();
    one.fleet.partitions = NonZeroU32::MIN;
    let (exact, lease) = (run(&one), run(&Setup { precision: LEASE, ..one }));
    let (exact, lease) = (exact.scripts_a_request(), lease.scripts_a_request());
    assert!(lease < exact / 10.0, "{lease} of {exact}");
}

#[test]
fn same_seed_gives_the_same_run() {
    for precision in [Precision::Exact, LEASE] {
        let setup = Setup { precision, quota: 200, ..fleet() };
        let essence = |setup: &Setup| {
            let report = run(setup);
            (report.totals, report.work.reservations, report.work.refunds, report.measured.calls)
        };
        assert_eq!(essence(&setup), essence(&setup), "{precision:?}");
        assert_ne!(essence(&setup), essence(&Setup { seed: 9, ..setup.clone() }), "{precision:?}");
    }
}

#[test]
fn memory_of_workers_is_measured() {
    let exact = run(&fleet()).memory;
    let lease = run(&Setup { precision: LEASE, ..fleet() }).memory;
    assert!(exact.most <= exact.all && lease.most <= lease.all);
    assert!((20 * 1024..20 * 64 * 1024).contains(&exact.all), "{exact:?}");
    assert!(lease.all > exact.all, "leases are held: {lease:?}");
}

#[test]
fn littles_law_predicts_calls_and_items() {
    for (micros, rate) in
        [(200, 1_000.0), (200, 10_000.0), (1_000, 1_000.0), (1_000, 10_000.0), (4_000, 1_000.0)]
    {
        let round_trip = Duration::from_micros(micros);
        let (model, simulated) = (model(rate, round_trip), simulated(rate, round_trip).unwrap());
        for (what, model, simulated) in [
            ("calls", model.calls, simulated.calls),
            ("items", model.items, simulated.items),
            ("under way", model.under_way, simulated.under_way),
        ] {
            let off = (simulated / model - 1.0).abs();
            assert!(
                off < 0.05,
                "{what} at {rate}/s and {round_trip:?}: {simulated}, by the model {model}"
            );
        }
    }
}
