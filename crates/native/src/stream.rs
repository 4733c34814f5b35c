//! One request on its Envoy worker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use quotagate_quota::access_log;
use quotagate_quota::answered::Answered;
use quotagate_quota::config::Config;
use quotagate_quota::exchange::{Arrival, Exchange, MAX_REQUEST_BODY};
use quotagate_quota::mark;
use quotagate_quota::protocol::OnFailure;
use quotagate_quota::response::{self, Answer, Now, Upstream};
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::Worker;

use crate::abi::{Handle, Host, Scheduler};
use crate::panics::guard;
use crate::runtime::now;
use crate::setup::Setup;
use crate::shard::Shard;
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
        if config.without_document().is_some() {
            return self.failed(host, &config);
        }
        self.arrived(arrival, host, &config)
    }

    fn arrived(&self, arrival: Arrival, host: &Host<'_>, config: &Config) -> Action {
        match arrival {
            Arrival::Uncounted => Action::Continue,
            Arrival::Reading => {
                self.reads_request.store(true, Ordering::Relaxed);
                // Nothing would tell the module that a smaller buffer is full.
                host.buffer_at_least(MAX_REQUEST_BODY);
                Action::Read
            }
            Arrival::MissingIdentity(missing) => {
                if let Some(entry) = access_log::missing_identity(config, missing.policy) {
                    host.note(&entry);
                }
                host.send(&response::missing_identity(config, missing.policy));
                Action::Answered
            }
            Arrival::Waiting => Action::Hold,
            Arrival::Decided | Arrival::Counting => match self.own_answer(config) {
                Some(answer) => {
                    host.send(&answer);
                    Action::Answered
                }
                None => {
                    self.mark(host, config);
                    Action::Continue
                }
            },
        }
    }

    /// Marks the request, which goes on, if a policy says so.
    fn mark(&self, host: &Host<'_>, config: &Config) {
        if config.marks
            && let Some(decision) = self.exchange().decision()
            && let Some(mark) = mark::exceeded(config, decision)
        {
            host.mark(&mark);
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
            Some(arrival) => self.arrived(arrival, host, config),
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
            Some(arrival.map(|arrival| self.arrived(arrival, host, config)))
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
        let answer = guard("decision", None, || {
            test_faults::trip("carry_out");
            Some(self.own_answer(config))
        });
        match answer {
            Some(Some(answer)) => host.send(&answer),
            Some(None) => {
                guard("mark", (), || self.mark(host, config));
                host.resume_request();
            }
            None => {
                if self.failed(host, config) == Action::Continue {
                    host.resume_request();
                }
            }
        }
    }

    /// The module panicked while the request's headers were read. The request does not wait.
    pub fn give_up(&self, host: &Host<'_>, setup: &Setup) {
        if let Some(shard) = setup.shard(host.worker_index()) {
            shard.leaves(self);
        }
    }

    /// The module panicked while the request's body was read. The request does not wait.
    pub fn give_up_body(&self, host: &Host<'_>) -> Action {
        self.reads_request.store(false, Ordering::Relaxed);
        let Some((shard, config)) = self.counted.get() else { return Action::Continue };
        shard.leaves(self);
        self.failed(host, config)
    }

    /// The module failed to decide the request. It is answered, or shall go on.
    pub fn failed(&self, host: &Host<'_>, config: &Config) -> Action {
        match config.store.on_failure {
            OnFailure::Allow | OnFailure::Local => Action::Continue,
            OnFailure::Deny => {
                host.send(&response::unavailable(config));
                Action::Answered
            }
        }
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
        self.settle(
            shard,
            |grpc| host.response_headers(grpc, whole),
            |exchange, worker, now| exchange.response_headers(host, whole, worker, now),
        );
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
            self.settle(
                shard,
                |_| None,
                |exchange, worker, now| exchange.response_ends(host, worker, now),
            );
        }
    }

    /// The response's trailers arrive.
    pub fn response_trailers(&self, host: &Host<'_>) {
        if let Some((shard, _)) = self.counted.get() {
            self.settle(
                shard,
                |_| Some(host.response_trailers()),
                |exchange, worker, now| exchange.response_trailers(host, worker, now),
            );
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

    fn own_answer<'c>(&self, config: &'c Config) -> Option<Answer<'c>> {
        response::answer(config, self.exchange().decision()?, response_time)
    }

    /// Refunds the held units that the answer does not count. Then does what this part of the
    /// response needs.
    fn settle(
        &self,
        shard: &Arc<Shard>,
        answered: impl FnOnce(bool) -> Option<Answered>,
        part: impl FnOnce(&mut Exchange, &mut Worker<Arc<Self>>, Monotonic),
    ) {
        if self.exchange().is_settled() {
            return;
        }
        shard.work(|worker, now| {
            let mut exchange = self.exchange();
            exchange.answered(answered, worker, now);
            part(&mut exchange, worker, now);
        });
    }

    fn end(&self, shard: &Arc<Shard>, response: &impl Upstream) {
        if !self.exchange().is_settled() {
            shard.work(|worker, now| self.exchange().end(response, worker, now));
            shard.leaves(self);
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
