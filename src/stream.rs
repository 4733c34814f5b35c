//! One request: reads its facts, submits it to the worker, and carries out the decision.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use quotagate_quota::access_log;
use quotagate_quota::answered::Answered;
use quotagate_quota::config::Config;
use quotagate_quota::exchange::{Arrival, Exchange, abandon};
use quotagate_quota::mark;
use quotagate_quota::protocol::OnFailure;
use quotagate_quota::response;
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::Worker;

use crate::facts::Facts;
use crate::host::{self, Body};
use crate::plugin::{Plugin, Waiting};

/// The context of one request.
pub struct Stream {
    id: u32,
    plugin: Rc<Plugin>,
    exchange: Rc<RefCell<Exchange>>,
}

impl Stream {
    /// The context `id` of a request served by `plugin`.
    pub fn new(id: u32, plugin: Rc<Plugin>) -> Self {
        Self { id, plugin, exchange: Rc::default() }
    }

    fn waiting(&self) -> Waiting {
        Waiting { stream: self.id, exchange: Rc::clone(&self.exchange) }
    }

    /// Carries out what became of the request while its own callback runs.
    fn arrived(&self, arrival: Arrival, config: &Config, is_grpc: impl FnOnce() -> bool) -> Action {
        let plugin = &self.plugin;
        let action = match arrival {
            Arrival::Uncounted => Action::Continue,
            Arrival::Reading => {
                plugin.read_body_of(self.waiting());
                host::hold_for_body();
                Action::Pause
            }
            Arrival::MissingIdentity(missing) => {
                host::note(access_log::missing_identity(config, missing.policy));
                host::send(&response::missing_identity(config, missing.policy), is_grpc);
                Action::Pause
            }
            Arrival::Waiting => {
                host::run_root(plugin.root, self.id);
                return Action::Pause;
            }
            Arrival::Counting => {
                let action = self.carry_out(config, is_grpc);
                host::run_root(plugin.root, self.id);
                return action;
            }
            Arrival::Decided => self.carry_out(config, is_grpc),
        };
        plugin.wake();
        action
    }

    /// Carries out the decision while the request's own callback runs.
    fn carry_out(&self, config: &Config, is_grpc: impl FnOnce() -> bool) -> Action {
        let exchange = self.exchange.borrow();
        let Some(decision) = exchange.decision() else { return Action::Continue };
        host::note(access_log::entry(config, decision));
        match response::answer(config, decision, || self.plugin.response_time()) {
            None => {
                if let Some(mark) = mark::exceeded(config, decision) {
                    host::mark(&mark);
                }
                Action::Continue
            }
            Some(answer) => {
                host::send(&answer, is_grpc);
                Action::Pause
            }
        }
    }

    /// The next piece of the request's body: `size` bytes. Body and trailers wait as long as the
    /// headers do.
    fn request_body(&self, size: usize, end: bool) -> Action {
        if !self.exchange.borrow().is_reading() {
            let waits = self.exchange.borrow().is_waiting();
            return if waits { Action::Pause } else { Action::Continue };
        }
        self.plugin.body_came(self.id, size);
        let pieces = host::pieces(Body::Request, size).map(|piece| (piece, false));
        for (piece, end) in pieces.chain(end.then_some((Vec::new(), true))) {
            if let Some(arrival) = self.read(&piece, end) {
                self.plugin.stop_reading(self.id);
                let config = self.plugin.config();
                return self.arrived(arrival, &config, host::is_grpc_request);
            }
        }
        Action::Pause
    }

    fn read(&self, piece: &[u8], end: bool) -> Option<Arrival> {
        let plugin = &self.plugin;
        let mut worker = plugin.worker.borrow_mut();
        let mut exchange = self.exchange.borrow_mut();
        exchange.request_body(self.waiting(), piece, end, &mut worker, plugin.now())
    }

    /// Refunds the held units that the answer does not count, and writes the access log entry
    /// again if there were any. Then does what this part of the response needs.
    fn settle(
        &self,
        answered: impl FnOnce(bool) -> Option<Answered>,
        part: impl FnOnce(&mut Exchange, &mut Worker<Waiting>, Monotonic),
    ) {
        if self.exchange.borrow().is_settled() {
            return;
        }
        let plugin = &self.plugin;
        let mut exchange = self.exchange.borrow_mut();
        let mut worker = plugin.worker.borrow_mut();
        if exchange.answered(answered, &mut worker, plugin.now())
            && let Some(decision) = exchange.decision()
        {
            host::note(access_log::entry(worker.config(), decision));
        }
        part(&mut exchange, &mut worker, plugin.now());
        drop(worker);
        plugin.wake();
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _headers: usize, end: bool) -> Action {
        #[cfg(feature = "panic-hook")]
        crate::panic_hook::trip();
        let plugin = &self.plugin;
        let facts = Facts::new(plugin.reading.get());
        let now = plugin.now();
        let config = Arc::clone(plugin.worker.borrow_mut().arrives(now));
        if config.without_document() == Some(OnFailure::Deny) {
            host::send(&response::unavailable(&config), host::is_grpc_request);
            plugin.wake();
            return Action::Pause;
        }
        let earlier = plugin.redirects.take();
        let was_marked = config.marks && host::remove_mark();
        let evaluation = config.evaluate(&facts);
        plugin.reading.set(facts.best_reading());
        // Of a redirected request, the filter itself set the header.
        if was_marked && earlier.is_none() && facts.has_read_route() {
            host::send(&response::marked_by_client(), || facts.is_grpc());
            return Action::Pause;
        }
        let mut arrival = self.exchange.borrow_mut().arrive(
            self.waiting(),
            evaluation,
            earlier,
            &mut plugin.worker.borrow_mut(),
            now,
        );
        if arrival == Arrival::Reading && end {
            // There is no body.
            arrival = self.read(&[], true).unwrap_or(arrival);
        }
        self.arrived(arrival, &config, || facts.is_grpc())
    }

    // The file without bodies has no such callbacks: see `xtask/src/build/exports.rs`.
    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        self.request_body(size, end)
    }

    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        self.request_body(0, true)
    }

    fn on_http_response_headers(&mut self, _headers: usize, end: bool) -> Action {
        self.exchange.borrow_mut().response_begins();
        let upstream = host::Response::default();
        self.settle(
            |grpc| upstream.answered(grpc, end),
            |exchange, worker, now| exchange.response_headers(&upstream, end, worker, now),
        );
        if let Some(admission) = self.exchange.borrow().admission() {
            let plugin = &self.plugin;
            let config = plugin.config();
            let time = || plugin.response_time();
            for (name, value) in
                response::response_headers(&config, &admission.standings, &upstream, time)
            {
                host::set_response_header(name, &value);
            }
        }
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end: bool) -> Action {
        if self.exchange.borrow().reads_body() {
            let mut exchange = self.exchange.borrow_mut();
            host::pieces(Body::Response, size).for_each(|piece| exchange.body(&piece));
        }
        if end {
            self.settle(
                |_| None,
                |exchange, worker, now| {
                    exchange.response_ends(&host::Response::default(), worker, now);
                },
            );
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _trailers: usize) -> Action {
        self.settle(
            |_| Some(host::response_trailers()),
            |exchange, worker, now| {
                exchange.response_trailers(&host::Response::default(), worker, now);
            },
        );
        Action::Continue
    }
}

impl Context for Stream {
    fn on_done(&mut self) -> bool {
        let plugin = &self.plugin;
        let mut exchange = self.exchange.borrow_mut();
        let redirected = exchange.redirected(host::is_redirected);
        if redirected.is_none() && exchange.is_settled() {
            return true;
        }
        let now = plugin.now();
        let mut worker = plugin.worker.borrow_mut();
        if let Some(admission) = redirected {
            abandon(plugin.redirects.keep(self.id, admission), &mut worker, now);
        }
        if exchange.is_reading() {
            plugin.stop_reading(self.id);
        }
        // Envoy writes the access log now.
        exchange.end(&host::Response::default(), &mut worker, now);
        drop(worker);
        plugin.wake();
        true
    }
}
