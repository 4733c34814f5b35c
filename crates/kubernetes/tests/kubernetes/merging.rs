//! How the policies of several objects come together in a document.

use quotagate_kubernetes::{Domains, MergedDocument, Objects, Reason, merge};
use serde_json::{Value, json};

use crate::merged::{
    at, merged, merged_of_platform, names, on, on_gateway, on_route, policies, programmed, quotas,
    refusal,
};
use crate::scene::{self, ENVOY_GATEWAY, accepted, gateway, route};

#[test]
fn limit_of_running_requests_is_written_without_a_window() {
    let slots = json!([
        {"name": "q", "partitionBy": [], "inFlight": 4, "maxWait": "2s"},
        {"name": "none", "partitionBy": [], "inFlight": 0},
    ]);
    let merged = merged(&[
        route("team-a", "checkout", 1),
        on("HTTPRoute", "team-a", "p", "checkout", json!({"policies": slots})),
    ]);
    let limits = policies(&merged).into_iter().map(|policy| {
        ["quota", "window", "in_flight", "max_wait"].map(|field| policy[field].clone())
    });
    let expected = [
        [Value::Null, Value::Null, json!(4), json!("2s")],
        [Value::Null, Value::Null, json!(0), Value::Null],
    ];
    assert_eq!(limits.collect::<Vec<_>>(), expected);
}

#[test]
fn object_with_a_secret_in_clear_is_refused_alone() {
    let secret = json!({"key": [{"header": {"name": "x-key", "secret": true}}]});
    let of = |namespace: &str, value: &str| {
        let over = json!([{"value": value, "quota": 5}]);
        let policy = json!({"name": "q", "partitionBy": ["key"], "quota": 1, "window": "1m", "overrides": over});
        on("HTTPRoute", namespace, "p", "r", json!({"identities": secret, "policies": [policy]}))
    };
    let merged = merged(&[
        route("team-a", "r", 1),
        route("team-b", "r", 1),
        of("team-a", &format!("header.x-key=~{:032}", 7)),
        of("team-b", "s3cret"),
    ]);
    assert_eq!(names(&merged), ["team-a/p/q"]);
    let (reason, why) = refusal(&merged, "team-b/p").unwrap();
    assert_eq!(reason, Reason::Invalid);
    assert!(why.starts_with("spec.policies[0].overrides[0].value: is a secret in clear"), "{why}");
}

#[test]
fn fault_that_a_route_brings_is_found_before_it_can_affect_others() {
    let mut long = route("team-b", "b", 1);
    long["spec"]["hostnames"] = json!(["x".repeat(2000)]);
    let merged = merged(&[
        long,
        route("team-a", "a", 1),
        on_route("team-b", "p", "b", &["q"]),
        on_route("team-a", "p", "a", &["q"]),
    ]);
    assert_eq!(names(&merged), ["team-a/p/q"]);
    let (reason, why) = refusal(&merged, "team-b/p").unwrap();
    assert_eq!(reason, Reason::Invalid);
    assert!(why.starts_with("spec.policies[0].match.routes[0]:"), "{why}");
}

#[test]
fn platform_comes_first_where_a_domain_lists_its_gateways() {
    let overrides = json!({"overrides": {"policies": quotas(&["cap"])}});
    for (gateways, expected) in [
        (Some(["gateways/public"]), ["gateways/o/cap", "team-a/p/q"]),
        (None, ["team-a/p/q", "gateways/o/cap"]),
    ] {
        let mut config = scene::config();
        if let Some(gateways) = gateways {
            config["domains"][0]["gateways"] = json!(gateways);
        }
        let mut objects = Objects::default();
        for object in [
            gateway("gateways", "public", None),
            route("team-a", "a", 1),
            at(on_route("team-a", "p", "a", &["q"]), "2026-01-01T00:00:00Z"),
            at(on_gateway("o", overrides.clone()), "2026-02-01T00:00:00Z"),
        ] {
            objects.add(&object).unwrap();
        }
        let domains = Domains::read(&config).unwrap();
        let merged = merge(&objects, domains.iter().next().unwrap());
        assert_eq!(names(&merged), expected);
    }
}

#[test]
fn override_of_a_listener_keeps_its_name_on_the_routes_of_the_listener_alone() {
    let mut both = gateway("gateways", "public", Some("*.example.com"));
    let inner = json!({"name": "inner", "port": 81, "protocol": "HTTP", "hostname": "*.internal"});
    both["spec"]["listeners"].as_array_mut().unwrap().push(inner);
    let mut of_inner = route("team-a", "i", 1);
    of_inner["spec"]["hostnames"] = json!(["i.internal"]);
    let overrides = json!({"overrides": {"policies": quotas(&["cap"])}});
    let mut of_listener = on_gateway("o", overrides);
    of_listener["spec"]["targetRefs"][0]["sectionName"] = json!("inner");
    let mut config = scene::config();
    config["domains"][0]["gateways"] = json!(["gateways/public"]);
    let mut objects = Objects::default();
    for object in [
        both,
        of_inner,
        route("team-a", "a", 1),
        of_listener,
        on_route("team-a", "on-a", "a", &["cap"]),
        on_route("team-a", "on-i", "i", &["cap"]),
    ] {
        objects.add(&object).unwrap();
    }
    let domains = Domains::read(&config).unwrap();
    let merged = merge(&objects, domains.iter().next().unwrap());
    assert_eq!(names(&merged), ["gateways/o/cap", "team-a/on-a/cap"]);
    assert_eq!(refusal(&merged, "team-a/on-i").unwrap().0, Reason::Conflicted);
}

#[test]
fn override_of_the_platform_takes_its_name_from_an_older_route() {
    let overrides = json!({"overrides": {"policies": quotas(&["cap"])}});
    let defaults = json!({"defaults": {"policies": quotas(&["cap"])}});
    let merged = merged_of_platform(&[
        route("team-a", "a", 1),
        at(on_route("team-a", "p", "a", &["cap"]), "2026-01-01T00:00:00Z"),
        at(on_gateway("d", defaults), "2026-01-02T00:00:00Z"),
        at(on_gateway("o", overrides), "2026-02-01T00:00:00Z"),
    ]);
    assert_eq!(names(&merged), ["gateways/d/cap", "gateways/o/cap"]);
    assert_eq!(policies(&merged)[0]["match"], Value::Null, "nothing replaces it any more");
    assert_eq!(refusal(&merged, "team-a/p").unwrap().0, Reason::Conflicted);
}

#[test]
fn override_of_a_team_takes_no_object_of_another_namespace_away() {
    let overrides = json!({"overrides": {"policies": quotas(&["cap"])}});
    let parents = [("gateways", "public"), ("team-b", "own")]
        .map(|(namespace, name)| (json!({"namespace": namespace, "name": name}), ENVOY_GATEWAY));
    for created in ["2025-01-01", "2027-01-01"] {
        let merged = merged(&[
            gateway("team-b", "own", None),
            accepted("HTTPRoute", "team-a", "a", 1, &parents),
            at(on_route("team-a", "p", "a", &["cap"]), "2026-01-01T00:00:00Z"),
            at(
                on("Gateway", "team-b", "o", "own", overrides.clone()),
                &format!("{created}T00:00:00Z"),
            ),
        ]);
        assert_eq!(refusal(&merged, "team-a/p"), None);
        assert_eq!(refusal(&merged, "team-b/o"), None, "both count, so the cap applies");
    }
}

#[test]
fn route_replaces_the_default_of_the_same_name_and_any_one_if_atomic() {
    let routes = [route("team-a", "a", 1), route("team-b", "b", 1)];
    for (strategy, name, is_replaced) in
        [("Merge", "q", true), ("Merge", "r", false), ("Atomic", "q", true), ("Atomic", "r", true)]
    {
        let defaults = json!({"defaults": {"strategy": strategy, "policies": quotas(&["q"])}});
        let mut objects = routes.to_vec();
        objects.extend([on_gateway("d", defaults), on_route("team-a", "p", "a", &[name])]);
        let merged = merged(&objects);
        let replaced =
            json!({"not": {"routes": ["httproute/team-a/a/rule/0/match/0/a_example_com"]}});
        let expected = if is_replaced { replaced } else { Value::Null };
        assert_eq!(policies(&merged)[0]["match"], expected, "{strategy} {name}");
        let (holds, reason, message) = programmed(&merged, "gateways/d");
        assert!(holds);
        if is_replaced {
            assert_eq!(reason, Reason::PartiallyProgrammed);
            assert_eq!(message, "gateways/d/q is replaced on some routes by team-a/p");
        } else {
            assert_eq!(reason, Reason::Programmed);
        }
    }
}

#[test]
fn default_that_all_routes_replace_is_overridden() {
    let defaults = json!({"defaults": {"policies": quotas(&["q"])}});
    let merged = merged(&[
        gateway("gateways", "other", None),
        route("team-a", "a", 1),
        on_gateway("d", defaults),
        on_route("team-a", "p", "a", &["q"]),
    ]);
    assert_eq!(names(&merged), ["team-a/p/q"]);
    let (holds, reason, message) = programmed(&merged, "gateways/d");
    assert_eq!((holds, reason), (false, Reason::Overridden));
    assert_eq!(message, "gateways/d/q is replaced everywhere by team-a/p");
}

#[test]
fn refused_object_replaces_nothing() {
    let defaults = json!({"defaults": {"policies": quotas(&["q"])}});
    let mut wrong = on_route("team-a", "p", "a", &["q"]);
    wrong["spec"]["policies"][0]["window"] = json!("900d");
    let merged = merged(&[route("team-a", "a", 1), on_gateway("d", defaults), wrong]);
    assert_eq!(policies(&merged)[0]["match"], Value::Null);
    let (reason, why) = refusal(&merged, "team-a/p").unwrap();
    assert_eq!(reason, Reason::Invalid);
    assert!(why.starts_with("spec.policies[0].window: must be"), "{why}");
}

#[test]
fn override_applies_beside_the_policies_of_routes_and_keeps_its_name() {
    let overrides = json!({"overrides": {"policies": quotas(&["cap"])}});
    let merged = merged_of_platform(&[
        route("team-a", "a", 1),
        on_gateway("o", overrides),
        on_route("team-a", "same", "a", &["cap", "other"]),
        on_route("team-a", "p", "a", &["q"]),
    ]);
    assert_eq!(names(&merged), ["gateways/o/cap", "team-a/p/q"]);
    let (reason, why) = refusal(&merged, "team-a/same").unwrap();
    assert_eq!(reason, Reason::Conflicted);
    assert!(why.contains("an override of gateways/o"), "{why}");
}

#[test]
fn older_object_keeps_a_name_on_a_target() {
    let second = at(on_route("team-a", "a-second", "a", &["q"]), "2026-02-01T00:00:00Z");
    let first = at(on_route("team-a", "z-first", "a", &["q"]), "2026-01-01T00:00:00Z");
    let other = on_route("team-a", "other", "a", &["r"]);
    let merged = merged(&[route("team-a", "a", 1), second, first, other]);
    assert_eq!(names(&merged), ["team-a/other/r", "team-a/z-first/q"]);
    let (reason, why) = refusal(&merged, "team-a/a-second").unwrap();
    assert_eq!(reason, Reason::Conflicted);
    assert!(why.starts_with("team-a/z-first has a policy q on the same target already"), "{why}");
}

#[test]
fn route_of_two_gateways_of_a_domain_has_one_counter() {
    let parents = ["public", "other"]
        .map(|name| (json!({"namespace": "gateways", "name": name}), ENVOY_GATEWAY));
    let merged = merged(&[
        gateway("gateways", "other", Some("*.example.com")),
        accepted("HTTPRoute", "team-a", "a", 1, &parents),
        on_route("team-a", "p", "a", &["q"]),
    ]);
    assert_eq!(names(&merged), ["team-a/p/q"]);
    let ancestors = &merged.outcomes[0].ancestors;
    let ancestors: Vec<&str> = ancestors.iter().map(|at| at.ancestor.name.as_str()).collect();
    assert_eq!(ancestors, ["other", "public"]);
}

#[test]
fn equal_identities_share_a_name_and_others_of_that_name_get_a_number() {
    let with = |name: &str, claim: &str| {
        let mut object = on_route("team-a", name, "a", &[]);
        object["spec"]["identities"] = json!({"who": [{"jwt": {"claim": claim}}]});
        object["spec"]["policies"] =
            json!([{"name": name, "partitionBy": ["who"], "quota": 1, "window": "1m"}]);
        object
    };
    let objects = [with("p1", "team"), with("p2", "org"), with("p3", "team"), with("p4", "sub")];
    let merged = merged(&[&[route("team-a", "a", 1)], &objects[..]].concat());
    let by: Vec<Value> =
        policies(&merged).iter().map(|policy| policy["partition_by"][0].clone()).collect();
    assert_eq!(by, ["who", "who-2", "who", "caller"]);
    let identities = &merged.document.as_ref().unwrap()["identities"];
    assert_eq!(identities.as_object().unwrap().len(), 3);
}

#[test]
fn gateways_of_two_domains_have_a_document_each() {
    let mut config = scene::config();
    config["domains"][0]["gateways"] = json!(["gateways/public"]);
    let inner = json!({"domain": "inner", "store": {"cluster": "quota_store"}, "policies": [
        {"name": "own", "partition_by": [], "quota": 5, "window": "1m"},
    ]});
    config["domains"].as_array_mut().unwrap().push(inner);
    let parents = ["public", "inner"]
        .map(|name| (json!({"namespace": "gateways", "name": name}), ENVOY_GATEWAY));
    let mut objects = Objects::default();
    for object in [
        gateway("gateways", "public", None),
        gateway("gateways", "inner", None),
        accepted("HTTPRoute", "team-a", "a", 1, &parents),
        on_route("team-a", "p", "a", &["q"]),
        on_gateway("g", json!({"policies": quotas(&["q"])})),
    ] {
        objects.add(&object).unwrap();
    }
    let domains = Domains::read(&config).unwrap();
    let merged: Vec<MergedDocument> =
        domains.iter().map(|domain| merge(&objects, domain)).collect();
    assert_eq!(names(&merged[0]), ["gateways/g/q", "team-a/p/q"]);
    assert_eq!(names(&merged[1]), ["own", "team-a/p/q"]);
    assert_eq!(merged[1].outcomes.len(), 1, "gateways/g concerns another domain");
}

#[test]
fn name_of_a_policy_of_the_platform_is_refused_and_stops_no_other() {
    let mut config = scene::config();
    let own = json!([{"name": "team-a/p/q", "partition_by": [], "quota": 5, "window": "1m"}]);
    config["domains"][0]["policies"] = own;
    let mut objects = Objects::default();
    for object in [
        gateway("gateways", "public", None),
        route("team-a", "a", 1),
        on_route("team-a", "p", "a", &["q"]),
        on_route("team-a", "other", "a", &["q"]),
    ] {
        objects.add(&object).unwrap();
    }
    let domains = Domains::read(&config).unwrap();
    let merged = merge(&objects, domains.iter().next().unwrap());
    assert_eq!(names(&merged), ["team-a/p/q", "team-a/other/q"]);
    let (_, why) = refusal(&merged, "team-a/p").unwrap();
    assert_eq!(why, "spec.policies[0].name: the platform has a policy team-a/p/q");
}

#[test]
fn order_of_files_does_not_matter() {
    let mut objects = vec![gateway("gateways", "other", None), route("team-a", "a", 1)];
    objects.extend([
        on_gateway("d", json!({"defaults": {"policies": quotas(&["q", "r"])}})),
        on_route("team-a", "p", "a", &["q"]),
        on_route("team-a", "o", "a", &["s"]),
    ]);
    let document = merged(&objects).document;
    objects.reverse();
    assert_eq!(merged(&objects).document, document);
}

#[test]
fn second_object_of_a_name_is_refused_and_the_first_one_counts() {
    let mut objects = Objects::default();
    let first = on_route("team-a", "p", "a", &["q"]);
    for object in [gateway("gateways", "public", None), route("team-a", "a", 1), first] {
        objects.add(&object).unwrap();
    }
    let faults = objects.add(&on_route("team-a", "p", "a", &["other"])).unwrap_err();
    assert!(faults[0].starts_with("QuotaPolicy team-a/p: is given twice"), "{faults:?}");
    let domains = Domains::read(&scene::config()).unwrap();
    let merged = merge(&objects, domains.iter().next().unwrap());
    assert_eq!(names(&merged), ["team-a/p/q"]);
}

#[test]
fn wrong_domains_are_refused_with_their_paths() {
    let shop = scene::config()["domains"][0].clone();
    let mut named = shop.clone();
    named["gateways"] = json!(["gateways/public"]);
    let mut wrong = shop.clone();
    wrong["polices"] = json!([]);
    let mut of_nothing = shop.clone();
    of_nothing["gateways"] = json!(["public"]);
    for (config, expected) in [
        (json!({}), "domains: write a list"),
        (json!({"domains": [shop.clone()], "gateways": []}), "gateways: unknown field"),
        (json!({"domains": [wrong]}), "domains[0].polices: unknown field"),
        (json!({"domains": [of_nothing]}), "domains[0].gateways: must be a list of NAMESPACE/NAME"),
        (json!({"domains": [named.clone(), named]}), "another domain has gateways/public already"),
        (json!({"domains": [shop.clone(), shop]}), "only one of them may leave out `gateways`"),
    ] {
        let faults = Domains::read(&config).unwrap_err().join("; ");
        assert!(faults.contains(expected), "{expected}: {faults}");
    }
}
