//! The Helm chart, with Helm's own code: a library in a Python package, which `cargo xtask setup`
//! fetches. No cluster and no network are involved.

pub mod cases;

use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use quotagate_workspace::{
    paths,
    tools::{HELM, KUBERNETES_SCHEMAS},
};
use serde_json::{Value, json};

/// Calls Helm: one request, one answer.
const SCRIPT: &str = include_str!("helm.py");

/// The chart of the workspace.
#[must_use]
pub fn chart() -> PathBuf {
    paths::root().join("charts").join("quotagate")
}

/// The rendered text of each template, or why Helm renders nothing.
pub type Rendered = Result<BTreeMap<String, String>, String>;

/// Renders a chart, which is a folder or an archive, once for each item of `values`.
///
/// # Errors
/// When Helm is missing, or cannot load the chart.
pub fn render(
    chart: &Path,
    values: &[Value],
    release: &str,
    namespace: &str,
) -> Result<Vec<Rendered>> {
    render_over(chart, values, release, namespace, &[])
}

/// The same, in a cluster with these objects.
///
/// # Errors
/// When Helm is missing, or cannot load the chart.
pub fn render_over(
    chart: &Path,
    values: &[Value],
    release: &str,
    namespace: &str,
    existing: &[Value],
) -> Result<Vec<Rendered>> {
    let request = json!({"render": {
        "chart": chart, "values": values, "name": release, "namespace": namespace,
        "existing": existing,
    }});
    Ok(serde_json::from_value(call(&request)?)?)
}

/// What `helm lint --strict` finds for each item of `values`.
///
/// # Errors
/// When Helm is missing.
pub fn lint(chart: &Path, values: &[Value]) -> Result<Vec<Vec<String>>> {
    let request = json!({"lint": {"chart": chart, "values": values}});
    Ok(serde_json::from_value(call(&request)?)?)
}

/// The definitions of all kinds of a version of Kubernetes, as JSON Schema that refuses unknown
/// fields.
///
/// # Errors
/// When the package with the schemas is missing.
pub fn kubernetes(version: &str) -> Result<PathBuf> {
    let folder = KUBERNETES_SCHEMAS.installed()?.join("kubernetes-json-schema");
    Ok(folder.join(format!("v{version}-local-strict")).join("_definitions.json"))
}

fn call(request: &Value) -> Result<Value> {
    HELM.installed()?;
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).env("PYTHONPATH", HELM.folder());
    python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = python.spawn().context("cannot run python3: run `cargo xtask setup`")?;
    let mut input = child.stdin.take().context("python3 has no input")?;
    let written = input.write_all(request.to_string().as_bytes());
    drop(input);
    let output = child.wait_with_output()?;
    // A script that ends early closes the pipe. Its own message says more.
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("Helm failed: {}", errors.lines().last().unwrap_or("no reason given"));
    }
    written.context("cannot write to python3")?;
    serde_json::from_slice(&output.stdout).context("Helm's answer is no JSON")
}
