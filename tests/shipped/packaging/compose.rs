//! The services of `docker-compose.yml`.

use std::{collections::BTreeSet, fs, process::Command};

use quotagate_support::{
    paths,
    store::{StoreOptions, StoreProcess},
};
use serde_json::json;

use super::{ONE_SHOT, REDIS_NODES, compose, resolved, seconds, service, services, strings, text};

#[test]
fn compose_file_names_every_service() {
    let names: BTreeSet<String> = services().into_iter().map(|(name, _)| name).collect();
    let others = ["envoy", "store-1", "store-2", "upstream", "prometheus", "grafana"];
    let expected =
        REDIS_NODES.into_iter().chain(others).chain(ONE_SHOT).map(str::to_owned).collect();
    assert_eq!(names, expected);
}

#[test]
fn every_long_running_service_has_a_health_check() {
    for (name, service) in
        services().into_iter().filter(|(name, _)| !ONE_SHOT.contains(&name.as_str()))
    {
        assert!(!strings(&service["healthcheck"]["test"]).is_empty(), "{name}");
    }
}

#[test]
fn services_wait_for_their_dependencies() {
    for (name, service) in services() {
        for (other, how) in service["depends_on"].as_object().into_iter().flatten() {
            let needed = self::service(other);
            match how["condition"].as_str() {
                Some("service_healthy") => {
                    assert!(needed["healthcheck"].is_object(), "{name}: {other}")
                }
                Some("service_completed_successfully") => {
                    assert!(ONE_SHOT.contains(&other.as_str()), "{name}")
                }
                other => panic!("{name}: condition {other:?}"),
            }
        }
    }
    assert!(service("store-1")["depends_on"]["redis-form"].is_object());
    assert!(service("envoy")["depends_on"]["store-2"].is_object());
}

#[test]
fn stores_have_time_to_drain_before_they_are_killed() {
    let (default, last_answers) = (5, 5);
    for store in ["store-1", "store-2"] {
        let grace = seconds(service(store)["stop_grace_period"].as_str().unwrap());
        assert!(grace > default + last_answers, "{store}: {grace} s");
    }
    let unit = text("systemd/quotagate.service");
    let after =
        |mark: &str| seconds(unit.split_once(mark).unwrap().1.split_whitespace().next().unwrap());
    assert!(after("\nTimeoutStopSec=") > after(" --drain ") + last_answers);
}

#[test]
fn services_have_no_capabilities_and_read_only_files() {
    for (name, service) in
        services().into_iter().filter(|(_, service)| service["build"].is_object())
    {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(strings(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
    }
}

#[test]
fn data_that_outlives_a_container_is_in_a_named_volume() {
    let volumes: BTreeSet<String> =
        compose()["volumes"].as_object().unwrap().keys().cloned().collect();
    let mut used = BTreeSet::new();
    for (name, service) in services() {
        for volume in
            strings(&service["volumes"]).into_iter().filter(|volume| !volume.starts_with("./"))
        {
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

#[test]
fn ports_and_images_may_be_others() {
    let ports = |name: &str| {
        let service = service(name);
        let [port] = strings(&service["ports"])[..] else { panic!("{service}") };
        (port.to_owned(), resolved(port))
    };
    let (port, usual) = ports("envoy");
    assert!(port.contains("${QUOTAGATE_PORT:-") && usual == "127.0.0.1:10000:10000", "{port}");
    let (port, usual) = ports("store-1");
    assert!(port.contains("${QUOTAGATE_ADMIN_PORT:-") && usual == "127.0.0.1:9181:9181", "{port}");
    for (name, variable) in [("envoy", "ENVOY"), ("store-1", "STORE"), ("store-2", "STORE")] {
        let image = service(name)["image"].as_str().unwrap().to_owned();
        assert!(
            image.starts_with(&format!("${{QUOTAGATE_{variable}_IMAGE:-quotagate-")),
            "{image}"
        );
    }
}

/// A size as the compose file and Redis write it: `512m`, `192mb`.
fn mebibytes(text: &str) -> u64 {
    let number =
        text.trim_end_matches('b').strip_suffix('m').and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn memory_and_logs_of_every_service_are_bounded() {
    for (name, service) in services() {
        let limit = mebibytes(service["mem_limit"].as_str().unwrap_or_else(|| panic!("{name}")));
        assert_eq!(
            service["logging"]["options"],
            json!({"max-size": "10m", "max-file": "3"}),
            "{name}"
        );
        if REDIS_NODES.contains(&name.as_str()) {
            let command = strings(&service["command"]);
            let most = command[command.iter().position(|word| *word == "--maxmemory").unwrap() + 1];
            assert!(mebibytes(most) * 2 < limit, "{name}: {most} of {limit} MiB, and a copy of it");
        }
    }
}

#[test]
fn stores_share_a_token_that_is_created_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admin-token");
    let script = |words: &[&str]| {
        let script = paths::root().join("docker/make-token.sh");
        Command::new("sh").arg(script).arg(&file).args(words).output().unwrap()
    };
    let make = || {
        let made = script(&[]);
        assert!(made.status.success() && made.stdout.is_empty(), "{made:?}");
        fs::read_to_string(&file).unwrap()
    };
    let token = make();
    assert_eq!((token.trim().len(), make()), (64, token.clone()));
    fs::remove_file(&file).unwrap();
    assert_ne!(make(), token);
    // `docker compose run --rm admin-token show`, which also works before anything else.
    assert_eq!(String::from_utf8(script(&["show"]).stdout).unwrap(), make());
    assert_eq!(script(&["shw"]).status.code(), Some(2));
    let maker = service("admin-token");
    let [_, path] = strings(&maker["entrypoint"])[..] else { panic!("{maker}") };
    for store in ["store-1", "store-2"] {
        let service = service(store);
        assert_eq!(service["environment"]["QUOTAGATE_ADMIN_TOKEN_FILE"], path);
        assert_eq!(strings(&service["volumes"]), ["admin-token:/run/quotagate:ro"]);
        assert!(service["depends_on"]["admin-token"].is_object());
    }
    // The store reads this token, and commands send it.
    let options =
        StoreOptions::new("memory:").arguments(&["--admin-token-file", file.to_str().unwrap()]);
    let store = StoreProcess::start_with(&options).unwrap();
    let list = || {
        let mut command = Command::new(paths::command());
        command
            .args(["dial", "list"])
            .env("QUOTAGATE_ADMIN", format!("0.0.0.0:{}", store.admin_port()));
        command
    };
    assert!(!list().output().unwrap().status.success());
    let listed = list().env("QUOTAGATE_ADMIN_TOKEN_FILE", &file).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
}
