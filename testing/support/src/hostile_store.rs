//! A store that misbehaves on request: it counts, or it answers slowly, with nonsense, half, twice,
//! or not at all.
//!
//! It speaks HTTP/1.1 on a port of 127.0.0.1, with one thread per connection, and ends when
//! dropped. A change of its answers applies to all calls that arrive afterwards.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use socket2::SockRef;

use crate::wait::PAUSE;

/// Time until the end of the one window that it counts in: the same in every answer.
const RESET_MS: u64 = 30_000;

/// What a call gets.
#[derive(Debug, Clone)]
pub enum Behaviour {
    /// Grants, as a store does.
    Good,
    /// A good reply, later.
    Slow(Duration),
    /// A good reply, sent twice.
    Twice,
    /// A good reply with a change.
    Altered(fn(&mut Value)),
    /// This status and this body.
    Answer(u16, Vec<u8>),
    /// These bytes, then this ending.
    Bytes(Vec<u8>, Then),
}

/// What follows an answer that is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The connection is closed.
    Close,
    /// The connection is reset.
    Reset,
    /// Nothing; the connection stays open until the caller closes it.
    Hold,
}

#[derive(Debug)]
struct Shared {
    behaviour: Mutex<Behaviour>,
    /// Units granted, by key.
    granted: Mutex<HashMap<String, u64>>,
    /// The connections, by number.
    streams: Mutex<HashMap<u64, TcpStream>>,
    stopping: AtomicBool,
}

/// A running hostile store.
#[derive(Debug)]
pub struct HostileStore {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl HostileStore {
    /// Starts one that behaves well.
    ///
    /// # Errors
    /// When the system refuses a socket or a thread.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(Behaviour::Good),
            granted: Mutex::default(),
            streams: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("hostile store".to_owned())
            .spawn(move || accept(&listener, &own))?;
        Ok(Self { port, shared, thread: Some(thread) })
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the answer to calls that arrive from now on.
    pub fn set(&self, behaviour: Behaviour) {
        *lock(&self.shared.behaviour) = behaviour;
    }

    /// The units that good replies have granted. Altered replies do not count.
    #[must_use]
    pub fn granted(&self) -> u64 {
        lock(&self.shared.granted).values().sum()
    }
}

impl Drop for HostileStore {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for stream in lock(&self.shared.streams).drain().map(|(_, stream)| stream) {
            // The connection may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A panic of another thread leaves no half-done change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let Ok(copy) = stream.try_clone() else { continue };
        lock(&shared.streams).insert(number, copy);
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            // An error means that the caller has left.
            let _ = serve(&stream, &shared);
            // A reset goes out when the last of its handles is dropped.
            lock(&shared.streams).remove(&number);
        });
    }
}

fn serve(mut stream: &TcpStream, shared: &Shared) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_call(&mut reader)? {
        let behaviour = lock(&shared.behaviour).clone();
        match behaviour {
            Behaviour::Good => stream.write_all(&good(&request, shared))?,
            Behaviour::Slow(pause) => {
                let reply = good(&request, shared);
                hold(stream, Some(pause), shared);
                stream.write_all(&reply)?;
            }
            Behaviour::Twice => stream.write_all(&good(&request, shared).repeat(2))?,
            Behaviour::Altered(alter) => {
                let mut reply = reply(&request, |_, want, _| (want, want));
                // A call that only refunds has no grants to alter.
                if request.get("reservations").is_some() {
                    alter(&mut reply);
                }
                stream.write_all(&answer(200, reply.to_string().as_bytes()))?;
            }
            Behaviour::Answer(status, body) => stream.write_all(&answer(status, &body))?,
            Behaviour::Bytes(bytes, then) => {
                stream.write_all(&bytes)?;
                match then {
                    Then::Close => stream.shutdown(Shutdown::Both)?,
                    Then::Reset => SockRef::from(stream).set_linger(Some(Duration::ZERO))?,
                    Then::Hold => hold(stream, None, shared),
                }
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Waits for this time, or until the caller closes the connection. Without a limit, waits for the
/// latter.
fn hold(stream: &TcpStream, limit: Option<Duration>, shared: &Shared) {
    let start = Instant::now();
    let gone = || stream.set_nonblocking(true).is_err() || matches!(stream.peek(&mut [0]), Ok(0));
    while limit.is_none_or(|limit| start.elapsed() < limit)
        && !gone()
        && !shared.stopping.load(Ordering::SeqCst)
    {
        thread::sleep(PAUSE);
    }
    // If this fails, writing fails too.
    let _ = stream.set_nonblocking(false);
}

/// The body of the next call; `None` if the caller has closed the connection.
fn read_call(reader: &mut BufReader<&TcpStream>) -> Result<Option<Value>> {
    let mut length = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = line.split_once(": ") else {
            if line.trim().is_empty() {
                break;
            }
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse::<usize>()?);
        }
    }
    let Some(length) = length else { bail!("a call without a length") };
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}

fn good(request: &Value, shared: &Shared) -> Vec<u8> {
    let mut granted = lock(&shared.granted);
    let reply = reply(request, |key, want, quota| {
        let used = granted.entry(key.to_owned()).or_default();
        let grant = want.min(quota.saturating_sub(*used));
        *used += grant;
        (grant, *used)
    });
    answer(200, reply.to_string().as_bytes())
}

/// A reply. `grant` maps the key, the wanted units and the quota to the granted units and the used
/// ones.
fn reply(request: &Value, mut grant: impl FnMut(&str, u64, u64) -> (u64, u64)) -> Value {
    let number = |reservation: &Value, field: &str| {
        reservation.get(field).and_then(Value::as_u64).unwrap_or_default()
    };
    let reservations = request
        .get("reservations")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let grants = reservations.iter().map(|reservation| {
        let key = reservation.get("key").and_then(Value::as_str).unwrap_or_default();
        let quota = number(reservation, "quota");
        let (granted, used) = grant(key, number(reservation, "want"), quota);
        json!({"granted": granted, "used": used, "quota": quota, "reset_ms": RESET_MS, "window": 1})
    });
    json!({"dials": 0, "grants": grants.collect::<Vec<_>>()})
}

fn answer(status: u16, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} Whatever\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}
