//! The fleets that are compared: one base, and changes to it.

use std::num::NonZeroU32;
use std::time::Duration;

use quotagate_protocol::MAX_UNITS;

use crate::setup::{Precision, Setup, Spread};

/// A run and its names in the table.
#[derive(Clone, Debug)]
pub struct Run {
    /// What differs from the base.
    pub fleet: String,
    /// How exactly the policy counts.
    pub precision: &'static str,
    /// The run.
    pub setup: Setup,
}

const EXACT: (&str, Precision) = ("exact", Precision::Exact);
const LEASE_100MS: (&str, Precision) = ("lease 100ms", lease(100));
const LEASE_1S: (&str, Precision) = ("lease 1s", lease(1_000));
const LEASE_10S: (&str, Precision) = ("lease 10s", lease(10_000));

const fn lease(ms: u64) -> Precision {
    Precision::Lease { ahead: Duration::from_millis(ms) }
}

/// How many proxies carry a partition if not all do.
const FEW: NonZeroU32 = NonZeroU32::MIN.saturating_add(3);
/// The chance that a message is lost, and that it is late, on a bad network.
const BAD: f64 = 0.01;

/// The runs of a fleet: with its quota, which hot partitions reach, and with each change to it.
pub fn runs(base: &Setup) -> Vec<Run> {
    let all = [EXACT, LEASE_100MS, LEASE_1S, LEASE_10S];
    let few = [EXACT, LEASE_1S];
    let mut runs = Vec::new();
    let mut add = |fleet: String, precisions: &[(&'static str, Precision)], setup: &Setup| {
        runs.extend(precisions.iter().map(|&(name, precision)| Run {
            fleet: fleet.clone(),
            precision: name,
            setup: Setup { precision, ..setup.clone() },
        }));
    };
    let change = |change: fn(&mut Setup)| {
        let mut setup = base.clone();
        change(&mut setup);
        setup
    };
    add(format!("quota {}", base.quota), &all, base);
    let unreached = change(|setup| setup.quota = UNREACHED);
    add("a quota nobody reaches".to_owned(), &all, &unreached);
    let bad = change(|setup| {
        setup.network.lost = BAD;
        setup.network.late = BAD;
    });
    add(format!("{} % lost, {} % late", BAD * 100.0, BAD * 100.0), &few, &bad);
    let spread = change(|setup| {
        setup.quota = UNREACHED;
        setup.fleet.spread = Spread::Few(FEW);
    });
    add(format!("each partition through {FEW} proxies"), &few, &spread);
    let busy = change(|setup| {
        setup.quota = UNREACHED;
        setup.fleet.proxies = NonZeroU32::MIN.max(tenth(setup.fleet.proxies));
    });
    add(format!("{} proxies, each ten times as busy", busy.fleet.proxies), &few, &busy);
    let one = change(|setup| {
        setup.quota = UNREACHED;
        setup.fleet.partitions = NonZeroU32::MIN;
    });
    add("one counter for all".to_owned(), &few, &one);
    runs
}

/// No partition of any fleet demands so much.
const UNREACHED: u64 = MAX_UNITS;

fn tenth(n: NonZeroU32) -> NonZeroU32 {
    NonZeroU32::new(n.get() / 10).unwrap_or(NonZeroU32::MIN)
}

impl Run {
    /// The first cells of its row.
    pub fn title(&self) -> String {
        format!("{}, {}", self.precision, self.fleet)
    }
}
