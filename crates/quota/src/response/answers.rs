//! The answers that the filter sends itself: for a quota that is used up, a missing identity, or a
//! store that cannot count.
//!
//! Their bodies are RFC 9457 problem documents. Only the first can be changed (`response.denied`).
//! A gRPC client gets the grpc-status instead of the HTTP status.

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;

use super::headers::{quota_headers, seconds_until};
use super::{Answer, Header, Now, RATE_LIMITED};
use crate::config::{Config, Piece, Template};
use crate::decision::{Decision, Refusal, Standing};
use crate::response::mark::EXCEEDED;

/// The grpc-status INVALID_ARGUMENT.
const INVALID_ARGUMENT: i32 = 3;
/// The grpc-status RESOURCE_EXHAUSTED.
const EXHAUSTED: i32 = 8;
/// The grpc-status UNAVAILABLE.
const UNAVAILABLE: i32 = 14;
/// The grpc-status UNAUTHENTICATED.
const UNAUTHENTICATED: i32 = 16;

const PROBLEM_JSON: &str = "application/problem+json";

/// The response code detail of Envoy's own rate limit filter.
const RATE_LIMITED_DETAIL: &str = "request_rate_limited";

/// Tells a gRPC client never to retry.
const NEVER: i32 = -1;

/// An RFC 9457 problem, with the types and members of draft-ietf-httpapi-ratelimit-headers-11.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies", skip_serializing_if = "<[&str]>::is_empty")]
    violated_policies: &'a [&'a str],
}

/// The answer to a request that is not let through. `None` if it is let through.
pub fn answer<'a>(
    config: &'a Config,
    decision: &Decision,
    now: impl FnOnce() -> Now,
) -> Option<Answer<'a>> {
    match decision {
        Decision::Admit(_) => None,
        Decision::Refuse(refusal) => Some(refused(config, refusal, now())),
        Decision::Unavailable(_) => Some(unavailable(config)),
    }
}

/// The answer if a policy with `on_missing: deny` found no identity.
pub fn missing_identity(config: &Config, policy: usize) -> Answer<'_> {
    let name = config.policies.get(policy).map_or("", |policy| &policy.name);
    let detail = format!(
        "The policy \"{name}\" needs to know who is calling, and the request does not say."
    );
    // RFC 9110, section 11.6.1: a 401 names a challenge.
    let challenge = ("www-authenticate", Cow::from(format!("Bearer realm=\"{}\"", config.domain)));
    plain(
        "Unauthorized",
        401,
        UNAUTHENTICATED,
        detail,
        challenge,
        None,
        "quotagate_missing_identity",
    )
}

/// The answer if a request cannot be counted and must not pass uncounted.
pub fn unavailable(config: &Config) -> Answer<'_> {
    const WAIT: Duration = Duration::from_secs(1);
    let detail =
        "The request could not be counted against its quota; try again in a moment.".to_owned();
    let wait = ("retry-after", Cow::from("1"));
    plain(
        "Service Unavailable",
        503,
        UNAVAILABLE,
        detail,
        wait,
        Some(pushback(config, WAIT)),
        "quotagate_store_unavailable",
    )
}

/// The answer to a client that sent the mark of an exceeded quota, if a policy needs the route. The
/// route was chosen by that mark, and this host cannot tell what it would be without.
pub fn marked_by_client() -> Answer<'static> {
    let detail = format!("The request must not have the header {EXCEEDED}.");
    let header = ("cache-control", Cow::from("no-store"));
    plain("Bad Request", 400, INVALID_ARGUMENT, detail, header, None, "quotagate_marked_by_client")
}

/// A problem that says no more than its status.
fn plain<'a>(
    title: &'static str,
    status: u16,
    grpc_status: i32,
    detail: String,
    header: Header<'a>,
    pushback: Option<i32>,
    details: &'static str,
) -> Answer<'a> {
    let problem = Problem { kind: "about:blank", title, status, detail, violated_policies: &[] };
    let headers = vec![header, ("content-type", Cow::from(PROBLEM_JSON))];
    Answer { status, grpc_status, headers, body: problem.text().into(), pushback, details }
}

fn refused<'a>(config: &'a Config, refusal: &Refusal, now: Now) -> Answer<'a> {
    let denied = &config.response.denied;
    let mut quota = None;
    let name = |standing: &Standing| {
        quota.get_or_insert(standing.balance.quota);
        config.policies.get(standing.policy).map(|policy| &*policy.name)
    };
    let names: Vec<&str> = refusal.violated().filter_map(name).collect();
    let joined = match *names {
        [one] => Cow::from(one),
        _ => Cow::from(names.join(", ")),
    };
    let wait = seconds_until(refusal.until, now).max(1);
    // A quota of 0 grants nothing later either, so the answer names no time to retry.
    let blocked: Vec<&str> = refusal
        .violated()
        .filter(|standing| standing.balance.quota == 0)
        .filter_map(|standing| config.policies.get(standing.policy).map(|policy| &*policy.name))
        .collect();
    // Nobody knows when a running request ends. One that waited may come again.
    let is_full = refusal.violated().any(|standing| standing.counter.is_slots());
    let untimed = is_full && refusal.until <= now.monotonic;
    // It costs more than the limit, so it never fits, whichever request ends.
    let too_large = refusal.violated().filter(|it| it.counter.is_slots()).find_map(|it| {
        let (cost, limit) = (it.cost.get(), it.balance.quota);
        (cost > limit).then_some((it.policy, cost, limit))
    });
    let fill = |template: &'a Template| match template.pieces() {
        [] => Cow::from(""),
        [Piece::Text(text)] => Cow::from(&**text),
        _ => Cow::from(template.fill(&joined, wait, quota.unwrap_or_default())),
    };

    let mut headers = quota_headers(config, &refusal.standings, || now);
    let never = !blocked.is_empty() || too_large.is_some();
    if !never && !untimed {
        headers.push(("retry-after", Cow::from(wait.to_string())));
    }
    headers.push((RATE_LIMITED, Cow::from("true")));
    headers.extend(denied.headers.iter().map(|(name, value)| (&**name, fill(value))));
    let content_type = match (&denied.content_type, &denied.body) {
        (Some(given), _) => Some(&**given),
        (None, None) => Some(PROBLEM_JSON),
        (None, Some(_)) => None,
    };
    headers.extend(content_type.map(|kind| ("content-type", Cow::from(kind))));
    let body = denied.body.as_ref().map(fill).unwrap_or_else(|| {
        let problem = Problem {
            kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
            title: "Too Many Requests",
            status: denied.status,
            detail: match (&*blocked, too_large) {
                ([], Some((policy, cost, limit))) => {
                    let name = config.policies.get(policy).map_or("", |policy| &policy.name);
                    format!(
                        "The limit of {name} on running requests is {limit}, and this request costs {cost}."
                    )
                }
                ([], None) if is_full => format!(
                    "Too few slots of {joined} are free for this request now."
                ),
                ([], None) => {
                    format!("The quota of {joined} is used up; more is granted in {wait} s.")
                }
                _ => {
                    format!("The quota of {} is 0: no request is let through.", blocked.join(", "))
                }
            },
            violated_policies: &names,
        };
        problem.text().into()
    });
    let pushback = if never {
        Some(NEVER)
    } else {
        (!untimed).then(|| pushback(config, refusal.until.since(now.monotonic)))
    };
    Answer {
        status: denied.status,
        grpc_status: EXHAUSTED,
        headers,
        body,
        pushback,
        details: RATE_LIMITED_DETAIL,
    }
}

/// After how many milliseconds, at least 1, a gRPC client may retry. A client that retries waits
/// that long and meanwhile misses its own deadline, so after a long wait it shall not retry.
fn pushback(config: &Config, wait: Duration) -> i32 {
    if wait > config.response.grpc_pushback {
        return NEVER;
    }
    i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX).max(1)
}

impl Problem<'_> {
    /// As JSON.
    fn text(&self) -> String {
        // Writing strings and a number into memory cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}
