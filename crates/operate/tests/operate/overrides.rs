//! Setting and clearing an override takes several steps: a step fails, or another operator acts
//! between two steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::calls::NO_CALLS;
use crate::common::{one, open, take};
use crate::operators::reported;
use crate::slow::{Before, Slow, Step};
use futures_util::future::FutureExt;
use quotagate_operate::api::{Allow, ClearOverride, Reset, SetOverride};
use quotagate_operate::{Fault, Operate};
use quotagate_protocol::Reservation;
use quotagate_store::control::{HashName, Key};
use quotagate_store::store::{Store, StoreError};

const PARTITION: &str = "jwt.sub=mallory";
const KEY: &str = "d:p:{jwt.sub=mallory}";

fn set(allow: Allow) -> SetOverride {
    SetOverride {
        domain: Some("d".to_owned()),
        policy: "p".to_owned(),
        partition: PARTITION.to_owned(),
        allow,
        for_ms: None,
        by: "ann".to_owned(),
    }
}

fn clear() -> ClearOverride {
    ClearOverride {
        domain: Some("d".to_owned()),
        policy: "p".to_owned(),
        partition: PARTITION.to_owned(),
        by: "ben".to_owned(),
    }
}

/// A store where the next `step` fails with `error` once the flag is set.
async fn failing(step: Step, error: StoreError) -> (Arc<dyn Store>, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&fails);
    let before: Before = Box::new(move |of| {
        let error = error.clone();
        let hit = of == step && now.swap(false, Relaxed);
        async move { if hit { Err(error) } else { Ok(()) } }.boxed()
    });
    (Arc::new(Slow { inner: open("memory:").await, before }), fails)
}

async fn history(operate: &Operate) -> Vec<String> {
    operate.history.list(Some("d"), 9).await.unwrap().into_iter().map(|event| event.done).collect()
}

async fn in_force(store: &Arc<dyn Store>) -> Option<String> {
    store.control().get(Key::Override(KEY)).await.unwrap().value
}

#[tokio::test]
async fn refused_override_leaves_no_trace() {
    let (store, fails) = failing(Step::Set, StoreError::Refused("NOPERM".to_owned())).await;
    let operate = reported(&store, "d", &["p"]).await;
    fails.store(true, Relaxed);
    operate.overrides.set(&set(Allow::Blocked)).await.unwrap_err();
    assert_eq!(in_force(&store).await, None);
    assert_eq!(store.control().read(HashName::Overrides, "d").await.unwrap().fields, []);
    assert_eq!(
        (history(&operate).await, operate.boards.read_all(Some("d")).await.unwrap()[0].version),
        (vec![], 0)
    );
}

#[tokio::test]
async fn failed_replacement_leaves_the_old_override_listed() {
    let (store, fails) = failing(Step::Set, StoreError::Refused("NOPERM".to_owned())).await;
    let operate = reported(&store, "d", &["p"]).await;
    operate
        .overrides
        .set(&SetOverride { for_ms: Some(60_000), ..set(Allow::Quota(7)) })
        .await
        .unwrap();
    let before = store.control().read(HashName::Overrides, "d").await.unwrap().fields;
    fails.store(true, Relaxed);
    let timed = SetOverride { for_ms: Some(60_000), ..set(Allow::Blocked) };
    operate.overrides.set(&timed).await.unwrap_err();
    assert_eq!(store.control().read(HashName::Overrides, "d").await.unwrap().fields, before);
    assert_eq!(in_force(&store).await.as_deref(), Some("7"));
    assert_eq!(history(&operate).await, ["set override p jwt.sub=mallory: quota 7, for 1m"]);
}

#[tokio::test]
async fn unanswered_set_is_listed_and_recorded_as_tried() {
    let (store, fails) = failing(Step::Set, StoreError::NoAnswer("late".to_owned())).await;
    let operate = reported(&store, "d", &["p"]).await;
    fails.store(true, Relaxed);
    operate.overrides.set(&set(Allow::Blocked)).await.unwrap_err();
    assert_eq!(store.control().read(HashName::Overrides, "d").await.unwrap().fields.len(), 1);
    let tried = "tried to set override p jwt.sub=mallory: blocked; the backend did not answer";
    assert_eq!(history(&operate).await, [tried]);
}

#[tokio::test]
async fn set_without_history_is_reported_and_can_be_cleared() {
    let (store, fails) = failing(Step::Record, StoreError::Refused("full".to_owned())).await;
    let operate = reported(&store, "d", &["p"]).await;
    fails.store(true, Relaxed);
    let fault = operate.overrides.set(&set(Allow::Blocked)).await.unwrap_err();
    assert!(
        fault.to_string().contains("full; the override is in force and listed, but"),
        "{fault}"
    );
    assert_eq!(operate.overrides.list(Some("d"), None, 9).await.unwrap().len(), 1);
    operate.overrides.clear(&clear()).await.unwrap();
    assert_eq!((in_force(&store).await, history(&operate).await.len()), (None, 1));
}

#[tokio::test]
async fn clear_without_history_is_reported_and_a_second_clear_records_it() {
    let (store, fails) = failing(Step::Record, StoreError::Refused("full".to_owned())).await;
    let operate = reported(&store, "d", &["p"]).await;
    operate.overrides.set(&set(Allow::Blocked)).await.unwrap();
    fails.store(true, Relaxed);
    let fault = operate.overrides.clear(&clear()).await.unwrap_err();
    assert!(fault.to_string().contains("full; the override is cleared, but"), "{fault}");
    assert_eq!(operate.overrides.clear(&clear()).await.unwrap().version, 2);
    assert_eq!(history(&operate).await[0], "cleared override p jwt.sub=mallory");
}

#[tokio::test]
async fn clear_during_a_set_leaves_no_override_unlisted() {
    let inner = open("memory:").await;
    let other = Arc::new(reported(&inner, "d", &["p"]).await);
    let once = Arc::new(AtomicBool::new(false));
    let before: Before = Box::new(move |step| {
        let (other, first) = (Arc::clone(&other), step == Step::Set && !once.swap(true, Relaxed));
        async move {
            if first {
                // The entry exists, and the override does not yet.
                other.overrides.clear(&clear()).await.unwrap();
            }
            Ok(())
        }
        .boxed()
    });
    let store: Arc<dyn Store> = Arc::new(Slow { inner, before });
    let operate = reported(&store, "d", &["p"]).await;
    operate.overrides.set(&set(Allow::Blocked)).await.unwrap();
    assert_eq!(in_force(&store).await.as_deref(), Some("blocked"));
    let listed = operate.overrides.list(Some("d"), None, 9).await.unwrap();
    assert_eq!(listed.len(), 1, "in force, but not listed");
    let said = ["set override p jwt.sub=mallory: blocked", "cleared override p jwt.sub=mallory"];
    assert_eq!(history(&operate).await, said);
}

#[tokio::test]
async fn set_during_a_clear_is_cleared_too() {
    let inner = open("memory:").await;
    let other = Arc::new(reported(&inner, "d", &["p"]).await);
    other.overrides.set(&set(Allow::Quota(7))).await.unwrap();
    let (again, once) = (Arc::clone(&other), Arc::new(AtomicBool::new(false)));
    let before: Before = Box::new(move |step| {
        let (other, first) =
            (Arc::clone(&again), step == Step::Record && !once.swap(true, Relaxed));
        async move {
            if first {
                // The override is deleted, and its entry is not yet.
                other.overrides.set(&set(Allow::Blocked)).await.unwrap();
            }
            Ok(())
        }
        .boxed()
    });
    let store: Arc<dyn Store> = Arc::new(Slow { inner, before });
    let operate = reported(&store, "d", &["p"]).await;
    operate.overrides.clear(&clear()).await.unwrap();
    assert_eq!(in_force(&store).await, None);
    assert_eq!(store.control().read(HashName::Overrides, "d").await.unwrap().fields, []);
    assert_eq!(history(&operate).await[0], "cleared override p jwt.sub=mallory");
    assert!(matches!(other.overrides.clear(&clear()).await, Err(Fault::Absent(_))));
}

#[tokio::test]
async fn partitions_are_named_as_the_filter_counts_them() {
    let store = open("memory:").await;
    let operate = reported(&store, "d", &["p"]).await;
    for (typed, counted) in [
        ("ip=2001:DB8::1", "ip=2001:db8::1"),
        ("jwt.sub=a|b", "jwt.sub=a%7Cb"),
        ("jwt.sub=k%c3%a4se", "jwt.sub=k%C3%A4se"),
        ("*", "*"),
    ] {
        let made = operate
            .overrides
            .set(&SetOverride { partition: typed.to_owned(), ..set(Allow::Quota(7)) })
            .await
            .unwrap();
        assert_eq!(made.done, format!("set override p {counted}: quota 7"));
        let key = format!("d:p:{{{counted}}}");
        let grant =
            one(&*store, &Reservation { key: key.into(), window_s: 3600, ..take("", 5, 1) }).await;
        assert_eq!((grant.used, grant.quota), (1, 7), "{counted}");
        let reply = operate.counters.usage(Some("d"), typed, &NO_CALLS).await.unwrap();
        let usage = &reply.found[0].usage;
        assert_eq!((usage.partition.as_str(), usage.used), (counted, 1));
        let domain = Some("d".to_owned());
        let (policy, partition, by) = ("p".to_owned(), typed.to_owned(), "ann".to_owned());
        let reset = Reset { domain, policy, partition, by };
        assert_eq!(
            operate.counters.reset(&reset).await.unwrap().done,
            format!("reset p {counted}, 1 units were used")
        );
        let Reset { domain, policy, partition, by } = reset;
        let clear = ClearOverride { domain, policy, partition, by };
        assert_eq!(
            operate.overrides.clear(&clear).await.unwrap().done,
            format!("cleared override p {counted}")
        );
    }
    let long = format!("jwt.sub={}", "a".repeat(200));
    let fault = operate
        .overrides
        .set(&SetOverride { partition: long, ..set(Allow::Blocked) })
        .await
        .unwrap_err();
    assert!(fault.to_string().contains("a digest of it"), "{fault}");
    let fault = operate.counters.usage(Some("d"), "alice", &NO_CALLS).await.unwrap_err();
    assert!(fault.to_string().contains("lacks its label"), "{fault}");
}
