//! The rights in Redis that README names are all that the store needs, and it needs each of them.

#![cfg(test)]

mod common;

use std::fs;
use std::time::Duration;

use common::{back, batch, numbers, one, open, take, until};
use quotagate_support::cluster::Cluster;
use quotagate_support::redis::Redis;
use quotagate_support::{paths, resp};

/// The rules of README's commands `ACL SETUSER quotagate`, in their order, the password set aside.
fn documented() -> Vec<Vec<String>> {
    let text = fs::read_to_string(paths::root().join("README.md")).unwrap();
    let rules = |line: &str| {
        let rules = line.strip_prefix("ACL SETUSER quotagate ")?.split(" #").next()?;
        let without_password = |rule: &&str| !rule.starts_with('>');
        Some(rules.split_whitespace().filter(without_password).map(str::to_owned).collect())
    };
    let found: Vec<Vec<String>> = text.lines().filter_map(rules).collect();
    assert_eq!(
        found.len(),
        4,
        "of one server, of a cluster, behind Sentinel, of another database: {found:?}"
    );
    found
}

fn allow(port: u16, rules: &[String]) {
    let rules = rules.iter().map(String::as_str);
    let command: Vec<&str> =
        ["ACL", "SETUSER", "quotagate", "reset", "on", ">s3cret"].into_iter().chain(rules).collect();
    resp::command(port, &command).unwrap();
}

/// What was refused to the user.
fn refused(port: u16) -> String {
    resp::command(port, &["ACL", "LOG"]).unwrap().lines()
}

/// All that the store does with one server.
async fn everything(redis: &Redis, database: u8) {
    let url = format!("redis://quotagate:s3cret@127.0.0.1:{}/{database}", redis.port());
    let store = quotagate_store::open(&url.parse().unwrap(), "qg");
    let ready = tokio::time::timeout(Duration::from_secs(5), async {
        while !store.health().faults.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    if ready.await.is_err() {
        return;
    }
    let ask = take("a", 9, 3);
    let admin = |command: &[&str]| redis.cli(command).unwrap();
    let mut grants = store.reserve(&batch(vec![], vec![ask.clone()])).await;
    admin(&["SCRIPT", "FLUSH"]);
    let again = batch(vec![], vec![take("b", 9, 1), take("c", 9, 1)]);
    store.reserve(&again).await;
    // A counter that was written by hand has no end, until it is counted on.
    let key = admin(&["KEYS", "qg:test:p:{a}:*"]).lines();
    if !key.is_empty() {
        admin(&["PERSIST", &key]);
    }
    if let Ok(grant) = grants.remove(0) {
        store.reserve(&batch(vec![back(&ask, grant, 1)], vec![ask.clone()])).await;
        store.reserve(&batch(vec![back(&ask, grant, 1)], vec![ask])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_of_one_server_suffice_and_each_is_needed() {
    let redis = Redis::start().unwrap();
    let all = documented().remove(0);
    allow(redis.port(), &all);
    everything(&redis, 0).await;
    assert_eq!(refused(redis.port()), "");
    let store = open(&format!("redis://quotagate:s3cret@127.0.0.1:{}", redis.port())).await;
    assert_eq!(numbers(&*store, &take("sound", 9, 2)).await, (2, 2));
    let commands: Vec<&String> = all.iter().filter(|rule| rule.starts_with('+')).collect();
    assert!(commands.len() > 8, "{all:?}");
    for command in commands {
        redis.cli(&["FLUSHALL"]).unwrap();
        redis.cli(&["ACL", "LOG", "RESET"]).unwrap();
        let fewer: Vec<String> = all.iter().filter(|rule| *rule != command).cloned().collect();
        allow(redis.port(), &fewer);
        everything(&redis, 0).await;
        assert_ne!(refused(redis.port()), "", "{command} is not needed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_database_needs_one_more() {
    let redis = Redis::start().unwrap();
    let rules = documented();
    allow(redis.port(), &rules[0]);
    everything(&redis, 3).await;
    assert!(refused(redis.port()).contains("select"), "{}", refused(redis.port()));
    redis.cli(&["ACL", "LOG", "RESET"]).unwrap();
    allow(redis.port(), &[rules[0].clone(), rules[3].clone()].concat());
    everything(&redis, 3).await;
    assert_eq!(refused(redis.port()), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_of_a_cluster_suffice_while_a_slot_moves() {
    let cluster = Cluster::start().unwrap();
    let rules = documented();
    for port in cluster.ports() {
        allow(port, &[rules[0].clone(), rules[1].clone()].concat());
    }
    let url = cluster.url().replace("redis-cluster://", "redis-cluster://quotagate:s3cret@");
    let store = open(&url).await;
    let ask = take("moving", 99, 1);
    assert_eq!(numbers(&*store, &ask).await, (1, 1));
    let cli = |node: usize, command: &[&str]| cluster.cli(node, command).unwrap().lines().trim().to_owned();
    let slot = cli(0, &["CLUSTER", "KEYSLOT", "moving"]);
    let from = (0..3).find(|i| slot.parse::<usize>().unwrap() < (i + 1) * 16384 / 3).unwrap();
    let to = (from + 1) % 3;
    let [source, target] = [from, to].map(|node| cli(node, &["CLUSTER", "MYID"]));
    cli(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
    cli(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    assert_eq!(numbers(&*store, &ask).await, (1, 2), "an override that is not there is looked for on both");
    for key in cli(from, &["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).lines() {
        cli(from, &["MIGRATE", "127.0.0.1", &cluster.ports()[to].to_string(), key, "0", "5000"]);
    }
    assert_eq!(numbers(&*store, &ask).await, (1, 3), "asked for where it is now");
    for node in [to, from] {
        cli(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
    }
    assert_eq!(one(&*store, &ask).await.used, 4);
    until("the map is read again", Duration::from_secs(5), async || {
        (one(&*store, &take("other", 99, 1)).await.granted == 1).then_some(())
    })
    .await;
    for port in cluster.ports() {
        assert_eq!(refused(port), "", "on port {port}");
    }
}
