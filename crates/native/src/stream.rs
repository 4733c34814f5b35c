//! One request on its Envoy worker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use quotagate_quota::access_log;
use quotagate_quota::config::Config;
use quotagate_quota::driver;
use quotagate_quota::exchange::{Arrival, Exchange, MAX_REQUEST_BODY};
use quotagate_quota::response::{self, Upstream};
use quotagate_quota::time::Monotonic;

use crate::abi::{Handle, Host, Scheduler};
use crate::clock::response_time;
use crate::panics::guard;
use crate::setup::Setup;
use crate::shard::{Shard, StreamDriver};
use crate::test_faults;

/// What Envoy shall do with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes on.
    Continue,
    /// It was answered.
    Answered,
    /// It waits.
    Hold,
    /// It waits for its body, which is to come here.
    Read,
}

/// One request. Its hooks run on one Envoy worker; the runtime thread only wakes it.
pub struct Stream {
    setup: Arc<Setup>,
    handle: Handle,
    number: u64,
    /// The shard that counts it, and the configuration that it was evaluated with.
    counted: OnceLock<(Arc<Shard>, Arc<Config>)>,
    exchange: Mutex<Exchange>,
    /// Whether its request's body came here, and waits as long as it does.
    reads_request: AtomicBool,
    /// Whether its response's body is read.
    reads_response: AtomicBool,
    /// Present from when it waits until Envoy destroys it.
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
            reads_request: AtomicBool::new(false),
            reads_response: AtomicBool::new(false),
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

    /// The stream for the driver, with its state, which is locked already.
    pub fn for_driver<'s>(
        self: &'s Arc<Self>,
        exchange: &'s mut Exchange,
    ) -> driver::Stream<'s, u64, Arc<Self>> {
        driver::Stream { id: self.number, who: self, exchange }
    }

    /// The request's headers arrive; `whole`: without a body. `setup` is that of the route, or of
    /// the listener.
    pub fn request_headers(
        self: &Arc<Self>,
        host: &Host<'_>,
        setup: &Setup,
        whole: bool,
    ) -> Action {
        let Some(shard) = setup.shard(host.worker_index()) else {
            return self.failed(host, setup.config());
        };
        let (arrival, config) = shard.arrive(self, host, whole);
        // Once only: Envoy calls this hook once per stream.
        let _ = self.counted.set((Arc::clone(shard), Arc::clone(&config)));
        self.arrived(&arrival, host, &config)
    }

    fn arrived(&self, arrival: &Arrival, host: &Host<'_>, config: &Config) -> Action {
        if let Arrival::MissingIdentity(missing) = arrival
            && let Some(entry) = access_log::missing_identity(config, missing.policy)
        {
            host.note(&entry);
        }
        let action = driver::Action::on_arrival(arrival, &self.exchange(), config, response_time);
        self.apply(action, host)
    }

    fn apply(&self, action: driver::Action<'_>, host: &Host<'_>) -> Action {
        match action {
            driver::Action::Continue(mark) => {
                if let Some(mark) = mark {
                    guard("mark", (), || host.mark(&mark));
                }
                Action::Continue
            }
            driver::Action::Hold => Action::Hold,
            driver::Action::Read => {
                self.reads_request.store(true, Ordering::Relaxed);
                // Nothing would tell the module that a smaller buffer is full.
                host.buffer_at_least(MAX_REQUEST_BODY);
                Action::Read
            }
            driver::Action::Answer(answer) => {
                host.send(&answer);
                Action::Answered
            }
        }
    }

    /// Whether its request's body comes to the module.
    pub fn reads_request(&self) -> bool {
        self.reads_request.load(Ordering::Relaxed)
    }

    /// A piece of the request's body has come, or its trailers (`end`).
    pub fn request_body(self: &Arc<Self>, host: &Host<'_>, end: bool) -> Action {
        let Some((shard, config)) = self.counted.get() else { return Action::Continue };
        if !self.exchange().is_reading() {
            let waits = self.exchange().is_waiting();
            return if waits { Action::Hold } else { Action::Continue };
        }
        match shard.request_body(self, host, end) {
            Some(arrival) => self.arrived(&arrival, host, config),
            None => Action::Read,
        }
    }

    /// The stream was woken. Its request's body may take too long.
    pub fn late_body(self: &Arc<Self>, host: &Host<'_>) {
        let Some((shard, config)) = self.counted.get() else { return };
        if !self.exchange().is_reading() {
            return;
        }
        let action = guard("request body", None, || {
            let arrival = shard.late_body(self, host);
            Some(arrival.map(|arrival| self.arrived(&arrival, host, config)))
        });
        // After a panic nothing else would resume or answer it.
        let action = action.unwrap_or_else(|| {
            guard("answer", Some(Action::Continue), || Some(self.give_up_body(host)))
        });
        if action == Some(Action::Continue) {
            host.resume_request();
        }
    }

    /// Resumes or answers the stream, which waits.
    pub fn carry_out(&self, host: &Host<'_>, config: &Config) {
        let action = guard("decision", None, || {
            test_faults::trip("carry_out");
            Some(driver::Action::on_decision(&self.exchange(), config, response_time))
        });
        let action = action.unwrap_or_else(|| driver::Action::undecided(config));
        if self.apply(action, host) == Action::Continue {
            host.resume_request();
        }
    }

    /// The module panicked while the request's headers were read. The request does not wait.
    pub fn give_up(&self, host: &Host<'_>, setup: &Setup) {
        if let Some(shard) = setup.shard(host.worker_index()) {
            shard.stop_reading(self);
            shard.leaves(self);
        }
    }

    /// The module panicked while the request's body was read. The request does not wait.
    pub fn give_up_body(&self, host: &Host<'_>) -> Action {
        self.reads_request.store(false, Ordering::Relaxed);
        let Some((shard, config)) = self.counted.get() else { return Action::Continue };
        shard.stop_reading(self);
        shard.leaves(self);
        self.failed(host, config)
    }

    /// The module failed to decide the request. It is answered, or shall go on.
    pub fn failed(&self, host: &Host<'_>, config: &Config) -> Action {
        self.apply(driver::Action::undecided(config), host)
    }

    /// The response's headers arrive, from the upstream or from Envoy.
    pub fn response_headers(&self, host: &Host<'_>, whole: bool) {
        test_faults::trip("response");
        let Some((shard, config)) = self.counted.get() else { return };
        shard.keep_time();
        {
            let mut exchange = self.exchange();
            exchange.response_begins();
            if exchange.admission().is_none() {
                return;
            }
        }
        self.settle(shard, |driver, exchange, now| {
            driver.response_headers(exchange, host, whole, now);
        });
        let exchange = self.exchange();
        self.reads_response.store(exchange.reads_body(), Ordering::Relaxed);
        let Some(admission) = exchange.admission() else { return };
        for (name, value) in
            response::response_headers(config, &admission.standings, host, response_time)
        {
            host.set_response_header(name, &value);
        }
    }

    /// A piece of the response's body arrives.
    pub fn response_body(&self, host: &Host<'_>, end: bool) {
        let Some((shard, _)) = self.counted.get() else { return };
        shard.keep_time();
        if !self.reads_response.load(Ordering::Relaxed) {
            return;
        }
        host.response_body(|chunk| self.exchange().body(chunk));
        if end {
            self.settle(shard, |driver, exchange, now| {
                driver.response_ends(exchange, host, now);
            });
        }
    }

    /// The response's trailers arrive.
    pub fn response_trailers(&self, host: &Host<'_>) {
        if let Some((shard, _)) = self.counted.get() {
            self.settle(shard, |driver, exchange, now| {
                driver.response_trailers(exchange, host, now);
            });
        }
    }

    /// The stream is over, and Envoy writes the access log next.
    pub fn complete(&self, host: &Host<'_>) {
        let Some((shard, config)) = self.counted.get() else { return };
        // Before anything that may panic.
        let is_last = shard.stream_ends();
        test_faults::trip("complete");
        shard.keep_time();
        let redirected = self.exchange().redirected(|| host.is_redirected());
        if let Some(admission) = redirected {
            shard.redirect(host, admission);
        }
        self.end(shard, host);
        if let Some(decision) = self.exchange().decision()
            && let Some(entry) = access_log::entry(config, decision)
        {
            host.note(&entry);
        }
        shard.write_metrics(host, self.setup.metrics(), is_last);
    }

    /// Envoy destroys the stream.
    pub fn destroy(&self) {
        self.handle.forget();
        // Before anything that may panic: nothing may wait for this stream's wake.
        let waited = self.scheduler().take().is_some();
        if let Some((shard, _)) = self.counted.get() {
            if self.reads_request() {
                shard.stop_reading(self);
            }
            if waited {
                // After a panic its decision may be there although nobody carried it out.
                shard.leaves(self);
            }
            self.end(shard, &());
        }
    }

    /// Wakes the stream, on any thread. `false` if Envoy has destroyed it.
    pub fn wake(&self) -> bool {
        let scheduler = self.scheduler();
        scheduler.as_ref().inspect(|scheduler| scheduler.commit()).is_some()
    }

    /// Makes [`wake`](Self::wake) work.
    pub fn prepare_to_wake(&self, host: &Host<'_>) {
        *self.scheduler() = Some(host.scheduler());
    }

    /// The shard that counts it.
    pub fn shard(&self) -> Option<&Arc<Shard>> {
        self.counted.get().map(|(shard, _)| shard)
    }

    /// Does what a part of the response needs, unless the request is settled.
    fn settle(
        &self,
        shard: &Arc<Shard>,
        part: impl FnOnce(&mut StreamDriver, &mut Exchange, Monotonic),
    ) {
        if !self.exchange().is_settled() {
            shard.work(|driver, now| part(driver, &mut self.exchange(), now));
        }
    }

    fn end(&self, shard: &Arc<Shard>, response: &impl Upstream) {
        if !self.exchange().is_settled() {
            shard.work(|driver, now| {
                driver.end(&self.number, &mut self.exchange(), response, now);
            });
            shard.leaves(self);
        }
    }

    fn scheduler(&self) -> MutexGuard<'_, Option<Scheduler>> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
