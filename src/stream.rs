//! One request: its facts go to the worker, and the worker's decision is carried out on it.

use std::cell::RefCell;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use quotagate_quota::access_log::{self, Entry};
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
    fn decided(&self, decision: Decision) -> Action {
        let answer = response::answer(&self.plugin.config, &decision, || self.plugin.response_time());
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

    /// Gives back the units that were held for the answer, unless they count with this status. Once the units
    /// are settled this does nothing.
    fn answered(&self, status: impl FnOnce() -> Option<u16>) {
        if let Phase::Decided(Decision::Admit(admission)) = &mut *self.phase.borrow_mut()
            && !admission.held.is_empty()
        {
            self.plugin.give_back(admission.answered(status(), &self.plugin.config));
        }
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _headers: usize, _end: bool) -> Action {
        let plugin = &self.plugin;
        let Evaluation { checks, missing } = plugin.config.evaluate(&Facts::default());
        plugin.count_missing(&missing);
        let checks = match checks {
            Ok(checks) if checks.is_empty() => return Action::Continue,
            Ok(checks) => checks,
            Err(missing) => {
                host::send(&response::missing_identity(&plugin.config, missing.policy));
                self.phase.replace(Phase::Unidentified(missing));
                return Action::Pause;
            }
        };
        let waiting = Waiting { stream: self.id, phase: Rc::clone(&self.phase) };
        let submitted = plugin.worker.borrow_mut().submit(waiting, checks, plugin.now());
        match submitted {
            Submitted::Decided(decision) => {
                plugin.wake();
                self.decided(decision)
            }
            Submitted::Waiting(ticket) => {
                self.phase.replace(Phase::Waiting(ticket));
                host::run_root(plugin.root, self.id);
                Action::Pause
            }
            Submitted::Counting(admission) => {
                self.phase.replace(Phase::Decided(Decision::Admit(admission)));
                host::run_root(plugin.root, self.id);
                Action::Continue
            }
        }
    }

    fn on_http_response_headers(&mut self, _headers: usize, _end: bool) -> Action {
        self.answered(host::response_status);
        if let Phase::Decided(Decision::Admit(admission)) = &*self.phase.borrow() {
            let plugin = &self.plugin;
            let time = || plugin.response_time();
            for (name, value) in response::quota_headers(&plugin.config, &admission.standings, time) {
                host::set_response_header(name, &value);
            }
        }
        Action::Continue
    }

    fn on_log(&mut self) {
        // An answer that has not come by now never will.
        self.answered(|| None);
        let config = &self.plugin.config;
        let phase = self.phase.borrow();
        let entry = match &*phase {
            Phase::Decided(decision) => access_log::entry(config, decision),
            Phase::Unidentified(missing) => access_log::missing_identity(config, missing.policy),
            Phase::Uncounted | Phase::Waiting(_) => None,
        };
        for (name, value) in entry.iter().flat_map(Entry::fields) {
            host::set_filter_state(name, &value);
        }
    }
}

impl Context for Stream {
    fn on_done(&mut self) -> bool {
        if let Phase::Waiting(ticket) = *self.phase.borrow() {
            self.plugin.worker.borrow_mut().cancel(ticket, self.plugin.now());
        }
        self.answered(|| None);
        self.plugin.wake();
        true
    }
}
