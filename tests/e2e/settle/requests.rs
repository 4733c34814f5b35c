//! Reservations by the request's body: the request waits for it, and the upstream gets all of it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use quotagate_support::envoy::Form;
use quotagate_support::http::Request;
use quotagate_support::model::{RECEIVED, TOKENS};
use quotagate_support::yaml;
use serde_json::{Value, json};

use super::{Rig, tokens};

/// Reserves the greater of two members, else 7 units.
fn reserving() -> Value {
    let names = ["max_completion_tokens", "max_tokens"];
    let reserve = json!({"request_json": names, "default": 7, "max": 8000});
    json!([tokens(1_000_000, json!({"reserve": reserve}))])
}

#[test]
fn body_says_what_a_request_reserves() -> Result<()> {
    let rig = Rig::start(reserving())?;
    let mut client = rig.client()?;
    let long = format!(r#"{{"prompt": "{}", "max_tokens": 9}}"#, "x".repeat(300_000));
    let fits = format!(r#"{{"prompt": "{}", "max_tokens": 9}}"#, "x".repeat(60_000));
    let mut sum = 0;
    for (body, reserved) in [
        (r#"{"model": "m", "max_tokens": 300}"#, 300),
        (r#"{"messages": [{"content": "\"max_tokens\": 1"}], "max\u005ftokens": 40}"#, 40),
        (r#"{"max_tokens": 9000}"#, 8000),
        (r#"{"max_tokens": 1, "max_completion_tokens": 600}"#, 600),
        (r#"{"MAX_TOKENS": 500, "max_tokens": 1}"#, 500),
        (r#"{"max_tokens": 1, "max_completion_tokens": null}"#, 7),
        (r#"{"max_tokens": "300"}"#, 7),
        ("no JSON", 7),
        ("", 7),
        (&fits, 9),
        (&long, 7),
    ] {
        let response = client.send(&Request::post("/openai/json", body.as_bytes()))?;
        assert_eq!(response.status, 200);
        let received = body.len().to_string();
        assert_eq!(response.header(RECEIVED), Some(&*received), "the upstream gets the whole body");
        sum += reserved;
        rig.settled("tokens", sum)?;
    }
    assert_eq!(client.send(&Request::get("/openai/json"))?.status, 200);
    rig.settled("tokens", sum + 7)
}

#[test]
fn request_that_reserves_too_much_is_refused_before_the_upstream_sees_it() -> Result<()> {
    let reserve = json!({"request_json": "max_tokens", "default": 7});
    let cost = json!({"reserve": reserve, "settle": [{"usage": "total"}]});
    let rig = Rig::start(json!([tokens(1000, cost)]))?;
    let mut client = rig.client()?;
    let mut ask = |tokens: &str| -> Result<u16> {
        let body = format!(r#"{{"max_tokens": {tokens}}}"#);
        let request = Request::post("/openai/json", body.as_bytes()).header(TOKENS, "100");
        Ok(client.send(&request)?.status)
    };
    assert_eq!(ask("1001")?, 429);
    assert_eq!(ask("1000")?, 200);
    rig.settled("tokens", 100)?;
    assert_eq!(ask("901")?, 429);
    assert_eq!(ask("900")?, 200);
    rig.settled("tokens", 200)?;
    assert_eq!(rig.model.requests(), 2);
    Ok(())
}

/// Sends a chunked body in these pieces, with a pause after each. Returns the status line.
fn slowly(rig: &Rig, pieces: &[&str], pause: Duration) -> Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, rig.envoy.port()))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let head = "POST /openai/json HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n";
    write!(stream, "{head}connection: close\r\n\r\n")?;
    for piece in pieces {
        write!(stream, "{:x}\r\n{piece}\r\n", piece.len())?;
        thread::sleep(pause);
    }
    stream.write_all(b"0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn pieces_of_a_body_are_waited_for_but_not_long() -> Result<()> {
    let rig = Rig::start(reserving())?;
    let pieces = [r#"{"max_tok"#, r#"ens": 30"#, r#"0, "x": 1"#, "}"];
    // Far below the second that the filter waits, so that a slow machine changes nothing.
    let status = slowly(&rig, &pieces, Duration::from_millis(5))?;
    assert!(status.contains(" 200 "), "{status}");
    rig.settled("tokens", 300)?;
    // The request is decided after a second, and its body goes on to the upstream as it comes.
    let started = Instant::now();
    let status = slowly(&rig, &pieces, Duration::from_millis(700))?;
    assert!(status.contains(" 200 "), "{status}");
    rig.settled("tokens", 307)?;
    assert!(started.elapsed() < Duration::from_secs(10));
    Ok(())
}

/// The listener's buffers are smaller than what the filter reads of a body.
#[test]
fn body_larger_than_the_buffers_of_the_listener_passes_and_is_counted() -> Result<()> {
    let rig = Rig::start_with(reserving(), |options| {
        options.edit(|config| {
            let listener = yaml::at(config, "/static_resources/listeners/0")?;
            listener["per_connection_buffer_limit_bytes"] = json!(16 << 10);
            Ok(())
        })
    })?;
    let body = format!(r#"{{"prompt": "{}", "max_tokens": 9}}"#, "x".repeat(50_000));
    let mut client = rig.client()?;
    let response = client.send(&Request::post("/openai/json", body.as_bytes()))?;
    assert_eq!(response.status, 200);
    assert_eq!(response.header(RECEIVED), Some(&*body.len().to_string()));
    // The native module makes room for the body. The Wasm filter sees a part, and reserves the
    // default.
    rig.settled("tokens", if Form::of_run()? == Form::Native { 9 } else { 7 })?;
    // A body of more than 64 KiB reserves the default in both forms.
    let body = format!(r#"{{"prompt": "{}", "max_tokens": 9}}"#, "x".repeat(300_000));
    assert_eq!(client.send(&Request::post("/openai/json", body.as_bytes()))?.status, 200);
    rig.settled("tokens", if Form::of_run()? == Form::Native { 16 } else { 14 })
}

#[test]
fn client_that_leaves_in_the_middle_of_its_body_takes_nothing() -> Result<()> {
    let rig = Rig::start(reserving())?;
    for _ in 0..20 {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, rig.envoy.port()))?;
        write!(stream, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{{\"max_")?;
    }
    thread::sleep(Duration::from_millis(1500));
    let body = br#"{"max_tokens": 300}"#;
    assert_eq!(rig.client()?.send(&Request::post("/openai/json", body))?.status, 200);
    rig.settled("tokens", 300)
}
