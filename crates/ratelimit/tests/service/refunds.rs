//! Hits that requests refund, and looks.

use std::time::Duration;

use quotagate_ratelimit::messages::{Code, Descriptor};
use quotagate_ratelimit::service::AnswerOptions;

use crate::bench::{Bench, counting, descriptor, hits, memory, statuses};

const RULES: &str =
    "domain: d\ndescriptors:\n- {key: slots, rate_limit: {unit: day, requests_per_unit: 2}}\n";

fn refund(text: &str, count: u64) -> Descriptor {
    Descriptor { is_negative_hits: true, ..hits(text, count) }
}

/// The units of a refund come back within a tick.
async fn refunded() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn hits_refunded_can_be_taken_again_and_never_go_below_zero() {
    let bench = Bench::new(RULES);
    assert!(bench.passes(hits("slots=a", 2)).await);
    assert!(!bench.passes(descriptor("slots=a")).await);
    // It takes back the hit of the refused call.
    assert!(bench.passes(refund("slots=a", 1)).await);
    refunded().await;
    assert!(!bench.passes(descriptor("slots=a")).await);
    assert!(bench.passes(refund("slots=a", 1)).await);
    let answer = bench.ask(&[refund("slots=a", 1)]).await;
    assert_eq!(statuses(&answer)[0].0, Code::Ok);
    refunded().await;
    assert!(bench.passes(descriptor("slots=a")).await);
    bench.ask(&[refund("slots=a", 50)]).await;
    refunded().await;
    for passed in [true, true, false] {
        assert_eq!(bench.passes(descriptor("slots=a")).await, passed);
    }
}

#[tokio::test]
async fn refused_call_of_one_service_is_refunded_at_another() {
    let store = memory();
    let start = || Bench::with(RULES, AnswerOptions::default(), counting(), store.clone());
    let (one, other) = (start(), start());
    // Both have seen that requests refund.
    for bench in [&one, &other] {
        assert!(bench.passes(descriptor("slots=x")).await);
        bench.ask(&[refund("slots=x", 1)]).await;
    }
    assert!(one.passes(hits("slots=a", 2)).await);
    assert!(!one.passes(descriptor("slots=a")).await);
    other.ask(&[refund("slots=a", 1)]).await;
    refunded().await;
    assert!(!other.passes(descriptor("slots=a")).await, "nobody refunded a slot");
}

#[tokio::test]
async fn look_counts_nothing() {
    let bench = Bench::new(RULES);
    for remaining in [2, 2] {
        assert_eq!(statuses(&bench.ask(&[hits("slots=a", 0)]).await), [(Code::Ok, remaining)]);
    }
    assert!(bench.passes(hits("slots=a", 2)).await);
    assert_eq!(statuses(&bench.ask(&[hits("slots=a", 0)]).await), [(Code::Ok, 0)]);
}
