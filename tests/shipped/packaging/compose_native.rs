//! The services of `docker-compose.native.yml`, which extend those of `docker-compose.yml`.

use std::collections::{BTreeMap, BTreeSet};

use quotagate_support::{paths, yaml};
use serde_json::Value;

use super::{ONE_SHOT, REDIS_NODES, compose, extended, service, strings};

fn file() -> Value {
    yaml::read(&paths::root().join("docker-compose.native.yml")).unwrap()
}

fn services() -> BTreeMap<String, Value> {
    extended(&file())
}

#[test]
fn no_store_is_in_the_path_of_a_request() {
    let services = services();
    let on_request: BTreeSet<&str> = services
        .iter()
        .filter(|(_, service)| service.get("profiles").is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    let expected = REDIS_NODES.into_iter().chain(["envoy", "upstream", "redis-form"]);
    assert_eq!(on_request, expected.collect());
    assert_eq!(strings(&services["store"]["profiles"]), ["operators"]);
    for (name, service) in &services {
        let needs = service["depends_on"].as_object().into_iter().flatten();
        for (other, how) in needs {
            let other = services.get(other).unwrap_or_else(|| panic!("{name} needs {other}"));
            let is_there_without_a_profile = other.get("profiles").is_none();
            assert!(is_there_without_a_profile || service.get("profiles").is_some(), "{name}");
            if how["condition"] == "service_healthy" {
                assert!(other["healthcheck"].is_object(), "{name}");
            }
        }
    }
}

#[test]
fn envoy_is_as_confined_as_with_the_wasm_filter() {
    let (native, wasm) = (services()["envoy"].clone(), service("envoy"));
    for field in wasm.as_object().unwrap().keys() {
        if !["volumes", "depends_on"].contains(&field.as_str()) {
            assert_eq!(native[field], wasm[field], "{field}");
        }
    }
    let mounted = strings(&native["volumes"]);
    assert_eq!(mounted, ["./docker/native.yaml:/etc/envoy/envoy.yaml:ro"]);
}

#[test]
fn volumes_are_declared() {
    let file = file();
    let declared: BTreeSet<&str> =
        file["volumes"].as_object().unwrap().keys().map(String::as_str).collect();
    let all = compose();
    for (name, service) in services() {
        for volume in strings(&service["volumes"]) {
            let volume = volume.split(':').next().unwrap();
            assert!(volume.starts_with("./") || declared.contains(volume), "{name}: {volume}");
        }
    }
    assert!(declared.iter().all(|volume| all["volumes"].get(volume).is_some()));
    assert!(ONE_SHOT.iter().all(|name| services().contains_key(*name)));
}
