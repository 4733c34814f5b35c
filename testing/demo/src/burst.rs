//! `--once`: requests of several callers, a table of the answers, and whether they are right.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use quotagate_support::{
    http::{Client, Request, Response},
    jwt, wait,
};
use quotagate_workspace::task;

/// The quota of the shipped configuration.
const QUOTA: u32 = 5;
/// The burst must not straddle the end of a window.
const ROOM: u64 = 5;
const READY: Duration = Duration::from_secs(20);

/// A line of the script: who sends how many requests.
struct Caller {
    name: &'static str,
    token: Option<String>,
    requests: u32,
    /// Whether the token has a wrong signature.
    forged: bool,
}

/// What one request got.
struct Row {
    caller: &'static str,
    request: u32,
    status: u16,
    expected: u16,
    remaining: String,
    limit: String,
    retry_after: String,
}

/// Sends the burst. Fails if an answer is wrong.
pub fn run(port: u16) -> Result<()> {
    task::step("demo: a burst of requests, 5 a minute for each caller");
    wait_for_room(port)?;
    let mut rows = Vec::new();
    for caller in script()? {
        let mut client = Client::connect(port)?;
        for request in 1..=caller.requests {
            let response = client.send(&caller.request())?;
            rows.push(Row::new(&caller, request, &response));
        }
    }
    println!("\n{}", table(&rows));
    let wrong: Vec<String> = rows.iter().filter_map(Row::fault).collect();
    if !wrong.is_empty() {
        bail!("unexpected responses: {}", wrong.join("; "));
    }
    println!(
        "As expected: alice's sixth request was rejected, and no other caller's quota changed.\n"
    );
    Ok(())
}

fn script() -> Result<Vec<Caller>> {
    let of = |name, requests| -> Result<Caller> {
        Ok(Caller { name, token: Some(jwt::token(name)?), requests, forged: false })
    };
    let nobody = Caller { name: "(no token)", token: None, requests: 2, forged: false };
    let forged =
        Caller { name: "(forged)", token: Some(jwt::forged("bob")?), requests: 1, forged: true };
    Ok(vec![of("alice", 7)?, of("bob", 2)?, nobody, forged])
}

impl Caller {
    fn request(&self) -> Request {
        let request = Request::get("/");
        match &self.token {
            Some(token) => request.bearer(token),
            None => request,
        }
    }

    fn expected(&self, request: u32) -> u16 {
        match (self.forged, request) {
            (true, _) => 401,
            (false, ..=QUOTA) => 200,
            (false, _) => 429,
        }
    }
}

impl Row {
    fn new(caller: &Caller, request: u32, response: &Response) -> Self {
        let header = |name| response.header(name).unwrap_or("-").to_owned();
        Self {
            caller: caller.name,
            request,
            status: response.status,
            expected: caller.expected(request),
            remaining: header("x-ratelimit-remaining"),
            limit: header("x-ratelimit-limit"),
            retry_after: header("retry-after"),
        }
    }

    /// What is wrong with it.
    fn fault(&self) -> Option<String> {
        let who = format!("{} request {}", self.caller, self.request);
        if self.status != self.expected {
            return Some(format!("{who} got {} instead of {}", self.status, self.expected));
        }
        let remaining = match self.expected {
            200 => QUOTA.saturating_sub(self.request).to_string(),
            429 => "0".to_owned(),
            _ => return None,
        };
        if self.remaining != remaining {
            return Some(format!("{who} has {} remaining instead of {remaining}", self.remaining));
        }
        (self.expected == 429 && self.retry_after == "-")
            .then(|| format!("{who} has no Retry-After"))
    }
}

/// Waits until requests are counted (the first may pass uncounted while connections open), and
/// until the window has some seconds left.
fn wait_for_room(port: u16) -> Result<()> {
    let probe = jwt::token("demo-probe")?;
    let limit = READY + Duration::from_secs(ROOM);
    wait::until_true("quota headers with enough of the window left", limit, || {
        let response = Client::connect(port)?.send(&Request::get("/").bearer(&probe))?;
        let header = response.header("x-ratelimit-reset").context("nothing is counted")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        Ok(header.parse::<u64>()? > now + ROOM)
    })
}

fn table(rows: &[Row]) -> String {
    let mut lines = vec![format!(
        "{:<12}{:>8}{:>8}{:>7}{:>11}{:>13}",
        "caller", "request", "status", "limit", "remaining", "retry-after"
    )];
    lines.extend(rows.iter().map(|row| {
        let mark = if row.fault().is_some() { "  <- wrong" } else { "" };
        format!(
            "{:<12}{:>8}{:>8}{:>7}{:>11}{:>13}{mark}",
            row.caller, row.request, row.status, row.limit, row.remaining, row.retry_after
        )
    }));
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, remaining: &str, retry_after: Option<&str>) -> Response {
        let mut headers = vec![("x-ratelimit-remaining".to_owned(), remaining.as_bytes().to_vec())];
        headers
            .extend(retry_after.map(|value| ("retry-after".to_owned(), value.as_bytes().to_vec())));
        Response { status, headers, body: Vec::new() }
    }

    #[test]
    fn only_expected_responses_pass() {
        let script = script().unwrap();
        let [alice, .., forged] = script.as_slice() else { panic!("no script") };
        let fault = |caller, request, response| Row::new(caller, request, &response).fault();
        assert_eq!(fault(alice, 1, answer(200, "4", None)), None);
        assert_eq!(fault(alice, 6, answer(429, "0", Some("9"))), None);
        assert_eq!(fault(forged, 1, answer(401, "", None)), None);
        assert!(fault(alice, 1, answer(200, "3", None)).unwrap().contains("3 remaining"));
        assert!(fault(alice, 6, answer(200, "0", None)).unwrap().contains("instead of 429"));
        assert!(fault(alice, 6, answer(429, "0", None)).unwrap().contains("Retry-After"));
        assert!(fault(forged, 1, answer(200, "4", None)).unwrap().contains("instead of 401"));
    }

    #[test]
    fn table_has_a_line_for_each_request_and_marks_wrong_ones() {
        let script = script().unwrap();
        let row = Row::new(&script[0], 6, &answer(200, "4", None));
        let text = table(&[row]);
        assert_eq!(text.trim_end().lines().count(), 2);
        assert!(text.contains("alice") && text.contains("<- wrong"));
    }
}
