//! A published document in a fleet of both versions: the previous one does not know a field of it.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form};
use quotagate_support::paths;
use quotagate_support::redis::Redis;
use quotagate_support::upstream::Upstream;
use quotagate_support::wait;
use serde_json::{Value, json};

use super::Version;
use crate::live::{document_status, live, of_path, publish, status, until_in_force};

/// A report comes every 5 s. The rest is for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The field of a policy that came last: a later one takes its place here.
const NEWEST: &str = "in_flight";

/// A policy with [`NEWEST`], which counts only `/y`.
fn newest() -> Value {
    json!({
        "name": "y", "match": {"path": {"exact": "/y"}}, "partition_by": [], NEWEST: 5
    })
}

impl Version {
    /// Whether it reads a document without faults.
    fn reads(&self, document: &Value) -> Result<bool> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("document.json");
        std::fs::write(&file, document.to_string())?;
        let mut check = Command::new(self.parts.join(paths::COMMAND));
        check.arg("check").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(check.status()?.success())
    }

    /// The names of all fields of its policy document.
    fn fields(&self) -> Result<BTreeSet<String>> {
        let schema = Command::new(self.parts.join(paths::COMMAND)).arg("schema").output()?;
        let mut names = BTreeSet::new();
        add_fields(&serde_json::from_slice(&schema.stdout)?, &mut names);
        ensure!(!names.is_empty(), "the schema of the {} version has no fields", self.name);
        Ok(names)
    }
}

/// Adds the names of all fields that this part of a schema has.
fn add_fields(schema: &Value, names: &mut BTreeSet<String>) {
    if let Some(properties) = schema["properties"].as_object() {
        names.extend(properties.keys().cloned());
    }
    match schema {
        Value::Object(parts) => parts.values().for_each(|part| add_fields(part, names)),
        Value::Array(parts) => parts.iter().for_each(|part| add_fields(part, names)),
        _ => {}
    }
}

/// Why this test says nothing about these versions; `None` if it does.
///
/// # Errors
/// When the previous version does not know a field, and [`newest`] has another one.
fn why_not(previous: &BTreeSet<String>, this: &BTreeSet<String>) -> Result<Option<&'static str>> {
    if !previous.contains("live") {
        return Ok(Some("the previous version has no live documents"));
    }
    let newer: Vec<&String> = this.difference(previous).collect();
    if newer.is_empty() {
        return Ok(Some("the previous version knows all fields of this one"));
    }
    ensure!(
        newer.iter().any(|name| *name == NEWEST),
        "the previous version knows `{NEWEST}`, but not {newer:?}: let `newest()` have one of these"
    );
    Ok(None)
}

/// A proxy of the fleet.
struct Proxy {
    what: String,
    envoy: Envoy,
    knows_newest: bool,
    /// Whether what counts for it knows [`NEWEST`], too.
    can_count_newest: bool,
}

impl Proxy {
    /// Waits until it has logged that it refuses the document with this number.
    fn until_refused(&self, number: u64) -> Result<()> {
        let line = format!("number {number} is refused");
        wait::until_true("the refusal", PATIENCE, || Ok(self.envoy.log().contains(&line)))
    }
}

#[test]
fn document_test_is_left_out_only_where_the_versions_do_not_differ() {
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let this: BTreeSet<String> = of(&["live", NEWEST, "quota"]);
    for (previous, outcome) in [
        (&["quota"][..], Some("the previous version has no live documents")),
        (&["live", NEWEST, "quota"], Some("the previous version knows all fields of this one")),
        (&["live", "quota"], None),
        (&["live"], None),
    ] {
        assert_eq!(why_not(&of(previous), &this).unwrap(), outcome, "{previous:?}");
    }
    let error = why_not(&of(&["live", NEWEST]), &this).unwrap_err().to_string();
    assert!(error.contains(r#"not ["quota"]: let `newest()`"#), "{error}");
}

#[test]
fn previous_filters_refuse_a_document_with_a_newer_field_and_newer_filters_take_it_up() -> Result<()>
{
    let Some([previous, this]) = Version::both()? else { return Ok(()) };
    let embedded = live(json!([]));
    if let Some(why) = why_not(&previous.fields()?, &this.fields()?)? {
        return Ok(writeln!(io::stderr(), "not run: {why}")?);
    }
    assert!(previous.reads(&embedded)?, "the previous version refuses {embedded}");
    assert!(!previous.reads(&live(json!([newest()])))?, "the previous version reads {}", newest());
    let redis = Redis::start()?;
    let stores = [previous.store(&redis.url())?, this.store(&redis.url())?];
    let upstream = Upstream::start()?;
    // A module that counts by itself is a store, too.
    let counts_by_itself: &[bool] =
        if Form::of_run()? == Form::Native { &[false, true] } else { &[false] };
    let mut fleet = Vec::new();
    for (filter, knows_newest) in [(&previous, false), (&this, true)] {
        for (store, of) in stores.iter().zip([&previous, &this]) {
            for by_itself in counts_by_itself {
                let options = EnvoyOptions::new(upstream.port(), store.port());
                let options = options.document(embedded.clone()).parts(&filter.parts);
                let url = redis.url();
                let options = if *by_itself { options.redis(&url) } else { options };
                let what = format!("filter {}, store {}, {by_itself}", filter.name, of.name);
                let can_count_newest = if *by_itself { knows_newest } else { of.name == this.name };
                let envoy = Envoy::start(&options)?;
                fleet.push(Proxy { what, envoy, knows_newest, can_count_newest });
            }
        }
    }
    let [previous_store, this_store] = &stores;
    publish(previous_store, json!([of_path("x", 0)]))?;
    for Proxy { what, envoy, .. } in &fleet {
        until_in_force(envoy, 1, 1).with_context(|| what.clone())?;
        assert_eq!(status(envoy.port(), "/x")?, 429, "{what}");
    }
    // The previous store publishes nothing that it does not know.
    let refused = publish(previous_store, json!([newest()])).err().context("it publishes it")?;
    let fault = format!("policies[0].{NEWEST}: unknown field");
    assert!(refused.to_string().contains(&fault), "{refused}");
    publish(this_store, json!([newest()]))?;
    for proxy @ Proxy { what, envoy, knows_newest, can_count_newest } in &fleet {
        if *knows_newest {
            until_in_force(envoy, 2, 1).with_context(|| what.clone())?;
            assert_eq!(status(envoy.port(), "/x")?, 200, "{what}");
            // Without a store that can, `on_failure` decides.
            let counted = if *can_count_newest { 200 } else { 503 };
            assert_eq!(status(envoy.port(), "/y")?, counted, "{what}");
        } else {
            proxy.until_refused(2).with_context(|| what.clone())?;
            assert_eq!([status(envoy.port(), "/x")?, status(envoy.port(), "/y")?], [429, 200]);
        }
    }
    // Stores of both versions say who refuses it, and why.
    let of = |knows| fleet.iter().filter(|proxy| proxy.knows_newest == knows).count();
    for (store, name) in stores.iter().zip([previous.name, this.name]) {
        let mut seen = Value::Null;
        wait::until_true("the refusals in the status", PATIENCE, || {
            seen = document_status(store)?;
            let rows = seen["proxies"].as_array().cloned().unwrap_or_default();
            let rows_with = |number: u64, refuses: &Value| {
                let is = |row: &&Value| row["number"] == number && row["refuses"] == *refuses;
                rows.iter().filter(is).count()
            };
            let sentence = seen["refused"][0].as_str().unwrap_or_default().to_owned();
            // The whole policy is new to it, and a report has only the first fault.
            Ok(sentence.contains("published as number 2: ")
                && sentence.contains("the first: policies[0].")
                && sentence.contains("stays in force")
                && rows_with(1, &json!(2)) == of(false)
                && rows_with(2, &Value::Null) == of(true))
        })
        .with_context(|| format!("store {name}: {seen}"))?;
    }
    // What all of them know replaces it, from the previous store, too.
    publish(previous_store, json!([of_path("z", 0)]))?;
    for Proxy { what, envoy, .. } in &fleet {
        until_in_force(envoy, 3, 1).with_context(|| what.clone())?;
        let statuses = ["/x", "/y", "/z"].map(|path| status(envoy.port(), path).ok());
        assert_eq!(statuses, [200, 200, 429].map(Some), "{what}");
    }
    writeln!(
        io::stderr(),
        "{}: {} proxies refuse a document with `{NEWEST}`, and {} take it up",
        Form::of_run()?.name(),
        of(false),
        of(true)
    )?;
    Ok(())
}
