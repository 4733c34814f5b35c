//! One request: reads its facts, submits it to the worker, and carries out the decision.

use std::cell::RefCell;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use quotagate_quota::access_log;
use quotagate_quota::answered::Answered;
use quotagate_quota::config::Config;
use quotagate_quota::decision::{Admission, Decision};
use quotagate_quota::evaluate::Evaluation;
use quotagate_quota::response;
use quotagate_quota::worker::Submitted;

use crate::facts::Facts;
use crate::host;
use crate::plugin::Plugin;
use crate::waiting::{Phase, Waiting};

/// The context of one request.
pub struct Stream {
    id: u32,
    plugin: Rc<Plugin>,
    phase: Rc<RefCell<Phase>>,
    /// Whether it has response headers, from the upstream or from Envoy.
    has_response: bool,
}

impl Stream {
    /// The context `id` of a request served by `plugin`.
    pub fn new(id: u32, plugin: Rc<Plugin>) -> Self {
        Self { id, plugin, phase: Rc::new(RefCell::new(Phase::Uncounted)), has_response: false }
    }

    /// Carries out a decision while the request's own callback runs.
    fn decided(&self, decision: Decision, config: &Config) -> Action {
        host::note(access_log::entry(config, &decision));
        let answer = response::answer(config, &decision, || self.plugin.response_time());
        let action = match answer {
            None => Action::Continue,
            Some(answer) => {
                host::send(&answer);
                Action::Pause
            }
        };
        self.phase.replace(Phase::Decided(decision));
        action
    }

    /// Body and trailers wait as long as the headers do.
    fn keep_back(&self) -> Action {
        match *self.phase.borrow() {
            Phase::Waiting(..) => Action::Pause,
            Phase::Uncounted | Phase::Unreached(_) | Phase::Decided(_) => Action::Continue,
        }
    }

    /// Takes the admission if the stream ends because of an internal redirect.
    fn redirected(&self) -> Option<Admission> {
        let is_admitted = matches!(&*self.phase.borrow(), Phase::Decided(Decision::Admit(_)));
        if self.has_response || !is_admitted || !host::is_redirected() {
            return None;
        }
        match self.phase.replace(Phase::Uncounted) {
            Phase::Decided(Decision::Admit(admission)) => Some(admission),
            _ => None,
        }
    }

    /// Refunds the held units that the answer does not count. `answered` reads the answer; its
    /// argument says whether a gRPC status matters. Returns whether there were held units.
    fn settle(&self, answered: impl FnOnce(bool) -> Option<Answered>) -> bool {
        let mut phase = self.phase.borrow_mut();
        let Phase::Decided(Decision::Admit(admission)) = &mut *phase else { return false };
        if admission.held.is_empty() {
            return false;
        }
        let config = self.plugin.config();
        if let Some(answered) = answered(admission.counts_by_grpc(&config)) {
            self.plugin.refund(admission.answered(answered, &config));
        }
        true
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _headers: usize, _end: bool) -> Action {
        #[cfg(feature = "panic-hook")]
        crate::panic_hook::trip();
        let plugin = &self.plugin;
        let facts = Facts::new(plugin.reading.get());
        let now = plugin.now();
        let config = Rc::clone(plugin.worker.borrow_mut().arrives(now));
        let earlier = plugin.redirects.take();
        let Evaluation { checks, missing } = config.evaluate(&facts);
        plugin.reading.set(facts.best_reading());
        plugin.count_missing(&missing);
        let mut checks = match checks {
            Ok(checks) => checks,
            Err(missing) => {
                plugin.refund(earlier.map(|earlier| earlier.held).unwrap_or_default());
                host::note(access_log::missing_identity(&config, missing.policy));
                host::send(&response::missing_identity(&config, missing.policy));
                return Action::Pause;
            }
        };
        if let Some(earlier) = &earlier {
            checks.retain(|check| !earlier.knows(check.policy));
        }
        if checks.is_empty() {
            plugin.wake();
            let Some(earlier) = earlier else { return Action::Continue };
            return self.decided(Decision::Admit(earlier), &config);
        }
        let waiting = Waiting { stream: self.id, phase: Rc::clone(&self.phase) };
        let submitted = plugin.worker.borrow_mut().submit(waiting, checks, now);
        match submitted {
            Submitted::Decided(decision) => {
                plugin.wake();
                self.decided(plugin.join(earlier, decision), &config)
            }
            Submitted::Waiting(ticket) => {
                self.phase.replace(Phase::Waiting(ticket, earlier));
                host::run_root(plugin.root, self.id);
                Action::Pause
            }
            Submitted::Counting(admission) => {
                let decision = plugin.join(earlier, Decision::Admit(admission));
                host::note(access_log::entry(&config, &decision));
                self.phase.replace(Phase::Decided(decision));
                host::run_root(plugin.root, self.id);
                Action::Continue
            }
        }
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
        self.has_response = true;
        let settled = self.settle(|grpc| host::response_headers(grpc, end));
        if let Phase::Decided(decision @ Decision::Admit(admission)) = &*self.phase.borrow() {
            let plugin = &self.plugin;
            let config = plugin.config();
            if settled {
                host::note(access_log::entry(&config, decision));
            }
            let time = || plugin.response_time();
            for (name, value) in
                response::response_headers(&config, &admission.standings, &host::Response, time)
            {
                host::set_response_header(name, &value);
            }
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _trailers: usize) -> Action {
        if self.settle(|_| Some(host::response_trailers()))
            && let Phase::Decided(decision) = &*self.phase.borrow()
        {
            host::note(access_log::entry(&self.plugin.config(), decision));
        }
        Action::Continue
    }
}

impl Context for Stream {
    fn on_done(&mut self) -> bool {
        match &mut *self.phase.borrow_mut() {
            Phase::Waiting(ticket, earlier) => {
                self.plugin.worker.borrow_mut().cancel(*ticket, self.plugin.now());
                self.plugin.abandon(earlier.take());
            }
            Phase::Unreached(held) => self.plugin.refund(std::mem::take(held)),
            Phase::Uncounted | Phase::Decided(_) => {}
        }
        if let Some(admission) = self.redirected() {
            let oldest = self.plugin.redirects.keep(self.id, admission);
            self.plugin.refund(oldest.map(|oldest| oldest.held).unwrap_or_default());
        }
        // No answer can come after this, and Envoy writes the access log now.
        self.settle(|_| Some(Answered::Abandoned));
        self.plugin.wake();
        true
    }
}
