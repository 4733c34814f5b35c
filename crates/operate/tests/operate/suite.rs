//! What operators do, as one suite over every backend: memory, Redis, and a Redis Cluster of six
//! nodes.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{one, open, take, until};
use crate::operators::{clear, reply, report, reported, set};
use futures_util::future::join_all;
use quotagate_operate::api::{
    Allow, ClearOverride, MAX_FOR_MS, MAX_FOUND, QuotaFrom, Reset, SetDial, SetOverride,
};
use quotagate_operate::{Fault, Operate};
use quotagate_quota::protocol::Window;
use quotagate_quota::protocol::dials::DialsReply;
use quotagate_quota::protocol::{MAX_UNITS, Reservation};
use quotagate_quota::protocol::{Mode, OnFailure};
use quotagate_store::control::HashName;
use quotagate_store::store::Store;
use quotagate_support::cluster::Cluster;
use quotagate_support::redis::Redis;

async fn suite(store: Arc<dyn Store>) {
    sets_and_clears_dials(&store).await;
    merges_fields_of_a_dial(&store).await;
    reverts_dials_by_themselves(&store).await;
    refuses_unknown_names_and_values_out_of_bounds(&store).await;
    shows_other_stores(&store).await;
    keeps_every_one_of_many_concurrent_changes(&store).await;
    overrides_one_partition(&store).await;
    ends_overrides_by_themselves(&store).await;
    refuses_invalid_overrides(&store).await;
    shows_and_resets_counters(&store).await;
    finds_composite_partitions(&store).await;
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

async fn sets_and_clears_dials(store: &Arc<dyn Store>) {
    let operate = reported(store, "turns", &["a", "b"]).await;
    assert_eq!(reply(&operate, "turns").await, DialsReply::default());
    let made = operate.dials.set(&SetDial { quota: Some(8), ..set("turns", "a") }).await.unwrap();
    assert_eq!((made.version, made.domain.as_str()), (1, "turns"));
    assert_eq!(made.done, "set dial a: quota 8");
    let told = reply(&operate, "turns").await;
    assert_eq!((told.version, operate.views.version("turns")), (1, 1), "at once");
    assert_eq!(
        (told.dials[0].policy.as_str(), told.dials[0].quota, told.dials[0].for_ms),
        ("a", Some(8), None)
    );
    operate
        .dials
        .set(&SetDial { mode: Some(Mode::Off), for_ms: Some(60_000), ..set("turns", "*") })
        .await
        .unwrap();
    let board = operate.boards.read_all(Some("turns")).await.unwrap().remove(0);
    assert_eq!((board.version, board.policies.len(), board.dials.len()), (2, 2, 2));
    let all = &board.dials[0];
    assert_eq!((all.policy.as_str(), all.mode, all.by.as_str()), ("*", Some(Mode::Off), "ann"));
    assert!(all.remaining_ms.is_some_and(|left| (50_000..=60_000).contains(&left)), "{all:?}");
    let made = operate.dials.clear(&clear("turns", "a")).await.unwrap();
    assert_eq!((made.version, made.done.as_str()), (3, "cleared dial a"));
    let absent = operate.dials.clear(&clear("turns", "a")).await.unwrap_err();
    assert!(matches!(absent, Fault::Absent(_)), "{absent:?}");
    let told = reply(&operate, "turns").await;
    assert_eq!((told.version, told.dials.len()), (3, 1));
    let history = operate.history.list(Some("turns"), 2).await.unwrap();
    let said: Vec<_> =
        history.iter().map(|event| (event.by.as_str(), event.done.as_str())).collect();
    assert_eq!(said, [("ben", "cleared dial a"), ("ann", "set dial *: mode off, for 1m")]);
    assert!(history.iter().all(|event| event.at_ms > 1_700_000_000_000));
}

async fn merges_fields_of_a_dial(store: &Arc<dyn Store>) {
    let operate = reported(store, "merges", &["a"]).await;
    let dial = async |wish: SetDial| {
        operate.dials.set(&wish).await.unwrap();
        reply(&operate, "merges").await.dials.remove(0)
    };
    dial(SetDial { quota: Some(8), for_ms: Some(60_000), ..set("merges", "a") }).await;
    let both =
        dial(SetDial { mode: Some(Mode::Shadow), for_ms: Some(90_000), ..set("merges", "a") })
            .await;
    assert_eq!((both.quota, both.mode), (Some(8), Some(Mode::Shadow)));
    assert!(both.for_ms.is_some_and(|left| left > 60_000), "{both:?}");
    let deny = SetDial { on_failure: Some(OnFailure::Deny), ..set("merges", "a") };
    let refused = operate.dials.set(&deny).await.unwrap_err().to_string();
    assert!(
        refused.starts_with("for_ms: a has mode shadow, quota 8 for another ")
            && refused
                .contains("Give a time, or set mode shadow, quota 8 again in the same change"),
        "{refused}"
    );
    // A change that names every timed field may make them permanent.
    let all = SetDial { quota: Some(8), mode: Some(Mode::Shadow), ..deny };
    let stays = dial(all).await;
    assert_eq!(
        (stays.quota, stays.on_failure, stays.for_ms),
        (Some(8), Some(OnFailure::Deny), None)
    );
    let timed = SetDial { quota: Some(9), for_ms: Some(60_000), ..set("merges", "a") };
    let refused = operate.dials.set(&timed).await.unwrap_err().to_string();
    assert!(refused.contains("has mode shadow, on_failure deny until it is cleared"), "{refused}");
    assert_eq!(reply(&operate, "merges").await.version, 3, "a refused change changes nothing");
}

async fn reverts_dials_by_themselves(store: &Arc<dyn Store>) {
    let operate = reported(store, "reverts", &["a"]).await;
    operate
        .dials
        .set(&SetDial { quota: Some(8), for_ms: Some(1000), ..set("reverts", "a") })
        .await
        .unwrap();
    assert_eq!(reply(&operate, "reverts").await.dials.len(), 1);
    until("it reverts", Duration::from_secs(3), async || {
        reply(&operate, "reverts").await.dials.is_empty().then_some(())
    })
    .await;
    assert!(operate.boards.read_all(Some("reverts")).await.unwrap()[0].dials.is_empty());
    let absent = operate.dials.clear(&clear("reverts", "a")).await.unwrap_err();
    assert!(matches!(absent, Fault::Absent(_)), "{absent:?}");
    let mode = SetDial { mode: Some(Mode::Off), ..set("reverts", "a") };
    operate.dials.set(&mode).await.unwrap();
    assert_eq!(
        reply(&operate, "reverts").await.dials[0].quota,
        None,
        "an ended dial is not merged"
    );
}

async fn refuses_unknown_names_and_values_out_of_bounds(store: &Arc<dyn Store>) {
    let operate = reported(store, "known", &["a", "b"]).await;
    let fault = async |wish: SetDial| operate.dials.set(&wish).await.unwrap_err();
    let off = |policy| SetDial { mode: Some(Mode::Off), ..set("known", policy) };
    match fault(off("c")).await {
        Fault::Unknown { field, known, .. } => {
            assert_eq!((field, known), ("policy", vec!["a".into(), "b".into()]))
        }
        other => panic!("{other:?}"),
    }
    match fault(SetDial { domain: Some("nowhere".to_owned()), ..off("a") }).await {
        Fault::Unknown { field, known, .. } => {
            assert!(field == "domain" && known.iter().any(|name| name == "known"), "{known:?}");
        }
        other => panic!("{other:?}"),
    }
    operate.views.wanted("other").await.unwrap().learn(&report(&["z"])).unwrap();
    match fault(SetDial { domain: None, ..off("a") }).await {
        Fault::Invalid { field, known, .. } => {
            assert!(field == "domain" && known.len() >= 2, "{known:?}")
        }
        other => panic!("{other:?}"),
    }
    for (wish, wrong) in [
        (set("known", "a"), "mode"),
        (SetDial { quota: Some(1 << 53), ..set("known", "a") }, "quota"),
        (SetDial { quota: Some(1), ..set("known", "*") }, "quota"),
        (SetDial { for_ms: Some(999), ..off("a") }, "for_ms"),
        (SetDial { for_ms: Some(MAX_FOR_MS + 1), ..off("a") }, "for_ms"),
    ] {
        let fault = fault(wish).await;
        assert!(matches!(&fault, Fault::Invalid { field, .. } if *field == wrong), "{fault:?}");
    }
    assert_eq!(reply(&operate, "known").await.version, 0, "nothing was changed");
}

async fn shows_other_stores(store: &Arc<dyn Store>) {
    let one = reported(store, "shared", &["a"]).await;
    let other = Operate::new(Arc::clone(store));
    assert_eq!(reply(&other, "shared").await.version, 0);
    let names = other.directory.policies("shared").await.unwrap();
    assert_eq!((names.len(), names[0].name.as_str(), names[0].quota), (1, "a", 5));
    assert!(other.directory.domains().await.unwrap().iter().any(|name| name == "shared"));
    one.dials.set(&SetDial { quota: Some(9), ..set("shared", "a") }).await.unwrap();
    let seen = until("the other store sees it", Duration::from_secs(5), async || {
        (other.views.version("shared") == 1).then_some(())
    });
    tokio::select! {
        () = other.run() => unreachable!(),
        () = seen => {}
    }
}

async fn keeps_every_one_of_many_concurrent_changes(store: &Arc<dyn Store>) {
    let operate = reported(store, "many", &["a"]).await;
    let changes = (0..8).map(|n| {
        let wish = match n % 2 {
            0 => SetDial { quota: Some(n), ..set("many", "a") },
            _ => SetDial { mode: Some(Mode::Shadow), ..set("many", "a") },
        };
        let operate = &operate;
        async move { operate.dials.set(&wish).await.unwrap().version }
    });
    let mut versions = join_all(changes).await;
    versions.sort_unstable();
    assert_eq!(versions, [1, 2, 3, 4, 5, 6, 7, 8]);
    let dial = reply(&operate, "many").await.dials.remove(0);
    assert!(
        dial.quota.is_some() && dial.mode == Some(Mode::Shadow),
        "no change was lost: {dial:?}"
    );
    assert_eq!(operate.history.list(Some("many"), 100).await.unwrap().len(), 8);
}

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
    let grant = one(store, &Reservation { key, window_s: 3600, ..take("", 5, want) }).await;
    (grant.granted, grant.used, grant.quota)
}

async fn overrides_one_partition(store: &Arc<dyn Store>) {
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

async fn ends_overrides_by_themselves(store: &Arc<dyn Store>) {
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

async fn refuses_invalid_overrides(store: &Arc<dyn Store>) {
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

async fn shows_and_resets_counters(store: &Arc<dyn Store>) {
    let operate = reported(store, "usage", &["p", "q", "staggered"]).await;
    let offset_s = Window::new(3600, 0).unwrap().staggered("jwt.sub=a").offset();
    for (policy, offset_s, want) in [("p", 0, 3), ("staggered", offset_s, 4)] {
        let key = format!("usage:{policy}:{{jwt.sub=a}}");
        one(&**store, &Reservation { key, window_s: 3600, offset_s, ..take("", 5, want) }).await;
    }
    let usage = async || {
        operate
            .counters
            .usage(Some("usage"), "jwt.sub=a", &|_, _| None)
            .await
            .map(|reply| reply.found)
    };
    let found = usage().await.unwrap();
    let shown: Vec<_> =
        found.iter().map(|u| (u.policy.as_str(), u.used, u.quota, u.quota_from)).collect();
    let policy = QuotaFrom::Policy;
    assert_eq!(shown, [("p", 3, Some(5), policy), ("staggered", 4, Some(5), policy)]);
    assert!(found.iter().all(|usage| (1..=3_600_000).contains(&usage.reset_ms)), "{found:?}");
    let seen = operate
        .counters
        .usage(Some("usage"), "jwt.sub=a", &|key, _| (key == "usage:p:{jwt.sub=a}").then_some(50))
        .await
        .unwrap()
        .found;
    assert_eq!((seen[0].quota, seen[0].quota_from), (Some(50), QuotaFrom::Reservation));
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
        one(&**store, &Reservation { key, window_s: 3600, offset_s, ..take("", 5, 9) }).await;
    assert_eq!((anew.granted, anew.used), (5, 5), "it has its whole quota again");
    let absent =
        operate.counters.usage(Some("usage"), "jwt.sub=nobody", &|_, _| None).await.unwrap_err();
    assert!(matches!(absent, Fault::Absent(_)), "{absent:?}");
    assert_eq!(
        operate.history.list(Some("usage"), 1).await.unwrap()[0].done,
        "reset staggered jwt.sub=a, 4 units were used"
    );
}

async fn finds_composite_partitions(store: &Arc<dyn Store>) {
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
        one(&**store, &Reservation { key, window_s: 3600, ..take("", 5, 5) }).await;
    }
    operate.overrides.set(&over("find", "jwt.sub=bob,method=PUT", Allow::Quota(9))).await.unwrap();
    let found = async |party: &str| {
        let reply = operate.counters.usage(Some("find"), party, &|_, _| None).await.unwrap();
        assert_eq!(reply.incomplete, None);
        reply.found.into_iter().map(|of| (of.policy, of.partition, of.used)).collect::<Vec<_>>()
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
        one(&**store, &Reservation { key, window_s: 3600, ..take("", 5, 5) }).await;
    }
    let many = operate.counters.usage(Some("find"), "jwt.sub=bob", &|_, _| None).await.unwrap();
    assert_eq!(many.found.len(), MAX_FOUND);
    assert!(many.incomplete.is_some());
    assert!(many.found.iter().any(|of| of.policy == "q"), "{:?}", many.found);
}
