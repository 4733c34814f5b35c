//! Bursts of requests of one caller, who has a quota of its own.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use quotagate_support::{
    http::{Client, Request, Response},
    jwt,
};

use crate::program;

/// The quota in the configuration of both compositions, and its window.
pub const QUOTA: u64 = 5;
const WINDOW: Duration = Duration::from_secs(60);
/// A burst that begins later might end in the next window.
const LATEST: Duration = Duration::from_secs(57);
/// Requests beyond the quota in each burst.
const BEYOND: u64 = 2;
/// Between two bursts.
const PAUSE: Duration = Duration::from_millis(50);

static CALLERS: AtomicU32 = AtomicU32::new(0);

/// Sends a burst of a caller that has sent nothing before: its quota and two requests more.
///
/// # Errors
/// When a request is not answered by 200 or 429.
pub fn send(port: u16, quota: u64) -> Result<Vec<Response>> {
    wait_for_room_in_window()?;
    let caller = format!("compose-{}", CALLERS.fetch_add(1, Ordering::Relaxed));
    let request = Request::get("/").bearer(&jwt::token(&caller)?);
    let mut client = Client::connect(port)?;
    let mut responses = Vec::new();
    for _ in 0..quota + BEYOND {
        let response = client.send(&request)?;
        if ![200, 429].contains(&response.status) {
            bail!("a request is answered {}: {}", response.status, response.text());
        }
        responses.push(response);
    }
    Ok(responses)
}

/// Waits for a minute that does not end at once.
///
/// # Errors
/// When Ctrl-C was pressed.
pub fn wait_for_room_in_window() -> Result<()> {
    loop {
        program::go_on()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let into = Duration::from_millis(u64::try_from(now.as_millis())? % 60_000);
        if into < LATEST {
            return Ok(());
        }
        sleep(WINDOW.saturating_sub(into) + PAUSE);
    }
}

/// Whether the quota was admitted, and nothing beyond it.
#[must_use]
pub fn is_exact(responses: &[Response], quota: u64) -> bool {
    let admitted = |response: &&Response| response.status == 200;
    let first = responses.iter().take_while(admitted).count();
    first as u64 == quota && responses.iter().filter(admitted).count() == first
}

/// How bursts were answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Answered {
    /// Bursts.
    pub bursts: u32,
    /// Bursts in which another number than the quota was admitted.
    pub inexact: u32,
}

/// Sends bursts until `wanted` of them in a row were exact.
///
/// # Errors
/// When one is answered by an error, or they are not exact within `limit`.
pub fn until_exact(port: u16, quota: u64, wanted: u32, limit: Duration) -> Result<Answered> {
    let (start, mut answered, mut in_a_row) = (Instant::now(), Answered::default(), 0);
    loop {
        let responses = send(port, quota)?;
        answered.bursts += 1;
        if is_exact(&responses, quota) {
            in_a_row += 1;
        } else {
            answered.inexact += 1;
            in_a_row = 0;
        }
        if in_a_row == wanted {
            return Ok(answered);
        }
        if start.elapsed() > limit {
            let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
            bail!(
                "after {limit:?} quotas of {quota} are not exact: the last burst got {statuses:?}"
            );
        }
        sleep(PAUSE);
    }
}

/// Checks the headers of an exact burst, and shows them.
///
/// # Errors
/// When it is not exact, or a header is missing or wrong.
pub fn check_headers(responses: &[Response]) -> Result<String> {
    if !is_exact(responses, QUOTA) {
        let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
        bail!("expected {QUOTA} times 200, then 429: {statuses:?}");
    }
    let refused = responses.last().context("no response")?;
    let mut shown = Vec::new();
    for (name, expected) in
        [("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", "0"), ("retry-after", "")]
    {
        let value = refused.header(name).with_context(|| format!("the 429 has no {name}"))?;
        if !value.starts_with(expected) {
            bail!("{name} of the 429 is {value:?}, not {expected:?}");
        }
        shown.push(format!("{name}: {value}"));
    }
    Ok(shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_quota_and_then_refusals_are_exact() {
        let responses = |statuses: &[u16]| -> Vec<Response> {
            let one = |status: &u16| Response { status: *status, headers: vec![], body: vec![] };
            statuses.iter().map(one).collect()
        };
        assert!(is_exact(&responses(&[200, 200, 429, 429]), 2));
        for statuses in
            [&[200, 429, 429][..], &[200, 200, 200, 429], &[200, 429, 200], &[429, 200, 200]]
        {
            assert!(!is_exact(&responses(statuses), 2), "{statuses:?}");
        }
    }
}
