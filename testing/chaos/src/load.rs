//! Steady load: open connections, each with one request at fixed moments, whatever the outcome of
//! the last one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::upstream::TALLY_HEADER;

use crate::document::{Kind, WINDOW_S};

/// The longest wait for an answer. A later one never comes.
///
/// Above the `idle_timeout` of the rig's route, which ends requests whose filter has died.
pub const STUCK: Duration = Duration::from_secs(20);
/// Users of each policy.
const USERS: &[&str] = &["0", "1", "2"];

/// What load runs.
#[derive(Debug, Clone, Copy)]
pub struct Traffic {
    /// Requests a second, over all connections.
    pub rate: u32,
    /// Connections, to the proxies in turn.
    pub connections: u32,
    /// The policies, in turn.
    pub kinds: &'static [Kind],
    /// The users of each policy, in turn.
    pub users: &'static [&'static str],
}

impl Traffic {
    /// 60 requests a second of three spenders and three open users.
    pub const PLAIN: Self =
        Self { rate: 60, connections: 12, kinds: &[Kind::Spend, Kind::Open], users: USERS };

    /// The policy and the user of the request with this number.
    fn asks(&self, turn: usize) -> Option<(Kind, String)> {
        let kind = *self.kinds.get(turn % self.kinds.len().max(1))?;
        let user = self.users.get(turn / self.kinds.len() % self.users.len().max(1))?;
        Some((kind, format!("{}-{user}", kind.policy())))
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Admitted and counted, in the window that ends then (seconds since 1970).
    Admitted {
        /// The end of the window.
        ends: u64,
    },
    /// Admitted without a count.
    Uncounted,
    /// 429.
    Refused,
    /// 503 of the filter: the store fails.
    Unavailable,
    /// Any other status.
    Other(u16),
    /// The connection ended before an answer.
    Broken,
    /// No answer within [`STUCK`].
    Silent,
}

impl Outcome {
    /// Whether a quota decided the request.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        matches!(self, Self::Admitted { .. } | Self::Refused)
    }

    fn of(response: &Response) -> Self {
        let counted = response.header("x-ratelimit-limit").is_some();
        let problem = response.header("content-type") == Some("application/problem+json");
        match response.status {
            200 if counted => {
                let ends =
                    response.header("x-ratelimit-reset").and_then(|ends| ends.parse::<u64>().ok());
                // The header is rounded up, and counts from the receipt of the grant: never before
                // the end.
                Self::Admitted { ends: ends.unwrap_or_default() / WINDOW_S * WINDOW_S }
            }
            200 => Self::Uncounted,
            429 => Self::Refused,
            503 if problem => Self::Unavailable,
            other => Self::Other(other),
        }
    }
}

/// One request.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The policy.
    pub kind: Kind,
    /// The user.
    pub user: String,
    /// When.
    pub sent: Instant,
    /// How long the answer took, or how long the connection lived.
    pub took: Duration,
    /// The outcome.
    pub outcome: Outcome,
}

/// Load that runs until it is ended or dropped.
#[derive(Debug)]
pub struct Load {
    over: Arc<AtomicBool>,
    samples: Arc<Mutex<Vec<Sample>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the load on these ports of 127.0.0.1.
    ///
    /// # Errors
    /// When the system refuses threads.
    pub fn start(ports: &[u16], traffic: &Traffic) -> Result<Self> {
        let mut load = Self { over: Arc::default(), samples: Arc::default(), threads: Vec::new() };
        let begun = Instant::now();
        let beat = Duration::from_secs(1) / traffic.rate;
        for (number, port) in (0..traffic.connections).zip(ports.iter().cycle()) {
            let connection = Connection {
                port: *port,
                number,
                first: begun + beat * number,
                step: beat * traffic.connections,
                traffic: *traffic,
                over: Arc::clone(&load.over),
                samples: Arc::clone(&load.samples),
            };
            load.threads.push(thread::Builder::new().spawn(move || connection.run())?);
        }
        Ok(load)
    }

    /// Lets the load run for so long.
    pub fn go_on(&self, length: Duration) {
        sleep(length);
    }

    /// The outcomes of the requests so far.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends no more requests and waits for the last answers.
    ///
    /// # Errors
    /// When a thread of it has panicked.
    pub fn end(mut self) -> Result<Vec<Sample>> {
        self.over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a thread of the load has panicked"))?;
        }
        Ok(self.samples())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

struct Connection {
    port: u16,
    number: u32,
    first: Instant,
    step: Duration,
    traffic: Traffic,
    over: Arc<AtomicBool>,
    samples: Arc<Mutex<Vec<Sample>>>,
}

impl Connection {
    fn run(self) {
        let mut client = None;
        let (mut next, mut turn) = (self.first, self.number as usize);
        while !self.over.load(Relaxed) {
            sleep(next.saturating_duration_since(Instant::now()));
            let Some((kind, user)) = self.traffic.asks(turn) else { return };
            let sent = Instant::now();
            let outcome = exchange(&mut client, self.port, kind, &user);
            let sample = Sample { kind, user, sent, took: sent.elapsed(), outcome };
            self.samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
            turn += 1;
            // Skips the moments that passed while it waited: the other connections go on sending.
            while next <= Instant::now() {
                next += self.step;
            }
        }
    }
}

/// So many requests, each sent as soon as its connection has the answer to the one before.
///
/// # Errors
/// When a thread of it has panicked.
pub fn burst(
    ports: &[u16],
    connections: usize,
    requests: usize,
    kind: Kind,
) -> Result<Vec<Sample>> {
    let left = AtomicUsize::new(requests);
    let takes = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
    let talk = |number: usize, port: u16| {
        let (mut client, mut samples) = (None, Vec::new());
        let user = format!("{}-{}", kind.policy(), number % USERS.len());
        while takes() {
            let sent = Instant::now();
            let outcome = exchange(&mut client, port, kind, &user);
            samples.push(Sample { kind, user: user.clone(), sent, took: sent.elapsed(), outcome });
        }
        samples
    };
    thread::scope(|scope| {
        let numbered = (0..connections).zip(ports.iter().cycle());
        let talking: Vec<_> = numbered
            .map(|(number, &port)| {
                scope.spawn({
                    let talk = &talk;
                    move || talk(number, port)
                })
            })
            .collect();
        let mut all = Vec::with_capacity(requests);
        for thread in talking {
            all.extend(thread.join().map_err(|_| anyhow!("a thread of the load has panicked"))?);
        }
        Ok(all)
    })
}

/// Sends one request over the connection, which is opened if needed.
fn exchange(client: &mut Option<Client>, port: u16, kind: Kind, user: &str) -> Outcome {
    let asked = Instant::now();
    match answer(client, port, kind, user) {
        Ok(response) => {
            if response
                .header("connection")
                .is_some_and(|value| value.eq_ignore_ascii_case("close"))
            {
                *client = None;
            }
            Outcome::of(&response)
        }
        Err(_) => {
            *client = None;
            if asked.elapsed() < STUCK { Outcome::Broken } else { Outcome::Silent }
        }
    }
}

fn answer(client: &mut Option<Client>, port: u16, kind: Kind, user: &str) -> Result<Response> {
    let client = match client {
        Some(client) => client,
        None => {
            let new = Client::connect(port)?;
            new.set_timeout(STUCK)?;
            client.insert(new)
        }
    };
    let request = Request::get(&format!("/{}", kind.policy()));
    client.send(&request.header("x-user", user).header(TALLY_HEADER, user))
}
