//! `quotagate dial`.

use quotagate_support::store::StoreOptions;
use quotagate_support::wait;
use serde_json::{Value, json};

use super::fleet::{Fleet, PATIENCE, command, row, run, undo};

#[test]
fn a_dial_is_set_shown_and_cleared() {
    for (fleet, durable) in [(Fleet::memory(), false), (Fleet::redis(), true)] {
        let list = fleet.done(&["dial", "list"]);
        assert!(
            list.out.starts_with("shop: 3 policies, 0 dials, 0 overrides (kept in "),
            "{list:?}"
        );
        assert_eq!(
            row(&list.out, "per-caller"),
            ["per-caller", "1,000", "366 d", "enforce", "allow"]
        );
        assert!(list.err.contains("quotagate dial set"), "{list:?}");

        let set = fleet.done(&["dial", "set", "per-caller", "--quota", "5000", "--for", "1h"]);
        assert!(
            set.out.contains("per-caller")
                && set.out.contains("5000")
                && set.out.lines().count() == 1,
            "{set:?}"
        );
        assert!(
            set.err.contains("within 10 s")
                && set.err.contains(
                    "quota: 5,000 units per window for each partition, counted over all proxies"
                ),
            "{set:?}"
        );
        assert!(
            set.err.contains("ends in 1 h") && set.err.contains("quotagate dial clear per-caller")
        );
        assert_eq!(set.err.contains("in memory"), !durable, "{set:?}");

        // Fields that are not given keep their values. A change of their end is refused.
        let more = fleet.run(&["dial", "set", "per-caller", "--mode", "shadow", "--by", "bob"]);
        assert!(
            more.status == 1
                && more.err.contains("--for: per-caller has quota 5000 for another ")
                && more.err.contains(", and without a time that would stay until it is cleared")
                && more.err.contains("set quota 5000 again in the same change"),
            "{more:?}"
        );
        let both =
            ["dial", "set", "per-caller", "--mode", "shadow", "--quota", "5000", "--by", "bob"];
        let more = fleet.done(&both);
        assert!(
            more.err.contains("none is refused") && more.err.contains("until it is cleared"),
            "{more:?}"
        );
        let list = fleet.done(&["dial", "list"]);
        assert_eq!(
            row(&list.out, "per-caller"),
            [
                "per-caller",
                "1,000 → 5,000",
                "366 d",
                "enforce → shadow",
                "allow",
                "when cleared",
                "bob"
            ]
        );
        assert!(list.out.starts_with("shop: 3 policies, 1 dial,"), "{list:?}");
        fleet.done(&["dial", "set", "*", "--on-failure", "deny"]);
        let list = fleet.done(&["dial", "list"]);
        // Each policy shows the dial of all policies.
        assert_eq!(row(&list.out, "per-key")[3..5], ["enforce", "allow → deny (*)"], "{list:?}");
        let all = row(&list.out, "*");
        assert_eq!(all[..3], ["*", "deny", "when cleared"], "{all:?}");
        assert!(all[3].starts_with("ann@"), "{all:?}");

        fleet.done(&["dial", "clear", "*"]);
        shows_each_dial_with_its_own_end(&fleet);
        let cleared = fleet.done(&["dial", "clear", "per-caller"]);
        assert!(cleared.err.contains("within 10 s"), "{cleared:?}");
        let again = fleet.run(&["dial", "clear", "per-caller"]);
        assert_eq!(again.status, 1, "{again:?}");

        let history = fleet.done(&["history"]);
        assert_eq!(history.out.lines().count(), 1 + 7, "{history:?}");
        assert!(
            history.out.lines().nth(1).unwrap().contains("cleared dial per-caller"),
            "{history:?}"
        );
        assert_eq!(fleet.done(&["history", "--limit", "2"]).out.lines().count(), 1 + 2);
    }
}

#[test]
fn setting_a_quota_names_its_partitions_and_the_tiers_it_replaces() {
    let fleet = Fleet::silent(&StoreOptions::new("memory:"), None);
    let entry = |name: &str| json!({"name": name, "forms": [name]});
    for (partition_by, tiers, whom) in [
        (json!([entry("caller"), entry("method")]), true, "each caller and method"),
        (json!([]), false, "all requests together"),
    ] {
        let policy = json!({"name": "p", "quota": 10, "window_s": 60, "stagger": false, "mode": "enforce",
            "on_failure": "allow", "partition_by": partition_by, "tiers": tiers});
        fleet.report("shop", vec![serde_json::from_value(policy).unwrap()]);
        let set = fleet.done(&["dial", "set", "p", "--quota", "5000"]);
        let says = format!("quota: 5,000 units per window for {whom}, counted over all proxies");
        assert!(set.err.contains(&says), "{set:?}");
        assert_eq!(
            set.err.contains("replaces the policy's tiers and quota_from"),
            tiers,
            "{set:?}"
        );
    }
}

/// `per-caller` has a dial with a quota and the mode `shadow`, without an end.
fn shows_each_dial_with_its_own_end(fleet: &Fleet) {
    fleet.done(&[
        "dial",
        "set",
        "*",
        "--mode",
        "off",
        "--on-failure",
        "deny",
        "--for",
        "1h",
        "--by",
        "ann",
    ]);
    let list = fleet.done(&["dial", "list"]);
    let per_caller = [
        "per-caller",
        "1,000 → 5,000",
        "366 d",
        "enforce → shadow",
        "allow → deny (*)",
        "when cleared, in 1 h (*)",
        "bob, ann (*)",
    ];
    assert_eq!(row(&list.out, "per-caller"), per_caller, "{list:?}");
    let per_key = [
        "per-key",
        "1,000",
        "366 d",
        "enforce → off (*)",
        "allow → deny (*)",
        "in 1 h (*)",
        "ann (*)",
    ];
    assert_eq!(row(&list.out, "per-key"), per_key, "{list:?}");
    fleet.done(&["dial", "clear", "*"]);
}

#[test]
fn a_dial_is_restored_by_the_printed_command() {
    let fleet = Fleet::memory();
    let dial = || fleet.json(&["dial", "list"])[0]["dials"][0].clone();
    fleet.done(&["dial", "set", "per-key", "--quota", "5000", "--by", "bob"]);
    let timed = fleet.run(&["dial", "set", "per-key", "--mode", "shadow", "--for", "1h"]);
    assert!(timed.status == 1 && timed.err.contains("quota 5000 until it is cleared"), "{timed:?}");
    let more = fleet.done(&["dial", "set", "per-key", "--mode", "shadow"]);
    assert!(more.err.contains("Before, bob had set quota 5,000, until cleared."), "{more:?}");
    assert!(more.err.contains("These fields keep their values: quota 5,000."), "{more:?}");
    // Only clearing the whole dial clears the mode.
    assert!(
        more.err
            .contains("quotagate dial clear per-key && quotagate dial set per-key --quota 5000\n"),
        "{more:?}"
    );
    undo(&fleet, &more);
    assert_eq!(
        (&dial()["quota"], &dial()["mode"], &dial()["remaining_ms"]),
        (&json!(5000), &Value::Null, &Value::Null)
    );

    fleet.done(&[
        "dial",
        "set",
        "per-key",
        "--quota",
        "5000",
        "--on-failure",
        "deny",
        "--for",
        "1h",
    ]);
    let other = fleet.done(&["dial", "set", "per-key", "--quota", "7", "--for", "2h"]);
    assert!(other.err.contains("quota 5,000, on_failure deny, for another 1 h."), "{other:?}");
    assert!(
        other.err.contains("These fields keep their values, for the same time: on_failure deny."),
        "{other:?}"
    );
    assert!(
        other.err.contains("Undo it (its time starts when you run that): quotagate dial set"),
        "{other:?}"
    );
    undo(&fleet, &other);
    assert_eq!((&dial()["quota"], &dial()["on_failure"]), (&json!(5000), &json!("deny")));
    assert!(dial()["remaining_ms"].as_u64() > Some(3_500_000));
    let all = fleet.done(&["dial", "set", "*", "--mode", "off"]);
    assert!(!all.err.contains("Before"), "{all:?}");
    undo(&fleet, &all);
    assert_eq!(fleet.json(&["dial", "list"])[0]["dials"].as_array().map(Vec::len), Some(1));
}

#[test]
fn undo_commands_have_the_flags_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("a token");
    std::fs::write(&token, "s3cret").unwrap();
    let token = token.to_str().unwrap();
    let fleet = Fleet::silent(&StoreOptions::new("memory:"), None);
    fleet.tell("shop", &["p"]);
    let admin = fleet.admin();
    let target = ["--admin", &admin, "--token-file", token, "--domain", "shop"];
    for (set, clear) in [
        (&["dial", "set", "p", "--mode", "off"][..], "dial clear p"),
        (&["override", "set", "p", "*", "--blocked"], "override clear p '*'"),
    ] {
        let done = run(&mut command(&[set, &target].concat()), b"");
        let expected =
            format!("quotagate {clear} --admin {admin} --token-file '{token}' --domain shop\n");
        assert!(done.status == 0 && done.err.ends_with(&expected), "{done:?}");
        // A variable needs no flag, since it is set for the next command, too.
        let mut by_variable = command(&[set, &["--admin", &admin]].concat());
        let done = run(by_variable.env("QUOTAGATE_ADMIN", &admin), b"");
        assert!(!done.err.contains("--admin") && !done.err.contains("--token-file"), "{done:?}");
    }
}

#[test]
fn json_is_the_answer_of_the_store() {
    let fleet = Fleet::redis();
    let set = fleet.json(&["dial", "set", "per-key", "--quota", "7", "--for", "1h"]);
    assert_eq!((&set["domain"], &set["durable"]), (&json!("shop"), &json!(true)), "{set}");
    let boards = fleet.json(&["dial", "list"]);
    let dial = &boards[0]["dials"][0];
    assert_eq!((&dial["policy"], &dial["quota"]), (&json!("per-key"), &json!(7)), "{boards}");
    let left = dial["remaining_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&left), "{boards}");
    let history = fleet.json(&["history"]);
    assert_eq!(history.as_array().map(Vec::len), Some(1), "{history}");
    assert_eq!(fleet.json(&["dial", "clear", "per-key"])["domain"], json!("shop"));
}

#[test]
fn a_dial_with_a_time_ends() {
    let fleet = Fleet::redis();
    fleet.done(&["dial", "set", "log-ins", "--mode", "off", "--for", "1s"]);
    let gone = || Ok(fleet.json(&["dial", "list"])[0]["dials"] == Value::Array(Vec::new()));
    wait::until_true("the dial has reverted", PATIENCE, gone).unwrap();
}

#[test]
fn unknown_names_are_reported_with_the_known_ones() {
    let fleet = Fleet::memory();
    let done = fleet.run(&["dial", "set", "per-calle", "--mode", "off"]);
    assert_eq!(done.status, 1, "{done:?}");
    assert!(done.err.contains("Did you mean per-caller?"), "{done:?}");
    assert!(done.err.contains("Known: ") && done.err.contains("log-ins"), "{done:?}");
    let done = fleet.run(&["dial", "set", "zzz", "--mode", "off"]);
    assert!(
        done.status == 1 && !done.err.contains("Did you mean") && done.err.contains("per-key"),
        "{done:?}"
    );
    let done = fleet.run(&["dial", "list", "--domain", "shopp"]);
    assert!(done.status == 1 && done.err.contains("Did you mean shop?"), "{done:?}");
}

#[test]
fn a_policy_that_does_not_exist_is_an_error() {
    let fleet = Fleet::memory();
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
    for arguments in [
        &["top", "--policy", "per-calle"][..],
        &["override", "list", "--policy", "per-calle"],
        &["override", "clear", "per-calle", "jwt.sub=alice"],
        &["dial", "clear", "per-calle"],
    ] {
        let done = fleet.run(arguments);
        assert!(done.status == 1 && done.out.is_empty(), "{done:?}");
        assert!(
            done.err.contains("Did you mean per-caller?") && done.err.contains("log-ins"),
            "{done:?}"
        );
    }
    let done = fleet.run(&["top", "--domain", "shp"]);
    assert!(done.status == 1 && done.err.contains("Did you mean shop?"), "{done:?}");
    // A policy without counters is known.
    fleet.done(&["top", "--policy", "log-ins"]);
    fleet.done(&["override", "list", "--policy", "log-ins"]);
}

#[test]
fn several_domains_need_the_flag() {
    let fleet = Fleet::memory();
    fleet.tell("bank", &["transfers"]);
    let list = fleet.done(&["dial", "list"]);
    assert!(
        list.out.contains("bank: 1 policy,") && list.out.contains("shop: 3 policies,"),
        "{list:?}"
    );
    let done = fleet.run(&["dial", "set", "transfers", "--mode", "off"]);
    assert!(
        done.status == 1 && done.err.contains("--domain") && done.err.contains("bank"),
        "{done:?}"
    );
    let done = fleet.done(&["dial", "set", "transfers", "--mode", "off", "--domain", "bank"]);
    assert!(done.err.contains("quotagate dial clear transfers --domain bank"), "{done:?}");
    assert!(!fleet.done(&["dial", "list", "--domain", "bank"]).out.contains("shop"));
}

#[test]
fn an_empty_list_explains_when_filters_report() {
    let fleet = Fleet::silent(&StoreOptions::new("memory:"), None);
    let done = fleet.done(&["dial", "list"]);
    assert!(
        done.out.is_empty() && done.err.contains("No filter has reported its policies yet"),
        "{done:?}"
    );
}

#[test]
fn hostile_names_are_escaped() {
    let fleet = Fleet::memory();
    let evil = "e\u{1b}[2J\u{9b}31m\u{202e}vil\nroot";
    fleet.done(&["dial", "set", "per-key", "--quota", "1", "--by", evil]);
    for arguments in [&["dial", "list"][..], &["history"]] {
        let done = fleet.done(arguments);
        assert!(!done.out.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{done:?}");
        assert!(
            done.out.contains("vil") && !done.out.lines().any(|line| line.starts_with("root")),
            "{done:?}"
        );
    }
    let wrong = fleet.run(&["dial", "set", "\u{1b}[31mx", "--mode", "off"]);
    assert!(wrong.status == 1 && !wrong.err.contains('\u{1b}'), "{wrong:?}");
}

#[test]
fn a_policy_is_enforced_for_a_share_of_its_partitions() {
    let fleet = Fleet::memory();
    let set = fleet.done(&["dial", "set", "per-key", "--percent", "5", "--only", "jwt.sub=ann"]);
    let says = "mode: requests over the quota are refused for 5 % of the partitions and jwt.sub=ann; the rest is in mode shadow";
    assert!(set.err.contains(says), "{set:?}");
    let list = fleet.done(&["dial", "list"]);
    let mode = "enforce → shadow, enforced for 5 % and jwt.sub=ann";
    assert_eq!(row(&list.out, "per-key")[3], mode, "{list:?}");
    let enforced = fleet.done(&["dial", "set", "per-key", "--mode", "enforce"]);
    assert!(
        enforced.err.contains("had set enforced for 5 %, enforced for jwt.sub=ann"),
        "{enforced:?}"
    );
    undo(&fleet, &enforced);
    assert_eq!(row(&fleet.done(&["dial", "list"]).out, "per-key")[3], mode);
    // Who is in shadow mode, who is not.
    for (partition, mode) in [("jwt.sub=ann", "enforce"), ("jwt.sub=bob", "shadow")] {
        fleet.reserve("per-key", partition, 10, 1);
        assert_eq!(row(&fleet.done(&["usage", partition]).out, "shop")[2], mode);
    }
    for (arguments, why) in [
        (&["--percent", "0"][..], "--percent"),
        (&["--percent", "101"], "--percent"),
        (&["--only", "ann"], "lacks its label"),
        (&["--only", "header.x-key=secret"], "--plain"),
    ] {
        let wrong = fleet.run(&[&["dial", "set", "per-key"], arguments].concat());
        assert!(wrong.status == 2 && wrong.err.contains(why), "{wrong:?}");
        assert!(!wrong.err.contains("=secret"), "{wrong:?}");
    }
    let wrong = fleet.run(&["dial", "set", "per-key", "--mode", "enforce", "--percent", "5"]);
    assert!(wrong.status == 1 && wrong.err.contains("is shadow for the rest"), "{wrong:?}");
}
