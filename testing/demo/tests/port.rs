//! The demo's program, as `cargo xtask demo` starts it.

use std::{net::TcpListener, process::Command};

#[test]
fn taken_port_ends_the_demo_with_a_remedy() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_quotagate-demo"));
    let output = demo.args(["--once", "--port", &port.to_string()]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        errors.contains(&format!("port {port} is taken")) && errors.contains("--port"),
        "{errors}"
    );
}
