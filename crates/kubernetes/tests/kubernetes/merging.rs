//! The rules of the merge.

use quotagate_kubernetes::{Domains, MergedDocument, Objects, Reason, merge};
use serde_json::{Value, json};

use crate::scene::{self, ENVOY_GATEWAY, GROUP, ISTIO, accepted, gateway, patch, route};

/// An object on an HTTPRoute with a quota of each of these names.
fn on_route(namespace: &str, name: &str, route: &str, policies: &[&str]) -> Value {
    on("HTTPRoute", namespace, name, route, json!({"policies": quotas(policies)}))
}

fn on(kind: &str, namespace: &str, name: &str, target: &str, spec: Value) -> Value {
    let group = if kind == "Service" { "" } else { GROUP };
    let mut object = json!({
        "apiVersion": "quotagate.io/v1alpha1", "kind": "QuotaPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"targetRefs": [{"group": group, "kind": kind, "name": target}]},
    });
    patch(&mut object["spec"], &spec);
    object
}

fn on_gateway(name: &str, spec: Value) -> Value {
    on("Gateway", "gateways", name, "public", spec)
}

fn quotas(names: &[&str]) -> Value {
    let one = |name| json!({"name": name, "partitionBy": [], "quota": 1, "window": "1m"});
    names.iter().map(one).collect()
}

fn at(mut object: Value, created: &str) -> Value {
    object["metadata"]["creationTimestamp"] = json!(created);
    object
}

/// The merged document of the one domain, of these objects beside `gateways/public`.
fn merged(more: &[Value]) -> MergedDocument {
    merged_with(&[gateway("gateways", "public", None)], more)
}

fn merged_with(scene: &[Value], more: &[Value]) -> MergedDocument {
    let mut objects = Objects::default();
    scene.iter().chain(more).for_each(|object| objects.add(object).unwrap());
    let domains = Domains::read(&scene::config()).unwrap();
    merge(&objects, domains.iter().next().unwrap())
}

/// The same, where the platform lists `gateways/public`.
fn merged_of_platform(more: &[Value]) -> MergedDocument {
    let mut config = scene::config();
    config["domains"][0]["gateways"] = json!(["gateways/public"]);
    let mut objects = Objects::default();
    let public = [gateway("gateways", "public", None)];
    public.iter().chain(more).for_each(|object| objects.add(object).unwrap());
    let domains = Domains::read(&config).unwrap();
    merge(&objects, domains.iter().next().unwrap())
}

/// The policies of the document.
fn policies(merged: &MergedDocument) -> Vec<Value> {
    merged.document.as_ref().unwrap()["policies"].as_array().unwrap().clone()
}

fn names(merged: &MergedDocument) -> Vec<String> {
    policies(merged).iter().map(|policy| policy["name"].as_str().unwrap().to_owned()).collect()
}

/// Why this object is not accepted at its first ancestor.
fn refusal(merged: &MergedDocument, object: &str) -> Option<(Reason, String)> {
    let outcome = merged.outcomes.iter().find(|outcome| outcome.object.to_string() == object);
    let accepted = &outcome.unwrap().ancestors[0].accepted;
    (!accepted.holds).then(|| (accepted.reason, accepted.message.clone()))
}

/// The condition Programmed of this object: whether it holds, its reason and message.
fn programmed(merged: &MergedDocument, object: &str) -> (bool, Reason, String) {
    let outcome = merged.outcomes.iter().find(|outcome| outcome.object.to_string() == object);
    let verdict = outcome.unwrap().ancestors[0].programmed.clone().unwrap();
    (verdict.holds, verdict.reason, verdict.message)
}

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

/// An HTTPRoute of Istio with one rule of this name.
fn named_rule(namespace: &str, name: &str, parent: Value, rule: &str) -> Value {
    let mut route = accepted("HTTPRoute", namespace, name, 1, &[(parent, ISTIO)]);
    route["spec"]["rules"][0]["name"] = json!(rule);
    route
}

fn notes(merged: &MergedDocument, object: &str) -> String {
    let outcome = merged.outcomes.iter().find(|outcome| outcome.object.to_string() == object);
    outcome.unwrap().notes.join("; ")
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
fn policies_of_a_gateway_share_the_bytes_of_their_routes() {
    let long = "x".repeat(60);
    let mut flood = route("team-b", "b", 8);
    flood["spec"]["hostnames"] =
        (0..64).map(|number| json!(format!("{number}.{long}.{long}.com"))).collect();
    let caps: Vec<String> = (0..16).map(|number| format!("cap{number}")).collect();
    let caps: Vec<&str> = caps.iter().map(String::as_str).collect();
    let full = merged(&[
        gateway("gateways", "other", None),
        flood,
        on_gateway("o", json!({"overrides": {"policies": quotas(&caps)}})),
    ]);
    assert_eq!(refusal(&full, "gateways/o"), None);
    assert_eq!(policies(&full).len(), 16);
    let bytes = full.document.as_ref().unwrap().to_string().len();
    assert!(bytes < 80 * 1024, "{bytes}");
}

#[test]
fn routes_of_its_own_count_toward_the_share_of_a_namespace_on_its_gateway() {
    let long = "x".repeat(60);
    let parent = json!({"namespace": "team-b", "name": "own"});
    let mut objects = vec![gateway("team-b", "own", None)];
    let mut large = accepted("HTTPRoute", "team-b", "b", 8, &[(parent, ENVOY_GATEWAY)]);
    large["spec"]["hostnames"] =
        (0..64).map(|number| json!(format!("{number}.{long}.{long}.com"))).collect();
    objects.push(large);
    for name in ["p1", "p2", "p3"] {
        objects.push(on("Gateway", "team-b", name, "own", json!({"policies": quotas(&[name])})));
    }
    let full = merged(&objects);
    let (_, why) = refusal(&full, "team-b/p3").unwrap();
    assert!(why.contains("bytes in the document, and may have 131072"), "{why}");
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

#[test]
fn replacement_beyond_the_routes_that_a_default_can_leave_out_is_refused() {
    let defaults = json!({"defaults": {"policies": quotas(&["q"])}});
    let mut objects = Vec::new();
    for (namespace, created) in [("team-a", "2026-01-01"), ("team-b", "2026-02-01")] {
        let mut many = route(namespace, "r", 10);
        many["spec"]["hostnames"] =
            (0..10).map(|number| json!(format!("{number}.{namespace}"))).collect();
        for rule in many["spec"]["rules"].as_array_mut().unwrap() {
            rule["matches"] = vec![json!({}); 8].into();
        }
        let object = on_route(namespace, "p", "r", &["q"]);
        objects.extend([many, at(object, &format!("{created}T00:00:00Z"))]);
    }
    // Whether the default comes first or last, the later one of the others yields.
    for created in ["2025-01-01", "2027-01-01"] {
        let default = at(on_gateway("d", defaults.clone()), &format!("{created}T00:00:00Z"));
        let merged = merged(&[&objects[..], &[default]].concat());
        let all = policies(&merged);
        let default = all.iter().find(|policy| policy["name"] == "gateways/d/q").unwrap();
        assert_eq!(default["match"]["not"]["routes"].as_array().unwrap().len(), 800);
        let (_, why) = refusal(&merged, "team-b/p").unwrap();
        assert!(
            why.starts_with("more than 1024 routes would replace the default gateways/d/q"),
            "{why}"
        );
    }
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
fn namespace_has_a_share_of_identities_and_bytes() {
    let mut objects = vec![route("team-a", "a", 1)];
    for (object, used) in [("unused", 0), ("eight", 8), ("more", 1)] {
        let mut policy = on_route("team-a", object, "a", &[]);
        policy["spec"]["identities"] = (0..10)
            .map(|number| {
                (format!("i{number}"), json!([{"jwt": {"claim": format!("{object}{number}")}}]))
            })
            .collect::<serde_json::Map<_, _>>()
            .into();
        policy["spec"]["policies"] = (0..used.max(1))
            .map(|number| {
                let by = if used == 0 { json!([]) } else { json!([format!("i{number}")]) };
                json!({"name": format!("{object}-{number}"), "partitionBy": by, "quota": 1, "window": "1m"})
            })
            .collect();
        objects.push(policy);
    }
    let full = merged(&objects);
    assert_eq!(full.document.as_ref().unwrap()["identities"].as_object().unwrap().len(), 9);
    let (_, why) = refusal(&full, "team-a/more").unwrap();
    assert!(
        why.contains("9 identities that nobody else has in the document, and may have 8"),
        "{why}"
    );

    let mut large = route("team-b", "b", 9);
    large["spec"]["hostnames"] =
        (0..64).map(|number| json!(format!("{number}.{}.example.com", "x".repeat(60)))).collect();
    let names: Vec<String> = (0..9).map(|number| format!("q{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let full = merged(&[large, on_route("team-b", "p", "b", &names)]);
    let (_, why) = refusal(&full, "team-b/p").unwrap();
    assert!(why.contains("bytes in the document, and may have 131072"), "{why}");
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
fn namespace_has_a_share_and_the_youngest_object_yields() {
    let names: Vec<String> = (0..16).map(|number| format!("q{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut objects = vec![route("team-b", "b", 1), on_route("team-b", "p", "b", &["q"])];
    for (index, created) in ["2026-03-01", "2026-01-01", "2026-02-01"].iter().enumerate() {
        let name = format!("r{index}");
        objects.push(route("team-a", &name, 1));
        let object = on_route("team-a", &name, &name, &names);
        objects.push(at(object, &format!("{created}T00:00:00Z")));
    }
    let merged = merged(&objects);
    assert_eq!(policies(&merged).len(), 2 * 16 + 1);
    let (reason, why) = refusal(&merged, "team-a/r0").unwrap();
    assert_eq!(reason, Reason::Invalid);
    assert!(why.starts_with("namespace team-a would have 48 policies in the document"), "{why}");
}

#[test]
fn document_has_at_most_1024_policies_and_64_identities() {
    let mut objects = Vec::new();
    for number in 0..65 {
        let namespace = format!("team-{number:02}");
        let names: Vec<String> = (0..16).map(|number| format!("q{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        objects.extend([route(&namespace, "r", 1), on_route(&namespace, "p", "r", &names)]);
    }
    let full = merged(&objects);
    assert_eq!(policies(&full).len(), 1024);
    let (_, why) = refusal(&full, "team-64/p").unwrap();
    assert!(why.starts_with("the document would have 1040 policies, and may have 1024"), "{why}");

    let mut objects = Vec::new();
    for number in 0..64 {
        let namespace = format!("team-{number:02}");
        let mut object = on_route(&namespace, "p", "r", &["q"]);
        object["spec"]["identities"] = json!({"who": [{"jwt": {"claim": format!("c{number}")}}]});
        object["spec"]["policies"][0]["partitionBy"] = json!(["who"]);
        objects.extend([route(&namespace, "r", 1), object]);
    }
    let full = merged(&objects);
    assert_eq!(policies(&full).len(), 63, "and one identity of the platform");
    let (_, why) = refusal(&full, "team-63/p").unwrap();
    assert!(why.starts_with("spec.identities: the document has 64 already"), "{why}");
}

#[test]
fn document_is_at_most_a_mebibyte() {
    let long = "x".repeat(60);
    let mut objects = Vec::new();
    for number in 0..12 {
        let namespace = format!("team-{number:02}");
        let mut large = route(&namespace, &long, 1);
        large["spec"]["hostnames"] =
            (0..48).map(|number| json!(format!("{number}.{long}.example.com"))).collect();
        let names: Vec<String> = (0..12).map(|number| format!("q{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        objects.extend([large, on_route(&namespace, "p", &long, &names)]);
    }
    let full = merged(&objects);
    let bytes = full.document.as_ref().unwrap().to_string().len();
    assert!(bytes <= 1024 * 1024 - 1024 && bytes > 900_000, "{bytes}");
    let (_, why) = refusal(&full, "team-11/p").unwrap();
    assert!(why.starts_with("the document would be larger than 1047552 bytes"), "{why}");
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
