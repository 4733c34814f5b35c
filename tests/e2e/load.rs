//! Clients that send requests until the test stops them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use quotagate_support::http::{self, Client, Request};

/// How often each status was seen.
pub type Statuses = BTreeMap<u16, u64>;

/// Clients under way.
pub struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<Statuses>>>,
}

impl Load {
    /// Half of the clients open a connection for each request. The others keep theirs until Envoy
    /// closes it.
    pub fn start(port: u16, clients: usize, pause: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |index: usize| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut statuses = Statuses::new();
                let mut kept = None;
                while !stop.load(Ordering::Relaxed) {
                    let status = if index.is_multiple_of(2) {
                        http::get(port, "/")?.status
                    } else {
                        keep_alive(port, &mut kept)?
                    };
                    *statuses.entry(status).or_default() += 1;
                    thread::sleep(pause);
                }
                Ok(statuses)
            })
        };
        let clients = (0..clients).map(client).collect();
        Self { stop, clients }
    }

    /// Stops the clients. Returns the statuses that they saw.
    ///
    /// # Errors
    /// When a request got no answer.
    pub fn stop(self) -> Result<Statuses> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Statuses::new();
        for client in self.clients {
            for (status, count) in client.join().map_err(|_| anyhow!("a client panicked"))?? {
                *sum.entry(status).or_default() += count;
            }
        }
        Ok(sum)
    }
}

fn keep_alive(port: u16, kept: &mut Option<Client>) -> Result<u16> {
    if let Some(client) = kept
        && let Ok(response) = client.send(&Request::get("/"))
    {
        if response.header("connection") == Some("close") {
            *kept = None;
        }
        return Ok(response.status);
    }
    // Envoy closes idle connections while it drains, so that a request may find one closed.
    let mut client = Client::connect(port)?;
    let status = client.send(&Request::get("/"))?.status;
    *kept = Some(client);
    Ok(status)
}
