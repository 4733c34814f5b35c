//! What requests count.

use std::sync::Arc;

use quotagate_quota::config::Precision;
use quotagate_ratelimit::domain::CountingOptions;
use quotagate_ratelimit::messages::Code;
use quotagate_ratelimit::service::AnswerOptions;

use crate::bench::{Bench, counting, descriptor, hits, memory, passes, statuses};
use crate::gate::GatedStore;

const RULES: &str = "
domain: d
descriptors:
  - {key: small, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: large, rate_limit: {unit: day, requests_per_unit: 5}}
";

#[tokio::test]
async fn refused_request_takes_units_of_no_descriptor() {
    let bench = Bench::new(RULES);
    let both = [descriptor("small=a"), descriptor("large=a")];
    for passed in [true, true, false, false, false, false] {
        assert_eq!(passes(&bench.ask(&both).await), passed);
    }
    for passed in [true, true, true, false] {
        assert_eq!(bench.passes(descriptor("large=a")).await, passed, "only two were taken");
    }
}

#[tokio::test]
async fn hits_pass_together_or_not_at_all() {
    let bench = Bench::new(RULES);
    assert!(bench.passes_with("large=a", 3).await);
    assert!(!bench.passes_with("large=a", 3).await);
    assert!(bench.passes_with("large=a", 2).await, "the refused hits are not in the counter");
}

#[tokio::test]
async fn two_descriptors_of_one_rule_count_by_themselves() {
    let bench = Bench::new(RULES);
    let answer = bench.ask(&[descriptor("small=a"), hits("small=b", 2)]).await;
    assert_eq!(statuses(&answer), [(Code::Ok, 1), (Code::Ok, 0)]);
    let answer = bench.ask(&[descriptor("small=a"), descriptor("small=b")]).await;
    assert_eq!(answer.statuses[1].code(), Code::OverLimit);
    assert!(!passes(&answer));
    assert!(bench.passes(descriptor("small=a")).await, "it was not taken");
}

#[tokio::test]
async fn the_same_counter_twice_takes_the_sum() {
    let bench = Bench::new(RULES);
    let twice = [descriptor("small=a"), descriptor("small=a")];
    assert!(passes(&bench.ask(&twice).await));
    assert!(!bench.passes(descriptor("small=a")).await);
}

#[tokio::test]
async fn values_do_not_share_a_counter() {
    let bench = Bench::new(RULES);
    for value in ["a", "a_b", "A", "", "a,small=b", "a=b", "a}", "%61"] {
        let mut one = descriptor("small");
        one.entries[0].value = value.to_owned();
        for passed in [true, true, false] {
            assert_eq!(bench.passes(one.clone()).await, passed, "{value}");
        }
    }
}

#[tokio::test]
async fn race_admits_exactly_the_limit() {
    const REQUESTS: usize = 400;
    let bench = Bench::new(
        "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}\n",
    );
    let asked = (0..REQUESTS).map(|_| bench.passes(descriptor("k=v")));
    let passed = futures_util::future::join_all(asked).await;
    assert_eq!(passed.into_iter().filter(|passed| *passed).count(), 100);
}

#[tokio::test]
async fn lease_admits_no_more_than_the_limit() {
    const REQUESTS: u64 = 1_100;
    let lease = Precision::Lease {
        ahead: std::time::Duration::from_millis(100),
        max: 100.try_into().unwrap(),
    };
    let counting = CountingOptions { precision: lease, ..counting() };
    let store = GatedStore::new();
    let rules =
        "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1000}}\n";
    let bench = Bench::with(rules, AnswerOptions::default(), counting, Arc::clone(&store) as _);
    let mut passed = 0;
    for _ in 0..REQUESTS {
        passed += u64::from(bench.passes(descriptor("k=a")).await);
    }
    assert_eq!(passed, 1000);
    assert!(store.calls() < passed / 2, "{} calls", store.calls());
}

#[tokio::test]
async fn refused_requests_count_if_that_is_wanted() {
    let counting = CountingOptions { count_refused: true, ..counting() };
    let bench = Bench::with(RULES, AnswerOptions::default(), counting, memory());
    assert!(bench.passes_with("large=a", 3).await);
    assert!(!bench.passes_with("large=a", 3).await);
    assert!(!bench.passes_with("large=a", 2).await, "the refused hits are in the counter");
}

#[tokio::test]
async fn store_that_fails_leaves_the_decision_to_envoy() {
    let url = "redis://127.0.0.1:1".parse().unwrap();
    let store = quotagate_store::open(&url, "qg");
    let mut counting = counting();
    counting.store.timeout = std::time::Duration::from_millis(50);
    let bench = Bench::with(RULES, AnswerOptions::default(), counting, store);
    let error = bench.try_ask(&[descriptor("small=a")]).await.unwrap_err();
    assert_eq!(error.to_string(), "the store cannot count the request by the rule small");
    assert!(bench.try_ask(&[descriptor("none=a")]).await.is_ok(), "nothing to count");
}
