//! The program where what it needs is missing.

use std::process::Command;

#[test]
fn without_valgrind_it_names_the_set_up() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_quotagate-bench"));
    // Without a PATH there is nothing that it could start.
    let output = bench.args(["--instructions", "--budgets"]).env("PATH", "").output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let remedy = "valgrind or h2load is not on PATH: run `cargo xtask setup --bench`";
    assert!(!output.status.success() && errors.contains(remedy), "{errors}");
}
