//! A configuration that cannot be served is refused with the place of every fault, and replaces nothing.

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::{paths, yaml};
use serde_json::json;

use crate::rig::{document, per_caller};

#[test]
fn the_shipped_configuration_is_valid() -> Result<()> {
    let mut config = yaml::read(&paths::envoy_config())?;
    let filter = quotagate_support::envoy::filter(&mut config)?;
    *yaml::at(filter, "/vm_config/code/local/filename")? = json!(paths::filter());
    Envoy::validate(&config).map_err(anyhow::Error::msg)
}

#[test]
fn all_faults_are_listed_with_their_paths() -> Result<()> {
    let mut document = document(json!([
        {"name": "Per Caller", "partition_by": ["nobody"], "quota": -1, "window": "1x"},
        {"name": "b", "quota": 1, "window": "1m", "qouta": 2},
        {"name": "b", "quota": 1, "window": "1m", "precision": "lease"}
    ]));
    document["domain"] = json!("Shop!");
    let config = EnvoyOptions::new(1, 1).document(document).config()?;
    let refused = Envoy::validate(&config).expect_err("the configuration is refused");
    for path in [
        "domain",
        "policies[0].name",
        "policies[0].partition_by[0]",
        "policies[0].quota",
        "policies[0].window",
        "policies[1].qouta",
        "policies[2].name",
        "policies[2].precision",
    ] {
        assert!(
            refused.contains(&format!("configuration refused: {path}: ")),
            "{path} is not in:\n{refused}"
        );
    }
    assert!(refused.contains("quota"), "an unknown field suggests a known one:\n{refused}");
    Ok(())
}

#[test]
fn a_good_one_validates_with_the_built_filter() -> Result<()> {
    let config = EnvoyOptions::new(1, 1).document(document(json!([per_caller(5)]))).config()?;
    Envoy::validate(&config).map_err(anyhow::Error::msg)
}
