//! Proxies with different documents, and policies that none reports any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures_util::future::FutureExt;
use quotagate_operate::Operate;
use quotagate_operate::api::{Allow, QuotaFrom, Reset, SetOverride};
use quotagate_operate::watch::CallSight;
use quotagate_protocol::Reservation;
use quotagate_protocol::dials::{PartitionEntry, RefusedDocument, Report};
use quotagate_store::control::{HashName, Upsert};
use quotagate_store::server::Hooks;
use quotagate_store::store::{Store, StoreError};

use crate::calls::NO_CALLS;
use crate::common::{one, open, take};
use crate::operators::report;
use crate::slow::{Before, Slow, Step};

const DOMAIN: &str = "mixed";
const OLD: &str = "0123456789ab";
const NEW: &str = "ba9876543210";

/// A filter of this process reports the policies of its document.
async fn report_of(operate: &Operate, proxy: u64, digest: &str, change: impl FnOnce(&mut Report)) {
    let mut sent: Report = serde_json::from_slice(&report(&["p", "same"])).unwrap();
    (sent.proxy, sent.digest) = (format!("{proxy:016x}"), digest.to_owned());
    change(&mut sent);
    operate.dials(DOMAIN, &serde_json::to_vec(&sent).unwrap()).await.unwrap();
    let cached = operate.views.wanted(DOMAIN).await.unwrap();
    operate.directory.write_down(&cached).await;
}

/// One proxy has the old document, and two the new one: another window, another order of the keys,
/// and a policy more.
async fn two_documents(operate: &Operate) {
    let entry = |name: &str| PartitionEntry { name: name.to_owned(), forms: vec![name.to_owned()] };
    let by = |names: [&str; 2]| Some(names.map(entry).to_vec());
    report_of(operate, 1, OLD, |sent| {
        sent.policies[0].partition_by = by(["jwt.sub", "method"]);
    })
    .await;
    for proxy in [2, 3] {
        report_of(operate, proxy, NEW, |sent| {
            (sent.policies[0].window_s, sent.policies[0].quota) = (86_400, 50);
            sent.policies[0].partition_by = by(["method", "jwt.sub"]);
            let more = sent.policies[1].clone();
            sent.policies.push(more);
            sent.policies[2].name = "new".to_owned();
        })
        .await;
    }
}

#[tokio::test]
async fn documents_of_proxies_are_counted_and_compared() {
    let operate = Operate::new(open("memory:").await);
    report_of(&operate, 1, OLD, |_| {}).await;
    let list = async || {
        operate.domains.list(&operate.fleet.look().await).await.unwrap().remove(0).in_force
    };
    let one = list().await;
    assert_eq!((one.proxies, one.documents.len(), one.sentence(DOMAIN)), (1, 1, None));
    two_documents(&operate).await;
    assert_eq!(
        list().await.sentence(DOMAIN).unwrap(),
        format!(
            "mixed has 2 documents: 1 of 3 proxies has {OLD}, 2 of 3 proxies have {NEW}; they \
             differ in new, p"
        )
    );
    // A process may have both, as of two filters.
    for proxy in [1, 2, 3] {
        report_of(&operate, proxy, OLD, |_| {}).await;
    }
    report_of(&operate, 1, NEW, |_| {}).await;
    let all = list().await;
    assert_eq!((all.documents.len(), all.sentence(DOMAIN)), (2, None));
    assert_eq!((all.proxies, all.live), (3, 0));
    for digest in [OLD, NEW] {
        report_of(&operate, 3, digest, |sent| sent.live = true).await;
    }
    assert_eq!(list().await.live, 1, "one proxy, whatever it has");
}

#[tokio::test]
async fn domain_whose_proxies_only_refuse_their_document_is_listed() {
    let operate = Operate::new(open("memory:").await);
    assert_eq!(operate.directory.domains().await.unwrap(), [""; 0]);
    report_of(&operate, 1, "", |sent| {
        sent.policies.clear();
        let (fault, faults) = ("policies: is required".to_owned(), 2);
        sent.wrong_document = Some(RefusedDocument { fault, faults, ..RefusedDocument::default() });
    })
    .await;
    let listed = operate.domains.list(&operate.fleet.look().await).await.unwrap().remove(0);
    assert_eq!((&*listed.domain, listed.policies, listed.silent_ms), (DOMAIN, 0, 0));
    let [fault] = &listed.faults[..] else { panic!("{listed:?}") };
    assert!(fault.ends_with("faults: 2, the first: policies: is required"), "{fault}");
    // It is the only one, so nobody needs to name it.
    let status = operate.document_status(None).await.unwrap();
    assert_eq!((&*status.domain, &status.refused), (DOMAIN, &listed.faults));
}

#[tokio::test]
async fn usage_and_overrides_know_the_policy_in_every_document() {
    let store = open("memory:").await;
    let operate = Operate::new(Arc::clone(&store));
    two_documents(&operate).await;
    let ask = |partition: &str, window_s, want| Reservation {
        key: format!("{DOMAIN}:p:{{{partition}}}").into(),
        window_s,
        ..take("", 50, want)
    };
    one(&*store, &ask("jwt.sub=a,method=GET", 3600, 3)).await;
    one(&*store, &ask("method=GET,jwt.sub=a", 86_400, 4)).await;
    let usage = async |party: &str| {
        let found = operate.counters.usage(Some(DOMAIN), party, &NO_CALLS).await.unwrap().found;
        let found = found.into_iter().map(|found| found.usage);
        found.map(|of| (of.partition, of.window_s, of.used, of.quota)).collect::<Vec<_>>()
    };
    let both = [
        ("jwt.sub=a,method=GET".to_owned(), 3600, 3, Some(5)),
        ("method=GET,jwt.sub=a".to_owned(), 86_400, 4, Some(50)),
    ];
    assert_eq!(usage("jwt.sub=a").await, both);
    assert_eq!(usage("jwt.sub=a,method=GET").await, both);
    for partition in ["jwt.sub=a,method=GET", "method=GET,jwt.sub=a"] {
        let over = SetOverride {
            domain: Some(DOMAIN.to_owned()),
            policy: "p".to_owned(),
            partition: partition.to_owned(),
            allow: Allow::Blocked,
            for_ms: None,
            by: "ann".to_owned(),
        };
        operate.overrides.set(&over).await.unwrap();
    }
    let listed = operate.overrides.list(Some(DOMAIN), None, 9).await.unwrap();
    assert!(listed.iter().all(|entry| entry.unmatched.is_none()), "{listed:?}");
}

#[tokio::test]
async fn reset_that_fails_half_way_is_in_history() {
    let inner = open("memory:").await;
    let deletions = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&deletions);
    let before: Before = Box::new(move |step| {
        let second = step == Step::Delete && seen.fetch_add(1, SeqCst) == 1;
        let failed = StoreError::Unreachable("gone".to_owned());
        async move { if second { Err(failed) } else { Ok(()) } }.boxed()
    });
    let store: Arc<dyn Store> = Arc::new(Slow { inner, before });
    let operate = Operate::new(Arc::clone(&store));
    for (digest, window_s) in [(OLD, 3600), (NEW, 86_400)] {
        report_of(&operate, 1, digest, |sent| sent.policies[0].window_s = window_s).await;
        let key = format!("{DOMAIN}:p:{{jwt.sub=a}}").into();
        one(&*store, &Reservation { key, window_s, ..take("", 50, 3) }).await;
    }
    let reset = Reset {
        domain: Some(DOMAIN.to_owned()),
        policy: "p".to_owned(),
        partition: "jwt.sub=a".to_owned(),
        by: "ann".to_owned(),
    };
    let fault = operate.counters.reset(&reset).await.unwrap_err();
    assert!(fault.to_string().contains("gone"), "{fault}");
    let history = || async { operate.history.list(Some(DOMAIN), 9).await.unwrap() };
    assert_eq!(history().await[0].done, "reset p jwt.sub=a, 3 units were used");
    operate.counters.reset(&reset).await.unwrap();
    assert_eq!(history().await.len(), 2, "the other one");
}

#[tokio::test]
async fn quota_that_documents_dispute_is_unknown_where_nobody_saw_it() {
    let store = open("memory:").await;
    let operate = Operate::new(Arc::clone(&store));
    report_of(&operate, 1, OLD, |sent| sent.policies[0].partition_by = Some(Vec::new())).await;
    report_of(&operate, 2, NEW, |sent| {
        sent.policies[0].partition_by = Some(Vec::new());
        sent.policies[0].quota = 50;
    })
    .await;
    let key = format!("{DOMAIN}:p:{{*}}");
    one(&*store, &Reservation { key: key.into(), window_s: 3600, ..take("", 50, 3) }).await;
    let quota = async |calls: &dyn CallSight| {
        let found = operate.counters.usage(Some(DOMAIN), "*", calls).await.unwrap().found;
        (found[0].usage.quota, found[0].usage.quota_from)
    };
    let sight = operate.fleet.look().await;
    assert_eq!(quota(&sight).await, (None, QuotaFrom::Unknown));
    // Nobody has the old document any more.
    assert_eq!(quota(&NO_CALLS).await.1, QuotaFrom::Policy);
}

#[tokio::test]
async fn policy_that_no_proxy_reports_any_more_is_gone() {
    let store = open("memory:").await;
    let operate = Operate::new(Arc::clone(&store));
    report_of(&operate, 1, OLD, |_| {}).await;
    let fields = store.control().read(HashName::Policies, DOMAIN).await.unwrap().fields;
    let (field, value) = fields.into_iter().find(|(field, _)| field.starts_with("same")).unwrap();
    assert_eq!(field, format!("same#{OLD}"));
    // As if it had been reported for the last time before the others.
    let mut record: serde_json::Value = serde_json::from_slice(&value).unwrap();
    record["seen_ms"] = (record["seen_ms"].as_u64().unwrap() - 16 * 60_000).into();
    let upsert = Upsert {
        delete: Vec::new(),
        fields: vec![(field, record.to_string().into_bytes())],
        max_fields: 9,
        keep_for: std::time::Duration::from_secs(3600),
    };
    store.control().upsert(HashName::Policies, DOMAIN, &upsert).await.unwrap();
    let other = Operate::new(Arc::clone(&store));
    let board = other.boards.read_all(Some(DOMAIN)).await.unwrap().remove(0);
    let gone: Vec<_> = board.policies.iter().map(|policy| (&*policy.name, policy.gone)).collect();
    assert_eq!(gone, [("p", false), ("same", true)]);
    let key = format!("{DOMAIN}:same:{{jwt.sub=a}}");
    one(&*store, &Reservation { key: key.into(), window_s: 3600, ..take("", 5, 1) }).await;
    let found = other.counters.usage(Some(DOMAIN), "jwt.sub=a", &NO_CALLS).await.unwrap().found;
    assert!(found.iter().any(|found| found.gone && found.usage.policy == "same"), "{found:?}");
}
