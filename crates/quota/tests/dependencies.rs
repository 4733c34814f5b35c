//! The pure core cannot name its host: nothing that it depends on knows one.

use std::process::Command;

#[test]
fn the_core_depends_on_no_host_runtime_or_database() {
    let mut tree = Command::new(env!("CARGO"));
    tree.args([
        "tree",
        "--package",
        "quotagate-quota",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let output =
        tree.args(["--offline", "--locked"]).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(tree.starts_with("quotagate-quota ") && tree.contains("serde_json "), "{tree}");
    for host in ["proxy-wasm", "tokio", "redis", "hyper", "mio", "socket2"] {
        assert!(!tree.lines().any(|line| line.starts_with(&format!("{host} "))), "{host} is in\n{tree}");
    }
}
