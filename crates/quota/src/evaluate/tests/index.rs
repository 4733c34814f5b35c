//! The index finds exactly the policies that a walk over all of them finds.

use std::collections::BTreeSet;

use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::*;
use crate::config::MAX_POLICIES;

const PATHS: [&str; 12] =
    ["/", "/a", "/a/", "/a/b", "/a/b/", "/a/bc", "/ab", "/b", "*", "/a/../b", "/%61", "/c//d"];
const HOSTS: [&str; 7] = ["a", "b.a", "c.b.a", "ba", "*.a", "*.b.a", "[2001:db8::1]"];
const NETWORKS: [&str; 4] = ["10.0.0.0/8", "10.1.0.0/16", "2001:db8::/32", "0.0.0.0/0"];
const ROUTES: [&str; 3] = ["r", "s", "a-long-route"];

fn path_condition() -> impl Strategy<Value = Value> {
    let absolute = |field: &'static str| {
        select(&PATHS[..]).prop_map(move |path| json!({ "path": { field: path } }))
    };
    let other = select(vec![
        json!({"path": {"suffix": "b"}}),
        json!({"path": {"suffix": "/"}}),
        json!({"path": {"regex": "/a.*"}}),
        json!({"path": {"regex": "/[ab]/?"}}),
    ]);
    prop_oneof![2 => absolute("exact"), 3 => absolute("prefix"), 1 => other, 1 => Just(json!({}))]
}

fn list(field: &'static str, of: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let names = proptest::collection::btree_set(select(of), 1..3);
    let named = names.prop_map(move |names| json!({ field: names }));
    prop_oneof![2 => Just(json!({})), 1 => named]
}

/// The conditions of a policy, or of a `not` if one of them is given.
fn conditions() -> impl Strategy<Value = Value> {
    let header = select(vec![json!({}), json!({"headers": [{"name": "x", "exact": "1"}]})]);
    let query = |value: Value| json!({ "query": value });
    let query = prop_oneof![
        3 => Just(json!({})),
        1 => select(vec![
            query(json!({"name": "q", "exact": "/b"})),
            query(json!({"name": "q", "prefix": "/"})),
            query(json!({"name": "q", "regex": "[a-z]"})),
            query(json!({"name": "q", "present": true})),
            query(json!({"name": "q", "present": false})),
        ]),
    ];
    let methods = list("methods", &["GET", "POST"]);
    let networks = list("client_ip", &NETWORKS);
    let more = (list("hosts", &HOSTS), list("routes", &ROUTES), methods, header, query, networks);
    (path_condition(), more).prop_map(
        |(path, (hosts, routes, methods, header, query, networks))| {
            let mut all = path;
            for more in [hosts, routes, methods, header, query, networks] {
                all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            }
            all
        },
    )
}

fn policy() -> impl Strategy<Value = Value> {
    (conditions(), weighted(0.3, conditions())).prop_map(|(mut own, not)| {
        if let Some(not) = not.filter(|not| *not != json!({})) {
            own["not"] = not;
        }
        json!({ "match": own })
    })
}

fn target() -> impl Strategy<Value = String> {
    let segment =
        select(vec!["a", "b", "bc", "ab", "c", "", "..", ".", "%61", "b;v=1", "..;a", ";x"]);
    let tail = select(vec!["", "/", "?q=/b", "?q=a&%71=%2Fb", "?q", ";v", "#f"]);
    (proptest::collection::vec(segment, 0..4), tail)
        .prop_map(|(segments, tail)| format!("/{}{tail}", segments.join("/")))
}

fn request() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let text = |of: &'static [&'static str]| select(of).prop_map(str::to_owned);
    let host = text(&["a", "A.", "b.a:80", "c.b.a", "x.b.a", "ba", ".a", "[2001:DB8::1]", "z"]);
    (
        weighted(0.9, text(&["GET", "post"])),
        weighted(0.9, target()),
        weighted(0.9, host),
        weighted(0.8, text(&["r", "s", "t", "a-long-route"])),
        weighted(0.5, text(&["1", "2"])),
        weighted(
            0.9,
            text(&["10.1.2.3:1", "[::ffff:10.2.0.1]:1", "[2001:db8::1]:1", "192.0.2.7:1"]),
        ),
    )
        .prop_map(|(method, path, host, route, header, address)| {
            let facts = [
                (":method", method),
                (":path", path),
                (":authority", host),
                ("route", route),
                ("x", header),
                ("address", address),
            ];
            facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn index_finds_what_a_walk_finds_and_asks_for_no_more(
        policies in proptest::collection::vec(policy(), 1..80),
        requests in proptest::collection::vec(request(), 8),
    ) {
        let config = config(json!({}), &policies);
        for facts in &requests {
            let walked = Fake::new(facts);
            let walk = Facts::new(&walked, config.shared_identities);
            let expected: Vec<usize> = (0..policies.len())
                .filter(|policy| config.policies[*policy].matcher.matches(&walk))
                .collect();
            let request = Fake::new(facts);
            let checks = config.evaluate(&request).checks.unwrap();
            let found: Vec<usize> = checks.iter().map(|check| check.policy).collect();
            prop_assert_eq!(found, expected, "{:?}", facts);
            let asked = |fake: &Fake| fake.asked.borrow().iter().cloned().collect::<BTreeSet<_>>();
            prop_assert!(asked(&request).is_subset(&asked(&walked)), "{:?}", facts);
        }
    }
}

#[test]
fn every_one_of_1024_policies_is_found() {
    let policies: Vec<Value> = (0..MAX_POLICIES)
        .map(|i| match i % 4 {
            0 => json!({"match": {"path": {"exact": format!("/exact/{i}")}}}),
            1 => json!({"match": {"path": {"prefix": format!("/prefix/{i}/")}}}),
            2 => json!({"match": {"hosts": [format!("h{i}.example.com")]}}),
            _ => json!({"match": {"routes": [format!("route-{i}")]}}),
        })
        .collect();
    let config = config(json!({}), &policies);
    for i in 0..MAX_POLICIES {
        let fact = match i % 4 {
            0 => (":path", format!("/exact/{i}/")),
            1 => (":path", format!("/prefix/{i}/x")),
            2 => (":authority", format!("H{i}.example.com:80")),
            _ => ("route", format!("route-{i}")),
        };
        let checks = config.evaluate(&Fake::new(&[fact])).checks.unwrap();
        assert_eq!(checks.iter().map(|check| check.policy).collect::<Vec<_>>(), [i]);
    }
}

#[test]
fn route_is_fetched_only_where_all_else_holds() {
    let routes = |n: usize| {
        json!({"match": {"path": {"prefix": "/api/"}, "headers": [{"name": "x", "exact": "1"}],
            "client_ip": ["10.0.0.0/8"], "routes": [format!("r{n}")]}})
    };
    let config = config(json!({}), &(0..100).map(routes).collect::<Vec<_>>());
    for (path, header, address, asked) in [
        ("/", "1", "10.0.0.1:1", false),
        ("/api/", "2", "10.0.0.1:1", false),
        ("/api/", "1", "192.0.2.7:1", false),
        ("/api/", "1", "10.0.0.1:1", true),
    ] {
        let facts = [(":path", path), ("x", header), ("address", address), ("route", "r77")];
        let request = Fake::new(&facts);
        assert_eq!(config.evaluate(&request).checks.unwrap().len(), usize::from(asked));
        assert_eq!(request.asked.borrow().contains(&"route".to_owned()), asked, "{facts:?}");
    }
}
