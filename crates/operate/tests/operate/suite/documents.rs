//! Published documents.

use std::sync::Arc;
use std::time::Duration;

use quotagate_operate::api::{
    DocumentRecord, ForgetDomain, NOBODY, PublishDocument, WithdrawDocument,
};
use quotagate_operate::{Fault, FolderDocuments, Operate};
use quotagate_protocol::dials::{DocumentVersion, Report};
use quotagate_store::control::{HashName, LAST_DOCUMENT, Publication, Upsert};
use quotagate_store::server::Hooks;
use quotagate_store::store::Store;
use serde_json::{Value, json};

use crate::common::until;
use crate::operators::{reply, report, reported};

fn document(domain: &str, quota: u64) -> Value {
    let policy = json!({"name": "p", "partition_by": [], "quota": quota, "window": "1h"});
    json!({"domain": domain, "store": {"redis": "redis://:s3cret@r"}, "live": true, "policies": [policy]})
}

fn publish(domain: &str, quota: u64) -> PublishDocument {
    PublishDocument {
        domain: Some(domain.to_owned()),
        document: Some(document(domain, quota)),
        note: Some(format!("quota {quota}")),
        by: "ann".to_owned(),
        ..PublishDocument::default()
    }
}

async fn numbers(operate: &Operate, domain: &str) -> Vec<u64> {
    let listed = operate.document_status(Some(domain)).await.unwrap();
    listed.documents.iter().map(|record| record.number).collect()
}

/// What a proxy gets that has the document with this digest.
async fn fetched(operate: &Operate, domain: &str, digest: &str) -> Value {
    fetched_number(operate, domain, digest, 0).await
}

/// The same of a proxy to which the store has named this number.
async fn fetched_number(operate: &Operate, domain: &str, digest: &str, number: u64) -> Value {
    let reply = Hooks::document(operate, domain, digest, number).await.unwrap();
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
    let mut secret = publish("faulty", 5);
    let document = secret.document.as_mut().unwrap();
    document["identities"] = json!({"key": [{"header": {"name": "x-key", "secret": true}}]});
    document["policies"][0]["partition_by"] = json!(["key"]);
    document["policies"][0]["overrides"] = json!([{"value": "an-api-key", "quota": 9}]);
    let fault = operate.documents.publish(&secret).await.unwrap_err().to_string();
    assert!(fault.contains("overrides[0].value: is a secret in clear"), "{fault}");
    assert!(!fault.contains("an-api-key"), "{fault}");
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
        assert!(listed.lost);
        assert!(listed.incomplete.unwrap().contains("keep the document that they have"));
    }
    // The number goes on, and no text is overwritten.
    operate.documents.publish(&publish("lost", 2)).await.unwrap();
    assert_eq!(numbers(&operate, "lost").await, [3, 2, 1]);
    let other = Operate::new(Arc::clone(store));
    assert_eq!(reply(&other, "lost").await.document.unwrap().number, 3);
    let found = other.document_status(Some("lost")).await.unwrap();
    assert_eq!((found.incomplete, found.lost), (None, false));
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

fn again(domain: &str, number: u64) -> PublishDocument {
    PublishDocument { document: None, rollback_to: Some(number), ..publish(domain, 0) }
}

/// What the store names to a proxy with this name.
async fn named(operate: &Operate, domain: &str, proxy: &str) -> Option<DocumentVersion> {
    let mut sent: Report = serde_json::from_slice(&report(&["p"])).unwrap();
    proxy.clone_into(&mut sent.proxy);
    operate.dials(domain, &serde_json::to_vec(&sent).unwrap()).await.unwrap().document
}

/// The number for each of 200 proxies.
async fn numbers_of_proxies(operate: &Operate, domain: &str) -> Vec<u64> {
    let mut numbers = Vec::new();
    for proxy in 0..200 {
        let named = named(operate, domain, &format!("{proxy:016x}")).await.unwrap();
        numbers.push(named.number);
    }
    numbers
}

/// What a store whose build knows no shares reads in the last record.
async fn known_to_an_older_store(store: &Arc<dyn Store>, domain: &str) -> (u64, String) {
    let read = store.control().read(HashName::Documents, domain).await.unwrap();
    let last: Value = serde_json::from_slice(read.get(LAST_DOCUMENT).unwrap()).unwrap();
    let digest = last["digest"].as_str().unwrap_or_default();
    (last["number"].as_u64().unwrap(), digest.to_owned())
}

pub async fn publishes_for_a_stable_share_of_the_proxies(store: &Arc<dyn Store>) {
    let operate = reported(store, "share", &["p"]).await;
    operate.documents.publish(&publish("share", 1)).await.unwrap();
    let base = reply(&operate, "share").await.document.unwrap();
    let tenth = PublishDocument { percent: Some(10), ..publish("share", 2) };
    let made = operate.documents.publish(&tenth).await.unwrap();
    assert!(made.done.contains(", 1 policy) for 10 % of the proxies: quota 2"), "{made:?}");
    let ten = numbers_of_proxies(&operate, "share").await;
    let first = ten.iter().filter(|number| **number == 2).count();
    assert!((10..=30).contains(&first) && ten.iter().all(|n| [1, 2].contains(n)), "{ten:?}");
    let other = Operate::new(Arc::clone(store));
    assert_eq!(numbers_of_proxies(&other, "share").await, ten, "each store says the same");
    assert_eq!(named(&operate, "share", "").await, Some(base.clone()), "a proxy without a name");
    let unreadable = operate.dials("share", b"").await.unwrap();
    assert_eq!(unreadable.document, None, "it keeps what it has, whichever that is");
    assert_eq!(known_to_an_older_store(store, "share").await, (1, base.digest.clone()));
    assert_eq!(numbers(&operate, "share").await, [2, 1]);

    // Both documents can be fetched, each by its number.
    for (number, quota) in [(2, 2), (1, 1), (0, 1), (9, 1)] {
        let reply = fetched_number(&operate, "share", "", number).await;
        assert_eq!(reply["document"]["policies"][0]["quota"], quota, "{number}: {reply}");
    }
    let second = operate.documents.publish(&publish("share", 3)).await.unwrap_err().to_string();
    for word in ["number 2", "for 10 % of the proxies", "promote", "rollback"] {
        assert!(second.contains(word), "{second}");
    }

    // Back to the one before, and then to more of them.
    let back = operate.documents.publish(&again("share", 1)).await.unwrap();
    assert!(back.done.contains("number 3 (") && back.done.contains("content of number 1"));
    assert_eq!(numbers_of_proxies(&operate, "share").await, [3; 200]);
    let half = PublishDocument { percent: Some(50), ..publish("share", 2) };
    operate.documents.publish(&half).await.unwrap();
    let fifty = numbers_of_proxies(&operate, "share").await;
    assert!(ten.iter().zip(&fifty).all(|(ten, fifty)| *ten == 1 || *fifty == 4), "{fifty:?}");
    let promoted = operate.documents.publish(&again("share", 4)).await.unwrap();
    assert!(promoted.done.contains("number 5 (") && promoted.done.contains("promotes number 4"));
    assert_eq!(numbers_of_proxies(&operate, "share").await, [5; 200]);
    assert_eq!(known_to_an_older_store(store, "share").await.0, 5);

    for percent in [0, 100] {
        let wish = PublishDocument { percent: Some(percent), ..publish("share", 9) };
        let fault = operate.documents.publish(&wish).await.unwrap_err();
        assert!(matches!(fault, Fault::Invalid { field: "percent", .. }), "{fault:?}");
    }
    let both = PublishDocument { percent: Some(5), ..again("share", 1) };
    let fault = operate.documents.publish(&both).await.unwrap_err().to_string();
    assert_eq!(fault, "percent: goes with a document, and not with rollback_to");
}

pub async fn first_document_may_be_for_a_share(store: &Arc<dyn Store>) {
    let operate = reported(store, "new-share", &["p"]).await;
    let wish = PublishDocument { percent: Some(50), ..publish("new-share", 2) };
    operate.documents.publish(&wish).await.unwrap();
    let named = numbers_of_proxies(&operate, "new-share").await;
    assert!(named.contains(&0) && named.contains(&1), "{named:?}");
    assert_eq!(known_to_an_older_store(store, "new-share").await, (0, String::new()));
    assert_eq!(numbers(&operate, "new-share").await, [1]);
    let status = operate.document_status(Some("new-share")).await.unwrap();
    assert_eq!((status.incomplete, status.documents[0].percent), (None, Some(50)));
    let withdraw = WithdrawDocument {
        domain: Some("new-share".into()),
        after: Some(1),
        note: None,
        by: "ann".into(),
    };
    operate.documents.withdraw(&withdraw).await.unwrap();
    assert_eq!(numbers_of_proxies(&operate, "new-share").await, [2; 200]);
    assert_eq!(reply(&operate, "new-share").await.document.unwrap().digest, "");
}

/// Two stores run beside each other until this number is made. Returns its record.
async fn until_made(store: &Arc<dyn Store>, domain: &str, number: u64) -> DocumentRecord {
    // On the heap: the suite is one future, and a test has a small stack.
    let stores: Vec<_> = (0..2).map(|_| Operate::new(Arc::clone(store))).collect();
    for operate in &stores {
        operate.views.wanted(domain).await.unwrap();
    }
    // Not by a look at the list, which would make it.
    let made = until("it goes back", Duration::from_secs(20), async || {
        (known_to_an_older_store(store, domain).await.0 == number).then_some(())
    });
    let run = Box::pin(async { tokio::join!(stores[0].run(), stores[1].run()) });
    let made = async {
        made.await;
        // Both look once more, every 2 s.
        tokio::time::sleep(Duration::from_secs(3)).await;
    };
    tokio::select! {
        () = made => stores[0].documents.records(domain).await.unwrap().remove(0),
        _ = run => unreachable!("they never return"),
    }
}

pub async fn goes_back_when_the_time_is_over(store: &Arc<dyn Store>) {
    let operate = reported(store, "for-a-time", &["p"]).await;
    operate.documents.publish(&publish("for-a-time", 1)).await.unwrap();
    let first = reply(&operate, "for-a-time").await.document.unwrap();
    let second = PublishDocument { for_ms: Some(3000), ..publish("for-a-time", 2) };
    let made = operate.documents.publish(&second).await.unwrap();
    assert!(made.done.ends_with("policy) for 3s: quota 2"), "{made:?}");
    assert_eq!(reply(&operate, "for-a-time").await.document.unwrap().number, 2);
    let third = operate.documents.publish(&publish("for-a-time", 3)).await.unwrap_err().to_string();
    assert!(third.contains("number 2 is published in for-a-time for "), "{third}");
    // Proxies go back although nobody has made a number of it.
    until("it goes back", Duration::from_secs(10), async || {
        let named = reply(&operate, "for-a-time").await.document.unwrap();
        (named == first).then_some(())
    })
    .await;
    assert_eq!(known_to_an_older_store(store, "for-a-time").await.0, 2);
    let made = until_made(store, "for-a-time", 3).await;
    assert_eq!(
        (made.rollback_to, made.by.as_str(), &made.digest),
        (Some(1), NOBODY, &first.digest)
    );
    assert_eq!(made.note.as_deref(), Some("the time of number 2 is over"));
    assert_eq!(numbers(&operate, "for-a-time").await, [3, 2, 1], "one of the stores did it, once");
    let events = operate.history.list(Some("for-a-time"), 9).await.unwrap();
    assert_eq!(events.len(), 3, "{events:?}");
    assert!(events[0].done.ends_with("number 1: the time of number 2 is over"), "{events:?}");

    // A promotion keeps what is published for a time.
    let wish = PublishDocument { for_ms: Some(3_600_000), ..publish("for-a-time", 4) };
    operate.documents.publish(&wish).await.unwrap();
    operate.documents.publish(&again("for-a-time", 4)).await.unwrap();
    let listed = operate.document_status(Some("for-a-time")).await.unwrap();
    assert_eq!((listed.documents[0].number, listed.documents[0].until_ms), (5, None));
    let short = PublishDocument { for_ms: Some(1), ..publish("for-a-time", 5) };
    let fault = operate.documents.publish(&short).await.unwrap_err();
    assert!(matches!(fault, Fault::Invalid { field: "for_ms", .. }), "{fault:?}");
}

pub async fn share_ends_with_its_time(store: &Arc<dyn Store>) {
    let operate = reported(store, "timed-share", &["p"]).await;
    let wish =
        PublishDocument { percent: Some(50), for_ms: Some(1000), ..publish("timed-share", 1) };
    operate.documents.publish(&wish).await.unwrap();
    // An operator who looks gets what is in force, although no store runs that records the end. Of
    // several who look at once, one makes the number.
    let others: Vec<_> = (0..8).map(|_| Operate::new(Arc::clone(store))).collect();
    until("its end", Duration::from_secs(10), async || {
        let looks = others.iter().map(|other| other.documents.records("timed-share"));
        let looks = futures_util::future::join_all(looks).await;
        looks.into_iter().all(|records| records.unwrap()[0].number == 2).then_some(())
    })
    .await;
    let wish = PublishDocument { after: Some(2), ..publish("timed-share", 2) };
    operate.documents.publish(&wish).await.unwrap();
    assert_eq!(numbers(&operate, "timed-share").await, [3, 2, 1]);
    let listed = operate.document_status(Some("timed-share")).await.unwrap();
    assert!(listed.documents[1].is_withdrawal(), "nothing was published before");
    assert_eq!(numbers_of_proxies(&operate, "timed-share").await, [3; 200]);
}

/// Deletes the record and the text of a number, as nothing but damage does.
async fn lose(store: &Arc<dyn Store>, domain: &str, number: u64) {
    let read = store.control().read(HashName::Documents, domain).await.unwrap();
    let last = read.get(LAST_DOCUMENT).unwrap().to_vec();
    let newest = "2".to_owned();
    let again = Publication {
        old: Some(last.clone()),
        number: 2,
        record: read.get(&newest).unwrap().to_vec(),
        last,
        text: None,
        dropped: Some(number),
        event: b"{}".to_vec(),
    };
    store.control().publish(domain, &again).await.unwrap().unwrap();
}

pub async fn lost_document_of_before_locks_nothing(store: &Arc<dyn Store>) {
    let operate = Operate::new(Arc::clone(store));
    for domain in ["lost-base", "lost-base-too"] {
        operate.documents.publish(&publish(domain, 1)).await.unwrap();
        let first = operate.documents.records(domain).await.unwrap().remove(0);
        let wish = PublishDocument { for_ms: Some(1000), ..publish(domain, 2) };
        operate.documents.publish(&wish).await.unwrap();
        lose(store, domain, 1).await;
        let why = until("its end", Duration::from_secs(10), async || {
            operate.document_status(Some(domain)).await.unwrap().incomplete
        })
        .await;
        assert!(why.contains("the time of number 2 is over"), "{why}");
        assert!(why.contains("the text of number 1 is lost"), "{why}");
        assert_eq!(numbers(&operate, domain).await, [2]);
        let named = named(&operate, domain, "0123456789abcdef").await.unwrap();
        assert_eq!(named, first.version(), "its record is kept beside that of number 2");
    }
    operate.documents.publish(&publish("lost-base", 2)).await.unwrap();
    assert_eq!(numbers(&operate, "lost-base").await, [3, 2]);
    let withdraw = WithdrawDocument {
        domain: Some("lost-base-too".to_owned()),
        after: Some(2),
        note: None,
        by: "ann".to_owned(),
    };
    operate.documents.withdraw(&withdraw).await.unwrap();
    let status = operate.document_status(Some("lost-base-too")).await.unwrap();
    assert_eq!((status.documents[0].number, status.incomplete), (3, None));
}

pub async fn domain_with_a_limited_document_is_not_forgotten(store: &Arc<dyn Store>) {
    let operate = Operate::new(Arc::clone(store));
    let forget = |domain: &str| ForgetDomain { domain: domain.to_owned(), by: "ann".to_owned() };
    let limited = [
        PublishDocument { percent: Some(10), ..publish("unheard", 1) },
        PublishDocument { for_ms: Some(3_600_000), ..publish("unheard", 1) },
    ];
    for wish in limited {
        operate.documents.publish(&wish).await.unwrap();
        let fault = operate.domains.forget(&forget("unheard")).await.unwrap_err().to_string();
        assert!(fault.contains("withdraw it first"), "{fault}");
        let withdraw = WithdrawDocument {
            domain: Some("unheard".to_owned()),
            after: None,
            note: None,
            by: "ann".to_owned(),
        };
        operate.documents.withdraw(&withdraw).await.unwrap();
        operate.domains.forget(&forget("unheard")).await.unwrap();
        assert_eq!(operate.documents.records("unheard").await.unwrap(), []);
    }
    let wish = PublishDocument { for_ms: Some(1000), ..publish("unheard", 1) };
    operate.documents.publish(&wish).await.unwrap();
    until("its end", Duration::from_secs(10), async || {
        operate.domains.forget(&forget("unheard")).await.ok()
    })
    .await;
}

pub async fn publishes_a_folder_unless_a_change_by_hand_is_later(store: &Arc<dyn Store>) {
    const DOMAIN: &str = "folder";
    let operate = reported(store, DOMAIN, &["p"]).await;
    let new_store = || FolderDocuments::new(Arc::clone(&operate.documents));
    let (mut one, mut other) = (new_store(), new_store());
    /// The number that is made of it, 0 if none is.
    async fn offers(folder: &mut FolderDocuments, operate: &Operate, quota: u64) -> u64 {
        let content = folder.check(&document(DOMAIN, quota)).await.unwrap();
        let made = folder.offer(&content, "shop.yaml").await.unwrap();
        let newest = numbers(operate, DOMAIN).await[0];
        if made.is_some() { newest } else { 0 }
    }
    assert_eq!(offers(&mut one, &operate, 1).await, 1);
    assert_eq!(offers(&mut one, &operate, 1).await, 0);
    assert_eq!(offers(&mut other, &operate, 1).await, 0, "the first store did it");
    let newest = operate.document_status(Some(DOMAIN)).await.unwrap().documents.remove(0);
    assert!(newest.of_folder && newest.note.as_deref() == Some("shop.yaml"), "{newest:?}");

    // One store sees a new file before the other one does.
    assert_eq!(offers(&mut one, &operate, 2).await, 2);
    assert_eq!(offers(&mut other, &operate, 1).await, 0, "the older file has not changed");
    assert_eq!(offers(&mut other, &operate, 2).await, 0);
    // By hand, until the file changes: also for a store that has just started.
    operate.documents.publish(&publish(DOMAIN, 3)).await.unwrap();
    assert_eq!(offers(&mut one, &operate, 2).await, 0);
    assert_eq!(offers(&mut new_store(), &operate, 2).await, 0);
    assert_eq!(offers(&mut other, &operate, 1).await, 4, "a file of before is a change, too");
    assert_eq!(offers(&mut one, &operate, 1).await, 0);

    // What is published for a share must end first.
    let tenth = PublishDocument { percent: Some(10), ..publish(DOMAIN, 5) };
    operate.documents.publish(&tenth).await.unwrap();
    assert_eq!(offers(&mut one, &operate, 1).await, 0);
    let content = one.check(&document(DOMAIN, 6)).await.unwrap();
    let fault = one.offer(&content, "shop.yaml").await.unwrap_err().to_string();
    assert!(fault.contains("number 5 is published in folder for 10 %"), "{fault}");
    operate.documents.publish(&again(DOMAIN, 5)).await.unwrap();
    assert_eq!(offers(&mut one, &operate, 6).await, 7);

    // The backend has lost everything.
    let records = store.control().read(HashName::Documents, DOMAIN).await.unwrap();
    let (last, earlier) = (records.get(LAST_DOCUMENT), records.get("6"));
    for seen in [None, earlier] {
        let forgot = store.control().forget_documents(DOMAIN, seen).await.unwrap();
        assert!(!forgot, "something else was published meanwhile");
    }
    assert_eq!(numbers(&operate, DOMAIN).await[0], 7);
    assert!(store.control().forget_documents(DOMAIN, last).await.unwrap());
    assert_eq!(store.control().document(DOMAIN, 7).await.unwrap(), None);
    assert!(store.control().forget_documents(DOMAIN, None).await.unwrap(), "there is none");
    assert_eq!(offers(&mut one, &operate, 6).await, 8, "its number is still known");
    assert_eq!(offers(&mut other, &operate, 6).await, 0);
    let faulty = one.check(&json!({"domain": DOMAIN})).await.unwrap_err();
    assert!(matches!(faulty, Fault::Invalid { field: "document", .. }), "{faulty:?}");
    let history = operate.history.list(Some(DOMAIN), 1).await.unwrap().remove(0);
    assert_eq!((&*history.by, history.author.action.as_deref()), ("--documents", Some("folder")));
}
