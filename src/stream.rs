//! One request: reads its facts, submits it to the worker, and carries out the decision.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use quotagate_quota::access_log;
use quotagate_quota::config::Config;
use quotagate_quota::driver::{self, Arriving, ClientMark, Driver, RequestBody};
use quotagate_quota::exchange::{Arrival, Exchange};
use quotagate_quota::response::response_headers;
use quotagate_quota::time::Monotonic;

use crate::facts::Facts;
use crate::host::{self, Body};
use crate::plugin::{Plugin, Waiting};

/// The context of one request.
pub struct Stream {
    plugin: Rc<Plugin>,
    who: Waiting,
}

impl Stream {
    /// The context `id` of a request served by `plugin`.
    pub fn new(id: u32, plugin: Rc<Plugin>) -> Self {
        Self { plugin, who: Waiting { stream: id, exchange: Rc::default() } }
    }

    fn exchange(&self) -> &RefCell<Exchange> {
        &self.who.exchange
    }

    /// Carries out what became of the request while its own callback runs.
    fn arrived(
        &self,
        arrival: &Arrival,
        config: &Config,
        now: Monotonic,
        is_grpc: impl FnOnce() -> bool,
    ) -> Action {
        let plugin = &self.plugin;
        let action = {
            let exchange = self.exchange().borrow();
            host::note(match arrival {
                Arrival::MissingIdentity(missing) => {
                    access_log::missing_identity(config, missing.policy)
                }
                _ => exchange.decision().and_then(|decided| access_log::entry(config, decided)),
            });
            let time = || plugin.response_time();
            host::carry_out(driver::Action::on_arrival(arrival, &exchange, config, time), is_grpc)
        };
        match arrival {
            Arrival::Waiting | Arrival::Counting if plugin.has_messages(now) => {
                if plugin.schedule_call() {
                    plugin.wake();
                } else {
                    host::run_root(plugin.root, self.who.stream);
                }
            }
            _ => plugin.wake(),
        }
        action
    }

    /// The next piece of the request's body: `size` bytes. Body and trailers wait as long as the
    /// headers do.
    fn request_body(&self, size: usize, end: bool) -> Action {
        if !self.exchange().borrow().is_reading() {
            let waits = self.exchange().borrow().is_waiting();
            return if waits { Action::Pause } else { Action::Continue };
        }
        let plugin = &self.plugin;
        let now = plugin.now();
        plugin.driver.borrow_mut().body_came(&self.who.stream, size, now);
        let pieces = host::pieces(Body::Request, size).map(|piece| (piece, false));
        for (piece, end) in pieces.chain(end.then_some((Vec::new(), true))) {
            if let Some(arrival) = self.read(&piece, end, now) {
                let in_force = self.plugin.config();
                let config = Arc::clone(self.exchange().borrow().config_or(&in_force));
                return self.arrived(&arrival, &config, now, host::is_grpc_request);
            }
        }
        Action::Pause
    }

    fn read(&self, piece: &[u8], end: bool, now: Monotonic) -> Option<Arrival> {
        let mut exchange = self.exchange().borrow_mut();
        let stream = self.who.for_driver(&mut exchange);
        self.plugin.driver.borrow_mut().request_body(stream, piece, end, now)
    }

    /// Does what a part of the response needs, unless the request is settled. `part` returns
    /// whether it refunded units; then the access log entry is written again.
    fn settle(
        &self,
        part: impl FnOnce(&mut Driver<u32, Waiting>, &mut Exchange, Monotonic) -> bool,
    ) {
        if self.exchange().borrow().is_settled() {
            return;
        }
        let plugin = &self.plugin;
        let mut exchange = self.exchange().borrow_mut();
        let mut driver = plugin.driver.borrow_mut();
        if part(&mut driver, &mut exchange, plugin.now())
            && let Some(decision) = exchange.decision()
        {
            host::note(access_log::entry(exchange.config_or(driver.config()), decision));
        }
        drop(driver);
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
        let config = Arc::clone(plugin.driver.borrow_mut().observe_traffic(now));
        let earlier = plugin.driver.borrow_mut().take_redirected(|| plugin.redirects.first());
        let was_marked = config.marks && host::remove_mark();
        let evaluation = config.evaluate_in(plugin.driver.borrow_mut().scratch(), &facts);
        plugin.reading.set(facts.best_reading());
        // The name of the route stays that of the marked request.
        let mark = if was_marked && facts.has_read_route() {
            ClientMark::ChoseRoute
        } else {
            ClientMark::Harmless
        };
        let body = if end { RequestBody::Absent } else { RequestBody::Follows };
        let arriving = Arriving { evaluation, earlier, body, mark };
        let arrival = {
            let mut exchange = self.exchange().borrow_mut();
            let stream = self.who.for_driver(&mut exchange);
            plugin.driver.borrow_mut().arrive(stream, arriving, now)
        };
        self.arrived(&arrival, &config, now, || facts.is_grpc())
    }

    // The file without bodies has no such callbacks: see `xtask/src/build/exports.rs`.
    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        self.request_body(size, end)
    }

    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        self.request_body(0, true)
    }

    fn on_http_response_headers(&mut self, _headers: usize, end: bool) -> Action {
        self.exchange().borrow_mut().response_begins();
        let upstream = host::Response::default();
        self.settle(|driver, exchange, now| driver.response_headers(exchange, &upstream, end, now));
        let mut exchange = self.exchange().borrow_mut();
        if let Some(admission) = exchange.admission() {
            let plugin = &self.plugin;
            let in_force = plugin.config();
            let config = exchange.config_or(&in_force);
            let time = || plugin.response_time();
            if let Some(headers) = response_headers(config, &admission.standings, &upstream, time) {
                headers.write(&mut plugin.scratch.borrow_mut(), host::write_response_header);
            }
        }
        exchange.release_config();
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end: bool) -> Action {
        if self.exchange().borrow().reads_body() {
            let mut exchange = self.exchange().borrow_mut();
            host::pieces(Body::Response, size).for_each(|piece| exchange.body(&piece));
        }
        if end {
            self.settle(|driver, exchange, now| {
                driver.response_ends(exchange, &host::Response::default(), now);
                false
            });
            self.exchange().borrow_mut().release_config();
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _trailers: usize) -> Action {
        self.settle(|driver, exchange, now| {
            driver.response_trailers(exchange, &host::Response::default(), now)
        });
        self.exchange().borrow_mut().release_config();
        Action::Continue
    }
}

impl Context for Stream {
    fn on_done(&mut self) -> bool {
        let plugin = &self.plugin;
        let id = self.who.stream;
        let mut exchange = self.exchange().borrow_mut();
        let redirected = exchange.redirected(host::is_redirected);
        if redirected.is_none() && exchange.is_settled() {
            return true;
        }
        let now = plugin.now();
        let mut driver = plugin.driver.borrow_mut();
        if let Some(admission) = redirected {
            plugin.redirects.keep(id);
            driver.keep_redirected(id, admission, now);
        }
        let held_slots = exchange.admission().is_some_and(|it| !it.slots.is_empty());
        // Envoy writes the access log now.
        driver.end(&id, &mut exchange, &host::Response::default(), now);
        drop((driver, exchange));
        if held_slots && plugin.has_messages(now) {
            // The next request may come before the next tick.
            host::run_root(plugin.root, id);
        } else {
            plugin.wake();
        }
        true
    }
}
