//! Requests that wait for slots.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_support::http::{Client, Request};
use quotagate_support::upstream::{DELAY_HEADER, TALLY_HEADER};
use quotagate_support::wait;
use serde_json::{Value, json};

use super::{at_once, slow, start};
use crate::rig::Rig;

/// How many requests wait for slots, if the variable does not say.
const REQUESTS: usize = 2_000;
/// The variable for more of them, such as 10,000.
const VARIABLE: &str = "QUOTAGATE_WAITING";

fn patient(limit: u64) -> Value {
    let mut document = at_once(limit);
    document["policies"][0]["max_wait"] = json!("5s");
    document
}

#[test]
fn many_short_requests_are_all_served_and_never_more_at_once_than_the_limit() -> Result<()> {
    const CLIENTS: usize = 40;
    const LIMIT: u64 = 10;
    let requests = std::env::var(VARIABLE).map_or(Ok(REQUESTS), |count| count.parse())?;
    let rig = Rig::start_with(patient(LIMIT), |options| options.concurrency(2))?;
    let port = rig.envoy.port();
    let of_client = || -> Result<usize> {
        let mut client = Client::connect(port)?;
        for number in 0..requests / CLIENTS {
            let answer = client.send(&Request::get("/").header(DELAY_HEADER, "2"))?;
            assert_eq!(answer.status, 200, "request {number}");
        }
        Ok(requests / CLIENTS)
    };
    let served = thread::scope(|scope| -> Result<usize> {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(of_client)).collect();
        clients.into_iter().map(|client| client.join().expect("its panic was printed")).sum()
    })?;
    assert_eq!(rig.upstream.requests(), served as u64);
    let peak = rig.upstream.peak();
    assert!((LIMIT / 2..=LIMIT).contains(&peak), "{peak} ran at once");
    Ok(())
}

#[test]
fn requests_that_wait_at_one_worker_are_served_in_order() -> Result<()> {
    let rig = Rig::start(patient(1))?;
    let mut running = start(&rig, 1, &slow(4_000))?;
    let names: Vec<String> = (0..8).map(|number| format!("number {number}")).collect();
    let mut clients = Vec::new();
    for name in &names {
        let mut client = rig.client()?;
        client.start(&Request::get("/").header(TALLY_HEADER, name))?;
        clients.push(client);
        // Envoy has read each before the next one comes.
        let all = clients.len() as u64 + 1;
        wait::until_true("the request to arrive", Duration::from_secs(20), || {
            Ok(crate::inspect::stat(&rig.envoy, "^http.ingress.downstream_rq_active$")? == all)
        })?;
    }
    for client in running.iter_mut().chain(&mut clients) {
        assert_eq!(client.finish().context("no answer")?.status, 200);
    }
    assert_eq!(rig.upstream.order(), names);
    assert_eq!(rig.upstream.peak(), 1);
    Ok(())
}
