//! `quotagate ratelimit` in the place of Envoy Gateway's rate limit service, started as its
//! Deployment starts that.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use quotagate_support::http::{self, Request};
use quotagate_support::process::Process;
use quotagate_support::store::BY_ENVOY_GATEWAY;
use quotagate_workspace::paths;
use serde_json::{Value, json};

use crate::checks::Checks;
use crate::istio::network::PodNetwork;

use super::changes::under_load;
use super::gateways::{
    GATEWAY, Gateways, PORTS, RATE_LIMITS_REDIS, ask, get, policy, route, target,
};
use super::plane::{START, contained};

const NAME: &str = "limited";
const HOST: &str = "limited.example";
const COSTS: &str = "costs.example";
const SENT: usize = 300;

/// Runs the checks.
pub fn check(gateways: &Gateways, network: &PodNetwork, checks: &mut Checks) {
    let mut service = None;
    checks.check(
        "eg.ratelimit",
        "the drop-in takes its rules from Envoy Gateway, and is exact",
        || {
            let (pod, folder) = (network.pod()?, gateways.folder.path());
            let process = pod.within(|| start(folder))?;
            let (_, process) = service.insert((pod, process));
            put(gateways, 100)?;
            process.wait_until("its answer", START, |_| {
                Ok((passed(&user("up"), 1)? == 1).then_some(()))
            })?;
            let passed = passed(&user("exact"), SENT)?;
            ensure!(passed == 100, "{passed} of {SENT} admitted");
            let other = ask(PORTS[0], &user("other"))?.status;
            ensure!(other == 200, "another client gets {other}");
            Ok(format!("{passed} of {SENT} admitted, another client {other}"))
        },
    );
    let said = || service.as_ref().map(|(_, process)| process.tail()).unwrap_or_default();
    checks.check(
        "eg.ratelimit_change",
        "a changed rule under load loses no request and no count",
        || change(gateways).with_context(said),
    );
    checks.check("eg.ratelimit_cost", "costs from responses count beyond the budget", || {
        // Each request costs one, and its response six more: 7, and then 14 of 10.
        let costly = get(COSTS).header("x-answer-header-x-cost", "6");
        let seen = (0..5).map(|_| {
            let status = ask(PORTS[0], &costly)?.status;
            // Envoy's second call comes after the response.
            sleep(Duration::from_millis(500));
            Ok(status)
        });
        let seen: Vec<u16> = seen.collect::<Result<_>>()?;
        ensure!(seen == [200, 200, 429, 429, 429], "{seen:?}");
        Ok(format!("10 units, responses that cost 6 more: {seen:?}"))
    });
}

fn change(gateways: &Gateways) -> Result<String> {
    ensure!(passed(&user("changed"), SENT)? == 100, "not exact");
    let load = under_load(&user("load"), || {
        put(gateways, 150)?;
        gateways.until("the new rule", || Ok(limit(&user("limit"))?.starts_with("150")))
    })?;
    let more = passed(&user("changed"), SENT)?;
    ensure!(more == 50, "{more} more admitted");
    Ok(format!("from 100 to 150: {more} more of {SENT} admitted, {load}"))
}

/// The service as a container of the Deployment `envoy-ratelimit`.
fn start(folder: &Path) -> Result<Process> {
    let program = folder.join("ratelimit");
    symlink(paths::command(), &program)?;
    let (certificate, key, authority) = ("/certs/tls.crt", "/certs/tls.key", "/certs/ca.crt");
    let environment = BTreeMap::from([
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", certificate),
        ("GRPC_SERVER_TLS_KEY", key),
        ("GRPC_SERVER_TLS_CA_CERT", authority),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", authority),
        ("REDIS_URL", RATE_LIMITS_REDIS),
        ("PROMETHEUS_ADDR", ":19001"),
    ]);
    let mut command = contained(folder, "envoy-rate-limit", &program, &[]);
    // Longer than by default. The Deployment has no arguments, but processors of its own.
    command.args(["--timeout", "2s"]).envs(BY_ENVOY_GATEWAY).envs(environment);
    let mut process =
        Process::spawn("the rate limit service", &mut command, &folder.join("service.log"))?;
    process.wait_until("its readiness", START, |_| {
        Ok((http::get(8080, "/healthcheck")?.status == 200).then_some(()))
    })?;
    Ok(process)
}

/// Applies a limit for each client, and one for costs.
fn put(gateways: &Gateways, requests: u32) -> Result<()> {
    let limited = |name: &str, rule: Value| {
        policy(
            "BackendTrafficPolicy",
            name,
            &json!({
                "targetRefs": [target("HTTPRoute", name)],
                "rateLimit": {"type": "Global", "global": {"rules": [rule]}},
            }),
        )
    };
    let lua = "function envoy_on_response(response)\n\
        local cost = response:headers():get('x-cost')\n\
        if cost then response:streamInfo():dynamicMetadata():set('costs', 'units', tonumber(cost)) end\n\
        end";
    let costs = "costs";
    gateways.plane.put(&[
        route(NAME, GATEWAY),
        policy("EnvoyExtensionPolicy", NAME, &json!({"targetRefs": [target("HTTPRoute", NAME)]})),
        limited(
            NAME,
            json!({
            "clientSelectors": [{"headers": [{"name": "x-user", "type": "Distinct"}]}],
            "limit": {"requests": requests, "unit": "Year"}}),
        ),
        route(costs, GATEWAY),
        policy(
            "EnvoyExtensionPolicy",
            costs,
            &json!({"targetRefs": [target("HTTPRoute", costs)],
            "lua": [{"type": "Inline", "inline": lua}]}),
        ),
        limited(
            costs,
            json!({"limit": {"requests": 10, "unit": "Year"},
            "cost": {"response": {"from": "Metadata",
                "metadata": {"namespace": "costs", "key": "units"}}}}),
        ),
    ])
}

fn user(name: &str) -> Request {
    get(HOST).header("x-user", name)
}

/// How many of so many requests pass.
fn passed(request: &Request, times: usize) -> Result<usize> {
    let mut passed = 0;
    for _ in 0..times {
        match ask(PORTS[0], request)?.status {
            200 => passed += 1,
            429 => {}
            other => bail!("status {other} after {passed} passed"),
        }
    }
    Ok(passed)
}

fn limit(request: &Request) -> Result<String> {
    Ok(ask(PORTS[0], request)?.header("x-ratelimit-limit").unwrap_or_default().to_owned())
}
