//! Counters of each kind of window: found, overridden, in debt and reset.

use std::sync::Arc;

use quotagate_operate::api::{Allow, ClearOverride, QuotaFrom, Release, Reset, SetOverride, Usage};
use quotagate_operate::{Fault, Operate};
use quotagate_protocol::dials::{PartitionEntry, Report};
use quotagate_protocol::{Calendar, Grant, Holding, Kind, Reservation, Unit};
use quotagate_store::store::Store;

use crate::calls::NO_CALLS;
use crate::common::{back, batch, one, take};
use crate::operators::report;

const DOMAIN: &str = "windows";
const HOUR: u32 = 3600;

fn kinds() -> [(&'static str, Kind, u32); 4] {
    let calendar = |unit, time_zone: &str| {
        let time_zone = time_zone.into();
        Kind::Calendar(Calendar { unit, time_zone })
    };
    [
        ("fixed", Kind::Fixed, HOUR),
        ("sliding", Kind::Sliding, HOUR),
        ("daily", calendar(Unit::Day, "Europe/Berlin"), 0),
        ("monthly", calendar(Unit::Month, "UTC"), 0),
    ]
}

/// An operator's view, after a filter has reported a policy with each kind of window.
async fn reported(store: &Arc<dyn Store>) -> Operate {
    let names = kinds().map(|(name, ..)| name);
    let mut sent: Report = serde_json::from_slice(&report(&names)).unwrap();
    let entry = |name: &str| PartitionEntry { name: name.to_owned(), forms: vec![name.to_owned()] };
    for (policy, (_, kind, window_s)) in sent.policies.iter_mut().zip(kinds()) {
        (policy.kind, policy.window_s, policy.settles) = (kind, window_s, true);
        policy.partition_by = Some(vec![entry("jwt.sub"), entry("method")]);
    }
    let operate = Operate::new(Arc::clone(store));
    let cached = operate.views.wanted(DOMAIN).await.unwrap();
    cached.learn(&serde_json::to_vec(&sent).unwrap()).unwrap();
    operate.directory.write_down(&cached).await;
    operate
}

async fn usage(operate: &Operate) -> Result<Vec<Usage>, Fault> {
    let found = operate.counters.usage(Some(DOMAIN), "jwt.sub=a", &NO_CALLS).await?;
    assert_eq!(found.incomplete, None);
    Ok(found.found.into_iter().map(|found| found.usage).collect())
}

pub async fn operates_each_kind_of_window(store: &Arc<dyn Store>) {
    let operate = reported(store).await;
    let partition = "jwt.sub=a,method=GET";
    let ask = |name: &str, kind: &Kind, window_s| Reservation {
        key: format!("{DOMAIN}:{name}:{{{partition}}}").into(),
        kind: kind.clone(),
        window_s,
        ..take("", 5, 4)
    };
    for (name, kind, window_s) in kinds() {
        let ask = ask(name, &kind, window_s);
        let grant = one(&**store, &ask).await;
        assert_eq!((grant.granted, grant.used), (4, 4), "{name}");
        let found = usage(&operate).await.unwrap();
        let [found] = &found[..] else { panic!("{name}: {found:?}") };
        assert_eq!((&*found.policy, &*found.partition, &found.kind), (name, partition, &kind));
        assert_eq!((found.used, found.quota, found.debt), (4, Some(5), 0), "{name}");
        ends_with_its_window(found, &grant, &ask);

        let mut charges = batch(vec![], vec![]);
        charges.charges.push(back(&ask, grant, 9));
        store.reserve(&charges).await;
        let found = usage(&operate).await.unwrap().remove(0);
        assert_eq!((found.used, found.debt), (13, 8), "{name}");

        let over = SetOverride {
            domain: Some(DOMAIN.to_owned()),
            policy: name.to_owned(),
            partition: partition.to_owned(),
            allow: Allow::Quota(20),
            for_ms: None,
            by: "ann".to_owned(),
        };
        operate.overrides.set(&over).await.unwrap();
        let grant = one(&**store, &ask).await;
        assert_eq!((grant.granted, grant.used, grant.quota), (4, 17, 20), "{name}");
        let found = usage(&operate).await.unwrap().remove(0);
        assert_eq!((found.used, found.quota, found.debt), (17, Some(20), 0), "{name}");
        let clear = ClearOverride {
            domain: over.domain.clone(),
            policy: over.policy.clone(),
            partition: over.partition.clone(),
            by: over.by.clone(),
        };
        operate.overrides.clear(&clear).await.unwrap();

        let reset = Reset {
            domain: over.domain,
            policy: over.policy,
            partition: over.partition,
            by: over.by,
        };
        let made = operate.counters.reset(&reset).await.unwrap();
        assert_eq!(made.done, format!("reset {name} {partition}, 17 units were used"));
        let again = operate.counters.reset(&reset).await.unwrap_err();
        assert!(matches!(again, Fault::Absent(_)), "{name}: {again:?}");
        assert!(matches!(usage(&operate).await, Err(Fault::Absent(_))), "{name}");
        assert_eq!(one(&**store, &ask).await.used, 4, "{name}: the whole quota again");
        operate.counters.reset(&reset).await.unwrap();

        let own = Reservation { quota: 9, own_quota: true, ..ask };
        assert_eq!(one(&**store, &own).await.used, 4, "{name}");
        let found = usage(&operate).await.unwrap().remove(0);
        let quota = (found.quota, found.quota_from);
        assert_eq!(quota, (Some(9), QuotaFrom::Reservation), "{name}: no call was seen here");
        operate.counters.reset(&reset).await.unwrap();
    }
}

/// Slots are a counter like others: the slots that are held, of the limit.
pub async fn shows_and_releases_slots(store: &Arc<dyn Store>) {
    const SLOTS: &str = "slots";
    const ONE: &str = "00000000000000a1";
    const OTHER: &str = "00000000000000b2";
    let mut sent: Report = serde_json::from_slice(&report(&["exports"])).unwrap();
    for policy in &mut sent.policies {
        (policy.kind, policy.window_s, policy.quota) = (Kind::InFlight, 0, 4);
    }
    sent.digest = "000000000001".to_owned();
    let operate = Operate::new(Arc::clone(store));
    let cached = operate.views.wanted(SLOTS).await.unwrap();
    cached.learn(&serde_json::to_vec(&sent).unwrap()).unwrap();
    operate.directory.write_down(&cached).await;
    let ask = |worker: String, serial, want, waiting| Reservation {
        key: format!("{SLOTS}:exports:{{jwt.sub=a}}").into(),
        kind: Kind::InFlight,
        window_s: 0,
        holding: Some(Holding {
            worker: worker.into(),
            serial,
            waiting,
            longest_ms: 2_000,
            ..Holding::default()
        }),
        ..take("", 4, want)
    };
    assert_eq!(one(&**store, &ask(format!("{ONE}.0.x"), 1, 2, 0)).await.granted, 2);
    assert_eq!(one(&**store, &ask(format!("{ONE}.1.y"), 1, 1, 0)).await.granted, 1);
    assert_eq!(one(&**store, &ask(format!("{OTHER}.0.z"), 1, 1, 3)).await.granted, 1);
    let seen = async || {
        let found = operate.counters.usage(Some(SLOTS), "jwt.sub=a", &NO_CALLS).await.unwrap();
        let [found] = &found.found[..] else { panic!("{found:?}") };
        found.clone()
    };
    let found = seen().await;
    let Usage { used, quota, kind, window_s, reset_ms, .. } = &found.usage;
    assert_eq!((*used, *quota, kind, *window_s), (4, Some(4), &Kind::InFlight, 0));
    assert_eq!(*reset_ms, 0, "a limit has no window");
    let slots = found.slots.unwrap();
    let proxies: Vec<_> = slots.proxies.iter().map(|of| (&*of.proxy, of.held)).collect();
    assert_eq!((slots.waiting, proxies), (2, vec![(ONE, 3), (OTHER, 1)]));
    assert!((2_000..10_000).contains(&slots.proxies[0].longest_ms), "{slots:?}");

    let reset = Reset {
        domain: Some(SLOTS.to_owned()),
        policy: "exports".to_owned(),
        partition: "jwt.sub=a".to_owned(),
        by: "ann".to_owned(),
    };
    let fault = operate.counters.reset(&reset).await.unwrap_err().to_string();
    assert!(fault.contains("`quotagate release`"), "{fault}");
    let Reset { domain, policy, partition, by } = reset.clone();
    let release = Release { domain, policy, partition, proxy: Some(ONE.to_owned()), by };
    let made = operate.counters.release(&release).await.unwrap();
    assert_eq!(made.done, format!("released 3 slots of proxy {ONE} of exports jwt.sub=a"));
    let again = operate.counters.release(&release).await.unwrap_err();
    let none = "that proxy holds no slot of exports for jwt.sub=a now";
    assert!(matches!(&again, Fault::Absent(why) if why == none), "{again:?}");
    assert_eq!(seen().await.usage.used, 1);
    let mistyped = Release { proxy: Some("a1".to_owned()), ..release.clone() };
    let fault = operate.counters.release(&mistyped).await.unwrap_err();
    assert!(matches!(fault, Fault::Invalid { field: "proxy", .. }), "{fault:?}");
    let all = Release { proxy: None, ..release };
    let made = operate.counters.release(&all).await.unwrap();
    assert_eq!(made.done, "released 1 slot of exports jwt.sub=a");
    let history = operate.history.list(Some(SLOTS), 5).await.unwrap();
    assert_eq!(history.iter().filter(|event| event.done.starts_with("released")).count(), 2);

    // During a rollout, proxies with the old document count units of the same policy.
    let old = Reservation { key: ask(String::new(), 0, 0, 0).key, ..take("", 100, 7) };
    assert_eq!(one(&**store, &old).await.granted, 7);
    assert_eq!(one(&**store, &ask(format!("{ONE}.0.x"), 2, 2, 0)).await.granted, 2);
    for policy in &mut sent.policies {
        (policy.kind, policy.window_s, policy.quota) = (Kind::Fixed, old.window_s, 100);
    }
    sent.digest = "000000000002".to_owned();
    cached.learn(&serde_json::to_vec(&sent).unwrap()).unwrap();
    operate.directory.write_down(&cached).await;
    let made = operate.counters.reset(&reset).await.unwrap();
    assert_eq!(made.done, "reset exports jwt.sub=a, 7 units were used");
    assert_eq!(seen().await.usage.used, 2, "slots of live requests stay held");
    let again = operate.counters.reset(&reset).await.unwrap_err();
    assert!(matches!(again, Fault::Absent(_)), "{again:?}");
}

/// The operator sees the end that the grant named. The last unit of a sliding window returns after
/// its length and at most a slice more.
fn ends_with_its_window(found: &Usage, grant: &Grant, ask: &Reservation) {
    let ends = match ask.kind {
        Kind::Sliding => {
            assert_eq!(found.window_s, HOUR);
            3_598_000..=3_780_000
        }
        Kind::Fixed | Kind::Calendar(_) | Kind::InFlight | Kind::Unknown => {
            assert_eq!(found.window_s, grant.window_s.max(ask.window_s));
            grant.reset_ms.saturating_sub(2000)..=grant.reset_ms
        }
    };
    assert!(ends.contains(&found.reset_ms), "{found:?} {grant:?}");
}
