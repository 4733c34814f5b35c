//! The parts of the documents for Envoy and the filter, in a real Envoy.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use quotagate_support::{
    envoy::{self, Envoy, EnvoyOptions, Form, LOG_LEVELS},
    http::{Client, Request},
    jwt, paths,
    store::StoreProcess,
    upstream::Upstream,
    wait, yaml,
};
use serde_json::{Value, json};

use super::{STORE_CLUSTER, document};

/// The shipped Envoy configuration with this plugin's document, and with the claims where that
/// control plane stores them.
fn options(
    upstream: &Upstream,
    store: &StoreProcess,
    mut document: Value,
    payload: &'static str,
) -> EnvoyOptions {
    document["store"]["timeout"] = json!("60s");
    document["store"]["on_failure"] = json!("deny");
    // So long that the window does not end during a test.
    document["policies"][0]["window"] = json!("366d");
    let options = EnvoyOptions::new(upstream.port(), store.port()).form(Form::Wasm);
    options.document(document).edit(move |config| {
        let filters = yaml::at(envoy::manager(config)?, "/http_filters")?;
        let jwt = yaml::named(filters, "envoy.filters.http.jwt_authn")?;
        *yaml::at(jwt, "/typed_config/providers/demo/payload_in_metadata")? = json!(payload);
        Ok(())
    })
}

/// Asserts that Alice and Bob are counted separately.
fn assert_counts(envoy: &Envoy) -> Result<()> {
    let mut client = Client::connect(envoy.port())?;
    for (subject, remaining) in [("alice", "99"), ("alice", "98"), ("bob", "99")] {
        let response = client.send(&Request::get("/").bearer(&jwt::token(subject)?))?;
        assert_eq!(
            (response.status, response.header("x-ratelimit-remaining")),
            (200, Some(remaining))
        );
    }
    Ok(())
}

#[test]
fn plugin_counts_through_a_cluster_with_istios_name() -> Result<()> {
    let (store, upstream) = (StoreProcess::start("memory:", &[])?, Upstream::start()?);
    let plugin = document("istio/wasmplugin.yaml", "WasmPlugin")["spec"]["pluginConfig"].clone();
    assert_eq!(plugin["store"]["cluster"], STORE_CLUSTER);
    let options = options(&upstream, &store, plugin, "payload").edit(|config| {
        let clusters = yaml::at(config, "/static_resources/clusters")?;
        *yaml::at(yaml::named(clusters, "quota_store")?, "/name")? = json!(STORE_CLUSTER);
        *yaml::at(yaml::named(clusters, STORE_CLUSTER)?, "/load_assignment/cluster_name")? =
            json!(STORE_CLUSTER);
        Ok(())
    });
    assert_counts(&Envoy::start(&options)?)
}

/// Replaces the shipped cluster by that of a document. Only its address comes from the test.
fn with_cluster(options: EnvoyOptions, cluster: &Value) -> EnvoyOptions {
    let cluster = cluster.clone();
    options.edit(move |config| {
        let clusters = yaml::at(config, "/static_resources/clusters")?;
        let shipped = yaml::named(clusters, "quota_store")?;
        let endpoints = shipped["load_assignment"]["endpoints"].clone();
        *shipped = cluster.clone();
        shipped["load_assignment"]["endpoints"] = endpoints;
        Ok(())
    })
}

#[test]
fn patches_of_the_envoy_filter_work_in_envoy() -> Result<()> {
    let (store, upstream) = (StoreProcess::start("memory:", &[])?, Upstream::start()?);
    let mut plugin =
        document("istio/wasmplugin.yaml", "WasmPlugin")["spec"]["pluginConfig"].clone();
    plugin["store"]["cluster"] = json!("quota_store");
    let patches =
        document("istio/envoyfilter.yaml", "EnvoyFilter")["spec"]["configPatches"].clone();
    let value = |target: &str| {
        let patch =
            patches.as_array().unwrap().iter().find(|patch| patch["applyTo"] == target).unwrap();
        assert_eq!(patch["patch"]["operation"], "MERGE");
        (patch["match"].clone(), patch["patch"]["value"].clone())
    };
    let (manager, route) =
        (value("NETWORK_FILTER").1["typed_config"].clone(), value("HTTP_ROUTE").1["route"].clone());
    let (applies, checks) = value("CLUSTER");
    assert_eq!(applies["cluster"]["name"], STORE_CLUSTER);
    let options = options(&upstream, &store, plugin, "payload").edit(move |config| {
        let clusters = yaml::at(config, "/static_resources/clusters")?;
        let shipped = yaml::named(clusters, "quota_store")?.as_object_mut().context("no object")?;
        shipped.extend(checks.as_object().context("no object")?.clone());
        let shipped = envoy::manager(config)?.as_object_mut().context("no object")?;
        shipped.extend(manager.as_object().context("no object")?.clone());
        let shipped =
            yaml::at(envoy::manager(config)?, "/route_config/virtual_hosts/0/routes/0/route")?;
        let shipped = shipped.as_object_mut().context("no object")?;
        shipped.extend(route.as_object().context("no object")?.clone());
        Ok(())
    });
    assert_counts(&Envoy::start(&options)?)
}

/// A sidecar whose store has died answers 503 to every call, which ejects nobody: a store that
/// cannot count answers so, too. The health checks ask through the sidecar.
#[test]
fn dead_store_behind_its_sidecar_is_left_out_by_the_envoy_filter() -> Result<()> {
    let (store, upstream) = (StoreProcess::start("memory:", &[])?, Upstream::start()?);
    let loopback = |port| json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let mut sidecar = yaml::read(&paths::root().join("envoy/store_front.yaml"))?;
    *yaml::at(&mut sidecar, "/static_resources/listeners/0/address")? = loopback(0);
    let chain = yaml::at(&mut sidecar, "/static_resources/listeners/0/filter_chains/0")?;
    chain.as_object_mut().context("no object")?.remove("transport_socket");
    sidecar["admin"] = json!({"address": loopback(0)});
    let sidecar = Envoy::start_config(&sidecar, 1, LOG_LEVELS)?;
    let mut plugin =
        document("istio/wasmplugin.yaml", "WasmPlugin")["spec"]["pluginConfig"].clone();
    plugin["store"]["cluster"] = json!("quota_store");
    plugin["policies"][0]["quota"] = json!(1_000_000);
    let patches =
        document("istio/envoyfilter.yaml", "EnvoyFilter")["spec"]["configPatches"].clone();
    let mut patches = patches.as_array().context("no list")?.iter();
    let patch = patches.find(|patch| patch["applyTo"] == "CLUSTER").context("none")?;
    let checks = patch["patch"]["value"].clone();
    let dead = sidecar.port();
    let options = options(&upstream, &store, plugin, "payload").edit(move |config| {
        let clusters = yaml::at(config, "/static_resources/clusters")?;
        let shipped = yaml::named(clusters, "quota_store")?.as_object_mut().context("no object")?;
        shipped.extend(checks.as_object().context("no object")?.clone());
        let shipped = yaml::named(clusters, "quota_store")?;
        let endpoints = yaml::at(shipped, "/load_assignment/endpoints/0")?;
        yaml::list(endpoints, "lb_endpoints")?
            .push(json!({"endpoint": {"address": loopback(dead)}}));
        Ok(())
    });
    let envoy = Envoy::start(&options)?;
    let mut client = Client::connect(envoy.port())?;
    wait::until_true("calls to the live store alone", Duration::from_secs(30), || {
        for _ in 0..20 {
            if client.send(&Request::get("/"))?.status != 200 {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

#[test]
fn gateway_listens_while_no_dns_server_answers() -> Result<()> {
    let silent = UdpSocket::bind("127.0.0.1:0")?;
    let server = json!({"socket_address": {
        "address": "127.0.0.1", "port_value": silent.local_addr()?.port(),
    }});
    let proxy = document("gateway/quotas.yaml", "EnvoyProxy");
    let cluster = proxy["spec"]["bootstrap"]["jsonPatches"][0]["value"].clone();
    let upstream = Upstream::start()?;
    let options = EnvoyOptions::new(upstream.port(), 1).form(Form::Wasm).edit(move |config| {
        let clusters = yaml::at(config, "/static_resources/clusters")?;
        *yaml::named(clusters, "quota_store")? = cluster.clone();
        config["typed_dns_resolver_config"] = json!({
            "name": "envoy.network.dns_resolver.cares",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
                "resolvers": [server],
            },
        });
        Ok(())
    });
    // A cluster that waits for DNS takes 96 s, and this one less than a second.
    let started = Instant::now();
    let envoy = Envoy::start(&options)?;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(Client::connect(envoy.port())?.send(&Request::get("/"))?.status, 200);
    Ok(())
}

#[test]
fn documents_for_envoy_gateway_work_in_envoy() -> Result<()> {
    let (store, upstream) = (StoreProcess::start("memory:", &[])?, Upstream::start()?);
    let plugin =
        document("gateway/quotas.yaml", "EnvoyExtensionPolicy")["spec"]["wasm"][0]["config"]
            .clone();
    let provider = document("gateway/quotas.yaml", "SecurityPolicy")["spec"]["jwt"]["providers"][0]
        ["name"]
        .clone();
    assert_eq!(provider, "issuer");
    let patch = document("gateway/quotas.yaml", "EnvoyProxy")["spec"]["bootstrap"]["jsonPatches"]
        [0]
    .clone();
    assert_eq!(
        (&patch["op"], &patch["path"]),
        (&json!("add"), &json!("/static_resources/clusters/-"))
    );
    // Envoy Gateway passes the document as a string.
    let options = with_cluster(options(&upstream, &store, plugin, "issuer"), &patch["value"]).edit(
        |config| {
            let configuration = yaml::at(envoy::plugin(config)?, "/configuration")?;
            let text = configuration["value"].to_string();
            *configuration =
                json!({"@type": "type.googleapis.com/google.protobuf.StringValue", "value": text});
            Ok(())
        },
    );
    assert_counts(&Envoy::start(&options)?)
}
