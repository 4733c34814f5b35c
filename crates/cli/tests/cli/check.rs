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

/// A policy document in a `WasmPlugin`, with the window of its only policy.
fn plugin(domain: &str, window: &str) -> String {
    let document = json!({
        "domain": domain, "store": {"cluster": "s"},
        "policies": [{"name": "all", "partition_by": [], "quota": 5, "window": window}],
    });
    let spec = json!({"url": "oci://x/quotagate", "pluginConfig": document});
    json!({"kind": "WasmPlugin", "metadata": {"name": "x"}, "spec": spec}).to_string()
}

#[test]
fn diff_says_what_happens_to_counters() {
    let directory = directory();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("old.yaml", &format!("{}\n---\n{}\n", plugin("shop", "1m"), plugin("blog", "1m")));
    write("new.yaml", &format!("{}\n---\n{}\n", plugin("blog", "1m"), plugin("shop", "1h")));
    let (out, err) = ends(0, directory.path(), &["--diff", "old.yaml", "new.yaml"]);
    assert_eq!(err, "");
    assert_eq!(
        out,
        "domain blog
  unchanged: all
domain shop
  all: starts from zero (differs: window)
    window: 1m -> 1h
    counts twice while both documents run: the old counter grants 5, and the new one 5
"
    );
    let (out, _) = ends(0, directory.path(), &["--json", "--diff", "old.yaml", "new.yaml"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["valid"], &report["diff"]["loses_counts"]), (&json!(true), &json!(true)));
    let policy = &report["diff"]["documents"][1]["policies"][0];
    assert_eq!(policy["change"], "starts_from_zero");
    assert_eq!(policy["counts_twice"], json!({"old": 5, "new": 5}));
    // Both files must be valid, and only warnings of the new one are strict.
    let (out, err) = ends(1, directory.path(), &["--diff", "old.yaml", "bad.json"]);
    assert!(out.is_empty() && err.starts_with("bad.json:1:2: domain: "), "{out}{err}");
    let (_, err) = ends(1, directory.path(), &["--diff", "other.yaml", "good.json"]);
    assert_eq!(err, "other.yaml: no policy document\n");
    ends(2, directory.path(), &["--diff", "absent.yaml", "good.json"]);
    ends(0, directory.path(), &["--strict", "--diff", "misleading.json", "good.json"]);
    ends(1, directory.path(), &["--strict", "--diff", "good.json", "misleading.json"]);
    ends(2, directory.path(), &["--diff", "good.json"]);
    ends(2, directory.path(), &["--diff", "good.json", "good.json", "good.json"]);
}

const RULES: &str = "domain: d
descriptors:
- {key: user, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: user, value: root, rate_limit: {unlimited: true}}
";

/// A folder `rules` with two rule files beside it, one of them wrong.
fn rules() -> tempfile::TempDir {
    let directory = directory();
    fs::create_dir(directory.path().join("rules")).unwrap();
    for (name, text) in [
        ("rules/a.yaml", RULES),
        ("rules/b.yaml", "domain: e\n"),
        ("c.yaml", RULES),
        ("wrong.yaml", "domain: f\ndescriptors:\n- {key: a, valu: b}\n- {key: a}\n- {key: a}\n"),
    ] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

#[test]
fn rule_files_are_checked_as_the_service_reads_them() {
    let directory = rules();
    let (out, err) = ends(0, directory.path(), &["rules"]);
    assert_eq!(
        out,
        "rules/a.yaml: valid, with 2 rules in domain \"d\", 1 of them with a limit
  d.user: unit=DAY requests_per_unit=5, shadow_mode: false, quota_mode: false
  d.user_root: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false
rules/b.yaml: valid, with 0 rules in domain \"e\", 0 of them with a limit
"
    );
    assert_eq!(err, "");
    let (out, err) = ends(1, directory.path(), &["wrong.yaml", "good.json"]);
    assert_eq!(out, "good.json: valid, with 0 policies\n");
    assert_eq!(
        err,
        "wrong.yaml:3: descriptors[0].valu: unknown field: did you mean \"value\"?
wrong.yaml:4: descriptors[1]: the key \"a\" without a value occurs twice at this level: merge the two, or remove one
wrong.yaml:5: descriptors[2]: the key \"a\" without a value occurs twice at this level: merge the two, or remove one
"
    );
    let (_, err) = ends(1, directory.path(), &["c.yaml", "rules/a.yaml"]);
    assert!(
        err.starts_with("rules/a.yaml:1: domain: the domain \"d\" is also in c.yaml: "),
        "{err}"
    );
    let (_, err) = ends(1, directory.path(), &["--merge-domains", "c.yaml", "rules/a.yaml"]);
    assert!(err.starts_with("rules/a.yaml:3: descriptors[0]: the key \"user\""), "{err}");
    // Files and folders are one set, and no file is read twice.
    let (_, err) = ends(1, directory.path(), &["rules", "c.yaml"]);
    assert!(
        err.starts_with("rules/a.yaml:1: domain: the domain \"d\" is also in c.yaml: "),
        "{err}"
    );
    let (out, err) = ends(0, directory.path(), &["rules", "rules/a.yaml"]);
    assert!(out.matches("valid").count() == 2 && err.is_empty(), "{out}{err}");
    let (out, _) = ends(0, directory.path(), &["--rules", "rules/b.yaml"]);
    assert!(out.starts_with("rules/b.yaml: valid, with 0 rules"), "{out}");
    ends(1, directory.path(), &["rules/b.yaml"]);
    let (out, _) = ends(0, directory.path(), &["--json", "c.yaml"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    let rules = &report["files"][0]["rules"];
    assert_eq!(
        (&rules["domain"], &rules["rules"], &rules["limited"]),
        (&json!("d"), &json!(2), &json!(1))
    );
}

#[test]
fn rules_are_converted_and_what_is_missing_is_counted() {
    let directory = rules();
    let convert = |status: i32, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quotagate"));
        let output =
            command.arg("convert").args(arguments).current_dir(directory.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (document, err) = convert(0, &["rules"]);
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.starts_with("quotagate: without --envoy, the values"), "{err}");
    fs::write(directory.path().join("written.yaml"), &document).unwrap();
    let (out, _) = ends(0, directory.path(), &["written.yaml"]);
    assert_eq!(out, "written.yaml: valid, with 1 policy\n");
    let envoy = "filter: {typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: d}}\n";
    fs::write(directory.path().join("envoy.yaml"), envoy).unwrap();
    let (document, err) = convert(1, &["rules", "--envoy", "envoy.yaml"]);
    assert_eq!(document.matches("NOT CONVERTED: ").count(), 2, "{document}");
    assert!(
        err.starts_with("quotagate: the document does not say 2 things that the service does"),
        "{err}"
    );
    fs::create_dir(directory.path().join("empty")).unwrap();
    let (_, err) = convert(2, &["empty"]);
    assert!(err.starts_with("quotagate: the folder holds no rule file: name"), "{err}");
    let (out, err) = convert(1, &["wrong.yaml"]);
    assert!(out.is_empty() && err.starts_with("wrong.yaml:3: descriptors[0].valu: "), "{err}");
    for (file, part) in [
        ("absent.yaml", "cannot read absent.yaml: "),
        ("other.yaml", "other.yaml has no filter envoy.filters.http.ratelimit: give"),
    ] {
        let (_, err) = convert(2, &["rules", "--envoy", file]);
        assert!(err.starts_with(&format!("quotagate: {part}")), "{err}");
    }
}
