//! Waiting for something to become true.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// How often a condition is checked.
pub const PAUSE: Duration = Duration::from_millis(10);

/// Calls `condition` until it yields a value, for `limit` at most. `None` and errors mean "not
/// yet"; the last error is part of the message if time runs out.
///
/// # Errors
/// When `limit` has passed.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let last = match condition() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if start.elapsed() >= limit {
            match last {
                Some(error) => return Err(error.context(format!("waited {limit:?} for {what}"))),
                None => bail!("waited {limit:?} for {what}"),
            }
        }
        sleep(PAUSE);
    }
}

/// [`until`] for a plain condition.
///
/// # Errors
/// When `limit` has passed.
pub fn until_true(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    until(what, limit, || Ok(condition()?.then_some(())))
}
