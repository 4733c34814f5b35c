//! `quotagate schema` prints the committed schema and reference page.

use std::path::Path;
use std::process::Command;

#[test]
fn schema_prints_the_committed_files() {
    for (arguments, file) in [
        (&["schema"][..], "envoy/quotagate.schema.json"),
        (&["schema", "--markdown"], "docs/reference/policy.md"),
    ] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_quotagate")).args(arguments).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            std::fs::read_to_string(committed).unwrap()
        );
    }
}
