//! Overrides, counters, and the partitions that contain a party.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quotagate_operate::Fault;
use quotagate_operate::api::{
    Allow, ClearOverride, MAX_FOUND, QuotaFrom, Reset, SetDial, SetOverride,
};
use quotagate_operate::{HistoryFilter, Operate};
use quotagate_protocol::{Fixed, Grant, Kind, MAX_UNITS, Mode, Reservation, ReserveRequest};
use quotagate_store::control::HashName;
use quotagate_store::server::{CallEndpoint, Connections, Hooks};
use quotagate_store::store::{CheckedReservation, Store};
use serde_json::json;

use crate::calls::{NO_CALLS, SeenQuotas};
use crate::common::{counter, one, take, until};
use crate::operators::{reply, reported, set};

fn over(domain: &str, partition: &str, allow: Allow) -> SetOverride {
    SetOverride {
        domain: Some(domain.to_owned()),
        policy: "p".to_owned(),
        partition: partition.to_owned(),
        allow,
        for_ms: None,
        by: "ann".to_owned(),
    }
}

/// Reserves like a filter that knows no overrides: quota 5, windows of an hour.
async fn grant(store: &dyn Store, domain: &str, partition: &str, want: u64) -> (u64, u64, u64) {
    let key = format!("{domain}:p:{{{partition}}}");
    let grant =
        one(store, &Reservation { key: key.into(), window_s: 3600, ..take("", 5, want) }).await;
    (grant.granted, grant.used, grant.quota)
}

pub async fn overrides_one_partition(store: &Arc<dyn Store>) {
    let operate = reported(store, "over", &["p"]).await;
    let set = async |allow| operate.overrides.set(&over("over", "jwt.sub=a", allow)).await.unwrap();
    let grant = async |want| grant(&**store, "over", "jwt.sub=a", want).await;
    assert_eq!(grant(9).await, (5, 5, 5));
    let made = set(Allow::Quota(7)).await;
    assert_eq!((made.version, made.done.as_str()), (1, "set override p jwt.sub=a: quota 7"));
    assert_eq!(reply(&operate, "over").await.overridden, ["p"]);
    assert_eq!(grant(9).await, (2, 7, 7));
    set(Allow::Unlimited).await;
    assert_eq!(grant(9).await, (9, 16, MAX_UNITS));
    set(Allow::Blocked).await;
    assert_eq!(grant(9).await, (0, 16, 0));
    let listed = operate.overrides.list(Some("over"), None, 9).await.unwrap();
    assert_eq!(
        (listed.len(), listed[0].partition.as_str(), listed[0].allow),
        (1, "jwt.sub=a", Allow::Blocked)
    );
    assert_eq!((listed[0].by.as_str(), listed[0].remaining_ms), ("ann", None));
    assert!(operate.overrides.list(Some("over"), Some("q"), 9).await.unwrap().is_empty());
    assert_eq!(operate.boards.read_all(Some("over")).await.unwrap()[0].overrides, 1);
    let clear = ClearOverride {
        domain: Some("over".to_owned()),
        policy: "p".to_owned(),
        partition: "jwt.sub=a".to_owned(),
        by: "ben".to_owned(),
    };
    assert_eq!(operate.overrides.clear(&clear).await.unwrap().version, 4);
    assert_eq!(grant(9).await, (0, 16, 5));
    assert!(reply(&operate, "over").await.overridden.is_empty());
    assert!(
        operate
            .overrides
            .list(None, None, 9999)
            .await
            .unwrap()
            .iter()
            .all(|entry| entry.domain != "over")
    );
    let absent = operate.overrides.clear(&clear).await.unwrap_err();
    assert!(matches!(absent, Fault::Absent(_)), "{absent:?}");
}

pub async fn ends_overrides_by_themselves(store: &Arc<dyn Store>) {
    let operate = reported(store, "ends", &["p"]).await;
    let wish = SetOverride { for_ms: Some(1000), ..over("ends", "jwt.sub=a", Allow::Quota(7)) };
    operate.overrides.set(&wish).await.unwrap();
    let listed = operate.overrides.list(Some("ends"), Some("p"), 9).await.unwrap();
    assert!(listed[0].remaining_ms.is_some_and(|left| (1..=1000).contains(&left)), "{listed:?}");
    assert_eq!(grant(&**store, "ends", "jwt.sub=a", 9).await, (7, 7, 7));
    until("it ends", Duration::from_secs(3), async || {
        (grant(&**store, "ends", "jwt.sub=a", 9).await.2 == 5).then_some(())
    })
    .await;
    assert!(operate.overrides.list(Some("ends"), None, 9).await.unwrap().is_empty());
    assert!(reply(&operate, "ends").await.overridden.is_empty());
    assert_eq!(
        store.control().read(HashName::Overrides, "ends").await.unwrap().fields,
        [],
        "its entry is dropped"
    );
}

pub async fn refuses_invalid_overrides(store: &Arc<dyn Store>) {
    let operate = reported(store, "cannot", &["p"]).await;
    for partition in [
        "",
        "a b",
        "{a}",
        "a",
        "alice",
        "ä",
        "jwt=a",
        "ip=300.1.1.1",
        &format!("jwt.sub={}", "a".repeat(5000)),
    ] {
        let fault =
            operate.overrides.set(&over("cannot", partition, Allow::Blocked)).await.unwrap_err();
        assert!(
            matches!(fault, Fault::Invalid { field: "partition", .. }),
            "{partition:?} {fault:?}"
        );
    }
    let fault = operate
        .overrides
        .set(&over("cannot", "jwt.sub=a", Allow::Quota(MAX_UNITS + 1)))
        .await
        .unwrap_err();
    assert!(matches!(fault, Fault::Invalid { field: "allow", .. }), "{fault:?}");
    let wish =
        SetOverride { policy: "q".to_owned(), ..over("cannot", "jwt.sub=a", Allow::Blocked) };
    let fault = operate.overrides.set(&wish).await.unwrap_err();
    assert!(matches!(fault, Fault::Unknown { field: "policy", .. }), "{fault:?}");
    assert_eq!(operate.boards.read_all(Some("cannot")).await.unwrap()[0].version, 0);
}

pub async fn shows_and_resets_counters(store: &Arc<dyn Store>) {
    let operate = reported(store, "usage", &["p", "q", "staggered"]).await;
    let offset_s = Fixed::new(3600, 0).unwrap().staggered("jwt.sub=a").offset();
    for (policy, offset_s, want) in [("p", 0, 3), ("staggered", offset_s, 4)] {
        let key = format!("usage:{policy}:{{jwt.sub=a}}");
        one(
            &**store,
            &Reservation { key: key.into(), window_s: 3600, offset_s, ..take("", 5, want) },
        )
        .await;
    }
    let usage = async || {
        operate
            .counters
            .usage(Some("usage"), "jwt.sub=a", &NO_CALLS)
            .await
            .map(|reply| reply.found.into_iter().map(|found| found.usage).collect::<Vec<_>>())
    };
    let found = usage().await.unwrap();
    let shown: Vec<_> =
        found.iter().map(|u| (u.policy.as_str(), u.used, u.quota, u.quota_from)).collect();
    let policy = QuotaFrom::Policy;
    assert_eq!(shown, [("p", 3, Some(5), policy), ("staggered", 4, Some(5), policy)]);
    assert!(found.iter().all(|usage| (1..=3_600_000).contains(&usage.reset_ms)), "{found:?}");
    let seen = operate
        .counters
        .usage(
            Some("usage"),
            "jwt.sub=a",
            &SeenQuotas(|key| (key == "usage:p:{jwt.sub=a}").then_some(50)),
        )
        .await
        .unwrap()
        .found;
    let seen = &seen[0].usage;
    assert_eq!((seen.quota, seen.quota_from), (Some(50), QuotaFrom::Reservation));
    operate.dials.set(&SetDial { quota: Some(8), ..set("usage", "p") }).await.unwrap();
    assert_eq!(
        (usage().await.unwrap()[0].quota, usage().await.unwrap()[0].quota_from),
        (Some(8), QuotaFrom::Dial)
    );
    operate.overrides.set(&over("usage", "jwt.sub=a", Allow::Unlimited)).await.unwrap();
    let shown = &usage().await.unwrap()[0];
    assert_eq!((shown.quota, shown.quota_from), (None, QuotaFrom::Override));
    let reset = Reset {
        domain: None,
        policy: "staggered".to_owned(),
        partition: "jwt.sub=a".to_owned(),
        by: "ann".to_owned(),
    };
    let reset = Reset { domain: Some("usage".to_owned()), ..reset };
    assert_eq!(
        operate.counters.reset(&reset).await.unwrap().done,
        "reset staggered jwt.sub=a, 4 units were used"
    );
    let absent = operate.counters.reset(&reset).await.unwrap_err();
    assert!(matches!(absent, Fault::Absent(_)), "{absent:?}");
    assert_eq!(usage().await.unwrap().len(), 1);
    let key = "usage:staggered:{jwt.sub=a}".to_owned();
    let anew =
        one(&**store, &Reservation { key: key.into(), window_s: 3600, offset_s, ..take("", 5, 9) })
            .await;
    assert_eq!((anew.granted, anew.used), (5, 5), "it has its whole quota again");
    let absent =
        operate.counters.usage(Some("usage"), "jwt.sub=nobody", &NO_CALLS).await.unwrap_err();
    assert!(matches!(absent, Fault::Absent(_)), "{absent:?}");
    assert_eq!(
        operate.history.list(Some("usage"), 1).await.unwrap()[0].done,
        "reset staggered jwt.sub=a, 4 units were used"
    );
}

pub async fn says_where_an_override_refuses_nobody(store: &Arc<dyn Store>) {
    let operate = reported(store, "remarks", &["p"]).await;
    let block = over("remarks", "jwt.sub=a", Allow::Blocked);
    let remark = async || operate.overrides.set(&block).await.unwrap().remark;
    let unknown = over("remarks", "jwt.sub=u", Allow::Blocked);
    let said = operate.overrides.set(&unknown).await.unwrap().remark;
    assert_eq!(said.as_deref(), Some("p has counted nothing of jwt.sub=u in this window."));
    grant(&**store, "remarks", "jwt.sub=a", 1).await;
    assert_eq!(remark().await, None);
    let modes = [("*", Mode::Shadow, "shadow"), ("p", Mode::Mark, "mark"), ("p", Mode::Off, "off")];
    for (policy, mode, word) in modes {
        let dial = SetDial { mode: Some(mode), ..set("remarks", policy) };
        operate.dials.set(&dial).await.unwrap();
        let said = remark().await.unwrap();
        assert!(said.starts_with(&format!("p: in mode {word}, which ")), "{said}");
    }
    operate.dials.set(&SetDial { mode: Some(Mode::Enforce), ..set("remarks", "p") }).await.unwrap();
    assert_eq!(remark().await, None, "the dial of the policy comes before the dial of all");
}

pub async fn finds_composite_partitions(store: &Arc<dyn Store>) {
    let operate = reported(store, "find", &["a", "p", "q"]).await;
    reported(store, "find-not", &["p"]).await;
    let partitions = [
        ("find:p", "jwt.sub=bob,method=GET"),
        ("find:p", "ip=192.0.2.7,jwt.sub=bob"),
        ("find:q", "jwt.sub=bob"),
        ("find:p", "jwt.sub=bobby,method=GET"),
        ("find:p", "jwt.sub=%2A,method=GET"),
        ("find-not:p", "jwt.sub=bob,method=PUT"),
    ];
    for (policy, partition) in partitions {
        let key = format!("{policy}:{{{partition}}}");
        one(&**store, &Reservation { key: key.into(), window_s: 3600, ..take("", 5, 5) }).await;
    }
    operate.overrides.set(&over("find", "jwt.sub=bob,method=PUT", Allow::Quota(9))).await.unwrap();
    let found = async |party: &str| {
        let reply = operate.counters.usage(Some("find"), party, &NO_CALLS).await.unwrap();
        assert_eq!(reply.incomplete, None);
        let of = reply.found.into_iter().map(|found| found.usage);
        of.map(|of| (of.policy, of.partition, of.used)).collect::<Vec<_>>()
    };
    let of = |policy: &str, partition: &str, used| (policy.to_owned(), partition.to_owned(), used);
    let bob = [
        of("p", "ip=192.0.2.7,jwt.sub=bob", 5),
        of("p", "jwt.sub=bob,method=GET", 5),
        of("p", "jwt.sub=bob,method=PUT", 0),
        of("q", "jwt.sub=bob", 5),
    ];
    assert_eq!(found("jwt.sub=bob").await, bob);
    assert_eq!(found("method=GET,jwt.sub=bob").await, [of("p", "jwt.sub=bob,method=GET", 5)]);
    assert_eq!(
        found("jwt.sub=%2A").await,
        [of("p", "jwt.sub=%2A,method=GET", 5)],
        "an encoded * is not a pattern"
    );
    // A party with many composite partitions keeps its own counter in the result.
    for path in 0..=MAX_FOUND {
        let key = format!("find:a:{{jwt.sub=bob,path=/{path}}}");
        one(&**store, &Reservation { key: key.into(), window_s: 3600, ..take("", 5, 5) }).await;
    }
    let many = operate.counters.usage(Some("find"), "jwt.sub=bob", &NO_CALLS).await.unwrap();
    assert_eq!(many.found.len(), MAX_FOUND);
    assert!(many.incomplete.is_some());
    assert!(many.found.iter().any(|of| of.usage.policy == "q"), "{:?}", many.found);
}

pub async fn overrides_every_partition_of_a_party(store: &Arc<dyn Store>) {
    let operate = Operate::new(Arc::clone(store));
    let cached = operate.views.wanted("party").await.unwrap();
    let policy = |name: &str, mode: &str, forms: &[&str]| {
        let entries: Vec<_> =
            forms.iter().map(|form| json!({"name": form, "forms": [form]})).collect();
        json!({"name": name, "quota": 5, "window_s": 3600, "stagger": false, "mode": mode,
               "on_failure": "allow", "partition_by": entries})
    };
    let report = json!({"policies": [
        policy("all", "enforce", &[]), policy("caller", "enforce", &["jwt.sub"]),
        policy("method", "shadow", &["method", "jwt.sub"]), policy("net", "enforce", &["ip"])]});
    cached.learn(report.to_string().as_bytes()).unwrap();
    operate.directory.write_down(&cached).await;
    let over = |policy: &str, partition: &str, allow| SetOverride {
        policy: policy.to_owned(),
        ..over("party", partition, allow)
    };
    let quota = |key: &str| operate.quota(&format!("party:{key}"));
    assert_eq!(quota("caller:{jwt.sub=x}"), None);
    // One command for all policies.
    operate.overrides.set(&over("caller", "jwt.sub=x", Allow::Quota(9))).await.unwrap();
    let made = operate.overrides.set(&over("*", "jwt.sub=x", Allow::Blocked)).await.unwrap();
    assert_eq!(made.done, "set override * jwt.sub=x,*: blocked");
    assert_eq!(made.partition.as_deref(), Some("jwt.sub=x,*"));
    let remark = made.remark.unwrap();
    for part in [
        "It changes nothing in all, net: they do not count by jwt.sub=x.",
        "Overrides of their own come first, and stay: caller jwt.sub=x.",
        "method: in mode shadow, which counts and refuses none.",
        "No policy has counted anything of jwt.sub=x in its current window.",
    ] {
        assert!(remark.contains(part), "{remark}");
    }
    for (key, expected) in [
        ("caller:{jwt.sub=x}", Some(0)),
        ("method:{method=GET,jwt.sub=x}", Some(0)),
        ("method:{method=GET,jwt.sub=xx}", None),
        ("all:{*}", None),
    ] {
        assert_eq!(quota(key), expected, "{key}");
    }
    // Filters send costs above the quota of each policy to the store.
    assert_eq!(reply(&operate, "party").await.overridden, ["*", "caller"]);
    // One policy, with its entries in any order.
    let pattern = over("method", "method=get,jwt.sub=x,*", Allow::Unlimited);
    operate.overrides.set(&pattern).await.unwrap();
    assert_eq!(quota("method:{method=GET,jwt.sub=x}"), Some(MAX_UNITS));
    assert_eq!(quota("method:{method=PUT,jwt.sub=x}"), Some(0));
    let listed = operate.overrides.list(Some("party"), None, 9).await.unwrap();
    let listed: Vec<_> = listed
        .iter()
        .map(|of| (of.policy.as_str(), of.partition.as_str(), &of.unmatched))
        .collect();
    let named = [
        ("*", "jwt.sub=x,*", &None),
        ("caller", "jwt.sub=x", &None),
        ("method", "jwt.sub=x,method=GET,*", &None),
    ];
    assert_eq!(listed, named);
    // What a party is counted by, and why.
    let usage = operate.counters.usage(Some("party"), "jwt.sub=x", &NO_CALLS).await.unwrap();
    assert_eq!(usage.overrides.len(), 2, "{usage:?}");
    let key = "party:method:{method=PUT,jwt.sub=x}";
    one(&**store, &Reservation { key: key.into(), window_s: 3600, ..take("", 5, 1) }).await;
    let usage = operate.counters.usage(Some("party"), "jwt.sub=x", &NO_CALLS).await.unwrap();
    let found = usage.found.iter().find(|found| found.usage.policy == "method").unwrap();
    assert_eq!((found.usage.quota, found.usage.quota_from), (Some(0), QuotaFrom::Override));
    assert_eq!(found.without_override, Some(5));
    assert_eq!(found.pattern.as_ref().unwrap().policy, "*");
    let own = usage.found.iter().find(|found| found.usage.policy == "caller").unwrap();
    assert_eq!((own.usage.quota, &own.pattern), (Some(9), &None));
    let clear = |policy: &str, partition: &str| ClearOverride {
        domain: Some("party".to_owned()),
        policy: policy.to_owned(),
        partition: partition.to_owned(),
        by: "ben".to_owned(),
    };
    let cleared = operate.overrides.clear(&clear("*", "jwt.sub=x")).await.unwrap();
    assert_eq!(cleared.done, "cleared override * jwt.sub=x,*");
    assert_eq!(quota("method:{method=PUT,jwt.sub=x}"), None);
    let absent = operate.overrides.clear(&clear("*", "jwt.sub=x,*")).await.unwrap_err();
    assert!(matches!(absent, Fault::Absent(_)), "{absent:?}");
    operate.overrides.clear(&clear("method", "jwt.sub=x,method=GET,*")).await.unwrap();
    assert_eq!(quota("method:{method=GET,jwt.sub=x}"), None);
    // History finds each change by its policy and by its party.
    for (policy, party) in [
        ("*", "jwt.sub=x"),
        ("*", "jwt.sub=x,*"),
        ("method", "method=GET"),
        ("method", "method=get"),
    ] {
        let filter =
            HistoryFilter { policy: Some(policy), party: Some(party), ..HistoryFilter::default() };
        let found = operate.history.find(Some("party"), filter, 9).await.unwrap();
        let done: Vec<_> = found.iter().map(|event| event.done.split(' ').next()).collect();
        assert_eq!(done, [Some("cleared"), Some("set")], "{policy} {party}: {found:?}");
    }
    for (policy, partition, why) in [
        ("net", "jwt.sub=x,*", "policy net counts by ip: its partitions look like ip=192.0.2.7"),
        ("all", "jwt.sub=x,*", "policy all has one counter for everybody"),
        ("*", "host=shop", "no policy of party counts by all of host=shop"),
        ("*", "*", "* is in no other partition"),
        ("caller", "-,*", "- is in no other partition"),
        ("caller", ",*", "partition"),
    ] {
        let wish = over(policy, partition, Allow::Blocked);
        let fault = operate.overrides.set(&wish).await.unwrap_err();
        assert!(matches!(&fault, Fault::Invalid { field: "partition", .. }), "{fault:?}");
        assert!(fault.to_string().contains(why), "{policy} {partition}: {fault}");
    }
}

pub async fn keeps_the_time_of_an_override(store: &Arc<dyn Store>) {
    let operate = reported(store, "timed", &["p"]).await;
    for partition in ["jwt.sub=a", "jwt.sub=a,*"] {
        let over = |allow, for_ms| SetOverride { for_ms, ..over("timed", partition, allow) };
        operate.overrides.set(&over(Allow::Quota(7), Some(60_000))).await.unwrap();
        let fault = operate.overrides.set(&over(Allow::Blocked, None)).await.unwrap_err();
        assert!(matches!(fault, Fault::Invalid { field: "for_ms", .. }), "{fault:?}");
        let text = fault.to_string();
        assert!(
            text.contains("(quota 7) for another ") && text.contains("clear the other"),
            "{text}"
        );
        operate.overrides.set(&over(Allow::Blocked, Some(1000))).await.unwrap();
        // One that has ended is in nobody's way.
        until("it ends", Duration::from_secs(5), async || {
            operate.overrides.set(&over(Allow::Blocked, None)).await.ok()
        })
        .await;
        operate.overrides.set(&over(Allow::Unlimited, None)).await.unwrap();
    }
}

pub async fn keeps_the_quota_beneath_an_override_of_a_party(store: &Arc<dyn Store>) {
    let operate = Arc::new(reported(store, "beneath", &["p"]).await);
    let over = over("beneath", "jwt.sub=a,*", Allow::Quota(2));
    operate.overrides.set(&over).await.unwrap();
    operate.views.wanted("beneath").await.unwrap();
    let endpoint = CallEndpoint::new(Arc::clone(store), Arc::<Connections>::default());
    let hooks: Arc<dyn Hooks> = Arc::clone(&operate) as _;
    let endpoint = Arc::new(endpoint.hooks(hooks));
    let call = async |partition: &str, kind: Kind| {
        let key = format!("beneath:p:{{{partition}}}").into();
        let ask = take("", 300, 5);
        let ask = Reservation { key, kind, window_s: 3600, own_quota: true, ..ask };
        let (refunds, charges, reservations) = (vec![], vec![], vec![ask.clone()]);
        let request = ReserveRequest { budget_ms: 5000, refunds, charges, reservations };
        let reply = endpoint.call(request, Instant::now()).await.unwrap().take();
        let grant = *reply.grants[0].as_ref().unwrap();
        assert_eq!((grant.granted, grant.quota), (2, 2));
        let kept = store.control().get(counter(&ask, grant.window)).await.unwrap().own_quota;
        assert_eq!(kept, Some(300), "{partition}");
    };
    call("jwt.sub=a,method=GET", Kind::Sliding).await;
    call("jwt.sub=a", Kind::Fixed).await;
    let usage = async || {
        let reply = operate.counters.usage(Some("beneath"), "jwt.sub=a", &NO_CALLS).await.unwrap();
        let found = reply.found.into_iter().find(|of| of.usage.partition == "jwt.sub=a").unwrap();
        (found.usage.quota, found.usage.quota_from, found.without_override)
    };
    assert_eq!(usage().await, (Some(2), QuotaFrom::Override, Some(300)));
    let SetOverride { domain, policy, partition, by, .. } = over;
    let clear = ClearOverride { domain, policy, partition, by };
    operate.overrides.clear(&clear).await.unwrap();
    assert_eq!(usage().await, (Some(300), QuotaFrom::Reservation, None));
}

pub async fn records_the_end_of_an_override_of_a_party(store: &Arc<dyn Store>) {
    let operate = reported(store, "party-ends", &["p"]).await;
    for partition in ["jwt.sub=a", "jwt.sub=a,*"] {
        let over =
            SetOverride { for_ms: Some(1000), ..over("party-ends", partition, Allow::Blocked) };
        operate.overrides.set(&over).await.unwrap();
    }
    until("both end", Duration::from_secs(5), async || {
        let left = operate.overrides.list(Some("party-ends"), None, 9).await.unwrap();
        left.is_empty().then_some(())
    })
    .await;
    let events = operate.history.list(Some("party-ends"), 9).await.unwrap();
    let ended = events.iter().filter(|event| event.done.contains("ended"));
    let mut ended: Vec<_> = ended
        .map(|event| (event.done.as_str(), event.policy.as_deref(), event.partition.as_deref()))
        .collect();
    ended.sort_unstable();
    let expected = [
        ("override p jwt.sub=a ended: blocked", Some("p"), Some("jwt.sub=a")),
        ("override p jwt.sub=a,* ended: blocked", Some("p"), Some("jwt.sub=a,*")),
    ];
    assert_eq!(ended, expected, "{events:?}");
}

pub async fn says_where_a_quota_comes_from(store: &Arc<dyn Store>) {
    let operate = Operate::new(Arc::clone(store));
    let cached = operate.views.wanted("from").await.unwrap();
    let policy = |name: &str, overrides: &str| {
        json!({"name": name, "quota": 5, "window_s": 3600, "stagger": false, "mode": "enforce",
               "on_failure": "allow", "overrides": overrides})
    };
    let report = json!({"policies": [policy("p", "none"), policy("q", "unlimited")]});
    cached.learn(report.to_string().as_bytes()).unwrap();
    operate.directory.write_down(&cached).await;
    for name in ["p", "q"] {
        let key = format!("from:{name}:{{jwt.sub=a}}");
        one(&**store, &Reservation { key: key.into(), window_s: 3600, ..take("", 5, 1) }).await;
        let dial = SetDial { quota: Some(8), ..set("from", name) };
        operate.dials.set(&dial).await.unwrap();
    }
    let from = async |calls: SeenQuotas| {
        let reply = operate.counters.usage(Some("from"), "jwt.sub=a", &calls).await.unwrap();
        let [p, q] = reply.found.try_into().unwrap();
        [p, q].map(|found| (found.usage.quota, found.usage.quota_from))
    };
    let dialed = (Some(8), QuotaFrom::Dial);
    assert_eq!(from(NO_CALLS).await, [dialed; 2], "a quota of the document would be kept");
    assert_eq!(from(SeenQuotas(|_| Some(8))).await, [dialed; 2]);
    assert_eq!(from(SeenQuotas(|_| Some(5))).await, [(Some(5), QuotaFrom::Policy); 2]);
    assert_eq!(from(SeenQuotas(|_| Some(6))).await, [(Some(6), QuotaFrom::Reservation); 2]);
    // The call says that its quota is not the policy's, and the document whose it may be.
    let own = |name: &str| Reservation {
        key: format!("from:{name}:{{jwt.sub=a}}").into(),
        window_s: 3600,
        own_quota: true,
        ..take("", 9, 1)
    };
    one(&**store, &own("q")).await;
    assert_eq!(from(NO_CALLS).await, [dialed, (Some(9), QuotaFrom::Document)]);
    let blocked =
        SetOverride { policy: "q".to_owned(), ..over("from", "jwt.sub=b", Allow::Blocked) };
    let remark = operate.overrides.set(&blocked).await.unwrap().remark.unwrap();
    assert!(remark.contains("q has counted nothing of jwt.sub=b"), "{remark}");
    assert!(remark.contains("makes some of its partitions unlimited"), "{remark}");
}

pub async fn suggests_the_party_that_an_operator_meant(store: &Arc<dyn Store>) {
    let operate = reported(store, "meant", &["p"]).await;
    let ask = CheckedReservation::new(Reservation {
        key: "meant:p:{jwt.sub=alice,method=GET}".into(),
        window_s: 3600,
        ..take("", 5, 1)
    });
    let grant =
        Grant { granted: 1, used: 1, quota: 5, reset_ms: 60_000, window: 7, ..Grant::default() };
    operate.watch.reserved(&ask.unwrap(), &Ok(grant));
    let remark = async |policy: &str, partition: &str| {
        let wish =
            SetOverride { policy: policy.to_owned(), ..over("meant", partition, Allow::Unlimited) };
        operate.overrides.set(&wish).await.unwrap().remark.unwrap()
    };
    let said = remark("*", "jwt.sub=alcie").await;
    assert!(said.ends_with("in its current window: did you mean jwt.sub=alice?"), "{said}");
    let said = remark("p", "jwt.sub=alice,method=GTE").await;
    assert!(said.ends_with("window: did you mean jwt.sub=alice,method=GET?"), "{said}");
    let said = remark("p", "jwt.sub=bob,method=GET").await;
    assert!(said.ends_with("in this window."), "{said}");
}
