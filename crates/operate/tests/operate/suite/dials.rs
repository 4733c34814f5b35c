//! Setting and clearing dials, and what other stores see of it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quotagate_operate::api::{Allow, MAX_FOR_MS, SetDial, SetOverride};
use quotagate_operate::{Fault, Operate};
use quotagate_protocol::dials::{DialsReply, EnforcedShare};
use quotagate_protocol::{Mode, OnFailure, Reservation};
use quotagate_store::store::Store;
use serde_json::json;

use crate::common::{one, take, until};
use crate::operators::{clear, reply, report, reported, set};

pub async fn sets_and_clears_dials(store: &Arc<dyn Store>) {
    let operate = reported(store, "turns", &["a", "b"]).await;
    let none = DialsReply { document: Some(<_>::default()), ..<_>::default() };
    assert_eq!(reply(&operate, "turns").await, none);
    let made = operate.dials.set(&SetDial { quota: Some(8), ..set("turns", "a") }).await.unwrap();
    assert_eq!((made.version, made.domain.as_str()), (1, "turns"));
    assert_eq!(made.done, "set dial a: quota 8");
    let reported = reply(&operate, "turns").await;
    assert_eq!((reported.version, operate.views.version("turns")), (1, 1), "at once");
    assert_eq!(
        (
            reported.dials[0].policy.as_str(),
            reported.dials[0].fields.quota,
            reported.dials[0].for_ms
        ),
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
    assert_eq!(
        (all.policy.as_str(), all.fields.mode, all.by.as_str()),
        ("*", Some(Mode::Off), "ann")
    );
    assert!(all.remaining_ms.is_some_and(|left| (50_000..=60_000).contains(&left)), "{all:?}");
    let made = operate.dials.clear(&clear("turns", "a")).await.unwrap();
    assert_eq!((made.version, made.done.as_str()), (3, "cleared dial a"));
    let absent = operate.dials.clear(&clear("turns", "a")).await.unwrap_err();
    assert!(matches!(absent, Fault::Absent(_)), "{absent:?}");
    let reported = reply(&operate, "turns").await;
    assert_eq!((reported.version, reported.dials.len()), (3, 1));
    let history = operate.history.list(Some("turns"), 2).await.unwrap();
    let said: Vec<_> =
        history.iter().map(|event| (event.by.as_str(), event.done.as_str())).collect();
    assert_eq!(said, [("ben", "cleared dial a"), ("ann", "set dial *: mode off, for 1m")]);
    assert!(history.iter().all(|event| event.at_ms > 1_700_000_000_000));
}

pub async fn enforces_no_shadow_policy_by_the_way(store: &Arc<dyn Store>) {
    let operate = Operate::new(Arc::clone(store));
    let cached = operate.views.wanted("shadows").await.unwrap();
    let policy = |name: &str, mode: &str| json!({"name": name, "quota": 5, "window_s": 60, "stagger": false, "mode": mode, "on_failure": "allow"});
    let report = json!({"policies": [
        policy("refuses", "enforce"), policy("tried", "shadow"), policy("marked", "mark"), policy("own", "shadow")]});
    cached.learn(report.to_string().as_bytes()).unwrap();
    operate.directory.write_down(&cached).await;
    let own = SetDial { mode: Some(Mode::Shadow), ..set("shadows", "own") };
    operate.dials.set(&own).await.unwrap();
    let wish = SetDial { mode: Some(Mode::Enforce), ..set("shadows", "*") };
    let fault = operate.dials.set(&wish).await.unwrap_err().to_string();
    assert!(fault.contains("marked (mark), tried (shadow). Set include_shadow"), "{fault}");
    assert!(!fault.contains("own (") && !fault.contains("refuses"), "{fault}");
    // A dial of its own protects a policy only until it ends.
    operate.dials.set(&SetDial { for_ms: Some(60_000), ..own }).await.unwrap();
    let fault = async |for_ms| {
        let timed = SetDial { for_ms, ..wish.clone() };
        operate.dials.set(&timed).await.unwrap_err().to_string()
    };
    for for_ms in [None, Some(3_600_000)] {
        let fault = fault(for_ms).await;
        assert!(fault.contains("own (shadow, once its own dial ends in "), "{fault}");
    }
    let fault = fault(Some(30_000)).await;
    assert!(!fault.contains("own ("), "{fault}");
    let meant = SetDial { include_shadow: true, ..wish };
    assert_eq!(operate.dials.set(&meant).await.unwrap().done, "set dial *: mode enforce");
    let only_failure = SetDial { on_failure: Some(OnFailure::Deny), ..set("shadows", "*") };
    operate.dials.set(&only_failure).await.unwrap();
}

pub async fn merges_fields_of_a_dial(store: &Arc<dyn Store>) {
    let operate = reported(store, "merges", &["a"]).await;
    let dial = async |wish: SetDial| {
        operate.dials.set(&wish).await.unwrap();
        reply(&operate, "merges").await.dials.remove(0)
    };
    dial(SetDial { quota: Some(8), for_ms: Some(60_000), ..set("merges", "a") }).await;
    let both =
        dial(SetDial { mode: Some(Mode::Shadow), for_ms: Some(90_000), ..set("merges", "a") })
            .await;
    assert_eq!((both.fields.quota, both.fields.mode), (Some(8), Some(Mode::Shadow)));
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
        (stays.fields.quota, stays.fields.on_failure, stays.for_ms),
        (Some(8), Some(OnFailure::Deny), None)
    );
    let timed = SetDial { quota: Some(9), for_ms: Some(60_000), ..set("merges", "a") };
    let refused = operate.dials.set(&timed).await.unwrap_err().to_string();
    assert!(refused.contains("has mode shadow, on_failure deny until it is cleared"), "{refused}");
    assert_eq!(reply(&operate, "merges").await.version, 3, "a refused change changes nothing");
}

pub async fn reverts_dials_by_themselves(store: &Arc<dyn Store>) {
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
        reply(&operate, "reverts").await.dials[0].fields.quota,
        None,
        "an ended dial is not merged"
    );
}

pub async fn refuses_unknown_names_and_values_out_of_bounds(store: &Arc<dyn Store>) {
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

pub async fn shows_other_stores(store: &Arc<dyn Store>) {
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

pub async fn keeps_every_one_of_many_concurrent_changes(store: &Arc<dyn Store>) {
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
        dial.fields.quota.is_some() && dial.fields.mode == Some(Mode::Shadow),
        "no change was lost: {dial:?}"
    );
    assert_eq!(operate.history.list(Some("many"), 100).await.unwrap().len(), 8);
}

pub async fn enforces_a_policy_for_a_share(store: &Arc<dyn Store>) {
    let operate = reported(store, "share", &["p"]).await;
    let share = |percent, only: &[&str]| SetDial {
        enforced_for: Some(EnforcedShare {
            percent,
            only: only.iter().map(|party| (*party).to_owned()).collect(),
        }),
        ..set("share", "p")
    };
    let made = operate.dials.set(&share(5, &["jwt.sub=Ann Smith"])).await.unwrap();
    let words = "set dial p: mode shadow, enforced for 5 % and jwt.sub=Ann%20Smith";
    assert_eq!(made.done, words);
    let sent = reply(&operate, "share").await.dials.remove(0).fields;
    assert_eq!(sent.mode, Some(Mode::Shadow));
    let mode = |partition: &str| sent.mode_of(partition).unwrap();
    assert_eq!(mode("jwt.sub=Ann%20Smith,method=GET"), Mode::Enforce);
    assert_eq!(mode("jwt.sub=Ann"), Mode::Shadow);
    // An override says whether it refuses this party.
    let over = |partition: &str| SetOverride {
        domain: Some("share".to_owned()),
        policy: "p".to_owned(),
        partition: partition.to_owned(),
        allow: Allow::Blocked,
        for_ms: None,
        by: "ann".to_owned(),
    };
    for (partition, is_shadow) in [("jwt.sub=Ann Smith", false), ("jwt.sub=Ann", true)] {
        let remark = operate.overrides.set(&over(partition)).await.unwrap().remark.unwrap();
        assert_eq!(remark.contains("in mode shadow"), is_shadow, "{remark}");
    }
    // It is a part of the mode: another field keeps it, another mode ends it.
    operate.dials.set(&SetDial { quota: Some(8), ..set("share", "p") }).await.unwrap();
    let fields = async || reply(&operate, "share").await.dials.remove(0).fields;
    assert_eq!(fields().await.enforced_for.map(|share| share.percent), Some(5));
    let enforce = SetDial { mode: Some(Mode::Enforce), ..set("share", "p") };
    operate.dials.set(&enforce).await.unwrap();
    assert_eq!((fields().await.mode, fields().await.enforced_for), (Some(Mode::Enforce), None));
    for (wish, wrong) in [
        (share(101, &[]), "enforced_for"),
        (share(0, &[]), "enforced_for"),
        (share(0, &["jwt.sub=a"; 33]), "enforced_for"),
        (share(0, &["alice"]), "partition"),
        (SetDial { policy: "*".to_owned(), ..share(5, &[]) }, "enforced_for"),
        (SetDial { mode: Some(Mode::Enforce), ..share(5, &[]) }, "mode"),
    ] {
        let fault = operate.dials.set(&wish).await.unwrap_err();
        assert!(matches!(&fault, Fault::Invalid { field, .. } if *field == wrong), "{fault:?}");
    }
}

pub async fn checks_for_whom_a_policy_is_enforced(store: &Arc<dyn Store>) {
    let operate = Operate::new(Arc::clone(store));
    let cached = operate.views.wanted("canary").await.unwrap();
    let policy = |name: &str, mode: &str| {
        json!({"name": name, "quota": 5, "window_s": 3600, "stagger": false, "mode": mode,
               "on_failure": "allow", "partition_by": [{"name": "jwt.sub", "forms": ["jwt.sub"]}]})
    };
    let report = json!({"policies": [policy("p", "enforce"), policy("trial", "shadow")]});
    cached.learn(report.to_string().as_bytes()).unwrap();
    operate.directory.write_down(&cached).await;
    let share = |policy: &str, percent, only: &[&str]| SetDial {
        enforced_for: Some(EnforcedShare {
            percent,
            only: only.iter().map(|party| (*party).to_owned()).collect(),
        }),
        ..set("canary", policy)
    };
    let typo = share("p", 0, &["jwt.sub=bob", "jwt.sbu=alice"]);
    let fault = operate.dials.set(&typo).await.unwrap_err();
    assert!(matches!(&fault, Fault::Invalid { field: "enforced_for", .. }), "{fault:?}");
    let why =
        "no partition contains jwt.sbu=alice: policy p counts by jwt.sub: its partitions look like";
    assert!(fault.to_string().contains(why), "{fault}");
    assert!(reply(&operate, "canary").await.dials.is_empty());
    let key = "canary:p:{jwt.sub=alice}";
    one(&**store, &Reservation { key: key.into(), window_s: 3600, ..take("", 5, 1) }).await;
    let remark = async |wish| operate.dials.set(&wish).await.unwrap().remark;
    let rest = "p was in mode enforce: the rest of its partitions is no longer refused.";
    // Only the first of these takes something from the rest.
    assert_eq!(remark(share("p", 5, &[])).await.as_deref(), Some(rest));
    assert_eq!(remark(share("p", 25, &["jwt.sub=alice"])).await, None);
    assert_eq!(remark(share("trial", 5, &[])).await, None);
    let said = remark(share("p", 25, &["jwt.sub=alice", "jwt.sub=eve"])).await;
    let unseen = "No policy has counted anything of jwt.sub=eve in its current window.";
    assert_eq!(said.as_deref(), Some(unseen));
    let enforce = SetDial { mode: Some(Mode::Enforce), ..set("canary", "trial") };
    assert_eq!(remark(enforce).await, None);
    let said = remark(share("trial", 5, &[])).await;
    assert_eq!(said, Some(rest.replace("p was", "trial was")));
}
