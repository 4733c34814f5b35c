//! Invariant 3 in numbers: what one policy refuses spends nothing of another, over many requests and two workers.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use quotagate_support::http::{Client, Request};
use quotagate_support::wait;
use serde_json::json;

use crate::rig::{Rig, document};

const REQUESTS: usize = 10_000;
const CLIENTS: usize = 50;
/// Of searches alone, and of all requests, for each tenant.
const SEARCHES: u64 = 300;
const ALL: u64 = 1_000;
/// Who sends how many searches among ten requests. With few the larger quota is spent first, with many the smaller.
const TENANTS: [(&str, usize); 3] = [("few", 2), ("half", 5), ("many", 9)];

/// Admitted searches, and admitted requests, of one tenant.
#[derive(Default)]
struct Admitted {
    searches: u64,
    all: u64,
    refused: u64,
}

fn next(i: usize) -> (&'static str, bool) {
    let (tenant, searches) = TENANTS[i % TENANTS.len()];
    (tenant, (i / TENANTS.len()) % 10 < searches)
}

fn request((tenant, search): (&str, bool)) -> Request {
    Request::get(if search { "/search" } else { "/other" }).header("x-tenant", tenant)
}

#[test]
fn invariant_3_ten_thousand_requests_spend_exactly_what_was_admitted() -> Result<()> {
    let policy = |name: &str, quota: u64, window: &str| json!({"name": name, "partition_by": ["tenant"], "quota": quota, "window": window});
    let mut searches = policy("searches", SEARCHES, "365d");
    searches["match"] = json!({"path": {"exact": "/search"}});
    let document = document(json!([searches, policy("all", ALL, "366d")]));
    let rig = Rig::start_with(document, |options| options.concurrency(2))?;
    let mut clients = (0..CLIENTS).map(|_| rig.client()).collect::<Result<Vec<Client>>>()?;
    let mut tenants: BTreeMap<&str, Admitted> = BTreeMap::new();
    for round in 0..REQUESTS / CLIENTS {
        let sent = |i: usize| next(round * CLIENTS + i);
        for (i, client) in clients.iter_mut().enumerate() {
            client.start(&request(sent(i)))?;
        }
        for (i, client) in clients.iter_mut().enumerate() {
            let (tenant, search) = sent(i);
            let admitted = tenants.entry(tenant).or_default();
            match client.finish()?.status {
                200 => {
                    admitted.all += 1;
                    admitted.searches += u64::from(search);
                }
                429 => admitted.refused += 1,
                other => anyhow::bail!("answered {other}"),
            }
        }
    }
    for (tenant, admitted) in &tenants {
        assert!(admitted.all <= ALL && admitted.searches <= SEARCHES, "{tenant} is over");
        assert!(admitted.refused > 0, "{tenant} met no quota");
        for (policy, count) in [("searches", admitted.searches), ("all", admitted.all)] {
            let pattern = format!("qg:shop:{policy}:{{header.x-tenant={tenant}}}:*");
            let mut used = String::new();
            // What was granted and not spent is on its way back.
            let settled = wait::until_true("the counter settles", Duration::from_secs(10), || {
                used = rig.redis.cli(&["GET", &rig.redis.cli(&["KEYS", &pattern])?.lines()])?.lines();
                Ok(used == count.to_string())
            });
            assert!(settled.is_ok(), "{tenant} {policy}: {used} units for {count} admitted requests");
        }
    }
    // The larger quota is used up although the smaller one refused thousands of requests.
    assert_eq!(tenants["few"].all, ALL);
    assert_eq!((tenants["many"].searches, tenants["half"].searches), (SEARCHES, SEARCHES));
    assert_eq!(rig.upstream.requests(), tenants.values().map(|admitted| admitted.all).sum::<u64>());
    Ok(())
}
