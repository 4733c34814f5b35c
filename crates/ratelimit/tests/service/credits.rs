//! At the end of every request, Envoy refunds its hits. What a request did not take must not be
//! refunded.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use prost::Message;
use quotagate_protocol::OnFailure;
use quotagate_quota::config::Precision;
use quotagate_ratelimit::domain::{CountingOptions, Domain};
use quotagate_ratelimit::messages::{Code, Descriptor, RateLimitRequest, SHOULD_RATE_LIMIT};
use quotagate_ratelimit::rules::{RuleFile, SharedDomains, read_files};
use quotagate_ratelimit::service::AnswerOptions;
use quotagate_store::server::{CallEndpoint, Connections};
use quotagate_store::store::Store;
use tempfile::TempDir;

use crate::bench::{Bench, counting, descriptor, hits, memory, passes, statuses};
use crate::gate::{Gate, GatedStore};
use crate::running::{Running, Start, until};

const RULES: &str = "
domain: d
descriptors:
  - {key: slots, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: watched, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: plan, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: extra, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
";

fn refund(text: &str) -> Descriptor {
    Descriptor { is_negative_hits: true, ..hits(text, 1) }
}

/// A service sees that hits of the rule are refunded.
async fn learn(bench: &Bench) {
    assert!(bench.passes(descriptor("slots=learn")).await);
    bench.ask(&[refund("slots=learn")]).await;
}

/// Long enough for hits to leave, and for refunds to come back.
async fn settled() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

/// What is left, by a look.
async fn left(bench: &Bench, text: &str) -> u32 {
    statuses(&bench.ask(&[hits(text, 0)]).await)[0].1
}

#[tokio::test]
async fn look_at_a_large_counter_takes_nothing() {
    let bench = Bench::new(
        "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1000}}\n",
    );
    for _ in 0..20 {
        assert_eq!(left(&bench, "k=a").await, 1000);
    }
    assert!(bench.passes(hits("k=a", 1000)).await);
}

#[tokio::test]
async fn looks_take_nothing_after_the_store_was_away() {
    const RULES: &str =
        "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1000}}\n";
    let (store, mut counting) = (GatedStore::new(), counting());
    counting.store.on_failure = OnFailure::Allow;
    let bench = Bench::with(RULES, AnswerOptions::default(), counting, Arc::clone(&store) as _);
    store.set(Gate::Away);
    // Its worker gives the store up for a while.
    for _ in 0..20 {
        assert!(bench.passes(descriptor("k=a")).await);
    }
    store.set(Gate::Open);
    for _ in 0..20 {
        assert_eq!(left(&bench, "k=a").await, 1000);
    }
}

/// A refund leaves within a tick.
async fn settled_refund() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test]
async fn quota_limit_that_another_one_stands_in_for_holds_nothing() {
    let bench = Bench::new(RULES);
    assert!(bench.passes(descriptor("plan=x")).await, "the first has the only unit");
    let both = [descriptor("plan=x"), descriptor("extra=x")];
    let answer = bench.ask(&both).await;
    assert!(passes(&answer) && answer.statuses[0].code() == Code::OverLimit);
    bench.ask(&[refund("plan=x"), refund("extra=x")]).await;
    settled().await;
    assert!(!bench.passes(descriptor("plan=x")).await, "the first still has it");
}

#[tokio::test]
async fn request_beyond_a_limit_in_shadow_mode_holds_nothing() {
    let bench = Bench::new(RULES);
    for _ in 0..3 {
        assert!(bench.passes(descriptor("watched=x")).await);
    }
    bench.ask(&[refund("watched=x")]).await;
    settled().await;
    assert_eq!(left(&bench, "watched=x").await, 0, "two still have their units");
}

#[tokio::test]
async fn call_that_is_reset_while_it_waits_holds_nothing() {
    let store = GatedStore::new();
    let bench = Bench::with(RULES, AnswerOptions::default(), counting(), Arc::clone(&store) as _);
    assert!(bench.passes(descriptor("slots=x")).await);
    store.set(Gate::Frozen);
    assert!(bench.passes(descriptor("slots=x")).now_or_never().is_none(), "it waits");
    store.set(Gate::Open);
    bench.ask(&[refund("slots=x")]).await;
    settled().await;
    assert_eq!(left(&bench, "slots=x").await, 1, "the first still has its unit");
}

#[tokio::test]
async fn call_that_is_reset_while_it_looks_holds_nothing() {
    let store = GatedStore::new();
    let bench = Bench::with(RULES, AnswerOptions::default(), counting(), Arc::clone(&store) as _);
    store.set(Gate::FrozenForLooks);
    let both = [descriptor("slots=x"), hits("extra=x", 0)];
    let asked = tokio::time::timeout(Duration::from_millis(300), bench.try_ask(&both)).await;
    assert!(asked.is_err(), "it looks");
    store.set(Gate::Open);
    settled_refund().await;
    assert_eq!(left(&bench, "slots=x").await, 2, "what it took was refunded");
    // The refund of the reset call takes back its own hit.
    assert!(bench.passes(descriptor("slots=x")).await);
    bench.ask(&[refund("slots=x")]).await;
    settled().await;
    assert_eq!(left(&bench, "slots=x").await, 1);
}

#[tokio::test]
async fn hits_refused_before_any_service_has_seen_a_refund_are_added() {
    let store = memory();
    let start = || Bench::with(RULES, AnswerOptions::default(), counting(), store.clone());
    let (one, other) = (start(), start());
    assert!(one.passes(hits("slots=x", 2)).await);
    for _ in 0..2 {
        assert!(!one.passes(descriptor("slots=x")).await);
    }
    for _ in 0..2 {
        other.ask(&[refund("slots=x")]).await;
    }
    until("the refused hits", async || left(&other, "slots=x").await == 0).await;
    for _ in 0..2 {
        other.ask(&[refund("slots=x")]).await;
    }
    until("the end", async || left(&other, "slots=x").await == 2).await;
}

#[tokio::test]
async fn new_service_learns_from_the_store_whose_hits_are_refunded() {
    let store = memory();
    let start = || Bench::with(RULES, AnswerOptions::default(), counting(), store.clone());
    let one = start();
    learn(&one).await;
    assert!(one.passes(hits("slots=x", 2)).await);
    let other = start();
    assert!(!other.passes(descriptor("slots=x")).await);
    one.ask(&[refund("slots=x")]).await;
    assert_eq!(left(&one, "slots=x").await, 0, "nobody refunded a slot");
}

#[tokio::test]
async fn refused_hits_outlive_a_change_of_the_rules() {
    let store = memory();
    let bench = Bench::with(RULES, AnswerOptions::default(), counting(), Arc::clone(&store));
    assert!(bench.passes(hits("slots=x", 2)).await);
    assert!(!bench.passes(descriptor("slots=x")).await);
    let text = format!("{RULES}  - {{key: new}}\n");
    let file = RuleFile { name: "rules.yaml".to_owned(), text: text.into() };
    let rules = read_files(&[file], SharedDomains::Refuse).unwrap().remove("d").unwrap();
    let endpoint = Arc::new(CallEndpoint::new(store, Arc::<Connections>::default()));
    let old = Arc::clone(&bench.service.domains().unwrap()["d"]);
    let new: Arc<Domain> = Arc::new(old.successor(rules, &counting(), endpoint));
    bench.service.replace_domains(Arc::new(BTreeMap::from([("d".into(), new)])));
    bench.ask(&[refund("slots=x")]).await;
    settled().await;
    assert_eq!(left(&bench, "slots=x").await, 0, "two units are still held");
}

#[tokio::test]
async fn refused_hits_that_count_are_refunded_and_refunds_are_never_over() {
    let mut counting = counting();
    counting.count_refused = true;
    let bench = Bench::with(RULES, AnswerOptions::default(), counting, memory());
    assert!(bench.passes(hits("slots=x", 2)).await);
    for _ in 0..2 {
        assert!(!bench.passes(descriptor("slots=x")).await);
    }
    for _ in 0..4 {
        let answer = bench.ask(&[refund("slots=x")]).await;
        assert_eq!(answer.statuses[0].code(), Code::Ok);
        settled_refund().await;
    }
    until("the last refund", async || left(&bench, "slots=x").await == 2).await;
}

#[tokio::test]
async fn refused_hits_that_did_not_reach_the_store_are_added_later() {
    let store = GatedStore::new();
    let bench = Bench::with(RULES, AnswerOptions::default(), counting(), Arc::clone(&store) as _);
    assert!(bench.passes(hits("slots=x", 2)).await);
    store.set(Gate::Away);
    assert!(!bench.passes(descriptor("slots=x")).await, "it is known to be spent");
    settled().await;
    store.set(Gate::Open);
    settled().await;
    bench.ask(&[refund("slots=x")]).await;
    settled_refund().await;
    assert_eq!(left(&bench, "slots=x").await, 0, "it took nothing");
}

#[tokio::test]
async fn refusal_out_of_memory_counts_if_refused_hits_count() {
    let store = GatedStore::new();
    let mut counting = counting();
    counting.count_refused = true;
    let bench = Bench::with(RULES, AnswerOptions::default(), counting, Arc::clone(&store) as _);
    assert!(bench.passes(hits("slots=x", 2)).await);
    assert!(!bench.passes(descriptor("slots=x")).await, "the store counts it");
    store.set(Gate::Away);
    assert!(!bench.passes(descriptor("slots=x")).await, "nobody counts it");
    store.set(Gate::Open);
    settled().await;
    // Both refused requests end, and the first one still has its two units.
    for _ in 0..2 {
        bench.ask(&[refund("slots=x")]).await;
        settled_refund().await;
    }
    assert_eq!(left(&bench, "slots=x").await, 0);
}

/// A service over a store, with its rules in force.
async fn serving(
    rules: &str,
    store: Arc<dyn Store>,
    counting: CountingOptions,
) -> (Running, TempDir) {
    let (start, folder) = Start::with_file(rules);
    let service = Start { store, counting, ..start }.run().await;
    until("the rules", async || service.health().await.0).await;
    (service, folder)
}

/// A client asks and leaves while its request waits at the gate.
async fn ask_and_leave(service: &Running, store: &GatedStore, descriptors: Vec<Descriptor>) {
    let mut client = service.connect().await;
    let request = RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend: 0 };
    let asking = client.call(SHOULD_RATE_LIMIT, request.encode_to_vec());
    tokio::select! {
        answer = asking => panic!("{answer:?}"),
        () = until("the gate", async || store.holds_some()) => {}
    }
}

/// Stops a service whose store is behind a gate, which opens later.
async fn stop_at_gate(mut service: Running, store: &GatedStore) {
    service.stop.take().unwrap().send(Duration::ZERO).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!service.task.is_finished(), "it waits for the store");
    store.set(Gate::Open);
    (&mut service.task).await.unwrap();
}

#[tokio::test]
async fn service_that_stops_refunds_first() {
    let store = GatedStore::new();
    let (service, _folder) = serving(RULES, Arc::clone(&store) as _, counting()).await;
    let mut client = service.connect().await;
    for _ in 0..2 {
        assert!(passes(&client.ask("slots=x").await.unwrap().unwrap()));
    }
    store.set(Gate::FrozenForLooks);
    ask_and_leave(&service, &store, vec![refund("slots=x")]).await;
    stop_at_gate(service, &store).await;
    let other = Bench::with(RULES, AnswerOptions::default(), counting(), store as _);
    assert_eq!(left(&other, "slots=x").await, 1);
}

#[tokio::test]
async fn service_that_stops_refunds_for_rules_that_were_replaced() {
    let store = GatedStore::new();
    let (service, folder) = serving(RULES, Arc::clone(&store) as _, counting()).await;
    let mut client = service.connect().await;
    assert!(passes(&client.ask("slots=x").await.unwrap().unwrap()));
    store.set(Gate::Frozen);
    ask_and_leave(&service, &store, vec![descriptor("slots=x")]).await;
    let changed = format!("{RULES}  - {{key: new, rate_limit: {{unlimited: true}}}}\n");
    std::fs::write(folder.path().join("rules.yaml"), changed).unwrap();
    until("the new rules", async || {
        let answer = service.connect().await.ask("new=x").await.unwrap().unwrap();
        statuses(&answer)[0].1 == u32::MAX
    })
    .await;
    stop_at_gate(service, &store).await;
    let other = Bench::with(RULES, AnswerOptions::default(), counting(), store as _);
    assert_eq!(left(&other, "slots=x").await, 1, "what the reset call took was refunded");
}

#[tokio::test]
async fn service_that_stops_refunds_what_it_has_leased() {
    const RULES: &str = "domain: d\ndescriptors:\n\
        - {key: k, rate_limit: {unit: day, requests_per_unit: 1000000}}\n";
    let max = NonZeroU64::new(1000).unwrap();
    let precision = Precision::Lease { ahead: Duration::from_millis(100), max };
    let (store, counting) = (memory(), CountingOptions { precision, ..counting() });
    let (mut service, _folder) = serving(RULES, Arc::clone(&store), counting).await;
    let mut client = service.connect().await;
    for _ in 0..500 {
        assert!(passes(&client.ask("k=a").await.unwrap().unwrap()));
    }
    service.stop.take().unwrap().send(Duration::ZERO).unwrap();
    (&mut service.task).await.unwrap();
    let other = Bench::with(RULES, AnswerOptions::default(), self::counting(), store);
    assert_eq!(left(&other, "k=a").await, 999_500);
}

#[tokio::test]
async fn hits_of_a_domain_that_is_gone_are_added_once_the_store_is_back() {
    let store = GatedStore::new();
    let bench = Bench::with(RULES, AnswerOptions::default(), counting(), Arc::clone(&store) as _);
    learn(&bench).await;
    assert!(bench.passes(hits("slots=x", 2)).await);
    store.set(Gate::Away);
    assert!(!bench.passes(descriptor("slots=x")).await);
    bench.service.replace_domains(Arc::default());
    drop(bench);
    settled().await;
    store.set(Gate::Open);
    settled().await;
    let other = Bench::with(RULES, AnswerOptions::default(), counting(), store as _);
    other.ask(&[refund("slots=x")]).await;
    settled_refund().await;
    assert_eq!(left(&other, "slots=x").await, 0, "two units are still held");
}

#[tokio::test]
async fn service_that_stops_adds_its_hits_and_does_not_wait_for_a_frozen_store() {
    for gate in [Gate::Open, Gate::Away, Gate::Frozen] {
        let store = GatedStore::new();
        let (mut service, _folder) = serving(RULES, Arc::clone(&store) as _, counting()).await;
        let mut client = service.connect().await;
        let other =
            Bench::with(RULES, AnswerOptions::default(), counting(), Arc::clone(&store) as _);
        learn(&other).await;
        for passed in [true, true, false] {
            assert_eq!(passes(&client.ask("slots=x").await.unwrap().unwrap()), passed);
        }
        store.set(gate);
        match gate {
            Gate::Frozen => ask_and_leave(&service, &store, vec![descriptor("slots=x")]).await,
            _ => assert!(!passes(&client.ask("slots=x").await.unwrap().unwrap())),
        }
        service.stop.take().unwrap().send(Duration::ZERO).unwrap();
        if gate == Gate::Away {
            // Redis is back while the service still ends.
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(!service.task.is_finished(), "it tries again");
            store.set(Gate::Open);
        }
        (&mut service.task).await.unwrap();
        store.set(Gate::Open);
        if gate != Gate::Frozen {
            for _ in 0..2 {
                other.ask(&[refund("slots=x")]).await;
            }
            assert_eq!(left(&other, "slots=x").await, 0, "the refused requests took nothing");
        }
    }
}
