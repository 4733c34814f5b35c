//! What a client sees of its quotas: the header families, and the answers in place of the upstream's.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::config::Config;
use crate::decision::{Admission, Decision, Refusal, Standing};
use crate::time::Monotonic;

/// A header of a response.
pub type Header = (&'static str, String);

/// An answer in place of the upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u32,
    /// The grpc-status for gRPC clients.
    pub grpc_status: i32,
    /// The headers, content type included.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Vec<u8>,
    /// Why, for access logs (`%RESPONSE_CODE_DETAILS%`).
    pub details: &'static str,
}

/// Now, on both clocks that a response needs.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For what is left of a window.
    pub monotonic: Monotonic,
    /// Since the Unix epoch, for reset times in epoch seconds.
    pub epoch: Duration,
}

/// The body of an answer: RFC 9457, with the problem types and members of
/// draft-ietf-httpapi-ratelimit-headers-11.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u32,
    detail: String,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
}

/// Where a request stands that is let through.
///
/// # Errors
/// The answer to one that is not.
pub fn answer(config: &Config, decision: Decision, now: impl FnOnce() -> Now) -> Result<Admission, Answer> {
    match decision {
        Decision::Admit(admission) => Ok(admission),
        Decision::Refuse(refusal) => Err(refused(config, &refusal, now())),
        Decision::Unavailable(_) => Err(unavailable()),
    }
}

/// The quota headers of a counted response, by the families that the configuration names: for each a
/// replacement of whatever the upstream sent.
pub fn quota_headers(config: &Config, standings: &[Standing], now: Now) -> Vec<Header> {
    let mut headers = Vec::with_capacity(8);
    let Some(tightest) = standings.iter().min_by_key(|standing| standing.remaining) else {
        return headers;
    };
    if config.response.ietf {
        let (mut policies, mut limits) = (String::new(), String::new());
        for standing in standings {
            let Some(policy) = config.policies.get(standing.policy) else { continue };
            let comma = if policies.is_empty() { "" } else { ", " };
            let reset = seconds_until(standing.resets, now);
            // Writing into a String cannot fail.
            let _ = write!(
                policies,
                "{comma}\"{}\";q={};w={}",
                policy.name,
                integer(standing.quota),
                policy.window.seconds()
            );
            let _ = write!(limits, "{comma}\"{}\";r={};t={reset}", policy.name, integer(standing.remaining));
        }
        headers.push(("ratelimit-policy", policies));
        headers.push(("ratelimit", limits));
    }
    if config.response.x_ratelimit {
        let reset = now.epoch.as_secs() + seconds_until(tightest.resets, now);
        headers.push(("x-ratelimit-limit", tightest.quota.to_string()));
        headers.push(("x-ratelimit-used", tightest.quota.saturating_sub(tightest.remaining).to_string()));
        headers.push(("x-ratelimit-remaining", tightest.remaining.to_string()));
        headers.push(("x-ratelimit-reset", reset.to_string()));
    }
    headers
}

/// The answer where a policy with `on_missing: deny` found no identity.
pub fn missing_identity(config: &Config, policy: usize) -> Answer {
    let name = config.policies.get(policy).map_or("", |policy| &policy.name);
    let problem = Problem {
        kind: "about:blank",
        title: "Unauthorized",
        status: 401,
        detail: format!("The policy \"{name}\" needs to know who is calling, and the request does not say."),
        violated_policies: Vec::new(),
    };
    // RFC 9110, section 11.6.1: a 401 names a challenge.
    let challenge = ("www-authenticate", format!("Bearer realm=\"{}\"", config.domain));
    problem.answer(16, vec![challenge], "quotagate_missing_identity")
}

fn refused(config: &Config, refusal: &Refusal, now: Now) -> Answer {
    let wait = seconds_until(refusal.until, now).max(1);
    let violated: Vec<&str> = refusal
        .violated(config)
        .filter_map(|s| config.policies.get(s.policy))
        .map(|policy| &*policy.name)
        .collect();
    let mut headers = quota_headers(config, &refusal.standings, now);
    headers.push(("retry-after", wait.to_string()));
    let problem = Problem {
        kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Too Many Requests",
        status: 429,
        detail: format!("The quota of {} is used up; more is granted in {wait} s.", violated.join(", ")),
        violated_policies: violated,
    };
    problem.answer(8, headers, "quotagate_quota_exceeded")
}

fn unavailable() -> Answer {
    let problem = Problem {
        kind: "about:blank",
        title: "Service Unavailable",
        status: 503,
        detail: "The request could not be counted against its quota; try again in a moment.".to_owned(),
        violated_policies: Vec::new(),
    };
    problem.answer(14, vec![("retry-after", "1".to_owned())], "quotagate_store_unavailable")
}

impl Problem<'_> {
    fn answer(&self, grpc_status: i32, mut headers: Vec<Header>, details: &'static str) -> Answer {
        headers.push(("content-type", "application/problem+json".to_owned()));
        // Strings and a number into memory: this cannot fail.
        let body = serde_json::to_vec(self).unwrap_or_default();
        Answer { status: self.status, grpc_status, headers, body, details }
    }
}

/// The largest Integer of a Structured Field has 15 digits (RFC 9651, section 3.3.1).
fn integer(units: u64) -> u64 {
    units.min(999_999_999_999_999)
}

/// Whole seconds until `moment`, rounded up.
fn seconds_until(moment: Monotonic, now: Now) -> u64 {
    let left = moment.since(now.monotonic);
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Uncounted;

    const NOW: Now = Now {
        monotonic: Monotonic::new(Duration::from_millis(1_500)),
        epoch: Duration::from_secs(1_000_000),
    };

    fn config(response: &str) -> Config {
        let text = format!(
            r#"{{"domain":"shop","store":{{"cluster":"s"}},"response":{response},"policies":[
                {{"name":"per-caller","quota":100,"window":"1m"}},{{"name":"daily","quota":9,"window":"1d"}}]}}"#
        );
        Config::parse(text.as_bytes()).unwrap()
    }

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    fn standing(policy: usize, quota: u64, remaining: u64, resets: Monotonic) -> Standing {
        Standing { policy, key: "shop:p:{*}".into(), granted: remaining > 0, quota, remaining, resets }
    }

    fn standings() -> Vec<Standing> {
        vec![standing(0, 100, 57, at(42_637)), standing(1, 9, 2, at(2_500))]
    }

    fn text(headers: &[Header]) -> String {
        headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
    }

    #[test]
    fn both_families_name_every_policy_and_the_tightest() {
        assert_eq!(
            text(&quota_headers(&config("{}"), &standings(), NOW)),
            "ratelimit-policy: \"per-caller\";q=100;w=60, \"daily\";q=9;w=86400\n\
             ratelimit: \"per-caller\";r=57;t=42, \"daily\";r=2;t=1\n\
             x-ratelimit-limit: 9\nx-ratelimit-used: 7\nx-ratelimit-remaining: 2\nx-ratelimit-reset: 1000001\n"
        );
    }

    #[test]
    fn numbers_stay_those_of_a_structured_field() {
        let plenty = standing(0, 9_007_199_254_740_991, 1_000_000_000_000_000, at(0));
        let headers = text(&quota_headers(&config(r#"{"headers":["ietf"]}"#), &[plenty], NOW));
        assert!(
            headers.contains(";q=999999999999999;w=60") && headers.contains(";r=999999999999999;"),
            "{headers}"
        );
    }

    #[test]
    fn a_family_that_is_not_named_is_not_sent() {
        let ietf = quota_headers(&config(r#"{"headers":["ietf"]}"#), &standings(), NOW);
        assert!(ietf.iter().all(|(name, _)| name.starts_with("ratelimit")) && ietf.len() == 2);
        assert!(quota_headers(&config(r#"{"headers":[]}"#), &standings(), NOW).is_empty());
        assert!(quota_headers(&config("{}"), &[], NOW).is_empty());
    }

    #[test]
    fn a_refusal_says_which_policy_and_until_when() {
        let mut standings = standings();
        standings[1].granted = false;
        let refusal = Refusal { standings, until: at(2_501) };
        let answer = answer(&config(r#"{"headers":[]}"#), Decision::Refuse(refusal), || NOW).unwrap_err();
        assert_eq!((answer.status, answer.grpc_status), (429, 8));
        assert_eq!(text(&answer.headers), "retry-after: 2\ncontent-type: application/problem+json\n");
        assert_eq!(
            String::from_utf8(answer.body).unwrap(),
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"detail":"The quota of daily is used up; more is granted in 2 s.","violated-policies":["daily"]}"#
        );
    }

    #[test]
    fn a_failed_store_is_never_a_429() {
        let answer = answer(
            &config("{}"),
            Decision::Unavailable(Uncounted { policy: 0, key: "shop:p:{*}".into() }),
            || NOW,
        )
        .unwrap_err();
        assert_eq!((answer.status, answer.grpc_status), (503, 14));
        assert!(answer.headers.contains(&("retry-after", "1".to_owned())));
    }

    #[test]
    fn a_missing_identity_is_a_401_with_a_challenge() {
        let answer = missing_identity(&config("{}"), 0);
        assert_eq!((answer.status, answer.grpc_status), (401, 16));
        assert!(answer.headers.contains(&("www-authenticate", "Bearer realm=\"shop\"".to_owned())));
    }
}
