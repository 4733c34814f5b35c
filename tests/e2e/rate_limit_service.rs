//! Envoy's own rate limit filter with `quotagate ratelimit` behind it.
//!
//! No filter of ours is in these Envoys, so the cases run with one form only.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{Envoy, Form, LOG_LEVELS};
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::upstream::Upstream;
use quotagate_support::{process, wait};
use serde_json::{Value, json};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);
/// How often a service asks again about a counter that it knows to be full.
const RECHECK: Duration = Duration::from_secs(1);

const RULES: &str = "
domain: shop
descriptors:
  - {key: all, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 20, name: per-user}}
";

/// A folder with one rule file.
fn rules(text: &str) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("rules.yaml"), text)?;
    Ok(folder)
}

/// A service in which a request waits for Redis as long as `timeout`.
fn service(redis: &Redis, rules: &TempDir, timeout: &str) -> Result<StoreProcess> {
    let options = StoreOptions::rate_limits(&redis.url(), rules.path());
    let options = options.arguments(&["--timeout", timeout]);
    StoreProcess::start_with(&options.env("LIMIT_RESPONSE_HEADERS_ENABLED", "true"))
}

/// The configuration of an Envoy that limits with the service on this port: every request by
/// `all`, and those with the header `x-user` by `user`, too. `deny`: what happens to requests that
/// the service does not answer.
fn config(upstream: &Upstream, service: &StoreProcess, deny: bool) -> Value {
    let address =
        |port: u16| json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let cluster = |name: &str, port: u16| {
        json!({
            "name": name, "connect_timeout": "5s",
            "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [
                {"endpoint": {"address": address(port)}}
            ]}]},
        })
    };
    let mut limits = cluster("limits", service.port());
    limits["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        },
    });
    let filter = json!({
        "name": "envoy.filters.http.ratelimit",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
            "domain": "shop", "timeout": "30s", "failure_mode_deny": deny,
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "limits"}},
            },
        },
    });
    let actions = json!([
        {"actions": [{"generic_key": {"descriptor_key": "all", "descriptor_value": "1"}}]},
        {"actions": [{"request_headers": {"header_name": "x-user", "descriptor_key": "user"}}]},
    ]);
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "route_config": {"virtual_hosts": [{
            "name": "all", "domains": ["*"],
            "routes": [{
                "match": {"prefix": "/"},
                "route": {"cluster": "upstream", "rate_limits": actions},
            }],
        }]},
        "http_filters": [filter, {
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
        }],
    });
    json!({
        "admin": {"address": address(0)},
        "static_resources": {
            "listeners": [{
                "name": "ingress", "address": address(0),
                "filter_chains": [{"filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": manager,
                }]}],
            }],
            "clusters": [cluster("upstream", upstream.port()), limits],
        },
    })
}

fn send(envoy: &Envoy, user: Option<&str>) -> Result<Response> {
    let request = Request::get("/");
    let request = match user {
        Some(user) => request.header("x-user", user),
        None => request,
    };
    Client::connect(envoy.port())?.send(&request)
}

/// Whether this run is the one that runs the cases.
fn runs() -> Result<bool> {
    Form::Native.is_under_test("the rate limit service, which needs no filter of ours")
}

#[test]
fn two_services_and_two_envoys_admit_exactly_the_limit_and_burn_nothing() -> Result<()> {
    const REQUESTS: usize = 600;
    if !runs()? {
        return Ok(());
    }
    process::raise_file_limit()?;
    let (redis, upstream, rules) = (Redis::start()?, Upstream::start()?, rules(RULES)?);
    // No load reaches the timeout.
    let start = || service(&redis, &rules, "20s");
    let services = [start()?, start()?];
    let start = |service| Envoy::start_config(&config(&upstream, service, true), 2, LOG_LEVELS);
    let envoys = [start(&services[0])?, start(&services[1])?];
    for envoy in &envoys {
        wait::until_true("the service to answer", LIMIT, || {
            Ok(Client::connect(envoy.port())?
                .send(&Request::get("/").header("x-user", "warm"))?
                .status
                != 500)
        })?;
    }
    let used = upstream.requests();
    let mut clients =
        (0..REQUESTS).map(|i| Client::connect(envoys[i % 2].port())).collect::<Result<Vec<_>>>()?;
    for client in &mut clients {
        client.start(&Request::get("/").header("x-user", "alice"))?;
    }
    let mut statuses = Vec::new();
    for client in &mut clients {
        statuses.push(client.finish()?.status);
    }
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    let refused = statuses.iter().filter(|status| **status == 429).count();
    assert_eq!((admitted, refused), (20, REQUESTS - 20));
    // The refused requests took nothing of the larger limit. What a call reserved for them returns
    // within a tick, and a service that saw the counter full meanwhile asks again within a second.
    let left = 100 - used - 20;
    let mut passed = 0;
    let mut send_both = || -> Result<u64> {
        for envoy in &envoys {
            passed += u64::from(send(envoy, None)?.status == 200);
        }
        Ok(passed)
    };
    wait::until_true("the rest of the larger limit to pass", LIMIT, || Ok(send_both()? >= left))?;
    thread::sleep(2 * RECHECK);
    assert_eq!(send_both()?, left);
    Ok(())
}

#[test]
fn rules_that_change_take_effect_and_wrong_ones_do_not() -> Result<()> {
    if !runs()? {
        return Ok(());
    }
    let (redis, upstream, rules) = (Redis::start()?, Upstream::start()?, rules(RULES)?);
    let service = service(&redis, &rules, "20s")?;
    let envoy = Envoy::start_config(&config(&upstream, &service, true), 1, LOG_LEVELS)?;
    let limit = || -> Result<Option<String>> {
        Ok(send(&envoy, Some("bob"))?.header("ratelimit-limit").map(str::to_owned))
    };
    wait::until_true("the first rules", LIMIT, || Ok(limit()?.as_deref() == Some("20")))?;
    let file = rules.path().join("rules.yaml");
    std::fs::write(&file, RULES.replace("20", "30"))?;
    wait::until_true("the second rules", LIMIT, || Ok(limit()?.as_deref() == Some("30")))?;
    std::fs::write(&file, RULES.replace("year", "windw"))?;
    wait::until_true("the faults in the log", LIMIT, || {
        Ok(service
            .log()
            .contains("rules.yaml:5: descriptors[1].rate_limit.unit: \"windw\" is no unit"))
    })?;
    assert_eq!(limit()?.as_deref(), Some("30"));
    Ok(())
}

#[test]
fn without_redis_envoy_decides_and_the_counters_go_on_later() -> Result<()> {
    if !runs()? {
        return Ok(());
    }
    let (mut redis, upstream, rules) = (Redis::start()?, Upstream::start()?, rules(RULES)?);
    let service = service(&redis, &rules, "100ms")?;
    let start = |deny| Envoy::start_config(&config(&upstream, &service, deny), 1, LOG_LEVELS);
    let (strict, lenient) = (start(true)?, start(false)?);
    wait::until_true("the service to answer", LIMIT, || {
        Ok(send(&strict, Some("carol"))?.status == 200)
    })?;
    redis.kill()?;
    wait::until_true("requests to be refused", LIMIT, || Ok(send(&strict, None)?.status == 500))?;
    assert_eq!(send(&lenient, None)?.status, 200);
    redis.restart()?;
    wait::until_true("requests to be counted", LIMIT, || {
        let response = send(&strict, Some("carol"))?;
        Ok(response.status == 200 && response.header("ratelimit-limit") == Some("20"))
    })
}
