//! One request on its Envoy worker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use quotagate_quota::access_log;
use quotagate_quota::answered::Answered;
use quotagate_quota::config::Config;
use quotagate_quota::exchange::{Arrival, Exchange};
use quotagate_quota::response::{self, Answer, Now};

use crate::abi::{Handle, Host, Scheduler};
use crate::runtime::now;
use crate::setup::Setup;
use crate::shard::Shard;

/// What Envoy shall do with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes on.
    Continue,
    /// It was answered.
    Answered,
    /// It waits.
    Hold,
}

/// One request. Its hooks run on one Envoy worker; the runtime thread only wakes it.
pub struct Stream {
    setup: Arc<Setup>,
    handle: Handle,
    number: u64,
    /// The shard that counts it, and the configuration that it was evaluated with.
    counted: OnceLock<(Arc<Shard>, Arc<Config>)>,
    exchange: Mutex<Exchange>,
    /// Present while it waits.
    scheduler: Mutex<Option<Scheduler>>,
}

impl Stream {
    /// A request that Envoy serves with this configuration.
    pub fn new(setup: Arc<Setup>, host: &Host<'_>) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Self {
            setup,
            handle: host.handle(),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            counted: OnceLock::new(),
            exchange: Mutex::default(),
            scheduler: Mutex::default(),
        }
    }

    /// Its number. Later streams have greater ones.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// How to find it again.
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The configuration of its listener.
    pub const fn setup(&self) -> &Arc<Setup> {
        &self.setup
    }

    /// Its state. Lock it after the core of its shard.
    pub fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request's headers arrive. `setup` is that of the route, or of the listener.
    pub fn request_headers(self: &Arc<Self>, host: &Host<'_>, setup: &Setup) -> Action {
        let Some(shard) = setup.shard(host.worker_index()) else { return Action::Continue };
        let (arrival, config) = shard.arrive(self, host);
        // Once only: Envoy calls this hook once per stream.
        let _ = self.counted.set((Arc::clone(shard), Arc::clone(&config)));
        match arrival {
            Arrival::Uncounted => Action::Continue,
            Arrival::MissingIdentity(missing) => {
                if let Some(entry) = access_log::missing_identity(&config, missing.policy) {
                    host.note(&entry);
                }
                host.send(&response::missing_identity(&config, missing.policy));
                Action::Answered
            }
            Arrival::Waiting => Action::Hold,
            Arrival::Decided | Arrival::Counting => match self.own_answer(&config) {
                Some(answer) => {
                    host.send(&answer);
                    Action::Answered
                }
                None => Action::Continue,
            },
        }
    }

    /// Resumes or answers the stream, which waits.
    pub fn carry_out(&self, host: &Host<'_>, config: &Config) {
        match self.own_answer(config) {
            Some(answer) => host.send(&answer),
            None => host.resume_request(),
        }
    }

    /// The module failed while the request's headers were read.
    pub fn failed(&self, host: &Host<'_>) -> Action {
        match self.setup.on_panic() {
            None => Action::Continue,
            Some(answer) => {
                host.send(&answer);
                Action::Answered
            }
        }
    }

    /// The response's headers arrive, from the upstream or from Envoy.
    pub fn response_headers(&self, host: &Host<'_>, whole: bool) {
        let Some((shard, config)) = self.counted.get() else { return };
        {
            let mut exchange = self.exchange();
            exchange.response_begins();
            if exchange.admission().is_none() {
                return;
            }
        }
        self.settle(shard, |grpc| host.response_headers(grpc, whole));
        let exchange = self.exchange();
        let Some(admission) = exchange.admission() else { return };
        for (name, value) in
            response::response_headers(config, &admission.standings, host, response_time)
        {
            host.set_response_header(name, &value);
        }
    }

    /// The response's trailers arrive.
    pub fn response_trailers(&self, host: &Host<'_>) {
        if let Some((shard, _)) = self.counted.get() {
            self.settle(shard, |_| Some(host.response_trailers()));
        }
    }

    /// The stream is over, and Envoy writes the access log next.
    pub fn complete(&self, host: &Host<'_>) {
        let Some((shard, config)) = self.counted.get() else { return };
        let redirected = self.exchange().redirected(|| host.is_redirected());
        if let Some(admission) = redirected {
            shard.redirect(host, admission);
        }
        self.end(shard);
        if let Some(decision) = self.exchange().decision()
            && let Some(entry) = access_log::entry(config, decision)
        {
            host.note(&entry);
        }
        shard.stream_is_over(host, self.setup.metrics());
    }

    /// Envoy destroys the stream.
    pub fn destroy(&self) {
        self.handle.forget();
        if let Some((shard, _)) = self.counted.get() {
            self.end(shard);
        }
        drop(self.scheduler().take());
    }

    /// Wakes the stream, on any thread.
    pub fn wake(&self) {
        if let Some(scheduler) = &*self.scheduler() {
            scheduler.commit();
        }
    }

    /// Makes [`wake`](Self::wake) work.
    pub fn prepare_to_wake(&self, host: &Host<'_>) {
        *self.scheduler() = Some(host.scheduler());
    }

    /// The shard that counts it.
    pub fn shard(&self) -> Option<&Arc<Shard>> {
        self.counted.get().map(|(shard, _)| shard)
    }

    fn own_answer<'c>(&self, config: &'c Config) -> Option<Answer<'c>> {
        response::answer(config, self.exchange().decision()?, response_time)
    }

    /// Refunds the held units that the answer does not count.
    fn settle(&self, shard: &Arc<Shard>, answered: impl FnOnce(bool) -> Option<Answered>) {
        if self.exchange().admission().is_some_and(|admission| !admission.held.is_empty()) {
            shard.work(|worker, now| self.exchange().answered(answered, worker, now));
        }
    }

    fn end(&self, shard: &Arc<Shard>) {
        if !self.exchange().is_settled() {
            shard.work(|worker, now| self.exchange().end(worker, now));
            shard.waits_no_more(self);
        }
    }

    fn scheduler(&self) -> MutexGuard<'_, Option<Scheduler>> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time for response headers.
fn response_time() -> Now {
    let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Now { monotonic: now(), epoch }
}
