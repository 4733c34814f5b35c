//! Redis, store, upstream and Envoy, with clients that keep asking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use serde_json::Value;

/// One Envoy with one worker. Parts end in this order.
pub struct Rig {
    /// The proxy in front of the upstream.
    pub envoy: Envoy,
    _upstream: Upstream,
    /// Its admin address serves the page.
    pub store: StoreProcess,
    /// Behind the store.
    pub redis: Redis,
}

impl Rig {
    /// Starts one with this policy document.
    ///
    /// # Errors
    /// When a part does not come up.
    pub fn start(document: Value) -> Result<Self> {
        let redis = Redis::start()?;
        let store = StoreProcess::start(&redis.url(), &[])?;
        let upstream = Upstream::start()?;
        let options = EnvoyOptions::new(upstream.port(), store.port()).document(document);
        Ok(Self { envoy: Envoy::start(&options)?, _upstream: upstream, store, redis })
    }

    /// The status of this request.
    ///
    /// # Errors
    /// When Envoy does not answer.
    pub fn status(&self, request: &Request) -> Result<u16> {
        Ok(Client::connect(self.envoy.port())?.send(request)?.status)
    }

    /// Sends these requests in turn, one per `pause`, until the value is dropped.
    #[must_use]
    pub fn traffic(&self, requests: Vec<Request>, pause: Duration) -> Traffic {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, port) = (Arc::clone(&stop), self.envoy.port());
        let thread = thread::spawn(move || {
            let mut client = Client::connect(port)?;
            for request in requests.iter().cycle() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                client.send(request)?;
                thread::sleep(pause);
            }
            Ok(())
        });
        Traffic { stop, thread: Some(thread) }
    }
}

/// Clients that keep asking.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Traffic {
    /// Ends it.
    ///
    /// # Errors
    /// When a request was not answered.
    pub fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().ok_or_else(|| anyhow!("it was ended before"))?;
        thread.join().map_err(|_| anyhow!("the traffic panicked"))?
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // `end` reports failures; `drop` cannot.
            let _ = thread.join();
        }
    }
}
