//! The Envoy configuration that the compose file mounts.

use std::process::Command;

use quotagate_support::{
    envoy::{self, Envoy, EnvoyOptions},
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

/// `docker/envoy.yaml` without its statistics for Prometheus.
fn without_statistics(mut config: Value) -> Value {
    let tags = yaml::read(&paths::root().join("envoy/stats_tags.yaml")).unwrap();
    assert_eq!(
        config.as_object_mut().unwrap().remove("stats_config").as_ref(),
        tags.get("stats_config")
    );
    for list in ["listeners", "clusters"] {
        let list = config["static_resources"][list].as_array_mut().unwrap();
        list.retain(|entry| entry["name"] != "statistics");
    }
    config
}

#[test]
fn mounted_envoy_configuration_differs_only_in_addresses_and_statistics() {
    let mounted = yaml::read(&paths::root().join("docker/envoy.yaml")).unwrap();
    let shipped = yaml::read(&paths::envoy_config()).unwrap();
    assert_eq!(without_addresses(without_statistics(mounted)), without_addresses(shipped));
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
fn envoy_accepts_both_configurations_with_the_built_filter() {
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
fn health_check_distinguishes_ready_from_not_ready() {
    let upstream = Upstream::start().unwrap();
    let options = EnvoyOptions::new(upstream.port(), 1).bare();
    let envoy = Envoy::start(&options).unwrap();
    assert_eq!(http::get(envoy.admin_port(), "/ready").unwrap().status, 200);
    let script = paths::root().join("docker/http-ok.sh");
    let check = |path: &str| {
        let mut command = Command::new("bash");
        command
            .arg(&script)
            .arg(envoy.admin_port().to_string())
            .arg(path)
            .status()
            .unwrap()
            .success()
    };
    assert!(check("/ready"));
    assert!(!check("/no-such-page"));
}
