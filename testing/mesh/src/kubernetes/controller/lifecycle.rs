//! What becomes of objects, and what happens while something is away.

use std::time::Duration;

use anyhow::{Result, ensure};
use quotagate_support::{
    http::{self, Client, Request},
    ports,
    store::{StoreOptions, StoreProcess},
    wait,
};
use serde_json::json;

use super::{LIMIT, Stage, documents, quotas};

/// Good, faulty and conflicting objects.
pub(super) fn objects(stage: &Stage<'_>) -> Result<String> {
    let api = stage.api;
    stage.teams(&["a".to_owned(), "b".to_owned()])?;
    api.apply(&stage.policy("a", "good", 100, "platform/caller").to_string())?;
    api.apply(&stage.policy("b", "faulty", 100, "platform/nobody").to_string())?;
    stage.wait_older()?;
    api.apply(&stage.policy("a", "second", 5, "platform/caller").to_string())?;

    let store = StoreProcess::start("memory:", &[])?;
    let mut controller = stage.start(&store)?;
    stage.condition("a", "good", "Programmed", "published as number 1:")?;
    stage.condition("b", "faulty", "Accepted", "there is no identity platform/nobody")?;
    stage.condition("a", "second", "Accepted", "ctl-a/good has a policy per-caller")?;
    ensure!(quotas(&store)? == [100], "{:?}", quotas(&store)?);
    // As the filter of a proxy does that has taken it up.
    let digest = documents(&store)?["documents"][0]["digest"].clone();
    let report = json!({
        "proxy": "0000000000000001", "digest": digest, "number": 1, "in_force_s": 60, "live": true,
        "policies": [],
    });
    let report = Request::post("/v1/telemetry?domain=shop", report.to_string().as_bytes());
    let answer = Client::connect(store.port())?.send(&report)?;
    ensure!(answer.status == 200, "{}", answer.text());
    stage.condition("a", "good", "Enforced", "1 of 1 proxies")?;
    let table = api.run(&["get", "quotapolicies", "--all-namespaces"])?;
    ensure!(table.contains("100/1m"), "{table}");
    let mut described = String::new();
    for (team, name) in [("a", "good"), ("a", "second"), ("b", "faulty")] {
        described += &api.run(&["describe", "qp", name, "-n", &stage.namespace(team)])?;
    }
    println!("{described}");

    controller.process.kill()?;
    api.apply(&stage.policy("a", "good", 101, "platform/caller").to_string())?;
    let mut controller = stage.start(&store)?;
    stage.condition("a", "good", "Programmed", "published as number 2:")?;
    ensure!(quotas(&store)? == [101], "{:?}", quotas(&store)?);

    // Without its Gateway, an object has no other condition, and what is published stays.
    let namespace = stage.namespace("gateways");
    api.run(&["delete", "gateway", "public", "--namespace", &namespace])?;
    stage.condition("a", "good", "Accepted", "reaches no Gateway that is known")?;
    let good = api.get(&["qp", "good", "--namespace", &stage.namespace("a")])?;
    let conditions = good["status"]["ancestors"][0]["conditions"].as_array();
    ensure!(conditions.is_some_and(|all| all.len() == 1), "{good}");
    ensure!(quotas(&store)? == [101], "{:?}", quotas(&store)?);
    api.apply(&stage.gateway("public").to_string())?;
    stage.condition("a", "good", "Programmed", "published as number 2:")?;

    api.run(&["delete", "qp", "--all", "--all-namespaces"])?;
    wait::until_true("a withdrawal", LIMIT, || {
        let newest = &documents(&store)?["documents"][0];
        Ok(newest["number"] == 3 && newest["digest"].is_null())
    })?;
    controller.process.terminate(Duration::from_secs(20))?;
    Ok(format!(
        "a good, a faulty and a conflicting object have their status; a killed controller is replaced; without objects the document is withdrawn\n{table}"
    ))
}

/// What two controllers do when one is killed, the store is away, or the API server is.
pub(super) fn outages(stage: &Stage<'_>) -> Result<String> {
    let api = stage.api;
    stage.teams(&["a".to_owned()])?;
    api.apply(&stage.policy("a", "good", 100, "platform/caller").to_string())?;
    let options = StoreOptions::new("memory:").admin(&format!("127.0.0.1:{}", ports::free()?));
    let mut store = StoreProcess::start_with(&options)?;
    let mut first = stage.start(&store)?;
    first.wait_for("the lead", "leader", |leads| leads == 1.0)?;
    let mut second = stage.start(&store)?;
    stage.condition("a", "good", "Programmed", "published as number 1:")?;
    wait::until_true("a ready second controller", LIMIT, || {
        Ok(http::get(second.metrics, "/readyz")?.status == 200)
    })?;
    ensure!(second.metric("leader")? == 0.0, "both lead");

    first.process.kill()?;
    api.apply(&stage.policy("a", "good", 101, "platform/caller").to_string())?;
    second.wait_for("the lead", "leader", |leads| leads == 1.0)?;
    stage.condition("a", "good", "Programmed", "published as number 2:")?;
    ensure!(quotas(&store)? == [101], "{:?}", quotas(&store)?);

    store.stop()?;
    stage.condition("a", "good", "Enforced", "does not answer the controller")?;
    stage.condition("a", "good", "Programmed", "published as number 2:")?;
    // In memory, it has forgotten everything.
    store = StoreProcess::start_with(&options)?;
    stage.condition("a", "good", "Programmed", "published as number 1:")?;
    ensure!(quotas(&store)? == [101], "{:?}", quotas(&store)?);

    api.freeze(true)?;
    let lost = second.wait_for("the loss of the lead", "leader", |leads| leads == 0.0);
    api.freeze(false)?;
    lost?;
    second.wait_for("the lead again", "leader", |leads| leads == 1.0)?;
    api.apply(&stage.policy("a", "good", 102, "platform/caller").to_string())?;
    stage.condition("a", "good", "Programmed", "published as number 2:")?;
    ensure!(quotas(&store)? == [102], "{:?}", quotas(&store)?);
    second.process.terminate(Duration::from_secs(20))?;
    Ok("the second controller goes on after the first was killed, an empty store gets the document again, and without the API server nobody leads".to_owned())
}

/// Two controllers, and the first cannot reach its store.
pub(super) fn leaves(stage: &Stage<'_>) -> Result<String> {
    stage.teams(&["a".to_owned()])?;
    stage.api.apply(&stage.policy("a", "good", 100, "platform/caller").to_string())?;
    let store = StoreProcess::start("memory:", &[])?;
    let mut first = stage.start_of(&[("shop", "public")], ports::free()?)?;
    first.wait_for("the lead", "leader", |leads| leads == 1.0)?;
    let mut second = stage.start(&store)?;
    second.wait_for("the lead", "leader", |leads| leads == 1.0)?;
    stage.condition("a", "good", "Programmed", "published as number 1:")?;
    ensure!(first.metric("leader")? == 0.0, "both lead");
    for controller in [&mut first, &mut second] {
        controller.process.terminate(Duration::from_secs(20))?;
    }
    Ok("the second controller leads and publishes, although the first renewed its Lease".to_owned())
}
