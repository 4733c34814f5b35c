//! An independent parser of Structured Fields (RFC 9651) reads `RateLimit-Policy` and `RateLimit`,
//! for random configurations and standings.

#![cfg(test)]

use std::num::NonZeroU64;
use std::time::Duration;

use quotagate_protocol::{Mode, Window};
use quotagate_quota::config::Config;
use quotagate_quota::decision::{Balance, Decision, Refusal, Standing};
use quotagate_quota::evaluate::Counter;
use quotagate_quota::response::{Now, answer, quota_headers};
use quotagate_quota::time::Monotonic;
use serde_json::{Value, json};
use sfv::{Integer, List, ListEntry, Parser};

const ROUNDS: u64 = 3000;
const MAX_UNITS: u64 = (1 << 53) - 1;
const MAX_INTEGER: u64 = 999_999_999_999_999;
const MAX_WINDOW_S: u64 = 366 * 24 * 60 * 60;

/// SplitMix64: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// 0 to `most`, with every magnitude equally likely.
    fn up_to(&mut self, most: u64) -> u64 {
        let shift = self.below(64);
        match self.below(8) {
            0 => most,
            _ => (self.next() >> shift) % (most + 1),
        }
    }

    /// `[a-z0-9-]+(/[a-z0-9-]+)*`. It ends with the number of the policy, so that no two names are
    /// equal.
    fn name(&mut self, policy: usize) -> String {
        const ALPHABET: &[u8] = b"abcxyz0189---";
        let end = policy.to_string();
        let length = self.below(191 - end.len() as u64);
        let start =
            (0..length).map(|_| char::from(ALPHABET[self.below(ALPHABET.len() as u64) as usize]));
        start.collect::<String>() + "n/" + &end
    }
}

/// What a client should read about a policy.
#[derive(Debug, PartialEq)]
struct Shown {
    name: String,
    quota: u64,
    window: u64,
    remaining: u64,
    /// None if the quota is 0, because units are never granted.
    reset: Option<u64>,
}

/// A configuration, the standings of a request, and what the headers should show.
fn case(random: &mut Random, now: Monotonic) -> (Config, Vec<Standing>, Vec<Shown>) {
    let (mut policies, mut standings, mut shown) = (Vec::new(), Vec::new(), Vec::new());
    for policy in 0..=random.below(5) as usize {
        let name = random.name(policy);
        let (quota, window) = (random.up_to(MAX_UNITS), 1 + random.up_to(MAX_WINDOW_S - 1));
        let mode = if random.below(4) == 0 { "shadow" } else { "enforce" };
        policies.push(json!({"name": name, "partition_by": [], "quota": quota, "window": format!("{window}s"), "mode": mode}));
        if random.below(5) == 0 {
            continue;
        }
        let remaining = random.up_to(quota);
        // A window may have ended when the response is sent.
        let left = Duration::from_millis(random.up_to(window * 1000));
        standings.push(Standing {
            policy,
            counter: Counter { key: "d:p:{*}".into(), quota, window: Window::new(60, 0).unwrap() },
            granted: random.below(2) == 0,
            by_store: false,
            mode: if mode == "enforce" { Mode::Enforce } else { Mode::Shadow },
            cost: NonZeroU64::MIN,
            counts_until: now + left,
            balance: Balance {
                window_s: u32::try_from(window).unwrap_or_default(),
                quota,
                remaining,
                resets: now + left,
            },
        });
        if mode == "enforce" {
            let (quota, remaining) = (quota.min(MAX_INTEGER), remaining.min(MAX_INTEGER));
            let reset = (quota > 0).then(|| left.as_millis().div_ceil(1000) as u64);
            shown.push(Shown { name, quota, window, remaining, reset });
        }
    }
    let document = json!({
        "domain": "d", "store": {"cluster": "s"}, "policies": policies,
        "response": {"headers": ["ietf", "x_ratelimit"]}
    });
    (
        Config::parse(document.to_string().as_bytes()).expect("a good configuration"),
        standings,
        shown,
    )
}

fn header<'a>(headers: &'a [(&str, std::borrow::Cow<'_, str>)], name: &str) -> &'a str {
    headers.iter().find(|(n, _)| *n == name).map_or("", |(_, value)| value)
}

/// The items of a list: the string of each and two integer parameters with these names. The second
/// may be missing.
fn items(field: &str, names: [&str; 2]) -> Vec<(String, u64, Option<u64>)> {
    let list: List =
        Parser::new(field).parse().unwrap_or_else(|error| panic!("{field:?}: {error}"));
    let item = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list in {field}") };
        let name = item.bare_item.as_string().expect("a String").as_str().to_owned();
        let keys: Vec<&str> = item.params.keys().map(|key| key.as_str()).collect();
        assert!(keys == names || keys == names[..1], "{field}");
        let number = |key: &str| {
            let integer: Integer = item.params.get(key)?.as_integer().expect("an Integer");
            Some(u64::try_from(i64::from(integer)).expect("not negative"))
        };
        (name, number(names[0]).expect("the first parameter"), number(names[1]))
    };
    list.into_iter().map(item).collect()
}

#[test]
fn independent_parser_reads_every_answer() {
    let mut random = Random(1);
    for round in 0..ROUNDS {
        let now = Monotonic::new(Duration::from_millis(random.up_to(1 << 40)));
        let time = || Now { monotonic: now, epoch: Duration::from_secs(1_700_000_000) };
        let (config, standings, shown) = case(&mut random, now);
        let headers = if random.below(2) == 0 {
            quota_headers(&config, &standings, time)
        } else {
            let decision = Decision::Refuse(Refusal { standings, until: now });
            let answer = answer(&config, &decision, time).expect("an answer");
            let problem: Value = serde_json::from_str(&answer.body).expect("JSON");
            assert_eq!(problem["status"], 429);
            answer.headers
        };
        let policies = items(header(&headers, "ratelimit-policy"), ["q", "w"]);
        let limits = items(header(&headers, "ratelimit"), ["r", "t"]);
        assert_eq!(policies.len(), limits.len(), "round {round}");
        let read: Vec<Shown> = policies
            .into_iter()
            .zip(limits)
            .map(|((name, quota, window), (again, remaining, reset))| {
                let window = window.expect("a window");
                assert_eq!(name, again, "round {round}");
                Shown { name, quota, window, remaining, reset }
            })
            .collect();
        assert_eq!(read, shown, "round {round}");
    }
}
