//! Published documents.

use std::sync::Arc;
use std::time::Duration;

use quotagate_operate::api::{PublishDocument, WithdrawDocument};
use quotagate_operate::{Fault, Operate};
use quotagate_store::control::{HashName, LAST_DOCUMENT, Upsert};
use quotagate_store::server::Hooks;
use quotagate_store::store::Store;
use serde_json::{Value, json};

use crate::operators::{reply, reported};

fn document(domain: &str, quota: u64) -> Value {
    let policy = json!({"name": "p", "partition_by": [], "quota": quota, "window": "1h"});
    json!({"domain": domain, "store": {"redis": "redis://:s3cret@r"}, "live": true, "policies": [policy]})
}

fn publish(domain: &str, quota: u64) -> PublishDocument {
    PublishDocument {
        domain: Some(domain.to_owned()),
        document: Some(document(domain, quota)),
        rollback_to: None,
        after: None,
        note: Some(format!("quota {quota}")),
        by: "ann".to_owned(),
    }
}

async fn numbers(operate: &Operate, domain: &str) -> Vec<u64> {
    let listed = operate.document_status(Some(domain)).await.unwrap();
    listed.documents.iter().map(|record| record.number).collect()
}

/// What a proxy gets that has the document with this digest.
async fn fetched(operate: &Operate, domain: &str, digest: &str) -> Value {
    let reply = Hooks::document(operate, domain, digest).await.unwrap();
    serde_json::from_slice(&reply).unwrap()
}

pub async fn publishes_documents_and_goes_back(store: &Arc<dyn Store>) {
    let operate = reported(store, "docs", &["p"]).await;
    let none = reply(&operate, "docs").await.document.unwrap();
    assert_eq!((none.number, none.digest.as_str()), (0, ""));
    assert_eq!(fetched(&operate, "docs", "").await, json!({"number": 0, "digest": ""}));

    let made = operate.documents.publish(&publish("docs", 5)).await.unwrap();
    assert!(made.done.starts_with("published document number 1 ("), "{made:?}");
    assert!(made.done.ends_with(", 1 policy): quota 5") && made.remark.is_none(), "{made:?}");
    let first = reply(&operate, "docs").await.document.unwrap();
    let fetched_first = fetched(&operate, "docs", "").await;
    assert_eq!(fetched_first["number"], 1);
    assert_eq!(fetched_first["digest"], first.digest.as_str());
    let text = fetched_first["document"].to_string();
    assert!(!text.contains("s3cret") && !text.contains("live"), "{text}");
    assert_eq!(fetched_first["document"]["policies"][0]["quota"], 5);
    let known = fetched(&operate, "docs", &first.digest).await;
    assert_eq!(known, json!({"number": 1, "digest": first.digest}), "no body without need");

    operate.documents.publish(&publish("docs", 6)).await.unwrap();
    let same = operate.documents.publish(&publish("docs", 6)).await.unwrap_err();
    assert!(same.to_string().contains("as number 2"), "{same}");
    let back = PublishDocument { document: None, rollback_to: Some(1), ..publish("docs", 0) };
    let made = operate.documents.publish(&back).await.unwrap();
    assert!(made.done.contains("number 3 (") && made.done.contains("of number 1"), "{made:?}");
    let third = reply(&operate, "docs").await.document.unwrap();
    assert_eq!((third.number, &third.digest), (3, &first.digest));
    assert_eq!(fetched(&operate, "docs", "x").await["document"], fetched_first["document"]);

    let wish = WithdrawDocument {
        domain: Some("docs".into()),
        after: Some(3),
        note: None,
        by: "ben".into(),
    };
    operate.documents.withdraw(&wish).await.unwrap();
    let fourth = reply(&operate, "docs").await.document.unwrap();
    assert_eq!((fourth.number, fourth.digest.as_str()), (4, ""));
    let again = WithdrawDocument { after: None, ..wish };
    let again = operate.documents.withdraw(&again).await;
    assert_eq!(again.unwrap_err().to_string(), "no document is published in docs");
    assert_eq!(numbers(&operate, "docs").await, [4, 3, 2, 1]);

    // Another store has the same, and names who did it.
    let other = Operate::new(Arc::clone(store));
    let text = other.documents.text(Some("docs"), Some(2)).await.unwrap();
    assert_eq!(
        (text.document["policies"][0]["quota"].as_u64(), text.record.by.as_str()),
        (Some(6), "ann")
    );
    assert_eq!(numbers(&other, "docs").await, [4, 3, 2, 1]);
    let events = other.history.list(Some("docs"), 10).await.unwrap();
    assert_eq!(events.len(), 4);
    assert_eq!(events[0].done, "withdrew the published document, as number 4");
    assert_eq!(events[0].before.as_ref().unwrap()["number"], 3);
}

pub async fn refuses_documents_with_faults(store: &Arc<dyn Store>) {
    let operate = reported(store, "faulty", &["p"]).await;
    let mut wish = publish("faulty", 5);
    let document = wish.document.as_mut().unwrap();
    document["policies"][0]["window"] = json!({"calendar": "day", "time_zone": "Mars/Base"});
    document["policies"][0]["quota"] = json!(-1);
    document["polices"] = json!([]);
    let fault = operate.documents.publish(&wish).await.unwrap_err().to_string();
    for expected in ["policies[0].quota: ", "polices: unknown field"] {
        assert!(fault.contains(expected), "{fault}");
    }
    let zone = PublishDocument {
        document: Some(json!({"domain": "faulty", "policies": [{"name": "p", "partition_by": [],
            "quota": 1, "window": {"calendar": "day", "time_zone": "Mars/Base"}}]})),
        ..publish("faulty", 5)
    };
    let fault = operate.documents.publish(&zone).await.unwrap_err().to_string();
    assert!(
        fault.contains("policies[0].window.time_zone: ") && fault.contains("Mars/Base"),
        "{fault}"
    );
    let other = PublishDocument { domain: Some("shop".to_owned()), ..publish("faulty", 5) };
    let fault = operate.documents.publish(&other).await.unwrap_err().to_string();
    assert_eq!(fault, "domain: is shop, and the document's is faulty: name the same");
    let both = PublishDocument { rollback_to: Some(1), ..publish("faulty", 5) };
    assert!(matches!(operate.documents.publish(&both).await, Err(Fault::Invalid { .. })));
    let never = PublishDocument { document: None, rollback_to: Some(9), ..publish("faulty", 5) };
    let fault = operate.documents.publish(&never).await.unwrap_err().to_string();
    assert_eq!(fault, "no document was published in faulty");
    let long = "x".repeat(quotagate_protocol::dials::MAX_DOCUMENT);
    let large = PublishDocument {
        document: Some(
            json!({"domain": "faulty", "policies": [], "response": {"headers": [long]}}),
        ),
        ..publish("faulty", 5)
    };
    let fault = operate.documents.publish(&large).await.unwrap_err().to_string();
    assert!(fault.contains("and a published document at most 1047552"), "{}", &fault[..200]);
    assert_eq!(numbers(&operate, "faulty").await, [0; 0], "nothing is stored");
    assert_eq!(reply(&operate, "faulty").await.version, 0);
}

pub async fn tells_the_slower_of_two_publishers(store: &Arc<dyn Store>) {
    let operate = reported(store, "race", &["p"]).await;
    operate.documents.publish(&publish("race", 1)).await.unwrap();
    let late = PublishDocument { after: Some(0), by: "ben".to_owned(), ..publish("race", 2) };
    let fault = operate.documents.publish(&late).await.unwrap_err();
    assert!(
        matches!(&fault, Fault::InUse(text) if text.starts_with("number 1 was made by ann in race")),
        "{fault}"
    );
    // Ten at once, in two processes, who all saw number 1.
    let others = [&operate, &Operate::new(Arc::clone(store))];
    let wishes: Vec<_> = (10..20)
        .map(|quota| PublishDocument { after: Some(1), ..publish("race", quota) })
        .collect();
    let made = wishes.iter().zip(others.iter().cycle());
    let made = made.map(|(wish, operate)| operate.documents.publish(wish));
    let made = futures_util::future::join_all(made).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{made:?}");
    assert_eq!(numbers(&operate, "race").await, [2, 1]);
}

pub async fn keeps_what_proxies_have_while_the_last_record_cannot_be_read(store: &Arc<dyn Store>) {
    let operate = reported(store, "lost", &["p"]).await;
    for quota in [1, 2] {
        operate.documents.publish(&publish("lost", quota)).await.unwrap();
    }
    let damage = async |delete: &[&str], fields: &[&str]| {
        let upsert = Upsert {
            delete: delete.iter().map(|name| (*name).to_owned()).collect(),
            fields: fields.iter().map(|name| ((*name).to_owned(), b"{}".to_vec())).collect(),
            max_fields: 128,
            keep_for: Duration::from_secs(3600),
        };
        store.control().upsert(HashName::Documents, "lost", &upsert).await.unwrap();
    };
    for (delete, fields) in [(&[][..], &[LAST_DOCUMENT][..]), (&[LAST_DOCUMENT], &[])] {
        damage(delete, fields).await;
        let other = Operate::new(Arc::clone(store));
        let known = reply(&other, "lost").await.document;
        assert_eq!(known, None, "nobody goes back to its own document");
        let listed = other.document_status(Some("lost")).await.unwrap();
        assert!(listed.incomplete.unwrap().contains("keep the document that they have"));
    }
    // The number goes on, and no text is overwritten.
    operate.documents.publish(&publish("lost", 2)).await.unwrap();
    assert_eq!(numbers(&operate, "lost").await, [3, 2, 1]);
    let other = Operate::new(Arc::clone(store));
    assert_eq!(reply(&other, "lost").await.document.unwrap().number, 3);
    assert_eq!(other.document_status(Some("lost")).await.unwrap().incomplete, None);
    damage(&[], &[LAST_DOCUMENT]).await;
    let wish =
        WithdrawDocument { domain: Some("lost".into()), after: None, note: None, by: "ann".into() };
    operate.documents.withdraw(&wish).await.unwrap();
    assert_eq!(numbers(&operate, "lost").await, [4, 3, 2, 1]);
}

pub async fn keeps_64_documents(store: &Arc<dyn Store>) {
    let operate = reported(store, "many", &["p"]).await;
    for quota in 1..=66 {
        operate.documents.publish(&publish("many", quota)).await.unwrap();
    }
    let kept = numbers(&operate, "many").await;
    assert_eq!((kept.len(), kept[0], kept[63]), (64, 66, 3));
    let gone = operate.documents.text(Some("many"), Some(2)).await.unwrap_err().to_string();
    assert_eq!(gone, "many has no number 2: the numbers 3 to 66 are kept");
    let text = store.control().document("many", 2).await.unwrap();
    assert_eq!(text, None, "its text is gone, too");
    let oldest = operate.documents.text(Some("many"), Some(3)).await.unwrap();
    assert_eq!(oldest.document["policies"][0]["quota"], 3);
}
