//! The identity from each source, and requests without one.

use serde_json::json;

use super::*;
use crate::config::Policy;
use crate::request::facts::Facts;
use crate::request::partition::Party;

/// The key under a policy that counts by an identity with these sources. Empty if the policy does
/// not apply.
fn key_by<V: AsRef<[u8]>>(sources: Value, facts: &[(&str, V)]) -> String {
    let config = config(json!({ "caller": sources }), &[json!({"partition_by": ["caller"]})]);
    keys(&config, facts).pop().unwrap_or_default()
}

#[test]
fn the_first_source_that_yields_a_value_wins() {
    let caller =
        json!([{"jwt": {"claim": "sub"}}, {"header": {"name": "X-Api-Key"}}, {"client_ip": {}}]);
    let config = config(json!({ "caller": caller }), &[json!({"partition_by": ["caller"]})]);
    for (facts, key) in [
        (
            vec![("jwt_payload/sub", "alice"), ("x-api-key", "k"), ("address", "192.0.2.7:1")],
            "{jwt.sub=alice}",
        ),
        (
            vec![("jwt_payload/sub", ""), ("x-api-key", "k"), ("address", "192.0.2.7:1")],
            "{header.x-api-key=k}",
        ),
        (vec![("x-api-key", ""), ("address", "192.0.2.7:1")], "{ip=192.0.2.7}"),
        (vec![("address", "[2001:db8:1:2:3::4]:1")], "{ip=2001:db8:1:2::/64}"),
        (vec![("address", "[::ffff:192.0.2.7]:1")], "{ip=192.0.2.7}"),
    ] {
        assert_eq!(keys(&config, &facts), [key]);
    }
    assert!(keys(&config, &[("address", "/run/a.sock")]).is_empty());
}

#[test]
fn identities_that_looked_for_a_token_say_whether_they_found_one() {
    let identities = json!({
        "a": [{"client_ip": {}}],
        "b": [{"jwt": {"claim": "sub"}}, {"client_ip": {}}],
        "c": [{"header": {"name": "x-key"}}, {"jwt": {"claim": "sub", "payload": "other"}}],
    });
    let policies = ["a", "b", "c"].map(|by| json!({"partition_by": [by]}));
    let config = config(identities, &policies);
    let tokens = |facts: &[(&str, &str)]| {
        let findings = config.evaluate(&Fake::new(facts)).findings;
        (findings.asked_token, findings.found_token)
    };
    assert_eq!(tokens(&[]), (0b11, 0));
    assert_eq!(tokens(&[("jwt_payload/sub", "alice")]), (0b11, 0b01));
    assert_eq!(tokens(&[("other/sub", "alice")]), (0b11, 0b10));
    assert_eq!(tokens(&[("x-key", "k")]), (0b01, 0), "c did not look");
}

#[test]
fn dots_nest_claims_and_all_claims_must_be_present() {
    let identities = json!({
        "user": [{"jwt": {"claims": ["iss", "sub"]}}, {"jwt": {"payload": "other", "claim": "realm.tenant"}}],
    });
    let config = config(identities, &[json!({"partition_by": ["user", "method"]})]);
    let facts =
        [("jwt_payload/iss", "https://idp"), ("jwt_payload/sub", "a,b"), (":method", "GET")];
    assert_eq!(keys(&config, &facts), ["{jwt.iss=https://idp,jwt.sub=a%2Cb,method=GET}"]);
    let facts = [("jwt_payload/sub", "a"), ("other/realm/tenant", "t"), (":method", "GET")];
    assert_eq!(keys(&config, &facts), ["{jwt@other.realm.tenant=t,method=GET}"]);
}

#[test]
fn a_missing_identity_is_skipped_denied_or_shared() {
    let identities = json!({"caller": [{"jwt": {"claim": "sub"}}]});
    let policy = |on_missing: &str, mode: &str| json!({"partition_by": ["method", "caller"], "on_missing": on_missing, "mode": mode});
    for (policies, expected) in [
        (vec![policy("skip", "enforce"), policy("shared", "enforce")], vec!["{method=GET,-}"]),
        (vec![policy("shared", "shadow"), policy("deny", "enforce")], vec!["deny 1"]),
        (vec![policy("deny", "shadow"), policy("shared", "enforce")], vec!["{method=GET,-}"]),
        (vec![policy("deny", "off"), policy("deny", "enforce")], vec!["deny 1"]),
    ] {
        assert_eq!(keys(&config(identities.clone(), &policies), &[(":method", "GET")]), expected);
    }
    let shared = json!({"partition_by": ["caller"], "on_missing": "shared"});
    let config = config(identities, &[shared]);
    assert_eq!(keys(&config, &NOTHING), ["{-}"]);
    assert_eq!(keys(&config, &[("jwt_payload/sub", "-")]), ["{jwt.sub=-}"]);
}

#[test]
fn secrets_are_digests_keyed_by_the_configuration() {
    let text = |more: &str| {
        format!(
            r#"{{"domain":"shop","store":{{"cluster":"s"}},{more}
            "identities":{{"key":[{{"header":{{"name":"x-api-key","secret":true}}}}]}},
            "policies":[{{"name":"p0","quota":1,"window":"1s","partition_by":["key"]}}]}}"#
        )
    };
    let key = |more: &str| {
        let config = Config::parse(text(more).as_bytes()).unwrap();
        assert!(!format!("{config:?}").contains("Jefe"));
        keys(&config, &[("x-api-key", "what do ya want for nothing?")]).remove(0)
    };
    assert_eq!(
        key(r#""digest_key":"Jefe","#),
        "{header.x-api-key=~5bdcc146bf60754e6a042426089575c7}"
    );
    assert_ne!(key(""), key(r#""digest_key":"Jefe","#));
    assert_eq!(key(""), "{header.x-api-key=~fafff23d94c3228de3862f5215b57efa}");
}

#[test]
fn every_source_is_read_and_named_in_the_key() {
    let number = 42.0_f64.to_le_bytes();
    for (source, fact, value, key) in [
        (json!({"jwt": {"claim": "sub"}}), "jwt_payload/sub", &b"alice"[..], "{jwt.sub=alice}"),
        (json!({"jwt": {"claim": "realm.id"}}), "jwt_payload/realm/id", b"a", "{jwt.realm.id=a}"),
        (
            json!({"jwt": {"claim": ["realm", "id"]}}),
            "jwt_payload/realm/id",
            b"a",
            "{jwt.realm.id=a}",
        ),
        (
            json!({"jwt": {"claim": ["https://a.b/plan"]}}),
            "jwt_payload/https://a.b/plan",
            b"x",
            "{jwt.https://a%2Eb/plan=x}",
        ),
        (
            json!({"jwt": {"payload": "https://idp.eu", "claim": "sub"}}),
            "https://idp.eu/sub",
            b"a",
            "{jwt@https://idp%2Eeu.sub=a}",
        ),
        (json!({"jwt": {"claim": "groups.0"}}), "jwt_payload/groups/0", b"g", "{jwt.groups.0=g}"),
        (
            json!({"jwt": {"claim": "id", "type": "number"}}),
            "jwt_payload/id",
            &number,
            "{jwt.id=42}",
        ),
        (
            json!({"jwt": {"claim": "vip", "type": "boolean"}}),
            "jwt_payload/vip",
            &[1],
            "{jwt.vip=true}",
        ),
        (
            json!({"metadata": {"filter": "my.filter", "path": ["user", "i.d"]}}),
            "my.filter:user/i.d",
            b"u",
            "{metadata.my%2Efilter.user.i%2Ed=u}",
        ),
        (
            json!({"metadata": {"filter": "f", "path": ["n"], "type": "number"}}),
            "f:n",
            &number,
            "{metadata.f.n=42}",
        ),
        (
            json!({"peer": {"san": "uri"}}),
            "connection.uri_san_peer_certificate",
            b"spiffe://td/ns/a",
            "{peer.uri=spiffe://td/ns/a}",
        ),
        (
            json!({"peer": {"san": "dns"}}),
            "connection.dns_san_peer_certificate",
            b"a.mesh",
            "{peer.dns=a.mesh}",
        ),
        (
            json!({"peer": {"subject": true}}),
            "connection.subject_peer_certificate",
            b"CN=a,O=b",
            "{peer.subject=CN%3Da%2CO%3Db}",
        ),
        (json!({"header": {"name": "X-Key"}}), "x-key", b"\t a b \t", "{header.x-key=a%20b}"),
        (json!({"cookie": {"name": "SID"}}), "cookie", b"x=1; SID=a%2Fb", "{cookie.SID=a/b}"),
        (
            json!({"query": {"name": "api key"}}),
            ":path",
            b"/?api+key=a%2Fb",
            "{query.api%20key=a/b}",
        ),
        (json!({"client_ip": {}}), "address", b"192.0.2.7:1", "{ip=192.0.2.7}"),
        (
            json!({"sni": {}}),
            "connection.requested_server_name",
            b"Shop.Example.",
            "{sni=shop.example}",
        ),
        (
            json!({"client_ip": {"ipv6_prefix": 48}}),
            "address",
            b"[2001:db8:1:2::3]:1",
            "{ip=2001:db8:1::/48}",
        ),
        (json!({"client_ip": {"ipv4_prefix": 24}}), "address", b"192.0.2.7:1", "{ip=192.0.2.0/24}"),
        (
            json!({"client_ip": {"ipv4_prefix": 24}}),
            "address",
            b"[::ffff:192.0.2.7]:1",
            "{ip=192.0.2.0/24}",
        ),
        (
            json!({"client_ip": {"ipv4_prefix": 24}}),
            "address",
            b"[2001:db8:1:2::3]:1",
            "{ip=2001:db8:1:2::/64}",
        ),
        (json!({"client_ip": {"ipv4_prefix": 32}}), "address", b"192.0.2.7:1", "{ip=192.0.2.7}"),
    ] {
        assert_eq!(key_by(json!([source]), &[(fact, value)]), key, "{source}");
        assert_eq!(key_by(json!([source]), &NOTHING), "", "{source}");
        assert_eq!(key_by(json!([source]), &[(fact, "")]), "", "{source}");
    }
}

#[test]
fn a_value_of_another_type_is_missing() {
    let claim = |kind: &str| json!([{"jwt": {"claim": "id", "type": kind}}]);
    let number = 42.0_f64.to_le_bytes();
    for (kind, value, key) in [
        ("string", &b"12345678"[..], "{jwt.id=12345678}"),
        ("number", b"12345678", ""),
        ("number", b"abcdef0C", ""),
        ("string", &number, ""),
        ("number", &number, "{jwt.id=42}"),
        ("number", b"42", ""),
        ("number", &f64::NAN.to_le_bytes(), ""),
        ("boolean", &[0], "{jwt.id=false}"),
        ("boolean", b"true", ""),
        ("string", &[1], ""),
        ("string", b"a\0b", ""),
        ("string", b"\xff", ""),
    ] {
        assert_eq!(key_by(claim(kind), &[("jwt_payload/id", value)]), key, "{kind} {value:?}");
    }
    // Two sources read it as different types, and it is fetched once.
    let both = json!([{"jwt": {"claim": "id"}}, {"jwt": {"claim": "id", "type": "number"}}]);
    let config = config(json!({ "caller": both }), &[json!({"partition_by": ["caller"]})]);
    let request = Fake::new(&[("jwt_payload/id", number)]);
    assert_eq!(&*config.evaluate(&request).checks.unwrap()[0].counter.key, "shop:p0:{jwt.id=42}");
    assert_eq!(*request.asked.borrow(), ["jwt_payload/id"]);
}

#[test]
fn a_value_given_twice_names_nobody_and_ends_the_search() {
    for (source, facts) in [
        (json!({"header": {"name": "x-key"}}), vec![("x-key", "a"), ("x-key", "b")]),
        (
            json!({"header": {"name": "x-key", "secret": true}}),
            vec![("x-key", "a"), ("x-key", "a")],
        ),
        (json!({"header": {"name": "x-key"}}), vec![("x-key", ""), ("x-key", "")]),
        (json!({"cookie": {"name": "sid"}}), vec![("cookie", "sid=a; sid=b")]),
        (json!({"cookie": {"name": "sid"}}), vec![("cookie", "sid=a"), ("cookie", "sid=a")]),
        (json!({"query": {"name": "key"}}), vec![(":path", "/?key=a&k%65y=a")]),
    ] {
        let facts: Vec<_> = facts.into_iter().chain([("address", "192.0.2.7:1")]).collect();
        let identities = json!({"caller": [source, {"client_ip": {}}]});
        for (on_missing, expected) in
            [("skip", vec!["{-}"]), ("deny", vec!["deny 0"]), ("shared", vec!["{-}"])]
        {
            let policy = json!({"partition_by": ["caller"], "on_missing": on_missing});
            let config = config(identities.clone(), &[policy]);
            assert_eq!(keys(&config, &facts), expected, "{source} {on_missing}");
            assert_eq!(config.evaluate(&Fake::new(&facts)).missing, [0], "{source} {on_missing}");
            assert_eq!(keys(&config, &facts[facts.len() - 1..]), ["{ip=192.0.2.7}"], "{source}");
        }
    }
}

#[test]
fn key_has_one_counter_however_its_client_spells_it() {
    let by = |source: &Value| {
        let policy = json!({"partition_by": ["caller"], "on_missing": "deny"});
        config(json!({ "caller": [source] }), &[policy])
    };
    let schemes = ["Bearer", "bearer", "BEARER", "bEaReR", "bearER"];
    let spaces = [" ", "  ", "\t", " \t", "\t \t", "          "];
    for name in ["authorization", "proxy-authorization"] {
        for secret in [false, true] {
            let config = by(&json!({"header": {"name": name, "secret": secret}}));
            let mut counters = std::collections::BTreeSet::new();
            for scheme in schemes {
                for space in spaces {
                    let value = format!("{scheme}{space}sk-AbC_1");
                    counters.extend(keys(&config, &[(name, format!(" {value}\t"))]));
                }
            }
            assert_eq!(counters.len(), 1, "{counters:?}");
            let basic = ["Basic YTpiYw==", "basic YTpiYw", "BASIC\tYTpiYx", "Basic YTpiYw==="];
            let counters: std::collections::BTreeSet<_> =
                basic.iter().flat_map(|value| keys(&config, &[(name, value)])).collect();
            assert_eq!(counters.len(), 1, "{counters:?}");
            // Upstreams may read another key from each of them.
            for value in [
                "Bearer K 1",
                "Bearer K\t2",
                "Bearer K,3",
                "Bearer \u{a0}K",
                "Basic YT pi",
                "Basic YTp.iYw===",
            ] {
                assert_eq!(keys(&config, &[(name, value)]), ["deny 0"], "{value:?}");
            }
            for (one, other) in [("Bearer K", "Bearer k"), ("Bearer K", "Basic K"), ("k", "K")] {
                let [one, other] = [one, other].map(|value| keys(&config, &[(name, value)]));
                assert_ne!(one, other);
            }
        }
    }
    let config = by(&json!({"header": {"name": "authorization"}}));
    assert_eq!(
        keys(&config, &[("authorization", "bearer  sk-AbC")]),
        ["{header.authorization=Bearer%20sk-AbC}"]
    );
    let cookie = by(&json!({"cookie": {"name": "sid"}}));
    for value in ["abc", "\"abc\"", r#""\141bc""#, r#""\a\b\143""#, "%61bc"] {
        let header = format!("sid={value}");
        assert_eq!(keys(&cookie, &[("cookie", header)]), ["{cookie.sid=abc}"], "{value}");
    }
}

#[test]
fn number_that_envoy_has_rounded_names_nobody() {
    let by = |sources: Value| {
        config(json!({ "caller": sources }), &[json!({"partition_by": ["caller"]})])
    };
    let claim = by(json!([{"jwt": {"claim": "id", "type": "number"}}]));
    let member = by(json!([{"metadata": {"filter": "f", "path": ["id"], "type": "number"}}]));
    // Three ids of one service, which Envoy reads as the same float.
    let ids = [175_928_847_299_117_063_u64, 175_928_847_299_117_064, 175_928_847_299_117_065];
    for id in ids.into_iter().chain([(1 << 53), (1 << 53) + 1]) {
        for (config, fact) in [(&claim, "jwt_payload/id"), (&member, "f:id")] {
            let request = [(fact, (id as f64).to_le_bytes())];
            assert_eq!(keys(config, &request), [""; 0], "{id}");
            let evaluation = config.evaluate(&Fake::new(&request));
            assert_eq!(evaluation.missing, [0]);
            assert!(evaluation.findings.rounded.is_some(), "the log says so");
            let text = id.to_string();
            let evaluation = config.evaluate(&Fake::new(&[(fact, text.as_bytes())]));
            assert!(evaluation.findings.rounded.is_none(), "a text is no number");
        }
    }
    let largest = (1_u64 << 53) - 1;
    let request = [("jwt_payload/id", (largest as f64).to_le_bytes())];
    assert_eq!(keys(&claim, &request), [format!("{{jwt.id={largest}}}")]);
    assert!(claim.evaluate(&Fake::new(&request)).findings.rounded.is_none());
    let text = by(json!([{"jwt": {"claim": "id"}}]));
    assert_eq!(
        keys(&text, &[("jwt_payload/id", "175928847299117063")]),
        ["{jwt.id=175928847299117063}"]
    );
}

#[test]
fn ipv6_address_that_holds_an_ipv4_address_counts_as_that() {
    let identities =
        json!({"ip": [{"client_ip": {}}], "net": [{"client_ip": {"ipv4_prefix": 24}}]});
    let within = json!({"client_ip": ["192.0.2.0/24"]});
    let policies = [
        json!({"partition_by": ["ip"]}),
        json!({"partition_by": ["net"], "match": within}),
        json!({"match": {"not": within}}),
    ];
    let config = config(identities, &policies);
    for address in [
        "192.0.2.7:1",
        "[::ffff:192.0.2.7]:1",
        "[64:ff9b::192.0.2.7]:1",
        "[2002:c000:207::1]:1",
        "[2002:c000:207:ffff:a:b:c:d]:1",
        "[2001:0:4136:e378:8000:63bf:3fff:fdf8]:1",
    ] {
        let found = keys(&config, &[("address", address)]);
        assert_eq!(found, ["{ip=192.0.2.7}", "{ip=192.0.2.0/24}"], "{address}");
    }
    let other = keys(&config, &[("address", "[2001:db8::192.0.2.7]:1")]);
    assert_eq!(other, ["{ip=2001:db8::/64}", "{*}"]);
}

#[test]
fn host_has_one_counter_however_its_client_spells_it() {
    let config = config(json!({}), &[json!({"partition_by": ["host"]})]);
    for host in [
        "shop.example",
        "SHOP.example:80",
        "shop.example..",
        "user@shop.example",
        "a:b@shop.example.:443",
        "shop%2eexample",
        "%73hop.example",
    ] {
        assert_eq!(keys(&config, &[(":authority", host)]), ["{host=shop.example}"], "{host}");
    }
    for host in ["u@", ".", "..", "%2e", ":80", "u@.:80"] {
        assert_eq!(keys(&config, &[(":authority", host)]), ["{host=.}"], "{host}");
    }
    let matching = json!({"match": {"hosts": ["shop.example"]}});
    let by_host = super::config(json!({}), &[matching]);
    assert_eq!(keys(&by_host, &[(":authority", "u@shop.example..")]).len(), 1);
}

#[test]
fn no_two_sources_share_a_label() {
    let sources = [
        json!({"jwt": {"claim": "a.b"}}),
        json!({"jwt": {"claim": ["a.b"]}}),
        json!({"jwt": {"claim": ["a%2Eb"]}}),
        json!({"jwt": {"payload": "a", "claim": "b"}}),
        json!({"jwt": {"payload": "a", "claim": ["b", "c"]}}),
        json!({"jwt": {"payload": "a.b", "claim": "c"}}),
        json!({"jwt": {"payload": "a@b", "claim": "c"}}),
        json!({"metadata": {"filter": "a", "path": ["b", "c"]}}),
        json!({"metadata": {"filter": "a.b", "path": ["c"]}}),
        json!({"metadata": {"filter": "a", "path": ["b.c"]}}),
        json!({"header": {"name": "a.b"}}),
        json!({"header": {"name": "a%b"}}),
        json!({"cookie": {"name": "a.b"}}),
        json!({"cookie": {"name": "A.B"}}),
        json!({"query": {"name": "a.b"}}),
        json!({"query": {"name": "a=b,c"}}),
        json!({"peer": {"san": "uri"}}),
        json!({"peer": {"san": "dns"}}),
        json!({"peer": {"subject": true}}),
        json!({"client_ip": {}}),
        json!({"sni": {}}),
    ];
    let policies: Vec<_> =
        (0..sources.len()).map(|i| json!({"partition_by": [format!("i{i}")]})).collect();
    let identities =
        sources.iter().enumerate().map(|(i, source)| (format!("i{i}"), json!([source])));
    let config = config(Value::Object(identities.collect()), &policies);
    let labels: std::collections::BTreeSet<_> =
        config.policies.iter().map(|policy| labels(policy).concat().concat().join(",")).collect();
    assert_eq!(labels.len(), sources.len(), "{labels:?}");
}

/// The labels of each source of each entry.
fn labels(policy: &Policy) -> Vec<Vec<Vec<&str>>> {
    let mut labels = Vec::new();
    for sources in policy.partition.forms() {
        let of = sources.iter().map(|parts| parts.iter().map(|part| part.label).collect());
        labels.push(of.collect());
    }
    labels
}

#[test]
fn a_counter_keeps_the_whole_client_address() {
    let identities =
        json!({"caller": [{"jwt": {"claim": "sub"}}, {"client_ip": {"ipv6_prefix": 32}}]});
    let by = |names: Value| json!({"partition_by": names, "on_missing": "shared"});
    let config = config(
        identities,
        &[by(json!(["method", "caller"])), by(json!(["method"])), by(json!([]))],
    );
    let address = |policy: usize, facts: &[(&str, &str)]| {
        let request = Fake::new(facts);
        let facts = Facts::new(&request, config.shared_identities);
        match config.policies[policy].partition.party(&facts, &config.digester) {
            Party::Counter { address, .. } => address.map(|address| address.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let facts = [("address", "[2001:db8:1:2::3]:1"), ("jwt_payload/sub", "alice")];
    assert_eq!(
        address(0, &facts[..1]).as_deref(),
        Some("2001:db8:1:2::3"),
        "the whole address, not its network"
    );
    assert_eq!(address(0, &facts), None, "a claim was found first");
    assert_eq!(address(0, &[]), None);
    assert_eq!(address(1, &facts[..1]), None);
    assert_eq!(address(2, &facts[..1]), None);
}

#[test]
fn an_override_value_is_normalized_like_a_request() {
    let identities = json!({
        "sub": [{"jwt": {"claim": "sub"}}], "key": [{"header": {"name": "x-key", "secret": true}}],
        "ip": [{"client_ip": {}}], "two": [{"jwt": {"claim": "sub"}}, {"client_ip": {}}],
        "pair": [{"jwt": {"claims": ["iss", "sub"]}}],
        "auth": [{"header": {"name": "Authorization"}}],
    });
    let by = |names: Value| json!({ "partition_by": names });
    let single = |name: &str, raw: &str| {
        let config = config(identities.clone(), &[by(json!([name]))]);
        let mut out = String::new();
        let single = config.policies[0].partition.single()?;
        single.write(&mut out, raw.as_bytes(), &config.digester).ok()?;
        Some(config.policies[0].partition.key_of(&out, &config.digester).to_string())
    };
    for (name, raw, facts) in [
        ("sub", "a,b", ("jwt_payload/sub", "a,b")),
        ("key", "secret", ("x-key", "secret")),
        ("auth", "bearer  K", ("authorization", "BEARER K")),
        ("ip", "2001:db8:0::5", ("address", "[2001:db8::6]:1")),
        ("ip", "::ffff:192.0.2.7", ("address", "192.0.2.7:1")),
        ("ip", "2002:c000:207::1", ("address", "[64:ff9b::192.0.2.7]:1")),
        ("method", "get", (":method", "GET")),
        ("host", "A.example:80", (":authority", "a.example")),
        ("path", "/a//b%20", (":path", "/a/b%20?q")),
        ("route", "R", ("route", "R")),
    ] {
        let request = config(identities.clone(), &[by(json!([name]))]);
        let key = format!("shop:p0:{}", keys(&request, &[facts])[0]);
        assert_eq!(single(name, raw), Some(key), "{name} {raw}");
    }
    assert_eq!(single("ip", "10.0.0.0/8"), None);
    assert_eq!(single("two", "alice"), None);
    assert_eq!(single("pair", "alice"), None);
    let config = config(identities.clone(), &[by(json!(["two", "pair", "host"])), by(json!([]))]);
    assert_eq!(
        labels(&config.policies[0]),
        [vec![vec!["jwt.sub"], vec!["ip"]], vec![vec!["jwt.iss", "jwt.sub"]], vec![vec!["host"]]]
    );
    assert!(!config.policies[0].partition.shares());
    assert!(
        config.policies[1].partition.forms().is_empty()
            && config.policies[1].partition.single().is_none()
    );
}
