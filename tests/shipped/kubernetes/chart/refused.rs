//! Wrong values are refused, with a message that names the value and the remedy.

use std::fs;

use quotagate_support::paths;
use serde_json::{Value, json};

use super::{RELEASE, example, render};

/// What is replaced in an example, and what the message contains.
fn cases() -> Vec<(&'static str, Value, &'static [&'static str])> {
    let (istio, gateway, native) =
        ("istio.yaml", "envoy-gateway.yaml", "envoy-gateway-native.yaml");
    vec![
        (istio, json!({"image": {"registry": ""}}), &["image.registry", "--set image.registry="]),
        (
            istio,
            json!({"store": {"redis": {"existingSecret": ""}}}),
            &["store.redis.existingSecret", "kubectl -n quotagate create secret generic"],
        ),
        (
            gateway,
            json!({"store": {"networkPolicy": {"callers": []}}}),
            &["store.networkPolicy.callers", "namespaceSelector"],
        ),
        (
            gateway,
            json!({"monitoring": {"serviceMonitor": {"enabled": true}}}),
            &["store.networkPolicy.admin", "namespaceSelector"],
        ),
        (
            gateway,
            json!({"store": {"tls": {"enabled": true}}}),
            &["store.tls.existingSecret", "tls.crt"],
        ),
        (
            gateway,
            json!({"store": {"tls": {"enabled": true, "existingSecret": "t"}}}),
            &["store.tls.callers"],
        ),
        (
            gateway,
            json!({"store": {"tls": {"enabled": true, "existingSecret": "t", "callers": ["p"]}}}),
            &["policy.store.cluster", "quota_store_tls.yaml"],
        ),
        (
            istio,
            json!({"store": {"tls": {"enabled": true, "existingSecret": "t", "callers": ["p"]}}}),
            &["istio.enabled", "exclude each other"],
        ),
        (
            istio,
            json!({"istio": {"dataplane": "ambient"}, "monitoring": {"serviceMonitor": {"enabled": true}}}),
            &["istio.metrics", "permissive"],
        ),
        (
            istio,
            json!({"store": {"autoscaling": {"enabled": true, "minReplicas": 9}}}),
            &["minReplicas is above maxReplicas"],
        ),
        (
            istio,
            json!({"store": {"enabled": false}, "filter": {"kind": "none"}}),
            &["nothing to install"],
        ),
        (istio, json!({"store": {"enabled": false}}), &["policy.store.cluster"]),
        (
            istio,
            json!({"rateLimit": {"enabled": true}}),
            &["rateLimit.rules", "rateLimit.existingConfigMap"],
        ),
        (
            istio,
            json!({"rateLimit": {"enabled": true, "existingConfigMap": "a", "rules": {"a": {"domain": "d"}}}}),
            &["rateLimit.rules", "exclude each other"],
        ),
        (
            gateway,
            json!({
                "store": {"enabled": false, "redis": {"existingSecret": ""}},
                "filter": {"kind": "none"},
                "rateLimit": {"enabled": true, "existingConfigMap": "rules"},
            }),
            &["store.redis.existingSecret", "rate limit service", "kubectl -n quotagate create"],
        ),
        (
            gateway,
            json!({
                "store": {"enabled": false, "networkPolicy": {"callers": []}},
                "filter": {"kind": "none"},
                "rateLimit": {"enabled": true, "existingConfigMap": "rules"},
            }),
            &["store.networkPolicy.callers", "rate limit service"],
        ),
        (
            gateway,
            json!({
                "store": {"enabled": false},
                "filter": {"kind": "none"},
                "rateLimit": {"enabled": true, "existingConfigMap": "rules"},
                "monitoring": {"serviceMonitor": {"enabled": true}},
            }),
            &["store.networkPolicy.admin", "rate limit service"],
        ),
        (
            istio,
            json!({
                "store": {"enabled": false},
                "filter": {"kind": "none"},
                "rateLimit": {"enabled": true, "existingConfigMap": "rules"},
                "istio": {"dataplane": "ambient"},
                "monitoring": {"serviceMonitor": {"enabled": true}},
            }),
            &["istio.metrics", "permissive"],
        ),
        (istio, json!({"policy": null}), &["policy is empty", "policy-guide.md"]),
        (istio, json!({"filter": {"selector": null}}), &["selector: {istio: ingress}"]),
        (
            istio,
            json!({"filter": {"targetRefs": [{"kind": "Service", "name": "a"}]}}),
            &["filter.selector", "exclude each other"],
        ),
        (istio, json!({"filter": {"form": "native"}}), &["Istio loads no modules"]),
        (
            istio,
            json!({"store": {"callToken": {"existingSecret": "tokens"}}}),
            &["store.callToken.existingSecret", "policy.store.token"],
        ),
        (
            istio,
            json!({"filter": {"tuning": {"ownCluster": true}}}),
            &["filter.tuning.ownCluster", "istiod sends its own cluster"],
        ),
        (
            istio,
            json!({"filter": {"selector": null, "targetRefs": [{"kind": "HTTPRoute", "name": "shop"}]}}),
            &["filter.targetRefs names kind HTTPRoute", "ServiceEntry"],
        ),
        (
            istio,
            json!({"filter": {"selector": null, "targetRefs": [{"kind": "Service", "name": "shop"}]}}),
            &["filter.waypoint is empty", "name its waypoint"],
        ),
        (
            istio,
            json!({"filter": {"waypoint": "waypoint"}}),
            &["filter.waypoint", "remove filter.waypoint"],
        ),
        (
            "istio-waypoint.yaml",
            json!({"filter": {"targetRefs": [{"kind": "Gateway", "name": "waypoint"}]}}),
            &["filter.waypoint", "filter.targetRefs names none"],
        ),
        (gateway, json!({"filter": {"waypoint": "waypoint"}}), &["filter.waypoint"]),
        (istio, json!({"filter": {"failOpen": true}}), &["filter.failOpen", "FAIL_OPEN"]),
        (
            istio,
            json!({"image": {"registry": "https://registry.example.com"}}),
            &["image.registry is https://", "registry.example.com/quotagate"],
        ),
        (
            istio,
            json!({"image": {"registry": "registry.example.com/Quotagate"}}),
            &["image.registry", "small letters"],
        ),
        (istio, json!({"fullnameOverride": "a".repeat(49)}), &["/fullnameOverride"]),
        (
            istio,
            json!({"store": {"podLabels": {"app.kubernetes.io/name": "x"}}}),
            &["store.podLabels", "app.kubernetes.io/name. Remove it"],
        ),
        (
            istio,
            json!({"store": {"podLabels": {"sidecar.istio.io/inject": "false"}}}),
            &["store.podLabels", "choose istio.dataplane"],
        ),
        (
            "istio-waypoint.yaml",
            json!({"store": {"podLabels": {"istio.io/dataplane-mode": "none"}}}),
            &["store.podLabels", "istio.io/dataplane-mode", "choose istio.dataplane"],
        ),
        (
            istio,
            json!({"monitoring": {"rules": {"labels": {"helm.sh/chart": "x"}}}}),
            &["monitoring.rules.labels", "helm.sh/chart. Remove it"],
        ),
        (
            istio,
            json!({"monitoring": {"serviceMonitor": {"labels": {"app.kubernetes.io/managed-by": "x"}}}}),
            &["monitoring.serviceMonitor.labels", "app.kubernetes.io/managed-by. Remove it"],
        ),
        (
            gateway,
            json!({"store": {"trafficDistribution": "PreferClose"}}),
            &["store.trafficDistribution", "istio.enabled"],
        ),
        (native, json!({"filter": {"check": true}}), &["filter.check", "store.enabled"]),
        (
            istio,
            json!({"policy": {"policies": [
                {"name": "a", "partition_by": [], "quota": 1, "window": "1m"},
                {"name": "a", "partition_by": [], "quota": 9, "window": "1h"},
            ]}}),
            &["policy.policies[1].name", "earlier policy"],
        ),
        (
            istio,
            json!({"policy": {"policies": [
                {"name": "a", "partition_by": ["caler"], "quota": 1, "window": "1m"},
            ]}}),
            &["policy.policies[0].partition_by", "no identity caler", "caller, host, method"],
        ),
        (
            istio,
            json!({"policy": {"policies": [
                {"name": "a", "partition_by": [], "quota": 1, "window": "0s"},
            ]}}),
            &["policy.policies[0].window is 0s", "1m"],
        ),
        (gateway, json!({"filter": {"targetRefs": []}}), &["filter.targetRefs", "name: eg"]),
        (gateway, json!({"policy": {"store": {"redis": "redis://a"}}}), &["form native"]),
        (native, json!({"policy": {"store": {"redis": null}}}), &["policy.store.redis"]),
        (istio, json!({"jwt": {"jwksUri": ""}}), &["jwt.jwksUri"]),
        // The schema.
        (istio, json!({"image": {"registri": "a"}}), &["/image", "registri"]),
        (istio, json!({"replicas": 3}), &["replicas"]),
        (istio, json!({"store": {"replicas": "two"}}), &["/store/replicas", "integer"]),
        (istio, json!({"store": {"redis": {"password": "geheim"}}}), &["/store/redis", "password"]),
        (istio, json!({"store": {"redis": {"existingSecret": "Not A Name"}}}), &["existingSecret"]),
        (istio, json!({"store": {"image": {"digest": "abc"}}}), &["/store/image/digest"]),
        (istio, json!({"store": {"log": "verbose"}}), &["/store/log", "debug"]),
        (
            istio,
            json!({"rateLimit": {"rules": {"shop.yaml": {"descriptors": []}}}}),
            &["/rateLimit/rules/shop.yaml", "domain"],
        ),
        (istio, json!({"rateLimit": {"rules": {"..data": {"domain": "d"}}}}), &["..data"]),
        (istio, json!({"rateLimit": {"extraEnv": [{"value": "a"}]}}), &["extraEnv", "name"]),
        (istio, json!({"filter": {"kind": "EnvoyFilter"}}), &["/filter/kind", "WasmPlugin"]),
        (istio, json!({"filter": {"phase": "authz"}}), &["/filter/phase", "AUTHZ"]),
        (istio, json!({"filter": {"image": {"sha256": "sha256:1"}}}), &["/filter/image/sha256"]),
        (gateway, json!({"filter": {"targetRefs": [{"kind": "Gateway"}]}}), &["name"]),
        (istio, json!({"istio": {"redis": {"ports": [70_000]}}}), &["/istio/redis/ports/0"]),
        (
            istio,
            json!({"istio": {"redis": {"addresses": ["10.0.0.0/99"]}}}),
            &["/istio/redis/addresses/0"],
        ),
        (
            gateway,
            json!({"store": {"networkPolicy": {"callers": [{"ipBlock": {"cidr": "10.0.0.0/99"}}]}}}),
            &["/store/networkPolicy/callers/0"],
        ),
        (
            istio,
            json!({"store": {"podDisruptionBudget": {"maxUnavailable": 0}}}),
            &["/store/podDisruptionBudget/maxUnavailable"],
        ),
        (
            istio,
            json!({"store": {"podDisruptionBudget": {"maxUnavailable": "150%"}}}),
            &["/store/podDisruptionBudget/maxUnavailable"],
        ),
        (
            gateway,
            json!({"store": {"tls": {"callers": ["*.internal"]}}}),
            &["/store/tls/callers/0"],
        ),
        (istio, json!({"policy": {"domains": "shop"}}), &["/policy", "domains"]),
        (istio, json!({"policy": {"domain": null}}), &["/policy", "domain"]),
        (
            istio,
            json!({"policy": {"store": {"on_failure": "open"}}}),
            &["/policy/store/on_failure"],
        ),
        (
            istio,
            json!({"policy": {"policies": [{"name": "a", "quota": "many"}]}}),
            &["/policy/policies/0"],
        ),
    ]
}

#[test]
fn wrong_values_are_refused_with_the_value_and_the_remedy() {
    let cases = cases();
    let values: Vec<Value> =
        cases.iter().map(|(name, overlay, _)| example(name, overlay.clone())).collect();
    for ((_, overlay, expected), rendered) in cases.iter().zip(render(&values)) {
        let Err(message) = rendered else { panic!("{overlay} is rendered") };
        for part in *expected {
            assert!(message.contains(part), "{overlay}: {message}");
        }
        assert!(!message.contains("geheim"), "{message}");
    }
}

/// A template cannot read the schema, so it repeats these names.
#[test]
fn chart_knows_what_every_request_can_be_partitioned_by() {
    let schema = fs::read_to_string(paths::root().join("envoy/quotagate.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let built_in = &schema["properties"]["identities"]["propertyNames"]["not"]["enum"];
    let mut built_in: Vec<String> = serde_json::from_value(built_in.clone()).unwrap();
    built_in.sort_unstable();
    let policy = json!({"name": "a", "partition_by": ["caler"], "quota": 1, "window": "1m"});
    let policy = json!({"policy": {"identities": null, "policies": [policy]}});
    let message = render(&[example("istio.yaml", policy)]).remove(0).unwrap_err();
    let (_, known) = message.split_once("or name one of ").unwrap();
    assert_eq!(known.trim_end(), built_in.join(", "), "{message}");
}

#[test]
fn secret_without_the_authorities_of_redis_is_refused() {
    let secret = |key: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "redis-tls", "namespace": RELEASE},
            "data": {key: "dA=="},
        })
    };
    let tls = json!({"existingSecret": "redis-tls"});
    let values = [example("istio.yaml", json!({"store": {"redis": {"tls": tls}}}))];
    let rendered = |key: &str| {
        let (chart, existing) = (quotagate_chart::chart(), [secret(key)]);
        let rendered =
            quotagate_chart::render_over(&chart, &values, RELEASE, RELEASE, &existing).unwrap();
        rendered.into_iter().next().unwrap()
    };
    assert!(rendered("ca.crt").is_ok());
    let message = rendered("tls.crt").unwrap_err();
    assert!(message.contains("the Secret redis-tls has no key ca.crt"), "{message}");
}

#[test]
fn chart_without_values_says_what_to_give_first() {
    let [rendered] = &render(&[json!({})])[..] else { panic!("one") };
    let message = rendered.as_ref().unwrap_err();
    assert!(message.contains("store.redis.existingSecret"), "{message}");
}
