//! The example with a Redis Cluster, which depends on the chart.

use std::{fs, process::Command};

use quotagate_support::paths;
use serde_json::{Value, json};

use super::objects;
use crate::kubernetes::schemas;

/// A copy of the example with its dependency, as `helm dependency build` makes it.
fn built() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let charts = paths::root().join("charts");
    let copy = |from: &str, to: &str| {
        let copied = Command::new("cp")
            .arg("-r")
            .arg(charts.join(from))
            .arg(folder.path().join(to))
            .status();
        assert!(copied.unwrap().success());
    };
    copy("example", "example");
    fs::create_dir_all(folder.path().join("example/charts")).unwrap();
    copy("quotagate", "example/charts/quotagate");
    folder
}

#[test]
fn example_with_redis_cluster_matches_the_published_schemas() {
    let folder = built();
    let chart = folder.path().join("example");
    let values = json!({"quotagate": {"image": {"registry": "registry.example.com"}}});
    let values = [values, json!({})];
    assert_eq!(quotagate_chart::lint(&chart, &values[..1]).unwrap(), [Vec::<String>::new()]);
    let rendered = quotagate_chart::render(&chart, &values, "quotagate", "quotagate").unwrap();
    let [Ok(rendered), Err(message)] = &rendered[..] else { panic!("{rendered:?}") };
    assert!(message.contains("image.registry"), "{message}");
    let mut rendered = rendered.clone();
    rendered.retain(|_, text| !text.trim().is_empty());
    let objects = objects(&rendered);
    for object in &objects {
        assert_eq!(schemas::faults(object), Vec::<String>::new(), "{}", object["kind"]);
    }
    let of = |kind: &str, name: &str| {
        let found = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
        objects.iter().find(found).unwrap_or_else(|| panic!("no {kind} {name}"))
    };
    // What the store reads is what the example makes.
    let store = &of("Deployment", "quotagate-store")["spec"]["template"]["spec"];
    let environment = store["containers"][0]["env"].as_array().unwrap();
    let url = environment.iter().find(|variable| variable["name"] == "QUOTAGATE_STORE").unwrap();
    let reference = &url["valueFrom"]["secretKeyRef"];
    let secret = of("Secret", reference["name"].as_str().unwrap());
    assert!(secret["data"][reference["key"].as_str().unwrap()].is_string());
    assert!(secret["data"]["admin-token"].is_string());
    // The Job names each pod of the StatefulSet by its Service.
    let redis = of("StatefulSet", "quotagate-redis");
    let nodes = &of("Job", "quotagate-form-1")["spec"]["template"]["spec"]["containers"][0]["args"];
    assert_eq!(redis["spec"]["replicas"], nodes.as_array().unwrap().len());
    assert_eq!(nodes[5], "quotagate-redis-5.quotagate-redis:6379");
    assert_eq!(redis["spec"]["serviceName"], of("Service", "quotagate-redis")["metadata"]["name"]);
}

#[test]
fn another_size_of_volumes_is_refused_before_kubernetes_does() {
    let folder = built();
    let chart = folder.path().join("example");
    let existing = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "quotagate-redis", "namespace": "quotagate"},
        "spec": {"volumeClaimTemplates": [{"spec": {"resources": {"requests": {"storage": "1Gi"}}}}]},
    });
    let values = |storage: &str| {
        json!({
            "redis": {"storage": storage},
            "quotagate": {"image": {"registry": "registry.example.com"}},
        })
    };
    // What Helm asks for finds no other object.
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "quotagate-example", "namespace": "quotagate"},
        "data": {"admin-token": "dA=="},
    });
    // Kubernetes has stored 1024Mi as 1Gi.
    let values = [values("1Gi"), values("1024Mi"), values("1025Mi"), values("2Gi")];
    let rendered = quotagate_chart::render_over(
        &chart,
        &values,
        "quotagate",
        "quotagate",
        &[existing, secret],
    );
    let rendered = rendered.unwrap();
    let [Ok(same), Ok(_), Err(_), Err(message)] = &rendered[..] else { panic!("{rendered:?}") };
    assert!(message.contains("redis.storage is 2Gi") && message.contains("have 1Gi"), "{message}");
    let made = &same["quotagate-example/templates/secret.yaml"];
    assert!(made.contains("admin-token: dA=="), "upgrades keep the token: {made}");
}
