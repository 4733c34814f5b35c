//! Redis fails: requests have an error in time, few of them are counted later, and `/healthcheck`
//! says so.

use std::time::Instant;

use quotagate_support::redis::Redis;
use quotagate_support::wait;

use super::{PATIENCE, Service};

/// How many requests of a rule pass.
const QUOTA: usize = 40;
/// At most so many calls reach Redis before the breaker ends them.
const SENT: usize = 10;
const RULES: &str = "- {key: k, rate_limit: {unit: year, requests_per_unit: 40}}\n";

#[test]
fn frozen_redis_fails_requests_and_counts_few_of_them_when_it_resumes() {
    let mut redis = Redis::start().unwrap();
    let service = Service::start(&redis.url(), RULES, &["--timeout", "300ms"]);
    for _ in 0..2 {
        assert_eq!(service.json(&[("k", "v")]).status, 200);
    }
    redis.freeze().unwrap();
    let begun = Instant::now();
    for _ in 0..QUOTA {
        let answer = service.json(&[("k", "v")]);
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains("the store cannot count the request by the rule k"));
    }
    // Each one would wait for its timeout, if the breaker did not end that.
    assert!(begun.elapsed() < PATIENCE);
    service.wait_until_healthy(false);
    redis.thaw().unwrap();
    service.wait_until_healthy(true);
    let mut passed = 0;
    wait::until_true("the limit", PATIENCE, || {
        let status = service.json(&[("k", "v")]).status;
        passed += usize::from(status == 200);
        Ok(status == 429)
    })
    .unwrap();
    assert!((QUOTA - 2 - SENT..=QUOTA - 2).contains(&passed), "{passed}");
}

#[test]
fn redis_that_is_killed_and_comes_back_empty_is_used_again() {
    let mut redis = Redis::start().unwrap();
    let service = Service::start(&redis.url(), RULES, &["--timeout", "300ms"]);
    assert_eq!(service.json(&[("k", "v")]).status, 200);
    redis.kill().unwrap();
    service.wait_until_healthy(false);
    assert_eq!(service.json(&[("k", "v")]).status, 400);
    redis.restart().unwrap();
    service.wait_until_healthy(true);
    wait::until_true(
        "requests to pass",
        PATIENCE,
        || Ok(service.json(&[("k", "v")]).status == 200),
    )
    .unwrap();
}
