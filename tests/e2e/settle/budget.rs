//! A budget of tokens under load, and long streams.

use std::fs;
use std::io::Read;

use anyhow::{Context, Result};
use quotagate_support::envoy::Envoy;
use quotagate_support::http::{Client, Request};
use quotagate_support::model::{EVENT, EVENTS, PAUSE_MS, TOKENS};
use serde_json::json;

use super::{Rig, route_timeout, tokens};
use crate::inspect;

/// The size of a long stream in megabytes, if the variable does not say.
const MEGABYTES: usize = 30;
/// The variable for a longer one.
const VARIABLE: &str = "QUOTAGATE_STREAM_MB";
/// Most memory that Envoy may gain during a stream.
const GROWTH_KIB: u64 = 8 * 1024;

/// How many of 100 requests at once are admitted, each of 500 tokens, and what they cost.
fn at_once(reserve: u64) -> Result<(usize, u64)> {
    let cost = json!({"reserve": reserve, "settle": [{"usage": "total"}]});
    let rig = Rig::start(json!([tokens(10_000, cost)]))?;
    let request = Request::get("/openai/stream")
        .header(TOKENS, "500")
        .header(EVENTS, "10")
        .header(PAUSE_MS, "300");
    let mut clients = (0..100).map(|_| rig.client()).collect::<Result<Vec<Client>>>()?;
    for client in &mut clients {
        client.start(&request)?;
    }
    let statuses =
        clients.iter_mut().map(|client| Ok(client.finish()?.status)).collect::<Result<Vec<_>>>()?;
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert_eq!(rig.model.requests(), admitted as u64);
    let spent = 500 * admitted as u64;
    rig.settled("tokens", spent)?;
    let next = rig.client()?.send(&request)?.status;
    assert_eq!(next, 429, "the budget is spent");
    Ok((admitted, spent))
}

#[test]
fn honest_reservation_keeps_a_budget_exactly() -> Result<()> {
    let (exact, within) = at_once(500)?;
    // What a limiter does that checks before and charges after.
    let (late, beyond) = at_once(1)?;
    eprintln!("100 requests at once, 500 tokens each, on a budget of 10,000 tokens");
    eprintln!("| cost | admitted | tokens | of the budget |");
    eprintln!("| --- | --- | --- | --- |");
    for (name, admitted, spent) in
        [("charged afterwards (reserve: 1)", late, beyond), ("reserve: 500", exact, within)]
    {
        eprintln!("| {name} | {admitted} | {spent} | {} % |", spent / 100);
    }
    assert_eq!((exact, within), (20, 10_000));
    assert_eq!((late, beyond), (100, 50_000));
    Ok(())
}

fn resident_kib(envoy: &Envoy) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", envoy.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

#[test]
fn long_stream_takes_no_memory() -> Result<()> {
    let megabytes = std::env::var(VARIABLE).map_or(Ok(MEGABYTES), |size| size.parse())?;
    let cost = json!({"reserve": 500, "settle": [{"usage": "total"}]});
    let rig = Rig::start_with(json!([tokens(10_000, cost)]), |options| {
        options.edit(route_timeout("0s"))
    })?;
    let events = (megabytes * 1_000_000 / EVENT).to_string();
    let headers = [(TOKENS, "700"), (EVENTS, &*events), ("connection", "close")];
    let mut stream = rig.begin("/openai/stream", &headers)?;
    let (mut read, mut buffer, mut early) = (0, vec![0; 64 * 1024], None);
    loop {
        let size = stream.read(&mut buffer)?;
        if size == 0 {
            break;
        }
        read += size;
        if early.is_none() && read > megabytes * 100_000 {
            early = Some(resident_kib(&rig.envoy)?);
        }
    }
    let (early, late) = (early.context("a short stream")?, resident_kib(&rig.envoy)?);
    eprintln!("{read} bytes: {early} KiB of Envoy after a tenth, {late} KiB at the end");
    assert!(read >= megabytes * 1_000_000, "{read}");
    assert!(late.saturating_sub(early) <= GROWTH_KIB, "{early} KiB, then {late} KiB");
    rig.settled("tokens", 700)?;
    assert_eq!(inspect::stat(&rig.envoy, "^http.ingress.downstream_rq_active$")?, 0);
    Ok(())
}
