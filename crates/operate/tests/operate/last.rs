//! The last calendar window that has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quotagate_operate::api::{QuotaFrom, WindowSpan};
use quotagate_operate::{Fault, Operate};
use quotagate_protocol::dials::Report;
use quotagate_protocol::{Calendar, Kind, Reservation, Unit};
use quotagate_store::memory::Memory;
use quotagate_store::store::Store;
use quotagate_support::redis::clock::Clock;

use crate::calls::NO_CALLS;
use crate::common::{one, open, take, until};
use crate::operators::report;

const DAY: u64 = 86_400;

/// `ahead` moves the clock of the store so many seconds ahead of its start.
async fn shows_the_last_window(store: &Arc<dyn Store>, start: u64, ahead: impl Fn(u64)) {
    let calendar = |unit| Kind::Calendar(Calendar { unit, time_zone: "UTC".into() });
    let kinds = [("daily", calendar(Unit::Day)), ("yearly", calendar(Unit::Year))];
    let mut sent: Report = serde_json::from_slice(&report(&["daily", "yearly", "hourly"])).unwrap();
    for (policy, (_, kind)) in sent.policies.iter_mut().zip(&kinds) {
        (policy.kind, policy.window_s, policy.tiers) = (kind.clone(), 0, true);
    }
    let operate = Operate::new(Arc::clone(store));
    let cached = operate.views.wanted("last").await.unwrap();
    cached.learn(&serde_json::to_vec(&sent).unwrap()).unwrap();
    operate.directory.write_down(&cached).await;
    let ask = |name: &str, partition: &str, own_quota| {
        let kind = kinds.iter().find(|(of, _)| *of == name).map(|(_, kind)| kind.clone());
        let window_s = if kind.is_some() { 0 } else { 3600 };
        let (key, kind) = (format!("last:{name}:{{{partition}}}").into(), kind.unwrap_or_default());
        Reservation { key, kind, window_s, own_quota, ..take("", 9, 4) }
    };
    let day = start / DAY;
    for name in ["daily", "yearly", "hourly"] {
        one(&**store, &ask(name, "jwt.sub=a", true)).await;
    }
    one(&**store, &ask("daily", "jwt.sub=b", false)).await;
    let last = operate.counters.last();
    let absent = async || {
        matches!(last.usage(Some("last"), "jwt.sub=a", &NO_CALLS).await, Err(Fault::Absent(_)))
    };
    assert!(absent().await, "no window has ended");
    let rest = (day + 1) * DAY - start;
    ahead(rest + 60);
    until("the next day", Duration::from_secs(20), async || {
        let current = operate.counters.usage(Some("last"), "jwt.sub=a", &NO_CALLS).await.unwrap();
        (current.found.len() < 3).then_some(())
    })
    .await;
    let span = WindowSpan { start_s: day * DAY, end_s: (day + 1) * DAY };
    let found = last.usage(Some("last"), "jwt.sub=a", &NO_CALLS).await.unwrap().found;
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (found.usage.policy.as_str(), found.usage.used, found.span),
        ("daily", 4, Some(span))
    );
    assert_eq!((found.usage.quota, found.usage.quota_from), (Some(9), QuotaFrom::Tier));
    assert_eq!((found.usage.reset_ms, found.refused), (0, 0));
    let mut from = None;
    let mut all = std::collections::BTreeMap::new();
    loop {
        let page = last.parties(None, "daily", from.as_deref(), &NO_CALLS).await.unwrap();
        let found = page.found.into_iter().map(|found| found.usage);
        all.extend(found.map(|of| (of.partition, (of.used, of.quota, of.quota_from))));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    let expected = [
        ("jwt.sub=a".to_owned(), (4, Some(9), QuotaFrom::Tier)),
        ("jwt.sub=b".to_owned(), (4, None, QuotaFrom::Unknown)),
    ];
    assert_eq!(all, expected.into());
    let fault = last.parties(None, "hourly", None, &NO_CALLS).await.unwrap_err();
    assert!(matches!(&fault, Fault::Invalid { field: "last", .. }), "{fault:?}");
    ahead(rest + 60 + DAY);
    until("the day after", Duration::from_secs(20), async || absent().await.then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_shows_the_last_calendar_window() {
    // In April, far from the end of the year.
    let start = 20_554 * DAY + 3600;
    let now = Arc::new(AtomicU64::new(start));
    let shown = Arc::clone(&now);
    let memory = Memory::new(Arc::new(move || Duration::from_secs(shown.load(SeqCst))));
    let store: Arc<dyn Store> = Arc::new(memory);
    shows_the_last_window(&store, start, |ahead| now.store(start + ahead, SeqCst)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_shows_the_last_calendar_window() {
    let (clock, redis) = Clock::redis().unwrap();
    // An hour after the beginning of the day of tomorrow.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let start = (now / DAY + 1) * DAY + 3600;
    let set = |ahead: u64| clock.set(i64::try_from(start + ahead - now).unwrap()).unwrap();
    set(0);
    let store = open(&redis.url()).await;
    shows_the_last_window(&store, start, set).await;
}
