//! A store that answers with garbage, partially, late or never, through the real Envoy.
//!
//! | case | expected |
//! | --- | --- |
//! | `deny`, every behaviour | 503 in time, the failure is counted by kind, counting resumes |
//! | `allow`, `local` | every request uncounted, or exactly the worker's share |
//! | answers twice | the second answer is ignored: no request is admitted without a grant |
//! | a cluster that Envoy does not know | a store failure, which the log names |
//! | the log | a bounded number of lines for any number of failures, and no token |

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::hostile_store::{Behaviour, HostileStore, Then};
use quotagate_support::http::{Client, Request};
use quotagate_support::upstream::Upstream;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::document;

const TOKEN: &str = "s3cret-of-the-store";
/// So large that no test spends it.
const QUOTA: u64 = 100_000;
/// Long enough that a busy machine reads every answer that is not held back.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// A request may take this much longer than the timeout: a tick of 10 ms, and a slow machine.
const BEYOND: Duration = Duration::from_secs(3);
/// Counting resumes within 2 s of the store's return. The rest allows for a slow machine.
const HEALED: Duration = Duration::from_secs(8);
/// Enough requests to open the breaker, and some more that find it open.
const REQUESTS: usize = 8;

/// Envoy with one worker between a store that may misbehave and an upstream that counts.
struct Rig {
    envoy: Envoy,
    upstream: Upstream,
    store: HostileStore,
}

impl Rig {
    fn start(on_failure: &str) -> Result<Self> {
        Self::start_with("quota_store", on_failure)
    }

    fn start_with(cluster: &str, on_failure: &str) -> Result<Self> {
        let policy = json!({"name": "per-tenant", "partition_by": ["tenant"], "quota": QUOTA, "window": "366d"});
        let mut document = document(json!([policy]));
        document["store"] = json!({
            "cluster": cluster, "timeout": format!("{}ms", TIMEOUT.as_millis()),
            "on_failure": on_failure, "local_share": 0.00003, "token": TOKEN
        });
        let (upstream, store) = (Upstream::start()?, HostileStore::start()?);
        let envoy =
            Envoy::start(&EnvoyOptions::new(upstream.port(), store.port()).document(document))?;
        Ok(Self { envoy, upstream, store })
    }

    /// Sends requests of this tenant one after the other, and returns each status and whether it
    /// was counted. Fails if one takes too long.
    fn send(&self, tenant: &str) -> Result<Vec<(u16, bool)>> {
        let mut client = Client::connect(self.envoy.port())?;
        let mut one = |_| {
            let sent = Instant::now();
            let response = client.send(&Request::get("/").header("x-tenant", tenant))?;
            assert!(sent.elapsed() < TIMEOUT + BEYOND, "{tenant}: held for {:?}", sent.elapsed());
            Ok((response.status, response.header("ratelimit").is_some()))
        };
        (0..REQUESTS).map(&mut one).collect()
    }

    fn calls(&self, outcome: &str) -> Result<u64> {
        let count = if outcome == "items_failed" {
            self.envoy.metric("quotagate_items_failed", &[("domain", "shop")])?
        } else {
            let labels = [("domain", "shop"), ("outcome", outcome)];
            self.envoy.metric("quotagate_calls", &labels)?
        };
        Ok(count.unwrap_or_default())
    }

    /// Lets the store behave again, and waits until the filter calls it.
    fn heal(&self) -> Result<()> {
        self.store.set(Behaviour::Good);
        let mut client = Client::connect(self.envoy.port())?;
        wait::until_true("quotas to resume", HEALED, || {
            let response = client.send(&Request::get("/").header("x-tenant", "healed"))?;
            Ok(response.status == 200 && response.header("ratelimit").is_some())
        })
    }
}

/// Changes this field of the store's first grant, for example to more units than requested.
fn first_grant(field: &'static str, value: Value) -> impl Fn(&mut Value) {
    move |reply| reply["grants"][0][field] = value.clone()
}

fn chunked(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{body}").into_bytes()
}

fn raw(bytes: impl Into<Vec<u8>>, then: Then) -> Behaviour {
    Behaviour::Bytes(bytes.into(), then)
}

fn answer(status: u16, body: impl Into<Vec<u8>>) -> Behaviour {
    Behaviour::Answer(status, body.into())
}

/// Name, behaviour, and the outcome under which the failure is counted.
fn behaviours() -> Vec<(&'static str, Behaviour, &'static str)> {
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"grants\":[{\"granted\":1,";
    let echo = format!("{{\"error\":\"wrong token: {TOKEN}\\n\"}}");
    vec![
        ("silent", raw("", Then::Hold), "timed_out"),
        ("slow", Behaviour::Slow(TIMEOUT * 4), "timed_out"),
        ("closed-at-once", raw("", Then::Close), "unreachable"),
        ("reset-at-once", raw("", Then::Reset), "unreachable"),
        ("garbage", raw("\x01\x02\x03 what?\r\n\r\n", Then::Hold), "unreachable"),
        ("half-closed", raw(half, Then::Close), "cut_off"),
        ("half-reset", raw(half, Then::Reset), "cut_off"),
        ("half-and-silent", raw(half, Then::Hold), "cut_off"),
        ("bad-chunks", raw(chunked("zz\r\n{}\r\n0\r\n\r\n"), Then::Hold), "cut_off"),
        ("html", answer(200, "<html><body>hello</body></html>"), "malformed"),
        ("empty", answer(200, ""), "malformed"),
        ("half-json", answer(200, "{\"grants\":[{\"granted\":1,"), "malformed"),
        ("deep", answer(200, "[".repeat(200_000)), "malformed"),
        // Twice what a worker reads.
        ("huge", answer(200, vec![b' '; 2 * 1024 * 1024]), "malformed"),
        ("no-grants", Behaviour::Altered(|reply| reply["grants"] = json!([])), "malformed"),
        (
            "too-many-grants",
            Behaviour::Altered(|reply| {
                let first = reply["grants"][0].clone();
                reply["grants"].as_array_mut().expect("a list").push(first);
            }),
            "malformed",
        ),
        (
            "larger",
            Behaviour::Altered(|reply| first_grant("granted", json!(1_000))(reply)),
            "malformed",
        ),
        (
            "negative",
            Behaviour::Altered(|reply| first_grant("used", json!(-1))(reply)),
            "malformed",
        ),
        (
            "beyond-u64",
            Behaviour::Altered(|reply| first_grant("quota", json!(1e300))(reply)),
            "malformed",
        ),
        (
            "odd-window",
            Behaviour::Altered(|reply| first_grant("window", json!(u64::MAX))(reply)),
            "items_failed",
        ),
        (
            "failed-items",
            Behaviour::Altered(|reply| reply["grants"][0] = json!({"error": "down"})),
            "items_failed",
        ),
        ("redirect", answer(302, ""), "refused"),
        ("echoes-the-token", answer(401, echo), "refused"),
        ("internal-error", answer(500, "<html>\r\n</html>"), "refused"),
        ("unavailable", answer(503, "{\"error\":\"Redis is down\"}"), "refused"),
    ]
}

#[test]
fn deny_refuses_in_time_whatever_the_store_answers() -> Result<()> {
    let rig = Rig::start("deny")?;
    rig.heal()?;
    let start = Instant::now();
    for (name, behaviour, outcome) in behaviours() {
        let (before, admitted) = (rig.calls(outcome)?, rig.upstream.requests());
        rig.store.set(behaviour);
        assert_eq!(rig.send(name)?, [(503, false); REQUESTS], "{name}");
        assert_eq!(rig.upstream.requests(), admitted, "{name}");
        wait::until_true("the failures to be counted", HEALED, || {
            Ok(rig.calls(outcome)? >= before + 5)
        })
        .with_context(|| {
            format!("{name}: {}", rig.envoy.stats("quotagate_calls").unwrap_or_default())
        })?;
        rig.heal().with_context(|| format!("after {name}"))?;
    }
    assert_eq!(inspect::restarts(&rig.envoy)?, 0);
    assert!(
        rig.upstream.requests() <= rig.store.granted(),
        "more requests admitted than units granted"
    );
    let log = rig.envoy.log();
    let lines =
        log.lines().filter(|line| line.contains("quotagate: ") && line.contains("store")).count();
    // At most eight kinds of failure, each logged once in ten seconds.
    let most = 8 * (1 + start.elapsed().as_secs() as usize / 10);
    assert!((8..=most).contains(&lines), "{lines} lines, at most {most}:\n{log}");
    assert!(!log.contains(TOKEN), "{log}");
    assert!(log.contains("more of this kind"), "{log}");
    Ok(())
}

#[test]
fn allow_and_local_apply_whatever_the_store_answers() -> Result<()> {
    let chosen =
        ["silent", "reset-at-once", "half-closed", "html", "larger", "failed-items", "unavailable"];
    for (on_failure, expected) in
        [("allow", [200; REQUESTS]), ("local", [200, 200, 200, 429, 429, 429, 429, 429])]
    {
        let rig = Rig::start(on_failure)?;
        for (name, behaviour, _) in
            behaviours().into_iter().filter(|(name, ..)| chosen.contains(name))
        {
            rig.store.set(behaviour);
            let got = rig.send(name)?;
            let statuses: Vec<u16> = got.iter().map(|(status, _)| *status).collect();
            assert_eq!(statuses, expected, "{on_failure}, {name}");
            assert!(
                got.iter().all(|(status, counted)| *status == 429 || !counted),
                "{on_failure}, {name}: {got:?}"
            );
            rig.heal().with_context(|| format!("after {name}"))?;
        }
    }
    Ok(())
}

#[test]
fn second_answer_to_one_call_is_ignored() -> Result<()> {
    let rig = Rig::start("deny")?;
    rig.store.set(Behaviour::Twice);
    for _ in 0..10 {
        let got = rig.send("twice")?;
        assert!(got.iter().all(|(status, _)| [200, 503].contains(status)), "{got:?}");
    }
    let admitted = rig.upstream.requests();
    assert!(admitted > 0 && admitted <= rig.store.granted(), "{admitted}, {}", rig.store.granted());
    rig.heal()
}

#[test]
fn unknown_cluster_is_a_store_failure() -> Result<()> {
    let rig = Rig::start_with("no_such_cluster", "deny")?;
    assert_eq!(rig.send("one")?, [(503, false); REQUESTS]);
    wait::until_true("the failures to be counted", HEALED, || {
        Ok(rig.calls("dispatch_failed")? >= 5)
    })?;
    let log = rig.envoy.log();
    assert_eq!(
        log.matches("a call to the store failed: Envoy knows no such cluster").count(),
        1,
        "{log}"
    );
    assert_eq!(rig.upstream.requests(), 0);
    Ok(())
}
