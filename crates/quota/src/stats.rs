//! The names of statistics. Outcomes of one family never overlap, so that they add up:
//!
//! | name | counts |
//! | --- | --- |
//! | `quotagate_requests.<domain>.<policy>.<outcome>` | requests by what the policy made of them |
//! | `quotagate_missing_identity.<domain>.<policy>` | requests without an identity, whatever happened to them |
//! | `quotagate_from_ledger.<domain>.<policy>` | requests that were decided without a call |
//! | `quotagate_calls.<domain>.<outcome>` | calls for units by what became of them |
//! | `quotagate_items_failed.<domain>` | reservations that failed in calls that were replied to |
//! | `quotagate_suspensions.<domain>` | times that a worker stopped calling the store for a while |
//! | `quotagate_fetches_failed.<domain>` | fetches of dials that failed |
//!
//! `envoy/stats_tags.yaml` splits them into labels again. That works because neither the name of a
//! policy nor that of an outcome holds a dot.

use crate::config::Config;
use crate::decision::Outcome;
use crate::worker::{CallOutcome, Counted};

/// The name of a counter. `None` if there is no such policy.
pub fn counter(config: &Config, counted: Counted) -> Option<String> {
    let domain = &config.domain;
    Some(match counted {
        Counted::Requests(policy, outcome) => {
            let policy = &config.policies.get(policy)?.name;
            match outcome {
                Outcome::MissingIdentity | Outcome::FromLedger => {
                    format!("quotagate_{}.{domain}.{policy}", outcome.name())
                }
                _ => format!("quotagate_requests.{domain}.{policy}.{}", outcome.name()),
            }
        }
        Counted::Calls(CallOutcome::ItemFailed) => format!("quotagate_items_failed.{domain}"),
        Counted::Calls(CallOutcome::Suspended) => format!("quotagate_suspensions.{domain}"),
        Counted::Calls(CallOutcome::DialsFailed) => format!("quotagate_fetches_failed.{domain}"),
        Counted::Calls(outcome) => format!("quotagate_calls.{domain}.{}", outcome.name()),
    })
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
        let name = counter(&config, Counted::Calls(CallOutcome::Suspended));
        assert_eq!(name.as_deref(), Some("quotagate_suspensions.shop.example"), "no call");
    }
}
