//! A table of values: Helm's linter finds nothing, and every rendered object has only fields that
//! its schema knows.

use std::{fs, process::Command};

use quotagate_chart::cases::{accepted, everything, merge, with_controller, with_rate_limits};
use quotagate_support::{
    http, paths,
    store::{StoreOptions, StoreProcess},
    yaml,
};
use serde_json::{Value, json};

use super::{RELEASE, example, objects, render};
use crate::kubernetes::schemas;

#[test]
fn every_rendered_object_matches_its_published_schema() {
    let table = accepted();
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
        "ConfigMap",
        "Deployment",
        "DestinationRule",
        "EnvoyExtensionPolicy",
        "EnvoyFilter",
        "EnvoyProxy",
        "HorizontalPodAutoscaler",
        "Job",
        "NetworkPolicy",
        "PeerAuthentication",
        "Pod",
        "PodDisruptionBudget",
        "PrometheusRule",
        "RequestAuthentication",
        "SecurityPolicy",
        "Service",
        "ServiceAccount",
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
fn resource_for_quotas_of_teams_comes_with_its_rights_and_outlives_the_release() {
    let objects = one("istio.yaml", json!({"quotaPolicies": {"enabled": true}}));
    let definition = of(&objects, "CustomResourceDefinition");
    let file = quotagate_chart::chart().join("files/quotapolicies.yaml");
    let generated = yaml::read(&file).unwrap();
    assert_eq!(definition["spec"], generated["spec"]);
    let metadata = &definition["metadata"];
    assert_eq!(metadata["annotations"]["helm.sh/resource-policy"], "keep");
    assert_eq!(metadata["labels"]["gateway.networking.k8s.io/policy"], "inherited");
    assert_eq!(metadata["labels"]["app.kubernetes.io/instance"], RELEASE);
    let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole");
    let roles: Vec<(&Value, usize)> = roles
        .inspect(|role| assert_eq!(schemas::faults(role), Vec::<String>::new()))
        .map(|role| (&role["metadata"]["name"], &role["rules"][0]["verbs"]))
        .map(|(name, verbs)| (name, verbs.as_array().unwrap().len()))
        .collect();
    let expected = ["quotagate-policies-edit", "quotagate-policies-view"].map(Value::from);
    assert_eq!(roles, [(&expected[0], 7), (&expected[1], 3)]);
    // It is all that some clusters need of the chart, and off by default.
    let alone = json!({
        "store": {"enabled": false}, "filter": {"kind": "none"}, "quotaPolicies": {"enabled": true},
    });
    assert!(one("istio.yaml", alone).iter().any(|object| object == definition));
    let objects = one("istio.yaml", json!({}));
    assert!(!objects.iter().any(|object| object.to_string().contains("quotapolicies")));
}

#[test]
fn controller_has_its_domains_and_a_token_in_files() {
    let objects = one("istio.yaml", with_controller());
    for object in objects.iter().filter(|of| of["kind"] != "CustomResourceDefinition") {
        assert_eq!(schemas::faults(object), Vec::<String>::new(), "{object}");
    }
    let name = "quotagate-controller";
    let deployment = objects
        .iter()
        .find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == name);
    let pod = &deployment.unwrap()["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let expected = json!([
        "controller",
        "--config=/etc/quotagate/domains.yaml",
        "--token-file=/etc/quotagate-token/token",
        "--lease=quotagate-controller",
        "--metrics=0.0.0.0:9182",
    ]);
    assert_eq!(container["args"], expected);
    assert!(!container["env"].to_string().contains("secret"), "{container}");
    assert_eq!(pod["serviceAccountName"], name);
    assert_eq!(pod["volumes"][1]["secret"]["secretName"], "controller");
    let domains = named(&objects, "ConfigMap", name)["data"]["domains.yaml"].as_str().unwrap();
    let domains = yaml::parse(domains).unwrap();
    assert_eq!(domains["domains"], with_controller()["controller"]["domains"]);
    // The definition comes with it.
    of(&objects, "CustomResourceDefinition");
}

/// Every right of the controller, one by one. It has none on Secrets, Pods or objects of a mesh.
#[test]
fn controller_may_read_what_it_merges_and_write_statuses_events_and_its_lease() {
    const READ: &[&str] = &["get", "list", "watch"];
    let objects = one("istio.yaml", with_controller());
    let name = "quotagate-controller";
    let rights = |kind: &str| {
        let mut rights = Vec::new();
        for rule in named(&objects, kind, name)["rules"].as_array().unwrap() {
            let list = |field: &str| rule[field].as_array().cloned().unwrap_or_default();
            for (group, resource) in list("apiGroups")
                .iter()
                .flat_map(|group| list("resources").into_iter().map(move |of| (group.clone(), of)))
            {
                rights.push(json!([group, resource, rule["verbs"], rule["resourceNames"]]));
            }
        }
        Value::from(rights)
    };
    let expected = json!([
        ["quotagate.io", "quotapolicies", READ, null],
        ["quotagate.io", "quotapolicies/status", ["patch"], null],
        ["gateway.networking.k8s.io", "gateways", READ, null],
        ["gateway.networking.k8s.io", "httproutes", READ, null],
        ["gateway.networking.k8s.io", "grpcroutes", READ, null],
        ["", "services", READ, null],
        ["", "namespaces", READ, null],
        ["events.k8s.io", "events", ["create", "patch"], null],
    ]);
    assert_eq!(rights("ClusterRole"), expected);
    let expected = json!([
        ["coordination.k8s.io", "leases", ["get", "update"], [name]],
        ["coordination.k8s.io", "leases", ["create"], null],
    ]);
    assert_eq!(rights("Role"), expected);
    // It has no others: of all bindings, these two name its account.
    let bindings = objects.iter().filter(|object| {
        let subjects = object["subjects"].as_array();
        subjects.into_iter().flatten().any(|subject| subject["name"] == name)
    });
    let bound: Vec<&Value> = bindings.map(|binding| &binding["roleRef"]).collect();
    let role = |kind| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    assert_eq!(bound, [&role("ClusterRole"), &role("Role")]);
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
        ("quotagate-store", "redis-password"),
        ("tokens", "call-token"),
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
}

/// The object of this kind and name.
fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter().find(is).unwrap_or_else(|| panic!("no {kind} {name}"))
}

#[test]
fn rate_limit_service_reads_the_rules_of_the_values_and_counts_in_the_redis_of_the_store() {
    const NAME: &str = "quotagate-ratelimit";
    let objects = one("envoy-gateway.yaml", with_rate_limits(everything()));
    let pod = &named(&objects, "Deployment", NAME)["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["image"].as_str().unwrap().matches(NAME).count(), 1);
    assert_eq!(container["args"], Value::Null, "the image knows");
    let variable = |container: &Value, name: &str| {
        let variables = container["env"].as_array().unwrap();
        variables.iter().find(|variable| variable["name"] == name).unwrap().clone()
    };
    let store = &named(&objects, "Deployment", "quotagate-store")["spec"]["template"]["spec"];
    for name in ["QUOTAGATE_STORE", "QUOTAGATE_PREFIX", "QUOTAGATE_PASSWORD_FILE", "SSL_CERT_FILE"]
    {
        assert_eq!(variable(container, name), variable(&store["containers"][0], name));
    }
    for field in ["serviceAccountName", "securityContext", "tolerations"] {
        assert_eq!(pod[field], store[field]);
        assert_ne!(pod[field], Value::Null);
    }
    // The affinity of the store may ask for pods that run only where stores are.
    assert_ne!(store["affinity"], Value::Null);
    assert!(pod["affinity"]["podAffinity"].is_object(), "{pod}");
    assert_eq!(variable(container, "LIMIT_RESPONSE_HEADERS_ENABLED")["value"], "true");
    // Where the variables say, there are the rules, and the service takes them.
    let text = |name: &str| variable(container, name)["value"].as_str().unwrap().to_owned();
    let mount = container["volumeMounts"].as_array().unwrap().iter();
    let mount = mount.clone().find(|mount| mount["name"] == "rules").unwrap();
    let folder = format!("{}/{}/config", text("RUNTIME_ROOT"), text("RUNTIME_SUBDIRECTORY"));
    assert_eq!(mount["mountPath"], folder);
    let rules = tempfile::tempdir().unwrap();
    for (name, content) in named(&objects, "ConfigMap", NAME)["data"].as_object().unwrap() {
        fs::write(rules.path().join(name), content.as_str().unwrap()).unwrap();
    }
    let service = StoreOptions::rate_limits("memory:", rules.path());
    let service = StoreProcess::start_with(&service).unwrap();
    quotagate_support::wait::until_true("its rules", std::time::Duration::from_secs(30), || {
        Ok(service.log().contains("1 rule in 1 domain is in force"))
    })
    .unwrap();
    let history = http::get(service.admin_port(), "/healthz").unwrap();
    assert_eq!(history.status, 200, "the liveness probe");
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/healthz");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/healthcheck");
    // Every variable is known, of this command or of envoyproxy/ratelimit.
    let help = Command::new(paths::command()).args(["ratelimit", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        assert!(!name.starts_with("QUOTAGATE_") || help.contains(name), "{name}");
    }
    // Proxies find each of the services.
    let service = named(&objects, "Service", NAME);
    assert_eq!(service["spec"]["clusterIP"], "None");
    assert_eq!(service["spec"]["ports"][0]["port"], 8081);
    assert!(service["spec"]["ports"][0]["name"].as_str().unwrap().starts_with("grpc-"));
    // Kubernetes takes each name, however long the release's is.
    let mut long = with_rate_limits(everything());
    long["fullnameOverride"] = json!("a".repeat(48));
    for object in one("envoy-gateway.yaml", long) {
        assert!(object["metadata"]["name"].as_str().unwrap().len() <= 63, "{object}");
    }
    // It is off by default.
    let objects = one("envoy-gateway.yaml", json!({}));
    assert!(!objects.iter().any(|object| object.to_string().contains(NAME)));
}

#[test]
fn notes_say_how_to_operate_the_rate_limit_service_and_who_may_call_it() {
    let notes = |more: Value| {
        let alone = json!({
            "store": {"enabled": false}, "filter": {"kind": "none"},
            "rateLimit": {"enabled": true, "existingConfigMap": "rules"},
        });
        let mut values = example("envoy-gateway.yaml", alone);
        merge(&mut values, more);
        let rendered = render(&[values]).remove(0).unwrap();
        rendered.into_iter().find(|(name, _)| name.ends_with("NOTES.txt")).unwrap().1
    };
    const WARNING: &str = "everyone in the cluster can call the rate limit service";
    let text = notes(json!({}));
    assert!(text.contains("port-forward deploy/quotagate-ratelimit 9181"), "{text}");
    assert!(text.contains("QUOTAGATE_TOKEN=") && !text.contains(WARNING), "{text}");
    let open = json!({"store": {"networkPolicy": {"enabled": false}, "adminToken": null}});
    let text = notes(open.clone());
    assert!(text.contains(WARNING) && text.contains("store.networkPolicy.enabled"), "{text}");
    assert!(text.contains("serves health and metrics, and no operators"), "{text}");
    let certificates = json!([{"name": "GRPC_CLIENT_TLS_CACERT", "value": "/certs/ca.crt"}]);
    for (more, warns) in [
        (json!({"istio": {"enabled": true}}), false),
        (json!({"rateLimit": {"extraEnv": certificates}}), true),
    ] {
        let mut values = open.clone();
        merge(&mut values, more);
        let text = notes(values);
        assert_eq!(text.contains(WARNING), warns, "{text}");
    }
}

#[test]
fn mesh_lets_only_the_named_namespaces_call_the_rate_limit_service() {
    const NAME: &str = "quotagate-ratelimit";
    let policy = |more: Value| {
        let objects = one("istio.yaml", with_rate_limits(more));
        let labels =
            named(&objects, "Deployment", NAME)["spec"]["template"]["metadata"]["labels"].clone();
        let spec = named(&objects, "AuthorizationPolicy", NAME)["spec"].clone();
        let selector = spec["selector"]["matchLabels"].as_object().unwrap();
        assert!(!selector.is_empty());
        assert!(selector.iter().all(|(name, value)| labels[name] == *value), "{spec}");
        assert_eq!(spec["action"], "DENY");
        let rule = &spec["rules"][0];
        assert_eq!(rule["to"][0]["operation"]["ports"], json!(["8080", "8081"]));
        rule["from"][0]["source"]["notNamespaces"].clone()
    };
    assert_eq!(policy(json!({})), json!(["istio-ingress"]));
    let named = json!({"store": {"enabled": false}, "filter": {"kind": "none"},
        "istio": {"callers": ["edge", "shop"]}});
    assert_eq!(policy(named), json!(["edge", "shop"]));
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
        cluster.as_object_mut().unwrap().retain(|name, _| {
            !["type", "wait_for_warm_on_init", "load_assignment"].contains(&&**name)
        });
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
fn upgrade_to_an_autoscaler_keeps_the_stores_that_run() {
    let replicas = |running: Option<u32>| {
        let existing: Vec<Value> = running
            .map(|replicas| {
                json!({
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "metadata": {"name": "quotagate-store", "namespace": RELEASE},
                    "spec": {"replicas": replicas},
                })
            })
            .into_iter()
            .collect();
        let autoscaling = json!({"enabled": true, "minReplicas": 2, "maxReplicas": 6});
        let values = [example("istio.yaml", json!({"store": {"autoscaling": autoscaling}}))];
        let chart = quotagate_chart::chart();
        let rendered =
            quotagate_chart::render_over(&chart, &values, RELEASE, RELEASE, &existing).unwrap();
        let mut rendered = rendered.into_iter().next().unwrap().unwrap();
        rendered.retain(|name, _| name.ends_with("store/deployment.yaml"));
        of(&objects(&rendered), "Deployment")["spec"]["replicas"].clone()
    };
    assert_eq!(replicas(None), 2, "the first install");
    assert_eq!(replicas(Some(5)), 5);
    assert_eq!(replicas(Some(1)), 2);
    assert_eq!(replicas(Some(9)), 6);
}

#[test]
fn policy_that_reads_bodies_gets_the_larger_filter() {
    let image = |cost: Value, name: &str, pointer: &str| {
        let policy =
            json!({"name": "a", "partition_by": [], "quota": 9, "window": "1m", "cost": cost});
        let objects = one(name, json!({"policy": {"policies": [policy]}}));
        let found = objects.iter().find_map(|object| object.pointer(pointer)).unwrap();
        found.as_str().unwrap().rsplit('/').next().unwrap().to_owned()
    };
    let settled = |source: Value| json!({"reserve": 1, "settle": [source]});
    let in_body = json!({"reserve": {"request_json": "max_tokens", "default": 9}});
    for (cost, expected) in [
        (json!(1), "quotagate-filter:0.1.0"),
        (json!({"header": {"name": "usage", "max": 9}}), "quotagate-filter:0.1.0"),
        (settled(json!({"response_header": "usage"})), "quotagate-filter:0.1.0"),
        (settled(json!({"usage": "total"})), "quotagate-filter-bodies:0.1.0"),
        (in_body, "quotagate-filter-bodies:0.1.0"),
    ] {
        assert_eq!(image(cost.clone(), "istio.yaml", "/spec/url"), expected);
        let pointer = "/spec/wasm/0/code/image/url";
        assert_eq!(image(cost, "envoy-gateway.yaml", pointer), expected);
    }
    let native = image(
        settled(json!({"usage": "total"})),
        "envoy-gateway-native.yaml",
        "/spec/provider/kubernetes/envoyDeployment/container/image",
    );
    assert_eq!(native, "quotagate-envoy:0.1.0");
}

#[test]
fn every_object_says_whose_it_is_and_no_key_comes_twice() {
    for (name, more) in accepted() {
        for object in one(name, more.clone()) {
            let labels = &object["metadata"]["labels"];
            for label in ["name", "instance", "version", "managed-by"] {
                let label = format!("app.kubernetes.io/{label}");
                assert!(labels[&label].is_string(), "{name} {more}: {} {label}", object["kind"]);
            }
            assert_eq!(labels["helm.sh/chart"], "quotagate-0.1.0", "{name} {more}");
        }
    }
    // The reader of YAML in `objects` refuses a key that comes twice.
    let annotations =
        of(&one("istio.yaml", everything()), "Deployment")["spec"]["template"]["metadata"]
            ["annotations"]
            .clone();
    assert_eq!(annotations["proxy.istio.io/config"], "concurrency: 1");
    assert_eq!(annotations["prometheus.io/port"], "9");
    assert_eq!(annotations["prometheus.io/scrape"], "true");
}

#[test]
fn openshift_chooses_the_user() {
    let mut values = example("envoy-gateway.yaml", json!({}));
    values["store"]["podSecurityContext"] = json!({"runAsUser": null, "runAsGroup": null});
    let objects = objects(&render(&[values]).remove(0).unwrap());
    let context = &of(&objects, "Deployment")["spec"]["template"]["spec"]["securityContext"];
    let expected = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    assert_eq!(*context, expected);
}

#[test]
fn names_follow_the_release_or_the_override() {
    let name = |release: &str, more: Value| {
        let values = [example("envoy-gateway.yaml", more)];
        let chart = quotagate_chart::chart();
        let rendered =
            quotagate_chart::render(&chart, &values, release, "quotas").unwrap().remove(0)?;
        let text = &rendered["quotagate/templates/store/serviceaccount.yaml"];
        let object = yaml::parse(text).map_err(|error| error.to_string())?;
        Ok::<_, String>(object["metadata"]["name"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(name("quotagate", json!({})).unwrap(), "quotagate-store");
    assert_eq!(name("shop", json!({})).unwrap(), "shop-quotagate-store");
    let own = json!({"fullnameOverride": "quotas"});
    assert_eq!(name("shop.v2", own).unwrap(), "quotas-store");
    // A Service could not have these names. Two names that end after 48 letters could be one.
    let long = "a".repeat(40);
    for release in ["shop.v2", "2shop", &long] {
        let message = name(release, json!({})).unwrap_err();
        assert!(message.contains("set fullnameOverride"), "{release}: {message}");
    }
}

#[test]
fn store_reaches_waypoints_without_the_mesh_configuration() {
    let objects = one("istio-waypoint.yaml", json!({}));
    let filter = of(&objects, "EnvoyFilter");
    // An EnvoyFilter that names a Service applies to no waypoint.
    let gateway =
        json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "waypoint"});
    assert_eq!(filter["spec"]["targetRefs"], json!([gateway]));
    let named = "envoyfilter.istio.io/referenced-services";
    let host = "quotagate-store.quotagate.svc.cluster.local";
    assert_eq!(filter["metadata"]["annotations"][named], format!("quotagate/{host}"));
    assert_eq!(
        of(&objects, "WasmPlugin")["spec"]["pluginConfig"]["store"]["cluster"],
        format!("outbound|9180||{host}")
    );
    // Other targets stay, and none comes twice.
    let targets = json!([
        {"group": "", "kind": "Service", "name": "shop"},
        {"group": "networking.istio.io", "kind": "ServiceEntry", "name": "outside"},
        {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"},
        gateway,
    ]);
    let objects = one("istio-waypoint.yaml", json!({"filter": {"targetRefs": targets}}));
    assert_eq!(of(&objects, "WasmPlugin")["spec"]["targetRefs"], targets);
    let edge = &targets[2];
    assert_eq!(of(&objects, "EnvoyFilter")["spec"]["targetRefs"], json!([gateway, edge]));
    // Also where nothing is patched.
    let objects = one("istio-waypoint.yaml", json!({"istio": {"outlierDetection": false}}));
    assert_eq!(of(&objects, "EnvoyFilter")["spec"]["configPatches"], Value::Null);
}

#[test]
fn helm_test_calls_a_store_that_it_can_reach() {
    let objects = one("envoy-gateway.yaml", json!({}));
    let pod = of(&objects, "Pod");
    assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test");
    // Its namespace may inject one.
    assert_eq!(pod["metadata"]["labels"]["sidecar.istio.io/inject"], "false");
    let service = of(&objects, "Service");
    let [name, namespace] =
        ["name", "namespace"].map(|field| service["metadata"][field].as_str().unwrap());
    let url = format!("http://{name}.{namespace}.svc.cluster.local:9180/healthz");
    assert_eq!(pod["spec"]["containers"][0]["args"], json!(["health", url]));
    // The NetworkPolicy admits it, and no Service leads to it.
    let callers = &of(&objects, "NetworkPolicy")["spec"]["ingress"][0]["from"];
    let selected = callers[1]["podSelector"]["matchLabels"].as_object().unwrap();
    assert!(selected.iter().all(|(label, value)| pod["metadata"]["labels"][label] == *value));
    assert_ne!(
        service["spec"]["selector"]["app.kubernetes.io/name"],
        pod["metadata"]["labels"]["app.kubernetes.io/name"]
    );
    let objects = one("istio.yaml", json!({}));
    assert!(objects.iter().all(|object| object["kind"] != "Pod"), "a sidecar would not end");
}
