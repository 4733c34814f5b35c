//! Policies of every kind at once: exact and leased, counting by status and counting what they
//! refuse, settled and not, enforced and shadow, with several costs.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::OnFailure;

use super::world::{COST, COUNTED, World, WorldSetup};
use super::{Random, seeds};
use crate::config::{
    Abandoned, Config, CostSource, Count, CountedResponses, LiveDocument, MissingCost, Policy,
    Precision, Settle,
};
use crate::worker::known::local::share;

const SETUP: WorldSetup = WorldSetup {
    workers: 3,
    parties: 2,
    rate: 2,
    cost: 3,
    loss: 0,
    late: true,
    moves_every: 0,
    redirects: 10,
    swaps: 0,
    removes: false,
    new_quotas: false,
    new_windows: false,
};

/// Policies `a` and `b` are enforced, `c` only counts.
fn config(window: &str) -> Config {
    let policy = |name, mode| {
        format!(
            r#"{{"name":"{name}","partition_by":[],"quota":40,"window":"{window}","mode":"{mode}"}}"#
        )
    };
    let text = format!(
        r#"{{"domain":"d","store":{{"cluster":"c","timeout":"50ms","on_failure":"deny"}},"policies":[{},{},{}]}}"#,
        policy("a", "enforce"),
        policy("b", "enforce"),
        policy("c", "shadow"),
    );
    let mut config = Config::parse(text.as_bytes()).unwrap();
    config.live = Some(LiveDocument::default());
    config
}

/// The same, with random quotas and kinds of policies.
fn varied(seed: u64, window: &str) -> Config {
    let (mut config, mut random) = (config(window), Random(!seed));
    let abandoned = random.of(&[Abandoned::Count, Abandoned::Refund]);
    for policy in &mut config.policies {
        policy.quota = random.of(&[40, 300, 1000]);
        match random.below(4) {
            0 => policy.count_denied = true,
            1 | 2 => policy.precision = lease(random.of(&[10, 50, 100]), random.of(&[3, 1000])),
            _ => {}
        }
        if !policy.count_denied && policy.precision == Precision::Exact && random.percent(60) {
            let missing =
                random.of(&[MissingCost::Reserved, MissingCost::Units(1), MissingCost::Units(4)]);
            let sources = [CostSource::Header(COST.into())].into();
            policy.settle = Some(Arc::new(Settle { sources, missing }));
        }
        if random.percent(30) {
            policy.count = Count::Responses(CountedResponses {
                statuses: [COUNTED].into(),
                abandoned,
                ..CountedResponses::default()
            });
        }
    }
    config
}

fn lease(ahead_ms: u64, max: u64) -> Precision {
    Precision::Lease { ahead: Duration::from_millis(ahead_ms), max: NonZeroU64::new(max).unwrap() }
}

/// The policy of a counter.
fn policy<'a>(world: &'a World, key: &str) -> &'a Policy {
    world.config.policies.iter().find(|p| key.starts_with(&format!("d:{}:", p.name))).unwrap()
}

#[test]
fn invariant_1_never_over_whatever_is_lost_or_late() {
    for seed in seeds(150) {
        let window = ["366d", "1s"][seed as usize % 2];
        let (loss, swaps) = ([0, 5, 30][seed as usize % 3], [0, 1, 20][seed as usize / 3 % 3]);
        let (new_quotas, new_windows) = (seed % 4 > 1, seed % 8 > 3);
        let setup = WorldSetup { loss, swaps, new_quotas, new_windows, ..SETUP };
        // The world checks every admission: no window admits more than the largest of its quotas,
        // so a policy whose window changes admits at most what the old one and the new one do.
        let mut world = World::new(seed, varied(seed, window), setup).run(1_800);
        assert!(!world.admitted.is_empty(), "seed {seed}");
        world.statistics_are_true();
    }
}

#[test]
fn invariant_3_nothing_is_admitted_that_the_store_has_not_counted() {
    for seed in seeds(60) {
        let (loss, swaps) = ([0, 5, 30][seed as usize % 3], [0, 1, 20][seed as usize / 3 % 3]);
        let (new_quotas, new_windows) = (seed % 4 > 1, seed % 8 > 3);
        let setup = WorldSetup { loss, swaps, removes: true, new_quotas, new_windows, ..SETUP };
        let world = World::new(seed, varied(seed, "1s"), setup).run(1_800);
        for (counter, admitted) in &world.admitted {
            assert!(
                *admitted <= world.store.used(counter),
                "seed {seed}: {admitted} of {counter:?}"
            );
        }
    }
}

#[test]
fn invariant_3_what_is_counted_is_admitted_or_refunded_while_nothing_is_lost() {
    for seed in seeds(100) {
        // Many windows would hide units that a worker keeps. So there is one window, with time for
        // refunds at its end.
        let (late, swaps) = (seed % 2 == 0, [0, 1, 20][seed as usize / 2 % 3]);
        let removes = seed % 3 == 0;
        let setup = WorldSetup { late, swaps, removes, new_quotas: seed % 4 > 1, ..SETUP };
        let mut world = World::new(seed, varied(seed, "366d"), setup).run(1_500).drain();
        for counter in world.store.counters() {
            let (used, key) = (world.store.used(counter), &*counter.0);
            let admitted = world.admitted.get(counter).copied().unwrap_or_default();
            let charged = world.charged.get(counter).copied().unwrap_or_default();
            let (mut least, mut most) = (admitted + charged, admitted + charged);
            if policy(&world, key).count_denied {
                let refused = world.refused.get(counter).copied().unwrap_or_default();
                most += refused + world.unseen.get(key).copied().unwrap_or_default();
                // The store may never have seen a request that the worker refuses after its
                // timeout.
                least += if late { 0 } else { refused };
            }
            assert!(
                (least..=most).contains(&used),
                "seed {seed}: {used}, not {least} to {most} of {counter:?}"
            );
        }
        if !removes {
            world.statistics_are_true();
        }
        assert!(world.is_idle(), "seed {seed}: a worker is not idle");
    }
}

#[test]
fn a_demanded_quota_is_used_up() {
    for seed in seeds(50) {
        // Long enough for a recheck after the last refund.
        let world = World::new(seed, config("366d"), SETUP).run(3_300).drain();
        for (counter, admitted) in &world.admitted {
            assert_eq!(*admitted, world.store.used(counter), "seed {seed}: {counter:?}");
            assert!(
                *admitted > 40 - 3,
                "seed {seed}: {admitted} of {counter:?}: no cost fits into what may be left"
            );
        }
    }
}

#[test]
fn a_worker_on_its_own_admits_no_more_than_its_share() {
    for seed in seeds(100) {
        let (mut config, mut random) = (varied(seed, "366d"), Random(seed));
        for policy in &mut config.policies {
            policy.on_failure = random.of(&[OnFailure::Allow, OnFailure::Deny, OnFailure::Local]);
        }
        let setup = WorldSetup { loss: random.of(&[30, 60, 100]), ..SETUP };
        let mut world = World::new(seed, config, setup).run(1_500);
        for ((worker, counter), admitted) in &world.local {
            let most = share(counter.quota, world.config.store.local_share);
            assert!(
                *admitted <= most,
                "seed {seed}: {admitted} of {most} by {worker} of {counter:?}"
            );
        }
        world.statistics_are_true();
    }
}
