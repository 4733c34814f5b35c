//! The script that forms the Redis Cluster of the compose file.

use std::process::Command;

use anyhow::{Context, Result};
use quotagate_support::{cluster::Cluster, paths};

use super::{REDIS_NODES, service, strings};

/// `HOST:PORT@BUS` of each node, by name as in the compose file, or by address.
fn node_addresses(cluster: &Cluster) -> Result<Vec<String>> {
    let bus = |i| -> Result<String> {
        let reply = cluster.cli(i, &["CONFIG", "GET", "cluster-port"])?.lines();
        Ok(reply.lines().nth(1).context("no cluster-port")?.to_owned())
    };
    let ports = cluster.ports().into_iter().enumerate();
    let host = |i| if i % 2 == 0 { "localhost" } else { "127.0.0.1" };
    ports.map(|(i, port)| Ok(format!("{}:{port}@{}", host(i), bus(i)?))).collect()
}

fn run_script(arguments: &[String]) -> (bool, String) {
    let script = paths::root().join("charts/example/files/form-cluster.sh");
    let output =
        Command::new("sh").arg(script).args(arguments).env("DEADLINE", "30").output().unwrap();
    let text = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    (output.status.success(), text)
}

#[test]
fn script_forms_a_cluster_once() {
    let cluster = Cluster::unformed(&[]).unwrap();
    let node_addresses = node_addresses(&cluster).unwrap();
    for _ in 0..2 {
        let (formed, text) = run_script(&node_addresses);
        assert!(formed && text.contains("3 primaries"), "{text}");
        cluster.wait_until_healthy().unwrap();
    }
    let slots = cluster.cli(4, &["CLUSTER", "INFO"]).unwrap().lines();
    assert!(
        slots.contains("cluster_slots_ok:16384") && slots.contains("cluster_size:3"),
        "{slots}"
    );
    // Every primary has one replica.
    for i in 0..3 {
        let info = cluster.cli(i, &["INFO", "replication"]).unwrap().lines();
        assert!(info.contains("connected_slaves:1"), "{info}");
    }
}

#[test]
fn script_rejects_too_few_nodes() {
    let (formed, text) = run_script(&["127.0.0.1:1".to_owned()]);
    assert!(!formed && text.contains("at least six"), "{text}");
}

#[test]
fn compose_file_forms_and_uses_the_same_nodes() {
    let expected: Vec<String> = REDIS_NODES.iter().map(|name| format!("{name}:6379")).collect();
    assert_eq!(strings(&service("redis-form")["command"]), expected);
    for store in ["store-1", "store-2"] {
        let url = service(store)["environment"]["QUOTAGATE_STORE"].clone();
        assert_eq!(url, format!("redis-cluster://{}", expected.join(",")));
    }
}
