//! The names of statistics: one counter for each policy and outcome, 6 a policy.
//!
//! `envoy/stats_tags.yaml` takes them apart again into labels. That works because neither the name of a policy
//! nor that of an outcome holds a dot.

use crate::config::Config;
use crate::decision::Outcome;

/// The name of the counter of `outcome` for the policy at this place: `quotagate.<domain>.<policy>.<outcome>`.
/// `None` where there is no such policy.
pub fn counter(config: &Config, policy: usize, outcome: Outcome) -> Option<String> {
    let policy = config.policies.get(policy)?;
    Some(format!("quotagate.{}.{}.{}", config.domain, policy.name, outcome.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_named_by_domain_policy_and_outcome() {
        let text = r#"{"domain":"shop.example","store":{"cluster":"s"},"policies":[
            {"name":"off","quota":1,"window":"1m","mode":"off"},{"name":"per-caller","quota":1,"window":"1m"}]}"#;
        let config = Config::parse(text.as_bytes()).unwrap();
        let name = counter(&config, 0, Outcome::ShadowRefused);
        assert_eq!(name.as_deref(), Some("quotagate.shop.example.per-caller.shadow_refused"));
        assert_eq!(counter(&config, 1, Outcome::Admitted), None);
    }
}
