//! `quotagate check`: its output and its exit status.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

const GOOD: &str = r#"{"domain": "shop", "store": {"cluster": "s"}, "policies": []}"#;

/// Runs the command, asserts its exit status, and returns both outputs.
fn ends(status: i32, directory: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quotagate"));
    let output = command.arg("check").args(arguments).current_dir(directory).output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let misleading = GOOD.replace("\"policies\"", "\n\"digest_key\": \"short\", \"policies\"");
    for (name, text) in [
        ("good.json", GOOD),
        ("misleading.json", &misleading),
        ("bad.json", &GOOD.replace("shop", "Shop")),
        ("other.yaml", "kind: Service\n"),
    ] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

#[test]
fn one_fault_in_several_files_fails_the_check() {
    let directory = directory();
    let (out, err) = ends(0, directory.path(), &["good.json", "other.yaml"]);
    assert_eq!(out, "good.json: valid, with 0 policies\nother.yaml: no policy document\n");
    assert_eq!(err, "");
    let (out, err) = ends(1, directory.path(), &["bad.json", "good.json"]);
    assert_eq!(out, "good.json: valid, with 0 policies\n");
    assert!(
        err.starts_with("bad.json:1:2: domain: must match ") && err.lines().count() == 1,
        "{err}"
    );
    let (out, err) = ends(2, directory.path(), &["missing.json", "good.json"]);
    assert_eq!(out, "good.json: valid, with 0 policies\n");
    assert!(err.starts_with("missing.json: cannot be read: "), "{err}");
}

#[test]
fn strict_fails_on_warnings() {
    let directory = directory();
    let (out, err) = ends(0, directory.path(), &["misleading.json"]);
    assert_eq!(out, "misleading.json: valid, with 0 policies\n");
    assert!(err.starts_with("misleading.json:2:1: warning: digest_key: "), "{err}");
    assert_eq!(ends(1, directory.path(), &["--strict", "misleading.json"]), (out, err));
    ends(0, directory.path(), &["--strict", "good.json"]);
}

#[test]
fn files_without_a_policy_document_end_with_status_1() {
    let directory = directory();
    let (out, err) = ends(1, directory.path(), &["other.yaml"]);
    assert_eq!(out, "other.yaml: no policy document\n");
    assert!(err.starts_with("quotagate: no file contains a policy document: "), "{err}");
}

#[test]
fn json_has_findings_with_positions() {
    let directory = directory();
    let (out, err) = ends(1, directory.path(), &["--json", "bad.json", "good.json"]);
    assert_eq!(err, "");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["valid"], false);
    let fault = &report["files"][0]["findings"][0];
    let position =
        ["severity", "line", "column", "document", "path"].map(|name| fault[name].clone());
    assert_eq!(position, [json!("fault"), json!(1), json!(2), json!(1), json!("domain")]);
    assert_eq!(report["files"][1]["documents"][0]["domain"], "shop");
    let (out, _) = ends(0, directory.path(), &["--json", "misleading.json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&report["valid"], &report["files"][0]["findings"][0]["severity"]),
        (&json!(true), &json!("warning"))
    );
    let (out, _) = ends(1, directory.path(), &["--json", "--strict", "misleading.json"]);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["valid"], false);
}
