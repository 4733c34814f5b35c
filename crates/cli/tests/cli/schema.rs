//! `quotagate schema` prints the schema that editors load.

use std::path::Path;
use std::process::Command;

#[test]
fn schema_prints_the_committed_file() {
    let output = Command::new(env!("CARGO_BIN_EXE_quotagate")).arg("schema").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../envoy/quotagate.schema.json");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), std::fs::read_to_string(committed).unwrap());
}
