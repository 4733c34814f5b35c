//! `quotagate usage`, `override`, `reset` and `top`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use quotagate_protocol::dials::{PartitionEntry, PolicyReport, Refusals, Report};
use quotagate_protocol::{Calendar, Kind, Mode, Unit};
use quotagate_support::cluster::{Cluster, SlotMove};
use quotagate_support::store::StoreOptions;
use quotagate_support::wait;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::fleet::{self, Fleet, PATIENCE, command, paste, policy, row, run, undo};
use super::terminal::{typed, typed_after};

#[test]
fn usage_finds_a_partition_by_its_plain_or_encoded_name() {
    for fleet in [Fleet::memory(), Fleet::redis()] {
        fleet.reserve("per-caller", "jwt.sub=Ann%20Smith", 1000, 950);
        fleet.reserve("log-ins", "jwt.sub=Ann%20Smith", 3, 3);
        for name in ["jwt.sub=Ann Smith", "jwt.sub=Ann%20Smith"] {
            let usage = fleet.done(&["usage", name]);
            assert!(usage.err.contains("jwt.sub=Ann%20Smith"), "{usage:?}");
            let line = |policy: &str| {
                let line = usage
                    .out
                    .lines()
                    .find(|line| line.contains(policy))
                    .unwrap_or_else(|| panic!("{usage:?}"));
                line.split("  ")
                    .map(str::trim)
                    .filter(|cell| !cell.is_empty())
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            let row = ["shop", "per-caller", "enforce", "950", "1,000", "95 %"];
            assert_eq!(line("per-caller")[..6], row);
            assert_eq!(line("log-ins")[..6], ["shop", "log-ins", "enforce", "3", "3", "100 %"]);
        }
        let found = fleet.json(&["usage", "jwt.sub=Ann Smith"]);
        assert_eq!(found["found"].as_array().map(Vec::len), Some(2), "{found}");
        let absent_name = fleet.run(&["usage", "header.x-api-key=abc", "--plain"]);
        assert_eq!(absent_name.status, 1, "{absent_name:?}");
        assert!(absent_name.err.contains("quotagate top"), "{absent_name:?}");
        assert!(
            absent_name.err.contains("quotagate usage --secret header.x-api-key"),
            "{absent_name:?}"
        );
    }
}

#[test]
fn slots_are_shown_by_proxy_and_released() {
    const ONE: &str = "5f0c7e9ab3d21846";
    const OTHER: &str = "c41d9b7e02aa6f35";
    let fleet = Fleet::redis();
    let at_once = PolicyReport { kind: Kind::InFlight, window_s: 0, quota: 4, ..policy("at-once") };
    fleet.report("shop", vec![policy("per-caller"), at_once]);
    assert_eq!(fleet.hold("at-once", "jwt.sub=ann", 4, ONE, 3)["granted"], 3);
    assert_eq!(fleet.hold("at-once", "jwt.sub=ann", 4, OTHER, 3)["granted"], 1);
    // Live proxies hold the slots, so a command that frees them would only break the limit.
    let held = format!("Proxy {ONE} holds 3, the longest for");
    let why = fleet.done(&["why", "jwt.sub=ann"]).out;
    assert!(why.contains("4 of 4 slots are held") && why.contains(&held), "{why}");
    assert!(why.contains("A proxy that lives") && !why.contains("quotagate release"), "{why}");
    let usage = fleet.done(&["usage", "jwt.sub=ann"]);
    assert_eq!(row(&usage.out, "shop")[..6], ["shop", "at-once", "enforce", "4", "4", "100 %"]);
    assert!(usage.err.contains("jwt.sub=ann holds 4 slots of at-once"), "{usage:?}");
    assert!(usage.err.contains(&held), "{usage:?}");
    assert!(usage.err.contains(&format!("proxy {OTHER} holds 1")), "{usage:?}");

    let asks = fleet.run(&["release", "jwt.sub=ann"]);
    assert!(asks.status == 2 && asks.err.contains("add --yes"), "{asks:?}");
    let released = fleet.done(&["release", "jwt.sub=ann", "--proxy", ONE, "--yes"]);
    let done = format!("released 3 slots of proxy {ONE} of at-once jwt.sub=ann");
    assert!(released.out.contains(&done), "{released:?}");
    let again = fleet.run(&["release", "jwt.sub=ann", "--proxy", ONE, "--yes"]);
    assert!(again.status == 1 && again.err.contains("nothing to release"), "{again:?}");
    // A name that nothing fits is named, with what is held.
    fleet.hold("at-once", "jwt.sub=ann", 4, OTHER, 1);
    for flags in [["--policy", "atonce"], ["--policy", "per-caller"], ["--proxy", "gw-1"]] {
        let wrong = fleet.run(&[&["release", "jwt.sub=ann", "--yes"], &flags[..]].concat());
        let others = format!("Proxy {OTHER} holds 1");
        let fits_not = format!("no slot that jwt.sub=ann holds fits {}: ", flags.join(" "));
        assert!(wrong.err.contains("jwt.sub=ann holds 1 slot of at-once"), "{wrong:?}");
        assert!(wrong.err.contains(&others) && wrong.err.contains(&fits_not), "{wrong:?}");
        assert_eq!(wrong.status, 1, "{wrong:?}");
    }
    fleet.done(&["release", "jwt.sub=ann", "--policy", "at-once", "--yes"]);
    let history = fleet.done(&["history", "--policy", "at-once"]).out;
    assert!(history.contains(&done), "{history}");

    // What nobody can read counts as all slots.
    let bad = ["HSET", "qg:shop:at-once:{jwt.sub=ann}:slots", "a.0.x", "bad"];
    fleet.redis.as_ref().unwrap().cli(&bad).unwrap();
    assert_eq!(fleet.hold("at-once", "jwt.sub=ann", 4, ONE, 1)["granted"], 0);
    let usage = fleet.done(&["usage", "jwt.sub=ann"]);
    assert_eq!(row(&usage.out, "shop")[..5], ["shop", "at-once", "enforce", "0+", "4"]);
    let why = fleet.done(&["why", "jwt.sub=ann"]).out;
    assert!(why.contains("at-once in shop refuses jwt.sub=ann: 0+ of 4 slots are held."), "{why}");
    let commands: Vec<_> = why.lines().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(commands, ["  quotagate release jwt.sub=ann --policy at-once --domain shop"]);
    let released = fleet.done(&["release", "jwt.sub=ann", "--yes"]);
    let hidden = "1 worker of at-once cannot be shown. Its slots of jwt.sub=ann are freed, too.";
    assert!(released.err.contains(hidden), "{released:?}");
    let done = "released 0 slots of at-once jwt.sub=ann, and 1 entry that could not be read";
    assert!(released.out.contains(done), "{released:?}");
    assert_eq!(fleet.hold("at-once", "jwt.sub=ann", 4, ONE, 1)["granted"], 1);
    let reset = fleet.run(&["reset", "at-once", "jwt.sub=ann", "--yes"]);
    assert!(reset.status != 0 && reset.err.contains("quotagate release"), "{reset:?}");
    let reset = typed(&fleet, "reset at-once jwt.sub=ann", "", "n\n", &[]);
    let is_refused = reset.out.contains("quotagate release") && !reset.out.contains("[y/N]");
    assert!(is_refused && reset.status != 0, "refused before it asks: {reset:?}");
}

#[test]
fn why_offers_to_release_the_slots_of_silent_proxies() {
    let fleet = Fleet::redis();
    let at_once = PolicyReport { kind: Kind::InFlight, window_s: 0, quota: 4, ..policy("at-once") };
    fleet.report("shop", vec![at_once]);
    let proxies = ["5f0c7e9ab3d21846", "c41d9b7e02aa6f35"];
    let mut why = String::new();
    wait::until_true("both proxies are silent", PATIENCE, || {
        why = fleet.run(&["why", "jwt.sub=ann"]).out;
        if !why.contains("4 of 4 slots are held") {
            // At first, or if they were silent for so long that their slots are free.
            for proxy in proxies {
                fleet.hold("at-once", "jwt.sub=ann", 4, proxy, 2);
            }
        }
        Ok(why.matches("and has been silent for").count() == 2)
    })
    .unwrap();
    for proxy in proxies {
        let release = format!(
            "  quotagate release jwt.sub=ann --policy at-once --proxy {proxy} --domain shop\n"
        );
        assert!(why.contains(&release), "{why}");
    }
    assert!(!why.contains("A proxy that lives"), "{why}");
}

#[test]
fn release_fails_if_every_request_ends_while_it_asks() {
    const PROXY: &str = "5f0c7e9ab3d21846";
    let fleet = Fleet::redis();
    let limit = |name| PolicyReport { kind: Kind::InFlight, window_s: 0, quota: 4, ..policy(name) };
    fleet.report("shop", vec![limit("at-once"), limit("by-two")]);
    // Asks, and says yes after the requests of these policies have ended.
    let release = |ended: &[&str]| {
        for name in ["at-once", "by-two"] {
            assert_eq!(fleet.hold(name, "jwt.sub=ann", 4, PROXY, 2)["granted"], 2);
        }
        let end = || {
            for name in ended {
                fleet.done(&["release", "jwt.sub=ann", "--policy", name, "--yes"]);
            }
        };
        typed_after(&fleet, "release jwt.sub=ann", "[y/N]", "y\n", end)
    };
    let part = release(&["by-two"]);
    assert!(part.out.contains("nobody holds a slot of by-two"), "{part:?}");
    assert!(part.out.contains("released 2 slots of at-once"), "{part:?}");
    assert_eq!(part.status, 0, "{part:?}");
    let nothing = release(&["at-once", "by-two"]);
    for name in ["at-once", "by-two"] {
        let says = format!("nobody holds a slot of {name} for jwt.sub=ann now");
        assert!(nothing.out.contains(&says), "{nothing:?}");
    }
    assert_eq!(nothing.status, 1, "{nothing:?}");
}

#[test]
fn usage_lists_every_partition_of_a_policy() {
    let fleet = Fleet::redis();
    for (name, used) in [("ann", 3), ("bob", 9), ("eve,x", 5)] {
        fleet.reserve("per-caller", &format!("jwt.sub={}", name.replace(',', "%2C")), 10, used);
    }
    fleet.reserve("log-ins", "jwt.sub=ann", 3, 3);
    let all = ["usage", "--policy", "per-caller", "--all"];
    let listed = fleet.done(&all);
    assert!(listed.err.contains("per-caller counts 3 partitions"), "{listed:?}");
    let names: Vec<_> = listed.out.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(names, ["partition", "jwt.sub=bob", "jwt.sub=eve%2Cx", "jwt.sub=ann"]);
    let csv = fleet.done(&[&all[..], &["--csv"]].concat()).out;
    let lines: Vec<_> = csv.lines().collect();
    assert!(lines[0].starts_with("domain,policy,partition,mode,used,debt,quota,"), "{csv}");
    assert!(lines[1].starts_with("shop,per-caller,jwt.sub=bob,enforce,9,0,10,"), "{csv}");
    let json = fleet.json(&all);
    assert_eq!(json["found"].as_array().map(Vec::len), Some(3), "{json}");
    let none = fleet.done(&["usage", "--policy", "per-key", "--all"]);
    assert!(none.err.contains("per-key counts 0 partitions") && none.out.is_empty(), "{none:?}");
    for wrong in
        [&["usage", "--all"][..], &["usage", "--policy", "p"], &["usage", "a.b=c", "--csv"]]
    {
        assert_eq!(fleet.run(wrong).status, 2, "{wrong:?}");
    }
    let unknown = fleet.run(&["usage", "--policy", "per-calle", "--all"]);
    assert!(unknown.status != 0 && unknown.err.contains("per-caller"), "{unknown:?}");
}

#[test]
fn usage_shows_the_last_window_of_a_budget() {
    const DAY: u64 = 86_400;
    let fleet = Fleet::redis();
    let kind = Kind::Calendar(Calendar { unit: Unit::Day, time_zone: "UTC".into() });
    fleet.report("shop", vec![PolicyReport { kind, window_s: 0, ..policy("budget") }]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (start, end) = (now / DAY * DAY - DAY, now / DAY * DAY);
    let redis = fleet.redis.as_ref().unwrap();
    for (team, used) in [("a", "700"), ("b", "900")] {
        let key = format!("qg:shop:budget:{{header.x-team={team}}}:{start}-{end}");
        redis.cli(&["SET", &key, used]).unwrap();
        redis.cli(&["SET", &format!("{key}:quota"), "1000"]).unwrap();
    }
    let all = ["usage", "--policy", "budget", "--all"];
    assert!(fleet.done(&all).err.contains("budget counts 0 partitions"));
    let last = [&all[..], &["--last"]].concat();
    let listed = fleet.done(&last);
    assert!(listed.err.contains("budget counted 2 partitions in the last finished window"));
    let heading = listed.out.lines().next().unwrap();
    assert!(heading.contains("began (UTC)") && !heading.contains("ends in"), "{listed:?}");
    assert!(
        listed.out.lines().nth(1).unwrap().ends_with(" 00:00:00  header.x-team=b"),
        "{listed:?}"
    );
    let csv = fleet.done(&[&last[..], &["--csv"]].concat()).out;
    assert!(csv.lines().nth(1).unwrap().ends_with(&format!(",{start},{end}")), "{csv}");
    let json = fleet.json(&last);
    assert_eq!(json["found"][1]["span"], json!({"start_s": start, "end_s": end}), "{json}");
    let one = fleet.done(&["usage", "header.x-team=a", "--plain", "--last"]);
    assert!(one.out.contains("700") && one.out.contains("1,000"), "{one:?}");
    let fixed = fleet.run(&["usage", "--policy", "per-caller", "--all", "--last"]);
    assert!(fixed.status != 0 && fixed.err.contains("only calendar windows are kept"), "{fixed:?}");
    let none = fleet.run(&["usage", "header.x-team=c", "--plain", "--last"]);
    assert!(none.status == 1 && none.err.contains("at most 7 d"), "{none:?}");
}

#[test]
fn shard_that_is_away_is_named_and_hides_no_other() {
    let uncovered =
        ["--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes"];
    let mut cluster = Cluster::start_with(&uncovered).unwrap();
    let home = |name: &str| SlotMove::of(&cluster, name).unwrap().from();
    // Neither the domain nor the list of domains is there.
    let away = (0..3).find(|node| ![home("shop"), home("*")].contains(node)).unwrap();
    let name = |is_there| {
        let mut names = (0..).map(|n| format!("jwt.sub=n{n}"));
        names.find(|name| (home(name) == away) == is_there).unwrap()
    };
    let (near, far, port) = (name(false), name(true), cluster.ports()[away].to_string());
    let fleet = Fleet::with(&StoreOptions::new(&cluster.url()), None);
    let shop = ["--domain", "shop"];
    for partition in [&near, &far] {
        fleet.reserve("per-caller", partition, 10, 3);
        fleet.done(&["override", "set", "per-caller", partition, "--quota", "20"]);
    }
    // A domain whose dials, policies and history are all there.
    let lost = (0..).map(|n| format!("lost{n}")).find(|name| home(name) == away).unwrap();
    fleet.tell(&lost, &["theirs"]);
    let known = || Ok(fleet.done(&["domains"]).out.contains(&lost));
    wait::until_true("the domain to be recorded", fleet::PATIENCE, known).unwrap();
    cluster.kill_node(away).unwrap();
    fleet.done(&[&["dial", "set", "log-ins", "--quota", "7"][..], &shop].concat());
    let set = |partition| ["override", "set", "per-caller", partition, "--quota", "30"];
    fleet.done(&[&set(&near)[..], &shop].concat());
    let refused = fleet.run(&[&set(&far)[..], &shop].concat());
    assert!(refused.status == 3 && refused.err.contains(&port), "{refused:?}");
    for command in [
        &["usage", "--policy", "per-caller", "--all"][..],
        &["usage", "--policy", "per-caller", "--all", "--json"],
        &["usage", &near],
        &["override", "list"],
        &["override", "list", "--json"],
    ] {
        let part = fleet.run(&[command, &shop].concat());
        assert_eq!(part.status, 1, "{part:?}");
        assert!(part.out.contains(&near) && part.err.contains(&port), "{part:?}");
        assert!(part.err.contains("the answer may not be complete: "), "{part:?}");
    }
    let reset = fleet.run(&[&["reset", "per-caller", &far, "--yes"][..], &shop].concat());
    assert!(reset.status == 3 && reset.err.contains(&port), "{reset:?}");
    let reset = |partition| format!("reset per-caller {partition} --domain shop");
    let unknown = typed(&fleet, &reset(&far), "", "", &[]);
    assert!(unknown.status == 1 && unknown.out.contains(&port), "{unknown:?}");
    assert!(!unknown.out.contains("there is nothing to reset"), "{unknown:?}");
    let known = typed(&fleet, &reset(&near), "[y/N]", "y\n", &[]);
    assert_eq!(known.status, 0, "{known:?}");
    for command in [&["dial", "list"][..], &["history"]] {
        assert!(fleet.done(&[command, &shop].concat()).out.contains("log-ins"), "{command:?}");
    }
    for command in [&["dial", "list"][..], &["history"], &["domains"]] {
        let part = fleet.run(command);
        assert!(part.status == 1 && part.out.contains("shop"), "{part:?}");
        assert!(part.err.contains(&lost) && part.err.contains(&port), "{part:?}");
    }
}

#[test]
fn why_names_who_refuses_and_the_command_that_helps() {
    for fleet in [Fleet::memory(), Fleet::redis()] {
        fleet.reserve("per-caller", "jwt.sub=alice", 1000, 950);
        let fine = fleet.done(&["why", "jwt.sub=alice"]);
        assert_eq!(fine.out, "No policy refuses jwt.sub=alice now.\n");
        fleet.reserve("log-ins", "jwt.sub=alice", 3, 4);
        fleet.done(&["override", "set", "per-key", "jwt.sub=alice", "--blocked"]);
        fleet.done(&["dial", "set", "per-key", "--mode", "shadow"]);
        let why = fleet.done(&["why", "jwt.sub=alice"]);
        let lines: Vec<_> = why.out.lines().collect();
        let starts = |line: &str| lines.iter().position(|of| of.starts_with(line)).unwrap();
        let refuses =
            starts("log-ins in shop refuses jwt.sub=alice: 3 of 3 units are used (100 %).");
        assert!(lines[refuses].contains(" 1 refusal in the last five minutes"), "{why:?}");
        starts("per-key in shop would refuse jwt.sub=alice, but is in mode shadow: 0 of 0 units");
        assert!(!why.out.contains("per-caller"), "{why:?}");
        // The commands work as they are printed, and the party passes again.
        let commands = lines.iter().filter_map(|line| line.strip_prefix("  "));
        let commands: Vec<_> = commands.collect();
        assert_eq!(commands.len(), 4, "{why:?}");
        for command in commands {
            let agrees = if command.contains(" reset ") { " --yes" } else { "" };
            paste(&fleet, &format!("{command}{agrees}"));
        }
        let passes = fleet.reserve("log-ins", "jwt.sub=alice", 3, 4);
        assert_eq!(passes["granted"], 4, "the override raised its quota");
        assert_eq!(fleet.run(&["why", "jwt.sub=nobody"]).status, 1);
    }
}

#[test]
fn why_offers_to_clear_only_what_holds_a_party_back() {
    let fleet = Fleet::memory();
    fleet.tell_of("shop", &["per-caller"], Some(&caller_and_method()[..1]));
    // Raised and used up: without the override, the party would get less.
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
    fleet.done(&["override", "set", "per-caller", "jwt.sub=alice", "--quota", "12"]);
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 5);
    let why = fleet.done(&["why", "jwt.sub=alice"]);
    assert!(why.out.contains("12 of 12 units are used"), "{why:?}");
    assert!(!why.out.contains("override clear"), "{why:?}");
    fleet.done(&["override", "set", "per-caller", "jwt.sub=alice", "--quota", "2"]);
    let why = fleet.done(&["why", "jwt.sub=alice"]);
    assert!(why.out.contains("quotagate override clear per-caller jwt.sub=alice"), "{why:?}");
    // An override that no request can match helps nobody, and why says so.
    fleet.done(&["override", "set", "log-ins", "jwt.sub=alice", "--blocked"]);
    fleet.tell_of("shop", &["log-ins"], Some(&caller_and_method()[1..]));
    let why = fleet.done(&["why", "jwt.sub=alice"]);
    let unmatched = "The override of jwt.sub=alice in log-ins matches no request: policy log-ins counts by method";
    let mut lines = why.out.lines().skip_while(|line| !line.starts_with(unmatched)).skip(1);
    paste(&fleet, lines.next().unwrap());
    assert!(!fleet.done(&["override", "list"]).out.contains("log-ins"));
}

#[test]
fn search_that_finds_only_a_part_fails() {
    let fleet = Fleet::memory();
    fleet.tell_of("shop", &["per-method"], Some(&caller_and_method()));
    for path in 0..101 {
        fleet.reserve("per-method", &format!("jwt.sub=bob,method=M{path}"), 1, 2);
    }
    for command in ["usage", "why"] {
        for json in [&[][..], &["--json"]] {
            let part = fleet.run(&[&[command, "jwt.sub=bob"], json].concat());
            assert_eq!(part.status, 1, "{part:?}");
            assert!(
                part.err.contains("the answer may not be complete: more than 100 counters"),
                "{part:?}"
            );
            assert!(part.out.contains("jwt.sub=bob,method=M"), "the part is shown: {part:?}");
        }
    }
}

#[test]
fn one_command_blocks_a_party_in_all_policies() {
    for fleet in [Fleet::memory(), Fleet::redis()] {
        fleet.tell_of("shop", &["per-caller", "log-ins"], Some(&caller_and_method()[..1]));
        fleet.tell_of("shop", &["per-method"], Some(&caller_and_method()));
        fleet.tell_of("shop", &["per-key"], Some(&[]));
        let granted = |policy: &str, partition: &str| {
            let grant = fleet.reserve(policy, partition, 10, 1);
            (grant["granted"].clone(), grant["quota"].clone())
        };
        let (passes, blocked) = ((json!(1), json!(10)), (json!(0), json!(0)));
        assert_eq!(granted("per-method", "jwt.sub=mallory,method=GET"), passes);
        let set =
            fleet.done(&["override", "set", "--all-policies", "jwt.sub=mallory", "--blocked"]);
        assert_eq!(set.out, "set override * jwt.sub=mallory,*: blocked\n");
        assert!(set.err.contains("It changes nothing in per-key: they do not count by"), "{set:?}");
        for (policy, partition, expected) in [
            ("per-method", "jwt.sub=mallory,method=GET", &blocked),
            ("per-caller", "jwt.sub=mallory", &blocked),
            ("log-ins", "jwt.sub=mallory", &blocked),
            ("log-ins", "jwt.sub=mallory2", &passes),
            ("per-key", "*", &passes),
        ] {
            assert_eq!(granted(policy, partition), *expected, "{policy} {partition}");
        }
        let list = fleet.done(&["override", "list"]);
        assert_eq!(row(&list.out, "shop")[1..3], ["*", "blocked"], "{list:?}");
        let why = fleet.done(&["why", "jwt.sub=mallory"]);
        let said = "The quota is a runtime override of jwt.sub=mallory,* in all policies.";
        assert!(why.out.contains(said), "{why:?}");
        let clear = "  quotagate override clear --all-policies jwt.sub=mallory --domain shop";
        assert!(why.out.lines().any(|line| line == clear), "{why:?}");
        undo(&fleet, &set);
        assert_eq!(granted("per-caller", "jwt.sub=mallory"), passes);
        // One policy, and a quota for each partition.
        let set = fleet.done(&["override", "set", "per-method", "jwt.sub=ann,*", "--quota", "3"]);
        assert!(set.err.contains("quotagate override clear per-method 'jwt.sub=ann,*'"), "{set:?}");
        for method in ["GET", "PUT"] {
            let grant = fleet.reserve("per-method", &format!("jwt.sub=ann,method={method}"), 10, 9);
            assert_eq!((&grant["granted"], &grant["quota"]), (&json!(3), &json!(3)));
        }
        // Nothing has counted this party, and nothing says that it is misspelt.
        let why = fleet.done(&["why", "jwt.sub=ann,method=HEAD"]);
        assert!(why.out.contains("covers jwt.sub=ann,* in per-method of shop: quota 3"), "{why:?}");
        undo(&fleet, &set);
        let typo =
            fleet.done(&["override", "set", "--all-policies", "jwt.sub=malory", "--blocked"]);
        assert!(typo.err.contains("did you mean jwt.sub=mallory?"), "{typo:?}");
        for (arguments, why) in [
            (&["--all-policies", "per-key", "jwt.sub=a"][..], "leave POLICY out"),
            (&["per-key"], "PARTITION"),
            (&[], "POLICY"),
        ] {
            let wrong = fleet.run(&[&["override", "set", "--blocked"], arguments].concat());
            assert!(wrong.status == 2 && wrong.err.contains(why), "{wrong:?}");
        }
    }
}

#[test]
fn shadow_policies_name_whom_they_would_refuse() {
    let fleet = Fleet::memory();
    let shadow = PolicyReport { mode: Mode::Shadow, ..fleet::policy("trial") };
    let report = Report {
        policies: vec![shadow],
        would_refuse: vec![Refusals { key: "shop:trial:{jwt.sub=eve}".to_owned(), requests: 7 }],
        ..Report::default()
    };
    fleet.send("shop", &report);
    fleet.reserve("per-caller", "jwt.sub=bob", 1, 2);
    let top = fleet.done(&["top"]);
    let (_, would) =
        top.out.split_once("Would be refused most, but for mode shadow or mark").unwrap();
    let (would, _) = would.split_once("Fullest in their current window").unwrap();
    assert_eq!(row(would, "7")[1..], ["trial", "jwt.sub=eve"], "{top:?}");
    assert!(!would.contains("jwt.sub=bob"), "{top:?}");
    assert!(fleet.done(&["usage", "jwt.sub=eve"]).out.contains("7 would be"));
    let why = fleet.done(&["why", "jwt.sub=eve"]);
    let said = " 7 requests let through in the last five minutes; it would have been refused for ";
    assert!(why.out.contains("but is in mode shadow") && why.out.contains(said), "{why:?}");
}

#[test]
fn debt_has_a_column_only_if_there_is_any() {
    let fleet = Fleet::memory();
    let policy = PolicyReport { partition_by: Some(vec![]), ..fleet::policy("tokens") };
    fleet.report("shop", vec![policy.clone()]);
    let grant = fleet.reserve("tokens", "*", 10_000, 500);
    fleet.charge("tokens", "*", &grant, 12_000);
    // The answer shows this store's table what was charged.
    fleet.reserve("tokens", "*", 10_000, 500);
    for text in [fleet.done(&["usage", "*"]).out, fleet.done(&["top"]).out] {
        assert!(text.contains("12,500  10,000") && !text.contains("debt"), "{text}");
    }
    fleet.report("shop", vec![PolicyReport { settles: true, ..policy }]);
    for text in [fleet.done(&["usage", "*"]).out, fleet.done(&["top"]).out] {
        assert!(text.contains("12,500  2,500  10,000"), "{text}");
    }
    assert_eq!(fleet.json(&["usage", "*"])["found"][0]["debt"], 2500);
}

#[test]
fn why_says_how_many_requests_cost_if_missing() {
    let fleet = Fleet::memory();
    let policy = PolicyReport { partition_by: Some(vec![]), ..fleet::policy("tokens") };
    for (settles, settled_if_missing) in [(true, 0), (true, 1200), (false, 1200)] {
        fleet.report("shop", vec![PolicyReport { settles, settled_if_missing, ..policy.clone() }]);
        fleet.reserve("tokens", "*", 10, 10);
        let said = "1,200 requests of all parties cost if_missing in the last five minutes, because \
                    their responses did not say the cost or broke off.";
        let why = fleet.done(&["why", "*"]);
        assert_eq!(why.out.contains(said), settles && settled_if_missing > 0, "{why:?}");
    }
    let usage = fleet.json(&["usage", "*"]);
    assert_eq!(usage["found"][0]["settled_if_missing"], Value::Null, "it does not settle any more");
}

#[test]
fn a_secret_is_read_from_standard_input_and_only_its_digest_is_sent() {
    let fleet = Fleet::memory();
    // HMAC-SHA-256 of the value under "Jefe", of RFC 4231.
    let (secret, digest) = ("what do ya want for nothing?", "~5bdcc146bf60754e6a042426089575c7");
    fleet.reserve("per-key", &format!("header.x-api-key={digest}"), 1000, 5);
    let arguments = ["usage", "--secret", "header.X-API-Key", "--json"];
    let mut keyed = command(&arguments);
    keyed.env("QUOTAGATE_ADMIN", fleet.admin()).env("QUOTAGATE_DIGEST_KEY", "Jefe");
    let done = run(&mut keyed, format!("{secret}\n").as_bytes());
    assert_eq!(done.status, 0, "{done:?}");
    let usage: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(
        (&usage["found"][0]["policy"], &usage["found"][0]["used"]),
        (&json!("per-key"), &json!(5)),
        "{usage}"
    );

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, "Jefe\n").unwrap();
    let file = file.to_str().unwrap();
    let mut set =
        command(&["override", "set", "per-key", "--secret", "header.x-api-key", "--blocked"]);
    set.args(["--digest-key-file", file]).env("QUOTAGATE_ADMIN", fleet.admin());
    let done = run(&mut set, secret.as_bytes());
    assert!(done.status == 0 && done.err.contains(digest), "{done:?}");
    // Without a key, the command derives one from the domain and says so.
    let mut derived = command(&["usage", "--secret", "header.x-api-key"]);
    let other = run(derived.env("QUOTAGATE_ADMIN", fleet.admin()), secret.as_bytes());
    assert!(other.status == 1 && other.err.contains("derived from the domain shop"), "{other:?}");
    assert!(!format!("{done:?}{other:?}{}", fleet.store.log()).contains(secret));
}

#[test]
fn digest_prints_what_overrides_of_a_document_name_without_a_store() {
    let digest = |flags: &[&str]| {
        let mut command = command(&["digest", "--secret", "header.x-api-key"]);
        command.args(flags).args(["--domain", "shop", "--admin", "127.0.0.1:1"]);
        run(command.env("QUOTAGATE_DIGEST_KEY", "Jefe"), b"what do ya want for nothing?\n")
    };
    let named = "header.x-api-key=~5bdcc146bf60754e6a042426089575c7";
    let done = digest(&[]);
    assert_eq!((done.status, done.out.as_str()), (0, &*format!("{named}\n")), "{done:?}");
    let beside = digest(&["ip=192.0.2.7,header.x-api-key"]);
    assert_eq!(beside.out, format!("ip=192.0.2.7,{named}\n"), "{beside:?}");
    let json: Value = serde_json::from_str(&digest(&["--json"]).out).unwrap();
    assert_eq!(json, json!({"partition": named}));
}

#[test]
fn possible_secrets_are_refused_without_plain() {
    let fleet = Fleet::memory();
    let secret = "TOPSECRET";
    for label in ["header.x-api-key", "cookie.session", "query.key"] {
        for name in [format!("{label}={secret}"), format!("ip=192.0.2.1,{label}={secret}")] {
            for arguments in [
                &["override", "set", "per-key", &name, "--blocked"][..],
                &["override", "clear", "per-key", &name],
                &["reset", "per-key", &name, "--yes"],
                &["usage", &name],
            ] {
                let done = fleet.run(arguments);
                assert_eq!(done.status, 2, "{arguments:?}: {done:?}");
                assert!(done.err.contains(&format!("--secret {label}")), "{done:?}");
                assert!(done.err.contains("--plain") && !done.err.contains(secret), "{done:?}");
            }
        }
    }
    assert!(!fleet.store.log().contains(secret));
    // A digest is no secret, and neither is every header.
    let digest = "header.x-api-key=~5bdcc146bf60754e6a042426089575c7";
    fleet.done(&["override", "set", "per-key", digest, "--blocked"]);
    let set = fleet.done(&[
        "override",
        "set",
        "per-key",
        "header.x-plan=gold",
        "--plain",
        "--quota",
        "5",
    ]);
    assert!(
        set.err.contains("quotagate override clear per-key header.x-plan=gold --plain"),
        "{set:?}"
    );
    fleet.done(&["override", "clear", "per-key", "header.x-plan=gold", "--plain"]);
}

#[test]
fn a_partition_may_begin_with_a_missing_value() {
    let fleet = Fleet::memory();
    let name = "-,ip=192.0.2.1";
    fleet.reserve("per-caller", name, 10, 10);
    assert!(fleet.done(&["usage", name]).out.contains("per-caller"));
    assert!(fleet.done(&["usage", name, "--json"]).out.contains(name));
    let set = fleet.done(&["override", "set", "per-caller", name, "--quota", "20", "--for", "1h"]);
    assert!(set.err.contains("quotagate override clear per-caller -,ip=192.0.2.1"), "{set:?}");
    fleet.done(&["override", "clear", "per-caller", name]);
    fleet.done(&["reset", "per-caller", name, "-y"]);
    let absent = fleet.run(&["reset", "-y", "per-caller", "-"]);
    assert!(absent.status == 1 && absent.err.contains("counts nothing of -"), "{absent:?}");
    // A flag is still no partition.
    for arguments in
        [&["override", "set", "p", "--blocked"][..], &["usage", "--json"], &["reset", "p", "-y"]]
    {
        let done = fleet.run(arguments);
        assert!(done.status == 2 && done.err.contains("PARTITION"), "{arguments:?}: {done:?}");
    }
}

#[test]
fn an_override_is_restored_by_the_printed_command() {
    let fleet = Fleet::memory();
    let name = "jwt.sub=alice";
    fleet.done(&["override", "set", "per-key", name, "--quota", "1500", "--by", "bob"]);
    let timed = fleet.done(&["override", "set", "per-key", name, "--unlimited", "--for", "1h"]);
    assert!(timed.err.contains("Before, bob had set quota 1,500, until cleared."), "{timed:?}");
    undo(&fleet, &timed);
    assert_eq!(fleet.json(&["override", "list"])[0]["allow"], json!({"quota": 1500}));
    fleet.done(&["override", "set", "per-key", name, "--unlimited", "--for", "1h"]);
    let stays = fleet.run(&["override", "set", "per-key", name, "--blocked"]);
    assert!(stays.status == 1 && stays.err.contains("would stay until it is cleared"), "{stays:?}");
    let blocked = fleet.done(&["override", "set", "per-key", name, "--blocked", "--for", "2h"]);
    assert!(blocked.err.contains("had set unlimited, for another 1 h."), "{blocked:?}");
    assert!(blocked.err.contains("Undo it (its time starts when you run that): "), "{blocked:?}");
    undo(&fleet, &blocked);
    let listed = fleet.json(&["override", "list"])[0].clone();
    assert!(
        listed["allow"] == json!("unlimited") && listed["remaining_ms"].as_u64() > Some(3_500_000),
        "{listed}"
    );
    // Overrides of other partitions and policies do not matter.
    let other = fleet.done(&["override", "set", "per-caller", name, "--blocked"]);
    assert!(!other.err.contains("Before"), "{other:?}");
    undo(&fleet, &other);
    assert_eq!(fleet.json(&["override", "list", "--policy", "per-caller"]), json!([]));
}

#[test]
fn an_override_is_set_shown_and_cleared() {
    for (fleet, durable) in [(Fleet::memory(), false), (Fleet::redis(), true)] {
        let empty = fleet.done(&["override", "list"]);
        assert!(empty.out.is_empty() && empty.err.contains("quotagate override set"), "{empty:?}");
        let set = fleet.done(&[
            "override",
            "set",
            "per-caller",
            "jwt.sub=Ann Smith",
            "--quota",
            "5000",
            "--for",
            "1h",
        ]);
        assert!(set.out.contains("jwt.sub=Ann%20Smith") && set.out.contains("5000"), "{set:?}");
        assert!(set.err.contains("ends in 1 h"), "{set:?}");
        assert!(
            set.err.contains("quotagate override clear per-caller jwt.sub=Ann%20Smith"),
            "{set:?}"
        );
        assert_eq!(set.err.contains("in memory"), !durable, "{set:?}");
        fleet.done(&["override", "set", "log-ins", "ip=2001:DB8::7/64", "--blocked"]);
        let single = fleet.done(&["override", "set", "per-key", "ip=2001:db8::7", "--unlimited"]);
        assert!(single.err.contains("Its network is ip=2001:db8::7/64"), "{single:?}");

        let granted = fleet.reserve("per-caller", "jwt.sub=Ann%20Smith", 1000, 3000);
        assert_eq!(
            (&granted["granted"], &granted["quota"]),
            (&json!(3000), &json!(5000)),
            "{granted}"
        );
        assert_eq!(fleet.reserve("log-ins", "ip=2001:db8::/64", 1000, 1)["granted"], json!(0));

        let list = fleet.done(&["override", "list"]);
        let line = |partition: &str| {
            let line = list
                .out
                .lines()
                .find(|line| line.ends_with(partition))
                .unwrap_or_else(|| panic!("{list:?}"));
            line.to_owned()
        };
        assert!(line("jwt.sub=Ann%20Smith").contains("5,000"), "{list:?}");
        assert!(
            line("ip=2001:db8::/64").contains("blocked")
                && line("ip=2001:db8::7").contains("unlimited")
        );
        let one = fleet.done(&["override", "list", "--policy", "log-ins"]);
        assert_eq!(one.out.lines().count(), 2, "{one:?}");
        let listed = fleet.json(&["override", "list", "--policy", "per-caller"]);
        assert_eq!(listed[0]["allow"], json!({"quota": 5000}), "{listed}");

        fleet.done(&["override", "clear", "per-caller", "jwt.sub=Ann Smith"]);
        assert_eq!(fleet.run(&["override", "clear", "per-caller", "jwt.sub=Ann Smith"]).status, 1);
        let unknown = fleet.run(&["override", "set", "per-caler", "*", "--blocked"]);
        assert!(
            unknown.status == 1 && unknown.err.contains("Did you mean per-caller?"),
            "{unknown:?}"
        );
    }
}

/// The report of a policy by caller and method.
fn caller_and_method() -> [PartitionEntry; 2] {
    [("caller", "jwt.sub"), ("method", "method")]
        .map(|(name, form)| PartitionEntry { name: name.to_owned(), forms: vec![form.to_owned()] })
}

#[test]
fn overrides_need_the_entries_of_the_policy_in_any_order() {
    let fleet = Fleet::memory();
    fleet.tell_of("shop", &["per-method"], Some(&caller_and_method()));
    let wrong = fleet.run(&["override", "set", "per-method", "jwt.sub=mallory", "--blocked"]);
    assert_eq!(wrong.status, 1, "{wrong:?}");
    let form =
        "policy per-method counts by caller, method: name both, as jwt.sub=mallory,method=GET";
    assert!(wrong.err.contains(form), "{wrong:?}");
    fleet.done(&["override", "set", "per-method", "jwt.sub=mallory,method=GET", "--quota", "5"]);
    let replaced =
        fleet.done(&["override", "set", "per-method", "method=get,jwt.sub=mallory", "--blocked"]);
    assert!(replaced.err.contains("had set quota 5"), "the same partition: {replaced:?}");
    assert_eq!(fleet.json(&["override", "list"]).as_array().map(Vec::len), Some(1));
    undo(&fleet, &replaced);
    fleet.tell_of("shop", &["per-method"], Some(&[]));
    let list = fleet.done(&["override", "list"]);
    let unmatched = "The override of jwt.sub=mallory,method=GET in per-method matches no request: policy per-method has";
    assert!(list.err.contains(unmatched), "{list:?}");
}

#[test]
fn usage_finds_every_partition_that_contains_an_entry() {
    for fleet in [Fleet::memory(), Fleet::redis()] {
        fleet.tell_of("shop", &["per-method"], Some(&caller_and_method()));
        fleet.reserve("per-method", "jwt.sub=bob,method=GET", 10, 10);
        fleet.reserve("per-method", "jwt.sub=bobby,method=GET", 10, 1);
        fleet.reserve("per-caller", "jwt.sub=bob", 10, 2);
        let usage = fleet.done(&["usage", "jwt.sub=bob"]);
        let full = usage
            .out
            .lines()
            .find(|line| line.ends_with("jwt.sub=bob,method=GET"))
            .unwrap_or_default();
        assert!(full.contains("per-method") && full.contains("100 %"), "{usage:?}");
        assert_eq!(usage.out.lines().count(), 3, "{usage:?}");
        fleet.done(&["override", "set", "per-caller", "jwt.sub=bob", "--blocked"]);
        fleet.tell_of("shop", &["per-caller"], Some(&caller_and_method()));
        let usage = fleet.done(&["usage", "jwt.sub=bob"]);
        assert!(
            usage.err.contains("override of jwt.sub=bob in per-caller matches no request"),
            "{usage:?}"
        );
    }
}

#[test]
fn reset_makes_the_whole_quota_available_again() {
    for fleet in [Fleet::memory(), Fleet::redis()] {
        fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
        assert_eq!(fleet.reserve("per-caller", "jwt.sub=alice", 10, 1)["granted"], json!(0));
        let done = fleet.done(&["reset", "per-caller", "jwt.sub=alice", "--yes"]);
        assert!(
            done.out.contains("jwt.sub=alice") && done.err.contains("within a second"),
            "{done:?}"
        );
        assert_eq!(fleet.reserve("per-caller", "jwt.sub=alice", 10, 10)["granted"], json!(10));
        let absent_name = fleet.run(&["reset", "per-caller", "jwt.sub=bob", "--yes"]);
        assert_eq!(absent_name.status, 1, "{absent_name:?}");
        let history = fleet.done(&["history"]);
        assert!(history.out.contains("jwt.sub=alice"), "{history:?}");
    }
}

#[test]
fn top_sorts_by_fullness_and_by_refusals() {
    let fleet = Fleet::memory();
    let absent_name = fleet.done(&["top"]);
    assert!(
        absent_name.out.is_empty() && absent_name.err.contains("counted no requests lately"),
        "{absent_name:?}"
    );
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
    fleet.reserve("per-caller", "jwt.sub=bob", 10, 4);
    assert_eq!(fleet.reserve("per-caller", "jwt.sub=alice", 10, 1)["granted"], json!(0));
    let top = fleet.done(&["top"]);
    assert_eq!(row(&top.out, "100 %")[..3], ["100 %", "10", "10"]);
    assert!(top.out.contains("\nSeen by 1 store: "), "{top:?}");
    let (refused, fullest) = top.out.split_once("Fullest").unwrap();
    assert!(refused.contains("jwt.sub=alice") && !refused.contains("bob"), "{top:?}");
    assert!(fullest.find("alice").unwrap() < fullest.find("bob").unwrap(), "{top:?}");
    assert!(fleet.done(&["top", "--sort", "full"]).out.starts_with("Fullest"));
    let filtered = fleet.done(&["top", "--filter", "BOB"]).out;
    assert!(filtered.contains("bob") && !filtered.contains("alice"), "{filtered}");
    assert_eq!(fleet.json(&["top", "--limit", "1"])["fullest"].as_array().map(Vec::len), Some(1));
    assert!(!fleet.done(&["top", "--policy", "log-ins"]).out.contains("alice"));
}

#[test]
fn top_shows_requests_that_were_not_counted() {
    let fleet = Fleet::memory();
    let counts = |name: &str, missing_identity, store_error| {
        let policy = json!({"name": name, "quota": 5, "window_s": 60, "stagger": false, "mode": "enforce",
                            "on_failure": "allow", "missing_identity": missing_identity, "store_error": store_error});
        serde_json::from_value(policy).unwrap()
    };
    fleet.report("shop", vec![counts("per-caller", 3, 4000), counts("log-ins", 0, 0)]);
    let top = fleet.done(&["top"]);
    let (_, uncounted) = top
        .out
        .split_once("Not counted, or without an identity, in the last five minutes")
        .unwrap();
    assert_eq!(row(uncounted, "4,000")[1], "per-caller", "{top:?}");
    assert!(
        uncounted.contains("the store failed") && uncounted.contains("had no identity"),
        "{top:?}"
    );
    assert!(!uncounted.contains("log-ins"), "{top:?}");
}

#[test]
fn top_watch_runs_until_ctrl_c_and_survives_its_store() {
    let fleet = Fleet::memory();
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
    let mut watch = command(&["top", "--watch", "--json"]);
    watch.env("QUOTAGATE_ADMIN", fleet.admin()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = watch.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for _ in 0..2 {
        let top: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        assert_eq!(top["fullest"][0]["partition"], json!("jwt.sub=alice"), "{top}");
    }
    drop(fleet);
    let said = BufReader::new(child.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(said.contains("cannot reach the store"), "{said}");
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_digest_needs_a_known_domain() {
    let fleet = Fleet::silent(&StoreOptions::new("memory:"), None);
    let ask = |arguments: &[&str]| {
        let mut command = command(&[&["usage", "--secret", "header.k"], arguments].concat());
        run(command.env("QUOTAGATE_ADMIN", fleet.admin()), b"secret\n")
    };
    let none = ask(&[]);
    assert!(none.status == 1 && none.err.contains("--domain"), "{none:?}");
    fleet.tell("shop", &["p"]);
    fleet.tell("bank", &["p"]);
    let several = ask(&[]);
    assert!(
        several.status == 1 && several.err.contains("choose one with --domain: bank, shop"),
        "{several:?}"
    );
    assert!(ask(&["--domain", "bank"]).err.contains("the domain bank"));
}
