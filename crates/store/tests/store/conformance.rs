//! One suite for every backend: memory, Redis, and a Redis Cluster of six nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::common::{back, batch, numbers, one, open, take, try_one, until};
use quotagate_protocol::{Adjustment, Calendar, Fixed, Kind, MAX_UNITS, Reservation, Unit};
use quotagate_store::control::KeptCounters;
use quotagate_store::store::{Batch, CheckedReservation, Store, StoreError};
use quotagate_support::cluster::Cluster;
use quotagate_support::redis::Redis;

async fn suite(store: Arc<dyn Store>) {
    let s = &*store;
    grants_until_the_quota_is_taken(s).await;
    grants_nothing_below_the_minimum(s).await;
    grants_an_eighth_of_the_rest_as_spare(s).await;
    grants_spare_when_no_request_waits(s).await;
    look_takes_nothing(s).await;
    accepts_refunds(s).await;
    deletes_a_counter_that_a_refund_brings_to_zero(s).await;
    ignores_refunds_without_a_counter(s).await;
    carries_out_refunds_first(s).await;
    counts_refused_units_with_count_denied(s).await;
    refunds_what_is_used_and_says_how_much(s).await;
    keeps_the_order_of_many_keys(s).await;
    stays_exact_up_to_the_largest_number(s).await;
    counts_windows_separately_and_quotas_together(s).await;
    shifts_windows_by_their_offset(s).await;
    starts_nothing_after_the_deadline(s).await;
    starts_at_zero_in_the_next_window(s).await;
    answers_every_call_at_the_end_of_a_window(&store).await;
    never_grants_more_than_the_quota_to_racing_tasks(Arc::clone(&store)).await;
    lists_every_counter_of_a_policy(s).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_conforms() {
    suite(open("memory:").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_conforms() {
    let redis = Redis::start().unwrap();
    suite(open(&redis.url()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cluster_conforms() {
    let cluster = Cluster::start().unwrap();
    suite(open(&cluster.url()).await).await;
}

async fn grants_until_the_quota_is_taken(store: &dyn Store) {
    let ask = take("grants", 5, 3);
    let grant = one(store, &ask).await;
    assert_eq!((grant.granted, grant.used, grant.quota, grant.left()), (3, 3, 5, 2));
    assert!((1..=u64::from(ask.window_s) * 1000).contains(&grant.reset_ms), "{grant:?}");
    assert_eq!(numbers(store, &ask).await, (2, 5));
    assert_eq!(numbers(store, &ask).await, (0, 5));
    assert_eq!(numbers(store, &take("nobody", 0, 1)).await, (0, 0));
}

async fn lists_every_counter_of_a_policy(store: &dyn Store) {
    const COUNTERS: usize = 3000;
    let key = |policy: &str, party: usize| format!("list:{policy}:{{jwt.sub={party}}}");
    for parties in (0..COUNTERS).collect::<Vec<_>>().chunks(500) {
        let asks = parties.iter().flat_map(|party| {
            ["p", "p-q", "q"].map(|policy| Reservation {
                key: key(policy, *party).into(),
                own_quota: policy == "p",
                ..take("", 5, 1)
            })
        });
        let reserved = store.reserve(&batch(vec![], asks.collect())).await;
        assert!(reserved.iter().all(Result::is_ok));
    }
    let (mut keys, mut pages, mut from) = (BTreeSet::new(), 0, None);
    loop {
        let page = store
            .control()
            .page("list", "p", KeptCounters::LeftOut, from.as_deref())
            .await
            .unwrap();
        keys.extend(page.keys);
        pages += 1;
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(keys, (0..COUNTERS).map(|party| key("p", party)).collect());
    assert!(pages > 1);
    for wrong in ["", "x", "nowhere 0"] {
        let page = store.control().page("list", "p", KeptCounters::LeftOut, Some(wrong)).await;
        assert!(matches!(page, Err(StoreError::Refused(_))), "{wrong}: {page:?}");
    }
}

async fn grants_nothing_below_the_minimum(store: &dyn Store) {
    assert_eq!(numbers(store, &take("min", 5, 3)).await, (3, 3));
    let ask = |min| Reservation { min, ..take("min", 5, 3) };
    assert_eq!(numbers(store, &ask(3)).await, (0, 3));
    assert_eq!(numbers(store, &ask(2)).await, (2, 5));
}

async fn grants_an_eighth_of_the_rest_as_spare(store: &dyn Store) {
    let ask = |spare| Reservation { spare, ..take("spare", 100, 10) };
    assert_eq!(numbers(store, &ask(50)).await, (10 + 11, 21));
    assert_eq!(numbers(store, &ask(2)).await, (12, 33));
    let last = Reservation { spare: 9, ..take("spare", 40, 10) };
    assert_eq!(numbers(store, &last).await, (7, 40));
}

async fn look_takes_nothing(store: &dyn Store) {
    let look = Reservation { want: 0, min: 0, ..take("look", 100, 1) };
    for used in [0, 50, 100] {
        assert_eq!(numbers(store, &look).await, (0, used));
        assert_eq!(numbers(store, &look).await, (0, used));
        numbers(store, &take("look", 100, 50)).await;
    }
}

async fn grants_spare_when_no_request_waits(store: &dyn Store) {
    let ask = |spare| Reservation { want: 0, min: 0, spare, ..take("ahead", 100, 1) };
    assert_eq!(numbers(store, &ask(5)).await, (5, 5));
    assert_eq!(numbers(store, &ask(50)).await, (11, 16));
    let short = Reservation { min: 85, spare: 50, ..take("ahead", 100, 85) };
    assert_eq!(
        numbers(store, &short).await,
        (0, 16),
        "no spare units if a request was not granted"
    );
    assert_eq!(numbers(store, &take("ahead", 100, 77)).await, (77, 93));
    assert_eq!(
        numbers(store, &ask(50)).await,
        (0, 93),
        "the last seven units are for waiting requests"
    );
    assert_eq!(numbers(store, &take("ahead", 100, 7)).await, (7, 100));
    assert_eq!(numbers(store, &ask(1)).await, (0, 100));
}

async fn accepts_refunds(store: &dyn Store) {
    let ask = take("returns", 5, 5);
    let grant = one(store, &ask).await;
    store.refund(&[back(&ask, grant, 2)]).await;
    assert_eq!(numbers(store, &ask).await, (2, 5));
    store.refund(&[back(&ask, grant, 100)]).await;
    assert_eq!(numbers(store, &ask).await, (5, 5), "never below 0");
}

async fn deletes_a_counter_that_a_refund_brings_to_zero(store: &dyn Store) {
    let cases = [(&[1, 1][..], Some("1")), (&[3], None), (&[2, 1], None), (&[2, 100], None)];
    for (case, (refunds, left)) in cases.into_iter().enumerate() {
        let ask = take(&format!("zero{case}"), 5, 3);
        let grant = one(store, &ask).await;
        for units in refunds {
            store.refund(&[back(&ask, grant, *units)]).await;
        }
        let counter = crate::common::counter(&ask, grant.window);
        let held = store.control().get(counter).await.unwrap().value;
        assert_eq!(held.as_deref(), left, "{refunds:?} refunded of 3");
        let used = left.map_or(0, |left| left.parse::<u64>().unwrap());
        assert_eq!(numbers(store, &ask).await, (3, used + 3));
    }
}

async fn ignores_refunds_without_a_counter(store: &dyn Store) {
    let ask = take("stray", 5, 1);
    let grant = one(store, &ask).await;
    let fitting = back(&ask, grant, 1);
    store
        .refund(&[
            Adjustment { window: grant.window + 1, ..fitting.clone() },
            Adjustment { window: grant.window - 1, ..fitting.clone() },
            Adjustment { key: "test:p:{no such}".into(), ..fitting },
        ])
        .await;
    assert_eq!(numbers(store, &ask).await, (1, 2));
    let missing = take("missing", 5, 1);
    store.refund(&[back(&missing, grant, 3)]).await;
    assert_eq!(numbers(store, &missing).await, (1, 1));
}

async fn carries_out_refunds_first(store: &dyn Store) {
    let ask = take("order", 5, 5);
    let grant = one(store, &ask).await;
    let reserved = store.reserve(&batch(vec![back(&ask, grant, 4)], vec![ask])).await;
    assert_eq!(reserved[0].as_ref().unwrap().granted, 4);
}

async fn counts_refused_units_with_count_denied(store: &dyn Store) {
    let ask = |want, min| Reservation { min, count_denied: true, ..take("denied", 5, want) };
    assert_eq!(numbers(store, &ask(3, 1)).await, (3, 3));
    assert_eq!(numbers(store, &ask(3, 1)).await, (2, 6));
    assert_eq!(numbers(store, &ask(3, 3)).await, (0, 9));
    assert_eq!(numbers(store, &take("denied", 10, 3)).await, (1, 10));
}

async fn refunds_what_is_used_and_says_how_much(store: &dyn Store) {
    for window in [take("refunding", 5, 1), calendar(take("refunding", 5, 1))] {
        let ask = |want| Reservation { want, count_denied: true, ..window.clone() };
        let refund = async |want| {
            let refund = CheckedReservation::new(ask(want)).unwrap().refunding().unwrap();
            let batch = Batch { reservations: vec![refund.clone()], ..batch(vec![], vec![]) };
            let grant = store.reserve(&batch).await.remove(0).unwrap();
            assert_eq!((grant.quota, refund.refund_of(&grant)), (5, None));
            (grant.granted, grant.used)
        };
        assert_eq!(refund(1).await, (0, 0));
        assert_eq!(numbers(store, &ask(7)).await, (5, 7));
        for expected in [(4, 3), (3, 0), (0, 0)] {
            assert_eq!(refund(4).await, expected);
        }
        assert_eq!(numbers(store, &ask(1)).await, (1, 1));
    }
    let sliding = Reservation { kind: Kind::Sliding, ..take("refunding", 5, 1) };
    assert!(CheckedReservation::new(sliding).unwrap().refunding().is_none());
}

fn calendar(reservation: Reservation) -> Reservation {
    let kind = Kind::Calendar(Calendar { unit: Unit::Year, time_zone: "UTC".into() });
    Reservation { kind, window_s: 0, ..reservation }
}

async fn keeps_the_order_of_many_keys(store: &dyn Store) {
    let asks: Vec<_> = (0..300_u64).map(|n| take(&format!("many{n}"), n, 1_000)).collect();
    for (n, outcome) in store.reserve(&batch(vec![], asks)).await.into_iter().enumerate() {
        assert_eq!(outcome.unwrap().granted, n as u64);
    }
}

async fn stays_exact_up_to_the_largest_number(store: &dyn Store) {
    let ask = |want| take("large", MAX_UNITS, want);
    let grant = one(store, &ask(MAX_UNITS - 2)).await;
    assert_eq!((grant.granted, grant.used, grant.quota), (MAX_UNITS - 2, MAX_UNITS - 2, MAX_UNITS));
    assert_eq!(numbers(store, &ask(1)).await, (1, MAX_UNITS - 1));
    assert_eq!(numbers(store, &ask(7)).await, (1, MAX_UNITS));
    let denied = Reservation { count_denied: true, ..ask(MAX_UNITS) };
    assert_eq!(numbers(store, &denied).await, (0, MAX_UNITS));
    store.refund(&[back(&ask(1), grant, MAX_UNITS - 3)]).await;
    assert_eq!(numbers(store, &ask(1)).await, (1, 4));
    assert_eq!(numbers(store, &ask(MAX_UNITS - 5)).await, (MAX_UNITS - 5, MAX_UNITS - 1));
    let some = Reservation { count_denied: true, ..take("large-denied", 5, MAX_UNITS - 1) };
    assert_eq!(numbers(store, &some).await, (5, MAX_UNITS - 1));
}

async fn counts_windows_separately_and_quotas_together(store: &dyn Store) {
    assert_eq!(numbers(store, &take("apart", 5, 5)).await, (5, 5));
    assert_eq!(
        numbers(store, &take("apart", 9, 9)).await,
        (4, 9),
        "a raised quota keeps the count"
    );
    assert_eq!(
        numbers(store, &take("apart", 3, 1)).await,
        (0, 9),
        "a lowered quota keeps the count"
    );
    let other = Reservation { window_s: 3600, ..take("apart", 5, 5) };
    assert_eq!(numbers(store, &other).await, (5, 5));
}

async fn shifts_windows_by_their_offset(store: &dyn Store) {
    let ask = Reservation { window_s: 7200, offset_s: 3333, ..take("offset", 5, 1) };
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let grant = one(store, &ask).await;
    let window = Fixed::new(7200, 3333).unwrap();
    assert!((grant.window - window.number_at(before)) <= 1, "{grant:?}");
    let end = before + Duration::from_millis(grant.reset_ms);
    let off = (end.as_secs() + 3333 + 1) % 7200;
    assert!(off <= 2, "{grant:?} ends {off} s off a boundary");
}

async fn starts_nothing_after_the_deadline(store: &dyn Store) {
    let ask = take("late", 5, 2);
    let late = Batch { deadline: Instant::now(), ..batch(vec![], vec![ask.clone()]) };
    assert_eq!(store.reserve(&late).await, [Err(StoreError::Late)]);
    assert_eq!(numbers(store, &ask).await, (2, 2));
}

async fn starts_at_zero_in_the_next_window(store: &dyn Store) {
    let ask = Reservation { window_s: 1, ..take("roll", 5, 5) };
    let first = one(store, &ask).await;
    for _ in 0..3 {
        let next = until("a new window", Duration::from_secs(30), async || {
            let grant = one(store, &ask).await;
            (grant.granted > 0).then_some(grant)
        })
        .await;
        assert!(next.window > first.window && next.used == 5, "{first:?}, {next:?}");
        store.refund(&[back(&ask, first, 5)]).await;
        let full = one(store, &ask).await;
        assert!(full.window > next.window || full.granted == 0, "{next:?}, {full:?}");
    }
}

async fn answers_every_call_at_the_end_of_a_window(store: &Arc<dyn Store>) {
    const QUOTA: u64 = 1000;
    let ask = Reservation { window_s: 1, ..take("edge", QUOTA, 1) };
    let end = Instant::now() + Duration::from_millis(3500);
    let callers: Vec<_> = (0..32)
        .map(|_| {
            let (store, ask) = (Arc::clone(store), ask.clone());
            tokio::spawn(async move {
                let mut granted = BTreeMap::new();
                while Instant::now() < end || granted.len() < 3 {
                    let begun = Instant::now();
                    match try_one(&*store, &ask).await {
                        Ok(grant) => *granted.entry(grant.window).or_insert(0) += grant.granted,
                        // Two windows can only end during a call that takes as long as one.
                        Err(StoreError::Rolled) if begun.elapsed() > Duration::from_secs(1) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                granted
            })
        })
        .collect();
    let mut granted = BTreeMap::new();
    for caller in callers {
        for (window, units) in caller.await.unwrap() {
            *granted.entry(window).or_insert(0) += units;
        }
    }
    assert!(granted.len() >= 3 && granted.values().all(|units| *units <= QUOTA), "{granted:?}");
}

async fn never_grants_more_than_the_quota_to_racing_tasks(store: Arc<dyn Store>) {
    let racers: Vec<_> = (0..200)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut granted = 0;
                for _ in 0..5 {
                    let ask = Reservation { spare: n % 3, ..take("race", 777, 1 + n % 4) };
                    granted += try_one(&*store, &ask).await.unwrap().granted;
                }
                granted
            })
        })
        .collect();
    let mut granted = 0;
    for racer in racers {
        granted += racer.await.unwrap();
    }
    assert_eq!(granted, 777);
}
