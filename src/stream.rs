//! One request: reads its facts, submits it to the worker, and carries out the decision.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use quotagate_quota::access_log;
use quotagate_quota::answered::Answered;
use quotagate_quota::config::Config;
use quotagate_quota::exchange::{Arrival, Exchange};
use quotagate_quota::response;

use crate::facts::Facts;
use crate::host;
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

    /// Carries out the decision while the request's own callback runs.
    fn carry_out(&self, config: &Config, facts: &Facts) -> Action {
        let exchange = self.exchange.borrow();
        let Some(decision) = exchange.decision() else { return Action::Continue };
        host::note(access_log::entry(config, decision));
        match response::answer(config, decision, || self.plugin.response_time()) {
            None => Action::Continue,
            Some(answer) => {
                host::send(&answer, || facts.is_grpc());
                Action::Pause
            }
        }
    }

    /// Body and trailers wait as long as the headers do.
    fn keep_back(&self) -> Action {
        if self.exchange.borrow().is_waiting() { Action::Pause } else { Action::Continue }
    }

    /// Refunds the held units that the answer does not count, and writes the access log entry
    /// again if there were any.
    fn settle(&self, answered: impl FnOnce(bool) -> Option<Answered>) {
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
        drop(worker);
        plugin.wake();
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _headers: usize, _end: bool) -> Action {
        #[cfg(feature = "panic-hook")]
        crate::panic_hook::trip();
        let plugin = &self.plugin;
        let facts = Facts::new(plugin.reading.get());
        let now = plugin.now();
        let config = Arc::clone(plugin.worker.borrow_mut().arrives(now));
        let earlier = plugin.redirects.take();
        let evaluation = config.evaluate(&facts);
        plugin.reading.set(facts.best_reading());
        let waiting = Waiting { stream: self.id, exchange: Rc::clone(&self.exchange) };
        let arrival = {
            let (mut exchange, mut worker) =
                (self.exchange.borrow_mut(), plugin.worker.borrow_mut());
            let arrival = exchange.arrive(waiting, evaluation, earlier, &mut worker, now);
            match arrival {
                // This form does not read bodies yet.
                Arrival::Reading => {
                    let waiting = Waiting { stream: self.id, exchange: Rc::clone(&self.exchange) };
                    exchange.request_body_late(waiting, &mut worker, now)
                }
                arrival => Some(arrival),
            }
        };
        let action = match arrival {
            None | Some(Arrival::Uncounted | Arrival::Reading) => Action::Continue,
            Some(Arrival::MissingIdentity(missing)) => {
                host::note(access_log::missing_identity(&config, missing.policy));
                host::send(&response::missing_identity(&config, missing.policy), || {
                    facts.is_grpc()
                });
                Action::Pause
            }
            Some(Arrival::Waiting) => {
                host::run_root(plugin.root, self.id);
                return Action::Pause;
            }
            Some(Arrival::Counting) => {
                let action = self.carry_out(&config, &facts);
                host::run_root(plugin.root, self.id);
                return action;
            }
            Some(Arrival::Decided) => self.carry_out(&config, &facts),
        };
        plugin.wake();
        action
    }

    // Envoy calls the next two for a waiting request only if Cargo alone built the module and the
    // plugin sets `allow_on_headers_stop_iteration`: see `host::quotagate_on_request_headers`.
    fn on_http_request_body(&mut self, _size: usize, _end: bool) -> Action {
        self.keep_back()
    }

    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        self.keep_back()
    }

    fn on_http_response_headers(&mut self, _headers: usize, end: bool) -> Action {
        self.exchange.borrow_mut().response_begins();
        let upstream = host::Response::default();
        self.settle(|grpc| upstream.answered(grpc, end));
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

    fn on_http_response_trailers(&mut self, _trailers: usize) -> Action {
        self.settle(|_| Some(host::response_trailers()));
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
            worker.refund(plugin.redirects.keep(self.id, admission), now);
        }
        // Envoy writes the access log now.
        exchange.end(&(), &mut worker, now);
        drop(worker);
        plugin.wake();
        true
    }
}
