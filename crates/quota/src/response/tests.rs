//! Answers and headers, byte by byte.

use std::num::NonZeroU64;
use std::time::Duration;

use quotagate_protocol::{Mode, Window};

use super::*;
use crate::config::Config;
use crate::decision::{Admission, Balance, Decision, Refusal, Standing, Uncounted};
use crate::evaluate::Counter;

const NOW: Now = Now {
    monotonic: Monotonic::new(Duration::from_millis(1_500)),
    epoch: Duration::from_secs(1_000_000),
};

/// Both of the families that new clients and most libraries read.
const BOTH: &str = r#"{"headers":["ietf","x_ratelimit"]}"#;

/// Indices of the policies.
const PER_CALLER: usize = 0;
const DAILY: usize = 1;
const SHADOW: usize = 2;

fn config(response: &str) -> Config {
    let text = format!(
        r#"{{"domain":"shop","store":{{"cluster":"s"}},"response":{response},"policies":[
            {{"name":"per-caller","partition_by":[],"quota":100,"window":"1m"}},
            {{"name":"daily","partition_by":[],"quota":9,"window":"1d"}},
            {{"name":"trial","partition_by":[],"quota":1,"window":"1h","mode":"shadow"}}]}}"#
    );
    Config::parse(text.as_bytes()).unwrap()
}

fn at(ms: u64) -> Monotonic {
    Monotonic::new(Duration::from_millis(ms))
}

fn standing(policy: usize, quota: u64, remaining: u64, resets: Monotonic) -> Standing {
    let granted = remaining > 0;
    let window = Window::new(60, 0).unwrap();
    let counter = Counter { key: "shop:p:{*}".into(), quota, window };
    let mode = if policy == SHADOW { Mode::Shadow } else { Mode::Enforce };
    let window_s = if policy == DAILY { 86_400 } else { 60 };
    let balance = Balance { quota, remaining, resets, window_s };
    let cost = NonZeroU64::MIN;
    let (by_store, counts_until) = (false, resets);
    Standing { policy, counter, granted, by_store, mode, cost, counts_until, balance }
}

fn standings() -> Vec<Standing> {
    vec![
        standing(PER_CALLER, 100, 57, at(42_637)),
        standing(DAILY, 9, 2, at(2_500)),
        standing(SHADOW, 1, 0, at(9_000)),
    ]
}

/// The daily quota refuses until 2.501 s, which is 1.001 s from now.
fn refused(response: &str) -> (u16, String, String) {
    let mut standings = standings();
    standings[DAILY].granted = false;
    let decision = Decision::Refuse(Refusal { standings, until: at(2_501) });
    let config = config(response);
    let answer = answer(&config, &decision, || NOW).unwrap();
    assert_eq!((answer.grpc_status, answer.details), (8, "request_rate_limited"));
    (answer.status, text(&answer.headers), answer.body.into_owned())
}

fn text(headers: &[Header<'_>]) -> String {
    headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}

fn shown(response: &str, standings: &[Standing]) -> String {
    text(&quota_headers(&config(response), standings, || NOW))
}

#[test]
fn both_families_name_every_enforced_policy_and_the_tightest() {
    assert_eq!(
        shown(BOTH, &standings()),
        "ratelimit-policy: \"per-caller\";q=100;w=60, \"daily\";q=9;w=86400\n\
         ratelimit: \"per-caller\";r=57;t=42, \"daily\";r=2;t=1\n\
         x-ratelimit-limit: 9\nx-ratelimit-used: 7\nx-ratelimit-remaining: 2\nx-ratelimit-reset: 1000001\n"
    );
}

#[test]
fn older_drafts_show_the_tightest_policy() {
    assert_eq!(
        shown(r#"{"headers":["draft_07","draft_03"]}"#, &standings()),
        "ratelimit: limit=9, remaining=2, reset=1\n\
         ratelimit-limit: 9\nratelimit-remaining: 2\nratelimit-reset: 1\n"
    );
}

/// What is written for a response, line by line.
fn response_headers_of(
    config: &Config,
    standings: &[Standing],
    upstream: &Inner,
) -> Vec<(HeaderWrite, String)> {
    let mut written = Vec::new();
    let headers = response_headers(config, standings, upstream, || NOW).unwrap();
    headers.write(&mut String::new(), |how, name, value| {
        written.push((how, format!("{name}: {value}\n")))
    });
    written
}

/// An upstream that limits as well.
struct Inner(u16, &'static [(&'static str, &'static str)]);

impl Upstream for Inner {
    fn status(&self) -> Option<u16> {
        Some(self.0)
    }

    fn header(&self, name: &str) -> Vec<Vec<u8>> {
        let named = self.1.iter().filter(|(known, _)| *known == name);
        named.map(|(_, value)| value.as_bytes().to_vec()).collect()
    }
}

#[test]
fn upstream_items_come_first_and_its_tighter_limit_stays() {
    let joined = |remaining: &'static str| {
        let fields: &'static [_] = Box::leak(Box::new([
            ("ratelimit-policy", "\"inner\";q=1;w=60"),
            ("ratelimit", "\"inner\";r=0;t=9"),
            ("x-ratelimit-remaining", remaining),
        ]));
        let written = response_headers_of(&config(BOTH), &standings()[..1], &Inner(200, fields));
        let replaced = |(how, _): &(HeaderWrite, String)| *how == HeaderWrite::Replace;
        assert!(written.iter().all(replaced), "{written:?}");
        written.into_iter().map(|(_, header)| header).collect::<String>()
    };
    let lists = "ratelimit-policy: \"inner\";q=1;w=60, \"per-caller\";q=100;w=60\n\
                 ratelimit: \"inner\";r=0;t=9, \"per-caller\";r=57;t=42\n";
    assert_eq!(joined("0"), lists);
    assert!(
        joined("58").starts_with(&format!("{lists}x-ratelimit-limit: 100\n")),
        "{}",
        joined("58")
    );
}

#[test]
fn an_upstream_that_does_not_limit_changes_nothing() {
    let config = config("{}");
    let alone = response_headers_of(&config, &standings(), &Inner(429, &[]));
    assert!(alone.iter().all(|(how, _)| *how == HeaderWrite::Add), "{alone:?}");
    let alone: String = alone.into_iter().map(|(_, header)| header).collect();
    assert_eq!(alone, shown("{}", &standings()));
}

/// A quota of 0 refuses.
fn blocked(response: &str) -> (String, String, Option<i32>) {
    let mut standing = standing(PER_CALLER, 0, 0, at(27_000));
    standing.granted = false;
    let decision = Decision::Refuse(Refusal { standings: vec![standing], until: at(27_000) });
    let config = config(response);
    let answer = answer(&config, &decision, || NOW).unwrap();
    (text(&answer.headers), answer.body.into_owned(), answer.pushback)
}

#[test]
fn a_client_with_a_quota_of_0_gets_no_retry_after() {
    let (headers, body, pushback) = blocked(r#"{"headers":["ietf"]}"#);
    assert_eq!(
        headers,
        "ratelimit-policy: \"per-caller\";q=0;w=60\nratelimit: \"per-caller\";r=0\n\
         x-envoy-ratelimited: true\ncontent-type: application/problem+json\n"
    );
    assert!(
        body.contains(r#""detail":"The quota of per-caller is 0: no request is let through.""#),
        "{body}"
    );
    assert_eq!(pushback, Some(-1));
}

/// What a request of this cost is told that a concurrency limit refuses. `limit` is that of the
/// document, and `in_force` that of an override.
fn refusal_by_limit(
    cost: u64,
    (limit, in_force): (u64, u64),
    until: Monotonic,
) -> (String, String, Option<i32>) {
    let mut standing = standing(PER_CALLER, in_force, 0, at(0));
    standing.granted = false;
    standing.cost = NonZeroU64::new(cost).unwrap();
    (standing.counter.quota, standing.counter.window) = (limit, Window::InFlight);
    let decision = Decision::Refuse(Refusal { standings: vec![standing], until });
    let config = config(r#"{"headers":[]}"#);
    let answer = answer(&config, &decision, || NOW).unwrap();
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    (text(&answer.headers), body["detail"].as_str().unwrap().to_owned(), answer.pushback)
}

#[test]
fn refusal_by_a_concurrency_limit_says_whether_coming_back_can_help() {
    let no_room = "Too few slots of per-caller are free for this request now.";
    let too_large = "The limit of per-caller on running requests is 4, and this request costs 5.";
    let blocked = "The quota of per-caller is 0: no request is let through.";
    let waited = at(2_500);
    for (cost, limits, until, retry_after, detail, pushback) in [
        (1, (4, 4), NOW.monotonic, "", no_room, None),
        (3, (4, 4), NOW.monotonic, "", no_room, None),
        (3, (4, 4), waited, "retry-after: 1\n", no_room, Some(1000)),
        (5, (4, 4), NOW.monotonic, "", too_large, Some(-1)),
        (5, (4, 4), waited, "", too_large, Some(-1)),
        // An override admits it.
        (5, (4, 8), NOW.monotonic, "", no_room, None),
        // An override lowers the limit.
        (5, (8, 4), NOW.monotonic, "", too_large, Some(-1)),
        (5, (0, 0), NOW.monotonic, "", blocked, Some(-1)),
        (5, (4, 0), waited, "", blocked, Some(-1)),
    ] {
        let (headers, said, pushed_back) = refusal_by_limit(cost, limits, until);
        assert!(headers.starts_with(&format!("{retry_after}x-envoy-ratelimited")), "{headers}");
        assert_eq!((&*said, pushed_back), (detail, pushback), "{cost} of {limits:?}");
    }
}

#[test]
fn grpc_clients_get_a_retry_delay_that_they_can_read() {
    for (response, until, expected) in [
        ("{}", 2_501, 1_001),
        ("{}", 1_500, 1),
        ("{}", 6_500, 5_000),
        ("{}", 6_501, -1),
        ("{}", u64::MAX / 1_000_000, -1),
        (r#"{"grpc_pushback":"1m"}"#, 61_500, 60_000),
        (r#"{"grpc_pushback":"1m"}"#, 61_501, -1),
        (r#"{"grpc_pushback":"1ms"}"#, 1_501, 1),
        (r#"{"grpc_pushback":"1ms"}"#, 1_502, -1),
    ] {
        let mut standing = standing(DAILY, 9, 0, at(until));
        standing.granted = false;
        let decision = Decision::Refuse(Refusal { standings: vec![standing], until: at(until) });
        let config = config(response);
        let pushback = answer(&config, &decision, || NOW).unwrap().pushback;
        assert_eq!(pushback, Some(expected), "{response} {until}");
    }
}

#[test]
fn a_reset_is_in_epoch_seconds_or_from_now() {
    for (reset, expected) in
        [("epoch", "x-ratelimit-reset: 1000001\n"), ("delta", "x-ratelimit-reset: 1\n")]
    {
        let response = format!(r#"{{"headers":["x_ratelimit"],"reset":"{reset}"}}"#);
        let headers = shown(&response, &standings());
        assert!(headers.ends_with(expected), "{reset}: {headers}");
    }
}

#[test]
fn the_tightest_has_the_fewest_left_and_then_resets_last() {
    let cases: [(&[(u64, u64)], usize); 5] = [
        (&[(5, 10), (4, 10), (6, 10)], 1),
        (&[(4, 10), (4, 30), (4, 20)], 1),
        (&[(4, 30), (4, 30)], 0),
        (&[(0, 10), (4, 30)], 0),
        (&[(3, 7)], 0),
    ];
    for (known, expected) in cases {
        let standings: Vec<_> = known
            .iter()
            .enumerate()
            .map(|(policy, &(remaining, resets))| standing(policy, 9, remaining, at(resets)))
            .collect();
        assert_eq!(tightest(standings.iter()).unwrap().policy, expected, "{known:?}");
    }
    assert_eq!(tightest([].iter()), None);
}

#[test]
fn numbers_are_capped_for_structured_fields() {
    let plenty = standing(PER_CALLER, 9_007_199_254_740_991, 1_000_000_000_000_000, at(0));
    let headers = shown(r#"{"headers":["ietf"]}"#, &[plenty]);
    assert!(
        headers.contains(";q=999999999999999;w=60") && headers.contains(";r=999999999999999;"),
        "{headers}"
    );
}

#[test]
fn without_anything_to_show_no_header_is_sent_and_no_clock_is_read() {
    let no_time = || -> Now { unreachable!() };
    let ietf = config(r#"{"headers":["ietf"]}"#);
    let headers = quota_headers(&ietf, &standings(), || NOW);
    assert!(headers.iter().all(|(name, _)| name.starts_with("ratelimit")) && headers.len() == 2);
    assert!(quota_headers(&config(r#"{"headers":[]}"#), &standings(), no_time).is_empty());
    assert!(quota_headers(&ietf, &[], no_time).is_empty());
    assert!(quota_headers(&ietf, &standings()[SHADOW..], no_time).is_empty());
}

#[test]
fn a_request_that_is_let_through_is_not_answered() {
    let decision = Decision::Admit(Admission { standings: standings(), ..Admission::default() });
    assert_eq!(answer(&config("{}"), &decision, || unreachable!()), None);
}

#[test]
fn a_refusal_says_which_policy_and_until_when() {
    let (status, headers, body) = refused(r#"{"headers":[]}"#);
    assert_eq!(status, 429);
    assert_eq!(
        headers,
        "retry-after: 2\nx-envoy-ratelimited: true\ncontent-type: application/problem+json\n"
    );
    assert_eq!(
        body,
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"detail":"The quota of daily is used up; more is granted in 2 s.","violated-policies":["daily"]}"#
    );
}

#[test]
fn a_refusal_carries_the_headers_of_counted_responses() {
    let (_, headers, _) = refused("{}");
    assert!(headers.starts_with(&shown("{}", &standings())), "{headers}");
}

#[test]
fn a_refusal_never_invites_an_immediate_retry() {
    let mut standing = standing(DAILY, 9, 0, at(1_500));
    standing.granted = false;
    let decision = Decision::Refuse(Refusal { standings: vec![standing], until: at(1_500) });
    let answer =
        answer(&config(r#"{"headers":[]}"#), &decision, || NOW).map(|answer| text(&answer.headers));
    assert!(answer.unwrap().starts_with("retry-after: 1\n"));
}

#[test]
fn a_refusal_can_be_customized() {
    let cases = [
        // Only the status: the body says it as well.
        (r#"{"status":503}"#, 503, "content-type: application/problem+json\n", r#""status":503,"#),
        (
            r#"{"content_type":"application/json"}"#,
            429,
            "content-type: application/json\n",
            r#""status":429,"#,
        ),
        (
            r#"{"body":"{\"no\":\"{policy}\",\"in\":{retry_after},\"of\":{quota}}"}"#,
            429,
            "content-type: application/json\n",
            r#"{"no":"daily","in":2,"of":9}"#,
        ),
        (
            r#"{"body":"{wait} {policy}, {retry_after} s","content_type":"text/html","status":420}"#,
            420,
            "content-type: text/html\n",
            "{wait} daily, 2 s",
        ),
        (r#"{"body":"Enough."}"#, 429, "content-type: text/plain; charset=utf-8\n", "Enough."),
        (r#"{"body":""}"#, 429, "", ""),
        (
            r#"{"body":"","headers":{"X-Why":"{policy}/{quota}","link":"</wait>"}}"#,
            429,
            "x-why: daily/9\nlink: </wait>\n",
            "",
        ),
    ];
    for (denied, status, headers, body) in cases {
        let answer = refused(&format!(r#"{{"headers":[],"denied":{denied}}}"#));
        assert_eq!(
            (answer.0, &*answer.1),
            (status, &*format!("retry-after: 2\nx-envoy-ratelimited: true\n{headers}")),
            "{denied}"
        );
        assert!(
            answer.2.contains(body) && (answer.2.len() == body.len() || body.contains("status")),
            "{denied}"
        );
    }
}

#[test]
fn all_refusing_policies_are_named_with_the_quota_of_the_first() {
    let mut standings = standings();
    for standing in &mut standings {
        standing.granted = false;
    }
    let decision = Decision::Refuse(Refusal { standings, until: at(42_637) });
    let config =
        config(r#"{"headers":[],"denied":{"body":"[\"{policy}\",{quota},{retry_after}]"}}"#);
    assert_eq!(answer(&config, &decision, || NOW).unwrap().body, r#"["per-caller, daily",100,42]"#);
}

#[test]
fn a_failed_store_is_never_a_429() {
    let decision = Decision::Unavailable(Uncounted { policy: 0, key: "shop:p:{*}".into() });
    let config = config(r#"{"denied":{"status":420}}"#);
    let answer = answer(&config, &decision, || NOW).unwrap();
    assert_eq!(
        (answer.status, answer.grpc_status, answer.details),
        (503, 14, "quotagate_store_unavailable")
    );
    assert_eq!(text(&answer.headers), "retry-after: 1\ncontent-type: application/problem+json\n");
    assert!(answer.body.contains(r#""status":503"#));
    assert_eq!(answer.pushback, Some(1000));
    let hasty = self::config(r#"{"grpc_pushback":"999ms"}"#);
    assert_eq!(unavailable(&hasty).pushback, Some(-1));
}

#[test]
fn a_missing_identity_is_a_401_with_a_challenge() {
    let config = config(r#"{"denied":{"status":420}}"#);
    let answer = missing_identity(&config, PER_CALLER);
    assert_eq!(
        (answer.status, answer.grpc_status, answer.details),
        (401, 16, "quotagate_missing_identity")
    );
    assert_eq!(
        text(&answer.headers),
        "www-authenticate: Bearer realm=\"shop\"\ncontent-type: application/problem+json\n"
    );
    assert!(serde_json::from_str::<serde_json::Value>(&answer.body).unwrap()["detail"].is_string());
}
