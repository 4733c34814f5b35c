//! `quotagate merge`: a folder of objects in, documents out.

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

const GATEWAY: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: gateways, name: public}
spec: {gatewayClassName: eg, listeners: [{name: http, port: 80, protocol: HTTP}]}
";

const ROUTE: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: team-a, name: checkout}
spec: {hostnames: [shop.example.com], rules: [{matches: [{path: {value: /}}]}]}
status:
  parents:
    - parentRef: {namespace: gateways, name: public}
      controllerName: gateway.envoyproxy.io/gatewayclass-controller
      conditions: [{type: Accepted, status: 'True'}]
";

const POLICY: &str = "\
apiVersion: quotagate.io/v1alpha1
kind: QuotaPolicy
metadata: {namespace: team-a, name: checkout}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: checkout}]
  policies: [{name: everybody, partitionBy: [], quota: 100, window: 1m}]
";

const CONFIG: &str = "\
domains:
  - domain: shop
    gateways: [gateways/public]
    store: {cluster: quota_store}
  - domain: inner
    store: {cluster: quota_store}
";

/// A folder with these files, and `config.yaml` beside it.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("objects/team-a")).unwrap();
    for (name, text) in files {
        fs::write(folder.path().join("objects").join(name), text).unwrap();
    }
    fs::write(folder.path().join("config.yaml"), CONFIG).unwrap();
    folder
}

fn run(folder: &TempDir, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quotagate"));
    command.args(["merge", "objects"]).args(arguments).current_dir(folder.path());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn folder_becomes_a_document_that_check_accepts() {
    let folder = folder(&[
        ("all.yaml", &format!("{GATEWAY}---\n{ROUTE}")),
        ("team-a/policy.yaml", POLICY),
        ("notes.txt", "no object"),
    ]);
    let (status, document, errors) = run(&folder, &["--domain", "shop"]);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    assert!(document.contains("domain: shop\n"), "{document}");
    assert!(document.contains("name: team-a/checkout/everybody\n"), "{document}");
    assert!(document.contains("- httproute/team-a/checkout/rule/0/match/0/shop_example_com\n"));
    let file = folder.path().join("merged.yaml");
    fs::write(&file, document).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_quotagate"));
    let checked = check.arg("check").arg(&file).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn what_is_not_accepted_is_named_and_the_rest_printed() {
    let wrong = POLICY.replace("name: checkout}\nspec", "name: wrong}\nspec");
    let wrong = wrong.replace("window: 1m", "window: 900d");
    let unreadable = POLICY.replace("name: checkout}\nspec", "name: unreadable}\nspec");
    let unreadable = unreadable.replace("quota: 100", "quotas: 100");
    let folder = folder(&[
        ("all.yaml", &format!("{GATEWAY}---\n{ROUTE}---\n{POLICY}")),
        ("wrong.yaml", &wrong),
        ("unreadable.yaml", &unreadable),
    ]);
    let (status, document, errors) = run(&folder, &[]);
    assert_eq!(status, Some(1));
    assert!(document.contains("domain: default\n") && document.contains("checkout/everybody"));
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(lines[1].starts_with("quotagate: objects/unreadable.yaml: QuotaPolicy"), "{errors}");
    assert!(lines[0].starts_with(
        "quotagate: QuotaPolicy team-a/wrong for Gateway gateways/public: Invalid: \
         spec.policies[0].window: must be a duration"
    ));
    assert!(errors.contains(
        "QuotaPolicy team-a/unreadable: spec.policies[0].quotas: unknown field `quotas`"
    ));
}

#[test]
fn nothing_is_printed_if_a_file_cannot_be_read() {
    let all = format!("{GATEWAY}---\n{ROUTE}---\n{POLICY}");
    let folder = folder(&[("all.yaml", &all), ("no-yaml.yaml", "a: [")]);
    let (status, document, errors) = run(&folder, &[]);
    assert_eq!((status, document.as_str()), (Some(2), ""));
    assert!(errors.contains("objects/no-yaml.yaml must be YAML or JSON"), "{errors}");
}

#[test]
fn config_names_domains_and_their_gateways() {
    let folder = folder(&[("all.yaml", &format!("{GATEWAY}---\n{ROUTE}---\n{POLICY}"))]);
    let config = ["--config", "config.yaml"];
    let (status, documents, errors) = run(&folder, &config);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    let documents: Vec<&str> = documents.split("---\n").collect();
    assert_eq!(documents.len(), 2);
    assert!(documents[0].contains("domain: shop\n") && documents[0].contains("everybody"));
    assert!(documents[1].contains("domain: inner\n") && !documents[1].contains("everybody"));
    let (_, one, _) = run(&folder, &[&config[..], &["--domain", "inner"]].concat());
    assert_eq!(one, documents[1]);
    let (status, _, errors) = run(&folder, &[&config[..], &["--domain", "other"]].concat());
    assert_eq!(status, Some(2));
    assert!(errors.contains("config.yaml has no domain other: it has shop, inner"), "{errors}");
}

#[test]
fn objects_of_gateways_without_a_domain_are_named() {
    let folder = folder(&[("all.yaml", &format!("{GATEWAY}---\n{ROUTE}---\n{POLICY}"))]);
    let config = CONFIG.split("  - domain: inner").next().unwrap().replace("public", "other");
    fs::write(folder.path().join("config.yaml"), config).unwrap();
    let (status, _, errors) = run(&folder, &["--config", "config.yaml"]);
    assert_eq!(status, Some(1));
    assert!(errors.contains("QuotaPolicy team-a/checkout: no domain has a Gateway"), "{errors}");
}

#[test]
fn folder_without_policies_and_wrong_flags_are_refused() {
    let folder = folder(&[("all.yaml", GATEWAY)]);
    for (arguments, expected) in [
        (&[][..], "objects holds no QuotaPolicy"),
        (&["--domain", "Shop"], "--domain: domains[0].domain: must match"),
        (&["--config", "nowhere.yaml"], "cannot read nowhere.yaml"),
    ] {
        let (status, _, errors) = run(&folder, arguments);
        assert_eq!(status, Some(2));
        assert!(errors.contains(expected), "{errors}");
    }
}
