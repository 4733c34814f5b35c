//! The pure core cannot name its host, and the filter carries nothing that only commands and tests need.

#![cfg(test)]

use std::process::Command;

/// All that `package` is built of, a line each.
fn tree(package: &str) -> String {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let output =
        tree.args(["--offline", "--locked"]).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(tree.starts_with(&format!("{package} ")) && tree.contains("serde_json "), "{tree}");
    tree
}

fn has(tree: &str, package: &str) -> bool {
    tree.lines().any(|line| line.starts_with(&format!("{package} ")))
}

#[test]
fn the_core_depends_on_no_host_runtime_or_database() {
    let tree = tree("quotagate-quota");
    for host in ["proxy-wasm", "tokio", "redis", "hyper", "mio", "socket2"] {
        assert!(!has(&tree, host), "{host} is in\n{tree}");
    }
}

#[test]
fn only_the_command_has_the_schema() {
    assert!(!features("quotagate").contains("schema"));
    assert!(features("quotagate-cli").contains("schema"));
}

/// The features that `package` needs of the core.
fn features(package: &str) -> String {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{p} {f}"]);
    let output =
        tree.args(["--offline", "--locked"]).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let core = tree.lines().find(|line| line.starts_with("quotagate-quota ")).unwrap();
    // The path of the package may hold any word.
    core.rsplit(')').next().unwrap().to_owned()
}
