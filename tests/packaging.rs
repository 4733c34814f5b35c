//! What people deploy: the compose file, the Dockerfile and what they mount, as far as that can be tested without a
//! container engine.

#![cfg(test)]

use std::{collections::BTreeSet, fs, process::Command};

use anyhow::{Context, Result};
use quotagate_support::{
    cluster::Cluster,
    envoy::{Envoy, EnvoyOptions},
    http::{self, Client, Request},
    paths,
    store::{StoreOptions, StoreProcess},
    tools::ENVOY_VERSION,
    upstream::Upstream,
    yaml,
};
use serde_json::{Value, json};

/// The services that do their work and end.
const ONCE: [&str; 2] = ["redis-form", "admin-token"];
const REDIS_NODES: [&str; 6] = ["redis-1", "redis-2", "redis-3", "redis-4", "redis-5", "redis-6"];

fn compose() -> Value {
    yaml::read(&paths::root().join("docker-compose.yml")).unwrap()
}

/// The services, with what they take over from the `x-` parts (`<<`).
fn services() -> Vec<(String, Value)> {
    let compose = compose();
    let services = compose["services"].as_object().unwrap();
    services.iter().map(|(name, service)| (name.clone(), merged(service))).collect()
}

/// A YAML parser may leave merge keys to its user.
fn merged(service: &Value) -> Value {
    let mut all = service.clone();
    if let Some(base) = all.as_object_mut().unwrap().remove("<<") {
        for (key, value) in merged(&base).as_object().unwrap() {
            all.as_object_mut().unwrap().entry(key).or_insert(value.clone());
        }
    }
    all
}

fn service(name: &str) -> Value {
    services().into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no service {name}")).1
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[test]
fn the_compose_file_names_all_parts() {
    let names: BTreeSet<String> = services().into_iter().map(|(name, _)| name).collect();
    let others = ["envoy", "store-1", "store-2", "upstream", "prometheus", "grafana"];
    let expected = REDIS_NODES.into_iter().chain(others).chain(ONCE).map(str::to_owned).collect();
    assert_eq!(names, expected);
}

#[test]
fn every_service_that_stays_has_a_health_check() {
    for (name, service) in services().into_iter().filter(|(name, _)| !ONCE.contains(&name.as_str())) {
        assert!(!strings(&service["healthcheck"]["test"]).is_empty(), "{name}");
    }
}

#[test]
fn services_wait_for_what_they_need() {
    for (name, service) in services() {
        for (other, how) in service["depends_on"].as_object().into_iter().flatten() {
            let needed = self::service(other);
            match how["condition"].as_str() {
                Some("service_healthy") => assert!(needed["healthcheck"].is_object(), "{name}: {other}"),
                Some("service_completed_successfully") => assert!(ONCE.contains(&other.as_str()), "{name}"),
                other => panic!("{name}: condition {other:?}"),
            }
        }
    }
    assert!(service("store-1")["depends_on"]["redis-form"].is_object());
    assert!(service("envoy")["depends_on"]["store-2"].is_object());
}

/// A duration as these files write it: `10s`.
fn seconds(text: &str) -> u64 {
    text.strip_suffix('s').and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn stores_have_time_to_drain_before_they_are_killed() {
    let (default, last_answers) = (5, 5);
    for store in ["store-1", "store-2"] {
        let grace = seconds(service(store)["stop_grace_period"].as_str().unwrap());
        assert!(grace > default + last_answers, "{store}: {grace} s");
    }
    let unit = fs::read_to_string(paths::root().join("systemd/quotagate.service")).unwrap();
    let after = |mark: &str| seconds(unit.split_once(mark).unwrap().1.split_whitespace().next().unwrap());
    assert!(after("\nTimeoutStopSec=") > after(" --drain ") + last_answers);
}

#[test]
fn every_image_is_pinned_or_built_here() {
    for (name, service) in services() {
        let image = service["image"].as_str().unwrap();
        match service["build"]["target"].as_str() {
            Some(target) => {
                let file = fs::read_to_string(paths::root().join("Dockerfile")).unwrap();
                assert!(file.contains(&format!(" AS {target}\n")), "{name}: no target {target}");
            }
            None => assert!(is_pinned(image), "{name}: {image}"),
        }
    }
    let file = fs::read_to_string(paths::root().join("Dockerfile")).unwrap();
    for line in file.lines().filter_map(|line| line.strip_prefix("FROM ")) {
        let image = line.split_whitespace().next().unwrap();
        assert!(image == "scratch" || is_pinned(image), "Dockerfile: {image}");
    }
    assert!(file.contains(&format!("FROM envoyproxy/envoy:v{ENVOY_VERSION} ")));
}

/// A tag with a whole version in it.
fn is_pinned(image: &str) -> bool {
    image
        .rsplit_once(':')
        .is_some_and(|(_, tag)| tag.matches('.').count() >= 1 && tag.contains(char::is_numeric))
}

#[test]
fn no_image_of_ours_runs_as_root() {
    let file = fs::read_to_string(paths::root().join("Dockerfile")).unwrap();
    // Nothing runs in an image that holds a file alone.
    let runs = |stage: &&str| !stage.starts_with("scratch ");
    for stage in file.split("\nFROM ").skip(2).filter(runs) {
        let user = stage.lines().find_map(|line| line.strip_prefix("USER ")).unwrap();
        assert!(!user.starts_with("root") && !user.starts_with('0'), "{user}");
    }
}

#[test]
fn no_service_of_ours_has_rights_or_files_to_write() {
    for (name, service) in services().into_iter().filter(|(_, service)| service["build"].is_object()) {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(strings(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
    }
}

/// All but what only systemd itself can confine.
#[test]
fn the_store_runs_as_the_systemd_unit_starts_it() {
    let unit = fs::read_to_string(paths::root().join("systemd/quotagate.service")).unwrap();
    let line =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/quotagate serve ")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for credential in unit.lines().filter_map(|line| line.strip_prefix("LoadCredential=")) {
        let name = credential.split(':').next().unwrap();
        fs::write(directory.path().join(name), format!("s3cret-{name}\n")).unwrap();
    }
    let here = directory.path().display().to_string();
    let line = line.replace("${CREDENTIALS_DIRECTORY}", &here).replace("/run/quotagate", &here);
    let mut words = line.split_whitespace();
    let (Some("--listen"), Some(listen)) = (words.next(), words.next()) else { panic!("{line}") };
    let arguments: Vec<&str> = words.collect();
    let options = StoreOptions::new("redis://quotagate@127.0.0.1:1/0").listen(listen).arguments(&arguments);
    let mut store = StoreProcess::start_with(&options).unwrap();
    let socket = directory.path().join("store.sock");
    let reply = Client::connect_unix(&socket).unwrap().send(&Request::post("/v1/reserve", b"{}")).unwrap();
    assert_eq!(reply.status, 401, "the token is asked for");
    for (name, call, look) in [("token", 200, 401), ("admin-token", 401, 200)] {
        let token = format!("s3cret-{name}");
        let body = br#"{"budget_ms": 5000, "reservations": []}"#;
        let mut client = Client::connect_unix(&socket).unwrap();
        let called = client.send(&Request::post("/v1/reserve", body).bearer(&token)).unwrap().status;
        let mut client = Client::connect(store.admin_port()).unwrap();
        let looked = client.send(&Request::get("/v1/top").bearer(&token)).unwrap().status;
        assert_eq!((called, looked), (call, look), "{name}");
    }
    store.stop().unwrap();
    assert!(!socket.exists());
}

#[test]
fn what_must_survive_a_container_is_in_a_named_volume() {
    let volumes: BTreeSet<String> = compose()["volumes"].as_object().unwrap().keys().cloned().collect();
    let mut used = BTreeSet::new();
    for (name, service) in services() {
        for volume in strings(&service["volumes"]).into_iter().filter(|volume| !volume.starts_with("./")) {
            let volume = volume.split(':').next().unwrap();
            assert!(volumes.contains(volume), "{name}: {volume} is no volume");
            used.insert(volume.to_owned());
        }
    }
    assert_eq!(used, volumes);
    let data = [("prometheus", "prometheus:/prometheus"), ("grafana", "grafana:/var/lib/grafana")];
    for (name, volume) in data {
        assert!(strings(&service(name)["volumes"]).contains(&volume), "{name}");
    }
    for node in REDIS_NODES {
        assert_eq!(strings(&service(node)["volumes"]), [format!("{node}:/data")]);
    }
}

/// A size as the compose file and Redis write it: `512m`, `192mb`.
fn mebibytes(text: &str) -> u64 {
    let number = text.trim_end_matches('b').strip_suffix('m').and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn no_service_fills_the_memory_or_the_disk_of_its_machine() {
    for (name, service) in services() {
        let limit = mebibytes(service["mem_limit"].as_str().unwrap_or_else(|| panic!("{name}")));
        assert_eq!(service["logging"]["options"], json!({"max-size": "10m", "max-file": "3"}), "{name}");
        if REDIS_NODES.contains(&name.as_str()) {
            let command = strings(&service["command"]);
            let most = command[command.iter().position(|word| *word == "--maxmemory").unwrap() + 1];
            assert!(mebibytes(most) * 2 < limit, "{name}: {most} of {limit} MiB, and a copy of it");
        }
    }
}

#[test]
fn the_stores_are_given_a_token_that_is_made_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admin-token");
    let make = || {
        let script = paths::root().join("docker/make-token.sh");
        assert!(Command::new("sh").arg(script).arg(&file).status().unwrap().success());
        fs::read_to_string(&file).unwrap()
    };
    let token = make();
    assert_eq!((token.trim().len(), make()), (64, token.clone()));
    fs::remove_file(&file).unwrap();
    assert_ne!(make(), token);
    let maker = service("admin-token");
    let [path] = strings(&maker["command"])[..] else { panic!("{maker}") };
    for store in ["store-1", "store-2"] {
        let service = service(store);
        assert_eq!(service["environment"]["QUOTAGATE_ADMIN_TOKEN_FILE"], path);
        assert_eq!(strings(&service["volumes"]), ["admin-token:/run/quotagate:ro"]);
        assert!(service["depends_on"]["admin-token"].is_object());
    }
    // It is what a store takes, and what a command shows it.
    let options = StoreOptions::new("memory:").arguments(&["--admin-token-file", file.to_str().unwrap()]);
    let store = StoreProcess::start_with(&options).unwrap();
    let list = || {
        let mut command = Command::new(paths::command());
        command.args(["dial", "list"]).env("QUOTAGATE_ADMIN", format!("0.0.0.0:{}", store.admin_port()));
        command
    };
    assert!(!list().output().unwrap().status.success());
    let listed = list().env("QUOTAGATE_ADMIN_TOKEN_FILE", &file).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
}

#[test]
fn the_group_of_the_systemd_unit_is_one_that_comes_with_it() {
    let read = |name: &str| fs::read_to_string(paths::root().join("systemd").join(name)).unwrap();
    let unit = read("quotagate.service");
    let group = unit.lines().find_map(|line| line.strip_prefix("Group=")).unwrap();
    let created = read("quotagate-callers.conf");
    assert!(created.lines().any(|line| line == format!("g {group} - -")), "{group}: {created}");
}

#[test]
fn every_mounted_and_copied_file_exists() {
    for (name, service) in services() {
        for volume in strings(&service["volumes"]).into_iter().filter(|volume| volume.starts_with("./")) {
            let file = paths::root().join(volume.split(':').next().unwrap());
            assert!(file.is_file(), "{name}: {}", file.display());
        }
    }
    let file = fs::read_to_string(paths::root().join("Dockerfile")).unwrap();
    for line in file.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
        let source = line.split_whitespace().find(|word| !word.starts_with("--") && *word != "COPY").unwrap();
        assert!(paths::root().join(source).exists(), "{line}");
    }
}

#[test]
fn the_image_of_the_filter_is_what_istio_and_envoy_gateway_read() {
    let file = fs::read_to_string(paths::root().join("Dockerfile")).unwrap();
    let (_, stage) = file.split_once("FROM scratch AS filter\n").unwrap();
    let lines: Vec<&str> = stage.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(lines, ["COPY --from=build /dist/quotagate.wasm /plugin.wasm"]);
}

/// Of `docker/envoy.yaml`, with every address and the kind of every cluster set aside.
fn without_addresses(mut config: Value) -> Value {
    config["admin"]["address"] = json!("set aside");
    config["static_resources"]["listeners"][0]["address"] = json!("set aside");
    for cluster in config["static_resources"]["clusters"].as_array_mut().unwrap() {
        cluster["type"] = json!("set aside");
        cluster["load_assignment"]["endpoints"] = json!("set aside");
    }
    config
}

/// Of `docker/envoy.yaml`: without its statistics for Prometheus.
fn without_statistics(mut config: Value) -> Value {
    let tags = yaml::read(&paths::root().join("envoy/stats_tags.yaml")).unwrap();
    assert_eq!(config.as_object_mut().unwrap().remove("stats_config").as_ref(), tags.get("stats_config"));
    for list in ["listeners", "clusters"] {
        let list = config["static_resources"][list].as_array_mut().unwrap();
        list.retain(|entry| entry["name"] != "statistics");
    }
    config
}

#[test]
fn the_mounted_envoy_configuration_differs_in_addresses_and_statistics_only() {
    let mounted = yaml::read(&paths::root().join("docker/envoy.yaml")).unwrap();
    let shipped = yaml::read(&paths::envoy_config()).unwrap();
    assert_eq!(without_addresses(without_statistics(mounted)), without_addresses(shipped));
}

#[test]
fn the_mounted_envoy_configuration_names_services_of_the_compose_file() {
    let mounted = without_statistics(yaml::read(&paths::root().join("docker/envoy.yaml")).unwrap());
    let mut hosts = Vec::new();
    for cluster in mounted["static_resources"]["clusters"].as_array().unwrap() {
        for endpoint in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"].as_array().unwrap() {
            hosts.push(endpoint["endpoint"]["address"]["socket_address"]["address"].as_str().unwrap());
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
        // Tests run in another directory than Envoy does.
        let filter = quotagate_support::envoy::filter(&mut config).unwrap();
        let file = yaml::at(filter, "/vm_config/code/local/filename").unwrap();
        assert_eq!(file, "dist/quotagate.wasm");
        *file = json!(paths::filter());
        assert_eq!(Envoy::validate(&config), Ok(()), "{name}");
    }
}

/// `HOST:PORT@BUS` of each node, by name as in the compose file, or by address.
fn nodes(cluster: &Cluster) -> Result<Vec<String>> {
    let bus = |i| -> Result<String> {
        let reply = cluster.cli(i, &["CONFIG", "GET", "cluster-port"])?.lines();
        Ok(reply.lines().nth(1).context("no cluster-port")?.to_owned())
    };
    let ports = cluster.ports().into_iter().enumerate();
    let host = |i| if i % 2 == 0 { "localhost" } else { "127.0.0.1" };
    ports.map(|(i, port)| Ok(format!("{}:{port}@{}", host(i), bus(i)?))).collect()
}

fn form(arguments: &[String]) -> (bool, String) {
    let script = paths::root().join("docker/form-cluster.sh");
    let output = Command::new("sh").arg(script).args(arguments).env("DEADLINE", "30").output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success(), text)
}

#[test]
fn the_script_forms_a_cluster_and_leaves_a_formed_one_alone() {
    let cluster = Cluster::unformed(&[]).unwrap();
    let nodes = nodes(&cluster).unwrap();
    for _ in 0..2 {
        let (formed, text) = form(&nodes);
        assert!(formed && text.contains("3 primaries"), "{text}");
        cluster.wait_until_healthy().unwrap();
    }
    let slots = cluster.cli(4, &["CLUSTER", "INFO"]).unwrap().lines();
    assert!(slots.contains("cluster_slots_ok:16384") && slots.contains("cluster_size:3"), "{slots}");
    // Every primary has its one replica.
    for i in 0..3 {
        let info = cluster.cli(i, &["INFO", "replication"]).unwrap().lines();
        assert!(info.contains("connected_slaves:1"), "{info}");
    }
}

#[test]
fn the_script_refuses_too_few_nodes() {
    let (formed, text) = form(&["127.0.0.1:1".to_owned()]);
    assert!(!formed && text.contains("at least six"), "{text}");
}

#[test]
fn the_nodes_of_the_compose_file_are_those_that_are_formed_and_used() {
    let expected: Vec<String> = REDIS_NODES.iter().map(|name| format!("{name}:6379")).collect();
    assert_eq!(strings(&service("redis-form")["command"]), expected);
    for store in ["store-1", "store-2"] {
        let url = service(store)["environment"]["QUOTAGATE_STORE"].clone();
        assert_eq!(url, format!("redis-cluster://{}", expected.join(",")));
    }
}

#[test]
fn the_health_check_tells_ready_from_not_ready() {
    let upstream = Upstream::start().unwrap();
    let options = EnvoyOptions::new(upstream.port(), 1).bare();
    let envoy = Envoy::start(&options).unwrap();
    assert_eq!(http::get(envoy.admin_port(), "/ready").unwrap().status, 200);
    let script = paths::root().join("docker/http-ok.sh");
    let check = |path: &str| {
        let mut command = Command::new("bash");
        command.arg(&script).arg(envoy.admin_port().to_string()).arg(path).status().unwrap().success()
    };
    assert!(check("/ready"));
    assert!(!check("/no-such-page"));
}
