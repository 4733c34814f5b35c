//! The JSON Schema and the reference page of the policy document match the reader.

#![cfg(test)]

#[allow(dead_code, reason = "the tests of reading use the faults")]
#[path = "../config/faults/cases.rs"]
mod cases;
mod documents;
mod drift;
mod nodes;

use std::path::{Path, PathBuf};

use quotagate_quota::config::schema;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Asserts that a committed file contains `text`. With `RENEW=1`, writes it instead.
fn current(path: &str, text: &str) {
    let file = workspace().join(path);
    if std::env::var_os("RENEW").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        committed == text,
        "{path} does not match the declarations: renew it with\n\
         RENEW=1 cargo test -p quotagate-quota --test schema current"
    );
}

#[test]
fn committed_schema_is_current() {
    current("envoy/quotagate.schema.json", &schema::text());
}

#[test]
fn committed_reference_page_is_current() {
    current("docs/reference/policy.md", &schema::page());
}

#[test]
fn schema_conforms_to_draft_2020_12() {
    let schema = &*nodes::ROOT;
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    jsonschema::draft202012::meta::validate(schema).unwrap();
}

/// Checks the default and the examples of each field.
#[test]
fn defaults_and_examples_match_their_schema() {
    for node in nodes::ALL.iter() {
        let schema = jsonschema::draft202012::new(&node.schema()).unwrap();
        for value in node.defaults_and_examples() {
            assert!(schema.is_valid(&value), "{}: {value}", node.path());
        }
    }
}
