//! What Prometheus reads.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use serde_json::{Value, json};

use crate::common::{take, until};
use crate::http::{host, read, send};
use crate::served::{REPORT, memory};

#[tokio::test]
async fn metrics_name_policies_but_no_partitions() {
    let server = memory().await;
    server.dials("test", Some(REPORT)).await;
    let wish = json!({"policy": "p", "quota": 8, "by": "ann"});
    server.admin(Method::PUT, "/v1/dials", Some(wish)).await;
    let wish =
        json!({"policy": "p", "partition": "jwt.sub=somebody", "allow": "blocked", "by": "ann"});
    server.admin(Method::PUT, "/v1/overrides", Some(wish)).await;
    let short =
        |n: u64| quotagate_protocol::Reservation { window_s: 1, ..take("somebody-else", 4, n) };
    let call =
        json!({"budget_ms": 5000, "reservations": [take("jwt.sub=somebody", 5, 1), short(3)]})
            .to_string();
    let request =
        Request::post("/v1/reserve").header("host", "store").body(Full::new(call.into())).unwrap();
    assert_eq!(read(send(&server.calls, request).await).await.0, 200);
    let text = until("the window of one second has ended", Duration::from_secs(20), async || {
        let (_, text) = server.get("/metrics").await;
        let text = text.as_str().unwrap().to_owned();
        text.contains("window_fullness_count{domain=\"test\",policy=\"p\"} 1").then_some(text)
    })
    .await;
    for line in [
        "quotagate_store_requests_total{domain=\"test\",policy=\"p\",outcome=\"admitted\"} 3",
        "quotagate_store_dials{domain=\"test\"} 1",
        "quotagate_store_overrides{domain=\"test\"} 1",
        "quotagate_store_window_fullness_bucket{le=\"0.75\",domain=\"test\",policy=\"p\"} 1",
        "quotagate_store_window_fullness_bucket{le=\"0.5\",domain=\"test\",policy=\"p\"} 0",
        "quotagate_store_partitions_watched 1",
        "quotagate_store_partitions_unwatched_total 0",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("somebody"), "{text}");
}

#[tokio::test]
async fn documents_in_force_are_counted_by_proxies() {
    let server = memory().await;
    for (proxy, digest) in [(1, "0123456789ab"), (2, "0123456789ab"), (3, "ba9876543210")] {
        let report = json!({"proxy": format!("{proxy:016x}"), "digest": digest, "policies": []});
        server.dials("test", Some(report.to_string().as_bytes())).await;
    }
    let (_, text) = server.get("/metrics").await;
    let text = text.as_str().unwrap();
    for line in [
        "quotagate_document{domain=\"test\",digest=\"0123456789ab\",number=\"0\"} 2",
        "quotagate_document{domain=\"test\",digest=\"ba9876543210\",number=\"0\"} 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn refused_documents_of_filters_are_counted() {
    let server = memory().await;
    let wrong = json!({"fault": "policies: is required", "faults": 1, "keeps_last_good": false});
    for wrong in [json!({"policies": [], "wrong_document": wrong}), json!({"policies": []})] {
        server.dials("test", Some(wrong.to_string().as_bytes())).await;
    }
    let (_, text) = server.get("/metrics").await;
    let text = text.as_str().unwrap();
    assert!(text.contains("\nquotagate_documents_refused_total 1\n"), "{text}");
}

#[tokio::test]
async fn debt_is_shown_for_policies_that_settle_costs() {
    let server = memory().await;
    let policies = ["p", "q"].map(|name| {
        json!({"name": name, "quota": 5, "window_s": 31_622_400, "stagger": false,
            "mode": "enforce", "on_failure": "allow", "partition_by": [], "settles": name == "p"})
    });
    let report = json!({"policies": policies});
    server.dials("test", Some(report.to_string().as_bytes())).await;
    let call = async |call: Value| {
        let request = Request::post("/v1/reserve").header("host", "store");
        let request = request.body(Full::new(call.to_string().into())).unwrap();
        read(send(&server.calls, request).await).await.1["grants"].clone()
    };
    for policy in ["p", "q"] {
        let ask = quotagate_protocol::Reservation {
            key: format!("test:{policy}:{{*}}").into(),
            ..take("*", 5, 4)
        };
        let reserve = json!({"budget_ms": 5000, "reservations": [ask]});
        let window = call(reserve.clone()).await[0]["window"].clone();
        let charge =
            json!({"key": ask.key, "window_s": ask.window_s, "window": window, "units": 9});
        call(json!({"budget_ms": 5000, "charges": [charge], "reservations": []})).await;
        assert_eq!(call(reserve).await[0]["used"], 13);
    }
    let (_, usage) = server.get("/v1/usage?partition=*").await;
    let (_, top) = server.get("/v1/top").await;
    for found in [&usage["found"], &top["fullest"]] {
        let debts: Vec<_> = found.as_array().unwrap().iter().map(|of| &of["debt"]).collect();
        assert_eq!(debts, [&json!(8), &Value::Null], "{found}");
    }
    let text = until("debt is counted", Duration::from_secs(20), async || {
        let (_, text) = server.get("/metrics").await;
        let text = text.as_str().unwrap().to_owned();
        text.contains("quotagate_store_units_in_debt{domain=\"test\",policy=\"p\"} 8")
            .then_some(text)
    })
    .await;
    for line in [
        "quotagate_store_partitions_in_debt{domain=\"test\",policy=\"p\"} 1",
        "quotagate_store_partitions_in_debt{domain=\"test\",policy=\"q\"} 0",
        "quotagate_store_units_charged_total{domain=\"test\",policy=\"q\"} 9",
        "quotagate_store_charges_total 2",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn slots_that_are_held_waited_for_and_expired_are_counted() {
    let server = memory().await;
    let say = async |policy: &str, worker: &str, want: u64, waiting: u64| {
        let holding = json!({"worker": worker, "serial": 1, "held": 0, "waiting": waiting});
        let ask = json!({"key": format!("test:{policy}:{{*}}"), "kind": "in_flight", "quota": 4,
            "want": want, "min": 1, "holding": holding});
        let call = json!({"budget_ms": 5000, "reservations": [ask]}).to_string();
        let request = Request::post("/v1/reserve").header("host", "store");
        let request = request.body(Full::new(call.into())).unwrap();
        assert_eq!(read(send(&server.calls, request).await).await.0, 200);
    };
    let sees = async |what: &str, lines: &[&str]| {
        until(what, Duration::from_secs(20), async || {
            let (_, text) = server.get("/metrics").await;
            let text = text.as_str().unwrap();
            lines.iter().all(|line| text.contains(&format!("{line}\n"))).then_some(())
        })
        .await;
    };
    let held = |policy: &str, slots: u64| {
        format!("quotagate_slots{{domain=\"test\",policy=\"{policy}\",state=\"held\"}} {slots}")
    };
    let expired = |slots: u64| {
        format!("quotagate_slots_expired_total{{domain=\"test\",policy=\"p\"}} {slots}")
    };
    say("p", "dies", 3, 3).await;
    say("q", "lives", 2, 2).await;
    sees("slots are held", &[&held("p", 3), &held("q", 2), &expired(0)]).await;
    let (_, top) = server.get("/v1/top?policy=p").await;
    let slots = &top["slots"][0];
    let seen = ["policy", "held", "limit", "waiting"].map(|name| &slots[name]);
    assert_eq!(seen, [&json!("p"), &json!(3), &json!(4), &json!(0)], "{top}");
    let waiting = "quotagate_slots{domain=\"test\",policy=\"p\",state=\"waiting\"}";
    let mut waited = false;
    for n in 0..40 {
        say("p", &format!("w{n}"), 1, 9).await;
        let (_, text) = server.get("/metrics").await;
        let text = text.as_str().unwrap();
        waited |= text.contains(waiting) && !text.contains(&format!("{waiting} 0\n"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(waited, "the gauge is set once a second");
    sees("nobody waits any more", &[&format!("{waiting} 0")]).await;
    // Requests that wait are not refused, and a worker that says what it holds asks for nothing.
    say("p", "holds", 0, 0).await;
    let policy = "domain=\"test\",policy=\"p\"";
    let lines = ["granted", "refused", "no_spare"].map(|outcome| {
        let count = if outcome == "granted" { 2 } else { 0 };
        format!("quotagate_store_reservations_total{{{policy},outcome=\"{outcome}\"}} {count}")
    });
    let units = format!("quotagate_store_units_refused_total{{{policy}}} 0");
    sees("nothing is refused", &[&lines[0], &lines[1], &lines[2], &units]).await;
    say("p", "refused", 2, 0).await;
    sees("two are", &[&format!("quotagate_store_units_refused_total{{{policy}}} 2")]).await;
    until("the slots have expired", Duration::from_secs(20), async || {
        say("p", "asks", 1, 1).await;
        let (_, text) = server.get("/metrics").await;
        text.as_str().unwrap().contains(&expired(4)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn metrics_use_the_requested_format_and_every_family_has_help_and_type() {
    let server = memory().await;
    server.dials("test", Some(REPORT)).await;
    let scrape = async |accept: &str| {
        let request =
            Request::get("/metrics").header("host", host(&server.admin)).header("accept", accept);
        let response = send(&server.admin, request.body(Full::default()).unwrap()).await;
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (kind, String::from_utf8(body.to_vec()).unwrap())
    };
    let (kind, open) = scrape("application/openmetrics-text;version=1.0.0,text/plain;q=0.5").await;
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(
        open.contains("# TYPE quotagate_store_refunds counter\n") && open.ends_with("# EOF\n"),
        "{open}"
    );
    let (kind, plain) = scrape("*/*").await;
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(plain.contains("# TYPE quotagate_store_refunds_total counter\n"), "{plain}");
    assert!(!plain.contains("# EOF"), "{plain}");
    let version =
        format!("quotagate_store_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    for sample in [
        &version,
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
        "process_open_fds ",
    ] {
        assert!(plain.contains(&format!("\n{sample}")), "{sample}: {plain}");
    }
    for sample in plain.lines().filter(|line| !line.starts_with('#')) {
        let name = sample.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        for mark in ["HELP", "TYPE"] {
            let described = |of: &str| plain.contains(&format!("# {mark} {of} "));
            assert!(described(name) || described(family), "{name} has no {mark}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_scrapes_see_every_gauge() {
    let server = std::sync::Arc::new(memory().await);
    server.dials("test", Some(REPORT)).await;
    let scrapers = (0..4).map(|_| {
        let server = std::sync::Arc::clone(&server);
        tokio::spawn(async move {
            for _ in 0..100 {
                let (_, text) = server.get("/metrics").await;
                let text = text.as_str().unwrap();
                assert!(text.contains("quotagate_store_dials{domain=\"test\"} 0"), "{text}");
                assert!(text.contains("quotagate_store_overrides{domain=\"test\"} 0"), "{text}");
            }
        })
    });
    for scraper in scrapers.collect::<Vec<_>>() {
        scraper.await.unwrap();
    }
}
