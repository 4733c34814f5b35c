//! The Envoy configuration that the compose file mounts.

use std::process::Command;

use quotagate_support::{
    edits,
    envoy::{self, Envoy, EnvoyOptions, Form},
    http, paths,
    upstream::Upstream,
    yaml,
};
use serde_json::{Value, json};

use super::service;

/// A configuration without the addresses and cluster types, in which `docker/envoy.yaml` differs.
fn without_addresses(mut config: Value) -> Value {
    config["admin"]["address"] = json!("set aside");
    config["static_resources"]["listeners"][0]["address"] = json!("set aside");
    for cluster in config["static_resources"]["clusters"].as_array_mut().unwrap() {
        cluster["type"] = json!("set aside");
        cluster["load_assignment"]["endpoints"] = json!("set aside");
    }
    config
}

/// A configuration whose cluster of the store is that for several stores.
fn with_several_stores(mut config: Value) -> Value {
    edits::several_stores(&mut config).unwrap();
    config
}

/// `docker/envoy.yaml` without its statistics for Prometheus.
fn without_statistics(mut config: Value) -> Value {
    let tags = yaml::read(&paths::root().join("envoy/stats_tags.yaml")).unwrap();
    assert_eq!(
        config.as_object_mut().unwrap().remove("stats_config").as_ref(),
        tags.get("stats_config")
    );
    without_listener_of_statistics(config)
}

fn without_listener_of_statistics(mut config: Value) -> Value {
    for list in ["listeners", "clusters"] {
        let list = config["static_resources"][list].as_array_mut().unwrap();
        list.retain(|entry| entry["name"] != "statistics");
    }
    config
}

#[test]
fn mounted_envoy_configuration_differs_only_in_addresses_stores_and_statistics() {
    let mounted = yaml::read(&paths::root().join("docker/envoy.yaml")).unwrap();
    let shipped = yaml::read(&paths::envoy_config()).unwrap();
    let shipped = with_several_stores(shipped);
    assert_eq!(without_addresses(without_statistics(mounted)), without_addresses(shipped));
}

#[test]
fn mounted_native_configuration_differs_only_in_addresses_and_statistics() {
    let read = |name: &str| {
        let mut config = yaml::read(&paths::root().join(name)).unwrap();
        let store = envoy::document(&mut config).unwrap()["store"]["redis"].take();
        (without_addresses(without_listener_of_statistics(config)), store)
    };
    let ((mounted, redis), (shipped, _)) = (read("docker/native.yaml"), read("envoy/native.yaml"));
    assert_eq!(mounted, shipped);
    // The stores of the other compose file count in the same nodes.
    assert_eq!(redis, service("store-1")["environment"]["QUOTAGATE_STORE"]);
}

#[test]
fn mounted_configuration_of_the_rate_limit_filter_differs_only_in_addresses() {
    let [mounted, shipped] = ["docker/ratelimit.yaml", "envoy/ratelimit/envoy.yaml"]
        .map(|name| yaml::read(&paths::root().join(name)).unwrap());
    let address = |cluster: usize| {
        let at = format!("/static_resources/clusters/{cluster}/load_assignment/endpoints/0");
        let at = format!("{at}/lb_endpoints/0/endpoint/address/socket_address");
        mounted.pointer(&at).unwrap().clone()
    };
    assert_eq!(address(0), json!({"address": "upstream", "port_value": 8080}));
    assert_eq!(address(1), json!({"address": "ratelimit", "port_value": 8081}));
    assert_eq!(without_addresses(mounted), without_addresses(shipped));
}

/// Both differ where the forms do: in the filter, in what hands claims over, in the store.
#[test]
fn native_configuration_differs_from_the_wasm_one_only_in_the_filter() {
    let read = |form: Form| {
        let mut config = yaml::read(&form.shipped()).unwrap();
        let document = envoy::document(&mut config).unwrap();
        let mut store = document["store"].take();
        store.as_object_mut().unwrap().retain(|field, _| !["cluster", "redis"].contains(&&**field));
        let document = document.clone();
        let filters = yaml::list(envoy::manager(&mut config).unwrap(), "http_filters").unwrap();
        filters.retain(|filter| {
            !envoy::is_filter(filter) && filter["name"] != "envoy.filters.http.set_filter_state"
        });
        let route = "/route_config/virtual_hosts/0/routes/0/route";
        let route = yaml::at(envoy::manager(&mut config).unwrap(), route).unwrap();
        // The timeout ends requests that a dead virtual machine held.
        route.as_object_mut().unwrap().remove("idle_timeout");
        let clusters = yaml::at(&mut config, "/static_resources").unwrap();
        let clusters = yaml::list(clusters, "clusters").unwrap();
        clusters.retain(|cluster| cluster["name"] != "quota_store");
        (config, document, store)
    };
    assert_eq!(read(Form::Native), read(Form::Wasm));
}

#[test]
fn mounted_envoy_configuration_names_services_of_the_compose_file() {
    let mounted = without_statistics(yaml::read(&paths::root().join("docker/envoy.yaml")).unwrap());
    let mut hosts = Vec::new();
    for cluster in mounted["static_resources"]["clusters"].as_array().unwrap() {
        for endpoint in
            cluster["load_assignment"]["endpoints"][0]["lb_endpoints"].as_array().unwrap()
        {
            hosts.push(
                endpoint["endpoint"]["address"]["socket_address"]["address"].as_str().unwrap(),
            );
        }
    }
    assert_eq!(hosts, ["upstream", "store-1", "store-2"]);
    hosts.iter().for_each(|host| drop(service(host)));
}

#[test]
fn envoy_accepts_configurations_with_the_built_filter() {
    assert!(paths::filter().is_file(), "no filter: run `cargo xtask build --dev`");
    for name in ["docker/envoy.yaml", "envoy/envoy.yaml"] {
        let mut config = yaml::read(&paths::root().join(name)).unwrap();
        // Tests and Envoy run in different directories.
        let filter = envoy::plugin(&mut config).unwrap();
        let file = yaml::at(filter, "/vm_config/code/local/filename").unwrap();
        assert_eq!(file, "dist/quotagate.wasm");
        *file = json!(paths::filter());
        assert_eq!(Envoy::validate(&config), Ok(()), "{name}");
    }
}

#[test]
fn envoy_accepts_configurations_with_the_built_module() {
    assert!(paths::module().is_file(), "no module: run `cargo xtask build --dev`");
    for name in ["docker/native.yaml", "envoy/native.yaml"] {
        let config = yaml::read(&paths::root().join(name)).unwrap();
        assert_eq!(Envoy::validate(&config), Ok(()), "{name}");
    }
}

#[test]
fn health_check_distinguishes_ready_from_not_ready() {
    let upstream = Upstream::start().unwrap();
    let options = EnvoyOptions::new(upstream.port(), 1).bare();
    let envoy = Envoy::start(&options).unwrap();
    assert_eq!(http::get(envoy.admin_port(), "/ready").unwrap().status, 200);
    let check = |path: &str| {
        let mut command = Command::new(paths::command());
        let url = format!("http://127.0.0.1:{}{path}", envoy.admin_port());
        command.arg("health").arg(url).status().unwrap().success()
    };
    assert!(check("/ready"));
    assert!(!check("/no-such-page"));
}
