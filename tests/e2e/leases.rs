//! `precision: lease` on two Envoys with two workers each.
//!
//! | case | expected |
//! | --- | --- |
//! | 5,600 requests, quota 4,000 | exactly the quota is admitted, with at most a tenth of the calls |
//! | most decisions | need no call |
//! | traffic that moves to the other proxy | uses up the lease that the first one refunds |
//! | traffic that stops | the leased units are refunded |

use std::time::Duration;

use anyhow::Result;
use quotagate_support::http::Client;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::document;
use crate::two_proxies::Fleet;

/// Clients that send at the same time.
const CLIENTS: usize = 40;
/// Idle workers refund their leases, and workers recheck a spent counter once per second.
const USED_UP: Duration = Duration::from_secs(20);

fn leased(quota: u64) -> Value {
    document(json!([{
        "name": "leased", "partition_by": ["caller"], "quota": quota, "window": "365d",
        "precision": "lease", "lease": {"ahead": "100ms"}
    }]))
}

/// Sends requests until the whole quota is admitted, and some more. Fails if fewer or more are
/// admitted.
fn use_up(fleet: &Fleet, clients: &mut [Client], mut admitted: u64, quota: u64) -> Result<()> {
    wait::until_true(&format!("all {quota} units to be used"), USED_UP, || {
        admitted += fleet.storm(clients, clients.len())?;
        assert!(admitted <= quota, "over the quota: {admitted} of {quota}");
        Ok(admitted == quota)
    })?;
    assert_eq!(fleet.storm(clients, 10 * clients.len())?, 0, "over the quota");
    inspect::settled(&fleet.redis, "leased", quota)
}

#[test]
fn invariant_1_four_workers_with_leases_admit_exactly_the_quota_with_few_calls() -> Result<()> {
    const QUOTA: u64 = 4_000;
    const REQUESTS: u64 = 5_600;
    let fleet = Fleet::start(&leased(QUOTA))?;
    let mut clients = fleet.clients(CLIENTS)?;
    let admitted = fleet.storm(&mut clients, REQUESTS as usize)?;
    let calls = fleet.calls()?;
    assert!(admitted <= QUOTA, "over the quota: {admitted}");
    assert!(calls * 10 <= REQUESTS, "{calls} calls for {REQUESTS} requests");
    use_up(&fleet, &mut clients, admitted, QUOTA)
}

#[test]
fn other_proxy_uses_up_the_refunded_lease_after_traffic_moves() -> Result<()> {
    const QUOTA: u64 = 2_000;
    let fleet = Fleet::start(&leased(QUOTA))?;
    let of = |proxy: usize| {
        let port = fleet.envoys[proxy].port();
        (0..CLIENTS).map(|_| Client::connect(port)).collect::<Result<Vec<_>>>()
    };
    let admitted = fleet.storm(&mut of(0)?, 1_000)?;
    assert_eq!(admitted, 1_000, "a request was refused although units were left");
    use_up(&fleet, &mut of(1)?, admitted, QUOTA)
}

#[test]
fn leased_units_are_refunded_when_traffic_stops() -> Result<()> {
    let fleet = Fleet::start(&leased(10_000))?;
    let admitted = fleet.storm(&mut fleet.clients(CLIENTS)?, 1_000)?;
    assert_eq!(admitted, 1_000);
    inspect::settled(&fleet.redis, "leased", admitted)
}
