//! A wrong document blocks neither a gateway nor a policy.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use quotagate_support::http::Response;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::checks::Checks;

use crate::istio::checks::identities::deny;
use crate::istio::exact::{SENT, counted, exact};
use crate::istio::mesh::{
    Mesh, PUSH, QUOTA, Verdict, Verdicts, by, get, of_kind, shipped, with_document,
};
use crate::istio::plane::pods::Pod;

/// The filter's two kinds, with the field of their document.
const KINDS: [(&str, &str, &str); 2] = [
    ("WasmPlugin", "wasmplugin", "/spec/pluginConfig"),
    ("TrafficExtension", "trafficextension", "/spec/wasm/pluginConfig"),
];

/// Runs the checks.
pub fn check(mesh: &Mesh, checks: &mut Checks) {
    let names = ["istio.wrong", "istio.wrong_extension"];
    for ((kind, file, field), name) in KINDS.into_iter().zip(names) {
        let claim = "a wrong document: policies apply, the old one counts, new gateways serve";
        checks.check(name, claim, || {
            if kind == "TrafficExtension" {
                mesh.plane.api.delete(&with_document(|_| {})?)?;
            }
            let object = of_kind(&shipped(&format!("istio/{file}.yaml"))?, kind)?.clone();
            let seen = kept(mesh, kind, &object, field);
            if kind == "TrafficExtension" {
                mesh.plane.api.delete(&object)?;
            }
            seen
        });
    }
    checks.check(
        "istio.reject",
        "on_wrong_document: reject: the update waits, and it shows",
        || {
            mesh.restore()?;
            let seen = rejected(mesh);
            mesh.restore()?;
            seen
        },
    );
}

/// Applies a wrong document together with a policy.
fn kept(mesh: &Mesh, kind: &str, object: &Value, field: &str) -> Result<String> {
    mesh.plane.api.apply(object)?;
    counted(mesh)?;
    let rejects = || mesh.plane.istiod_counter("pilot_total_xds_rejects", "");
    let before = rejects()?;
    let mut wrong = object.clone();
    if let Some(document) = wrong.pointer_mut(field) {
        document["policies"][0]["partition_by"] = json!(["nobody"]);
    }
    mesh.plane.api.apply(&wrong)?;
    let policy = deny("/wrong");
    mesh.plane.api.apply(&policy)?;
    mesh.until("the policy", &get("/wrong"), |answer| answer.status == 403)?;
    let old = exact(&mesh.burst(&by(&format!("wrong-{kind}"))?, SENT)?)?;
    let mut late = mesh.another_gateway(&format!("late-{}", kind.to_lowercase()))?;
    late.wait_until_ready()?;
    let answers = mesh.burst_to(&late, &by(&format!("late-{kind}"))?, SENT)?;
    ensure!(
        answers == Verdicts::from([(Verdict::Uncounted, SENT)]),
        "a new gateway answers {answers:?}"
    );
    let forbidden = mesh.connect_to(&late)?.send(&get("/wrong"))?.status;
    ensure!(forbidden == 403, "a new gateway answers {forbidden} where a policy refuses");
    let store = |pod: &Pod| Ok::<_, anyhow::Error>(pod.get(9181, "/metrics")?.text());
    wait::until_true("the series of the alert", PUSH, || {
        mesh.ask(&by("reported")?)?;
        let mut metrics = mesh.stores.iter().map(store);
        Ok(metrics.any(|text| text.is_ok_and(|text| refused_documents(&text) > 0.0)))
    })?;
    ensure!(rejects()? == before, "istiod counts a rejected update");
    mesh.plane.api.apply(object)?;
    mesh.plane.api.delete(&policy)?;
    let counts = |answer: &Response| answer.header("x-ratelimit-limit").is_some();
    wait::until_true("a counted request at the new gateway", PUSH, || {
        Ok(counts(&mesh.connect_to(&late)?.send(&by("repaired")?)?))
    })?;
    Ok(format!(
        "the policy answers 403; the old document: {old}; a new gateway: {answers:?}, and counts after the repair; nothing rejected"
    ))
}

fn refused_documents(metrics: &str) -> f64 {
    let series =
        metrics.lines().filter(|line| line.starts_with("quotagate_documents_refused_total"));
    series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn rejected(mesh: &Mesh) -> Result<String> {
    let rejects = |kind: &str| {
        mesh.plane.istiod_counter("pilot_total_xds_rejects", &format!("type=\"{kind}\""))
    };
    let before = (rejects("ecds")?, rejects("lds")?);
    mesh.plane.api.apply(&with_document(|document| {
        document["on_wrong_document"] = json!("reject");
        document["policies"][0]["partition_by"] = json!(["nobody"]);
    })?)?;
    wait::until_true("a rejected document", PUSH, || Ok(rejects("ecds")? > before.0))?;
    ensure!(mesh.plane.istiod_log().contains("ADS:ECDS: ACK ERROR"), "istiod's log says nothing");
    let policy = deny("/rejected");
    mesh.plane.api.apply(&policy)?;
    wait::until_true("a rejected listener", PUSH, || Ok(rejects("lds")? > before.1))?;
    let refused = mesh.ask(&get("/rejected"))?.status;
    let old = exact(&mesh.burst(&by("rejected")?, SENT)?)?;
    let mut late = mesh.another_gateway("late-reject")?;
    late.wait_until_ready()?;
    let new = mesh.connect_to(&late)?.send(&get("/"))?.status;
    // Another quota than that of the old document shows that the repair has arrived.
    mesh.document(QUOTA + 1)?;
    // Ten times, so that a push that is on its way would be seen.
    let mut still = Vec::new();
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(200));
        still.push(mesh.ask(&get("/rejected"))?.status);
    }
    let mut again = policy.clone();
    again["spec"]["rules"][0]["to"][0]["operation"]["methods"] = json!(["GET"]);
    mesh.plane.api.apply(&again)?;
    mesh.until("the policy", &get("/rejected"), |answer| answer.status == 403)?;
    mesh.plane.api.delete(&policy)?;
    ensure!((refused, new) == (200, 500), "the policy: {refused}, a new gateway: {new}");
    ensure!(!still.contains(&403), "after the repair: {still:?}");
    Ok(format!(
        "ADS:ECDS: ACK ERROR; the policy is not enforced ({refused}), after the repair only with the \
         next push; the old document: {old}; a new gateway answers {new}"
    ))
}
