//! The worlds to search, and what the search must find.

use std::time::Duration;

use super::network::Repeats;
use super::properties::Property;
use super::*;
use crate::config::{Abandoned, Count, CountedResponses, LiveDocument, Policy, Precision};
use crate::config::{MissingCost, Settle};

/// A moment at which windows of a second and of a minute begin.
const BEGIN: u64 = 960_000;

/// Policies `a` and `b`, both enforced.
fn config(quota: u64, window: &str, edit: impl Fn(&mut Policy)) -> Arc<Config> {
    let policy = |name| {
        format!(r#"{{"name":"{name}","partition_by":[],"quota":{quota},"window":"{window}"}}"#)
    };
    let text = format!(
        r#"{{"domain":"d","store":{{"cluster":"c","timeout":"{TIMEOUT_MS}ms","on_failure":"deny"}},
            "policies":[{},{}]}}"#,
        policy("a"),
        policy("b"),
    );
    let mut config = Config::parse(text.as_bytes()).unwrap();
    config.live = Some(LiveDocument::default());
    config.policies.iter_mut().for_each(edit);
    Arc::new(config)
}

/// The same policies in the other order, or only `b`.
fn reordered(config: &Arc<Config>, has_both: bool) -> Arc<Config> {
    let mut published = (**config).clone();
    published.policies.reverse();
    published.policies.truncate(1 + usize::from(has_both));
    Arc::new(published)
}

fn lease(policy: &mut Policy) {
    let (ahead, max) = (Duration::from_secs(1), NonZeroU64::new(1000).unwrap());
    policy.precision = Precision::Lease { ahead, max };
}

/// Two workers that count exactly in one window with quota 2. Nothing goes wrong.
fn plain(requests: &[ArrivalKind]) -> SearchSetup {
    SearchSetup {
        config: config(2, "366d", |_| {}),
        workers: 2,
        requests: requests.to_vec(),
        taken: 0,
        costs: &[],
        faults: 0,
        departures: 0,
        redirects: 0,
        swaps: 0,
        published: config(2, "366d", |_| {}),
        moments: moments(&[0, 10, 60, 70]),
        repeats: Repeats::Nothing,
    }
}

fn moments(after: &[u64]) -> Vec<u64> {
    after.iter().map(|ms| BEGIN + ms).collect()
}

/// The `usual` world, changed by `larger` if the environment asks for larger worlds.
fn sized(usual: SearchSetup, larger: impl FnOnce(&mut SearchSetup)) -> SearchSetup {
    let mut setup = usual;
    if std::env::var("QUOTAGATE_MODEL").is_ok_and(|scale| scale != "1") {
        larger(&mut setup);
    }
    setup
}

/// Asserts that every state is right, and that there are more than this many thousand states.
fn is_right(setup: &SearchSetup, thousands: usize) {
    let explored = setup.explore(&Property::ALL);
    assert!(explored.wrong.is_none(), "{:#?}", explored.wrong);
    assert!(explored.quiet > 0, "no history comes to its end");
    assert!(explored.states > thousands * 1000, "{} states", explored.states);
}

#[test]
fn units_are_refunded_if_another_policy_refuses() {
    let setup = plain(&[(&[0, 1], 1, 2), (&[1], 1, 1)]);
    is_right(&sized(setup, |setup| setup.requests[1].2 = 2), 100);
}

#[test]
fn different_costs_share_a_counter() {
    let setup =
        SearchSetup { config: config(3, "366d", |_| {}), ..plain(&[(&[0], 1, 2), (&[0], 2, 1)]) };
    is_right(&sized(setup, |setup| setup.requests[0].2 = 3), 100);
}

#[test]
fn calls_fail_before_and_after_the_store_has_carried_them_out() {
    let setup = SearchSetup { faults: 2, ..plain(&[(&[0], 1, 3)]) };
    is_right(&sized(setup, |setup| setup.requests[0].2 = 4), 100);
}

#[test]
fn clients_leave_while_they_wait() {
    let setup = SearchSetup { departures: 1, moments: moments(&[0, 60]), ..plain(&[(&[0], 1, 3)]) };
    is_right(&sized(setup, |setup| setup.faults = 1), 10);
}

#[test]
fn three_workers_share_a_counter() {
    let setup = SearchSetup { workers: 3, moments: moments(&[0, 50]), ..plain(&[(&[0], 1, 4)]) };
    is_right(&sized(setup, |setup| setup.faults = 1), 10);
}

#[test]
fn a_window_ends_while_calls_are_under_way() {
    let setup = SearchSetup {
        config: config(1, "1s", |_| {}),
        moments: moments(&[970, 1_000, 1_010, 1_050]),
        ..plain(&[(&[0], 1, 3)])
    };
    is_right(&sized(setup, |setup| setup.faults = 1), 10);
}

#[test]
fn requests_count_by_their_answer() {
    let statuses = |policy: &mut Policy| {
        policy.count = Count::Responses(CountedResponses {
            statuses: [COUNTED].into(),
            ..CountedResponses::default()
        })
    };
    let setup = SearchSetup { config: config(1, "366d", statuses), ..plain(&[(&[0], 1, 3)]) };
    is_right(&sized(setup, |setup| setup.requests[0].2 = 4), 100);
}

fn settles(policy: &mut Policy) {
    policy.settle = Some(Arc::new(Settle { sources: [].into(), missing: MissingCost::Reserved }));
}

/// Reservations of two units turn out to cost one or three, or are never settled.
#[test]
fn real_costs_replace_reserved_ones() {
    let setup = SearchSetup {
        config: config(3, "366d", settles),
        costs: &[1, 3],
        moments: moments(&[0, 10, 60]),
        ..plain(&[(&[0], 2, 2)])
    };
    is_right(&sized(setup, |setup| setup.requests[0].2 = 3), 1);
}

#[test]
fn real_costs_are_lost() {
    let setup = SearchSetup {
        config: config(3, "366d", settles),
        costs: &[0, 4],
        faults: 1,
        moments: moments(&[0, 60]),
        ..plain(&[(&[0], 2, 2)])
    };
    is_right(&sized(setup, |setup| setup.faults = 2), 1);
}

#[test]
fn a_window_ends_before_costs_are_settled() {
    let setup = SearchSetup {
        config: config(2, "1s", settles),
        costs: &[1, 3],
        moments: moments(&[970, 1_000, 1_010, 1_050]),
        ..plain(&[(&[0], 2, 2)])
    };
    is_right(&sized(setup, |setup| setup.requests[0].2 = 3), 1);
}

#[test]
fn only_requests_that_count_by_their_answer_are_settled() {
    let edit = |policy: &mut Policy| {
        settles(policy);
        policy.count = Count::Responses(CountedResponses {
            statuses: [COUNTED].into(),
            ..CountedResponses::default()
        })
    };
    let setup = SearchSetup {
        config: config(2, "366d", edit),
        costs: &[1, 3],
        moments: moments(&[0, 10, 60]),
        ..plain(&[(&[0], 2, 2)])
    };
    is_right(&sized(setup, |setup| setup.requests[0].2 = 3), 1);
}

/// Policy `b` has one unit, so it refuses most requests that are redirected to it.
fn second_is_spent(edit: impl Fn(&mut Policy)) -> Arc<Config> {
    config(3, "366d", |policy| match &*policy.name {
        "a" => edit(policy),
        _ => policy.quota = 1,
    })
}

/// Requests to `a` reach the upstream. It redirects one: to `b`, to `a` at another cost, to both,
/// or away.
fn redirecting(config: Arc<Config>) -> SearchSetup {
    SearchSetup {
        config,
        workers: 1,
        redirects: 1,
        moments: moments(&[0, 60]),
        ..plain(&[(&[0], 2, 1), (&[1], 1, 1), (&[0], 1, 1), (&[0, 1], 2, 0)])
    }
}

#[test]
fn redirected_requests_count_what_each_pass_counted() {
    is_right(&sized(redirecting(second_is_spent(|_| {})), |setup| setup.faults = 1), 10);
}

#[test]
fn redirected_requests_count_by_the_answer_of_their_last_pass() {
    for abandoned in [Abandoned::Count, Abandoned::Refund] {
        let config = second_is_spent(|policy| {
            let statuses = [COUNTED].into();
            policy.count = Count::Responses(CountedResponses {
                statuses,
                abandoned,
                ..CountedResponses::default()
            });
        });
        is_right(&sized(redirecting(config), |setup| setup.faults = 1), 10);
    }
}

#[test]
fn redirected_requests_are_settled_once() {
    for missing in [MissingCost::Reserved, MissingCost::Units(1), MissingCost::Units(3)] {
        let config = second_is_spent(|policy| {
            policy.settle = Some(Arc::new(Settle { sources: [].into(), missing }));
        });
        let setup = SearchSetup { costs: &[3], ..redirecting(config) };
        is_right(&sized(setup, |setup| setup.faults = 1), 10);
    }
}

#[test]
fn a_window_ends_before_a_redirected_request_arrives_again() {
    let setup = SearchSetup {
        config: config(2, "1s", |_| {}),
        redirects: 1,
        moments: moments(&[970, 1_000, 1_010, 1_050]),
        ..plain(&[(&[0], 1, 3)])
    };
    is_right(&sized(setup, |setup| setup.faults = 1), 10);
}

#[test]
fn a_counter_runs_out_while_units_are_leased() {
    let setup = SearchSetup {
        config: config(200, "366d", lease),
        taken: 186,
        moments: moments(&[0, 10, 1_300, 1_350]),
        ..plain(&[(&[0], 1, 3), (&[0], 9, 1)])
    };
    is_right(&sized(setup, |setup| setup.requests[1].2 = 2), 100);
}

#[test]
fn leased_units_stay_if_another_policy_refuses() {
    let edit = |policy: &mut Policy| match &*policy.name {
        "a" => lease(policy),
        _ => policy.quota = 1,
    };
    let setup = SearchSetup {
        config: config(200, "366d", edit),
        workers: 1,
        taken: 150,
        departures: 1,
        moments: moments(&[0, 1_300, 1_350]),
        ..plain(&[(&[0], 1, 2), (&[0, 1], 1, 1)])
    };
    is_right(&sized(setup, |setup| setup.workers = 2), 1);
}

#[test]
fn a_window_ends_while_units_are_leased() {
    let setup = SearchSetup {
        config: config(200, "1s", lease),
        // Two of 17 let a worker expect one unit in the time that is left.
        taken: 140,
        moments: moments(&[940, 1_000, 1_010, 2_200, 2_250]),
        ..plain(&[(&[0], 17, 2), (&[0], 1, 1)])
    };
    is_right(&sized(setup, |setup| setup.faults = 1), 10);
}

/// The indexes of policies change, and the quota of both.
#[test]
fn documents_change_the_order_and_the_quota_of_policies() {
    let published = reordered(&config(1, "366d", |_| {}), true);
    let setup = SearchSetup {
        swaps: 2,
        published,
        faults: 1,
        moments: moments(&[0, 60]),
        ..plain(&[(&[0, 1], 1, 2), (&[0], 1, 1)])
    };
    is_right(&sized(setup, |setup| setup.requests[1].2 = 2), 10);
}

/// The policy of requests that wait, or whose calls are under way, goes.
#[test]
fn documents_remove_a_policy_whose_units_are_leased() {
    let both = config(200, "366d", lease);
    let setup = SearchSetup {
        published: reordered(&both, false),
        config: both,
        swaps: 1,
        workers: 1,
        taken: 150,
        departures: 1,
        moments: moments(&[0, 1_300, 1_350]),
        ..plain(&[(&[0, 1], 1, 2), (&[0], 1, 1)])
    };
    is_right(&sized(setup, |setup| setup.workers = 2), 1);
}

/// Why a refund is sent once, through a connection that never repeats a command.
#[test]
fn refunds_that_reach_the_store_twice_admit_more_than_the_quota() {
    let setup = SearchSetup {
        config: config(1, "366d", |_| {}),
        departures: 1,
        moments: moments(&[0, 60]),
        repeats: Repeats::Refunds,
        ..plain(&[(&[0], 1, 3)])
    };
    let (wrong, way) =
        setup.explore(&[Property::NeverOver]).wrong.expect("a history that goes over");
    assert_eq!(wrong, Property::NeverOver);
    println!("{way:#?}");
    let once = SearchSetup { repeats: Repeats::Nothing, ..setup };
    assert!(once.explore(&[Property::NeverOver]).wrong.is_none());
}

/// Why a reservation is retried only if the store did not carry it out: the units of an unread
/// grant are lost, though requests never exceed the quota.
#[test]
fn reservations_that_reach_the_store_twice_lose_units_and_admit_no_more() {
    let setup = SearchSetup { repeats: Repeats::Reservations, ..plain(&[(&[0], 1, 2)]) };
    let safe = [Property::NeverOver, Property::NothingUncounted, Property::NothingStuck];
    assert!(setup.explore(&safe).wrong.is_none());
    let (wrong, way) = setup.explore(&Property::ALL).wrong.expect("units that no request got");
    assert_eq!(wrong, Property::NothingPaidTwice);
    println!("{way:#?}");
}

/// Why a charge is sent once: a repeated one admits no more, but requests pay twice.
#[test]
fn charges_that_reach_the_store_twice_count_twice_and_admit_no_more() {
    let setup = SearchSetup {
        config: config(4, "366d", settles),
        costs: &[3],
        moments: moments(&[0, 10, 60]),
        repeats: Repeats::Charges,
        ..plain(&[(&[0], 2, 2)])
    };
    let safe = [Property::NeverOver, Property::NothingUncounted, Property::NothingStuck];
    assert!(setup.explore(&safe).wrong.is_none());
    let (wrong, way) = setup.explore(&Property::ALL).wrong.expect("a cost that counts twice");
    assert_eq!(wrong, Property::NothingPaidTwice);
    println!("{way:#?}");
}
