//! What operators see: access logs in the shipped format, statistics, and Prometheus labels.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use quotagate_support::access_log::AccessLog;
use quotagate_support::envoy::Form;
use quotagate_support::http::Request;
use quotagate_support::{edits, wait};
use serde_json::{Value, json};

use crate::rig::{Rig, document, one_each, per_caller};

const LIMIT: Duration = Duration::from_secs(10);

/// One policy for each decision, each with its own path.
fn every_decision() -> Value {
    let mut trial = one_each("trial", &["caller"]);
    trial["mode"] = json!("shadow");
    let failing = |name: &str, on_failure: &str| {
        let mut policy = one_each(name, &["caller"]);
        policy["on_failure"] = json!(on_failure);
        policy
    };
    let policies = [
        one_each("enforced", &["caller"]),
        trial,
        one_each("per-key", &["key"]),
        failing("lenient", "allow"),
        failing("strict", "deny"),
    ];
    let mut document = document(json!(policies));
    // Contains dots, which also separate the parts of a statistic's name.
    document["domain"] = json!("shop.example.org");
    document["access_log"] = json!(["decision", "policy", "partition", "used"]);
    document
}

/// Sends one request for each decision. Nothing counts during the last two.
fn play(rig: &mut Rig) -> Result<()> {
    let get = |name: &str| Request::get(&format!("/{name}?key=s3cret"));
    // A shadow policy never delays a request: its count is logged only if the store answers before
    // the upstream.
    let trial = || get("trial").header("x-answer-delay-ms", "1000");
    let requests = [
        get("uncounted"),
        get("enforced"),
        get("enforced"),
        trial(),
        trial(),
        get("per-key"),
        get("per-key").header("x-api-key", "s3cret"),
    ];
    assert_eq!(rig.statuses(&requests)?, [200, 200, 429, 200, 200, 401, 200]);
    rig.kill_counting()?;
    assert_eq!(rig.statuses(&[get("lenient"), get("strict")])?, [200, 503]);
    Ok(())
}

/// The quota fields of an entry, without absent ones.
fn said(entry: &Value) -> String {
    let fields = ["quota_decision", "quota_policy", "quota_partition", "quota_used"];
    let there: Vec<&str> = fields.iter().filter_map(|field| entry[field].as_str()).collect();
    there.join(" ")
}

#[test]
fn access_log_has_the_decision_on_each_request() -> Result<()> {
    let log = AccessLog::shipped()?;
    let mut rig = Rig::start_with(every_decision(), |options| options.edit(log.edit()))?;
    play(&mut rig)?;
    let entries = log.entries(9)?;
    let by_path = |name: &str| -> Vec<(String, String)> {
        // The query string may contain secrets, so it is not logged.
        let path = format!("/{name}");
        let of = entries.iter().filter(|entry| entry["path"] == *path);
        of.map(|entry| (entry["details"].as_str().unwrap_or_default().to_owned(), said(entry)))
            .collect()
    };
    let passed = |said: &str| ("via_upstream".to_owned(), said.to_owned());
    let answered = |details: &str, said: &str| (details.to_owned(), said.to_owned());
    assert_eq!(by_path("uncounted"), [passed("")]);
    assert_eq!(
        by_path("enforced"),
        [
            passed("admitted enforced ip=127.0.0.1 1"),
            answered("request_rate_limited", "refused enforced ip=127.0.0.1 1")
        ]
    );
    assert_eq!(
        by_path("trial"),
        [passed("admitted trial ip=127.0.0.1 1"), passed("shadow_refused trial ip=127.0.0.1 1")]
    );
    let keys = by_path("per-key");
    assert_eq!(keys[0], answered("quotagate_missing_identity", "missing_identity per-key"));
    assert!(keys[1].1.starts_with("admitted per-key header.x-api-key=~"), "{keys:?}");
    assert_eq!(by_path("lenient"), [passed("store_error lenient ip=127.0.0.1")]);
    assert_eq!(
        by_path("strict"),
        [answered("quotagate_store_unavailable", "unavailable strict ip=127.0.0.1")]
    );
    assert!(!json!(entries).to_string().contains("s3cret"));
    Ok(())
}

#[test]
fn access_log_has_only_the_configured_fields() -> Result<()> {
    for (fields, admitted, refused) in
        [(Some(json!(["decision", "used"])), "admitted 1", "refused 1"), (None, "", "")]
    {
        let log = AccessLog::shipped()?;
        let mut document = document(json!([per_caller(1)]));
        if let Some(fields) = fields {
            document["access_log"] = fields;
        }
        let rig = Rig::start_with(document, |options| options.edit(log.edit()))?;
        assert_eq!(rig.statuses(&[Request::get("/"), Request::get("/")])?, [200, 429]);
        let entries: Vec<String> = log.entries(2)?.iter().map(said).collect();
        assert_eq!(entries, [admitted, refused]);
    }
    Ok(())
}

#[test]
fn shadow_only_traffic_is_logged_although_the_upstream_answers_before_the_store() -> Result<()> {
    const REQUESTS: usize = 40;
    let log = AccessLog::shipped()?;
    let mut rig = Rig::start_with(every_decision(), |options| options.edit(log.edit()))?;
    // Counting is frozen, so no request gets its answer.
    rig.freeze()?;
    assert_eq!(rig.statuses(&vec![Request::get("/trial"); REQUESTS])?, [200; REQUESTS]);
    rig.thaw()?;
    let entries = log.entries(REQUESTS)?;
    let without: Vec<&Value> =
        entries.iter().filter(|entry| said(entry) != "admitted trial ip=127.0.0.1").collect();
    assert!(
        without.is_empty(),
        "{} of {REQUESTS} lines differ: {:?}",
        without.len(),
        without.first()
    );
    Ok(())
}

#[test]
fn refusal_has_the_detail_of_envoys_rate_limit_filter_and_no_response_flag() -> Result<()> {
    let log = AccessLog::new(json!({
        "status": "%RESPONSE_CODE%", "details": "%RESPONSE_CODE_DETAILS%", "flags": "%RESPONSE_FLAGS%"
    }))?;
    let rig =
        Rig::start_with(document(json!([per_caller(0)])), |options| options.edit(log.edit()))?;
    let refused = rig.client()?.send(&Request::get("/"))?;
    assert_eq!(
        (refused.header("x-envoy-ratelimited"), refused.header("retry-after")),
        (Some("true"), None)
    );
    assert!(refused.text().contains("The quota of per-caller is 0"), "{}", refused.text());
    let expected = json!({"status": 429, "details": "request_rate_limited", "flags": "-"});
    assert_eq!(log.entries(1)?, [expected]);
    Ok(())
}

#[test]
fn statistics_count_every_outcome_and_prometheus_has_labels() -> Result<()> {
    let tags = edits::snippet("stats_tags.yaml")?;
    let mut rig = Rig::start_with(every_decision(), |options| options.edit(tags))?;
    play(&mut rig)?;
    let expected = [
        ("enforced", "admitted", 1),
        ("enforced", "refused", 1),
        ("trial", "admitted", 1),
        ("trial", "shadow_refused", 1),
        ("per-key", "admitted", 1),
        ("lenient", "store_error", 1),
        ("strict", "store_error", 1),
    ];
    const DOMAIN: (&str, &str) = ("domain", "shop.example.org");
    let sample = |policy: &str, outcome: &str| -> Result<Option<u64>> {
        let labels = [DOMAIN, ("policy", policy), ("outcome", outcome)];
        rig.envoy.labelled("quotagate_requests", &labels)
    };
    for (policy, outcome, count) in expected {
        wait::until_true(&format!("{policy} {outcome} {count}"), LIMIT, || {
            let found = sample(policy, outcome)?;
            anyhow::ensure!(found.is_none_or(|found| found <= count), "{found:?}");
            Ok(found == Some(count))
        })?;
    }
    assert_eq!(sample("enforced", "store_error")?.unwrap_or(0), 0);
    // These overlap with outcomes, so they have a separate metric.
    for (name, policy) in
        [("quotagate_from_ledger", "enforced"), ("quotagate_missing_identity", "per-key")]
    {
        wait::until_true(name, LIMIT, || {
            Ok(rig.envoy.labelled(name, &[DOMAIN, ("policy", policy)])? == Some(1))
        })?;
    }
    assert_eq!(sample("per-key", "missing_identity")?, None);
    // Without Redis the store's library refuses calls, as a store does.
    let failed = if Form::of_run()? == Form::Native { "refused" } else { "unreachable" };
    for outcome in ["ok", failed] {
        wait::until_true(&format!("calls: {outcome}"), LIMIT, || {
            let labels = [DOMAIN, ("outcome", outcome)];
            Ok(rig.envoy.labelled("quotagate_calls", &labels)?.is_some_and(|calls| calls >= 1))
        })?;
    }
    Ok(())
}

#[test]
fn counters_keep_their_names_without_the_tags() -> Result<()> {
    if !Form::Wasm.is_under_test("statistics without labels")? {
        return Ok(());
    }
    let rig = Rig::start(document(json!([one_each("one", &["caller"])])))?;
    rig.statuses(&[Request::get("/one"), Request::get("/one"), Request::get("/one")])?;
    wait::until_true("the counters", LIMIT, || {
        let stats = rig.envoy.stats("wasmcustom.quotagate_requests")?;
        let counters: BTreeMap<&str, &str> =
            stats.lines().filter_map(|line| line.split_once(": ")).collect();
        let counter = |outcome: &str| {
            counters
                .get(format!("wasmcustom.quotagate_requests.shop.one.{outcome}").as_str())
                .copied()
        };
        Ok(counter("admitted") == Some("1") && counter("refused") == Some("2"))
    })
}
