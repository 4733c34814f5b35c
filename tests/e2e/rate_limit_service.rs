//! Envoy's own rate limit filter with `quotagate ratelimit` behind it.
//!
//! No filter of ours is in these Envoys, so the cases run with one form only.

mod filters;
mod original;

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{Envoy, Form, LOG_LEVELS};
use quotagate_support::http::{self, Client, Request, Response};
use quotagate_support::process::Process;
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::tls::{Authority, Holder};
use quotagate_support::upstream::Upstream;
use quotagate_support::xds::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, XdsServer};
use quotagate_support::{paths, ports, process, wait};
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

/// Waits until a service answers by its rules.
fn wait_for_rules(service: &StoreProcess) -> Result<()> {
    wait::until_true("the rules", LIMIT, || Ok(service.log().contains("in force")))
}

/// The configuration of an Envoy that limits with the service on this port: every request by
/// `all`, and those with the header `x-user` by `user`, too. `deny`: what happens to requests that
/// the service does not answer.
fn config(upstream: &Upstream, service: &StoreProcess, deny: bool) -> Value {
    config_of(upstream, service.port(), deny)
}

fn config_of(upstream: &Upstream, service: u16, deny: bool) -> Value {
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
    let mut limits = cluster("limits", service);
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
    const REQUESTS: usize = 1500;
    const RULES: &str = "
domain: shop
descriptors:
  - {key: all, rate_limit: {unit: year, requests_per_unit: 500}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 100, name: per-user}}
";
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
    assert_eq!((admitted, refused), (100, REQUESTS - 100));
    // The refused requests took nothing of the larger limit. What a call reserved for them returns
    // within a tick, and a service that saw the counter full meanwhile asks again within a second.
    let left = 500 - used - 100;
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

/// A folder as Envoy Gateway mounts it at `/certs`: a certificate for `service`, and its authority.
fn certificates(authority: &Authority, folder: &Path) -> Result<()> {
    let own = authority.issue(&Holder::names(&["service.example"]))?;
    own.write(&folder.join("tls.crt"), &folder.join("tls.key"))?;
    std::fs::copy(authority.file(), folder.join("ca.crt"))?;
    Ok(())
}

/// A server such as Envoy Gateway, on this port. Clients need a certificate of the same authority.
fn gateway(authority: &Authority, port: u16) -> Result<XdsServer> {
    let own = authority.issue(&Holder::names(&["localhost"]))?;
    XdsServer::start(port, Some(authority.server(&own)?))
}

/// Rules for the domain `shop`: so many a year for each user.
fn per_user(limit: u32, unit: i32) -> RateLimitConfig {
    let limit = RateLimitPolicy { unit, requests_per_unit: limit, ..RateLimitPolicy::default() };
    let user = RateLimitDescriptor {
        key: "user".to_owned(),
        rate_limit: Some(limit),
        ..RateLimitDescriptor::default()
    };
    let (name, domain) = ("envoy-gateway/eg/http".to_owned(), "shop".to_owned());
    RateLimitConfig { name, domain, descriptors: vec![user] }
}

/// Makes Envoy call the service over TLS, with the certificate in this folder.
fn over_tls(mut config: Value, folder: &Path) -> Value {
    let file = |name: &str| json!({"filename": folder.join(name)});
    config["static_resources"]["clusters"][1]["transport_socket"] = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": "service.example",
            "common_tls_context": {
                "tls_certificates": [
                    {"certificate_chain": file("tls.crt"), "private_key": file("tls.key")}
                ],
                "validation_context": {
                    "trusted_ca": file("ca.crt"),
                    "match_typed_subject_alt_names": [
                        {"san_type": "DNS", "matcher": {"exact": "service.example"}}
                    ],
                },
            },
        },
    });
    config
}

/// A service with the variables that Envoy Gateway's Deployment sets, and its ports.
struct GatewayService {
    process: Process,
    grpc: u16,
    http: u16,
    metrics: u16,
    _log: TempDir,
}

impl GatewayService {
    fn start(redis: &Redis, certs: &Path, xds: u16, further: &[(&str, &str)]) -> Result<Self> {
        let [grpc, http, debug, metrics] =
            [ports::free()?, ports::free()?, ports::free()?, ports::free()?];
        let file = |name: &str| certs.join(name).display().to_string();
        let mut command = Command::new(paths::command());
        command.arg("ratelimit");
        for (name, value) in [
            ("RUNTIME_ROOT", "/data".to_owned()),
            ("RUNTIME_SUBDIRECTORY", "ratelimit".to_owned()),
            ("RUNTIME_IGNOREDOTFILES", "true".to_owned()),
            ("RUNTIME_WATCH_ROOT", "false".to_owned()),
            ("LOG_LEVEL", "info".to_owned()),
            ("USE_STATSD", "false".to_owned()),
            ("CONFIG_TYPE", "GRPC_XDS_SOTW".to_owned()),
            ("CONFIG_GRPC_XDS_SERVER_URL", format!("localhost:{xds}")),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit".to_owned()),
            ("GRPC_SERVER_USE_TLS", "true".to_owned()),
            ("GRPC_SERVER_TLS_CERT", file("tls.crt")),
            ("GRPC_SERVER_TLS_KEY", file("tls.key")),
            ("GRPC_SERVER_TLS_CA_CERT", file("ca.crt")),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true".to_owned()),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", file("tls.crt")),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", file("tls.key")),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", file("ca.crt")),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true".to_owned()),
            ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
            ("REDIS_URL", redis.url().trim_start_matches("redis://").replace("/0", "")),
            ("USE_PROMETHEUS", "true".to_owned()),
            ("PROMETHEUS_ADDR", format!("127.0.0.1:{metrics}")),
            ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml".to_owned()),
            // What a test needs beyond that: free ports of this machine.
            ("GRPC_HOST", "127.0.0.1".to_owned()),
            ("HOST", "127.0.0.1".to_owned()),
            ("DEBUG_HOST", "127.0.0.1".to_owned()),
            ("GRPC_PORT", grpc.to_string()),
            ("PORT", http.to_string()),
            ("DEBUG_PORT", debug.to_string()),
            ("QUOTAGATE_ADMIN", "127.0.0.1:0".to_owned()),
            ("QUOTAGATE_TIMEOUT", "20s".to_owned()),
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "100ms".to_owned()),
        ] {
            command.env(name, value);
        }
        command.envs(further.iter().copied());
        let log = tempfile::tempdir()?;
        let mut process =
            Process::spawn("the service", &mut command, &log.path().join("service.log"))?;
        process.wait_until("its ready line", LIMIT, |process| {
            Ok(process.log().contains("listening on").then_some(()))
        })?;
        Ok(Self { process, grpc, http, metrics, _log: log })
    }

    /// Whether the probes of its pod succeed.
    fn is_ready(&self) -> Result<bool> {
        Ok(http::get(self.http, "/healthcheck")?.status == 200)
    }
}

#[test]
fn started_by_envoy_gateway_it_is_ready_and_takes_rules_when_they_come() -> Result<()> {
    if !runs()? {
        return Ok(());
    }
    let (mut redis, certs) = (Redis::start()?, tempfile::tempdir()?);
    let authority = Authority::new(certs.path(), "authority")?;
    certificates(&authority, certs.path())?;
    let port = ports::free()?;
    let service = GatewayService::start(&redis, certs.path(), port, &[])?;
    assert!(service.is_ready()?, "without the server\n{}", service.process.log());
    let server = gateway(&authority, port)?;
    wait::until_true("the stream", LIMIT, || Ok(!server.requests().is_empty()))?;
    let node = server.requests().remove(0).node.map(|node| node.id);
    assert_eq!(node.as_deref(), Some("envoy-ratelimit"));
    assert!(service.is_ready()?, "without rules");
    server.send("1", &[per_user(2, 9)]);
    wait::until_true("the refusal", LIMIT, || Ok(server.refusal().is_some()))?;
    let refusal = server.refusal().unwrap_or_default();
    assert!(refusal.starts_with("envoy-gateway/eg/http: descriptors[0].rate_limit.unit: 9 is no"));
    server.send("2", &[per_user(2, 6)]);
    wait::until_true("the rules", LIMIT, || Ok(server.is_used("2")))?;
    let body =
        r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#;
    let ask = Request::post("/json", body.as_bytes()).header("content-type", "application/json");
    let status = || -> Result<u16> { Ok(Client::connect(service.http)?.send(&ask)?.status) };
    wait::until_true("Redis", LIMIT, || Ok(status()? == 429))?;
    let metrics = http::get(service.metrics, "/metrics")?.text();
    assert!(metrics.contains("over_limit{domain=\"shop\",key1=\"user\"}"), "{metrics}");
    // A restart of the pod would not bring Redis back.
    redis.kill()?;
    wait::until_true("the outage", LIMIT, || Ok(service.process.log().contains("cannot connect")))?;
    assert!(service.is_ready()?, "without Redis");
    Ok(())
}

#[test]
fn envoy_calls_over_tls_with_rules_by_xds_and_no_call_fails_while_both_change() -> Result<()> {
    const CHANGES: u32 = 10;
    if !runs()? {
        return Ok(());
    }
    let (redis, upstream, certs) = (Redis::start()?, Upstream::start()?, tempfile::tempdir()?);
    let authority = Authority::new(certs.path(), "authority")?;
    certificates(&authority, certs.path())?;
    let server = gateway(&authority, 0)?;
    server.send("0", &[per_user(20, 6)]);
    let ca = certs.path().join("ca.crt").display().to_string();
    let further = [("GRPC_CLIENT_TLS_CACERT", &*ca), ("GRPC_CLIENT_TLS_SAN", "service.example")];
    let further = [&further[..], &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]].concat();
    let service = GatewayService::start(&redis, certs.path(), server.port(), &further)?;
    let config = over_tls(config_of(&upstream, service.grpc, true), certs.path());
    let envoy = Envoy::start_config(&config, 2, LOG_LEVELS)?;
    wait::until_true("the rules", LIMIT, || Ok(send(&envoy, Some("warm"))?.status == 200))?;
    let statuses = (0..25).map(|_| Ok(send(&envoy, Some("alice"))?.status));
    let statuses = statuses.collect::<Result<Vec<_>>>()?;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 20);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 5);
    for change in 1..=CHANGES {
        let (limit, version) = (1000 + change, change.to_string());
        server.send(&version, &[per_user(limit, 6)]);
        certificates(&authority, certs.path())?;
        if change % 3 == 0 {
            server.cut();
        }
        let expected = limit.to_string();
        wait::until_true("the changed rules", LIMIT, || {
            let response = send(&envoy, Some("bob"))?;
            assert_eq!(response.status, 200, "every call is answered");
            Ok(response.header("ratelimit-limit") == Some(&expected))
        })?;
    }
    Ok(())
}
