//! Combinations of values, for every test of the chart.

use serde_json::{Value, json};

/// Almost every value.
#[must_use]
pub fn everything() -> Value {
    json!({
        "image": {"tag": "1", "pullPolicy": "Always", "pullSecrets": ["registry"]},
        "store": {
            "image": {"digest": format!("sha256:{}", "a".repeat(64))},
            "redis": {"passwordKey": "password", "tls": {"existingSecret": "redis-tls"}},
            "callToken": {"existingSecret": "tokens"},
            "adminHosts": ["quotas.example.com", "quotas"],
            "threads": 4,
            "drainSeconds": 40,
            "log": "debug",
            "autoscaling": {"enabled": true, "metrics": [{
                "type": "Pods",
                "pods": {
                    "metric": {"name": "quotagate_store_calls"},
                    "target": {"type": "AverageValue", "averageValue": "1k"},
                },
            }]},
            "podDisruptionBudget": {"maxUnavailable": "25%"},
            "topologySpread": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"},
            ],
            "networkPolicy": {
                "enabled": true,
                "callers": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
                "admin": [{"podSelector": {"matchLabels": {"app": "prometheus"}}, "namespaceSelector": {}}],
            },
            "serviceAccount": {"name": "store", "annotations": {"a": "1"}},
            "strategy": {"type": "Recreate"},
            "podSecurityContext": {"fsGroup": 65532},
            "extraEnv": [{"name": "QUOTAGATE_LOG_FORMAT", "value": "json"}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            "priorityClassName": "high",
            "podAnnotations": {"a": "1", "proxy.istio.io/config": "concurrency: 1", "prometheus.io/port": "9"},
            "podLabels": {"team": "edge"},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "edge", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        },
        "monitoring": {
            "serviceMonitor": {"enabled": true, "labels": {"release": "prometheus"}},
            "rules": {"enabled": true, "labels": {"release": "prometheus"}, "runbooks": "https://wiki.example.com/quotagate"},
        },
        "filter": {"check": true},
        // That of the call token.
        "policy": {"store": {"token": "0123456789abcdef"}},
    })
}

/// The rate limit service, too.
#[must_use]
pub fn with_rate_limits(mut values: Value) -> Value {
    let rules = json!({"domain": "shop", "descriptors": [
        {"key": "user", "rate_limit": {"unit": "day", "requests_per_unit": 5_000_000}},
    ]});
    let more = json!({"rateLimit": {
        "enabled": true,
        "image": {"digest": format!("sha256:{}", "c".repeat(64))},
        "replicas": 3,
        "rules": {"shop.yaml": rules},
        "extraEnv": [
            {"name": "LIMIT_RESPONSE_HEADERS_ENABLED", "value": "true"},
            {"name": "GRPC_SERVER_TLS_CERT", "value": "/certs/tls.crt"},
        ],
        "certificates": "ratelimit-tls",
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    }});
    merge(&mut values, more);
    values
}

/// Values with the controller of QuotaPolicies, for an example.
#[must_use]
pub fn with_controller() -> Value {
    let domain = json!({
        "domain": "shop", "gateways": ["gateways/public"], "store": {"cluster": "quota_store"},
    });
    json!({
        "quotaPolicies": {"enabled": true}, "policy": {"live": true},
        "controller": {
            "enabled": true, "token": {"existingSecret": "controller"}, "domains": [domain],
        },
    })
}

/// Good values: an example's, with some replaced.
#[must_use]
pub fn accepted() -> Vec<(&'static str, Value)> {
    let (istio, gateway, native) =
        ("istio.yaml", "envoy-gateway.yaml", "envoy-gateway-native.yaml");
    let target = |kind: &str| json!([{"group": "gateway.networking.k8s.io", "kind": kind, "name": "gateway"}]);
    let image = json!({"sha256": "b".repeat(64), "pullSecret": "registry"});
    vec![
        (istio, json!({})),
        (gateway, json!({})),
        (native, json!({})),
        (istio, everything()),
        (gateway, everything()),
        (istio, with_rate_limits(everything())),
        (gateway, with_rate_limits(everything())),
        (
            istio,
            with_rate_limits(json!({
                "istio": {"dataplane": "ambient", "metrics": "permissive"},
                "monitoring": {"serviceMonitor": {"enabled": true}},
            })),
        ),
        (
            istio,
            with_rate_limits(json!({
                "istio": {"metrics": "strict"},
                "monitoring": {"serviceMonitor": {"enabled": true}},
            })),
        ),
        (
            gateway,
            json!({
                "store": {"enabled": false, "podDisruptionBudget": {"enabled": false}},
                "filter": {"kind": "none"},
                "rateLimit": {"enabled": true, "existingConfigMap": "rules"},
            }),
        ),
        (istio, json!({"filter": {"kind": "none"}})),
        ("istio-waypoint.yaml", json!({})),
        // Labels that the chart does not set.
        (
            gateway,
            json!({
                "store": {"podLabels": {
                    "sidecar.istio.io/inject": "false",
                    "istio.io/dataplane-mode": "none",
                    "app.kubernetes.io/managed-by": "argo",
                    "helm.sh/chart": "mine",
                }},
                "monitoring": {"rules": {"enabled": true, "labels": {"sidecar.istio.io/inject": "a"}}},
            }),
        ),
        (istio, json!({"store": {"podLabels": {"istio.io/dataplane-mode": "none"}}})),
        (
            "istio-waypoint.yaml",
            json!({"store": {"podLabels": {"sidecar.istio.io/inject": "false"}}}),
        ),
        (istio, json!({"filter": {"kind": "TrafficExtension", "image": image}})),
        (
            istio,
            json!({"filter": {"selector": null, "targetRefs": target("Gateway"), "image": image}}),
        ),
        (
            istio,
            json!({"store": {"trafficDistribution": "PreferSameZone", "serviceAccount": {"create": false}}}),
        ),
        (
            gateway,
            json!({
                "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"],
                "store": {"tls": {"enabled": true, "existingSecret": "tls", "callers": ["proxies.example"]}},
                "policy": {"store": {"cluster": "mine"}}, "filter": {"kind": "none"},
            }),
        ),
        (
            gateway,
            json!({"fullnameOverride": "quotas", "filter": {"targetRefs": target("HTTPRoute")}}),
        ),
        (istio, json!({"filter": {"match": [{"mode": "SERVER", "ports": [{"number": 8080}]}]}})),
        (
            istio,
            json!({
                "istio": {"enabled": false},
                "filter": {"tuning": {"ownCluster": true}, "selector": null, "targetRefs": target("Gateway")},
            }),
        ),
        (
            istio,
            json!({"istio": {"dataplane": "ambient", "metrics": "permissive"}, "monitoring": {"serviceMonitor": {"enabled": true}}}),
        ),
        (
            istio,
            json!({"istio": {"dataplane": "none", "metrics": "strict", "outlierDetection": false, "callers": ["a", "b"]}}),
        ),
        (istio, json!({"istio": {"redis": {"addresses": ["10.0.0.0/24"], "ports": [6379, 6380]}}})),
        (gateway, json!({"filter": {"image": image, "failOpen": true}})),
        (gateway, json!({"filter": {"envoyGateway": {"envoyProxy": false}}})),
        (
            gateway,
            json!({
                "store": {"tls": {"enabled": true, "existingSecret": "tls", "callers": ["proxy.internal"]}},
                "policy": {"store": {"cluster": "quota_store"}},
            }),
        ),
        (native, json!({"monitoring": {"rules": {"enabled": true}}})),
        (native, json!({"filter": {"image": image, "envoyGateway": {"redisSecret": "redis"}}})),
        // The token is for other proxies: the module counts in Redis itself.
        (
            native,
            json!({"store": {
                "enabled": true,
                "redis": {"existingSecret": "redis"},
                "callToken": {"existingSecret": "tokens"},
            }}),
        ),
    ]
}

/// Wrong values: what is replaced in an example, and what the message contains.
#[must_use]
pub fn refused() -> Vec<(&'static str, Value, &'static [&'static str])> {
    let (istio, gateway, native) =
        ("istio.yaml", "envoy-gateway.yaml", "envoy-gateway-native.yaml");
    let controller = |changed: Value| {
        let mut values = with_controller();
        merge(&mut values, changed);
        values
    };
    vec![
        (istio, json!({"image": {"registry": ""}}), &["image.registry", "--set image.registry="]),
        (
            istio,
            controller(json!({"quotaPolicies": {"enabled": false}})),
            &["controller.enabled", "quotaPolicies.enabled"],
        ),
        (istio, controller(json!({"controller": {"domains": []}})), &["controller.domains"]),
        (
            istio,
            controller(json!({"controller": {"token": {"existingSecret": ""}}})),
            &["controller.token.existingSecret", "quotagate token new"],
        ),
        (
            istio,
            controller(json!({"store": {"adminToken": {"existingSecret": ""}}})),
            &["store.adminToken.existingSecret", "quotagate token new"],
        ),
        (istio, controller(json!({"policy": {"live": false}})), &["policy.live"]),
        (istio, controller(json!({"policy": {"domain": "pay"}})), &["controller.domains", "pay"]),
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

/// Replaces values as `helm -f` does: objects are merged, null removes, everything else replaces.
pub fn merge(values: &mut Value, overlay: Value) {
    match (values, overlay) {
        (Value::Object(values), Value::Object(overlay)) => {
            for (name, value) in overlay {
                if value.is_null() {
                    values.remove(&name);
                } else {
                    merge(values.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (value, other) => *value = other,
    }
}
