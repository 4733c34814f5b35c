//! What the operator's access log says of a request.
//!
//! One policy speaks for all that count it: the first that refused or failed, else the tightest one, as in the
//! headers; one in shadow mode only where it is the one that would have refused, or where no other counts. A
//! request that nothing counts has no entry.

use crate::config::Config;
use crate::decision::{Decision, Standing, Uncounted, partition_of};
use crate::response::{tightest, used};

/// What is to be logged of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What became of it.
    pub decision: Verdict,
    /// The name of the policy that speaks for all.
    pub policy: &'a str,
    /// The encoded partition of that policy's counter, in which a secret is a digest; `None` where it has none
    /// for want of an identity.
    pub partition: Option<&'a str>,
    /// Units of that policy's quota that are used, as far as known.
    pub used: Option<u64>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let through and counted.
    Admitted,
    /// Answered as `response.denied` says.
    Refused,
    /// Let through, though a policy in shadow mode would have refused it.
    ShadowRefused,
    /// Answered with 401.
    MissingIdentity,
    /// Let through, not counted by one policy at least, because the store failed.
    StoreError,
    /// Answered with 503, because the store failed.
    Unavailable,
}

impl Verdict {
    /// Its name in access logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::ShadowRefused => "shadow_refused",
            Self::MissingIdentity => "missing_identity",
            Self::StoreError => "store_error",
            Self::Unavailable => "unavailable",
        }
    }
}

/// The entry of a request that is decided; `None` where no policy counts it.
pub fn entry<'a>(config: &'a Config, decision: &'a Decision) -> Option<Entry<'a>> {
    match decision {
        Decision::Admit(admission) => {
            let standings = &admission.standings;
            if let Some(uncounted) = &admission.uncounted {
                return failed(config, Verdict::StoreError, uncounted);
            }
            if let Some(standing) = standings.iter().find(|standing| !standing.granted) {
                return known(config, Verdict::ShadowRefused, standing);
            }
            let enforced = tightest(standings.iter().filter(|standing| standing.is_enforced(config)));
            known(config, Verdict::Admitted, enforced.or_else(|| tightest(standings.iter()))?)
        }
        Decision::Refuse(refusal) => known(config, Verdict::Refused, refusal.violated(config).next()?),
        Decision::Unavailable(uncounted) => failed(config, Verdict::Unavailable, uncounted),
    }
}

/// The entry of a request that was answered because a policy, by its place, found no identity.
pub fn missing_identity(config: &Config, policy: usize) -> Option<Entry<'_>> {
    let policy = &config.policies.get(policy)?.name;
    Some(Entry { decision: Verdict::MissingIdentity, policy, partition: None, used: None })
}

fn known<'a>(config: &'a Config, decision: Verdict, standing: &'a Standing) -> Option<Entry<'a>> {
    let policy = &config.policies.get(standing.policy)?.name;
    Some(Entry { decision, policy, partition: Some(partition_of(&standing.key)), used: Some(used(standing)) })
}

fn failed<'a>(config: &'a Config, decision: Verdict, uncounted: &'a Uncounted) -> Option<Entry<'a>> {
    let policy = &config.policies.get(uncounted.policy)?.name;
    Some(Entry { decision, policy, partition: Some(partition_of(&uncounted.key)), used: None })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::decision::{Admission, Refusal};
    use crate::time::Monotonic;

    fn config() -> Config {
        let text = r#"{"domain":"shop","store":{"cluster":"s"},"policies":[
            {"name":"minute","quota":10,"window":"1m"},{"name":"hour","quota":20,"window":"1h"},
            {"name":"trial","quota":5,"window":"1h","mode":"shadow"},
            {"name":"idea","quota":5,"window":"1h","mode":"shadow"}]}"#;
        Config::parse(text.as_bytes()).unwrap()
    }

    /// With the policy at this place; its name is its partition's.
    fn standing(policy: usize, granted: bool, quota: u64, remaining: u64) -> Standing {
        let key = format!("shop:p:{{header.x=p{policy}}}").into();
        Standing { policy, key, granted, quota, remaining, resets: Monotonic::new(Duration::from_secs(1)) }
    }

    fn uncounted(policy: usize) -> Uncounted {
        Uncounted { policy, key: format!("shop:p:{{header.x=p{policy}}}").into() }
    }

    fn admit(standings: Vec<Standing>, uncounted: Option<Uncounted>) -> Decision {
        Decision::Admit(Admission { standings, uncounted, ..Admission::default() })
    }

    fn refuse(standings: Vec<Standing>) -> Decision {
        Decision::Refuse(Refusal { standings, until: Monotonic::default() })
    }

    #[test]
    fn one_policy_speaks_for_all() {
        let granted = |policy, remaining| standing(policy, true, 10, remaining);
        let not = |policy| standing(policy, false, 10, 1);
        let cases = [
            (admit(vec![granted(0, 4)], None), Some("admitted minute p0 6")),
            (admit(vec![granted(0, 4), granted(1, 3)], None), Some("admitted hour p1 7")),
            (admit(vec![granted(0, 4), granted(2, 3)], None), Some("admitted minute p0 6")),
            (admit(vec![granted(2, 4), granted(3, 3)], None), Some("admitted idea p3 7")),
            (admit(vec![granted(0, 0), not(2), not(3)], None), Some("shadow_refused trial p2 9")),
            (admit(vec![granted(0, 4)], Some(uncounted(1))), Some("store_error hour p1 -")),
            (admit(vec![not(2)], Some(uncounted(1))), Some("store_error hour p1 -")),
            (admit(Vec::new(), Some(uncounted(2))), Some("store_error trial p2 -")),
            (admit(Vec::new(), None), None),
            (refuse(vec![granted(0, 0), not(1)]), Some("refused hour p1 9")),
            (refuse(vec![not(0), not(1)]), Some("refused minute p0 9")),
            (refuse(vec![not(1), not(2)]), Some("refused hour p1 9")),
            (Decision::Unavailable(uncounted(1)), Some("unavailable hour p1 -")),
        ];
        let config = config();
        for (decision, expected) in cases {
            let entry = entry(&config, &decision).map(|entry| {
                let used = entry.used.map_or("-".to_owned(), |used| used.to_string());
                let partition = entry.partition.unwrap().strip_prefix("header.x=").unwrap();
                format!("{} {} {partition} {used}", entry.decision.name(), entry.policy)
            });
            assert_eq!(entry.as_deref(), expected, "{decision:?}");
        }
    }

    #[test]
    fn a_missing_identity_has_no_partition() {
        let config = config();
        let expected =
            Entry { decision: Verdict::MissingIdentity, policy: "hour", partition: None, used: None };
        assert_eq!(missing_identity(&config, 1), Some(expected));
    }
}
