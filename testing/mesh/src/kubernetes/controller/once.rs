//! Controllers that act once, that are told to end, and that lack a kind.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quotagate_support::store::StoreProcess;
use serde_json::{Value, json};

use super::{Stage, after_clean_up, documents_of, quotas_of};
use crate::kubernetes::api_server::output;

/// Two domains, each with a Gateway of its own.
const DOMAINS: [(&str, &str); 2] = [("shop", "public"), ("office", "inner")];
/// How long a controller may take to end after SIGTERM, on a busy machine.
const END: Duration = Duration::from_secs(5);
/// The CustomResourceDefinition of GRPCRoutes.
const GRPC: &str = "grpcroutes.gateway.networking.k8s.io";

/// `--once` beside other controllers and alone, for two domains.
pub(super) fn two_domains(stage: &Stage<'_>) -> Result<String> {
    let api = stage.api;
    api.apply(&stage.gateway("inner").to_string())?;
    stage.teams(&["a".to_owned()])?;
    stage.teams_at("inner", &["b".to_owned()])?;
    api.apply(&stage.policy("a", "good", 100, "platform/caller").to_string())?;
    api.apply(&stage.policy("b", "good", 200, "platform/caller").to_string())?;
    let store = StoreProcess::start("memory:", &[])?;
    let admin = store.admin_port();
    // How it ends, and what it says.
    let once = || -> Result<(Option<i32>, String)> {
        let ended = output(stage.command(&DOMAINS, admin)?.arg("--once"), "")?;
        Ok((ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned()))
    };
    let published = || -> Result<Vec<Value>> {
        let number =
            |(domain, _)| Ok(documents_of(&store, domain)?["documents"][0]["number"].clone());
        DOMAINS.into_iter().map(number).collect()
    };
    let (code, text) = once()?;
    ensure!(code == Some(0), "{text}");
    ensure!(quotas_of(&store, "shop")? == [100] && quotas_of(&store, "office")? == [200]);
    for team in ["a", "b"] {
        stage.condition(team, "good", "Programmed", "published as number 1:")?;
    }
    // The same objects make the same documents.
    let (code, text) = once()?;
    ensure!(code == Some(0) && published()? == [1, 1], "{text} {:?}", published()?);
    // A faulty one is named, and stops nothing.
    api.apply(&stage.policy("b", "faulty", 1, "platform/nobody").to_string())?;
    api.apply(&stage.policy("a", "good", 101, "platform/caller").to_string())?;
    let (code, text) = once()?;
    ensure!(code == Some(1) && text.contains("once-b/faulty"), "{code:?} {text}");
    ensure!(published()? == [2, 1], "{:?}", published()?);

    let mut controller = stage.start_of(&DOMAINS, admin)?;
    controller.wait_for("the lead", "leader", |leads| leads == 1.0)?;
    let (code, text) = once()?;
    ensure!(
        code.is_some_and(|code| code != 0) && text.contains("another controller holds it"),
        "{text}"
    );
    let asked = Instant::now();
    let status = controller.process.terminate(END)?;
    let took = asked.elapsed();
    ensure!(status.code() == Some(0), "it ends with {status}: {}", controller.process.log());
    let lease =
        api.get(&["lease", "quotagate-controller", "--namespace", &stage.namespace("gateways")])?;
    let holder = &lease["spec"]["holderIdentity"];
    ensure!(holder.as_str().unwrap_or_default().is_empty(), "{holder} has the Lease");
    api.run(&["delete", "qp", "faulty", "--namespace", &stage.namespace("b")])?;
    let begun = Instant::now();
    let (code, text) = once()?;
    ensure!(code == Some(0), "{text}");
    Ok(format!(
        "two documents by --once, none for the same objects, and not beside a controller; SIGTERM ended it with 0 after {:.1} s and freed the Lease, so that --once took {:.1} s",
        took.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    ))
}

/// An API server without the definition of GRPCRoutes.
pub(super) fn without_grpc(stage: &Stage<'_>) -> Result<String> {
    let api = stage.api;
    let mut definition = api.get(&["crd", GRPC])?;
    definition["metadata"] = json!({
        "name": GRPC, "annotations": definition["metadata"]["annotations"],
    });
    definition["status"] = Value::Null;
    api.run(&["delete", "crd", GRPC])?;
    let seen = works(stage);
    let established = ["wait", "--for=condition=Established", &format!("crd/{GRPC}")];
    let restored = api
        .apply(&definition.to_string())
        .and_then(|_| api.run(&[&established[..], &["--timeout=60s"]].concat()));
    after_clean_up(seen, restored.map(drop))
}

fn works(stage: &Stage<'_>) -> Result<String> {
    stage.teams(&["a".to_owned()])?;
    stage.api.apply(&stage.policy("a", "good", 100, "platform/caller").to_string())?;
    let store = StoreProcess::start("memory:", &[])?;
    let begun = Instant::now();
    let mut controller = stage.start(&store)?;
    stage.condition("a", "good", "Programmed", "published as number 1:")?;
    let took = begun.elapsed();
    stage.api.apply(&stage.policy("a", "good", 101, "platform/caller").to_string())?;
    stage.condition("a", "good", "Programmed", "published as number 2:")?;
    controller.process.terminate(Duration::from_secs(20))?;
    let log = controller.process.log();
    let said = log.lines().filter(|line| line.contains("serves no grpcroutes")).count();
    let warned = log.lines().filter(|line| line.contains("watch of grpcroutes")).count();
    ensure!((said, warned) == (1, 1), "{log}");
    Ok(format!("published after {:.1} s, and said once", took.as_secs_f64()))
}
