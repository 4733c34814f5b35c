//! One request: its facts go to the worker, and the worker's decision is carried out on it.

use std::cell::RefCell;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use quotagate_quota::decision::{Decision, Standing};
use quotagate_quota::evaluate::Evaluation;
use quotagate_quota::response::{self, Answer};
use quotagate_quota::worker::{Submitted, Ticket};

use crate::facts::Facts;
use crate::host;
use crate::root::Plugin;

/// The context of one request.
pub struct Stream {
    id: u32,
    plugin: Rc<Plugin>,
    phase: Rc<RefCell<Phase>>,
}

/// How far a request is.
#[derive(Debug)]
enum Phase {
    /// Not counted, or not yet.
    Uncounted,
    /// Paused.
    Waiting(Ticket),
    /// Let through; its response says where it stands.
    Admitted(Vec<Standing>),
    /// Answered by the filter.
    Answered,
}

/// How the root finds a paused request.
pub struct Waiting {
    stream: u32,
    phase: Rc<RefCell<Phase>>,
}

impl Waiting {
    /// Carries out what became of the request, from a callback of the root.
    pub fn carry_out(self, decision: Decision, plugin: &Plugin) {
        // A stream that is gone needs nothing, and whatever is active instead must not get it.
        if !host::enter(self.stream) {
            return;
        }
        match response::answer(&plugin.config, &decision, plugin.response_time()) {
            Some(answer) => {
                self.phase.replace(Phase::Answered);
                host::send(&answer);
            }
            None => {
                self.phase.replace(admitted(decision));
                host::resume_request();
            }
        }
    }
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
        let checks = match plugin.config.evaluate(&Facts) {
            Evaluation::Checks(checks) if checks.is_empty() => return Action::Continue,
            Evaluation::Checks(checks) => checks,
            Evaluation::MissingIdentity { policy } => {
                return self.answer(&response::missing_identity(&plugin.config, policy));
            }
        };
        let waiting = Waiting { stream: self.id, phase: Rc::clone(&self.phase) };
        let submitted = plugin.worker.borrow_mut().submit(waiting, checks, plugin.now());
        match submitted {
            Submitted::Decided(decision) => {
                match response::answer(&plugin.config, &decision, plugin.response_time()) {
                    Some(answer) => self.answer(&answer),
                    None => {
                        self.phase.replace(admitted(decision));
                        Action::Continue
                    }
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
        if let Phase::Admitted(standings) = &*self.phase.borrow() {
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

fn admitted(decision: Decision) -> Phase {
    match decision {
        Decision::Admit(standings) => Phase::Admitted(standings),
        Decision::Refuse(_) | Decision::Unavailable => Phase::Uncounted,
    }
}
