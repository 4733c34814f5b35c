//! A bad configuration is rejected with the path of every fault, and never replaces a good one.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{self, Envoy, EnvoyOptions, Form, ListenerFile};
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{http, paths, wait, yaml};
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{document, per_caller};

#[test]
fn shipped_configuration_is_valid() -> Result<()> {
    let form = Form::of_run()?;
    let mut config = yaml::read(&form.shipped())?;
    if form == Form::Wasm {
        let plugin = envoy::plugin(&mut config)?;
        *yaml::at(plugin, "/vm_config/code/local/filename")? = json!(paths::filter());
    }
    Envoy::validate(&config).map_err(anyhow::Error::msg)
}

/// Envoy's YAML parser has its own rules for types, so this test sends values through it as people
/// write them.
#[test]
fn values_as_people_write_them_in_envoys_yaml_are_accepted() -> Result<()> {
    let form = Form::of_run()?;
    let mut text = fs::read_to_string(form.shipped())?;
    if form == Form::Wasm {
        text = text.replace("dist/quotagate.wasm", &paths::filter().display().to_string());
    }
    let replaced = [
        ("on_failure: allow", ["local_share: 0.25", "on_failure: local"]),
        ("quota: 5\n", ["quota: 5000000000", "mode: off\n"]),
    ];
    let written = replaced.iter().fold(text, |text, (from, to)| {
        let line = text.lines().find(|line| line.contains(from.trim_end()));
        let line = line.expect("the shipped configuration has it");
        let indent = &line[..line.len() - line.trim_start().len()];
        text.replace(from, &to.join(&format!("\n{indent}")))
    });
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("envoy.yaml");
    fs::write(&file, written)?;
    let output = Envoy::validate_file(&file)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn all_faults_are_listed_with_their_paths() -> Result<()> {
    let mut document = document(json!([
        {"name": "Per Caller", "partition_by": ["nobody"], "quota": -1, "window": "1x"},
        {"name": "b", "partition_by": [], "quota": 1, "window": "1m", "qouta": 2},
        {"name": "b", "partition_by": [], "quota": 1, "window": "1m", "precision": "leased"}
    ]));
    document["domain"] = json!("Shop!");
    document["on_wrong_document"] = json!("reject");
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
    assert!(
        refused.contains("did you mean \"quota\""),
        "an unknown field suggests a known one:\n{refused}"
    );
    Ok(())
}

#[test]
fn good_configuration_validates_with_the_built_filter() -> Result<()> {
    let config = EnvoyOptions::new(1, 1).document(document(json!([per_caller(5)]))).config()?;
    Envoy::validate(&config).map_err(anyhow::Error::msg)
}

#[test]
fn invariant_6_bad_configuration_never_replaces_a_good_one() -> Result<()> {
    for (on_wrong_document, rejected) in [("keep", 0), ("reject", 1)] {
        let store = StoreProcess::start("memory:", &[])?;
        let upstream = Upstream::start()?;
        let file = ListenerFile::new()?;
        let options = |quota: Value| {
            let mut policy = per_caller(5);
            policy["quota"] = quota;
            let mut document = document(json!([policy]));
            document["on_wrong_document"] = json!(on_wrong_document);
            EnvoyOptions::new(upstream.port(), store.port()).document(document)
        };
        file.publish("1", &options(json!(5)).config()?)?;
        let envoy = Envoy::start(&options(json!(5)).edit(file.edit()))?;
        let limit = || -> Result<String> {
            let response = http::get(envoy.port(), "/")?;
            Ok(response.header("x-ratelimit-limit").unwrap_or_default().to_owned())
        };
        assert_eq!(limit()?, "5");

        file.publish("2", &options(json!(-1)).config()?)?;
        let updates = || {
            let stat =
                |name: &str| inspect::stat(&envoy, &format!("^listener_manager.lds.{name}$"));
            Ok((stat("update_success")?, stat("update_rejected")?))
        };
        wait::until_true("the bad configuration to arrive", Duration::from_secs(20), || {
            updates().map(|counts: (u64, u64)| counts == (2 - rejected, rejected))
        })?;
        assert!(envoy.log().contains("configuration refused: policies[0].quota: "));
        for _ in 0..20 {
            assert_eq!(limit()?, "5", "the good configuration stays in use");
        }

        file.publish("3", &options(json!(7)).config()?)?;
        let seven = || Ok(limit()? == "7");
        wait::until_true("the next good configuration", Duration::from_secs(20), seven)?;
    }
    Ok(())
}

#[test]
fn wasm_form_refuses_a_store_inside_the_filter_and_keeps_the_old_configuration() -> Result<()> {
    if !Form::Wasm.is_under_test("`store.redis` is refused")? {
        return Ok(());
    }
    let store = StoreProcess::start("memory:", &[])?;
    let upstream = Upstream::start()?;
    let file = ListenerFile::new()?;
    let options = |inside: bool| {
        let mut document = document(json!([per_caller(5)]));
        if inside {
            document["store"] = json!({"redis": "redis://u:s3cret@127.0.0.1:6379"});
        }
        EnvoyOptions::new(upstream.port(), store.port()).document(document)
    };
    file.publish("1", &options(false).config()?)?;
    let envoy = Envoy::start(&options(false).edit(file.edit()))?;
    let limit = || -> Result<String> {
        let response = http::get(envoy.port(), "/")?;
        Ok(response.header("x-ratelimit-limit").unwrap_or_default().to_owned())
    };
    assert_eq!(limit()?, "5");
    file.publish("2", &options(true).config()?)?;
    wait::until_true("the configuration to be refused", Duration::from_secs(20), || {
        Ok(envoy.log().contains("configuration refused: store.redis: needs the native form"))
    })?;
    assert_eq!(limit()?, "5", "the good configuration stays in use");
    let refusals =
        envoy.log().lines().filter(|line| line.contains("quotagate: ")).collect::<String>();
    assert!(!refusals.contains("s3cret"), "{refusals}");
    Ok(())
}
