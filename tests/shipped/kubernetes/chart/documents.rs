//! What is written about the chart, and what it must have in common with the workspace.

use std::{collections::BTreeSet, fs, process::Command};

use quotagate_support::{paths, yaml};
use serde_json::{Value, json};

use super::{current, example, objects, render};

fn read(name: &str) -> String {
    fs::read_to_string(quotagate_chart::chart().join(name)).unwrap()
}

/// A value of values.yaml with its comment.
struct Documented {
    path: String,
    text: String,
}

/// Every value that has a comment `# --`, in the order of the file.
fn documented() -> Vec<Documented> {
    let (mut path, mut comment, mut found) = (Vec::<String>::new(), Vec::new(), Vec::new());
    for line in read("values.yaml").lines() {
        let (depth, line) = (line.len() - line.trim_start().len(), line.trim_start());
        if let Some(text) = line.strip_prefix('#') {
            comment.push(text.trim_start().to_owned());
            continue;
        }
        let key = line.split_once(':').map(|(key, _)| key).filter(|key| !key.starts_with('-'));
        let text = comment.join(" ");
        comment.clear();
        let Some(key) = key else { continue };
        path.truncate(depth / 2);
        path.push(key.to_owned());
        if let Some(text) = text.strip_prefix("-- ") {
            found.push(Documented { path: path.join("."), text: text.to_owned() });
        }
    }
    found
}

/// The paths of all values: those that have no values below them, and those with a comment.
fn leaves(value: &Value, path: &str, known: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() && !known.contains(path) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                leaves(value, path.trim_start_matches('.'), known, found);
            }
        }
        _ => _ = found.insert(path.to_owned()),
    }
}

#[test]
fn readme_of_the_chart_is_current() {
    let values = yaml::read(&quotagate_chart::chart().join("values.yaml")).unwrap();
    let documented = documented();
    let known: BTreeSet<String> = documented.iter().map(|value| value.path.clone()).collect();
    let mut all = BTreeSet::new();
    leaves(&values, "", &known, &mut all);
    assert_eq!(all, known, "every value has a comment that begins with `# -- `");
    let row = |Documented { path, text }: &Documented| {
        let default = values.pointer(&format!("/{}", path.replace('.', "/"))).unwrap();
        format!("| `{path}` | `{default}` | {} |\n", text.replace('|', "\\|"))
    };
    let rows: String = documented.iter().map(row).collect();
    let readme = read("README.md");
    let (head, _) = readme.split_once("## Values\n").unwrap();
    let text = format!("{head}## Values\n\n| value | default | |\n| --- | --- | --- |\n{rows}");
    current(&quotagate_chart::chart().join("README.md"), &text);
}

#[test]
fn schema_knows_every_value_and_no_other() {
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let values = yaml::read(&quotagate_chart::chart().join("values.yaml")).unwrap();
    compare(&schema, &values, "");
    jsonschema::meta::validate(&schema).unwrap();
}

/// Helm reads no other file, so the schema of the policy document is part of that of the values.
#[test]
fn schema_of_the_policy_document_is_current() {
    let file = paths::root().join("envoy/quotagate.schema.json");
    let text = fs::read_to_string(file).unwrap().replace("#/$defs/", "#/definitions/policy.");
    let mut policy: Value = serde_json::from_str(&text).unwrap();
    without_prose(&mut policy);
    let parts = policy.as_object_mut().unwrap();
    parts.remove("$schema");
    let Some(Value::Object(mut definitions)) = parts.remove("$defs") else { panic!("none") };
    // The chart adds the cluster.
    assert_eq!(parts["required"], json!(["domain", "store", "policies"]));
    parts["required"] = json!(["domain", "policies"]);
    let choice = definitions["Store"].as_object_mut().unwrap().remove("allOf").unwrap();
    assert!(choice.to_string().contains(r#"{"required":["cluster"]}"#), "{choice}");
    let mut schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let own = schema["definitions"].as_object_mut().unwrap();
    own.retain(|name, _| !name.starts_with("policy"));
    own.extend(definitions.into_iter().map(|(name, part)| (format!("policy.{name}"), part)));
    own.insert("policy".to_owned(), policy);
    let text = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
    current(&quotagate_chart::chart().join("values.schema.json"), &text);
}

/// Removes what a validator does not need, and patterns that Go's expressions cannot say.
fn without_prose(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|name, value| match name.as_str() {
                "description" | "examples" | "default" | "title" => value.is_object(),
                "pattern" => {
                    !value.as_str().is_some_and(|text| text.contains("(?") || text.contains("\\u"))
                }
                _ => true,
            });
            fields.values_mut().for_each(without_prose);
        }
        Value::Array(items) => items.iter_mut().for_each(without_prose),
        _ => {}
    }
}

/// An object with `properties` names each value, and refuses others.
fn compare(schema: &Value, value: &Value, path: &str) {
    let Some(properties) = schema["properties"].as_object() else { return };
    assert_eq!(schema["additionalProperties"], false, "{path}");
    let own = properties.keys().filter(|name| *name != "global");
    let names: BTreeSet<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(own.collect::<BTreeSet<_>>(), names, "{path}");
    for (name, value) in value.as_object().unwrap() {
        compare(&properties[name], value, &format!("{path}/{name}"));
    }
}

#[test]
fn versions_are_those_of_the_workspace() {
    let charts = [quotagate_chart::chart(), paths::root().join("charts/example")];
    for chart in charts {
        let chart = yaml::read(&chart.join("Chart.yaml")).unwrap();
        assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
        for dependency in chart["dependencies"].as_array().into_iter().flatten() {
            assert_eq!(dependency["version"], env!("CARGO_PKG_VERSION"));
        }
    }
    let envoy = yaml::read(&quotagate_chart::chart().join("values.yaml")).unwrap();
    let envoy = envoy["store"]["tls"]["image"].as_str().unwrap();
    assert!(envoy.ends_with(quotagate_support::tools::ENVOY_VERSION), "{envoy}");
}

/// Helm reads no file outside of a chart, so the alerts are copied.
#[test]
fn alerts_of_the_chart_are_current() {
    let alerts = paths::root().join("envoy/observability/alerts.yaml");
    let text = fs::read_to_string(&alerts).unwrap();
    current(&quotagate_chart::chart().join("files/alerts.yaml"), &text);
    let runbooks = "https://wiki.example.com/quotagate";
    let rules = json!({"enabled": true, "runbooks": runbooks});
    let values = example("istio.yaml", json!({"monitoring": {"rules": rules}}));
    let rendered = objects(&render(&[values]).remove(0).unwrap());
    let rule = rendered.iter().find(|object| object["kind"] == "PrometheusRule").unwrap();
    let text = text.replace("docs/operate/alerts.md#", &format!("{runbooks}#"));
    assert_eq!(rule["spec"], yaml::parse(&text).unwrap());
    // promtool reads the rendered rules, too.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, rule["spec"].to_string()).unwrap();
    let promtool = Command::new("promtool").args(["check", "rules"]).arg(&file).output().unwrap();
    assert!(promtool.status.success(), "{}", String::from_utf8_lossy(&promtool.stderr));
}

#[test]
fn archive_of_the_chart_has_the_same_bytes_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        let archive =
            quotagate_chart::package(&quotagate_chart::chart(), &folder, 1_700_000_000).unwrap();
        let name = format!("quotagate-{}.tgz", env!("CARGO_PKG_VERSION"));
        assert_eq!(archive.file_name().unwrap().to_str(), Some(&*name));
        archive
    });
    assert_eq!(fs::read(&one).unwrap(), fs::read(two).unwrap());
    let values = [example("istio.yaml", json!({}))];
    let packed = quotagate_chart::render(&one, &values, "quotagate", "quotagate").unwrap();
    let folder = quotagate_chart::chart();
    let own = quotagate_chart::render(&folder, &values, "quotagate", "quotagate").unwrap();
    assert_eq!(packed, own);
}
