//! An operator publishes rules at a store, and a service on the same Redis follows them.

use std::time::Duration;

use quotagate_support::http;
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::wait;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PATIENCE, Service};
use crate::operate::fleet::{Done, command, run};

/// A service, and a store at which operators publish.
struct Rig {
    service: Service,
    store: StoreProcess,
    files: TempDir,
}

fn descriptors(limit: u64) -> String {
    format!(
        "- {{key: k, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}\n\
         - {{key: same, rate_limit: {{unit: year, requests_per_unit: 2}}}}\n"
    )
}

impl Rig {
    fn start(redis: &Redis) -> Self {
        let service = Service::start(&redis.url(), &descriptors(50), &["--published"]);
        let options = StoreOptions::new(&redis.url()).program(env!("CARGO_BIN_EXE_quotagate"));
        let store = StoreProcess::start_with(&options).unwrap();
        let ready = || Ok(http::get(store.admin_port(), "/readyz")?.status == 200);
        wait::until_true("the store", PATIENCE, ready).unwrap();
        Self { service, store, files: tempfile::tempdir().unwrap() }
    }

    /// Runs `quotagate document ARGUMENTS` at the store.
    fn document(&self, arguments: &[&str]) -> Done {
        let admin = format!("127.0.0.1:{}", self.store.admin_port());
        let arguments = [&["document"], arguments].concat();
        run(command(&arguments).env("QUOTAGATE_ADMIN", admin), b"")
    }

    fn done(&self, arguments: &[&str]) -> Done {
        let done = self.document(arguments);
        assert_eq!(done.status, 0, "{arguments:?}: {done:?}");
        done
    }

    /// Publishes these descriptors.
    fn publish(&self, descriptors: &str, further: &[&str]) -> Done {
        let path = self.files.path().join("rules.yaml");
        std::fs::write(&path, format!("domain: d\ndescriptors:\n{descriptors}")).unwrap();
        let arguments = ["publish", path.to_str().unwrap(), "--domain", "d", "--yes"];
        self.document(&[&arguments, further].concat())
    }

    /// The limit of the key `k`, which this does not count.
    fn limit(&self) -> Value {
        let entries = json!([{"key": "k", "value": "v"}]);
        let look = json!({"domain": "d", "descriptors": [{"entries": entries, "hitsAddend": 0}]});
        let answer = self.service.post(look.to_string()).json().unwrap_or_default();
        answer["statuses"][0]["currentLimit"]["requestsPerUnit"].clone()
    }

    fn wait_for_limit(&self, limit: u64) {
        wait::until_true(&format!("the limit {limit}"), PATIENCE, || Ok(self.limit() == limit))
            .unwrap();
    }

    /// Waits until the store's status has a row for each of these: the number that a service has in
    /// force, and what that means. Returns the status.
    fn wait_for_rows(&self, rows: &[(&str, &str)]) -> String {
        wait::until(&format!("the services {rows:?}"), PATIENCE, || {
            let status = self.done(&["status", "--domain", "d"]).out;
            let table = status.split_once(" service ").map(|(_, table)| table).unwrap_or_default();
            let mut known = table.lines().skip(1).filter(|line| line.starts_with(' '));
            let has = |line: &str, (number, state): (&str, &str)| {
                line.trim_end().ends_with(&format!("  {state}"))
                    && line.split_whitespace().nth(3) == Some(number)
            };
            let all = rows.iter().all(|row| known.next().is_some_and(|line| has(line, *row)));
            Ok((all && known.next().is_none()).then_some(status))
        })
        .unwrap()
    }

    /// The rules in force.
    fn in_force(&self) -> String {
        let log = self.service.process.log();
        let debug = log.split_once(" (HTTP) and http://127.0.0.1:").unwrap().1;
        let port = debug.split_once(' ').unwrap().0.parse().unwrap();
        http::get(port, "/rlconfig").unwrap().text()
    }
}

#[test]
fn published_rules_are_enforced_and_counts_of_the_others_go_on() {
    let redis = Redis::start().unwrap();
    let rig = Rig::start(&redis);
    rig.wait_for_limit(50);
    for _ in 0..3 {
        assert!(rig.service.passes("k", "v"));
    }
    assert!(rig.service.passes("same", "v"));

    let faulty = rig.publish(&descriptors(3).replace("year", "windw"), &[]);
    assert_eq!(faulty.status, 1, "{faulty:?}");
    for fault in ["rules.yaml:3: descriptors[0].rate_limit.unit: ", "\"windw\" is no unit"] {
        assert!(faulty.err.contains(fault), "{faulty:?}");
    }
    let listed = rig.done(&["list", "--domain", "d"]);
    assert!(listed.err.contains("No document was published in d"), "{listed:?}");
    let share = rig.publish(&descriptors(3), &["--percent", "10"]);
    assert!(share.status == 2 && share.err.contains("--percent is for policy"), "{share:?}");

    let made = rig.publish(&descriptors(3), &["--note", "half"]);
    assert_eq!(made.status, 0, "{made:?}");
    assert!(made.out.starts_with("published rule file number 1 ("), "{made:?}");
    assert!(made.err.contains("go from their own to these, with 2 rules"), "{made:?}");
    rig.wait_for_limit(3);
    assert!(!rig.service.passes("k", "v"), "three were used before");
    assert!(rig.service.passes("same", "v") && !rig.service.passes("same", "v"));

    let changed = rig.publish(&descriptors(9), &[]);
    assert_eq!(changed.status, 0, "{changed:?}");
    assert!(changed.err.contains("k: keeps its count"), "{changed:?}");
    assert!(changed.err.contains("limit: 3 per year -> 9 per year"), "{changed:?}");
    rig.wait_for_limit(9);
    let shown = rig.done(&["show", "1", "--domain", "d"]);
    assert!(shown.out.starts_with("domain: d\ndescriptors:\n- {key: k"), "{shown:?}");
    let diff = rig.done(&["diff", "1", "2", "--domain", "d"]);
    assert!(diff.out.contains("unchanged: same"), "{diff:?}");
    let status = rig.done(&["status", "--domain", "d"]);
    assert!(status.out.contains("number 2 (rules "), "{status:?}");
    let other = Service::start(&redis.url(), &descriptors(50), &[]);
    rig.wait_for_rows(&[("2", "published"), ("-", "its own, without --published")]);
    drop(other);
    let back = rig.done(&["rollback", "--domain", "d", "--yes"]);
    assert!(back.out.starts_with("published rule file number 3 ("), "{back:?}");
    rig.wait_for_limit(3);

    // What a newer store could publish, or what was damaged.
    let record = json!({"number": 4, "digest": "0123456789ab", "kind": "rules", "by": "-",
        "at_ms": 1, "policies": 2});
    let (record, text) = (record.to_string(), json!("domain: d\ndescriptors: []\n").to_string());
    redis.cli(&["HSET", "qg:texts:{d}", "4", &text]).unwrap();
    redis.cli(&["HSET", "qg:documents:{d}", "4", &record, "#last", &record]).unwrap();
    redis.cli(&["HSET", "qg:dials:{d}", "#version", "9-1"]).unwrap();
    let status = rig.wait_for_rows(&[("3", "refuses number 4")]);
    assert!(status.contains("number 4 of d have faults, and the rules before stay"), "{status}");
    assert_eq!(rig.limit(), 3);

    let withdrawn = rig.done(&["withdraw", "--domain", "d", "--yes"]);
    assert!(withdrawn.err.contains("Rate limit services that run with --published"));
    rig.wait_for_limit(50);
    assert!(rig.service.passes("k", "v"));
    assert!(!rig.service.passes("same", "v"), "its rule never changed");
    rig.wait_for_rows(&[("-", "its own")]);
}

#[test]
fn last_rules_stay_while_redis_is_frozen_and_a_new_service_takes_them_up() {
    let mut redis = Redis::start().unwrap();
    let rig = Rig::start(&redis);
    assert_eq!(rig.publish(&descriptors(3), &[]).status, 0);
    rig.wait_for_limit(3);
    redis.freeze().unwrap();
    // Several looks fail meanwhile.
    std::thread::sleep(Duration::from_secs(5));
    assert!(rig.in_force().contains("d.k: unit=YEAR requests_per_unit=3,"), "{}", rig.in_force());
    redis.thaw().unwrap();
    rig.wait_for_limit(3);
    assert!(!rig.service.process.log().contains("the service's own are in force"));
    wait::until_true("the next rules", PATIENCE, || {
        Ok(rig.publish(&descriptors(4), &[]).status == 0)
    })
    .unwrap();
    rig.wait_for_limit(4);

    let other = Rig::start(&redis);
    other.wait_for_limit(4);
    assert!(other.service.process.log().contains("rules number 2 ("));
    // Without any record, it is lost and not withdrawn.
    redis.cli(&["DEL", "qg:documents:{d}", "qg:texts:{d}", "qg:dials:{d}"]).unwrap();
    wait::until_true("the loss", PATIENCE, || {
        let status = rig.done(&["status", "--domain", "d"]);
        Ok(status.err.contains("it has no record of number 2, which was in force"))
    })
    .unwrap();
    // Longer than the service waits before it takes an earlier number up.
    std::thread::sleep(Duration::from_secs(12));
    assert!(rig.limit() == 4 && other.limit() == 4);
    rig.done(&["withdraw", "--domain", "d", "--yes"]);
    rig.wait_for_limit(50);
}
