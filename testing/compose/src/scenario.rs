//! What is checked from outside.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use quotagate_page::{browser::Browser, page};
use quotagate_support::{
    http::{self, Client, Request},
    wait,
};
use quotagate_workspace::task;

use crate::{
    burst::{self, QUOTA},
    program,
    project::{Project, Variant},
};

/// For what needs no more than a few seconds.
const SOON: Duration = Duration::from_secs(30);
/// For a failover: a replica takes over after Redis' own 5 s, and its election.
const FAILOVER: Duration = Duration::from_secs(90);
/// So many callers reach every primary: at most 1 in 700 runs would miss one of three.
const EVERY_PRIMARY: u32 = 19;
/// The quota that a dial sets.
const DIALLED: u64 = 2;

/// Starts the composition and checks it.
///
/// # Errors
/// When something is not as it should be.
pub fn run(project: &Project<'_>) -> Result<()> {
    task::step(&format!("compose: {}", project.variant.file()));
    project.compose(&["up", "--no-build", "--detach", "--wait", "--wait-timeout", "180"])?;
    let listed = project.compose(&["ps", "--format", "{{.Service}} {{.Status}}"])?;
    task::note(&format!("healthy: {}", listed.trim().replace('\n', ", ")));
    if project.variant == Variant::RateLimit {
        return spend_limits(project);
    }
    let headers = burst::check_headers(&burst::send(project.port, QUOTA)?)?;
    task::note(&format!("outside: {QUOTA} times 200, then 429 ({headers})"));
    if project.variant == Variant::Wasm {
        kill_a_store(project)?;
        set_a_dial(project)?;
    }
    kill_a_primary(project)
}

/// The example's rules: five requests of an address in a minute, and two reports in a day.
fn spend_limits(project: &Project<'_>) -> Result<()> {
    burst::wait_for_room_in_window()?;
    let mut client = Client::connect(project.port)?;
    let mut ask = |path: &str| -> Result<Vec<u16>> {
        (0..4).map(|_| Ok(client.send(&Request::get(path))?.status)).collect()
    };
    let (reports, others) = (ask("/reports")?, ask("/")?);
    if reports != [200, 200, 429, 429] || others != [200, 200, 200, 429] {
        bail!("reports are answered {reports:?}, and other requests {others:?}");
    }
    task::note("outside: 2 reports and 3 other requests pass");
    wait::until("the rules as policies", SOON, || {
        let listed = ["exec", "--no-TTY", "ratelimit", "/quotagate", "dial", "list"];
        Ok(project.compose(&listed)?.contains("per-address").then_some(()))
    })
}

/// The second store counts in the same Redis.
fn kill_a_store(project: &Project<'_>) -> Result<()> {
    project.compose(&["kill", "store-2"])?;
    let answered = burst::until_exact(project.port, QUOTA, EVERY_PRIMARY, SOON)?;
    let burst::Answered { bursts, inexact } = answered;
    task::note(&format!("store-2 killed: no error in {bursts} bursts, {inexact} inexact at first"));
    project.compose(&["up", "--no-build", "--detach", "--wait", "--no-deps", "store-2"])?;
    Ok(())
}

/// Calls fail until a replica takes over. `on_failure: allow` admits them meanwhile.
fn kill_a_primary(project: &Project<'_>) -> Result<()> {
    let cluster = |node: &str, word: &str| {
        project.compose(&["exec", "--no-TTY", node, "redis-cli", "cluster", word])
    };
    let killed = cluster("redis-1", "myid")?;
    project.compose(&["kill", "redis-1"])?;
    let failed_over = || {
        // Requests are answered meanwhile, too: an error ends the wait.
        burst::send(project.port, QUOTA)?;
        let nodes = cluster("redis-2", "nodes")?;
        Ok(nodes.lines().filter(|line| serves_without(killed.trim(), line)).count() == 3)
    };
    program::wait_until("a replica takes over", FAILOVER, failed_over)?;
    let answered = burst::until_exact(project.port, QUOTA, EVERY_PRIMARY, FAILOVER)?;
    let burst::Answered { bursts, inexact } = answered;
    task::note(&format!(
        "redis-1, a primary, killed: a replica took over, no error; then {inexact} of {bursts} bursts \
         were inexact until quotas were exact again"
    ));
    project.compose(&["up", "--no-build", "--detach", "--wait", "--no-deps", "redis-1"])?;
    let answered = burst::until_exact(project.port, QUOTA, EVERY_PRIMARY, FAILOVER)?;
    let burst::Answered { bursts, inexact } = answered;
    task::note(&format!("redis-1 back: {inexact} of {bursts} bursts inexact"));
    if project.variant == Variant::Wasm {
        project.compose(&["exec", "--no-TTY", "store-1", "/quotagate", "health", "--ready"])?;
        task::note("store-1 is ready: every part of the cluster counts");
    }
    Ok(())
}

/// Whether a line of `CLUSTER NODES` is a primary with slots, and not the killed node. The others
/// take that one for healthy until it has not answered for Redis' node timeout.
fn serves_without(killed: &str, line: &str) -> bool {
    let is_primary = line.contains("master") && !line.contains("fail");
    is_primary && has_slots(line) && !line.starts_with(killed)
}

/// Whether a line of `CLUSTER NODES` ends with a range of slots.
fn has_slots(line: &str) -> bool {
    line.split_whitespace().nth(8).is_some_and(|slots| slots.contains('-'))
}

/// With the token that the composition generated: over HTTP, by the command in a store, and on the
/// live page.
fn set_a_dial(project: &Project<'_>) -> Result<()> {
    let token = project.compose(&["run", "--rm", "admin-token", "show"])?;
    let token = token.trim();
    let boards = |request: Request| -> Result<u16> {
        Ok(Client::connect(project.admin_port)?.send(&request)?.status)
    };
    let with = boards(Request::get("/v1/boards").bearer(token))?;
    let without = boards(Request::get("/v1/boards"))?;
    if (with, without) != (200, 401) {
        bail!(
            "the API answers {with} with the token and {without} without; it should be 200 and 401"
        );
    }
    let quotagate = |words: &[&str]| {
        project.compose(&[&["exec", "--no-TTY", "store-1", "/quotagate"], words].concat())
    };
    let set = ["dial", "set", "per-caller", "--quota", &DIALLED.to_string(), "--by", "compose"];
    // The store knows the policy once Envoy has reported it.
    let said = wait::until("the dial is set", SOON, || match program::go_on() {
        Ok(()) => quotagate(&set).map(|said| Some(Ok(said))),
        // An error of this closure would mean "not yet".
        Err(interrupted) => Ok(Some(Err(interrupted))),
    })??;
    burst::until_exact(project.port, DIALLED, 3, SOON)?;
    task::note(&format!("dial: {}; {DIALLED} times 200, then 429", said.trim()));
    open_the_page(project, token)?;
    quotagate(&["dial", "clear", "per-caller", "--by", "compose"])?;
    burst::until_exact(project.port, QUOTA, 3, SOON)?;
    task::note(&format!("dial cleared: {QUOTA} times 200, then 429"));
    Ok(())
}

fn open_the_page(project: &Project<'_>, token: &str) -> Result<()> {
    let html = http::get(project.admin_port, "/")?;
    if html.status != 200 {
        bail!("the live page is answered {}", html.status);
    }
    let browser = Browser::start()?;
    browser.open(&page::address(project.admin_port))?;
    browser.wait_for("#connection", "Needs the token")?;
    browser.fill("#token", token)?;
    browser.click("#token-form button")?;
    browser.wait_for("#connection", page::LIVE)?;
    let shown = browser.wait_for("#content", "per-caller").context("the live page")?;
    task::note(&format!("live page in Chromium: {} lines, with per-caller", shown.lines().count()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_primaries_have_slots() {
        let primary = "aa 172.18.0.2:6379@16379 master - 0 1795378440000 2 connected 5461-10921";
        let replica = "bb 172.18.0.3:6379@16379 slave aa 0 1795378440000 2 connected";
        let empty = "cc 172.18.0.4:6379@16379 master - 0 1795378440000 7 connected";
        assert!(has_slots(primary) && !has_slots(replica) && !has_slots(empty));
        assert!(serves_without("bb", primary) && !serves_without("bb", empty));
    }

    #[test]
    fn a_killed_primary_serves_nobody_though_the_others_have_not_noticed() {
        let line = "aa 172.18.0.2:6379@16379 master - 0 1795378440000 2 disconnected 5461-10921";
        assert!(!serves_without("aa", line));
        assert!(!serves_without("bb", &line.replace("master", "master,fail?")));
    }
}
