//! What a domain does between requests, and when that ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use quotagate_protocol::dials::{DialsReply, Report};
use quotagate_ratelimit::domain::Domain;
use quotagate_ratelimit::messages::{Code, Descriptor, RequestLimit, Unit};
use quotagate_ratelimit::rules::{RuleFile, SharedDomains, read_files};
use quotagate_ratelimit::service::AnswerOptions;
use quotagate_store::server::{CallEndpoint, Connections, Event, Hooks};

use crate::bench::{Bench, counting, descriptor, hits, memory, statuses};
use crate::gate::{Gate, GatedStore};
use crate::running::{Start, until};

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: plan, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: 'route*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: 'host*', value: 'a*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
";

/// Remembers how many requests reports say were admitted and refused, and the counters that
/// refused without a call.
#[derive(Default)]
struct ReportSums(Mutex<(u64, u64)>, Mutex<BTreeMap<String, u64>>);

impl Hooks for ReportSums {
    fn observe(&self, _: Event<'_>) {}

    fn version(&self, _: &str) -> u64 {
        0
    }

    fn dials<'a>(
        &'a self,
        _: &'a str,
        report: &'a [u8],
    ) -> BoxFuture<'a, Result<DialsReply, String>> {
        if let Ok(report) = serde_json::from_slice::<Report>(report) {
            let mut sums = self.0.lock().unwrap();
            for policy in report.policies {
                sums.0 += policy.admitted;
                sums.1 += policy.refused;
            }
            for refusals in report.refused {
                *self.1.lock().unwrap().entry(refusals.key).or_default() += refusals.requests;
            }
        }
        ready(Ok(DialsReply::default())).boxed()
    }
}

#[tokio::test]
async fn reports_have_counts() {
    let store = memory();
    let sums = Arc::new(ReportSums::default());
    let endpoint = CallEndpoint::new(Arc::clone(&store), Arc::<Connections>::default());
    let endpoint = Arc::new(endpoint.hooks(Arc::clone(&sums) as _));
    let file = RuleFile { name: "rules.yaml".to_owned(), text: RULES.into() };
    let rules = read_files(&[file], SharedDomains::Refuse).unwrap().remove("d").unwrap();
    let bench = Bench::new(RULES);
    let domain = Domain::open(rules, &counting(), endpoint, store);
    let domains = std::iter::once(("d".into(), Arc::new(domain))).collect();
    bench.service.replace_domains(Arc::new(domains));
    for passed in [true, true, false] {
        assert_eq!(bench.passes(descriptor("k=a")).await, passed);
    }
    until("the report", async || *sums.0.lock().unwrap() == (2, 1)).await;
    // A look that is refused, too, with the party for `top`.
    bench.ask(&[hits("k=b", 3)]).await;
    assert!(!bench.passes(hits("k=b", 0)).await);
    until("the look", async || *sums.0.lock().unwrap() == (2, 3)).await;
    assert_eq!(sums.1.lock().unwrap().get("d:k:{descriptor.k=b}"), Some(&2));
}

#[tokio::test]
async fn domain_that_is_gone_ends_its_work() {
    let bench = Bench::new(RULES);
    for passed in [true, true, false] {
        assert_eq!(bench.passes(descriptor("k=a")).await, passed);
    }
    let counters = Arc::downgrade(&bench.service.domains().unwrap()["d"].counters);
    let owed = Arc::downgrade(&bench.service.domains().unwrap()["d"].owed);
    drop(bench);
    until("the end", async || counters.strong_count() + owed.strong_count() == 0).await;
}

#[tokio::test]
async fn request_that_leaves_after_its_decision_takes_nothing() {
    let bench = Bench::new(RULES);
    {
        let mut asked = std::pin::pin!(bench.passes_with("k=a", 2));
        // It is polled once, and then never: its decision is made and not taken.
        assert!(asked.as_mut().now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    until("the refund", async || bench.passes_with("k=a", 2).await).await;
}

#[tokio::test]
async fn quota_limits_need_the_store() {
    let store = quotagate_store::open(&"redis://127.0.0.1:1".parse().unwrap(), "qg");
    let mut counting = counting();
    counting.store.timeout = Duration::from_millis(50);
    let bench = Bench::with(RULES, AnswerOptions::default(), counting, store);
    let error = bench.try_ask(&[descriptor("plan=a")]).await.unwrap_err();
    assert_eq!(error.to_string(), "the store cannot count the request by the rule plan");
}

#[tokio::test]
async fn looks_refunds_and_requests_fail_while_the_store_is_frozen() {
    let store = GatedStore::new();
    let mut counting = counting();
    counting.store.timeout = Duration::from_millis(50);
    let bench = Bench::with(RULES, AnswerOptions::default(), counting, Arc::clone(&store) as _);
    store.set(Gate::Frozen);
    let refund = Descriptor { is_negative_hits: true, ..descriptor("k=a") };
    for asked in [hits("k=a", 0), refund, descriptor("k=a")] {
        let error = bench.try_ask(&[asked]).await.unwrap_err().to_string();
        assert!(error.contains("the store cannot count"), "{error}");
    }
    assert_eq!(store.calls(), 0, "the store has answered nothing");
}

#[tokio::test]
async fn limit_of_the_request_and_the_rule_have_statuses_of_their_own() {
    let bench = Bench::new(RULES);
    let limit = RequestLimit { requests_per_unit: 9, unit: Unit::Day.into() };
    let own = Descriptor { limit: Some(limit), ..descriptor("k=a") };
    let answer = bench.ask(&[own, descriptor("k=a")]).await;
    let limits = answer.statuses.iter();
    let limits: Vec<u32> =
        limits.map(|status| status.current_limit.as_ref().unwrap().requests_per_unit).collect();
    assert_eq!(limits, [9, 2]);
}

#[tokio::test]
async fn shared_pattern_over_the_key_shares_its_values_and_not_its_keys() {
    let bench = Bench::new(RULES);
    for (text, passed) in [
        ("route1=x", true),
        ("route1=y", false),
        ("route2=x", true),
        ("host1=a1", true),
        ("host1=a2", false),
        ("host2=a1", true),
    ] {
        assert_eq!(bench.passes(descriptor(text)).await, passed, "{text}");
    }
}

#[tokio::test]
async fn empty_folder_is_a_fault_and_leaves_the_rules_in_force() {
    let (start, folder) = Start::with_file("domain: d\ndescriptors: []\n");
    let rules = folder.path().join("rules.yaml");
    std::fs::remove_file(&rules).unwrap();
    let service = start.run().await;
    until("the fault", async || service.health().await.1.contains("has no rules")).await;
    std::fs::write(&rules, RULES).unwrap();
    until("the rules", async || service.health().await.0).await;
    std::fs::remove_file(&rules).unwrap();
    // The folder is looked at once a second.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let mut client = service.connect().await;
    let answer = client.ask("k=a").await.unwrap().unwrap();
    assert_eq!(statuses(&answer), [(Code::Ok, 1)]);
}
