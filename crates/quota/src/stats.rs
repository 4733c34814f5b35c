//! The names of statistics. Outcomes of one family never overlap, so that they add up:
//!
//! | family | labels | counts |
//! | --- | --- | --- |
//! | `quotagate_requests` | domain, policy, outcome | requests by what the policy made of them |
//! | `quotagate_missing_identity` | domain, policy | requests without an identity, whatever happened to them |
//! | `quotagate_settled_if_missing` | domain, policy | requests that cost `if_missing`, because their responses did not say the cost or broke off |
//! | `quotagate_from_ledger` | domain, policy | requests that were decided without a call |
//! | `quotagate_calls` | domain, outcome | calls for units by what became of them |
//! | `quotagate_items_failed` | domain | reservations that failed in calls that were replied to |
//! | `quotagate_suspensions` | domain | times that a worker stopped calling the store for a while |
//! | `quotagate_fetches_failed` | domain | fetches of dials that failed |
//! | `quotagate_documents_refused` | domain | refused documents: each worker adds 1 when it starts with one (a native worker with its first request), and 1 with each report after that |
//!
//! A host without labels appends them to the name, each behind a dot. `envoy/stats_tags.yaml`
//! splits them again. That works because neither the name of a policy nor that of an outcome holds
//! a dot.

use crate::config::Config;
use crate::decision::Outcome;
use crate::worker::{CallOutcome, Counted};

/// Statistics of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFamily {
    /// Its name.
    pub name: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// All families.
pub const FAMILIES: [StatFamily; 9] = [
    StatFamily { name: "quotagate_requests", labels: &["domain", "policy", "outcome"] },
    StatFamily { name: "quotagate_missing_identity", labels: &["domain", "policy"] },
    StatFamily { name: "quotagate_from_ledger", labels: &["domain", "policy"] },
    StatFamily { name: "quotagate_calls", labels: &["domain", "outcome"] },
    StatFamily { name: "quotagate_items_failed", labels: &["domain"] },
    StatFamily { name: "quotagate_suspensions", labels: &["domain"] },
    StatFamily { name: "quotagate_fetches_failed", labels: &["domain"] },
    StatFamily { name: "quotagate_documents_refused", labels: &["domain"] },
    StatFamily { name: "quotagate_settled_if_missing", labels: &["domain", "policy"] },
];

/// The index in [`FAMILIES`] and the labels of a counter. `None` if there is no such policy.
pub fn labels(config: &Config, counted: Counted) -> Option<(usize, Vec<&str>)> {
    let domain = &*config.domain;
    Some(match counted {
        Counted::Requests(policy, outcome) => {
            let policy = &*config.policies.get(policy)?.name;
            match outcome {
                Outcome::MissingIdentity => (1, vec![domain, policy]),
                Outcome::FromLedger => (2, vec![domain, policy]),
                Outcome::SettledIfMissing => (8, vec![domain, policy]),
                _ => (0, vec![domain, policy, outcome.name()]),
            }
        }
        Counted::Calls(CallOutcome::ItemFailed) => (4, vec![domain]),
        Counted::Calls(CallOutcome::Suspended) => (5, vec![domain]),
        Counted::Calls(CallOutcome::DialsFailed) => (6, vec![domain]),
        Counted::RefusedDocument => (7, vec![domain]),
        Counted::Calls(outcome) => (3, vec![domain, outcome.name()]),
    })
}

/// The name of a counter, for a host without labels. `None` if there is no such policy.
pub fn counter(config: &Config, counted: Counted) -> Option<String> {
    let (family, labels) = labels(config, counted)?;
    let mut name = FAMILIES.get(family)?.name.to_owned();
    for label in labels {
        name.push('.');
        name.push_str(label);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_named_by_domain_policy_and_outcome() {
        let text = r#"{"domain":"shop.example","store":{"cluster":"s"},"policies":[
            {"name":"off","partition_by":[],"quota":1,"window":"1m","mode":"off"},{"name":"per-caller","partition_by":[],"quota":1,"window":"1m"}]}"#;
        let config = Config::parse(text.as_bytes()).unwrap();
        let name = counter(&config, Counted::Requests(1, Outcome::ShadowRefused));
        assert_eq!(
            name.as_deref(),
            Some("quotagate_requests.shop.example.per-caller.shadow_refused")
        );
        assert_eq!(counter(&config, Counted::Requests(2, Outcome::Admitted)), None);
        let name = counter(&config, Counted::Calls(CallOutcome::TimedOut));
        assert_eq!(name.as_deref(), Some("quotagate_calls.shop.example.timed_out"));
        let name = counter(&config, Counted::Requests(1, Outcome::FromLedger));
        assert_eq!(
            name.as_deref(),
            Some("quotagate_from_ledger.shop.example.per-caller"),
            "no outcome"
        );
        for counted in [
            Counted::Requests(1, Outcome::Admitted),
            Counted::Requests(1, Outcome::MissingIdentity),
            Counted::Requests(1, Outcome::SettledIfMissing),
            Counted::Calls(CallOutcome::TimedOut),
            Counted::Calls(CallOutcome::DialsFailed),
            Counted::RefusedDocument,
        ] {
            let (family, labels) = labels(&config, counted).unwrap();
            assert_eq!(labels.len(), FAMILIES[family].labels.len(), "{counted:?}");
        }
        let name = counter(&config, Counted::Calls(CallOutcome::Suspended));
        assert_eq!(name.as_deref(), Some("quotagate_suspensions.shop.example"), "no call");
    }
}
