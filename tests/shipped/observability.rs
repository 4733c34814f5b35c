//! The files in `envoy/observability/` for Prometheus and Grafana: they are valid, alerts fire when
//! they should, every query names existing metrics, and the address that Compose exposes serves
//! only statistics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use quotagate_protocol::dials::{
    DocumentOverrides, PolicyReport, Refusals, Report, TELEMETRY_PATH,
};
use quotagate_protocol::{Kind, Mode, OnFailure};
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{self, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{edits, paths, ports, tools, wait, yaml};
use serde_json::{Value, json};

/// Metrics of Envoy with `stats_tags.yaml`, of Istio, and of Prometheus itself.
const OF_OTHERS: [&str; 13] = [
    "envoy_listener_manager_lds_update_rejected",
    "istio_agent_wasm_config_conversion_count",
    "pilot_total_xds_rejects",
    "quotagate_requests",
    "quotagate_missing_identity",
    "quotagate_from_ledger",
    "quotagate_calls",
    "quotagate_fetches_failed",
    "quotagate_runtime_stalled_seconds",
    "quotagate_documents_refused",
    // A rule of the user's own.
    "quotagate:refusals_expected",
    "up",
    "ALERTS",
];

/// Metrics that a store has once native modules publish.
const OF_NATIVE_MODULES: [&str; 6] = [
    "quotagate_native_calls_total",
    "quotagate_native_requests_total",
    "quotagate_native_slots",
    "quotagate_native_slots_expired_total",
    "quotagate_native_proxies",
    "quotagate_native_last_seen_seconds",
];

fn directory() -> PathBuf {
    paths::root().join("envoy/observability")
}

fn read(name: &str) -> Result<Value> {
    yaml::read(&directory().join(name))
}

/// Runs Prometheus' own tool on our files.
fn promtool(arguments: &[&str]) -> Result<()> {
    let missing = "there is no promtool on this machine: run `cargo xtask setup`";
    let program = tools::on_path("promtool").context(missing)?;
    let output = Command::new(program).args(arguments).current_dir(directory()).output()?;
    let text = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    anyhow::ensure!(output.status.success(), "{text}");
    Ok(())
}

#[test]
fn prometheus_reads_the_configuration_and_the_rules() -> Result<()> {
    promtool(&["check", "config", "prometheus.yaml"])
}

#[test]
fn alerts_fire_when_they_should_and_only_then() -> Result<()> {
    promtool(&["test", "rules", "alerts_test.yaml"])
}

fn rules() -> Result<Vec<Value>> {
    let alerts = read("alerts.yaml")?;
    alerts["groups"][0]["rules"].as_array().cloned().context("no rules")
}

/// The rules that name an alert; the others record what these compare.
fn alerts() -> Result<Vec<Value>> {
    Ok(rules()?.into_iter().filter(|rule| rule["alert"].is_string()).collect())
}

#[test]
fn every_alert_says_what_to_do_and_is_tested() -> Result<()> {
    let tests = fs::read_to_string(directory().join("alerts_test.yaml"))?;
    let guide = fs::read_to_string(paths::root().join("docs/operate/alerts.md"))?;
    let headings: BTreeSet<String> = guide
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim().replace('`', "").to_lowercase())
        .collect();
    let dashboard = read("grafana.json")?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let shown: BTreeSet<String> = targets(panels).flat_map(metrics).collect();
    let records: BTreeMap<String, BTreeSet<String>> = rules()?
        .iter()
        .filter_map(|rule| Some((rule["record"].as_str()?, metrics(rule["expr"].as_str()?))))
        .map(|(name, of)| (name.to_owned(), of))
        .collect();
    for rule in alerts()? {
        let name = rule["alert"].as_str().context("no name")?;
        let annotations = &rule["annotations"];
        for key in ["summary", "description"] {
            assert!(annotations[key].as_str().is_some_and(|text| text.len() > 20), "{name}: {key}");
        }
        assert!(matches!(rule["labels"]["severity"].as_str(), Some("page" | "ticket")), "{name}");
        let anchor = name.to_lowercase();
        assert_eq!(
            annotations["runbook_url"],
            format!("docs/operate/alerts.md#{anchor}"),
            "{name}"
        );
        assert!(headings.contains(&anchor), "docs/operate/alerts.md has no section {name}");
        assert!(
            tests.contains(&format!("alertname: {name}\n        exp_alerts:")),
            "{name} is not seen to fire"
        );
        let watched = metrics(rule["expr"].as_str().context("no expression")?);
        let watched: BTreeSet<&String> = watched
            .iter()
            .flat_map(|of| records.get(of).into_iter().flatten().chain([of]))
            .collect();
        let elsewhere =
            ["up", "pilot_total_xds_rejects", "istio_agent_wasm_config_conversion_count"];
        let is_shown = |of: &&String| shown.contains(*of) || elsewhere.contains(&of.as_str());
        assert!(watched.iter().any(is_shown), "{name}: no panel shows {watched:?}");
    }
    Ok(())
}

/// The expressions of panels.
fn targets(panels: &[Value]) -> impl Iterator<Item = &str> {
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.filter_map(|target| target["expr"].as_str())
}

#[test]
fn domains_do_not_merge_in_the_dashboard() -> Result<()> {
    let dashboard = read("grafana.json")?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    for panel in panels.iter().filter(|panel| panel["repeat"] != "domain") {
        for expression in targets(std::slice::from_ref(panel)) {
            if expression.contains("$domain") {
                let title = &panel["title"];
                assert!(expression.contains("by (domain"), "{title}: {expression}");
                assert!(!expression.contains("by (policy"), "{title}: {expression}");
            }
        }
    }
    Ok(())
}

/// The names of the metrics in an expression.
fn metrics(expression: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    // Values of labels are not metric names.
    let outside: String = expression.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    let mut found = BTreeSet::new();
    for (braces, part) in outside.split(['{', '}']).enumerate() {
        let names = part.split(|c| !word(c)).filter(|name| braces % 2 == 0 && !name.is_empty());
        let is_metric = |name: &&str| {
            ["up", "ALERTS"].contains(name)
                || ["quotagate", "envoy_", "istio_", "pilot_"].iter().any(|of| name.starts_with(of))
        };
        found.extend(names.filter(is_metric).map(str::to_owned));
    }
    found
}

/// The metrics of a store that served calls, reports and operators, and lost its Redis.
fn of_a_real_store() -> Result<BTreeSet<String>> {
    let mut redis = Redis::start()?;
    let store = StoreProcess::start(&redis.url(), &[])?;
    let patience = std::time::Duration::from_secs(30);
    let ready = || Ok(http::get(store.admin_port(), "/readyz")?.status == 200);
    wait::until_true("the store is ready", patience, ready)?;
    let reservation = json!({"key": "shop:per-caller:{jwt.sub=alice}", "window_s": 60, "quota": 9, "want": 1, "min": 1});
    let slot = json!({"key": "shop:exports:{*}", "kind": "in_flight", "quota": 4, "want": 1, "min": 1,
        "holding": {"worker": "w", "serial": 1, "held": 0}});
    let call = json!({"budget_ms": 2000, "reservations": [reservation, slot]}).to_string();
    let reserve = || -> Result<u16> {
        let request = Request::post("/v1/reserve", call.as_bytes())
            .header("content-type", "application/json");
        Ok(http::Client::connect(store.port())?.send(&request)?.status)
    };
    assert_eq!(reserve()?, 200);
    let policy = PolicyReport {
        name: "per-caller".to_owned(),
        quota: 9,
        kind: Kind::Fixed,
        window_s: 60,
        stagger: false,
        mode: Mode::Enforce,
        on_failure: OnFailure::Allow,
        partition_by: None,
        tiers: false,
        overrides: DocumentOverrides::None,
        settles: false,
        admitted: 5,
        refused: 4,
        shadow_refused: 3,
        marked: 6,
        missing_identity: 2,
        store_error: 1,
        settled_if_missing: 1,
    };
    let refused = vec![Refusals { key: "shop:per-caller:{jwt.sub=bob}".to_owned(), requests: 4 }];
    let (digest, proxy) = ("e3b0c44298fc".to_owned(), "00000000000000aa".to_owned());
    let policies = vec![policy];
    let report = Report { policies, refused, digest, proxy, live: true, ..Report::default() };
    let report = serde_json::to_vec(&report)?;
    let reported = Request::post(&format!("{TELEMETRY_PATH}?domain=shop"), &report);
    assert_eq!(http::Client::connect(store.port())?.send(&reported)?.status, 200);
    let dial = json!({"policy": "*", "mode": "shadow", "by": "ann"});
    let wish = json!({"policy": "per-caller", "partition": "jwt.sub=alice", "allow": "blocked", "by": "ann"});
    for (path, wish) in [("/v1/dials", dial), ("/v1/overrides", wish)] {
        store.operate("PUT", path, &wish)?;
    }
    redis.kill()?;
    wait::until_true("a call fails", patience, || Ok(reserve()? != 200))?;
    let page = http::get(store.admin_port(), "/metrics")?.text();
    check_metrics(&page)?;
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    Ok(samples.filter_map(|line| line.split([' ', '{']).next()).map(str::to_owned).collect())
}

/// Prometheus' own rules of names, types and help.
fn check_metrics(page: &str) -> Result<()> {
    let program =
        tools::on_path("promtool").context("there is no promtool: run `cargo xtask setup`")?;
    let mut command = Command::new(program);
    command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    child.stdin.take().context("no input")?.write_all(page.as_bytes())?;
    let output = child.wait_with_output()?;
    let text = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    anyhow::ensure!(output.status.success() && text.trim().is_empty(), "{text}\n{page}");
    Ok(())
}

#[test]
fn metrics_are_found_in_expressions() {
    let expression = r#"sum by (domain) (rate(quotagate_calls{a="quotagate_x",b=~"u"}[5m])) / up > quotagate_store_y"#;
    let found: Vec<String> = metrics(expression).into_iter().collect();
    assert_eq!(found, ["quotagate_calls", "quotagate_store_y", "up"]);
}

#[test]
fn every_query_names_existing_metrics() -> Result<()> {
    let dashboard = read("grafana.json")?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let variables = dashboard["templating"]["list"].as_array().context("no variables")?;
    let queries: Vec<String> = targets(panels)
        .chain(variables.iter().filter_map(|variable| variable["definition"].as_str()))
        .map(str::to_owned)
        .chain(rules()?.iter().filter_map(|rule| rule["expr"].as_str().map(str::to_owned)))
        .collect();
    assert!(queries.len() > 30, "{}", queries.len());
    let store = of_a_real_store()?;
    let recorded = rules()?;
    let recorded: Vec<&str> = recorded.iter().filter_map(|rule| rule["record"].as_str()).collect();
    let others = [&OF_OTHERS[..], &OF_NATIVE_MODULES[..], &recorded].concat();
    let exists = |name: &String| store.contains(name) || others.contains(&name.as_str());
    for query in &queries {
        let asked = metrics(query);
        assert!(!asked.is_empty(), "{query}");
        let missing: Vec<&String> = asked.iter().filter(|name| !exists(name)).collect();
        assert!(missing.is_empty(), "{query}: {missing:?} not in {store:?}");
    }
    Ok(())
}

/// Checks the queries of the dashboard as Prometheus rules, which use the same language.
#[test]
fn prometheus_accepts_every_query_of_the_dashboard() -> Result<()> {
    let dashboard = read("grafana.json")?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let rules: Vec<Value> = targets(panels)
        .map(|text| {
            text.replace("$__rate_interval", "1m").replace("$domain", ".*").replace("$policy", ".*")
        })
        .enumerate()
        .map(|(i, expr)| json!({"record": format!("query:{i}"), "expr": expr}))
        .collect();
    let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
    fs::write(file.path(), json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string())?;
    promtool(&["check", "rules", &file.path().display().to_string()])
}

#[test]
fn panels_have_unique_ids_and_use_the_selected_data_source() -> Result<()> {
    let dashboard = read("grafana.json")?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        for target in panel["targets"].as_array().context("no targets")? {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        }
    }
    Ok(())
}

/// The answers of the real Envoy to Prometheus, with the mounted configuration.
#[test]
fn envoy_serves_statistics_with_labels_and_nothing_else_of_its_admin_address() -> Result<()> {
    let mounted = yaml::read(&paths::root().join("docker/envoy.yaml"))?;
    let port = ports::free()?;
    let statistics = move |config: &mut Value| -> Result<()> {
        let admin = config["admin"]["address"]["socket_address"]["port_value"].clone();
        for list in ["listeners", "clusters"] {
            let theirs = mounted["static_resources"][list].as_array().context("no list")?;
            let mut entry =
                theirs.iter().find(|entry| entry["name"] == "statistics").context("none")?.clone();
            if list == "listeners" {
                entry["address"] =
                    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
            } else {
                let endpoint =
                    &mut entry["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
                endpoint["address"]["socket_address"]["port_value"] = admin.clone();
            }
            config["static_resources"][list].as_array_mut().context("no list")?.push(entry);
        }
        Ok(())
    };
    let (store, upstream) = (StoreProcess::start("memory:", &[])?, Upstream::start()?);
    let mut options = EnvoyOptions::new(upstream.port(), store.port());
    options.admin_port = ports::free()?;
    let envoy =
        Envoy::start(&options.edit(edits::snippet("stats_tags.yaml")?).edit(Box::new(statistics)))?;
    assert_eq!(http::Client::connect(envoy.port())?.send(&Request::get("/"))?.status, 200);
    wait::until_true("the statistics", std::time::Duration::from_secs(10), || {
        let answer = http::get(port, "/stats/prometheus?usedonly=")?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        Ok(text.contains("\nquotagate_requests{") && text.contains("\nquotagate_calls{"))
    })?;
    for path in
        ["/", "/quitquitquit", "/config_dump", "/stats", "/stats/prometheus/../../config_dump"]
    {
        assert_eq!(http::get(port, path)?.status, 404, "{path}");
    }
    Ok(())
}
