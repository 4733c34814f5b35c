//! The services of `docker-compose.ratelimit.yml`.

use std::collections::{BTreeMap, BTreeSet};

use quotagate_support::{paths, yaml};
use serde_json::Value;

use super::{extended, resolved, service, strings};

fn services() -> BTreeMap<String, Value> {
    extended(&yaml::read(&paths::root().join("docker-compose.ratelimit.yml")).unwrap())
}

#[test]
fn services_are_bounded_healthy_and_wait_for_each_other() {
    let services = services();
    let names: BTreeSet<&str> = services.keys().map(String::as_str).collect();
    assert_eq!(names, ["envoy", "ratelimit", "redis", "upstream"].into());
    let usual = service("store-1");
    for (name, service) in &services {
        assert!(!strings(&service["healthcheck"]["test"]).is_empty(), "{name}");
        for field in ["mem_limit", "logging", "restart"] {
            assert_eq!(service[field], usual[field], "{name}: {field}");
        }
        for (other, how) in service["depends_on"].as_object().into_iter().flatten() {
            assert!(how["condition"] == "service_healthy" && services.contains_key(other));
        }
        for volume in strings(&service["volumes"]) {
            let source = volume.split(':').next().unwrap();
            let exists = source == "redis" || paths::root().join(source).exists();
            assert!(exists, "{name}: {volume}");
        }
    }
    for (name, needs) in [("envoy", "ratelimit"), ("ratelimit", "redis")] {
        assert!(services[name]["depends_on"][needs].is_object());
        for field in ["read_only", "cap_drop", "security_opt"] {
            assert_eq!(services[name][field], usual[field], "{name}: {field}");
        }
    }
}

#[test]
fn rate_limit_service_finds_the_rules_and_redis_by_variables_of_the_original() {
    let service = &services()["ratelimit"];
    assert_eq!(resolved(service["image"].as_str().unwrap()), "quotagate-ratelimit:local");
    let variable = |name: &str| service["environment"][name].as_str().unwrap();
    let rules = format!("./envoy/ratelimit/config:{}/config:ro", variable("RUNTIME_ROOT"));
    assert_eq!(strings(&service["volumes"]), [rules]);
    assert_eq!(variable("REDIS_URL"), "redis:6379");
}
