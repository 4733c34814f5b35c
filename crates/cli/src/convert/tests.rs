//! Documents that `convert` writes: each one is valid, and decides as the rules do.

use std::borrow::Cow;
use std::collections::BTreeMap;

use quotagate_protocol::Mode;
use quotagate_quota::config::Config;
use quotagate_quota::request::{HeaderValues, Request};
use quotagate_ratelimit::messages::DescriptorEntry;
use quotagate_ratelimit::rules::{RuleDomain, RuleFile, RuleLimit};
use serde_json::{Value, json};

use super::*;

fn rule_set(text: &str) -> RuleSet {
    let file = RuleFile { name: "r.yaml".to_owned(), text: text.into() };
    RuleSet::of(vec![file], SharedArgs::default())
}

/// The document for these rules, without an Envoy or with this one, as the filter reads it.
fn converted(rules: &str, envoy: Option<&Value>) -> (String, Vec<String>, Config) {
    let set = rule_set(rules);
    let documents = envoy.map(std::slice::from_ref);
    let rules = set.rules().unwrap();
    let converted = match documents {
        Some(documents) => convert(&rules, envoy::read(documents).unwrap(), Some("envoy.yaml")),
        None => convert(&rules, assumed(&set.trees()), None),
    };
    let document: Value = serde_saphyr::from_str(&converted.text).unwrap_or_else(|error| {
        panic!("{error}\n{}", converted.text);
    });
    let config = Config::parse(document.to_string().as_bytes())
        .unwrap_or_else(|faults| panic!("{faults}\n{}", converted.text));
    // Comments wrap.
    let text = converted.text.replace("\n  # ", " ").replace("\n# ", " ");
    let gaps: Vec<String> = text.split(document::GAP).skip(1).map(first_line).collect();
    assert_eq!(gaps.len(), converted.gaps, "{}", converted.text);
    (converted.text, gaps, config)
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// The virtual hosts of [`envoy`].
const HOSTS: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/\
                     route_config/virtual_hosts";

/// An Envoy with these routes, whose virtual host has these limits.
fn envoy(filter: Value, host_limits: Value, routes: Value) -> Value {
    let mut filter = filter;
    filter["@type"] =
        json!("type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit");
    if filter.get("domain").is_none() {
        filter["domain"] = json!("d");
    }
    json!({
        "node": {"cluster": "edge"},
        "static_resources": {"listeners": [{"filter_chains": [{"filters": [{"typed_config": {
            "http_filters": [{"name": "envoy.filters.http.ratelimit", "typed_config": filter}],
            "route_config": {"virtual_hosts": [
                {"name": "shop", "domains": ["*"], "rate_limits": host_limits, "routes": routes}
            ]},
        }}]}]}]},
    })
}

/// A route of this name with these limits.
fn route(name: &str, limits: Value) -> Value {
    json!({"name": name, "match": {"prefix": "/"}, "route": {"cluster": format!("c-{name}"), "rate_limits": limits}})
}

fn header(name: &str, key: &str) -> Value {
    json!({"request_headers": {"header_name": name, "descriptor_key": key}})
}

/// One limit by a header for all requests.
fn by_user(filter: Value) -> Value {
    envoy(
        filter,
        json!([{"actions": [header("x-user", "user")]}]),
        json!([route("all", json!([]))]),
    )
}

const USER: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: user, value: root, rate_limit: {unlimited: true}}
  - {key: user, value: 'bot-*', rate_limit: {unit: week, requests_per_unit: 1}, shadow_mode: true}
";

const PLAIN: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
";

#[test]
fn written_document_says_what_rules_and_envoy_say() {
    let filter = json!({
        "timeout": "0.25s", "failure_mode_deny": true, "rate_limited_status": {"code": 503},
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
    });
    let (text, gaps, _) = converted(USER, Some(&by_user(filter)));
    let expected = r#"# The limits of the rate limit service and envoy.yaml as policies.
# Validate it with `quotagate check`. Its counters begin with zero, beside those of the service.
# A policy without `routes` counts all requests, also those that no route takes.
domain: d
store:
  # The Envoy cluster of `quotagate serve`. In the native module, `redis:` and a store URL
  # instead.
  cluster: quota_store
  timeout: 250ms
  on_failure: deny
identities:
  x-user: [{header: {name: x-user}}]
policies:
  # d.user_root: unlimited, sent as user=*.
  # It has no limit, so it needs no policy.
  # d.user_bot-*: 1 per week, sent as user=*.
  - name: user-bot-2a
    match: {headers: [{name: x-user, prefix: bot-}]}
    partition_by: [x-user]
    on_missing: skip
    quota: 1
    window: {calendar: week, time_zone: UTC}
    mode: shadow
  # d.user: 5 per minute, sent as user=*.
  - name: user
    match: {not: {headers: [{name: x-user, exact: root}, {name: x-user, prefix: bot-}]}}
    partition_by: [x-user]
    on_missing: skip
    quota: 5
    window: 1m
response: {headers: [x_ratelimit], denied: {status: 503}, reset: delta}
"#;
    assert_eq!(text, expected);
    assert!(gaps.is_empty());
}

#[test]
fn without_envoy_each_key_is_taken_for_a_header() {
    let (text, gaps, config) = converted(
        "
domain: My shop!
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - {key: to_number, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: remote_address, value: 10.0.0.1, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: 'x*', rate_limit: {unit: day, requests_per_unit: 5}}
",
        None,
    );
    assert_eq!(&*config.domain, "my-shop-");
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert!(gaps[0].starts_with("My shop!.x*: 5 per day: no `rate_limits`"), "{gaps:?}");
    for part in [
        "ASSUMED: each key is a header",
        "match: {headers: [{name: message-type, exact: marketing}]}",
        "partition_by: [to-number]",
        "match: {client_ip: [\"10.0.0.1\"]}",
        "partition_by: []",
        "quota: 0",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn every_unit_has_the_window_of_the_service() {
    for unit in ["second", "minute", "hour", "day", "week", "month", "year"] {
        let rules = format!(
            "domain: d\ndescriptors:\n- {{key: user, rate_limit: {{unit: {unit}, requests_per_unit: 5}}}}\n"
        );
        let (_, _, config) = converted(&rules, Some(&by_user(json!({}))));
        let of_service = quotagate_ratelimit::messages::Unit::of(unit)
            .and_then(quotagate_ratelimit::domain::window)
            .unwrap();
        assert_eq!(config.policies[0].window, of_service, "{unit}");
    }
}

/// Entries of `rate_limits` that a document cannot express, and what the comment says.
#[test]
fn what_a_document_cannot_say_is_a_comment_with_a_remedy() {
    let of_host = |limit: Value| envoy(json!({}), json!([limit]), json!([route("all", json!([]))]));
    let of_filter = |limit: Value| {
        envoy(json!({"rate_limits": [limit]}), json!([]), json!([route("all", json!([]))]))
    };
    let matcher = |matcher: Value| {
        json!({"actions": [{"header_value_match": {
            "descriptor_key": "user", "descriptor_value": "v", "headers": [matcher],
        }}]})
    };
    let user = header("x-user", "user");
    for (envoy, part) in [
        (
            of_host(json!({"actions": [{"extension": {"name": "expr"}}]})),
            "virtual host shop, rate_limits[0]: the action extension: count by a header",
        ),
        (
            of_host(
                json!({"actions": [{"metadata": {"descriptor_key": "user", "default_value": "x",
                "metadata_key": {"key": "f", "path": [{"key": "k"}]}}}]}),
            ),
            "requests without this metadata are not counted here, and as \"x\"",
        ),
        (
            of_host(matcher(json!({"name": "n", "range_match": {"start": 1, "end": 2}}))),
            "a range of numbers",
        ),
        (
            of_host(matcher(json!({"name": "n", "treat_missing_header_as_empty": true,
                "string_match": {"exact": "a"}}))),
            "treat_missing_header_as_empty for the header \"n\"",
        ),
        (
            of_host(matcher(json!({"name": ":authority", "string_match": {"prefix": "a"}}))),
            "no such condition on the host",
        ),
        (
            of_host(matcher(json!({"name": "n", "string_match": {"safe_regex": {"regex": "("}}}))),
            "it cannot be a policy: match.headers[0].regex must be a regular expression",
        ),
        (
            of_host(json!({"actions": [{"header_value_match": {"descriptor_key": "user",
                "descriptor_value": "v", "expect_match": false,
                "headers": [{"name": "a"}, {"name": "b"}]}}]})),
            "expect_match: false over several conditions",
        ),
        (
            of_host(json!({"actions": [user], "limit": {"dynamic_metadata":
                {"metadata_key": {"key": "f", "path": [{"key": "k"}]}}}})),
            "add `quota_from: {metadata: {filter: f, path: [k, requests_per_unit]}}`",
        ),
        (
            of_filter(json!({"actions": [user], "hits_addend": {"number": 0}})),
            "user=* with hits_addend 0 only looks",
        ),
        (
            of_filter(json!({"actions": [user], "apply_on_stream_done": true,
                "hits_addend": {"format": "%DYNAMIC_METADATA(f:k)%"}})),
            "user=* counts when the response ends, and no entry looks",
        ),
        (
            of_filter(json!({"actions": [user], "hits_addend": {"format": "%BYTES_RECEIVED%"}})),
            "the hits \"%BYTES_RECEIVED%\": write them into a header",
        ),
        (
            envoy(
                json!({"domain": "other"}),
                json!([{"actions": [user]}]),
                json!([route("all", json!([]))]),
            ),
            "no rule file has the domain \"other\"",
        ),
        (
            envoy(
                json!({}),
                json!([]),
                json!([
                    {"match": {"prefix": "/"}, "route": {"cluster": "c", "rate_limits": [{"actions": [user]}]}},
                    route("b", json!([])),
                ]),
            ),
            "which is the virtual host and the number of the route: shop-1",
        ),
        (
            envoy(
                json!({}),
                json!([]),
                json!([
                    route("a", json!([{"actions": [user]}])),
                    route("b", json!([{"actions": [header("x-other", "user")]}])),
                ]),
            ),
            "the service counts this together with the policy user",
        ),
        (of_host(json!({"actions": [user], "disable_key": "k"})), "the runtime can disable it"),
        (
            of_host(json!({"actions": [user], "x_ratelimit_option": "OFF"})),
            "`x_ratelimit_option` chooses headers for this descriptor",
        ),
        (
            by_user(json!({"rate_limited_status": {"code": "Odd"}})),
            "rate_limited_status.code \"Odd\" of the filter: write its number",
        ),
        (by_user(json!({"filter_enforced": {}})), "the field filter_enforced of the filter: set"),
        (
            envoy(
                json!({}),
                json!([{"actions": [user]}]),
                json!([{
                    "name": "a", "route": {"weighted_clusters": {"clusters": [
                        {"name": "c", "typed_per_filter_config": {
                            "envoy.filters.http.ratelimit": {},
                        }},
                    ]}},
                }]),
            ),
            "route a has limits for single clusters of weighted_clusters",
        ),
        (
            of_host(json!({"actions": [user, {"destination_cluster": {}}]})),
            "no `rate_limits` of the configuration sends such a descriptor",
        ),
    ] {
        let (text, gaps, _) = converted(PLAIN, Some(&envoy));
        assert!(gaps.iter().any(|gap| gap.contains(part)), "{part}\n{gaps:#?}\n{text}");
    }
    for (rule, part) in [
        ("replaces: [{name: small}]", "the rule replaces small, and here both count"),
        (
            "name: large}, quota_mode: true, metadata: {a: 1",
            "quota_mode refuses a request only if all",
        ),
    ] {
        let rules = format!(
            "domain: d\ndescriptors:\n- {{key: user, rate_limit: {{unit: day, requests_per_unit: 5, {rule}}}}}\n\
             - {{key: user, value: a, rate_limit: {{unit: day, requests_per_unit: 5, name: small}}}}\n"
        );
        let (text, gaps, _) = converted(&rules, Some(&by_user(json!({}))));
        assert!(gaps.iter().any(|gap| gap.contains(part)), "{part}\n{text}");
    }
}

/// A route table in which the virtual host sends this header as `user`.
fn table(name: &str, of_user: &str) -> Value {
    json!({"name": name, "virtual_hosts": [{
        "name": name,
        "rate_limits": [{"actions": [header(of_user, "user")]}],
        "routes": [route(name, json!([]))],
    }]})
}

#[test]
fn connection_manager_uses_the_route_table_of_the_name_that_it_asks_for() {
    let filter = by_user(json!({}));
    let filter = &filter["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0];
    let filters = &filter["typed_config"]["http_filters"];
    let manager = |rds: &Value| json!({"http_filters": filters, "rds": rds});
    let (web, all) = (json!({"route_config_name": "web"}), json!({}));
    for (managers, policies) in [
        // Two listeners with one table are no reason to count twice.
        ([manager(&web), manager(&web)], 1),
        ([manager(&web), manager(&all)], 2),
        ([manager(&all), manager(&all)], 2),
    ] {
        let envoy = json!([managers, table("internal", "x-other"), table("web", "x-user")]);
        let (text, gaps, config) = converted(PLAIN, Some(&envoy));
        assert_eq!(config.policies.len(), policies, "{text}");
        let twice = gaps.iter().filter(|gap| gap.contains("sends this descriptor twice"));
        assert_eq!(twice.count(), 0, "{text}");
    }
    let absent = json!([manager(&json!({"route_config_name": "absent"})), table("web", "x-user")]);
    let (_, gaps, _) = converted(PLAIN, Some(&absent));
    assert!(gaps[0].starts_with("the routes of the filter are not in the file"), "{gaps:?}");
    let user = json!({"actions": [header("x-user", "user")]});
    let twice = envoy(json!({}), json!([user, user]), json!([route("all", json!([]))]));
    let (_, gaps, _) = converted(PLAIN, Some(&twice));
    assert!(gaps[0].starts_with("Envoy sends this descriptor twice"), "{gaps:?}");
}

#[test]
fn routes_of_one_name_that_envoy_treats_differently_are_named() {
    let mut envoy = by_user(json!({}));
    let hosts = envoy.pointer_mut(HOSTS).unwrap().as_array_mut().unwrap();
    // The name that a route without one gets.
    hosts[0]["routes"][0]["name"] = json!("");
    hosts.push(json!({"name": "other", "routes": [route("shop-1", json!([]))]}));
    let (text, gaps, _) = converted(PLAIN, Some(&envoy));
    let expected = "is also named \"shop-1\": give the two routes different names";
    assert!(gaps.iter().any(|gap| gap.contains(expected)), "{text}");
}

#[test]
fn metadata_has_tiers_for_texts_and_no_patterns() {
    let metadata = |key: &str| {
        json!({"metadata": {"descriptor_key": key, "source": 0,
            "metadata_key": {"key": "f", "path": [{"key": "tier"}]}}})
    };
    let rules = |value: &str, extra: &str| {
        format!(
            "domain: d
descriptors:
  - key: user
    value: '{value}'
    {extra}: true
    rate_limit: {{unit: day, requests_per_unit: 5}}
    descriptors: [{{key: user, value: b, rate_limit: {{unit: day, requests_per_unit: 5}}}}]
"
        )
    };
    let one = envoy(
        json!({}),
        json!([{"actions": [metadata("user")]}]),
        json!([route("all", json!([]))]),
    );
    // One counter for all values of the pattern, which no identity says.
    for pattern in ["a*", "*"] {
        let (text, gaps, config) = converted(&rules(pattern, "share_threshold"), Some(&one));
        assert_eq!(config.policies.len(), 0, "{text}");
        assert!(gaps[0].starts_with("a document has no such condition on the metadata"), "{text}");
    }
    let (text, _, config) = converted(&rules("a", "detailed_metric"), Some(&one));
    assert_eq!(config.policies.len(), 1, "{text}");
    let remark =
        "A dial precedes tiers: change the numbers in `tiers`, because `quotagate dial set";
    assert!(text.replace("\n  #", "").contains(remark), "{text}");
    // No value is two texts at once.
    let actions = json!([{"actions": [metadata("user"), metadata("user")]}]);
    let twice = envoy(json!({}), actions, json!([route("all", json!([]))]));
    let (text, _, config) = converted(&rules("a", "detailed_metric"), Some(&twice));
    assert_eq!(config.policies.len(), 0, "{text}");
    assert!(text.contains("No request has such a value") && !text.contains("identities"), "{text}");
}

#[test]
fn numbers_and_names_of_enums_are_read() {
    for (code, status) in [
        (json!("ServiceUnavailable"), 503),
        (json!("HTTPVersionNotSupported"), 505),
        (json!("URITooLong"), 414),
        (json!(403), 403),
        (json!("TooManyRequests"), 429),
        (json!("OK"), 429),
    ] {
        let envoy = by_user(json!({"rate_limited_status": {"code": code}}));
        let (text, gaps, config) = converted(PLAIN, Some(&envoy));
        assert!(gaps.is_empty(), "{text}");
        assert_eq!(config.response.denied.status, status, "{text}");
    }
    let action = json!({"metadata": {"descriptor_key": "user", "source": 1,
        "default_value": "x", "metadata_key": {"key": "f", "path": [{"key": "k"}]}}});
    let envoy = envoy(json!({}), json!([{"actions": [action]}]), json!([route("all", json!([]))]));
    let (text, gaps, _) = converted(PLAIN, Some(&envoy));
    assert!(gaps.is_empty() && text.contains("sent as user=x."), "{text}");
    assert!(text.contains("partition_by: []"), "{text}");
}

#[test]
fn expressions_keep_their_case_and_match_line_feeds() {
    for (test, written) in [
        (json!({"safe_regex": {"regex": "ab.c"}, "ignore_case": true}), "regex: ab.c}"),
        (json!({"exact": "a", "ignore_case": true}), "regex: \"(?i)a\"}"),
        (json!({"contains": "a"}), "regex: \"(?s:.*)a(?s:.*)\"}"),
        (json!({"suffix": "a"}), "regex: \"(?s:.*)a\"}"),
    ] {
        let action = json!({"header_value_match": {"descriptor_key": "user",
            "descriptor_value": "v", "headers": [{"name": "n", "string_match": test}]}});
        let envoy =
            envoy(json!({}), json!([{"actions": [action]}]), json!([route("all", json!([]))]));
        let (text, _, _) = converted(PLAIN, Some(&envoy));
        assert!(text.contains(written), "{written}\n{text}");
    }
    for test in [json!({"suffix": "a"}), json!({"contains": "A", "ignore_case": true})] {
        let action = json!({"query_parameter_value_match": {"descriptor_key": "user",
            "descriptor_value": "v", "query_parameters": [{"name": "q", "string_match": test}]}});
        let envoy =
            envoy(json!({}), json!([{"actions": [action]}]), json!([route("all", json!([]))]));
        let (text, _, config) = converted(PLAIN, Some(&envoy));
        let mut sample = Sample::new(&mut Numbers(7), 2);
        sample.query = Some("b\na".to_owned());
        assert_eq!(by_document(&config, &sample).len(), 1, "{text}");
    }
}

#[test]
fn network_is_one_only_in_the_spelling_of_envoy() {
    let action =
        json!({"masked_remote_address": {"v4_prefix_mask_len": 16, "v6_prefix_mask_len": 48}});
    let envoy = envoy(json!({}), json!([{"actions": [action]}]), json!([route("all", json!([]))]));
    for (network, is_sent) in [
        ("2001:db8::/48", true),
        ("10.1.0.0/16", true),
        ("2001:DB8::/48", false),
        ("2001:db8::1/48", false),
        ("2001:db8::/64", false),
        ("10.1.2.3/16", false),
        ("10.1.0.0", false),
        ("10.1.0.0/016", false),
    ] {
        let rules = format!(
            "domain: d\ndescriptors:\n- {{key: masked_remote_address, value: '{network}', rate_limit: {{unit: day, requests_per_unit: 5}}}}\n"
        );
        let (text, gaps, config) = converted(&rules, Some(&envoy));
        assert_eq!(config.policies.len(), usize::from(is_sent), "{text}");
        assert!(gaps.is_empty(), "{text}");
    }
}

#[test]
fn dump_of_a_mesh_is_not_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let values = "1, ".repeat(300_000);
    for (name, text) in [
        ("dump.json", format!("{{\"a\": [{values}1]}}")),
        ("dump.yaml", format!("a: [{values}1]\n---\nb: 1\n")),
    ] {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        let (_, documents) = documents(&file).unwrap();
        assert_eq!(documents[0]["a"].as_array().map(Vec::len), Some(300_001), "{name}");
    }
}

#[test]
fn dump_of_envoy_is_read() {
    let mut envoy = by_user(json!({}));
    let action = json!({"actions": [{"source_cluster": {}}, header("x-user", "user")]});
    let host = &mut envoy.pointer_mut(HOSTS).unwrap()[0];
    host["rate_limits"] = json!([action]);
    // Limits of other filters are no gap.
    host["routes"][0]["route"] = json!({"weighted_clusters": {
        "clusters": [{"name": "c", "typed_per_filter_config": {"envoy.filters.http.cors": {}}}],
    }});
    let dump = json!({"configs": [{"bootstrap": envoy}]});
    let rules = "
domain: d
descriptors:
  - key: source_cluster
    value: edge
    descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]
";
    let (text, gaps, config) = converted(rules, Some(&dump));
    assert!(gaps.is_empty() && config.policies.len() == 1, "{text}");
}

#[test]
fn rule_with_a_pattern_in_its_key_is_one_gap() {
    let rules = "
domain: d
descriptors:
  - {key: 'us*', rate_limit: {unit: minute, requests_per_unit: 5}}
";
    let user = |name: &str| json!({"actions": [header(name, "user")]});
    let envoy =
        envoy(json!({}), json!([user("x-a"), user("x-b")]), json!([route("all", json!([]))]));
    let (_, gaps, _) = converted(rules, Some(&envoy));
    assert_eq!(gaps.len(), 1, "{gaps:?}");
}

#[test]
fn scopes_apply_as_envoy_applies_them() {
    let user = json!({"actions": [header("x-user", "user")]});
    let per_route = |fields: Value| {
        let mut fields = fields;
        fields["@type"] = json!(
            "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"
        );
        let mut route = route("a", json!([{"actions": [header("x-a", "a")]}]));
        route["typed_per_filter_config"] = json!({"envoy.filters.http.ratelimit": fields});
        route
    };
    let rules = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}
";
    for (fields, expected) in [
        (json!({}), "a"),
        (json!({"vh_rate_limits": "INCLUDE"}), "a user"),
        (json!({"vhRateLimits": "INCLUDE"}), "a user"),
        (json!({"override_option": "INCLUDE_POLICY"}), "a user"),
        (json!({"vh_rate_limits": "IGNORE"}), "a"),
        (json!({"rate_limits": [user]}), "user"),
        (json!({"domain": "other", "rate_limits": [user]}), ""),
    ] {
        let envoy = envoy(json!({}), json!([user]), json!([per_route(fields.clone())]));
        let (text, _, config) = converted(rules, Some(&envoy));
        let names: Vec<&str> = config.policies.iter().map(|policy| &*policy.name).collect();
        assert_eq!(names.join(" "), expected, "{fields}\n{text}");
    }
    // Another stage, and a route that another filter answers.
    let staged = json!({"stage": 1, "actions": [header("x-user", "user")]});
    let direct = json!({"name": "b", "match": {"prefix": "/"}, "direct_response": {"status": 200}});
    let envoy = envoy(json!({}), json!([user, staged]), json!([route("a", json!([])), direct]));
    let (text, _, config) = converted(rules, Some(&envoy));
    assert_eq!(config.policies.len(), 1);
    assert!(text.contains("match: {routes: [a]}"), "{text}");
}

#[test]
fn look_before_and_hits_after_are_one_cost() {
    let user = header("x-user", "user");
    let settled = "cost: {reserve: 1, settle: [{metadata: {filter: io.gateway, path: [tokens]}}], if_missing: nothing}";
    for (late, cost) in [
        (json!({"format": "%DYNAMIC_METADATA(io.gateway:tokens)%"}), settled),
        (json!({"number": 3}), "cost: 3"),
    ] {
        let limits = json!([
            {"actions": [user], "hits_addend": {"number": 0}},
            {"actions": [user], "hits_addend": late, "apply_on_stream_done": true},
        ]);
        let envoy =
            envoy(json!({"rate_limits": limits}), json!([]), json!([route("a", json!([]))]));
        let (text, gaps, _) = converted(PLAIN, Some(&envoy));
        assert!(text.contains(cost) && gaps.is_empty(), "{text}");
    }
}

#[test]
fn hostile_texts_end_no_comment_and_no_value() {
    let rules = json!({"domain": "d", "descriptors": [
        {"key": "user", "value": "a\nb: [\u{2028}\"", "rate_limit": {"unit": "day", "requests_per_unit": 1}},
        {"key": "user\n- x", "rate_limit": {"unit": "day", "requests_per_unit": 1}},
        {"key": "user", "value": "x".repeat(2000), "rate_limit": {"unit": "day", "requests_per_unit": 1}},
    ]});
    let (text, gaps, _) = converted(&rules.to_string(), Some(&by_user(json!({}))));
    assert_eq!(gaps.len(), 2, "{text}");
    converted(&rules.to_string(), None);
}

/// The page for users shows what the command writes.
#[test]
fn example_of_the_page_is_what_the_command_writes() {
    let page = include_str!("../../../../docs/from-service-to-filter.md");
    let blocks: Vec<&str> = page.split("```yaml\n").skip(1).collect();
    let block = |index: usize| blocks[index].split("```").next().unwrap();
    let envoy: Value = serde_saphyr::from_str(block(1)).unwrap();
    let (text, gaps, _) = converted(block(0), Some(&envoy));
    assert_eq!(block(2), text, "{text}");
    assert_eq!(gaps, [""; 0]);
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

const VALUES: [&str; 5] = ["a", "ab", "b", "ba", "c"];
const ADDRESSES: [&str; 4] = ["10.0.0.1", "10.0.1.1", "192.0.2.7", "2001:db8::1"];
/// What masked_remote_address sends for each of them.
const NETWORKS: [&str; 4] = ["10.0.0.0/16", "10.0.0.0/16", "192.0.0.0/16", "2001:db8::/48"];
/// The third one is that of another virtual host.
const ROUTES: [&str; 3] = ["r0", "r1", "r0"];

/// A request, as the filter and as Envoy's own filter see it.
#[derive(Debug)]
struct Sample {
    headers: BTreeMap<String, String>,
    query: Option<String>,
    address: String,
    tier: Option<String>,
    route: usize,
}

impl Sample {
    fn new(numbers: &mut Numbers, routes: usize) -> Self {
        let mut headers = BTreeMap::new();
        for name in ["x-user", "x-plan"] {
            if numbers.below(4) > 0 {
                headers.insert(name.to_owned(), numbers.of(&VALUES).to_owned());
            }
        }
        Self {
            headers,
            query: (numbers.below(3) > 0).then(|| numbers.of(&VALUES).to_owned()),
            address: numbers.of(&ADDRESSES).to_owned(),
            tier: (numbers.below(3) > 0).then(|| numbers.of(&VALUES).to_owned()),
            route: numbers.below(routes),
        }
    }
}

impl Request for Sample {
    fn method(&self) -> Option<Cow<'_, [u8]>> {
        Some(b"GET".into())
    }

    fn path(&self) -> Option<Cow<'_, [u8]>> {
        let query = self.query.as_ref().map(|value| value.replace('\n', "%0A"));
        let query = query.map_or_else(String::new, |value| format!("?q={value}"));
        Some(format!("/{query}").into_bytes().into())
    }

    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        None
    }

    fn header(&self, name: &str) -> HeaderValues<'_> {
        self.headers.get(name).map(|value| value.as_bytes().into()).into_iter().collect()
    }

    fn metadata(&self, _: &str, _: &[Box<str>]) -> Option<Vec<u8>> {
        Some(self.tier.clone()?.into_bytes())
    }

    fn attribute(&self, _: &[&str]) -> Option<Vec<u8>> {
        None
    }

    fn source_address(&self) -> Option<Cow<'_, [u8]>> {
        Some(match self.address.contains(':') {
            true => format!("[{}]:1", self.address).into_bytes().into(),
            false => format!("{}:1", self.address).into_bytes().into(),
        })
    }

    fn route_name(&self) -> Option<Cow<'_, [u8]>> {
        Some(ROUTES[self.route].as_bytes().into())
    }
}

/// What the rules and actions of a case are about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Topic {
    All,
    /// Metadata alone: a document can say least about it.
    Metadata,
}

/// An action of Envoy.
fn action(numbers: &mut Numbers, topic: Topic) -> Value {
    match if topic == Topic::Metadata { 7 } else { numbers.below(10) } {
        0 | 1 => json!({"request_headers": {"header_name": "x-user", "descriptor_key": "user",
            "skip_if_absent": numbers.below(3) == 0}}),
        2 => header("x-plan", "plan"),
        3 => json!({"remote_address": {}}),
        4 => json!({"generic_key": {"descriptor_value": numbers.of(&["a", "b"])}}),
        5 => {
            let test = match numbers.below(5) {
                4 => json!({"safe_regex": {"regex": "A|b.*"}, "ignore_case": true}),
                0 => json!({"exact": numbers.of(&VALUES)}),
                1 => json!({"prefix": numbers.of(&["a", "b"])}),
                2 => json!({"suffix": numbers.of(&["a", "b"])}),
                _ => json!({"contains": numbers.of(&["a", "b"]), "ignore_case": true}),
            };
            json!({"header_value_match": {"descriptor_value": "a", "expect_match": numbers.below(2) == 0,
                "headers": [{"name": "x-plan", "string_match": test, "invert_match": numbers.below(4) == 0}]}})
        }
        6 => json!({"query_parameters": {"query_parameter_name": "q", "descriptor_key": "q"}}),
        7 => json!({"metadata": {"descriptor_key": "tier",
            "metadata_key": {"key": "f", "path": [{"key": "tier"}]}}}),
        8 => json!({"masked_remote_address": {"v4_prefix_mask_len": 16, "v6_prefix_mask_len": 48}}),
        _ => json!({"destination_cluster": {}}),
    }
}

/// What Envoy adds to a descriptor for an action. `None`: there is no descriptor.
fn entry(action: &Value, sample: &Sample) -> Option<Option<(String, String)>> {
    let (kind, fields) = action.as_object().unwrap().iter().next().unwrap();
    let key = |default: &str| fields["descriptor_key"].as_str().unwrap_or(default).to_owned();
    let value = match kind.as_str() {
        "request_headers" => match sample.headers.get(fields["header_name"].as_str().unwrap()) {
            None if fields["skip_if_absent"] == true => return Some(None),
            value => value?.clone(),
        },
        "remote_address" => {
            return Some(Some(("remote_address".to_owned(), sample.address.clone())));
        }
        "generic_key" => fields["descriptor_value"].as_str()?.to_owned(),
        "header_value_match" => {
            let matcher = &fields["headers"][0];
            let test = &matcher["string_match"];
            let held = sample.headers.get("x-plan").is_some_and(|value| {
                let is = |name: &str, holds: fn(&str, &str) -> bool| {
                    test[name].as_str().is_some_and(|text| holds(value, text))
                };
                let held = is("exact", |value, text| value == text)
                    || is("prefix", |value, text| value.starts_with(text))
                    || is("suffix", |value, text| value.ends_with(text))
                    || is("contains", |value, text| value.contains(text))
                    || test["safe_regex"].is_object() && value.starts_with('b');
                held != (matcher["invert_match"] == true)
            });
            if held != (fields["expect_match"] == true) {
                return None;
            }
            "a".to_owned()
        }
        "query_parameters" => sample.query.clone()?,
        "metadata" => sample.tier.clone()?,
        "masked_remote_address" => {
            let index = ADDRESSES.iter().position(|address| *address == sample.address).unwrap();
            NETWORKS[index].to_owned()
        }
        "destination_cluster" => format!("c-{}", ROUTES[sample.route]),
        other => panic!("{other}"),
    };
    let default = match kind.as_str() {
        "generic_key" => "generic_key",
        "header_value_match" => "header_match",
        other => other,
    };
    Some(Some((key(default), value)))
}

fn rules(numbers: &mut Numbers, topic: Topic, depth: usize) -> Vec<Value> {
    let mut rules: Vec<Value> = Vec::new();
    let most = if topic == Topic::Metadata { 2 } else { 5 };
    for _ in 0..1 + numbers.below(most) {
        let keys = [
            "user",
            "user",
            "plan",
            "remote_address",
            "generic_key",
            "header_match",
            "q",
            "tier",
            "tier",
            "masked_remote_address",
            "destination_cluster",
        ];
        let key = if topic == Topic::Metadata { "tier" } else { numbers.of(&keys) };
        let value = match (numbers.below(4), key) {
            (0, "remote_address") => numbers.of(&ADDRESSES),
            (1, "remote_address") => "10.0.*",
            (0 | 1, "masked_remote_address") => {
                numbers.of(&["10.0.0.0/16", "2001:db8::/48", "2001:DB8::/48", "10.0.0.1/16"])
            }
            (0, "destination_cluster") => "c-r0",
            (0 | 2, _) => numbers.of(&VALUES),
            (1, _) => numbers.of(&["a*", "*a", "*", "a*b"]),
            _ => "",
        };
        if rules.iter().any(|rule| rule["key"] == key && rule["value"] == value) {
            continue;
        }
        let mut rule = json!({"key": key, "value": value});
        if numbers.below(4) > 0 {
            rule["rate_limit"] = match numbers.below(6) {
                0 => json!({"unlimited": true}),
                _ => json!({"unit": "year", "requests_per_unit": numbers.below(4)}),
            };
        }
        rule["shadow_mode"] = (numbers.below(8) == 0).into();
        rule["share_threshold"] = (value.contains('*') && numbers.below(3) == 0).into();
        if depth < 2 {
            rule["descriptors"] = self::rules(numbers, topic, depth + 1).into();
        }
        rules.push(rule);
    }
    rules
}

fn limits(numbers: &mut Numbers, topic: Topic) -> Vec<Value> {
    let one = |numbers: &mut Numbers| {
        let actions: Vec<Value> =
            (0..1 + numbers.below(2)).map(|_| action(numbers, topic)).collect();
        json!({"actions": actions})
    };
    (0..numbers.below(3)).map(|_| one(numbers)).collect()
}

/// Counters that are never emptied.
#[derive(Default)]
struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Takes a unit of each of these counters, or of none; each has its quota.
    fn take(&mut self, counters: &[(String, u64)]) -> bool {
        let mut wanted: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (name, quota) in counters {
            wanted.entry(name).or_insert((0, *quota)).0 += 1;
        }
        let used = |name: &str| self.0.get(name).copied().unwrap_or_default();
        let fits = wanted.iter().all(|(name, (units, quota))| used(name) + units <= *quota);
        if fits {
            for (name, (units, _)) in wanted {
                *self.0.entry(name.to_owned()).or_default() += units;
            }
        }
        fits
    }
}

/// The counters of a request by the rules: those that may refuse.
fn by_rules(domain: &RuleDomain, limits: &[Value], sample: &Sample) -> Vec<(String, u64)> {
    let mut counters = Vec::new();
    for limit in limits {
        let actions = limit["actions"].as_array().unwrap();
        let entries: Option<Vec<_>> = actions.iter().map(|action| entry(action, sample)).collect();
        let Some(entries) = entries else { continue };
        let entries: Vec<DescriptorEntry> = entries
            .into_iter()
            .flatten()
            .map(|(key, value)| DescriptorEntry { key, value })
            .collect();
        let Some(found) = domain.find(&entries) else { continue };
        let rule = &domain.rules()[found.rule];
        if let (RuleLimit::Hits(hits, _), false) = (rule.limit, rule.shadow_mode) {
            counters.push((format!("{} {:?}", found.rule, found.partition), hits.into()));
        }
    }
    counters
}

fn by_document(config: &Config, sample: &Sample) -> Vec<(String, u64)> {
    let checks = config.evaluate(sample).checks.unwrap();
    let checks = checks.into_iter().filter(|check| check.mode == Mode::Enforce);
    checks.map(|check| (check.counter.key.to_string(), check.counter.quota)).collect()
}

/// Rules and actions at random: each document is valid, and where it has no gap, each request of a
/// long sequence is decided as by the rules.
#[test]
fn generated_requests_are_decided_as_by_the_rules() {
    let mut numbers = Numbers(7);
    let (mut without_gaps, mut refused, mut admitted) = (0, 0, 0);
    for case in 0..900 {
        let topic = if case % 3 == 0 { Topic::Metadata } else { Topic::All };
        let descriptors = rules(&mut numbers, topic, 0);
        let text = json!({"domain": "d", "descriptors": descriptors}).to_string();
        let host_limits = limits(&mut numbers, topic);
        let of_routes = [limits(&mut numbers, topic), limits(&mut numbers, topic)];
        let routes = [0, 1].map(|index| route(&format!("r{index}"), json!(of_routes[index])));
        let mut envoy = envoy(json!({}), json!(host_limits), json!(routes));
        let known_routes = if numbers.below(4) == 0 { ROUTES.len() } else { 2 };
        if known_routes == ROUTES.len() {
            let other = json!({"name": "other", "routes": [route(ROUTES[2], json!([]))]});
            envoy.pointer_mut(HOSTS).unwrap().as_array_mut().unwrap().push(other);
        }
        let (document, gaps, config) = converted(&text, Some(&envoy));
        // Rules that no request has change no decision.
        if gaps.iter().any(|gap| !gap.contains("no `rate_limits` of the configuration sends")) {
            continue;
        }
        without_gaps += 1;
        let domain = rule_set(&text).rules().unwrap().remove("d").unwrap();
        let (mut of_rules, mut of_document) = (Counters::default(), Counters::default());
        for _ in 0..60 {
            let sample = Sample::new(&mut numbers, known_routes);
            let limits = match of_routes.get(sample.route) {
                Some(own) if own.is_empty() => &host_limits[..],
                own => own.map_or(&[][..], Vec::as_slice),
            };
            let by_rules = of_rules.take(&by_rules(&domain, limits, &sample));
            let by_document = of_document.take(&by_document(&config, &sample));
            assert_eq!(
                by_document, by_rules,
                "case {case}: {sample:?}\n{text}\n{limits:?}\n{document}"
            );
            *if by_rules { &mut admitted } else { &mut refused } += 1;
        }
    }
    assert!(without_gaps > 150, "{without_gaps}");
    assert!(refused > 500 && admitted > 500, "{refused} {admitted}");
}
