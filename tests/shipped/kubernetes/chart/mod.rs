//! The Helm chart: what it renders, what it refuses, and what is written about it.

mod documents;
mod files;
mod front;
mod refused;
mod umbrella;
mod values;

use std::{collections::BTreeMap, fs, path::Path};

use quotagate_chart::cases::merge;
use quotagate_support::{paths, yaml};
use serde_json::Value;

/// The name of the release in all files.
const RELEASE: &str = "quotagate";

/// Values of an example, with some replaced.
fn example(name: &str, overlay: Value) -> Value {
    let mut values = yaml::read(&quotagate_chart::chart().join("examples").join(name)).unwrap();
    merge(&mut values, overlay);
    values
}

/// The rendered text of each template that renders something, or Helm's message.
fn render(values: &[Value]) -> Vec<Result<BTreeMap<String, String>, String>> {
    let chart = quotagate_chart::chart();
    let mut rendered = quotagate_chart::render(&chart, values, RELEASE, RELEASE).unwrap();
    for templates in rendered.iter_mut().flatten() {
        templates.retain(|_, text| !text.trim().is_empty());
    }
    rendered
}

/// The objects of a rendered chart.
fn objects(templates: &BTreeMap<String, String>) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.yaml");
    let objects = |(name, text): (&String, &String)| {
        if name.ends_with(".txt") {
            return Vec::new();
        }
        fs::write(&file, text).unwrap();
        yaml::read_all(&file).unwrap()
    };
    templates.iter().flat_map(objects).collect()
}

/// Asserts that a committed file contains `text`. With `RENEW=1`, writes it instead.
fn current(path: &Path, text: &str) {
    if std::env::var_os("RENEW").is_some() {
        fs::write(path, text).unwrap();
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    let shown = path.strip_prefix(paths::root()).unwrap_or(path).display();
    assert!(
        committed == text,
        "{shown} does not match the chart: renew it with\n\
         RENEW=1 cargo test --workspace --test shipped current"
    );
}
