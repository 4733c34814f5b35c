//! Which traffic the policies of an object count.

use quotagate_kubernetes::Reason;
use serde_json::{Value, json};

use crate::merged::{
    at, merged, merged_with, named_rule, names, notes, on, on_gateway, on_route, policies,
    programmed, quotas, refusal,
};
use crate::scene::{self, ENVOY_GATEWAY, ISTIO, accepted, gateway, route};

#[test]
fn policy_of_a_route_counts_what_envoy_calls_its_routes() {
    let parent = json!({"kind": "Gateway", "namespace": "gateways", "name": "public"});
    let section = json!({"kind": "Gateway", "namespace": "gateways", "name": "public", "sectionName": "http"});
    let other = json!({"namespace": "gateways", "name": "public", "sectionName": "https"});
    let of_gateway = &[(parent.clone(), ENVOY_GATEWAY)][..];
    let grpc = on("GRPCRoute", "team-a", "p", "r", json!({"policies": quotas(&["q"])}));
    let http = on_route("team-a", "p", "r", &["q"]);
    let mut without_matches = accepted("HTTPRoute", "team-a", "r", 1, of_gateway);
    without_matches["spec"]["rules"][0] = json!({});
    let mut without_hosts = accepted("HTTPRoute", "team-a", "r", 1, of_gateway);
    without_hosts["spec"]["hostnames"] = json!([]);
    for (route, policy, listener, expected) in [
        (
            accepted("HTTPRoute", "team-a", "r", 2, of_gateway),
            &http,
            None,
            &[
                "httproute/team-a/r/rule/0/match/0/r_example_com",
                "httproute/team-a/r/rule/1/match/0/r_example_com",
            ][..],
        ),
        (
            accepted("GRPCRoute", "team-a", "r", 1, of_gateway),
            &grpc,
            None,
            &["grpcroute/team-a/r/rule/0/match/0/r_example_com"],
        ),
        (
            without_matches,
            &http,
            None,
            &[
                "httproute/team-a/r/rule/0/match/-1/r_example_com",
                "httproute/team-a/r/rule/0/match/0/r_example_com",
            ],
        ),
        (without_hosts.clone(), &http, None, &["httproute/team-a/r/rule/0/match/0/*"]),
        (
            without_hosts,
            &http,
            Some("*.example.com"),
            &["httproute/team-a/r/rule/0/match/0/*_example_com"],
        ),
        (
            accepted("HTTPRoute", "team-a", "r", 1, &[(section, ENVOY_GATEWAY), (other, ISTIO)]),
            &http,
            Some("*.example.com"),
            &["httproute/team-a/r/rule/0/match/0/r_example_com"],
        ),
        (
            accepted("HTTPRoute", "team-a", "r", 2, &[(parent, ISTIO)]),
            &http,
            None,
            &["team-a.r.0", "team-a.r.1"],
        ),
    ] {
        let merged =
            merged_with(&[gateway("gateways", "public", listener)], &[route, policy.clone()]);
        assert_eq!(refusal(&merged, "team-a/p"), None);
        assert_eq!(policies(&merged)[0]["match"], json!({"routes": expected}));
        assert_eq!(names(&merged), ["team-a/p/q"]);
    }
}

#[test]
fn section_names_one_rule_or_listener() {
    let mut two = route("team-a", "r", 2);
    two["spec"]["rules"][1]["name"] = json!("write");
    let mut policy = on_route("team-a", "p", "r", &["q"]);
    policy["spec"]["targetRefs"][0]["sectionName"] = json!("write");
    let merged = merged(&[two, policy]);
    let expected = json!({"routes": ["httproute/team-a/r/rule/1/match/0/r_example_com"]});
    assert_eq!(policies(&merged)[0]["match"], expected);

    let mut both = gateway("gateways", "public", Some("*.example.com"));
    let inner = json!({"name": "inner", "port": 81, "protocol": "HTTP", "hostname": "*.internal"});
    both["spec"]["listeners"].as_array_mut().unwrap().push(inner);
    let mut policy = on_gateway("p", json!({"policies": quotas(&["q"])}));
    policy["spec"]["targetRefs"][0]["sectionName"] = json!("inner");
    let mut inner = route("team-b", "i", 1);
    inner["spec"]["hostnames"] = json!(["i.internal", "i.example.com"]);
    let merged = merged_with(&[both], &[route("team-a", "r", 1), inner, policy]);
    let expected = json!({"routes": ["httproute/team-b/i/rule/0/match/0/i_internal"]});
    assert_eq!(policies(&merged)[0]["match"], expected);
}

#[test]
fn listener_counts_the_routes_that_it_allows() {
    let selected = json!({"from": "Selector", "selector": {"matchLabels": {"tier": "gold"}}});
    let parent = json!({"namespace": "gateways", "name": "public", "port": 443});
    let of_443 = accepted("HTTPRoute", "team-a", "p443", 1, &[(parent, ENVOY_GATEWAY)]);
    let of_gateway = route("gateways", "own", 1);
    let grpc = json!({"namespace": "gateways", "name": "public"});
    let grpc = accepted("GRPCRoute", "team-b", "grpc", 1, &[(grpc, ENVOY_GATEWAY)]);
    let namespace = |name: &str, tier: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"tier": tier}}});
    let objects = [
        namespace("team-a", "gold"),
        namespace("team-b", "tin"),
        of_443,
        of_gateway,
        grpc,
        route("team-a", "a", 1),
        route("team-b", "b", 1),
        route("unknown", "u", 1),
    ];
    for (allowed, expected) in [
        (json!({}), vec!["gateways/own", "team-a/a", "team-b/b", "team-b/grpc", "unknown/u"]),
        (json!({"namespaces": {"from": "Same"}}), vec!["gateways/own"]),
        (json!({"namespaces": selected}), vec!["gateways/own", "team-a/a", "unknown/u"]),
        (json!({"kinds": [{"kind": "GRPCRoute"}]}), vec!["team-b/grpc"]),
    ] {
        let mut public = gateway("gateways", "public", None);
        public["spec"]["listeners"][0]["allowedRoutes"] = allowed;
        let mut policy = on_gateway("p", json!({"policies": quotas(&["q"])}));
        policy["spec"]["targetRefs"][0]["sectionName"] = json!("http");
        let all: Vec<Value> = objects.iter().cloned().chain([policy]).collect();
        let merged = merged_with(&[public], &all);
        let routes = &policies(&merged)[0]["match"]["routes"];
        let routes = routes.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        let mut routes: Vec<String> = routes
            .map(|name| name.split('/').skip(1).take(2).collect::<Vec<_>>().join("/"))
            .collect();
        routes.sort();
        assert_eq!(routes, expected);
    }
}

#[test]
fn targets_without_traffic_are_named() {
    let mut not_accepted = route("team-a", "r", 1);
    not_accepted["status"]["parents"][0]["conditions"][0]["status"] = json!("False");
    let mut unknown = route("team-a", "r", 1);
    unknown["status"]["parents"][0]["controllerName"] = json!("example.com/other");
    let mut named = accepted(
        "HTTPRoute",
        "team-a",
        "r",
        1,
        &[(json!({"namespace": "gateways", "name": "public"}), ISTIO)],
    );
    named["spec"]["rules"][0]["name"] = json!("read");
    let mut section = on_route("team-a", "p", "r", &["q"]);
    section["spec"]["targetRefs"][0]["sectionName"] = json!("write");
    let plain = on_route("team-a", "p", "r", &["q"]);
    let service = |spec| on("Service", "team-a", "p", "s", json!({"policies": spec}));
    let unlabelled = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "team-a", "name": "s"}});
    let mut labelled = unlabelled.clone();
    labelled["metadata"]["labels"] =
        json!({"istio.io/use-waypoint": "public", "istio.io/use-waypoint-namespace": "gateways"});
    for (object, policy, reason, message) in [
        (None, &plain, Reason::TargetNotFound, "there is no HTTPRoute team-a/r"),
        (Some(not_accepted), &plain, Reason::TargetNotFound, "no Gateway has accepted"),
        (Some(unknown), &plain, Reason::Invalid, "its controller is \"example.com/other\""),
        (Some(named), &plain, Reason::Invalid, "rules[0] has the name read"),
        (
            Some(route("team-a", "r", 1)),
            &section,
            Reason::TargetNotFound,
            "no rule of the name write",
        ),
        (None, &service(quotas(&["q"])), Reason::TargetNotFound, "there is no Service team-a/s"),
        (
            Some(unlabelled),
            &service(quotas(&["q"])),
            Reason::TargetNotFound,
            "istio.io/use-waypoint",
        ),
        (Some(labelled), &service(quotas(&["q"])), Reason::TargetNotFound, "add an HTTPRoute"),
    ] {
        let objects: Vec<Value> = object.into_iter().chain([policy.clone()]).collect();
        let merged = merged(&objects);
        let (found, why) = refusal(&merged, "team-a/p").unwrap();
        assert!(found == reason && why.contains(message), "{found:?} {why}");
        assert_eq!(names(&merged), [""; 0], "{message}");
    }
}

#[test]
fn service_is_counted_by_the_routes_that_its_waypoint_has_for_it() {
    let [service, waypoint, of_service] = scene::service();
    let policy = on("Service", "team-b", "p", "inventory", json!({"policies": quotas(&["q"])}));
    let mut unlabelled = service.clone();
    unlabelled["metadata"]["labels"] = json!({});
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "team-b", "labels": {"istio.io/use-waypoint": "waypoint"}},
    });
    for service in [vec![service], vec![unlabelled, namespace]] {
        let objects = [service, vec![of_service.clone(), policy.clone()]].concat();
        let merged = merged_with(std::slice::from_ref(&waypoint), &objects);
        assert_eq!(refusal(&merged, "team-b/p"), None);
        assert_eq!(policies(&merged)[0]["match"], json!({"routes": ["team-b.inventory.0"]}));
        let ancestor = &merged.outcomes[0].ancestors[0].ancestor;
        assert_eq!((&*ancestor.kind, &*ancestor.name), ("Gateway", "waypoint"));
    }
}

#[test]
fn object_whose_gateway_is_missing_is_not_accepted_and_has_no_policy_in_the_document() {
    let mut elsewhere = on_gateway("p", json!({"policies": quotas(&["q"])}));
    elsewhere["spec"]["targetRefs"][0]["name"] = json!("gone");
    let parent = json!({"kind": "Gateway", "namespace": "gateways", "name": "gone"});
    let route = accepted("HTTPRoute", "team-a", "r", 1, &[(parent, ENVOY_GATEWAY)]);
    let of_route = on_route("team-a", "p", "r", &["q"]);
    for (objects, name, message) in [
        (vec![elsewhere], "gateways/p", "there is no Gateway gateways/gone"),
        (vec![route, of_route], "team-a/p", "reaches no Gateway that is known"),
    ] {
        let merged = merged(&objects);
        let (reason, why) = refusal(&merged, name).unwrap();
        assert!(reason == Reason::TargetNotFound && why.contains(message), "{why}");
        let outcome = &merged.outcomes[0];
        assert!(outcome.policies.is_empty() && outcome.ancestors[0].programmed.is_none());
        assert!(names(&merged).is_empty());
    }
}

#[test]
fn policy_of_a_gateway_counts_all_its_traffic_alone_and_its_routes_beside_another_gateway() {
    let policy = on_gateway("p", json!({"policies": quotas(&["q"])}));
    let one = merged(&[route("team-a", "r", 1), policy.clone()]);
    assert_eq!(policies(&one)[0]["match"], Value::Null);
    let other = gateway("gateways", "other", None);
    let two = merged(&[route("team-a", "r", 1), policy.clone(), other.clone()]);
    let expected = json!({"routes": ["httproute/team-a/r/rule/0/match/0/r_example_com"]});
    assert_eq!(policies(&two)[0]["match"], expected);
    let none = merged(&[policy, other]);
    assert_eq!(refusal(&none, "gateways/p").unwrap().0, Reason::TargetNotFound);
}

#[test]
fn rule_named_like_a_route_of_another_team_takes_none_of_its_traffic() {
    let (own, public) = (
        json!({"namespace": "team-b", "name": "own"}),
        json!({"namespace": "gateways", "name": "public"}),
    );
    let merged = merged(&[
        gateway("team-b", "own", None),
        accepted("HTTPRoute", "team-a", "checkout", 1, &[(public, ISTIO)]),
        on_route("team-a", "p", "checkout", &["q"]),
        accepted("HTTPRoute", "team-b", "good", 1, &[(own.clone(), ISTIO)]),
        named_rule("team-b", "evil", own, "team-a.checkout.0"),
        on("Gateway", "team-b", "g", "own", json!({"policies": quotas(&["q"])})),
    ]);
    let matched: Vec<Value> =
        policies(&merged).iter().map(|policy| policy["match"]["routes"].clone()).collect();
    assert_eq!(matched, [json!(["team-a.checkout.0"]), json!(["team-b.good.0"])]);
    let left_out = notes(&merged, "team-b/g");
    assert!(left_out.starts_with("HTTPRoute team-b/evil is not counted: rules[0]"), "{left_out}");
    // What no document can tell apart is named where it counts.
    let double = notes(&merged, "team-a/p");
    assert!(double.starts_with("HTTPRoute team-b/evil has a rule of the name team-a"), "{double}");
}

#[test]
fn routes_of_teams_take_nothing_from_the_policy_of_a_gateway() {
    let mut flood = route("team-b", "b", 16);
    flood["spec"]["hostnames"] =
        (0..16).map(|number| json!(format!("{number}.example.com"))).collect();
    for rule in flood["spec"]["rules"].as_array_mut().unwrap() {
        rule["matches"] = vec![json!({}); 8].into();
    }
    let mut foreign = route("team-c", "c", 1);
    foreign["status"]["parents"][0]["controllerName"] = json!("example.com/other");
    let overrides = json!({"overrides": {"policies": quotas(&["cap"])}});
    let teams = [
        at(flood, "2025-02-01T00:00:00Z"),
        foreign,
        at(route("team-z", "z", 1), "2026-01-01T00:00:00Z"),
        on_gateway("o", overrides),
    ];
    let two = merged(&[&teams[..], &[gateway("gateways", "other", None)]].concat());
    let routes = policies(&two)[0]["match"]["routes"].clone();
    let routes: Vec<&str> =
        routes.as_array().unwrap().iter().map(|r| r.as_str().unwrap()).collect();
    assert!(routes.contains(&"httproute/team-z/z/rule/0/match/0/z_example_com"), "{routes:?}");
    assert_eq!(routes.len(), 1024, "the flood has what is left");
    let left_out = notes(&two, "gateways/o");
    assert!(left_out.contains("HTTPRoute team-b/b is not counted: 1025 of its 2048"), "{left_out}");
    assert!(left_out.contains("HTTPRoute team-c/c is not counted: its controller"), "{left_out}");
    let (holds, reason, why) = programmed(&two, "gateways/o");
    assert_eq!((holds, reason), (false, Reason::PartiallyProgrammed));
    assert!(why.contains("do not cap all routes. Give the Gateway a domain of its own"), "{why}");
    // The policy of the only Gateway names no route.
    let one = merged(&teams);
    assert_eq!(policies(&one)[0]["match"], Value::Null);
    assert_eq!(notes(&one, "gateways/o"), "");
}

#[test]
fn label_of_a_service_is_not_enough_to_join_a_gateway() {
    let [mut service, _, of_service] = scene::service();
    service["metadata"]["labels"] =
        json!({"istio.io/use-waypoint": "public", "istio.io/use-waypoint-namespace": "gateways"});
    let policy = on("Service", "team-b", "p", "inventory", json!({"policies": quotas(&["q"])}));
    for (from, is_allowed) in [("Same", false), ("All", true)] {
        let mut public = gateway("gateways", "public", None);
        public["spec"]["listeners"][0]["allowedRoutes"] = json!({"namespaces": {"from": from}});
        let objects = [service.clone(), of_service.clone(), policy.clone()];
        let merged = merged_with(&[public], &objects);
        assert_eq!(names(&merged).len(), usize::from(is_allowed));
        let reason = refusal(&merged, "team-b/p").map(|(reason, _)| reason);
        assert_eq!(reason, (!is_allowed).then_some(Reason::TargetNotFound));
    }
}

#[test]
fn policy_of_a_service_counts_routes_of_its_namespace_at_no_other_parent() {
    let [service, waypoint, of_service] = scene::service();
    let parent =
        json!({"group": "", "kind": "Service", "namespace": "team-b", "name": "inventory"});
    let public = json!({"namespace": "gateways", "name": "public"});
    let both = [(parent.clone(), ISTIO), (public, ISTIO)];
    let merged = merged(&[
        service,
        waypoint,
        of_service,
        accepted("HTTPRoute", "team-c", "caller", 1, &[(parent, ISTIO)]),
        accepted("HTTPRoute", "team-b", "both", 1, &both),
        on("Service", "team-b", "p", "inventory", json!({"policies": quotas(&["q"])})),
    ]);
    assert_eq!(policies(&merged)[0]["match"], json!({"routes": ["team-b.inventory.0"]}));
    let left_out = notes(&merged, "team-b/p");
    assert!(left_out.contains("HTTPRoute team-c/caller is not counted: only"), "{left_out}");
    assert!(
        left_out.contains("HTTPRoute team-b/both is not counted: it has another"),
        "{left_out}"
    );
}

#[test]
fn route_of_a_caller_takes_nothing_from_the_policy_of_a_service() {
    let [service, waypoint, of_service] = scene::service();
    let parent =
        json!({"group": "", "kind": "Service", "namespace": "team-b", "name": "inventory"});
    let merged = merged_with(
        &[service, waypoint, of_service],
        &[
            named_rule("team-c", "caller", parent, "read"),
            on("Service", "team-b", "p", "inventory", json!({"policies": quotas(&["q"])})),
        ],
    );
    assert_eq!(policies(&merged)[0]["match"], json!({"routes": ["team-b.inventory.0"]}));
    let left_out = notes(&merged, "team-b/p");
    assert!(left_out.starts_with("HTTPRoute team-c/caller is not counted"), "{left_out}");
}
