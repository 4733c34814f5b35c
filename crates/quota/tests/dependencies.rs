//! Crates depend on each other in one direction. The pure core cannot name its host. The filter
//! contains nothing that only commands and tests need.

#![cfg(test)]

use std::process::Command;

use serde_json::Value;

/// The workspace crates that each crate of the product may depend on.
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("quotagate", &["quotagate-protocol", "quotagate-quota"]),
    ("quotagate-protocol", &[]),
    ("quotagate-calendar", &["quotagate-protocol"]),
    ("quotagate-quota", &["quotagate-protocol"]),
    ("quotagate-store", &["quotagate-calendar", "quotagate-protocol"]),
    (
        "quotagate-operate",
        &["quotagate-calendar", "quotagate-protocol", "quotagate-quota", "quotagate-store"],
    ),
    ("quotagate-control", &["quotagate-operate", "quotagate-protocol", "quotagate-store"]),
    (
        "quotagate-native",
        &["quotagate-operate", "quotagate-protocol", "quotagate-quota", "quotagate-store"],
    ),
    ("quotagate-advise", &["quotagate-calendar", "quotagate-protocol"]),
    (
        "quotagate-ratelimit",
        &["quotagate-control", "quotagate-protocol", "quotagate-quota", "quotagate-store"],
    ),
    ("quotagate-kubernetes", &["quotagate-operate", "quotagate-protocol", "quotagate-quota"]),
    (
        "quotagate-cli",
        &[
            "quotagate-advise",
            "quotagate-control",
            "quotagate-kubernetes",
            "quotagate-operate",
            "quotagate-protocol",
            "quotagate-quota",
            "quotagate-ratelimit",
            "quotagate-store",
        ],
    ),
];
/// The workspace crates that its tests may also depend on.
const TESTS: &[(&str, &[&str])] = &[("quotagate-advise", &["quotagate-quota"])];

/// All packages that `package` is built from, one per line in `format`.
fn tree(package: &str, format: &str) -> String {
    let mut tree = Command::new(env!("CARGO"));
    tree.args([
        "tree",
        "--package",
        package,
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        format,
    ]);
    let output = tree
        .args(["--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(tree.starts_with(&format!("{package} ")) && tree.contains("serde_json "), "{tree}");
    tree
}

fn has(tree: &str, package: &str) -> bool {
    tree.lines().any(|line| line.starts_with(&format!("{package} ")))
}

#[test]
fn core_depends_on_no_host_runtime_or_database() {
    let tree = tree("quotagate-quota", "{p}");
    for host in ["proxy-wasm", "tokio", "redis", "hyper", "mio", "socket2"] {
        assert!(!has(&tree, host), "{host} is in\n{tree}");
    }
}

#[test]
fn store_sees_no_policy() {
    let tree = tree("quotagate-store", "{p}");
    assert!(!has(&tree, "quotagate-quota"), "{tree}");
}

#[test]
fn operating_depends_on_no_web_framework() {
    let tree = tree("quotagate-operate", "{p}");
    for server in ["axum", "tower-http", "procfs"] {
        assert!(!has(&tree, server), "{server} is in\n{tree}");
    }
}

#[test]
fn only_the_command_depends_on_the_schema() {
    assert!(!features("quotagate").contains("schema"));
    assert!(features("quotagate-cli").contains("schema"));
}

/// In a build of the whole workspace, a crate of the tests turns this feature on for all.
#[test]
fn deployed_module_reads_every_number_as_it_was_written() {
    let tree = tree("quotagate-native", "{p} {f}");
    let json = tree.lines().find(|line| line.starts_with("serde_json ")).unwrap();
    assert!(json.contains("float_roundtrip"), "{json}");
}

/// The features of the core that `package` enables.
fn features(package: &str) -> String {
    let tree = tree(package, "{p} {f}");
    let core = tree.lines().find(|line| line.starts_with("quotagate-quota ")).unwrap();
    // The package's path may contain any word.
    core.rsplit(')').next().unwrap().to_owned()
}

fn of<'a>(table: &[(&str, &'a [&'a str])], package: &str) -> Option<&'a [&'a str]> {
    table.iter().find(|(name, _)| *name == package).map(|(_, names)| *names)
}

#[test]
fn crates_of_the_product_depend_in_one_direction() {
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--no-deps", "--format-version", "1", "--offline", "--locked"]);
    let output = metadata.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let own: Vec<String> = packages.iter().map(name).collect();
    let mut checked = 0;
    for package in packages {
        let package_name = name(package);
        let Some(allowed) = of(DIRECTIONS, &package_name) else {
            // Crates for tests and tasks may depend on everything.
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let dependency_name = name(dependency);
            let is_dev = dependency["kind"] == "dev";
            let is_product = of(DIRECTIONS, &dependency_name).is_some();
            let is_itself = dependency_name == package_name;
            if is_itself || !own.contains(&dependency_name) || (is_dev && !is_product) {
                continue;
            }
            let in_tests = if is_dev { of(TESTS, &package_name).unwrap_or_default() } else { &[] };
            assert!(
                allowed.iter().chain(in_tests).any(|name| *name == dependency_name),
                "{package_name} must not depend on {dependency_name}"
            );
            checked += 1;
        }
    }
    assert!(checked >= 8, "only {checked} dependencies were found");
}
