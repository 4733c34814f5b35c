//! Costs that are known after the answer: requests look, and their answers are charged.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quotagate_protocol::OnFailure;
use quotagate_quota::config::Precision;
use quotagate_ratelimit::domain::CountingOptions;
use quotagate_ratelimit::messages::{Code, Descriptor};
use quotagate_ratelimit::service::AnswerOptions;
use quotagate_store::store::Store;

use crate::bench::{Bench, counting, descriptor, hits, memory, passes, statuses};
use crate::gate::{Gate, GatedStore};
use crate::running::until;

const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: org, rate_limit: {unit: year, requests_per_unit: 5000}}
  - {key: watched, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: plan, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: extra, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 5000}}
";
const COST: u64 = 400;

/// Sends 60 requests that look at these counters, and charges what passes. Returns how many do.
async fn passed(bench: &Bench, texts: &[&str]) -> usize {
    let of = |hits_of| texts.iter().map(|text| hits(text, hits_of)).collect::<Vec<Descriptor>>();
    let mut passed = 0;
    for _ in 0..60 {
        if passes(&bench.ask(&of(0)).await) {
            passed += 1;
            bench.ask(&of(COST)).await;
        }
    }
    passed
}

/// Units that a counter has used, read by a larger limit than its own.
async fn used(bench: &Bench, text: &str) -> u32 {
    const LARGE: u32 = 1_000_000;
    let limit = quotagate_ratelimit::messages::RequestLimit {
        requests_per_unit: LARGE,
        unit: quotagate_ratelimit::messages::Unit::Year.into(),
    };
    let look = Descriptor { limit: Some(limit), ..hits(text, 0) };
    LARGE - statuses(&bench.ask(&[look]).await)[0].1
}

fn with(counting: CountingOptions, store: Arc<dyn Store>) -> Bench {
    Bench::with(RULES, AnswerOptions::default(), counting, store)
}

fn lease() -> CountingOptions {
    let max = NonZeroU64::new(100).unwrap();
    let precision = Precision::Lease { ahead: Duration::from_millis(100), max };
    CountingOptions { precision, ..counting() }
}

#[tokio::test]
async fn budget_of_costs_after_the_answer_refuses_once_it_is_exceeded() {
    let refused = CountingOptions { count_refused: true, ..counting() };
    for (case, counting) in [("exact", counting()), ("lease", lease()), ("refused", refused)] {
        let bench = with(counting, memory());
        assert_eq!(passed(&bench, &["user=a"]).await, 3, "{case}");
        until("the leases to end", async || used(&bench, "user=a").await == 1200).await;
    }
}

#[tokio::test]
async fn charge_counts_for_every_descriptor_although_one_refuses() {
    for counting in [counting(), lease()] {
        let bench = with(counting, memory());
        assert_eq!(passed(&bench, &["user=a", "org=o"]).await, 3);
        until("the org", async || used(&bench, "org=o").await == 1200).await;
        assert_eq!(used(&bench, "user=a").await, 1200);
        // The next user of the organisation has what is left of it.
        assert_eq!(passed(&bench, &["user=b", "org=o"]).await, 3);
        until("the org", async || used(&bench, "org=o").await == 2400).await;
    }
}

#[tokio::test]
async fn charges_count_in_rules_and_services_that_refuse_nothing() {
    let bench = with(counting(), memory());
    assert_eq!(passed(&bench, &["watched=a"]).await, 60);
    assert_eq!(used(&bench, "watched=a").await, 60 * 400);
    let answers = AnswerOptions { shadow_mode: true, ..AnswerOptions::default() };
    let bench = Bench::with(RULES, answers, counting(), memory());
    assert_eq!(passed(&bench, &["user=a"]).await, 60);
    assert_eq!(used(&bench, "user=a").await, 60 * 400);
    let look = bench.ask(&[hits("user=a", 0)]).await;
    assert_eq!(statuses(&look), [(Code::OverLimit, 0)], "it says what it would refuse");
    let bench = with(counting(), memory());
    assert_eq!(passed(&bench, &["plan=a", "extra=a"]).await, 13, "until both are over");
    assert_eq!(used(&bench, "plan=a").await, 13 * 400);
}

#[tokio::test]
async fn request_of_one_and_its_cost_exceed_a_budget_once() {
    let bench = with(counting(), memory());
    let mut passed = 0;
    for _ in 0..60 {
        // The request counts one, as Envoy Gateway sends it without a cost of the request.
        if bench.passes(descriptor("user=a")).await {
            passed += 1;
            bench.ask(&[hits("user=a", COST)]).await;
        }
    }
    assert_eq!((passed, used(&bench, "user=a").await), (3, 1203), "refused requests cost nothing");
}

#[tokio::test]
async fn hits_of_a_rule_that_requests_look_at_are_charges() {
    let bench = with(counting(), memory());
    assert!(bench.passes_with("user=a", 999).await);
    assert!(!bench.passes_with("user=a", 2).await, "nobody has looked yet");
    assert!(bench.passes(hits("user=b", 0)).await);
    assert!(!bench.passes_with("user=a", 2).await);
    assert_eq!(used(&bench, "user=a").await, 1001, "not those that came before the look");
    assert!(!bench.passes(hits("user=a", 0)).await);
}

#[tokio::test]
async fn charges_are_counted_once_the_store_is_back() {
    let store = GatedStore::new();
    let bench = with(counting(), Arc::clone(&store) as _);
    bench.ask(&[hits("user=a", 100)]).await;
    for gate in [Gate::Away, Gate::Frozen] {
        store.set(gate);
        let charge = [hits("user=a", 200), hits("org=o", 200)];
        let asked = tokio::time::timeout(Duration::from_millis(200), bench.try_ask(&charge)).await;
        assert!(asked.is_err() || asked.unwrap().is_err(), "{gate:?}");
        store.set(Gate::Open);
    }
    until("the charges", async || used(&bench, "user=a").await == 500).await;
    assert_eq!(used(&bench, "org=o").await, 400);
}

#[tokio::test]
async fn request_waits_for_its_decision_and_its_charge_no_longer_than_the_timeout() {
    let store = GatedStore::new();
    let mut counting = counting();
    let timeout = Duration::from_secs(4);
    (counting.store.on_failure, counting.store.timeout) = (OnFailure::Allow, timeout);
    let bench = with(counting, Arc::clone(&store) as _);
    store.set(Gate::Frozen);
    // A machine that is busy delays both.
    let twice = async {
        tokio::time::sleep(timeout).await;
        tokio::time::sleep(timeout).await;
    };
    tokio::select! {
        biased;
        passes = bench.passes(hits("user=a", 1)) => assert!(passes),
        () = twice => panic!("it waited for its charge, too"),
    }
}

#[tokio::test]
async fn charges_are_awaited_although_no_mark_can_be_read() {
    let store = GatedStore::new();
    let bench = with(counting(), Arc::clone(&store) as _);
    store.set(Gate::AwayForMarks);
    for number in 1..20 {
        // The first is refused by a rule that may have refunds; the second is a charge.
        assert!(!bench.passes_with("org=o", 6_000).await);
        bench.ask(&[hits("user=a", 100)]).await;
        assert_eq!(used(&bench, "user=a").await, 100 * number);
    }
}

#[tokio::test]
async fn requests_that_pass_a_frozen_store_do_not_wait_for_their_charges() {
    let store = GatedStore::new();
    let mut counting = counting();
    counting.store.on_failure = OnFailure::Allow;
    let timeout = counting.store.timeout;
    let bench = with(counting, Arc::clone(&store) as _);
    // A charge, and a hit of a rule that may have refunds, which nobody knows yet.
    let asked = [hits("user=a", 1), descriptor("org=o")];
    store.set(Gate::Away);
    for one in asked.clone() {
        assert!(bench.passes(one).await);
    }
    store.set(Gate::AwayAndFrozenForLooks);
    let began = Instant::now();
    for one in vec![asked.clone(); 20].into_iter().flatten() {
        assert!(bench.passes(one).await);
    }
    until("a flush that waits", async || store.holds_some()).await;
    for one in vec![asked.clone(); 20].into_iter().flatten() {
        assert!(bench.passes(one).await);
    }
    assert!(began.elapsed() < timeout, "{:?}", began.elapsed());
    store.set(Gate::Open);
    let other = with(self::counting(), store as _);
    until("the charges", async || used(&other, "user=a").await == 41).await;
}
