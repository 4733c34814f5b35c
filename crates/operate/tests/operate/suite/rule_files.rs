//! Published rule files of the rate limit service.

use std::sync::Arc;
use std::time::Duration;

use quotagate_operate::api::{DocumentKind, ForgetDomain, PublishDocument, WithdrawDocument};
use quotagate_operate::{Fault, FolderDocuments, Operate, PublishedRules, RuleFileSummary};
use quotagate_protocol::dials::DocumentVersion;
use quotagate_store::control::{HashName, LAST_DOCUMENT, Upsert};
use quotagate_store::server::Hooks;
use quotagate_store::store::Store;
use serde_json::{Value, json};

use crate::common::until;
use crate::operators::{reply, reported};

/// What these tests hand in as the reader of rule files: the service's own is above this crate.
fn read(text: &str) -> Result<RuleFileSummary, Vec<String>> {
    let (domain, limit) = text
        .split_once(' ')
        .ok_or("line 1: domain: is required")
        .map_err(|fault| vec![fault.to_owned()])?;
    let limit: u64 =
        limit.parse().map_err(|_| vec!["line 1: limit: must be a number".to_owned()])?;
    Ok(RuleFileSummary { domain: domain.to_owned(), digest: format!("{limit:012x}"), rules: 1 })
}

fn publish(domain: &str, document: Value) -> PublishDocument {
    PublishDocument {
        domain: Some(domain.to_owned()),
        document: Some(document),
        by: "ann".to_owned(),
        ..PublishDocument::default()
    }
}

fn rules(domain: &str, limit: u64) -> PublishDocument {
    publish(domain, format!("{domain} {limit}").into())
}

fn policies(domain: &str) -> PublishDocument {
    let policy = json!({"name": "p", "partition_by": [], "quota": 5, "window": "1h"});
    publish(domain, json!({"domain": domain, "policies": [policy]}))
}

fn withdraw(domain: &str) -> WithdrawDocument {
    let (domain, by) = (Some(domain.to_owned()), "ben".to_owned());
    WithdrawDocument { domain, after: None, note: None, by }
}

/// What a service should have in force.
async fn named(operate: &Operate, domain: &str) -> PublishedRules {
    operate.views.wanted(domain).await.unwrap().rules().unwrap()
}

fn file(number: u64, limit: u64) -> PublishedRules {
    PublishedRules::File(DocumentVersion { number, digest: format!("{limit:012x}") })
}

pub async fn go_to_services_and_never_to_filters(store: &Arc<dyn Store>) {
    const DOMAIN: &str = "rules";
    let operate = reported(store, DOMAIN, &["p"]).await;
    assert_eq!(named(&operate, DOMAIN).await, PublishedRules::Own(0));
    let fault = operate.documents.publish(&rules(DOMAIN, 5)).await.unwrap_err().to_string();
    assert!(fault.contains("which this process cannot read"), "{fault}");
    operate.documents.read_rules_with(read);
    let faulty = publish(DOMAIN, "rules many".into());
    let fault = operate.documents.publish(&faulty).await.unwrap_err().to_string();
    assert_eq!(fault, "document: has faults:\nline 1: limit: must be a number");
    let other = PublishDocument { domain: Some("shop".to_owned()), ..rules(DOMAIN, 5) };
    let fault = operate.documents.publish(&other).await.unwrap_err().to_string();
    assert_eq!(fault, "domain: is shop, and the document's is rules: name the same");
    let share = PublishDocument { percent: Some(10), ..rules(DOMAIN, 5) };
    let fault = operate.documents.publish(&share).await.unwrap_err();
    assert!(matches!(fault, Fault::Invalid { field: "percent", .. }), "{fault:?}");
    let long = "9".repeat(quotagate_protocol::dials::MAX_DOCUMENT);
    let fault = operate.documents.publish(&publish(DOMAIN, long.into())).await;
    assert!(fault.unwrap_err().to_string().contains("a published rule file at most 1047552"));
    assert_eq!(operate.documents.records(DOMAIN).await.unwrap(), [], "nothing is stored");

    let made = operate.documents.publish(&rules(DOMAIN, 5)).await.unwrap();
    assert_eq!(made.done, "published rule file number 1 (000000000005, 1 rule)");
    assert_eq!(named(&operate, DOMAIN).await, file(1, 5));
    let named_to_filters = reply(&operate, DOMAIN).await.document.unwrap();
    assert_eq!(
        (named_to_filters.number, &*named_to_filters.digest),
        (1, ""),
        "filters have nothing to take up"
    );
    let fetched = Hooks::document(&operate, DOMAIN, "0123456789ab", 1).await.unwrap();
    let fetched: Value = serde_json::from_slice(&fetched).unwrap();
    assert_eq!(fetched, json!({"number": 1, "digest": ""}));
    let text = operate.documents.text(Some(DOMAIN), Some(1)).await.unwrap();
    assert_eq!((text.record.kind, text.document), (DocumentKind::Rules, "rules 5".into()));

    let same = operate.documents.publish(&rules(DOMAIN, 5)).await.unwrap_err().to_string();
    assert!(same.contains("as number 1"), "{same}");
    let fault = operate.documents.publish(&policies(DOMAIN)).await.unwrap_err().to_string();
    assert_eq!(
        fault,
        "rules has a rule file of the rate limit service published, as number 1, and this is a \
         policy document: withdraw that one first"
    );
    operate.documents.publish(&rules(DOMAIN, 6)).await.unwrap();
    let back = PublishDocument { document: None, rollback_to: Some(1), ..rules(DOMAIN, 0) };
    let made = operate.documents.publish(&back).await.unwrap();
    assert!(made.done.contains("rule file number 3 (") && made.done.contains("of number 1"));
    let other = Operate::new(Arc::clone(store));
    assert_eq!(named(&other, DOMAIN).await, file(3, 5), "another process reads the same");
    let dials = operate.history.list(Some(DOMAIN), 1).await.unwrap();
    assert_eq!(dials[0].after.as_ref().unwrap()["kind"], "rules");

    operate.documents.withdraw(&withdraw(DOMAIN)).await.unwrap();
    assert_eq!(named(&operate, DOMAIN).await, PublishedRules::Own(4));
    operate.documents.publish(&policies(DOMAIN)).await.unwrap();
    assert_eq!(named(&operate, DOMAIN).await, PublishedRules::Policies(5));
    assert_eq!(reply(&operate, DOMAIN).await.document.unwrap().number, 5);
    let fault = operate.documents.publish(&rules(DOMAIN, 5)).await.unwrap_err().to_string();
    assert!(fault.contains("has a policy document published, as number 5"), "{fault}");

    // Nobody knows what is in force, and the newest number was for filters.
    let damage = Upsert {
        delete: vec![LAST_DOCUMENT.to_owned()],
        fields: Vec::new(),
        max_fields: 128,
        keep_for: Duration::from_secs(3600),
    };
    store.control().upsert(HashName::Documents, DOMAIN, &damage).await.unwrap();
    let fault = operate.documents.publish(&rules(DOMAIN, 5)).await.unwrap_err().to_string();
    assert!(fault.contains("has a policy document published, as number 5"), "{fault}");
}

pub async fn go_back_when_their_time_is_over(store: &Arc<dyn Store>) {
    const DOMAIN: &str = "timed-rules";
    let operate = Operate::new(Arc::clone(store));
    operate.documents.read_rules_with(read);
    let mut folder = FolderDocuments::new(Arc::clone(&operate.documents));
    let content = folder.check(&"timed-rules 1".into()).await.unwrap();
    let made = folder.offer(&content, "rules.yaml").await.unwrap().unwrap();
    assert!(made.remark.unwrap().contains("runs with --published"));
    assert!(folder.offer(&content, "rules.yaml").await.unwrap().is_none());
    let wish = PublishDocument { for_ms: Some(1000), ..rules(DOMAIN, 2) };
    operate.documents.publish(&wish).await.unwrap();
    assert_eq!(named(&operate, DOMAIN).await, file(2, 2));
    until("it goes back", Duration::from_secs(10), async || {
        (named(&operate, DOMAIN).await == file(1, 1)).then_some(())
    })
    .await;
    let records = operate.documents.records(DOMAIN).await.unwrap();
    assert_eq!(
        (records[0].number, records[0].kind, records[0].rollback_to),
        (3, DocumentKind::Rules, Some(1))
    );
    let forget = ForgetDomain { domain: DOMAIN.to_owned(), by: "ann".to_owned() };
    let fault = operate.domains.forget(&forget).await.unwrap_err().to_string();
    assert!(fault.contains("withdraw it first"), "{fault}");
}
