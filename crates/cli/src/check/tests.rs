//! Findings of `quotagate check` in documents, alone and in surrounding configurations.

use std::fs;
use std::path::{Path, PathBuf};

use quotagate_ratelimit::rules::{RuleFile, is_rule_file};

use super::report::{Report, Severity};
use super::{check, rule_files};
use crate::rules::SharedArgs;

const GOOD: &str = "domain: shop
store: {cluster: s}
policies:
  - name: a
    partition_by: []
    quota: 5
    window: 1m
";

/// The same in JSON, with an invalid quota in line 4.
const BAD_JSON: &str = r#"{
  "domain": "shop", "store": {"cluster": "s"},
  "policies": [{"name": "a", "partition_by": [], "window": "1m",
    "quota": "many"}]
}"#;

/// The findings, one line each.
fn lines(text: &str) -> Vec<String> {
    check("f", text).lines()
}

/// `text`, indented by `by` columns.
fn indented(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{}{line}\n", " ".repeat(by))).collect()
}

fn is_valid(report: &Report) -> bool {
    !report.documents.is_empty() && !report.has(Severity::Fault)
}

#[test]
fn unknown_time_zone_is_a_fault_with_similar_names() {
    let with = |zone: &str| {
        GOOD.replace("window: 1m", &format!("window: {{calendar: day, time_zone: {zone}}}"))
    };
    assert!(is_valid(&check("f", &with("Europe/Berlin"))));
    let found = lines(&with("Europe/Berln")).join("\n");
    assert!(found.contains("policies[0].window.time_zone"), "{found}");
    assert!(found.contains("unknown time zone `Europe/Berln`"), "{found}");
    assert!(found.contains("perhaps Europe/Berlin"), "{found}");
}

#[test]
fn yaml_and_json_are_read() {
    let report = check("f", GOOD);
    assert!(is_valid(&report) && report.findings.is_empty(), "{report:?}");
    assert_eq!(report.to_string(), "f: valid, with 1 policy\n");
    assert!(is_valid(&check("f", r#"{"domain":"d","store":{"cluster":"s"},"policies":[]}"#)));
}

#[test]
fn faults_have_a_line_and_the_name_of_the_policy() {
    let bad = GOOD
        .replace("shop", "Shop!")
        .replace("quota: 5", "quota: -5")
        .replace("    window: 1m\n", "");
    let found = lines(&bad);
    let expected = [
        "f:1:1: domain: must match ",
        "f:4:5: policies[0].window (policy \"a\"): is required",
        "f:6:5: policies[0].quota (policy \"a\"): must be a whole number ",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (line, begin) in found.iter().zip(expected) {
        assert!(line.starts_with(begin), "{found:#?}");
    }
}

#[test]
fn store_inside_the_filter_is_checked_without_its_files() {
    let with = |store: &str| lines(&GOOD.replace("cluster: s", store));
    assert_eq!(with("redis: 'redis-cluster://u@a,b', password_file: /none"), Vec::<String>::new());
    for (store, expected) in [
        ("redis: 'redis://u:s3cret@a,b'", "store.redis: the store URL of redis:// takes one host"),
        (
            "redis: 'redis://a/db'",
            "store.redis: the store URL must end with the number of a database",
        ),
        (
            "redis: 'memory:', password_file: /f",
            "store.password_file: the store URL memory: takes no password",
        ),
    ] {
        let found = with(store);
        let fault = found.iter().find(|line| !line.contains("warning: ")).unwrap();
        assert!(fault.starts_with("f:2:") && fault.contains(expected), "{found:#?}");
        assert!(!found.concat().contains("s3cret"), "{found:#?}");
    }
}

#[test]
fn names_that_look_like_paths_have_positions() {
    let tiers = "    tiers:\n      source: {jwt: {claim: plan}}\n      quotas:\n        a: 1\n        \"a.b\": x\n";
    let found = lines(&format!("{GOOD}{tiers}"));
    assert!(
        matches!(found.as_slice(), [one] if one.starts_with("f:12:9: policies[0].tiers.quotas[\"a.b\"] (policy \"a\"): ")),
        "{found:#?}"
    );
}

#[test]
fn valid_and_invalid_documents_get_warnings() {
    let misleading = format!("{GOOD}digest_key: short\n");
    for (text, valid) in [(misleading.clone(), true), (misleading.replace("shop", "Shop!"), false)]
    {
        let report = check("f", &text);
        assert_eq!(is_valid(&report), valid);
        assert!(report.has(Severity::Warning));
        assert!(
            report.lines().iter().any(|line| line.starts_with("f:8:1: warning: digest_key: ")),
            "{report:?}"
        );
    }
}

#[test]
fn a_field_given_twice_is_a_fault_in_plain_words() {
    assert_eq!(
        lines(&format!("{GOOD}    quota: 6\n")),
        ["f:8:5: the field \"quota\" is given twice"]
    );
    assert_eq!(
        lines("{\"domain\": 1,\n \"domain\": 2}"),
        ["f:2:2: the field \"domain\" is given twice"]
    );
}

#[test]
fn control_characters_of_a_file_are_escaped() {
    let found = lines(&GOOD.replace("name: a", "\"na\\e[31mme\": a"));
    assert!(!found.is_empty() && found.iter().all(|line| !line.contains('\u{1b}')), "{found:?}");
}

/// A configuration that contains this document, and the line in which the document begins.
fn containers(document: &str) -> [(&'static str, String); 5] {
    let listener = |by: usize| {
        indented(
            &format!(
                "- name: ingress
  filter_chains:
    - filters:
        - name: envoy.filters.network.http_connection_manager
          typed_config:
            http_filters:
              - name: envoy.filters.http.wasm
                typed_config:
                  \"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
                  config:
                    name: quotagate
                    configuration:
                      \"@type\": type.googleapis.com/google.protobuf.Struct
                      value:
{}",
                indented(document, 24)
            ),
            by,
        )
    };
    let kubernetes = |kind: &str, before: &str, by: usize| {
        format!("kind: {kind}\nmetadata:\n  name: x\nspec:\n{before}{}", indented(document, by))
    };
    [
        ("bootstrap", format!("static_resources:\n  listeners:\n{}", listener(4))),
        ("listener", format!("resources:\n{}", listener(2))),
        ("WasmPlugin", kubernetes("WasmPlugin", "  url: oci://x/quotagate\n  pluginConfig:\n", 4)),
        (
            "TrafficExtension",
            kubernetes(
                "TrafficExtension",
                "  wasm:\n    url: oci://x/quotagate\n    pluginConfig:\n",
                6,
            ),
        ),
        (
            "EnvoyExtensionPolicy",
            kubernetes(
                "EnvoyExtensionPolicy",
                "  wasm:\n    - name: quotagate\n      config:\n",
                8,
            ),
        ),
    ]
}

#[test]
fn documents_are_found_in_surrounding_configurations() {
    let bad = GOOD.replace("quota: 5", "quota: -5");
    for ((kind, text), (_, bad)) in containers(GOOD).into_iter().zip(containers(&bad)) {
        let report = check("f", &text);
        assert!(is_valid(&report) && report.findings.is_empty(), "{kind}: {report:?}");
        let line = 1 + bad.lines().position(|line| line.contains("quota: -5")).unwrap();
        let found = lines(&bad);
        assert!(
            matches!(found.as_slice(), [one] if one.starts_with(&format!("f:{line}:"))
                && one.contains(": policies[0].quota (policy \"a\"): ")),
            "{kind}, line {line}: {found:?}"
        );
    }
}

#[test]
fn a_broken_document_of_our_own_plugin_is_found() {
    for (kind, text) in containers("domain: shop\npolicy: []\n") {
        let found = lines(&text);
        assert!(
            found.iter().any(|line| line.contains(": policies: is required")),
            "{kind}: {found:?}"
        );
    }
    // A plugin of another project that has a field `domain`.
    let (_, other) = containers("domain: shop\n").into_iter().next().unwrap();
    let other = check("f", &other.replace("quotagate", "other"));
    assert!(other.documents.is_empty() && other.findings.is_empty(), "{other:?}");
}

/// A configuration with a StringValue of this value.
fn string_value(value: &str) -> String {
    format!(
        "name: quotagate\nconfiguration:\n  \"@type\": type.googleapis.com/google.protobuf.StringValue\n  value: {value}\n"
    )
}

#[test]
fn string_values_are_parsed_as_the_filter_parses_them() {
    let block = string_value(&format!("|\n{}", indented(BAD_JSON, 4)));
    let found = lines(&block);
    assert!(
        matches!(found.as_slice(), [one] if one.starts_with("f:8:9: policies[0].quota (policy \"a\"): ")),
        "{found:?}"
    );
    assert!(is_valid(&check("f", &block.replace("many", "50"))));
    // All findings in a text of one line have the position of that line.
    let line = string_value(&format!("'{}'", BAD_JSON.replace('\n', " ")));
    let found = lines(&line);
    assert!(
        matches!(found.as_slice(), [one] if one.starts_with("f:4:10: policies[0].quota")),
        "{found:?}"
    );
    // Envoy passes the text on, and the filter parses JSON only.
    let found = lines(&string_value(&format!("|\n{}", indented(GOOD, 4))));
    assert!(
        matches!(found.as_slice(), [one] if one.starts_with("f:5:5: must be JSON: ") && one.contains("google.protobuf.Struct")),
        "{found:?}"
    );
    let found =
        lines(&string_value(&format!("|\n{}", indented(&BAD_JSON.replace("},\n", "}\n"), 4))));
    assert!(
        matches!(found.as_slice(), [one] if one.starts_with("f:7:") && !one.contains(" at line ")),
        "{found:?}"
    );
    let twice = BAD_JSON.replace("\"quota\": \"many\"", "\"quota\": 1, \"quota\": 2");
    let found = lines(&string_value(&format!("|\n{}", indented(&twice, 4))));
    assert!(
        matches!(found.as_slice(), [one] if one.starts_with("f:8:") && one.ends_with("the field \"quota\" is given twice")),
        "{found:?}"
    );
}

#[test]
fn faults_name_the_document_if_there_are_several() {
    let text = format!(
        "{GOOD}---\n{}---\n{GOOD}",
        GOOD.replace("quota: 5", "quota: -5").replace("shop", "other")
    );
    let report = check("f", &text);
    let found = report.lines();
    assert!(
        matches!(found.as_slice(), [one] if one.starts_with("f:14:5: document 2: policies[0].quota (policy \"a\"): ")),
        "{found:?}"
    );
    assert_eq!(
        report.to_string(),
        "f:1: valid, with 1 policy in domain \"shop\"\nf:17: valid, with 1 policy in domain \"shop\"\n"
    );
}

#[test]
fn files_without_a_document_are_reported() {
    assert!(check("f", "a: [").has(Severity::Fault));
    for text in ["", "static_resources: {}", "- 1", "text"] {
        let report = check("f", text);
        assert!(report.documents.is_empty() && report.findings.is_empty(), "{report:?}");
        assert_eq!(report.to_string(), "f: no policy document\n");
    }
}

/// All YAML files in and below a directory.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
}

#[test]
fn shipped_files_have_no_faults_or_warnings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut shipped = Vec::new();
    files(&root.join("envoy"), &mut shipped);
    files(&root.join("docker"), &mut shipped);
    shipped.sort();
    let mut with_documents = Vec::new();
    for file in shipped {
        let name = file.strip_prefix(&root).unwrap().display().to_string();
        let text = fs::read(&file).unwrap();
        let reports = if is_rule_file(&text) {
            rule_files::reports(vec![RuleFile { name, text }], SharedArgs::default())
        } else {
            vec![check(&name, str::from_utf8(&text).unwrap())]
        };
        for report in reports {
            let lines = report.lines();
            assert!(lines.is_empty(), "{lines:?}");
            if !report.documents.is_empty() {
                with_documents.push(report.file);
            }
        }
    }
    let expected = [
        "docker/envoy.yaml",
        "docker/native.yaml",
        "envoy/envoy.yaml",
        "envoy/examples/ai-gateway.yaml",
        "envoy/examples/burst-and-plan.yaml",
        "envoy/examples/graphql-cost.yaml",
        "envoy/examples/login.yaml",
        "envoy/examples/tiers-by-roles.yaml",
        "envoy/gateway/native.yaml",
        "envoy/gateway/quotas.yaml",
        "envoy/istio/trafficextension.yaml",
        "envoy/istio/wasmplugin.yaml",
        "envoy/istio/waypoint.yaml",
        "envoy/native.yaml",
    ];
    assert_eq!(with_documents, expected);
}
