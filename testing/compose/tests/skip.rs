//! The program as `cargo xtask ci --skip-compose` runs it.

use std::process::Command;

#[test]
fn skipped_run_says_so_and_starts_nothing() {
    let mut compose = Command::new(env!("CARGO_BIN_EXE_quotagate-compose"));
    // Without a PATH there is nothing that it could start.
    let output = compose.args(["--skip", "no engine here"]).env("PATH", "").output().unwrap();
    let log = [output.stdout, output.stderr].concat();
    let log = String::from_utf8(log).unwrap();
    assert!(output.status.success() && log.contains("NOT RUN: no engine here"), "{log}");
}
