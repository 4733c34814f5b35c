//! Many objects: how long a pass takes, and what it writes.

use std::{thread::sleep, time::Duration};

use anyhow::{Result, ensure};
use quotagate_support::store::StoreProcess;
use serde_json::json;

use super::{IDLE, Stage, quotas};

/// Namespaces with this many QuotaPolicies each.
const NAMESPACES: usize = 50;
const OF_EACH: usize = 10;

/// One controller, many objects.
pub(super) fn run(stage: &Stage<'_>) -> Result<String> {
    let api = stage.api;
    let teams: Vec<String> = (0..NAMESPACES).map(|team| format!("t{team}")).collect();
    stage.teams(&teams)?;
    let policies = teams.iter().flat_map(|team| {
        (0..OF_EACH).map(move |number| {
            let identity = if team == "t0" { "platform/nobody" } else { "platform/caller" };
            let mut policy = stage.policy(team, &format!("p{number}"), 100, identity);
            policy["spec"]["policies"][0]["name"] = json!(format!("q{number}"));
            policy
        })
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": policies.collect::<Vec<_>>()});
    api.apply(&list.to_string())?;
    let all = NAMESPACES * OF_EACH;
    let store = StoreProcess::start("memory:", &[])?;
    let mut controller = stage.start(&store)?;
    // Floats of this size are exact.
    #[expect(clippy::cast_precision_loss, reason = "500 is exact")]
    let wanted = all as f64;
    controller.wait_for("all statuses", "status_patches_total", |patches| patches >= wanted)?;
    controller.wait_for("the end of a pass", "pass_seconds_count", |passes| passes >= 1.0)?;
    let (first, worked) = (controller.metric("pass_seconds_sum")?, controller.cpu()?);
    // Those of another team have an identity that there is not.
    ensure!(quotas(&store)?.len() == all - OF_EACH, "{} policies", quotas(&store)?.len());

    let before = controller.settled()?;
    sleep(IDLE);
    let idle = controller.metric("status_patches_total")? - before;
    ensure!(idle == 0.0, "{idle} statuses were written while nothing changed");
    let cpu = controller.cpu()?;
    sleep(IDLE);
    let cpu = controller.cpu()? - cpu;

    let passes = || -> Result<[f64; 2]> {
        Ok([controller.metric("pass_seconds_sum")?, controller.metric("pass_seconds_count")?])
    };
    let ([sum, count], written) = (passes()?, controller.metric("status_patches_total")?);
    let mut changed = stage.policy("t7", "p3", 99, "platform/caller");
    changed["spec"]["policies"][0]["name"] = json!("q3");
    api.apply(&changed.to_string())?;
    stage.condition("t7", "p3", "Programmed", "published as number 2:")?;
    controller.wait_for("the end of its pass", "pass_seconds_count", |now| now > count)?;
    let [later, passes] = passes()?;
    let (pass, passes) = ((later - sum) / (passes - count), passes - count);
    let written = controller.settled()? - written;
    ensure!(written == 1.0, "{written} statuses were written after one change");
    controller.process.terminate(Duration::from_secs(20))?;
    Ok(format!(
        "the first pass, with {all} statuses, took {first:.2} s, of which the controller computed {worked:.2} s since its start; after one change {passes} passes took {pass:.2} s each and wrote {written} status; without a change, no status was written in {} s, and {cpu:.2} s of CPU were used",
        IDLE.as_secs()
    ))
}
