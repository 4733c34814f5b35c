//! Valid configurations that are probably mistakes: each warning, and similar cases without a
//! warning.

use quotagate_quota::config::{Config, PublishedDocument};
use serde_json::{Value, json};

/// The warnings for a document with these sections and the required ones. `null` removes a section.
fn warnings(sections: &Value) -> Vec<String> {
    let needed = json!({
        "domain": "shop", "store": {"cluster": "store"}, "digest_key": "0123456789abcdef", "policies": [],
    });
    let document = with(needed, sections);
    match Config::parse(document.to_string().as_bytes()) {
        Ok(config) => config.warnings().iter().map(ToString::to_string).collect(),
        Err(faults) => vec![format!("refused: {faults}")],
    }
}

/// A list of one policy with these fields.
fn policy(fields: Value) -> Value {
    json!([with(json!({"name": "p", "partition_by": [], "quota": 1000, "window": "1m"}), &fields)])
}

/// These identities, and a policy that counts by the ones in `names`, beside one that nobody can
/// evade.
fn counted_by(identities: Value, names: &[&str]) -> Value {
    let policies = bounded(policy(json!({"partition_by": names, "on_missing": "shared"})));
    json!({"identities": identities, "policies": policies})
}

/// With one more policy, which no client can evade.
fn bounded(mut policies: Value) -> Value {
    let all = json!({"name": "all", "partition_by": [], "quota": 10_000, "window": "1m"});
    if let Some(policies) = policies.as_array_mut() {
        policies.push(all);
    }
    policies
}

fn with(mut object: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().into_iter().flatten() {
        if let Some(object) = object.as_object_mut() {
            match value {
                Value::Null => object.remove(name),
                value => object.insert(name.clone(), value.clone()),
            };
        }
    }
    object
}

/// Asserts that exactly these warnings are reported. Each text is the start of a warning.
fn expect(sections: Value, expected: &[&str]) {
    let found = warnings(&sections);
    let same = found.len() == expected.len()
        && expected.iter().all(|start| found.iter().any(|warning| warning.starts_with(start)));
    assert!(same, "{sections}\nexpected {expected:#?}\nfound {found:#?}");
}

#[test]
fn warns_of_a_client_written_source_before_another() {
    let sources = json!({
        "none": [{"jwt": {"claim": "sub"}}, {"peer": {"san": "uri"}}, {"client_ip": {}}],
        "last": [{"jwt": {"claim": "sub"}}, {"header": {"name": "x-key"}}],
        "alone": [{"cookie": {"name": "id"}}],
        "a": [{"header": {"name": "x-key"}}, {"client_ip": {}}],
        "b.c": [{"jwt": {"claim": "sub"}}, {"query": {"name": "key"}}, {"cookie": {"name": "id"}}],
    });
    expect(
        counted_by(sources, &["none", "last", "alone", "a", "b.c"]),
        &[
            "identities.a[0]: stands before another source, and any client can invent it",
            r#"identities["b.c"][1]: stands before another source"#,
        ],
    );
}

#[test]
fn warns_of_secrets_with_a_missing_or_short_digest_key() {
    let secret =
        counted_by(json!({"key": [{"header": {"name": "x-key", "secret": true}}]}), &["key"]);
    let plain =
        counted_by(json!({"key": [{"header": {"name": "x-key", "secret": false}}]}), &["key"]);
    let keyless = |mut sections: Value| {
        sections["digest_key"] = Value::Null;
        sections
    };
    let without = "identities.key[0]: is secret, and without digest_key";
    expect(secret.clone(), &[]);
    expect(keyless(secret), &[without]);
    expect(keyless(plain), &[]);
    expect(json!({"digest_key": "0123456789abcde"}), &["digest_key: is shorter than 16 bytes"]);
}

#[test]
fn warns_of_credentials_that_are_not_secret() {
    let plain =
        &["identities.key[0]: is a credential, and without secret: true its value is readable"][..];
    for (kind, name, is_credential) in [
        ("header", "Authorization", true),
        ("header", "proxy-authorization", true),
        ("header", "X-Api-Key", true),
        ("header", "apikey", true),
        ("header", "x-auth-token", true),
        ("header", "cookie", true),
        ("cookie", "session", true),
        ("cookie", "PHPSESSID", true),
        ("cookie", "connect.sid", true),
        ("cookie", "next-auth.session-token.0", true),
        ("cookie", "ASPSESSIONIDABCD", true),
        ("header", "x-secret-access-key", true),
        ("query", "api_key", true),
        ("header", "x-team", false),
        ("header", "x-key", false),
        ("header", "x-max-tokens", false),
        ("header", "x-session-type", false),
        ("cookie", "id", false),
        ("cookie", "president", false),
    ] {
        let key = |secret: bool| {
            let source = json!([{ kind: {"name": name, "secret": secret} }]);
            counted_by(json!({ "key": source }), &["key"])
        };
        expect(key(false), if is_credential { plain } else { &[] });
        expect(key(true), &[]);
    }
}

#[test]
fn secret_in_clear_is_a_warning_and_no_published_document_has_one() {
    let digest = format!("header.x-key=~{:032}", 7);
    let several = json!([{"jwt": {"claim": "sub"}}, {"header": {"name": "x-key", "secret": true}}]);
    let key = |kind: &str| json!([{ kind: {"name": "x-key", "secret": true} }]);
    let client_ip = json!([{"client_ip": {}}]);
    let over = |value: &str| json!({"overrides": [{"value": value, "quota": 5}]});
    let when = |conditions: Value| json!({ "match": conditions });
    let exact = |value: &str| json!({"name": "X-Key", "exact": value});
    let at = |path: &str| format!("policies[0].{path}: is a secret in clear");
    let header = when(json!({"headers": [{"name": "a", "exact": "b"}, exact("s3cret")]}));
    for (sources, fields, path) in [
        (key("header"), over("s3cret"), Some("overrides[0].value")),
        (key("cookie"), over("s3cret"), Some("overrides[0].value")),
        (key("query"), over(&digest.replace('~', "")), Some("overrides[0].value")),
        (key("header"), over(&digest), None),
        (json!([{"header": {"name": "x-key"}}]), over("known"), None),
        (several, over(&digest), None),
        (key("header"), header.clone(), Some("match.headers[1].exact")),
        (
            key("header"),
            when(json!({"not": {"headers": [exact("s3cret")]}})),
            Some("match.not.headers[0].exact"),
        ),
        (
            key("query"),
            when(json!({"query": {"name": "x-key", "exact": "s3cret"}})),
            Some("match.query.exact"),
        ),
        (key("query"), header, None),
        (
            key("header"),
            when(json!({"headers": [{"name": "x-key", "regex": "s3cret|a"}]})),
            Some("match.headers[0].regex"),
        ),
        (
            client_ip.clone(),
            when(json!({"headers": [{"name": "authorization", "exact": "Bearer s3cret"}]})),
            Some("match.headers[0].exact"),
        ),
        (
            client_ip,
            when(json!({"query": {"name": "api_key", "exact": "s3cret"}})),
            Some("match.query.exact"),
        ),
        (key("header"), when(json!({"headers": [{"name": "x-key", "prefix": "live-"}]})), None),
    ] {
        let mut document = counted_by(json!({"key": sources}), &["key"]);
        document["policies"][0] = with(document["policies"][0].take(), &fields);
        let expected: Vec<String> = path.into_iter().map(at).collect();
        expect(document.clone(), &expected.iter().map(String::as_str).collect::<Vec<_>>());
        document["domain"] = json!("shop");
        let published = PublishedDocument::check(&document);
        let faults = published.err().map(|faults| faults.to_string()).unwrap_or_default();
        assert_eq!(expected.is_empty(), faults.is_empty(), "{document}: {faults}");
        assert!(expected.iter().all(|start| faults.starts_with(start)), "{faults}");
        assert!(!faults.contains("s3cret"), "{faults}");
    }
}

#[test]
fn warns_of_a_quota_that_admits_nobody() {
    let nobody = &["policies[0].quota: is 0, and nothing grants anyone more"][..];
    let ip = json!({"ip": [{"client_ip": {}}]});
    let over = |quota: Value| json!({"quota": 0, "partition_by": ["ip"], "overrides": [{"value": "192.0.2.7", "quota": quota}]});
    for (fields, expected) in [
        (json!({"quota": 0}), nobody),
        (json!({"quota": 0, "mode": "shadow"}), nobody),
        (json!({"quota": 0, "mode": "off"}), &[]),
        (json!({"quota": 1}), &[]),
        (json!({"quota": 0, "quota_from": {"jwt": {"claim": "q"}}}), &[]),
        (
            json!({"quota": 0, "tiers": {"source": {"jwt": {"claim": "p"}}, "quotas": {"a": 1}}}),
            &[],
        ),
    ] {
        expect(json!({ "policies": policy(fields) }), expected);
    }
    expect(json!({"identities": ip, "policies": policy(over(json!(0)))}), nobody);
    expect(json!({"identities": ip, "policies": policy(over(json!(5)))}), &[]);
}

#[test]
fn warns_of_clients_that_can_omit_their_identity_and_go_uncounted() {
    let identities = json!({
        "key": [{"header": {"name": "x-key"}}],
        "any": [{"cookie": {"name": "id"}}],
        "user": [{"jwt": {"claim": "sub"}}],
        "caller": [{"jwt": {"claim": "sub"}}, {"header": {"name": "x-key"}}],
    });
    let warned = "policies[0].on_missing: defaults to skip";
    for (by, on_missing, expected) in [
        (json!(["key"]), None, &[warned][..]),
        (json!(["user", "any", "key"]), None, &[warned]),
        (json!(["key"]), Some("skip"), &[]),
        (json!(["key"]), Some("deny"), &[]),
        (json!(["user"]), None, &[]),
        (json!(["caller", "method"]), None, &[]),
        (json!([]), None, &[]),
    ] {
        let mut fields = json!({ "partition_by": by.clone() });
        if let Some(word) = on_missing {
            fields["on_missing"] = json!(word);
        }
        let mut used = identities.clone();
        if let Some(used) = used.as_object_mut() {
            used.retain(|name, _| by.as_array().is_some_and(|by| by.contains(&json!(name))));
        }
        expect(json!({"identities": used, "policies": bounded(policy(fields))}), expected);
    }
}

#[test]
fn warns_of_clients_that_can_invent_their_identity() {
    let named = |i: usize, fields: &Value| {
        let mut base = json!({"name": format!("p{i}"), "partition_by": []});
        if fields.get("in_flight").is_none() {
            base = with(base, &json!({"quota": 9, "window": "1m"}));
        }
        with(base, fields)
    };
    let found = |sources: &Value, policies: &[Value]| {
        let mut identities = json!({"key": sources});
        for (name, source) in
            [("ip", json!({"client_ip": {}})), ("user", json!({"jwt": {"claim": "sub"}}))]
        {
            let uses = |policy: &Value| policy["partition_by"].to_string().contains(name);
            if policies.iter().any(uses) {
                identities[name] = json!([source]);
            }
        }
        let policies: Vec<_> = policies.iter().enumerate().map(|(i, p)| named(i, p)).collect();
        warnings(&json!({"identities": identities, "policies": policies}))
    };
    let by_key = json!({"partition_by": ["key"], "on_missing": "deny"});
    let is_warned = |found: Vec<String>, position: usize| match found.as_slice() {
        [] => false,
        [one] => {
            let expected = format!("identities.key[{position}]: can be invented by any client");
            assert!(one.starts_with(&expected), "{one}");
            true
        }
        more => panic!("{more:?}"),
    };
    for (sources, position) in [
        (json!([{"header": {"name": "x-key"}}]), Some(0)),
        (json!([{"cookie": {"name": "id"}}]), Some(0)),
        (json!([{"query": {"name": "key"}}]), Some(0)),
        (json!([{"sni": {}}]), Some(0)),
        (json!([{"jwt": {"claim": "sub"}}, {"header": {"name": "x-key"}}]), Some(1)),
        (json!([{"jwt": {"claim": "sub"}}]), None),
        (json!([{"peer": {"san": "uri"}}, {"client_ip": {}}]), None),
    ] {
        for on_missing in ["deny", "shared"] {
            let policy = json!({"partition_by": ["key"], "on_missing": on_missing});
            let found = found(&sources, &[policy]);
            assert_eq!(is_warned(found, position.unwrap_or(0)), position.is_some(), "{sources}");
        }
    }
    let matching = json!({"path": {"prefix": "/a"}});
    let here = with(by_key.clone(), &json!({ "match": matching }));
    let answers = json!({"count": {"status": [401], "grpc_status": [16]}});
    let slots = json!({"in_flight": 9});
    for (policy, other, warned) in [
        (&by_key, json!({}), false),
        (&by_key, json!({"partition_by": ["ip"]}), false),
        (&by_key, json!({"partition_by": ["user"], "on_missing": "deny"}), false),
        (&by_key, json!({"partition_by": ["user"], "on_missing": "skip"}), true),
        (&by_key, json!({"partition_by": ["ip", "path"]}), true),
        (&by_key, json!({"partition_by": ["ip", "route"]}), false),
        (&by_key, json!({"mode": "shadow"}), true),
        (&by_key, answers.clone(), true),
        (&by_key, slots.clone(), true),
        (&with(by_key.clone(), &answers), answers.clone(), false),
        (&with(by_key.clone(), &answers), json!({}), false),
        (&with(by_key.clone(), &slots), slots.clone(), false),
        (&with(by_key.clone(), &json!({"mode": "off"})), json!({"mode": "shadow"}), false),
        (&by_key, json!({ "match": matching }), true),
        (&here, json!({ "match": matching }), false),
        (&here, json!({}), false),
        (&here, json!({"match": {"path": {"prefix": "/b"}}}), true),
    ] {
        let source = json!([{"header": {"name": "x-key"}}]);
        let found = found(&source, &[policy.clone(), other.clone()]);
        assert_eq!(is_warned(found, 0), warned, "{policy} {other}");
    }
}

#[test]
fn warns_of_unused_identities() {
    let identities = json!({"caller": [{"client_ip": {}}], "spare.one": [{"client_ip": {}}]});
    let unused = r#"identities["spare.one"]: is not used: name it in the partition_by of a policy, or remove it"#;
    expect(counted_by(identities.clone(), &["caller"]), &[unused]);
    expect(counted_by(identities.clone(), &["caller", "spare.one"]), &[]);
    let off = policy(json!({"partition_by": ["caller", "spare.one"], "mode": "off"}));
    expect(json!({"identities": identities, "policies": off}), &[]);
}

#[test]
fn warns_of_networks_within_an_earlier_one() {
    let overrides = json!([
        {"network": "10.1.0.0/16", "quota": 5},
        {"network": "10.0.0.0/8", "unlimited": true},
        {"network": "10.2.0.0/16", "quota": 5},
        {"network": "2001:db8::/32", "quota": 5},
        {"network": "::/0", "quota": 7},
    ]);
    let policies = policy(json!({"partition_by": ["ip"], "overrides": overrides}));
    expect(
        json!({"identities": {"ip": [{"client_ip": {}}]}, "policies": policies}),
        &[
            "policies[0].overrides[2].network: never counts: policies[0].overrides[1] comes first and covers \
           all of 10.0.0.0/8",
        ],
    );
}

#[test]
fn warns_of_networks_that_are_a_part_of_what_counts_as_one_client() {
    let overrides = json!([
        {"network": "192.0.2.7", "quota": 5},
        {"network": "192.0.2.8", "unlimited": true},
        {"network": "192.0.2.9", "quota": 0},
        {"network": "198.51.100.0/24", "quota": 5},
        {"network": "2001:db8::7", "quota": 5},
    ]);
    let policies = policy(json!({"partition_by": ["ip"], "overrides": overrides}));
    expect(
        json!({"identities": {"ip": [{"client_ip": {"ipv4_prefix": 24}}]}, "policies": policies}),
        &[
            "policies[0].overrides[0].network: is a part of 192.0.2.0/24, which counts as one client: its \
             neighbours use up this quota, too. Write 192.0.2.0/24, or change ipv4_prefix of the identity",
            "policies[0].overrides[4].network: is a part of 2001:db8::/64, which counts as one client: its \
             neighbours use up this quota, too. Write 2001:db8::/64, or change ipv6_prefix of the identity",
        ],
    );
}

#[test]
fn network_that_some_part_of_the_partition_tells_apart_is_no_part_of_a_client() {
    let overrides = json!([{"network": "192.0.2.7", "quota": 5}]);
    let identities = json!({
        "net": [{"client_ip": {"ipv4_prefix": 24}}],
        "ip": [{"client_ip": {}}],
        "either": [{"client_ip": {}}, {"client_ip": {"ipv4_prefix": 24}}],
    });
    for (by, is_part) in [(&["net", "ip"][..], false), (&["either"], true), (&["net"], true)] {
        let mut identities = identities.clone();
        identities.as_object_mut().unwrap().retain(|name, _| by.contains(&&**name));
        let policies = policy(json!({"partition_by": by, "overrides": overrides}));
        let text = "policies[0].overrides[0].network: is a part of 192.0.2.0/24, which counts as one client: \
                    its neighbours use up this quota, too. Write 192.0.2.0/24, or change ipv4_prefix of the identity";
        let expected: &[&str] = if is_part { &[text] } else { &[] };
        expect(json!({"identities": identities, "policies": policies}), expected);
    }
}

#[test]
fn warns_of_leases_and_costs_that_do_not_fit_the_quota() {
    let lease =
        "policies[0].precision: has no effect: workers do not prefetch from a quota below 200";
    let long = "policies[0].lease: prefetches for more than 1/10 of the window";
    let cost = "policies[0].cost: is more than any quota of this policy";
    let tiers =
        json!({"source": {"jwt": {"claim": "plan"}}, "quotas": {"free": 1, "premium": 200}});
    for (fields, expected) in [
        (json!({"precision": "lease", "quota": 199}), &[lease][..]),
        (json!({"precision": "lease", "quota": 200}), &[]),
        (json!({"precision": "exact", "quota": 199}), &[]),
        (json!({"precision": "lease", "quota": 1, "tiers": tiers}), &[]),
        (json!({"precision": "lease", "quota": 1, "quota_from": {"jwt": {"claim": "q"}}}), &[]),
        (
            json!({"precision": "lease", "quota": 1, "quota_from": {"jwt": {"claim": "q"}, "max": 9}}),
            &[lease],
        ),
        (
            json!({"precision": "lease", "quota": 200, "window": "10s", "lease": {"ahead": "1s"}}),
            &[],
        ),
        (
            json!({"precision": "lease", "quota": 200, "window": "10s", "lease": {"ahead": "1001ms"}}),
            &[long],
        ),
        (json!({"cost": 6, "quota": 5}), &[cost]),
        (json!({"cost": 5, "quota": 5}), &[]),
        (json!({"cost": 6, "quota": 0}), &["policies[0].quota: is 0"]),
        (json!({"cost": 6, "quota": 5, "tiers": tiers}), &[]),
    ] {
        expect(json!({ "policies": policy(fields) }), expected);
    }
}

#[test]
fn warns_of_a_reservation_that_the_client_chooses_where_usage_is_missing() {
    let by_body = json!({"request_json": ["max_tokens"], "default": 5});
    let header = json!({"response_header": "x-cost"});
    let warned =
        &["policies[0].cost.if_missing: is reserved, and request_json lets the client"][..];
    for (reserve, source, if_missing, expected) in [
        (by_body.clone(), json!({"usage": "total"}), None, warned),
        (by_body.clone(), json!({"usage": "total"}), Some(json!("reserved")), warned),
        (by_body.clone(), json!({"usage": "total"}), Some(json!(24_000)), &[]),
        (by_body.clone(), json!({"usage": "total"}), Some(json!("nothing")), &[]),
        (by_body, header, None, &[]),
        (json!(5), json!({"usage": "total"}), None, &[]),
    ] {
        let mut cost = json!({"reserve": reserve, "settle": [source]});
        if let Some(if_missing) = if_missing {
            cost["if_missing"] = if_missing;
        }
        expect(json!({ "policies": policy(json!({ "cost": cost })) }), expected);
    }
}

#[test]
fn warns_of_a_local_share_without_local_counting() {
    let share = |on_failure: &str| json!({"cluster": "store", "local_share": 0.5, "on_failure": on_failure});
    let local = policy(json!({"on_failure": "local"}));
    let useless = "store.local_share: means nothing";
    expect(json!({ "store": share("allow") }), &[useless]);
    expect(json!({ "store": share("local") }), &[]);
    expect(json!({"store": share("deny"), "policies": local}), &[]);
    expect(json!({"store": {"cluster": "store"}}), &[]);
}

#[test]
fn warns_of_a_scheme_that_an_expression_cannot_match() {
    let matching = |regex: &str| {
        let header = json!({"name": "Authorization", "regex": regex});
        json!({"policies": policy(json!({"match": {"headers": [header]}}))})
    };
    expect(
        matching("bearer sk-.*"),
        &[
            "policies[0].match.headers[0].regex: matches nothing: however a client writes the scheme, \
           it is compared as Bearer",
        ],
    );
    expect(matching("Bearer sk-.*"), &[]);
    expect(matching("(?i)bearer sk-.*"), &[]);
}

#[test]
fn warns_of_misspelled_placeholders() {
    let body = "{policy} {retry-after} { quota } {Policy} {limit} {} {\"a\": {retryafter}} {";
    let headers = json!({"x-policy": "{polcy}"});
    expect(
        json!({"response": {"denied": {"body": body, "headers": headers}}}),
        &[
            "response.denied.body: {retry-after} is no placeholder and stays as it is: did you mean {retry_after}?",
            "response.denied.body: { quota } is no placeholder and stays as it is: did you mean {quota}?",
            "response.denied.body: {Policy} is no placeholder and stays as it is: did you mean {policy}?",
            "response.denied.body: {retryafter} is no placeholder and stays as it is: did you mean {retry_after}?",
            "response.denied.headers.x-policy: {polcy} is no placeholder and stays as it is: did you mean {policy}?",
        ],
    );
}

#[test]
fn warns_of_on_missing_on_a_shared_counter() {
    let ip = json!({"caller": [{"client_ip": {}}]});
    for (on_missing, by, warned) in [
        ("deny", json!([]), true),
        ("shared", json!([]), true),
        ("skip", json!([]), false),
        ("deny", json!(["caller"]), false),
    ] {
        let identities = if by == json!([]) { json!({}) } else { ip.clone() };
        let policies = policy(json!({"on_missing": on_missing, "partition_by": by}));
        let expected: &[&str] = if warned {
            &["policies[0].on_missing: means nothing with partition_by: []"]
        } else {
            &[]
        };
        expect(json!({"identities": identities, "policies": policies}), expected);
    }
}

#[test]
fn warnings_are_reported_beside_faults() {
    let text = r#"{"domain": "shop", "store": {}, "digest_key": "short", "policies": []}"#;
    let faults = Config::parse(text.as_bytes()).map(|_| ()).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "store: must have exactly one of cluster, redis, has none of them"
    );
    assert!(matches!(faults.warnings(), [warning] if warning.path == "digest_key"));
}

#[test]
fn warns_of_path_expressions_with_a_semicolon() {
    let path =
        |regex: &str| json!({ "policies": policy(json!({"match": {"path": {"regex": regex}}})) });
    expect(path("/api(;.*)?"), &["policies[0].match.path.regex: has a semicolon"]);
    expect(path("/api/.*"), &[]);
}

#[test]
fn warns_of_a_count_that_covers_only_http_or_only_grpc() {
    let count = |count: Value| json!({ "policies": policy(json!({ "count": count })) });
    expect(count(json!({"status": [401]})), &["policies[0].count: lists no grpc_status"]);
    expect(count(json!({"grpc_status": [16]})), &["policies[0].count: lists no status"]);
    expect(count(json!({"status": [401], "grpc_status": [16]})), &[]);
    expect(count(json!({"status": [401], "grpc_status": []})), &[]);
    expect(count(json!({"status": [], "grpc_status": [16], "abandoned": "refund"})), &[]);
}

#[test]
fn warns_of_stores_inside_the_filter_that_lose_counters_or_show_a_password() {
    let store = |store: Value| json!({ "store": store });
    expect(store(json!({"redis": "memory:"})), &["store.redis: counts in this proxy alone"]);
    for url in ["redis://u:s3cret@h", "redis-cluster://:s3cret@a,b", "redis+unix://u:s3@/r.sock"] {
        expect(store(json!({ "redis": url })), &["store.redis: holds a password"]);
    }
    for url in
        ["redis://h", "redis://[::1]:1", "redis://u@h", "redis://u:@h", "redis+unix:///a@b:c.sock"]
    {
        expect(store(json!({ "redis": url })), &[]);
    }
    let file = |path: &str| store(json!({"redis": "redis://h", "password_file": path}));
    expect(file("redis.password"), &["store.password_file: is relative to the directory"]);
    expect(file("/run/secrets/redis"), &[]);
}
