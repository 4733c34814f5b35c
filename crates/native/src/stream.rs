//! One request on its Envoy worker.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quotagate_quota::access_log;
use quotagate_quota::config::Config;
use quotagate_quota::driver;
use quotagate_quota::exchange::{Arrival, Exchange, MAX_REQUEST_BODY};
use quotagate_quota::response::{self, Upstream};
use quotagate_quota::time::Monotonic;

use crate::abi::Host;
use crate::clock::response_time;
use crate::facts::ResponseFacts;
use crate::panics::guard;
use crate::setup::Setup;
use crate::shard::{Shard, StreamDriver};
use crate::test_faults;
use crate::waiter::{RequestState, Waiter};

thread_local! {
    /// Memory in which one value of a response header after the other is written.
    static SCRATCH: Cell<String> = const { Cell::new(String::new()) };
}

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

/// One request. Its hooks run on one Envoy worker.
pub struct Stream {
    setup: Arc<Setup>,
    state: RequestState,
    /// The shard that has seen it.
    shard: OnceCell<Arc<Shard>>,
    /// The configuration that it was evaluated with, while something is left to do by it.
    config: RefCell<Option<Arc<Config>>>,
    /// Whether its request's body came here, and waits as long as it does.
    reads_request: Cell<bool>,
    /// Whether its response's body is read.
    reads_response: Cell<bool>,
}

impl Stream {
    /// A request that Envoy serves with this configuration.
    pub fn new(setup: Arc<Setup>) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Self {
            setup,
            state: RequestState::new(NUMBER.fetch_add(1, Ordering::Relaxed)),
            shard: OnceCell::new(),
            config: RefCell::default(),
            reads_request: Cell::new(false),
            reads_response: Cell::new(false),
        }
    }

    /// The configuration of its listener.
    pub const fn setup(&self) -> &Arc<Setup> {
        &self.setup
    }

    /// The request's headers arrive; `whole`: without a body. `setup` is that of the route, or of
    /// the listener.
    pub fn request_headers(&self, host: &mut Host<'_>, setup: &Setup, whole: bool) -> Action {
        let Some(shard) = setup.shard(host.worker_index()) else {
            return failed(host, setup.config());
        };
        let (arrival, config) = shard.arrive(&self.state, host, whole);
        // Once only: Envoy calls this hook once per stream.
        let _ = self.shard.set(Arc::clone(shard));
        if self.state.with(|exchange| exchange.is_uncounted()) {
            return self.arrived(&arrival, host, &config);
        }
        self.config.replace(Some(config));
        self.arrived_counted(&arrival, host)
    }

    fn arrived_counted(&self, arrival: &Arrival, host: &mut Host<'_>) -> Action {
        // Hooks that run meanwhile only read it.
        let config = self.config.borrow();
        self.arrived(arrival, host, config.as_deref().unwrap_or(self.setup.config()))
    }

    fn arrived(&self, arrival: &Arrival, host: &mut Host<'_>, config: &Config) -> Action {
        if let Arrival::MissingIdentity(missing) = arrival
            && let Some(entry) = access_log::missing_identity(config, missing.policy)
        {
            host.note(&entry);
        }
        let action = self
            .state
            .with(|exchange| driver::Action::on_arrival(arrival, exchange, config, response_time));
        if matches!(action, driver::Action::Read) {
            self.reads_request.set(true);
        }
        apply(action, host)
    }

    /// Whether its request's body comes to the module.
    pub fn reads_request(&self) -> bool {
        self.reads_request.get()
    }

    /// A piece of the request's body has come, or its trailers (`end`).
    pub fn request_body(&self, host: &mut Host<'_>, end: bool) -> Action {
        let Some(shard) = self.shard.get() else { return Action::Continue };
        if !self.state.with(|exchange| exchange.is_reading()) {
            let waits = self.state.with(|exchange| exchange.is_waiting());
            return if waits { Action::Hold } else { Action::Continue };
        }
        match shard.request_body(&self.state, host, end) {
            Some(arrival) => self.arrived_counted(&arrival, host),
            None => Action::Read,
        }
    }

    /// The stream was woken, perhaps for others of its Envoy worker.
    pub fn woken(&self, host: &mut Host<'_>) {
        let Some(shard) = self.shard.get() else { return };
        self.late_body(shard, host);
        shard.carry_out(host, carry_out);
    }

    /// Its request's body may take too long.
    fn late_body(&self, shard: &Arc<Shard>, host: &mut Host<'_>) {
        if !self.state.with(|exchange| exchange.is_reading()) {
            return;
        }
        let action = guard("request body", None, || {
            let arrival = shard.late_body(&self.state, host);
            Some(arrival.map(|arrival| self.arrived_counted(&arrival, host)))
        });
        // After a panic nothing else would resume or answer it.
        let action = action.unwrap_or_else(|| {
            guard("answer", Some(Action::Continue), || Some(self.give_up_body(host)))
        });
        if action == Some(Action::Continue) {
            host.resume_request();
        }
    }

    /// The module panicked while the request's headers were read. The request does not wait.
    pub fn give_up(&self, host: &Host<'_>, setup: &Setup) {
        if let Some(shard) = setup.shard(host.worker_index()) {
            shard.leaves(&self.state);
        }
    }

    /// The module panicked while the request's body was read. The request does not wait.
    pub fn give_up_body(&self, host: &mut Host<'_>) -> Action {
        self.reads_request.set(false);
        let Some(shard) = self.shard.get() else { return Action::Continue };
        shard.leaves(&self.state);
        let config = self.config.borrow();
        failed(host, config.as_deref().unwrap_or(self.setup.config()))
    }

    /// The response's headers arrive, from the upstream or from Envoy.
    pub fn response_headers(&self, host: &mut Host<'_>, whole: bool) {
        test_faults::trip("response");
        let Some(shard) = self.shard.get() else { return };
        shard.keep_time();
        let is_settled = {
            let mut exchange = self.state.exchange();
            if exchange.is_uncounted() {
                return;
            }
            exchange.response_begins();
            if exchange.admission().is_none() {
                return;
            }
            exchange.is_settled()
        };
        let upstream = ResponseFacts::new(host);
        if !is_settled {
            shard.work(|driver, now| {
                self.state.with(|exchange| {
                    driver.response_headers(exchange, &upstream, whole, now);
                    self.reads_response.set(exchange.reads_body());
                });
            });
        }
        let config = self.config.borrow();
        let Some(of) = config.as_deref() else { return };
        let exchange = self.state.exchange();
        let Some(admission) = exchange.admission() else { return };
        let headers =
            response::response_headers(of, &admission.standings, &upstream, response_time);
        drop(upstream);
        if let Some(headers) = headers {
            let mut scratch = SCRATCH.take();
            headers.write(&mut scratch, |how, name, value| {
                host.write_response_header(how, name, value);
            });
            SCRATCH.set(scratch);
        }
        drop((exchange, config));
        self.release_config(host);
    }

    /// Lets go of the configuration if nothing is left to do by it: what the access log shows is
    /// written before.
    fn release_config(&self, host: &Host<'_>) {
        if self.state.with(|exchange| exchange.release_config()) {
            self.note(host);
        }
    }

    /// Shows the decision in the access log, and lets go of the configuration.
    fn note(&self, host: &Host<'_>) {
        self.state.with(|exchange| {
            if let Some(config) = self.config.borrow().as_deref()
                && let Some(decision) = exchange.decision()
                && let Some(entry) = access_log::entry(config, decision)
            {
                host.note(&entry);
            }
        });
        // A hook of the request still has it if Envoy ends the stream while the module answers it.
        if let Ok(mut config) = self.config.try_borrow_mut() {
            config.take();
        }
    }

    /// A piece of the response's body arrives.
    pub fn response_body(&self, host: &Host<'_>, end: bool) {
        let Some(shard) = self.shard.get() else { return };
        shard.keep_time();
        if !self.reads_response.get() {
            return;
        }
        host.response_body(|chunk| self.state.with(|exchange| exchange.body(chunk)));
        if end {
            self.settle(shard, |driver, exchange, now| {
                driver.response_ends(exchange, &ResponseFacts::new(host), now);
            });
            self.release_config(host);
        }
    }

    /// The response's trailers arrive.
    pub fn response_trailers(&self, host: &Host<'_>) {
        if let Some(shard) = self.shard.get() {
            self.settle(shard, |driver, exchange, now| {
                driver.response_trailers(exchange, &ResponseFacts::new(host), now);
            });
            self.release_config(host);
        }
    }

    /// The stream is over, and Envoy writes the access log next.
    pub fn complete(&self, host: &Host<'_>) {
        let Some(shard) = self.shard.get() else { return };
        // Before anything that may panic.
        let is_last = shard.stream_ends();
        test_faults::trip("complete");
        shard.keep_time();
        if !self.state.with(|exchange| exchange.is_uncounted()) {
            self.complete_counted(host, shard);
        }
        shard.write_metrics(host, self.setup.metrics(), is_last);
    }

    fn complete_counted(&self, host: &Host<'_>, shard: &Arc<Shard>) {
        let redirected = self.state.with(|exchange| exchange.redirected(|| host.is_redirected()));
        if let Some(admission) = redirected {
            shard.redirect(host, admission);
        }
        self.end(shard, &ResponseFacts::new(host));
        self.note(host);
    }

    /// Envoy destroys the stream.
    pub fn destroy(&self) {
        let waiter = self.state.waiter();
        // Before anything that may panic: nothing may wait for this stream's wake.
        waiter.inspect(|waiter| waiter.forget());
        let Some(shard) = self.shard.get() else { return };
        if waiter.is_none() {
            return self.end(shard, &());
        }
        guard("destruction of a stream", (), || self.end(shard, &()));
        // Last: a decision that comes before `end` must find the stream.
        shard.leaves(&self.state);
    }

    /// Does what a part of the response needs, unless the request is settled.
    fn settle(
        &self,
        shard: &Arc<Shard>,
        part: impl FnOnce(&mut StreamDriver, &mut Exchange, Monotonic),
    ) {
        if !self.state.with(|exchange| exchange.is_settled()) {
            shard.work(|driver, now| self.state.with(|exchange| part(driver, exchange, now)));
        }
    }

    fn end(&self, shard: &Arc<Shard>, response: &impl Upstream) {
        self.settle(shard, |driver, exchange, now| {
            driver.end(&self.state.number, exchange, response, now);
        });
    }
}

/// The module failed to decide the request. It is answered, or shall go on.
pub fn failed(host: &mut Host<'_>, config: &Config) -> Action {
    apply(driver::Action::undecided(config), host)
}

fn apply(action: driver::Action<'_>, host: &mut Host<'_>) -> Action {
    match action {
        driver::Action::Continue(mark) => {
            if let Some(mark) = mark {
                guard("mark", (), || host.mark(&mark));
            }
            Action::Continue
        }
        driver::Action::Hold => Action::Hold,
        driver::Action::Read => {
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

/// Resumes or answers a stream that was held.
fn carry_out(host: &mut Host<'_>, waiter: &Waiter, config: &Config) {
    let action = guard("decision", None, || {
        test_faults::trip("carry_out");
        Some(driver::Action::on_decision(&waiter.exchange(), config, response_time))
    });
    if apply(action.unwrap_or_else(|| driver::Action::undecided(config)), host) == Action::Continue
    {
        host.resume_request();
    }
}
