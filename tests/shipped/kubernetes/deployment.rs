//! The deployment of the store.

use std::process::Command;

use quotagate_support::paths;
use serde_json::json;

use super::{STORE_CLUSTER, document};
use crate::packaging::seconds;

#[test]
fn store_runs_without_capabilities_and_is_probed_on_its_ports() {
    let deployment = document("istio/store.yaml", "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz?partial")] {
        assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": "http-admin"}));
    }
    let port = |name: &str| {
        let ports = container["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == name).unwrap()["containerPort"].to_string()
    };
    let help = Command::new(paths::command()).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        let listed = [format!("[env: {name}="), format!("[env: {name}]")]
            .iter()
            .any(|text| help.contains(text));
        assert!(listed, "{name} is no variable of `quotagate serve`:\n{help}");
        match name {
            "QUOTAGATE_LISTEN" => {
                assert_eq!(variable["value"], format!("0.0.0.0:{}", port("http-store")))
            }
            "QUOTAGATE_ADMIN" => {
                assert_eq!(variable["value"], format!("0.0.0.0:{}", port("http-admin")))
            }
            "QUOTAGATE_ADMIN_TOKEN_FILE" => {
                let (mount, volume) = (&container["volumeMounts"][0], &pod["volumes"][0]);
                assert_eq!(mount["name"], volume["name"]);
                let file = &volume["projected"]["sources"][0]["secret"]["items"][0]["path"];
                let [folder, file] = [&mount["mountPath"], file].map(|part| part.as_str().unwrap());
                assert_eq!(variable["value"], format!("{folder}/{file}"));
            }
            _ => {}
        }
    }
    let names: Vec<_> =
        container["env"].as_array().unwrap().iter().map(|variable| &variable["name"]).collect();
    assert!(
        names.contains(&&json!("QUOTAGATE_ADMIN_TOKEN_FILE")),
        "every pod can reach the admin address"
    );
    let service = document("istio/store.yaml", "Service");
    let selector = service["spec"]["selector"].as_object().unwrap();
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert!(!selector.is_empty());
    assert!(selector.iter().all(|(name, value)| labels[name] == *value), "{selector:?} {labels}");
    assert_eq!(service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]);
    for (kind, pointer) in [
        ("PodDisruptionBudget", "/spec/selector/matchLabels"),
        ("AuthorizationPolicy", "/spec/selector/matchLabels"),
    ] {
        let found = document("istio/store.yaml", kind);
        assert_eq!(found.pointer(pointer), Some(&service["spec"]["selector"]), "{kind}");
    }
    let [name, namespace] =
        ["name", "namespace"].map(|field| service["metadata"][field].as_str().unwrap());
    let host = format!("{name}.{namespace}.svc.cluster.local");
    assert_eq!(format!("outbound|{}||{host}", service["spec"]["ports"][0]["port"]), STORE_CLUSTER);
    assert_eq!(document("istio/store.yaml", "DestinationRule")["spec"]["host"], host);
}

#[test]
fn store_has_time_to_drain_before_it_and_its_sidecar_are_killed() {
    let template = document("istio/store.yaml", "Deployment")["spec"]["template"].clone();
    let environment = &template["spec"]["containers"][0]["env"];
    let variable =
        environment.as_array().unwrap().iter().find(|v| v["name"] == "QUOTAGATE_DRAIN").unwrap();
    let drain = seconds(variable["value"].as_str().unwrap());
    let last_answers = 5;
    let grace = template["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > drain + last_answers, "{grace} s");
    let sidecar = template["metadata"]["annotations"]["proxy.istio.io/config"].as_str().unwrap();
    let sidecar = seconds(sidecar.strip_prefix("terminationDrainDuration: ").unwrap());
    assert!((drain + last_answers..=grace).contains(&sidecar), "{sidecar} s");
}
