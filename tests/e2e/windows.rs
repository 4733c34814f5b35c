//! Two windows of one client, a short and a long one: a request that one refuses spends nothing of
//! the other. Ten thousand requests go through two Envoys with two workers each and two stores. The
//! counters in Redis must equal the number of admitted requests.

use anyhow::Result;
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::document;
use crate::two_proxies::Fleet;

const REQUESTS: usize = 10_000;
/// Clients that send at the same time.
const CLIENTS: usize = 100;

fn windows(short: (u64, &str), long: (u64, &str)) -> Value {
    let policy = |name: &str, (quota, window): (u64, &str)| json!({"name": name, "partition_by": ["caller"], "quota": quota, "window": window});
    document(json!([policy("short", short), policy("long", long)]))
}

/// Sends all requests and returns how many are admitted, after both policies count exactly that
/// number.
fn admitted(fleet: &Fleet) -> Result<u64> {
    let admitted = fleet.storm(&mut fleet.clients(CLIENTS)?, REQUESTS)?;
    inspect::settled(&fleet.redis, "short", admitted)?;
    inspect::settled(&fleet.redis, "long", admitted)?;
    Ok(admitted)
}

#[test]
fn refusal_by_the_short_window_spends_nothing_of_the_long_one() -> Result<()> {
    let fleet = Fleet::start(&windows((33, "365d"), (2_000, "366d")))?;
    assert_eq!(admitted(&fleet)?, 33);
    Ok(())
}

#[test]
fn refusal_by_the_long_window_spends_nothing_of_the_short_one() -> Result<()> {
    let fleet = Fleet::start(&windows((3_300, "365d"), (2_000, "366d")))?;
    assert_eq!(admitted(&fleet)?, 2_000);
    Ok(())
}

#[test]
fn windows_of_a_minute_and_an_hour_count_exactly_the_admitted_requests() -> Result<()> {
    let fleet = Fleet::start(&windows((33, "1m"), (2_000, "1h")))?;
    let admitted = admitted(&fleet)?;
    // The requests may cross the end of a minute. The next minute then admits as many again.
    let minutes = inspect::windows(&fleet.redis, "short")?;
    assert!(
        admitted >= 33 && minutes.iter().all(|(_, _, units)| *units <= 33),
        "{admitted} in {minutes:?}"
    );
    Ok(())
}
