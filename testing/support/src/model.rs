//! A fake model: an HTTP/1.1 server that answers like the API of a language model, streams
//! included.
//!
//! The path of a request names the answer; the headers below change it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

/// The header with the tokens that a request used. An answer splits them into input and output.
pub const TOKENS: &str = "x-model-tokens";
/// The header with the number of text events of a stream, and so its length: [`EVENT`] bytes each.
pub const EVENTS: &str = "x-model-events";
/// The header with milliseconds between two events of a stream.
pub const PAUSE_MS: &str = "x-model-pause-ms";
/// The header with the end of a stream: `reset` or `hang` after its text events, or `open`, which
/// sends the last events and then keeps the body open.
pub const END: &str = "x-model-end";
/// The header of an answer with the number of bytes of the request's body.
pub const RECEIVED: &str = "x-model-received";
/// Bytes of the text of one event.
pub const EVENT: usize = 1000;

/// How long an answer hangs.
const HANG: Duration = Duration::from_secs(30);

/// A running fake model. Its threads end with the process.
#[derive(Debug)]
pub struct Model {
    port: u16,
    requests: Arc<AtomicU64>,
}

/// What a request asks for.
struct Asked {
    path: String,
    headers: Vec<(String, String)>,
    /// The bytes of its body.
    received: u64,
}

impl Model {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// When the system refuses a socket.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let requests = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let count = Arc::clone(&count);
                // A client that leaves in the middle is no error.
                thread::spawn(move || serve(stream, &count).unwrap_or_default());
            }
        });
        Ok(Self { port, requests })
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many requests have reached it.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Asked {
    fn read(stream: &mut BufReader<TcpStream>) -> Result<Option<Self>> {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let path = line.split(' ').nth(1).context("no path")?.to_owned();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut asked = Self { path, headers, received: 0 };
        asked.received = asked.skip_body(stream)?;
        Ok(Some(asked))
    }

    fn skip_body(&self, stream: &mut BufReader<TcpStream>) -> Result<u64> {
        let mut received = 0;
        if self.header("transfer-encoding").is_some() {
            loop {
                let mut size = String::new();
                stream.read_line(&mut size)?;
                let size = u64::from_str_radix(size.trim(), 16)?;
                std::io::copy(&mut stream.take(size + 2), &mut std::io::sink())?;
                received += size;
                if size == 0 {
                    return Ok(received);
                }
            }
        }
        let length = self.number("content-length", 0);
        Ok(std::io::copy(&mut stream.take(length), &mut std::io::sink())?)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.header(name).and_then(|value| value.parse().ok()).unwrap_or(default)
    }
}

fn serve(stream: TcpStream, count: &AtomicU64) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(asked) = Asked::read(&mut reader)? {
        count.fetch_add(1, Ordering::Relaxed);
        answer(&asked, &mut writer)?;
    }
    Ok(())
}

/// The usage of a request, by the path's API.
fn usage(asked: &Asked) -> String {
    let tokens = asked.number(TOKENS, 0);
    let (output, input) = (tokens / 2, tokens - tokens / 2);
    match asked.path.split('/').nth(1) {
        Some("anthropic") => format!(
            r#""usage":{{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},"output_tokens":{output}}}"#,
            input - input / 2,
            input / 2
        ),
        Some("gemini") => format!(
            r#""usageMetadata":{{"promptTokenCount":{input},"candidatesTokenCount":{output},"totalTokenCount":{tokens}}}"#
        ),
        Some("responses") => format!(
            r#""usage":{{"input_tokens":{input},"output_tokens":{output},"total_tokens":{tokens}}}"#
        ),
        Some("silent") => r#""usage":null"#.to_owned(),
        _ => format!(
            r#""usage":{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{tokens}}}"#
        ),
    }
}

fn answer(asked: &Asked, stream: &mut TcpStream) -> Result<()> {
    let usage = usage(asked);
    match asked.path.split('/').nth(2) {
        Some("stream") => events(asked, &usage, stream),
        // The encoding is a lie: nobody may read a body that claims it.
        Some("gzip") => whole(stream, "content-encoding: gzip\r\n", json(&usage).as_bytes()),
        Some("header") => {
            let cost = format!("x-cost: {}\r\n", asked.number(TOKENS, 0));
            whole(stream, &cost, json(&usage).as_bytes())
        }
        Some("trailer") => {
            head(stream, "application/json", "trailer: x-cost\r\ntransfer-encoding: chunked\r\n")?;
            chunk(stream, json(&usage).as_bytes())?;
            write!(stream, "0\r\nx-cost: {}\r\n\r\n", asked.number(TOKENS, 0))?;
            Ok(())
        }
        _ => {
            let received = format!("{RECEIVED}: {}\r\n", asked.received);
            whole(stream, &received, json(&usage).as_bytes())
        }
    }
}

fn json(usage: &str) -> String {
    format!(r#"{{"choices":[{{"message":{{"content":"Grüße 😀 \"usage\": {{}}"}}}}],{usage}}}"#)
}

/// A stream: text events, then the one with the usage, in chunks that split characters.
fn events(asked: &Asked, usage: &str, stream: &mut TcpStream) -> Result<()> {
    head(stream, "text/event-stream; charset=utf-8", "transfer-encoding: chunked\r\n")?;
    let pause = Duration::from_millis(asked.number(PAUSE_MS, 0));
    if asked.path.starts_with("/anthropic/") {
        chunk(stream, b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{")?;
        chunk(
            stream,
            usage.replace("\"output_tokens\":", "\"output_tokens\":1,\"x\":").as_bytes(),
        )?;
        chunk(stream, b"}}\n\n")?;
    }
    let text = "ä\u{1f600}".repeat(EVENT / 6);
    let event = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}],\"usage\":null}}\n\n"
    );
    for _ in 0..asked.number(EVENTS, 3) {
        let (first, second) = event.as_bytes().split_at(event.len() / 2 + 1);
        chunk(stream, first)?;
        chunk(stream, second)?;
        thread::sleep(pause);
    }
    match asked.header(END) {
        Some("reset") => return Ok(stream.shutdown(Shutdown::Both)?),
        Some("hang") => thread::sleep(HANG),
        _ => {}
    }
    for event in last_events(asked, usage) {
        for piece in format!("data: {event}\r\n\r\n").as_bytes().chunks(7) {
            chunk(stream, piece)?;
        }
    }
    if asked.header(END) == Some("open") {
        thread::sleep(HANG);
    }
    stream.write_all(b"0\r\n\r\n")?;
    Ok(())
}

/// The events that end a stream, by the path's API.
fn last_events(asked: &Asked, usage: &str) -> Vec<String> {
    match asked.path.split('/').nth(1) {
        Some("anthropic") => vec![
            format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn"}},{usage}}}"#),
            r#"{"type":"message_stop"}"#.to_owned(),
        ],
        Some("gemini") => vec![format!(
            r#"{{"candidates":[{{"content":{{"parts":[]}},"finishReason":"STOP","index":0}}],{usage}}}"#
        )],
        Some("responses") => vec![format!(
            r#"{{"type":"response.completed","response":{{"status":"completed",{usage}}}}}"#
        )],
        _ => vec![format!(r#"{{"choices":[],{usage}}}"#), "[DONE]".to_owned()],
    }
}

fn whole(stream: &mut TcpStream, headers: &str, body: &[u8]) -> Result<()> {
    let length = format!("{headers}content-length: {}\r\n", body.len());
    head(stream, "application/json", &length)?;
    Ok(stream.write_all(body)?)
}

fn head(stream: &mut TcpStream, content_type: &str, headers: &str) -> Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n{headers}\r\n")?;
    Ok(())
}

fn chunk(stream: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    Ok(stream.write_all(&chunk)?)
}
