//! Rules that only count, that refuse only together, and that replace others.

use quotagate_protocol::Mode;
use quotagate_ratelimit::messages::Code;
use quotagate_ratelimit::service::AnswerOptions;

use crate::bench::{Bench, counting, descriptor, memory, passes, statuses};

const RULES: &str = "
domain: d
descriptors:
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: strict, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: plan, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: extra, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: team, rate_limit: {unit: day, requests_per_unit: 1, name: team}}
  - {key: vip, rate_limit: {unit: day, requests_per_unit: 3, replaces: [{name: team}]}}
";

#[tokio::test]
async fn rule_in_shadow_mode_counts_and_never_refuses() {
    let bench = Bench::new(RULES);
    for _ in 0..3 {
        let answer = bench.ask(&[descriptor("shadow=a")]).await;
        assert_eq!(statuses(&answer), [(Code::Ok, 0)]);
        assert!(passes(&answer));
    }
    assert!(bench.service.metrics.text().contains("shadow_mode{domain=\"d\",key1=\"shadow\"} 2"));
}

#[tokio::test]
async fn service_in_shadow_mode_refuses_nothing_and_says_what_it_would() {
    let answers = AnswerOptions { shadow_mode: true, ..AnswerOptions::default() };
    let bench = Bench::with(RULES, answers, counting(), memory());
    assert_eq!(statuses(&bench.ask(&[descriptor("strict=a")]).await), [(Code::Ok, 0)]);
    let answer = bench.ask(&[descriptor("strict=a")]).await;
    assert_eq!((answer.overall_code(), answer.statuses[0].code()), (Code::Ok, Code::OverLimit));
}

#[tokio::test]
async fn quota_limits_refuse_only_together() {
    let bench = Bench::new(RULES);
    let both = [descriptor("plan=a"), descriptor("extra=a")];
    let codes = [[Code::Ok; 2], [Code::OverLimit, Code::Ok], [Code::OverLimit; 2]];
    for (codes, passed) in codes.into_iter().zip([true, true, false]) {
        let answer = bench.ask(&both).await;
        let found: Vec<Code> = answer.statuses.iter().map(|status| status.code()).collect();
        assert_eq!((found, passes(&answer)), (codes.to_vec(), passed));
    }
}

#[tokio::test]
async fn request_that_quota_limits_refuse_takes_nothing_of_others() {
    let bench = Bench::new(RULES);
    assert!(bench.passes(descriptor("plan=a")).await);
    let both = [descriptor("plan=a"), descriptor("strict=a")];
    let answer = bench.ask(&both).await;
    assert!(!passes(&answer), "the only quota limit is used up");
    // The unit of the other limit comes back within a tick.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(bench.passes(descriptor("strict=a")).await);
}

#[tokio::test]
async fn replaced_rule_does_not_count() {
    let bench = Bench::new(RULES);
    let both = [descriptor("team=a"), descriptor("vip=a")];
    for passed in [true, true, true, false] {
        assert_eq!(passes(&bench.ask(&both).await), passed);
    }
    assert!(bench.passes(descriptor("team=a")).await, "it was replaced before");
}

#[tokio::test]
async fn policies_that_dials_do_not_change_say_what_they_do() {
    let bench = Bench::new(
        "domain: d\ndescriptors:\n- {key: free, rate_limit: {unlimited: true, name: free}}\n",
    );
    let config = bench.service.domains().unwrap()["d"].counters.config();
    let [free, of_requests] = &config.policies[..] else { panic!("{:?}", config.policies) };
    assert_eq!((&*free.name, free.mode), ("free", Mode::Off));
    assert_eq!((&*of_requests.name, of_requests.mode), ("request-limits", Mode::Enforce));
    assert_eq!(of_requests.quota, u64::from(u32::MAX));
    assert_eq!(statuses(&bench.ask(&[descriptor("free=a")]).await), [(Code::Ok, u32::MAX)]);
}
