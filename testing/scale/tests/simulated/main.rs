//! Fleets in virtual time, and what the decisions of one worker cost in calls, items and waiting:
//! equal requests that arrive at random moments.

#![cfg(test)]

mod batching;
mod fleet;
mod leases;
mod store;

use std::num::NonZeroU32;
use std::time::Duration;

use quotagate_scale::report::Report;
use quotagate_scale::setup::{Fleet, NetworkSetup, Precision, Setup, Spread};
use quotagate_scale::world;

/// Requests at random moments, each for a random partition.
#[derive(Clone, Copy)]
struct Traffic {
    /// Requests a second, of all partitions together.
    rate: u32,
    partitions: u32,
    /// Requests that arrive at the same moment.
    together: u32,
}

/// A network whose calls all take so long.
fn steady(us: u64) -> NetworkSetup {
    let round_trip = Duration::from_micros(us);
    NetworkSetup { round_trip, sigma: 0.0, slow: None, lost: 0.0, late: 0.0 }
}

fn leased(ms: u64) -> Precision {
    Precision::Lease { ahead: Duration::from_millis(ms) }
}

/// Runs `traffic` for `warm_up` seconds and then measures it for `seconds`. There is more quota
/// than the traffic uses, and the store admits every request.
fn run(
    precision: Precision,
    traffic: Traffic,
    network: NetworkSetup,
    warm_up: u64,
    seconds: u64,
) -> Report {
    let count = |n| NonZeroU32::new(n).unwrap();
    let setup = Setup {
        fleet: Fleet {
            proxies: NonZeroU32::MIN,
            partitions: count(traffic.partitions),
            zipf: 0.0,
            rate: traffic.rate.into(),
            together: count(traffic.together),
            spread: Spread::All,
        },
        network,
        quota: 100_000_000,
        window_s: count(3_600),
        precision,
        length: Duration::from_secs(warm_up + seconds),
        warm_up: Duration::from_secs(warm_up),
        seed: u64::from(traffic.rate + traffic.partitions),
    };
    let report = world::run(&setup, |_| ()).unwrap();
    assert_eq!(report.fault(), None, "{setup:?}");
    assert_eq!((report.measured.refused, report.measured.unavailable), (0, 0), "{setup:?}");
    report
}
