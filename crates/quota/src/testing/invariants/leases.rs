//! Leases: three proxies of two workers each, and traffic that moves between them.

use std::num::NonZeroU64;
use std::time::Duration;

use super::seeds;
use super::world::{World, WorldSetup};
use crate::config::{Config, LiveDocument, Precision};

const SETUP: WorldSetup = WorldSetup {
    workers: 6,
    parties: 1,
    rate: 6,
    cost: 1,
    loss: 0,
    late: true,
    moves_every: 200,
    redirects: 0,
    swaps: 0,
    removes: false,
    new_quotas: false,
    new_windows: false,
};

fn config(quota: u64, window: &str) -> Config {
    let text = format!(
        r#"{{"domain":"d","store":{{"cluster":"c","timeout":"50ms","on_failure":"deny"}},
            "policies":[{{"name":"a","partition_by":[],"quota":{quota},"window":"{window}"}}]}}"#
    );
    let mut config = Config::parse(text.as_bytes()).unwrap();
    config.policies[0].precision =
        Precision::Lease { ahead: Duration::from_millis(100), max: NonZeroU64::new(1000).unwrap() };
    config.live = Some(LiveDocument::default());
    config
}

#[test]
fn invariant_1_never_over_whatever_traffic_does() {
    for seed in seeds(60) {
        let (loss, swaps) = ([0, 5, 30][seed as usize % 3], [0, 1, 20][seed as usize / 3 % 3]);
        let (new_quotas, new_windows) = (seed % 4 > 1, seed % 8 > 3);
        let setup = WorldSetup {
            loss,
            cost: 1 + seed % 4,
            swaps,
            removes: true,
            new_quotas,
            new_windows,
            ..SETUP
        };
        let (quota, window) = [(2_000, "1s"), (5_000, "366d"), (300, "1s")][seed as usize % 3];
        World::new(seed, config(quota, window), setup).run(2_500);
    }
}

#[test]
fn invariant_3_all_units_are_refunded_when_traffic_stops() {
    for seed in seeds(30) {
        let (swaps, removes) = ([0, 1, 20][seed as usize % 3], seed % 2 == 0);
        let setup = WorldSetup { swaps, removes, new_quotas: seed % 4 > 1, ..SETUP };
        let mut world = World::new(seed, config(1_000_000, "366d"), setup).run(700).drain();
        for counter in world.store.counters() {
            let admitted = world.admitted.get(counter).copied().unwrap_or_default();
            assert_eq!(admitted, world.store.used(counter), "seed {seed}: {counter:?}");
        }
        if !removes {
            world.statistics_are_true();
        }
        assert!(world.is_idle(), "seed {seed}");
    }
}

#[test]
fn leases_admit_98_percent_of_a_demanded_quota() {
    for seed in seeds(10) {
        // About 28,000 requests in the window: from nearly three times the quota to little more
        // than the quota.
        for quota in [10_000, 20_000, 26_000] {
            let world = World::new(seed, config(quota, "10s"), SETUP).run(10_100);
            assert!(!world.refused.is_empty(), "seed {seed}: {quota} are demanded");
            let admitted = world
                .admitted
                .iter()
                .find(|((_, window), _)| *window == 100)
                .map(|(_, units)| *units);
            assert!(
                admitted.is_some_and(|units| units * 100 >= quota * 98),
                "seed {seed}: {admitted:?} of {quota}"
            );
        }
    }
}

#[test]
fn leases_admit_98_percent_over_many_short_windows() {
    let (mut windows, mut all) = (0, 0);
    for seed in seeds(20) {
        // A worker that knows that the counter is used up rechecks it after a second, so units of a
        // late refund are lost.
        let world = World::new(seed, config(2_000, "1s"), SETUP).run(3_100);
        for window in 1_000..1_003 {
            let admitted = world.admitted[&("d:a:{ip=0}".into(), window)];
            assert!(admitted >= 2_000 * 94 / 100, "seed {seed}: {admitted} in window {window}");
            (windows, all) = (windows + 1, all + admitted);
        }
    }
    assert!(all * 100 >= windows * 2_000 * 98, "{all} in {windows} windows");
}
