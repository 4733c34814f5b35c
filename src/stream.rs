//! One request: its facts go to the worker, and the worker's decision is carried out on it.

use std::cell::RefCell;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use quotagate_quota::access_log;
use quotagate_quota::answered::Answered;
use quotagate_quota::config::Config;
use quotagate_quota::decision::Decision;
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
}

impl Stream {
    /// The context `id` of a request served by `plugin`.
    pub fn new(id: u32, plugin: Rc<Plugin>) -> Self {
        Self { id, plugin, phase: Rc::new(RefCell::new(Phase::Uncounted)) }
    }

    /// Carries out what is decided while the request's own callback runs.
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

    /// What follows the headers waits as long as they do.
    fn keep_back(&self) -> Action {
        match *self.phase.borrow() {
            Phase::Waiting(_) => Action::Pause,
            Phase::Uncounted | Phase::Unreached(_) | Phase::Decided(_) => Action::Continue,
        }
    }

    /// Settles the units that are held for the answer: refunds those that do not count with it. `answered` says how it
    /// is answered; its argument, whether a gRPC status matters. Returns whether any were held.
    fn settle(&self, answered: impl FnOnce(bool) -> Option<Answered>) -> bool {
        let mut phase = self.phase.borrow_mut();
        let Phase::Decided(Decision::Admit(admission)) = &mut *phase else { return false };
        if admission.held.is_empty() {
            return false;
        }
        let config = self.plugin.config();
        if let Some(answered) = answered(admission.counts_by_grpc(&config)) {
            self.plugin.give_back(admission.answered(answered, &config));
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
        let Evaluation { checks, missing } = config.evaluate(&facts);
        plugin.reading.set(facts.best_reading());
        plugin.count_missing(&missing);
        let checks = match checks {
            Ok(checks) if checks.is_empty() => {
                plugin.wake();
                return Action::Continue;
            }
            Ok(checks) => checks,
            Err(missing) => {
                host::note(access_log::missing_identity(&config, missing.policy));
                host::send(&response::missing_identity(&config, missing.policy));
                return Action::Pause;
            }
        };
        let waiting = Waiting { stream: self.id, phase: Rc::clone(&self.phase) };
        let submitted = plugin.worker.borrow_mut().submit(waiting, checks, now);
        match submitted {
            Submitted::Decided(decision) => {
                plugin.wake();
                self.decided(decision, &config)
            }
            Submitted::Waiting(ticket) => {
                self.phase.replace(Phase::Waiting(ticket));
                host::run_root(plugin.root, self.id);
                Action::Pause
            }
            Submitted::Counting(admission) => {
                let decision = Decision::Admit(admission);
                host::note(access_log::entry(&config, &decision));
                self.phase.replace(Phase::Decided(decision));
                host::run_root(plugin.root, self.id);
                Action::Continue
            }
        }
    }

    // Envoy calls the next two of a request that waits only in a module that Cargo alone has built, and only with
    // `allow_on_headers_stop_iteration`: see `host::quotagate_on_request_headers`.
    fn on_http_request_body(&mut self, _size: usize, _end: bool) -> Action {
        self.keep_back()
    }

    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        self.keep_back()
    }

    fn on_http_response_headers(&mut self, _headers: usize, end: bool) -> Action {
        let settled = self.settle(|grpc| host::response_headers(grpc, end));
        if let Phase::Decided(decision @ Decision::Admit(admission)) = &*self.phase.borrow() {
            let plugin = &self.plugin;
            let config = plugin.config();
            if settled {
                host::note(access_log::entry(&config, decision));
            }
            let time = || plugin.response_time();
            for (name, value) in response::quota_headers(&config, &admission.standings, time) {
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
            Phase::Waiting(ticket) => self.plugin.worker.borrow_mut().cancel(*ticket, self.plugin.now()),
            Phase::Unreached(held) => self.plugin.give_back(std::mem::take(held)),
            Phase::Uncounted | Phase::Decided(_) => {}
        }
        // What has not come by now never will, and the access log is written.
        self.settle(|_| Some(Answered::Abandoned));
        self.plugin.wake();
        true
    }
}
