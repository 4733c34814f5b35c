//! How much a document has at most, and who yields.

use quotagate_kubernetes::Reason;
use serde_json::json;

use crate::merged::{at, merged, on, on_gateway, on_route, policies, quotas, refusal};
use crate::scene::{ENVOY_GATEWAY, accepted, gateway, route};

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
