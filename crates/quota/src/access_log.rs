//! The access log fields of a request.
//!
//! An entry is about one policy: the first that refused or failed, else the tightest one, as in the
//! headers. It is about a policy that marks only if that policy marked the request, and about one
//! in shadow mode only if that policy would have refused it, or if no other policy counts the
//! request. `used` is missing if the store failed, or has not answered a shadow policy yet. A
//! request that no policy counts has no entry.

use itoa::Buffer;
use quotagate_protocol::Mode;

use crate::config::{Config, LogField};
use crate::decision::{Decision, Standing, Uncounted};
use crate::request::key::partition_of;
use crate::response::{tightest, used};

/// The access log fields of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessLogEntry<'a> {
    /// What happened to the request.
    pub decision: Verdict,
    /// The name of the policy that the entry is about.
    pub policy: &'a str,
    /// The encoded partition of that policy's counter, with digests for secrets. `None` if an
    /// identity is missing.
    pub partition: Option<&'a str>,
    /// Used units of that policy's quota, as far as the worker knows.
    pub used: Option<u64>,
    /// The fields that the configuration asks for.
    logged: &'a [LogField],
}

impl<'a> AccessLogEntry<'a> {
    /// Passes name and value of each field that the configuration asks for to `write`. Unknown
    /// values are left out.
    pub fn write(&self, mut write: impl FnMut(&'static str, &str)) {
        for field in self.logged {
            match field {
                LogField::Decision => write("quotagate.decision", self.decision.name()),
                LogField::Policy => write("quotagate.policy", self.policy),
                LogField::Partition => {
                    if let Some(partition) = self.partition {
                        write("quotagate.partition", partition);
                    }
                }
                LogField::Used => {
                    if let Some(used) = self.used {
                        write("quotagate.used", Buffer::new().format(used));
                    }
                }
            }
        }
    }
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let through and counted.
    Admitted,
    /// Answered as `response.denied` says.
    Refused,
    /// Let through, though a policy in shadow mode would have refused it.
    ShadowRefused,
    /// Let through, and marked for the upstream.
    Marked,
    /// Answered with 401.
    MissingIdentity,
    /// Let through, but at least one policy did not count it because the store failed.
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
            Self::Marked => "marked",
            Self::MissingIdentity => "missing_identity",
            Self::StoreError => "store_error",
            Self::Unavailable => "unavailable",
        }
    }
}

/// The entry of a decided request. `None` if no policy counts it, or the configuration asks for no
/// fields.
pub fn entry<'a>(config: &'a Config, decision: &'a Decision) -> Option<AccessLogEntry<'a>> {
    if config.access_log.is_empty() {
        return None;
    }
    match decision {
        Decision::Admit(admission) => {
            let standings = &admission.standings;
            if let Some(uncounted) = &admission.uncounted {
                return unknown(config, Verdict::StoreError, uncounted);
            }
            let exceeded = || standings.iter().filter(|standing| !standing.granted);
            if let Some(standing) = exceeded().find(|standing| standing.mode == Mode::Mark) {
                return known(config, Verdict::Marked, standing);
            }
            if let Some(standing) = exceeded().next() {
                return known(config, Verdict::ShadowRefused, standing);
            }
            let enforced = tightest(standings.iter().filter(|standing| standing.enforced()));
            match enforced.or_else(|| tightest(standings.iter())) {
                Some(standing) => known(config, Verdict::Admitted, standing),
                None => unknown(config, Verdict::Admitted, admission.pending.first()?),
            }
        }
        Decision::Refuse(refusal) => known(config, Verdict::Refused, refusal.violated().next()?),
        Decision::Unavailable(uncounted) => unknown(config, Verdict::Unavailable, uncounted),
    }
}

/// The entry of a request that lacks an identity of the policy at this index.
pub fn missing_identity(config: &Config, policy: usize) -> Option<AccessLogEntry<'_>> {
    about(config, Verdict::MissingIdentity, policy, None, None)
}

fn known<'a>(
    config: &'a Config,
    decision: Verdict,
    standing: &'a Standing,
) -> Option<AccessLogEntry<'a>> {
    about(config, decision, standing.policy, Some(&standing.counter.key), Some(used(standing)))
}

fn unknown<'a>(
    config: &'a Config,
    decision: Verdict,
    uncounted: &'a Uncounted,
) -> Option<AccessLogEntry<'a>> {
    about(config, decision, uncounted.policy, Some(&uncounted.key), None)
}

fn about<'a>(
    config: &'a Config,
    decision: Verdict,
    policy: usize,
    key: Option<&'a str>,
    used: Option<u64>,
) -> Option<AccessLogEntry<'a>> {
    let policy = &config.policies.get(policy)?.name;
    Some(AccessLogEntry {
        decision,
        policy,
        partition: key.map(partition_of),
        used,
        logged: &config.access_log,
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use quotagate_protocol::Window;

    use super::*;
    use crate::decision::{Admission, Balance, Refusal};
    use crate::evaluate::Counter;
    use crate::time::Monotonic;

    fn config() -> Config {
        let text = r#"{"domain":"shop","store":{"cluster":"s"},
            "access_log":["decision","policy","partition","used"],"policies":[
            {"name":"minute","partition_by":[],"quota":10,"window":"1m"},{"name":"hour","partition_by":[],"quota":20,"window":"1h"},
            {"name":"trial","partition_by":[],"quota":5,"window":"1h","mode":"shadow"},
            {"name":"idea","partition_by":[],"quota":5,"window":"1h","mode":"shadow"}]}"#;
        Config::parse(text.as_bytes()).unwrap()
    }

    /// A standing of the policy at this index, in the partition `header.x=p<index>`.
    fn standing(policy: usize, granted: bool, quota: u64, remaining: u64) -> Standing {
        let key = format!("shop:p:{{header.x=p{policy}}}").into();
        let counter = Counter { key, quota, window: Window::new(60, 0).unwrap() };
        let resets = Monotonic::new(Duration::from_secs(1));
        Standing {
            policy,
            counter,
            granted,
            by_store: false,
            mode: config().policies[policy].mode,
            cost: NonZeroU64::MIN,
            counts_until: resets,
            balance: Balance { window_s: 60, quota, remaining, resets },
        }
    }

    fn uncounted(policy: usize) -> Uncounted {
        Uncounted { policy, key: format!("shop:p:{{header.x=p{policy}}}").into() }
    }

    fn admit(standings: Vec<Standing>, uncounted: Option<Uncounted>) -> Decision {
        Decision::Admit(Admission {
            standings,
            uncounted: uncounted.map(Box::new),
            ..Admission::default()
        })
    }

    fn refuse(standings: Vec<Standing>) -> Decision {
        Decision::Refuse(Refusal { standings, until: Monotonic::default() })
    }

    fn text(entry: &AccessLogEntry<'_>) -> String {
        let mut fields = Vec::new();
        entry.write(|name, value| fields.push(format!("{name}={value}")));
        fields.join(" ").replace("quotagate.", "").replace("header.x=", "")
    }

    #[test]
    fn the_deciding_policy_has_the_entry() {
        let granted = |policy, remaining| standing(policy, true, 10, remaining);
        let not = |policy| standing(policy, false, 10, 1);
        let cases = [
            (admit(vec![granted(0, 4)], None), "admitted policy=minute partition=p0 used=6"),
            (
                admit(vec![granted(0, 4), granted(1, 3)], None),
                "admitted policy=hour partition=p1 used=7",
            ),
            (
                admit(vec![granted(0, 4), granted(2, 3)], None),
                "admitted policy=minute partition=p0 used=6",
            ),
            (
                admit(vec![granted(2, 4), granted(3, 3)], None),
                "admitted policy=idea partition=p3 used=7",
            ),
            (
                admit(vec![granted(0, 0), not(2), not(3)], None),
                "shadow_refused policy=trial partition=p2 used=9",
            ),
            (
                admit(vec![granted(0, 4)], Some(uncounted(1))),
                "store_error policy=hour partition=p1",
            ),
            (admit(vec![not(2)], Some(uncounted(1))), "store_error policy=hour partition=p1"),
            (admit(Vec::new(), Some(uncounted(2))), "store_error policy=trial partition=p2"),
            (refuse(vec![granted(0, 0), not(1)]), "refused policy=hour partition=p1 used=9"),
            (refuse(vec![not(0), not(1)]), "refused policy=minute partition=p0 used=9"),
            (refuse(vec![not(1), not(2)]), "refused policy=hour partition=p1 used=9"),
            (Decision::Unavailable(uncounted(1)), "unavailable policy=hour partition=p1"),
        ];
        let config = config();
        for (decision, expected) in cases {
            let entry = entry(&config, &decision).unwrap();
            assert_eq!(text(&entry), format!("decision={expected}"), "{decision:?}");
        }
    }

    #[test]
    fn a_shadow_policy_without_a_reply_has_an_entry_without_a_count() {
        let config = config();
        let pending = |standings| {
            let pending = vec![uncounted(2), uncounted(3)];
            Decision::Admit(Admission { standings, pending, ..Admission::default() })
        };
        let (alone, beside) = (pending(Vec::new()), pending(vec![standing(0, true, 10, 4)]));
        assert_eq!(
            text(&entry(&config, &alone).unwrap()),
            "decision=admitted policy=trial partition=p2"
        );
        assert_eq!(
            text(&entry(&config, &beside).unwrap()),
            "decision=admitted policy=minute partition=p0 used=6"
        );
    }

    #[test]
    fn only_the_configured_fields_are_written() {
        let with = |fields: &[LogField]| {
            let mut config = config();
            config.access_log = fields.into();
            config
        };
        let decision = admit(vec![standing(0, true, 10, 4)], None);
        let config = with(&[LogField::Used, LogField::Decision]);
        assert_eq!(text(&entry(&config, &decision).unwrap()), "used=6 decision=admitted");
        let partition = with(&[LogField::Partition]);
        assert_eq!(text(&missing_identity(&partition, 1).unwrap()), "");
        assert_eq!(entry(&with(&[]), &decision), None);
    }

    #[test]
    fn uncounted_request_has_no_entry() {
        assert_eq!(entry(&config(), &admit(Vec::new(), None)), None);
    }

    #[test]
    fn a_missing_identity_has_no_partition() {
        let config = config();
        let entry = missing_identity(&config, 1).unwrap();
        assert_eq!(text(&entry), "decision=missing_identity policy=hour");
    }
}
