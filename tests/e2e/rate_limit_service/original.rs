//! Beside envoyproxy/ratelimit itself: the same rules, the same requests, and the same answers,
//! apart from the [differences](DIFFERENCES) that were decided.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, SystemTime};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use quotagate_support::http::{Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::upstream::Upstream;
use serde_json::{Map, Value, json};

use super::filters::{RULES, envoy_of_streams, open_stream};
use crate::hostile::Random;

/// The variable that names the program.
const PROGRAM: &str = "QUOTAGATE_ORIGINAL";
/// How many sets of rules there are in each mode, and requests to each of them.
const DOMAINS: usize = 200;
const REQUESTS: usize = 12;
/// What a run takes at most: no window may end meanwhile.
const RUN: Duration = Duration::from_secs(180);
/// A call at the end of a stream has been carried out by then.
const SOON: Duration = Duration::from_millis(500);
/// The slots that a killed proxy held of a policy with `in_flight` would be free by then.
const EXPIRED: Duration = Duration::from_secs(11);
const HOUR: Duration = Duration::from_secs(3600);

/// A difference that was decided.
struct Difference {
    what: &'static str,
    excuses: fn(&Exchange, &Mismatch) -> bool,
}

/// All of them, each with its reason. The reference page of the service has the same list for
/// users. A run fails if one of them does not show.
const DIFFERENCES: &[Difference] = &[
    Difference {
        what: "a refused request takes nothing of any counter; the original raises all of them",
        excuses: |exchange, mismatch| exchange.any(mismatch, |asked| asked.is_tainted),
    },
    Difference {
        what: "a look does not see the refused hits of plain requests",
        excuses: |exchange, mismatch| {
            exchange.any(mismatch, |asked| asked.hits == 0 && asked.is_refused)
        },
    },
    Difference {
        what: "a counter that a request names twice takes the sum, or nothing",
        excuses: |exchange, mismatch| exchange.any(mismatch, |asked| asked.is_repeated),
    },
    Difference {
        what: "a refusal that needs no call to Redis does not say what other counters have left",
        excuses: |exchange, mismatch| {
            let refused = exchange.ours.body["overallCode"] == "OVER_LIMIT";
            let statuses = &exchange.ours.body["statuses"];
            let passes = |at: usize| statuses[at]["code"] == "OK";
            mismatch.what == "limitRemaining" && refused && mismatch.descriptor.is_some_and(passes)
        },
    },
    Difference {
        what: "a limit in a request counts where the rule of its entries counts, shared or not",
        excuses: |exchange, mismatch| exchange.any(mismatch, |asked| asked.has_own_limit),
    },
    Difference {
        what: "weeks begin on Monday, months and years are those of the calendar",
        excuses: |exchange, mismatch| {
            mismatch.what == "reset" && exchange.any(mismatch, |asked| asked.is_calendar)
        },
    },
    Difference {
        what: "key and value are compared each; the original joins them by `_`",
        excuses: |exchange, mismatch| exchange.any(mismatch, |asked| asked.path.contains('_')),
    },
    Difference {
        what: "metadata stays beside the names of metrics",
        excuses: |exchange, mismatch| {
            let rules = exchange.rules.to_string();
            mismatch.what == "metadata"
                && ["value_to_metric", "detailed_metric"].iter().any(|name| rules.contains(name))
        },
    },
];

/// A request, and what both answered.
struct Exchange<'r> {
    rules: &'r Value,
    request: Value,
    asked: Vec<Asked>,
    ours: Answered,
    theirs: Answered,
}

/// What a request asks of one descriptor.
struct Asked {
    /// Its keys.
    path: String,
    hits: u64,
    /// The descriptor gives its hits, so that they count as in the original.
    is_given: bool,
    /// An earlier request that was refused left other counts.
    is_tainted: bool,
    /// Hits that no descriptor gave were refused before.
    is_refused: bool,
    /// The request brings the limit, so that the next one may be another.
    has_own_limit: bool,
    /// Another descriptor of the request may have the same counter.
    is_repeated: bool,
    is_calendar: bool,
}

struct Answered {
    status: u16,
    body: Value,
}

/// Where two answers differ: in the whole, or in a descriptor.
#[derive(Debug)]
struct Mismatch {
    what: &'static str,
    descriptor: Option<usize>,
}

impl Exchange<'_> {
    /// Whether this holds for the descriptor of a mismatch, or for one of all.
    fn any(&self, mismatch: &Mismatch, holds: impl Fn(&Asked) -> bool) -> bool {
        let mut asked = self.asked.iter().enumerate();
        asked.any(|(at, asked)| mismatch.descriptor.is_none_or(|of| of == at) && holds(asked))
    }

    fn mismatches(&self) -> Vec<Mismatch> {
        let mut found = Vec::new();
        let (ours, theirs) = (&self.ours.body, &self.theirs.body);
        let mut compare = |what, descriptor, is_same: bool| {
            if !is_same {
                found.push(Mismatch { what, descriptor });
            }
        };
        compare("status", None, self.ours.status == self.theirs.status);
        compare("overall code", None, ours["overallCode"] == theirs["overallCode"]);
        // Go's library prints limits with one space or two, at its whim.
        let metadata = |of: &Value| of["dynamicMetadata"].to_string().replace("  unit", " unit");
        compare("metadata", None, metadata(ours) == metadata(theirs));
        let headers = |of: &Value| -> Vec<(Value, Value)> {
            let headers = of["responseHeadersToAdd"].as_array().into_iter().flatten();
            headers.map(|header| (header["key"].clone(), header["value"].clone())).collect()
        };
        let (our_headers, their_headers) = (headers(ours), headers(theirs));
        compare("headers", None, our_headers.len() == their_headers.len());
        for (ours, theirs) in our_headers.iter().zip(&their_headers) {
            compare("headers", None, ours.0 == theirs.0);
            if ours.0 == "RateLimit-Reset" {
                compare("reset", None, is_near(&ours.1, &theirs.1));
            } else {
                compare("headers", None, ours.1 == theirs.1);
            }
        }
        for at in 0..self.asked.len() {
            let (ours, theirs) = (&ours["statuses"][at], &theirs["statuses"][at]);
            for what in ["code", "currentLimit", "limitRemaining"] {
                compare(what, Some(at), ours[what] == theirs[what]);
            }
            let (ours, theirs) = (&ours["durationUntilReset"], &theirs["durationUntilReset"]);
            compare("reset", Some(at), is_near(ours, theirs));
        }
        found
    }
}

/// Whether two numbers of seconds may be those of the same moment.
fn is_near(one: &Value, other: &Value) -> bool {
    let seconds = |of: &Value| -> Option<i64> { of.as_str()?.trim_end_matches('s').parse().ok() };
    match (seconds(one), seconds(other)) {
        (Some(one), Some(other)) => (one - other).abs() <= 2,
        (one, other) => one == other,
    }
}

/// One level of rules.
fn level(random: &mut Random, depth: usize) -> Value {
    let mut known = BTreeSet::new();
    let mut level = Vec::new();
    for _ in 0..1 + random.below(3) {
        let key = random.one_of(&["a", "a", "b", "c"]);
        let value = random.one_of(&["", "", "x", "y", "x*", "*z", "x*z"]);
        if !known.insert((key, value)) {
            continue;
        }
        let mut rule = Map::new();
        rule.insert("key".to_owned(), key.into());
        if !value.is_empty() {
            rule.insert("value".to_owned(), value.into());
        }
        if random.below(4) > 0 {
            rule.insert("rate_limit".to_owned(), limit(random));
        }
        for (flag, of) in [
            ("shadow_mode", 8),
            ("quota_mode", 6),
            ("detailed_metric", 10),
            ("value_to_metric", 10),
            ("share_threshold", if value.contains('*') { 2 } else { usize::MAX }),
        ] {
            if random.below(of) == 0 {
                rule.insert(flag.to_owned(), true.into());
            }
        }
        if random.below(4) == 0 {
            let who = random.one_of(&["m", "n"]);
            rule.insert("metadata".to_owned(), json!({"who": {who: key}, "value": value}));
        }
        if depth < 3 && random.below(3) == 0 {
            rule.insert("descriptors".to_owned(), self::level(random, depth + 1));
        }
        level.push(Value::Object(rule));
    }
    Value::Array(level)
}

fn limit(random: &mut Random) -> Value {
    if random.below(12) == 0 {
        return json!({"unlimited": true});
    }
    let unit = random.one_of(&["hour", "day", "week", "month", "year"]);
    let mut limit = json!({"unit": unit, "requests_per_unit": random.below(5)});
    let (name, other) = (random.below(3), random.below(3));
    if random.below(3) == 0 {
        limit["name"] = format!("n{name}").into();
    }
    if random.below(5) == 0 && name != other {
        limit["replaces"] = json!([{"name": format!("n{other}")}]);
    }
    limit
}

fn request(random: &mut Random, domain: &str) -> Value {
    let mut descriptors = Vec::new();
    for _ in 0..if random.below(40) == 0 { 0 } else { 1 + random.below(3) } {
        let mut entries = Vec::new();
        for _ in 0..1 + random.below(5) / 3 + random.below(6) / 5 {
            let key = random.one_of(&["a", "a", "a", "b", "b", "c", "d", "a_x"]);
            let value = random.one_of(&["x", "y", "xz", "q", "xyz", "", "z"]);
            entries.push(json!({"key": key, "value": value}));
        }
        let mut descriptor = json!({"entries": entries});
        if random.below(6) == 0 {
            descriptor["hitsAddend"] = random.below(4).to_string().into();
        }
        if random.below(12) == 0 {
            let unit = random.one_of(&["HOUR", "DAY"]);
            descriptor["limit"] = json!({"requestsPerUnit": random.below(4), "unit": unit});
        }
        descriptors.push(descriptor);
    }
    let domain = if random.below(40) == 0 { random.one_of(&["", "unknown"]) } else { domain };
    let mut request = json!({"domain": domain, "descriptors": descriptors});
    if random.below(8) == 0 {
        request["hitsAddend"] = (1 + random.below(3)).into();
    }
    request
}

/// The paths whose counters may differ.
#[derive(Default)]
struct Tainted {
    paths: BTreeSet<String>,
    /// Paths that have refused hits that no descriptor gave.
    refused: BTreeSet<String>,
}

fn asked(request: &Value, tainted: &Tainted) -> Vec<Asked> {
    let descriptors = request["descriptors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let path = |descriptor: &Value| -> String {
        let entries = descriptor["entries"].as_array().into_iter().flatten();
        entries.filter_map(|entry| entry["key"].as_str()).collect::<Vec<_>>().join("/")
    };
    let paths: Vec<String> = descriptors.iter().map(path).collect();
    let of_request = request["hitsAddend"].as_u64().unwrap_or(1);
    let asked = |(descriptor, path): (&Value, &String)| Asked {
        path: path.clone(),
        hits: descriptor["hitsAddend"]
            .as_str()
            .and_then(|hits| hits.parse().ok())
            .unwrap_or(of_request),
        is_given: descriptor["hitsAddend"].is_string(),
        is_tainted: tainted.paths.contains(path),
        is_refused: tainted.refused.contains(path),
        has_own_limit: descriptor["limit"].is_object(),
        is_repeated: paths.iter().filter(|other| *other == path).count() > 1,
        is_calendar: false,
    };
    descriptors.iter().zip(&paths).map(asked).collect()
}

/// The paths whose counters may differ from now on.
fn taint(exchange: &Exchange<'_>, tainted: &mut Tainted) {
    let refused = [&exchange.ours, &exchange.theirs].iter().any(|answer| answer.status == 429);
    for (at, asked) in exchange.asked.iter().enumerate() {
        let status = &exchange.theirs.body["statuses"][at];
        let is_over = status["code"] == "OVER_LIMIT";
        let is_used_up = status["limitRemaining"].is_null();
        let is_same = (!refused || is_over)
            && !(is_over && asked.has_own_limit)
            && (asked.hits <= 1 || !is_used_up);
        if !(is_same || asked.is_given) || asked.is_repeated {
            tainted.paths.insert(asked.path.clone());
        }
        if is_used_up && !asked.is_given {
            tainted.refused.insert(asked.path.clone());
        }
    }
}

/// Both services.
struct Pair {
    ours: Client,
    theirs: Client,
}

impl Pair {
    fn ask(&mut self, request: &Value) -> Result<[Answered; 2]> {
        let text = request.to_string();
        let post =
            Request::post("/json", text.as_bytes()).header("content-type", "application/json");
        let answer = |client: &mut Client| -> Result<Answered> {
            let answer = client.send(&post).with_context(|| text.clone())?;
            // Errors are texts.
            let body = if answer.status == 400 { Value::Null } else { answer.json()? };
            Ok(Answered { status: answer.status, body })
        };
        Ok([answer(&mut self.ours)?, answer(&mut self.theirs)?])
    }
}

#[test]
#[ignore = "`cargo xtask versions --original PATH` runs it"]
fn generated_requests_are_answered_as_the_original_answers_them() -> Result<()> {
    let program = env::var_os(PROGRAM).map(PathBuf::from);
    let program = program.with_context(|| format!("{PROGRAM} names no program"))?;
    let seed = env::var("QUOTAGATE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut random = Random(seed);
    let mut seen = vec![0_usize; DIFFERENCES.len()];
    let mut failures: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let (mut requests, mut same) = (0, 0);
    for mode in ["", "QUOTA_MODE", "SHADOW_MODE"] {
        wait_for_room_in_the_hour()?;
        let rules = tempfile::tempdir()?;
        let mut domains = Vec::new();
        for number in 0..DOMAINS {
            let (name, descriptors) = (format!("d{number}"), level(&mut random, 1));
            let domain = json!({"domain": name, "descriptors": descriptors});
            fs::write(rules.path().join(format!("{name}.yaml")), domain.to_string())?;
            domains.push(domain);
        }
        let mut variables =
            vec![("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("RESPONSE_DYNAMIC_METADATA", "true")];
        variables.extend((!mode.is_empty()).then_some((mode, "true")));
        let (our_redis, their_redis) = (Redis::start()?, Redis::start()?);
        let options = StoreOptions::rate_limits(&our_redis.url(), rules.path());
        let options =
            variables.iter().fold(options, |options, (name, value)| options.env(name, value));
        let options = options.arguments(&["--timeout", "20s"]);
        let ours = StoreProcess::start_with(&options)?;
        let theirs =
            StoreProcess::start_original(&program, their_redis.port(), rules.path(), &variables)?;
        super::wait_for_rules(&ours)?;
        let mut pair = Pair {
            ours: Client::connect(ours.http_port()?)?,
            theirs: Client::connect(theirs.http_port()?)?,
        };
        for domain in &domains {
            let mut tainted = Tainted::default();
            for _ in 0..REQUESTS {
                let request = request(&mut random, domain["domain"].as_str().unwrap_or_default());
                let [ours, theirs] = pair.ask(&request)?;
                let mut asked = asked(&request, &tainted);
                for (at, asked) in asked.iter_mut().enumerate() {
                    let unit = theirs.body["statuses"][at]["currentLimit"]["unit"].as_str();
                    asked.is_calendar = matches!(unit, Some("WEEK" | "MONTH" | "YEAR"));
                }
                let exchange = Exchange { rules: domain, request, asked, ours, theirs };
                requests += 1;
                let mismatches = exchange.mismatches();
                same += usize::from(mismatches.is_empty());
                for mismatch in mismatches {
                    let excuse =
                        |difference: &Difference| (difference.excuses)(&exchange, &mismatch);
                    match DIFFERENCES.iter().position(excuse) {
                        Some(number) => seen[number] += 1,
                        None => failures.entry(mismatch.what).or_default().push(format!(
                            "{mode} {mismatch:?}\n  rules: {}\n  request: {}\n  ours: {} {}\n  theirs: {} {}",
                            exchange.rules,
                            exchange.request,
                            exchange.ours.status,
                            exchange.ours.body,
                            exchange.theirs.status,
                            exchange.theirs.body,
                        )),
                    }
                }
                taint(&exchange, &mut tainted);
            }
        }
    }
    println!("seed {seed}: {requests} requests, {same} answers are the same in everything");
    for (difference, seen) in DIFFERENCES.iter().zip(&seen) {
        println!("{seen:6} times: {}", difference.what);
    }
    let shown: Vec<String> = failures.values().flat_map(|of| of.iter().take(2)).cloned().collect();
    let count: usize = failures.values().map(Vec::len).sum();
    ensure!(failures.is_empty(), "{count} mismatches, such as\n{}", shown.join("\n"));
    ensure!(seen.iter().all(|seen| *seen > 0), "a difference does not show");
    Ok(())
}

/// How many of six streams, one after the other, a rule for two admits.
fn admitted_one_by_one(service: &StoreProcess, upstream: &Upstream) -> Result<usize> {
    let envoy = envoy_of_streams(upstream, service)?;
    let mut admitted = 0;
    for _ in 0..6 {
        admitted += usize::from(open_stream(&envoy)?.0 == 101);
        sleep(SOON);
    }
    Ok(admitted)
}

/// The same once a proxy with two open streams was killed.
fn admitted_after_a_kill(service: &StoreProcess, upstream: &Upstream) -> Result<usize> {
    let mut envoy = envoy_of_streams(upstream, service)?;
    let open = [open_stream(&envoy)?, open_stream(&envoy)?];
    assert_eq!(open.each_ref().map(|(status, _)| *status), [101, 101]);
    envoy.kill()?;
    sleep(EXPIRED);
    admitted_one_by_one(service, upstream)
}

#[test]
#[ignore = "`cargo xtask versions --original PATH` runs it"]
fn original_adds_negative_hits_and_nobody_gets_those_of_a_killed_proxy() -> Result<()> {
    let program = env::var_os(PROGRAM).map(PathBuf::from);
    let program = program.with_context(|| format!("{PROGRAM} names no program"))?;
    let (rules, upstream) = (super::rules(RULES)?, Upstream::start()?);
    let runs = |is_ours: bool, act: fn(&StoreProcess, &Upstream) -> Result<usize>| {
        let redis = Redis::start()?;
        let service = if is_ours {
            let service = super::service(&redis, &rules, "20s")?;
            super::wait_for_rules(&service)?;
            service
        } else {
            StoreProcess::start_original(&program, redis.port(), rules.path(), &[])?
        };
        act(&service, &upstream)
    };
    assert_eq!(runs(true, admitted_one_by_one)?, 6, "streams that end free their units");
    assert_eq!(runs(false, admitted_one_by_one)?, 1, "the end of a stream takes a second unit");
    assert_eq!(runs(true, admitted_after_a_kill)?, 0);
    assert_eq!(runs(false, admitted_after_a_kill)?, 0);
    Ok(())
}

fn wait_for_room_in_the_hour() -> Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let left = HOUR - Duration::from_secs(now.as_secs() % HOUR.as_secs());
    if left < RUN {
        sleep(left);
    }
    Ok(())
}
