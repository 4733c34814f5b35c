//! Records the messages between a filter and a store, for tests of later versions.
//!
//! `cargo xtask versions --previous REV --record NAME` writes
//! `crates/quota/tests/fixtures/recorded/NAME.json`. A record is never edited: it is what that
//! version sent. Add it to `RECORDED` in the two files `recorded.rs` of `crates/quota` and
//! `crates/store`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, fs, thread};

use anyhow::{Context, Result};
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form};
use quotagate_support::http::{Client, Request};
use quotagate_support::paths;
use quotagate_support::redis::Redis;
use quotagate_support::upstream::Upstream;
use serde_json::{Value, json};

use super::Version;
use super::scenario::{document, request, run};

/// The variable with the name of the record.
const RECORD: &str = "QUOTAGATE_RECORD";

/// Passes calls on to a store and keeps them with their answers.
struct Recorder {
    port: u16,
    exchanges: Arc<Mutex<Vec<Value>>>,
}

impl Recorder {
    /// Its threads end with the process.
    fn start(store: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let exchanges = Arc::<Mutex<Vec<Value>>>::default();
        let own = Arc::clone(&exchanges);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let exchanges = Arc::clone(&own);
                thread::spawn(move || serve(&stream, store, &exchanges));
            }
        });
        Ok(Self { port, exchanges })
    }

    fn exchanges(&self) -> Vec<Value> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(mut stream: &TcpStream, store: u16, exchanges: &Mutex<Vec<Value>>) -> Result<()> {
    let mut reader = BufReader::new(stream);
    let mut client = Client::connect(store)?;
    loop {
        let (mut path, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim();
            if line.is_empty() {
                break;
            }
            match line.split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse()?;
                }
                None => path = line.split(' ').nth(1).unwrap_or_default().to_owned(),
                Some(_) => {}
            }
        }
        let mut call = vec![0; length];
        reader.read_exact(&mut call)?;
        let reply = client.send(&Request::post(&path, &call))?;
        let exchange = json!({"path": path, "call": String::from_utf8(call)?,
            "status": reply.status, "reply": reply.text()});
        exchanges.lock().unwrap_or_else(PoisonError::into_inner).push(exchange);
        let head = format!(
            "HTTP/1.1 {} Recorded\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            reply.status,
            reply.body.len()
        );
        stream.write_all(&[head.as_bytes(), &reply.body].concat())?;
    }
}

#[test]
#[ignore = "`cargo xtask versions --record` runs it"]
fn record_the_messages_of_the_previous_version() -> Result<()> {
    let name = env::var(RECORD).context("QUOTAGATE_RECORD names the record")?;
    let [previous, _] = Version::both()?.context("no previous version")?;
    let mut redis = Redis::start()?;
    let store = previous.store(&redis.url())?;
    let upstream = Upstream::start()?;
    let recorder = Recorder::start(store.port())?;
    let options = EnvoyOptions::new(upstream.port(), recorder.port).form(Form::Wasm);
    let options = options.document(document()?).parts(&previous.parts);
    let envoy = Envoy::start(&options)?;
    let mut client = Client::connect(envoy.port())?;
    run(&mut client, &store)?;
    // Another proxy, which does not know that these are spent, asks the store.
    let other = Envoy::start(&options)?;
    let mut other_client = Client::connect(other.port())?;
    for spent in ["fixed", "sliding", "calendar", "login", "settled"] {
        other_client.send(&request(spent))?;
    }
    redis.kill()?;
    client.send(&request("shared"))?;
    let record = json!({"build": name, "document": document()?, "exchanges": recorder.exchanges()});
    let folder = paths::root().join("crates/quota/tests/fixtures/recorded");
    fs::create_dir_all(&folder)?;
    let text = serde_json::to_string_pretty(&record)?;
    fs::write(folder.join(format!("{name}.json")), text + "\n")?;
    Ok(())
}
