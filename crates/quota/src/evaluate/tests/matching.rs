//! Which requests a policy applies to.

use serde_json::json;

use super::*;

#[test]
fn all_conditions_must_hold() {
    let matching = json!({"methods": ["GET", "HEAD"], "path": {"prefix": "/api/"}, "hosts": ["*.EXAMPLE.org.", "a.b"]});
    let config = config(json!({}), &[json!({ "match": matching })]);
    for (method, path, host, applies) in [
        ("GET", "/api/x?y", "www.example.org:80", true),
        ("HEAD", "/api/", "A.B.", true),
        ("get", "/api/x", "a.b", true),
        ("GET", "/api?/api/", "a.b", false),
        ("GET", "/x#/api/", "a.b", false),
        ("GET", "/api/x", "example.org", false),
        ("GET", "/api/x", "x.a.b", false),
    ] {
        let facts = [(":method", method), (":path", path), (":authority", host)];
        assert_eq!(!keys(&config, &facts).is_empty(), applies, "{facts:?}");
        for missing in 0..3 {
            let mut fewer = facts.to_vec();
            fewer.remove(missing);
            assert!(keys(&config, &fewer).is_empty(), "{fewer:?}");
        }
    }
}

#[test]
fn facts_of_the_request_itself_are_normalized() {
    let by = json!({"partition_by": ["route", "host", "path", "method"]});
    let config = config(json!({}), &[by]);
    let facts = [
        (":method", "GET"),
        (":path", "/a b?q=1#f"),
        (":authority", "Shop.example.:443"),
        ("route", "r 1"),
    ];
    assert_eq!(keys(&config, &facts), ["{route=r%201,host=shop.example,path=/a%20b,method=GET}"]);
    assert!(keys(&config, &facts[..3]).is_empty());
}

/// Whether a policy with these conditions applies to such a request.
fn about(conditions: Value, facts: &[(&str, &str)]) -> bool {
    !keys(&config(json!({}), &[json!({ "match": conditions })]), facts).is_empty()
}

#[test]
fn other_spellings_of_a_path_do_not_bypass_a_policy() {
    let ways = [
        "/api/x",
        "//api/x",
        "/api//x",
        "/./api/x",
        "/a/../api/x",
        "/%61pi/x",
        "/api%2fx",
        "/api\\x",
        "/api/x?a#b",
        "/%2e%2E/api/x",
        "/..//api/./x",
        "/api/x#",
        "\\api/x",
        "/api/x;a=1",
        "/api;a/x;b;c",
        "/api/x%3Ba",
        "/b/..;a/api/x",
    ];
    let patterns = [
        json!({"exact": "/api/x"}),
        json!({"exact": "//%61pi/./x"}),
        json!({"prefix": "/api/"}),
        json!({"prefix": "/b/../api"}),
        json!({"suffix": "i/x"}),
        json!({"suffix": "%2Fx"}),
        json!({"regex": "/api/[a-z]"}),
    ];
    for path in ways {
        for pattern in &patterns {
            assert!(about(json!({ "path": pattern }), &[(":path", path)]), "{pattern} {path}");
        }
        let by_path = config(json!({}), &[json!({"partition_by": ["path"]})]);
        assert_eq!(keys(&by_path, &[(":path", path)]), ["{path=/api/x}"], "{path}");
    }
    for path in ["/API/x", "/ap/x", "/%2561pi/x", "/api/../x", "/?/api/x"] {
        for pattern in &patterns {
            let about = about(json!({ "path": pattern }), &[(":path", path)]);
            assert!(!about || pattern.get("suffix").is_some(), "{pattern} {path}");
        }
    }
}

#[test]
fn a_trailing_slash_bypasses_no_exact_path_and_opens_no_new_counter() {
    for exact in ["/login", "/login/", "/login//"] {
        for path in
            ["/login", "/login/", "/login//", "/login/;a", "/login;a/", "/login/?q", "/login/."]
        {
            assert!(about(json!({"path": {"exact": exact}}), &[(":path", path)]), "{exact} {path}");
        }
        for path in ["/login/x", "/logi", "/", "/login.", "/x/login"] {
            assert!(
                !about(json!({"path": {"exact": exact}}), &[(":path", path)]),
                "{exact} {path}"
            );
        }
    }
    let by_path = config(json!({}), &[json!({"partition_by": ["path"]})]);
    for path in ["/login", "/login/", "/login;1", "/login;2", "/login/;3"] {
        assert_eq!(keys(&by_path, &[(":path", path)]), ["{path=/login}"], "{path}");
    }
    assert_eq!(keys(&by_path, &[(":path", "/;a")]), ["{path=/}"]);
}

#[test]
fn a_long_path_does_not_bypass_an_expression() {
    let long = format!("/admin/{}", "x".repeat(60_000));
    let condition = json!({"path": {"regex": "/admin/[a-w]*"}});
    assert!(about(condition.clone(), &[(":path", &long)]));
    assert!(about(condition.clone(), &[(":path", &format!("{long}?q"))]));
    assert!(
        !about(condition, &[(":path", &format!("/admin/x?{long}"))]),
        "the query string does not count"
    );
}

#[test]
fn path_parameters_do_not_bypass_a_policy() {
    for path in ["/api/..;/x", "/api/..%3Ba/x", "/;/../api/..;/x"] {
        assert!(about(json!({"path": {"prefix": "/api/"}}), &[(":path", path)]), "{path}");
    }
    let exact = json!({"path": {"exact": "/k/login"}});
    assert!(about(exact, &[(":path", "/k/;a/../login;x")]), "a proxy on the way resolved the dots");
    assert!(about(
        json!({"path": {"regex": "/users/[^/]+/orders"}}),
        &[(":path", "/users/;/orders")]
    ));
}

#[test]
fn methods_are_compared_in_upper_case() {
    let get = json!({"methods": ["GET"]});
    assert!(about(get.clone(), &[(":method", "gEt")]));
    assert!(!about(get, &[(":method", "GETS")]));
    let by_method = config(json!({}), &[json!({"partition_by": ["method"]})]);
    assert_eq!(keys(&by_method, &[(":method", "get")]), ["{method=GET}"]);
}

#[test]
fn all_header_conditions_must_hold_whatever_the_spaces_around_values() {
    let conditions = json!({"headers": [
        {"name": "X-Beta", "exact": "1"}, {"name": "authorization", "prefix": "Bearer "},
        {"name": "x-version", "regex": "v[0-9]+"}, {"name": "x-internal", "present": false},
        {"name": "x-any", "present": true},
    ]});
    let all = [
        ("x-beta", "\t1 "),
        ("authorization", " Bearer x"),
        ("x-version", "v42 "),
        ("x-any", ""),
        ("x-beta", "0"),
    ];
    assert!(about(conditions.clone(), &all));
    for missing in 0..4 {
        let mut fewer = all.to_vec();
        fewer.remove(missing);
        assert!(!about(conditions.clone(), &fewer), "{fewer:?}");
    }
    let mut internal = all.to_vec();
    internal.push(("x-internal", ""));
    assert!(!about(conditions, &internal));
}

#[test]
fn other_spellings_of_credentials_do_not_bypass_a_policy() {
    let spellings = ["Bearer sk-AbC", "bearer sk-AbC", "BEARER\tsk-AbC", "bEaReR  \t sk-AbC"];
    for (condition, holds) in [
        (json!({"exact": "Bearer sk-AbC"}), true),
        (json!({"exact": "bearer  sk-AbC"}), true),
        (json!({"exact": "Bearer sk-abc"}), false),
        (json!({"prefix": "Bearer "}), true),
        (json!({"prefix": "bearer "}), true),
        (json!({"prefix": "BEARER  sk-"}), true),
        (json!({"prefix": "Bearer SK-"}), false),
        (json!({"prefix": "bear"}), true),
        (json!({"prefix": "Bearer"}), true),
        (json!({"prefix": "Basic"}), false),
        (json!({"regex": "Bearer sk-.*"}), true),
        (json!({"regex": "(Bearer|Token) .*"}), true),
        (json!({"present": true}), true),
    ] {
        for name in ["Authorization", "proxy-authorization"] {
            let mut header = json!({ "name": name });
            header.as_object_mut().unwrap().extend(condition.as_object().unwrap().clone());
            let matching = json!({ "headers": [header] });
            for value in spellings {
                let facts = [(&*name.to_ascii_lowercase(), value)];
                assert_eq!(about(matching.clone(), &facts), holds, "{matching} {value:?}");
                let not = json!({ "not": matching });
                assert_eq!(about(not, &facts), !holds, "not {matching} {value:?}");
            }
        }
    }
    let basic = json!({"headers": [{"name": "authorization", "exact": "Basic YTpiYw"}]});
    assert!(about(basic, &[("authorization", "basic YTpiYw==")]));
    let signed = json!({"headers": [{"name": "authorization", "prefix": "AWS4-HMAC-SHA256"}]});
    assert!(about(signed, &[("authorization", "AWS4-HMAC-SHA256 Credential=a")]));
    let bare = json!({"headers": [{"name": "authorization", "prefix": "sk-"}]});
    assert!(about(bare, &[("authorization", "sk-AbC")]));
    let other = json!({"headers": [{"name": "x-scheme", "prefix": "Bearer "}]});
    assert!(!about(other, &[("x-scheme", "bearer sk-AbC")]), "other headers stay as they are");
}

#[test]
fn a_policy_applies_to_routes_by_name() {
    let conditions = json!({"routes": ["search", "pay"]});
    for (route, applies) in
        [("search", true), ("pay", true), ("Search", false), ("searching", false), ("", false)]
    {
        assert_eq!(about(conditions.clone(), &[("route", route)]), applies, "{route}");
    }
    assert!(!about(conditions, &[]));
}

#[test]
fn a_fact_that_several_policies_need_is_fetched_once() {
    let identities = json!({"key": [{"header": {"name": "x-key"}}, {"cookie": {"name": "a"}},
        {"cookie": {"name": "b"}}, {"query": {"name": "q"}}]});
    let headers =
        json!({"headers": [{"name": "x-key", "present": false}], "path": {"prefix": "/a"}});
    let policy = json!({"match": headers, "partition_by": ["key", "path"]});
    let config = config(identities, &[policy.clone(), policy]);
    let request = Fake::new(&[(":path", "/a?q=1"), ("cookie", "c=1")]);
    let checks = config.evaluate(&request).checks.unwrap();
    assert_eq!(&*checks[1].counter.key, "shop:p1:{query.q=1,path=/a}");
    assert_eq!(*request.asked.borrow(), [":path", "x-key", "cookie"]);
}

#[test]
fn no_condition_of_a_not_may_hold() {
    let not = json!({"methods": ["GET"], "path": {"prefix": "/healthz"}, "hosts": ["*.internal"],
        "headers": [{"name": "x-probe", "exact": "1"}], "routes": ["status"],
        "query": {"name": "probe", "present": true}, "client_ip": ["127.0.0.0/8", "::1"]});
    let config = config(json!({}), &[json!({"match": {"path": {"prefix": "/"}, "not": not}})]);
    let request = [
        (":method", "POST"),
        (":path", "/api"),
        (":authority", "a.b"),
        ("x-probe", "2"),
        ("route", "r"),
        ("address", "192.0.2.7:1"),
    ];
    assert_eq!(keys(&config, &request).len(), 1);
    for holds in [
        (":method", "get"),
        (":path", "/healthz/x"),
        (":authority", "a.internal"),
        ("x-probe", "1"),
        ("route", "status"),
        (":path", "/api?probe"),
        ("address", "[::1]:1"),
    ] {
        let facts = request.map(|fact| if fact.0 == holds.0 { holds } else { fact });
        assert!(keys(&config, &facts).is_empty(), "{holds:?}");
    }
    assert_eq!(keys(&config, &[(":path", "/api")]).len(), 1, "what is missing does not hold");
    assert!(!about(json!({"not": {"headers": [{"name": "x", "present": false}]}}), &NOTHING));
}

#[test]
fn a_doubtful_path_does_not_escape_by_a_not() {
    let applies =
        |pattern: Value, path: &str| about(json!({"not": {"path": pattern}}), &[(":path", path)]);
    let health = || json!({"prefix": "/healthz"});
    for (path, expected) in [
        ("/healthz", false),
        ("/healthz;v=1", false),
        ("/a/../healthz", false),
        ("/healthz/../api", true),
        ("/healthz/..;/api", true),
        ("/healthz;/../../api", true),
        ("/api/..;/healthz", true),
    ] {
        assert_eq!(applies(health(), path), expected, "{path}");
    }
    let expression = || json!({"regex": "/healthz.*"});
    assert!(!applies(expression(), "/healthz/x"));
    assert!(applies(expression(), &format!("/healthz/{}", "a".repeat(3000))), "too long to match");
}

#[test]
fn a_policy_applies_to_clients_in_one_of_its_networks() {
    let within = json!({"client_ip": ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"]});
    for (address, applies) in [
        ("10.0.0.0:1", true),
        ("10.255.255.255:1", true),
        ("11.0.0.0:1", false),
        ("9.255.255.255:1", false),
        ("192.0.2.7:1", true),
        ("192.0.2.8:1", false),
        ("[::ffff:10.1.2.3]:1", true),
        ("[::ffff:11.1.2.3]:1", false),
        ("[::10.1.2.3]:1", false),
        ("[2001:db8:ffff::1]:1", true),
        ("[2001:db9::]:1", false),
    ] {
        let facts = [("address", address)];
        assert_eq!(about(within.clone(), &facts), applies, "{address}");
        assert_eq!(about(json!({ "not": within }), &facts), !applies, "not {address}");
    }
    for missing in [&[][..], &[("address", "/run/envoy.sock")]] {
        assert!(!about(within.clone(), missing), "{missing:?}");
        assert!(about(json!({ "not": within }), missing), "{missing:?}");
    }
}

#[test]
fn a_network_has_one_counter_or_one_for_each_of_its_addresses() {
    let within = json!({"client_ip": ["10.0.0.0/8", "2001:db8::/32"]});
    let identities = json!({
        "address": [{"client_ip": {}}],
        "net": [{"client_ip": {"ipv4_prefix": 24, "ipv6_prefix": 56}}],
    });
    let policies = [
        json!({"match": within, "partition_by": []}),
        json!({"match": within, "partition_by": ["address"]}),
        json!({"match": within, "partition_by": ["net"]}),
    ];
    let config = config(identities, &policies);
    for (address, expected) in [
        ("10.1.2.3:1", &["{*}", "{ip=10.1.2.3}", "{ip=10.1.2.0/24}"][..]),
        ("10.1.2.4:1", &["{*}", "{ip=10.1.2.4}", "{ip=10.1.2.0/24}"]),
        ("10.9.9.9:1", &["{*}", "{ip=10.9.9.9}", "{ip=10.9.9.0/24}"]),
        ("[2001:db8::7]:1", &["{*}", "{ip=2001:db8::/64}", "{ip=2001:db8::/56}"]),
        ("192.0.2.7:1", &[]),
    ] {
        assert_eq!(keys(&config, &[("address", address)]), expected, "{address}");
    }
}

#[test]
fn a_policy_applies_by_a_parameter_whatever_its_spelling() {
    let query = |value: Value| {
        let mut query = json!({"name": "pre view"});
        query.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        json!({ "query": query })
    };
    let conditions = [
        query(json!({"exact": "a 1"})),
        query(json!({"prefix": "a"})),
        query(json!({"regex": "a .+"})),
        query(json!({"present": true})),
        query(json!({"present": false})),
    ];
    for (target, holds) in [
        ("/?pre+view=a+1", [true, true, true, true, false]),
        ("/x?y=1&pre%20view=%61%201#f", [true, true, true, true, false]),
        ("/?pre+view=a%201x", [false, true, true, true, false]),
        ("/?pre+view=b", [false, false, false, true, false]),
        ("/?pre+view=a%252B1", [false, true, false, true, false]),
        ("/?pre+view=", [false, false, false, true, false]),
        ("/?pre+view", [false, false, false, true, false]),
        ("/?Pre+view=a+1", [false, false, false, false, true]),
        ("/?x=pre+view=a+1", [false, false, false, false, true]),
        ("/pre+view=a+1", [false, false, false, false, true]),
        ("/#?pre+view=a+1", [false, false, false, false, true]),
        ("/", [false, false, false, false, true]),
    ] {
        for (condition, holds) in conditions.iter().zip(holds) {
            let facts = [(":path", target)];
            assert_eq!(about(condition.clone(), &facts), holds, "{condition} {target}");
            assert_eq!(about(json!({ "not": condition }), &facts), !holds, "{condition} {target}");
        }
    }
}

/// Matching an expression costs time for each byte, before any quota is checked.
#[test]
fn expression_reads_a_bounded_part_of_all_values_of_a_parameter() {
    let regex = json!({"query": {"name": "q", "regex": "a*"}});
    let target =
        |values: usize| format!("/?{}", vec![format!("q={}", "a".repeat(1_000)); values].join("&"));
    for (values, applies) in [(1, [true, false]), (2, [true, false]), (3, [true, true])] {
        let conditions = [regex.clone(), json!({ "not": regex })];
        let found = conditions.map(|one| about(one, &[(":path", &target(values))]));
        assert_eq!(found, applies, "{values} values");
    }
}

#[test]
fn a_header_given_twice_does_not_escape_a_policy() {
    let applies = |condition: &Value, facts: &[(&str, &str)]| {
        let plain = json!({ "headers": [condition] });
        [plain.clone(), json!({ "not": plain })].map(|conditions| about(conditions, facts))
    };
    let long = "b".repeat(3000);
    for (condition, values, expected) in [
        (json!({"exact": "interactive"}), &["interactive", "batch"][..], [true, true]),
        (json!({"exact": "interactive"}), &["batch", "interactive"], [true, true]),
        (json!({"exact": "interactive"}), &["interactive", ""], [true, true]),
        (json!({"exact": "interactive"}), &["interactive", "interactive "], [true, false]),
        (json!({"exact": "interactive"}), &["batch", "batch"], [false, true]),
        (json!({"prefix": "inter"}), &["internal", "batch"], [true, true]),
        (json!({"regex": "i.*"}), &["i", "batch"], [true, true]),
        (json!({"regex": "i.*"}), &["i", &long], [true, true]),
        (json!({"regex": "i.*"}), &["i", "ii"], [true, false]),
        (json!({"present": true}), &["a", "b"], [true, false]),
        (json!({"present": false}), &["a", "b"], [false, true]),
        (json!({"exact": "i, b"}), &["i, b"], [true, false]),
    ] {
        for name in ["x-class", "cookie"] {
            let mut header = json!({ "name": name });
            header.as_object_mut().unwrap().extend(condition.as_object().unwrap().clone());
            let facts: Vec<_> = values.iter().map(|value| (name, *value)).collect();
            assert_eq!(applies(&header, &facts), expected, "{header} {values:?}");
        }
    }
    let bearer = json!({"name": "authorization", "prefix": "Bearer "});
    let facts = [("authorization", "bearer a"), ("authorization", "Basic YTpi")];
    assert_eq!(applies(&bearer, &facts), [true, true]);
}

#[test]
fn credentials_that_upstreams_read_in_several_ways_do_not_escape_a_policy() {
    for form in [json!({"exact": "Bearer K"}), json!({"regex": "Bearer [A-Z]"})] {
        for (name, value, expected) in [
            ("authorization", "Bearer K", [true, false]),
            ("authorization", "Bearer L7", [false, true]),
            ("authorization", "Bearer K junk", [true, true]),
            ("authorization", "bearer \"K\"", [true, true]),
            ("proxy-authorization", "Bearer K,1", [true, true]),
            ("x-key", "Bearer K junk", [false, true]),
            ("authorization", "Bearer L,7", [form["exact"].is_null(), true]),
        ] {
            let mut header = json!({ "name": name });
            header.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
            let found = [json!({"headers": [header]}), json!({"not": {"headers": [header]}})]
                .map(|conditions| about(conditions, &[(name, value)]));
            assert_eq!(found, expected, "{header} {value:?}");
        }
    }
}

#[test]
fn a_parameter_given_twice_does_not_escape_a_policy() {
    let applies = |condition: &Value, target: &str| {
        let [plain, not] = [condition.clone(), json!({ "not": condition })];
        [plain, not].map(|conditions| about(conditions, &[(":path", target)]))
    };
    let exact = json!({"query": {"name": "q", "exact": "1"}});
    for (target, expected) in [
        ("/?q=1&q=2", [true, true]),
        ("/?q=2&%71=1", [true, true]),
        ("/?q=1&q", [true, true]),
        ("/?q=1&q=%31", [true, false]),
        ("/?q=2&q=3", [false, true]),
    ] {
        assert_eq!(applies(&exact, target), expected, "{target}");
    }
    let present = |present: bool| json!({"query": {"name": "q", "present": present}});
    assert_eq!(applies(&present(true), "/?q=1&q=2"), [true, false]);
    assert_eq!(applies(&present(false), "/?q=1&q=2"), [false, true]);
    let regex = json!({"query": {"name": "q", "regex": "a*"}});
    let long = "b".repeat(3000);
    assert_eq!(applies(&regex, &format!("/?q={long}")), [true, true], "too long to match");
    assert_eq!(applies(&regex, &format!("/?q=a&q={long}")), [true, true], "one is too long");
}
