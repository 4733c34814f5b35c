//! What Envoy's filters send besides plain requests: connections, and hits that are refunded when a
//! stream ends.

use anyhow::{Context, Result};
use quotagate_support::envoy::{Envoy, LOG_LEVELS, manager};
use quotagate_support::http::{Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{wait, yaml};
use serde_json::{Value, json};

use super::{LIMIT, config, rules, runs, service, wait_for_rules};

pub(super) const RULES: &str = "
domain: shop
descriptors:
  - {key: connection, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: stream, rate_limit: {unit: year, requests_per_unit: 2}}
";

/// Adds a field, or replaces it.
fn set(object: &mut Value, name: &str, value: Value) -> Result<()> {
    object.as_object_mut().context("no object")?.insert(name.to_owned(), value);
    Ok(())
}

#[test]
fn network_filter_admits_as_many_connections_as_the_rule_says() -> Result<()> {
    if !runs()? {
        return Ok(());
    }
    let (redis, upstream, rules) = (Redis::start()?, Upstream::start()?, rules(RULES)?);
    let service = service(&redis, &rules, "20s")?;
    wait_for_rules(&service)?;
    let mut config = config(&upstream, &service, true);
    let filter = json!({
        "name": "envoy.filters.network.ratelimit",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.ratelimit.v3.RateLimit",
            "stat_prefix": "connections", "domain": "shop", "timeout": "30s",
            "failure_mode_deny": true,
            "descriptors": [{"entries": [{"key": "connection", "value": "any"}]}],
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "limits"}},
            },
        },
    });
    let chain = yaml::at(&mut config, "/static_resources/listeners/0/filter_chains/0")?;
    yaml::list(chain, "filters")?.insert(0, filter);
    let envoy = Envoy::start_config(&config, 1, LOG_LEVELS)?;
    let mut kept = Vec::new();
    for _ in 0..3 {
        let mut client = Client::connect(envoy.port())?;
        assert_eq!(client.send(&Request::get("/"))?.status, 200);
        kept.push(client);
    }
    for _ in 0..3 {
        let answer = Client::connect(envoy.port())?.send(&Request::get("/"));
        assert!(answer.is_err(), "the connection is closed: {answer:?}");
    }
    for client in &mut kept {
        assert_eq!(client.send(&Request::get("/"))?.status, 200, "only connections count");
    }
    Ok(())
}

/// An Envoy whose streams each take a unit of the rule `stream`, and refund it when they end.
pub(super) fn envoy_of_streams(upstream: &Upstream, service: &StoreProcess) -> Result<Envoy> {
    let mut config = config(upstream, service, true);
    let actions = json!([{"generic_key": {"descriptor_key": "stream", "descriptor_value": "any"}}]);
    let manager = manager(&mut config)?;
    set(manager, "upgrade_configs", json!([{"upgrade_type": "websocket"}]))?;
    let route = yaml::at(manager, "/route_config/virtual_hosts/0/routes/0")?;
    set(yaml::at(route, "/route")?, "rate_limits", json!([]))?;
    let per_route = json!({"envoy.filters.http.ratelimit": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
        "rate_limits": [
            {"actions": actions},
            {
                "actions": actions, "apply_on_stream_done": true,
                "hits_addend": {"number": 1, "is_negative_hits": true},
            },
        ],
    }});
    set(route, "typed_per_filter_config", per_route)?;
    Envoy::start_config(&config, 1, LOG_LEVELS)
}

/// Opens a stream, if there is a unit for it, and returns the status of its answer.
pub(super) fn open_stream(envoy: &Envoy) -> Result<(u16, Client)> {
    let mut client = Client::connect(envoy.port())?;
    let status = client.send(&Request::websocket("/"))?.status;
    Ok((status, client))
}

#[test]
fn streams_that_end_free_their_units_and_refused_ones_free_none() -> Result<()> {
    if !runs()? {
        return Ok(());
    }
    let (redis, upstream, rules) = (Redis::start()?, Upstream::start()?, rules(RULES)?);
    let service = service(&redis, &rules, "20s")?;
    wait_for_rules(&service)?;
    let envoy = envoy_of_streams(&upstream, &service)?;
    let open = || open_stream(&envoy);
    let (first, second) = (open()?, open()?);
    assert_eq!((first.0, second.0), (101, 101));
    for _ in 0..5 {
        assert_eq!(open()?.0, 429, "a refused stream frees nothing");
    }
    drop(first);
    let mut third = None;
    wait::until_true("the unit of a stream that ended", LIMIT, || {
        let (status, client) = open()?;
        third = (status == 101).then_some(client);
        Ok(status == 101)
    })?;
    for _ in 0..5 {
        assert_eq!(open()?.0, 429, "two streams are open");
    }
    drop((second, third));
    let mut open_now = Vec::new();
    wait::until_true("the units of both streams", LIMIT, || {
        let (status, client) = open()?;
        open_now.extend((status == 101).then_some(client));
        Ok(open_now.len() == 2)
    })?;
    assert_eq!(open()?.0, 429);
    Ok(())
}
