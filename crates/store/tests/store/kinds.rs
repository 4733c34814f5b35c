//! Sliding windows, windows of the calendar and charges, on every backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quotagate_protocol::{Adjustment, Calendar, Grant, Kind, Reservation, Unit};
use quotagate_store::control::KeptCounters;
use quotagate_store::memory::Memory;
use quotagate_store::store::{Batch, CheckedReservation, Store};
use quotagate_support::cluster::Cluster;
use quotagate_support::redis::Redis;

use crate::common::{back, batch, counter, numbers, one, open, take};

const YEAR: u32 = 365 * 86_400;

async fn suite(store: &dyn Store) {
    for (name, kind, window_s) in kinds() {
        let ask = |key: &str, quota, want| Reservation {
            kind: kind.clone(),
            window_s,
            ..take(&format!("{name}.{key}"), quota, want)
        };
        grants_until_the_quota_is_taken(store, ask("grants", 5, 3)).await;
        refunds_to_the_window_that_granted(store, ask("refunds", 5, 3)).await;
        charges_beyond_the_quota(store, ask("charges", 5, 3)).await;
        charge_makes_a_counter(store, ask("first", 5, 3)).await;
        adjustments_of_other_windows_change_nothing(store, ask("other", 5, 3)).await;
        obeys_overrides(store, ask("override", 5, 9)).await;
        counts_refused_units(store, ask("denied", 5, 9)).await;
        shows_the_counter(store, ask("shown", 5, 3)).await;
        keeps_the_quota_of_a_partition(store, ask("own", 5, 3)).await;
    }
    says_when_a_calendar_window_ends(store).await;
    says_when_units_return(store).await;
}

fn kinds() -> [(&'static str, Kind, u32); 3] {
    let calendar = Calendar { unit: Unit::Year, time_zone: "Europe/Berlin".into() };
    [
        ("fixed", Kind::Fixed, YEAR),
        ("sliding", Kind::Sliding, YEAR),
        ("calendar", Kind::Calendar(calendar), 0),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_counts_every_kind() {
    suite(&*open("memory:").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_counts_every_kind() {
    let redis = Redis::start().unwrap();
    suite(&*open(&redis.url()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_of_a_partition_lives_in_redis_as_long_as_its_counter() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    for (name, kind, window_s) in kinds() {
        let ask = Reservation { kind, window_s, own_quota: true, ..take(name, 5, 1) };
        one(&*store, &ask).await;
        let ttl = |key: &str| {
            let ttl = redis.cli(&["PTTL", key]).unwrap().lines();
            ttl.trim().parse::<u64>().unwrap()
        };
        let keys = redis.cli(&["KEYS", &format!("qg:test:p:{{{name}}}:*")]).unwrap().lines();
        let counter = keys.lines().find(|key| !key.ends_with(":quota")).unwrap();
        let quota = format!("{counter}:quota");
        assert!(ttl(&quota).abs_diff(ttl(counter)) < 2000, "{keys}");
        // An earlier version counted, or something deleted the quota.
        redis.cli(&["DEL", &quota]).unwrap();
        one(&*store, &ask).await;
        assert!(ttl(&quota).abs_diff(ttl(counter)) < 2000, "{keys}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calendar_window_is_kept_in_redis_for_as_long_as_it_was_and_a_week_at_most() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let calendar = |unit| Kind::Calendar(Calendar { unit, time_zone: "Asia/Kolkata".into() });
    for (name, kind, window_s, kept_s) in [
        ("hour", calendar(Unit::Hour), 0, 3600),
        ("year", calendar(Unit::Year), 0, 604_800),
        ("fixed", Kind::Fixed, YEAR, 0),
    ] {
        let ask = Reservation { kind, window_s, own_quota: true, ..take(name, 5, 1) };
        let grant = one(&*store, &ask).await;
        let keys = redis.cli(&["KEYS", &format!("qg:test:p:{{{name}}}:*")]).unwrap().lines();
        let lives_on = || {
            let ttl = |key| redis.cli(&["PTTL", key]).unwrap().lines().trim().parse::<i64>();
            let beyond = |key| ttl(key).unwrap() - grant.reset_ms as i64 - kept_s * 1000;
            keys.lines().map(beyond).all(|beyond| (0..=10_000).contains(&beyond))
        };
        assert!(lives_on() && keys.lines().count() == 2, "{name}");
        // A charge may be the first of its window.
        let counter = keys.lines().find(|key| !key.ends_with("quota")).unwrap();
        redis.cli(&["DEL", counter]).unwrap();
        let mut charge = batch(vec![], vec![]);
        charge.charges.push(back(&ask, grant, 2));
        store.reserve(&charge).await;
        assert!(lives_on(), "{name}");
    }
}

#[test]
fn memory_keeps_the_last_calendar_window() {
    const DAY: u64 = 86_400;
    let now = Arc::new(AtomicU64::new(100 * DAY));
    let shown = Arc::clone(&now);
    let memory = Memory::new(Arc::new(move || Duration::from_secs(shown.load(SeqCst))));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let day = Kind::Calendar(Calendar { unit: Unit::Day, time_zone: "UTC".into() });
    let ask = Reservation { kind: day, window_s: 0, ..take("a", 5, 3) };
    let held = || {
        let control = Store::control(&memory);
        runtime.block_on(control.get(counter(&ask, 100 * DAY))).unwrap().value
    };
    assert_eq!(runtime.block_on(one(&memory, &ask)).granted, 3);
    let only = Reservation { key: "test:p:{only}".into(), ..ask.clone() };
    runtime.block_on(one(&memory, &only));
    now.store(102 * DAY - 1, SeqCst);
    assert_eq!(runtime.block_on(one(&memory, &ask)).used, 3, "of the next day");
    memory.sweep();
    assert_eq!(held().as_deref(), Some("3"));
    // Of a party that was counted only yesterday.
    let found = |kept| {
        let control = Store::control(&memory);
        let search = runtime.block_on(control.find("test", "only", kept, 9)).unwrap().keys.len();
        let page = runtime.block_on(control.page("test", "p", kept, None)).unwrap().keys.len();
        (search, page)
    };
    assert_eq!((found(KeptCounters::LeftOut), found(KeptCounters::Found)), ((0, 1), (1, 2)));
    now.store(102 * DAY, SeqCst);
    assert_eq!(held(), None);
    memory.sweep();
    assert_eq!(memory.len(), 1, "the day after is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cluster_counts_every_kind() {
    let cluster = Cluster::start().unwrap();
    suite(&*open(&cluster.url()).await).await;
}

async fn charge(store: &dyn Store, charge: Adjustment) {
    store.reserve(&Batch { charges: vec![charge], ..batch(vec![], vec![]) }).await;
}

async fn grants_until_the_quota_is_taken(store: &dyn Store, ask: Reservation) {
    assert_eq!(numbers(store, &ask).await, (3, 3));
    assert_eq!(numbers(store, &Reservation { min: 3, ..ask.clone() }).await, (0, 3));
    assert_eq!(numbers(store, &ask).await, (2, 5));
    assert_eq!(numbers(store, &ask).await, (0, 5));
}

async fn refunds_to_the_window_that_granted(store: &dyn Store, ask: Reservation) {
    let grant = one(store, &ask).await;
    store.refund(&[back(&ask, grant, 2)]).await;
    assert_eq!(numbers(store, &ask).await, (3, 4));
    store.refund(&[back(&ask, grant, 9)]).await;
    assert_eq!(numbers(store, &ask).await, (3, 3), "never below 0");
}

async fn charges_beyond_the_quota(store: &dyn Store, ask: Reservation) {
    let grant = one(store, &ask).await;
    charge(store, back(&ask, grant, 7)).await;
    let refused = one(store, &ask).await;
    assert_eq!((refused.granted, refused.used, refused.left()), (0, 10, 0), "5 of them are debt");
    store.refund(&[back(&ask, grant, 6)]).await;
    assert_eq!(numbers(store, &ask).await, (1, 5));
}

async fn charge_makes_a_counter(store: &dyn Store, ask: Reservation) {
    let grant = one(store, &Reservation { quota: 0, ..ask.clone() }).await;
    charge(store, back(&ask, grant, 4)).await;
    assert_eq!(numbers(store, &ask).await, (1, 5));
}

async fn adjustments_of_other_windows_change_nothing(store: &dyn Store, ask: Reservation) {
    let grant = one(store, &ask).await;
    let number = grant.window;
    for window in [0, 1, number / 2, number.saturating_sub(21), number + 21, number * 2 + 100] {
        let other = Grant { window, ..grant };
        charge(store, back(&ask, other, 5)).await;
        store.refund(&[back(&ask, other, 5)]).await;
    }
    assert_eq!(numbers(store, &ask).await, (2, 5));
}

async fn obeys_overrides(store: &dyn Store, ask: Reservation) {
    for (value, granted) in [("7", 7), ("blocked", 0), ("unlimited", 9)] {
        store.control().set_override(&ask.key, value, None).await.unwrap();
        assert_eq!(one(store, &ask).await.granted, granted, "{value}");
    }
}

async fn counts_refused_units(store: &dyn Store, ask: Reservation) {
    let ask = Reservation { count_denied: true, ..ask };
    assert_eq!(numbers(store, &ask).await, (5, 9));
    assert_eq!(numbers(store, &ask).await, (0, 18));
}

async fn shows_the_counter(store: &dyn Store, ask: Reservation) {
    let grant = one(store, &ask).await;
    let key = counter(&ask, grant.window);
    let control = store.control();
    assert_eq!(control.get(key).await.unwrap().value.as_deref(), Some("3"));
    let entry = ask.key.split_once('{').unwrap().1.trim_end_matches('}');
    assert_eq!(
        control.find("test", entry, KeptCounters::LeftOut, 9).await.unwrap().keys,
        [&*ask.key]
    );
    assert!(control.delete(key).await.unwrap());
    assert_eq!(numbers(store, &ask).await, (3, 3));
}

async fn keeps_the_quota_of_a_partition(store: &dyn Store, ask: Reservation) {
    let own = |quota| Reservation { quota, own_quota: true, ..ask.clone() };
    let grant = one(store, &ask).await;
    let key = counter(&ask, grant.window);
    let kept = async || store.control().get(key).await.unwrap().own_quota;
    assert_eq!(kept().await, None, "the policy's");
    one(store, &own(7)).await;
    assert_eq!(kept().await, Some(7));
    one(store, &own(u64::from(YEAR) << 28)).await;
    assert_eq!(kept().await, Some(u64::from(YEAR) << 28), "in digits");
    store.control().set_override(&ask.key, "1", None).await.unwrap();
    assert_eq!(one(store, &own(4)).await.quota, 1);
    assert_eq!(kept().await, Some(4), "of a refused request, and not the override");
    assert!(store.control().delete(key).await.unwrap());
    one(store, &own(9)).await;
    assert_eq!(kept().await, Some(9), "of the counter after a reset");
}

async fn says_when_a_calendar_window_ends(store: &dyn Store) {
    let hour = Kind::Calendar(Calendar { unit: Unit::Hour, time_zone: "Asia/Kathmandu".into() });
    let ask = Reservation { kind: hour, window_s: 0, ..take("hour", 5, 1) };
    let grant = one(store, &ask).await;
    assert_eq!((grant.window - 900) % 3600, 0, "local hours begin at a quarter past");
    assert_eq!(grant.window_s, 3600);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let end = now.as_secs() + grant.reset_ms / 1000;
    assert!(end.abs_diff(grant.window + 3600) <= 2, "{grant:?}");
}

async fn says_when_units_return(store: &dyn Store) {
    let ask = Reservation { kind: Kind::Sliding, window_s: 2000, ..take("returns", 5, 5) };
    let grant = one(store, &ask).await;
    assert!((2_000_000..=2_100_000).contains(&grant.reset_ms), "{grant:?}");
    assert_eq!(grant.window_s, 0);
    let refused = one(store, &ask).await;
    assert!((1_999_000..=2_100_000).contains(&refused.reset_ms), "{refused:?}");
}

#[test]
fn unknown_time_zone_is_rejected_by_name() {
    let nowhere = Calendar { unit: Unit::Day, time_zone: "Europe/Atlantis".into() };
    let ask = Reservation { kind: Kind::Calendar(nowhere), window_s: 0, ..take("zone", 5, 1) };
    let error = CheckedReservation::new(ask).unwrap_err().to_string();
    assert!(error.contains("Europe/Atlantis") && error.contains("IANA"), "{error}");
}
