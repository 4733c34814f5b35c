//! The names of statistics: one counter for each policy and outcome, 6 a policy, and one for each outcome of calls to the
//! store.
//!
//! `envoy/stats_tags.yaml` takes them apart again into labels. That works because neither the name of a policy
//! nor that of an outcome holds a dot.

use crate::config::Config;
use crate::worker::Counted;

/// The name of a counter: `quotagate.<domain>.<policy>.<outcome>`, or `quotagate_calls.<domain>.<outcome>`. `None` where
/// there is no such policy.
pub fn counter(config: &Config, counted: Counted) -> Option<String> {
    let domain = &config.domain;
    Some(match counted {
        Counted::Requests(policy, outcome) => {
            let policy = config.policies.get(policy)?;
            format!("quotagate.{domain}.{}.{}", policy.name, outcome.name())
        }
        Counted::Calls(outcome) => format!("quotagate_calls.{domain}.{}", outcome.name()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Outcome;
    use crate::worker::CallOutcome;

    #[test]
    fn a_counter_is_named_by_domain_policy_and_outcome() {
        let text = r#"{"domain":"shop.example","store":{"cluster":"s"},"policies":[
            {"name":"off","partition_by":[],"quota":1,"window":"1m","mode":"off"},{"name":"per-caller","partition_by":[],"quota":1,"window":"1m"}]}"#;
        let config = Config::parse(text.as_bytes()).unwrap();
        let name = counter(&config, Counted::Requests(1, Outcome::ShadowRefused));
        assert_eq!(name.as_deref(), Some("quotagate.shop.example.per-caller.shadow_refused"));
        assert_eq!(counter(&config, Counted::Requests(2, Outcome::Admitted)), None);
        let name = counter(&config, Counted::Calls(CallOutcome::TimedOut));
        assert_eq!(name.as_deref(), Some("quotagate_calls.shop.example.timed_out"));
    }
}
