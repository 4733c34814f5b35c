//! `quotagate dial`.

use quotagate_support::store::StoreOptions;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::fleet::{Fleet, PATIENCE, row};

#[test]
fn a_dial_is_set_shown_and_cleared() {
    for (fleet, durable) in [(Fleet::memory(), false), (Fleet::redis(), true)] {
        let list = fleet.done(&["dial", "list"]);
        assert!(list.out.starts_with("shop: 3 policies, 0 dials, 0 overrides (kept in "), "{list:?}");
        assert_eq!(row(&list.out, "per-caller"), ["per-caller", "1,000", "366 d", "enforce", "allow"]);
        assert!(list.err.contains("quotagate dial set"), "{list:?}");

        let set = fleet.done(&["dial", "set", "per-caller", "--quota", "5000", "--for", "1h"]);
        assert!(
            set.out.contains("per-caller") && set.out.contains("5000") && set.out.lines().count() == 1,
            "{set:?}"
        );
        assert!(
            set.err.contains("within 10 s") && set.err.contains("quota: 5,000 units a window"),
            "{set:?}"
        );
        assert!(
            set.err.contains("reverts by itself in 1 h")
                && set.err.contains("quotagate dial clear per-caller")
        );
        assert_eq!(set.err.contains("in memory"), !durable, "{set:?}");

        // What is not named stays; without a time it stays until it is cleared.
        let more = fleet.done(&["dial", "set", "per-caller", "--mode", "shadow", "--by", "bob"]);
        assert!(more.err.contains("none is refused") && more.err.contains("until it is cleared"), "{more:?}");
        let list = fleet.done(&["dial", "list"]);
        assert_eq!(
            row(&list.out, "per-caller"),
            ["per-caller", "1,000 → 5,000", "366 d", "enforce → shadow", "allow", "when cleared", "bob"]
        );
        assert!(list.out.starts_with("shop: 3 policies, 1 dial,"), "{list:?}");
        fleet.done(&["dial", "set", "*", "--on-failure", "deny"]);
        let list = fleet.done(&["dial", "list"]);
        // What all are dialled to shows in each.
        assert_eq!(row(&list.out, "per-key")[3..], ["enforce", "allow → deny"], "{list:?}");
        let all = row(&list.out, "*");
        assert_eq!(all[..3], ["*", "deny", "when cleared"], "{all:?}");
        assert!(all[3].starts_with("ann@"), "{all:?}");

        fleet.done(&["dial", "clear", "*"]);
        let cleared = fleet.done(&["dial", "clear", "per-caller"]);
        assert!(cleared.err.contains("within 10 s"), "{cleared:?}");
        let again = fleet.run(&["dial", "clear", "per-caller"]);
        assert_eq!(again.status, 1, "{again:?}");

        let history = fleet.done(&["dial", "list", "--history"]);
        assert_eq!(history.out.lines().count(), 1 + 5, "{history:?}");
        assert!(history.out.lines().nth(1).unwrap().contains("cleared dial per-caller"), "{history:?}");
        assert_eq!(fleet.done(&["dial", "list", "--history", "2"]).out.lines().count(), 1 + 2);
    }
}

#[test]
fn json_is_what_the_store_says() {
    let fleet = Fleet::redis();
    let set = fleet.json(&["dial", "set", "per-key", "--quota", "7", "--for", "1h"]);
    assert_eq!((&set["domain"], &set["durable"]), (&json!("shop"), &json!(true)), "{set}");
    let boards = fleet.json(&["dial", "list"]);
    let dial = &boards[0]["dials"][0];
    assert_eq!((&dial["policy"], &dial["quota"]), (&json!("per-key"), &json!(7)), "{boards}");
    let left = dial["remaining_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&left), "{boards}");
    let history = fleet.json(&["dial", "list", "--history"]);
    assert_eq!(history.as_array().map(Vec::len), Some(1), "{history}");
    assert_eq!(fleet.json(&["dial", "clear", "per-key"])["domain"], json!("shop"));
}

#[test]
fn a_dial_with_a_time_reverts() {
    let fleet = Fleet::redis();
    fleet.done(&["dial", "set", "log-ins", "--mode", "off", "--for", "1s"]);
    let gone = || Ok(fleet.json(&["dial", "list"])[0]["dials"] == Value::Array(Vec::new()));
    wait::until_true("the dial has reverted", PATIENCE, gone).unwrap();
}

#[test]
fn names_that_are_not_known_are_told_with_those_that_are() {
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
fn several_domains_are_told_apart() {
    let fleet = Fleet::memory();
    fleet.tell("bank", &["transfers"]);
    let list = fleet.done(&["dial", "list"]);
    assert!(list.out.contains("bank: 1 policy,") && list.out.contains("shop: 3 policies,"), "{list:?}");
    let done = fleet.run(&["dial", "set", "transfers", "--mode", "off"]);
    assert!(done.status == 1 && done.err.contains("--domain") && done.err.contains("bank"), "{done:?}");
    let done = fleet.done(&["dial", "set", "transfers", "--mode", "off", "--domain", "bank"]);
    assert!(done.err.contains("quotagate dial clear transfers --domain bank"), "{done:?}");
    assert!(!fleet.done(&["dial", "list", "--domain", "bank"]).out.contains("shop"));
}

#[test]
fn a_store_that_no_filter_has_asked_says_so() {
    let fleet = Fleet::silent(&StoreOptions::new("memory:"), None);
    let done = fleet.done(&["dial", "list"]);
    assert!(done.out.is_empty() && done.err.contains("No filter has told of its policies yet"), "{done:?}");
}

#[test]
fn hostile_names_never_reach_a_terminal_raw() {
    let fleet = Fleet::memory();
    let evil = "e\u{1b}[2J\u{9b}31m\u{202e}vil\nroot";
    fleet.done(&["dial", "set", "per-key", "--quota", "1", "--by", evil]);
    for arguments in [&["dial", "list"][..], &["dial", "list", "--history"]] {
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
