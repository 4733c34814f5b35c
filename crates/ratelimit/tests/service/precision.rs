//! Which rules hold leases.

use std::num::NonZeroU64;
use std::time::Duration;

use quotagate_quota::config::Precision;
use quotagate_ratelimit::domain::CountingOptions;
use quotagate_ratelimit::service::AnswerOptions;

use crate::bench::{Bench, counting, memory};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: per-a}}
  - {key: b, value: x, rate_limit: {unit: day, requests_per_unit: 1}}
";
const LEASE: Precision =
    Precision::Lease { ahead: Duration::from_millis(100), max: NonZeroU64::new(10).unwrap() };

fn options(named: &[(&str, Precision)], count_refused: bool) -> CountingOptions {
    let precisions = named.iter().map(|(name, how)| ((*name).to_owned(), *how)).collect();
    CountingOptions { precisions, count_refused, ..counting() }
}

/// For each rule: whether it holds leases, and whether refused requests count.
fn of_rules(options: CountingOptions) -> Vec<(bool, bool)> {
    let bench = Bench::with(RULES, AnswerOptions::default(), options, memory());
    let config = bench.service.domains().unwrap()["d"].counters.config();
    let policies = config.policies.iter().take(2);
    policies.map(|policy| (policy.precision == LEASE, policy.count_denied)).collect()
}

#[tokio::test]
async fn rule_precedes_its_domain_and_that_all_others() {
    for (named, leases) in [
        (&[][..], [false, false]),
        (&[("d", LEASE)], [true, true]),
        (&[("d", LEASE), ("d/per-a", Precision::Exact)], [false, true]),
        (&[("d/b=x", LEASE), ("e", LEASE)], [false, true]),
    ] {
        let found = of_rules(options(named, true));
        // What a lease does not see is not counted.
        assert_eq!(found, leases.map(|lease| (lease, !lease)), "{named:?}");
    }
    assert_eq!(
        of_rules(CountingOptions {
            precision: LEASE,
            ..options(&[("d", Precision::Exact)], false)
        }),
        [(false, false); 2]
    );
}

#[tokio::test]
async fn names_that_no_rule_has_are_known() {
    let named = ["d", "d/per-a", "d/b=x", "d/a", "e", "d/"].map(|name| (name, LEASE));
    let options = options(&named, false);
    let bench = Bench::with(RULES, AnswerOptions::default(), options.clone(), memory());
    let domains = bench.service.domains().unwrap();
    let rules = domains.values().map(|domain| &domain.rules);
    assert_eq!(options.unknown_names(rules), ["d/", "d/a", "e"]);
}
