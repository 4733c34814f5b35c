//! How long a changed quota takes until an Envoy enforces it: in a file of Envoy's configuration,
//! published by hand, and in an object.

use std::{
    fs,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use quotagate_support::{
    envoy::{Envoy, EnvoyOptions, Form, ListenerFile, edits},
    http, paths,
    store::StoreProcess,
    upstream::Upstream,
    wait,
};
use serde_json::{Value, json};

use super::{LIMIT, Stage};
use crate::kubernetes::api_server::printed;

/// How often each way is walked.
const WALKS: u64 = 9;

/// The three ways, in one Envoy each.
pub(super) fn run(stage: &Stage<'_>) -> Result<String> {
    let (upstream, store) = (Upstream::start()?, StoreProcess::start("memory:", &[])?);
    let options = |document: Value| {
        EnvoyOptions::new(upstream.port(), store.port()).form(Form::Wasm).document(document)
    };

    let file = ListenerFile::new()?;
    let of_file = |quota: u64| document("by-file", false, quota);
    file.publish("0", &options(of_file(1000)).config()?)?;
    let envoy = Envoy::start(&options(of_file(1000)).edit(file.edit()))?;
    let by_file = walk(&envoy, "/", |quota| {
        file.publish(&quota.to_string(), &options(of_file(quota)).config()?)
    })?;
    drop(envoy);

    let envoy = Envoy::start(&options(document("by-hand", true, 1000)))?;
    let written = stage.helm.folder().join("by-hand.yaml");
    let by_hand = walk(&envoy, "/", |quota| {
        fs::write(&written, document("by-hand", true, quota).to_string())?;
        let mut command = Command::new(paths::command());
        command.args(["document", "publish", "--yes", "--by", "a test"]).arg(&written);
        command.args(["--admin", &format!("127.0.0.1:{}", store.admin_port())]);
        printed(&mut command, "").map(drop)
    })?;
    drop(envoy);

    stage.teams(&["a".to_owned()])?;
    let policy = |quota: u64| {
        let mut policy = stage.policy("a", "good", quota, "platform/caller");
        policy["spec"]["policies"][0]["partitionBy"] = json!([]);
        policy.to_string()
    };
    stage.api.apply(&policy(1000))?;
    // What Envoy Gateway calls the route of the team.
    let host = format!("{}_example_com", stage.namespace("a"));
    let route = format!("httproute/{}/r/rule/0/match/0/{host}", stage.namespace("a"));
    let envoy = Envoy::start(
        &options(document("shop", true, 1000)).edit(edits::routes(&[(&route, "/team")])),
    )?;
    let mut controller = stage.start(&store)?;
    stage.condition("a", "good", "Enforced", "1 of 1 proxies")?;
    let by_object = walk(&envoy, "/team", |quota| stage.api.apply(&policy(quota)).map(drop))?;
    // One unit, and nothing of it is left.
    stage.api.apply(&policy(1))?;
    let refused = wait::until("a refusal", LIMIT, || {
        let response = http::get(envoy.port(), "/team")?;
        Ok((response.status == 429).then_some(response))
    })?;
    ensure!(refused.header("x-ratelimit-limit") == Some("1"), "{refused:?}");
    // The traffic of others is not counted.
    ensure!(http::get(envoy.port(), "/")?.status == 200, "the quota of a team refuses others");
    stage.condition("a", "good", "Enforced", "1 of 1 proxies")?;
    controller.process.terminate(Duration::from_secs(20))?;
    Ok(format!(
        "an Envoy refuses by the object; seconds until a changed quota is in force (median and most of {WALKS}): {by_file} by a file, {by_hand} by `document publish`, {by_object} by an object"
    ))
}

/// A document with one quota for everybody.
fn document(domain: &str, live: bool, quota: u64) -> Value {
    json!({
        "domain": domain, "live": live, "store": {"cluster": "quota_store", "timeout": "10s"},
        "policies": [{"name": "all", "partition_by": [], "quota": quota, "window": "1h"}],
        "response": {"headers": ["x_ratelimit"]},
    })
}

/// Changes a quota again and again, and says how long it takes until a response names the new one.
fn walk(envoy: &Envoy, path: &str, change: impl Fn(u64) -> Result<()>) -> Result<String> {
    let mut times = Vec::new();
    for quota in (2000..).step_by(1000).take(usize::try_from(WALKS)?) {
        // The proxy asks in a rhythm of its own, and each walk should begin elsewhere in it.
        sleep(Duration::from_millis(quota * 137 / 1000));
        let begun = Instant::now();
        change(quota)?;
        let wanted = quota.to_string();
        wait::until_true("the new quota", LIMIT, || {
            let response = http::get(envoy.port(), path)?;
            Ok(response.header("x-ratelimit-limit") == Some(&*wanted))
        })?;
        times.push(begun.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).context("no walk")?;
    let most = times.last().context("no walk")?;
    Ok(format!("{median:.2} and {most:.2}"))
}
