//! The compose file, the Dockerfile, the systemd unit and the files that they mount, as far as a
//! test can check them without a container engine.

mod compose;
mod compose_native;
mod compose_ratelimit;
mod envoy;
mod images;
mod redis_cluster;
mod systemd;

use std::{collections::BTreeMap, fs};

use quotagate_support::{paths, yaml};
use serde_json::Value;

/// The services that run once and exit.
pub const ONE_SHOT: [&str; 2] = ["redis-form", "admin-token"];

pub const REDIS_NODES: [&str; 6] =
    ["redis-1", "redis-2", "redis-3", "redis-4", "redis-5", "redis-6"];

/// The services of `docker-compose.yml`, with the fields that they merge from `x-` parts (`<<`).
pub fn services() -> Vec<(String, Value)> {
    services_of(&compose())
}

/// The services of a compose file, with the fields that they merge.
pub fn services_of(compose: &Value) -> Vec<(String, Value)> {
    let services = compose["services"].as_object().unwrap();
    services.iter().map(|(name, service)| (name.clone(), merged(service))).collect()
}

/// The services of a compose file, with the fields of those that they extend, which are in
/// `docker-compose.yml`.
pub fn extended(compose: &Value) -> BTreeMap<String, Value> {
    let extended = |service: &Value| -> Value {
        let Some(base) = service.get("extends") else { return service.clone() };
        assert_eq!(base["file"], "docker-compose.yml");
        let mut all = self::service(base["service"].as_str().unwrap());
        let own = service.as_object().unwrap().clone();
        all.as_object_mut().unwrap().extend(own);
        all
    };
    services_of(compose).into_iter().map(|(name, service)| (name, extended(&service))).collect()
}

/// The YAML parser does not resolve merge keys.
fn merged(service: &Value) -> Value {
    let mut all = service.clone();
    if let Some(base) = all.as_object_mut().unwrap().remove("<<") {
        for (key, value) in merged(&base).as_object().unwrap() {
            all.as_object_mut().unwrap().entry(key).or_insert(value.clone());
        }
    }
    all
}

pub fn service(name: &str) -> Value {
    services().into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no service {name}")).1
}

pub fn strings(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// A value with the defaults of its variables: `${NAME:-value}` is `value`.
pub fn resolved(value: &str) -> String {
    match value.split_once("${") {
        None => value.to_owned(),
        Some((before, rest)) => {
            let (variable, after) = rest.split_once('}').unwrap_or_else(|| panic!("{value}"));
            let (_, default) = variable.split_once(":-").unwrap_or_else(|| panic!("{value}"));
            format!("{before}{default}{}", resolved(after))
        }
    }
}

/// A duration as these files write it: `10s`.
pub fn seconds(text: &str) -> u64 {
    text.trim()
        .strip_suffix('s')
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{text}"))
}

pub fn compose() -> Value {
    yaml::read(&paths::root().join("docker-compose.yml")).unwrap()
}

/// The text of a file of the source tree.
pub fn text(name: &str) -> String {
    fs::read_to_string(paths::root().join(name)).unwrap()
}
