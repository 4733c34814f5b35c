//! Records that the backend loses although stores or proxies knew them: all, or the last changes.

use std::sync::Arc;
use std::time::Duration;

use quotagate_operate::Operate;
use quotagate_operate::api::{
    Allow, DocumentState, PublishDocument, SetOverride, WithdrawDocument,
};
use quotagate_protocol::dials::Report;
use quotagate_store::server::Hooks;
use quotagate_support::redis::Redis;
use serde_json::json;

use crate::common::{open, until};
use crate::operators::{reply, report, reported, set};

const DOMAIN: &str = "lost";

fn publish(quota: u64) -> PublishDocument {
    let policy = json!({"name": "p", "partition_by": [], "quota": quota, "window": "1h"});
    PublishDocument {
        document: Some(json!({"domain": DOMAIN, "policies": [policy]})),
        by: "ann".to_owned(),
        ..PublishDocument::default()
    }
}

fn withdraw() -> WithdrawDocument {
    WithdrawDocument {
        domain: Some(DOMAIN.to_owned()),
        after: None,
        note: None,
        by: "ann".to_owned(),
    }
}

fn over(partition: &str) -> SetOverride {
    SetOverride {
        domain: Some(DOMAIN.to_owned()),
        policy: "p".to_owned(),
        partition: partition.to_owned(),
        allow: Allow::Blocked,
        for_ms: None,
        by: "ann".to_owned(),
    }
}

/// A proxy reports that it has the published document of this number.
async fn proxy_has(operate: &Operate, number: u64) {
    let mut sent: Report = serde_json::from_slice(&report(&["p"])).unwrap();
    (sent.proxy, sent.digest) = ("00000000000000aa".to_owned(), "0123456789ab".to_owned());
    (sent.number, sent.live) = (number, true);
    operate.dials(DOMAIN, &serde_json::to_vec(&sent).unwrap()).await.unwrap();
}

/// The number that is named to proxies; `None` if they are to keep what they have.
async fn named(operate: &Operate) -> Option<u64> {
    operate.views.wanted(DOMAIN).await.unwrap();
    reply(operate, DOMAIN).await.document.map(|named| named.number)
}

fn gauges(operate: &Operate) -> Option<(bool, bool)> {
    let mut all = operate.boards.gauges().into_iter();
    all.find(|of| of.domain == DOMAIN).map(|of| (of.lost_document, of.lost_changes))
}

#[tokio::test]
async fn as_many_changes_as_redis_lost_are_not_taken_for_those() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let (one, other) =
        (reported(&store, DOMAIN, &["p"]).await, reported(&store, DOMAIN, &["p"]).await);
    one.documents.publish(&publish(1)).await.unwrap();
    let keys = ["dials", "documents", "texts", "overrides", "history"];
    let of = |prefix: &str, name: &str| format!("{prefix}:{name}:{{{DOMAIN}}}");
    for name in keys {
        redis.cli(&["COPY", &of("qg", name), &of("saved", name)]).unwrap();
    }
    one.documents.publish(&publish(2)).await.unwrap();
    until("the other store knows number 2", Duration::from_secs(20), async || {
        let reply = other.views.wanted(DOMAIN).await.unwrap().reply(None)?;
        (reply.document.unwrap().number == 2).then_some(())
    })
    .await;
    for name in keys {
        redis.cli(&["DEL", &of("qg", name)]).unwrap();
        redis.cli(&["COPY", &of("saved", name), &of("qg", name)]).unwrap();
    }
    one.overrides.set(&over("*")).await.unwrap();
    let reply = until("the other store sees the change", Duration::from_secs(20), async || {
        let reply = other.views.wanted(DOMAIN).await.unwrap().reply(None)?;
        (reply.document.as_ref()?.number == 1).then_some(reply)
    })
    .await;
    assert_eq!((reply.version, &*reply.overridden), (2, &["p".to_owned()][..]));
}

#[tokio::test]
async fn lost_document_stays_named_by_no_store_until_there_is_a_record_again() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let operate = reported(&store, DOMAIN, &["p"]).await;
    operate.documents.publish(&publish(1)).await.unwrap();
    operate.documents.publish(&publish(2)).await.unwrap();
    assert_eq!(named(&operate).await, Some(2));
    redis.cli(&["FLUSHALL"]).unwrap();
    until("the store knows of the loss", Duration::from_secs(20), async || {
        named(&operate).await.is_none().then_some(())
    })
    .await;
    // So does one that starts now, as soon as a proxy says what it has.
    let anew = Operate::new(Arc::clone(&store));
    assert_eq!(named(&anew).await, Some(0));
    proxy_has(&anew, 2).await;
    until("the new store knows of the loss", Duration::from_secs(20), async || {
        named(&anew).await.is_none().then_some(())
    })
    .await;
    for store in [&operate, &anew] {
        assert!(gauges(store).unwrap().0);
        let losses = store.boards.losses().remove(DOMAIN).unwrap();
        assert!(losses[0].contains("it has no record of number 2"), "{losses:?}");
    }
    let status = anew.document_status(Some(DOMAIN)).await.unwrap();
    assert!(status.lost && status.incomplete.unwrap().contains("no record of number 2"));
    assert_eq!(status.proxies[0].state, DocumentState::Unknown);
    // Its number is the next one, so that no service takes it for an older one.
    operate.documents.publish(&publish(2)).await.unwrap();
    until("the new store knows it", Duration::from_secs(20), async || {
        (named(&anew).await == Some(3)).then_some(())
    })
    .await;
    assert!(!gauges(&anew).unwrap().0);
    assert!(!anew.document_status(Some(DOMAIN)).await.unwrap().lost);

    redis.cli(&["FLUSHALL"]).unwrap();
    until("the store knows of the loss", Duration::from_secs(20), async || {
        named(&anew).await.is_none().then_some(())
    })
    .await;
    anew.documents.withdraw(&withdraw()).await.unwrap();
    assert_eq!((named(&anew).await, gauges(&anew).unwrap().0), (Some(4), false));
    // What was withdrawn cannot be lost.
    until("the first store knows it", Duration::from_secs(20), async || {
        (named(&operate).await == Some(4)).then_some(())
    })
    .await;
    redis.cli(&["FLUSHALL"]).unwrap();
    until("nothing is published", Duration::from_secs(20), async || {
        (named(&operate).await == Some(0)).then_some(())
    })
    .await;
    let nothing = operate.documents.withdraw(&withdraw()).await.unwrap_err().to_string();
    assert_eq!(nothing, format!("no document is published in {DOMAIN}"));
}

#[tokio::test]
async fn number_that_a_report_invents_is_no_number_of_a_document() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    reported(&store, DOMAIN, &["p"]).await.documents.publish(&publish(1)).await.unwrap();
    for (invented, quota) in [(1 << 32, 2), (u64::MAX, 3)] {
        redis.cli(&["FLUSHALL"]).unwrap();
        let anew = Operate::new(Arc::clone(&store));
        // The later report is the true one.
        for number in [invented, 1] {
            proxy_has(&anew, number).await;
            until("the store knows of the loss", Duration::from_secs(20), async || {
                named(&anew).await;
                let losses = anew.boards.losses().remove(DOMAIN)?;
                losses[0].contains(&format!("no record of number {number},")).then_some(())
            })
            .await;
        }
        anew.documents.publish(&publish(quota)).await.unwrap();
        assert_eq!(named(&anew).await, Some(1));
        assert!(!anew.document_status(Some(DOMAIN)).await.unwrap().lost);
    }
}

#[tokio::test]
async fn dials_and_overrides_that_redis_lost_are_named() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let operate = reported(&store, DOMAIN, &["p"]).await;
    let mut dial = set(DOMAIN, "p");
    dial.quota = Some(7);
    operate.dials.set(&dial).await.unwrap();
    operate.overrides.set(&over("*")).await.unwrap();
    assert!(operate.boards.read_all(Some(DOMAIN)).await.unwrap()[0].overrides == 1);
    assert_eq!(gauges(&operate), Some((false, false)));
    redis.cli(&["FLUSHALL"]).unwrap();
    let losses = until("the store knows of the loss", Duration::from_secs(20), async || {
        operate.views.wanted(DOMAIN).await.unwrap();
        operate.boards.losses().remove(DOMAIN)
    })
    .await;
    let expected = "the dial of p (quota 7, by ann), 1 of 1 overrides. Set them again";
    assert!(losses.len() == 1 && losses[0].ends_with(expected), "{losses:?}");
    assert_eq!(gauges(&operate), Some((false, true)));
    // A report brings the domain back into the list at once, not when it is renewed.
    until("the domain is written down again", Duration::from_secs(20), async || {
        operate.dials(DOMAIN, &report(&["p"])).await.unwrap();
        let other = Operate::new(Arc::clone(&store));
        (other.directory.domains().await.unwrap() == [DOMAIN]).then_some(())
    })
    .await;
}
