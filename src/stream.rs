//! One request: its facts go to the worker, and the worker's decision is carried out on it.

use std::cell::RefCell;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use quotagate_quota::decision::Admission;
use quotagate_quota::evaluate::MissingIdentity;
use quotagate_quota::response::{self, Answer};
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

    fn answer(&self, answer: &Answer) -> Action {
        self.phase.replace(Phase::Answered);
        host::send(answer);
        Action::Pause
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _headers: usize, _end: bool) -> Action {
        let plugin = &self.plugin;
        let checks = match plugin.config.evaluate(&Facts::default()).checks {
            Ok(checks) if checks.is_empty() => return Action::Continue,
            Ok(checks) => checks,
            Err(MissingIdentity { policy }) => {
                return self.answer(&response::missing_identity(&plugin.config, policy));
            }
        };
        let waiting = Waiting { stream: self.id, phase: Rc::clone(&self.phase) };
        let submitted = plugin.worker.borrow_mut().submit(waiting, checks, plugin.now());
        match submitted {
            Submitted::Decided(decision) => {
                match response::answer(&plugin.config, decision, || plugin.response_time()) {
                    Ok(admission) => {
                        self.phase.replace(Phase::Admitted(admission));
                        Action::Continue
                    }
                    Err(answer) => self.answer(&answer),
                }
            }
            Submitted::Waiting(ticket) => {
                self.phase.replace(Phase::Waiting(ticket));
                host::run_root(plugin.root, self.id);
                Action::Pause
            }
            Submitted::Counting => {
                host::run_root(plugin.root, self.id);
                Action::Continue
            }
        }
    }

    fn on_http_response_headers(&mut self, _headers: usize, _end: bool) -> Action {
        if let Phase::Admitted(Admission { standings, .. }) = &*self.phase.borrow() {
            let headers =
                response::quota_headers(&self.plugin.config, standings, self.plugin.response_time());
            for (name, value) in &headers {
                host::set_response_header(name, value);
            }
        }
        Action::Continue
    }
}

impl Context for Stream {
    fn on_done(&mut self) -> bool {
        if let Phase::Waiting(ticket) = *self.phase.borrow() {
            self.plugin.worker.borrow_mut().cancel(ticket);
        }
        true
    }
}
