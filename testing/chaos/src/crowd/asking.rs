//! The clients: the crowd, honest users and a victim who always asks for more, and the answers that
//! they get.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use quotagate_support::http::{Client, Request, Response};

use super::VICTIM_WINDOW_S;

/// Threads of the crowd, and connections per thread; each connection has one request in flight.
const THREADS: u64 = 4;
const CONNECTIONS: usize = 64;
/// One in so many sends its request for a lease, the others for a quota of one.
const LEASES: u64 = 4;
/// Honest users, their connections, and the pause between the requests of each connection: long
/// enough for the answer to arrive first, or requests would queue for longer and longer.
const HONEST: u32 = 4;
const HONEST_CONNECTIONS: u32 = 40;
const BEAT: Duration = Duration::from_secs(1);
/// How long the victim waits after an answer.
const PAUSE: Duration = Duration::from_millis(50);

/// Counts of answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answers {
    /// Admitted and counted: 200 with quota headers.
    pub counted: u64,
    /// 200 without quota headers.
    pub uncounted: u64,
    /// 429.
    pub refused: u64,
    /// Not counted in time: 503.
    pub unavailable: u64,
    /// Anything else.
    pub other: u64,
}

impl Answers {
    /// The sum of all counts.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.counted + self.uncounted + self.refused + self.unavailable + self.other
    }

    fn note(&mut self, response: &Response) {
        let kind = match response.status {
            200 if response.header("x-ratelimit-remaining").is_some() => &mut self.counted,
            200 => &mut self.uncounted,
            429 => &mut self.refused,
            503 => &mut self.unavailable,
            _ => &mut self.other,
        };
        *kind += 1;
    }

    pub(super) fn add(&mut self, others: Self) {
        self.counted += others.counted;
        self.uncounted += others.uncounted;
        self.refused += others.refused;
        self.unavailable += others.unavailable;
        self.other += others.other;
    }
}

/// What honest users saw.
#[derive(Debug, Clone, Default)]
pub struct Honest {
    /// The time from the moment that each request was due to its answer, so a request that had to
    /// wait for the answer before it has waited.
    pub took: Vec<Duration>,
    /// Requests that their quota did not admit.
    pub failed: u64,
}

impl Honest {
    /// The quantile of the response times.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        let index = (took.len() as f64 * part) as usize;
        took.get(index.min(took.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

/// Whose requests they are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Who {
    /// The same identity for all requests.
    One,
    /// A new identity for each request; no two parts of a crowd share one.
    Part(u64),
}

/// Sends at least so many requests, one at a time on each connection, and waits for the answers.
pub(super) fn ask(port: u16, who: Who, requests: u64) -> Result<Answers> {
    let each = requests.div_ceil(THREADS);
    let threads = (0..THREADS)
        .map(|number| spawn(move || crowd(port, who, number, each)))
        .collect::<Result<Vec<_>>>()?;
    let mut answers = Answers::default();
    for thread in threads {
        answers.add(joined(thread)?);
    }
    Ok(answers)
}

fn crowd(port: u16, who: Who, number: u64, requests: u64) -> Result<Answers> {
    let mut clients =
        (0..CONNECTIONS).map(|_| Client::connect(port)).collect::<Result<Vec<_>>>()?;
    let (mut next, mut answers) = (0, Answers::default());
    while next < requests {
        for client in &mut clients {
            client.start(&match who {
                Who::One => Request::get("/honest").header("x-user", "one"),
                Who::Part(part) => {
                    let path = if next % LEASES == 0 { "/lease" } else { "/once" };
                    Request::get(path).header("x-key", format!("made-up-{part}-{number}-{next}"))
                }
            })?;
            next += 1;
        }
        for client in &mut clients {
            answers.note(&client.finish()?);
        }
    }
    Ok(answers)
}

/// Clients at a steady pace, until they are [sent home](Regulars::home).
#[derive(Debug)]
pub(super) struct Regulars {
    shared: Arc<RegularsState>,
    honest: Vec<JoinHandle<Result<()>>>,
    victim: JoinHandle<Result<u64>>,
}

#[derive(Debug, Default)]
struct RegularsState {
    over: AtomicBool,
    honest: Mutex<Honest>,
}

impl Regulars {
    pub(super) fn start(port: u16) -> Result<Self> {
        let shared = Arc::new(RegularsState::default());
        let honest = (0..HONEST_CONNECTIONS)
            .map(|number| {
                let shared = Arc::clone(&shared);
                spawn(move || honest(&shared, port, number))
            })
            .collect::<Result<_>>()?;
        let other = Arc::clone(&shared);
        let victim = spawn(move || victim(&other, port))?;
        Ok(Self { shared, honest, victim })
    }

    /// What honest users saw since the last call.
    pub(super) fn seen(&self) -> Honest {
        self.shared.seen()
    }

    /// Stops the clients. Returns what honest users saw since the last call, and the most that the
    /// victim got in one window.
    pub(super) fn home(self) -> Result<(Honest, u64)> {
        self.shared.over.store(true, Relaxed);
        self.honest.into_iter().try_for_each(joined)?;
        Ok((self.shared.seen(), joined(self.victim)?))
    }
}

impl RegularsState {
    fn seen(&self) -> Honest {
        std::mem::take(&mut *self.honest.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Sends each request when it is due, or at once if the previous answer came later than that.
fn honest(shared: &RegularsState, port: u16, number: u32) -> Result<()> {
    let mut client = Client::connect(port)?;
    // The clients do not start all at once.
    let mut due = Instant::now() + BEAT * number / HONEST_CONNECTIONS;
    let user = format!("honest-{}", number % HONEST);
    while !shared.over.load(Relaxed) {
        sleep(due.saturating_duration_since(Instant::now()));
        let mut answers = Answers::default();
        answers.note(&client.send(&Request::get("/honest").header("x-user", &user))?);
        let mut seen = shared.honest.lock().unwrap_or_else(PoisonError::into_inner);
        seen.took.push(due.elapsed());
        seen.failed += 1 - answers.counted;
        due += BEAT;
    }
    Ok(())
}

/// Always asks for more than the quota. Returns the most that it got in one window.
fn victim(shared: &RegularsState, port: u16) -> Result<u64> {
    let mut client = Client::connect(port)?;
    let (mut window, mut admitted, mut most) = (0, 0, 0);
    while !shared.over.load(Relaxed) {
        let response = client.send(&Request::get("/victim").header("x-user", "victim"))?;
        if response.status == 200 {
            let ends: u64 = response.header("x-ratelimit-reset").context("no reset")?.parse()?;
            // The header is rounded up, and counts from the receipt of the grant: never before the
            // end.
            if ends / VICTIM_WINDOW_S != window {
                (window, admitted) = (ends / VICTIM_WINDOW_S, 0);
            }
            admitted += 1;
            most = most.max(admitted);
        }
        sleep(PAUSE);
    }
    Ok(most)
}

fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<JoinHandle<Result<T>>> {
    Ok(thread::Builder::new().spawn(work)?)
}

fn joined<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread has panicked"))?
}
