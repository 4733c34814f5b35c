//! A name that a person types leads to the same key as the request that it names.

use proptest::prelude::*;

use super::*;
use crate::request::naming::{DigestKey, Name, Secret};

fn named(typed: &str, secrets: Vec<Secret>, policy: &str) -> String {
    let name = Name::parse(typed, secrets).unwrap_or_else(|error| panic!("{typed}: {error}"));
    format!("{{{}}}", name.encode(&DigestKey::derived("shop"), "shop", policy))
}

/// How a person types a value of any bytes: `%XX` for bytes that are not text, and for characters
/// that have a meaning.
fn typed(value: &[u8]) -> String {
    let mut out = String::new();
    for chunk in value.utf8_chunks() {
        out += &chunk.valid().replace('%', "%25").replace(',', "%2C");
        out.extend(chunk.invalid().iter().map(|byte| format!("%{byte:02x}")));
    }
    match out.as_str() {
        "*" => "%2a".to_owned(),
        tilde if tilde.starts_with('~') => tilde.replacen('~', "%7e", 1),
        _ => out,
    }
}

/// A header's value as it counts: without the white space of HTTP around it.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Values with lengths around the bound for digests, and values of characters that have a meaning
/// somewhere.
fn values() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 1..140),
        prop::collection::vec(prop::sample::select(b"~%=,-*{}7Ea\0\xff /.?#\\".to_vec()), 1..12),
        "[a-zA-Z0-9äé,=%~ ]{1,60}".prop_map(String::into_bytes),
        "~[0-9a-f]{32}".prop_map(String::into_bytes),
    ]
}

#[test]
fn a_typed_name_leads_to_the_key_of_any_value() {
    let identities = json!({
        "user": [{"header": {"name": "X-User.Id"}}],
        "key": [{"query": {"name": "api key", "secret": true}}],
        "peer": [{"peer": {"subject": true}}],
    });
    let policies = [
        json!({"partition_by": ["user"]}),
        json!({"partition_by": ["key"]}),
        json!({"partition_by": ["peer", "route", "user"]}),
        json!({"partition_by": ["path"]}),
        json!({"partition_by": ["method"]}),
        json!({"partition_by": ["host"]}),
    ];
    let config = config(identities, &policies);
    let one = |policy: usize, facts: &[(&str, &[u8])]| {
        let checks = config.evaluate(&Fake::new(facts)).checks.unwrap();
        let check = checks.iter().find(|check| check.policy == policy)?;
        check.counter.key.split_once(":{").map(|(_, partition)| format!("{{{partition}"))
    };
    proptest!(ProptestConfig::with_cases(2000), |(a in values(), b in values(), c in values())| {
        let user = one(0, &[("x-user.id", &a)]);
        if let Some(key) = user {
            prop_assert_eq!(&named(&format!("header.X-User.Id={}", typed(trim(&a))), vec![], "p0"), &key);
            prop_assert_eq!(&named(&key[1..key.len() - 1], vec![], "p0"), &key);
        }
        let target = format!("/?api%20key={}", a.iter().map(|b| format!("%{b:02X}")).collect::<String>());
        if let Some(key) = one(1, &[(":path", target.as_bytes())]) {
            let secret = Secret::new("query.api key", a.clone()).unwrap();
            prop_assert_eq!(&named("", vec![secret], "p1"), &key);
            prop_assert_eq!(&named(&key[1..key.len() - 1], vec![], "p1"), &key);
        }
        if let Some(key) = one(2, &[("Subject", &a), ("route", &b), ("x-user.id", &c)]) {
            let (a, b, c) = (typed(&a), typed(&b), typed(trim(&c)));
            let name = format!("peer.subject={a},route={b},header.x-user.id={c}");
            prop_assert_eq!(&named(&name, vec![], "p2"), &key);
            prop_assert_eq!(&named(&key[1..key.len() - 1], vec![], "p2"), &key);
        }
        for (policy, fact) in [(3, ":path"), (4, ":method"), (5, ":authority")] {
            if let Some(key) = one(policy, &[(fact, &a)]) {
                prop_assert_eq!(&named(&key[1..key.len() - 1], vec![], "p"), &key);
            }
        }
    });
}

#[test]
fn memory_of_earlier_requests_changes_no_counter() {
    let identities = json!({
        "user": [{"header": {"name": "x-user"}}],
        "key": [{"header": {"name": "x-key", "secret": true}}],
    });
    let policies = [
        json!({"partition_by": ["user", "path"], "on_missing": "skip"}),
        json!({"partition_by": ["key"], "on_missing": "deny", "match": {"methods": ["POST"]}}),
        json!({"partition_by": ["user"], "on_missing": "shared"}),
    ];
    let config = config(identities, &policies);
    let methods = prop::sample::select(vec!["GET", "POST"]);
    let request = (methods, prop::collection::vec(values(), 0..4));
    let requests = prop::collection::vec(request, 1..12);
    proptest!(ProptestConfig::with_cases(300), |(requests in requests)| {
        let mut scratch = EvaluationScratch::default();
        for (method, values) in requests {
            let mut facts = vec![(":method", method.as_bytes())];
            let values = values.iter().map(Vec::as_slice);
            facts.extend([":path", "x-user", "x-key"].into_iter().zip(values));
            let alone = config.evaluate(&Fake::new(&facts));
            let after_others = config.evaluate_in(&mut scratch, &Fake::new(&facts));
            prop_assert_eq!(&after_others, &alone);
            if let Ok(checks) = after_others.checks {
                scratch.keep(checks);
            }
        }
    });
}

#[test]
fn paths_addresses_and_claims_are_named_as_clients_send_them() {
    let identities =
        json!({"ip": [{"client_ip": {}}], "user": [{"jwt": {"claims": ["iss", "sub"]}}]});
    let config = config(identities, &[json!({"partition_by": ["ip", "path", "user"]})]);
    let facts = [
        (":path", "/a//b%20c/../%64?x=1"),
        ("address", "[2001:db8:1:2:3::4]:443"),
        ("jwt_payload/iss", "https://id.example"),
        ("jwt_payload/sub", "Ann, 100%"),
    ];
    let name = "ip=2001:db8:1:2:3::4/64,path=/a//b%20c/../%64?x=1,jwt.iss=https://id.example,jwt.sub=Ann, 100%";
    assert_eq!(keys(&config, &facts), [named(name, Vec::new(), "p0")]);
}

#[test]
fn a_partition_too_long_for_a_key_gets_the_digest_of_the_filter() {
    let names: Vec<String> = (0..16).map(|i| format!("h{i}")).collect();
    let identities: serde_json::Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!([{"header": {"name": name}}]))).collect();
    let config = config(Value::Object(identities), &[json!({"partition_by": names})]);
    let value = "é".repeat(64);
    let facts: Vec<(&str, &str)> =
        names.iter().map(|name| (name.as_str(), value.as_str())).collect();
    let name: Vec<String> = names.iter().map(|name| format!("header.{name}={value}")).collect();
    let key = named(&name.join(","), Vec::new(), "p0");
    assert_eq!(keys(&config, &facts), [key.as_str()]);
    assert_eq!(key.len(), 35, "{key}");
}
