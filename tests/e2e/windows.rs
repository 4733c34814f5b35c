//! Two windows of one party (a short one and a long one): a request that one refuses spends nothing of the other.
//! Ten thousand requests over two Envoys with two workers each and two stores; the counters in Redis must say what
//! was admitted.

use anyhow::Result;
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::document;
use crate::two_proxies::Fleet;

const REQUESTS: usize = 10_000;
/// Under way at once.
const CLIENTS: usize = 100;

fn windows(short: (u64, &str), long: (u64, &str)) -> Value {
    let policy = |name: &str, (quota, window): (u64, &str)| json!({"name": name, "partition_by": ["caller"], "quota": quota, "window": window});
    document(json!([policy("short", short), policy("long", long)]))
}

/// What is admitted of all the requests, once both policies count exactly that.
fn admitted(fleet: &Fleet) -> Result<u64> {
    let admitted = fleet.storm(&mut fleet.clients(CLIENTS)?, REQUESTS)?;
    inspect::settled(&fleet.redis, "short", admitted)?;
    inspect::settled(&fleet.redis, "long", admitted)?;
    Ok(admitted)
}

#[test]
fn of_two_windows_the_short_one_refuses_and_the_long_one_keeps_its_units() -> Result<()> {
    let fleet = Fleet::start(&windows((33, "365d"), (2_000, "366d")))?;
    assert_eq!(admitted(&fleet)?, 33);
    Ok(())
}

#[test]
fn of_two_windows_the_long_one_refuses_and_the_short_one_keeps_its_units() -> Result<()> {
    let fleet = Fleet::start(&windows((3_300, "365d"), (2_000, "366d")))?;
    assert_eq!(admitted(&fleet)?, 2_000);
    Ok(())
}

#[test]
fn windows_of_a_minute_and_an_hour_count_what_was_admitted() -> Result<()> {
    let fleet = Fleet::start(&windows((33, "1m"), (2_000, "1h")))?;
    let admitted = admitted(&fleet)?;
    // The storm may meet the end of a minute; the next one then admits as many again.
    let minutes = inspect::windows(&fleet.redis, "short")?;
    assert!(
        admitted >= 33 && minutes.iter().all(|(_, _, units)| *units <= 33),
        "{admitted} in {minutes:?}"
    );
    Ok(())
}
