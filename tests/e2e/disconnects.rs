//! Invariants 2 and 3: clients that leave while they wait delay no other request and keep no units.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::http::{Client, Request};
use quotagate_support::wait;
use serde_json::json;

use crate::rig::{Rig, document, per_caller};

#[test]
fn invariants_2_and_3_clients_that_stay_are_answered_when_half_of_the_batch_leaves() -> Result<()> {
    const CLIENTS: usize = 400;
    let mut rig = Rig::start(document(json!([per_caller(CLIENTS as u64)])))?;
    // Counting is frozen, so all requests wait: the first for its call, the others in the batch.
    rig.freeze()?;
    let mut clients = (0..CLIENTS).map(|_| rig.client()).collect::<Result<Vec<Client>>>()?;
    for client in &mut clients {
        client.start(&Request::get("/"))?;
    }
    let waiting = |rig: &Rig| -> Result<u64> {
        let stats = rig.envoy.stats("http.ingress.downstream_rq_active")?;
        let value =
            stats.lines().find_map(|line| line.strip_prefix("http.ingress.downstream_rq_active: "));
        Ok(value.unwrap_or("0").trim().parse()?)
    };
    wait::until_true("all wait", Duration::from_secs(30), || Ok(waiting(&rig)? == CLIENTS as u64))?;
    let mut stay = Vec::new();
    for (i, client) in clients.into_iter().enumerate() {
        if i % 2 == 0 {
            stay.push(client);
        }
    }
    wait::until_true("half of the clients to be gone", Duration::from_secs(30), || {
        Ok(waiting(&rig)? == CLIENTS as u64 / 2)
    })?;
    rig.thaw()?;
    for client in &mut stay {
        assert_eq!(client.finish()?.status, 200);
    }
    // The units of the clients that left are refunded: no part of the quota is lost.
    let mut client = rig.client()?;
    wait::until_true("the rest of the quota is admitted", Duration::from_secs(20), || {
        client.send(&Request::get("/"))?;
        Ok(rig.upstream.requests() == CLIENTS as u64)
    })?;
    assert_eq!(client.send(&Request::get("/"))?.status, 429);
    Ok(())
}
