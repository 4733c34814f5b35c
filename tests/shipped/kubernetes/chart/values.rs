//! A table of values: Helm's linter finds nothing, and every rendered object has only fields that
//! its schema knows.

use std::{fs, process::Command};

use quotagate_support::{
    tls::{Authority, Holder},
    tools, yaml,
};
use serde_json::{Value, json};

use super::{example, objects, render};
use crate::kubernetes::schemas;

fn everything() -> Value {
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
            "serviceAccountName": "store",
            "priorityClassName": "high",
            "podAnnotations": {"a": "1"},
            "podLabels": {"team": "edge"},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "edge", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        },
        "monitoring": {
            "serviceMonitor": {"enabled": true, "labels": {"release": "prometheus"}},
            "rules": {"enabled": true, "labels": {"release": "prometheus"}, "runbooks": "https://wiki.example.com/quotagate"},
        },
        // That of the call token.
        "policy": {"store": {"token": "0123456789abcdef"}},
    })
}

/// The examples, with values replaced.
fn table() -> Vec<(&'static str, Value)> {
    let (istio, gateway, native) =
        ("istio.yaml", "envoy-gateway.yaml", "envoy-gateway-native.yaml");
    let target =
        json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "waypoint"}]);
    let image = json!({"sha256": "b".repeat(64), "pullSecret": "registry"});
    vec![
        (istio, json!({})),
        (gateway, json!({})),
        (native, json!({})),
        (istio, everything()),
        (gateway, everything()),
        (istio, json!({"filter": {"kind": "none"}})),
        (istio, json!({"filter": {"kind": "TrafficExtension", "image": image, "bodies": true}})),
        (istio, json!({"filter": {"selector": null, "targetRefs": target, "image": image}})),
        (istio, json!({"filter": {"match": [{"mode": "SERVER", "ports": [{"number": 8080}]}]}})),
        (
            istio,
            json!({
                "istio": {"enabled": false},
                "filter": {"tuning": {"ownCluster": true}, "selector": null, "targetRefs": target},
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
        (gateway, json!({"filter": {"image": image, "failOpen": true, "bodies": true}})),
        (
            gateway,
            json!({"filter": {"envoyGateway": {"envoyProxy": false, "clientTrafficPolicy": false}}}),
        ),
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

#[test]
fn every_rendered_object_matches_its_published_schema() {
    let table = table();
    let values: Vec<Value> = table.iter().map(|(name, more)| example(name, more.clone())).collect();
    let findings = quotagate_chart::lint(&quotagate_chart::chart(), &values).unwrap();
    let mut kinds = Vec::new();
    for (((name, more), rendered), findings) in table.iter().zip(render(&values)).zip(findings) {
        assert_eq!(findings, Vec::<String>::new(), "{name} {more}");
        for object in objects(&rendered.unwrap_or_else(|error| panic!("{name} {more}: {error}"))) {
            assert_eq!(schemas::faults(&object), Vec::<String>::new(), "{name} {more}");
            // The image of the store has no program but the store.
            let runs = object.pointer("/spec/template/spec/containers/0").map(Value::to_string);
            assert!(!runs.is_some_and(|text| text.contains("exec")), "{name} {more}");
            kinds.push(object["kind"].as_str().unwrap().to_owned());
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    let all = [
        "AuthorizationPolicy",
        "ClientTrafficPolicy",
        "ConfigMap",
        "Deployment",
        "DestinationRule",
        "EnvoyExtensionPolicy",
        "EnvoyFilter",
        "EnvoyProxy",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
        "PeerAuthentication",
        "PodDisruptionBudget",
        "PrometheusRule",
        "RequestAuthentication",
        "SecurityPolicy",
        "Service",
        "ServiceEntry",
        "ServiceMonitor",
        "TrafficExtension",
        "WasmPlugin",
    ];
    assert_eq!(kinds, all);
}

fn one(name: &str, more: Value) -> Vec<Value> {
    objects(&render(&[example(name, more)]).remove(0).unwrap())
}

fn of<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap()
}

#[test]
fn secrets_are_named_and_never_rendered() {
    let objects = one("istio.yaml", everything());
    assert!(objects.iter().all(|object| object["kind"] != "Secret"));
    let pod = &of(&objects, "Deployment")["spec"]["template"]["spec"];
    let sources = pod["volumes"][0]["projected"]["sources"].as_array().unwrap();
    let paths: Vec<_> = sources
        .iter()
        .map(|source| (&source["secret"]["name"], &source["secret"]["items"][0]["path"]))
        .map(|(name, path)| (name.as_str().unwrap(), path.as_str().unwrap()))
        .collect();
    let expected = [
        ("quotagate-store", "admin-token"),
        ("tokens", "call-token"),
        ("quotagate-store", "redis-password"),
    ];
    assert_eq!(paths, expected);
    let environment = pod["containers"][0]["env"].as_array().unwrap();
    let variable =
        |name: &str| environment.iter().find(|variable| variable["name"] == name).unwrap();
    assert_eq!(variable("SSL_CERT_FILE")["value"], "/etc/redis-tls/ca.crt");
    assert_eq!(variable("QUOTAGATE_THREADS")["value"], "4");
    assert_eq!(variable("QUOTAGATE_ADMIN_HOSTS")["value"], "quotas.example.com,quotas");
    // A longer drain moves both deadlines.
    assert_eq!(pod["terminationGracePeriodSeconds"], 60);
    assert_eq!(of(&objects, "Deployment")["spec"]["replicas"], Value::Null, "the autoscaler's");
}

#[test]
fn prometheus_finds_the_stores_under_strict_mtls() {
    let monitored = |istio: Value| {
        let more = json!({"istio": istio, "monitoring": {"serviceMonitor": {"enabled": true}}});
        let objects = one("istio.yaml", more);
        let endpoint = of(&objects, "ServiceMonitor")["spec"]["endpoints"][0].clone();
        let metrics = objects
            .iter()
            .find(|object| object["kind"] == "Service" && object["spec"]["clusterIP"] == "None");
        let port = metrics.unwrap()["spec"]["ports"][0].clone();
        assert_eq!(endpoint["port"], port["name"]);
        assert_eq!(endpoint["relabelings"][0]["replacement"], "quotagate-store");
        (port["port"].clone(), endpoint["path"].clone(), objects)
    };
    let (port, path, objects) = monitored(json!({}));
    assert_eq!((port, path), (json!(15020), json!("/stats/prometheus")));
    let annotations = &of(&objects, "Deployment")["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/port"], "9181");
    assert!(objects.iter().all(|object| object["kind"] != "PeerAuthentication"));
    let (port, path, objects) = monitored(json!({"metrics": "permissive"}));
    assert_eq!((port, path), (json!(9181), json!("/metrics")));
    let ports = &of(&objects, "PeerAuthentication")["spec"]["portLevelMtls"];
    assert_eq!(*ports, json!({"9181": {"mode": "PERMISSIVE"}}), "calls stay strict");
    let (port, path, objects) = monitored(json!({"metrics": "strict"}));
    assert_eq!((port, path), (json!(9181), json!("/metrics")));
    let endpoint = &of(&objects, "ServiceMonitor")["spec"]["endpoints"][0];
    assert_eq!(endpoint["scheme"], "https");
    assert_eq!(schemas::faults(of(&objects, "ServiceMonitor")), Vec::<String>::new());
}

#[test]
fn filter_uses_the_cluster_that_its_proxies_have() {
    let cluster = |name: &str, more: Value, kind: &str, pointer: &str| {
        of(&one(name, more), kind).pointer(pointer).unwrap()["store"]["cluster"].clone()
    };
    let istio = "/spec/pluginConfig";
    let own = json!({"istio": {"enabled": false}, "filter": {"tuning": {"ownCluster": true}}});
    assert_eq!(
        cluster("istio.yaml", json!({"clusterDomain": "corp"}), "WasmPlugin", istio),
        "outbound|9180||quotagate-store.quotagate.svc.corp"
    );
    assert_eq!(cluster("istio.yaml", own, "WasmPlugin", istio), "quota_store");
    let named = json!({"policy": {"store": {"cluster": "mine"}}});
    assert_eq!(cluster("istio.yaml", named, "WasmPlugin", istio), "mine");
    let gateway = "/spec/wasm/0/config";
    assert_eq!(
        cluster("envoy-gateway.yaml", json!({}), "EnvoyExtensionPolicy", gateway),
        "quota_store"
    );
}

#[test]
fn stores_are_left_out_as_in_the_shipped_cluster() {
    let objects = one("envoy-gateway.yaml", json!({}));
    let patch = of(&objects, "EnvoyProxy");
    let mut cluster = patch["spec"]["bootstrap"]["jsonPatches"][0]["value"].clone();
    let file = quotagate_support::paths::root().join("envoy/quota_store_several.yaml");
    let mut shipped = yaml::read(&file).unwrap()[0].clone();
    for cluster in [&mut cluster, &mut shipped] {
        cluster
            .as_object_mut()
            .unwrap()
            .retain(|name, _| !["type", "load_assignment"].contains(&&**name));
    }
    assert_eq!(cluster, shipped);
    // The cluster resolves the name of the Service, which must lead to every store.
    assert_eq!(of(&objects, "Service")["spec"]["clusterIP"], "None");
    let objects = one("istio.yaml", json!({}));
    assert_eq!(of(&objects, "Service")["spec"]["clusterIP"], Value::Null, "Istio knows the stores");
    let patches = of(&objects, "EnvoyFilter")["spec"]["configPatches"].as_array().unwrap().clone();
    let patch = patches.iter().find(|patch| patch["applyTo"] == "CLUSTER").unwrap();
    let rule = of(&objects, "DestinationRule").clone();
    let host = format!("outbound|9180||{}", rule["spec"]["host"].as_str().unwrap());
    assert_eq!(patch["match"]["cluster"]["name"], host);
    let value = &patch["patch"]["value"];
    assert_eq!(value["health_checks"], shipped["health_checks"]);
    // The cluster's name, which Envoy would send else, holds what no authority may.
    let checked = &value["health_checks"][0]["http_health_check"];
    assert_eq!(checked["host"], "quotagate");
    for (name, percentage) in value["outlier_detection"].as_object().unwrap() {
        assert_eq!(*percentage, shipped["outlier_detection"][name], "{name}");
    }
    let istio = &rule["spec"]["trafficPolicy"]["outlierDetection"];
    let panic = &shipped["common_lb_config"]["healthy_panic_threshold"]["value"];
    assert_eq!(istio["minHealthPercent"], *panic);
    let envoy = &shipped["outlier_detection"];
    for (istio_name, envoy_name) in [
        ("splitExternalLocalOriginErrors", "split_external_local_origin_errors"),
        ("consecutiveLocalOriginFailures", "consecutive_local_origin_failure"),
        ("consecutive5xxErrors", "enforcing_consecutive_5xx"),
        ("interval", "interval"),
        ("baseEjectionTime", "base_ejection_time"),
        ("maxEjectionPercent", "max_ejection_percent"),
    ] {
        assert_eq!(istio[istio_name], envoy[envoy_name], "{istio_name}");
    }
    // Without it, the EnvoyFilter has no cluster either.
    let objects = one("istio.yaml", json!({"istio": {"outlierDetection": false}}));
    assert!(!of(&objects, "EnvoyFilter").to_string().contains("health_checks"));
}

#[test]
fn front_of_the_store_is_the_shipped_one() {
    let more = json!({
        "store": {"tls": {"enabled": true, "existingSecret": "tls", "callers": ["proxy.internal"]}},
        "policy": {"store": {"cluster": "quota_store"}},
    });
    let objects = one("envoy-gateway.yaml", more);
    let text = of(&objects, "ConfigMap")["data"]["front.yaml"].as_str().unwrap().to_owned();
    let mut front = yaml::parse(&text).unwrap();
    let file = quotagate_support::paths::root().join("envoy/store_front.yaml");
    let mut shipped = yaml::read(&file).unwrap();
    let context = "/static_resources/listeners/0/filter_chains/0/transport_socket/typed_config";
    let [front_tls, shipped_tls] = [&mut front, &mut shipped]
        .map(|config| config.pointer_mut(context).unwrap()["common_tls_context"].take());
    // The names of files are those of a Secret of the type kubernetes.io/tls.
    assert_eq!(front, shipped);
    let names = "/validation_context/match_typed_subject_alt_names";
    assert_eq!(front_tls.pointer(names), shipped_tls.pointer(names));
    accepted_by_envoy(&text);
    // Kubernetes ends this container after the store has drained.
    let pod = &of(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"][0]["restartPolicy"], "Always");
    assert_eq!(of(&objects, "Service")["spec"]["ports"][0]["port"], 9443);
}

/// Asserts that Envoy accepts a configuration whose certificates are those of a Secret.
fn accepted_by_envoy(text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let authority = Authority::new(folder.path(), "authority").unwrap();
    let certificate = authority.issue(&Holder::names(&["store.internal"])).unwrap();
    certificate.write(&path("tls.crt"), &path("tls.key")).unwrap();
    fs::copy(authority.file(), path("ca.crt")).unwrap();
    let text = text.replace("/etc/envoy/tls", folder.path().to_str().unwrap());
    fs::write(path("front.yaml"), text).unwrap();
    let mut envoy = Command::new(tools::envoy().unwrap());
    let envoy = envoy.args(["--mode", "validate", "--config-path"]).arg(path("front.yaml"));
    let output = envoy.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
