//! The JSON Schema of the policy document and the reader say the same.

#![cfg(test)]

mod documents;
mod drift;
mod places;

use std::path::{Path, PathBuf};

use quotagate_quota::config::schema;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_committed_file_is_what_the_types_generate() {
    let committed =
        std::fs::read_to_string(workspace().join("envoy/quotagate.schema.json")).unwrap_or_default();
    assert!(
        committed == schema::text(),
        "envoy/quotagate.schema.json is not that of the types: renew it with\n\
         cargo run -p quotagate-cli -- schema > envoy/quotagate.schema.json"
    );
}

#[test]
fn the_schema_is_one_of_draft_2020_12() {
    let schema = &*places::ROOT;
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    jsonschema::draft202012::meta::validate(schema).unwrap();
}
