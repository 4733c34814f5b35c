//! The resource `QuotaPolicy` of the chart: what the API server accepts, and what it refuses.

use anyhow::{Context, Result, bail, ensure};
use quotagate_chart::cases::merge;
use quotagate_support::{paths, yaml};
use serde_json::{Value, json};

use super::{
    api_server::{output, printed},
    helm::{Helm, RELEASE},
};
use crate::checks::Checks;

/// Good and bad objects, which the merge judges, too.
const CASES: &str = "crates/kubernetes/tests/kubernetes/objects.yaml";
const DEFINITION: &str = "crd/quotapolicies.quotagate.io";
/// What makes the server refuse unknown fields, as `kubectl` does by default.
const CREATE: [&str; 4] = ["create", "--validate=strict", "-f", "-"];

/// Runs its check.
pub fn run(helm: &Helm<'_>, checks: &mut Checks) {
    checks.check(
        "kubernetes.quota_policies",
        "the API server takes good QuotaPolicies, refuses bad ones with a message that names the fault, and keeps all of them when the release is uninstalled",
        || {
            let seen = judge(helm);
            // The definition would stay.
            let installed = helm.run(&["list", "-q"])?.contains(RELEASE);
            let gone = if installed { helm.run(&["uninstall", RELEASE]).map(drop) } else { Ok(()) };
            let deleted = helm.api.run(&["delete", "--ignore-not-found", DEFINITION]);
            seen.and_then(|seen| gone.and(deleted).map(|_| seen))
        },
    );
}

fn judge(helm: &Helm<'_>) -> Result<String> {
    helm.put("install", "envoy-gateway.yaml", &json!({"quotaPolicies": {"enabled": true}}))?;
    helm.api.run(&["wait", "--for=condition=Established", DEFINITION, "--timeout=60s"])?;
    for name in ["team-a", "team-b", "gateways"] {
        helm.api.run(&["create", "namespace", name])?;
    }
    let cases = yaml::read(&paths::root().join(CASES))?;
    let (good, bad) = (fields(&cases["good"])?, fields(&cases["bad"])?);
    let mut faults = Vec::new();
    for (name, case) in bad {
        let expected = case["server"].as_str().or(case["both"].as_str()).unwrap_or_default();
        let refused = output(helm.api.kubectl().args(CREATE), &object(&cases, case).to_string())?;
        let message = String::from_utf8_lossy(&refused.stderr);
        if refused.status.success() || expected.is_empty() || !message.contains(expected) {
            faults.push(format!("{name}: {message}"));
        }
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("; "));
    }
    for (name, object) in good {
        let answer = printed(helm.api.kubectl().args(CREATE), &object.to_string());
        let answer = answer.with_context(|| name.clone())?;
        ensure!(!answer.to_lowercase().contains("warn"), "{name}: {answer}");
    }
    let table = helm.api.run(&["get", "qp", "--all-namespaces"])?;
    let columns = ["TARGET", "OF", "QUOTA", "ACCEPTED", "PROGRAMMED", "ENFORCED", "PROXIES", "AGE"];
    ensure!(columns.iter().all(|column| table.contains(column)), "{table}");
    helm.run(&["uninstall", RELEASE])?;
    let kept = helm.api.run(&["get", "qp", "--all-namespaces", "-o", "name"])?.lines().count();
    ensure!(kept == good.len(), "{kept} of {} are kept", good.len());
    Ok(format!("{} good ones, {} bad ones refused, {kept} kept", good.len(), bad.len()))
}

fn fields(value: &Value) -> Result<&serde_json::Map<String, Value>> {
    value.as_object().with_context(|| format!("{CASES} has no such cases"))
}

/// The object of a bad case.
fn object(cases: &Value, case: &Value) -> Value {
    let good = &cases["good"][case["of"].as_str().unwrap_or("team")];
    let mut object = good.clone();
    for part in ["metadata", "spec"] {
        merge(&mut object[part], case.get(part).cloned().unwrap_or_else(|| json!({})));
    }
    if let Some(patch) = case.get("policy") {
        merge(&mut object["spec"]["policies"][0], patch.clone());
    }
    if let Some(count) = case["repeat"].as_u64() {
        let named = |number| {
            let mut policy = good["spec"]["policies"][0].clone();
            policy["name"] = json!(format!("p{number}"));
            policy
        };
        object["spec"]["policies"] = (0..count).map(named).collect();
    }
    object
}
