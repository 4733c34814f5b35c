//! `quotagate domains` and `quotagate history`.

use quotagate_support::redis::Redis;
use quotagate_support::store::StoreOptions;
use serde_json::json;

use super::fleet::{Fleet, row};

/// A store that has not seen the domain `old`, which another store recorded this long ago.
fn with_old_domain(seconds: u64) -> Fleet {
    let redis = Redis::start().unwrap();
    let now = redis.cli(&["TIME"]).unwrap();
    let now: u64 = now.lines().lines().next().unwrap().parse().unwrap();
    let seen_ms = (now - seconds) * 1000;
    let policy = json!({"name": "p", "quota": 5, "window_s": 60, "stagger": false, "mode": "enforce",
        "on_failure": "allow", "seen_ms": seen_ms});
    redis
        .cli(&[
            "HSET",
            "qg:domains:{*}",
            "old",
            &json!({"seen_ms": seen_ms, "since_ms": seen_ms}).to_string(),
        ])
        .unwrap();
    redis.cli(&["HSET", "qg:policies:{old}", "p", &policy.to_string()]).unwrap();
    redis.cli(&["SET", "qg:old:p:{jwt.sub=a}:1", "7"]).unwrap();
    Fleet::with(&StoreOptions::new(&redis.url()), Some(redis))
}

#[test]
fn forget_removes_a_domain_but_not_its_counters() {
    let fleet = with_old_domain(3600);
    let list = fleet.done(&["domains"]);
    let old = row(&list.out, "old");
    assert_eq!(old[..5], ["old", "1", "0", "0", "0"], "{list:?}");
    assert!(old[5].starts_with("1 h ") && old[5].ends_with("ago"), "{list:?}");
    assert_eq!(row(&list.out, "shop")[..4], ["shop", "3", "0", "0"], "{list:?}");
    assert_eq!(fleet.json(&["domains"])[0]["domain"], json!("old"));

    let done = fleet.done(&["domains", "forget", "old", "--by", "bob"]);
    assert_eq!(done.out, "forgot domain old\n");
    assert!(done.err.contains("counters end with their windows"), "{done:?}");
    assert!(
        !fleet.done(&["domains"]).out.contains("old")
            && !fleet.done(&["dial", "list"]).out.contains("old")
    );
    let redis = fleet.redis.as_ref().unwrap();
    assert_eq!(redis.cli(&["EXISTS", "qg:policies:{old}"]).unwrap().lines(), "0");
    assert_eq!(redis.cli(&["GET", "qg:old:p:{jwt.sub=a}:1"]).unwrap().lines(), "7");
    // The only other domain needs no flag.
    fleet.done(&["dial", "set", "per-key", "--mode", "off"]);
    assert!(fleet.store.log().contains("forgot domain old, by bob, in old"));

    let again = fleet.run(&["domains", "forget", "old"]);
    assert!(again.status == 1 && again.err.contains("Known: shop"), "{again:?}");
    let near = fleet.run(&["domains", "forget", "shp"]);
    assert!(near.status == 1 && near.err.contains("Did you mean shop?"), "{near:?}");
    fleet.tell("old", &["p"]);
    assert!(fleet.done(&["history", "--domain", "old"]).out.contains("forgot domain old"));
}

#[test]
fn forget_refuses_a_domain_in_use() {
    let fleet = with_old_domain(60);
    for (name, ago) in [("old", "1m"), ("shop", "")] {
        let done = fleet.run(&["domains", "forget", name]);
        let said = format!("proxies reported {name} {ago}");
        assert!(
            done.status == 1 && done.err.contains(&said) && done.err.contains("after 15m"),
            "{done:?}"
        );
    }
    let fleet = with_old_domain(3600);
    fleet.done(&["dial", "set", "p", "--mode", "off", "--domain", "old"]);
    fleet.done(&["override", "set", "p", "jwt.sub=a", "--blocked", "--domain", "old"]);
    let done = fleet.run(&["domains", "forget", "old"]);
    assert!(done.status == 1 && done.err.contains("dials (1) or overrides (1)"), "{done:?}");
    assert!(done.err.contains("clear them first"), "{done:?}");
    assert_eq!(row(&fleet.done(&["domains"]).out, "old")[1..4], ["1", "1", "1"]);
}

#[test]
fn history_shows_the_newest_change_first() {
    let fleet = Fleet::memory();
    let none = fleet.done(&["history"]);
    assert!(none.out.is_empty() && none.err.contains("There are no changes yet"), "{none:?}");
    fleet.done(&["dial", "set", "per-key", "--quota", "1,000", "--by", "ann"]);
    fleet.done(&["dial", "clear", "per-key", "--by", "bob"]);
    let lines: Vec<String> = fleet.done(&["history"]).out.lines().map(str::to_owned).collect();
    assert!(lines[1].contains("bob") && lines[1].ends_with("cleared dial per-key"), "{lines:?}");
    assert!(
        lines[2].contains("ann") && lines[2].ends_with("set dial per-key: quota 1000"),
        "{lines:?}"
    );
    assert_eq!(fleet.done(&["history", "--limit", "1"]).out.lines().count(), 1 + 1);
    assert_eq!(fleet.json(&["history"])[0]["by"], json!("bob"));
}

#[test]
fn an_empty_list_of_domains_explains_when_filters_report() {
    let fleet = Fleet::silent(&StoreOptions::new("memory:"), None);
    let done = fleet.done(&["domains"]);
    assert!(
        done.out.is_empty() && done.err.contains("No filter has reported a domain yet"),
        "{done:?}"
    );
}

#[test]
fn domain_flag_selects_one_domain() {
    let fleet = with_old_domain(3600);
    let list = fleet.done(&["domains", "--domain", "old"]);
    assert!(list.out.contains("old") && !list.out.contains("shop"), "{list:?}");
    let json = fleet.json(&["domains", "--domain", "shop"]);
    assert!(
        json.as_array().map(Vec::len) == Some(1) && json[0]["domain"] == json!("shop"),
        "{json}"
    );
    let unknown = fleet.run(&["domains", "--domain", "shp"]);
    assert!(unknown.status == 1 && unknown.err.contains("Did you mean shop?"), "{unknown:?}");
    assert!(unknown.err.contains("Known: old, shop"), "{unknown:?}");
}

#[test]
fn history_shows_all_domains_without_the_flag() {
    let fleet = with_old_domain(3600);
    fleet.done(&["dial", "set", "per-key", "--mode", "off", "--domain", "shop"]);
    fleet.done(&["dial", "set", "p", "--quota", "7", "--domain", "old"]);
    fleet.done(&["dial", "clear", "per-key", "--domain", "shop"]);
    let all = fleet.json(&["history"]);
    let domains: Vec<_> =
        all.as_array().unwrap().iter().map(|change| change["domain"].clone()).collect();
    assert_eq!(domains, [json!("shop"), json!("old"), json!("shop")], "{all}");
    let table = fleet.done(&["history", "--limit", "2"]);
    assert_eq!(table.out.lines().count(), 1 + 2, "{table:?}");
    assert!(table.out.lines().nth(2).unwrap().contains("  old  "), "{table:?}");
    let one = fleet.done(&["history", "--domain", "old"]);
    assert!(one.out.lines().count() == 1 + 1 && !one.out.contains("shop"), "{one:?}");
}
