//! How much a partition is granted, and how much a request takes.

use quotagate_protocol::dials::EnforcedShare;
use quotagate_protocol::{MAX_UNITS, Mode};
use serde_json::json;

use super::*;
use crate::config::Dialed;

/// Quota and cost of the only check. `None` if there is no check.
fn asked<V: AsRef<[u8]>>(config: &Config, facts: &[(&str, V)]) -> Option<(u64, u64)> {
    let checks = config.evaluate(&Fake::new(facts)).checks.unwrap();
    assert!(checks.len() <= 1, "{checks:?}");
    checks.first().map(|check| (check.counter.quota, check.cost.get()))
}

fn quota<V: AsRef<[u8]>>(config: &Config, facts: &[(&str, V)]) -> Option<u64> {
    asked(config, facts).map(|(quota, _)| quota)
}

fn identities() -> Value {
    json!({
        "sub": [{"jwt": {"claim": "sub"}}],
        "who": [{"jwt": {"claim": "sub"}}, {"client_ip": {}}],
        "pair": [{"jwt": {"claims": ["iss", "sub"]}}, {"client_ip": {"ipv6_prefix": 48}}],
        "key": [{"header": {"name": "x-api-key", "secret": true}}],
        "ip": [{"client_ip": {}}],
    })
}

#[test]
fn an_override_wins_over_quota_from_and_quota_from_over_a_tier() {
    let config = config(
        identities(),
        &[json!({
            "partition_by": ["sub"],
            "quota": 5,
            "quota_from": {"jwt": {"claim": "quota", "type": "string"}, "max": 1000},
            "tiers": {"source": {"jwt": {"claim": "plan"}}, "quotas": {"free": 10, "premium": 100, "none": 0}},
            "overrides": [{"value": "alice", "quota": 500}, {"value": "root", "unlimited": true}],
        })],
    );
    for (sub, quota_from, plan, expected) in [
        ("alice", "50", "free", Some(500)),
        ("root", "50", "free", None),
        ("bob", "50", "free", Some(50)),
        ("bob", "0", "free", Some(0)),
        ("bob", "1001", "free", Some(1000)),
        ("bob", "many", "free", Some(10)),
        ("bob", "", "premium", Some(100)),
        ("bob", "", "none", Some(0)),
        ("bob", "", "Premium", Some(5)),
        ("bob", "", "", Some(5)),
    ] {
        let facts = [
            ("jwt_payload/sub", sub),
            ("jwt_payload/quota", quota_from),
            ("jwt_payload/plan", plan),
        ];
        assert_eq!(quota(&config, &facts), expected, "{facts:?}");
    }
}

#[test]
fn a_dial_wins_over_all_but_an_override() {
    let config = config(
        identities(),
        &[json!({
            "partition_by": ["who"],
            "quota": 5,
            "quota_from": {"jwt": {"claim": "quota", "type": "string"}},
            "tiers": {"source": {"jwt": {"claim": "plan"}}, "quotas": {"free": 10}},
            "overrides": [{"value": "jwt.sub=alice", "quota": 500}, {"value": "jwt.sub=root", "unlimited": true},
                          {"network": "10.0.0.0/8", "quota": 70}],
        })],
    );
    for (sub, expected, dialed) in [
        ("alice", Some(500), Some(500)),
        ("root", None, None),
        ("bob", Some(50), Some(8)),
        ("carol", Some(50), Some(8)),
    ] {
        let facts =
            [("jwt_payload/sub", sub), ("jwt_payload/quota", "50"), ("jwt_payload/plan", "free")];
        for (dial, expected) in
            [(None, expected), (Some(8), dialed), (Some(0), dialed.map(|q| q / 10 * 10))]
        {
            let config = config.dialed(&[Dialed { quota: dial, ..Dialed::default() }]);
            assert_eq!(quota(&config, &facts), expected, "{sub} {dial:?}");
        }
    }
    let dialed = config.dialed(&[Dialed { quota: Some(8), ..Dialed::default() }]);
    assert_eq!(quota(&dialed, &[("address", "10.1.2.3:4")]), Some(70));
    assert_eq!(quota(&dialed, &[("address", "11.1.2.3:4")]), Some(8));
    assert_eq!(
        quota(&config, &[("address", "11.1.2.3:4")]),
        Some(5),
        "a dial does not change the configuration itself"
    );
}

#[test]
fn a_policy_that_is_off_fetches_nothing_until_a_dial_enables_it() {
    let off = json!({"match": {"methods": ["GET"]}, "partition_by": ["key"], "on_missing": "deny", "mode": "off"});
    let config = config(identities(), &[off, json!({})]);
    let request = Fake::new(&[(":method", "GET")]);
    let modes = |checks: Vec<Check>| {
        checks.iter().map(|check| (check.policy, check.enforced())).collect::<Vec<_>>()
    };
    assert_eq!(modes(config.evaluate(&request).checks.unwrap()), [(1, true)]);
    assert_eq!(*request.asked.borrow(), [""; 0]);
    let dial_to = |mode| [Dialed { mode: Some(mode), ..Dialed::default() }, Dialed::default()];
    let missing = config.dialed(&dial_to(Mode::Enforce)).evaluate(&request);
    assert_eq!((missing.checks, missing.missing), (Err(MissingIdentity { policy: 0 }), vec![0]));
    let shadow = config.dialed(&dial_to(Mode::Shadow));
    assert_eq!(modes(shadow.evaluate(&request).checks.unwrap()), [(1, true)], "it never refuses");
    let facts = Fake::new(&[(":method", "GET"), ("x-api-key", "k")]);
    assert_eq!(modes(shadow.evaluate(&facts).checks.unwrap()), [(0, false), (1, true)]);
    let off =
        shadow.dialed(&[Dialed::default(), Dialed { mode: Some(Mode::Off), ..Dialed::default() }]);
    assert_eq!(modes(off.evaluate(&facts).checks.unwrap()), [(0, false)], "indices stay the same");
}

#[test]
fn share_of_partitions_is_enforced_and_the_rest_is_in_shadow() {
    let policy = json!({"partition_by": ["sub"], "on_missing": "deny"});
    let config = config(identities(), &[policy]);
    let enforced = |share: EnforcedShare| -> Vec<bool> {
        let dial = Dialed {
            mode: Some(Mode::Shadow),
            enforced_for: Some(Arc::new(share)),
            ..Dialed::default()
        };
        let config = config.dialed(&[dial]);
        // Without an identity, no partition says that the policy is enforced.
        assert_eq!(config.evaluate(&Fake::new::<&str>(&[])).checks, Ok(vec![]));
        (0..400)
            .map(|n| {
                let sub = n.to_string();
                let request = Fake::new(&[("jwt_payload/sub", &sub)]);
                config.evaluate(&request).checks.unwrap()[0].enforced()
            })
            .collect()
    };
    let percent = |percent| enforced(EnforcedShare { percent, only: vec![] });
    let count = |of: &[bool]| of.iter().filter(|enforced| **enforced).count();
    let (five, half, all) = (percent(5), percent(50), percent(100));
    assert!((5..=40).contains(&count(&five)) && (150..=250).contains(&count(&half)));
    assert!(five.iter().zip(&half).all(|(small, large)| *large || !small), "a share grows");
    assert_eq!(count(&all), 400);
    let named = enforced(EnforcedShare { percent: 0, only: vec!["jwt.sub=7".to_owned()] });
    assert!(named[7] && count(&named) == 1);
}

#[test]
fn the_first_quota_found_spares_further_lookups() {
    let policy = json!({
        "partition_by": ["sub"],
        "quota_from": {"jwt": {"claim": "quota", "type": "string"}},
        "tiers": {"source": {"peer": {"san": "uri"}}, "quotas": {"free": 10}},
        "overrides": [{"value": "alice", "quota": 500}],
        "cost": {"header": {"name": "X-Cost"}},
    });
    let config = config(identities(), &[policy]);
    for (facts, asked) in [
        (vec![("jwt_payload/sub", "alice")], vec!["jwt_payload/sub", "x-cost"]),
        (
            vec![("jwt_payload/sub", "bob"), ("jwt_payload/quota", "5")],
            vec!["jwt_payload/sub", "jwt_payload/quota", "x-cost"],
        ),
        (
            vec![("jwt_payload/sub", "bob")],
            vec![
                "jwt_payload/sub",
                "jwt_payload/quota",
                "connection.uri_san_peer_certificate",
                "x-cost",
            ],
        ),
    ] {
        let request = Fake::new(&facts);
        config.evaluate(&request).checks.unwrap();
        assert_eq!(*request.asked.borrow(), asked);
    }
}

#[test]
fn quota_from_reads_a_whole_number_of_its_type() {
    let quota_from = |from: Value| config(json!({}), &[json!({ "quota_from": from })]);
    let number = quota_from(json!({"jwt": {"claim": "limits.day"}}));
    for (raw, expected) in [
        (50.0, 50),
        (0.0, 0),
        (-0.0, 0),
        (-1.0, 5),
        (1.5, 5),
        (9_007_199_254_740_991.0, (1 << 53) - 1),
        (9_007_199_254_740_992.0, (1 << 53) - 1),
        (1e300, (1 << 53) - 1),
        (-1e300, 5),
        (f64::NAN, 5),
        (f64::INFINITY, 5),
    ] {
        let facts = [("jwt_payload/limits/day", f64::to_le_bytes(raw))];
        assert_eq!(quota(&number, &facts), Some(expected), "{raw}");
    }
    assert_eq!(quota(&number, &[("jwt_payload/limits/day", "50")]), Some(50), "digits");
    assert_eq!(quota(&number, &NOTHING), Some(5));

    let text = quota_from(
        json!({"metadata": {"filter": "authz", "path": ["quota"], "type": "string"}, "max": 100}),
    );
    for (raw, expected) in [
        ("7", 7),
        ("100", 100),
        ("101", 100),
        ("-7", 5),
        ("7.0", 5),
        ("7 ", 5),
        ("\0\0\0\0\0\0\0@", 5),
    ] {
        assert_eq!(quota(&text, &[("authz:quota", raw)]), Some(expected), "{raw}");
    }
    assert_eq!(quota(&text, &[("authz:quota", "9".repeat(70_000))]), Some(100));
    let peer = quota_from(json!({"peer": {"san": "dns"}}));
    assert_eq!(quota(&peer, &[("connection.dns_san_peer_certificate", "12")]), Some(12));
}

#[test]
fn tiers_are_named_as_their_source_writes_them() {
    let tiers = |source: Value, names: [&str; 2]| {
        let quotas = json!({names[0]: 10, names[1]: 20});
        config(json!({}), &[json!({"tiers": {"source": source, "quotas": quotas}})])
    };
    let number = tiers(json!({"jwt": {"claim": "level", "type": "number"}}), ["1", "0.5"]);
    for (level, expected) in [(1.0, 10), (0.5, 20), (2.0, 5)] {
        assert_eq!(
            quota(&number, &[("jwt_payload/level", f64::to_le_bytes(level))]),
            Some(expected)
        );
    }
    let truth = tiers(json!({"jwt": {"claim": "paid", "type": "boolean"}}), ["true", "false"]);
    for (paid, expected) in [([1], 10), ([0], 20), ([2], 5)] {
        assert_eq!(quota(&truth, &[("jwt_payload/paid", paid)]), Some(expected));
    }
    let text = tiers(json!({"peer": {"san": "uri"}}), ["spiffe://shop/a", "\u{e4}"]);
    for (name, expected) in [("spiffe://shop/a", 10), ("\u{e4}", 20), ("spiffe://shop/b", 5)] {
        assert_eq!(quota(&text, &[("connection.uri_san_peer_certificate", name)]), Some(expected));
    }
}

#[test]
fn the_first_matching_override_wins() {
    let config = config(
        identities(),
        &[json!({
            "partition_by": ["who"],
            "overrides": [
                {"value": "ip=10.1.2.3", "quota": 1},
                {"network": "10.0.0.0/8", "unlimited": true},
                {"value": "ip=10.9.9.9", "quota": 2},
                {"network": "2001:db8::1/128", "quota": 3},
                {"value": "ip=2001:db8::/64", "quota": 4},
                {"network": "2001:db8::/32", "quota": 0},
                {"value": "jwt.sub=a%2Cb", "quota": 6},
                {"network": "0.0.0.0/0", "quota": 9007199254740991_u64},
            ],
        })],
    );
    for (sub, address, expected) in [
        ("", "10.1.2.3:1", Some(1)),
        ("", "10.1.2.4:1", None),
        ("", "10.9.9.9:1", None),
        ("", "[::ffff:10.1.2.4]:1", None),
        ("", "[2001:db8::1]:1", Some(3)),
        ("", "[2001:db8::2]:1", Some(4)),
        ("", "[2001:db8:0:1::2]:1", Some(0)),
        ("", "[2001:db9::]:1", Some(5)),
        ("", "192.0.2.7:1", Some((1 << 53) - 1)),
        ("a,b", "10.1.2.4:1", Some(6)),
        // A claim was found first, so the address does not count.
        ("alice", "10.1.2.4:1", Some(5)),
    ] {
        assert_eq!(
            quota(&config, &[("jwt_payload/sub", sub), ("address", address)]),
            expected,
            "{sub} {address}"
        );
    }
}

#[test]
fn an_override_names_a_partition_by_its_value_or_in_its_encoded_form() {
    let long = "x".repeat(200);
    let claim = |value: &str| vec![("jwt_payload/sub", value.to_owned())];
    let digest = "header.x-api-key=~fafff23d94c3228de3862f5215b57efa";
    for (by, value, facts) in [
        ("sub", "alice", claim("alice")),
        ("sub", "a=b,c %}", claim("a=b,c %}")),
        ("sub", "~x", claim("~x")),
        ("sub", "-", claim("-")),
        ("sub", "jwt.sub=alice", claim("alice")),
        ("sub", "jwt.sub=jwt.sub%3Dalice", claim("jwt.sub=alice")),
        ("sub", "jwt.subway", claim("jwt.subway")),
        ("sub", &long, claim(&long)),
        ("who", "jwt.sub=alice", claim("alice")),
        ("key", "hunter2", vec![("x-api-key", "hunter2".to_owned())]),
        ("key", digest, vec![("x-api-key", "what do ya want for nothing?".to_owned())]),
        ("ip", "192.0.2.7", vec![("address", "192.0.2.7:1".to_owned())]),
        ("ip", "2001:db8::5", vec![("address", "[2001:db8::6]:1".to_owned())]),
        ("ip", "2001:db8::/64", vec![("address", "[2001:db8::6]:1".to_owned())]),
        ("method", "post", vec![(":method", "POST".to_owned())]),
        ("host", "Shop.example.", vec![(":authority", "shop.example:443".to_owned())]),
        ("path", "/a/../b", vec![(":path", "/b?c".to_owned())]),
        ("route", "search", vec![("route", "search".to_owned())]),
    ] {
        let policy = json!({"partition_by": [by], "overrides": [{"value": value, "quota": 77}]});
        let config = config(identities(), &[policy]);
        assert_eq!(quota(&config, &facts), Some(77), "{by} {value}");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}

#[test]
fn partitions_of_several_values_are_overridden_in_their_encoded_form() {
    let config = config(
        identities(),
        &[json!({
            "partition_by": ["pair", "method", "who"],
            "on_missing": "shared",
            "overrides": [
                {"value": "jwt.iss=https://idp,jwt.sub=alice,method=GET,jwt.sub=alice", "quota": 1},
                {"value": "ip=2001:db8::/48,method=GET,ip=2001:db8::/64", "quota": 2},
                {"value": "-,-,-", "quota": 3},
                {"value": "-,method=GET,-", "quota": 4},
                {"value": "~0123456789abcdef0123456789abcdef", "quota": 5},
            ],
        })],
    );
    let all =
        [("jwt_payload/iss", "https://idp"), ("jwt_payload/sub", "alice"), (":method", "GET")];
    assert_eq!(quota(&config, &all), Some(1));
    assert_eq!(quota(&config, &[(":method", "GET"), ("address", "[2001:db8::1]:1")]), Some(2));
    assert_eq!(quota(&config, &NOTHING), Some(3));
    assert_eq!(quota(&config, &[(":method", "GET")]), Some(4));
}

#[test]
fn an_unlimited_partition_is_not_checked_and_other_policies_still_count() {
    let unlimited = json!({
        "partition_by": ["ip"], "quota": 0, "overrides": [{"network": "10.0.0.0/8", "unlimited": true}],
    });
    let config = config(identities(), &[unlimited, json!({"quota": 9})]);
    let checks = |address| {
        let checks = config.evaluate(&Fake::new(&[("address", address)])).checks.unwrap();
        checks.iter().map(|check| (check.policy, check.counter.quota)).collect::<Vec<_>>()
    };
    assert_eq!(checks("10.1.1.1:1"), [(1, 9)]);
    assert_eq!(
        checks("11.1.1.1:1"),
        [(0, 0), (1, 9)],
        "a quota of 0 admits nobody, and still counts"
    );
}

#[test]
fn a_cost_is_a_number_or_read_from_a_header() {
    let cost = |cost: Value| config(json!({}), &[json!({ "cost": cost })]);
    let of = |config: &Config, values: &[&str]| {
        let facts: Vec<_> = values.iter().map(|value| ("x-cost", *value)).collect();
        asked(config, &facts).map(|(_, cost)| cost)
    };
    assert_eq!(of(&cost(json!(3)), &["7"]), Some(3));
    let bounded = cost(json!({"header": {"name": "X-Cost", "default": 2, "max": 100}}));
    let huge = "9".repeat(70_000);
    for (values, expected) in [
        (&[][..], 2),
        (&[""], 2),
        (&["0"], 2),
        (&["000"], 2),
        (&["1"], 1),
        (&["099"], 99),
        (&["100"], 100),
        (&["101"], 100),
        (&["18446744073709551617"], 100),
        (&[&huge], 100),
        (&["-1"], 2),
        (&["+1"], 2),
        (&["1.5"], 2),
        (&["1e2"], 2),
        (&["5\0"], 2),
        (&["\u{664}"], 2),
        (&[" 5\t"], 5),
        (&["5", "5"], 100),
        (&["1", ""], 100),
        (&["5, 5"], 100),
    ] {
        assert_eq!(of(&bounded, values), Some(expected), "{values:.20?}");
    }
    let free = cost(json!({"header": {"name": "x-cost"}}));
    assert_eq!(of(&free, &[]), Some(1));
    assert_eq!(of(&free, &["18446744073709551617"]), Some((1 << 53) - 1));
    let unbounded = cost(json!({"header": {"name": "x-cost", "default": 3}}));
    for (values, expected) in [
        (&["1", "7"][..], 7),
        (&["7", "1"], 7),
        (&["1", "1"], 3),
        (&["x", ""], 3),
        (&["1, 8"], 8),
        (&["1", "18446744073709551617"], (1 << 53) - 1),
    ] {
        assert_eq!(of(&unbounded, values), Some(expected), "{values:?}");
    }
}

#[test]
fn each_partition_has_its_own_staggered_window() {
    let by = |stagger: bool| json!({"partition_by": ["who"], "window": "1h", "stagger": stagger});
    let config = config(identities(), &[by(false), by(true), json!({"stagger": true})]);
    let windows = |sub: &str| {
        let checks = config.evaluate(&Fake::new(&[("jwt_payload/sub", sub)])).checks.unwrap();
        checks.iter().map(|check| check.counter.window.clone()).collect::<Vec<_>>()
    };
    // The first 8 bytes of the SHA-256 of `jwt.sub=alice`, `jwt.sub=bob` and `*`, modulo the
    // window: computed by another implementation.
    let window = |seconds, offset| Window::new(seconds, offset).unwrap();
    assert_eq!(windows("alice"), [window(3600, 0), window(3600, 558), window(60, 3)]);
    assert_eq!(windows("bob"), [window(3600, 0), window(3600, 2650), window(60, 3)]);
}

#[test]
fn first_tier_of_the_document_that_a_list_contains_counts() {
    let tiers = |source: Value| {
        let quotas = json!({"basic": 20, "premium": 100, "admin": 7});
        config(json!({}), &[json!({"tiers": {"source": source, "quotas": quotas}})])
    };
    let quota = |config: &Config, prefix: &str, elements: &[&str]| {
        let facts: Vec<(String, &str)> =
            elements.iter().enumerate().map(|(i, e)| (format!("{prefix}/{i}"), *e)).collect();
        let facts: Vec<(&str, &str)> = facts.iter().map(|(name, e)| (name.as_str(), *e)).collect();
        config.evaluate(&Fake::new(&facts)).checks.unwrap()[0].counter.quota
    };
    let long: Vec<&str> = std::iter::repeat_n("x", 63).chain(["admin", "basic"]).collect();
    for (source, prefix) in [
        (json!({"jwt": {"claim": "roles"}}), "jwt_payload/roles"),
        (json!({"metadata": {"filter": "f", "path": ["a", "roles"]}}), "f:a/roles"),
    ] {
        let config = tiers(source);
        for (elements, expected) in [
            (&["premium"][..], 100),
            (&["admin", "premium"], 100),
            (&["admin", "premium", "basic"], 20),
            (&["nobody", "admin"], 7),
            (&["nobody"], 5),
            (&[], 5),
            (&["\u{1}", "premium"], 100),
            // The 65th element is not read.
            (&long, 7),
        ] {
            assert_eq!(quota(&config, prefix, elements), expected, "{elements:?}");
        }
        let one = [(prefix, "premium")];
        assert_eq!(config.evaluate(&Fake::new(&one)).checks.unwrap()[0].counter.quota, 100);
        // `[1, null, {}, "admin"]`: the host hands over eight bytes, and nothing for the next two.
        let mut mixed = Fake::new(&[(format!("{prefix}/3").as_str(), "admin")]);
        for (i, value) in [Some(f64::to_le_bytes(1.0).to_vec()), None, None].into_iter().enumerate()
        {
            mixed.facts.entry(format!("{prefix}/{i}")).or_default().extend(value);
        }
        assert_eq!(config.evaluate(&mixed).checks.unwrap()[0].counter.quota, 7);
        assert!(!mixed.asked.borrow().contains(&format!("{prefix}/5")), "the list ends after 4");
    }
}

#[test]
fn quota_from_reads_digits_unless_the_document_says_number() {
    let with = |source: Value| config(json!({}), &[json!({"quota_from": source})]);
    let quota = |config: &Config, raw: &[u8]| {
        let facts = [("jwt_payload/limit", raw)];
        config.evaluate(&Fake::new(&facts)).checks.unwrap()[0].counter.quota
    };
    let unnamed = with(json!({"jwt": {"claim": "limit"}}));
    let number = with(json!({"jwt": {"claim": "limit", "type": "number"}}));
    let fifty = f64::to_le_bytes(50.0);
    for (raw, by_unnamed, by_number) in [
        (&fifty[..], 50, 50),
        (b"50", 50, 5),
        (b"12345678", 12_345_678, 5),
        (&f64::to_le_bytes(1e300), MAX_UNITS, MAX_UNITS),
        (b"abcdef0C", 5, 5),
        (b"00000000", 0, 5),
        (b"99999999", 99_999_999, 5),
        (&f64::to_le_bytes(0.5), 5, 5),
        (b"-1", 5, 5),
        (b"5.0", 5, 5),
        (b"1e3", 5, 5),
        (b"", 5, 5),
    ] {
        assert_eq!(quota(&unnamed, raw), by_unnamed, "{raw:?}");
        assert_eq!(quota(&number, raw), by_number, "{raw:?}");
    }
}
