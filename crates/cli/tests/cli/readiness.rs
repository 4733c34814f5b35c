//! `/readyz`, `quotagate_store_ready` and the log while Redis answers but cannot count.

use std::thread::sleep;
use std::time::{Duration, Instant};

use quotagate_support::cluster::Cluster;
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::{http, ports, wait};

const LIMIT: Duration = Duration::from_secs(20);

fn start(url: &str) -> StoreProcess {
    let options = StoreOptions::new(url).program(env!("CARGO_BIN_EXE_quotagate"));
    StoreProcess::start_with(&options).unwrap()
}

/// The status and the text of `/readyz` with this query.
fn readiness(store: &StoreProcess, query: &str) -> (u16, String) {
    let reply = http::get(store.admin_port(), &format!("/readyz{query}")).unwrap();
    (reply.status, reply.text())
}

/// Waits until the store is ready, or is not ready for this reason.
fn wait_until(store: &StoreProcess, status: u16, reason: &str) {
    let what = format!("/readyz answers {status} {reason}");
    let done = wait::until_true(&what, LIMIT, || {
        let (now, text) = readiness(store, "");
        Ok(now == status && text.contains(reason))
    });
    done.unwrap_or_else(|error| panic!("{error:#}\n{:?}\n{}", readiness(store, ""), store.log()));
    let metrics = http::get(store.admin_port(), "/metrics").unwrap().text();
    let ready = u8::from(status == 200);
    assert!(
        metrics.contains(&format!("quotagate_store_ready {ready}\n")),
        "{reason}: {ready} in the metrics"
    );
}

fn lines(store: &StoreProcess, words: &str) -> usize {
    store.log().lines().filter(|line| line.contains(words)).count()
}

#[test]
fn a_redis_that_refuses_writes_is_not_ready_and_is_logged_once() {
    let redis = Redis::start().unwrap();
    let store = start(&redis.url());
    wait_until(&store, 200, "");
    let cli = |command: &[&str]| drop(redis.cli(command).unwrap());
    let directory = redis.cli(&["CONFIG", "GET", "dir"]).unwrap().lines();
    let directory = directory.lines().last().unwrap();
    // A folder with its name prevents a snapshot from being saved.
    std::fs::create_dir(format!("{directory}/dump.rdb")).unwrap();
    for (code, begin, end) in [
        (
            "OOM",
            vec![&["CONFIG", "SET", "maxmemory", "1"][..]],
            &["CONFIG", "SET", "maxmemory", "0"],
        ),
        (
            "NOREPLICAS",
            vec![&["CONFIG", "SET", "min-replicas-to-write", "1"][..]],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
        (
            "MISCONF",
            vec![&["CONFIG", "SET", "save", "3600 1"][..], &["BGSAVE"]],
            &["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"],
        ),
    ] {
        begin.into_iter().for_each(cli);
        wait_until(&store, 503, code);
        assert_eq!(
            readiness(&store, "?partial").0,
            200,
            "{code}: it still answers for full counters"
        );
        // Further probes do not change that.
        sleep(Duration::from_millis(2500));
        assert_eq!(readiness(&store, "").0, 503);
        cli(end);
        wait_until(&store, 200, "");
        assert_eq!(lines(&store, &format!("({code})")), 1, "{}", store.log());
    }
    assert_eq!(lines(&store, "counts again"), 3, "{}", store.log());
    assert_eq!(lines(&store, "connected to"), 1, "{}", store.log());
    assert_eq!(redis.cli(&["DBSIZE"]).unwrap().lines(), "0", "no probe leaves a key");
}

#[test]
fn a_replica_is_named_and_stays_not_ready_until_it_is_a_primary() {
    let redis = Redis::start().unwrap();
    let gone = ports::free().unwrap().to_string();
    redis.cli(&["REPLICAOF", "127.0.0.1", &gone]).unwrap();
    // A writable replica would count on its own.
    for read_only in ["yes", "no"] {
        redis.cli(&["CONFIG", "SET", "replica-read-only", read_only]).unwrap();
        let store = start(&redis.url());
        let words = format!(
            "is a replica of 127.0.0.1:{gone}: point --store at the primary, or use redis-sentinel://"
        );
        wait_until(&store, 503, &words);
        let connections = || {
            let stats = redis.cli(&["INFO", "stats"]).unwrap().lines();
            let number =
                stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
            number.unwrap().trim().parse::<u32>().unwrap()
        };
        let (before, end) = (connections(), Instant::now() + Duration::from_secs(3));
        while Instant::now() < end {
            assert_eq!(readiness(&store, "").0, 503);
            sleep(Duration::from_millis(10));
        }
        assert!(connections() - before < 12, "{} connections in 3 s", connections() - before);
        assert_eq!(
            (lines(&store, "is a replica of"), lines(&store, "connected to")),
            (1, 0),
            "{}",
            store.log()
        );
    }
    let store = start(&redis.url());
    wait_until(&store, 503, "is a replica of");
    redis.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    wait_until(&store, 200, "");
    redis.cli(&["REPLICAOF", "127.0.0.1", &gone]).unwrap();
    wait_until(&store, 503, "is a replica of");
}

#[test]
fn a_cluster_node_is_not_ready_as_a_single_redis() {
    let cluster = Cluster::start().unwrap();
    for port in &cluster.ports()[..3] {
        let store = start(&format!("redis://127.0.0.1:{port}"));
        wait_until(&store, 503, "is a node of a Redis Cluster: use redis-cluster://");
        assert_eq!(readiness(&store, "?partial").0, 503);
    }
}

#[test]
fn a_redis_that_joins_a_cluster_is_not_ready_as_a_single_redis() {
    let cluster = Cluster::unformed(&[]).unwrap();
    let url = |port: &u16| format!("redis://127.0.0.1:{port}");
    let stores: Vec<_> = cluster.ports()[..3].iter().map(|port| start(&url(port))).collect();
    stores.iter().for_each(|store| wait_until(store, 503, "CLUSTERDOWN"));
    cluster.form().unwrap();
    stores.iter().for_each(|store| wait_until(store, 503, "is a node of a Redis Cluster"));
}

#[test]
fn a_cluster_without_one_primary_is_not_ready_and_serves_the_rest() {
    let mut cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"]).unwrap();
    let store = start(&cluster.url());
    wait_until(&store, 200, "");
    // The replica first, so that it does not take over.
    for node in [3, 0] {
        cluster.kill_node(node).unwrap();
    }
    let lost = cluster.ports()[0];
    wait_until(&store, 503, &format!("redis at 127.0.0.1:{lost}"));
    assert_eq!(readiness(&store, "?partial").0, 200, "{:?}", readiness(&store, "?partial"));
    for node in [1, 2, 4, 5] {
        cluster.kill_node(node).unwrap();
    }
    let down =
        wait::until_true("nothing is left", LIMIT, || Ok(readiness(&store, "?partial").0 == 503));
    down.unwrap_or_else(|error| panic!("{error:#}\n{}", store.log()));
}

#[test]
fn a_cluster_with_full_coverage_is_not_ready_without_one_primary() {
    let mut cluster = Cluster::start().unwrap();
    let store = start(&cluster.url());
    wait_until(&store, 200, "");
    for node in [3, 0] {
        cluster.kill_node(node).unwrap();
    }
    wait_until(&store, 503, "CLUSTERDOWN");
}
