//! The load: clients of every way to count. Some send malformed headers, some leave early.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::upstream::{DELAY_HEADER, STATUS_HEADER};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::document::{FAILED, Way};
use super::windows::Windows;
use crate::load::STUCK;

const CONNECTIONS: u32 = 16;
/// Requests a second of all connections.
pub const RATE: u32 = 96;
/// Addresses that they come from.
const ADDRESSES: u8 = 3;

/// Instead of a status: the connection ended before an answer.
pub const LOST: u16 = 0;

/// What clients saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Answers by way and status, or [`LOST`].
    pub statuses: BTreeMap<(Way, u16), u64>,
    /// What was admitted.
    pub windows: Windows,
    /// Requests without an answer within 20 s.
    pub silent: u64,
    /// Clients that left.
    pub left: u64,
    /// The longest wait for an answer.
    pub slowest: Duration,
}

impl Seen {
    fn join(&mut self, other: Self) {
        for (key, count) in other.statuses {
            *self.statuses.entry(key).or_default() += count;
        }
        self.windows.join(other.windows);
        self.silent += other.silent;
        self.left += other.left;
        self.slowest = self.slowest.max(other.slowest);
    }
}

/// Load that runs until it is ended or dropped.
#[derive(Debug)]
pub struct Clients {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Seen>>,
}

impl Clients {
    /// Starts the load on these ports of 127.0.0.1.
    ///
    /// # Errors
    /// When the system refuses threads.
    pub fn start(ports: &[u16], seed: u64) -> Result<Self> {
        let mut clients = Self { over: Arc::default(), threads: Vec::new() };
        for (number, &port) in (0..CONNECTIONS).zip(ports.iter().cycle()) {
            let talk = Talk {
                to: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
                address: u8::try_from(number / 2)? % ADDRESSES,
                chance: Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_add(number.into())),
                over: Arc::clone(&clients.over),
                client: None,
                seen: Seen::default(),
            };
            let first = Duration::from_secs(1) / RATE * number;
            clients.threads.push(thread::Builder::new().spawn(move || talk.run(first))?);
        }
        Ok(clients)
    }

    /// Sends no more requests and waits for the last answers.
    ///
    /// # Errors
    /// When a thread of it has panicked.
    pub fn end(mut self) -> Result<Seen> {
        self.over.store(true, Relaxed);
        let mut all = Seen::default();
        for thread in self.threads.drain(..) {
            all.join(thread.join().map_err(|_| anyhow!("a thread of the load has panicked"))?);
        }
        Ok(all)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

struct Talk {
    to: SocketAddr,
    address: u8,
    chance: Xoshiro256PlusPlus,
    over: Arc<AtomicBool>,
    client: Option<Client>,
    seen: Seen,
}

impl Talk {
    fn run(mut self, first: Duration) -> Seen {
        let step = Duration::from_secs(1) / RATE * CONNECTIONS;
        let mut next = Instant::now() + first;
        while !self.over.load(Relaxed) {
            sleep(next.saturating_duration_since(Instant::now()));
            let index = self.chance.random_range(0..Way::ALL.len());
            let Some(&way) = Way::ALL.get(index) else { break };
            let user = self.chance.random_range(0..way.users());
            // Making a token fails only if the clock is before 1970.
            if let Ok(request) = way.request(user) {
                self.one(way, user, request);
            }
            while next <= Instant::now() {
                next += step;
            }
        }
        self.seen
    }

    fn one(&mut self, way: Way, user: usize, request: Request) {
        let mut request = self.odd(request);
        if way == Way::Logins && self.chance.random_ratio(1, 2) {
            request = request.header(STATUS_HEADER, FAILED.to_string());
        }
        let sent = Instant::now();
        if self.chance.random_ratio(1, 50) {
            // The client leaves while the upstream or the store works on its request.
            let request = request.header(DELAY_HEADER, "20");
            let _ = self.connected().and_then(|client| client.start(&request));
            self.client = None;
            self.seen.left += 1;
            return;
        }
        let answer = self.connected().and_then(|client| client.send(&request));
        let took = sent.elapsed();
        self.seen.slowest = self.seen.slowest.max(took);
        let status = answer.as_ref().map_or(LOST, |response| response.status);
        *self.seen.statuses.entry((way, status)).or_default() += 1;
        match answer {
            Ok(response) => self.note(way, user, &response),
            Err(_) => {
                self.client = None;
                self.seen.silent += u64::from(took >= STUCK);
            }
        }
    }

    /// Sometimes with malformed headers.
    fn odd(&mut self, request: Request) -> Request {
        match self.chance.random_range(0..20) {
            0 => request.raw_header(b"x-forwarded-for", b"\xff, 10.0.0.1, ::::"),
            1 => request
                .raw_header(b"cookie", b"=;;; a=\x80; \"")
                .raw_header(b"x-tenant", b"{}* EVAL \t"),
            2 => request.header("x-large", "y".repeat(8_000)),
            3 => request.header("authorization", "Basic !!!"),
            _ => request,
        }
    }

    fn note(&mut self, way: Way, user: usize, response: &Response) {
        if response.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            self.client = None;
        }
        let counts = response.status == if way == Way::Logins { FAILED } else { 200 };
        let reset = response.header("x-ratelimit-reset").and_then(|reset| reset.parse().ok());
        if let (true, Some(reset)) = (counts, reset) {
            let address = if way == Way::Logins { self.address } else { 0 };
            self.seen.windows.admitted((way, user, address), reset);
        }
    }

    fn connected(&mut self) -> Result<&mut Client> {
        if self.client.is_none() {
            let own = IpAddr::from(Ipv4Addr::new(127, 0, 0, 2 + self.address));
            let client = Client::connect_from(own, self.to)?;
            client.set_timeout(STUCK)?;
            self.client = Some(client);
        }
        self.client.as_mut().ok_or_else(|| anyhow!("no connection"))
    }
}
