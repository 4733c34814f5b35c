//! Ends of every kind: a response that breaks off is settled once, and a proxy that dies keeps the
//! reservation.

use anyhow::Result;
use quotagate_support::http::Request;
use quotagate_support::model::{END, TOKENS};
use serde_json::{Value, json};

use super::{Rig, route_timeout, tokens};

const HANGS: [(&str, &str); 2] = [(TOKENS, "100"), (END, "hang")];

fn settling(if_missing: Value) -> Value {
    let cost = json!({
        "reserve": 500, "settle": [{"usage": "total"}], "if_missing": if_missing
    });
    json!([tokens(10_000, cost)])
}

#[test]
fn client_that_leaves_pays_what_the_response_has_said_so_far() -> Result<()> {
    let rig = Rig::start(settling(json!("nothing")))?;
    let stream = rig.begin("/openai/stream", &HANGS)?;
    rig.settled("tokens", 500)?;
    drop(stream);
    rig.settled("tokens", 0)?;
    // Input is known from the start: 100 tokens, half of them.
    drop(rig.begin("/anthropic/stream", &HANGS)?);
    rig.settled("tokens", 51)?;
    // The next request is settled as ever.
    assert_eq!(rig.client()?.send(&Request::get("/openai/json").header(TOKENS, "70"))?.status, 200);
    rig.settled("tokens", 121)
}

#[test]
fn client_that_leaves_keeps_its_reservation_by_default() -> Result<()> {
    let rig = Rig::start(settling(json!("reserved")))?;
    for reserved in [500, 1000] {
        drop(rig.begin("/anthropic/stream", &HANGS)?);
        rig.settled("tokens", reserved)?;
    }
    // This response ends after the others, so a refund of theirs would have come before its own.
    assert_eq!(rig.client()?.send(&Request::get("/openai/json").header(TOKENS, "70"))?.status, 200);
    rig.settled("tokens", 1070)
}

/// Reads a stream that the upstream keeps open, up to the end of the event with `last`, and leaves.
fn leave_after(rig: &Rig, path: &str, last: &str) -> Result<()> {
    let mut client = rig.client()?;
    client.start(&Request::get(path).header(TOKENS, "100").header(END, "open"))?;
    client.read_until(|body| {
        let text = String::from_utf8_lossy(body);
        text.split_once(last).is_some_and(|(_, rest)| rest.contains("\r\n\r\n"))
    })
}

#[test]
fn client_that_leaves_after_the_last_event_pays_its_usage() -> Result<()> {
    let rig = Rig::start(settling(json!("reserved")))?;
    let mut sum = 0;
    for (path, last) in [
        ("/openai/stream", "[DONE]"),
        ("/openai/stream", r#""choices":[],"usage""#),
        ("/responses/stream", "response.completed"),
        ("/anthropic/stream", "message_stop"),
        ("/gemini/stream", "finishReason"),
    ] {
        leave_after(&rig, path, last)?;
        sum += 100;
        rig.settled("tokens", sum)?;
    }
    Ok(())
}

#[test]
fn reset_of_the_upstream_settles() -> Result<()> {
    let rig = Rig::start(settling(json!("nothing")))?;
    let mut stream = rig.begin("/openai/stream", &[(TOKENS, "100"), (END, "reset")])?;
    std::io::copy(&mut stream, &mut std::io::sink()).ok();
    rig.settled("tokens", 0)
}

#[test]
fn timeout_in_the_middle_of_a_response_settles() -> Result<()> {
    let rig = Rig::start_with(settling(json!(33)), |options| options.edit(route_timeout("1s")))?;
    let stream = rig.begin("/openai/stream", &HANGS)?;
    rig.settled("tokens", 500)?;
    rig.settled("tokens", 33)?;
    drop(stream);
    Ok(())
}

#[test]
fn proxy_that_is_killed_keeps_the_reservation() -> Result<()> {
    let mut rig = Rig::start(settling(json!("nothing")))?;
    let stream = rig.begin("/openai/stream", &HANGS)?;
    rig.settled("tokens", 500)?;
    rig.envoy.kill()?;
    drop(stream);
    rig.settled("tokens", 500)
}
