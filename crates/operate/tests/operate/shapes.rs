//! Overrides of partitions that a policy cannot count, and partitions whose entries are in another
//! order than its keys.

use std::sync::Arc;

use crate::common::{one, open, take};
use quotagate_operate::api::{Allow, ClearOverride, Reset, SetOverride};
use quotagate_operate::{Fault, Operate};
use quotagate_protocol::Reservation;
use quotagate_store::store::Store;
use serde_json::{Value, json};

/// What a filter reports of one policy.
fn policy(name: &str, partition_by: &Value) -> Value {
    json!({"name": name, "quota": 5, "window_s": 3600, "stagger": false, "mode": "enforce", "on_failure": "allow",
           "partition_by": partition_by})
}

async fn report(operate: &Operate, policies: Value) {
    let cached = operate.views.wanted("d").await.unwrap();
    cached.learn(json!({"policies": policies}).to_string().as_bytes()).unwrap();
    operate.directory.write_down(&cached).await;
}

/// An operator's view, after a filter has reported three policies: by caller and method, by caller,
/// and with one counter for everybody.
async fn reported(store: &Arc<dyn Store>) -> Operate {
    let operate = Operate::new(Arc::clone(store));
    let caller = json!({"name": "caller", "forms": ["jwt.sub", "ip=/64", "-"]});
    let both = json!([caller, {"name": "method", "forms": ["method", "-"]}]);
    let policies = json!([
        policy("per-method", &both),
        policy("per-caller", &json!([caller])),
        policy("all", &json!([]))
    ]);
    report(&operate, policies).await;
    operate
}

fn over(policy: &str, partition: &str) -> SetOverride {
    SetOverride {
        domain: None,
        policy: policy.to_owned(),
        partition: partition.to_owned(),
        allow: Allow::Quota(7),
        for_ms: None,
        by: "ann".to_owned(),
    }
}

fn clear(policy: &str, partition: &str) -> ClearOverride {
    let (policy, partition, by) = (policy.to_owned(), partition.to_owned(), "ann".to_owned());
    ClearOverride { domain: None, policy, partition, by }
}

#[tokio::test]
async fn unmatchable_override_is_refused_with_a_correct_example() {
    let store = open("memory:").await;
    let operate = reported(&store).await;
    let both = "policy per-method counts by caller, method: name both, as";
    for (policy, partition, words) in [
        ("per-method", "jwt.sub=mallory", format!("{both} jwt.sub=mallory,method=GET")),
        ("per-method", "header.x-plan=gold", format!("{both} jwt.sub=alice,method=GET")),
        (
            "per-caller",
            "jwt.sub=mallory,method=GET",
            "counts by caller: name it, as jwt.sub=mallory".to_owned(),
        ),
        (
            "all",
            "jwt.sub=mallory",
            "policy all has one counter for everybody: name it *".to_owned(),
        ),
    ] {
        let fault = operate.overrides.set(&over(policy, partition)).await.unwrap_err();
        assert!(fault.to_string().contains(&words), "{policy} {partition}: {fault}");
        assert!(matches!(fault, Fault::Invalid { field: "partition", .. }), "{fault:?}");
        let reset = Reset {
            domain: None,
            policy: policy.to_owned(),
            partition: partition.to_owned(),
            by: "ann".to_owned(),
        };
        assert_eq!(operate.counters.reset(&reset).await.unwrap_err(), fault);
    }
    assert_eq!(operate.boards.read_all(None).await.unwrap()[0].version, 0, "nothing was changed");
}

#[tokio::test]
async fn entries_are_accepted_in_any_order() {
    let store = open("memory:").await;
    let operate = reported(&store).await;
    let made = operate.overrides.set(&over("per-method", "method=get,jwt.sub=bob")).await.unwrap();
    assert_eq!(made.partition.as_deref(), Some("jwt.sub=bob,method=GET"));
    assert_eq!(made.done, "set override per-method jwt.sub=bob,method=GET: quota 7");
    let key = "d:per-method:{jwt.sub=bob,method=GET}".to_owned();
    let grant =
        one(&*store, &Reservation { key: key.into(), window_s: 3600, ..take("", 5, 9) }).await;
    assert_eq!((grant.granted, grant.quota), (7, 7), "what the filter counts");
    let reset = Reset {
        domain: None,
        policy: "per-method".to_owned(),
        partition: "method=GET,jwt.sub=bob".to_owned(),
        by: "ann".to_owned(),
    };
    let done = operate.counters.reset(&reset).await.unwrap().done;
    assert_eq!(done, "reset per-method jwt.sub=bob,method=GET, 7 units were used");
    let done =
        operate.overrides.clear(&clear("per-method", "method=GET,jwt.sub=bob")).await.unwrap().done;
    assert_eq!(done, "cleared override per-method jwt.sub=bob,method=GET");
}

#[tokio::test]
async fn unmatched_overrides_are_listed_and_can_be_cleared() {
    let store = open("memory:").await;
    let operate = reported(&store).await;
    operate.overrides.set(&over("per-caller", "jwt.sub=bob")).await.unwrap();
    let listed = async || operate.overrides.list(None, None, 9).await.unwrap();
    assert_eq!(listed().await[0].unmatched, None);
    let host = json!([{"name": "host", "forms": ["host"]}]);
    report(&operate, json!([policy("per-caller", &host)])).await;
    let why = listed().await.remove(0).unmatched.unwrap();
    assert_eq!(why, "policy per-caller counts by host: name it, as host=shop.example");
    operate.overrides.clear(&clear("per-caller", "jwt.sub=bob")).await.unwrap();
    assert!(listed().await.is_empty());
}

#[tokio::test]
async fn report_without_partition_by_keeps_the_previous_one() {
    let store = open("memory:").await;
    let operate = reported(&store).await;
    let mut silent = policy("all", &json!([]));
    silent.as_object_mut().unwrap().remove("partition_by");
    report(&operate, json!([silent])).await;
    operate.overrides.set(&over("all", "jwt.sub=mallory")).await.unwrap_err();
    // A `partition_by` that cannot be stored or shown counts as absent.
    for odd in [
        json!([{"name": "a b", "forms": ["x"]}]),
        json!([{"name": "x".repeat(3000), "forms": ["x"]}]),
    ] {
        report(&operate, json!([policy("all", &odd)])).await;
        operate.overrides.set(&over("all", "jwt.sub=mallory")).await.unwrap_err();
    }
}
